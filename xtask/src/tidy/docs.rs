//! What holds for the documents: links that lead somewhere, decisions in order, a changelog.

use super::tree::{File, Finding, Tree};

const DECISIONS: &str = "docs/decisions/";
/// What a decision must tell: what was wrong, what we do, and what we do not and why.
const DECISION_HEADINGS: &[&str] = &["## Problem", "## Decision", "## Rejected"];

const CHANGELOG: &str = "CHANGELOG.md";
const CHANGELOG_HEADING: &str = "## Unreleased";

/// Decisions are numbered without gaps, and all have the same parts.
pub(crate) fn decisions(tree: &Tree) -> Vec<Finding> {
    let mut files: Vec<&File> = tree
        .files()
        .filter(|file| file.path.starts_with(DECISIONS) && file.name() != "README.md")
        .collect();
    files.sort_by_key(|file| &file.path);

    let mut findings = Vec::new();
    let mut expected = 1;
    for file in files {
        let Some(number) = decision_number(&file.path[DECISIONS.len()..]) else {
            findings.push(file.finding(1, "not named as a decision; write `NNNN-title.md`"));
            continue;
        };
        if number != expected {
            let message = format!("decision {number:04} is out of order; make it {expected:04}");
            findings.push(file.finding(1, message));
        }
        expected = number + 1;
        for heading in DECISION_HEADINGS {
            if !has_line(file, heading) {
                findings.push(file.finding(1, format!("has no `{heading}`; add it")));
            }
        }
    }
    findings
}

/// `0007-one-line.md` is number 7.
fn decision_number(name: &str) -> Option<u32> {
    let (number, title) = name.strip_suffix(".md")?.split_once('-')?;
    let is_title = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let well_formed = number.len() == 4 && !title.is_empty() && title.chars().all(is_title);
    if well_formed { number.parse().ok() } else { None }
}

/// The changelog has a place for what comes next.
pub(crate) fn changelog(tree: &Tree) -> Vec<Finding> {
    let message = || format!("has no `{CHANGELOG_HEADING}`; add it above the last release");
    match tree.file(CHANGELOG) {
        Some(file) if has_line(file, CHANGELOG_HEADING) => Vec::new(),
        Some(file) => vec![file.finding(1, message())],
        None => vec![Finding { path: CHANGELOG.to_owned(), line: 1, message: message() }],
    }
}

fn has_line(file: &File, wanted: &str) -> bool {
    file.lines().any(|(_, line)| line == wanted)
}

/// Every relative link names a file or directory of the repository.
pub(crate) fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files().filter(|file| file.has_extension("md")) {
        for (line, target) in link_targets(file) {
            let path = target.split(['#', '?']).next().unwrap_or_default();
            if path.is_empty() || has_scheme(target) {
                continue;
            }
            if !resolve(&file.path, path).is_some_and(|path| tree.has(&path)) {
                let message = format!("`{target}` leads nowhere; correct the link");
                findings.push(file.finding(line, message));
            }
        }
    }
    findings
}

/// `https:`, `mailto:` and the like. A path has no colon before its first slash.
fn has_scheme(target: &str) -> bool {
    target.split('/').next().is_some_and(|first| first.contains(':'))
}

/// The targets of inline links, images and reference definitions, outside of code.
fn link_targets(file: &File) -> Vec<(usize, &str)> {
    let mut targets = Vec::new();
    let mut fence: Option<&str> = None;
    for (number, line) in file.lines() {
        let trimmed = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
        match (fence, mark) {
            (None, Some(_)) => fence = mark,
            (Some(open), Some(found)) if open == found => fence = None,
            (Some(_), _) => {}
            (None, None) => targets.extend(targets_in(line).map(|target| (number, target))),
        }
    }
    targets
}

fn targets_in(line: &str) -> impl Iterator<Item = &str> {
    // An odd piece between backticks is code; one that is never closed is not worth the trouble.
    let prose = line.split('`').step_by(2);
    let inline = prose.flat_map(|piece| piece.split("](").skip(1)).filter_map(inline_target);
    let definition = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]:"))
        .and_then(|(_, target)| target.split_whitespace().next());
    inline.chain(definition)
}

/// The target at the beginning of `rest`, which follows `](`, without a title.
fn inline_target(rest: &str) -> Option<&str> {
    if let Some(bracketed) = rest.strip_prefix('<') {
        return bracketed.split_once('>').map(|(target, _)| target);
    }
    rest.split_once(')').and_then(|(inside, _)| inside.split_whitespace().next())
}

/// `target` as seen from the file `from`, as a path of the repository. `None` if it leaves it.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = match target.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => from.split('/').collect(),
    };
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn decisions_are_numbered_without_gaps_and_complete() {
        let whole = "# Title\n\n## Problem\n\n## Decision\n\n## Rejected\n";
        let fine = Tree::from_files(&[
            ("docs/decisions/README.md", "# Decisions\n"),
            ("docs/decisions/0002-b.md", whole),
            ("docs/decisions/0001-a-1.md", whole),
        ]);
        assert_eq!(decisions(&fine), []);

        let faulty = Tree::from_files(&[
            ("docs/decisions/0001-a.md", "# Title\n\n## Problem\n\n### Decision\n\n## Rejected\n"),
            ("docs/decisions/0003-c.md", whole),
            ("docs/decisions/0003-d.md", whole),
            ("docs/decisions/4-e.md", whole),
        ]);
        let expected = [
            "docs/decisions/0001-a.md:1: has no `## Decision`; add it",
            "docs/decisions/0003-c.md:1: decision 0003 is out of order; make it 0002",
            "docs/decisions/0003-d.md:1: decision 0003 is out of order; make it 0004",
            "docs/decisions/4-e.md:1: not named as a decision; write `NNNN-title.md`",
        ];
        assert_eq!(messages(&decisions(&faulty)), expected);
    }

    #[test]
    fn the_changelog_has_a_place_for_what_comes_next() {
        let fine = Tree::from_files(&[(CHANGELOG, "# Changes\n\n## Unreleased\n- x\n")]);
        assert_eq!(changelog(&fine), []);
        let released = Tree::from_files(&[(CHANGELOG, "# Changes\n\n## 0.1.0\n- Unreleased\n")]);
        assert_eq!(changelog(&released).len(), 1);
        assert_eq!(changelog(&Tree::from_files(&[])).len(), 1);
    }

    #[test]
    fn links_that_lead_somewhere_are_fine() {
        let text = "\
See [a](guides/a.md), [its end](guides/a.md#end \"title\") and ![b](<../logo.png>).
[here](#here) [dir](guides/) [root](/README.md) [web](https://example.com/x) [m](mailto:a@b.c)
`[code](nowhere.md)`
```text
[fenced](nowhere.md)
```
[ref]: ../README.md
";
        let tree = Tree::from_files(&[
            ("docs/index.md", text),
            ("docs/guides/a.md", ""),
            ("logo.png", ""),
            ("README.md", ""),
        ]);
        assert_eq!(messages(&links(&tree)), [""; 0]);
    }

    #[test]
    fn links_that_lead_nowhere_are_found_with_their_line() {
        let text =
            "[a](b.md)\n```\n```\n[c](../../d.md), [e](guides#f)\n[g]: h.md\n[i](<j k.md>)\n";
        let tree = Tree::from_files(&[("docs/index.md", text), ("b.md", ""), ("d.md", "")]);
        let expected = [
            "docs/index.md:1: `b.md` leads nowhere; correct the link",
            "docs/index.md:4: `../../d.md` leads nowhere; correct the link",
            "docs/index.md:4: `guides#f` leads nowhere; correct the link",
            "docs/index.md:5: `h.md` leads nowhere; correct the link",
            "docs/index.md:6: `j k.md` leads nowhere; correct the link",
        ];
        assert_eq!(messages(&links(&tree)), expected);
    }
}
