//! Waiting for a turn: `Limiter::wait` and `ConcurrencyLimiter::acquire`.
//!
//! For each key with waiters there is a queue of them, in the order they came. Only the first of a queue
//! sleeps, and it wakes the next when it goes: of a thousand turns in a millisecond most have come by the
//! time a timer fires, and a task that wakes the next costs less than a timer that wakes each. In a
//! [leaky queue](crate::Policy::leaky_queue) each waiter has a turn from the moment it came, which the store
//! has charged, and the first sleeps until the first turn. Under every other policy the first asks the
//! store, sleeps for as long as the answer says, and asks again.
//!
//! Nothing here needs a runtime, and nothing is kept of a key without waiters.
//!
//! | file | noun |
//! |---|---|
//! | `queues` | the waiters of all keys, and their turns: no clock, no store |
//! | `timer` | what sleeps: a thread of our own, a runtime's, or one that tests move |
//! | `verbs` | the methods of limiters and builders |

mod methods;
mod queues;
mod timer;

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use queues::{Ticket, Turn, WaitQueue, WaitQueues, Wakers};
use thiserror::Error;
use timer::ThreadTimer;

use crate::algorithm::leaky_queue::LeakyQueue;
use crate::algorithm::warm_up::WarmUpAlgorithm;
use crate::limiter::outage::StoreRef;
use crate::memory::counter_id::{CounterHash, CounterId};
use crate::policy::Kind;
use crate::store::Entry;
use crate::{
    Decision, Degraded, Denied, Interval, Outcome, Policy, Reply, StoreError, SystemClock,
};

pub use queues::WaitingStats;
pub use timer::{ManualTimer, Sleep, Timer};

/// Waiters a limiter has room for unless the builder says otherwise.
const WAITERS_MAX_DEFAULT: usize = 65_536;

/// How long the first waiter for a permit sleeps before it asks again without a notification: permits of
/// leases that end, and of other processes, come back without one. The sleep doubles each time.
const BUSY_SLEEP_MIN: Duration = Duration::from_millis(1);
const BUSY_SLEEP_MAX: Duration = Duration::from_millis(100);

/// Why waiting has not let a request through. Nothing was charged, or it was given back.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// Waiting would not help: the queue is full, the wait would be longer than the policy allows, the
    /// cost is above the capacity, or the store cannot answer and the outage policy denies.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// As many requests wait as this limiter has room for, all keys taken together.
    #[error(
        "{waiters_max} requests wait already: come back later, or give the limiter more \
         `max_waiters`"
    )]
    TooManyWaiters {
        /// How many may wait.
        waiters_max: usize,
    },
    /// The store cannot count by the policy, or there is an outage and
    /// [`OutagePolicy::Error`](crate::OutagePolicy::Error).
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl WaitError {
    /// The denial, where that is what kept the request out.
    #[must_use]
    pub fn denied(&self) -> Option<Denied> {
        match self {
            Self::Denied(denied) => Some(*denied),
            Self::TooManyWaiters { .. } | Self::Store(_) => None,
        }
    }
}

/// What a limiter needs to let requests wait.
#[derive(Debug)]
pub(crate) struct Waitlist {
    queues: WaitQueues,
    hash: CounterHash,
    settings: WaitlistSettings,
    /// For stores whose own clock cannot be read here.
    clock: SystemClock,
}

/// How a limiter lets requests wait.
pub(crate) struct WaitlistSettings {
    pub(crate) waiters_max: usize,
    pub(crate) timer: Arc<dyn Timer>,
    pub(crate) jitter: Duration,
}

/// A request that wants its turn.
#[derive(Clone, Copy)]
pub(crate) struct WaitRequest<'a> {
    pub(crate) store: StoreRef<'a>,
    pub(crate) id: CounterId,
    pub(crate) key: &'a [u8],
    pub(crate) policy: &'a Policy,
    pub(crate) cost: u64,
}

impl<'a> WaitRequest<'a> {
    async fn ask(self) -> Result<(Entry<'a>, Decision), WaitError> {
        let entry = self.store.ask(self.key, self.policy, self.cost).await?;
        let decision = entry.decision.unwrap_or(Decision::UNDECIDED);
        Ok((entry, decision))
    }

    /// Gives a turn back to the store. False where the store refuses, so that a later waiter may have it.
    fn refund(&self, turn: Turn) -> bool {
        let interval = match &self.policy.kind {
            Kind::WarmUp(warming) => warming.interval_of_stamp(turn.stamp),
            _ => self.policy.interval(),
        };
        if turn.stamp == 0 || Some(turn.interval) != interval {
            return false;
        }
        match self.store.store.refund(self.key, self.policy, turn.stamp, turn.places) {
            Reply::Ready(refunded) => refunded.is_ok_and(|places| places > 0),
            // The answer comes too late to be used. The turn may be the store's again, so no other
            // waiter may have it.
            reply @ Reply::Pending(_) => {
                crate::limiter::permit::send_off(reply);
                true
            }
        }
    }
}

/// A request among the waiters, which it leaves when this is dropped.
struct QueuedRequest<'a> {
    waiting: &'a Waitlist,
    request: WaitRequest<'a>,
    /// False where so many wait that this one may not.
    has_room: bool,
    /// `None` before it has joined a queue, and after it has left it.
    ticket: Option<Ticket>,
}

impl Waitlist {
    pub(crate) fn new(settings: WaitlistSettings) -> Self {
        let (queues, hash) = (WaitQueues::default(), CounterHash::random());
        Self { queues, hash, settings, clock: SystemClock::new() }
    }

    /// The name of the counter of `key`, for a store whose own names are not known here.
    pub(crate) fn id(&self, key: &[u8], policy: &Policy) -> CounterId {
        self.hash.id(key, policy)
    }

    /// Lets the first waiter for a permit of `id` ask again, because one has come back.
    #[inline]
    pub(crate) fn notify(&self, id: CounterId) {
        if !self.queues.is_empty() {
            self.queues.with(id, WaitQueue::notify);
        }
    }

    /// Waits until the request has its turn, and returns what the store has charged it.
    pub(crate) async fn turn<'a>(
        &'a self,
        request: WaitRequest<'a>,
    ) -> Result<Entry<'a>, WaitError> {
        if request.cost == 0 {
            // A peek charges nothing, so it takes no turn.
            return Ok(request.ask().await?.0);
        }
        let (entry, has_waited) = if request.policy.kind.is_queue() {
            self.queue_up(request).await?
        } else {
            self.line_up(request).await?
        };
        let jitter_max = self.settings.jitter;
        if has_waited && !jitter_max.is_zero() {
            self.settings.timer.sleep(rand::random_range(Duration::ZERO..=jitter_max)).await;
        }
        Ok(entry)
    }

    /// Joins the queue, and asks the store once it is the first.
    async fn line_up<'a>(
        &'a self,
        request: WaitRequest<'a>,
    ) -> Result<(Entry<'a>, bool), WaitError> {
        let mut queued = self.queue(request);
        queued.ticket = Some(self.queues.with(request.id, |queue, _| queue.join(0)));
        let mut has_waited = queued.first().await?;
        let mut busy_sleep = BUSY_SLEEP_MIN;
        loop {
            let (entry, decision) = request.ask().await?;
            let sleep = match decision.outcome() {
                Outcome::Allow => {
                    drop(queued);
                    let delay = decision.delay();
                    if !delay.is_zero() {
                        self.settings.timer.sleep(delay).await;
                    }
                    return Ok((entry, has_waited || !delay.is_zero()));
                }
                Outcome::Deny { retry_after_us }
                    if decision.degraded() != Some(Degraded::Denied) =>
                {
                    Duration::from_micros(retry_after_us)
                }
                Outcome::Busy if request.policy.has_permits() => {
                    busy_sleep = (busy_sleep * 2).min(BUSY_SLEEP_MAX);
                    busy_sleep / 2
                }
                Outcome::Deny { .. } | Outcome::Busy | Outcome::Never => {
                    return Err(decision.into_denied().into());
                }
            };
            if !has_waited {
                queued.check_room()?;
                has_waited = true;
            }
            queued.sleep(sleep).await;
        }
    }

    /// Takes a turn in a queue, and waits for it.
    async fn queue_up<'a>(
        &'a self,
        request: WaitRequest<'a>,
    ) -> Result<(Entry<'a>, bool), WaitError> {
        let (entry, decision) = request.ask().await?;
        let decision = decision.ok()?;
        let queue = request.policy.kind.queue_with_limit(decision.limit());
        let Some(queue) = queue.filter(|_| !decision.delay().is_zero()) else {
            return Ok((entry, false));
        };
        let store_clock = request.store.store.clock();
        let clock = store_clock.unwrap_or(&self.clock);
        let is_exact = store_clock.is_some() && decision.degraded().is_none();
        let now = clock.now();
        // Without the store's clock by one of our own, which is read after the store's: never early.
        let at_us = if is_exact {
            turn_us(&queue, &entry, decision)
        } else {
            now.after(decision.delay()).as_micros()
        };
        let interval = queue.interval();
        let width_ns = width_ns(interval, request.cost);
        let turn = Turn { at_us, places: request.cost, width_ns, interval, stamp: entry.stamp };
        let mut queued = self.queue(request);
        if let Err(error) = queued.check_room() {
            request.refund(turn);
            return Err(error);
        }
        queued.ticket = Some(self.queues.with(request.id, |queue, wakers| {
            let ticket = queue.join_queue(turn, is_exact, now.as_micros(), wakers);
            queue.give_back(|turn| request.refund(turn));
            ticket
        }));
        queued.first().await?;
        loop {
            let now_us = clock.now().as_micros();
            let turn_us = queued.with_queue(|_, queue, wakers| queue.take_turn(now_us, wakers));
            let Some(turn_us) = turn_us.flatten() else {
                queued.ticket = None;
                return Ok((entry, true));
            };
            queued.sleep(Duration::from_micros(turn_us - now_us)).await;
        }
    }

    fn queue<'a>(&'a self, request: WaitRequest<'a>) -> QueuedRequest<'a> {
        let has_room = self.queues.enter() < self.settings.waiters_max as u64;
        QueuedRequest { waiting: self, request, has_room, ticket: None }
    }
}

/// How long `cost` places take: below 2^53 microseconds, so it fits; rounded down.
fn width_ns(Interval { numerator_us, denominator }: Interval, cost: u64) -> u64 {
    let units = u128::from(cost) * u128::from(numerator_us);
    u64::try_from(units * 1_000 / u128::from(denominator)).unwrap_or(u64::MAX)
}

/// The turn by the clock of the store, which has said when the queue is empty: `cost` intervals after
/// it. That end was rounded up; with the intervals rounded down this is the turn rounded up, or a
/// microsecond later, and turns stay as far apart as ends. The stamp says which.
fn turn_us(queue: &LeakyQueue, entry: &Entry<'_>, decision: Decision) -> u64 {
    let Interval { numerator_us, denominator } = queue.interval();
    // Below 2^53: it is at most a full debt.
    let places_us = entry.cost * numerator_us / denominator;
    let turn_us = decision.reset_at.as_micros().saturating_sub(places_us);
    let stamp = match &entry.policy.kind {
        Kind::WarmUp(_) => {
            WarmUpAlgorithm::stamp_of_queue(entry.stamp, decision.reset_at.as_micros())
        }
        _ => entry.stamp,
    };
    let stamped_us = queue.turn_us(stamp, entry.cost);
    // A store may have stamps of its own, which say something else.
    stamped_us.filter(|at_us| turn_us.abs_diff(*at_us) <= 1).unwrap_or(turn_us)
}

impl QueuedRequest<'_> {
    fn check_room(&self) -> Result<(), WaitError> {
        let waiters_max = self.waiting.settings.waiters_max;
        if self.has_room { Ok(()) } else { Err(WaitError::TooManyWaiters { waiters_max }) }
    }

    /// Waits until it is the first of its queue. True where it has waited.
    async fn first(&self) -> Result<bool, WaitError> {
        let mut has_waited = false;
        poll_fn(|context| {
            let is_first = self.with_queue(|ticket, queue, wakers| {
                queue.is_first(ticket, context.waker(), wakers)
            });
            if is_first != Some(false) {
                return Poll::Ready(Ok(has_waited));
            }
            has_waited = true;
            self.check_room().map_or_else(|error| Poll::Ready(Err(error)), |()| Poll::Pending)
        })
        .await
    }

    /// Looks at its queue, or changes it. `None` where it is in none.
    fn with_queue<T>(&self, f: impl FnOnce(Ticket, &mut WaitQueue, &mut Wakers) -> T) -> Option<T> {
        let ticket = self.ticket?;
        Some(self.waiting.queues.with(self.request.id, |queue, wakers| f(ticket, queue, wakers)))
    }

    /// Sleeps, or until it is notified.
    async fn sleep(&self, duration: Duration) {
        let mut sleep = self.waiting.settings.timer.sleep(duration);
        poll_fn(|context| {
            let is_notified = self.with_queue(|ticket, queue, wakers| {
                queue.is_first(ticket, context.waker(), wakers);
                queue.take_notification()
            });
            if is_notified == Some(true) { Poll::Ready(()) } else { sleep.as_mut().poll(context) }
        })
        .await;
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.with_queue(|ticket, queue, wakers| {
            queue.leave(ticket, wakers);
            queue.give_back(|turn| self.request.refund(turn));
        });
        self.waiting.queues.exit();
    }
}

impl Default for WaitlistSettings {
    fn default() -> Self {
        let timer = Arc::new(ThreadTimer);
        Self { waiters_max: WAITERS_MAX_DEFAULT, timer, jitter: Duration::ZERO }
    }
}

impl fmt::Debug for WaitlistSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { waiters_max, jitter, .. } = self;
        write!(f, "WaitingSettings {{ waiters_max: {waiters_max}, jitter: {jitter:?}, .. }}")
    }
}
