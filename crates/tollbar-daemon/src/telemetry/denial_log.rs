//! Denials in the log: some of each second, with the id by which `/v1/decisions/{id}` tells the rest. How
//! many were not told is told with the next. No client is named.

use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use tollbar::{Source, Timestamp};
use tollbar_rules::{DenialCode, Verdict};
use tracing::{info, warn};

use crate::count_flag::count;
use crate::decision_log::DecisionId;
use crate::metrics::{Outcome, ProtocolName};

/// How many denials are logged.
#[derive(Debug, Clone, Copy, Args)]
pub struct DenialFlags {
    /// The most denials that are told in a second; 0 tells none
    #[arg(long, env = "TOLLBAR_LOG_DENIALS", value_name = "COUNT", default_value = "1",
          value_parser = count::<u16>(0..=u16::MAX.into()))]
    log_denials: u16,
}

/// Logs some of the denials of each second.
#[derive(Debug, Default)]
pub struct DenialLog {
    per_second_max: u64,
    /// The second it is, since 1970, above the 16 bits that say how many of its denials were logged.
    logged: AtomicU64,
    untold: AtomicU64,
}

impl DenialFlags {
    pub fn open(self) -> DenialLog {
        DenialLog { per_second_max: self.log_denials.into(), ..DenialLog::default() }
    }
}

impl DenialLog {
    /// Logs a denial, unless its second has had enough.
    pub(crate) fn log(
        &self,
        id: DecisionId,
        protocol: ProtocolName,
        verdict: &Verdict,
        now: Timestamp,
    ) {
        if self.per_second_max == 0 {
            return;
        }
        let Some(untold) = self.take(now) else {
            return;
        };
        let rule = verdict.decided_by();
        let code = verdict.denial_code().map(DenialCode::as_str);
        let source = verdict.binding().and_then(|limit| limit.source()).map(Source::name);
        let retry_after_ms = verdict.retry_after().map(|wait| wait.as_millis() as u64);
        info!(
            decision_id = %id,
            listener = protocol.name(),
            rule,
            outcome = Outcome::from_verdict(verdict).name(),
            code,
            source,
            retry_after_ms,
            untold,
            "denied"
        );
    }

    /// Logs a request that could not be decided and was denied for it, unless its second has had enough.
    pub(crate) fn log_rejection(&self, protocol: ProtocolName, why: &str, now: Timestamp) {
        if self.per_second_max == 0 {
            return;
        }
        let Some(untold) = self.take(now) else {
            return;
        };
        let outcome = Outcome::Rejected.name();
        warn!(listener = protocol.name(), outcome, why, untold, "denied: it cannot be decided");
    }

    /// Returns how many denials were left out since the last that was logged, if this one is to be logged.
    fn take(&self, now: Timestamp) -> Option<u64> {
        let second = now.as_micros() / 1_000_000;
        let taken = self.logged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |logged| {
            // A clock that goes back begins no second anew.
            if logged >> 16 < second {
                return Some((second << 16) + 1);
            }
            (logged & 0xffff < self.per_second_max).then_some(logged + 1)
        });
        if taken.is_err() {
            self.untold.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.untold.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_of_a_second_are_told_and_the_others_counted() {
        let log = DenialLog { per_second_max: 2, ..DenialLog::default() };
        let at = |us| log.take(Timestamp::from_micros(us));
        assert_eq!([at(5_000_000), at(5_999_999), at(5_999_999)], [Some(0), Some(0), None]);
        assert_eq!([at(4_000_000), at(5_000_000)], [None, None], "a clock that goes back");
        assert_eq!([at(6_000_000), at(6_000_000), at(6_000_000)], [Some(3), Some(0), None]);
        let _ = at(u64::MAX);
    }
}
