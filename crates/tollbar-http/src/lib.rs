//! Rate limits in front of a tower service.

mod client_ip;
mod grpc;
mod headers;
mod identity;
mod jitter;
mod response;
#[cfg(test)]
mod testing;

pub use client_ip::ClientIp;
pub use headers::{HeaderStyle, Reset, retry_after_s};
pub use identity::{ApiKeys, Attributes, Identity, IdentityError, Peer};
#[cfg(feature = "jwt")]
pub use identity::{Jwt, JwtAlgorithm, JwtKey};
pub use response::{Denial, Format};
