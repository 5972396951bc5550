//! Every protocol of the daemon, as a client writes and reads it.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod criticality;
mod envoy_store;
mod envoy_wire;
mod ext_authz;
mod forward_auth;
mod grpc;
mod grpc_client;
mod grpc_python;
mod limit;
mod look_up;
mod malformed;
mod openapi;
mod paths;
mod rejected;
mod request_ids;
mod resp;
