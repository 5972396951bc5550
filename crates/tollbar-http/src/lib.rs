//! Rate limits in front of a tower service.

mod client_ip;
mod grpc;
mod headers;
mod jitter;
mod response;
#[cfg(test)]
mod testing;

pub use client_ip::ClientIp;
pub use headers::{HeaderStyle, Reset, retry_after_s};
pub use response::{Denial, Format};
