//! What any store across a network needs beside its protocol: deadlines, a circuit breaker,
//! connections that come back by themselves, and ways to ask less.
//!
//! | part | what it does |
//! |---|---|
//! | [`Deadlines`], [`Exchange`] | one deadline for all that a check asks, and a bound on checks in flight |
//! | [`Link`] | connections that all checks share; a task makes new ones, with growing pauses ([`backoff`]) |
//! | [`Breaker`] | opens when a connection is lost or too many deadlines in a row are missed: checks fail at once |
//! | [`DenyCache`] | answers a denial again for as long as it is known to hold |
//! | [`Gate`] | lets only some of those through that ask the same at the same time, and turns away what waits too long |
//! | [`Health`], [`RemoteStats`] | what a store tells about itself |
//!
//! A store implements [`Connector`] for its server and [`Failure`] for its errors, and asks through a
//! [`Link`]. `tollbar-redis` is the example to read. Needs the feature `remote`, and with it tokio.

pub mod backoff;
mod breaker;
mod deadlines;
mod deny_cache;
mod failure;
mod gate;
mod link;
mod restart;
mod stats;

pub use breaker::{Breaker, BreakerState};
pub use deadlines::{Deadlines, Exchange, within};
pub use deny_cache::{DenyCache, SentRequest};
pub use failure::{Failure, FailureKind, RemoteError};
pub use gate::{Gate, GatePass};
pub use link::{Connector, Health, Link, describe};
pub use restart::spawn_restarting;
pub use stats::{LATENCY_BOUNDS_US, RemoteCounters, RemoteStats, StoreErrors};
