//! Vectors of reservations and of requests that pay once: a trace with its answers, in JSON.
//!
//! `vectors/settlements.json` is an array of
//!
//! ```json
//! { "name": "..", "policies": [ .. ], "steps": [
//!   {"at_us": 0, "act": "reserve", "reservation": 0, "ttl_us": 60000000,
//!    "entries": [ {"key": "a", "policy": 0, "cost": 3} ], "expect": [ .. ]},
//!   {"at_us": 5, "act": "settle", "reservation": 0, "spent": [1], "is_open": true, "adjusted": [2]},
//!   {"at_us": 7, "act": "once", "request_id": "r1", "ttl_us": 60000000,
//!    "entries": [ .. ], "expect": [ .. ]} ] }
//! ```
//!
//! Policies, entries and answers are those of [`crate::vector`]; all entries of a step are one
//! request, all or none. A reservation that is denied is never settled. `spent` has a number for each
//! entry that was charged, shadows that denied left out, and `adjusted` how many tokens of each were
//! given back, or charged in addition. A request id that comes back with another question has
//! `expect` null.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollbar::store::{Adjustment, Hold, Once, ReservationId, Spending};
use tollbar::{Outcome, Policy, Timestamp};

use crate::adversary::TraceState;
use crate::answer::Answer;
use crate::oracle::{ChargedAnswer, OracleEntry};
use crate::oracle_store::OracleStore;
use crate::spec::{Kind, PolicySpec};
use crate::subject::{Factory, Subject};
use crate::vector::generator;
use crate::vector::{self, Expect, VectorEntry};
use crate::xorshift::Xorshift;

/// The name of the file.
pub const FILE: &str = "settlements";

/// A trace and the answers it must get from a store that starts empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettlementVector {
    /// What it shows.
    pub name: String,
    /// The policies its entries refer to by number.
    pub policies: Vec<PolicySpec>,
    /// In order of time.
    pub steps: Vec<SettlementStep>,
}

/// One call to a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettlementStep {
    /// The clock.
    pub at_us: u64,
    /// What is done.
    #[serde(flatten)]
    pub act: SettlementAction,
}

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case")]
pub enum SettlementAction {
    /// Reserves.
    Reserve {
        /// Its name.
        reservation: u64,
        /// For how long it can be settled.
        ttl_us: u64,
        /// What is asked.
        entries: Vec<VectorEntry>,
        /// What must be answered, entry by entry.
        expect: Vec<Expect>,
    },
    /// Settles.
    Settle {
        /// Which one.
        reservation: u64,
        /// What each charge came to.
        spent: Vec<u64>,
        /// Whether it could be settled.
        is_open: bool,
        /// What was given back or charged in addition.
        adjusted: Vec<u64>,
    },
    /// Asks by a request id.
    Once {
        /// The id.
        request_id: String,
        /// For how long an allowed one is remembered.
        ttl_us: u64,
        /// What is asked.
        entries: Vec<VectorEntry>,
        /// What must be answered; none where the id is of another question.
        expect: Option<Vec<Expect>>,
    },
}

const SECOND_US: u64 = 1_000_000;
const MINUTE_US: u64 = 60 * SECOND_US;
const START_US: u64 = 1_700_000_000_000_000;
const STEPS: usize = 64;

/// The vectors as the oracle answers them.
#[must_use]
pub fn generate() -> Vec<SettlementVector> {
    let mut vectors: Vec<SettlementVector> = Kind::ALL
        .into_iter()
        .map(|kind| {
            let spec = PolicySpec::new(kind, 8, 10 * SECOND_US);
            write(format!("settlements: {}", kind.name()), vec![spec])
        })
        .collect();
    let bucket = |limit, window_us| PolicySpec::new(Kind::TokenBucket, limit, window_us);
    vectors.push(write(
        "settlements: a bucket with an overdraft".into(),
        vec![bucket(6, 3 * SECOND_US).with_overdraft(10)],
    ));
    vectors.push(write(
        "settlements: a bucket that earns by parts of a microsecond".into(),
        vec![bucket(7, 3 * SECOND_US).with_overdraft(3)],
    ));
    vectors.push(write(
        "settlements: a bucket and a window together".into(),
        vec![
            bucket(5, SECOND_US).with_burst(20),
            PolicySpec::new(Kind::FixedWindow, 40, MINUTE_US),
        ],
    ));
    vectors
}

/// What a reservation has charged.
struct ReservedCharges {
    charges: Vec<(VectorEntry, u64)>,
}

/// A subject that plays a vector, whether the answers are known or are to be found out.
struct Player<'s> {
    subject: &'s dyn Subject,
    policies: Vec<Policy>,
    reserved: HashMap<u64, ReservedCharges>,
}

impl<'s> Player<'s> {
    fn new(subject: &'s dyn Subject, specs: &[PolicySpec]) -> Self {
        let build = |spec: &PolicySpec| spec.build().expect("a vector's policies are accepted");
        Self { subject, policies: specs.iter().map(build).collect(), reserved: HashMap::new() }
    }

    /// The same step with the answers of the subject.
    fn play(&mut self, step: &SettlementStep) -> SettlementStep {
        let now = Timestamp::from_micros(step.at_us);
        let act = match &step.act {
            SettlementAction::Reserve { reservation, ttl_us, entries, .. } => {
                let id = ReservationId((*reservation).into());
                let hold = Hold { id, ttl: Duration::from_micros(*ttl_us) };
                let charged =
                    self.subject.check_marked(now, &self.asked(entries), None, Some(hold));
                let charged = charged.expect("it has no request id");
                self.keep(*reservation, entries, &charged);
                SettlementAction::Reserve {
                    reservation: *reservation,
                    ttl_us: *ttl_us,
                    entries: entries.clone(),
                    expect: expect(&charged),
                }
            }
            SettlementAction::Settle { reservation, spent, .. } => {
                let charges = &self.reserved[reservation].charges;
                let mut adjustments = Vec::with_capacity(charges.len());
                for ((entry, stamp), spent) in charges.iter().zip(spent) {
                    let spending = Spending { reserved: entry.cost, spent: *spent };
                    let (key, policy) = (entry.key.as_bytes(), &self.policies[entry.policy]);
                    adjustments.push(Adjustment::new(key, policy, *stamp, spending));
                }
                let id = ReservationId((*reservation).into());
                let is_open = self.subject.settle(now, id, &mut adjustments);
                let adjusted = adjustments.iter().map(Adjustment::adjusted).collect();
                SettlementAction::Settle {
                    reservation: *reservation,
                    spent: spent.clone(),
                    is_open,
                    adjusted,
                }
            }
            SettlementAction::Once { request_id, ttl_us, entries, .. } => {
                let ttl = Duration::from_micros(*ttl_us);
                let once = Once::new(request_id.as_bytes(), ttl);
                let charged =
                    self.subject.check_marked(now, &self.asked(entries), Some(once), None);
                SettlementAction::Once {
                    request_id: request_id.clone(),
                    ttl_us: *ttl_us,
                    entries: entries.clone(),
                    expect: charged.ok().map(|charged| expect(&charged)),
                }
            }
        };
        SettlementStep { at_us: step.at_us, act }
    }

    fn asked<'a>(&'a self, entries: &'a [VectorEntry]) -> Vec<OracleEntry<'a>> {
        entries.iter().map(|entry| entry.question(&self.policies)).collect()
    }

    fn keep(&mut self, reservation: u64, entries: &[VectorEntry], charged: &[ChargedAnswer]) {
        let paid = entries.iter().zip(charged);
        let paid = paid.filter(|(_, charged)| charged.answer.outcome == Outcome::Allow);
        let paid = paid.map(|(entry, charged)| (entry.clone(), charged.stamp)).collect();
        self.reserved.insert(reservation, ReservedCharges { charges: paid });
    }
}

fn expect(charged: &[ChargedAnswer]) -> Vec<Expect> {
    charged.iter().map(|each| each.answer.into()).collect()
}

/// A trace that aims at boundaries, answered by the oracle.
fn write(name: String, specs: Vec<PolicySpec>) -> SettlementVector {
    let mut random = Xorshift::named(&name);
    let oracle = OracleStore::at(Timestamp::from_micros(START_US));
    let mut player = Player::new(&oracle, &specs);
    let mut trace_state = TraceState::at(Timestamp::from_micros(START_US));
    let mut open: Vec<(u64, Vec<u64>)> = Vec::new();
    let mut steps = Vec::with_capacity(STEPS);
    while steps.len() < STEPS {
        let policy = random.below(specs.len() as u64) as usize;
        let advance = generator::draw_advance(&mut random);
        trace_state.now = trace_state.advanced(advance, &player.policies[policy]);
        let at_us = trace_state.now.as_micros();
        let entries = |random: &mut Xorshift| -> Vec<VectorEntry> {
            let entry = |(policy, built): (usize, &Policy)| VectorEntry {
                key: random.pick(&["a", "a", "b"]).to_owned(),
                policy,
                // Not the largest number there is: it is reserved to be settled.
                cost: trace_state.cost(generator::draw_price(random), built).min(1 << 20),
                role: tollbar::Role::Enforce,
                alternative: None,
            };
            player.policies.iter().enumerate().map(entry).collect()
        };
        let act = match random.below(10) {
            0..=4 => {
                let entries = entries(&mut random);
                let reservation = steps.len() as u64;
                SettlementAction::Reserve {
                    reservation,
                    ttl_us: 20 * SECOND_US,
                    entries,
                    expect: Vec::new(),
                }
            }
            5..=8 if !open.is_empty() => {
                let at = random.below(open.len() as u64) as usize;
                let (reservation, costs) = open[at].clone();
                // Some are settled twice.
                if random.below(6) > 0 {
                    open.swap_remove(at);
                }
                let spent = costs.iter().map(|cost| cost * random.below(7) / 4).collect();
                SettlementAction::Settle {
                    reservation,
                    spent,
                    is_open: false,
                    adjusted: Vec::new(),
                }
            }
            _ => {
                let request_id = random.pick(&["r1", "r2", "r3"]).to_owned();
                let entries = entries(&mut random);
                SettlementAction::Once { request_id, ttl_us: 20 * SECOND_US, entries, expect: None }
            }
        };
        let step = player.play(&SettlementStep { at_us, act });
        if let SettlementAction::Reserve { reservation, entries, expect, .. } = &step.act {
            let answers: Vec<Answer> = expect.iter().map(Into::into).collect();
            if answers.iter().all(|answer| answer.outcome == Outcome::Allow) {
                open.push((*reservation, entries.iter().map(|entry| entry.cost).collect()));
            }
            trace_state.last = answers.last().copied();
        }
        steps.push(step);
    }
    SettlementVector { name, policies: specs, steps }
}

/// Reads the committed file.
///
/// # Panics
/// If there is no such file, or it holds anything but vectors of settlements.
#[must_use]
pub fn load() -> Vec<SettlementVector> {
    let path = vector::path(FILE);
    let text = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{} is no vector file: {error}", path.display()))
}

/// The text of the file: one line for each step.
#[must_use]
pub fn render(vectors: &[SettlementVector]) -> String {
    let parts = vectors
        .iter()
        .map(|vector| vector::render_parts(&vector.name, &vector.policies, &vector.steps));
    format!("[{}]\n", parts.collect::<Vec<_>>().join(",\n"))
}

/// One vector, from an empty store.
///
/// # Panics
/// If an answer differs, with the store's name, the vector, the step and both answers.
pub fn run(factory: &Factory<'_>, vector: &SettlementVector) {
    let start_us = vector.steps.first().map_or(0, |step| step.at_us);
    let subject = factory(Timestamp::from_micros(start_us));
    let mut player = Player::new(&*subject, &vector.policies);
    for (number, step) in vector.steps.iter().enumerate() {
        let got = player.play(step);
        assert!(
            got == *step,
            "store `{}`, vector `{}`, step {number}\ngot:      {got:?}\nexpected: {step:?}",
            subject.name(),
            vector.name,
        );
    }
}
