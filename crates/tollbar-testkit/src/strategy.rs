//! Random policies and traces for property tests: awkward rates, and moves that aim at
//! boundaries.

use std::collections::HashSet;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::store::{Alternative, LoanRequest};
use tollbar::{Concurrency, Period, Policy, PolicyError, Rate, Role, Timestamp, WarmUp};

use crate::adversary::{Advance, Price};
use crate::oracle::PolicyModel;
use crate::spec::{Kind, PolicySpec};

/// One request of a trace, reckoned from the answer before it.
#[derive(Debug, Clone, Copy)]
pub struct Move {
    /// How the clock moves first.
    pub advance: Advance,
    /// What is asked for.
    pub price: Price,
    /// Who asks; taken modulo the number of keys.
    pub key: usize,
    /// Under which policy; taken modulo the number of policies.
    pub policy: usize,
    /// In a batch, whether it counts towards the verdict.
    pub role: Role,
    /// How many permits are given back first, where the policy is about permits.
    pub release: u64,
    /// In a batch, whether it is an alternative.
    pub place: Place,
}

/// Where an entry of a batch stands, reckoned from the entry before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// By itself.
    Plain,
    /// The first of a new group.
    NewGroup,
    /// In the next alternative of the group.
    NextAlternative,
    /// In the same alternative of the group.
    SameAlternative,
}

/// Returns the role and the alternative of each entry of a batch. A group has the role of its first entry.
#[must_use]
pub fn roles_and_alternatives(moves: &[Move]) -> Vec<(Role, Option<Alternative>)> {
    let mut before: Option<(Role, Alternative)> = None;
    let mut groups = 0;
    let each = moves.iter().map(|each| {
        before = match (each.place, before) {
            (Place::Plain, _) => None,
            (Place::NextAlternative, Some((role, Alternative { group, order }))) => {
                Some((role, Alternative { group, order: order + 1 }))
            }
            (Place::SameAlternative, Some(before)) => Some(before),
            (Place::NewGroup | Place::NextAlternative | Place::SameAlternative, _) => {
                groups += 1;
                Some((each.role, Alternative { group: groups, order: 0 }))
            }
        };
        (before.map_or(each.role, |(role, _)| role), before.map(|(_, alternative)| alternative))
    });
    each.collect()
}

/// So many cases unless `PROPTEST_CASES` says otherwise. A failure is printed in full and belongs
/// in a test of its own, so no file of seeds is kept.
#[must_use]
pub fn cases(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config
}

/// Any algorithm.
pub fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(Kind::ALL.to_vec())
}

/// Rates people write, rates that do not divide, and the extremes.
pub fn rate() -> impl Strategy<Value = Rate> {
    let awkward = prop::sample::select(vec![
        "5/10s",
        "7/3s",
        "3/7us",
        "1/us",
        "1000/us",
        "600000001/s",
        "999999999/s",
        "1000000000/s",
        "1/month",
        "1000000/month",
        "1/10year",
        "450/15min",
    ])
    .prop_map(parsed);
    let between = |limits: std::ops::Range<u64>, windows_us: std::ops::Range<u64>| {
        (limits, windows_us)
            .prop_map(|(limit, window_us)| Rate::new(limit, Duration::from_micros(window_us)))
    };
    prop_oneof![
        2 => awkward,
        2 => between(1..9, 1..40),
        1 => between(1..4_000, 4..64),
        2 => between(1..200, 1_000..100_000_000),
        1 => between(1..5_000_000, 1_000_000..100_000_000_000),
    ]
}

/// Rates that earn a fraction of a token in a window: for buckets only.
pub fn fractional_rate() -> impl Strategy<Value = Rate> {
    prop::sample::select(vec!["0.5/s", "0.001/min", "2.5/s", "33.3/s", "0.7/3us"]).prop_map(parsed)
}

fn parsed(text: &str) -> Rate {
    text.parse().expect("the rates written here are rates")
}

/// Any policy the crate accepts.
pub fn policy() -> impl Strategy<Value = Policy> {
    let overdraft = prop_oneof![4 => Just(0_u64), 1 => 1_u64..20];
    let reserved = prop_oneof![4 => Just(0_u64), 1 => 1_u64..16];
    (policy_without_overdraft(), overdraft, reserved).prop_map(|(policy, overdraft, reserved)| {
        // Only buckets have an overdraft, and not if they are enormous.
        let policy = match overdraft {
            0 => policy,
            _ => policy.clone().with_overdraft(overdraft).unwrap_or(policy),
        };
        // What warms up reserves nothing.
        policy.reserving(sixteenths(policy.capacity(), reserved)).unwrap_or(policy)
    })
}

/// Any policy of which a part can be reserved, and two parts: the first is not larger than the second, and may be 0.
pub fn reserved_policy() -> impl Strategy<Value = (Policy, [u64; 2])> {
    let is_possible = |policy: &Policy| policy.capacity() > 1 && policy.warm_up().is_none();
    let policy = policy_without_overdraft().prop_filter("it has nothing to reserve", is_possible);
    (policy, 0_u64..16, 1_u64..16).prop_map(|(policy, one, other)| {
        let of = |parts: u64| sixteenths(policy.capacity(), parts).max(u64::from(parts > 0));
        let parts = [of(one.min(other)), of(other)];
        (policy, parts)
    })
}

/// So many sixteenths, rounded down.
fn sixteenths(whole: u64, parts: u64) -> u64 {
    whole / 16 * parts + whole % 16 * parts / 16
}

fn policy_without_overdraft() -> impl Strategy<Value = Policy> {
    prop_oneof![
        4 => kind().prop_flat_map(policy_of),
        1 => (bucket_kind(), fractional_rate(), burst()).prop_filter_map(
            "the crate refuses it",
            |(kind, rate, burst)| build(kind, rate, burst, 1).ok()
        ),
        2 => warm_policy(),
    ]
}

/// Any policy whose tokens can be lent.
pub fn lendable_policy() -> impl Strategy<Value = Policy> {
    policy().prop_filter("it is always counted exactly", |policy| {
        PolicyModel::from_policy(policy).model.lends().is_some()
    })
}

/// A loan of so many tokens under `policy`. Term and cut are so many sixteenths of the time in which its bucket
/// fills, or of its window.
#[must_use]
pub fn loan_request(
    policy: &Policy,
    tokens: u64,
    (term_parts, cut_parts): (u64, u64),
) -> LoanRequest {
    let span_us = match policy.interval() {
        Some(interval) => {
            let full = u128::from(policy.capacity()) * u128::from(interval.numerator_us);
            full / u128::from(interval.denominator)
        }
        None => policy.window().as_micros(),
    };
    let part_us = |parts: u64| (span_us * u128::from(parts) / 16) as u64;
    LoanRequest {
        tokens,
        term: Duration::from_micros(part_us(term_parts)),
        cut: Duration::from_micros(part_us(cut_parts)),
    }
}

/// Any policy whose limit climbs.
pub fn warm_policy() -> impl Strategy<Value = Policy> {
    warm_policy_and_plain().prop_map(|(policy, _)| policy)
}

/// Any policy whose limit climbs, and the same with its full limit.
pub fn warm_policy_and_plain() -> impl Strategy<Value = (Policy, Policy)> {
    let plain = prop_oneof![
        8 => kind().prop_flat_map(policy_of),
        1 => (bucket_kind(), fractional_rate(), burst()).prop_filter_map(
            "the crate refuses it",
            |(kind, rate, burst)| build(kind, rate, burst, 1).ok()
        ),
    ];
    (plain, warm_up()).prop_filter_map("the crate refuses it", |(plain, warm_up)| {
        Some((warm_up.apply_to(plain.clone())?, plain))
    })
}

/// A warm-up, before it is known of what.
#[derive(Debug, Clone, Copy)]
struct RelativeWarmUp {
    /// In 16ths of the limit.
    start: u64,
    /// In microseconds, and in 16ths of a window.
    over: (u64, u64),
    steps: u32,
}

impl RelativeWarmUp {
    /// `None` where the policy cannot warm up: of a limit of 1 there is no lower one.
    fn apply_to(self, policy: Policy) -> Option<Policy> {
        let limit = policy.limit();
        let start = sixteenths(limit, self.start).clamp(1, limit);
        let window = match policy.window() {
            // Permits have none.
            Duration::ZERO => policy.lease_ttl().unwrap_or(Duration::from_secs(1)),
            window => window,
        };
        let over = Duration::from_micros(self.over.0) + window / 16 * self.over.1 as u32;
        policy.with_warm_up(WarmUp { start, over, steps: self.steps }).ok()
    }
}

fn warm_up() -> impl Strategy<Value = RelativeWarmUp> {
    let start = prop_oneof![2 => 0_u64..16, 1 => Just(0)];
    let over = prop_oneof![
        1 => (1_u64..40, Just(0)),
        3 => (0_u64..3, 1_u64..64),
        1 => (1_u64..100_000_000, 0_u64..3),
    ];
    let steps = prop_oneof![2 => 1_u32..5, 1 => 1_u32..=16];
    (start, over, steps).prop_map(|(start, over, steps)| RelativeWarmUp { start, over, steps })
}

/// Any policy of one algorithm.
pub fn policy_of(kind: Kind) -> impl Strategy<Value = Policy> {
    if kind == Kind::CalendarWindow {
        return calendar_policy().boxed();
    }
    if kind == Kind::Concurrency {
        return permits_max().prop_map(permits).boxed();
    }
    if kind == Kind::LeasedConcurrency {
        return (leases_max(), ttl()).prop_map(|(limit, ttl)| leased(limit, ttl)).boxed();
    }
    (rate(), burst(), 1_u32..13)
        .prop_filter_map("the crate refuses it", move |(rate, burst, parts)| {
            build(kind, rate, burst, parts).ok()
        })
        .boxed()
}

/// Any day, week or month, anywhere on earth, with limits for one word and for more.
fn calendar_policy() -> impl Strategy<Value = Policy> {
    (calendar_limit(), period(), utc_offset_minutes())
        .prop_map(|(limit, period, minutes)| calendar(limit, period, minutes))
}

fn calendar_limit() -> impl Strategy<Value = u64> {
    // A word holds the counts of a day below 2^43.
    prop_oneof![6 => 1_u64..20, 2 => 1_u64..100_000, 1 => (1_u64 << 43) - 2..(1 << 43) + 2]
}

fn period() -> impl Strategy<Value = Period> {
    prop::sample::select(vec![Period::Day, Period::Week, Period::Month])
}

fn utc_offset_minutes() -> impl Strategy<Value = i32> {
    prop_oneof![2 => Just(0), 2 => -1_080..=1_080, 1 => Just(-1_080), 1 => Just(1_080)]
}

fn calendar(limit: u64, period: Period, utc_offset_minutes: i32) -> Policy {
    Policy::calendar_window(limit, period)
        .and_then(|policy| policy.with_utc_offset(utc_offset_minutes))
        .expect("a calendar window of these numbers is a policy")
}

/// A limit of permits in flight, up to the largest.
fn permits_max() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 1_u64..8, 1 => 1_u64..10_000, 1 => (1_u64 << 32) - 2..=1 << 32]
}

fn permits(limit: u64) -> Policy {
    Concurrency::new(limit).expect("a limit within bounds is one").into_policy()
}

/// A limit of leases, up to the largest; a lease of more than 2,047 permits is kept in parts.
fn leases_max() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 1_u64..8, 1 => 1_u64..100, 1 => 2_046_u64..=10_000]
}

fn ttl() -> impl Strategy<Value = Duration> {
    prop_oneof![1_u64..40, 1_u64..100_000_000].prop_map(Duration::from_micros)
}

fn leased(limit: u64, ttl: Duration) -> Policy {
    let permits = Concurrency::new(limit).and_then(|permits| permits.with_lease(ttl));
    permits.expect("a lease within bounds is one").into_policy()
}

/// A few policies no two of which share a counter.
pub fn policies() -> impl Strategy<Value = Vec<Policy>> {
    vec(policy(), 1..4).prop_map(|mut policies| {
        let mut taken = HashSet::new();
        policies.retain(|policy| taken.insert(PolicyModel::from_policy(policy).identity));
        policies
    })
}

fn bucket_kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![Kind::TokenBucket, Kind::LeakyBucket, Kind::LeakyQueue])
}

fn window_kind() -> impl Strategy<Value = Kind> {
    let without_rate = [Kind::CalendarWindow, Kind::Concurrency, Kind::LeasedConcurrency];
    let has_rate = |kind: &Kind| !kind.is_bucket() && !without_rate.contains(kind);
    let windows = Kind::ALL.into_iter().filter(has_rate);
    prop::sample::select(windows.collect::<Vec<_>>())
}

fn burst() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![Just(None), (1_u64..20).prop_map(Some), (1_u64..5_000).prop_map(Some)]
}

fn build(kind: Kind, rate: Rate, burst: Option<u64>, parts: u32) -> Result<Policy, PolicyError> {
    match kind {
        Kind::TokenBucket => with_burst(Policy::token_bucket(rate)?, burst),
        Kind::LeakyBucket => with_burst(Policy::leaky_bucket(rate)?, burst),
        Kind::LeakyQueue => queue(rate, burst, parts),
        Kind::FixedWindow => Policy::fixed_window(rate),
        Kind::StaggeredWindow => Policy::fixed_window(rate)?.with_stagger(),
        Kind::CalendarWindow => unreachable!("a calendar window has no rate"),
        Kind::Concurrency | Kind::LeasedConcurrency => unreachable!("permits have no rate"),
        Kind::SlidingWindow => Policy::sliding_window(rate),
        Kind::SlidingWindowStrict => strict(rate, parts),
        Kind::SlidingWindowLog => Policy::sliding_window_log(rate),
    }
}

/// In `parts`, or in as many as the crate suggests where the window cannot be cut so.
fn strict(rate: Rate, parts: u32) -> Result<Policy, PolicyError> {
    match Policy::sliding_window_strict(rate, parts) {
        Err(PolicyError::UnevenSubwindows { fewer, .. }) => {
            Policy::sliding_window_strict(rate, fewer)
        }
        policy => policy,
    }
}

/// Every third queue has a longest wait, of so many of a few intervals.
fn queue(rate: Rate, burst: Option<u64>, parts: u32) -> Result<Policy, PolicyError> {
    let places =
        burst.unwrap_or_else(|| Policy::token_bucket(rate).map_or(1, |policy| policy.capacity()));
    let policy = Policy::leaky_queue(rate, places - 1)?;
    let interval_us = policy.window().as_micros() as u64 / policy.limit();
    match parts % 3 {
        0 => policy.with_max_wait(Duration::from_micros(u64::from(parts) * interval_us / 4)),
        _ => Ok(policy),
    }
}

fn with_burst(policy: Policy, burst: Option<u64>) -> Result<Policy, PolicyError> {
    match burst {
        Some(burst) => policy.with_burst(burst),
        None => Ok(policy),
    }
}

/// Versions of one rule: the same counter under other limits and bursts.
///
/// A bucket's intervals are whole microseconds here, which a change of rule carries over exactly.
pub fn versions() -> impl Strategy<Value = Vec<Policy>> {
    // Divided by any limit up to ten, this leaves nothing over.
    let divisible = (1_u64..30).prop_map(|parts| (parts * 2_520, 10_u64));
    let bucket = (bucket_kind(), divisible.clone());
    let numbers = prop_oneof![
        divisible,
        (1_u64..30).prop_map(|parts| (parts * 2_520, 2_000)),
        // Limits that need more than one word of state, and limits that do not.
        (4_u64..64).prop_map(|window_us| (window_us, 3_000)),
    ];
    let window = (window_kind(), numbers);
    let calendar = (vec(calendar_limit(), 2..5), period(), utc_offset_minutes()).prop_map(
        |(limits, period, minutes)| {
            limits.into_iter().map(|limit| calendar(limit, period, minutes)).collect()
        },
    );
    let of_rates = prop_oneof![2 => bucket, 3 => window];
    let of_rates = of_rates.prop_flat_map(|(kind, (window_us, limit_max))| {
        let warm_up = prop_oneof![2 => Just(None), 1 => warm_up().prop_map(Some)];
        let version = (1..=limit_max, burst(), warm_up);
        (vec(version, 2..5), 1_u32..13).prop_map(move |(numbers, parts)| {
            // A strict window is cut into parts of whole microseconds.
            let window_us = match kind {
                Kind::SlidingWindowStrict => window_us.next_multiple_of(parts.into()),
                _ => window_us,
            };
            let version = |(limit, burst, warm_up): (u64, Option<u64>, Option<RelativeWarmUp>)| {
                let burst = burst.filter(|_| kind.is_bucket());
                let spec = PolicySpec { burst, ..PolicySpec::new(kind, limit, window_us) };
                let plain = accepted(&spec.with_parts(parts));
                warm_up.and_then(|warm_up| warm_up.apply_to(plain.clone())).unwrap_or(plain)
            };
            numbers.into_iter().map(version).collect()
        })
    });
    let in_flight = vec(permits_max().prop_map(permits), 2..5);
    let leases = vec((leases_max(), ttl()).prop_map(|(limit, ttl)| leased(limit, ttl)), 2..5);
    prop_oneof![5 => of_rates, 1 => calendar, 1 => in_flight, 1 => leases]
}

fn accepted(spec: &PolicySpec) -> Policy {
    spec.build().expect("small numbers fit")
}

/// Where a trace begins: today, the beginning of time or its end.
pub fn start() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        6 => 1_700_000_000_000_000_u64..1_700_000_100_000_000,
        1 => 0_u64..1_000,
        1 => (0_u64..1_000_000).prop_map(|before| Timestamp::MAX.as_micros() - before),
    ]
    .prop_map(Timestamp::from_micros)
}

/// A trace whose clock never goes back.
pub fn trace(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Move>> {
    vec(moved(forward().boxed()), len)
}

/// A trace whose clock may go back at any step.
pub fn trace_with_jumps_back(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Move>> {
    let advance = prop_oneof![4 => forward(), 1 => backward()];
    vec(moved(advance.boxed()), len)
}

fn moved(advance: BoxedStrategy<Advance>) -> impl Strategy<Value = Move> {
    let role = prop_oneof![4 => Just(Role::Enforce), 1 => Just(Role::Shadow)];
    // Most steps keep the policy of the trace's beginning.
    let policy = (0_usize..60).prop_map(|policy| policy.saturating_sub(40));
    let release = prop_oneof![4 => Just(0), 4 => 1_u64..4, 1 => Just(u64::MAX)];
    let place = prop_oneof![
        6 => Just(Place::Plain),
        1 => Just(Place::NewGroup),
        3 => Just(Place::NextAlternative),
        2 => Just(Place::SameAlternative),
    ];
    (advance, price(), 0_usize..3, policy, role, release, place).prop_map(
        |(advance, price, key, policy, role, release, place)| Move {
            advance,
            price,
            key,
            policy,
            role,
            release,
            place,
        },
    )
}

fn forward() -> impl Strategy<Value = Advance> {
    prop_oneof![
        6 => Just(Advance::Stay),
        2 => (1_u64..4).prop_map(Advance::Ticks),
        3 => (0_u64..1_024).prop_map(Advance::Tokens),
        4 => (-1_i8..2).prop_map(Advance::Retry),
        2 => (-1_i8..2).prop_map(Advance::Reset),
        2 => (-1_i8..2).prop_map(Advance::Boundary),
        2 => (0_u64..16).prop_map(Advance::Windows),
        1 => (0_u64..64).prop_map(Advance::Windows),
        1 => (-1_i8..2).prop_map(Advance::Idle),
        2 => (0_u64..20).prop_map(Advance::Warming),
    ]
}

fn backward() -> impl Strategy<Value = Advance> {
    prop_oneof![(1_u64..4).prop_map(Advance::BackTicks), (0_u64..48).prop_map(Advance::BackWindows),]
}

fn price() -> impl Strategy<Value = Price> {
    prop_oneof![
        8 => Just(Price::Exactly(1)),
        1 => Just(Price::Exactly(0)),
        3 => (2_u64..6).prop_map(Price::Exactly),
        2 => (0_u64..2).prop_map(Price::Remaining),
        1 => (0_u64..2).prop_map(Price::Capacity),
        2 => (0_u64..17).prop_map(Price::Share),
        1 => Just(Price::Most),
    ]
}
