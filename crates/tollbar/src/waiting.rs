//! Waiting for a turn: `Limiter::wait` and `ConcurrencyLimiter::acquire`.
//!
//! For each key with waiters there is a line of them, in the order they came; only the first of a line
//! has a timer armed. Under most policies the first asks the store, sleeps for as long as the answer
//! says, and asks again. In a [leaky queue](crate::Policy::leaky_queue) each waiter has its turn from the
//! moment it came, which the store has charged, and the first sleeps until the first turn.
//!
//! Nothing here needs a runtime, and nothing is kept of a key that nobody waits for.
//!
//! | file | noun |
//! |---|---|
//! | `lines` | the waiters of all keys, and their turns: no clock, no store |
//! | `timer` | what sleeps: a thread of our own, a runtime's, or one that tests move |

mod error;
mod lines;
mod timer;
mod verbs;

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lines::{Lines, Progress, Room, Ticket, Turn};
use timer::ThreadTimer;

use crate::algorithm::leaky_queue::LeakyQueue;
use crate::memory::counter_id::{CounterHash, CounterId};
use crate::outage::Outage;
use crate::policy::Kind;
use crate::store::{Batch, Entry};
use crate::{
    Clock, Decision, Degraded, Interval, Outcome, Policy, Reply, Store, StoreError, SystemClock,
};

pub use error::WaitError;
pub use lines::WaitingStats;
pub use timer::{ManualTimer, Sleep, Timer};

/// Waiters a limiter has room for unless the builder says otherwise.
const WAITERS_MAX_DEFAULT: usize = 65_536;

/// How long the first waiter for a permit sleeps before it looks again unasked: permits of leases that
/// end, and of other processes, come back without notice. The sleep doubles each time.
const BUSY_SLEEP_MIN: Duration = Duration::from_millis(1);
const BUSY_SLEEP_MAX: Duration = Duration::from_millis(100);

/// What a limiter needs to let requests wait.
pub(crate) struct Waiting {
    lines: Lines,
    hash: CounterHash,
    timer: Arc<dyn Timer>,
    jitter_us_max: u64,
    /// For stores whose own clock cannot be read here.
    clock: SystemClock,
}

/// How a limiter lets requests wait.
pub(crate) struct WaitingBuilder {
    pub(crate) waiters_max: usize,
    pub(crate) timer: Arc<dyn Timer>,
    pub(crate) jitter: Duration,
}

/// A request that wants its turn, and who answers it.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) outage: Option<&'a Outage>,
    pub(crate) id: CounterId,
    pub(crate) key: &'a [u8],
    pub(crate) policy: &'a Policy,
    pub(crate) cost: u64,
}

impl<'a> Request<'a> {
    /// Asks the store, and leaves its answer in an entry.
    async fn ask(self) -> Result<Entry<'a>, StoreError> {
        let mut entries = [Entry::new(self.key, self.policy).with_cost(self.cost)];
        let answer = self.store.decide(Batch::all_or_none(&mut entries)).await;
        match (answer, self.outage) {
            (Ok(()), _) => {}
            (Err(error), Some(outage)) => outage.decide(error, &mut entries)?,
            (Err(error), None) => return Err(error),
        }
        let [entry] = entries;
        Ok(entry)
    }

    /// True where a turn is the store's again, or must be taken for it.
    fn refund(&self, turn: Turn) -> bool {
        if turn.stamp == 0 || Some(turn.interval) != self.policy.interval() {
            return false;
        }
        match self.store.refund(self.key, self.policy, turn.stamp, turn.places) {
            Reply::Ready(refunded) => refunded.is_ok_and(|places| places > 0),
            // Nobody is left to wait for the answer. Whether it was in time is not known, so nobody
            // else may have the turn.
            reply @ Reply::Pending(_) => {
                crate::permit::send_off(reply);
                true
            }
        }
    }
}

/// A waiter's place in its line, which it leaves when this is dropped.
struct Place<'a> {
    waiting: &'a Waiting,
    request: Request<'a>,
    ticket: Ticket,
}

impl Waiting {
    /// The name of the counter of `key`, for a store whose own names are not known here.
    pub(crate) fn id(&self, key: &[u8], policy: &Policy) -> CounterId {
        self.hash.id(key, policy)
    }

    pub(crate) fn stats(&self) -> WaitingStats {
        self.lines.stats()
    }

    /// A permit of `id` has come back: the first of those that wait for it looks again.
    #[inline]
    pub(crate) fn notify(&self, id: CounterId) {
        if !self.lines.is_empty() {
            self.lines.with(id, lines::Line::notify);
        }
    }

    /// Waits until the request has its turn, and returns what the store has charged it.
    pub(crate) async fn turn<'a>(&'a self, request: Request<'a>) -> Result<Entry<'a>, WaitError> {
        if request.cost == 0 {
            // A peek charges nothing, so it takes no turn.
            return Ok(request.ask().await?);
        }
        let (entry, has_waited) = match &request.policy.kind {
            Kind::LeakyQueue(queue) => self.queue_up(request, queue).await?,
            _ => self.line_up(request).await?,
        };
        if has_waited && self.jitter_us_max > 0 {
            let jitter_us = rand::random_range(0..=self.jitter_us_max);
            self.timer.sleep(Duration::from_micros(jitter_us)).await;
        }
        Ok(entry)
    }

    /// Stands in line, and asks the store once it is the first.
    async fn line_up<'a>(&'a self, request: Request<'a>) -> Result<(Entry<'a>, bool), WaitError> {
        let place = Place { waiting: self, request, ticket: self.lines.next_ticket() };
        let is_first = self.lines.with(request.id, |line, _| line.join(place.ticket, 0));
        let mut room = if is_first { None } else { Some(self.room()?) };
        place.first().await;
        let mut busy_sleep = BUSY_SLEEP_MIN;
        loop {
            let entry = request.ask().await?;
            let decision = entry.decision.unwrap_or(Decision::UNDECIDED);
            let sleep = match decision.outcome() {
                Outcome::Allow => {
                    drop(place);
                    let delay = decision.delay();
                    if !delay.is_zero() {
                        self.timer.sleep(delay).await;
                    }
                    return Ok((entry, room.is_some() || !delay.is_zero()));
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
            if room.is_none() {
                room = Some(self.room()?);
            }
            place.sleep(sleep).await;
        }
    }

    /// Takes a turn in a queue, and waits for it in line.
    async fn queue_up<'a>(
        &'a self,
        request: Request<'a>,
        queue: &LeakyQueue,
    ) -> Result<(Entry<'a>, bool), WaitError> {
        let entry = request.ask().await?;
        let decision = entry.decision.unwrap_or(Decision::UNDECIDED).ok()?;
        if decision.delay().is_zero() {
            return Ok((entry, false));
        }
        let clock = request.store.clock().unwrap_or(&self.clock);
        let is_exact = request.store.clock().is_some() && decision.degraded().is_none();
        let at_us = if is_exact {
            turn_us(queue, &entry, decision)
        } else {
            // By a clock of our own, which is read after the store's: never early.
            clock.now().after(decision.delay()).as_micros()
        };
        let interval = queue.interval();
        let width_ns = width_ns(interval, request.cost);
        let turn = Turn { at_us, places: request.cost, width_ns, interval, stamp: entry.stamp };
        let Ok(_room) = self.room() else {
            request.refund(turn);
            return Err(WaitError::TooManyWaiters { waiters_max: self.lines.waiters_max() });
        };
        let place = Place { waiting: self, request, ticket: self.lines.next_ticket() };
        self.lines.with(request.id, |line, wakers| {
            line.add_turn(turn, is_exact, clock.now().as_micros(), wakers);
            line.join(place.ticket, width_ns);
            line.give_back(|turn| request.refund(turn));
        });
        place.turn(clock).await;
        Ok((entry, true))
    }

    fn room(&self) -> Result<Room<'_>, WaitError> {
        let waiters_max = self.lines.waiters_max();
        self.lines.room().ok_or(WaitError::TooManyWaiters { waiters_max })
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
    let stamped_us = queue.turn_us(entry.stamp, entry.cost);
    // A store may have stamps of its own, which say something else.
    stamped_us.filter(|it| turn_us.abs_diff(*it) <= 1).unwrap_or(turn_us)
}

impl Place<'_> {
    /// Waits until it is the first of its line.
    async fn first(&self) {
        poll_fn(|context| {
            let is_first = self.waiting.lines.with(self.request.id, |line, wakers| {
                line.is_first(self.ticket, context.waker(), wakers)
            });
            if is_first { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Sleeps, or until it is notified that a permit has come back.
    async fn sleep(&self, duration: Duration) {
        let mut sleep = self.waiting.timer.sleep(duration);
        poll_fn(|context| {
            let is_notified = self.waiting.lines.with(self.request.id, |line, wakers| {
                line.is_first(self.ticket, context.waker(), wakers);
                line.take_notification()
            });
            if is_notified { Poll::Ready(()) } else { sleep.as_mut().poll(context) }
        })
        .await;
    }

    /// Waits for its turn in a queue.
    async fn turn(&self, clock: &dyn Clock) {
        let mut sleep: Option<(u64, Sleep)> = None;
        poll_fn(|context| self.poll_turn(clock, &mut sleep, context)).await;
    }

    fn poll_turn(
        &self,
        clock: &dyn Clock,
        sleep: &mut Option<(u64, Sleep)>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        for has_slept in [false, true] {
            let now_us = clock.now().as_micros();
            let progress = self.waiting.lines.with(self.request.id, |line, wakers| {
                line.look(self.ticket, now_us, context.waker(), wakers)
            });
            let until_us = match progress {
                Progress::Go => return Poll::Ready(()),
                Progress::Behind => return Poll::Pending,
                Progress::First { until_us } => until_us,
            };
            if has_slept {
                // The timer is ahead of the store's clock. Come again, but let others run.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if sleep.as_ref().is_none_or(|(until, _)| *until != until_us) {
                let duration = Duration::from_micros(until_us.saturating_sub(now_us));
                *sleep = Some((until_us, self.waiting.timer.sleep(duration)));
            }
            if let Some((_, sleeping)) = sleep
                && sleeping.as_mut().poll(context).is_pending()
            {
                return Poll::Pending;
            }
            *sleep = None;
        }
        Poll::Pending
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.waiting.lines.with(self.request.id, |line, wakers| {
            if line.leave(self.ticket, wakers) {
                line.give_back(|turn| self.request.refund(turn));
            }
        });
    }
}

impl Default for WaitingBuilder {
    fn default() -> Self {
        Self {
            waiters_max: WAITERS_MAX_DEFAULT,
            timer: Arc::new(ThreadTimer),
            jitter: Duration::ZERO,
        }
    }
}

impl WaitingBuilder {
    pub(crate) fn build(self) -> Waiting {
        Waiting {
            lines: Lines::new(self.waiters_max),
            hash: CounterHash::random(),
            timer: self.timer,
            jitter_us_max: u64::try_from(self.jitter.as_micros()).unwrap_or(u64::MAX),
            clock: SystemClock::new(),
        }
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl fmt::Debug for WaitingBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingBuilder")
            .field("waiters_max", &self.waiters_max)
            .field("jitter", &self.jitter)
            .finish_non_exhaustive()
    }
}
