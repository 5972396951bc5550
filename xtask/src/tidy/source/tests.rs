//! Each check of Rust files on made-up ones.

use super::*;

fn places(findings: &[Finding]) -> Vec<(&str, usize)> {
    findings.iter().map(|finding| (finding.path.as_str(), finding.line)).collect()
}

/// The lines a check finds in one file of the library.
fn lines_found(check: fn(&Tree) -> Vec<Finding>, text: &str) -> Vec<usize> {
    check(&Tree::from_files(&[("crates/tollbar/src/lib.rs", text)]))
        .iter()
        .map(|finding| finding.line)
        .collect()
}

#[test]
fn sources_open_by_saying_what_they_are() {
    let tree = Tree::from_files(&[
        ("crates/a/src/lib.rs", "//! Good.\n"),
        ("crates/a/src/deep/er.rs", "use std::fmt;\n//! Too late.\n"),
        ("crates/a/tests/b.rs", "use a;\n"),
        ("crates/a/build.rs", "fn main() {}\n"),
        ("xtask/src/main.rs", "// Only a comment.\n"),
        ("examples/c.rs", "fn main() {}\n"),
    ]);
    let expected = [("crates/a/src/deep/er.rs", 1), ("xtask/src/main.rs", 1)];
    assert_eq!(places(&opening(&tree)), expected);
}

#[test]
fn long_files_are_found() {
    let lines = |count: usize| "\n".repeat(count);
    let tree = Tree::from_files(&[
        ("src/full.rs", &lines(1_000)),
        ("src/long.rs", &lines(1_001)),
        ("crates/a/tests/longer.rs", &lines(1_001)),
        ("notes.md", &lines(2_000)),
    ]);
    let expected = [("src/long.rs", 1_001), ("crates/a/tests/longer.rs", 1_001)];
    assert_eq!(places(&length(&tree)), expected);
}

#[test]
fn unsafe_is_allowed_in_its_places_only() {
    let code = format!("// {UNSAFE_LINT}\n#[expect({UNSAFE_LINT}, reason = \"r\")]\nfn f() {{}}\n");
    let split = format!("#![allow(\n    {UNSAFE_LINT},\n)]\n");
    let tree = Tree::from_files(&[
        ("crates/tollbar/src/memory/pages.rs", &code),
        ("crates/tollbar/src/memory/prefetch.rs", &code),
        ("crates/bench/src/floor.rs", &code),
        ("crates/tollbar/src/memory/table.rs", &code),
        ("crates/tollbar/src/memory/pages.rs.rs", &split),
    ]);
    let expected =
        [("crates/tollbar/src/memory/table.rs", 2), ("crates/tollbar/src/memory/pages.rs.rs", 2)];
    assert_eq!(places(&unsafe_places(&tree)), expected);
}

#[test]
fn ignored_tests_say_that_they_are_long() {
    let fine = "#[test]\n#[ignore = \"long: a minute\"]\nfn a() {}\n";
    assert_eq!(lines_found(ignored_tests, fine), [0_usize; 0]);
    let fine = "#[expect(x, reason = \"we ignore it\")]\nlet ignore = a[0];\n";
    assert_eq!(lines_found(ignored_tests, fine), [0_usize; 0]);

    let cases = [
        "#[ignore]\nfn a() {}\n",
        "#[ignore = \"flaky\"]\nfn a() { b(\"long: \") }\n",
        "#[cfg_attr(miri, ignore)]\nfn a() {}\n",
    ];
    for text in cases {
        assert_eq!(lines_found(ignored_tests, text), [1], "{text}");
    }
}
