//! Every protocol of the daemon, as a client writes and reads it.

#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod envoy_store;
mod envoy_wire;
mod forward_auth;
mod grpc;
mod grpc_client;
mod grpc_python;
mod malformed;
mod openapi;
mod resp;
