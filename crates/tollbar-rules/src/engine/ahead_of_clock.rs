//! Counters that owe more than their policy can, because the clock ran ahead and was set back, a snapshot was
//! restored, or a limit was lowered. Their clients are denied until the clock has caught up.
//!
//! Such a denial asks to wait for longer than a charge can count. It is counted here; and while somebody has
//! asked for it, the counter behind it is made fresh, so that the client's next request is decided anew.
//! Nothing is looked at where a request is allowed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollbar::{Decision, Outcome, Policy, Reply, StoreError, Timestamp};

use super::AsyncEngine;
use super::decide::AnsweredCheck;
use crate::verdict::Enforcement;

/// A wait that is longer by less than this is that of a clock reading that was a little old.
const SLACK_US: u64 = 1_000_000;

/// How many rules wait to be told of. What does not fit is counted all the same.
const NEWS_MAX: usize = 64;

/// Denials by counters that are ahead of the clock, since the engine was made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AheadOfClock {
    /// How many there were.
    pub denials: u64,
    /// How many of them no rule has made: see [`AsyncEngine::denied_elsewhere`].
    pub denials_without_rule: u64,
    /// The newest.
    pub newest: Option<AheadDenial>,
    /// Until when such counters are made fresh, if they are.
    pub clearing_until: Option<Timestamp>,
    /// How many were made fresh.
    pub cleared: u64,
    /// How many could not be, because the store did not answer.
    pub clear_failures: u64,
}

/// One denial by a counter that is ahead of the clock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AheadDenial {
    /// The rule's name, or what has decided in place of a rule.
    pub rule: Arc<str>,
    /// How much more the counter owed than its policy can.
    pub by: Duration,
    /// When it was.
    pub at: Timestamp,
}

/// What is to be told of counters that are ahead of the clock.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct AheadNews {
    /// The first such denial of each rule.
    pub first: Vec<AheadDenial>,
    /// Why a counter could not be made fresh.
    pub failure: Option<StoreError>,
}

#[derive(Debug, Default)]
pub(super) struct AheadTracker {
    denials: AtomicU64,
    denials_without_rule: AtomicU64,
    clear_until_us: AtomicU64,
    cleared: AtomicU64,
    clear_failures: AtomicU64,
    log: Mutex<AheadLog>,
}

#[derive(Debug, Default)]
struct AheadLog {
    newest: Option<AheadDenial>,
    news: AheadNews,
}

/// How much more a counter owes than its policy can, where its denial tells so.
#[inline]
pub(super) fn excess_wait(policy: &Policy, decision: &Decision) -> Option<Duration> {
    match decision.outcome() {
        Outcome::Deny { retry_after_us } => beyond_us(policy, retry_after_us),
        _ => None,
    }
}

fn beyond_us(policy: &Policy, wait_us: u64) -> Option<Duration> {
    let wait = Duration::from_micros(wait_us);
    let by = wait.checked_sub(policy.memory()?)?;
    (by > Duration::from_micros(SLACK_US)).then_some(by)
}

impl AsyncEngine {
    /// What is known of counters that owe more than their policy can.
    #[must_use]
    pub fn ahead_of_clock(&self) -> AheadOfClock {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let until = Timestamp::from_micros(count(&self.ahead.clear_until_us));
        AheadOfClock {
            denials: count(&self.ahead.denials),
            denials_without_rule: count(&self.ahead.denials_without_rule),
            newest: self.ahead.log().newest.clone(),
            clearing_until: Some(until).filter(|until| *until > self.clock.now()),
            cleared: count(&self.ahead.cleared),
            clear_failures: count(&self.ahead.clear_failures),
        }
    }

    /// Makes counters fresh that owe more than their policy can, for so long from now: each when its
    /// client is denied by it. The client's next request is decided on a fresh counter.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollbar::{ManualClock, Timestamp};
    /// use tollbar_rules::{Engine, Request, RuleFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let clock = ManualClock::at(Timestamp::from_micros(1_700_086_400_000_000));
    /// let rules = RuleFile::parse("rules.yaml", "rules: [{ name: per_client, limit: 1/min }]")?.rules;
    /// let engine = Engine::builder(rules).clock(clock.clone()).build();
    /// let request = Request::new("GET", "/")?.with_attributes(&[("user", "42")])?;
    /// assert!(engine.check(&request).is_allowed());
    ///
    /// // The clock had been a day ahead.
    /// clock.set(Timestamp::from_micros(1_700_000_000_000_000));
    /// engine.clear_ahead_for(Duration::from_secs(600));
    /// assert!(!engine.check(&request).is_allowed());
    /// assert!(engine.check(&request).is_allowed());
    /// assert_eq!(engine.ahead_of_clock().cleared, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear_ahead_for(&self, time: Duration) {
        let until_us = self.clock.now().after(time).as_micros();
        self.ahead.clear_until_us.store(until_us, Ordering::Relaxed);
    }

    /// What is to be told since this was asked last.
    #[must_use]
    pub fn take_ahead_news(&self) -> AheadNews {
        std::mem::take(&mut self.ahead.log().news)
    }

    /// Looks at a denial that was made without a rule, over the engine's store: `name` has denied `key` by
    /// `policy` for another `wait`.
    pub async fn denied_elsewhere(&self, name: &str, key: &[u8], policy: &Policy, wait: Duration) {
        let wait_us = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        if let Some(by) = beyond_us(policy, wait_us)
            && self.record_ahead(&name.into(), &self.ahead.denials_without_rule, by)
        {
            self.ahead.clear(self.store.reset(key, policy).await);
        }
    }

    /// Counts a denial by a counter that is ahead; true where that is to be made fresh. `denials` are those
    /// of its rule so far.
    #[cold]
    pub(super) fn record_ahead(&self, rule: &Arc<str>, denials: &AtomicU64, by: Duration) -> bool {
        let at = self.clock.now();
        self.ahead.denials.fetch_add(1, Ordering::Relaxed);
        let is_first = denials.fetch_add(1, Ordering::Relaxed) == 0;
        let denial = AheadDenial { rule: Arc::clone(rule), by, at };
        let mut log = self.ahead.log();
        if is_first && log.news.first.len() < NEWS_MAX {
            log.news.first.push(denial.clone());
        }
        log.newest = Some(denial);
        at.as_micros() < self.ahead.clear_until_us.load(Ordering::Relaxed)
    }

    /// Makes the counters fresh that were found ahead in a check.
    pub(super) async fn clear_ahead(&self, check: &AnsweredCheck<'_>) {
        for reply in self.resets(check) {
            self.ahead.clear(reply.await);
        }
    }

    /// Makes them fresh, and blocks the thread while a store across a network answers.
    pub(super) fn clear_ahead_now(&self, check: &AnsweredCheck<'_>) {
        for reply in self.resets(check) {
            self.ahead.clear(reply.wait());
        }
    }

    fn resets<'a>(&'a self, check: &AnsweredCheck<'a>) -> impl Iterator<Item = Reply<'a, ()>> {
        let live =
            check.selection.limits.iter().map(|selected| selected.enforcement == Enforcement::Live);
        let entries = check.entries.iter().zip(live).filter(|(_, is_live)| *is_live);
        let is_ahead = |entry: &&tollbar::Entry<'a>| {
            entry
                .decision()
                .is_some_and(|decision| excess_wait(entry.policy(), &decision).is_some())
        };
        let ahead = entries.map(|(entry, _)| entry).filter(is_ahead);
        ahead.map(|entry| self.store.reset(entry.key(), entry.policy()))
    }
}

impl AheadTracker {
    pub(super) fn clear(&self, reset: Result<(), StoreError>) {
        match reset {
            Ok(()) => self.cleared.fetch_add(1, Ordering::Relaxed),
            Err(failure) => {
                self.log().news.failure = Some(failure);
                self.clear_failures.fetch_add(1, Ordering::Relaxed)
            }
        };
    }

    fn log(&self) -> MutexGuard<'_, AheadLog> {
        // They are whole after each change.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
