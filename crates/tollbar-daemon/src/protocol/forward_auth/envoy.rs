//! Envoy, by its filter `ext_authz` over HTTP.
//!
//! | read | written by |
//! |---|---|
//! | the method of the question | Envoy: it is the original one |
//! | the path behind `/v1/forward-auth/envoy` | Envoy: `path_prefix` and the original one |
//! | `X-Real-IP` | `headers_to_add .. %DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%` of the configuration we ship |
//!
//! Envoy sends no header of the client's that is not in `allowed_headers`, and `headers_to_add` replaces.
//! `X-Forwarded-For` is not read: without `use_remote_address` it is the client's own, and that cannot be
//! seen from here. `X-Envoy-External-Address` is not there for clients with private addresses.

use super::profile::{Client, Profile, Source};

pub(super) static PROFILE: Profile = Profile {
    name: "envoy",
    method: Source::Request,
    target: Source::Request,
    client: Client::Header("x-real-ip"),
    denied_as: None,
    example: "examples/proxies/envoy/envoy.yaml",
};
