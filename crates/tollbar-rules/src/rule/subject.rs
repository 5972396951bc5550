//! Whom a rule counts: the attributes of `per`, as a key that no other subject has.
//!
//! Every part of a key is a tag, its length and its bytes, so that neither `("a", "bc")` and
//! `("ab", "c")`, nor a user who calls himself `ip:10.0.0.1` and the one at that address, ever
//! share a counter.

use ipnet::IpNet;
use smallvec::SmallVec;

use crate::Request;
use crate::rule::cidr;

/// What an attribute of `per` is replaced by where a request has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnMissing {
    /// The client's address, so that dropping a header escapes nothing.
    #[default]
    Ip,
    /// One counter for all who lack it.
    Shared,
    /// The rule does not apply.
    Skip,
    /// The request is denied.
    Deny,
}

/// One attribute of `per`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Per {
    /// The identity chain: the API key, else the user, else the address.
    Client,
    /// An attribute of the request.
    Attribute(Box<str>),
}

/// What became of the key of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubjectKey {
    /// Its key has been written.
    Written,
    /// The rule does not apply, for want of the attribute in this place of `per`.
    Skip(usize),
    /// The request is denied, for want of the attribute in this place of `per`.
    Deny(usize),
}

/// Keys are written here; those of usual length without an allocation.
pub(crate) type KeyBuffer = SmallVec<[u8; 512]>;

/// The first byte of a part, by which a reader of keys knows what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Tag {
    Attribute = b'=',
    ApiKey = b'k',
    User = b'u',
    Ip = b'a',
    /// A network whose new keys share one counter.
    Network = b'n',
    Shared = b'-',
}

/// The attribute that stands for the identity chain.
const CLIENT: &str = "client";

/// The attributes that say who the client of a request is.
pub(crate) const CLIENT_ATTRIBUTES: [&str; 4] = ["api_key", "user", "ip", CLIENT];

/// Joins the values of a subject that has several.
pub(crate) const SEPARATOR: &str = " | ";

/// The subject of a rule that counts everybody together.
pub(crate) const EVERYBODY: &str = "(everybody)";

/// The value of those who lack an attribute and are counted together.
pub(crate) const NONE: &str = "(none)";

/// The links of the identity chain, the strongest first.
const CHAIN: [(&str, Tag); 3] = [("api_key", Tag::ApiKey), ("user", Tag::User), ("ip", Tag::Ip)];

impl Per {
    /// Of that name: `client`, or an attribute.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        match name {
            "client" => Self::Client,
            name => Self::Attribute(name.into()),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Client => "client",
            Self::Attribute(name) => name,
        }
    }
}

impl OnMissing {
    /// Every one with its name.
    pub(crate) const NAMED: [(&'static str, Self); 4] =
        [("ip", Self::Ip), ("shared", Self::Shared), ("skip", Self::Skip), ("deny", Self::Deny)];

    /// Its name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED[self as usize].0
    }
}

/// Writes the key of the request's subject at the end of `keys`.
#[inline]
pub(crate) fn write_key(
    per: &[Per],
    missing: OnMissing,
    request: &Request<'_>,
    keys: &mut KeyBuffer,
) -> SubjectKey {
    for (at, part) in per.iter().enumerate() {
        let written = match part {
            Per::Client => write_client(request, keys),
            Per::Attribute(name) => write_attribute(name, request, keys),
        };
        if written {
            continue;
        }
        match missing {
            OnMissing::Skip => return SubjectKey::Skip(at),
            OnMissing::Deny => return SubjectKey::Deny(at),
            OnMissing::Ip if write_ip(request, keys) => {}
            OnMissing::Ip | OnMissing::Shared => push(Tag::Shared, "", keys),
        }
    }
    SubjectKey::Written
}

fn write_client(request: &Request<'_>, keys: &mut KeyBuffer) -> bool {
    let sent = |name| request.sent(name).filter(|value| !value.is_empty());
    let link = CHAIN.iter().find_map(|(name, tag)| Some((*tag, sent(name)?)));
    match link {
        Some((Tag::Ip, address)) => push(Tag::Ip, &cidr::subject_of(address), keys),
        Some((tag, value)) => push(tag, value, keys),
        // No request has it by itself: see `client_attribute`.
        None => match request.attribute(CLIENT) {
            Some(value) => push(Tag::Attribute, value, keys),
            None => return false,
        },
    }
    true
}

/// The attribute of a request whose client is called so: `user:42` is the user 42. Any other text is
/// a client of its own kind.
pub(crate) fn client_attribute(client: &str) -> (&'static str, &str) {
    let value = |prefix| client.strip_prefix(prefix);
    if let Some(api_key) = value("api:") {
        ("api_key", api_key)
    } else if let Some(user) = value("user:") {
        ("user", user)
    } else if let Some(address) = value("ip:") {
        ("ip", address)
    } else {
        (CLIENT, client)
    }
}

fn write_attribute(name: &str, request: &Request<'_>, keys: &mut KeyBuffer) -> bool {
    match request.attribute(name) {
        Some(address) if name == "ip" => push(Tag::Ip, &cidr::subject_of(address), keys),
        Some(value) => push(Tag::Attribute, value, keys),
        None => return false,
    }
    true
}

fn write_ip(request: &Request<'_>, keys: &mut KeyBuffer) -> bool {
    let address = request.attribute("ip");
    if let Some(address) = address {
        push(Tag::Ip, &cidr::subject_of(address), keys);
    }
    address.is_some()
}

/// Writes facts about a request that no rule counts: its API key, its user and its address as what they are.
pub(crate) fn write_facts(facts: &[(&str, &str)], keys: &mut KeyBuffer) {
    for (name, value) in facts {
        match CHAIN.iter().find(|(link, _)| link == name) {
            Some((_, Tag::Ip)) => push(Tag::Ip, &cidr::subject_of(value), keys),
            Some((_, tag)) => push(*tag, value, keys),
            None => push(Tag::Attribute, value, keys),
        }
    }
}

/// Writes a text that [`readable`] reads as it is.
pub(crate) fn write_text(text: &str, keys: &mut KeyBuffer) {
    push(Tag::Attribute, text, keys);
}

/// Writes the key that new keys of a network share at the end of `keys`.
pub(crate) fn write_network(network: IpNet, keys: &mut KeyBuffer) {
    push(Tag::Network, &network.to_string(), keys);
}

/// Returns the network whose new keys share this key, as it is written: `2001:db8::/48`.
pub(crate) fn network_of_key(key: &[u8]) -> Option<&str> {
    let [tag, _, _, network @ ..] = key else {
        return None;
    };
    std::str::from_utf8(network).ok().filter(|_| *tag == Tag::Network as u8)
}

#[inline]
fn push(tag: Tag, value: &str, keys: &mut KeyBuffer) {
    // A value is at most 8 KiB, a canonical address shorter still.
    let [low, high] = (value.len() as u16).to_le_bytes();
    keys.extend_from_slice(&[tag as u8, low, high]);
    keys.extend_from_slice(value.as_bytes());
}

/// A key for people: `api:abc`, `user:7`, `ip:10.0.0.1`, parts joined by ` | `. An empty key is
/// everybody.
#[must_use]
pub fn readable(key: &[u8]) -> String {
    let mut parts = Vec::new();
    let mut rest = key;
    while let [tag, low, high, after @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(after.len());
        let (value, beyond) = after.split_at(length);
        let prefix = match tag {
            b'k' => "api:",
            b'u' => "user:",
            b'a' | b'n' => "ip:",
            b'-' => NONE,
            _ => "",
        };
        parts.push(format!("{prefix}{}", String::from_utf8_lossy(value)));
        rest = beyond;
    }
    if parts.is_empty() { EVERYBODY.to_owned() } else { parts.join(SEPARATOR) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn key(
        per: &[&str],
        missing: OnMissing,
        attributes: &[(&str, &str)],
    ) -> Result<Vec<u8>, String> {
        let per: Vec<Per> = per.iter().map(|name| Per::of_name(name)).collect();
        let request = Request::new("GET", "/x").unwrap().with_attributes(attributes).unwrap();
        let mut keys = KeyBuffer::new();
        match write_key(&per, missing, &request, &mut keys) {
            SubjectKey::Written => Ok(keys.to_vec()),
            SubjectKey::Skip(at) => Err(format!("skip {}", per[at].name())),
            SubjectKey::Deny(at) => Err(format!("deny {}", per[at].name())),
        }
    }

    fn read(per: &[&str], missing: OnMissing, attributes: &[(&str, &str)]) -> String {
        match key(per, missing, attributes) {
            Ok(key) => readable(&key),
            Err(what) => what,
        }
    }

    #[test]
    fn the_client_is_the_strongest_link_of_the_chain() {
        let all = [("ip", "::ffff:1.2.3.4"), ("user", "7"), ("api_key", "abc")];
        assert_eq!(read(&["client"], OnMissing::Ip, &all), "api:abc");
        assert_eq!(read(&["client"], OnMissing::Ip, &all[..2]), "user:7");
        assert_eq!(read(&["client"], OnMissing::Ip, &all[..1]), "ip:1.2.3.4");
        assert_eq!(read(&["client"], OnMissing::Ip, &[]), "(none)");
        assert_eq!(read(&["client"], OnMissing::Deny, &[]), "deny client");
        assert_eq!(read(&["ip", "path"], OnMissing::Ip, &all), "ip:1.2.3.4 | /x");
        assert_eq!(read(&[], OnMissing::Ip, &all), "(everybody)");
    }

    #[test]
    fn a_missing_attribute_is_answered_as_the_rule_says() {
        let at = [("ip", "1.2.3.4"), ("user", "")];
        assert_eq!(read(&["user"], OnMissing::Ip, &at), "ip:1.2.3.4");
        assert_eq!(read(&["user"], OnMissing::Ip, &[]), "(none)");
        assert_eq!(read(&["user"], OnMissing::Shared, &at), "(none)");
        assert_eq!(read(&["user"], OnMissing::Skip, &at), "skip user");
        assert_eq!(read(&["user"], OnMissing::Deny, &at), "deny user");
    }

    #[test]
    fn nobody_can_pose_as_somebody_else() {
        let at = [("ip", "1.2.3.4")];
        let posing = [("user", "ip:1.2.3.4"), ("ip", "9.9.9.9")];
        assert_ne!(key(&["user"], OnMissing::Ip, &at), key(&["user"], OnMissing::Ip, &posing));
        let same = [("user", "1.2.3.4"), ("ip", "9.9.9.9")];
        assert_ne!(key(&["user"], OnMissing::Ip, &at), key(&["user"], OnMissing::Ip, &same));
        let api = [("api_key", "7")];
        let user = [("user", "7")];
        assert_ne!(key(&["client"], OnMissing::Ip, &api), key(&["client"], OnMissing::Ip, &user));
    }

    proptest! {
        #[test]
        fn different_subjects_have_different_keys(
            subjects in prop::collection::vec(prop::collection::vec("[ab=ku\0]{1,3}", 2), 2..20)
        ) {
            let mut seen: HashMap<Vec<u8>, Vec<String>> = HashMap::new();
            for subject in subjects {
                let key = key(&["a", "b"], OnMissing::Ip, &[("a", &subject[0]), ("b", &subject[1])]).unwrap();
                let before = seen.entry(key).or_insert_with(|| subject.clone());
                prop_assert_eq!(&*before, &subject);
            }
        }

        #[test]
        fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert!(readable(&bytes).len() <= 10 * bytes.len() + 11);
        }
    }
}
