//! What holds for Rust files: how they open, how long they are, where `unsafe` may stand, and which tests are left
//! out of the short run.
//!
//! Whatever clippy can see is left to it: `Cargo.toml` and `clippy.toml` have the lints.

use super::tree::{File, Finding, Tree};

/// Reviewers ask for one subject per file long before this.
const LINE_COUNT_MAX: usize = 1_000;

/// Where `unsafe` may stand: a file, or a directory with all below it.
const UNSAFE_PLACES: &[&str] = &[
    "crates/tollbar/src/memory/pages.rs",
    "crates/tollbar/src/memory/prefetch.rs",
    "crates/tollbar-testkit/src/allocations.rs",
    "crates/bench/",
];

/// In two pieces, so that this file does not find itself.
const UNSAFE_LINT: &str = concat!("unsafe", "_code");

/// A source file says first what it is.
pub(crate) fn opening(tree: &Tree) -> Vec<Finding> {
    let files = tree.rust_files().filter(|file| {
        let mut parts = file.path.split('/');
        match parts.next() {
            Some("crates") => parts.nth(1) == Some("src"),
            Some("xtask") => parts.next() == Some("src"),
            _ => false,
        }
    });
    files
        .filter(|file| !file.text.starts_with("//!"))
        .map(|file| {
            file.finding(1, "opens without `//!`; say what it is and what it refuses to do")
        })
        .collect()
}

/// A long file has two subjects.
pub(crate) fn length(tree: &Tree) -> Vec<Finding> {
    tree.rust_files()
        .filter_map(|file| {
            let count = file.lines().count();
            let message =
                || format!("{count} lines, at most {LINE_COUNT_MAX}; move one subject out");
            (count > LINE_COUNT_MAX).then(|| file.finding(LINE_COUNT_MAX + 1, message()))
        })
        .collect()
}

/// `unsafe` stands alone in the few files that are read for it. The compiler denies it everywhere, so a file that
/// has some must silence that lint, in an attribute that names it.
pub(crate) fn unsafe_places(tree: &Tree) -> Vec<Finding> {
    let allowed = |path: &str| {
        UNSAFE_PLACES
            .iter()
            .any(|place| path == *place || (place.ends_with('/') && path.starts_with(place)))
    };
    let files = tree.rust_files().filter(|file| !allowed(&file.path));
    files
        .flat_map(|file| {
            let lines = code_lines(file).filter(|(_, line)| line.contains(UNSAFE_LINT));
            lines.map(|(number, _)| {
                file.finding(number, "silences `unsafe`; move it to a file that is allowed it")
            })
        })
        .collect()
}

/// A test is left out of the short run only for the time it takes.
pub(crate) fn ignored_tests(tree: &Tree) -> Vec<Finding> {
    let ignores = |line: &str| {
        line.starts_with("#[ignore") || (line.starts_with("#[cfg_attr") && line.contains("ignore"))
    };
    tree.rust_files()
        .flat_map(|file| {
            let lines = code_lines(file)
                .filter(|(_, line)| ignores(line) && !line.contains("ignore = \"long: "));
            lines.map(|(number, _)| {
                file.finding(
                    number,
                    "ignored for no stated reason; write `#[ignore = \"long: ..\"]` or let it run",
                )
            })
        })
        .collect()
}

/// Lines that are more than a comment, without the space around them.
fn code_lines(file: &File) -> impl Iterator<Item = (usize, &str)> {
    file.lines()
        .map(|(number, line)| (number, line.trim()))
        .filter(|(_, line)| !line.starts_with("//"))
}

#[cfg(test)]
mod tests;
