//! The proxy between a client and an upstream, over sockets.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod messages;
mod outage;
mod proxy;
mod slow_reader;
mod upgrade;
