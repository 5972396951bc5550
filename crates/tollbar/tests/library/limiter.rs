//! The limiter: policies that change, stores that fail, answers that say so.

use std::future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollbar::store::{Adjustment, ReservationId};
use tollbar::{
    Batch, Decision, Degraded, Entry, FailurePolicy, Feature, Limiter, ManualClock, MemoryStore,
    Outcome, Overrides, Policy, Reply, Role, Store, StoreError, Timestamp, Verdict,
};

fn bucket(rate: &str) -> Policy {
    Policy::token_bucket(rate).unwrap()
}

fn memory(clock: &ManualClock) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::builder().max_keys(100).clock(clock.clone()).build())
}

/// A store across a network that does not answer, or only after a while.
#[derive(Debug)]
struct Remote {
    inner: MemoryStore,
    is_down: bool,
}

impl Remote {
    fn reply<'a, T: Send + 'a>(&self, answer: Result<T, StoreError>) -> Reply<'a, T> {
        let down = || StoreError::Unavailable { source: Arc::new(std::fmt::Error) };
        let answer = if self.is_down { Err(down()) } else { answer };
        Reply::Pending(Box::pin(async move {
            // Not there at the first look, as an answer from a network.
            let mut looked = false;
            future::poll_fn(|context| {
                if looked {
                    return Poll::Ready(());
                }
                looked = true;
                context.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
            answer
        }))
    }
}

impl Store for Remote {
    fn supports(&self, feature: Feature<'_>) -> Result<(), StoreError> {
        self.inner.supports(feature)
    }

    fn check<'a>(&'a self, key: &'a [u8], policy: &'a Policy, cost: u64) -> Reply<'a, Decision> {
        self.reply(self.inner.check(key, policy, cost).wait())
    }

    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        self.reply(self.inner.decide(batch).wait())
    }

    fn refund<'a>(&'a self, _: &'a [u8], _: &'a Policy, _: u64, _: u64) -> Reply<'a, u64> {
        self.reply(Ok(0))
    }

    fn renew<'a>(&'a self, _: &'a [u8], _: &'a Policy, _: u64) -> Reply<'a, Option<Timestamp>> {
        self.reply(Ok(None))
    }

    fn settle<'a, 'e: 'a>(
        &'a self,
        _: ReservationId,
        _: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        self.reply(Ok(false))
    }

    fn reset<'a>(&'a self, key: &'a [u8], policy: &'a Policy) -> Reply<'a, ()> {
        self.reply(self.inner.reset(key, policy).wait())
    }
}

fn remote(is_down: bool) -> Arc<Remote> {
    Arc::new(Remote { inner: MemoryStore::builder().max_keys(100).build(), is_down })
}

#[test]
fn a_store_across_a_network_gives_the_same_answers_blocking_and_async() {
    let limiter = Limiter::builder(bucket("3/month")).store(remote(false)).build();
    assert_eq!(limiter.check("key").remaining(), 2);
    let mut check = Box::pin(limiter.check_async("key", 1));
    let mut context = Context::from_waker(Waker::noop());
    assert!(check.as_mut().poll(&mut context).is_pending());
    let Poll::Ready(decision) = check.as_mut().poll(&mut context) else { panic!("still pending") };
    assert_eq!((decision.remaining(), decision.degraded()), (1, None));
    limiter.reset("key");
    assert_eq!(limiter.peek("key").remaining(), 3);
}

#[test]
fn without_its_store_a_limiter_answers_by_its_failure_policy_and_says_so() {
    let build = |on_failure| {
        Limiter::builder(bucket("3/month")).store(remote(true)).on_failure(on_failure).build()
    };

    let decision = build(FailurePolicy::Allow).check("key");
    assert!(decision.is_allowed());
    assert_eq!((decision.limit(), decision.degraded()), (3, Some(Degraded::Allowed)));

    let decision = build(FailurePolicy::Deny).check("key");
    assert_eq!(decision.retry_after(), Some(Duration::from_secs(1)));
    assert_eq!(decision.degraded(), Some(Degraded::Denied));

    let local = Limiter::new(bucket("1/month"));
    let limiter = build(FailurePolicy::Fallback(Box::new(local)));
    let first = limiter.check("key");
    assert_eq!((first.is_allowed(), first.degraded()), (true, Some(Degraded::Fallback)));
    let second = limiter.check("key");
    assert_eq!((second.is_allowed(), second.degraded()), (false, Some(Degraded::Fallback)));
}

#[test]
fn batches_and_many_checks_without_a_store_are_marked_degraded_too() {
    let limiter = Limiter::builder(bucket("3/month"))
        .store(remote(true))
        .on_failure(FailurePolicy::Deny)
        .build();
    let mut decisions = Vec::new();
    limiter.check_many(&["a", "b"], &mut decisions);
    assert!(decisions.iter().all(|decision| decision.degraded() == Some(Degraded::Denied)));
    assert_eq!(decisions.len(), 2);

    let policy = bucket("5/s");
    let mut entries = [Entry::new("a", &policy), Entry::new("b", &policy)];
    let verdict = limiter.check_all(&mut entries).unwrap();
    assert!(!verdict.is_allowed() && verdict.is_degraded());
}

#[test]
fn overrides_change_at_run_time_and_keep_what_was_counted() {
    let tenants = Overrides::new(bucket("10/month"));
    let limiter = Limiter::resolved_by(tenants.clone());
    assert_eq!(limiter.check("acme").remaining(), 9);
    tenants.set("acme", bucket("100/month"));
    // A bucket keeps its debt of time: a tenth of a month, which is ten tokens at the new rate.
    assert_eq!(limiter.peek("acme").remaining(), 90);
    assert_eq!(limiter.peek("other").limit(), 10);
    tenants.unset("acme");
    tenants.set_default(bucket("20/month"));
    assert_eq!(limiter.peek("acme").remaining(), 18);
    let mut decisions = Vec::new();
    tenants.set("b", bucket("1/month"));
    limiter.check_many(&["a", "b"], &mut decisions);
    assert_eq!(decisions.iter().map(Decision::limit).collect::<Vec<_>>(), [20, 1]);
}

/// It printed every counter that its store has room for, which took seconds.
#[test]
fn a_limiter_prints_its_policy_and_not_what_is_in_its_store() {
    let one = format!("{:?}", Limiter::new(bucket("10/month")));
    assert!(one.starts_with("Limiter { policies: One(Policy {"), "{one}");
    assert!(one.contains("store: MemoryStore { slots: ") && one.len() < 1_000, "{one}");
    let resolved = format!("{:?}", Limiter::resolved_by(Overrides::new(bucket("10/month"))));
    assert!(resolved.starts_with("Limiter { policies: Resolved(..), "), "{resolved}");
}

#[test]
fn a_closure_resolves_policies() {
    let (free, paid) = (bucket("1/s"), bucket("100/s"));
    let limiter =
        Limiter::resolved_by(
            move |key: &[u8]| {
                if key.starts_with(b"paid:") { paid.clone() } else { free.clone() }
            },
        );
    assert_eq!(limiter.check("paid:7").limit(), 100);
    assert_eq!(limiter.check("8").limit(), 1);
}

#[test]
fn the_binding_decision_is_the_longest_retry_or_the_least_left() {
    let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
    let limiter = Limiter::builder(bucket("1/s")).store(memory(&clock)).build();
    let (second, minute, ten) = (bucket("1/s"), bucket("1/min"), bucket("10/s").named("ten"));
    let ask = |cost| {
        let mut entries = [
            Entry::new("a", &second),
            Entry::new("a", &minute),
            Entry::new("a", &ten).with_cost(cost),
        ];
        limiter.check_all(&mut entries).unwrap()
    };
    // Allowed: both buckets of one are empty now; the first of the two binds.
    let verdict = ask(1);
    assert!(verdict.is_allowed());
    assert_eq!(verdict.binding(), Some(0));
    // Denied by the first two: the minute is the longer wait.
    let verdict = ask(1);
    assert_eq!(verdict.binding(), Some(1));
    assert_eq!(verdict.decision().unwrap().retry_after(), Some(Duration::from_mins(1)));
    // What can never pass binds before any wait.
    let verdict = ask(11);
    assert_eq!((verdict.binding(), verdict.outcome()), (Some(2), Outcome::Never));
}

#[test]
fn a_request_under_nothing_enforced_passes_and_names_nothing() {
    assert!(Verdict::of(&[]).is_allowed());
    let policy = bucket("1/month");
    let limiter = Limiter::new(policy.clone());
    let ask = || {
        let mut entries = [Entry::new("a", &policy).with_role(Role::Shadow)];
        let verdict = limiter.check_all(&mut entries).unwrap();
        assert!(verdict.is_allowed() && verdict.binding().is_none());
        entries[0].decision().unwrap().is_allowed()
    };
    assert!(ask());
    assert!(!ask(), "the shadow reports what it would have done");
}

#[test]
fn a_batch_that_is_too_large_is_refused_and_the_failure_policy_answers() {
    let policy = bucket("1/s");
    let keys: Vec<String> = (0..33).map(|key| key.to_string()).collect();
    let mut entries: Vec<Entry<'_>> = keys.iter().map(|key| Entry::new(key, &policy)).collect();
    let store = MemoryStore::builder().max_keys(100).build();
    let refused = store.decide(Batch::all_or_none(&mut entries)).wait().unwrap_err();
    assert_eq!(refused.to_string(), "a batch of 33 entries is too large: send at most 32");
    assert!(entries.iter().all(|entry| entry.decision().is_none()));
    // Independent entries have no such limit.
    store.decide(Batch::independent(&mut entries)).wait().unwrap();
    assert!(entries.iter().all(|entry| entry.decision().unwrap().is_allowed()));
}
