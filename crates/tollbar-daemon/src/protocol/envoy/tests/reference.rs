//! What the reference service loads is loaded, what it rejects is rejected, and what has no effect is warned of: a
//! small file of our own for each of its features and for each mistake that it knows.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::protocol::envoy::config_file::{EnvoyFiles, FileOptions};

/// A directory that is removed again.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollbar-envoy-reference-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn with(self, file: &str, text: &str) -> Self {
        std::fs::write(self.0.join(file), text).unwrap();
        self
    }

    fn read(&self, options: FileOptions) -> Result<EnvoyFiles, String> {
        EnvoyFiles::read(&self.0, options).map_err(|error| error.to_string())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The warnings about one file, without its name.
fn warnings(file: &str, options: FileOptions) -> Vec<String> {
    let directory = Directory::new().with("f.yaml", file);
    let files = directory.read(options).unwrap_or_else(|error| panic!("{error}: {file}"));
    let of_file = |warning: &String| warning.split_once("f.yaml:").unwrap().1.to_owned();
    files.warnings.iter().map(of_file).collect()
}

/// A descriptor with these fields.
fn with(fields: &str) -> String {
    format!("domain: d\ndescriptors:\n- key: a\n  {fields}")
}

const LIMIT: &str = "rate_limit: { unit: day, requests_per_unit: 1 }";

#[test]
fn every_feature_of_the_reference_s_files_is_loaded() {
    for file in [
        // A document that begins explicitly, a domain without descriptors, and one whose list is empty.
        "---\ndomain: d\n",
        "domain: d\ndescriptors:\n",
        "domain: d\ndescriptors: []\n",
        // No limit: whoever matches is let through.
        &with("value: b"),
        &with("rate_limit:"),
        &with("descriptors: [{ key: b, descriptors: [{ key: c }] }]"),
        // Every unit, in any case of letters; no requests at all; unlimited.
        &with("rate_limit: { unit: SECOND, requests_per_unit: 5 }"),
        &with("rate_limit: { unit: Week, requests_per_unit: 5 }"),
        &with("rate_limit: { unit: month, requests_per_unit: 4294967295 }"),
        &with("rate_limit: { unit: year, requests_per_unit: 0 }"),
        &with("rate_limit: { unlimited: true }"),
        &with("rate_limit: { name: n, replaces: [{ name: m }], unit: day, requests_per_unit: 1 }"),
        &with(&format!("{LIMIT}\n  shadow_mode: true")),
        &with(&format!("{LIMIT}\n  quota_mode: true")),
        // Numbers and switches as keys and values are texts.
        &with("value: 404"),
        &with("value: yes"),
        // Wildcards, shared or not, at any place and level.
        &with("value: b*\n  share_threshold: true"),
        &with("value: b*c*d\n  share_threshold: true\n  descriptors: [{ key: e, value: '*f' }]"),
        &with("value: b\n  share_threshold: false"),
        // Anchors, aliases and merge keys.
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: &day { unit: day, requests_per_unit: 1 }\n\
         - key: b\n  rate_limit: *day\n- key: c\n  rate_limit: { <<: *day, requests_per_unit: 2 }",
    ] {
        assert_eq!(warnings(file, FileOptions::default()), [] as [&str; 0], "{file}");
    }
}

#[test]
fn every_mistake_that_the_reference_rejects_is_rejected() {
    for (file, told) in [
        ("descriptors: []", "there is no domain here"),
        ("domain: ''", "a domain has a name"),
        ("domain: d\ndescriptors: [{ value: b }]", "a descriptor has a key"),
        (
            "domain: d\ndescriptors: [{ key: a, value: b }, { key: a, value: b }]",
            "was written before",
        ),
        ("domain: d\ndescriptors: [a, b]", "this is a single value"),
        ("domain: d\ndescriptors: [[{ key: a }]]", "this is a list"),
        ("0.25: d\ndescriptors: []", "there is no field `0.25`"),
        ("domain: d\ndescriptors:\n  - key: a\n bad", "this is not YAML"),
        (&with("ratelimit: { unit: day }"), "did you mean `rate_limit`?"),
        (
            &with("rate_limit: { unit: day, requestsperunit: 5 }"),
            "did you mean `requests_per_unit`?",
        ),
        (&with("rate_limit: { unit: foo, requests_per_unit: 5 }"), "`foo` is no unit"),
        (&with("rate_limit: { requests_per_unit: 5 }"), "`` is no unit"),
        (&with("rate_limit: { unit: unknown, requests_per_unit: 5 }"), "`unknown` is no unit"),
        (&with("rate_limit: { unit: day, requests_per_unit: -1 }"), "-1"),
        (&with("rate_limit: { unit: day, requests_per_unit: 1.5 }"), "1.5"),
        (&with("rate_limit: { unit: day, requests_per_unit: 5, unit_multiplier: 2 }"), "no field"),
        (&with("rate_limit: { unit: day, unlimited: true }"), "unlimited"),
        (&with("rate_limit: { unit: day, name: n, replaces: [{ name: n }] }"), "itself"),
        (&with("rate_limit: { unit: day, name: n, replaces: [{ name: }] }"), "by its name"),
        (&with("value: b\n  share_threshold: true"), "only below a wildcard"),
        (&with("metadata: text"), "write a mapping"),
        (&with("shadow_mode: 1"), "neither `true` nor `false`"),
    ] {
        let error = Domains::parse("f", file).unwrap_err().to_string();
        assert!(error.contains(told), "{told} in {error}");
    }
}

#[test]
fn what_has_no_effect_is_warned_of() {
    let belongs_elsewhere = "this has no effect: it belongs elsewhere";
    for (fields, told) in [
        (
            format!("{LIMIT}\n  detailed_metric: true"),
            "detailed_metric: this has no effect: metrics here have no label for a descriptor's values",
        ),
        (
            format!("{LIMIT}\n  value_to_metric: true"),
            "value_to_metric: this has no effect: metrics here have no label for a descriptor's values",
        ),
        (
            format!("{LIMIT}\n  metadata: {{ name: b }}"),
            "metadata: this has no effect: start the daemon with --envoy-metadata to send it",
        ),
        (
            "shadow_mode: true".to_owned(),
            "shadow_mode: this has no effect: this descriptor has no `rate_limit`",
        ),
        (
            "quota_mode: true".to_owned(),
            "quota_mode: this has no effect: this descriptor has no `rate_limit`",
        ),
        (
            "rate_limit: { unlimited: true, requests_per_unit: 5 }".to_owned(),
            "rate_limit.requests_per_unit: this has no effect: this is unlimited",
        ),
        // The reference accepts every field everywhere.
        (
            "rate_limit: { unit: day, requests_per_unit: 1, shadow_mode: true }".to_owned(),
            &format!("rate_limit.shadow_mode: {belongs_elsewhere}"),
        ),
        ("unit: day".to_owned(), &format!("unit: {belongs_elsewhere}")),
    ] {
        let file = with(&fields);
        let warnings = warnings(&file, FileOptions::default());
        assert_eq!(warnings.len(), 1, "{file}: {warnings:?}");
        assert!(warnings[0].ends_with(&format!(": descriptors[0].{told}")), "{warnings:?}");
    }
    let sends_metadata = FileOptions { sends_metadata: true, ..FileOptions::default() };
    let file = with(&format!("{LIMIT}\n  metadata: {{ name: b }}"));
    assert_eq!(warnings(&file, sends_metadata), [] as [&str; 0]);
    let told = warnings(&with("metadata: { name: b }"), sends_metadata);
    assert!(told[0].ends_with("this descriptor has no `rate_limit`"), "{told:?}");
}

#[test]
fn files_of_one_domain_are_merged_where_that_is_wanted() {
    let merging = FileOptions { merges_domains: true, ..FileOptions::default() };
    let limit = |key: &str, count: u32| {
        format!(
            "{{ domain: d, descriptors: [{{ key: {key}, value: 'v*', \
             rate_limit: {{ unit: day, requests_per_unit: {count} }} }}] }}"
        )
    };
    let directory = Directory::new().with("1.yaml", &limit("a", 1)).with("2.yaml", &limit("b", 2));
    assert!(directory.read(FileOptions::default()).unwrap_err().contains("--envoy-merge-domains"));
    let domains = directory.read(merging).unwrap().domains;
    assert_eq!(domains.len(), 1);
    let count = |key| {
        let found = domains.find_rule("d", [(key, "v1")]).unwrap();
        found.rule.limit.as_ref().unwrap().requests_per_unit
    };
    assert_eq!([count("a"), count("b")], [1, 2]);
    // What both of them have is an error, as in one file.
    let directory = directory.with("3.yaml", &limit("a", 3));
    let error = directory.read(merging).map(|files| files.domains.len()).unwrap_err();
    assert!(error.contains("3.yaml:1:") && error.contains("`a_v*` was written before"), "{error}");
}

#[test]
fn the_metadata_of_limits_that_are_not_exceeded_is_sent() {
    let limit = "rate_limit: { unit: day, requests_per_unit: 1 }";
    let file = format!(
        "domain: d
descriptors:
  - {{ key: a, {limit}, quota_mode: true, metadata: {{ name: one, of: {{ a: 1, list: [x, true] }} }} }}
  - {{ key: b, rate_limit: {{ unit: day, requests_per_unit: 9 }}, metadata: {{ name: two, of: {{ b: '2' }} }} }}
  - {{ key: c, rate_limit: {{ unlimited: true }}, metadata: {{ never: sent }} }}
"
    );
    let mut service = TestService::from_file(&file);
    let request = call("d", &[&[("a", "1")], &[("b", "1")], &[("c", "1")]]);
    assert_eq!(service.ask(&request).unwrap().dynamic_metadata, None);
    service.envoy.config.sends_metadata = true;
    let sent = |request: &RateLimitRequest| {
        let metadata = service.ask(request).unwrap().dynamic_metadata.unwrap();
        metadata.fields.get("metadata").map(|metadata| format!("{:?}", metadata.kind))
    };
    // The quota `a` is used up, so that only `b` is left.
    let of_b = sent(&request).unwrap();
    assert!(
        of_b.contains(r#"StringValue("two")"#) && of_b.contains(r#"StringValue("2")"#),
        "{of_b}"
    );
    assert!(!of_b.contains("one") && !of_b.contains("never"), "{of_b}");
    // Both are left: of two values the first counts, and structures are merged.
    let both = sent(&call("d", &[&[("a", "2")], &[("b", "2")]])).unwrap();
    for part in
        [r#"StringValue("one")"#, "NumberValue(1.0)", "BoolValue(true)", r#"StringValue("2")"#]
    {
        assert!(both.contains(part), "{part} in {both}");
    }
    assert!(!both.contains("two"), "{both}");
    assert_eq!(sent(&call("d", &[&[("c", "1")]])), None);
}

#[test]
fn a_merged_field_that_is_wrong_is_reported_where_it_was_written() {
    let file = "domain: d\ndescriptors:\n- &a { key: a, shadow_mode: maybe }\n- { <<: *a, key: b }";
    let error = Domains::parse("f", file).unwrap_err().to_string();
    assert!(error.starts_with("f:3:29: descriptors[0].shadow_mode: "), "{error}");
    assert!(error.contains("f:3:29: descriptors[1].shadow_mode: "), "{error}");
}
