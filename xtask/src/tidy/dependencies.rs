//! The crates that we depend on: where they come from, their licences, and those that we do without.
//!
//! `deny.toml` says what is allowed, and cargo-deny goes by the same file. Building cargo-deny takes minutes, so what
//! needs neither it nor a network is checked here, every time. Advisories are left to `cargo xtask deny`.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::tree::{Finding, Tree};
use crate::shell::{self, cargo};

const POLICY: &str = "deny.toml";

/// The lists of crates of our workspaces.
const LOCKS: [&str; 2] = ["Cargo.lock", "fuzz/Cargo.lock"];

/// A crate that is built for this machine, and its licence as an expression of SPDX.
#[derive(Debug, Deserialize)]
pub(crate) struct LinkedCrate {
    name: String,
    version: String,
    license: Option<String>,
}

/// Returns the crates of the workspace that are built for this machine.
pub(crate) fn linked_crates(root: &Path) -> Result<Vec<LinkedCrate>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<LinkedCrate>,
    }

    let version = shell::read(std::process::Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    // Crates for other systems need not be on this machine.
    let mut metadata = cargo(&["metadata", "--locked", "--all-features", "--format-version=1"]);
    metadata.args(["--filter-platform", host.context("rustc does not name its host")?]);
    let json = shell::read(metadata.current_dir(root))?;
    let metadata: Metadata = serde_json::from_str(&json).context("cannot read cargo's metadata")?;
    Ok(metadata.packages)
}

/// Crates come from the registries that are allowed, and none is banned.
pub(crate) fn sources_and_bans(tree: &Tree) -> Vec<Finding> {
    let Some(policy) = tree.file(POLICY) else {
        return Vec::new();
    };
    let banned = list(&policy.text, "bans", "deny", |line| quoted_after(line, "crate ="));
    let registries = list(&policy.text, "sources", "allow-registry", |line| quoted_after(line, ""));
    let mut findings = Vec::new();
    for lock in LOCKS.iter().filter_map(|path| tree.file(path)) {
        for (number, line) in lock.lines() {
            if let Some(name) = line.strip_prefix("name = ").and_then(|rest| quoted_after(rest, ""))
                && banned.contains(name)
            {
                let message = format!("`{name}` is banned; {POLICY} says why");
                findings.push(lock.finding(number, message));
            }
            if let Some(source) =
                line.strip_prefix("source = ").and_then(|rest| quoted_after(rest, ""))
                && !source.strip_prefix("registry+").is_some_and(|url| registries.contains(url))
            {
                let message =
                    format!("comes from `{source}`; use a crate of a registry in {POLICY}");
                findings.push(lock.finding(number, message));
            }
        }
    }
    findings
}

/// Every crate that is built has a licence that is allowed.
pub(crate) fn licences(tree: &Tree) -> Vec<Finding> {
    let Some(policy) = tree.file(POLICY) else {
        return Vec::new();
    };
    let allowed = list(&policy.text, "licenses", "allow", |line| quoted_after(line, ""));
    let is_refused = |linked: &&LinkedCrate| {
        !linked.license.as_deref().is_some_and(|text| is_allowed(text, &allowed))
    };
    let finding = |linked: &LinkedCrate| {
        let LinkedCrate { name, version, license } = linked;
        let licence = license.as_deref().unwrap_or("none");
        let message = format!("`{name}` {version} has the licence `{licence}`; do without it");
        policy.finding(1, message)
    };
    tree.linked_crates().filter(is_refused).map(finding).collect()
}

/// The items of a list in a section of `deny.toml`. One may stand on a line by itself, or all on the line of the key.
fn list<'t>(
    text: &'t str,
    section: &str,
    key: &str,
    item: impl Fn(&'t str) -> Option<&'t str>,
) -> BTreeSet<&'t str> {
    let header = format!("[{section}]");
    let lines = text.lines().skip_while(|line| **line != header).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    let opening = format!("{key} = [");
    let mut lines = lines.skip_while(|line| !line.starts_with(&opening));
    let first = lines.next().map_or("", |line| &line[opening.len()..]);
    let rest = lines.take_while(|line| !line.starts_with(']'));
    let rest = rest.take(if first.contains(']') { 0 } else { usize::MAX });
    let lines = std::iter::once(first).chain(rest).map(str::trim_start);
    lines.filter(|line| !line.starts_with('#')).filter_map(item).collect()
}

/// The first text in quotes after `mark`.
fn quoted_after<'t>(line: &'t str, mark: &str) -> Option<&'t str> {
    let (_, rest) = line.split_once(mark)?;
    rest.split('"').nth(1)
}

/// Returns true if an expression such as `(MIT OR Apache-2.0) AND Unicode-3.0` can be met by the allowed licences.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    // Old manifests write a slash for OR.
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    is_met(&mut words, allowed) && words.next().is_none()
}

type Words<'w> = std::iter::Peekable<std::str::SplitWhitespace<'w>>;

/// Alternatives; AND binds closer than OR.
fn is_met(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    let mut is_any = are_all_met(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        is_any |= are_all_met(words, allowed);
    }
    is_any
}

fn are_all_met(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    let mut is_all = is_one_met(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        is_all &= is_one_met(words, allowed);
    }
    is_all
}

fn is_one_met(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    match words.next() {
        Some("(") => {
            let is_inner = is_met(words, allowed);
            is_inner && words.next() == Some(")")
        }
        Some(licence) if words.next_if_eq(&"WITH").is_some() => {
            let exception = words.next().unwrap_or_default();
            allowed.contains(format!("{licence} WITH {exception}").as_str())
        }
        Some(licence) => allowed.contains(licence),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENY: &str = r#"
[licenses]
# Permissive ones "only".
allow = [
    "MIT",
    # "GPL-3.0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "Unicode-3.0",
]
other = ["Zlib"]

[bans]
deny = [
    { crate = "rsa", reason = "its timing tells secrets" },
]

[sources]
allow-registry = ["https://github.com/rust-lang/crates.io-index"]
allow-git = []
"#;

    fn messages(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_banned_crate_and_a_foreign_source_are_found_in_every_lock() {
        let index = "registry+https://github.com/rust-lang/crates.io-index";
        let entry = |name: &str, source: &str| {
            format!("[[package]]\nname = \"{name}\"\nversion = \"1.0.0\"\nsource = \"{source}\"\n")
        };
        let ours = "[[package]]\nname = \"tollbar\"\nversion = \"0.1.0\"\n";
        let lock = [ours, &entry("serde", index), &entry("rsa", index)].concat();
        let fuzz = entry("x", "git+https://example.com/x#1")
            + &entry("y", "registry+https://evil.example/index");
        let tree = Tree::from_files(&[
            ("deny.toml", DENY),
            ("Cargo.lock", &lock),
            ("fuzz/Cargo.lock", &fuzz),
        ]);
        let expected = [
            "Cargo.lock:9: `rsa` is banned; deny.toml says why",
            "fuzz/Cargo.lock:4: comes from `git+https://example.com/x#1`; use a crate of a registry in deny.toml",
            "fuzz/Cargo.lock:8: comes from `registry+https://evil.example/index`; use a crate of a registry in deny.toml",
        ];
        assert_eq!(messages(&sources_and_bans(&tree)), expected);
    }

    #[test]
    fn a_licence_is_an_expression() {
        let allowed = list(DENY, "licenses", "allow", |line| quoted_after(line, ""));
        for (expression, expected) in [
            ("MIT", true),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0 OR MIT", true),
            ("MIT/Apache-2.0", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
            ("(MIT OR GPL-3.0) AND Zlib", false),
            ("GPL-3.0 OR MIT AND Zlib", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH LLVM-exception", false),
            ("GPL-3.0", false),
            ("(MIT", false),
            ("MIT)", false),
            ("MIT Apache-2.0", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
        }
    }

    #[test]
    fn a_crate_without_a_licence_that_is_allowed_is_found() {
        let linked = |name: &str, license: Option<&str>| LinkedCrate {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: license.map(str::to_owned),
        };
        let crates =
            vec![linked("a", Some("MIT")), linked("b", None), linked("c", Some("AGPL-3.0"))];
        let tree = Tree::from_files(&[("deny.toml", DENY)]).with_linked_crates(crates);
        let expected = [
            "deny.toml:1: `b` 1.0.0 has the licence `none`; do without it",
            "deny.toml:1: `c` 1.0.0 has the licence `AGPL-3.0`; do without it",
        ];
        assert_eq!(messages(&licences(&tree)), expected);
    }

    /// The file that is in force is read as cargo-deny reads it.
    #[test]
    fn the_lists_of_this_repository_are_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = std::fs::read_to_string(root.join(POLICY)).unwrap();
        let allowed = list(&text, "licenses", "allow", |line| quoted_after(line, ""));
        assert!(allowed.contains("MIT") && allowed.contains("Zlib") && allowed.len() > 10);
        let banned = list(&text, "bans", "deny", |line| quoted_after(line, "crate ="));
        assert!(banned.contains("rsa") && banned.contains("openssl-sys"), "{banned:?}");
        let registries = list(&text, "sources", "allow-registry", |line| quoted_after(line, ""));
        assert_eq!(registries.len(), 1);
    }
}
