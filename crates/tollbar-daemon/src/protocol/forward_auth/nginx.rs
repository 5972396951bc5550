//! nginx, by its module `auth_request`.
//!
//! | read | written by |
//! |---|---|
//! | `X-Original-Method` | `proxy_set_header .. $request_method` of the configuration we ship |
//! | `X-Original-URI` | `proxy_set_header .. $request_uri` |
//! | `X-Real-IP` | `proxy_set_header .. $remote_addr` |
//!
//! `proxy_set_header` replaces what the client has sent under the name. `X-Forwarded-*` is not read:
//! nginx passes it on as it comes.

use hyper::StatusCode;

use super::profile::{Client, Profile, Source};

pub(super) static PROFILE: Profile = Profile {
    name: "nginx",
    method: Source::Header("x-original-method"),
    target: Source::Header("x-original-uri"),
    client: Client::Header("x-real-ip"),
    // It knows 2xx, 401 and 403; all else is an error to it.
    denied_as: Some(StatusCode::FORBIDDEN),
    example: "examples/proxies/nginx/tollbar.conf",
};
