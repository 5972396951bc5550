//! One who waits: a future that is done when its turn has come, and gives its place back when it is
//! dropped before.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::line::{Progress, Ticket, Turn};
use super::lines::Room;
use super::timer::Sleep;
use super::{WaitError, Waiting};
use crate::algorithm::leaky_queue::LeakyQueue;
use crate::memory::counter_id::CounterId;
use crate::{Decision, Interval, Policy, Reply, Store};

/// What was asked of the store, and what it said.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) key: &'a [u8],
    pub(super) policy: &'a Policy,
    pub(super) queue: &'a LeakyQueue,
    pub(super) cost: u64,
    pub(super) decision: Decision,
    /// 0 where the store has not answered.
    pub(super) stamp: u64,
}

pub(super) struct Waiter<'a> {
    waiting: &'a Waiting,
    store: &'a dyn Store,
    key: &'a [u8],
    policy: &'a Policy,
    queue: &'a LeakyQueue,
    id: CounterId,
    /// `None` once its turn has come.
    ticket: Option<Ticket>,
    /// While it is the first, until when it sleeps.
    sleep: Option<(u64, Sleep)>,
    _room: Room<'a>,
}

impl<'a> Waiter<'a> {
    /// Joins the line of its key.
    pub(super) fn new(
        waiting: &'a Waiting,
        store: &'a dyn Store,
        asked: Asked<'a>,
    ) -> Result<Self, WaitError> {
        let Asked { key, policy, queue, cost, .. } = asked;
        let id = waiting.lines.id(key, policy);
        let Some(room) = waiting.lines.room() else {
            refund(store, key, policy, asked.stamp, cost);
            return Err(WaitError::TooManyWaiters { waiters_max: waiting.lines.waiters_max() });
        };
        let is_exact = store.clock().is_some() && asked.decision.degraded().is_none();
        let at_us = if is_exact { asked.turn_us() } else { asked.turn_us_from(waiting, store) };
        let turn = Turn { at_us, places: cost, width_ns: asked.width_ns(), stamp: asked.stamp };
        let joined = waiting.lines.join(id, turn, queue.interval(), is_exact);
        let ticket = Some(joined.ticket);
        let waiter =
            Self { waiting, store, key, policy, queue, id, ticket, sleep: None, _room: room };
        if joined.has_left_over {
            waiter.give_back();
        }
        Ok(waiter)
    }

    fn now_us(&self) -> u64 {
        self.waiting.clock(self.store).now().as_micros()
    }

    /// Gives the turns back that nobody in the line waits for, the last one first.
    fn give_back(&self) {
        let lines = &self.waiting.lines;
        let mut refused = None;
        while let Some(in_hand) = lines.take_left_over(self.id, self.queue.interval(), refused) {
            let Turn { stamp, places, .. } = in_hand.turn;
            if refund(self.store, self.key, self.policy, stamp, places) {
                lines.returned(self.id);
            } else {
                lines.refused(self.id, in_hand, self.now_us());
                refused = Some(in_hand);
            }
        }
    }
}

impl Asked<'_> {
    /// How long its places take. Below 2^53 microseconds, so it fits; rounded down.
    fn width_ns(&self) -> u64 {
        let Interval { numerator_us, denominator } = self.queue.interval();
        let units = u128::from(self.cost) * u128::from(numerator_us);
        u64::try_from(units * 1_000 / u128::from(denominator)).unwrap_or(u64::MAX)
    }

    /// The turn by the clock of the store, which has said when the queue is empty: `cost` intervals
    /// after it. That end was rounded up; with the intervals rounded down this is the turn rounded
    /// up, or a microsecond later, and turns stay as far apart as ends. The stamp says which.
    fn turn_us(&self) -> u64 {
        let Interval { numerator_us, denominator } = self.queue.interval();
        // Below 2^53: it is at most a full debt.
        let places_us = self.cost * numerator_us / denominator;
        let turn_us = self.decision.reset_at().as_micros().saturating_sub(places_us);
        let stamped_us = self.queue.turn_us(self.stamp, self.cost);
        // A store may have stamps of its own, which say something else.
        stamped_us.filter(|it| turn_us.abs_diff(*it) <= 1).unwrap_or(turn_us)
    }

    /// The turn by a clock of our own, which was read after the store's: never early.
    fn turn_us_from(&self, waiting: &Waiting, store: &dyn Store) -> u64 {
        waiting.clock(store).now().after(self.decision.delay()).as_micros()
    }
}

impl Future for Waiter<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let waiter = &mut *self;
        let Some(ticket) = waiter.ticket else {
            return Poll::Ready(());
        };
        let mut has_slept = false;
        loop {
            let now_us = waiter.now_us();
            let until_us =
                match waiter.waiting.lines.look(waiter.id, ticket, now_us, context.waker()) {
                    Progress::Go => {
                        waiter.ticket = None;
                        return Poll::Ready(());
                    }
                    Progress::Behind => return Poll::Pending,
                    Progress::First { until_us } => until_us,
                };
            if has_slept {
                // The timer is ahead of the store's clock. Come again, but let others run.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if waiter.sleep.as_ref().is_none_or(|(until, _)| *until != until_us) {
                let duration = Duration::from_micros(until_us.saturating_sub(now_us));
                waiter.sleep = Some((until_us, waiter.waiting.timer.sleep(duration)));
            }
            if let Some((_, sleep)) = &mut waiter.sleep {
                match sleep.as_mut().poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(()) => waiter.sleep = None,
                }
            }
            has_slept = true;
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket
            && self.waiting.lines.leave(self.id, ticket)
        {
            self.give_back();
        }
    }
}

impl fmt::Debug for Waiter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

/// Whether the place is the store's again, or must be taken for it.
fn refund(store: &dyn Store, key: &[u8], policy: &Policy, stamp: u64, places: u64) -> bool {
    if stamp == 0 {
        return false;
    }
    match store.refund(key, policy, stamp, places) {
        Reply::Ready(refunded) => refunded.is_ok_and(|places| places > 0),
        // Nobody is left to wait for the answer. Asked once, most clients have sent the request;
        // whether it was in time is not known, so nobody else may have the turn.
        Reply::Pending(mut future) => {
            let mut context = Context::from_waker(Waker::noop());
            let _ = future.as_mut().poll(&mut context);
            true
        }
    }
}
