//! The store over real servers: what it decides, and what it leaves in them.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

mod agreement;
mod cluster;
mod edges;
mod expiry;
mod forgetting;
mod leases;
mod loans;
mod reshard;
mod sentinel;
mod server;
mod suite;
#[path = "../support/mod.rs"]
mod support;
mod tls;
mod transaction;
