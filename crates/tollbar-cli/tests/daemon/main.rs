//! The daemon as an operator has it: flags, logs, metrics, traces, TLS, a store, its end.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

mod cli;
mod client_certificates;
#[path = "../common/mod.rs"]
mod common;
mod drain;
mod flood;
mod metrics;
mod monitoring;
mod operations;
mod rules;
mod serve;
mod store;
mod store_faults;
mod tasks;
mod tls;
mod traces;
mod web_pages;
