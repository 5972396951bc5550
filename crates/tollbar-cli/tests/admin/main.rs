//! The admin API of the real daemon, over a real database: what changes, who may change it, and what is
//! refused.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

#[path = "../common/mod.rs"]
mod common;

mod access;
mod admin_daemon;
mod counters;
mod dashboard;
mod document;
mod keys;
mod look_up;
mod malformed;
mod metering;
mod postgres;
mod repository;
mod repository_live;
mod rules;
mod scopes;
mod tenants;
