//! Envoy's rate-limit protocol, `envoy.service.ratelimit.v3`: may this request pass all of these
//! descriptors?
//!
//! Domains that are in the reference service's files (`--envoy-config`) are limited as the reference
//! limits them, and by our own rules besides, to which the call is a request; others by our own rules alone, to
//! which each descriptor is a request. What a call is answered is decided here; connections are the business of
//! the gRPC listener.

mod charge;
mod charge_plan;
mod config_file;
mod decide;
mod denying_service;
mod descriptor_request;
mod domains;
mod flags;
#[doc(hidden)]
pub mod fuzz;
mod limit;
mod live_limits;
mod metadata;
mod response;
mod window_unit;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use prost::Message;
use tollbar::Store;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use tollbar_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollbar_rules::{Rule, RuleSet};
use tonic::{Request, Response, Status};

use charge_plan::ChargePlan;
pub(crate) use denying_service::{DeniedMethod, DenyingService};
use response::DescriptorResult;

use super::grpc::MESSAGE_BYTES_MAX;
use crate::daemon::Daemon;

pub use flags::{ChargeBy, EnvoyFlags};
pub use live_limits::EnvoyLimits;

/// The one method of the service.
pub(crate) const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The service. A clone of it is the same one.
#[derive(Debug, Clone)]
pub struct Envoy {
    daemon: Arc<Daemon>,
    store: Arc<dyn Store>,
    limits: Arc<EnvoyLimits>,
    config: EnvoyConfig,
}

/// What it goes by besides limits.
#[derive(Debug, Clone, Copy)]
pub struct EnvoyConfig {
    pub(crate) charge: ChargeBy,
    pub(crate) sends_metadata: bool,
    /// Whether rules decide too. The example that stands in for absent rules does not count.
    pub(crate) has_rules: bool,
}

impl EnvoyConfig {
    pub fn new(flags: &EnvoyFlags, rules_are_given: bool) -> Self {
        Self {
            charge: flags.envoy_charge,
            sends_metadata: flags.envoy_metadata,
            has_rules: rules_are_given || flags.envoy_config.is_none(),
        }
    }
}

/// Returns the rules with limits that do not apply to calls of Envoy. They do apply over other protocols, so they are
/// no mistake.
pub fn rules_with_permits(config: EnvoyConfig, rules: &RuleSet) -> impl Iterator<Item = &Rule> {
    rules.rules_with_permits().filter(move |rule| config.has_rules && rule.enabled)
}

#[tonic::async_trait]
impl RateLimitService for Envoy {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        self.answer(&request.into_inner()).await.map(Response::new)
    }
}

impl Envoy {
    pub fn new(daemon: Arc<Daemon>, limits: Arc<EnvoyLimits>, config: EnvoyConfig) -> Self {
        let store = daemon.counters.store();
        Self { daemon, store, limits, config }
    }

    /// Returns the handle that counts calls.
    pub(crate) fn daemon(&self) -> &Arc<Daemon> {
        &self.daemon
    }

    /// As a service of a gRPC server.
    pub(crate) fn into_service(self) -> DenyingService<RateLimitServiceServer<Self>> {
        let daemon = Arc::clone(&self.daemon);
        let denial = || response::rejection(0).encode_to_vec();
        let service = RateLimitServiceServer::new(self);
        DenyingService::new(
            service.max_decoding_message_size(MESSAGE_BYTES_MAX),
            DeniedMethod { path: METHOD, daemon, denial },
        )
    }

    /// Answers a call. An outage of the store is the only error: whatever cannot be decided is denied.
    pub(crate) async fn answer(
        &self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        if let Some(why) = charge_plan::call_problem(request) {
            self.daemon.reject(&why);
            return Ok(response::rejection(request.descriptors.len()));
        }
        let (domains, has_rules) = (self.limits.domains(), self.config.has_rules);
        let plan = if domains.has(&request.domain) {
            ChargePlan::of_files(&domains, request, has_rules)
        } else if has_rules {
            ChargePlan::of_rules(request)
        } else {
            ChargePlan::of_nothing(request)
        };
        let results = self.decide(request, plan).await?;
        let metadata = self.config.sends_metadata.then(|| {
            metadata::from_request(request, results.iter().filter_map(DescriptorResult::metadata))
        });
        let mut response =
            response::response(results, self.daemon.client_headers.envoy, self.daemon.now());
        response.dynamic_metadata = metadata;
        Ok(response)
    }
}
