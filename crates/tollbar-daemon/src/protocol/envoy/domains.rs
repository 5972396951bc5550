//! The limits of the reference service's files: for each domain a tree of descriptors, and which of its
//! limits a descriptor meets. It counts nothing.
//!
//! Which limit that is follows the reference to the letter, also where it is odd: keys and values are
//! joined by `_`, so that the key `a` with the value `b_c` is also the key `a_b` with the value `c`.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prost_types::Struct;
use tollbar_rules::StandaloneLimit;

use super::limit::EnvoyLimit;

/// Every domain by its name.
#[derive(Debug, Default)]
pub(crate) struct Domains(pub(super) HashMap<Box<str>, DescriptorNode>);

/// A level of a domain: its top, or a descriptor.
#[derive(Debug, Default)]
pub(super) struct DescriptorNode {
    pub(super) rule: Option<EnvoyRule>,
    /// Whether the values that this wildcard matches share a counter.
    pub(super) shares_counter: bool,
    /// What is below, by `key` or `key_value`.
    pub(super) below: HashMap<Box<str>, DescriptorNode>,
    /// The keys of `below` that have a `*`, in the order of the files.
    pub(super) wildcards: Vec<Box<str>>,
}

/// What a descriptor that has a `rate_limit` says.
#[derive(Debug)]
pub(super) struct EnvoyRule {
    pub(super) name: Box<str>,
    pub(super) replaces: Vec<Box<str>>,
    /// `None`: unlimited.
    pub(super) limit: Option<EnvoyLimit>,
    pub(super) mode: EnforcementMode,
    /// What is sent along as dynamic metadata while the limit is not exceeded.
    pub(super) metadata: Option<Arc<Struct>>,
    /// The limit as logs have it, made when it first denies.
    pub(super) standalone: OnceLock<StandaloneLimit>,
}

/// What follows from a limit that is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum EnforcementMode {
    /// The request is denied.
    #[default]
    Enforce,
    /// Nothing.
    Shadow,
    /// The request is denied if all limits of this mode are exceeded.
    Quota,
}

/// A rule that a descriptor meets.
#[derive(Debug)]
pub(super) struct RuleMatch<'t> {
    pub(super) rule: &'t EnvoyRule,
    /// What stands in the counter's key for the value of an entry, by the entry's place.
    pub(super) shared: Vec<(usize, &'t str)>,
}

/// How keys and values are joined.
pub(super) fn join_entry(key: &str, value: &str) -> String {
    [key, "_", value].concat()
}

impl Domains {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn has(&self, domain: &str) -> bool {
        self.0.contains_key(domain)
    }

    /// Returns the limits that can deny and whose windows are an hour or longer, by their domains and descriptors.
    pub(super) fn limits_with_long_windows(&self) -> Vec<Arc<str>> {
        let mut found = Vec::new();
        for (domain, node) in &self.0 {
            node.add_long_windows(domain, &mut found);
        }
        found
    }

    /// The rule that a descriptor of these keys and values meets. It has to go all the way: one with
    /// more or fewer entries than there are levels meets none.
    pub(super) fn find_rule<'t, 'e>(
        &'t self,
        domain: &str,
        entries: impl IntoIterator<Item = (&'e str, &'e str)>,
    ) -> Option<RuleMatch<'t>> {
        let mut node = self.0.get(domain)?;
        let mut shared = Vec::new();
        for (at, (key, value)) in entries.into_iter().enumerate() {
            let whole = join_entry(key, value);
            node = match node.below.get(&*whole) {
                Some(exact) => exact,
                None => match node.by_wildcard(&whole) {
                    Some((wildcard, wild)) => {
                        if wild.shares_counter {
                            shared.push((at, value_part(wildcard, key)));
                        }
                        wild
                    }
                    None => node.below.get(key)?,
                },
            };
        }
        node.rule.as_ref().map(|rule| RuleMatch { rule, shared })
    }
}

impl DescriptorNode {
    /// Adds the limits with long windows from here down. `path` is the name of this level.
    fn add_long_windows(&self, path: &str, found: &mut Vec<Arc<str>>) {
        let has_long_window = |rule: &EnvoyRule| {
            let limit = rule.limit.as_ref().filter(|_| rule.mode != EnforcementMode::Shadow);
            limit.is_some_and(|limit| limit.unit.window() >= Duration::from_hours(1))
        };
        if self.rule.as_ref().is_some_and(has_long_window) {
            found.push(path.into());
        }
        for (entry, node) in &self.below {
            node.add_long_windows(&format!("{path}/{entry}"), found);
        }
    }

    /// Returns the first wildcard of the files that matches, not the longest, and the descriptor that it is.
    fn by_wildcard(&self, whole: &str) -> Option<(&str, &Self)> {
        let wildcard = self.wildcards.iter().find(|wildcard| is_match(wildcard, whole))?;
        Some((wildcard, self.below.get(wildcard)?))
    }
}

/// True where `text` is `pattern` with any text, perhaps none, in the place of each `*`.
fn is_match(pattern: &str, text: &str) -> bool {
    let Some((prefix, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut left) = text.strip_prefix(prefix).and_then(|text| text.strip_suffix(suffix))
    else {
        return false;
    };
    // Each part is taken where it first occurs, which leaves most for the parts behind it.
    middle.split('*').all(|part| match left.split_once(part) {
        _ if part.is_empty() => true,
        Some((_, behind)) => {
            left = behind;
            true
        }
        None => false,
    })
}

/// Returns the value of a joined key and value, where the key is `key`; otherwise all of it, because the wildcard is
/// in the key.
fn value_part<'t>(wildcard: &'t str, key: &str) -> &'t str {
    let value = wildcard.strip_prefix(key).and_then(|rest| rest.strip_prefix('_'));
    value.unwrap_or(wildcard)
}
