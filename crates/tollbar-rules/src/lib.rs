//! Which limits apply to a request: rules in a file, indexed, reloadable, explainable.
//!
//! ```
//! use tollbar_rules::{Engine, Request, RuleFile};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = r#"
//! rules:
//!   - { name: everybody, per: [], limit: 10000/s }
//!   - { name: per_client, limit: [10/s, 450/15min] }
//!   - { name: login, match: { method: POST, path: /v1/login }, per: [ip], limit: 5/min }
//!   - { name: health, match: { path: /health }, unlimited: true }
//! "#;
//! let engine = Engine::new(RuleFile::parse("rules.yaml", rules)?.rules);
//!
//! let attributes = [("user", "42"), ("ip", "203.0.113.7")];
//! let request = Request::new("GET", "/v1/users/7")?.with_attributes(&attributes)?;
//! let verdict = engine.check(&request);
//! assert!(verdict.is_allowed());
//! assert_eq!(&*verdict.rule().unwrap().name, "per_client");
//! # Ok(())
//! # }
//! ```
//!
//! A [`Request`] is checked and normalised once. An [`Engine`] finds the [rules](Rule) that match, by
//! index, and asks its store for all their limits at one instant: a request pays all or none. The
//! [`Verdict`] says which rule binds and why, and what shadows and candidates would have said.
//! [`AsyncEngine`] is the same over any store, such as Redis.
//! [`Engine::replace`](AsyncEngine::replace) and [`RuleWatch`] change the rules while checks go on; counters are kept by the
//! rules' names. [`Engine::explain`] says what every rule makes of a request. [`Engine::rule`] looks one
//! rule up, which says what is left and which keys it denies most.
//!
//! The format of the file is in `docs/reference/rules.md`. Listeners, headers and where attributes come
//! from are other crates' business.
//!
//! # What is promised
//!
//! - What a check costs follows from the rules that match, not from how many there are. One of usual
//!   size (eight limits, keys of 512 bytes together) allocates nothing over the memory store.
//! - No spelling of a path, a method or an address goes around a rule: see [`Request::new`].
//! - Different subjects have different keys, whatever their attributes say.
//! - A file, a request and the sketch of who is limited are bounded; no input causes a panic.
//! - A check sees one version of the rules, whole.
//!
//! # The modules
//!
//! From the bottom up; none uses one below it in this table.
//!
//! | module | what it has |
//! |---|---|
//! | `message`, `date`, `hash` | texts of messages, instants in files, a quick hash |
//! | `request` | a request, checked, its path normalised |
//! | `rule` | one rule: conditions, path patterns, address blocks, subjects, costs, limits |
//! | `rule_set` | rules together: whether they fit, bans and boosts, what changed between two sets |
//! | `bounds` | what each limit admits at most and at least in any interval |
//! | `file` | the YAML file of rules, with every mistake at its line |
//! | `admin` | rules and exemptions as JSON and YAML, for an admin API |
//! | `matcher` | the index that finds which rules match a request |
//! | `snapshot` | a rule set compiled for checks, with the counts that belong to its rules |
//! | `verdict` | the answer to a request: decisions, reasons, denial codes, the summary for protocols |
//! | `engine` | checks requests: `selection` finds the limits that apply, `decide` asks the store, `outage` answers in its place, `hold` settles and releases |
//! | `explain` | what every rule makes of a request |
//! | `watch` | puts a file in force again when it changes |

#![cfg_attr(
    test,
    allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")
)]

#[cfg(feature = "admin")]
pub mod admin;
mod bounds;
mod date;
mod engine;
mod explain;
mod file;
mod hash;
mod matcher;
mod message;
mod request;
mod rule;
mod rule_set;
mod snapshot;
mod verdict;
mod watch;

pub use bounds::{AdmittedTokens, IntervalBounds, LimitAccuracy, LimitBounds};
pub use date::{readable_instant, readable_wait};
pub use engine::ahead_of_clock::{AheadDenial, AheadNews, AheadOfClock};
pub use engine::global_overrides::GlobalOverrides;
pub use engine::hold::{Hold, LimitSettlement, RuleSettlement, TokenError};
pub use engine::in_process::Engine;
pub use engine::rule_handle::{AsyncRuleHandle, RuleHandle, SubjectRequest};
pub use engine::tallies::{RuleTally, Tallies};
pub use engine::usage::{UnknownRule, Usage, UsageError};
pub use engine::{Admission, AsyncEngine, EngineBuilder};
pub use explain::{Explanation, LimitExplanation, RuleExplanation, RuleFate};
#[doc(hidden)]
pub use file::yaml;
pub use file::{FileError, Finding, Position, RuleFile};
pub use request::address::address_part;
pub use request::path::PathOptions;
pub use request::{Criticality, InvalidRequest, Request};
pub use rule::accuracy::{AccuracyError, LimitAccuracyError, RuleAccuracy};
pub use rule::cidr::{Cidr, CidrError};
pub use rule::condition::{Condition, Conditions, Test};
pub use rule::cost::{Costs, whole_digits};
pub use rule::limit::{AlgorithmKind, Limit, LimitError, LimitOptions};
pub use rule::pattern::{PathPattern, PatternError};
pub use rule::reserve::{Reserve, ReserveError};
pub use rule::subject::{OnMissing, Per, readable};
pub use rule::subject_text::{CanonicalSubject, canonical_subject};
pub use rule::warning::RuleWarning;
pub use rule::{Exemption, Mode, OnOutage, Rule, TierLimits, Tiers};
pub use rule_set::diff::{Diff, RuleChange};
pub use rule_set::overrides::{Effect, Override};
pub use rule_set::{RuleError, RuleProblem, RuleSet, RuleSetError};
pub use snapshot::tally::{Counts, TallyId};
pub use snapshot::top::TopKey;
pub use verdict::denial::DenialCode;
pub use verdict::standalone::StandaloneLimit;
pub use verdict::summary::{CheckOutcome, Summary};
pub use verdict::usage_record::{UsageAmounts, UsageRecord, meter_standalone};
pub use verdict::{Enforcement, GLOBAL_BAN, Reason, RuleDecision, Verdict};
pub use watch::{ReloadReport, RuleWatch, WatchGuard};
