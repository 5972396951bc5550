//! What Envoy is told: which descriptors it sends for which paths, and to whom.

/// Where things are, and what follows when the daemon is gone.
pub(crate) struct EnvoyConfig<'a> {
    pub(crate) upstream: &'a str,
    pub(crate) tollbar: &'a str,
    pub(crate) domain: &'a str,
    pub(crate) failure_mode_deny: bool,
}

const CONFIG: &str = r#"
admin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }
static_resources:
  listeners:
    - name: in
      address: { socket_address: { address: 127.0.0.1, port_value: 0 } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: in
                http_filters:
                  - name: envoy.filters.http.set_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
                      metadata:
                        - metadata_namespace: brought
                          value: { limit: { requests_per_unit: 2, unit: DAY } }
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: DOMAIN
                      failure_mode_deny: FAILURE_MODE_DENY
                      timeout: 5s
                      enable_x_ratelimit_headers: DRAFT_VERSION_03
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: { envoy_grpc: { cluster_name: tollbar } }
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: { prefix: /address }
                          route:
                            cluster: upstream
                            rate_limits: [{ actions: [{ remote_address: {} }] }]
                        - match: { prefix: /user }
                          route:
                            cluster: upstream
                            rate_limits:
                              - actions: [{ request_headers: { header_name: x-user, descriptor_key: user } }]
                        - match: { prefix: /both }
                          route:
                            cluster: upstream
                            rate_limits:
                              - actions: [{ request_headers: { header_name: x-user, descriptor_key: user } }]
                              - actions:
                                  - { generic_key: { descriptor_key: plan, descriptor_value: free } }
                                  - { request_headers: { header_name: ":path", descriptor_key: path } }
                        - match: { prefix: /costly }
                          route: { cluster: upstream }
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              rate_limits:
                                - actions: [{ request_headers: { header_name: x-user, descriptor_key: user } }]
                                  hits_addend: { number: 4 }
                        - match: { prefix: /refund }
                          route: { cluster: upstream }
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              rate_limits:
                                - actions: [{ request_headers: { header_name: x-user, descriptor_key: user } }]
                                  hits_addend: { number: 4, is_negative_hits: true }
                        - match: { prefix: /brought }
                          route:
                            cluster: upstream
                            rate_limits:
                              - actions: [{ request_headers: { header_name: x-user, descriptor_key: user } }]
                                limit:
                                  dynamic_metadata:
                                    metadata_key: { key: brought, path: [{ key: limit }] }
                        - match: { prefix: /quota }
                          route:
                            cluster: upstream
                            rate_limits:
                              - actions: [{ generic_key: { descriptor_key: model, descriptor_value: small } }]
                              - actions: [{ generic_key: { descriptor_key: model, descriptor_value: large } }]
                        - match: { prefix: /generic }
                          route:
                            cluster: upstream
                            rate_limits:
                              - actions:
                                  - { generic_key: { descriptor_value: one } }
                                  - { generic_key: { descriptor_value: other } }
                        - match: { prefix: /huge }
                          route:
                            cluster: upstream
                            rate_limits:
                              - actions: [{ request_headers: { header_name: x-user, descriptor_key: a } }]
                              - actions: [{ request_headers: { header_name: x-user, descriptor_key: b } }]
                              - actions: [{ request_headers: { header_name: x-user, descriptor_key: c } }]
                              - actions: [{ request_headers: { header_name: x-user, descriptor_key: d } }]
                              - actions: [{ request_headers: { header_name: x-user, descriptor_key: e } }]
                              - actions: [{ request_headers: { header_name: x-user, descriptor_key: f } }]
                        - match: { prefix: /all }
                          route:
                            cluster: upstream
                            rate_limits:
                              - actions: [{ remote_address: {} }]
                              - actions: [{ request_headers: { header_name: x-user, descriptor_key: user } }]
                        - match: { prefix: /login }
                          route:
                            cluster: upstream
                            rate_limits:
                              - actions:
                                  - { remote_address: {} }
                                  - { request_headers: { header_name: ":method", descriptor_key: ":method" } }
                                  - { request_headers: { header_name: ":path", descriptor_key: ":path" } }
                        - match: { prefix: / }
                          route: { cluster: upstream }
  clusters:
    - name: upstream
      type: STATIC
      load_assignment:
        cluster_name: upstream
        endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: UPSTREAM } } } }] }]
    - name: tollbar
      type: STATIC
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
      load_assignment:
        cluster_name: tollbar
        endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: TOLLBAR } } } }] }]
"#;

impl EnvoyConfig<'_> {
    pub(crate) fn yaml(&self) -> String {
        let port = |address: &str| address.rsplit(':').next().unwrap().to_owned();
        CONFIG
            .replace("DOMAIN", self.domain)
            .replace("FAILURE_MODE_DENY", &self.failure_mode_deny.to_string())
            .replace("UPSTREAM", &port(self.upstream))
            .replace("TOLLBAR", &port(self.tollbar))
    }
}
