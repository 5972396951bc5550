//! The admin API of the real daemon, over a real database: what changes, who may change it, and what is
//! refused.

#[path = "../common/mod.rs"]
mod common;

mod access;
mod counters;
mod dashboard;
mod document;
mod keys;
mod malformed;
mod metering;
mod office;
mod postgres;
mod repository;
mod repository_live;
mod rules;
mod scopes;
mod tenants;
