//! The store over real servers: what it decides, and what it leaves in them.

mod agreement;
mod cluster;
mod edges;
mod expiry;
mod forgetting;
mod leases;
mod reshard;
mod sentinel;
mod server;
mod suite;
#[path = "../support/mod.rs"]
mod support;
mod tls;
