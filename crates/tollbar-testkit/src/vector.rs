//! Vectors: traces with their answers, in JSON, for every store in every language.
//!
//! A file is an array of vectors:
//!
//! ```json
//! { "name": "..", "policies": [ {"algorithm": "token_bucket", "limit": 5, "window_us": 10000000,
//!                                "burst": 5} ],
//!   "steps": [ {"at_us": 0, "charge": "independent",
//!               "entries": [ {"key": "a", "policy": 0, "cost": 1} ],
//!               "expect": [ {"outcome": "allow", "remaining": 4, "limit": 5,
//!                            "reset_at_us": 2000000} ] } ] }
//! ```
//!
//! A step may begin with permits that come back, `"release": [ {"key": "a", "policy": 0, "count": 2,
//! "expect": 1} ]`: of two, one was out. They have come back when the entries are asked. With
//! `"lease": 3` they are those of the fourth lease that the vector's steps of all or none have
//! granted. `"renew": [ {"key": "a", "policy": 0, "lease": 3, "expect": 9000000} ]` renews it, after
//! that; no `expect` means that it is gone.
//!
//! Neighbours with `"alternative": [1, 0]` and `[1, 1]` are two alternatives of one group, of which the
//! first that allows pays.
//!
//! All entries of a step are decided at one instant, `at_us`. A step of one entry that charges
//! independently is a plain `check`. Left out: `role` where it is `enforce`, `retry_after_us`
//! unless denied, `delay_us` where nobody waits, `release` and `renew` where there is nothing to do,
//! `burst`, `overdraft`, `ttl_us`, `max_wait_us`, `strict_n`, `period` and `utc_offset_minutes` where
//! the policy has none. `burst` left out of a bucket means the limit; of a `leaky_queue` it is one
//! more than may wait; the offset left out of a calendar means UTC. `warm_up` is there where the
//! limit of a new key climbs: [`tollbar::WarmUp`].
//! When the windows of a `staggered_window` begin follows from the key's bytes:
//! [`tollbar::algorithm::staggered_window::stagger_us`].
//!
//! Every number is below 2<sup>53</sup> so that readers whose numbers are doubles can cope, with
//! one exception: the cost `u64::MAX` is written as the string `"18446744073709551615"`.

pub mod generator;
pub mod settlements;

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tollbar::store::Alternative;
use tollbar::{Charge, Outcome, Policy, Role, Timestamp};

use crate::answer::Answer;
use crate::oracle::{ChargedAnswer, OracleEntry, paid_places};
use crate::spec::PolicySpec;

/// A trace and the answers it must get from a store that starts empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    /// What it shows.
    pub name: String,
    /// The policies its entries refer to by number.
    pub policies: Vec<PolicySpec>,
    /// In order of time.
    pub steps: Vec<Step>,
}

/// One call to a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The clock.
    pub at_us: u64,
    /// Whether the entries stand or fall together.
    #[serde(with = "ChargeName")]
    pub charge: Charge,
    /// Permits that come back first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub release: Vec<Release>,
    /// Leases that are renewed then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub renew: Vec<Renew>,
    /// What is asked.
    pub entries: Vec<VectorEntry>,
    /// What must be answered, entry by entry.
    pub expect: Vec<Expect>,
}

impl Step {
    /// What is asked, under the policies of its vector.
    #[must_use]
    pub fn questions<'a>(&'a self, policies: &'a [Policy]) -> Vec<OracleEntry<'a>> {
        self.entries.iter().map(|entry| entry.question(policies)).collect()
    }

    /// What the leases are called that the step has granted, in the order of its entries. Only a
    /// step of all or none tells.
    #[must_use]
    pub fn granted(&self, policies: &[Policy], charged: &[ChargedAnswer]) -> Vec<u64> {
        let is_allowed = |at: usize| charged[at].answer.outcome == Outcome::Allow;
        let paid = match self.charge {
            Charge::AllOrNone => paid_places(&self.questions(policies), is_allowed),
            Charge::Independent => None,
        };
        let mut paid = paid.unwrap_or_default();
        paid.sort_unstable();
        let is_lease = |at: &usize| {
            let VectorEntry { policy, cost, .. } = self.entries[*at];
            policies[policy].lease_ttl().is_some() && cost > 0
        };
        paid.into_iter().filter(is_lease).map(|at| charged[at].stamp).collect()
    }
}

impl VectorEntry {
    /// What is asked, under the policies of its vector.
    #[must_use]
    pub fn question<'a>(&'a self, policies: &'a [Policy]) -> OracleEntry<'a> {
        OracleEntry {
            key: self.key.as_bytes(),
            policy: &policies[self.policy],
            cost: self.cost,
            role: self.role,
            alternative: self.alternative.map(|(group, order)| Alternative { group, order }),
        }
    }
}

/// [`Charge`] as the vectors write it.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Charge", rename_all = "snake_case")]
enum ChargeName {
    AllOrNone,
    Independent,
}

/// Permits that come back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// Whose.
    pub key: String,
    /// Which of the vector's policies.
    pub policy: usize,
    /// How many are given back.
    pub count: u64,
    /// Of which lease, where they are leased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<usize>,
    /// How many were out.
    pub expect: u64,
}

/// A lease that is renewed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// Whose.
    pub key: String,
    /// Which of the vector's policies.
    pub policy: usize,
    /// Which lease.
    pub lease: usize,
    /// Until when it is held then; absent where it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<u64>,
}

/// One entry of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VectorEntry {
    /// Who.
    pub key: String,
    /// Which of the vector's policies.
    pub policy: usize,
    /// For how many tokens.
    #[serde(serialize_with = "write_cost", deserialize_with = "read_cost")]
    pub cost: u64,
    /// Whether it counts towards the verdict.
    #[serde(default, with = "RoleName", skip_serializing_if = "is_enforce")]
    pub role: Role,
    /// The numbers of its group and of its alternative in the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alternative: Option<(u8, u8)>,
}

/// [`Role`] as the vectors write it.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Role", rename_all = "snake_case")]
enum RoleName {
    Enforce,
    Shadow,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_enforce(role: &Role) -> bool {
    *role == Role::Enforce
}

/// The answer one entry must get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// Allow, deny or never.
    pub outcome: OutcomeName,
    /// For a denial, how long to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_us: Option<u64>,
    /// Tokens left.
    pub remaining: u64,
    /// The limit reported.
    pub limit: u64,
    /// When the counter is reset.
    pub reset_at_us: u64,
    /// In a queue, how long an allowed request waits for its turn.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delay_us: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// [`Outcome`] without its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeName {
    /// It may pass.
    Allow,
    /// Not now.
    Deny,
    /// Not now, and nobody knows when.
    Busy,
    /// Not at all.
    Never,
}

impl From<Answer> for Expect {
    fn from(answer: Answer) -> Self {
        let (outcome, retry_after_us) = match answer.outcome {
            Outcome::Allow => (OutcomeName::Allow, None),
            Outcome::Deny { retry_after_us } => (OutcomeName::Deny, Some(retry_after_us)),
            Outcome::Busy => (OutcomeName::Busy, None),
            Outcome::Never => (OutcomeName::Never, None),
        };
        Self {
            outcome,
            retry_after_us,
            remaining: answer.remaining,
            limit: answer.limit,
            reset_at_us: answer.reset_at.as_micros(),
            delay_us: answer.delay_us,
        }
    }
}

impl From<&Expect> for Answer {
    /// # Panics
    /// If a denial says no `retry_after_us`.
    fn from(expect: &Expect) -> Self {
        let outcome = match expect.outcome {
            OutcomeName::Allow => Outcome::Allow,
            OutcomeName::Deny => Outcome::Deny {
                retry_after_us: expect.retry_after_us.expect("a denial says when to come back"),
            },
            OutcomeName::Busy => Outcome::Busy,
            OutcomeName::Never => Outcome::Never,
        };
        Self {
            outcome,
            limit: expect.limit,
            remaining: expect.remaining,
            reset_at: Timestamp::from_micros(expect.reset_at_us),
            delay_us: expect.delay_us,
        }
    }
}

/// The committed file `vectors/{name}.json`.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "vectors", &format!("{name}.json")].iter().collect()
}

/// Reads the committed file `vectors/{name}.json`.
///
/// # Panics
/// If there is no such file, or it holds anything but vectors.
#[must_use]
pub fn load(name: &str) -> Vec<Vector> {
    let path = path(name);
    let text = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{} is no vector file: {error}", path.display()))
}

/// The text of a vector file: one line for each step, so that a change shows as its steps.
///
/// # Panics
/// Never: vectors have a JSON form.
#[must_use]
pub fn render(vectors: &[Vector]) -> String {
    let vectors: Vec<String> = vectors
        .iter()
        .map(|vector| render_parts(&vector.name, &vector.policies, &vector.steps))
        .collect();
    format!("[{}]\n", vectors.join(",\n"))
}

/// One vector, of whatever steps.
pub(crate) fn render_parts<S: Serialize>(
    name: &String,
    policies: &[PolicySpec],
    steps: &[S],
) -> String {
    format!(
        "{{\"name\":{},\n\"policies\":[\n{}],\n\"steps\":[\n{}]}}",
        json(name),
        lines(policies),
        lines(steps)
    )
}

fn lines<T: Serialize>(values: &[T]) -> String {
    values.iter().map(json).collect::<Vec<_>>().join(",\n")
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("vectors have a JSON form")
}

/// The least number that a double may not hold exactly.
const DOUBLE_EXACT_END: u64 = 1 << 53;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn write_cost<S: Serializer>(cost: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    if *cost < DOUBLE_EXACT_END {
        serializer.serialize_u64(*cost)
    } else {
        serializer.serialize_str(&cost.to_string())
    }
}

fn read_cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Cost {
        Number(u64),
        Text(String),
    }
    match Cost::deserialize(deserializer)? {
        Cost::Number(cost) => Ok(cost),
        Cost::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}
