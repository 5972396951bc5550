//! Counters of this node that owe more than their policy can, cleared for a while.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::info;

use super::Admin;
use crate::operations::auth::access::{Actor, Permission};
use tollbar_daemon::problem::Problem;
use tollbar_daemon::rfc3339::Rfc3339;
use tollbar_daemon::store::ahead_of_clock::AheadOfClock;

const SECONDS_DEFAULT: u64 = 600;
const SECONDS_MAX: u64 = 86_400;

/// For how long counters that are ahead of the clock are to be cleared.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ClearAheadForm {
    /// In seconds; ten minutes where it is left out.
    #[schemars(range(min = 1, max = 86_400))]
    pub(crate) for_seconds: Option<u64>,
}

/// Whether counters that are ahead of the clock are cleared, and how many were.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ClearingAhead")]
pub(crate) struct ClearAheadStatus {
    /// Until when each is cleared whose client is denied; null where none is.
    clearing_until: Option<Rfc3339>,
    /// How many were cleared since the daemon started.
    cleared: u64,
    /// How many could not be, because the store did not answer.
    failed: u64,
    /// The denials that tell of such counters; null where there was none.
    ahead_of_clock: Option<AheadOfClock>,
}

/// What the audit has as the rule and the subject of a clearing: it is of every counter that is ahead.
const AUDITED: [&str; 2] = ["*", "counters ahead of the clock"];

/// Clears counters that are ahead of the clock, for as long as `form` says: each when its client is denied.
pub(crate) async fn clear_ahead(
    admin: &Admin,
    actor: &Actor,
    form: &ClearAheadForm,
) -> Result<ClearAheadStatus, Problem> {
    actor.reach(Permission::ChangeAll)?;
    let seconds = form.for_seconds.unwrap_or(SECONDS_DEFAULT);
    if !(1..=SECONDS_MAX).contains(&seconds) {
        return Err(Problem::invalid_field("forSeconds", "send 1 to 86400, which is a day"));
    }
    let ([rule, subject], name) = (AUDITED, actor.audit_name());
    // It comes first: what is not written down is not done.
    admin.repository.record_reset(rule, subject, &name).await?;
    admin.daemon.engine.clear_ahead_for(Duration::from_secs(seconds));
    info!(actor = name, seconds, "counters ahead of the clock are cleared");
    Ok(ClearAheadStatus::read(admin))
}

/// Whether they are cleared now.
pub(crate) fn clear_ahead_status(
    admin: &Admin,
    actor: &Actor,
) -> Result<ClearAheadStatus, Problem> {
    actor.reach(Permission::SeeAll)?;
    Ok(ClearAheadStatus::read(admin))
}

impl ClearAheadStatus {
    fn read(admin: &Admin) -> Self {
        let engine = &admin.daemon.engine;
        let state = engine.ahead_of_clock();
        Self {
            clearing_until: state.clearing_until.map(Rfc3339),
            cleared: state.cleared,
            failed: state.clear_failures,
            ahead_of_clock: AheadOfClock::from_engine(engine),
        }
    }
}
