//! Files that are not read, and what their writer is told.

use super::*;
use crate::protocol::envoy::config_file::{EnvoyFiles, FileOptions};

#[test]
fn what_cannot_be_used_is_told_with_its_place() {
    for (file, expected) in [
        ("", "f:1:1: the file is empty: write `domain:` and `descriptors:`"),
        ("[]", "f:1:1: this is a list: write `domain:` and `descriptors:`"),
        ("descriptors: []", "f:1:1: domain: there is no domain here: write `domain: NAME`"),
        ("domain: ''", "f:1:9: domain: a domain has a name: write `domain: NAME`"),
        (
            "domain: d\ndescriptor: []",
            "f:2:1: descriptor: there is no field `descriptor` here: did you mean `descriptors`? the \
             fields are `domain`, `descriptors`",
        ),
        (
            "domain: d\ndescriptors: { key: a }",
            "f:2:14: descriptors: this is a mapping: write a list of descriptors",
        ),
        (
            "domain: d\ndescriptors: [a]",
            "f:2:15: descriptors[0]: this is a single value: write a descriptor such as `- key: NAME`",
        ),
        (
            "domain: d\ndescriptors:\n  - value: x",
            "f:3:5: descriptors[0].key: a descriptor has a key: write `key: NAME`",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n  - { key: a }",
            "f:4:5: descriptors[1]: the descriptor `a` was written before at this level: keep one of \
             them",
        ),
        (
            "domain: d\ndescriptors:\n  - { key: a, value: b_c }\n  - { key: a_b, value: c }",
            "f:4:5: descriptors[1]: the descriptor `a_b_c` was written before at this level: keep one \
             of them",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit: { unit: fortnight, requests_per_unit: 1 }",
            "f:4:25: descriptors[0].rate_limit.unit: `fortnight` is no unit: write `unit: second`, \
             `minute`, `hour`, `day`, `week`, `month` or `year`",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit: { unit: day, unlimited: true }",
            "f:4:17: descriptors[0].rate_limit: what is unlimited has no unit: take `unit` or \
             `unlimited` out",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit: { unit: day, requests_per_unit: 4294967296 }",
            "f:4:49: descriptors[0].rate_limit.requests_per_unit: this is too large: write at most \
             4294967295",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit: { unit: second, requests_per_unit: 500000000 }",
            "f:4:52: descriptors[0].rate_limit: 500000000 a second is more than can be counted: write \
             at most 499999999, or `unlimited: true`",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit: { unit: day, requests_per_unit: 1, \
             name: n, replaces: [{ name: n }, {}] }",
            "f:4:72: descriptors[0].rate_limit.replaces[0]: a limit does not replace itself: name \
             another one\nf:4:85: descriptors[0].rate_limit.replaces[1]: a limit is replaced by its \
             name: write `name: OTHER`",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    value: b\n    share_threshold: true",
            "f:5:22: descriptors[0].share_threshold: values share a counter only below a wildcard: \
             write a `*` in `value`, or take this out",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    shadow_mode: maybe",
            "f:4:18: descriptors[0].shadow_mode: this is neither `true` nor `false`: write one of them",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    metadata: [b]",
            "f:4:15: descriptors[0].metadata: this is a list: write a mapping, such as `name: TEXT`",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit: { unit: day, requests_per_unit: 010 }",
            "f:4:49: descriptors[0].rate_limit.requests_per_unit: this may be read as octal: write the number \
             without the leading 0",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    weight: 1",
            "f:4:5: descriptors[0].weight: there is no field `weight` here: the fields are `key`, \
             `value`, `shadow_mode`, `quota_mode`, `detailed_metric`, `value_to_metric`, `rate_limit`, \
             `share_threshold`, `metadata`, `descriptors`",
        ),
    ] {
        let error = Domains::parse("f", file).unwrap_err().to_string();
        assert_eq!(error, expected, "{file}");
    }
}

#[test]
fn a_directory_is_read_whole_and_a_domain_is_in_one_file() {
    let path = std::env::temp_dir().join(format!("tollbar-envoy-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    let write = |name: &str, text: &str| std::fs::write(path.join(name), text).unwrap();
    let options = FileOptions::default();
    let read = || EnvoyFiles::read(&path, options).map_err(|error| error.to_string());
    assert!(read().unwrap_err().starts_with("cannot read "));
    write("a.yaml", "domain: a");
    write("b.yml", "domain: b\ndescriptors: [{ key: k, rate_limit: { unit: day } }]");
    write(".hidden.yaml", "not read");
    write("notes.txt", "not read");
    let files = read().unwrap();
    assert_eq!(files.domains.len(), 2);
    assert_eq!(files.warnings.len(), 1);
    assert!(files.warnings[0].ends_with("there is no `requests_per_unit`, so nothing passes"));

    let limits = EnvoyLimits::read_path(Some(path.clone()), options).unwrap();
    write("c.yaml", "domain: a");
    assert!(read().unwrap_err().ends_with(
        "c.yaml:1:9: domain: another file has the domain `a` already: write both in one file, or start the \
         daemon with --envoy-merge-domains"
    ));
    limits.reload_changed();
    assert_eq!(limits.domains().len(), 2, "what was in force stays");
    write("c.yaml", "domain: c");
    limits.reload_changed();
    assert_eq!(limits.domains().len(), 3);
    std::fs::remove_file(path.join("c.yaml")).unwrap();
    limits.reload_changed();
    assert_eq!(limits.domains().len(), 2);
    std::fs::remove_dir_all(&path).unwrap();
}
