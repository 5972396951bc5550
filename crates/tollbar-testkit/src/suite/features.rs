//! A store does what it declares, and answers `Unsupported` to everything else.

use std::time::Duration;

use tollbar::store::{Adjustment, Hold, Once, ReservationId, Spending};
use tollbar::{
    Algorithm, Batch, Concurrency, Decision, Entry, Feature, Outcome, Policy, StoreError, Timestamp,
};

use super::{Case, four_a_minute, minute_start};
use crate::subject::{Factory, Subject};

pub(super) const CASES: &[Case] = &[
    ("declared_policies_are_counted", declared_policies_are_counted),
    ("several_counters_are_charged_or_refused_as_declared", several_counters_as_declared),
    ("request_ids_are_remembered_or_refused_as_declared", request_ids_as_declared),
    ("reservations_are_settled_or_refused_as_declared", reservations_as_declared),
    ("refunds_are_made_or_refused_as_declared", refunds_as_declared),
    ("leases_are_renewed_or_refused_as_declared", lease_renewals_as_declared),
    ("counters_are_reset_or_refused_as_declared", resets_as_declared),
];

const KEY: &[u8] = b"user:42";
const TTL: Duration = Duration::from_mins(10);

/// A custom algorithm: one request, then none for a second.
#[derive(Debug)]
struct Spacing;

impl Algorithm for Spacing {
    fn name(&self) -> &'static str {
        "spacing"
    }

    fn limit(&self) -> u64 {
        1
    }

    fn window_us(&self) -> u64 {
        1_000_000
    }

    fn words(&self) -> usize {
        1
    }

    fn transition(&self, state: &mut [u64], now: Timestamp, cost: u64) -> Decision {
        let outcome = match (cost, state[0].saturating_sub(now.as_micros())) {
            (0, _) => Outcome::Allow,
            (1, 0) => {
                state[0] = now.as_micros() + self.window_us();
                Outcome::Allow
            }
            (1, retry_after_us) => Outcome::Deny { retry_after_us },
            _ => Outcome::Never,
        };
        let reset_at = Timestamp::from_micros(state[0].max(now.as_micros()));
        Decision::new(outcome, 1, u64::from(reset_at <= now), reset_at)
    }

    fn fresh_at(&self, state: &[u64]) -> Timestamp {
        Timestamp::from_micros(state[0])
    }
}

fn spacing() -> Policy {
    Policy::custom(Spacing).expect("one word of state is allowed")
}

fn bucket() -> Policy {
    Policy::token_bucket("4/min").expect("four a minute is a policy")
}

/// The answer to a call that needs `feature`: `None` if the store neither declares nor has it.
///
/// # Panics
/// If what the store declares and what it does differ.
fn as_declared<T: std::fmt::Debug>(
    subject: &dyn Subject,
    feature: Feature<'_>,
    answer: Result<T, StoreError>,
) -> Option<T> {
    let name = subject.name();
    match (subject.store().supports(feature), answer) {
        (Ok(()), Ok(answer)) => Some(answer),
        (Err(declared), Err(StoreError::Unsupported { .. })) => {
            let is_mistake = matches!(declared, StoreError::Unsupported { .. });
            assert!(is_mistake, "store `{name}` says why it lacks {feature:?}: {declared:?}");
            let advice = declared.to_string();
            assert!(advice.contains(": "), "store `{name}` says what to use instead: {advice}");
            None
        }
        (declared, answer) => {
            panic!("store `{name}` declares {declared:?} for {feature:?} and answers {answer:?}")
        }
    }
}

fn declared_policies_are_counted(factory: &Factory<'_>) {
    for policy in four_a_minute().into_iter().chain([spacing()]) {
        let subject = factory(minute_start());
        let capacity = policy.capacity();
        let spent = subject.store().check(KEY, &policy, capacity).wait();
        let Some(spent) = as_declared(&*subject, Feature::Policy(&policy), spent) else {
            let mut entries = [Entry::new(KEY, &policy)];
            let batch = subject.store().decide(Batch::all_or_none(&mut entries)).wait();
            as_declared(&*subject, Feature::Policy(&policy), batch);
            continue;
        };
        assert!(spent.is_allowed(), "{}: {policy:?}", subject.name());
        let denied = subject.check(minute_start(), KEY, &policy, capacity);
        assert_ne!(denied.outcome, Outcome::Allow, "{}: {policy:?}", subject.name());
    }
}

fn several_counters_as_declared(factory: &Factory<'_>) {
    let (subject, policy) = (factory(minute_start()), bucket());
    let mut entries = [Entry::new("a", &policy), Entry::new("b", &policy).with_cost(5)];
    let denied = subject.store().decide(Batch::all_or_none(&mut entries)).wait();
    if as_declared(&*subject, Feature::SeveralCounters, denied).is_some() {
        assert_eq!(subject.peek(minute_start(), b"a", &policy).remaining, 4, "{}", subject.name());
    }
}

fn request_ids_as_declared(factory: &Factory<'_>) {
    let (subject, policy) = (factory(minute_start()), bucket());
    let once = Once::new(b"id", TTL);
    for _ in 0..2 {
        let mut entries = [Entry::new(KEY, &policy)];
        let answer = subject.store().decide(Batch::all_or_none(&mut entries).once(once)).wait();
        if as_declared(&*subject, Feature::RequestIds, answer).is_none() {
            return;
        }
    }
    assert_eq!(subject.peek(minute_start(), KEY, &policy).remaining, 3, "{}", subject.name());
}

fn reservations_as_declared(factory: &Factory<'_>) {
    let (subject, policy) = (factory(minute_start()), bucket());
    let hold = Hold { id: ReservationId(7), ttl: TTL };
    let mut entries = [Entry::new(KEY, &policy).with_cost(3)];
    let reserved = subject.store().decide(Batch::all_or_none(&mut entries).held(hold)).wait();
    let is_reserved = as_declared(&*subject, Feature::Reservations, reserved).is_some();
    let spending = Spending { reserved: 3, spent: 1 };
    let mut adjustments = [Adjustment::new(KEY, &policy, entries[0].stamp(), spending)];
    let settled = subject.store().settle(hold.id.into(), &mut adjustments).wait();
    let settled = as_declared(&*subject, Feature::Reservations, settled);
    assert_eq!(settled, is_reserved.then_some(true), "{}", subject.name());
    if is_reserved {
        assert_eq!(adjustments[0].adjusted(), 2, "{}", subject.name());
        assert_eq!(subject.peek(minute_start(), KEY, &policy).remaining, 3, "{}", subject.name());
    }
}

fn refunds_as_declared(factory: &Factory<'_>) {
    let subject = factory(minute_start());
    let permits = Concurrency::new(4).expect("four in flight is a policy").into_policy();
    if subject.store().supports(Feature::Policy(&permits)).is_ok() {
        let taken = subject.check(minute_start(), KEY, &permits, 3);
        assert_eq!(taken.outcome, Outcome::Allow, "{}", subject.name());
        let declared = subject.store().supports(Feature::Refunds);
        assert!(declared.is_ok(), "{}: permits without a way back", subject.name());
        assert_eq!(subject.release(minute_start(), KEY, &permits, 2), 2, "{}", subject.name());
    } else {
        let refunded = subject.store().refund(KEY, &bucket(), 0, 1).wait();
        as_declared(&*subject, Feature::Refunds, refunded);
    }
}

fn lease_renewals_as_declared(factory: &Factory<'_>) {
    let subject = factory(minute_start());
    let leased = Concurrency::new(4)
        .and_then(|permits| permits.with_lease(TTL))
        .map(Concurrency::into_policy);
    let leased = leased.expect("ten minutes are a lease");
    let mut entries = [Entry::new(KEY, &leased)];
    if subject.store().supports(Feature::Policy(&leased)).is_ok() {
        let granted = subject.store().decide(Batch::all_or_none(&mut entries)).wait();
        granted.unwrap_or_else(|error| panic!("store `{}` failed: {error}", subject.name()));
        let declared = subject.store().supports(Feature::LeaseRenewals);
        assert!(declared.is_ok(), "{}: leases that nobody can renew", subject.name());
    }
    let later = minute_start().after(Duration::from_secs(1));
    subject.set_now(later);
    let renewed = subject.store().renew(KEY, &leased, entries[0].stamp()).wait();
    if let Some(renewed) = as_declared(&*subject, Feature::LeaseRenewals, renewed) {
        assert_eq!(renewed, Some(later.after(TTL)), "{}", subject.name());
    }
}

fn resets_as_declared(factory: &Factory<'_>) {
    let (subject, policy) = (factory(minute_start()), bucket());
    subject.check(minute_start(), KEY, &policy, 4);
    let reset = subject.store().reset(KEY, &policy).wait();
    let remaining = as_declared(&*subject, Feature::Resets, reset).map_or(0, |()| 4);
    let left = subject.peek(minute_start(), KEY, &policy).remaining;
    assert_eq!(left, remaining, "{}", subject.name());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_subject::MemorySubject;
    use crate::oracle_store::OracleStore;
    use tollbar::{Reply, Store};

    /// Implements the one required method and declares nothing.
    #[derive(Debug)]
    struct DecideOnly {
        inner: OracleStore,
        ignores_ids: bool,
    }

    impl Store for DecideOnly {
        fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
            let mut needs: Vec<Feature<'_>> =
                batch.entries().iter().map(|entry| Feature::Policy(entry.policy())).collect();
            needs.extend(batch.hold().map(|_| Feature::Reservations));
            needs.extend(batch.charged_once().map(|_| Feature::RequestIds));
            for feature in needs {
                let is_ignored = self.ignores_ids && matches!(feature, Feature::RequestIds);
                if let (false, Err(error)) = (is_ignored, self.supports(feature)) {
                    return Reply::Ready(Err(error));
                }
            }
            self.inner.decide(batch)
        }
    }

    impl Subject for DecideOnly {
        fn name(&self) -> &'static str {
            "decide only"
        }

        fn store(&self) -> &dyn Store {
            self
        }

        fn set_now(&self, now: Timestamp) {
            self.inner.set_now(now);
        }
    }

    fn run(factory: &Factory<'_>) {
        for (_, case) in CASES {
            case(factory);
        }
    }

    #[test]
    fn stores_that_are_truthful_pass() {
        run(&MemorySubject::boxed);
        run(&|now| Box::new(OracleStore::at(now)));
    }

    /// The oracle has no custom algorithms, which the default declares.
    #[test]
    #[should_panic(expected = "declares Ok(()) for Policy")]
    fn a_declared_policy_that_is_not_counted_is_found() {
        declared_policies_are_counted(&|now| {
            Box::new(DecideOnly { inner: OracleStore::at(now), ignores_ids: false })
        });
    }

    #[test]
    fn a_store_of_one_method_declares_no_more_than_that() {
        for (_, case) in &CASES[1..] {
            case(&|now| Box::new(DecideOnly { inner: OracleStore::at(now), ignores_ids: false }));
        }
    }

    #[test]
    #[should_panic(expected = "declares Err")]
    fn a_store_that_ignores_what_it_does_not_support_is_found() {
        request_ids_as_declared(&|now| {
            Box::new(DecideOnly { inner: OracleStore::at(now), ignores_ids: true })
        });
    }
}
