//! The store by real time: servers that fail, crowds of clients, and several processes.
//!
//! In a binary of their own, so that no other test takes the processor meanwhile.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

mod cluster_health;
mod fleet;
mod guard;
mod outage;
mod permissions;
mod processes;
mod refusals;
mod retries;
#[path = "../support/mod.rs"]
mod support;
