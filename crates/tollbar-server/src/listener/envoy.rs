//! Envoy's rate-limit protocol, `envoy.service.ratelimit.v3`: may this request pass all of these
//! descriptors?
//!
//! Domains that are in the reference service's files (`--envoy-config`) are limited as the reference
//! limits them; others by our own rules, to which a descriptor is a request. What a call is answered is
//! decided here; connections are the business of the gRPC listener.

mod answer;
mod charge;
mod facts;
mod file;
mod limit;
mod metadata;
mod options;
mod tree;
mod unit;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollbar::{Store, Timestamp};
use tollbar_rules::FileError;
use tonic::{Request, Response, Status};

use answer::Answered;
use charge::{Hits, Question};
use facts::Facts;
use file::EnvoyFiles;
use limit::Limit;
use tree::{Domains, Met, Mode};
use unit::Unit;

use super::grpc::MESSAGE_BYTES_MAX;
use crate::daemon::Daemon;

pub(crate) use options::{ChargeBy, EnvoyOptions};

/// The most descriptors of one call.
const DESCRIPTORS_MAX: usize = 64;
/// The most entries of one descriptor.
const ENTRIES_MAX: usize = 64;

/// The limits of the reference service's files, which change on reload.
#[derive(Debug, Default)]
pub(crate) struct EnvoyLimits {
    path: Option<PathBuf>,
    domains: ArcSwap<Domains>,
}

impl EnvoyLimits {
    /// Those at `path`; without one, no domain is known. Answers with what should be known of them.
    pub(crate) fn read(path: Option<PathBuf>) -> Result<(Self, Vec<String>), FileError> {
        let limits = Self { path, domains: ArcSwap::default() };
        let warnings = limits.reload()?.map_or_else(Vec::new, |(_, warnings)| warnings);
        Ok((limits, warnings))
    }

    /// Puts the files in force as they are now, if they can be used: how many domains, and what should be
    /// known of them. `None` where there are none to be read.
    pub(crate) fn reload(&self) -> Result<Option<(usize, Vec<String>)>, FileError> {
        let Some(path) = &self.path else {
            return Ok(None);
        };
        let EnvoyFiles { domains, warnings } = EnvoyFiles::read(path)?;
        let count = domains.len();
        self.domains.store(Arc::new(domains));
        Ok(Some((count, warnings)))
    }
}

/// The service. A clone of it is the same one.
#[derive(Debug, Clone)]
pub(crate) struct Envoy {
    daemon: Arc<Daemon>,
    store: Arc<dyn Store>,
    limits: Arc<EnvoyLimits>,
    options: Options,
}

/// What it goes by besides limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) charge: ChargeBy,
    pub(crate) headers: options::Headers,
    pub(crate) sends_metadata: bool,
    /// Whether rules decide about domains that the files do not know. Otherwise nothing limits those.
    pub(crate) has_rules: bool,
}

impl Options {
    pub(crate) fn new(options: &EnvoyOptions, rules_are_given: bool) -> Self {
        Self {
            charge: options.envoy_charge,
            headers: options.envoy_headers,
            sends_metadata: options.envoy_metadata,
            has_rules: rules_are_given || options.envoy_config.is_none(),
        }
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

/// What becomes of one descriptor.
enum Step<'t> {
    /// It meets no limit.
    Free,
    Unlimited,
    /// It is counted by the question of that place.
    Counted {
        at: usize,
        name: &'t str,
    },
    /// Our own rules decide.
    Ruled {
        cost: u64,
    },
}

impl Envoy {
    pub(crate) fn new(daemon: Arc<Daemon>, limits: Arc<EnvoyLimits>, options: Options) -> Self {
        let store = daemon.counters.store();
        Self { daemon, store, limits, options }
    }

    /// As a service of a gRPC server.
    pub(crate) fn into_service(self) -> RateLimitServiceServer<Self> {
        RateLimitServiceServer::new(self).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    pub(crate) async fn answer(
        &self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        check_shape(request)?;
        let domains = self.limits.domains.load_full();
        let mut questions = Vec::new();
        let steps = if domains.has(&request.domain) {
            self.steps_of_files(&domains, request, &mut questions)?
        } else if self.options.has_rules {
            steps_of_rules(request, &mut questions)?
        } else {
            request.descriptors.iter().map(|_| Step::Free).collect()
        };
        let answers = self.decide(request, &steps, &questions).await?;
        let mut response = answer::response(answers, self.options.headers);
        if self.options.sends_metadata {
            response.dynamic_metadata = Some(metadata::of(request));
        }
        Ok(response)
    }

    /// By the reference's files.
    fn steps_of_files<'t>(
        &self,
        domains: &'t Domains,
        request: &RateLimitRequest,
        questions: &mut Vec<Question<'t>>,
    ) -> Result<Vec<Step<'t>>, Status> {
        let mut mets = Vec::with_capacity(request.descriptors.len());
        for descriptor in &request.descriptors {
            let entries = descriptor.entries.iter().map(|it| (&*it.key, &*it.value));
            // An override is instead of whatever the files say.
            let met = match descriptor.limit {
                Some(_) => None,
                None => domains.meet(&request.domain, entries),
            };
            mets.push(met);
        }
        let replaced: HashSet<&str> = mets
            .iter()
            .flatten()
            .flat_map(|met| met.rule.replaces.iter().map(|it| &**it))
            .collect();
        let mut steps = Vec::with_capacity(mets.len());
        for (at, (descriptor, met)) in request.descriptors.iter().zip(&mets).enumerate() {
            steps.push(match met {
                None if descriptor.limit.is_some() => {
                    questions.push(overridden(at, request, descriptor)?);
                    Step::Counted { at: questions.len() - 1, name: "" }
                }
                None => Step::Free,
                Some(Met { rule, .. }) if rule.limit.is_none() => Step::Unlimited,
                Some(Met { rule, .. }) if replaced.contains(&*rule.name) => Step::Free,
                Some(Met { rule, shared }) => {
                    let Some(limit) = &rule.limit else { continue };
                    questions.push(Question {
                        key: key(&request.domain, descriptor, shared),
                        limit: Cow::Borrowed(limit),
                        mode: rule.mode,
                        hits: hits(request, descriptor),
                    });
                    Step::Counted { at: questions.len() - 1, name: &rule.name }
                }
            });
        }
        Ok(steps)
    }

    async fn decide(
        &self,
        request: &RateLimitRequest,
        steps: &[Step<'_>],
        questions: &[Question<'_>],
    ) -> Result<Vec<Answered>, Status> {
        let counted = match self.options.charge {
            _ if questions.is_empty() => Ok(Vec::new()),
            ChargeBy::Independent => charge::count_each(&*self.store, questions).await,
            ChargeBy::AllOrNone => {
                charge::count_all_or_none(&*self.store, questions, self.daemon.now()).await
            }
        };
        // UNAVAILABLE, so that Envoy's own `failure_mode_deny` says what follows.
        let counted = counted.map_err(|error| Status::unavailable(error.to_string()))?;
        let now = self.daemon.now();
        let mut answers = Vec::with_capacity(steps.len());
        for (at, step) in steps.iter().enumerate() {
            answers.push(match step {
                Step::Free => Answered::free(),
                Step::Unlimited => Answered::unlimited(),
                Step::Counted { at, name } => {
                    let Question { limit, mode, .. } = &questions[*at];
                    Answered::counted(limit, name, *mode, counted[*at], now)
                }
                Step::Ruled { cost } => self.ruled(at, request, *cost, now).await?,
            });
        }
        Ok(answers)
    }

    /// By our own rules.
    async fn ruled(
        &self,
        at: usize,
        request: &RateLimitRequest,
        cost: u64,
        now: Timestamp,
    ) -> Result<Answered, Status> {
        let bad = |error| bad_descriptor(at, &format!("{error}"));
        let facts = Facts::of(&request.domain, &request.descriptors[at]).map_err(bad)?;
        let asked = facts.request(cost).map_err(bad)?;
        let verdict = self.daemon.check(&asked).await.verdict;
        let in_flight = verdict.decisions().find(|it| it.limit().policy().has_permits());
        if let Some(decision) = in_flight {
            return Err(Status::failed_precondition(format!(
                "rule `{}` limits what is in flight, and Envoy gives nothing back: add a condition to \
                 the rule that requests of the domain `{}` do not meet",
                decision.rule().name,
                request.domain
            )));
        }
        Ok(Answered::ruled(&verdict, now))
    }
}

/// By our own rules, but for overrides.
fn steps_of_rules<'t>(
    request: &RateLimitRequest,
    questions: &mut Vec<Question<'t>>,
) -> Result<Vec<Step<'t>>, Status> {
    let step = |(at, descriptor): (usize, &RateLimitDescriptor)| {
        if descriptor.limit.is_some() {
            questions.push(overridden(at, request, descriptor)?);
            return Ok(Step::Counted { at: questions.len() - 1, name: "" });
        }
        match hits(request, descriptor) {
            Hits::Add(cost) => Ok(Step::Ruled { cost }),
            Hits::Refund(_) => Err(bad_descriptor(
                at,
                "is_negative_hits needs a limit of its own or of --envoy-config: rules give back by \
                 receipts, over gRPC or HTTP",
            )),
        }
    };
    request.descriptors.iter().enumerate().map(step).collect()
}

/// What no descriptor may be, whatever limits there are.
fn check_shape(request: &RateLimitRequest) -> Result<(), Status> {
    let refuse = |message: &str| Err(Status::invalid_argument(message));
    if request.domain.is_empty() {
        return refuse("the domain is empty: set `domain` in Envoy's rate limit filter");
    }
    match request.descriptors.len() {
        0 => return refuse("there is no descriptor: send at least one"),
        count if count > DESCRIPTORS_MAX => {
            return refuse(&format!(
                "{count} descriptors are too many: send at most {DESCRIPTORS_MAX}"
            ));
        }
        _ => {}
    }
    for (at, descriptor) in request.descriptors.iter().enumerate() {
        let count = descriptor.entries.len();
        if count == 0 {
            return Err(bad_descriptor(at, "it has no entries: send at least one"));
        }
        if count > ENTRIES_MAX {
            let message = format!("{count} entries are too many: send at most {ENTRIES_MAX}");
            return Err(bad_descriptor(at, &message));
        }
        if descriptor.entries.iter().any(|entry| entry.key.is_empty()) {
            return Err(bad_descriptor(at, "it has an entry without a key: name all of them"));
        }
    }
    Ok(())
}

fn bad_descriptor(at: usize, message: &str) -> Status {
    Status::invalid_argument(format!("descriptors[{at}]: {message}"))
}

/// A descriptor's own number counts, also if it is zero; that of the call is at least one.
fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Hits {
    let hits = match &descriptor.hits_addend {
        Some(own) => own.value,
        None => u64::from(request.hits_addend.max(1)),
    };
    if descriptor.is_negative_hits { Hits::Refund(hits) } else { Hits::Add(hits) }
}

/// The question of a descriptor that brings its limit along.
fn overridden<'t>(
    at: usize,
    request: &RateLimitRequest,
    descriptor: &RateLimitDescriptor,
) -> Result<Question<'t>, Status> {
    let wanted = descriptor.limit.unwrap_or_default();
    let unit = Unit::of_wire(wanted.unit).ok_or_else(|| {
        let message = format!("limit.unit {} is no unit: send SECOND to YEAR", wanted.unit);
        bad_descriptor(at, &message)
    })?;
    let limit = Limit::new(wanted.requests_per_unit, unit)
        .map_err(|error| bad_descriptor(at, &error.to_string()))?;
    Ok(Question {
        key: key(&request.domain, descriptor, &[]),
        limit: Cow::Owned(limit),
        mode: Mode::Enforce,
        hits: hits(request, descriptor),
    })
}

/// What is counted: the domain and all entries, each behind its length, so that no two lists of them are
/// one key. Where values share a counter, their wildcard stands for them.
fn key(domain: &str, descriptor: &RateLimitDescriptor, shared: &[(usize, &str)]) -> Vec<u8> {
    let mut key = Vec::with_capacity(64);
    let mut push = |part: &str| {
        key.extend_from_slice(part.len().to_string().as_bytes());
        key.push(b':');
        key.extend_from_slice(part.as_bytes());
    };
    push(domain);
    for (at, entry) in descriptor.entries.iter().enumerate() {
        let value = shared.iter().find(|(place, _)| *place == at).map(|(_, value)| *value);
        push(&entry.key);
        push(value.unwrap_or(&entry.value));
    }
    key
}
