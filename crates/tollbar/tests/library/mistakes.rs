//! A mistake is never an allow: whoever asks what a store cannot do gets an error and pays nothing, and
//! no failure policy answers in the store's place.

use std::sync::Arc;
use std::time::Duration;

use tollbar::{
    AcquireError, Degraded, Entry, FailurePolicy, Limiter, Outcome, Policy, RequestError,
};
use tollbar_testkit::failing_store::FailingStore;

fn policy() -> Policy {
    Policy::token_bucket("5/min").unwrap()
}

/// Each failure policy that lets requests pass.
fn lenient() -> [FailurePolicy; 2] {
    [FailurePolicy::Allow, FailurePolicy::Fallback(Box::new(Limiter::new(policy())))]
}

fn limiter(store: &FailingStore, on_failure: FailurePolicy) -> Limiter {
    Limiter::builder(policy()).store(Arc::new(store.clone())).on_failure(on_failure).build()
}

#[test]
fn a_mistake_is_an_error_whatever_the_failure_policy_says() {
    let policy = policy();
    let ttl = Duration::from_mins(1);
    for store in FailingStore::mistakes() {
        assert!(!store.0.is_outage());
        for on_failure in lenient() {
            let limiter = limiter(&store, on_failure);
            let entries = || [Entry::new("a", &policy), Entry::new("b", &policy)];
            let is_mistake = |error: &RequestError| matches!(error, RequestError::Store(_));

            assert!(limiter.check_all(&mut entries()).is_err_and(|it| is_mistake(&it)));
            let reserved = limiter.reserve_all(&mut entries(), ttl);
            assert!(reserved.is_err_and(|it| is_mistake(&it)));
            let once = limiter.check_all_once("id", &mut entries());
            assert!(once.is_err_and(|it| is_mistake(&it)));
            let acquired = limiter.acquire_all(&mut entries()).unwrap_err();
            assert!(matches!(acquired, AcquireError::Request(error) if is_mistake(&error)));

            // These have no error to return: they deny for good, and not as degraded.
            let decision = limiter.check("a");
            assert_eq!((decision.outcome(), decision.degraded()), (Outcome::Never, None));
            assert_eq!(limiter.acquire("a").unwrap_err().outcome(), Outcome::Never);
            assert_eq!(limiter.lease("a").unwrap_err().outcome(), Outcome::Never);
            let mut decisions = Vec::new();
            limiter.check_many(&["a", "b"], &mut decisions);
            assert!(decisions.iter().all(|it| it.outcome() == Outcome::Never));
        }
    }
}

#[test]
fn an_outage_is_answered_by_the_failure_policy() {
    let policy = policy();
    for store in FailingStore::outages() {
        assert!(store.0.is_outage());
        for on_failure in lenient() {
            let limiter = limiter(&store, on_failure);
            assert!(limiter.check("a").is_allowed() && limiter.check("a").degraded().is_some());
            let verdict = limiter.check_all(&mut [Entry::new("a", &policy)]).unwrap();
            assert!(verdict.is_allowed() && verdict.is_degraded());
        }
    }
}

#[test]
fn a_cost_above_the_capacity_never_passes_even_during_an_outage() {
    let policy = policy();
    for on_failure in lenient().into_iter().chain([FailurePolicy::Deny]) {
        let limiter = limiter(&FailingStore::unavailable(), on_failure);
        let decision = limiter.check_cost("a", 1_000_000);
        assert_eq!(decision.outcome(), Outcome::Never);
        assert!(decision.degraded().is_some());
        assert_eq!(limiter.acquire_cost("a", 6).unwrap_err().outcome(), Outcome::Never);
        let mut entries = [Entry::new("a", &policy), Entry::new("b", &policy).with_cost(6)];
        let verdict = limiter.check_all(&mut entries).unwrap();
        assert_eq!((verdict.outcome(), verdict.binding()), (Outcome::Never, Some(1)));
        assert!(limiter.check_cost("a", 5).outcome() != Outcome::Never);
    }
}

#[test]
fn a_batch_with_more_entries_than_a_store_takes_is_an_error_and_charges_nothing() {
    let policy = policy();
    let limiter = Limiter::new(policy.clone());
    let names: Vec<String> = (0..64).map(|number| format!("key:{number}")).collect();
    for name in &names {
        limiter.check_cost(name, 5);
    }
    let mut entries: Vec<Entry<'_>> = names.iter().map(|name| Entry::new(name, &policy)).collect();
    let error = limiter.check_all(&mut entries).unwrap_err();
    assert_eq!(error.to_string(), "a batch of 64 entries is too large: send at most 32");
    assert!(limiter.acquire_all(&mut entries).is_err());
    assert!(limiter.reserve_all(&mut entries, Duration::from_mins(1)).is_err());
    assert!(names.iter().all(|name| limiter.peek(name).remaining() == 0));
}

#[test]
fn a_fallback_decides_a_batch_by_the_policies_of_its_entries() {
    let fallback = Limiter::new(Policy::token_bucket("1000/s").unwrap());
    let limiter =
        limiter(&FailingStore::unavailable(), FailurePolicy::Fallback(Box::new(fallback)));
    let (one, many) = (Policy::token_bucket("1/min").unwrap().named("one"), policy());
    let ask = || {
        let mut entries = [Entry::new("a", &many), Entry::new("a", &one)];
        let verdict = limiter.check_all(&mut entries).unwrap();
        assert!(entries.iter().all(|it| it.decision().unwrap().degraded().is_some()));
        assert_eq!(entries[0].decision().unwrap().degraded(), Some(Degraded::Fallback));
        verdict
    };
    assert!(ask().is_allowed());
    let denied = ask();
    assert_eq!((denied.is_allowed(), denied.binding()), (false, Some(1)));
}
