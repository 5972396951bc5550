//! Reservations: charged first, settled when it is known what they came to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Policy;

/// Names a reservation. No two that are open at the same time in one store may have the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReservationId(pub u128);

impl ReservationId {
    /// The name on a text that only lists leases, which the store knows one by one.
    pub const NONE: Self = Self(0);
}

/// That a batch is a reservation: where it is allowed, the store keeps its name for `ttl`, and
/// [`Store::settle`](crate::Store::settle) takes it away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// Its name.
    pub id: ReservationId,
    /// For how long it can be settled. After that its charges stand as they are.
    pub ttl: Duration,
}

/// What [`Store::settle`](crate::Store::settle) settles: a reservation and, where its request had an
/// id, the id that the store remembers it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReservationRef<'a> {
    /// The name of the reservation.
    pub id: ReservationId,
    /// The [request id](Once::request_id) it was charged under. The store forgets it where tokens or
    /// permits come back, so that the request pays when it is sent again.
    pub request_id: Option<&'a [u8]>,
}

impl From<ReservationId> for ReservationRef<'_> {
    /// A reservation of a request without an id.
    fn from(id: ReservationId) -> Self {
        Self { id, request_id: None }
    }
}

/// That a batch is to be charged once, however often it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Once<'a> {
    /// What the client calls the request.
    pub request_id: &'a [u8],
    /// For how long an allowed one is remembered.
    pub ttl: Duration,
    /// A hash of what else has to be the same when the id comes back, besides the counters, costs and roles
    /// of the entries. No client may be able to find two requests with the same one.
    pub content: u128,
    /// How often the request is answered again for one charge. After that it is decided, and charged, anew.
    pub replays_max: u8,
}

impl<'a> Once<'a> {
    /// The replays of a request unless the user says otherwise.
    pub const REPLAYS_MAX_DEFAULT: u8 = 8;

    /// A batch that nothing but its entries tells from others, with the default number of replays.
    #[must_use]
    pub fn new(request_id: &'a [u8], ttl: Duration) -> Self {
        Self { request_id, ttl, content: 0, replays_max: Self::REPLAYS_MAX_DEFAULT }
    }
}

/// One charge of a reservation and what it came to. The store writes into it what it has done.
#[derive(Debug, Clone)]
pub struct Adjustment<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) policy: &'a Policy,
    pub(crate) stamp: u64,
    pub(crate) reserved: u64,
    pub(crate) spent: u64,
    pub(crate) adjusted: u64,
    pub(crate) is_repeat: bool,
}

impl<'a> Adjustment<'a> {
    /// Of `key` under `policy`, `reserved` tokens were charged, which the store called `stamp`, and
    /// `spent` were needed.
    #[must_use]
    pub fn new(
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
        Spending { reserved, spent }: Spending,
    ) -> Self {
        Self { key, policy, stamp, reserved, spent, adjusted: 0, is_repeat: false }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// What the store called the charge.
    #[must_use]
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// What the store has to do.
    #[must_use]
    pub fn due(&self) -> Due {
        if self.spent <= self.reserved {
            Due::Refund(self.reserved - self.spent)
        } else {
            Due::Overdraw(self.spent - self.reserved)
        }
    }

    /// For stores: true where something comes back, so that the request id of the reservation has to be
    /// forgotten.
    #[must_use]
    pub fn gives_back(adjustments: &[Self]) -> bool {
        adjustments.iter().any(|adjustment| matches!(adjustment.due(), Due::Refund(1..)))
    }

    /// For stores: leaves what was refunded or charged in it.
    pub fn adjust(&mut self, tokens: u64) {
        self.adjusted = tokens;
    }

    /// For stores: says that another call has settled the reservation, in the same way, and this one has only
    /// found it settled.
    pub fn mark_repeat(&mut self) {
        self.is_repeat = true;
    }

    /// True where another call has settled the reservation in the same way. Of all calls that settle one
    /// reservation successfully, at most one is no repeat.
    #[must_use]
    pub fn is_repeat(&self) -> bool {
        self.is_repeat
    }

    /// How many tokens the store has given back, or charged in addition: no more than was due.
    #[must_use]
    pub fn adjusted(&self) -> u64 {
        self.adjusted
    }
}

/// Names for reservations, each of which is used once: a random beginning, and a count.
///
/// For whoever sends batches to a store himself; a [`Limiter`](crate::Limiter) has its own.
#[derive(Debug)]
pub struct ReservationIds {
    beginning: u64,
    count: AtomicU64,
}

impl ReservationIds {
    /// Names that no other beginning has.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "each is another one: nothing about it is default"
    )]
    pub fn new() -> Self {
        Self { beginning: rand::random(), count: AtomicU64::new(0) }
    }

    /// The next one.
    #[must_use]
    pub fn next(&self) -> ReservationId {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        ReservationId(u128::from(self.beginning) << 64 | u128::from(number))
    }
}

/// What was reserved, and what was needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spending {
    /// Tokens charged at first.
    pub reserved: u64,
    /// Tokens it came to.
    pub spent: u64,
}

/// What the store has to do about one charge of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Give back so many tokens, as [`Store::refund`](crate::Store::refund) does.
    Refund(u64),
    /// Charge so many tokens more, whether or not there is room.
    Overdraw(u64),
}
