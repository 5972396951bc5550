//! One lease as it is kept, and what any list of them can do.

/// A lease's name, its end and its permits, in two words: the name; and 53 bits of microseconds
/// before 11 bits of permits. One of more permits is kept as several of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseRecord {
    id: u64,
    extent: u64,
}

impl LeaseRecord {
    pub(crate) const WORDS: usize = 2;

    const PERMITS_BITS: u32 = 11;
    pub(crate) const PERMITS_MAX: u64 = (1 << Self::PERMITS_BITS) - 1;

    pub(crate) fn new(id: u64, ends_at_us: u64, permits: u64) -> Self {
        debug_assert!(ends_at_us < 1 << 53 && permits <= Self::PERMITS_MAX);
        Self { id, extent: ends_at_us << Self::PERMITS_BITS | permits }
    }

    pub(crate) fn from_words([id, extent]: [u64; Self::WORDS]) -> Self {
        Self { id, extent }
    }

    pub(crate) fn to_words(self) -> [u64; Self::WORDS] {
        [self.id, self.extent]
    }

    pub(crate) fn id(self) -> u64 {
        self.id
    }

    pub(crate) fn ends_at_us(self) -> u64 {
        self.extent >> Self::PERMITS_BITS
    }

    pub(crate) fn permits(self) -> u64 {
        self.extent & Self::PERMITS_MAX
    }
}

/// The leases of one counter, in the order in which they were granted.
pub(crate) trait LeaseList {
    /// How many permits are in flight at `now_us`: of the leases that have not ended.
    fn in_flight(&self, now_us: u64) -> u64;

    fn push(&mut self, lease: LeaseRecord);

    /// Changes each to what `change` makes of it, or removes it.
    fn alter(&mut self, change: impl FnMut(LeaseRecord) -> Option<LeaseRecord>);

    /// Removes those that have ended.
    fn strike_ended(&mut self, now_us: u64) {
        self.alter(|lease| (lease.ends_at_us() > now_us).then_some(lease));
    }
}
