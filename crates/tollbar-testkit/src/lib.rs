//! Judges for tollbar: what the library and every store are held against.
//!
//! | module | what it has |
//! |---|---|
//! | [`oracle`] | keeps every charge it ever saw and answers from the whole log, exactly; [`oracle::almanac`] is its calendar, written out day by day |
//! | [`oracle_store`] | the oracle as a store, so that the suite can judge the judge |
//! | [`subject`], [`memory_subject`] | a store under judgement with a clock that the judge moves; the memory store as one |
//! | [`suite`] | everything a store must pass, given a [`subject::Factory`]; [`suite::by_hand`] has tables that no program worked out |
//! | [`duel`], [`mod@agreement`] | a store and the oracle, given the same requests; the property that they agree |
//! | [`spec`], [`vector`] | a policy in JSON; traces with their answers in `vectors/*.json`, for stores in any language, and the generator that writes them |
//! | [`strategy`], [`adversary`], [`xorshift`] | random policies and traces that aim at boundaries; the numbers they are drawn from |
//! | [`admissions`] | what a store admitted in a trace, and the sums over it that a promise speaks of |
//! | [`bounds`] | the most and the least that may be admitted, checked on logs of real admissions over every interval, without a clock in common with what is judged |
//! | [`client_log`] | such a log as clients of a server or of several processes write it |
//! | [`answer`] | a decision as the judges compare it |
//! | [`failing_store`], [`later_store`] | a store that fails; a store that answers later, or not at all |
//! | [`memory_backend`] | a backend for `CounterStore` that a test can step in between |
//! | [`redis`] | Redis and Valkey servers of a test's own, single or as a cluster |
//! | [`allocations`] | counts what a piece of code allocates |
//!
//! Unpublished, and depends on `tollbar` alone: no store's crate is needed to judge a store.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

pub mod admissions;
pub mod adversary;
pub mod agreement;
pub mod allocations;
pub mod answer;
pub mod bounds;
pub mod client_log;
pub mod duel;
pub mod failing_store;
pub mod later_store;
pub mod memory_backend;
pub mod memory_subject;
pub mod oracle;
pub mod oracle_store;
pub mod redis;
pub mod spec;
pub mod strategy;
pub mod subject;
pub mod suite;
pub mod vector;
pub mod xorshift;
