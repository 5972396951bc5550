//! The protocols that the daemon answers, one module each. Each turns a request on its connection into the engine's words
//! and the verdict into a response; connections are accepted by [`net`](crate::net).

pub mod envoy;
pub mod forward_auth;
pub mod grpc;
pub mod health;
pub mod http;
pub mod proxy;
pub mod resp;
