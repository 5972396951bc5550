//! The admin API and the dashboard, and the database in which they keep rules, exemptions, tokens and usage.
//!
//! | module | what it has |
//! |---|---|
//! | [`database`] | SQLite or PostgreSQL: statements, migrations, and how changes reach the engine |
//! | [`operations`] | what an administrator can do, one module per noun, each with its access check |
//! | [`api`] | the operations as JSON over HTTP, and its `OpenAPI` document |
//! | [`dashboard`] | the operations as pages for people |
//! | [`listener`] | the HTTP listener that serves both |
//! | `origin` | the connection that a request came over, for handlers |
//! | [`usage`] | usage written to the database, and exported |
//!
//! Nothing here is on the path of a check. The binary is the interface: this library promises nothing to other
//! crates.
#![cfg_attr(
    test,
    allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")
)]
#![allow(
    missing_docs,
    rustdoc::private_intra_doc_links,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "only our own crates use this library"
)]

pub mod api;
pub mod dashboard;
pub mod database;
pub mod listener;
pub mod operations;
mod origin;
pub mod usage;
