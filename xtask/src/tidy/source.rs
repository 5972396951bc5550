//! What holds for Rust files: how they open, how long they are, and what they may not contain.

use super::code::{code_only, words};
use super::tree::{File, Finding, Tree};

const LINE_COUNT_MAX: usize = 500;
/// Tests are tables and stories: long, and read one at a time.
const TEST_LINE_COUNT_MAX: usize = 800;

/// Where `unsafe` may stand: a file, or a directory with all below it.
const UNSAFE_PLACES: &[&str] = &[
    "crates/tollbar/src/memory/pages.rs",
    "crates/tollbar/src/memory/prefetch.rs",
    "crates/tollbar-testkit/src/allocations.rs",
    "crates/bench/",
];

/// Measuring takes real time; nothing else may wait for it.
const SLEEPING_PLACE: &str = "crates/bench/";

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

/// A long file has a second noun in it.
pub(crate) fn length(tree: &Tree) -> Vec<Finding> {
    tree.rust_files()
        .filter_map(|file| {
            let max = if is_test(file) { TEST_LINE_COUNT_MAX } else { LINE_COUNT_MAX };
            let count = file.lines().count();
            let message = || format!("{count} lines, at most {max}; move one noun out");
            (count > max).then(|| file.finding(max + 1, message()))
        })
        .collect()
}

fn is_test(file: &File) -> bool {
    file.name() == "tests.rs" || file.path.split('/').any(|part| part == "tests")
}

/// `unsafe` stands alone in the few files that are read for it.
pub(crate) fn unsafe_places(tree: &Tree) -> Vec<Finding> {
    let allowed = |path: &str| {
        UNSAFE_PLACES
            .iter()
            .any(|place| path == *place || (place.ends_with('/') && path.starts_with(place)))
    };
    let files = tree.rust_files().filter(|file| !allowed(&file.path));
    files
        .flat_map(|file| {
            word_findings(file, "unsafe", "`unsafe` here; move it to a file that is allowed it")
        })
        .collect()
}

/// Each promise to the compiler says why it holds. An `unsafe fn` makes none: its caller does.
pub(crate) fn safety_comments(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_files() {
        let code = code_only(&file.text);
        for at in words(&code, "unsafe") {
            let next = code[at + "unsafe".len()..].trim_start();
            let promises = next.starts_with(['{', '(']) || next.starts_with("impl");
            let line = file.line_at(at);
            if promises && !has_safety_comment(&file.text, line) {
                findings.push(
                    file.finding(line, "`unsafe` without a reason; write `// SAFETY: ..` above it"),
                );
            }
        }
    }
    findings
}

/// Looks upward from `line` (from 1), past attributes and the beginning of the same statement.
fn has_safety_comment(text: &str, line: usize) -> bool {
    let above: Vec<&str> = text.lines().take(line - 1).map(str::trim).collect();
    let mut above = above.into_iter().rev().peekable();
    let same_statement = |it: &&str| {
        it.starts_with("#[")
            || !(it.is_empty() || it.starts_with("//") || it.ends_with([';', '{', '}', ',']))
    };
    while above.next_if(same_statement).is_some() {}
    above.take_while(|it| it.starts_with("//")).any(|it| it.starts_with("// SAFETY:"))
}

/// What is committed is finished.
pub(crate) fn unfinished(tree: &Tree) -> Vec<Finding> {
    const MACROS: &[&str] = &["todo", "unimplemented", "dbg"];
    let mut findings = Vec::new();
    for file in tree.rust_files() {
        let code = code_only(&file.text);
        for name in MACROS {
            let calls = words(&code, name).filter(|at| code[at + name.len()..].starts_with('!'));
            findings.extend(calls.map(|at| {
                file.finding(file.line_at(at), format!("`{name}!`; finish it or take it out"))
            }));
        }
    }
    findings
}

/// Time is moved, not waited for.
pub(crate) fn sleeping(tree: &Tree) -> Vec<Finding> {
    tree.rust_files()
        .filter(|file| !file.path.starts_with(SLEEPING_PLACE))
        .flat_map(|file| {
            word_findings(file, "thread::sleep", "sleeps; advance a `ManualClock` instead")
        })
        .collect()
}

/// A test is left out of the short run only for the time it takes.
pub(crate) fn ignored_tests(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_files() {
        let code = code_only(&file.text);
        for (start, _) in code.match_indices("#[") {
            let end = start + attribute_length(&code[start..]);
            let ignores = words(&code[start..end], "ignore").next().is_some();
            if ignores && !file.text[start..end].contains("\"long: ") {
                findings.push(file.finding(
                    file.line_at(start),
                    "ignored for no stated reason; write `#[ignore = \"long: ..\"]` or let it run",
                ));
            }
        }
    }
    findings
}

/// The length of the attribute that `code` begins with, its closing bracket included.
fn attribute_length(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, character) in code.char_indices() {
        match character {
            '[' => depth += 1,
            ']' if depth <= 1 => return at + 1,
            ']' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

fn word_findings(file: &File, word: &str, message: &str) -> Vec<Finding> {
    let code = code_only(&file.text);
    words(&code, word).map(|at| file.finding(file.line_at(at), message)).collect()
}

#[cfg(test)]
mod tests;
