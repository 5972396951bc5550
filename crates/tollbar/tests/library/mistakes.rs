//! A mistake is never an allow: a call that asks what a store cannot do is an error and charges nothing,
//! and no outage policy answers in the store's place.

use std::sync::Arc;
use std::time::Duration;

use tollbar::store::block_on;
use tollbar::{
    AcquireError, AdmitError, AsyncConcurrencyLimiter, AsyncLimiter, BuildError, Charges,
    Concurrency, Degraded, DenyReason, LeaseError, Limiter, MemoryStore, OutagePolicy, Policies,
    Policy, PolicyMap, ReserveError, StoreError,
};
use tollbar_testkit::failing_store::FailingStore;

fn policy() -> Policy {
    Policy::token_bucket("5/min").unwrap().with_name("five")
}

/// Each outage policy that lets requests pass.
const LENIENT: [OutagePolicy; 2] = [OutagePolicy::Allow, OutagePolicy::Local { nodes: 1 }];

fn limiter(store: &FailingStore, on_outage: OutagePolicy) -> AsyncLimiter {
    let store = Arc::new(store.clone());
    AsyncLimiter::builder(policy(), store).on_outage(on_outage).build().unwrap()
}

fn permits(store: &FailingStore, on_outage: OutagePolicy) -> AsyncConcurrencyLimiter {
    let permits = Concurrency::new(5).unwrap().with_name("permits");
    let permits = permits.with_lease(Duration::from_secs(30)).unwrap();
    let store = Arc::new(store.clone());
    AsyncConcurrencyLimiter::builder(permits, store).on_outage(on_outage).build().unwrap()
}

/// Permits have to come back, which a rate limiter does not see to: from a function or a map they were
/// taken and never returned.
#[test]
fn a_rate_limiter_takes_no_permits() {
    let permits = Concurrency::new(1).unwrap().with_name("permits");
    let tenants = PolicyMap::new(policy());
    let from_map = Limiter::new(tenants.clone());
    tenants.set_default(permits.as_policy().clone());
    let own = permits.clone();
    let from_fn = Limiter::new(Policies::from_fn(move |_| own.as_policy().clone()));
    for limiter in [from_map, from_fn] {
        let mut decisions = Vec::new();
        limiter.check_many(&["a", "b"], &mut decisions);
        decisions.extend([limiter.check("a"), limiter.check_n("a", 1), limiter.peek("a")]);
        for decision in decisions {
            assert_eq!(decision.ok().unwrap_err().reason(), DenyReason::ExceedsCapacity);
        }
        let error = limiter.reserve("a", 1).unwrap_err().to_string();
        assert!(error.contains("use `ConcurrencyLimiter`"), "{error}");
        let free = limiter.store().check_now(b"a", permits.as_policy(), 0).remaining();
        assert_eq!(free, Some(1), "nothing is in flight");
    }

    let store = Arc::new(MemoryStore::new());
    let own = permits.clone();
    let policies = Policies::from_fn(move |_| own.as_policy().clone());
    let limiter = AsyncLimiter::builder(policies, store.clone()).build().unwrap();
    let mut decisions = Vec::new();
    let errors = [
        block_on(limiter.check("a")).unwrap_err(),
        block_on(limiter.check_many(&["a"], &mut decisions)).unwrap_err(),
    ];
    assert!(errors.iter().all(|error| matches!(error, StoreError::Unsupported { .. })));
    assert!(block_on(limiter.reserve("a", 1)).is_err());
    assert_eq!(store.check_now(b"a", permits.as_policy(), 0).remaining(), Some(1));

    let builder = Limiter::builder(permits.into_policy());
    assert!(matches!(builder.build(), Err(BuildError::Permits)));
}

#[test]
fn a_mistake_is_an_error_whatever_the_outage_policy_says() {
    let policy = policy();
    for store in FailingStore::mistakes() {
        assert!(!store.0.is_outage());
        for on_outage in LENIENT {
            let limiter = limiter(&store, on_outage);
            let charges = || Charges::new().charge("a", &policy, 1).charge("b", &policy, 1);
            let admitted = [
                block_on(limiter.admit(charges())).map(drop),
                block_on(limiter.admit(charges().reserve_for(Duration::from_mins(1)))).map(drop),
                block_on(limiter.admit(charges().request_id("id"))).map(drop),
            ];
            for error in admitted.map(Result::unwrap_err) {
                assert!(error.decisions().is_none(), "{error:?}");
            }
            let reserved = block_on(limiter.reserve("a", 1)).unwrap_err();
            assert!(matches!(reserved, ReserveError::Store(error) if !error.is_outage()));
            assert!(!block_on(limiter.check("a")).unwrap_err().is_outage());
            let mut decisions = Vec::new();
            assert!(block_on(limiter.check_many(&["a", "b"], &mut decisions)).is_err());
            assert!(decisions.is_empty());

            let permits = permits(&store, on_outage);
            let acquired = block_on(permits.try_acquire("a")).unwrap_err();
            assert!(matches!(acquired, AcquireError::Store(error) if !error.is_outage()));
            let leased = block_on(permits.lease("a")).unwrap_err();
            assert!(matches!(leased, LeaseError::Store(error) if !error.is_outage()));
        }
    }
}

#[test]
fn an_outage_is_answered_by_the_outage_policy() {
    let policy = policy();
    for store in FailingStore::outages() {
        assert!(store.0.is_outage());
        for on_outage in LENIENT {
            let limiter = limiter(&store, on_outage);
            let decision = block_on(limiter.check("a")).unwrap();
            assert!(decision.is_allowed() && decision.degraded().is_some());
            let grant = block_on(limiter.admit(Charges::new().charge("a", &policy, 1))).unwrap();
            assert!(grant.decisions().is_degraded());
            let reservation = block_on(limiter.reserve("a", 1)).unwrap();
            assert!(reservation.receipt().is_none(), "nothing was charged");
            assert!(block_on(reservation.commit(1)).unwrap().charges().is_empty());
        }
        let limiter = limiter(&store, OutagePolicy::Error);
        assert!(block_on(limiter.check("a")).unwrap_err().is_outage());
        assert!(block_on(limiter.reserve("a", 1)).is_err());
        let admitted = block_on(limiter.admit(Charges::new().charge("a", &policy, 1)));
        assert!(matches!(admitted.unwrap_err(), AdmitError::Store(error) if error.is_outage()));
    }
}

#[test]
fn a_cost_above_the_capacity_never_passes_even_during_an_outage() {
    let policy = policy();
    for on_outage in LENIENT.into_iter().chain([OutagePolicy::Deny]) {
        let limiter = limiter(&FailingStore::unavailable(), on_outage);
        let denied = block_on(limiter.check_n("a", 1_000_000)).unwrap().ok().unwrap_err();
        assert_eq!(denied.reason(), DenyReason::ExceedsCapacity);
        assert!(denied.decision().degraded().is_some());
        let permits = permits(&FailingStore::unavailable(), on_outage);
        let acquired = block_on(permits.try_acquire_n("a", 6)).unwrap_err();
        let AcquireError::Denied(denied) = acquired else { panic!("{acquired:?}") };
        assert_eq!(denied.reason(), DenyReason::ExceedsCapacity);
        let charges = Charges::new().charge("a", &policy, 1).charge("b", &policy, 6);
        let error = block_on(limiter.admit(charges)).unwrap_err();
        let decisions = error.decisions().unwrap();
        assert_eq!(decisions.binding(), Some(1));
        assert_eq!(decisions.denied().unwrap().reason(), DenyReason::ExceedsCapacity);
        let denied = block_on(limiter.check_n("a", 5)).unwrap().denied();
        assert!(denied.is_none_or(|denied| denied.reason() == DenyReason::Outage));
    }
}

#[test]
fn more_charges_than_a_store_takes_are_an_error_and_charge_nothing() {
    let policy = policy();
    let limiter = Limiter::new(policy.clone());
    let names: Vec<String> = (0..64).map(|number| format!("key:{number}")).collect();
    for name in &names {
        assert!(limiter.check_n(name, 4).is_allowed());
    }
    let charges =
        || names.iter().fold(Charges::new(), |charges, name| charges.charge(name, &policy, 1));
    let error = limiter.admit(charges()).unwrap_err();
    assert!(matches!(error, AdmitError::TooManyCharges { max: 32 }));
    assert_eq!(
        error.to_string(),
        "a request may have 32 charges at most: split it, or charge fewer limits"
    );
    assert!(limiter.admit(charges().reserve_for(Duration::from_mins(1))).is_err());
    assert!(names.iter().all(|name| limiter.peek(name).remaining() == Some(1)));
}

#[test]
fn an_outage_that_is_counted_here_goes_by_the_policies_of_the_charges() {
    let limiter = limiter(&FailingStore::unavailable(), OutagePolicy::Local { nodes: 2 });
    let one = Policy::token_bucket("2/min").unwrap().with_name("one");
    let many = Policy::token_bucket("1000/s").unwrap().with_name("many");
    let ask = || block_on(limiter.admit(Charges::new().charge("a", &many, 1).charge("a", &one, 1)));
    let grant = ask().unwrap();
    assert!(
        grant
            .decisions()
            .each()
            .iter()
            .all(|decision| decision.degraded() == Some(Degraded::Fallback))
    );
    let error = ask().unwrap_err();
    assert_eq!(error.decisions().unwrap().binding(), Some(1), "half of two a minute is spent");
}

/// Five nodes share five tokens, one each. A cost that fits the whole limit takes a node's whole share.
#[test]
fn a_cost_that_fits_the_limit_fits_a_fresh_share_of_it() {
    let limiter = limiter(&FailingStore::unavailable(), OutagePolicy::Local { nodes: 5 });
    assert!(block_on(limiter.check_n("a", 5)).unwrap().is_allowed());
    assert!(!block_on(limiter.check("a")).unwrap().is_allowed());
}
