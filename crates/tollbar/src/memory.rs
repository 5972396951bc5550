//! Counters in this process: a table of cache lines, bounded by construction.
//!
//! A check hashes the key, looks at one cache line (sometimes two), and charges by one
//! compare-and-swap. A counter that is fresh again *is* absent: its slot is reused on the spot, so
//! there is no sweeper, no expiry and no growth pause, and memory never exceeds what
//! [`max_keys`](MemoryStoreBuilder::max_keys) set aside.
//!
//! | file | noun |
//! |---|---|
//! | `counter_id` | the 64 bits that name a counter |
//! | `slot` | tag and state, and the rules by which threads share them |
//! | `table` | lines of slots; who makes room for whom |
//! | `wide_table`, `shards` | states of more than one word, and the locks for them and for insertion |
//! | `rank` | which of these makes room when there is none |
//! | `logs`, `lists`, `blocks` | sliding window logs: lists of words in a bounded slab |
//! | `single`, `small_batch`, `batch`, `batch_decision` | one counter, a few usual ones at once, any several, what those come to |
//! | `migration` | counters that outgrow their word, and come back |
//! | `permits` | permits in flight, taken and given back |
//! | `leases`, `lists`, `blocks` | leased permits: lists of words in a bounded slab |
//! | `lives` | logs and leases that warm up |
//! | `settlement` | charges given back, and charged after the fact |
//! | `marks` | requests that pay once, reservations that are settled once |
//! | `snapshot` | counters in a file, and back |
//! | `pages`, `prefetch` | the two places that need `unsafe` |

mod batch;
mod batch_decision;
mod blocks;
pub(crate) mod counter_id;
mod leases;
mod lists;
mod lives;
mod logs;
mod marks;
mod migration;
mod pages;
mod permits;
mod prefetch;
mod rank;
mod settlement;
mod shards;
mod single;
mod slot;
mod small_batch;
mod snapshot;
mod stats;
pub(crate) mod sync;
mod table;
mod wide_table;

#[cfg(all(test, not(tollbar_loom)))]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use counter_id::CounterHash;
#[cfg(feature = "until-ready")]
use counter_id::CounterId;
use lists::Lists;
use shards::Shards;
use table::{SLOTS_PER_LINE, Table};
use wide_table::{CLASS_COUNT, WideTable};

use crate::algorithm::leased::{LEASE_LIMIT_MAX, LeaseRecord};
use crate::algorithm::sliding_log::LOG_LIMIT_MAX;
use crate::store::{Adjustment, Batch, Charge, Feature, Reply, ReservationRef, Store, StoreError};
use crate::{Clock, Decision, Policy, SystemClock, Timestamp};

pub(crate) use leases::lease_name;
pub(crate) use permits::CounterPermits;
pub use snapshot::{SnapshotError, SnapshotSummary};
pub use stats::MemoryStats;

/// Keys a store has room for unless it is told otherwise.
const KEYS_MAX_DEFAULT: usize = 1_000_000;

/// For each key that fits one word, a quarter of a key with a longer state.
const KEYS_PER_WIDE_KEY: usize = 4;

/// Ten minutes, the default life of a request id, at a thousand a second.
const REQUEST_IDS_MAX_DEFAULT: usize = 600_000;

/// For each wide key, the stamps of logs there is room for.
const LOG_STAMPS_PER_WIDE_KEY: usize = 16;

/// For each wide key, the leases there is room for.
const LEASES_PER_WIDE_KEY: usize = 16;

/// More would not fit the numbers of blocks.
const LEASES_MAX: usize = 1 << 30;

/// Slots per key: at this load about four keys in a thousand have to be forgotten early.
const SLOTS_PER_KEY: usize = 2;

/// A store in this process. Exact, shared by all threads, bounded.
///
/// ```
/// use std::sync::Arc;
/// use tollbar::{Limiter, MemoryStore, Policy};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Arc::new(MemoryStore::builder().max_keys(100_000).build());
/// let reads = Policy::token_bucket("100/s")?.with_name("reads");
/// let writes = Policy::token_bucket("10/min")?.with_name("writes");
/// let reads = Limiter::builder(reads).store(store.clone()).build()?;
/// let writes = Limiter::builder(writes).store(store).build()?;
/// # assert!(reads.check("user:42").is_allowed() && writes.check("user:42").is_allowed());
/// # Ok(())
/// # }
/// ```
pub struct MemoryStore {
    clock: AnyClock,
    hash: CounterHash,
    table: Table,
    shards: Shards,
    /// Counters whose state is more than one word.
    wide: WideTable,
    request_ids: WideTable,
    /// Names of open reservations, and what was given back of buckets that have some.
    reservations: WideTable,
    lists: Lists,
    leases: Lists,
    /// True once a policy whose algorithm is usually one word has been stored wide: only then need
    /// a newcomer to the table be looked for among the wide counters.
    has_outgrown: AtomicBool,
    forced_evictions: AtomicU64,
    request_ids_forgotten: AtomicU64,
    /// While there are any, no wide counter moves into the table: behind the back of a snapshot
    /// that has already been there.
    snapshots_running: AtomicUsize,
}

/// How large a [`MemoryStore`] is, and which clock it goes by.
#[derive(Debug)]
pub struct MemoryStoreBuilder {
    keys_max: usize,
    wide_keys_max: Option<usize>,
    log_stamps_max: Option<usize>,
    leases_max: Option<usize>,
    request_ids_max: usize,
    clock: AnyClock,
}

/// The system's clock is called directly, any other through a table.
#[derive(Debug)]
enum AnyClock {
    System(SystemClock),
    Other(Arc<dyn Clock>),
}

impl MemoryStore {
    /// A store for a million keys: 32 MB once they are all in use.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A store of another size or with another clock.
    #[must_use]
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder {
            keys_max: KEYS_MAX_DEFAULT,
            wide_keys_max: None,
            log_stamps_max: None,
            leases_max: None,
            request_ids_max: REQUEST_IDS_MAX_DEFAULT,
            clock: AnyClock::System(SystemClock::new()),
        }
    }

    /// What [`Store::reset`] does, at once.
    pub(crate) fn reset_now(&self, key: &[u8], policy: &Policy) {
        self.reset_one(self.hash.id(key, policy), policy);
    }

    /// The name of a counter in this store.
    #[cfg(feature = "until-ready")]
    pub(crate) fn counter_id(&self, key: &[u8], policy: &Policy) -> CounterId {
        self.hash.id(key, policy)
    }

    #[inline]
    fn now_us(&self) -> u64 {
        let now = match &self.clock {
            AnyClock::System(clock) => clock.now(),
            AnyClock::Other(clock) => clock.now(),
        };
        now.clamp_to_clock().as_micros()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStoreBuilder {
    /// How many keys can be counted at the same time without one being forgotten early, as a
    /// rule. Each costs 32 bytes. At least 1; a million by default. The keys of one batch need room
    /// at the same time: in a store for fewer than 64 keys, a batch of 32 may be refused as
    /// [unsupported](crate::StoreError::Unsupported). That is no outage, so no outage policy lets it pass.
    #[must_use]
    pub fn max_keys(self, keys_max: usize) -> Self {
        Self { keys_max: keys_max.max(1), ..self }
    }

    /// How many keys whose state is more than one word can be counted at the same time: those of
    /// strict windows, logs, leases, warm-ups, custom algorithms, and of rates and limits too large
    /// for a word. As many open reservations fit as well. A quarter of `max_keys` by default.
    ///
    /// A key of a strict window in ten parts costs 290 bytes once it is used, one of a log or of
    /// leases 150 bytes and what its stamps or leases take.
    #[must_use]
    pub fn max_wide_keys(self, keys_max: usize) -> Self {
        Self { wide_keys_max: Some(keys_max.max(1)), ..self }
    }

    /// How many stamps all [sliding window logs](Policy::sliding_window_log) together can hold, as a
    /// rule: each instant at which a key was charged within the window is one, but the newest of
    /// each key, which is free. A stamp costs 8.5 bytes once it is used. They are divided evenly
    /// over the store's 256 shards; where one has none left, the log in it that uses the smallest
    /// share of its limit is forgotten early.
    ///
    /// By default 16 for each wide key, and at least 2,560,000 (22 MB), with which the longest log
    /// there may be fits each shard.
    #[must_use]
    pub fn max_log_stamps(self, stamps_max: usize) -> Self {
        Self { log_stamps_max: Some(stamps_max), ..self }
    }

    /// How many leases of [leased permits](crate::Concurrency::with_lease) there is room for, in all keys together.
    /// Where there is not, the leases of the key that uses the smallest share of its permits are
    /// forgotten early, which is a forced eviction.
    ///
    /// By default 16 for each wide key, and at least as many as the largest limit needs in every
    /// part of the store (44 MB, which are taken only as leases come).
    #[must_use]
    pub fn max_leases(self, leases_max: usize) -> Self {
        Self { leases_max: Some(leases_max), ..self }
    }

    /// How many request ids there is room for: an id is remembered for ten minutes by default, so the
    /// default of 600,000 serves 1,000 ids a second. Where there are more, the ones that end first are
    /// forgotten early; [`MemoryStats::request_ids_forgotten`] counts them, and a request that is sent
    /// again under a forgotten id pays again.
    ///
    /// An id of a request with one limit costs 100 bytes once it is used, one of two or three limits 260.
    /// Of ids with four or more limits half as many fit, of those with seven or more a quarter, of
    /// those with twelve or more an eighth.
    #[must_use]
    pub fn max_request_ids(self, ids_max: usize) -> Self {
        Self { request_ids_max: ids_max.max(1), ..self }
    }

    /// Another clock than the system's.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: AnyClock::Other(Arc::new(clock)), ..self }
    }

    /// The store. Sets the address space aside; memory follows as keys come.
    #[must_use]
    pub fn build(self) -> MemoryStore {
        self.build_with(CounterHash::random())
    }

    fn build_with(self, hash: CounterHash) -> MemoryStore {
        let wide_keys_max = self.wide_keys_max.unwrap_or(self.keys_max.div_ceil(KEYS_PER_WIDE_KEY));
        let shards = Shards::new();
        // Few requests have more than three limits, whose answers are longer than 12 words.
        let request_ids_max = [1, 1, 2, 4, 8].map(|part| self.request_ids_max.div_ceil(part));
        let longest_logs = LOG_LIMIT_MAX as usize * shards.count();
        let log_stamps_max = self.log_stamps_max.unwrap_or_else(|| {
            wide_keys_max.saturating_mul(LOG_STAMPS_PER_WIDE_KEY).max(longest_logs)
        });
        let longest = LEASE_LIMIT_MAX as usize * shards.count();
        let leases_max = wide_keys_max.saturating_mul(LEASES_PER_WIDE_KEY).max(longest);
        let leases_max = self.leases_max.unwrap_or(leases_max).min(LEASES_MAX);
        MemoryStore {
            clock: self.clock,
            hash,
            table: Table::new((self.keys_max * SLOTS_PER_KEY).div_ceil(SLOTS_PER_LINE)),
            wide: WideTable::new([wide_keys_max; CLASS_COUNT], shards.count()),
            request_ids: WideTable::new(request_ids_max, shards.count()),
            reservations: WideTable::new([wide_keys_max, wide_keys_max, 0, 0, 0], shards.count()),
            lists: Lists::new(wide_keys_max, log_stamps_max, shards.count()),
            leases: Lists::new(wide_keys_max, leases_max * LeaseRecord::WORDS, shards.count()),
            shards,
            has_outgrown: AtomicBool::new(false),
            forced_evictions: AtomicU64::new(0),
            request_ids_forgotten: AtomicU64::new(0),
            snapshots_running: AtomicUsize::new(0),
        }
    }
}

impl fmt::Debug for MemoryStore {
    /// Without its counters: to print them took seconds, and touched all memory that is set aside.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MemoryStore")
            .field("slots", &self.table.slot_count())
            .finish_non_exhaustive()
    }
}

impl Store for MemoryStore {
    /// Everything.
    fn supports(&self, _: Feature<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    #[inline]
    fn check<'a>(&'a self, key: &'a [u8], policy: &'a Policy, cost: u64) -> Reply<'a, Decision> {
        Reply::Ready(Ok(self.check_now(key, policy, cost)))
    }

    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        Reply::Ready(match batch.charge {
            Charge::AllOrNone => self.check_all_or_none(batch),
            Charge::Independent => {
                self.check_independent(batch.entries);
                Ok(())
            }
        })
    }

    fn refund<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
        amount: u64,
    ) -> Reply<'a, u64> {
        Reply::Ready(Ok(self.refund_now(key, policy, stamp, amount)))
    }

    fn renew<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
    ) -> Reply<'a, Option<Timestamp>> {
        Reply::Ready(Ok(self.renew_now(key, policy, stamp)))
    }

    fn settle<'a, 'e: 'a>(
        &'a self,
        reservation: ReservationRef<'a>,
        adjustments: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        Reply::Ready(Ok(self.settle_now(reservation, adjustments)))
    }

    fn forget_request<'a>(&'a self, request_id: &'a [u8], _: &'a [u8]) -> Reply<'a, ()> {
        self.forget_request_now(request_id);
        Reply::Ready(Ok(()))
    }

    fn reset<'a>(&'a self, key: &'a [u8], policy: &'a Policy) -> Reply<'a, ()> {
        self.reset_now(key, policy);
        Reply::Ready(Ok(()))
    }

    fn clock(&self) -> Option<&dyn Clock> {
        Some(match &self.clock {
            AnyClock::System(clock) => clock,
            AnyClock::Other(clock) => clock,
        })
    }
}
