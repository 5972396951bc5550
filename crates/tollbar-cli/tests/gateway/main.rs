//! The daemon between clients and upstreams: its own proxy, and the proxies that ask it.

#[path = "../common/mod.rs"]
mod common;
mod envoy;
mod proxies;
mod proxying;
mod tls;
