//! Tollbar over gRPC: the messages of `tollbar.v1`, and a client that batches its callers.
//!
//! The messages are made of `proto/tollbar/v1/tollbar.proto` when the crate is built. What they mean is
//! written there; who answers them is the daemon's business.
//!
//! Feature `client`: [`client::Client`], which many tasks may ask at once. Feature `server`: the trait
//! that a server implements.

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
    pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("tollbar.v1");
}
