//! Envoy's rate-limit protocol, `envoy.service.ratelimit.v3`: may this request pass all of these
//! descriptors?
//!
//! Domains that are in the reference service's files (`--envoy-config`) are limited as the reference
//! limits them; others by our own rules, to which a descriptor is a request. What a call is answered is
//! decided here; connections are the business of the gRPC listener.

mod charge;
mod charge_plan;
mod config_file;
mod decide;
mod descriptor_request;
mod domains;
mod flags;
#[doc(hidden)]
pub mod fuzz;
mod limit;
mod live_limits;
mod metadata;
mod response;
mod unit;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use tollbar::Store;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use tollbar_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollbar_rules::RuleSet;
use tonic::{Request, Response, Status};
use tracing::warn;

use charge_plan::ChargePlan;

use super::grpc::MESSAGE_BYTES_MAX;
use crate::daemon::Daemon;

pub use flags::{ChargeBy, EnvoyFlags};
pub use live_limits::EnvoyLimits;

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
    pub(crate) headers: flags::RateLimitHeaders,
    pub(crate) sends_metadata: bool,
    /// Whether rules decide about domains that the files do not know. Otherwise nothing limits those.
    pub(crate) has_rules: bool,
}

impl EnvoyConfig {
    pub fn new(flags: &EnvoyFlags, rules_are_given: bool) -> Self {
        Self {
            charge: flags.envoy_charge,
            headers: flags.envoy_headers,
            sends_metadata: flags.envoy_metadata,
            has_rules: rules_are_given || flags.envoy_config.is_none(),
        }
    }
}

/// Tells which rules no call of Envoy is answered by. Others are, so they are no mistake.
pub fn warn_of_permits(config: EnvoyConfig, rules: &RuleSet) {
    let with_permits = rules.rules_with_permits().filter(|rule| rule.enabled);
    let names: Vec<&str> = with_permits.map(|rule| &*rule.name).collect();
    if config.has_rules && !names.is_empty() {
        warn!(
            rules = names.join(" "),
            "these limit what is in flight, and Envoy gives nothing back: its calls that meet one get \
             FAILED_PRECONDITION"
        );
    }
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

    /// As a service of a gRPC server.
    pub(crate) fn into_service(self) -> RateLimitServiceServer<Self> {
        RateLimitServiceServer::new(self).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    pub(crate) async fn answer(
        &self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        charge_plan::check_shape(request)?;
        let domains = self.limits.domains();
        let plan = if domains.has(&request.domain) {
            ChargePlan::of_files(&domains, request)?
        } else if self.config.has_rules {
            ChargePlan::of_rules(request)?
        } else {
            ChargePlan::of_nothing(request)
        };
        let answers = self.decide(request, plan).await?;
        let mut response = response::response(answers, self.config.headers);
        if self.config.sends_metadata {
            response.dynamic_metadata = Some(metadata::of(request));
        }
        Ok(response)
    }
}
