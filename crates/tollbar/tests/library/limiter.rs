//! The limiter: policies that change, stores that fail, answers that say so.

use std::future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollbar::store::block_on;
use tollbar::store::{Adjustment, ReservationRef};
use tollbar::{
    AsyncConcurrencyLimiter, AsyncLimiter, Batch, BuildError, Charges, Concurrency, Decision,
    Decisions, Degraded, DenyReason, Entry, Feature, Limiter, ManualClock, MemoryStore,
    OutagePolicy, Policies, Policy, PolicyMap, Reply, ReserveError, Store, StoreError, Timestamp,
};

fn bucket(rate: &str) -> Policy {
    Policy::token_bucket(rate).unwrap()
}

/// A store across a network that does not answer, or only after a while.
#[derive(Debug)]
struct RemoteStore {
    inner: MemoryStore,
    is_down: bool,
}

impl RemoteStore {
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

impl Store for RemoteStore {
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
        _: ReservationRef<'a>,
        _: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        self.reply(Ok(false))
    }

    fn reset<'a>(&'a self, key: &'a [u8], policy: &'a Policy) -> Reply<'a, ()> {
        self.reply(self.inner.reset(key, policy).wait())
    }
}

fn remote(is_down: bool) -> Arc<RemoteStore> {
    Arc::new(RemoteStore { inner: MemoryStore::builder().max_keys(100).build(), is_down })
}

fn limiter_on(store: Arc<RemoteStore>, on_outage: OutagePolicy) -> AsyncLimiter {
    let policy = bucket("3/month").with_name("api");
    AsyncLimiter::builder(policy, store).on_outage(on_outage).build().unwrap()
}

#[test]
fn a_store_across_a_network_suspends_and_answers() {
    let limiter = limiter_on(remote(false), OutagePolicy::Allow);
    assert_eq!(block_on(limiter.check("key")).unwrap().remaining(), Some(2));
    let mut check = Box::pin(limiter.check("key"));
    let mut context = Context::from_waker(Waker::noop());
    assert!(check.as_mut().poll(&mut context).is_pending());
    let Poll::Ready(decision) = check.as_mut().poll(&mut context) else { panic!("still pending") };
    let decision = decision.unwrap();
    assert_eq!((decision.remaining(), decision.degraded()), (Some(1), None));
    block_on(limiter.reset("key")).unwrap();
    assert_eq!(block_on(limiter.peek("key")).unwrap().remaining(), Some(3));
}

#[test]
fn without_its_store_a_limiter_answers_by_its_outage_policy_and_says_so() {
    let check = |on_outage| block_on(limiter_on(remote(true), on_outage).check("key"));

    let decision = check(OutagePolicy::Allow).unwrap();
    assert!(decision.is_allowed());
    assert_eq!((decision.limit(), decision.degraded()), (3, Some(Degraded::Allowed)));
    assert_eq!((decision.remaining(), decision.reset_at()), (None, None), "nothing was counted");

    let denied = check(OutagePolicy::Deny).unwrap().ok().unwrap_err();
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
    assert_eq!(denied.reason(), DenyReason::Outage);
    assert_eq!(denied.decision().degraded(), Some(Degraded::Denied));

    assert!(check(OutagePolicy::Error).unwrap_err().is_outage());

    // A third of three a month.
    let limiter = limiter_on(remote(true), OutagePolicy::Local { nodes: 3 });
    let first = block_on(limiter.check("key")).unwrap();
    assert_eq!((first.is_allowed(), first.degraded()), (true, Some(Degraded::Fallback)));
    assert_eq!(first.remaining(), Some(0));
    let second = block_on(limiter.check("key")).unwrap();
    assert_eq!((second.is_allowed(), second.degraded()), (false, Some(Degraded::Fallback)));
}

#[test]
fn several_charges_and_many_checks_without_a_store_are_marked_degraded_too() {
    let limiter = limiter_on(remote(true), OutagePolicy::Deny);
    let mut decisions = Vec::new();
    block_on(limiter.check_many(&["a", "b"], &mut decisions)).unwrap();
    assert!(decisions.iter().all(|decision| decision.degraded() == Some(Degraded::Denied)));
    assert_eq!(decisions.len(), 2);

    let policy = bucket("5/s");
    let charges = Charges::new().charge("a", &policy, 1).charge("b", &policy, 1);
    let denied = block_on(limiter.admit(charges)).unwrap_err();
    assert!(denied.decisions().unwrap().is_degraded());
}

#[test]
fn policies_change_at_run_time_and_keep_what_was_counted() {
    let tenants = PolicyMap::new(bucket("10/month"));
    let limiter = Limiter::new(tenants.clone());
    assert_eq!(limiter.check("acme").remaining(), Some(9));
    tenants.set("acme", bucket("100/month"));
    // A bucket keeps its debt of time: a tenth of a month, which is ten tokens at the new rate.
    assert_eq!(limiter.peek("acme").remaining(), Some(90));
    assert_eq!(limiter.peek("other").limit(), 10);
    assert_eq!(tenants.get("acme"), Some(bucket("100/month")));
    assert_eq!(
        tenants.iter().collect::<Vec<_>>(),
        [(b"acme".as_slice().into(), bucket("100/month"))]
    );
    assert!(tenants.remove("acme") && !tenants.remove("acme"));
    assert_eq!(tenants.get("acme"), None);
    tenants.set_default(bucket("20/month"));
    assert_eq!(tenants.default_policy(), bucket("20/month"));
    assert_eq!(limiter.peek("acme").remaining(), Some(18));
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
    let map = format!("{:?}", Limiter::new(PolicyMap::new(bucket("10/month"))));
    assert!(map.starts_with("Limiter { policies: Map(PolicyMap { default: Policy {"), "{map}");
}

/// A closure that ignores its key did not compile: "`FnOnce` is not general enough".
#[test]
fn a_closure_chooses_policies() {
    let (free, paid) = (bucket("1/s"), bucket("100/s"));
    let limiter = Limiter::new(Policies::from_fn(move |key| {
        if key.starts_with(b"paid:") { paid.clone() } else { free.clone() }
    }));
    assert_eq!(limiter.check("paid:7").limit(), 100);
    assert_eq!(limiter.check("8").limit(), 1);
    let all = bucket("5/s");
    let limiter = Limiter::new(Policies::from_fn(move |_key| all.clone()));
    assert_eq!(limiter.check("8").limit(), 5);
}

#[test]
fn addresses_and_numbers_are_keys_and_strings_are_rates() {
    let limiter = Limiter::new(Policy::token_bucket(String::from("1/month")).unwrap());
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    assert!(limiter.check(address).is_allowed() && !limiter.check(address).is_allowed());
    assert!(limiter.check(7_u64).is_allowed() && !limiter.check(7_u64).is_allowed());
    assert!(limiter.check(7_u128).is_allowed());
    let name = String::from("user:42");
    assert!(limiter.check(&name).is_allowed() && !limiter.check("user:42").is_allowed());
}

#[test]
fn a_denial_can_be_returned_with_a_question_mark() {
    fn serve(limiter: &Limiter) -> Result<Option<u64>, tollbar::Denied> {
        let decision = limiter.check("key").ok()?;
        Ok(decision.remaining())
    }
    let limiter = Limiter::new(bucket("1/month"));
    assert_eq!(serve(&limiter), Ok(Some(0)));
    assert_eq!(serve(&limiter).unwrap_err().reason(), DenyReason::RateLimited);
    let never = limiter.check_n("key", 2).ok().unwrap_err();
    assert_eq!((never.reason(), never.retry_after()), (DenyReason::ExceedsCapacity, None));
}

#[test]
fn clones_share_their_counters() {
    let limiter = Limiter::new(bucket("1/month"));
    assert!(limiter.clone().check("key").is_allowed());
    assert!(!limiter.check("key").is_allowed());
}

/// Two policies without a name and of one window over one store shared their counters.
#[test]
fn a_shared_store_needs_policies_with_names() {
    let store = Arc::new(MemoryStore::builder().max_keys(100).build());
    let over = |policy: Policy| Limiter::builder(policy).store(store.clone()).build();
    let error = over(bucket("5/s")).unwrap_err();
    assert!(matches!(error, BuildError::Unnamed { algorithm: "token_bucket" }));
    assert!(error.to_string().contains("write `.with_name("), "{error}");
    assert!(over(bucket("5/s").with_name("api")).is_ok());
    let tenants = PolicyMap::new(bucket("5/s").with_name("api"));
    tenants.set("acme", bucket("50/s"));
    assert!(Limiter::builder(tenants.clone()).store(store.clone()).build().is_err());
    tenants.set("acme", bucket("50/s").with_name("api"));
    assert!(Limiter::builder(tenants).store(store.clone()).build().is_ok());
    let unnamed = AsyncLimiter::builder(bucket("5/s"), store).build();
    assert!(matches!(unnamed, Err(BuildError::Unnamed { .. })));
    // A store of its own needs none.
    assert!(Limiter::builder(bucket("5/s")).max_keys(10).build().is_ok());
}

/// A check of a permit took it for good.
#[test]
fn a_rate_limiter_has_no_permits() {
    let permits = Concurrency::new(5).unwrap().with_name("permits");
    let built = Limiter::builder(permits.as_policy().clone()).build();
    assert!(matches!(built, Err(BuildError::Permits)));
    let store = Arc::new(MemoryStore::new());
    let built = AsyncLimiter::builder(permits.into_policy(), store).build();
    assert!(matches!(built, Err(BuildError::Permits)));
}

/// A store that decides, and does nothing else.
#[derive(Debug)]
struct DecideOnly(MemoryStore);

impl Store for DecideOnly {
    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        if batch.hold().is_some() {
            return Reply::Ready(Err(Feature::Reservations.unsupported()));
        }
        self.0.decide(batch)
    }
}

/// What it cannot count was let through under load; a reservation beyond the limit as well.
#[test]
fn what_a_store_does_not_support_is_rejected_when_a_limiter_is_built() {
    let store = Arc::new(DecideOnly(MemoryStore::builder().max_keys(100).build()));
    let permits = Concurrency::new(5).unwrap().with_name("permits");
    let built = AsyncConcurrencyLimiter::builder(permits, store.clone()).build();
    assert!(matches!(built, Err(BuildError::Unsupported(_))), "{built:?}");
    let policy = bucket("5/s").with_name("api");
    let limiter = AsyncLimiter::builder(policy, store).build().unwrap();
    for cost in [1, 1_000] {
        let error = block_on(limiter.reserve("key", cost)).unwrap_err();
        assert!(matches!(error, ReserveError::Store(StoreError::Unsupported { .. })), "{error:?}");
    }
    assert_eq!(block_on(limiter.peek("key")).unwrap().remaining(), Some(5));
}

#[test]
fn the_binding_decision_is_the_longest_retry_or_the_least_left() {
    let clock = ManualClock::at(Timestamp::from_secs(1));
    let limiter = Limiter::builder(bucket("1/s")).clock(clock).max_keys(100).build().unwrap();
    let (second, minute, ten) = (bucket("1/s"), bucket("1/min"), bucket("10/s").with_name("ten"));
    let ask = |cost| {
        let charges = Charges::new().charge("a", &second, 1).charge("a", &minute, 1);
        match limiter.admit(charges.charge("a", &ten, cost)) {
            Ok(grant) => grant.decisions().clone(),
            Err(error) => error.decisions().unwrap().clone(),
        }
    };
    // Allowed: both buckets of one are empty now; the first of the two binds.
    let decisions = ask(1);
    assert!(decisions.is_allowed());
    assert_eq!(decisions.binding(), Some(0));
    // Denied by the first two: the minute is the longer wait.
    let decisions = ask(1);
    assert_eq!(decisions.binding(), Some(1));
    let denied = decisions.denied().unwrap();
    assert_eq!(denied.retry_after(), Some(Duration::from_mins(1)));
    // What can never pass binds before any wait.
    let decisions = ask(11);
    assert_eq!(decisions.binding(), Some(2));
    assert_eq!(decisions.denied().unwrap().reason(), DenyReason::ExceedsCapacity);
}

#[test]
fn a_request_under_nothing_enforced_passes_and_names_nothing() {
    assert!(Decisions::from_entries(&[]).is_allowed());
    let policy = bucket("1/month");
    let limiter = Limiter::new(policy.clone());
    let ask = || {
        let grant = limiter.admit(Charges::new().shadow("a", &policy, 1)).unwrap();
        let decisions = grant.decisions();
        assert!(decisions.is_allowed() && decisions.binding().is_none());
        decisions.each()[0].is_allowed()
    };
    assert!(ask());
    assert!(!ask(), "the shadow reports what it would have done");
}

#[test]
fn a_batch_that_is_too_large_is_refused() {
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
