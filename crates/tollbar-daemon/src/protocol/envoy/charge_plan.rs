//! What a call asks: which counters its descriptors are to be counted by, and which requests the rules
//! decide. Nothing is counted here.

use std::borrow::Cow;
use std::collections::HashSet;

use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollbar_rules::{InvalidRequest, address_part};

use super::charge::{CounterCharge, Hits};
use super::descriptor_request::{CallFacts, DescriptorRequest};
use super::domains::{Domains, EnforcementMode, RuleMatch};
use super::limit::EnvoyLimit;
use super::window_unit::WindowUnit;

/// The most descriptors of one call.
const DESCRIPTORS_MAX: usize = 64;
/// The most entries of one descriptor.
const ENTRIES_MAX: usize = 64;
/// The most different requests that the descriptors of one call are to the rules.
const CHECKS_MAX: usize = 64;

/// What becomes of the descriptors of a call, by their places.
#[derive(Debug)]
pub(super) struct ChargePlan<'t> {
    pub(super) steps: Vec<DescriptorStep>,
    pub(super) charges: Vec<CounterCharge<'t>>,
    /// What the rules decide.
    pub(super) checks: Vec<RuleCheck<'t>>,
    /// Whether the domain is one of the files.
    pub(super) is_of_files: bool,
}

/// What becomes of one descriptor, apart from what rules say.
#[derive(Debug)]
pub(super) enum DescriptorStep {
    /// It meets no limit.
    Free,
    /// Another descriptor's limit stands in for its own.
    Replaced,
    Unlimited,
    /// It is counted by the charge at that index.
    Count(usize),
    /// Our own rules alone decide.
    CheckRules,
    /// It cannot be decided, for this reason: the call is denied.
    Reject(String),
}

/// A request that the rules decide.
#[derive(Debug)]
pub(super) struct RuleCheck<'t> {
    /// The descriptor that reports the verdict.
    pub(super) at: usize,
    pub(super) request: DescriptorRequest<'t>,
    pub(super) cost: u64,
}

impl<'t> ChargePlan<'t> {
    /// By the reference's files and, if `has_rules`, by our own rules as well.
    pub(super) fn of_files(
        domains: &'t Domains,
        request: &'t RateLimitRequest,
        has_rules: bool,
    ) -> Self {
        let find_match = |descriptor: &RateLimitDescriptor| {
            let entries = descriptor.entries.iter().map(|entry| (&*entry.key, value_of(entry)));
            // A limit that is brought along is instead of whatever the files say.
            let is_brought = descriptor.limit.is_some();
            if is_brought { None } else { domains.find_rule(&request.domain, entries) }
        };
        let matches: Vec<Option<RuleMatch<'t>>> =
            request.descriptors.iter().map(find_match).collect();
        let names = matches.iter().flatten().flat_map(|matched| &matched.rule.replaces);
        let replaced: HashSet<&str> = names.map(|name| &**name).collect();

        let mut plan = Self::new(request, true);
        for (at, (descriptor, matched)) in request.descriptors.iter().zip(&matches).enumerate() {
            let step = match matched {
                _ if let Some(why) = shape_problem(descriptor) => DescriptorStep::Reject(why),
                None if descriptor.limit.is_some() => plan.count_as_brought(at, request),
                None => DescriptorStep::Free,
                Some(RuleMatch { rule, shared }) => match &rule.limit {
                    None => DescriptorStep::Unlimited,
                    Some(_) if replaced.contains(&*rule.name) => DescriptorStep::Replaced,
                    Some(limit) => plan.count(CounterCharge {
                        descriptor: at,
                        key: key(&request.domain, descriptor, shared),
                        rule: Some(rule),
                        limit: Cow::Borrowed(limit),
                        mode: rule.mode,
                        hits: hits(request, descriptor),
                    }),
                },
            };
            plan.steps.push(step);
        }
        if has_rules && let Err(error) = plan.check_call(request) {
            plan.reject(&error.to_string());
        }
        plan
    }

    /// By our own rules, but for limits that are brought along.
    pub(super) fn of_rules(request: &'t RateLimitRequest) -> Self {
        let mut plan = Self::new(request, false);
        for (at, descriptor) in request.descriptors.iter().enumerate() {
            let step = match hits(request, descriptor) {
                _ if let Some(why) = shape_problem(descriptor) => DescriptorStep::Reject(why),
                _ if descriptor.limit.is_some() => plan.count_as_brought(at, request),
                Hits::Add(cost) => {
                    match DescriptorRequest::from_descriptor(&request.domain, descriptor) {
                        Ok(request) => {
                            plan.checks.push(RuleCheck { at, request, cost });
                            DescriptorStep::CheckRules
                        }
                        Err(error) => DescriptorStep::Reject(error.to_string()),
                    }
                }
                Hits::Refund(_) => DescriptorStep::Reject(
                    "is_negative_hits needs a limit of its own or of --envoy-config: rules give back \
                     by receipts, over gRPC or HTTP"
                        .to_owned(),
                ),
            };
            plan.steps.push(step);
        }
        plan
    }

    /// Of a domain that nobody knows, without rules.
    pub(super) fn of_nothing(request: &'t RateLimitRequest) -> Self {
        let mut plan = Self::new(request, true);
        plan.steps.extend(request.descriptors.iter().map(|_| DescriptorStep::Free));
        plan
    }

    fn new(request: &RateLimitRequest, is_of_files: bool) -> Self {
        let count = request.descriptors.len();
        let (steps, charges) = (Vec::with_capacity(count), Vec::with_capacity(count));
        Self { steps, charges, checks: Vec::new(), is_of_files }
    }

    /// True where something cannot be decided, so that the call is denied.
    pub(super) fn is_rejected(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, DescriptorStep::Reject(_)))
    }

    /// Rejects the first descriptor, and with it the call. What files count is counted all the same.
    fn reject(&mut self, why: &str) {
        self.checks.clear();
        if let Some(first) = self.steps.first_mut()
            && !matches!(first, DescriptorStep::Reject(_))
        {
            *first = DescriptorStep::Reject(why.to_owned());
        }
    }

    /// Has rules decide what all descriptors describe together: one request, or several where they
    /// contradict each other. A limit that is brought along is instead of rules, and hits that are taken
    /// back are no request.
    fn check_call(&mut self, request: &'t RateLimitRequest) -> Result<(), InvalidRequest> {
        let facts = CallFacts::new(request)?;
        for (at, descriptor) in request.descriptors.iter().enumerate() {
            let is_rejected = matches!(self.steps[at], DescriptorStep::Reject(_));
            let Hits::Add(cost) = hits(request, descriptor) else {
                continue;
            };
            if is_rejected || descriptor.limit.is_some() {
                continue;
            }
            for completed in facts.requests_of(at) {
                let completed = completed?;
                if let Some(known) = self.checks.iter_mut().find(|check| check.request == completed)
                {
                    known.cost = known.cost.max(cost);
                } else if self.checks.len() == CHECKS_MAX {
                    return Err(InvalidRequest::TooManyAttributes { count: CHECKS_MAX + 1 });
                } else {
                    self.checks.push(RuleCheck { at, request: completed, cost });
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, charge: CounterCharge<'t>) -> DescriptorStep {
        self.charges.push(charge);
        DescriptorStep::Count(self.charges.len() - 1)
    }

    /// Counts a descriptor by the limit that it brings along.
    fn count_as_brought(&mut self, at: usize, request: &RateLimitRequest) -> DescriptorStep {
        let descriptor = &request.descriptors[at];
        let brought = descriptor.limit.unwrap_or_default();
        let Some(unit) = WindowUnit::from_proto(brought.unit) else {
            let why = format!("limit.unit {} is no unit: send SECOND to YEAR", brought.unit);
            return DescriptorStep::Reject(why);
        };
        match EnvoyLimit::new(brought.requests_per_unit, unit) {
            Ok(limit) => self.count(CounterCharge {
                descriptor: at,
                key: key(&request.domain, descriptor, &[]),
                rule: None,
                limit: Cow::Owned(limit),
                mode: EnforcementMode::Enforce,
                hits: hits(request, descriptor),
            }),
            Err(error) => DescriptorStep::Reject(error.to_string()),
        }
    }
}

/// Why no call can be like that, whatever limits there are; `None` where it is in order.
pub(super) fn call_problem(request: &RateLimitRequest) -> Option<String> {
    if request.domain.is_empty() {
        let why = "the domain is empty: set `domain` in Envoy's rate limit filter";
        return Some(why.to_owned());
    }
    match request.descriptors.len() {
        0 => Some("there is no descriptor: send at least one".to_owned()),
        count if count > DESCRIPTORS_MAX => {
            Some(format!("{count} descriptors are too many: send at most {DESCRIPTORS_MAX}"))
        }
        _ => None,
    }
}

/// Why no descriptor can be like that; `None` where it is in order.
fn shape_problem(descriptor: &RateLimitDescriptor) -> Option<String> {
    let count = descriptor.entries.len();
    if count == 0 {
        return Some("it has no entries: send at least one".to_owned());
    }
    if count > ENTRIES_MAX {
        return Some(format!("{count} entries are too many: send at most {ENTRIES_MAX}"));
    }
    let has_unnamed = descriptor.entries.iter().any(|entry| entry.key.is_empty());
    has_unnamed.then(|| "it has an entry without a key: name all of them".to_owned())
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
        push(value.unwrap_or_else(|| value_of(entry)));
    }
    key
}

/// The value of an entry. That of `remote_address` is an address, and a port behind it makes no other client.
fn value_of(entry: &Entry) -> &str {
    let address = (entry.key == "remote_address").then(|| address_part(&entry.value));
    address.flatten().unwrap_or(&entry.value)
}
