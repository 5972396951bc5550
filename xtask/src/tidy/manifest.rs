//! What holds for the manifests: shared lints, dependencies that point down, peers kept apart.
//!
//! Reads the part of TOML that our manifests use, line by line. Which crates exist and whether
//! versions fit is cargo's business.

use std::collections::BTreeSet;

use super::tree::{File, Finding, Tree};

/// Each crate of the workspace, and those it may depend on.
const LAYERS: &[(&str, &[&str])] = &[
    ("tollbar", &[]),
    ("tollbar-proto", &[]),
    ("tollbar-redis", &["tollbar"]),
    ("tollbar-rules", &["tollbar"]),
    ("tollbar-http", &["tollbar", "tollbar-rules"]),
    ("tollbar-gateway", &["tollbar", "tollbar-http", "tollbar-rules"]),
    (
        "tollbar-server",
        &[
            "tollbar",
            "tollbar-gateway",
            "tollbar-http",
            "tollbar-proto",
            "tollbar-redis",
            "tollbar-rules",
        ],
    ),
    ("tollbar-testkit", &["tollbar"]),
    (
        "tollbar-bench",
        &[
            "tollbar",
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

/// The store that whatever is built upon rules may be tested over.
const TESTED_OVER: &str = "tollbar-redis";

/// Other limiters: measured against, never built upon.
const PEERS: &[&str] =
    &["governor", "leaky-bucket", "limitador", "ratelimit", "throttlecrab", "tower_governor"];
const PEERS_PLACE: &str = "crates/bench/";

/// Every crate takes its lints from the workspace.
pub(crate) fn lints(tree: &Tree) -> Vec<Finding> {
    manifests(tree)
        .filter(|(_, manifest)| manifest.package.is_some() && !manifest.is_workspace)
        .filter(|(_, manifest)| !manifest.has_workspace_lints)
        .map(|(file, _)| {
            file.finding(1, "has lints of its own; write `[lints]` and `workspace = true`")
        })
        .collect()
}

/// Dependencies between our crates point one way.
pub(crate) fn layers(tree: &Tree) -> Vec<Finding> {
    let ours: BTreeSet<String> =
        manifests(tree).filter_map(|(_, manifest)| manifest.package).collect();
    let mut findings = Vec::new();
    for (file, manifest) in manifests(tree) {
        let Some(name) = manifest.package.as_deref() else {
            continue;
        };
        // A workspace of its own, such as the fuzz targets, stands above all layers.
        if manifest.is_workspace {
            continue;
        }
        let Some((_, below)) = LAYERS.iter().find(|(known, _)| *known == name) else {
            let message = format!("`{name}` has no layer; add it to LAYERS in xtask's manifest.rs");
            findings.push(file.finding(1, message));
            continue;
        };
        for dependency in &manifest.dependencies {
            let target = dependency.name.as_str();
            let is_judge = dependency.is_dev && target == TESTKIT;
            // Tests ask for features of their own crate in this way.
            let is_itself = dependency.is_dev && target == name;
            let is_upon_rules = below.contains(&"tollbar-rules");
            let is_tested_over = dependency.is_dev && target == TESTED_OVER && is_upon_rules;
            let is_allowed = below.contains(&target) || is_judge || is_itself || is_tested_over;
            if ours.contains(target) && !is_allowed {
                let message = format!("`{name}` may not depend on `{target}`; point the other way");
                findings.push(file.finding(dependency.line, message));
            }
        }
    }
    findings
}

/// The limiters we compare with are dependencies of the benchmarks alone.
pub(crate) fn peers(tree: &Tree) -> Vec<Finding> {
    manifests(tree)
        .filter(|(file, _)| !file.path.starts_with(PEERS_PLACE))
        .flat_map(|(file, manifest)| {
            let peers = manifest
                .dependencies
                .into_iter()
                .filter(|dependency| PEERS.contains(&dependency.name.as_str()));
            peers
                .map(|peer| {
                    let message =
                        format!("`{}` is a peer; only crates/bench may use it", peer.name);
                    file.finding(peer.line, message)
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

fn manifests(tree: &Tree) -> impl Iterator<Item = (&File, Manifest)> {
    tree.files().filter(|file| file.name() == "Cargo.toml").map(|file| (file, Manifest::read(file)))
}

#[derive(Debug, Default)]
struct Manifest {
    package: Option<String>,
    is_workspace: bool,
    has_workspace_lints: bool,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, PartialEq, Eq)]
struct Dependency {
    name: String,
    line: usize,
    is_dev: bool,
}

impl Manifest {
    fn read(file: &File) -> Self {
        let mut manifest = Self::default();
        let mut section: Vec<String> = Vec::new();
        let mut depth = 0_usize;
        for (number, line) in file.lines() {
            let line = line.trim();
            let within_value = depth > 0;
            depth = (depth + line.matches(['[', '{']).count())
                .saturating_sub(line.matches([']', '}']).count());
            if within_value || line.starts_with('#') {
                continue;
            }
            if let Some(header) = line.strip_prefix('[') {
                section = key_parts(header.split(']').next().unwrap_or_default());
                manifest.enter(&section, number);
            } else if let Some((key, value)) = line.split_once('=') {
                manifest.set(&section, &key_parts(key), value.trim(), number);
            }
        }
        manifest
    }

    fn enter(&mut self, section: &[String], line: usize) {
        self.is_workspace |= section.first().is_some_and(|it| it == "workspace");
        // `[dependencies.name]`
        if let [above @ .., name] = section
            && let Some(is_dev) = dependencies_kind(above)
        {
            self.dependencies.push(Dependency { name: name.clone(), line, is_dev });
        }
    }

    fn set(&mut self, section: &[String], key: &[String], value: &str, line: usize) {
        let full: Vec<&str> = section.iter().chain(key).map(String::as_str).collect();
        match full[..] {
            ["package", "name"] => self.package = quoted(value),
            ["lints", "workspace"] => self.has_workspace_lints = value.starts_with("true"),
            _ => {}
        }
        if let Some(is_dev) = dependencies_kind(section)
            && let Some(name) = key.first()
        {
            // `alias = { package = "name" }`
            let real = value.split_once("package").and_then(|(_, rest)| quoted(rest));
            let name = real.unwrap_or_else(|| name.clone());
            self.dependencies.push(Dependency { name, line, is_dev });
        } else if let [above @ .., _] = section
            && dependencies_kind(above).is_some()
            && key == ["package"]
            && let Some(dependency) = self.dependencies.last_mut()
            && let Some(real) = quoted(value)
        {
            dependency.name = real;
        }
    }
}

/// Whether a table holds dependencies of a crate, and if so whether they are those of its tests.
/// The table of a workspace only says versions: nothing depends on anything by it.
fn dependencies_kind(section: &[String]) -> Option<bool> {
    let is_workspace = section.first().is_some_and(|it| it == "workspace");
    match section.last()?.as_str() {
        _ if is_workspace => None,
        "dependencies" | "build-dependencies" => Some(false),
        "dev-dependencies" => Some(true),
        _ => None,
    }
}

/// `target.'cfg(unix)'.dependencies` as its three parts.
fn key_parts(key: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quote = None;
    for character in key.trim().chars() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, '.') => parts.push(String::new()),
            (None, ' ') => {}
            _ => {
                if let Some(part) = parts.last_mut() {
                    part.push(character);
                }
            }
        }
    }
    parts
}

/// What stands between the first two double quotes.
fn quoted(value: &str) -> Option<String> {
    value.split('"').nth(1).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINTS: &str = "\n[lints]\nworkspace = true\n";

    fn messages(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }

    fn package(name: &str, rest: &str) -> String {
        format!("[package]\nname = \"{name}\"\n{rest}")
    }

    #[test]
    fn dependencies_are_read_in_every_way_we_write_them() {
        let text = r#"
[package]
name = "a"
[package.metadata.docs.rs]
all-features = true
[dependencies]
# comment = "1"
one = "1"
two.workspace = true
alias = { version = "1", package = "three" }
four = { version = "1", features = [
    "x = y",
] }
[target.'cfg(target_os = "linux")'.dependencies]
five = "1"
[dev-dependencies.six]
version = "1"
[build-dependencies.alias]
package = "seven"
[features]
one = []
"#;
        let tree = Tree::of(&[("Cargo.toml", text)]);
        let manifest = Manifest::read(tree.file("Cargo.toml").expect("it was put there"));
        assert_eq!(manifest.package.as_deref(), Some("a"));
        assert!(!manifest.is_workspace && !manifest.has_workspace_lints);
        let read: Vec<(&str, usize, bool)> =
            manifest.dependencies.iter().map(|it| (it.name.as_str(), it.line, it.is_dev)).collect();
        let expected = [
            ("one", 8, false),
            ("two", 9, false),
            ("three", 10, false),
            ("four", 11, false),
            ("five", 15, false),
            ("six", 16, true),
            ("seven", 18, false),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn crates_without_the_shared_lints_are_found() {
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace]\nmembers = []\n"),
            ("fuzz/Cargo.toml", "[workspace]\n[package]\nname = \"fuzz\"\n"),
            ("crates/a/Cargo.toml", &package("a", LINTS)),
            ("crates/b/Cargo.toml", &package("b", "lints.workspace = true\n")),
            ("crates/c/Cargo.toml", &package("c", "\n[lints]\nworkspace = false\n")),
        ]);
        let expected = [
            // In [package], so the dotted key means `package.lints`, which cargo ignores.
            "crates/b/Cargo.toml:1: has lints of its own; write `[lints]` and `workspace = true`",
            "crates/c/Cargo.toml:1: has lints of its own; write `[lints]` and `workspace = true`",
        ];
        assert_eq!(messages(&lints(&tree)), expected);
    }

    #[test]
    fn dependencies_point_down_and_only_tests_see_the_testkit() {
        let tree = Tree::of(&[
            (
                "crates/tollbar/Cargo.toml",
                &package(
                    "tollbar",
                    "[dev-dependencies]\ntollbar-testkit.workspace = true\ntollbar.workspace = true\n",
                ),
            ),
            (
                "crates/tollbar-testkit/Cargo.toml",
                &package("tollbar-testkit", "[dependencies]\ntollbar = \"1\"\nxtask = \"1\"\n"),
            ),
            (
                "xtask/Cargo.toml",
                &package("xtask", "[dependencies]\nserde_json = \"1\"\ntollbar-testkit = \"1\"\n"),
            ),
            ("crates/new/Cargo.toml", &package("tollbar-new", "")),
        ]);
        let expected = [
            "crates/tollbar-testkit/Cargo.toml:5: `tollbar-testkit` may not depend on `xtask`; \
             point the other way",
            "xtask/Cargo.toml:5: `xtask` may not depend on `tollbar-testkit`; point the other way",
            "crates/new/Cargo.toml:1: `tollbar-new` has no layer; add it to LAYERS in xtask's \
             manifest.rs",
        ];
        assert_eq!(messages(&layers(&tree)), expected);
    }

    #[test]
    fn peers_are_for_the_benchmarks() {
        let uses = "[dependencies]\ngovernor = \"0.10\"\n";
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace.dependencies]\ngovernor = \"0.10\"\n"),
            ("crates/bench/Cargo.toml", &package("tollbar-bench", uses)),
            ("crates/tollbar/Cargo.toml", &package("tollbar", uses)),
        ]);
        let expected =
            ["crates/tollbar/Cargo.toml:4: `governor` is a peer; only crates/bench may use it"];
        assert_eq!(messages(&peers(&tree)), expected);
    }
}
