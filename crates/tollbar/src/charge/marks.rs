//! The names of a charge: what makes a request pay once, and what a reservation is settled by.

use std::time::Duration;

use crate::ReceiptKey;
use crate::store::{Batch, Entry, Hold, Once, ReservationId, ReservationIds, ReservationRef};

/// Names charges for one limiter or engine.
#[derive(Debug)]
pub struct ChargeIds {
    receipt_key: ReceiptKey,
    reservations: ReservationIds,
    request_id_ttl: Duration,
    replays_max: u8,
}

/// The names under which a batch is charged.
#[derive(Debug, Clone, Copy, Default)]
pub struct Marks<'a> {
    /// Makes it pay once.
    pub once: Option<Once<'a>>,
    /// Makes it a reservation.
    pub hold: Option<Hold>,
}

impl ChargeIds {
    /// How long an allowed request is remembered by its id unless the user says otherwise.
    pub const REQUEST_ID_TTL_DEFAULT: Duration = Duration::from_mins(10);

    /// Names whose receipts are signed by `receipt_key`. A request id is remembered for
    /// `request_id_ttl`.
    #[must_use]
    pub fn new(receipt_key: ReceiptKey, request_id_ttl: Duration) -> Self {
        let reservations = ReservationIds::new();
        Self { receipt_key, reservations, request_id_ttl, replays_max: Once::REPLAYS_MAX_DEFAULT }
    }

    /// Sets how often a request with an id is answered again for one charge.
    #[must_use]
    pub fn with_replays_max(self, replays_max: u8) -> Self {
        Self { replays_max, ..self }
    }

    /// Signs the receipts of these charges.
    #[must_use]
    pub fn receipt_key(&self) -> &ReceiptKey {
        &self.receipt_key
    }

    /// Returns the marks of a request. With a `request_id` it pays once; with `reserve_for` it can be
    /// settled for that long. A reservation of a request with an id has the same name each time, so
    /// the request gets the same receipt when it is sent again.
    #[must_use]
    pub fn marks<'a>(
        &self,
        request_id: Option<&'a [u8]>,
        reserve_for: Option<Duration>,
    ) -> Marks<'a> {
        let replays_max = self.replays_max;
        let once = request_id
            .map(|request_id| Once { replays_max, ..Once::new(request_id, self.request_id_ttl) });
        let hold = reserve_for.map(|ttl| {
            let id = match request_id {
                Some(request_id) => self.receipt_key.id_of_request(request_id),
                None => self.reservations.next(),
            };
            Hold { id, ttl }
        });
        Marks { once, hold }
    }
}

impl<'a> Marks<'a> {
    /// Binds the request id to the [content](Once::content) of its request.
    #[must_use]
    pub fn with_content(self, content: u128) -> Self {
        Self { once: self.once.map(|once| Once { content, ..once }), ..self }
    }

    /// The id that the request is remembered by.
    #[must_use]
    pub fn request_id(&self) -> Option<&'a [u8]> {
        self.once.map(|once| once.request_id)
    }

    /// The reservation that the batch is, as a receipt names it. [`ReservationId::NONE`] where it is none.
    #[must_use]
    pub fn reservation(&self) -> ReservationRef<'a> {
        let id = self.hold.map_or(ReservationId::NONE, |hold| hold.id);
        ReservationRef { id, request_id: self.request_id() }
    }

    /// True where the batch is a plain one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.once.is_none() && self.hold.is_none()
    }

    /// Makes the batch of one request: all entries are charged, or none.
    #[must_use]
    pub fn batch<'b, 'e>(self, entries: &'b mut [Entry<'e>]) -> Batch<'b, 'e>
    where
        'a: 'b,
    {
        let batch = Batch::all_or_none(entries);
        let mut batch = match self.once {
            Some(once) => batch.once(once),
            None => batch,
        };
        batch.hold = self.hold;
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_with_an_id_has_one_reservation_and_others_have_one_each() {
        let ttl = Duration::from_mins(1);
        let ids = ChargeIds::new(ReceiptKey::new([7; 32]), ttl);
        let id =
            |request_id: Option<&'static [u8]>| ids.marks(request_id, Some(ttl)).hold.unwrap().id;
        assert_eq!(id(Some(b"a")), id(Some(b"a")));
        assert_ne!(id(Some(b"a")), id(Some(b"b")));
        assert_ne!(id(None), id(None));
        assert!(ids.marks(None, None).is_empty());
        assert!(!ids.marks(Some(b"a"), None).is_empty() && !ids.marks(None, Some(ttl)).is_empty());
    }
}
