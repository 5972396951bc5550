//! One limit for a fleet: counters in Redis or Valkey.
//!
//! ```no_run
//! use std::sync::Arc;
//! use tollbar::{AsyncLimiter, Policy};
//! use tollbar_redis::{FleetSecret, KeyNames, RedisStore};
//!
//! # async fn serve(secret: [u8; 32]) -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::builder("redis://127.0.0.1", KeyNames::Hashed(FleetSecret::new(secret))).connect().await?;
//! let policy = Policy::token_bucket("10/s")?.with_name("api");
//! let limiter = AsyncLimiter::builder(policy, Arc::new(store)).build()?;
//! if limiter.check("user:42").await?.is_allowed() {
//!     // serve the request
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A check is one script call, whatever the number of policies, decided at one instant by the clock
//! of the server. The decisions are those of every other store, to the last number: the scripts are
//! held against the same vectors and the same oracle.
//!
//! When the server is slow or gone, a check fails after its deadline, and after a few of these at
//! once; the limiter's [`OutagePolicy`](tollbar::OutagePolicy) answers then. A charge whose answer
//! came too late stays charged. A server that loses its data forgets what was charged: a client gets
//! one burst more for each time that happens.
//!
//! # The modules
//!
//! | module | what it has |
//! |---|---|
//! | `builder` | [`RedisStoreBuilder`]: options, and connecting |
//! | `store` | [`RedisStore`]: each method is one script call. For requests in several slots of a cluster, `store::cross_slot` charges plain ones, `store::transaction` those with an id and reservations, and `store::recovery` gives back what a dead process has left; `store::probe` finds faults |
//! | `runner` | runs a script, and sends its text where the server does not know it |
//! | `script` | the Lua scripts (`lua/`), calls of them, and their replies |
//! | `server` | connections, `node`, `sentinel` and `cluster`, and the `route` to the server that has a key |
//! | `keys` | the names of keys in Redis |
//! | `error` | [`RedisStoreError`], and which errors are outages |
//! | `fault` | [`StoreFault`]: what is wrong with the servers, and what to do about it |

mod builder;
mod error;
mod fault;
mod keys;
mod runner;
mod script;
mod server;
mod store;

pub use builder::RedisStoreBuilder;
pub use error::RedisStoreError;
pub use fault::{FaultKind, RefusalReason, StoreFault};
pub use keys::{FleetSecret, KeyNames};
pub use server::tls::Tls;
pub use store::RedisStore;
pub use tollbar::remote::{BreakerState, Health, LATENCY_BOUNDS_US, RemoteStats, StoreErrors};
