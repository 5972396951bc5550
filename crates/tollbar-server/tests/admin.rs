//! The admin API of the real daemon, over a real database: what changes, who may change it, and what is
//! refused.

mod common;

#[path = "admin/access.rs"]
mod access;
#[path = "admin/counters.rs"]
mod counters;
#[path = "admin/document.rs"]
mod document;
#[path = "admin/keys.rs"]
mod keys;
#[path = "admin/malformed.rs"]
mod malformed;
#[path = "admin/office.rs"]
mod office;
#[path = "admin/postgres.rs"]
mod postgres;
#[path = "admin/rules.rs"]
mod rules;
#[path = "admin/scopes.rs"]
mod scopes;
#[path = "admin/tenants.rs"]
mod tenants;
