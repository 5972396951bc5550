//! What holds for the manifests: shared lints, dependencies that point down, peers kept apart.
//!
//! Cargo reads them: `cargo metadata` says which crates exist and what they depend on. Only the lints it does not
//! tell, and those are two lines of text.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::tree::{Finding, Tree};
use crate::shell::{self, cargo};

/// Each crate of the workspace, and those it may depend on.
const LAYERS: &[(&str, &[&str])] = &[
    ("tollbar", &[]),
    ("tollbar-tls", &[]),
    ("tollbar-proto", &["tollbar-tls"]),
    ("tollbar-redis", &["tollbar", "tollbar-tls"]),
    ("tollbar-fleet", &["tollbar"]),
    ("tollbar-rules", &["tollbar"]),
    ("tollbar-http", &["tollbar", "tollbar-rules"]),
    ("tollbar-gateway", &["tollbar", "tollbar-http", "tollbar-rules", "tollbar-tls"]),
    (
        "tollbar-daemon",
        &[
            "tollbar",
            "tollbar-fleet",
            "tollbar-gateway",
            "tollbar-http",
            "tollbar-proto",
            "tollbar-redis",
            "tollbar-rules",
            "tollbar-tls",
        ],
    ),
    ("tollbar-admin", &["tollbar", "tollbar-daemon", "tollbar-rules", "tollbar-tls"]),
    (
        "tollbar-cli",
        // The gateway, the layer and the gRPC client are for its tests, which speak to the daemon over all of them.
        &[
            "tollbar",
            "tollbar-admin",
            "tollbar-daemon",
            "tollbar-gateway",
            "tollbar-http",
            "tollbar-proto",
            "tollbar-rules",
            "tollbar-tls",
        ],
    ),
    ("tollbar-testkit", &["tollbar"]),
    (
        "tollbar-bench",
        &[
            "tollbar",
            "tollbar-fleet",
            "tollbar-http",
            "tollbar-proto",
            "tollbar-redis",
            "tollbar-rules",
            "tollbar-testkit",
        ],
    ),
    (
        "tollbar-examples",
        &["tollbar", "tollbar-http", "tollbar-proto", "tollbar-redis", "tollbar-rules"],
    ),
    ("xtask", &[]),
];

/// Any crate may be judged by it, in its tests.
const TESTKIT: &str = "tollbar-testkit";

/// The store that whatever is built upon rules, or upon another store, may be tested over.
const TESTED_OVER: &str = "tollbar-redis";

/// A crate whose tests hold the bounds that rules state against what it does.
const JUDGED_BY_RULES: (&str, &str) = ("tollbar-fleet", "tollbar-rules");

/// Other limiters: measured against, never built upon.
const PEERS: &[&str] =
    &["governor", "leaky-bucket", "limitador", "ratelimit", "throttlecrab", "tower_governor"];
const PEERS_PLACE: &str = "crates/bench/";

/// A workspace of its own.
const FUZZ: &str = "fuzz/Cargo.toml";

/// A crate, and what it depends on.
#[derive(Debug)]
pub(crate) struct Package {
    name: String,
    /// Its manifest, relative to the repository.
    path: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, PartialEq, Eq)]
struct Dependency {
    name: String,
    is_dev: bool,
}

/// The crates of the workspace whose manifest is at `manifest`.
pub(crate) fn packages(root: &Path, manifest: &str) -> Result<Vec<Package>> {
    let mut metadata = cargo(&["metadata", "--no-deps", "--format-version=1", "--manifest-path"]);
    let json = shell::read(metadata.arg(root.join(manifest)).current_dir(root))?;
    parse(&json, root).with_context(|| format!("cannot read what cargo says of {manifest}"))
}

fn parse(json: &str, root: &Path) -> Result<Vec<Package>> {
    let metadata: Metadata = serde_json::from_str(json)?;
    let packages = metadata.packages.into_iter().map(|package| {
        let path = package.manifest_path.strip_prefix(root).unwrap_or(&package.manifest_path);
        let dependencies = package.dependencies.into_iter().map(|dependency| Dependency {
            name: dependency.name,
            is_dev: dependency.kind.as_deref() == Some("dev"),
        });
        Package {
            name: package.name,
            path: path.to_string_lossy().replace('\\', "/"),
            dependencies: dependencies.collect(),
        }
    });
    Ok(packages.collect())
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<MetadataPackage>,
}

#[derive(Deserialize)]
struct MetadataPackage {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<MetadataDependency>,
}

#[derive(Deserialize)]
struct MetadataDependency {
    name: String,
    kind: Option<String>,
}

impl Package {
    /// At the line of the manifest that names `needle`, or else its first.
    fn finding(&self, tree: &Tree, needle: &str, message: String) -> Finding {
        let file = tree.file(&self.path);
        let line = file.and_then(|file| file.lines().find(|(_, line)| line.contains(needle)));
        Finding { path: self.path.clone(), line: line.map_or(1, |(number, _)| number), message }
    }
}

/// Every crate takes its lints from the workspace.
pub(crate) fn lints(tree: &Tree) -> Vec<Finding> {
    let inherits = |package: &Package| {
        let text = tree.file(&package.path).map_or("", |file| &file.text);
        text.contains("\n[lints]\nworkspace = true\n")
    };
    tree.packages()
        .filter(|package| package.path != FUZZ && !inherits(package))
        .map(|package| {
            let message = "has lints of its own; write `[lints]` and `workspace = true`";
            package.finding(tree, "[lints]", message.to_owned())
        })
        .collect()
}

/// Dependencies between our crates point one way.
pub(crate) fn layers(tree: &Tree) -> Vec<Finding> {
    let ours: BTreeSet<&str> = tree.packages().map(|package| &*package.name).collect();
    let mut findings = Vec::new();
    // The fuzz targets are a workspace of their own and stand above all layers.
    for package in tree.packages().filter(|package| package.path != FUZZ) {
        let name = package.name.as_str();
        let Some((_, below)) = LAYERS.iter().find(|(known, _)| *known == name) else {
            let message = format!("`{name}` has no layer; add it to LAYERS in xtask's manifest.rs");
            findings.push(package.finding(tree, "name = ", message));
            continue;
        };
        for dependency in &package.dependencies {
            let target = dependency.name.as_str();
            let is_judge = dependency.is_dev && target == TESTKIT;
            // Tests ask for features of their own crate in this way.
            let is_itself = dependency.is_dev && target == name;
            let is_upon_rules = below.contains(&"tollbar-rules") || name == "tollbar-fleet";
            let is_tested_over = dependency.is_dev && target == TESTED_OVER && is_upon_rules;
            let is_judged_by_rules = dependency.is_dev && (name, target) == JUDGED_BY_RULES;
            let is_tested_with = is_judge || is_itself || is_tested_over || is_judged_by_rules;
            let is_allowed = below.contains(&target) || is_tested_with;
            if ours.contains(target) && !is_allowed {
                let message = format!("`{name}` may not depend on `{target}`; point the other way");
                findings.push(package.finding(tree, target, message));
            }
        }
    }
    findings
}

/// The limiters we compare with are dependencies of the benchmarks alone.
pub(crate) fn peers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in tree.packages().filter(|package| !package.path.starts_with(PEERS_PLACE)) {
        for Dependency { name, .. } in &package.dependencies {
            if PEERS.contains(&name.as_str()) {
                let message = format!("`{name}` is a peer; only crates/bench may use it");
                findings.push(package.finding(tree, name, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }

    /// A crate in `directory`, with these dependencies.
    fn package(directory: &str, name: &str, dependencies: &[(&str, bool)]) -> Package {
        let dependencies = dependencies
            .iter()
            .map(|(name, is_dev)| Dependency { name: (*name).to_owned(), is_dev: *is_dev })
            .collect();
        Package { name: name.to_owned(), path: format!("{directory}/Cargo.toml"), dependencies }
    }

    #[test]
    fn crates_and_dependencies_are_read_as_cargo_tells_them() {
        let json = r#"{ "packages": [{
            "name": "a", "version": "1.0.0", "manifest_path": "/repository/crates/a/Cargo.toml",
            "dependencies": [
                { "name": "one", "kind": null, "rename": "alias" },
                { "name": "two", "kind": "dev", "rename": null },
                { "name": "three", "kind": "build", "rename": null }
            ] }], "workspace_members": [] }"#;
        let read = parse(json, Path::new("/repository")).unwrap();
        let dependencies = [("one", false), ("two", true), ("three", false)];
        let expected = package("crates/a", "a", &dependencies);
        assert_eq!((read.len(), &read[0].name, &read[0].path), (1, &expected.name, &expected.path));
        assert_eq!(read[0].dependencies, expected.dependencies);
        assert!(parse("{}", Path::new("/")).is_err());
    }

    #[test]
    fn crates_without_the_shared_lints_are_found() {
        let tree = Tree::from_files(&[
            ("fuzz/Cargo.toml", "[workspace]\n"),
            ("crates/a/Cargo.toml", "[package]\n\n[lints]\nworkspace = true\n"),
            ("crates/b/Cargo.toml", "[package]\nlints.workspace = true\n"),
            ("crates/c/Cargo.toml", "[package]\n\n[lints]\nworkspace = false\n"),
        ]);
        let tree = tree.with_packages(vec![
            package("fuzz", "fuzz", &[]),
            package("crates/a", "a", &[]),
            package("crates/b", "b", &[]),
            package("crates/c", "c", &[]),
        ]);
        let expected = [
            // In [package], so the dotted key means `package.lints`, which cargo ignores.
            "crates/b/Cargo.toml:1: has lints of its own; write `[lints]` and `workspace = true`",
            "crates/c/Cargo.toml:3: has lints of its own; write `[lints]` and `workspace = true`",
        ];
        assert_eq!(messages(&lints(&tree)), expected);
    }

    #[test]
    fn dependencies_point_down_and_only_tests_see_the_testkit() {
        let tree = Tree::from_files(&[(
            "xtask/Cargo.toml",
            "[dependencies]\n\ntollbar-testkit = \"1\"\n",
        )]);
        let tree = tree.with_packages(vec![
            package("crates/tollbar", "tollbar", &[("tollbar-testkit", true), ("tollbar", true)]),
            package("crates/t", "tollbar-testkit", &[("tollbar", false), ("xtask", false)]),
            package("xtask", "xtask", &[("serde_json", false), ("tollbar-testkit", false)]),
            package("crates/new", "tollbar-new", &[]),
            package("crates/f", "tollbar-fleet", &[("tollbar-rules", true)]),
            package("fuzz", "tollbar-fuzz", &[("xtask", false)]),
        ]);
        let expected = [
            "crates/t/Cargo.toml:1: `tollbar-testkit` may not depend on `xtask`; point the other way",
            "xtask/Cargo.toml:3: `xtask` may not depend on `tollbar-testkit`; point the other way",
            "crates/new/Cargo.toml:1: `tollbar-new` has no layer; add it to LAYERS in xtask's \
             manifest.rs",
        ];
        assert_eq!(messages(&layers(&tree)), expected);
    }

    #[test]
    fn peers_are_for_the_benchmarks() {
        let uses = [("governor", false)];
        let tree = Tree::default().with_packages(vec![
            package("crates/bench", "tollbar-bench", &uses),
            package("crates/tollbar", "tollbar", &uses),
            package("fuzz", "tollbar-fuzz", &uses),
        ]);
        let expected = [
            "crates/tollbar/Cargo.toml:1: `governor` is a peer; only crates/bench may use it",
            "fuzz/Cargo.toml:1: `governor` is a peer; only crates/bench may use it",
        ];
        assert_eq!(messages(&peers(&tree)), expected);
    }
}
