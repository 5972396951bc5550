//! Which limits apply to a request.

mod cidr;
mod condition;
mod cost;
mod date;
mod diff;
mod engine;
mod file;
mod hash;
mod limit;
mod matcher;
mod path;
mod pattern;
mod request;
mod rule;
mod rule_set;
mod snapshot;
mod subject;
mod suggest;
mod top;
mod verdict;

pub use cidr::{Cidr, CidrError};
pub use condition::{Condition, Conditions, Test};
pub use cost::Costs;
pub use diff::{Changed, Diff};
pub use engine::{Engine, EngineBuilder};
pub use file::{FileError, Finding, Position, RuleFile};
pub use limit::{Counting, Limit, LimitError, LimitOptions};
pub use pattern::{PathPattern, PatternError};
pub use request::{Criticality, Request, RequestError};
pub use rule::{Exemption, Mode, OnStoreFailure, Rule, TierLimits, Tiers};
pub use rule_set::{RuleError, RuleProblem, RuleSet, RuleSetError};
pub use subject::{Missing, Per, readable};
pub use top::Limited;
pub use verdict::{Capacity, Reason, RuleDecision, Verdict};
