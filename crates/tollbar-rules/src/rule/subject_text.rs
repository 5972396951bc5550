//! Subjects as people write them, brought to the one spelling under which they are counted. A subject that no request
//! can have is an error with what to write instead.

use super::Rule;
use super::cidr::{Cidr, Family, subject_of};
use super::subject::{EVERYBODY, NONE, OnMissing, Per, SEPARATOR};
use crate::message::{nearest, shorten};
use crate::request::address::address_part;

/// A subject as [`readable`](crate::readable) writes it, or a network of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CanonicalSubject {
    /// Its one spelling.
    pub text: String,
    /// True where it is a network: bans and boosts apply to all its addresses, and it has no counter of its own.
    pub is_network: bool,
}

impl CanonicalSubject {
    /// Returns a subject that is counted as it stands.
    #[must_use]
    pub fn verbatim(text: String) -> Self {
        Self { text, is_network: false }
    }
}

/// What stands behind `ip:`.
pub(crate) enum AddressText {
    /// An address, as counters name it: IPv6 by its /64.
    Address(String),
    Network(Cidr),
}

/// The kinds of a client, as subjects of rules that count per client begin.
const CLIENT_KINDS: [&str; 3] = ["user", "api", "ip"];

/// Returns a subject of `rule`, or of every rule, in the spelling under which it is counted. The error says what to
/// write instead.
///
/// ```
/// use tollbar_rules::canonical_subject;
/// assert_eq!(canonical_subject(None, "ip:::ffff:203.0.113.9").unwrap().text, "ip:203.0.113.9");
/// assert_eq!(canonical_subject(None, "ip:2001:DB8::7").unwrap().text, "ip:2001:db8::/64");
/// assert!(canonical_subject(None, "ip:203.0.113.0/24").unwrap().is_network);
/// assert!(canonical_subject(None, "203.0.113.9").unwrap_err().contains("`ip:203.0.113.9`"));
/// ```
pub fn canonical_subject(rule: Option<&Rule>, text: &str) -> Result<CanonicalSubject, String> {
    let Some(rule) = rule else {
        return canonical_attribute(text);
    };
    match rule.per.as_slice() {
        [] if text == EVERYBODY => Ok(CanonicalSubject::verbatim(text.to_owned())),
        [] => Err(format!("the rule counts everybody together: write `{EVERYBODY}`")),
        [per] => canonical_part(per, rule.missing, text),
        pers => {
            let parts: Vec<_> = text.split(SEPARATOR).collect();
            if parts.len() < pers.len() {
                let names: Vec<_> = pers.iter().map(Per::name).collect();
                return Err(format!(
                    "the rule counts by several values: write one of each, as `{}`",
                    names.join(SEPARATOR)
                ));
            }
            if parts.len() > pers.len() {
                // A value has the separator in it.
                return Ok(CanonicalSubject::verbatim(text.to_owned()));
            }
            let parts = pers.iter().zip(parts).map(|(per, part)| {
                let part = canonical_part(per, rule.missing, part)?;
                if part.is_network {
                    let advice = "a network cannot be one of several values: write an address";
                    return Err(advice.to_owned());
                }
                Ok(part.text)
            });
            let parts: Result<Vec<_>, String> = parts.collect();
            Ok(CanonicalSubject::verbatim(parts?.join(SEPARATOR)))
        }
    }
}

/// Returns a subject under every rule: an attribute of requests and its value.
fn canonical_attribute(text: &str) -> Result<CanonicalSubject, String> {
    refuse_bare_address(text)?;
    let quoted = shorten(text);
    let named = text.split_once(':').filter(|(name, value)| !name.is_empty() && !value.is_empty());
    match named {
        Some(("ip", address)) => canonical_address(address),
        Some(("api_key", value)) => Ok(CanonicalSubject::verbatim(format!("api:{value}"))),
        Some(_) => Ok(CanonicalSubject::verbatim(text.to_owned())),
        None => Err(format!(
            "`{quoted}` does not say what it is: send `user:{quoted}`, `api:{quoted}`, `ip:` and an address, or an \
             attribute and its value; or the `ruleId` of the rule that counts it as it stands"
        )),
    }
}

/// Returns a value that a rule counts by.
fn canonical_part(per: &Per, missing: OnMissing, text: &str) -> Result<CanonicalSubject, String> {
    let plain = || CanonicalSubject::verbatim(text.to_owned());
    let address = text.strip_prefix("ip:");
    // Those who lack an attribute are counted by their address, or together.
    let is_missing = match missing {
        OnMissing::Ip => address.is_some() || text == NONE,
        OnMissing::Shared => text == NONE,
        OnMissing::Skip | OnMissing::Deny => false,
    };
    match per {
        Per::Attribute(name) if **name == *"ip" => canonical_address(address.unwrap_or(text)),
        Per::Client if address.is_some() => canonical_address(address.unwrap_or_default()),
        Per::Client => {
            refuse_bare_address(text)?;
            let named = text.split_once(':').filter(|(_, value)| !value.is_empty());
            match named {
                Some((kind, _)) if CLIENT_KINDS.contains(&kind) => Ok(plain()),
                _ if is_missing => Ok(plain()),
                _ => Err(client_advice(text, named)),
            }
        }
        Per::Attribute(_) if is_missing => address.map_or_else(|| Ok(plain()), canonical_address),
        Per::Attribute(name) => {
            match text.strip_prefix(&**name).and_then(|rest| rest.strip_prefix(':')) {
                Some(value) => Err(format!(
                    "the rule counts by `{name}`, and nobody is counted as `{}`: send `{}`",
                    shorten(text),
                    shorten(value)
                )),
                None => Ok(plain()),
            }
        }
    }
}

fn client_advice(text: &str, named: Option<(&str, &str)>) -> String {
    let quoted = shorten(text);
    let meant = named.and_then(|(kind, value)| {
        let kind = nearest(kind, CLIENT_KINDS)?;
        Some(format!("did you mean `{kind}:{}`?", shorten(value)))
    });
    let meant = meant.unwrap_or_else(|| {
        format!("send `user:{quoted}`, `api:{quoted}`, or `ip:` and an address")
    });
    format!("the rule counts per client, and nobody is counted as `{quoted}`: {meant}")
}

fn refuse_bare_address(text: &str) -> Result<(), String> {
    match read_address(text) {
        Ok(address) => {
            let meant = address.subject().text;
            Err(format!("`{}` does not say that it is an address: send `{meant}`", shorten(text)))
        }
        Err(_) => Ok(()),
    }
}

fn canonical_address(text: &str) -> Result<CanonicalSubject, String> {
    read_address(text).map(|address| address.subject())
}

/// Reads what stands behind `ip:`.
pub(crate) fn read_address(text: &str) -> Result<AddressText, String> {
    if let Some(address) = address_part(text) {
        return Ok(AddressText::Address(subject_of(address).into_owned()));
    }
    if !text.contains('/') {
        let quoted = shorten(text);
        return Err(format!("`{quoted}` is no address: send one such as `ip:203.0.113.7`"));
    }
    let network: Cidr = text.parse().map_err(|error: super::cidr::CidrError| error.to_string())?;
    match network.shape() {
        (Family::V4, 32) => Ok(AddressText::Address(network.to_string().replace("/32", ""))),
        (Family::V6, 64) => Ok(AddressText::Address(network.to_string())),
        (Family::V6, 65..) => {
            let address = text.split('/').next().unwrap_or_default();
            let network = subject_of(address);
            Err(format!("IPv6 addresses are counted by their /64: send `ip:{network}`"))
        }
        _ => Ok(AddressText::Network(network)),
    }
}

impl AddressText {
    fn subject(&self) -> CanonicalSubject {
        match self {
            Self::Address(address) => CanonicalSubject::verbatim(format!("ip:{address}")),
            Self::Network(network) => {
                CanonicalSubject { text: format!("ip:{network}"), is_network: true }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleFile;

    fn canonical(per: Option<&str>, text: &str) -> Result<String, String> {
        let rules = per.map(|per| {
            let text = format!("rules: [{{ name: a, per: [{per}], limit: 1/s }}]");
            RuleFile::parse("rules.yaml", &text).unwrap().rules
        });
        let rule = rules.as_ref().map(|rules| &*rules.rules()[0]);
        canonical_subject(rule, text).map(|subject| subject.text)
    }

    #[test]
    fn every_spelling_is_the_one_that_is_counted_or_is_told_what_to_write() {
        let v6 = "ip:2001:db8::/64";
        let everywhere = [None, Some("client"), Some("ip")];
        for per in everywhere {
            for (text, expected) in [
                ("ip:203.0.113.9", "ip:203.0.113.9"),
                ("ip:203.0.113.9:443", "ip:203.0.113.9"),
                ("ip:203.0.113.9/32", "ip:203.0.113.9"),
                ("ip:::ffff:203.0.113.9", "ip:203.0.113.9"),
                ("ip:[::FFFF:cb00:7109]:1", "ip:203.0.113.9"),
                ("ip:2001:DB8::7", v6),
                ("ip:2001:db8::/64", v6),
                ("ip:203.0.113.0/24", "ip:203.0.113.0/24"),
                ("ip:::ffff:203.0.113.0/120", "ip:203.0.113.0/24"),
                ("ip:2001:db8::/32", "ip:2001:db8::/32"),
            ] {
                assert_eq!(canonical(per, text).as_deref(), Ok(expected), "{per:?} {text}");
            }
            for (text, advice) in [
                ("ip:nowhere", "is no address"),
                ("ip:203.0.113.9/24", "write `203.0.113.0/24`"),
                ("ip:2001:db8::7/128", "send `ip:2001:db8::/64`"),
                ("ip:", "is no address"),
            ] {
                let told = canonical(per, text).unwrap_err();
                assert!(told.contains(advice) || text == "ip:", "{per:?} {text}: {told}");
            }
        }
        for (per, text, advice) in [
            (None, "203.0.113.9", "send `ip:203.0.113.9`"),
            (None, "203.0.113.9:443", "send `ip:203.0.113.9`"),
            (None, "2001:db8::7", "send `ip:2001:db8::/64`"),
            (None, "203.0.113.0/24", "send `ip:203.0.113.0/24`"),
            (None, "u8", "send `user:u8`"),
            (None, "user:", "does not say what it is"),
            (Some("client"), "::ffff:203.0.113.9", "send `ip:203.0.113.9`"),
            (Some("client"), "u8", "send `user:u8`"),
            (Some("client"), "usr:8", "did you mean `user:8`?"),
            (Some("user"), "user:8", "send `8`"),
            (Some("user, ip"), "8", "`user | ip`"),
            (Some("user, ip"), "8 | ip:10.0.0.0/8", "write an address"),
            (Some(""), "user:8", "`(everybody)`"),
        ] {
            let told = canonical(per, text).unwrap_err();
            assert!(told.contains(advice), "{per:?} {text}: {told}");
        }
        for (per, text, expected) in [
            (None, "api_key:abc", "api:abc"),
            (None, "tenant:acme", "tenant:acme"),
            (Some("client"), "user:8", "user:8"),
            (Some("ip"), "203.0.113.9", "ip:203.0.113.9"),
            (Some("user"), "8", "8"),
            (Some("user"), "ip:::ffff:10.0.0.1", "ip:10.0.0.1"),
            (Some("user, ip"), "8 | ::ffff:10.0.0.1", "8 | ip:10.0.0.1"),
            (Some("user"), "(none)", "(none)"),
            (Some(""), "(everybody)", "(everybody)"),
        ] {
            assert_eq!(canonical(per, text).as_deref(), Ok(expected), "{per:?} {text}");
        }
    }
}
