//! Waiting for one's turn: [`Limiter::until_ready`] over a [leaky queue](crate::Policy::leaky_queue).
//!
//! The store knows when each turn is, and nothing of who waits for it. Here is who waits: for each
//! key with anybody waiting a line of waiters in the order they came, and the turns they have
//! taken, in order of time. The first waiter has the first turn, whoever had taken it. So one that
//! gives up moves all behind it up by one, and leaves the *last* turn over, which alone a store can
//! take back; where it cannot, because somebody has queued behind it elsewhere, the turn stays for
//! the next who comes.
//!
//! Only the first of a line has a timer armed. When it fires, all whose turns have come are let go
//! and the next first is woken. Nothing here needs a runtime, and nothing is kept of a key nobody
//! waits for.
//!
//! | file | noun |
//! |---|---|
//! | `line` | who waits for one key, and their turns: no locks, no clock |
//! | `lines` | the lines of all keys, in shards |
//! | `waiter` | one who waits: a future that gives its place back when it is dropped |
//! | `timer` | what sleeps: a thread of our own, a runtime's, or one that tests move |

mod error;
mod line;
mod lines;
mod timer;
mod waiter;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lines::Lines;
use timer::ThreadTimer;
use waiter::{Asked, Waiter};

use crate::limiter::Policies;
use crate::policy::Kind;
use crate::store::{Batch, Entry};
use crate::{Clock, Decision, Limiter, LimiterBuilder, Policy, SystemClock};

pub use error::WaitError;
pub use lines::WaitingStats;
pub use timer::{ManualTimer, Sleep, Timer};

/// Waiters a limiter has room for unless it is told otherwise.
const WAITERS_MAX_DEFAULT: usize = 65_536;

/// What a limiter needs to let requests wait.
pub(crate) struct Waiting {
    lines: Lines,
    timer: Arc<dyn Timer>,
    jitter_us_max: u64,
    /// For stores whose own clock cannot be read here.
    clock: SystemClock,
}

/// How a limiter lets requests wait.
pub(crate) struct WaitingBuilder {
    waiters_max: usize,
    timer: Arc<dyn Timer>,
    jitter: Duration,
}

impl Limiter {
    /// Waits until it is the turn of `key`, in a [leaky queue](Policy::leaky_queue).
    ///
    /// ```
    /// use tollbar::{Limiter, Policy, WaitError};
    ///
    /// async fn call(limiter: &Limiter) -> Result<(), WaitError> {
    ///     limiter.until_ready("api.example.com").await?;
    ///     // One request at a time leaves from here, a tenth of a second apart.
    ///     Ok(())
    /// }
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let limiter = Limiter::new(Policy::leaky_queue("10/s", 100)?);
    /// # let _ = call(&limiter);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Who comes first goes first. Who finds the queue full, or would wait for longer than the
    /// policy allows, is told so at once. It needs no runtime; see [`LimiterBuilder::timer`].
    ///
    /// Dropping the future gives the place up: those behind it move up, and the last place goes
    /// back to the store. So a timeout around it is fine. A future that has been polled and is then
    /// neither polled nor dropped holds up those behind it once it is the first.
    ///
    /// Over a store that answers later, a future dropped before the store has answered may leave a
    /// place taken that nobody uses, and one dropped after it gives its place back if the store
    /// takes the request to do so without being waited for.
    pub async fn until_ready(&self, key: impl AsRef<[u8]>) -> Result<Decision, WaitError> {
        self.until_ready_cost(key, 1).await
    }

    /// The same for a request that takes `cost` places: its turn is that of the first of them, and
    /// the next one's comes `cost` intervals later. Cost 0 peeks, and waits for nothing.
    pub async fn until_ready_cost(
        &self,
        key: impl AsRef<[u8]>,
        cost: u64,
    ) -> Result<Decision, WaitError> {
        let key = key.as_ref();
        match &self.policies {
            Policies::One(policy) => self.wait_under(policy, key, cost).await,
            Policies::Resolved(resolver) => {
                let policy = resolver.resolve(key);
                self.wait_under(&policy, key, cost).await
            }
        }
    }

    /// How many wait in [`until_ready`](Self::until_ready) at this moment, and what they take up.
    #[must_use]
    pub fn waiting(&self) -> WaitingStats {
        self.waiting.lines.stats()
    }

    async fn wait_under(
        &self,
        policy: &Policy,
        key: &[u8],
        cost: u64,
    ) -> Result<Decision, WaitError> {
        let Kind::LeakyQueue(queue) = &policy.kind else {
            return Err(WaitError::NotAQueue { algorithm: policy.algorithm().name() });
        };
        let (decision, stamp) = match &self.memory {
            Some(memory) => memory.queue_up(key, policy, queue, cost),
            None => self.queue_up_elsewhere(policy, key, cost).await,
        };
        if !decision.is_allowed() {
            return Err(WaitError::Denied(decision));
        }
        if decision.delay().is_zero() {
            return Ok(decision);
        }
        let asked = Asked { key, policy, queue, cost, decision, stamp };
        Waiter::new(&self.waiting, &*self.store, asked)?.await;
        self.waiting.jitter().await;
        Ok(decision)
    }

    /// The answer of a store that is not in memory and what it calls the charge, or the failure
    /// policy's answer and 0.
    async fn queue_up_elsewhere(&self, policy: &Policy, key: &[u8], cost: u64) -> (Decision, u64) {
        let mut entries = [Entry::new(key, policy).with_cost(cost)];
        let answer = self.store.decide(Batch::all_or_none(&mut entries)).await;
        let [entry] = entries;
        match answer {
            Ok(()) => (entry.decision().unwrap_or(Decision::UNDECIDED), entry.stamp()),
            Err(error) => (self.on_failure.decide(&error, key, policy, cost), 0),
        }
    }
}

impl LimiterBuilder {
    /// What [`until_ready`](Limiter::until_ready) sleeps by: any function from a duration to a
    /// future, such as `tokio::time::sleep`. By default a thread of this library, which is started
    /// when somebody waits for the first time and serves any runtime.
    #[must_use]
    pub fn timer(mut self, timer: impl Timer) -> Self {
        self.waiting.timer = Arc::new(timer);
        self
    }

    /// How many may wait in [`until_ready`](Limiter::until_ready) at the same time, all keys taken
    /// together; who would be one more is refused at once. 65,536 by default.
    #[must_use]
    pub fn max_waiters(mut self, waiters_max: usize) -> Self {
        self.waiting.waiters_max = waiters_max;
        self
    }

    /// Has everybody who waited in [`until_ready`](Limiter::until_ready) wait for a random time
    /// more, up to `jitter`, once it is its turn. The next one is not held up by it, so two may
    /// leave closer together than the rate says, by up to `jitter`.
    #[must_use]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.waiting.jitter = jitter;
        self
    }
}

impl Waiting {
    /// The clock the store goes by, or else one that is as good for how long to sleep.
    fn clock<'a>(&'a self, store: &'a dyn crate::Store) -> &'a dyn Clock {
        store.clock().unwrap_or(&self.clock)
    }

    async fn jitter(&self) {
        if self.jitter_us_max > 0 {
            let jitter_us = rand::random_range(0..=self.jitter_us_max);
            self.timer.sleep(Duration::from_micros(jitter_us)).await;
        }
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
            timer: self.timer,
            jitter_us_max: u64::try_from(self.jitter.as_micros()).unwrap_or(u64::MAX),
            clock: SystemClock::new(),
        }
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
