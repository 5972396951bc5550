//! The proxy between a client and an upstream, over sockets.

#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod outage;
mod proxy;
mod slow_reader;
mod upgrade;
