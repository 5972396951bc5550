//! Writes the vectors: deterministic traces that aim at boundaries, answered by the oracle.

mod leases;

use tollbar::{Charge, Policy, Role, Timestamp};

use self::leases::Leases;
use crate::adversary::{Advance, Price, TraceState};
use crate::oracle::Oracle;
use crate::spec::{Kind, PolicySpec, WarmUpSpec};
use crate::vector::{Release, Step, Vector, VectorEntry};
use crate::xorshift::Xorshift;

const SECOND_US: u64 = 1_000_000;
const MINUTE_US: u64 = 60 * SECOND_US;
const DAY_US: u64 = 24 * 60 * MINUTE_US;

/// 2023-11-14T22:13:20Z, in the middle of most windows.
const START_US: u64 = 1_700_000_000_000_000;

/// All vector files: their names and what is in them.
#[must_use]
pub fn all() -> Vec<(&'static str, Vec<Vector>)> {
    let mut files: Vec<_> = Kind::ALL.map(|kind| (kind.name(), one_algorithm(kind))).into();
    files.push(("batches", batches()));
    files.push(("alternatives", alternatives()));
    files.push(("rule_change", rule_changes()));
    files.push(("warm_up", warm_ups()));
    files.push(("warm_up_lists", warm_ups_of_lists()));
    files
}

/// One vector for each of a set of awkward rates.
fn one_algorithm(kind: Kind) -> Vec<Vector> {
    let plan = TracePlan { steps: 85, keys: &["a", "b"], batches: false, advance: draw_advance };
    rates(kind)
        .into_iter()
        .map(|(label, spec)| {
            let name = format!("{}: {label}", kind.name());
            plan.write(name, vec![spec])
        })
        .collect()
}

fn rates(kind: Kind) -> Vec<(&'static str, PolicySpec)> {
    let spec = |limit, window_us| PolicySpec::new(kind, limit, window_us);
    if kind == Kind::CalendarWindow {
        return vec![
            ("5 a day", spec(5, DAY_US)),
            ("3 a day at +05:30", spec(3, DAY_US).with_utc_offset(330)),
            ("3 a day at -18:00", spec(3, DAY_US).with_utc_offset(-1_080)),
            ("7 a week", spec(7, 7 * DAY_US)),
            ("7 a week at +14:00", spec(7, 7 * DAY_US).with_utc_offset(840)),
            ("10,000 a month", spec(10_000, 30 * DAY_US)),
            ("2 a month at -09:30", spec(2, 30 * DAY_US).with_utc_offset(-570)),
            ("50,000,000,000,000 a day", spec(50_000_000_000_000, DAY_US)),
        ];
    }
    let mut rates = vec![
        ("5 per 10 s", spec(5, 10 * SECOND_US)),
        ("1 per minute", spec(1, MINUTE_US)),
        ("7 per 3 s", spec(7, 3 * SECOND_US)),
        ("100 per minute", spec(100, MINUTE_US)),
        ("1 per 30 days", spec(1, 30 * DAY_US)),
        ("3 per 7 us", spec(3, 7)),
        ("1,000,000 per s", spec(1_000_000, SECOND_US)),
    ];
    if kind == Kind::LeasedConcurrency {
        return vec![
            ("1 in flight for 10 s", spec(1, 10 * SECOND_US)),
            ("3 in flight for 7 us", spec(3, 7)),
            ("10 in flight for a minute", spec(10, MINUTE_US)),
            ("10,000 in flight for a day", spec(10_000, DAY_US)),
        ];
    }
    if kind == Kind::Concurrency {
        return vec![
            ("1 in flight", spec(1, 0)),
            ("3 in flight", spec(3, 0)),
            ("10 in flight", spec(10, 0)),
            ("4,294,967,296 in flight", spec(1 << 32, 0)),
        ];
    }
    if kind == Kind::SlidingWindowLog {
        rates.pop();
        rates.push(("10,000 per s", spec(10_000, SECOND_US)));
    }
    if kind.is_bucket() {
        rates.extend([
            ("5 per s, burst 10", spec(5, SECOND_US).with_burst(10)),
            ("100 per s, burst 1", spec(100, SECOND_US).with_burst(1)),
            ("600,000,001 per s", spec(600_000_001, SECOND_US)),
            ("1,000,000,000 per s, burst 1,024", spec(1_000_000_000, SECOND_US).with_burst(1_024)),
        ]);
    }
    if kind == Kind::LeakyQueue {
        // A delay makes its lines longer than others, and files are read by people.
        rates.retain(|(label, _)| {
            !["1 per minute", "100 per minute", "1,000,000 per s"].contains(label)
        });
        rates.extend([
            ("5 per s, nobody waits", spec(5, SECOND_US).with_burst(1)),
            ("7 per 3 s, 20 wait for up to 4 s", {
                spec(7, 3 * SECOND_US).with_burst(21).with_max_wait_us(4 * SECOND_US)
            }),
            ("3 per 7 us, 9 wait for up to 5 us", spec(3, 7).with_burst(10).with_max_wait_us(5)),
            ("5 per 10 s, up to 1 us", spec(5, 10 * SECOND_US).with_max_wait_us(1)),
        ]);
    }
    if kind == Kind::SlidingWindowStrict {
        // Ten parts of whole microseconds do not fit 7 us.
        rates.retain(|(label, _)| *label != "3 per 7 us");
        rates.extend([
            ("3 per 7 us in 7 parts", spec(3, 7).with_parts(7)),
            ("20 per s in 1 part", spec(20, SECOND_US).with_parts(1)),
            ("20 per s in 3 parts", spec(20, SECOND_US).with_parts(3)),
        ]);
    }
    rates
}

fn batches() -> Vec<Vector> {
    let plan =
        TracePlan { steps: 130, keys: &["a", "a", "b"], batches: true, advance: draw_advance };
    let minute = |kind, limit| PolicySpec::new(kind, limit, MINUTE_US);
    let second = |kind, limit| PolicySpec::new(kind, limit, SECOND_US);
    vec![
        plan.write(
            "batches: one of each algorithm".into(),
            Kind::ALL.map(|kind| minute(kind, 3)).into(),
        ),
        plan.write(
            "batches: per second and per minute".into(),
            vec![
                second(Kind::TokenBucket, 2),
                minute(Kind::SlidingWindow, 6),
                second(Kind::FixedWindow, 3),
            ],
        ),
        plan.write(
            "batches: the same counter under two limits".into(),
            vec![minute(Kind::FixedWindow, 3), minute(Kind::FixedWindow, 5)],
        ),
    ]
}

fn alternatives() -> Vec<Vector> {
    let keys = &["a", "a", "b"];
    let plan = TracePlan { steps: 130, keys, batches: true, advance: draw_advance };
    let minute = |kind, limit| PolicySpec::new(kind, limit, MINUTE_US);
    let second = |kind, limit| PolicySpec::new(kind, limit, SECOND_US);
    let vectors = [
        ("alternatives: one of each algorithm", Kind::ALL.map(|kind| minute(kind, 3)).to_vec()),
        (
            "alternatives: a small share, else a larger pool",
            vec![
                second(Kind::TokenBucket, 2),
                minute(Kind::SlidingWindow, 6),
                minute(Kind::FixedWindow, 20),
            ],
        ),
    ];
    vectors.map(|(name, specs)| plan.write_with_alternatives(name.into(), specs)).into()
}

fn rule_changes() -> Vec<Vector> {
    let plan = TracePlan { steps: 80, keys: &["a"], batches: false, advance: draw_advance };
    Kind::ALL
        .into_iter()
        .map(|kind| {
            let spec = |limit| PolicySpec::new(kind, limit, MINUTE_US);
            let mut policies = vec![spec(6), spec(20), spec(2), spec(60)];
            if kind.is_bucket() {
                policies.extend([spec(6).with_burst(2), spec(6).with_burst(30)]);
            } else if kind == Kind::LeasedConcurrency {
                // Another time: the same counter.
                policies.push(PolicySpec::new(kind, 6, 10 * SECOND_US));
            } else if kind == Kind::Concurrency {
                // All of them are one counter.
            } else if kind == Kind::CalendarWindow {
                // Another calendar: a counter of its own.
                policies.push(spec(6).with_utc_offset(60));
            } else {
                // Another window: a counter of its own.
                policies.push(PolicySpec::new(kind, 6, 10 * SECOND_US));
            }
            plan.write(format!("rule change: {}", kind.name()), policies)
        })
        .collect()
}

/// Each algorithm with a limit that climbs; buckets of other bursts; and a climb whose numbers
/// change while a key is on it.
fn warm_ups() -> Vec<Vector> {
    let plan = WARMING;
    let warm = |start, over_us, steps| WarmUpSpec { start, over_us, steps };
    let mut vectors: Vec<Vector> = Kind::ALL
        .into_iter()
        .filter(|kind| !LISTS.contains(kind))
        .map(|kind| {
            let spec = PolicySpec::new(kind, 7, 10 * SECOND_US);
            // Idle for longer than a window, or for less.
            let over_us = if kind.is_bucket() { 6 * SECOND_US } else { spec.window_us * 5 / 2 };
            plan.write(
                format!("warm-up: {}, 7 from 2 in 3 steps", kind.name()),
                vec![spec.with_warm_up(warm(2, over_us, 3))],
            )
        })
        .collect();
    let bucket = |limit| PolicySpec::new(Kind::TokenBucket, limit, SECOND_US);
    let changed = |start, over_us, steps| bucket(10).with_warm_up(warm(start, over_us, steps));
    vectors.extend([
        plan.write(
            "warm-up: burst 20 of 10 per s".into(),
            vec![bucket(10).with_burst(20).with_warm_up(warm(1, 5 * SECOND_US, 16))],
        ),
        plan.write(
            "warm-up: burst 3 of 100 per s".into(),
            vec![bucket(100).with_burst(3).with_warm_up(warm(10, SECOND_US / 50, 4))],
        ),
        plan.write(
            "warm-up: 600,000,001 per s".into(),
            vec![bucket(600_000_001).with_warm_up(warm(7, 1_000, 5))],
        ),
        plan.write(
            "warm-up: its numbers change, and it is taken away".into(),
            vec![changed(2, SECOND_US, 4), changed(5, 3 * SECOND_US, 1), bucket(10)],
        ),
    ]);
    vectors
}

/// Algorithms that keep instants, places or permits one by one.
const LISTS: [Kind; 4] =
    [Kind::LeakyQueue, Kind::SlidingWindowLog, Kind::Concurrency, Kind::LeasedConcurrency];

const WARMING: TracePlan =
    TracePlan { steps: 80, keys: &["a", "b"], batches: false, advance: draw_warming };

/// The algorithms that keep a list, with a limit that climbs, at one step and at several; and a climb
/// whose numbers change.
fn warm_ups_of_lists() -> Vec<Vector> {
    let warm = |kind, start, over_us, steps| {
        let warm_up = WarmUpSpec { start, over_us, steps };
        PolicySpec::new(kind, 7, 10 * SECOND_US).with_warm_up(warm_up)
    };
    let each = LISTS.into_iter().flat_map(|kind| {
        // Idle for less than a window, a queue or a lease lasts, or for longer.
        [("short", 6 * SECOND_US), ("long", 25 * SECOND_US)].map(|(label, over_us)| {
            let name = format!("warm-up: {}, 7 from 2 in 3 steps, {label}", kind.name());
            WARMING.write(name, vec![warm(kind, 2, over_us, 3)])
        })
    });
    let changed = LISTS.into_iter().map(|kind| {
        let policies = vec![warm(kind, 2, 6 * SECOND_US, 4), warm(kind, 4, 9 * SECOND_US, 1)];
        WARMING.write(format!("warm-up: {}, its numbers change", kind.name()), policies)
    });
    each.chain(changed).collect()
}

/// What kind of trace to write.
struct TracePlan {
    steps: usize,
    keys: &'static [&'static str],
    batches: bool,
    advance: fn(&mut Xorshift) -> Advance,
}

/// One entry as it was drawn: the cost is not known before the time is.
struct DrawnEntry {
    key: &'static str,
    policy: usize,
    price: Price,
    role: Role,
}

impl TracePlan {
    fn write(&self, name: String, specs: Vec<PolicySpec>) -> Vector {
        self.write_steps(name, specs, |_, _| {})
    }

    /// Makes neighbours in most steps alternatives of one another.
    fn write_with_alternatives(&self, name: String, specs: Vec<PolicySpec>) -> Vector {
        self.write_steps(name, specs, |random, step| {
            if step.charge == Charge::Independent || step.entries.len() < 2 {
                return;
            }
            let first = random.below(2) as usize;
            let role = step.entries[first].role;
            let mut order = 0;
            for entry in &mut step.entries[first..] {
                (entry.role, entry.alternative) = (role, Some((0, order)));
                order += u8::from(random.below(3) > 0);
            }
        })
    }

    fn write_steps(
        &self,
        name: String,
        specs: Vec<PolicySpec>,
        arrange: impl Fn(&mut Xorshift, &mut Step),
    ) -> Vector {
        let mut random = Xorshift::named(&name);
        let policies: Vec<Policy> =
            specs.iter().map(|spec| spec.build().expect("the generator's policies fit")).collect();
        let mut oracle = Oracle::new();
        let mut trace_state = TraceState::at(Timestamp::from_micros(START_US));
        let mut policy_in_force = 0;
        let mut leases = Leases::default();
        let mut steps = Vec::with_capacity(self.steps);
        while steps.len() < self.steps {
            if random.below(12) == 0 {
                policy_in_force = random.below(specs.len() as u64) as usize;
            }
            let advance = (self.advance)(&mut random);
            trace_state.now = trace_state.advanced(advance, &policies[policy_in_force]);
            let mut step = self.step(&mut random, &policies, policy_in_force, &trace_state);
            arrange(&mut random, &mut step);
            step.release = self.release(&mut random, &specs);
            leases.draw(&mut random, &policies, policy_in_force, &mut step);
            leases.settle(&mut oracle, &policies, &mut step);
            let answers = leases.ask(&mut oracle, &policies, &step);
            trace_state.last = answers.last().copied();
            steps.push(Step { expect: answers.into_iter().map(Into::into).collect(), ..step });
        }
        Vector { name, policies: specs, steps }
    }

    /// A step without its answers.
    fn step(
        &self,
        random: &mut Xorshift,
        policies: &[Policy],
        policy_in_force: usize,
        trace_state: &TraceState,
    ) -> Step {
        let entry_count = if self.batches { 1 + random.below(3) } else { 1 };
        let entries = (0..entry_count)
            .map(|_| self.draw(random, policies.len(), policy_in_force))
            .map(|draw| VectorEntry {
                key: draw.key.to_owned(),
                policy: draw.policy,
                cost: trace_state.cost(draw.price, &policies[draw.policy]),
                role: draw.role,
                alternative: None,
            })
            .collect();
        // Only a step of all or none tells what its leases are called.
        let is_leased = !self.batches && policies[policy_in_force].lease_ttl().is_some();
        let charge = if is_leased || self.batches && random.below(4) > 0 {
            Charge::AllOrNone
        } else {
            Charge::Independent
        };
        let at_us = trace_state.now.as_micros();
        let (release, renew) = (Vec::new(), Vec::new());
        Step { at_us, charge, release, renew, entries, expect: Vec::new() }
    }

    /// Permits of any policy that is about permits, in every other step.
    fn release(&self, random: &mut Xorshift, specs: &[PolicySpec]) -> Vec<Release> {
        let is_permits = |policy: &usize| specs[*policy].algorithm == Kind::Concurrency;
        let permits: Vec<usize> = (0..specs.len()).filter(is_permits).collect();
        // Not drawn where there are none: the vectors of the others stay as they are.
        if permits.is_empty() || random.below(2) == 0 {
            return Vec::new();
        }
        let key = random.pick(self.keys).to_owned();
        let count = random.pick(&[0, 1, 1, 1, 2, 3, 1 << 40]);
        vec![Release { key, policy: random.pick(&permits), count, lease: None, expect: 0 }]
    }

    fn draw(
        &self,
        random: &mut Xorshift,
        policy_count: usize,
        policy_in_force: usize,
    ) -> DrawnEntry {
        let key = random.pick(self.keys);
        if !self.batches {
            let price = draw_price(random);
            return DrawnEntry { key, policy: policy_in_force, price, role: Role::Enforce };
        }
        let policy = random.below(policy_count as u64) as usize;
        let shadow = random.below(5) == 0;
        let role = if shadow { Role::Shadow } else { Role::Enforce };
        DrawnEntry { key, policy, price: draw_price(random), role }
    }
}

pub(crate) fn draw_advance(random: &mut Xorshift) -> Advance {
    let offset = random.pick(&[-1, 0, 0, 1]);
    match random.below(20) {
        0..=8 => Advance::Stay,
        9 => Advance::Ticks(1 + random.below(3)),
        10..=11 => Advance::Tokens(random.below(1_024)),
        12..=14 => Advance::Retry(offset),
        15 => Advance::Reset(offset),
        16 => Advance::Boundary(offset),
        17..=18 => Advance::Windows(random.below(16)),
        _ => Advance::Windows(random.below(64)),
    }
}

fn draw_warming(random: &mut Xorshift) -> Advance {
    match random.below(20) {
        0 => Advance::Idle(random.pick(&[-1, 0, 0, 1])),
        1..=4 => Advance::Warming(random.below(16)),
        _ => draw_advance(random),
    }
}

pub(crate) fn draw_price(random: &mut Xorshift) -> Price {
    match random.below(40) {
        0..=21 => Price::Exactly(1),
        22..=23 => Price::Exactly(0),
        24..=27 => Price::Exactly(2 + random.below(3)),
        28..=30 => Price::Remaining(0),
        31..=33 => Price::Remaining(1),
        34..=35 => Price::Capacity(0),
        36 => Price::Capacity(1),
        37..=38 => Price::Share(random.below(16)),
        _ => Price::Most,
    }
}
