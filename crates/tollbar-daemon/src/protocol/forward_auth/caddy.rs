//! Caddy, by its directive `forward_auth` or by `reverse_proxy` with `handle_response`.
//!
//! | read | written by |
//! |---|---|
//! | `X-Forwarded-Method` | `header_up .. {method}`, over what the client has sent |
//! | `X-Forwarded-Uri` | `header_up .. {uri}`, likewise |
//! | `X-Forwarded-For` | Caddy; with `trusted_proxies` it is appended to, so the right end is read |
//!
//! `X-Real-Ip` and `X-Original-*` are not read: Caddy passes them on as they come.

use super::profile::{Client, Profile, Source};

pub(super) static PROFILE: Profile = Profile {
    name: "caddy",
    method: Source::Header("x-forwarded-method"),
    target: Source::Header("x-forwarded-uri"),
    client: Client::ForwardedFor,
    denied_as: None,
    example: "examples/proxies/caddy/Caddyfile",
};
