//! How often each tenant may write through the admin API: an engine of one rule, in the memory of this node. Operators are
//! not limited.

use std::str::FromStr;
use std::sync::Arc;

use tollbar::MemoryStore;
use tollbar_rules::{Engine, Limit, Per, Request, Rule, RuleSet};

use tollbar_daemon::problem::Problem;

/// Tenants that are counted at once.
const TENANTS_MAX: usize = 10_000;

/// How often a tenant may write, as `--tenant-writes` has it: `60/min`.
#[derive(Debug, Clone)]
pub struct TenantWriteLimit(RuleSet);

/// Counts the writes of each tenant.
#[derive(Debug)]
pub(crate) struct TenantWrites {
    engine: Engine,
}

impl FromStr for TenantWriteLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rule = Rule::new("tenant_writes");
        rule.per = vec![Per::Attribute("tenant".into())];
        rule.limits = vec![Limit::parse(text).map_err(|error| error.to_string())?];
        RuleSet::new(vec![rule]).map(Self).map_err(|error| error.to_string())
    }
}

impl TenantWrites {
    pub(crate) fn new(limit: TenantWriteLimit) -> Self {
        let store = MemoryStore::builder().max_keys(TENANTS_MAX).build();
        Self { engine: Engine::builder(limit.0).store(Arc::new(store)).build() }
    }

    /// Charges a tenant for one write, or returns a 429 that says when to try again.
    pub(crate) fn charge(&self, tenant: &str) -> Result<(), Problem> {
        let attributes = [("tenant", tenant)];
        let request = Request::new("POST", "/")?.with_attributes(&attributes)?;
        let verdict = self.engine.check(&request);
        if verdict.is_allowed() {
            return Ok(());
        }
        Err(Problem::too_many_writes(&verdict, self.engine.now()))
    }
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;

    #[test]
    fn each_tenant_has_its_own_writes() {
        let writes = TenantWrites::new("2/h".parse().unwrap());
        assert!(writes.charge("acme").is_ok() && writes.charge("acme").is_ok());
        let problem = writes.charge("acme").unwrap_err();
        assert_eq!(problem.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(problem.retry_after_s.is_some_and(|seconds| seconds > 1), "{problem:?}");
        let headers = problem.headers.unwrap();
        assert_eq!(
            (&headers["x-ratelimit-limit"], &headers["x-ratelimit-remaining"]),
            (&"2".parse().unwrap(), &"0".parse().unwrap())
        );
        assert!(writes.charge("globex").is_ok());
    }

    #[test]
    fn a_limit_that_cannot_be_is_told_with_what_to_write() {
        for text in ["", "0/min", "many", "5"] {
            assert!(text.parse::<TenantWriteLimit>().is_err(), "{text}");
        }
    }
}
