//! The schema, the reference and the guide say what the reader of files knows.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tollbar_rules::RuleFile;

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names in backquotes after `after`, in what is said of a file.
fn names_in_error(text: &str, after: &str) -> BTreeSet<String> {
    let error = RuleFile::parse("r", text).expect_err(text).to_string();
    let (_, listed) = error.split_once(after).unwrap_or_else(|| panic!("{error}"));
    let listed = listed.lines().next().unwrap();
    listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn known_fields(text: &str) -> BTreeSet<String> {
    names_in_error(text, "the fields are ")
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap_or_else(|| panic!("{value}")).keys().cloned().collect()
}

fn words(value: &Value) -> BTreeSet<String> {
    let words = value.as_array().unwrap_or_else(|| panic!("{value}"));
    words.iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// `cargo xtask openapi` copies it.
#[test]
fn the_schema_in_the_documents_is_that_of_the_crate() {
    assert_eq!(document("reference/rules.schema.json"), tollbar_rules::admin::FILE_SCHEMA);
}

#[test]
fn the_schema_has_the_fields_that_are_read() {
    let schema: Value = serde_json::from_str(&document("reference/rules.schema.json")).unwrap();
    let defs = &schema["$defs"];
    let rule = &defs["rule"]["properties"];
    assert_eq!(keys(&schema["properties"]), known_fields("{ rules: [], x0: 1 }"));
    assert_eq!(keys(rule), known_fields("rules: [{ name: a, limit: 1/s, x0: 1 }]"));
    let limit = &defs["limit"]["anyOf"][1]["properties"];
    assert_eq!(keys(limit), known_fields("rules: [{ name: a, limit: { limit: 1/s, x0: 1 } }]"));
    let text = "rules: [{ name: a, limit: 9/s, warm_up: { start: 1, over: 1h, x0: 1 } }]";
    assert_eq!(keys(&defs["warm_up"]["properties"]), known_fields(text));
    let tests = &defs["test"]["anyOf"][1]["properties"];
    assert_eq!(
        keys(tests),
        known_fields("rules: [{ name: a, limit: 1/s, match: { t: { x0: 1 } } }]")
    );
    let path = &defs["conditions"]["properties"]["path"]["anyOf"][1]["properties"];
    assert_eq!(
        keys(path),
        known_fields("rules: [{ name: a, limit: 1/s, match: { path: { x0: 1 } } }]")
    );
    let cost = &defs["costs"]["anyOf"][2]["items"]["properties"];
    let text = "rules: [{ name: a, limit: 1/s, cost: [{ match: { a: b }, cost: 1, x0: 1 }] }]";
    assert_eq!(keys(cost), known_fields(text));
    let shed = &rule["on_store_failure"]["anyOf"][1]["properties"];
    assert_eq!(
        keys(shed),
        known_fields("rules: [{ name: a, limit: 1/s, on_store_failure: { x0: 1 } }]")
    );
}

#[test]
fn the_schema_has_the_words_that_are_read() {
    let schema: Value = serde_json::from_str(&document("reference/rules.schema.json")).unwrap();
    let defs = &schema["$defs"];
    let rule = &defs["rule"]["properties"];
    let read = |field: &str| {
        names_in_error(&format!("rules: [{{ name: a, {field}: x0 }}]"), "write one of ")
    };
    assert_eq!(words(&defs["algorithm"]["enum"]), read("algorithm"));
    assert_eq!(words(&rule["missing"]["enum"]), read("missing"));
    assert_eq!(words(&rule["mode"]["enum"]), read("mode"));
    assert_eq!(words(&rule["on_store_failure"]["anyOf"][0]["enum"]), read("on_store_failure"));
    let shed = &rule["on_store_failure"]["anyOf"][1]["properties"]["shed"]["enum"];
    assert_eq!(
        words(shed),
        names_in_error("rules: [{ name: a, on_store_failure: { shed: x0 } }]", "write one of ")
    );
}

#[test]
fn the_reference_names_every_field_and_algorithm() {
    let reference = document("reference/rules.md");
    let fields = known_fields("rules: [{ name: a, limit: 1/s, x0: 1 }]");
    let algorithms = names_in_error("rules: [{ name: a, algorithm: x0 }]", "write one of ");
    for name in fields.iter().chain(&algorithms) {
        assert!(reference.contains(&format!("`{name}`")), "{name} is not in the reference");
    }
}

#[test]
fn every_example_in_the_documents_is_sound() {
    for name in ["reference/rules.md", "guides/rules.md"] {
        let text = document(name);
        let blocks: Vec<&str> =
            text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
        assert!(!blocks.is_empty(), "{name}");
        for block in blocks {
            let file =
                RuleFile::parse(name, block).unwrap_or_else(|error| panic!("{error}\n{block}"));
            assert_eq!(file.warnings, [], "{block}");
        }
    }
}
