//! Calls as Envoy makes them, answered over a clock that stands still.

mod counting;
mod malformed;
mod matching;
mod metered;
mod reference;
mod refused;
mod ruled;

use std::sync::Arc;
use std::time::Duration;

use tollbar::{ManualClock, MemoryStore, Timestamp};
use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use tollbar_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollbar_rules::{AsyncEngine, RuleFile};
use tonic::Status;

use super::domains::Domains;
use super::{ChargeBy, Envoy, EnvoyConfig, EnvoyFlags, EnvoyLimits};
use crate::daemon::Daemon;
use crate::metrics::TextFormat;
use crate::store::counters::Counters;
use crate::usage::Tally;

/// 2024-02-29, at noon and a bit.
const NOW: Timestamp = Timestamp::from_micros(1_709_208_000_250_000);

/// A service whose time is moved by hand.
struct TestService {
    envoy: Envoy,
    clock: ManualClock,
    tally: Arc<Tally>,
}

impl TestService {
    /// Over a file of the reference service.
    fn from_file(file: &str) -> Self {
        let service = Self::from_rules("rules: []");
        service.envoy.limits.replace(Domains::parse("limits.yaml", file).unwrap());
        service
    }

    /// Over rules of our own.
    fn from_rules(rules: &str) -> Self {
        let clock = ManualClock::at(NOW);
        let store = Arc::new(MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build());
        let counters = Counters::Memory(store);
        let rules = RuleFile::parse("rules.yaml", rules).unwrap().rules;
        let engine = AsyncEngine::new(rules, counters.store()).unwrap();
        let tally = Arc::new(Tally::new(100));
        let daemon = Daemon::new(Arc::new(engine), counters, None);
        let daemon = Arc::new(daemon.with_metering(Some(Arc::clone(&tally))));
        let config =
            EnvoyConfig { charge: ChargeBy::Independent, sends_metadata: false, has_rules: true };
        Self { envoy: Envoy::new(daemon, Arc::new(EnvoyLimits::default()), config), clock, tally }
    }

    fn all_or_none(mut self) -> Self {
        self.envoy.config.charge = ChargeBy::AllOrNone;
        self
    }

    fn ask(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        futures_util::FutureExt::now_or_never(self.envoy.answer(request))
            .expect("memory is at once")
    }

    /// How many checks had this outcome.
    fn count(&self, outcome: &str) -> u64 {
        self.metric(&format!("tollbar_checks_total{{listener=\"http\",outcome=\"{outcome}\"}}"))
    }

    fn metric(&self, series: &str) -> u64 {
        let text = self.envoy.daemon.write_metrics(TextFormat::Prometheus);
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {series}")).parse().unwrap()
    }

    /// The answer to a call that is in order, in one line: `OK 9/10` or `OVER 0/10 | OK`.
    fn says(&self, request: &RateLimitRequest) -> String {
        let response = self.ask(request).unwrap();
        let statuses: Vec<String> = response.statuses.iter().map(said).collect();
        let overall = name(response.overall_code);
        format!("{overall}: {}", statuses.join(" | "))
    }
}

fn name(code: i32) -> &'static str {
    if code == Code::Ok as i32 { "OK" } else { "OVER" }
}

fn said(status: &DescriptorStatus) -> String {
    let remaining = status.limit_remaining;
    match &status.current_limit {
        Some(limit) => format!("{} {remaining}/{}", name(status.code), limit.requests_per_unit),
        None if remaining == u32::MAX => format!("{} unlimited", name(status.code)),
        None => name(status.code).to_owned(),
    }
}

/// A call with one descriptor for each list of pairs.
fn call(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    let descriptor = |pairs: &&[(&str, &str)]| RateLimitDescriptor {
        entries: pairs.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

/// The same with so many hits in its first descriptor.
fn hitting(mut request: RateLimitRequest, hits: u64) -> RateLimitRequest {
    request.descriptors[0].hits_addend = Some(hits);
    request
}

fn giving_back(request: RateLimitRequest, hits: u64) -> RateLimitRequest {
    let mut request = hitting(request, hits);
    request.descriptors[0].is_negative_hits = true;
    request
}
