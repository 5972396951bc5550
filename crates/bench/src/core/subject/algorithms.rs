//! Every algorithm of Tollbar apart, allowing and denying; two policies at once; and a peek.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollbar::{
    Batch, Charges, Concurrency, ConcurrencyLimiter, Entry, Limiter, Period, Policy, PolicyError,
    Rate, Store, WarmUp,
};

use super::tollbar::{limiter, store};
use super::{Expectation, FamilyTable, Trial, count};
use crate::core::workloads::Table;

const SUBJECT: &str = "tollbar";

/// Allows every check of a run, and still fits the one word in which a window counter is kept.
fn generous() -> Rate {
    Rate::new(2_000_000, Duration::from_hours(24))
}

/// Allows the check that fills the table, and no other.
fn stingy() -> Rate {
    Rate::new(1, Duration::from_hours(24))
}

pub(crate) fn build(_: &Table) -> FamilyTable {
    let mut trials = Vec::new();
    trials.extend(both("token_bucket_allow", "token_bucket_deny", Policy::token_bucket));
    trials.extend(both("leaky_bucket_allow", "leaky_bucket_deny", Policy::leaky_bucket));
    trials.extend(both("leaky_queue_allow", "leaky_queue_deny", |rate| {
        let bucket = Policy::token_bucket(rate)?;
        Policy::leaky_queue(rate, bucket.capacity() - 1)
    }));
    trials.extend(both("fixed_window_allow", "fixed_window_deny", Policy::fixed_window));
    trials.extend(both("staggered_window_allow", "staggered_window_deny", |rate| {
        Policy::fixed_window(rate)?.with_stagger()
    }));
    trials.extend(both("calendar_month_allow", "calendar_month_deny", |rate| {
        Policy::calendar_window(Policy::fixed_window(rate)?.limit(), Period::Month)
    }));
    trials.extend(both("sliding_window_allow", "sliding_window_deny", Policy::sliding_window));
    trials.extend(both("sliding_window_strict_allow", "sliding_window_strict_deny", |rate| {
        Policy::sliding_window_strict(rate, 10)
    }));
    // A token bucket on the first step of its climb, with what the others have in full.
    trials.extend(both("warm_up_allow", "warm_up_deny", |rate| {
        let start = Policy::token_bucket(rate)?.limit();
        let over = Duration::from_hours(24);
        let full = Policy::token_bucket(Rate::new(2 * start, over))?;
        full.with_warm_up(WarmUp { start, over, steps: 8 })
    }));
    trials.push(all_or_none("all_or_none_2_allow", Expectation::Allow, generous()));
    trials.push(all_or_none("all_or_none_2_deny", Expectation::Deny, stingy()));
    trials.push(reserve_and_commit());
    trials.push(check_once());
    trials.push(lease_and_release());
    let mut built = FamilyTable::separate(trials);
    add_peek(&mut built);
    add_logs(&mut built);
    built
}

fn both(
    allow: &'static str,
    deny: &'static str,
    policy: impl Fn(Rate) -> Result<Policy, PolicyError>,
) -> [Trial; 2] {
    let trial = |workload, expected, rate| {
        let policy = policy(rate).expect("the rates are within bounds");
        let limiter = limiter(&store(0), &policy);
        Trial::under(SUBJECT, workload, expected, move |keys| {
            count(keys, |key| limiter.check(key).is_allowed())
        })
    };
    [trial(allow, Expectation::Allow, generous()), trial(deny, Expectation::Deny, stingy())]
}

/// A request under a bucket and a window at once.
fn all_or_none(workload: &'static str, expected: Expectation, window: Rate) -> Trial {
    let bucket = Policy::token_bucket(generous()).expect("the rates are within bounds");
    let window = Policy::fixed_window(window).expect("the rates are within bounds");
    let store = store(0);
    Trial::under(SUBJECT, workload, expected, move |keys| {
        count(keys, |key| {
            let mut entries = [Entry::new(key, &bucket), Entry::new(key, &window)];
            let answer = store.decide(Batch::all_or_none(&mut entries)).wait();
            let is_allowed =
                |entry: &Entry<'_>| entry.decision().is_some_and(|decision| decision.is_allowed());
            answer.is_ok() && entries.iter().all(is_allowed)
        })
    })
}

/// Reserves two tokens, and settles with one.
fn reserve_and_commit() -> Trial {
    let policy = Policy::token_bucket(generous()).expect("the rates are within bounds");
    let limiter = limiter(&store(0), &policy);
    Trial::under(SUBJECT, "reserve_and_commit", Expectation::Allow, move |keys| {
        count(keys, |key| {
            limiter.reserve(key, 2).is_ok_and(|reservation| reservation.commit(1).is_ok())
        })
    })
}

/// Leases one permit, and releases it.
fn lease_and_release() -> Trial {
    let permits = Concurrency::new(100)
        .and_then(|concurrency| concurrency.with_lease(Duration::from_mins(1)));
    let permits = permits.expect("a hundred leases are within bounds").with_name("bench");
    let limiter = ConcurrencyLimiter::builder(permits).store(store(0)).build();
    let limiter = limiter.expect("the permits have a name");
    Trial::under(SUBJECT, "lease_and_release", Expectation::Allow, move |keys| {
        count(keys, |key| limiter.lease(key).is_ok_and(|lease| limiter.release(&lease)))
    })
}

/// Requests with ids, each of which comes once.
fn check_once() -> Trial {
    let policy = Policy::token_bucket(generous()).expect("the rates are within bounds");
    let limiter = limiter(&store(0), &policy);
    let next_id = AtomicU64::new(0);
    Trial::under(SUBJECT, "check_once", Expectation::Allow, move |keys| {
        count(keys, |key| {
            let id = next_id.fetch_add(1, Ordering::Relaxed).to_le_bytes();
            limiter.admit(Charges::new().charge(key, &policy, 1).request_id(&id)).is_ok()
        })
    })
}

/// Looks at counters that are there: filling charges them.
fn add_peek(built: &mut FamilyTable) {
    let policy = Policy::token_bucket(generous()).expect("the rates are within bounds");
    let peeked = Arc::new(limiter(&store(0), &policy));
    let charged = Arc::clone(&peeked);
    built.trials.push(Trial::under(SUBJECT, "peek", Expectation::Allow, move |keys| {
        count(keys, |key| peeked.peek(key).is_allowed())
    }));
    let fill_others = Arc::clone(&built.fill);
    built.fill = Arc::new(move |keys: &[String]| {
        fill_others(keys) + count(keys, |key| charged.check(key).is_allowed())
    });
}

/// Logs of up to 100 stamps. One that allows holds what comes in a millisecond, which is 10 to 40 of
/// them on the machines of today; one that denies is full.
fn add_logs(built: &mut FamilyTable) {
    const LIMIT: u64 = 100;
    let log = |window| {
        let policy = Policy::sliding_window_log(Rate::new(LIMIT, window));
        Arc::new(limiter(&store(0), &policy.expect("the rates are within bounds")))
    };
    let (allowing, denying) = (log(Duration::from_millis(1)), log(Duration::from_hours(24)));
    let filled = Arc::clone(&denying);
    let mut add = |workload, expected, limiter: Arc<Limiter>| {
        built.trials.push(Trial::under(SUBJECT, workload, expected, move |keys| {
            count(keys, |key| limiter.check(key).is_allowed())
        }));
    };
    add("sliding_window_log_100_allow", Expectation::Allow, allowing);
    add("sliding_window_log_100_deny", Expectation::Deny, denying);
    let fill_others = Arc::clone(&built.fill);
    built.fill = Arc::new(move |keys: &[String]| {
        let fill = |_| count(keys, |key| filled.check(key).is_allowed());
        fill_others(keys) + (0..LIMIT).map(fill).sum::<u64>()
    });
}
