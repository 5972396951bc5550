//! The daemon as an operator has it: flags, logs, metrics, traces, TLS, a store, its end.

mod cli;
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
mod tls;
mod traces;
