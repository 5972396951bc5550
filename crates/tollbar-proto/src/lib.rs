//! Tollbar over gRPC: the messages of `tollbar.v1`, and a client that batches its callers.
//!
//! The messages are made of `proto/tollbar/v1/tollbar.proto`, by way of its descriptors, when the crate is built. What they mean is
//! written there; who answers them is the daemon's business.
//!
//! Feature `client`: [`client::Client`], which many tasks may ask at once. Feature `server`: the trait
//! that a server implements. Feature `envoy`: the messages of Envoy's rate limit and authorization
//! services, and both sides of them.
//!
//! | module | what it has |
//! |---|---|
//! | [`v1`] | the messages of `tollbar.v1`, generated |
//! | `envoy` | the messages of Envoy's rate limit and authorization services, generated |
//! | `client` | [`client::Client`], its builder, the queue of its callers and the session that sends them |
//! | [`codec`] | messages as bytes for tonic, with small buffers |

#[cfg(feature = "client")]
pub mod client;
pub mod codec;

/// The messages, and what speaks them.
#[allow(
    clippy::large_enum_variant,
    clippy::pedantic,
    missing_docs,
    unreachable_pub,
    reason = "made of the .proto, whose comments are its documents"
)]
pub mod v1 {
    tonic::include_proto!("tollbar.v1");

    /// What the messages look like, for reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("../proto/tollbar/v1/tollbar.binpb");
}

#[cfg(feature = "envoy")]
#[allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    rustdoc::all,
    unreachable_pub,
    reason = "made of Envoy's descriptors, whose comments are not among them"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/envoy/mod.rs"));
}

/// Envoy's rate limit service, `service::ratelimit::v3`, its authorization service, `service::auth::v3`, and what they
/// are made of.
#[cfg(feature = "envoy")]
pub mod envoy {
    pub use crate::generated::envoy::*;
    pub use crate::generated::google::rpc;

    /// What the messages look like, for reflection: all of Envoy's files, with their annotations.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("../proto/envoy/services.binpb");
}

#[cfg(test)]
mod tests {
    use prost::Message;

    #[test]
    fn descriptors_are_those_of_the_proto() {
        let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
        let files = protox::compile(["tollbar/v1/tollbar.proto"], [proto]).unwrap();
        assert!(
            files.encode_to_vec() == super::v1::FILE_DESCRIPTOR_SET,
            "tollbar.binpb is not current: run `cargo run -p tollbar-proto --example descriptors`"
        );
    }
}
