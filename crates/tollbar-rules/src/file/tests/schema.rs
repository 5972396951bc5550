//! The schema that editors complete by, held against the reader of files by a real validator.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use jsonschema::Validator;
use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

use super::{REFUSED, WRONG_RULES};
use crate::RuleFile;

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn schema() -> Value {
    serde_json::from_str(&document("reference/rules.schema.json")).unwrap()
}

static VALIDATOR: LazyLock<Validator> =
    LazyLock::new(|| jsonschema::validator_for(&schema()).unwrap());

/// What the schema says against a file; nothing where it accepts it.
pub(super) fn objections(text: &str) -> Vec<String> {
    let Some(file) = as_json(text) else {
        return vec!["this is not YAML".to_owned()];
    };
    VALIDATOR
        .iter_errors(&file)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

/// YAML as an editor sees it: plain scalars have the types of YAML 1.2.
fn as_json(text: &str) -> Option<Value> {
    let mut events = Parser::new_from_str(text).map(|event| event.map(|(event, _)| event).ok());
    let mut next = move || events.next().flatten();
    loop {
        match next()? {
            Event::StreamStart | Event::DocumentStart(_) => {}
            event => return node(event, &mut next),
        }
    }
}

fn node<'t>(event: Event<'t>, next: &mut impl FnMut() -> Option<Event<'t>>) -> Option<Value> {
    match event {
        Event::Scalar(text, style, ..) => Some(scalar(&text, style)),
        Event::SequenceStart(..) => {
            let mut items = Vec::new();
            loop {
                match next()? {
                    Event::SequenceEnd => return Some(Value::Array(items)),
                    event => items.push(node(event, next)?),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut fields = Map::new();
            loop {
                let key = match next()? {
                    Event::MappingEnd => return Some(Value::Object(fields)),
                    Event::Scalar(key, ..) => key.into_owned(),
                    _ => return None,
                };
                let event = next()?;
                fields.insert(key, node(event, next)?);
            }
        }
        _ => None,
    }
}

fn scalar(text: &str, style: ScalarStyle) -> Value {
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    match text {
        text if style != ScalarStyle::Plain => text.into(),
        "" | "~" | "null" => Value::Null,
        "true" => true.into(),
        "false" => false.into(),
        text if is_number => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
        text => text.into(),
    }
}

#[test]
fn the_schema_is_a_schema() {
    jsonschema::meta::validate(&schema()).unwrap_or_else(|error| panic!("{error}"));
    // The validator sees something: a word misplaced, and it says so.
    let mut wrong = schema();
    wrong["$defs"]["rule"]["type"] = "objekt".into();
    assert!(!jsonschema::meta::is_valid(&wrong));
}

#[test]
fn every_example_in_the_documents_is_accepted() {
    let guides = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides"));
    let guides = guides.unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names =
        guides.map(|name| format!("guides/{name}")).chain(["reference/rules.md".to_owned()]);
    let mut count = 0;
    for name in names {
        let text = document(&name);
        for block in text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
            // Other files are YAML too.
            if RuleFile::parse(&name, block).is_ok() {
                assert_eq!(objections(block), [] as [&str; 0], "{name}: {block}");
                count += 1;
            }
        }
    }
    assert!(count >= 5, "{count}");
}

/// What hangs on other fields or other rules, on arithmetic, or on a grammar of its own: only the
/// reader sees it. Whatever else is refused, the schema refuses too.
const READER_ONLY: &[&str] = &[
    "limit: 100",
    "limit: [1/s, 60/60s, 5/min]",
    "limit: [1/s, 9/h]\n  burst: 5",
    "tiers: { a: 1/s, default: a }\n  burst: 5",
    "limit: 1/s\n  staggered: true",
    "limit: 9/s\n  warm_up: { start: 9, over: 1h }",
    "limit: [9/s, 9/h]\n  warm_up: { start: 1, over: 1h }",
    "limit: 20000/s\n  algorithm: sliding_window_log",
    "limit: 20/15us\n  algorithm: sliding_window_strict",
    "limit: 20/ms\n  algorithm: sliding_window_strict\n  subwindows: 62",
    "limit: 20/s\n  algorithm: concurrency",
    "limit: 20/s\n  lease: 30s",
    "limit: { limit: 20/s, lease: 30s }",
    "limit: 20/s\n  algorithm: leaky_queue",
    "limit: 20/s\n  algorithm: token_bucket\n  queue: 5",
    "limit: { limit: 20/s, max_wait: 1s }",
    "limit: 20/s\n  reserve: { critical: 50%, high: 50% }",
    "limit: 3/s\n  reserve: { critical: 75% }",
    "limit: { limit: 9/s, warm_up: { start: 1, over: 1h }, reserve: { high: 10% } }",
    "limit: 1000/s\n  burst: 1000\n  reserve: { high: 10% }\n  accuracy: conservative",
    "unlimited: true\n  reserve: { high: 10% }",
    "limit: 1/s\n  match: { ip: 10.1.0.0/8 }",
    "limit: 9/s\n  cost: { /a: 10 }",
    "limit: 10/s\n  accuracy: local(11)",
    "limit: 1000/s\n  burst: 10\n  accuracy: conservative",
    "tiers: { a: 10/s, b: { limit: 5/s, algorithm: sliding_window_log }, default: a }\n  accuracy: local(2)",
    "limit: { any_of: [20/s, 100/min] }\n  burst: 5",
    "limit: { any_of: [20/s, { limit: 100/s, per: [client] }] }",
    "limit: { any_of: [20/s, [9/min, 60/min]] }",
    "limit: { any_of: [20/s, [1/min, 2/h, 3/2h, 4/3h], [5/day, 6/2days, 7/3days, 8/4days]] }",
    "limit: { any_of: [20/s, 100/min] }\n  accuracy: conservative",
    "limit: { any_of: [20/s, { limit: 9/s, per: [tenant] }] }\n  missing: deny",
    "limit: { any_of: [3/s, 20/min] }\n  cost: { /a: 30 }",
];

#[test]
fn what_is_refused_is_refused_by_the_schema_as_far_as_it_can_see() {
    let accepted = |(fields, _): &&(&str, &str)| {
        objections(&format!("rules:\n- name: a\n  {fields}")).is_empty()
    };
    let unseen: Vec<&str> =
        WRONG_RULES.iter().filter(accepted).map(|(fields, _)| *fields).collect();
    assert_eq!(unseen, READER_ONLY);
    for (text, _) in REFUSED {
        let is_json = as_json(text).is_some() && !text.contains("---") && !text.contains("!!");
        if is_json && !text.contains("rules: []\nrules: []") {
            assert!(!objections(text).is_empty(), "{text}");
        }
    }
}
