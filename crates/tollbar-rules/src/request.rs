//! A request as the rules see it, whatever wire it came over.
//!
//! Borrows everything, is checked and normalised once, and trusted from then on. Where the
//! attributes come from, and whether they can be believed, is the listener's business.

pub(crate) mod address;
pub(crate) mod path;

use std::borrow::Cow;
use std::time::Duration;

use thiserror::Error;
use tollbar::Policy;

use address::address_part;
use path::{NormalPath, PATH_BYTES_MAX, PATH_SEGMENTS_MAX, PathOptions};

/// The most attributes of a request.
pub(crate) const ATTRIBUTES_MAX: usize = 64;

/// The longest name of an attribute.
pub(crate) const ATTRIBUTE_NAME_BYTES_MAX: usize = 128;

/// The longest value of an attribute.
pub(crate) const ATTRIBUTE_VALUE_BYTES_MAX: usize = 8_192;

/// The longest method.
pub(crate) const METHOD_BYTES_MAX: usize = 64;

/// A request: what it asks for, who asks, what it costs.
///
/// ```
/// use tollbar_rules::Request;
/// # fn main() -> Result<(), tollbar_rules::InvalidRequest> {
/// let attributes = [("user", "42"), ("ip", "203.0.113.7")];
/// let request = Request::new("GET", "/v1//users/?page=2")?.with_attributes(&attributes)?;
/// assert_eq!(request.path(), "/v1/users");
/// assert_eq!(request.attribute("user"), Some("42"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[expect(clippy::struct_field_names, reason = "a request id is called that everywhere")]
pub struct Request<'a> {
    method: Cow<'a, str>,
    path: NormalPath<'a>,
    /// By which the path was folded.
    path_options: PathOptions,
    attributes: &'a [(&'a str, &'a str)],
    /// The attribute `ip` without what is not the address, where it was sent with more than that.
    address: Option<&'a str>,
    cost: u64,
    request_id: Option<&'a str>,
    claim: CriticalityClaim,
    takes_no_permits: bool,
    max_wait: Option<Duration>,
}

/// How bad it is to turn a request away: when something has to give, the least goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Criticality {
    /// Nobody waits for it: prefetching, batch work.
    Low,
    /// Any request.
    #[default]
    Normal,
    /// Somebody waits for it.
    High,
    /// The last to be shed.
    Critical,
}

/// The criticality that a request claims, and how far the claim is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum CriticalityClaim {
    /// Nothing: the rules say it.
    #[default]
    Nothing,
    /// The claim of an untrusted sender: it can lower what the rules say, and not raise it.
    AtMost(Criticality),
    /// The claim of a trusted sender, which replaces what the rules say.
    Trusted(Criticality),
}

/// Why something is not a request that rules can look at.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// The method.
    #[error("a method of {bytes} bytes is too long: send at most {METHOD_BYTES_MAX}")]
    MethodTooLong {
        /// How long it was.
        bytes: usize,
    },
    /// The path.
    #[error("a path of {bytes} bytes is too long: send at most {PATH_BYTES_MAX}")]
    PathTooLong {
        /// How long it was.
        bytes: usize,
    },
    /// The path's depth.
    #[error("a path of {segments} segments is too deep: send at most {PATH_SEGMENTS_MAX}")]
    TooManySegments {
        /// How many it had.
        segments: usize,
    },
    /// The number of attributes.
    #[error("{count} attributes are too many: send at most {ATTRIBUTES_MAX}")]
    TooManyAttributes {
        /// How many there were.
        count: usize,
    },
    /// A name or a value.
    #[error(
        "the attribute `{name}` is too long: send names of at most {ATTRIBUTE_NAME_BYTES_MAX} \
         bytes and values of at most {ATTRIBUTE_VALUE_BYTES_MAX}"
    )]
    AttributeTooLong {
        /// Its name, or the beginning of it.
        name: String,
    },
    /// Two values for one name: which of them counts would be a guess.
    #[error("the attribute `{name}` has two values: send one, or join them")]
    DuplicateAttribute {
        /// Its name.
        name: String,
    },
    /// An `ip` that is no address: it would be counted by itself, and blocks and bans would miss it.
    #[error(
        "`{value}` is not an address: send an `ip` such as `192.0.2.1` or `2001:db8::1`, with or \
         without a port, or leave it out"
    )]
    NoAddress {
        /// What was sent, or the beginning of it.
        value: String,
    },
    /// A name that already means something.
    #[error("`{name}` is not an attribute to be sent: it is taken from the request itself")]
    ReservedAttribute {
        /// Its name.
        name: String,
    },
}

/// What [`Request`] knows by itself.
const RESERVED: [&str; 3] = ["method", "path", "client"];

impl<'a> Request<'a> {
    /// A request of cost 1. The path is brought into its normal form, the method into capitals.
    #[inline]
    pub fn new(method: &'a str, path: &'a str) -> Result<Self, InvalidRequest> {
        if method.len() > METHOD_BYTES_MAX {
            return Err(InvalidRequest::MethodTooLong { bytes: method.len() });
        }
        let method = if method.bytes().any(|byte| byte.is_ascii_lowercase()) {
            Cow::Owned(method.to_ascii_uppercase())
        } else {
            Cow::Borrowed(method)
        };
        Ok(Self {
            method,
            path: path::normalise(path)?,
            path_options: PathOptions::default(),
            attributes: &[],
            address: None,
            cost: 1,
            request_id: None,
            claim: CriticalityClaim::Nothing,
            takes_no_permits: false,
            max_wait: None,
        })
    }

    /// The same request with attributes, names and values. One with an empty value is as good as
    /// absent; the same pair twice is as good as once. An `ip` is an address, and a port behind it does not
    /// count.
    #[inline]
    pub fn with_attributes(
        mut self,
        attributes: &'a [(&'a str, &'a str)],
    ) -> Result<Self, InvalidRequest> {
        self.set_attributes(attributes)?;
        Ok(self)
    }

    /// The same in place, for who asks a million times a second: a request is not cheap to move.
    #[inline]
    pub fn set_attributes(
        &mut self,
        attributes: &'a [(&'a str, &'a str)],
    ) -> Result<(), InvalidRequest> {
        if attributes.len() > ATTRIBUTES_MAX {
            return Err(InvalidRequest::TooManyAttributes { count: attributes.len() });
        }
        for (at, (name, value)) in attributes.iter().enumerate() {
            check_length(name, value)?;
            if RESERVED.contains(name) {
                return Err(InvalidRequest::ReservedAttribute { name: (*name).to_owned() });
            }
            let is_other = |(other, its_value): &(&str, &str)| other == name && its_value != value;
            if attributes[..at].iter().any(is_other) {
                return Err(InvalidRequest::DuplicateAttribute { name: (*name).to_owned() });
            }
        }
        self.address = read_address(attributes)?;
        self.attributes = attributes;
        Ok(())
    }

    /// The same with attributes that nobody has sent: `client` may be among them.
    pub(crate) fn with_known_attributes(
        self,
        attributes: &'a [(&'a str, &'a str)],
    ) -> Result<Self, InvalidRequest> {
        attributes.iter().try_for_each(|(name, value)| check_length(name, value))?;
        Ok(Self { attributes, address: read_address(attributes)?, ..self })
    }

    /// The same request at another cost. Each rule multiplies it by its own; 0 peeks.
    #[must_use]
    pub fn with_cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// The same in place.
    pub fn set_cost(&mut self, cost: u64) {
        self.cost = cost;
    }

    /// The same request under the name by which its sender knows it.
    #[must_use]
    pub fn with_request_id(self, request_id: &'a str) -> Self {
        Self { request_id: Some(request_id), ..self }
    }

    /// Sets the id in place.
    pub fn set_request_id(&mut self, request_id: &'a str) {
        self.request_id = Some(request_id);
    }

    /// Sets the criticality, whatever the rules say. Call it for trusted senders only; for others use
    /// [`lower_criticality`](Self::lower_criticality).
    #[must_use]
    pub fn with_criticality(self, criticality: Criticality) -> Self {
        Self { claim: CriticalityClaim::Trusted(criticality), ..self }
    }

    /// Sets how critical it is in place, whatever the rules say.
    pub fn set_criticality(&mut self, criticality: Criticality) {
        self.claim = CriticalityClaim::Trusted(criticality);
    }

    /// Makes it less critical than the rules do, on the word of its sender. More critical it does not become.
    pub fn lower_criticality(&mut self, criticality: Criticality) {
        self.claim = match self.claim {
            CriticalityClaim::Nothing => CriticalityClaim::AtMost(criticality),
            CriticalityClaim::AtMost(other) => CriticalityClaim::AtMost(other.min(criticality)),
            CriticalityClaim::Trusted(other) => CriticalityClaim::Trusted(other.min(criticality)),
        };
    }

    /// Returns the request as one that takes no permits: limits on what is in flight do not apply to it, and
    /// all others do. For protocols whose callers cannot give a permit back.
    #[must_use]
    pub fn without_permits(self) -> Self {
        Self { takes_no_permits: true, ..self }
    }

    /// Sets the longest that the request may wait in queues. If its turn comes later, it is denied with the exact
    /// retry-after and charges nothing. Without this, the rules alone say how long it may wait.
    pub fn set_max_wait(&mut self, max_wait: Duration) {
        self.max_wait = Some(max_wait);
    }

    /// Returns the policy as it is for this request: a queue in which it waits for at most its longest wait.
    pub(crate) fn cap_wait<'p>(&self, policy: &'p Policy) -> Cow<'p, Policy> {
        match self.max_wait {
            Some(max_wait)
                if policy.queue_length().is_some()
                    && policy.max_wait().is_none_or(|own| own > max_wait) =>
            {
                policy.clone().with_max_wait(max_wait).map_or(Cow::Borrowed(policy), Cow::Owned)
            }
            _ => Cow::Borrowed(policy),
        }
    }

    /// True if a denial by this policy only says that the request would have to wait for its turn.
    pub(crate) fn only_asks_whether_to_wait(&self, policy: &Policy) -> bool {
        self.max_wait == Some(Duration::ZERO) && policy.queue_length().is_some()
    }

    /// Returns the request with its path folded.
    #[cold]
    pub(crate) fn folded(&self, path_options: PathOptions) -> Self {
        Self { path: self.path.folded(path_options), path_options, ..self.clone() }
    }

    /// By which its path was folded.
    #[inline]
    pub(crate) fn path_options(&self) -> PathOptions {
        self.path_options
    }

    /// True with a `\` or a NUL in its path.
    #[inline]
    pub(crate) fn has_ambiguous_path(&self) -> bool {
        self.path.is_ambiguous
    }

    /// True for a request that takes no permits.
    pub(crate) fn takes_no_permits(&self) -> bool {
        self.takes_no_permits
    }

    /// The method, in capitals.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The path in its normal form: decoded, without dots, doubled slashes and a query.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path.decoded
    }

    /// The other reading of a path with an encoded slash: that it is no slash.
    #[must_use]
    pub fn path_with_slashes_kept(&self) -> Option<&str> {
        self.path.with_slashes_kept.as_deref()
    }

    /// The attributes that were sent.
    #[must_use]
    pub fn attributes(&self) -> &'a [(&'a str, &'a str)] {
        self.attributes
    }

    /// The value of an attribute, `method` and `path` included; `None` where it is absent or empty.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        match name {
            "method" => Some(self.method()),
            "path" => Some(self.path()),
            _ => self.sent(name),
        }
        .filter(|value| !value.is_empty())
    }

    /// The value of an attribute that was sent, which may be empty.
    #[inline]
    pub(crate) fn sent(&self, name: &str) -> Option<&'a str> {
        self.facts().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// The attributes that were sent, as rules look at them.
    #[inline]
    pub(crate) fn facts(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let address = self.address;
        self.attributes.iter().map(move |(name, value)| match address {
            Some(address) if *name == "ip" => (*name, address),
            _ => (*name, *value),
        })
    }

    /// What it costs before rules multiply it.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The name by which its sender knows it.
    #[must_use]
    pub fn request_id(&self) -> Option<&'a str> {
        self.request_id
    }

    /// How critical it is where no rule says anything of it.
    #[must_use]
    pub fn criticality(&self) -> Criticality {
        self.criticality_under(None)
    }

    /// How critical it is where a rule has `declared` that.
    #[inline]
    pub(crate) fn criticality_under(&self, declared: Option<Criticality>) -> Criticality {
        let declared = declared.unwrap_or_default();
        match self.claim {
            CriticalityClaim::Nothing => declared,
            CriticalityClaim::AtMost(most) => declared.min(most),
            CriticalityClaim::Trusted(criticality) => criticality,
        }
    }

    /// How critical its sender calls it, whether or not that counts; `None` if it says nothing.
    #[must_use]
    pub fn claimed_criticality(&self) -> Option<Criticality> {
        match self.claim {
            CriticalityClaim::Nothing => None,
            CriticalityClaim::AtMost(claimed) | CriticalityClaim::Trusted(claimed) => Some(claimed),
        }
    }

    /// Returns the claimed criticality.
    pub(crate) fn criticality_claim(&self) -> CriticalityClaim {
        self.claim
    }
}

/// The address of the client, where `ip` was sent with more than that.
#[inline]
fn read_address<'a>(attributes: &[(&'a str, &'a str)]) -> Result<Option<&'a str>, InvalidRequest> {
    let ip = attributes.iter().find(|(name, value)| *name == "ip" && !value.is_empty());
    let Some((_, value)) = ip else {
        return Ok(None);
    };
    match address_part(value) {
        Some(address) => Ok((address.len() < value.len()).then_some(address)),
        None => Err(InvalidRequest::NoAddress { value: crate::message::shorten(value) }),
    }
}

fn check_length(name: &str, value: &str) -> Result<(), InvalidRequest> {
    if name.len() > ATTRIBUTE_NAME_BYTES_MAX || value.len() > ATTRIBUTE_VALUE_BYTES_MAX {
        return Err(InvalidRequest::AttributeTooLong { name: crate::message::shorten(name) });
    }
    Ok(())
}

impl Criticality {
    /// Every one with its name, the least first.
    pub(crate) const NAMED: [(&'static str, Self); 4] = [
        ("low", Self::Low),
        ("normal", Self::Normal),
        ("high", Self::High),
        ("critical", Self::Critical),
    ];

    /// Its name in files and on wires.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED[self as usize].0
    }

    /// The one of that name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|(_, criticality)| *criticality)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_in_capitals_however_they_come() {
        assert_eq!(Request::new("get", "/").unwrap().method(), "GET");
        assert_eq!(Request::new("GeT", "/").unwrap().attribute("method"), Some("GET"));
        let long = "x".repeat(65);
        assert_eq!(
            Request::new(&long, "/").unwrap_err(),
            InvalidRequest::MethodTooLong { bytes: 65 }
        );
    }

    #[test]
    fn an_empty_attribute_is_absent() {
        let attributes = [("user", ""), ("tier", "free")];
        let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
        assert_eq!(request.attribute("user"), None);
        assert_eq!(request.attribute("tier"), Some("free"));
        assert_eq!(request.attribute("nothing"), None);
    }

    #[test]
    fn attributes_that_are_a_guess_or_a_flood_are_refused() {
        let refused = |attributes: &[(&str, &str)]| {
            let request = Request::new("GET", "/").unwrap();
            request.with_attributes(attributes).map(|_| ()).unwrap_err().to_string()
        };
        let twice = [("user", "1"), ("ip", "::1"), ("user", "2")];
        assert_eq!(refused(&twice), "the attribute `user` has two values: send one, or join them");
        assert_eq!(
            refused(&[("path", "/")]),
            "`path` is not an attribute to be sent: it is taken from the request itself"
        );
        let long = "v".repeat(65_536);
        assert!(refused(&[("token", &long)]).starts_with("the attribute `token` is too long"));
        assert!(refused(&[(&long, "v")]).len() < 200);
        let many: Vec<(&str, &str)> = vec![("a", "b"); 65];
        assert!(refused(&many).starts_with("65 attributes are too many"));
        // The same pair twice says nothing new.
        assert!(Request::new("GET", "/").unwrap().with_attributes(&many[..64]).is_ok());
    }

    #[test]
    fn an_address_is_read_without_its_port_and_anything_else_is_refused() {
        for (ip, address) in [
            ("203.0.113.7", "203.0.113.7"),
            ("203.0.113.7:51234", "203.0.113.7"),
            ("[2001:db8::7]:51234", "2001:db8::7"),
            ("[2001:db8::7]", "2001:db8::7"),
            ("fe80::7%eth0", "fe80::7"),
        ] {
            let attributes = [("user", "7"), ("ip", ip)];
            let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
            assert_eq!(request.attribute("ip"), Some(address));
            assert_eq!(request.attribute("user"), Some("7"));
        }
        let attributes = [("ip", "203.0.113.7, 10.0.0.1")];
        let refused = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "`203.0.113.7, 10.0.0.1` is not an address: send an `ip` such as `192.0.2.1` or \
             `2001:db8::1`, with or without a port, or leave it out"
        );
        assert!(Request::new("GET", "/").unwrap().with_attributes(&[("ip", "")]).is_ok());
    }

    #[test]
    fn a_sender_can_make_a_request_less_critical_and_not_more() {
        use Criticality::{Critical, High, Low, Normal};
        let request = || Request::new("GET", "/").unwrap();
        assert_eq!(request().criticality_under(Some(High)), High);
        for (asked, declared, expected) in [
            (Low, None, Low),
            (Critical, None, Normal),
            (Critical, Some(High), High),
            (Normal, Some(Critical), Normal),
            (High, Some(Low), Low),
        ] {
            let mut lowered = request();
            lowered.lower_criticality(asked);
            assert_eq!(lowered.criticality_under(declared), expected, "{asked:?} {declared:?}");
            let trusted = request().with_criticality(asked);
            assert_eq!(trusted.criticality_under(declared), asked);
        }
        let mut both = request().with_criticality(High);
        both.lower_criticality(Critical);
        assert_eq!(both.criticality_under(Some(Low)), High);
        both.lower_criticality(Normal);
        assert_eq!(both.criticality_under(Some(Critical)), Normal);
    }

    #[test]
    fn every_criticality_has_a_name() {
        for (name, criticality) in Criticality::NAMED {
            assert_eq!(criticality.name(), name);
            assert_eq!(Criticality::of_name(name), Some(criticality));
        }
        assert!(Criticality::Low < Criticality::Critical);
    }
}
