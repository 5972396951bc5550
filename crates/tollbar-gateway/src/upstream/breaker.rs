//! Spares an upstream that is down, and its clients the wait for it.
//!
//! Several failures in a row open it. Then nothing is sent for a while, and after that one request at a time, until one is
//! answered. A probe that takes long does not keep others from trying. Callers say whether something has failed, and log it if
//! they are told to; the breaker knows no network.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long after one outage has begun another is not logged: an upstream that fails now and then must not fill the log.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerOptions {
    /// How many failures in a row open it.
    pub failure_count: u32,
    /// The first pause; each that follows is twice as long, and lengthened by up to a quarter at random.
    pub pause: Duration,
    /// The longest pause, before it is lengthened.
    pub pause_max: Duration,
}

impl Default for BreakerOptions {
    fn default() -> Self {
        Self {
            failure_count: 5,
            pause: Duration::from_millis(500),
            pause_max: Duration::from_secs(30),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Breaker {
    options: BreakerOptions,
    /// False as long as nothing has failed, so that nobody takes the lock.
    is_troubled: AtomicBool,
    state: Mutex<BreakerState>,
}

#[derive(Debug, Default)]
struct BreakerState {
    /// When the last outage was logged, and whether it goes on.
    logged_at: Option<Instant>,
    is_logged: bool,
    /// In a row.
    failures: u32,
    /// Nothing is sent before this, once it is open.
    open_until: Option<Instant>,
    /// How often it has opened since the last answer.
    openings: u32,
    /// Somebody is trying, and nobody else does before this.
    probed_until: Option<Instant>,
}

/// Leave to ask the upstream. Dropped without a word, it was neither answered nor has it failed.
#[derive(Debug)]
pub(crate) struct BreakerPermit {
    breaker: Arc<Breaker>,
    is_probe: bool,
}

impl Breaker {
    pub(crate) fn new(options: BreakerOptions) -> Arc<Self> {
        let (is_troubled, state) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self { options, is_troubled, state })
    }

    /// Leave to ask, or how long there is none.
    pub(crate) fn pass(self: &Arc<Self>) -> Result<BreakerPermit, Duration> {
        let mut pass = BreakerPermit { breaker: Arc::clone(self), is_probe: false };
        if !self.is_troubled.load(Ordering::Relaxed) {
            return Ok(pass);
        }
        let mut state = self.lock();
        if let Some(until) = state.open_until {
            let now = Instant::now();
            if now < until {
                return Err(until - now);
            }
            if let Some(until) = state.probed_until
                && now < until
            {
                return Err(until - now);
            }
            state.probed_until = now.checked_add(self.options.pause);
            pass.is_probe = true;
        }
        drop(state);
        Ok(pass)
    }

    fn lock(&self) -> MutexGuard<'_, BreakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long it stays open the next time.
    #[expect(
        clippy::disallowed_methods,
        reason = "nobody gains by guessing how long another waits"
    )]
    fn pause(&self, openings: u32) -> Duration {
        let BreakerOptions { pause, pause_max, .. } = self.options;
        let pause = pause.saturating_mul(1_u32.checked_shl(openings).unwrap_or(u32::MAX));
        let pause = pause.min(pause_max);
        let quarter_us = u64::try_from(pause.as_micros() / 4).unwrap_or(u64::MAX - 1);
        pause.saturating_add(Duration::from_micros(fastrand::u64(0..=quarter_us)))
    }
}

impl BreakerPermit {
    /// Notes that the upstream has answered, whatever it said. Returns true if that is to be logged: it ends an outage whose
    /// beginning was.
    pub(crate) fn answered(self) -> bool {
        if !self.breaker.is_troubled.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.breaker.lock();
        let BreakerState { logged_at, is_logged, .. } = *state;
        *state = BreakerState { logged_at, ..BreakerState::default() };
        self.breaker.is_troubled.store(false, Ordering::Relaxed);
        is_logged
    }

    /// Notes that the upstream could not be reached, or did not answer in time. Returns true if that is to be logged: it is
    /// the first failure of an outage.
    pub(crate) fn failed(self) -> bool {
        let mut state = self.breaker.lock();
        let now = Instant::now();
        self.breaker.is_troubled.store(true, Ordering::Relaxed);
        state.failures = state.failures.saturating_add(1);
        let is_quiet = state.logged_at.is_some_and(|at| now.duration_since(at) < LOG_PAUSE);
        let is_news = !state.is_logged && !is_quiet;
        if is_news {
            (state.logged_at, state.is_logged) = (Some(now), true);
        }
        // Those who were under way when it opened fail too, and say nothing new.
        let is_open = state.open_until.is_some() && !self.is_probe;
        if !is_open && state.failures >= self.breaker.options.failure_count {
            let pause = self.breaker.pause(state.openings);
            state.openings = state.openings.saturating_add(1);
            state.open_until = now.checked_add(pause);
        }
        is_news
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        if self.is_probe {
            self.breaker.lock().probed_until = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const PAUSE: Duration = Duration::from_secs(1);
    /// A pause and all that chance may add to it.
    const LONGEST: Duration = Duration::from_millis(1_250);

    fn breaker() -> Arc<Breaker> {
        let pause_max = Duration::from_secs(4);
        Breaker::new(BreakerOptions { failure_count: 3, pause: PAUSE, pause_max })
    }

    fn opened() -> Arc<Breaker> {
        let breaker = breaker();
        for _ in 0..3 {
            breaker.pass().unwrap().failed();
        }
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_open_it_and_an_answer_between_them_does_not() {
        let breaker = breaker();
        for _ in 0..10 {
            breaker.pass().unwrap().failed();
            breaker.pass().unwrap().failed();
            breaker.pass().unwrap().answered();
        }
        assert!(breaker.pass().is_ok());
        let wait = opened().pass().unwrap_err();
        assert!((PAUSE..=LONGEST).contains(&wait), "{wait:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_pause_one_at_a_time_tries() {
        let breaker = opened();
        advance(LONGEST).await;
        let probe = breaker.pass().unwrap();
        assert_eq!(breaker.pass().unwrap_err(), PAUSE);
        drop(probe);
        let probe = breaker.pass().expect("whoever was trying has gone without a word");
        probe.answered();
        let both = (breaker.pass(), breaker.pass());
        assert!(both.0.is_ok() && both.1.is_ok());
    }

    /// A client could otherwise hold the place of who tries by sending its body for ever.
    #[tokio::test(start_paused = true)]
    async fn a_probe_that_takes_its_time_keeps_nobody_out() {
        let breaker = opened();
        advance(LONGEST).await;
        let _slow = breaker.pass().unwrap();
        assert!(breaker.pass().is_err());
        advance(PAUSE).await;
        breaker.pass().unwrap().answered();
        assert!(breaker.pass().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_the_longest() {
        let breaker = opened();
        for expected_s in [2, 4, 4, 4] {
            advance(Duration::from_secs(5)).await;
            breaker.pass().unwrap().failed();
            let wait = breaker.pass().unwrap_err();
            let expected = Duration::from_secs(expected_s);
            assert!((expected..=expected * 5 / 4).contains(&wait), "{wait:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_under_way_when_it_opened_does_not_lengthen_the_pause() {
        let breaker = breaker();
        let late: Vec<_> = (0..10).map(|_| breaker.pass().unwrap()).collect();
        assert!(late.into_iter().filter_map(|pass| pass.failed().then_some(())).eq([()]));
        assert!(breaker.pass().unwrap_err() <= LONGEST);
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_logged_once_and_its_end_once_and_flapping_seldom() {
        let breaker = breaker();
        let failed = || breaker.pass().unwrap().failed();
        let answered = || breaker.pass().unwrap().answered();
        assert!(!answered(), "there was no outage");
        assert_eq!([failed(), failed()], [true, false]);
        assert_eq!([answered(), answered()], [true, false]);
        // Every other request fails, for 25 s.
        let mut logged = 0;
        for _ in 0..250 {
            logged += u32::from(failed());
            logged += u32::from(answered());
            advance(LOG_PAUSE / 100).await;
        }
        assert_eq!(logged, 4, "two more outages, and their ends");
    }
}
