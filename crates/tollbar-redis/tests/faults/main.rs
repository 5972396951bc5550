//! The store by real time: servers that fail, crowds of clients, and several processes.
//!
//! In a binary of their own, so that no other test takes the processor meanwhile.

mod fleet;
mod guard;
mod outage;
mod processes;
#[path = "../support/mod.rs"]
mod support;
