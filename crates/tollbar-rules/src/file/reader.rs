//! Fields read one by one, and what is wrong with them collected: a person who fixes a file wants
//! to see all of it, with the place and what to write instead.

use std::borrow::Cow;
use std::fmt;

use super::node::{Key, Node, Position, Value};
use crate::message::nearest;
use crate::message::shorten;
use crate::rule::limit::whole;

/// More findings than this help nobody.
const FINDINGS_MAX: usize = 100;

/// Something to be changed in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Where.
    pub position: Position,
    /// Which field, from the top: `rules[2].limit`.
    pub field: String,
    /// What is wrong, and what to write instead.
    pub message: String,
}

/// Collects what is wrong.
#[derive(Debug, Default)]
pub struct Reader {
    pub(crate) errors: Vec<Finding>,
    pub(crate) warnings: Vec<Finding>,
    pub(crate) case: Case,
    /// Fields of a rule that were read before, by their names in files' case.
    pub(crate) read_before: &'static [&'static str],
}

/// How the names of fields are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Case {
    /// `max_wait`, as in files.
    #[default]
    Snake,
    /// `maxWait`, as in JSON. Names in snake case are read as well.
    #[cfg_attr(not(feature = "admin"), expect(dead_code, reason = "only JSON is in camel case"))]
    Camel,
}

impl Case {
    /// Returns a name of a file in this case.
    pub(crate) fn spell(self, name: &'static str) -> Cow<'static, str> {
        if self == Self::Snake || !name.contains('_') {
            return Cow::Borrowed(name);
        }
        Cow::Owned(camel(name))
    }
}

/// Returns `maxWait` for `max_wait`.
pub(crate) fn camel(name: &str) -> String {
    let mut camel = String::with_capacity(name.len());
    for (at, word) in name.split('_').enumerate() {
        let first = if at == 0 { 0 } else { word.len().min(1) };
        camel.push_str(&word[..first].to_ascii_uppercase());
        camel.push_str(&word[first..]);
    }
    camel
}

/// A mapping whose fields are taken one after the other; what is left at the end is unknown.
#[derive(Debug)]
pub struct Fields<'n> {
    /// The mapping's own path, from the top.
    pub path: String,
    /// Where the mapping begins.
    pub at: Position,
    entries: &'n [(Key, Node)],
    taken: Vec<bool>,
    known: Vec<Cow<'static, str>>,
    case: Case,
}

/// A field that was there.
#[derive(Debug, Clone)]
pub struct Field<'n> {
    /// What it says.
    pub node: &'n Node,
    /// Its name from the top, `rules[2].limit`; empty for the document.
    pub path: String,
}

impl Reader {
    /// Something that cannot be used.
    pub fn error(&mut self, at: Position, field: &str, message: impl Into<String>) {
        if self.errors.len() < FINDINGS_MAX {
            let (field, message) = (field.to_owned(), message.into());
            self.errors.push(Finding { position: at, field, message });
        }
    }

    /// Something that is allowed and probably not meant.
    pub fn warn(&mut self, at: Position, field: &str, message: impl Into<String>) {
        if self.warnings.len() < FINDINGS_MAX {
            let (field, message) = (field.to_owned(), message.into());
            self.warnings.push(Finding { position: at, field, message });
        }
    }

    /// Reports `error` at `field`.
    pub fn refuse(&mut self, field: &Field<'_>, error: impl fmt::Display) {
        self.error(field.node.at, &field.path, error.to_string());
    }

    /// The fields of a mapping; `what` says what is expected otherwise.
    pub fn fields<'n>(&mut self, field: &Field<'n>, what: &str) -> Option<Fields<'n>> {
        let Value::Map(entries) = &field.node.value else {
            self.refuse(field, format!("this is {}: write {what}", field.node.value.describe()));
            return None;
        };
        Some(Fields {
            path: field.path.clone(),
            at: field.node.at,
            entries,
            taken: vec![false; entries.len()],
            known: Vec::new(),
            case: self.case,
        })
    }

    /// A text, however it is quoted.
    pub fn text<'n>(&mut self, field: &Field<'n>, what: &str) -> Option<&'n str> {
        match &field.node.value {
            Value::Scalar { text, .. } => Some(text),
            value => {
                self.refuse(field, format!("this is {}: write {what}", value.describe()));
                None
            }
        }
    }

    /// A whole number that is not negative.
    pub fn number(&mut self, field: &Field<'_>) -> Option<u64> {
        let text = self.text(field, "a whole number such as `10`")?;
        whole(text).map_err(|error| self.refuse(field, error)).ok()
    }

    /// A whole number of 32 bits, negative or not.
    pub fn signed(&mut self, field: &Field<'_>) -> Option<i32> {
        let text = self.text(field, "a whole number such as `10` or `-1`")?;
        let number = text.parse().ok();
        if number.is_none() {
            let quoted = shorten(text);
            let message = format!(
                "`{quoted}` is not a whole number of at most nine digits: write one such as `10` or \
                 `-1`"
            );
            self.refuse(field, message);
        }
        number
    }

    /// `true` or `false`.
    pub fn boolean(&mut self, field: &Field<'_>) -> Option<bool> {
        match self.text(field, "`true` or `false`")? {
            "true" => Some(true),
            "false" => Some(false),
            text => {
                let quoted = shorten(text);
                self.refuse(
                    field,
                    format!("`{quoted}` is neither `true` nor `false`: write one of them"),
                );
                None
            }
        }
    }

    /// One of several words.
    pub fn choice<T: Copy>(&mut self, field: &Field<'_>, words: &[(&'static str, T)]) -> Option<T> {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let listed = listed(&names);
        let text = self.text(field, &format!("one of {listed}"))?;
        let chosen = words.iter().find(|(name, _)| *name == text);
        if chosen.is_none() {
            let meant = did_you_mean(text, &names);
            self.refuse(
                field,
                format!("`{}` is not known here: {meant}write one of {listed}", shorten(text)),
            );
        }
        chosen.map(|(_, value)| *value)
    }
}

/// The most items of one list.
pub(crate) const LIST_MAX: usize = 100_000;

impl<'n> Field<'n> {
    /// A single value is a list of one.
    #[must_use]
    pub fn one_or_many(&self) -> Vec<Field<'n>> {
        match &self.node.value {
            Value::List(_) => self.items(),
            _ => vec![self.clone()],
        }
    }

    /// The items of a list; none of anything else.
    #[must_use]
    pub fn items(&self) -> Vec<Field<'n>> {
        let Value::List(items) = &self.node.value else {
            return Vec::new();
        };
        let item = |(at, node)| Field { node, path: format!("{}[{at}]", self.path) };
        items.iter().enumerate().map(item).collect()
    }
}

impl<'n> Fields<'n> {
    /// The field of that name, if it is there.
    pub fn take(&mut self, name: &'static str) -> Option<Field<'n>> {
        let cased = self.case.spell(name);
        let is_it = |(key, _): &(Key, Node)| *key.text == *cased || *key.text == *name;
        let at = self.entries.iter().position(is_it);
        let path = self.path_of(&cased);
        self.known.push(cased);
        self.taken[at?] = true;
        Some(Field { node: &self.entries[at?].1, path })
    }

    /// Takes a field that is not listed among the known ones, if it is there.
    pub fn take_unlisted(&mut self, name: &str) -> Option<Field<'n>> {
        let is_it = |(key, _): &(Key, Node)| *key.text == *name;
        let mut places = self.entries.iter().zip(&mut self.taken);
        let (entry, is_taken) = places.find(|(entry, is_taken)| is_it(entry) && !**is_taken)?;
        *is_taken = true;
        Some(Field { node: &entry.1, path: self.path_of(name) })
    }

    /// Every field that was not taken: for mappings whose keys are the user's.
    #[must_use]
    pub fn rest(&self) -> Vec<(&'n Key, Field<'n>)> {
        let left = self.entries.iter().zip(&self.taken).filter(|(_, is_taken)| !**is_taken);
        left.map(|((key, node), _)| (key, Field { node, path: self.path_of(&key.text) })).collect()
    }

    /// Adds fields that are known although nobody takes them here.
    pub(crate) fn know(&mut self, names: &[&'static str]) {
        self.known.extend(names.iter().map(|name| self.case.spell(name)));
    }

    /// Reports every field that was not taken.
    pub fn finish(self, reader: &mut Reader) {
        for (key, _) in self.rest() {
            let known: Vec<&str> = self.known.iter().map(|name| &**name).collect();
            let meant = did_you_mean(&key.text, &known);
            let known = listed(&known);
            let message = format!(
                "there is no field `{}` here: {meant}the fields are {known}",
                shorten(&key.text)
            );
            reader.error(key.at, &self.path_of(&key.text), message);
        }
    }

    /// The path of a field of this mapping.
    #[must_use]
    pub fn path_of(&self, name: &str) -> String {
        let name = shorten(name);
        if self.path.is_empty() { name } else { format!("{}.{name}", self.path) }
    }
}

fn did_you_mean(text: &str, known: &[&str]) -> String {
    nearest(text, known.iter().copied())
        .map_or_else(String::new, |name| format!("did you mean `{name}`? "))
}

fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { line, column } = self.position;
        write!(f, "{line}:{column}: ")?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}
