//! YAML as a tree whose every node knows its line and column.
//!
//! Bounded before anything is built: bytes, depth, and nodes, those counted that aliases stand for.
//! A scalar is its text; what type it has is for the reader of a field to say, so that the country
//! `no` and the version `1.10` stay what they are.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};

/// The largest file.
pub(crate) const FILE_BYTES_MAX: usize = 16 << 20;

/// The most nodes, each alias counted as all it stands for.
pub(crate) const NODES_MAX: usize = 2_000_000;

/// The deepest nesting; rules need six, descriptors of Envoy two each.
pub(crate) const DEPTH_MAX: usize = 32;

/// The key that merges the fields of other mappings into its own, as YAML 1.1 has it.
const MERGE_KEY: &str = "<<";

/// Where something stands in a file, both from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub struct Node {
    /// Where it begins.
    pub at: Position,
    /// What it is.
    pub value: Value,
}

/// What a node is.
#[derive(Debug, Clone)]
pub enum Value {
    /// `~`, `null`, or nothing at all.
    Null,
    /// A text, quoted or not.
    Scalar {
        /// As it was meant, without quotes.
        text: Rc<str>,
        /// Whether it was written in quotes, so that it is a text and neither a number nor a switch.
        is_quoted: bool,
    },
    /// Items in their order.
    List(Rc<[Node]>),
    /// In the order of the file. Keys are texts.
    Map(Rc<[(Key, Node)]>),
}

/// The key of a field.
#[derive(Debug, Clone)]
pub struct Key {
    /// Where it begins.
    pub at: Position,
    /// What it says.
    pub text: Rc<str>,
}

/// What is wrong with a file before any rule is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    pub(crate) at: Position,
    pub(crate) message: String,
}

impl Position {
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

impl Node {
    /// Where a field of this mapping stands, such as `limit` or `exempt[0].usr`: the value of a field of its
    /// own, and the name of one further down. Where there is no such field, where what it would be in stands.
    pub(crate) fn locate(&self, field: &str) -> Position {
        let (mut node, mut at) = (self, self.at);
        for (depth, step) in field.split('.').enumerate() {
            let (name, item) = match step.split_once('[') {
                Some((name, item)) => (name, item.trim_end_matches(']').parse::<usize>().ok()),
                None => (step, None),
            };
            let Value::Map(fields) = &node.value else {
                return at;
            };
            let Some((key, within)) = fields.iter().find(|(key, _)| *key.text == *name) else {
                return at;
            };
            at = if depth == 0 { within.at } else { key.at };
            node = within;
            if let (Some(item), Value::List(items)) = (item, &within.value)
                && let Some(within) = items.get(item)
            {
                (node, at) = (within, within.at);
            }
        }
        at
    }
}

impl Value {
    /// What it is, for messages.
    #[must_use]
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Scalar { .. } => "a single value",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

/// The one document of `text`; `what` says what to write where there is none.
pub(crate) fn parse(text: &str, what: &str) -> Result<Node, SyntaxError> {
    let at = Position::START;
    if text.len() > FILE_BYTES_MAX {
        let message = format!(
            "the file has {} bytes: write at most {FILE_BYTES_MAX}, in several files if need be",
            text.len()
        );
        return Err(SyntaxError { at, message });
    }
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| malformed(&error))?;
        builder.take(event, position(span))?;
    }
    builder
        .document
        .ok_or_else(|| SyntaxError { at, message: format!("the file is empty: write {what}") })
}

fn position(span: Span) -> Position {
    Position { line: span.start.line(), column: span.start.col() + 1 }
}

fn malformed(error: &ScanError) -> SyntaxError {
    let marker = error.marker();
    let at = Position { line: marker.line().max(1), column: marker.col() + 1 };
    SyntaxError { at, message: format!("this is not YAML: {}", error.info()) }
}

/// Puts events together.
#[derive(Default)]
struct Builder {
    open: Vec<OpenCollection>,
    document: Option<Node>,
    documents: usize,
    anchors: HashMap<usize, (Node, usize)>,
    node_count: usize,
}

/// A list or a mapping that has not ended yet.
struct OpenCollection {
    at: Position,
    anchor: usize,
    /// Nodes in it so far, itself included.
    node_count: usize,
    kind: CollectionKind,
}

enum CollectionKind {
    List(Vec<Node>),
    /// `lines` says where a field was written, so that one written twice is found at once. `merged` has the fields
    /// that `<<` brings along.
    Map {
        fields: Vec<(Key, Node)>,
        key: Option<Key>,
        lines: HashMap<Rc<str>, usize>,
        merged: Vec<(Key, Node)>,
    },
}

impl Builder {
    fn take(&mut self, event: Event<'_>, at: Position) -> Result<(), SyntaxError> {
        let refuse = |message: &str| Err(SyntaxError { at, message: message.to_owned() });
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return refuse("a second document begins here: write all in one");
                }
            }
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => {
                return refuse("tags such as `!!str` mean nothing here: leave it out");
            }
            Event::Scalar(text, style, anchor, None) => {
                let is_quoted = style != ScalarStyle::Plain;
                let value = match &*text {
                    "" | "~" | "null" if !is_quoted => Value::Null,
                    text => Value::Scalar { text: text.into(), is_quoted },
                };
                self.count(1, at)?;
                self.put(Node { at, value }, anchor, 1)?;
            }
            Event::SequenceStart(anchor, None) => {
                self.open(at, anchor, CollectionKind::List(Vec::new()))?;
            }
            Event::MappingStart(anchor, None) => {
                let (fields, merged) = (Vec::new(), Vec::new());
                let kind = CollectionKind::Map { fields, key: None, lines: HashMap::new(), merged };
                self.open(at, anchor, kind)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close()?,
            Event::Alias(anchor) => {
                let Some((node, node_count)) = self.anchors.get(&anchor).cloned() else {
                    return refuse("an alias within what it stands for: write the value out");
                };
                self.count(node_count, at)?;
                // What is wrong in it is wrong where it was written; who uses it is not at fault.
                self.put(node, 0, node_count)?;
            }
            Event::DocumentEnd | Event::StreamStart | Event::StreamEnd | Event::Nothing => {}
        }
        Ok(())
    }

    fn count(&mut self, nodes: usize, at: Position) -> Result<(), SyntaxError> {
        self.node_count += nodes;
        if self.node_count > NODES_MAX {
            let message = format!(
                "the file has more than {NODES_MAX} values, aliases written out: use fewer aliases"
            );
            return Err(SyntaxError { at, message });
        }
        Ok(())
    }

    fn open(
        &mut self,
        at: Position,
        anchor: usize,
        kind: CollectionKind,
    ) -> Result<(), SyntaxError> {
        if self.open.len() == DEPTH_MAX {
            let message = format!("nested deeper than {DEPTH_MAX} levels: write fewer");
            return Err(SyntaxError { at, message });
        }
        self.count(1, at)?;
        self.open.push(OpenCollection { at, anchor, node_count: 1, kind });
        Ok(())
    }

    fn close(&mut self) -> Result<(), SyntaxError> {
        let Some(OpenCollection { at, anchor, node_count, kind }) = self.open.pop() else {
            return Ok(());
        };
        let value = match kind {
            CollectionKind::List(items) => Value::List(items.into()),
            CollectionKind::Map { mut fields, mut merged, lines, .. } => {
                // A field of the mapping's own goes before merged ones, and of those the first goes before others.
                let mut known: HashSet<Rc<str>> =
                    if merged.is_empty() { HashSet::new() } else { lines.into_keys().collect() };
                merged.retain(|(key, _)| known.insert(key.text.clone()));
                fields.append(&mut merged);
                Value::Map(fields.into())
            }
        };
        self.put(Node { at, value }, anchor, node_count)
    }

    /// A finished node goes into what is open around it.
    fn put(&mut self, node: Node, anchor: usize, node_count: usize) -> Result<(), SyntaxError> {
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), node_count));
        }
        // An alias may bring a tree along that is itself deep.
        let depth = self.open.len() + depth(&node);
        if depth > DEPTH_MAX {
            let message = format!("nested deeper than {DEPTH_MAX} levels: write fewer");
            return Err(SyntaxError { at: node.at, message });
        }
        let Some(open) = self.open.last_mut() else {
            self.document = Some(node);
            return Ok(());
        };
        open.node_count += node_count;
        match &mut open.kind {
            CollectionKind::List(items) => items.push(node),
            CollectionKind::Map { fields, key: key @ Some(_), lines, merged } => match key.take() {
                Some(key) if *key.text == *MERGE_KEY => merge(key.at, &node, lines, merged)?,
                Some(key) => fields.push((key, node)),
                None => {}
            },
            CollectionKind::Map { key, lines, .. } => {
                let Value::Scalar { text, .. } = &node.value else {
                    let message =
                        format!("a field is named by a text, not by {}", node.value.describe());
                    return Err(SyntaxError { at: node.at, message });
                };
                match lines.entry(text.clone()) {
                    Entry::Vacant(vacant) => {
                        vacant.insert(node.at.line);
                    }
                    Entry::Occupied(before) => {
                        let message = format!(
                            "`{}` was written before, in line {}: keep one of them",
                            crate::message::shorten(text),
                            before.get()
                        );
                        return Err(SyntaxError { at: node.at, message });
                    }
                }
                *key = Some(Key { at: node.at, text: text.clone() });
            }
        }
        Ok(())
    }
}

/// Adds the fields of what `<<` names to `merged`: a mapping, or a list of mappings. A field that was written above `<<`
/// is refused, because readers of YAML disagree on which of the two counts then.
fn merge(
    at: Position,
    node: &Node,
    lines: &HashMap<Rc<str>, usize>,
    merged: &mut Vec<(Key, Node)>,
) -> Result<(), SyntaxError> {
    let maps = match &node.value {
        Value::List(items) => items,
        _ => std::slice::from_ref(node),
    };
    for map in maps {
        let Value::Map(fields) = &map.value else {
            let message = format!(
                "`<<` takes a mapping, or a list of them, and this is {}: write such as `<<: *NAME`",
                map.value.describe()
            );
            return Err(SyntaxError { at, message });
        };
        for (key, value) in &**fields {
            if let Some(line) = lines.get(&key.text) {
                let name = crate::message::shorten(&key.text);
                let message = format!(
                    "`<<` brings `{name}`, which was written above it, in line {line}: write `<<` first"
                );
                return Err(SyntaxError { at, message });
            }
            merged.push((key.clone(), value.clone()));
        }
    }
    Ok(())
}

/// How many levels a node has; a scalar has none. Bounded, because nodes are.
fn depth(node: &Node) -> usize {
    match &node.value {
        Value::Null | Value::Scalar { .. } => 0,
        Value::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Map(fields) => 1 + fields.iter().map(|(_, node)| depth(node)).max().unwrap_or(0),
    }
}
