//! `cargo xtask tidy`: the rules of STYLE.md that a program can hold us to.
//!
//! Checks read text and know nothing of types; what rustc, clippy or rustfmt can check is left to
//! them. Each check is a function from a [`Tree`] to findings, and is listed in [`CHECKS`].

mod dependencies;
mod docs;
mod manifest;
mod source;
mod structure;
mod text;
mod tree;

use std::path::Path;

use anyhow::{Result, bail};

use crate::debian::{self, DebianPackage};

use tree::{Finding, Tree};

const PACKAGES: &[DebianPackage] = &[DebianPackage { name: "git", probe: &["git", "--version"] }];

/// Every check. A new one is a function and a line here.
const CHECKS: &[fn(&Tree) -> Vec<Finding>] = &[
    text::whitespace,
    text::machine_paths,
    text::mirrors,
    source::opening,
    source::length,
    source::unsafe_places,
    source::ignored_tests,
    structure::module_cycles,
    structure::type_names,
    manifest::lints,
    manifest::layers,
    manifest::peers,
    dependencies::sources_and_bans,
    dependencies::licences,
    docs::decisions,
    docs::links,
    docs::changelog,
];

pub(crate) fn run(root: &Path) -> Result<()> {
    debian::ensure(PACKAGES)?;
    let tree = Tree::from_repository(root)?;
    let findings = findings(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("tidy: {} to put right in {} files", findings.len(), tree.file_count());
    }
    println!("tidy: {} files, {} checks, nothing to do", tree.file_count(), CHECKS.len());
    Ok(())
}

fn findings(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> = CHECKS.iter().flat_map(|check| check(tree)).collect();
    findings.sort();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tidy_tree_has_no_findings_and_others_are_sorted_by_place() {
        let changelog = ("CHANGELOG.md", "# Changes\n\n## Unreleased\n");
        let tidy = Tree::from_files(&[("crates/tollbar/src/lib.rs", "//! A crate.\n"), changelog]);
        assert_eq!(findings(&tidy), []);

        let untidy = Tree::from_files(&[
            ("crates/tollbar/src/lib.rs", "fn a() {\n    #[ignore] \n}\n"),
            ("crates/tollbar/src/a.rs", "fn a() {}\n"),
            changelog,
        ]);
        let places: Vec<(String, usize)> =
            findings(&untidy).into_iter().map(|finding| (finding.path, finding.line)).collect();
        let lib = || "crates/tollbar/src/lib.rs".to_owned();
        let expected =
            [("crates/tollbar/src/a.rs".to_owned(), 1), (lib(), 1), (lib(), 2), (lib(), 2)];
        assert_eq!(places, expected);
    }
}
