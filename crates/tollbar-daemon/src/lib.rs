//! The daemon: it accepts connections, answers every protocol from one engine, and reports what it does.
//!
//! | module | what it has |
//! |---|---|
//! | [`net`] | listeners, connections, TLS, and the time that each phase of a connection may take |
//! | [`protocol`] | one module per protocol: HTTP, forward-auth, gRPC, Envoy's, RESP, and the reverse proxy |
//! | [`daemon`] | the service that every protocol calls: it decides, counts, logs and traces |
//! | [`store`] | where counters live, their snapshots and their health |
//! | [`metrics`], [`telemetry`] | metrics for Prometheus and the dashboard; logs and traces |
//! | [`decision_log`], [`usage`] | the latest denials; who has used how much |
//! | [`health`], [`shutdown`] | the health of its parts; the end in two steps |
//! | [`clock_watch`] | whether somebody has set the machine's clock |
//! | `finish` | checks that go on when their client hangs up |
//! | [`tasks`], [`panics`] | what runs beside requests, and is started again; what ends by a mistake of ours |
//! | [`problem`], [`openapi`] | errors and documents of both HTTP interfaces |
//! | [`token`], [`auth_failures`], [`files`], [`count_flag`], [`duration_flag`], [`rfc3339`] | tokens of clients, wrong ones, small files, numbers and durations behind flags, times as text |
//! | [`header_flags`] | which headers tell clients of their limits, and the jitter of their waits |
//! | [`wait_flags`] | how long requests wait in queues inside the daemon, and how many |
//! | [`background`] | work on threads that give way to requests |
//!
//! Rules in a database, the admin API and the command line are in `tollbar-admin` and `tollbar-cli`. The binary is
//! the interface: this library promises nothing to other crates.
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

pub mod auth_failures;
pub mod background;
pub mod clock_watch;
pub mod count_flag;
pub mod daemon;
pub mod decision_log;
pub mod duration_flag;
pub mod files;
pub(crate) mod finish;
#[doc(hidden)]
pub mod fuzzing;
pub mod header_flags;
pub mod health;
pub mod metrics;
pub mod net;
pub mod openapi;
pub mod panics;
pub mod problem;
pub mod protocol;
pub mod rfc3339;
pub mod shutdown;
pub mod store;
pub mod tasks;
pub mod telemetry;
pub mod token;
pub mod usage;
pub mod wait_flags;
