//! One request under several limits: all of them are charged, or none.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::reserve::draft;
use super::{Limiter, LimiterParts};
use crate::charge::{HeldPermits, SettleError, Settlement, Spent, settle};
use crate::limiter::decisions::ShortVec;
use crate::limiter::outage::StoreRef;
use crate::limiter::permit::send_off;
use crate::memory::CounterPermits;
use crate::policy::Kind;
use crate::receipt::Content;
use crate::store::{Entry, Role, Store, StoreError, answer_now};
use crate::{
    AsyncLimiter, Concurrency, Decisions, Key, MemoryStore, Policy, Receipt, ReceiptError, Reply,
};

/// What one request has to pay and to hold, for [`Limiter::admit`].
///
/// ```
/// use tollbar::{Charges, Concurrency, Limiter, Policy};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let per_user = Policy::token_bucket("100/s")?.with_name("per_user");
/// let in_flight = Concurrency::new(10)?;
/// let limiter = Limiter::new(per_user.clone());
///
/// let grant = limiter.admit(
///     Charges::new().charge("user:42", &per_user, 1).permit("user:42", &in_flight, 1),
/// )?;
/// // .. serve the request ..
/// drop(grant); // The permit comes back; the rate stays paid.
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "charges do nothing until they are admitted"]
pub struct Charges<'a> {
    each: ShortVec<ChargeItem<'a>>,
    request_id: Option<&'a [u8]>,
    reserve_for: Option<Duration>,
}

#[derive(Debug, Clone)]
struct ChargeItem<'a> {
    key: Key<'a>,
    policy: &'a Policy,
    cost: u64,
    role: Role,
}

/// A request that was let through, from [`Limiter::admit`] or [`AsyncLimiter::admit`]. Dropping it
/// returns its permits; what it has paid stays paid.
#[must_use = "dropping a grant returns its permits"]
pub struct Grant<L = Limiter> {
    decisions: Decisions,
    /// `None` where nothing can be settled.
    reserved: Option<GrantReservation>,
    held: GrantPermits,
    limiter: PhantomData<fn() -> L>,
}

struct GrantReservation {
    content: Content,
    parts: Arc<LimiterParts>,
}

/// Permits that go back when they are dropped.
struct GrantPermits {
    /// The store they go back to: the limiter's, or that of this process during an outage.
    store: Option<Arc<dyn Store>>,
    permits: ShortVec<ChargePermits>,
}

/// The permits of one charge.
enum ChargePermits {
    /// Without a lease, in a store in this process: they go back without the key.
    Local(CounterPermits),
    Remote(Box<HeldPermits>),
}

/// Why a request was not admitted. Nothing was charged.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum AdmitError {
    /// A limit denies.
    #[error("{}", denial(.0))]
    Denied(Decisions),
    /// More charges than one request may have.
    #[error("a request may have {max} charges at most: split it, or charge fewer limits")]
    TooManyCharges {
        /// How many there may be.
        max: usize,
    },
    /// The request id came with other charges before.
    #[error(
        "this request id was used for other keys or another cost: send a new id with a new request"
    )]
    RequestIdReused,
    /// The reservation cannot have a receipt.
    #[error(transparent)]
    Receipt(#[from] ReceiptError),
    /// Something that the store cannot do, or an outage under
    /// [`OutagePolicy::Error`](crate::OutagePolicy::Error).
    #[error(transparent)]
    Store(StoreError),
}

fn denial(decisions: &Decisions) -> String {
    decisions.denied().map_or_else(|| "denied".to_owned(), |denied| denied.to_string())
}

impl From<StoreError> for AdmitError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::RequestIdReused => Self::RequestIdReused,
            StoreError::BatchTooLarge { entries_max, .. } => {
                Self::TooManyCharges { max: entries_max }
            }
            error => Self::Store(error),
        }
    }
}

impl AdmitError {
    /// The decisions, where a limit denies.
    #[must_use]
    pub fn decisions(&self) -> Option<&Decisions> {
        match self {
            Self::Denied(decisions) => Some(decisions),
            _ => None,
        }
    }
}

impl<'a> Charges<'a> {
    /// No charges yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Charges `key` with `cost` under `policy`.
    pub fn charge(self, key: impl Into<Key<'a>>, policy: &'a Policy, cost: u64) -> Self {
        self.with(key.into(), policy, cost, Role::Enforce)
    }

    /// Takes `count` permits of `key`. They come back when the [`Grant`] is dropped.
    pub fn permit(self, key: impl Into<Key<'a>>, concurrency: &'a Concurrency, count: u64) -> Self {
        self.with(key.into(), concurrency.as_policy(), count, Role::Enforce)
    }

    /// Charges `key` under a policy that only reports: it never denies, and is charged only where it
    /// and all others allow. Its decision is in [`Decisions::each`].
    pub fn shadow(self, key: impl Into<Key<'a>>, policy: &'a Policy, cost: u64) -> Self {
        self.with(key.into(), policy, cost, Role::Shadow)
    }

    /// Makes the request pay once, however often it is sent with the same id: an allowed one gets the
    /// same answer again for as long as
    /// [`request_id_ttl`](super::LimiterBuilder::request_id_ttl), a denied one is decided anew.
    ///
    /// ```
    /// use tollbar::{Charges, Limiter, Policy};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::token_bucket("10/min")?;
    /// let limiter = Limiter::new(policy.clone());
    /// for _ in 0..2 {
    ///     // The client does not see the first answer, and asks again.
    ///     let charges = Charges::new().charge("user:42", &policy, 3);
    ///     let _grant = limiter.admit(charges.request_id("request-7f3a"))?;
    /// }
    /// assert_eq!(limiter.peek("user:42").remaining(), Some(7));
    /// # Ok(())
    /// # }
    /// ```
    pub fn request_id(self, id: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { request_id: Some(id.as_ref()), ..self }
    }

    /// Makes the request a reservation, which [`Grant::settle`] can settle within `ttl`.
    pub fn reserve_for(self, ttl: Duration) -> Self {
        Self { reserve_for: Some(ttl), ..self }
    }

    fn with(mut self, key: Key<'a>, policy: &'a Policy, cost: u64, role: Role) -> Self {
        self.each.push(ChargeItem { key, policy, cost, role });
        self
    }

    fn entries(&self) -> ShortVec<Entry<'_>> {
        let entries = self.each.iter().map(|ChargeItem { key, policy, cost, role }| {
            Entry::new(key.as_bytes(), policy).with_cost(*cost).with_role(*role)
        });
        entries.collect()
    }

    /// A second return of permits without a lease cannot be told from the first, and a request that
    /// is sent twice would return them twice.
    fn check(&self) -> Result<(), StoreError> {
        let is_unleased =
            |item: &ChargeItem<'_>| item.policy.has_permits() && item.policy.lease_ttl().is_none();
        if self.request_id.is_some() && self.each.iter().any(is_unleased) {
            return Err(StoreError::unsupported(
                "permits of a request with an id need a lease: write `Concurrency::with_lease`",
            ));
        }
        Ok(())
    }
}

impl LimiterParts {
    /// `home` is where permits go back to; its argument says whether the store could not answer.
    async fn admit<L>(
        self: &Arc<Self>,
        store: StoreRef<'_>,
        charges: Charges<'_>,
        home: impl FnOnce(bool) -> Option<Arc<dyn Store>>,
    ) -> Result<Grant<L>, AdmitError> {
        charges.check()?;
        let mut entries = charges.entries();
        let marks = self.charge_ids.marks(charges.request_id, charges.reserve_for);
        if marks.hold.is_some() {
            draft(marks, &entries)?;
        }
        store.decide(marks, &mut entries).await?;
        let decisions = Decisions::from_entries(&entries);
        if !decisions.is_allowed() {
            return Err(AdmitError::Denied(decisions));
        }
        let is_degraded = decisions.is_degraded();
        let reserved = marks.hold.filter(|_| !is_degraded).map(|_| GrantReservation {
            content: Content::of_paid(marks.reservation(), entries.iter().map(|entry| (entry, 1))),
            parts: Arc::clone(self),
        });
        let held = GrantPermits::from_entries(home(is_degraded), &entries, marks.request_id());
        Ok(Grant { decisions, reserved, held, limiter: PhantomData })
    }
}

impl Limiter {
    /// Charges one request under several limits: all of them, or none.
    ///
    /// The policies are those of the charges; the limiter lends its store. Policies that meet on one
    /// key need [names](Policy::with_name), or they share counters.
    ///
    /// # Errors
    /// If a limit denies, if there are too many charges, or if the request id was used for others.
    /// Nothing is charged then.
    pub fn admit(&self, charges: Charges<'_>) -> Result<Grant, AdmitError> {
        let home = |_| Some(Arc::clone(&self.store) as Arc<dyn Store>);
        answer_now(self.parts.admit(self.store_ref(), charges, home))
    }
}

impl AsyncLimiter {
    /// Charges one request under several limits, all of them or none: see [`Limiter::admit`].
    ///
    /// # Errors
    /// As [`Limiter::admit`], and if the store cannot do what is asked.
    pub async fn admit(&self, charges: Charges<'_>) -> Result<Grant<Self>, AdmitError> {
        let home = |is_degraded| {
            if is_degraded { self.outage.local() } else { Some(Arc::clone(&self.store)) }
        };
        self.parts.admit(self.store_ref(), charges, home).await
    }
}

impl<L> Grant<L> {
    /// The decisions, in the order of the charges.
    pub fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    /// How many permits are held.
    #[must_use]
    pub fn permit_count(&self) -> u64 {
        self.held.permits.iter().map(ChargePermits::count).sum()
    }

    /// Turns a [reserved](Charges::reserve_for) request into a receipt that can be settled elsewhere.
    /// Its permits are on the receipt: they come back when it is settled.
    ///
    /// # Errors
    /// If the request was not reserved.
    pub fn into_receipt(mut self) -> Result<Receipt, SettleError> {
        let GrantReservation { content, parts } = self.reserved.ok_or(SettleError::NotReserved)?;
        let receipt = content.sign(parts.charge_ids.receipt_key())?;
        self.held.permits.clear();
        Ok(receipt)
    }

    /// The permits are among what is settled, so they do not go back by themselves.
    async fn settle_with(mut self, spent: Spent<'_>) -> Result<Settlement, SettleError> {
        let (Some(reserved), Some(store)) = (&self.reserved, &self.held.store) else {
            return Err(SettleError::NotReserved);
        };
        let settled = settle(&**store, &reserved.content, spent).await?;
        self.held.permits.clear();
        Ok(settled)
    }
}

impl Grant {
    /// Settles a [reserved](Charges::reserve_for) request with an amount for each charge of tokens,
    /// in their order; its permits come back.
    ///
    /// # Errors
    /// If the request was not reserved, its time is up, or there are not as many amounts as charges.
    pub fn settle(self, actual: &[u64]) -> Result<Settlement, SettleError> {
        answer_now(self.settle_with(Spent::Each(actual)))
    }

    /// Gives everything back that a [reserved](Charges::reserve_for) request has paid.
    ///
    /// # Errors
    /// If the request was not reserved, or its time is up.
    pub fn cancel(self) -> Result<Settlement, SettleError> {
        answer_now(self.settle_with(Spent::Total(0)))
    }
}

impl Grant<AsyncLimiter> {
    /// Settles a reserved request: see [`Grant::settle`](Grant::<Limiter>::settle).
    ///
    /// # Errors
    /// As there, and if the store cannot answer.
    pub async fn settle(self, actual: &[u64]) -> Result<Settlement, SettleError> {
        self.settle_with(Spent::Each(actual)).await
    }

    /// Gives everything back that a reserved request has paid.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub async fn cancel(self) -> Result<Settlement, SettleError> {
        self.settle_with(Spent::Total(0)).await
    }

    /// Returns the permits, and waits until the store has taken them. Dropping a grant sends them off
    /// without waiting.
    ///
    /// # Errors
    /// The first error of the store. It keeps the permits it could not take back until their lease ends.
    pub async fn release(mut self) -> Result<(), StoreError> {
        let permits = std::mem::take(&mut self.held.permits);
        let mut released = Ok(());
        if let Some(store) = &self.held.store {
            for held in &permits {
                released = released.and(held.release(&**store).await.map(drop));
            }
        }
        released
    }
}

impl GrantPermits {
    fn from_entries(
        store: Option<Arc<dyn Store>>,
        entries: &[Entry<'_>],
        request_id: Option<&[u8]>,
    ) -> Self {
        let memory = store.as_deref().and_then(as_memory);
        let held = |entry: &Entry<'_>| match (memory, &entry.policy.kind) {
            (Some(memory), Kind::Concurrency(_)) => HeldPermits::granted_at(entry).map(|_| {
                ChargePermits::Local(memory.counter_permits(entry.key, entry.policy, entry.cost))
            }),
            _ => HeldPermits::from_entry(entry)
                .map(|held| ChargePermits::Remote(Box::new(held.with_request_id(request_id)))),
        };
        let permits = entries.iter().filter_map(held).collect();
        Self { store, permits }
    }
}

impl Drop for GrantPermits {
    fn drop(&mut self) {
        if let Some(store) = &self.store {
            for held in &self.permits {
                send_off(held.release(&**store));
            }
        }
    }
}

impl ChargePermits {
    fn count(&self) -> u64 {
        match self {
            Self::Local(counter_permits) => counter_permits.count(),
            Self::Remote(held) => held.count,
        }
    }

    fn release<'a>(&'a self, store: &'a dyn Store) -> Reply<'a, u64> {
        match self {
            Self::Local(counter_permits) => {
                if let Some(memory) = as_memory(store) {
                    memory.put_back(counter_permits);
                }
                Reply::Ready(Ok(counter_permits.count()))
            }
            Self::Remote(held) => held.release(store),
        }
    }
}

fn as_memory(store: &dyn Store) -> Option<&MemoryStore> {
    (store as &dyn Any).downcast_ref()
}

impl<L> fmt::Debug for Grant<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("decisions", &self.decisions)
            .field("permits", &self.permit_count())
            .finish_non_exhaustive()
    }
}
