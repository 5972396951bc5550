//! The proxies that there is a profile for. Each names the headers that the proxy writes itself.

use hyper::StatusCode;

use super::profile::{ClientSource, Profile, RequestSource};

/// Every profile.
pub(super) static PROFILES: [&Profile; 5] = [&NGINX, &TRAEFIK, &CADDY, &ENVOY, &HAPROXY];

/// nginx, by its module `auth_request`.
///
/// | read | written by |
/// |---|---|
/// | `X-Original-Method` | `proxy_set_header .. $request_method` of the configuration we ship |
/// | `X-Original-URI` | `proxy_set_header .. $request_uri` |
/// | `X-Real-IP` | `proxy_set_header .. $remote_addr` |
///
/// `proxy_set_header` replaces what the client has sent under the name. `X-Forwarded-*` is not read:
/// nginx passes it on as it comes.
static NGINX: Profile = Profile {
    name: "nginx",
    method: RequestSource::Header("x-original-method"),
    target: RequestSource::Header("x-original-uri"),
    client: ClientSource::Header("x-real-ip"),
    // It knows 2xx, 401 and 403; all else is an error to it.
    denied_as: Some(StatusCode::FORBIDDEN),
    example: "examples/proxies/nginx/tollbar.conf",
};

/// Traefik, by its middleware `ForwardAuth`.
///
/// | read | written by |
/// |---|---|
/// | `X-Forwarded-Method` | Traefik, over what the client has sent |
/// | `X-Forwarded-Uri` | likewise |
/// | `X-Forwarded-For` | likewise; with `trustForwardHeader` it is appended to, so the right end is read |
///
/// With `trustForwardHeader: true` the first two are whatever came in, so entry points must take them
/// from nobody but a proxy in front (`forwardedHeaders.trustedIPs`). `X-Real-Ip` and `X-Original-*` are
/// not read: Traefik passes them on as they come.
static TRAEFIK: Profile = Profile {
    name: "traefik",
    method: RequestSource::Header("x-forwarded-method"),
    target: RequestSource::Header("x-forwarded-uri"),
    client: ClientSource::ForwardedFor,
    denied_as: None,
    example: "examples/proxies/traefik/dynamic.yaml",
};

/// Caddy, by its directive `forward_auth` or by `reverse_proxy` with `handle_response`.
///
/// | read | written by |
/// |---|---|
/// | `X-Forwarded-Method` | `header_up .. {method}`, over what the client has sent |
/// | `X-Forwarded-Uri` | `header_up .. {uri}`, likewise |
/// | `X-Forwarded-For` | Caddy; with `trusted_proxies` it is appended to, so the right end is read |
///
/// `X-Real-Ip` and `X-Original-*` are not read: Caddy passes them on as they come.
static CADDY: Profile = Profile {
    name: "caddy",
    method: RequestSource::Header("x-forwarded-method"),
    target: RequestSource::Header("x-forwarded-uri"),
    client: ClientSource::ForwardedFor,
    denied_as: None,
    example: "examples/proxies/caddy/Caddyfile",
};

/// Envoy, by its filter `ext_authz` over HTTP.
///
/// | read | written by |
/// |---|---|
/// | the method of the question | Envoy: it is the original one |
/// | the path behind `/v1/forward-auth/envoy` | Envoy: `path_prefix` and the original one |
/// | `X-Real-IP` | `headers_to_add .. %DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%` of the configuration we ship |
///
/// Envoy sends no header of the client's that is not in `allowed_headers`, and `headers_to_add` replaces.
/// `X-Forwarded-For` is not read: without `use_remote_address` it is the client's own, and that cannot be
/// seen from here. `X-Envoy-External-Address` is not there for clients with private addresses.
pub(super) static ENVOY: Profile = Profile {
    name: "envoy",
    method: RequestSource::Request,
    target: RequestSource::Request,
    client: ClientSource::Header("x-real-ip"),
    denied_as: None,
    example: "examples/proxies/envoy/envoy.yaml",
};

/// `HAProxy`, by the Lua action that we ship.
///
/// | read | written by |
/// |---|---|
/// | `X-Original-Method` | the action, by the fetch `method` |
/// | `X-Original-URI` | the action, by the fetch `pathq` |
/// | `X-Real-IP` | the action, by the fetch `src` |
///
/// The action makes a request of its own, in which nothing is the client's but `X-Api-Key`,
/// `Authorization` and `Accept`.
static HAPROXY: Profile = Profile {
    name: "haproxy",
    method: RequestSource::Header("x-original-method"),
    target: RequestSource::Header("x-original-uri"),
    client: ClientSource::Header("x-real-ip"),
    denied_as: None,
    example: "examples/proxies/haproxy/tollbar.lua",
};
