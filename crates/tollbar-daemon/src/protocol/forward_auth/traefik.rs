//! Traefik, by its middleware `ForwardAuth`.
//!
//! | read | written by |
//! |---|---|
//! | `X-Forwarded-Method` | Traefik, over what the client has sent |
//! | `X-Forwarded-Uri` | likewise |
//! | `X-Forwarded-For` | likewise; with `trustForwardHeader` it is appended to, so the right end is read |
//!
//! With `trustForwardHeader: true` the first two are whatever came in, so entry points must take them
//! from nobody but a proxy in front (`forwardedHeaders.trustedIPs`). `X-Real-Ip` and `X-Original-*` are
//! not read: Traefik passes them on as they come.

use super::profile::{Client, Profile, Source};

pub(super) static PROFILE: Profile = Profile {
    name: "traefik",
    method: Source::Header("x-forwarded-method"),
    target: Source::Header("x-forwarded-uri"),
    client: Client::ForwardedFor,
    denied_as: None,
    example: "examples/proxies/traefik/dynamic.yaml",
};
