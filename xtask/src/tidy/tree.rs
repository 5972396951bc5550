//! The files that tidy looks at, and what it says about them.
//!
//! A [`Tree`] is plain data: checks never touch the disk, so their tests need none.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::dependencies::{self, LinkedCrate};
use super::manifest::{self, Package};
use crate::shell;

/// One text file. `path` is relative to the repository, with `/` between its parts.
#[derive(Debug, Clone)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    pub(crate) fn is_rust(&self) -> bool {
        self.has_extension("rs")
    }

    pub(crate) fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|ending| ending == extension)
    }

    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Lines with their numbers, counted from 1. Unlike `str::lines`, keeps a carriage return.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let body = self.text.strip_suffix('\n').unwrap_or(&self.text);
        body.split('\n').enumerate().map(|(index, line)| (index + 1, line))
    }

    pub(crate) fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, message: message.into() }
    }
}

/// Something to put right: where, what is wrong, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// The text files of the repository, the paths of all its files, its crates, and all crates that are built with them.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: Vec<File>,
    paths: BTreeSet<String>,
    packages: Vec<Package>,
    linked_crates: Vec<LinkedCrate>,
}

impl Tree {
    /// What git tracks or would track: a new file is checked before it is added.
    pub(crate) fn from_repository(root: &Path) -> Result<Self> {
        let mut list = Command::new("git");
        // CI often runs as another user than the one who owns the checkout. Git then refuses, to
        // protect from a stranger's settings; we are about to run this checkout's code anyway.
        list.args(["-c", "safe.directory=*"]);
        list.args(["ls-files", "-z", "--cached", "--others"]);
        list.arg("--exclude-standard");
        let listing = shell::read(list.current_dir(root))?;

        let mut tree = Self::default();
        for path in listing.split_terminator('\0') {
            let on_disk = root.join(path);
            // Git lists a file that was deleted and not yet staged, and a submodule as one path.
            if !on_disk.is_file() {
                continue;
            }
            let bytes = std::fs::read(&on_disk).with_context(|| format!("cannot read {path}"))?;
            tree.add(path, bytes);
        }
        for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
            tree.packages.extend(manifest::packages(root, manifest)?);
        }
        tree.linked_crates = dependencies::linked_crates(root)?;
        Ok(tree)
    }

    /// A made-up tree.
    #[cfg(test)]
    pub(crate) fn from_files(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.add(path, text.as_bytes().to_vec());
        }
        tree
    }

    /// A made-up tree with these crates.
    #[cfg(test)]
    pub(crate) fn with_packages(self, packages: Vec<Package>) -> Self {
        Self { packages, ..self }
    }

    /// A made-up tree with these crates that are built.
    #[cfg(test)]
    pub(crate) fn with_linked_crates(self, linked_crates: Vec<LinkedCrate>) -> Self {
        Self { linked_crates, ..self }
    }

    fn add(&mut self, path: &str, bytes: Vec<u8>) {
        // The index lists a file in conflict once per side.
        if !self.paths.insert(path.to_owned()) || bytes.contains(&0) {
            return;
        }
        if let Ok(text) = String::from_utf8(bytes) {
            self.files.push(File { path: path.to_owned(), text });
        }
    }

    pub(crate) fn packages(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter()
    }

    pub(crate) fn linked_crates(&self) -> impl Iterator<Item = &LinkedCrate> {
        self.linked_crates.iter()
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &File> {
        self.files.iter()
    }

    pub(crate) fn rust_files(&self) -> impl Iterator<Item = &File> {
        self.files().filter(|file| file.is_rust())
    }

    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files().find(|file| file.path == path)
    }

    pub(crate) fn file_count(&self) -> usize {
        self.paths.len()
    }

    /// Whether `path` is a file here, or a directory with a file in it. `""` is the root.
    pub(crate) fn has(&self, path: &str) -> bool {
        let directory = format!("{path}/");
        path.is_empty()
            || self.paths.contains(path)
            || self
                .paths
                .range(directory.clone()..)
                .next()
                .is_some_and(|path| path.starts_with(&directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_exists_when_a_file_is_in_it() {
        let tree = Tree::from_files(&[("docs/guides/start.md", ""), ("docs-old.md", "")]);
        for present in ["", "docs", "docs/guides", "docs/guides/start.md", "docs-old.md"] {
            assert!(tree.has(present), "{present}");
        }
        for absent in ["doc", "docs/guide", "docs-old", "docs/guides/start"] {
            assert!(!tree.has(absent), "{absent}");
        }
    }

    #[test]
    fn binary_files_have_a_path_and_no_text() {
        let mut tree = Tree::default();
        tree.add("logo.png", vec![0x89, b'P', 0, 1]);
        tree.add("latin1.txt", vec![0xe9]);
        assert_eq!(tree.files().count(), 0);
        assert!(tree.has("logo.png") && tree.has("latin1.txt"));
    }

    #[test]
    fn lines_count_from_one_and_the_last_newline_opens_no_line() {
        let tree = Tree::from_files(&[("a.txt", "one\ntwo\n")]);
        let file = tree.file("a.txt").expect("it was put there");
        assert_eq!(file.lines().collect::<Vec<_>>(), [(1, "one"), (2, "two")]);
    }

    #[test]
    fn a_finding_reads_as_editors_expect() {
        let tree = Tree::from_files(&[("a.txt", "")]);
        let finding = tree.file("a.txt").expect("it was put there").finding(7, "wrong; right it");
        assert_eq!(finding.to_string(), "a.txt:7: wrong; right it");
    }
}
