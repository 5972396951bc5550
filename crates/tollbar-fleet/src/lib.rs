//! Loans for a fleet: a process charges many tokens of a hot key at once and spends them in memory.
//!
//! ```no_run
//! use std::sync::Arc;
//! use tollbar::Store;
//! use tollbar_fleet::LendingStore;
//!
//! # fn lend(redis: Arc<dyn Store>) {
//! let store = Arc::new(LendingStore::new(redis));
//! store.set_lending(true);
//! # }
//! ```
//!
//! A [`LendingStore`] is a store over another one. It answers entries whose
//! [`Accuracy`](tollbar::Accuracy) is `Loaned` from tokens that [`Store::lend`](tollbar::Store::lend) has
//! lent, and those whose accuracy is `Local` by counters of its own. Everything else it hands on. Decision
//! 0083 has the proof that this admits no more than exact counting does.
//!
//! # The modules
//!
//! | module | what it has |
//! |---|---|
//! | `clock` | the time since the machine was started, by which lots end |
//! | `heat` | a bounded sketch of the rates of keys that are not held |
//! | `holdings` | lots, pauses and questions, key by key: no clock and no I/O |
//! | `borrower` | asks the store for loans, and answers single entries from them |
//! | `lending` | [`LendingStore`]: a store that spends lots; `lending::claims` are the batches of several limits |
//! | `stats` | what became of the tokens, in numbers |

mod borrower;
mod clock;
mod heat;
mod holdings;
mod lending;
mod stats;

pub use clock::{BootClock, SystemBootClock};
pub use lending::{LendingStore, LendingStoreBuilder};
pub use stats::LendingStats;
