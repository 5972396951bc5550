//! A descriptor as a request to our own rules: its entries are attributes.

use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_rules::{InvalidRequest, Request};

/// What Envoy's actions call something that rules know by another name.
const NAMES: [(&str, &str); 3] =
    [("remote_address", "ip"), (":method", "method"), (":path", "path")];

/// The facts of one descriptor.
pub(super) struct DescriptorRequest<'a> {
    method: Option<&'a str>,
    path: Option<&'a str>,
    attributes: Vec<(&'a str, &'a str)>,
}

impl<'a> DescriptorRequest<'a> {
    pub(super) fn of(
        domain: &'a str,
        descriptor: &'a RateLimitDescriptor,
    ) -> Result<Self, InvalidRequest> {
        let mut descriptor_request =
            Self { method: None, path: None, attributes: vec![("domain", domain)] };
        for entry in &descriptor.entries {
            let known = NAMES.iter().find(|(envoy, _)| *envoy == entry.key);
            let name = known.map_or(entry.key.as_str(), |(_, ours)| ours);
            let own = match name {
                "method" => &mut descriptor_request.method,
                "path" => &mut descriptor_request.path,
                _ => {
                    descriptor_request.attributes.push((name, &entry.value));
                    continue;
                }
            };
            // Which of two counts would be a guess.
            if own.replace(&entry.value).is_some_and(|before| before != entry.value) {
                return Err(InvalidRequest::DuplicateAttribute { name: name.to_owned() });
            }
        }
        Ok(descriptor_request)
    }

    pub(super) fn request(&self, cost: u64) -> Result<Request<'_>, InvalidRequest> {
        let request = Request::new(self.method.unwrap_or("GET"), self.path.unwrap_or("/"))?;
        Ok(request.with_attributes(&self.attributes)?.with_cost(cost))
    }
}
