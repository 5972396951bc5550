//! A descriptor as a request to our own rules: its entries are attributes.
//!
//! In a domain of the files a call has a descriptor for each limit, and all of them describe one request. So
//! there each descriptor is completed by what the others say.

use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollbar_rules::{InvalidRequest, Request};

/// What Envoy's actions call something that rules know by another name.
const NAMES: [(&str, &str); 3] =
    [("remote_address", "ip"), (":method", "method"), (":path", "path")];

/// The most names that the descriptors of one call have together: as many as a request may have attributes,
/// its method and its path.
const NAMES_MAX: usize = 66;

/// A name of a fact, and its value.
type Fact<'a> = (&'a str, &'a str);

/// The facts of one descriptor.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DescriptorRequest<'a> {
    method: Option<&'a str>,
    path: Option<&'a str>,
    attributes: Vec<Fact<'a>>,
}

impl<'a> DescriptorRequest<'a> {
    /// The request that a descriptor is by itself.
    pub(super) fn from_descriptor(
        domain: &'a str,
        descriptor: &'a RateLimitDescriptor,
    ) -> Result<Self, InvalidRequest> {
        Self::from_facts([("domain", domain)].into_iter().chain(facts_of(descriptor)))
    }

    fn from_facts(facts: impl IntoIterator<Item = Fact<'a>>) -> Result<Self, InvalidRequest> {
        let mut request = Self { method: None, path: None, attributes: Vec::new() };
        for (name, value) in facts {
            let own = match name {
                "method" => &mut request.method,
                "path" => &mut request.path,
                _ => {
                    request.attributes.push((name, value));
                    continue;
                }
            };
            // Which of two counts would be a guess.
            if own.replace(value).is_some_and(|before| before != value) {
                return Err(InvalidRequest::DuplicateAttribute { name: name.to_owned() });
            }
        }
        Ok(request)
    }

    /// The request to the rules. It takes no permits: Envoy gives nothing back.
    pub(super) fn request(&self, cost: u64) -> Result<Request<'_>, InvalidRequest> {
        let request = Request::new(self.method.unwrap_or("GET"), self.path.unwrap_or("/"))?;
        Ok(request.with_attributes(&self.attributes)?.with_cost(cost).without_permits())
    }
}

/// The entries of a descriptor, by the names that rules have for them.
pub(super) fn facts_of(descriptor: &RateLimitDescriptor) -> impl Iterator<Item = Fact<'_>> {
    descriptor.entries.iter().map(|entry| {
        let known = NAMES.iter().find(|(envoy, _)| *envoy == entry.key);
        (known.map_or(entry.key.as_str(), |(_, ours)| ours), entry.value.as_str())
    })
}

/// What all descriptors of a call say together: each name with the first value that it has.
#[derive(Debug)]
pub(super) struct CallFacts<'a> {
    request: &'a RateLimitRequest,
    facts: Vec<Fact<'a>>,
}

impl<'a> CallFacts<'a> {
    pub(super) fn new(request: &'a RateLimitRequest) -> Result<Self, InvalidRequest> {
        let mut facts: Vec<Fact<'a>> = vec![("domain", &request.domain)];
        // What files call `client` is nothing that a rule could ask for: rules have a client of their own.
        let all =
            request.descriptors.iter().flat_map(facts_of).filter(|(name, _)| *name != "client");
        for (name, value) in all {
            if facts.iter().all(|(known, _)| *known != name) {
                if facts.len() == NAMES_MAX {
                    return Err(InvalidRequest::TooManyAttributes { count: NAMES_MAX + 1 });
                }
                facts.push((name, value));
            }
        }
        Ok(Self { request, facts })
    }

    /// The requests that a descriptor stands for, with what only the others say. They are several where it has
    /// several values of one name: each value is in one of them.
    pub(super) fn requests_of(
        &self,
        at: usize,
    ) -> impl Iterator<Item = Result<DescriptorRequest<'a>, InvalidRequest>> {
        let descriptor = &self.request.descriptors[at];
        let values_of = move |name: &'a str| {
            let domain = (name == "domain").then_some(&*self.request.domain);
            let own = facts_of(descriptor).filter(move |(own, _)| *own == name);
            domain.into_iter().chain(own.map(|(_, value)| value))
        };
        let counts = self.facts.iter().map(move |(name, _)| values_of(name).count());
        let request_count = counts.max().unwrap_or(1);
        (0..request_count).map(move |place| {
            let facts = self.facts.iter().map(|&(name, of_others)| {
                // A name with fewer values than another repeats its last one.
                let own = values_of(name).take(place + 1).last();
                (name, own.unwrap_or(of_others))
            });
            DescriptorRequest::from_facts(facts)
        })
    }
}
