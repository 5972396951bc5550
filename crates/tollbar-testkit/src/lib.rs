//! Judges for tollbar: what the library and every store are held against.
//!
//! * [`oracle`]: keeps every charge it ever saw and answers from the whole log, exactly.
//! * [`vector`] and `vectors/*.json`: traces with their answers, for stores in any language;
//!   [`generator`] writes them.
//! * [`suite`]: everything a store must pass, given a [`subject::Factory`].
//! * [`by_hand`]: tables that no program worked out.
//! * [`strategy`] and [`adversary`]: random policies and traces that aim at boundaries;
//!   [`admitted`] sums up what passed.
//! * [`bounds`]: the most and the least that may be admitted, checked on logs of real admissions over
//!   every interval, without a clock in common with what is judged.
//! * [`client_log`]: such a log as clients of a server or of several processes write it.
//! * [`almanac`]: a calendar written out day by day.
//! * [`duel`]: a store and the oracle, asked the same; [`mod@agreement`]: that they agree, whatever is asked.
//! * [`redis_process`] and [`redis_cluster`]: a Redis server of the test's own, and a cluster;
//!   [`redis_launch`]: which program, and how.
//! * [`memory_backend`]: a backend for `CounterStore` that a test can step in between.
//! * [`later_store`]: a store that answers later, or not at all; [`allocations`]: who allocates.
//!
//! Unpublished, and depends on `tollbar` alone: no store's crate is needed to judge a store.

pub mod admitted;
pub mod adversary;
pub mod agreement;
pub mod allocations;
pub mod almanac;
pub mod answer;
pub mod bounds;
pub mod by_hand;
pub mod client_log;
pub mod duel;
pub mod failing_store;
pub mod generator;
pub mod later_store;
pub mod memory_backend;
pub mod memory_subject;
pub mod oracle;
pub mod oracle_store;
pub mod ratio;
pub mod redis_cluster;
pub mod redis_launch;
pub mod redis_process;
pub mod settlements;
pub mod spec;
pub mod strategy;
pub mod subject;
pub mod suite;
pub mod vector;
pub mod xorshift;
