//! Envoy's filter `ext_authz` over gRPC, `envoy.service.auth.v3.Authorization/Check`: forward-auth for a proxy that
//! sends the request it holds as a message.
//!
//! A call is always answered with a decision. Under `failure_mode_allow` Envoy lets pass what is answered with an error,
//! so what cannot be decided is denied.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use prost::Message;
use tollbar_http::Format;
use tollbar_proto::envoy::config::core::v3::address::Address;
use tollbar_proto::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use tollbar_proto::envoy::config::core::v3::{HeaderValue as EnvoyHeader, HeaderValueOption};
use tollbar_proto::envoy::rpc;
use tollbar_proto::envoy::service::auth::v3::attribute_context::HttpRequest;
use tollbar_proto::envoy::service::auth::v3::authorization_server::{
    Authorization, AuthorizationServer,
};
use tollbar_proto::envoy::service::auth::v3::check_response::HttpResponse;
use tollbar_proto::envoy::service::auth::v3::{
    AttributeContext, CheckRequest, CheckResponse, DeniedHttpResponse, OkHttpResponse,
};
use tollbar_proto::envoy::r#type::v3::HttpStatus;
use tonic::{Code, Request, Response, Status};

use super::profiles::ENVOY;
use super::{ForwardAuth, ForwardedRequest, ProxyTrust, format_of};
use crate::daemon::Daemon;
use crate::protocol::envoy::{DeniedMethod, DenyingService};
use crate::protocol::grpc::{Caller, MESSAGE_BYTES_MAX};
use crate::protocol::http::{ApiResponse, Refusal};

/// The one method of the service.
pub(crate) const METHOD: &str = "/envoy.service.auth.v3.Authorization/Check";

/// The service. A clone of it is the same one.
#[derive(Debug, Clone)]
pub struct ExtAuthz {
    forward_auth: Arc<ForwardAuth>,
    /// Headers that say who asks or what it costs, where Envoy sets them.
    named_headers: Arc<[HeaderName]>,
}

#[tonic::async_trait]
impl Authorization for ExtAuthz {
    async fn check(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        let caller = request.extensions().get::<Caller>().copied();
        let caller = caller.ok_or_else(|| Status::internal("a call has a caller"))?;
        Ok(Response::new(self.answer(request.into_inner(), caller).await))
    }
}

impl ExtAuthz {
    pub fn new(daemon: Arc<Daemon>, trust: Arc<ProxyTrust>) -> Self {
        let named_headers = trust.gateway_identity().trusted_headers().cloned().collect();
        Self { forward_auth: Arc::new(ForwardAuth::new(daemon, trust)), named_headers }
    }

    /// Returns the handle that counts calls.
    pub(crate) fn daemon(&self) -> &Arc<Daemon> {
        &self.forward_auth.daemon
    }

    /// As a service of a gRPC server.
    pub(crate) fn into_service(self) -> DenyingService<AuthorizationServer<Self>> {
        let daemon = Arc::clone(self.daemon());
        let denial = || {
            let refusal = Refusal::bad_request("this request cannot be checked against its limits");
            denied(&refusal.answer(Format::Json)).encode_to_vec()
        };
        let service = AuthorizationServer::new(self);
        DenyingService::new(
            service.max_decoding_message_size(MESSAGE_BYTES_MAX),
            DeniedMethod { path: METHOD, daemon, denial },
        )
    }

    /// Answers a call. It is always a decision.
    pub(super) async fn answer(&self, request: CheckRequest, caller: Caller) -> CheckResponse {
        let (mut head, ()) = hyper::Request::new(()).into_parts();
        match self.check_held(request, caller, &mut head).await {
            Ok(answer) if answer.status() == StatusCode::OK => {
                allowed(&answer, self.unusable_headers(&head.headers))
            }
            Ok(answer) => denied(&answer),
            Err(refusal) => {
                self.daemon().reject(&refusal.0.detail);
                denied(&refusal.answer(format_of(&head.headers)))
            }
        }
    }

    /// Checks the request that Envoy holds. Its headers are put into `head`.
    async fn check_held(
        &self,
        request: CheckRequest,
        caller: Caller,
        head: &mut Parts,
    ) -> Result<ApiResponse, Refusal> {
        let forward_auth = &*self.forward_auth;
        let source = source_address(request.attributes.as_ref())?;
        let http = request.attributes.and_then(|attributes| attributes.request?.http);
        let http = http.ok_or_else(|| lacks("attributes.request.http"))?;
        self.read_headers(&http, &mut head.headers)?;
        forward_auth.expect_trusted(caller.peer)?;
        if http.method.is_empty() || http.path.is_empty() {
            return Err(lacks("attributes.request.http.method and path"));
        }
        let client = forward_auth.trust.chain.of(source, &head.headers);
        let client = client.ok_or_else(|| lacks("attributes.source.address"))?;
        let forwarded =
            ForwardedRequest { profile: &ENVOY, method: http.method, target: http.path, client };
        // A wait that took all of the call's time would end as an error, which may let the request pass.
        let max_wait = forward_auth.daemon.queue_waiters.max_wait().min(caller.time / 2);
        forward_auth.decide(forwarded, head, max_wait).await
    }

    /// Reads the headers of the held request: `header_map`, which Envoy sends if `encode_raw_headers` is set, or
    /// `headers`, in which lines of one name are joined by commas.
    fn read_headers(&self, http: &HttpRequest, headers: &mut HeaderMap) -> Result<(), Refusal> {
        for EnvoyHeader { key, value, raw_value } in
            http.header_map.iter().flat_map(|map| &map.headers)
        {
            let value = if raw_value.is_empty() { value.as_bytes() } else { raw_value };
            append(headers, key, value)?;
        }
        for (key, value) in &http.headers {
            if self.named_headers.iter().any(|named| named == key.as_str()) {
                // A header that Envoy sets has one value. With a comma in it, it may be two lines, one of them the
                // client's.
                for line in value.split(',') {
                    append(headers, key, line.trim().as_bytes())?;
                }
            } else {
                append(headers, key, value.as_bytes())?;
            }
        }
        if !headers.contains_key(HOST) && !http.host.is_empty() {
            append(headers, HOST.as_str(), http.host.as_bytes())?;
        }
        Ok(())
    }

    /// Returns the named headers that were ignored because they are there twice. The upstream must not believe them
    /// either.
    fn unusable_headers(&self, headers: &HeaderMap) -> Vec<String> {
        let named = self.named_headers.iter();
        let unusable = named.filter(|name| headers.get_all(*name).iter().nth(1).is_some());
        unusable.map(ToString::to_string).collect()
    }
}

/// The address that Envoy's client connects from; `None` for a Unix socket. Anything else is refused: without an
/// address, `X-Forwarded-For` would be the client's word.
fn source_address(attributes: Option<&AttributeContext>) -> Result<Option<IpAddr>, Refusal> {
    let source = attributes.and_then(|attributes| attributes.source.as_ref()?.address.as_ref());
    match source.and_then(|source| source.address.as_ref()) {
        Some(Address::Pipe(_)) => Ok(None),
        Some(Address::SocketAddress(socket)) if let Ok(address) = socket.address.parse() => {
            Ok(Some(address))
        }
        _ => Err(lacks("attributes.source.address")),
    }
}

/// Adds one line. Pseudo-headers are no headers here.
fn append(headers: &mut HeaderMap, name: &str, value: &[u8]) -> Result<(), Refusal> {
    if name.starts_with(':') {
        return Ok(());
    }
    let unreadable = || Refusal::bad_request("a header of the request cannot be read");
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unreadable())?;
    let value = HeaderValue::from_bytes(value).map_err(|_| unreadable())?;
    headers.try_append(name, value).map(drop).map_err(|_| unreadable())
}

fn lacks(what: &str) -> Refusal {
    Refusal::bad_request(format!(
        "the call lacks {what}: ask as Envoy's filter ext_authz does with a grpc_service"
    ))
}

fn allowed(answer: &ApiResponse, headers_to_remove: Vec<String>) -> CheckResponse {
    let ok = OkHttpResponse {
        response_headers_to_add: header_options(answer),
        headers_to_remove,
        ..OkHttpResponse::default()
    };
    response(Code::Ok, HttpResponse::OkResponse(ok))
}

fn denied(answer: &ApiResponse) -> CheckResponse {
    let denied = DeniedHttpResponse {
        status: Some(HttpStatus { code: answer.status().as_u16().into() }),
        headers: header_options(answer),
        body: String::from_utf8_lossy(answer.body()).into_owned(),
    };
    response(Code::PermissionDenied, HttpResponse::DeniedResponse(denied))
}

fn response(code: Code, http_response: HttpResponse) -> CheckResponse {
    let status = rpc::Status { code: code.into(), ..rpc::Status::default() };
    let http_response = Some(http_response);
    CheckResponse { status: Some(status), http_response, ..CheckResponse::default() }
}

/// The headers of an answer. Each replaces what the upstream has sent under its name.
fn header_options(answer: &ApiResponse) -> Vec<HeaderValueOption> {
    let option = |(name, value): (&HeaderName, &HeaderValue)| HeaderValueOption {
        header: Some(EnvoyHeader {
            key: name.to_string(),
            value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
            ..EnvoyHeader::default()
        }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    };
    answer.headers().iter().map(option).collect()
}
