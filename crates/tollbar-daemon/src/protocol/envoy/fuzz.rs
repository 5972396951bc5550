//! For fuzzers: any bytes as a file or as a call. Nothing is to come of them but an answer.

use std::sync::Arc;

use prost::Message;
use tollbar::MemoryStore;
use tollbar_http::HeaderStyle;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollbar_rules::{AsyncEngine, RuleSet};

use super::domains::Domains;
use super::flags::ChargeBy;
use super::{Envoy, EnvoyConfig, EnvoyLimits};
use crate::daemon::Daemon;
use crate::header_flags::ClientHeaders;
use crate::store::counters::Counters;

/// A file of the reference service.
pub fn read_file(text: &str) {
    #[expect(clippy::let_underscore_must_use, reason = "a fuzz target looks for panics")]
    let _ = Domains::parse("fuzz.yaml", text);
}

/// A service with limits of all kinds.
pub struct EnvoyFuzzer([Envoy; 2]);

impl EnvoyFuzzer {
    /// Over this file of limits; `None` where it cannot be read.
    #[must_use]
    pub fn new(file: &str) -> Option<Self> {
        let domains = Domains::parse("fuzz.yaml", file).ok()?;
        let counters = Counters::Memory(Arc::new(MemoryStore::builder().max_keys(1_000).build()));
        let engine = AsyncEngine::new(RuleSet::empty(), counters.store()).ok()?;
        let client_headers =
            ClientHeaders { envoy: HeaderStyle::default(), ..ClientHeaders::default() };
        let daemon = Daemon::new(Arc::new(engine), counters, None);
        let daemon = Arc::new(daemon.with_client_headers(client_headers));
        let limits = Arc::new(EnvoyLimits::default());
        limits.replace(domains);
        let service = |charge| {
            let config = EnvoyConfig { charge, sends_metadata: true, has_rules: true };
            Envoy::new(Arc::clone(&daemon), Arc::clone(&limits), config)
        };
        Some(Self([ChargeBy::Independent, ChargeBy::AllOrNone].map(service)))
    }

    /// Answers the call that `bytes` are, if they are one: a status for each of its descriptors.
    #[must_use]
    pub async fn answer(&self, bytes: &[u8]) -> bool {
        let Ok(request) = RateLimitRequest::decode(bytes) else {
            return true;
        };
        for service in &self.0 {
            if let Ok(response) = service.answer(&request).await
                && response.statuses.len() != request.descriptors.len()
            {
                return false;
            }
        }
        true
    }
}
