//! The daemon between clients and upstreams: its own proxy, and the proxies that ask it.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

#[path = "../common/mod.rs"]
mod common;
mod envoy;
mod headers;
mod proxies;
mod proxying;
mod slow;
mod tls;
