//! What holds for every text file: clean whitespace, and no trace of the machine it was written on.

use super::tree::{File, Finding, Tree};

/// Written by cargo, which puts there what it needs.
const LOCKFILE: &str = "Cargo.lock";

/// Inputs of fuzz targets, byte for byte.
const SEEDS: &str = "fuzz/seeds/";

/// Tabs, spaces at the end of a line, and a missing newline at the end of a file.
pub(crate) fn whitespace(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files().filter(|file| !file.path.starts_with(SEEDS)) {
        for (number, line) in file.lines() {
            if line.contains('\t') {
                findings.push(file.finding(number, "a tab; write spaces"));
            }
            if line.ends_with(char::is_whitespace) {
                findings.push(file.finding(number, "space at the end of the line; delete it"));
            }
        }
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            let last = 1 + file.text.matches('\n').count();
            findings.push(file.finding(last, "no newline at the end of the file; add one"));
        }
    }
    findings
}

/// Paths that exist on one machine only.
pub(crate) fn machine_paths(tree: &Tree) -> Vec<Finding> {
    by_line(tree, |_, line| {
        let path = machine_path(line)?;
        Some(format!("`{path}` is a path of one machine; write it relative to the repository"))
    })
}

/// Addresses of package mirrors: everything comes from where everybody gets it.
pub(crate) fn mirrors(tree: &Tree) -> Vec<Finding> {
    by_line(tree, |file, line| {
        if file.has_extension("toml") && line.trim_start().starts_with("replace-with") {
            return Some("replaces a package source; keep that in your own cargo home".to_owned());
        }
        let host = mirror_host(line)?;
        Some(format!("`{host}` is a package mirror; name the package and not where it was got"))
    })
}

fn by_line(tree: &Tree, check: impl Fn(&File, &str) -> Option<String>) -> Vec<Finding> {
    let files = tree.files().filter(|file| file.name() != LOCKFILE);
    files
        .flat_map(|file| {
            let findings =
                file.lines().filter_map(|(number, line)| Some((number, check(file, line)?)));
            findings.map(|(number, message)| file.finding(number, message)).collect::<Vec<_>>()
        })
        .collect()
}

fn machine_path(line: &str) -> Option<&str> {
    line.match_indices('/').find_map(|(start, _)| {
        // `a/root/b`, `$DIR/root/` and `https://root/` are no absolute paths.
        let before = line[..start].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || "/_.~-$})>*".contains(c)) {
            return None;
        }
        let rest = &line[start + 1..];
        let (top, below) = rest.split_once('/')?;
        let named = match top {
            "work" | "root" => top.len(),
            "home" | "Users" => {
                let (user, _) = below.split_once('/')?;
                let is_name = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
                if user.is_empty() || !user.chars().all(is_name) {
                    return None;
                }
                top.len() + 1 + user.len()
            }
            _ => return None,
        };
        // With the slashes on both sides.
        Some(&line[start..=start + 1 + named])
    })
}

fn mirror_host(line: &str) -> Option<&str> {
    const MIRROR_WORDS: &[&str] = &["mirror", "artifactory", "nexus", "rsproxy"];
    const SEPARATOR: &str = "://";
    line.match_indices(SEPARATOR).find_map(|(at, _)| {
        let after = &line[at + SEPARATOR.len()..];
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-.@:".contains(c);
        let host = &after[..after.find(|c| !is_host(c)).unwrap_or(after.len())];
        let lower = host.to_lowercase();
        let named_so = MIRROR_WORDS.iter().any(|word| lower.contains(word));
        let is_sparse =
            ["sparse+https", "sparse+http"].iter().any(|scheme| line[..at].ends_with(scheme));
        (named_so || (is_sparse && lower != "index.crates.io")).then_some(host)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Samples are put together from parts, or this file would be a finding itself.

    fn messages(findings: &[Finding]) -> Vec<(usize, &str)> {
        findings.iter().map(|finding| (finding.line, finding.message.as_str())).collect()
    }

    #[test]
    fn unclean_whitespace_is_found_with_its_line() {
        let tree = Tree::from_files(&[("a.md", "fine\n\tx\ny \nz\r\nend")]);
        let expected = [
            (2, "a tab; write spaces"),
            (3, "space at the end of the line; delete it"),
            (4, "space at the end of the line; delete it"),
            (5, "no newline at the end of the file; add one"),
        ];
        assert_eq!(messages(&whitespace(&tree)), expected);
        let clean = [("a.md", "fine\n\nend\n"), ("empty", ""), ("fuzz/seeds/path/a", "x \r\n\ty")];
        assert_eq!(whitespace(&Tree::from_files(&clean)), []);
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        let cases = [
            (concat!("see /wo", "rk/notes.md"), concat!("/wo", "rk/")),
            (concat!("`/ro", "ot/.cargo`"), concat!("/ro", "ot/")),
            (concat!("cd /ho", "me/ann/src"), concat!("/ho", "me/ann/")),
            (concat!("\"/Us", "ers/ann/src\""), concat!("/Us", "ers/ann/")),
            (concat!("file:///etc and /ro", "ot/x"), concat!("/ro", "ot/")),
        ];
        for (line, path) in cases {
            assert_eq!(machine_path(line), Some(path), "{line}");
        }
    }

    #[test]
    fn other_paths_are_left_alone() {
        let lines = [
            "/etc/hosts",
            "target/root/x",
            "https://example.com/work/x",
            "https://work/x",
            "$HOME/work/x",
            "the /work of many",
            "/home/<name>/src",
            "GET /home",
        ];
        for line in lines {
            assert_eq!(machine_path(line), None, "{line}");
        }
    }

    #[test]
    fn the_lockfile_may_name_any_source() {
        let line = concat!("path = \"/ro", "ot/x\"\n");
        let tree =
            Tree::from_files(&[("Cargo.lock", line), ("fuzz/Cargo.lock", line), ("a.toml", line)]);
        let findings = machine_paths(&tree);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].path, "a.toml");
    }

    #[test]
    fn mirrors_are_found_and_the_public_registry_is_not_one() {
        let cases = [
            (concat!("deb http:", "//mirror.example.net/debian stable main"), true),
            (concat!("index = \"https:", "//artifactory.example.com/api/crates\""), true),
            (concat!("registry = \"sparse+https:", "//packages.example.com/crates/\""), true),
            ("registry = \"sparse+https://index.crates.io/\"", false),
            ("https://github.com/rust-lang/crates.io-index", false),
            ("https://docs.rs/loom", false),
            ("the second table mirrors the first", false),
        ];
        for (line, is_mirror) in cases {
            assert_eq!(mirror_host(line).is_some(), is_mirror, "{line}");
        }
    }

    #[test]
    fn a_replaced_package_source_is_found_in_settings_only() {
        let text = "[source.crates-io]\nreplace-with = \"other\"\n";
        let tree = Tree::from_files(&[(".cargo/config.toml", text), ("notes.md", text)]);
        let findings = mirrors(&tree);
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].path.as_str(), findings[0].line), (".cargo/config.toml", 2));
    }
}
