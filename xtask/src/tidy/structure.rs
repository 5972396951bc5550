//! The structure of our crates: their top-level modules form no cycle, and a type name is defined once per crate.
//!
//! Both checks read the text of product code. Test modules are left out: they may use everything.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{File, Finding, Tree};

/// A dependency between two top-level modules of a crate that may close a cycle, with the reason.
struct AllowedDependency {
    krate: &'static str,
    from: &'static str,
    to: &'static str,
    /// Read by people only.
    _reason: &'static str,
}

const ALLOWED_DEPENDENCIES: &[AllowedDependency] = &[];

/// A type name that a crate may define more than once: the crate, the name and the reason.
const ALLOWED_NAMES: &[(&str, &str, &str)] = &[(
    "tollbar",
    "Charge",
    "public API: how a batch is charged (`store::Charge`), and one charge of a receipt (`receipt::Charge`)",
)];

/// Reports the top-level modules of each crate that depend on each other.
pub(crate) fn module_cycles(tree: &Tree) -> Vec<Finding> {
    crates(tree).into_iter().filter_map(|(name, files)| cycle(&name, &files)).collect()
}

/// Reports every type name that a crate defines more than once.
pub(crate) fn type_names(tree: &Tree) -> Vec<Finding> {
    crates(tree).into_iter().flat_map(|(name, files)| repeated_names(&name, &files)).collect()
}

/// The source files of each crate, without tests.
fn crates(tree: &Tree) -> BTreeMap<String, Vec<&File>> {
    let mut crates: BTreeMap<String, Vec<&File>> = BTreeMap::new();
    for file in tree.rust_files() {
        let mut parts = file.path.split('/');
        let is_source = parts.next() == Some("crates");
        let Some(name) = parts.next().filter(|_| is_source) else { continue };
        let is_test = |part: &str| part == "tests" || part == "tests.rs";
        if parts.next() == Some("src") && !file.path.split('/').any(is_test) {
            crates.entry(name.to_owned()).or_default().push(file);
        }
    }
    crates
}

/// The lines of a file up to its test module, with their numbers, without comments.
fn code_lines(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let mut lines = file.lines().peekable();
    std::iter::from_fn(move || {
        let (number, line) = lines.next()?;
        let next = lines.peek().map_or("", |(_, next)| next.trim_start());
        let opens_tests = line == "#[cfg(test)]" && next.starts_with("mod ") && next.ends_with('{');
        (!opens_tests).then_some((number, line))
    })
    .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn repeated_names(krate: &str, files: &[&File]) -> Vec<Finding> {
    let mut first: BTreeMap<&str, String> = BTreeMap::new();
    let mut findings = Vec::new();
    for file in files {
        for (number, line) in code_lines(file) {
            let Some(name) = defined_type(line) else { continue };
            if ALLOWED_NAMES.iter().any(|(owner, allowed, _)| (*owner, *allowed) == (krate, name)) {
                continue;
            }
            if let Some(place) = first.get(name) {
                let message = format!("`{name}` is defined at {place} too; give one another name");
                findings.push(file.finding(number, message));
            } else {
                first.insert(name, format!("{}:{number}", file.path));
            }
        }
    }
    findings
}

/// The name that a line defines as a struct, enum, union or trait.
fn defined_type(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    let keyword = words.next()?;
    if !["struct", "enum", "union", "trait"].contains(&keyword) {
        return None;
    }
    let name = words.next()?;
    let end = name.find(|character: char| !is_name(character)).unwrap_or(name.len());
    Some(&name[..end]).filter(|name| !name.is_empty())
}

fn is_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The dependencies between the top-level modules of one crate, each with a file that has it.
type Dependencies<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a File>>;

fn cycle(krate: &str, files: &[&File]) -> Option<Finding> {
    let root = files.iter().find(|file| file.path == format!("crates/{krate}/src/lib.rs"))?;
    let modules: BTreeSet<&str> = code_lines(root).filter_map(|(_, line)| declared(line)).collect();
    let exports = root_exports(root, &modules);
    let mut dependencies = Dependencies::new();
    for file in files {
        let Some((module, depth)) = place(krate, file) else { continue };
        let Some(module) = modules.get(module) else { continue };
        let text: String = code_lines(file).flat_map(|(_, line)| [line, "\n"]).collect();
        for name in names_from_root(&text, depth) {
            let target = modules.get(name.as_str()).or_else(|| exports.get(name.as_str()));
            let Some(target) = target.filter(|target| *target != module) else { continue };
            let is_allowed = ALLOWED_DEPENDENCIES.iter().any(|allowed| {
                (allowed.krate, allowed.from, allowed.to) == (krate, *module, *target)
            });
            if !is_allowed {
                dependencies.entry(module).or_default().entry(target).or_insert(file);
            }
        }
    }
    let path = shortest_cycle(&dependencies)?;
    let steps: Vec<String> = path
        .windows(2)
        .map(|step| format!("{} -> {} ({})", step[0], step[1], dependencies[step[0]][step[1]].path))
        .collect();
    let message = format!("modules depend on each other: {}; turn one round", steps.join(", "));
    Some(root.finding(1, message))
}

/// The module that a line of the crate's root declares.
fn declared(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    (words.next()? == "mod").then(|| words.next())?.map(|name| name.trim_end_matches([';', '{']))
}

/// The names that the crate's root takes from its modules, each with its module.
fn root_exports<'a>(root: &'a File, modules: &BTreeSet<&'a str>) -> BTreeMap<String, &'a str> {
    let text: String = code_lines(root).flat_map(|(_, line)| [line, "\n"]).collect();
    let mut exports = BTreeMap::new();
    for statement in text.split(';') {
        let Some((_, path)) = statement.split_once("use ") else { continue };
        let mut words =
            path.split(|character: char| !is_name(character)).filter(|word| !word.is_empty());
        let Some(module) = words.next().and_then(|module| modules.get(module)) else { continue };
        exports.extend(words.map(|name| (name.to_owned(), *module)));
    }
    exports
}

/// The top-level module of a file, and how many `super` lead from it to the root.
fn place<'a>(krate: &str, file: &'a File) -> Option<(&'a str, usize)> {
    let path = file.path.strip_prefix(&format!("crates/{krate}/src/"))?.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    Some((path.split('/').next()?, path.split('/').count()))
}

/// The first names after `crate::`, or after as many `super::` as lead to the root, also in braces.
fn names_from_root(text: &str, depth: usize) -> Vec<String> {
    let supers = "super::".repeat(depth);
    let mut names = Vec::new();
    for prefix in ["crate::", supers.as_str()] {
        for (start, _) in text.match_indices(prefix) {
            // `pub(crate)` and `super::super::` of a deeper place are other paths.
            let before = text[..start].chars().next_back();
            if before.is_some_and(|character| is_name(character) || character == ':') {
                continue;
            }
            names.extend(first_names(&text[start + prefix.len()..]));
        }
    }
    names
}

/// `a::b` gives `a`; `{a::{b, c}, d}` gives `a` and `d`.
fn first_names(text: &str) -> Vec<String> {
    let Some(list) = text.strip_prefix('{') else {
        return vec![text.chars().take_while(|character| is_name(*character)).collect()];
    };
    let mut names = vec![String::new()];
    let (mut depth, mut is_first) = (0_usize, true);
    for character in list.chars() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                names.push(String::new());
                is_first = true;
            }
            ':' => is_first = false,
            _ if is_first && depth == 0 && is_name(character) => {
                names.last_mut().expect("it is never empty").push(character);
            }
            _ => {}
        }
    }
    names
}

/// The shortest way from a module back to itself.
fn shortest_cycle<'a>(dependencies: &Dependencies<'a>) -> Option<Vec<&'a str>> {
    dependencies.keys().filter_map(|module| way_back(dependencies, module)).min_by_key(Vec::len)
}

fn way_back<'a>(dependencies: &Dependencies<'a>, start: &'a str) -> Option<Vec<&'a str>> {
    let mut ways = std::collections::VecDeque::from([vec![start]]);
    let mut reached = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        let last = *way.last().expect("a way has a start");
        for next in dependencies.get(last).into_iter().flat_map(BTreeMap::keys) {
            let longer = || way.iter().copied().chain([*next]).collect();
            if *next == start {
                return Some(longer());
            }
            if reached.insert(*next) {
                ways.push_back(longer());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: (&str, &str) = (
        "crates/a/src/lib.rs",
        "//! A.\nmod store;\npub mod policy;\npub use policy::{Policy, Rate};\n",
    );

    fn messages(findings: Vec<Finding>) -> Vec<String> {
        findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn modules_that_depend_on_each_other_are_found() {
        for (policy, store) in [
            ("use crate::store::Store;\n", "use crate::policy::Policy;\n"),
            ("use crate::{fmt, store::{Store, Reply}};\n", "fn a() -> crate::Policy {}\n"),
            ("use super::store;\n", "use crate::{\n    Rate,\n};\n"),
        ] {
            let tree = Tree::from_files(&[
                ROOT,
                ("crates/a/src/policy.rs", policy),
                ("crates/a/src/store.rs", store),
            ]);
            let expected = "modules depend on each other: policy -> store (crates/a/src/policy.rs), \
                            store -> policy (crates/a/src/store.rs); turn one round";
            assert_eq!(messages(module_cycles(&tree)), [expected], "{policy}{store}");
        }
    }

    #[test]
    fn one_direction_is_fine_and_so_are_tests_and_comments() {
        let tree = Tree::from_files(&[
            ROOT,
            (
                "crates/a/src/policy.rs",
                "//! See crate::store.\nuse crate::policy::Rate;\n#[cfg(test)]\nmod tests {\n    use crate::store;\n}\n",
            ),
            ("crates/a/src/policy/tests.rs", "use crate::store;\n"),
            // Two levels down, `super::policy` is a module of `store`.
            ("crates/a/src/store/slot.rs", "use super::policy;\nuse crate::Policy;\n"),
            ("crates/b/src/lib.rs", "mod policy;\n"),
        ]);
        assert_eq!(messages(module_cycles(&tree)), Vec::<String>::new());
    }

    #[test]
    fn a_type_name_is_defined_once_per_crate() {
        let tree = Tree::from_files(&[
            ("crates/a/src/lib.rs", "pub struct Place;\ntrait Kind<T> {}\n// struct Line;\n"),
            ("crates/a/src/line.rs", "pub(crate) enum Place {}\nstruct Kind(u8);\nstruct Line;\n"),
            ("crates/a/src/tests.rs", "struct Line;\n"),
            (
                "crates/b/src/lib.rs",
                "struct Place;\n#[cfg(test)]\nmod tests {\n    struct Place;\n}\n",
            ),
        ]);
        assert_eq!(
            messages(type_names(&tree)),
            [
                "`Place` is defined at crates/a/src/lib.rs:1 too; give one another name",
                "`Kind` is defined at crates/a/src/lib.rs:2 too; give one another name",
            ]
        );
    }
}
