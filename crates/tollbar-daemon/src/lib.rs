//! The daemon: it accepts connections, answers every protocol from one engine, and reports what it does.
//!
//! | module | what it has |
//! |---|---|
//! | [`net`] | endpoints, the accept loop, TLS, time limits of connections |
//! | [`protocol`] | one module per protocol: HTTP, forward-auth, gRPC, Envoy's, RESP, and the reverse proxy |
//! | [`daemon`] | the service that every protocol calls: decide, record, count |
//! | [`store`] | where counters live, their snapshots and their health |
//! | [`health`] | how its parts are doing |
//! | [`decision_log`], [`metrics`], [`telemetry`], [`usage`] | what is known afterwards |
//! | [`problem`], [`openapi`] | errors and documents of both HTTP interfaces |
//!
//! Rules in a database, the admin API and the command line are in `tollbar-admin` and `tollbar-cli`. The binary is
//! the interface: this library promises nothing to other crates.
#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "only our own crates use this library"
)]

pub mod background;
pub mod daemon;
pub mod decision_log;
pub mod duration_flag;
pub mod files;
#[doc(hidden)]
pub mod fuzzing;
pub mod health;
pub mod metrics;
pub mod net;
pub mod openapi;
pub mod problem;
pub mod protocol;
pub mod rfc3339;
pub mod shutdown;
pub mod store;
pub mod telemetry;
pub mod token;
pub mod usage;
