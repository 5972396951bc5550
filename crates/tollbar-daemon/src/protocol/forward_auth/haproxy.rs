//! `HAProxy`, by the Lua action that we ship.
//!
//! | read | written by |
//! |---|---|
//! | `X-Original-Method` | the action, by the fetch `method` |
//! | `X-Original-URI` | the action, by the fetch `pathq` |
//! | `X-Real-IP` | the action, by the fetch `src` |
//!
//! The action makes a request of its own, in which nothing is the client's but `X-Api-Key`,
//! `Authorization` and `Accept`.

use super::profile::{Client, Profile, Source};

pub(super) static PROFILE: Profile = Profile {
    name: "haproxy",
    method: Source::Header("x-original-method"),
    target: Source::Header("x-original-uri"),
    client: Client::Header("x-real-ip"),
    denied_as: None,
    example: "examples/proxies/haproxy/tollbar.lua",
};
