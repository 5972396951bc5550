//! Permits in flight: what an allowed request holds until it is over.

use crate::receipt::{Charge, Content};
use crate::store::{Entry, Reply, ReservationId, Store, StoreError};
use crate::{Policy, Timestamp};

/// Permits of one key that a request holds. They come back by [`release`](Self::release), or, where
/// the policy has a [lease](Policy::lease_ttl), when the lease ends.
#[derive(Debug, Clone)]
pub struct HeldPermits {
    /// The key they are counted under.
    pub key: Box<[u8]>,
    /// The policy they are counted under.
    pub policy: Policy,
    /// The store's name for the charge.
    pub stamp: u64,
    /// How many permits are held.
    pub count: u64,
    /// When they were granted or last renewed, by the store's clock.
    pub granted_at: Timestamp,
    /// The id that the store remembers their request by. It is forgotten when they come back.
    pub request_id: Option<Box<[u8]>>,
}

impl HeldPermits {
    /// Returns what an entry of an allowed batch holds. `None` for rates, for cost 0, for a shadow that
    /// denied, and where nothing was counted because the store could not answer.
    #[must_use]
    pub fn from_entry(entry: &Entry<'_>) -> Option<Self> {
        // A decision about permits resets at the present.
        Self::granted_at(entry).map(|granted_at| Self {
            key: entry.key.into(),
            policy: entry.policy.clone(),
            stamp: entry.stamp,
            count: entry.cost,
            granted_at,
            request_id: None,
        })
    }

    /// Permits of a request that the store remembers by its id.
    #[must_use]
    pub fn with_request_id(self, request_id: Option<&[u8]>) -> Self {
        Self { request_id: request_id.map(Into::into), ..self }
    }

    /// When the permits of an entry were granted, if it holds any.
    pub(crate) fn granted_at(entry: &Entry<'_>) -> Option<Timestamp> {
        let decision = entry.decision.filter(|_| entry.cost > 0 && entry.is_paid())?;
        decision.remaining()?;
        entry.policy.has_permits().then_some(decision.reset_at)
    }

    /// When the lease ends unless it is renewed. `None` for permits without a lease.
    #[must_use]
    pub fn ends_at(&self) -> Option<Timestamp> {
        Some(self.granted_at.after(self.policy.lease_ttl()?))
    }

    /// Gives the permits back. Answers how many came back: 0 where the lease had ended, or was
    /// released before. The store forgets the id of their request first, so that the request takes permits
    /// again when it is sent again.
    pub fn release<'a>(&'a self, store: &'a dyn Store) -> Reply<'a, u64> {
        let refund = || store.refund(&self.key, &self.policy, self.stamp, self.count);
        let Some(request_id) = &self.request_id else {
            return refund();
        };
        match store.forget_request(request_id, &self.key) {
            Reply::Ready(Ok(())) => refund(),
            Reply::Ready(Err(error)) => Reply::Ready(Err(error)),
            Reply::Pending(forgotten) => Reply::Pending(Box::pin(async move {
                forgotten.await?;
                refund().await
            })),
        }
    }

    /// Lets the lease begin anew. Answers until when it lasts; `None` where it has ended or there
    /// is none.
    pub fn renew<'a>(&'a self, store: &'a dyn Store) -> Reply<'a, Option<Timestamp>> {
        if self.policy.lease_ttl().is_none() {
            return Reply::Ready(Ok(None));
        }
        store.renew(&self.key, &self.policy, self.stamp)
    }
}

/// Gives all of `held` back. Answers how many permits came back.
pub async fn release_all<'h>(
    store: &dyn Store,
    held: impl IntoIterator<Item = &'h HeldPermits>,
) -> Result<u64, StoreError> {
    let mut released = Ok(0);
    for held in held {
        // One that fails does not keep the others from coming back.
        match (held.release(store).await, &mut released) {
            (Ok(count), Ok(sum)) => *sum += count,
            (Err(error), _) => released = Err(error),
            (Ok(_), Err(_)) => {}
        }
    }
    released
}

/// Lets every lease among `held` begin anew. Answers when the first of them ends; `None` where one
/// has ended, and where there are none. One that has ended does not keep the others from going on.
pub async fn renew_all<'h>(
    store: &dyn Store,
    held: impl IntoIterator<Item = &'h HeldPermits>,
) -> Result<Option<Timestamp>, StoreError> {
    let (mut first_end, mut has_ended) = (None, false);
    for held in held.into_iter().filter(|held| held.policy.lease_ttl().is_some()) {
        match held.renew(store).await? {
            Some(end) => {
                first_end = Some(first_end.map_or(end, |earliest: Timestamp| earliest.min(end)));
            }
            None => has_ended = true,
        }
    }
    Ok(first_end.filter(|_| !has_ended))
}

impl Content {
    /// Writes down the leases among `held`, so that whoever has the text can renew and release them.
    /// Permits without a lease are left out: a text may be returned twice, and a second return of
    /// those cannot be told from the first.
    #[must_use]
    pub fn of_leases<'h>(held: impl IntoIterator<Item = &'h HeldPermits>) -> Self {
        let leased = held.into_iter().filter(|held| held.policy.lease_ttl().is_some());
        let charge = |held: &HeldPermits| Charge {
            key: held.key.clone(),
            policy: held.policy.clone(),
            reserved: held.count,
            factor: 1,
            stamp: held.stamp,
        };
        let mut request_id = None;
        let charges =
            leased.inspect(|held| request_id.clone_from(&held.request_id)).map(charge).collect();
        Self { id: ReservationId::NONE, request_id, note: Box::default(), charges }
    }

    /// The leases that were written down. When they were granted is not known:
    /// `granted_at` is zero.
    pub fn leases(&self) -> impl Iterator<Item = HeldPermits> + '_ {
        let leased = self.charges.iter().filter(|charge| charge.policy.lease_ttl().is_some());
        leased.map(|charge| HeldPermits {
            key: charge.key.clone(),
            policy: charge.policy.clone(),
            stamp: charge.stamp,
            count: charge.reserved,
            granted_at: Timestamp::ZERO,
            request_id: self.request_id.clone(),
        })
    }
}
