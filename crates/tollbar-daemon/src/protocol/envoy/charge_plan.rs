//! What a call asks: which counters its descriptors are to be counted by, or that rules decide. Nothing
//! is counted here.

use std::borrow::Cow;
use std::collections::HashSet;

use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tonic::Status;

use super::charge::{CounterCharge, Hits};
use super::domains::{Domains, EnforcementMode, RuleMatch};
use super::limit::EnvoyLimit;
use super::unit::Unit;

/// The most descriptors of one call.
const DESCRIPTORS_MAX: usize = 64;
/// The most entries of one descriptor.
const ENTRIES_MAX: usize = 64;

/// What becomes of the descriptors of a call, by their places.
#[derive(Debug)]
pub(super) struct ChargePlan<'t> {
    pub(super) steps: Vec<Step<'t>>,
    pub(super) charges: Vec<CounterCharge<'t>>,
}

/// What becomes of one descriptor.
#[derive(Debug)]
pub(super) enum Step<'t> {
    /// It meets no limit.
    Free,
    Unlimited,
    /// It is counted by the charge at that index.
    Count {
        at: usize,
        name: &'t str,
    },
    /// Our own rules decide.
    CheckRules {
        cost: u64,
    },
}

impl<'t> ChargePlan<'t> {
    /// By the reference's files.
    pub(super) fn of_files(
        domains: &'t Domains,
        request: &RateLimitRequest,
    ) -> Result<Self, Status> {
        let find_match = |descriptor: &RateLimitDescriptor| {
            let entries = descriptor.entries.iter().map(|it| (&*it.key, &*it.value));
            // A limit that is brought along is instead of whatever the files say.
            let is_brought = descriptor.limit.is_some();
            if is_brought { None } else { domains.find_rule(&request.domain, entries) }
        };
        let matches: Vec<Option<RuleMatch<'t>>> =
            request.descriptors.iter().map(find_match).collect();
        let names = matches.iter().flatten().flat_map(|matched| &matched.rule.replaces);
        let replaced: HashSet<&str> = names.map(|it| &**it).collect();

        let mut plan = Self::with_capacity(matches.len());
        for (at, (descriptor, matched)) in request.descriptors.iter().zip(&matches).enumerate() {
            match matched {
                None if descriptor.limit.is_some() => plan.count_as_brought(at, request)?,
                None => plan.steps.push(Step::Free),
                Some(RuleMatch { rule, shared }) => match &rule.limit {
                    None => plan.steps.push(Step::Unlimited),
                    Some(_) if replaced.contains(&*rule.name) => plan.steps.push(Step::Free),
                    Some(limit) => plan.count(
                        &rule.name,
                        CounterCharge {
                            key: key(&request.domain, descriptor, shared),
                            limit: Cow::Borrowed(limit),
                            mode: rule.mode,
                            hits: hits(request, descriptor),
                        },
                    ),
                },
            }
        }
        Ok(plan)
    }

    /// By our own rules, but for limits that are brought along.
    pub(super) fn of_rules(request: &RateLimitRequest) -> Result<Self, Status> {
        let mut plan = Self::with_capacity(request.descriptors.len());
        for (at, descriptor) in request.descriptors.iter().enumerate() {
            match hits(request, descriptor) {
                _ if descriptor.limit.is_some() => plan.count_as_brought(at, request)?,
                Hits::Add(cost) => plan.steps.push(Step::CheckRules { cost }),
                Hits::Refund(_) => {
                    return Err(bad_descriptor(
                        at,
                        "is_negative_hits needs a limit of its own or of --envoy-config: rules give \
                         back by receipts, over gRPC or HTTP",
                    ));
                }
            }
        }
        Ok(plan)
    }

    /// Of a domain that nobody knows.
    pub(super) fn of_nothing(request: &RateLimitRequest) -> Self {
        let steps = request.descriptors.iter().map(|_| Step::Free).collect();
        Self { steps, charges: Vec::new() }
    }

    fn with_capacity(count: usize) -> Self {
        Self { steps: Vec::with_capacity(count), charges: Vec::with_capacity(count) }
    }

    fn count(&mut self, name: &'t str, charge: CounterCharge<'t>) {
        self.steps.push(Step::Count { at: self.charges.len(), name });
        self.charges.push(charge);
    }

    /// Counts a descriptor by the limit that it brings along.
    fn count_as_brought(&mut self, at: usize, request: &RateLimitRequest) -> Result<(), Status> {
        let descriptor = &request.descriptors[at];
        let brought = descriptor.limit.unwrap_or_default();
        let unit = Unit::from_proto(brought.unit).ok_or_else(|| {
            let message = format!("limit.unit {} is no unit: send SECOND to YEAR", brought.unit);
            bad_descriptor(at, &message)
        })?;
        let limit = EnvoyLimit::new(brought.requests_per_unit, unit)
            .map_err(|error| bad_descriptor(at, &error.to_string()))?;
        self.count(
            "",
            CounterCharge {
                key: key(&request.domain, descriptor, &[]),
                limit: Cow::Owned(limit),
                mode: EnforcementMode::Enforce,
                hits: hits(request, descriptor),
            },
        );
        Ok(())
    }
}

/// What no descriptor may be, whatever limits there are.
pub(super) fn check_shape(request: &RateLimitRequest) -> Result<(), Status> {
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

pub(super) fn bad_descriptor(at: usize, message: &str) -> Status {
    Status::invalid_argument(format!("descriptors[{at}]: {message}"))
}

/// A descriptor's own number counts, also if it is zero; that of the call is at least one.
fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Hits {
    let of_call = || u64::from(request.hits_addend.max(1));
    let hits = descriptor.hits_addend.unwrap_or_else(of_call);
    if descriptor.is_negative_hits { Hits::Refund(hits) } else { Hits::Add(hits) }
}

/// What is counted: the domain and all entries, each behind its length, so that no two lists of them are
/// one key. Where values share a counter, their wildcard stands for them.
fn key(domain: &str, descriptor: &RateLimitDescriptor, shared: &[(usize, &str)]) -> Vec<u8> {
    let mut key = Vec::with_capacity(64);
    let mut push = |part: &str| {
        key.extend_from_slice(itoa::Buffer::new().format(part.len()).as_bytes());
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
