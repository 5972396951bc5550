//! Each check of Rust files on made-up ones.

use super::*;

fn places(findings: &[Finding]) -> Vec<(&str, usize)> {
    findings.iter().map(|it| (it.path.as_str(), it.line)).collect()
}

/// The lines a check finds in one file of the library.
fn lines_found(check: fn(&Tree) -> Vec<Finding>, text: &str) -> Vec<usize> {
    check(&Tree::of(&[("crates/tollbar/src/lib.rs", text)])).iter().map(|it| it.line).collect()
}

#[test]
fn sources_open_by_saying_what_they_are() {
    let tree = Tree::of(&[
        ("crates/a/src/lib.rs", "//! Good.\n"),
        ("crates/a/src/deep/er.rs", "use std::fmt;\n//! Too late.\n"),
        ("crates/a/tests/b.rs", "use a;\n"),
        ("crates/a/build.rs", "fn main() {}\n"),
        ("xtask/src/main.rs", "// Only a comment.\n"),
        ("examples/c.rs", "fn main() {}\n"),
    ]);
    let expected = [("crates/a/src/deep/er.rs", 1), ("xtask/src/main.rs", 1)];
    assert_eq!(places(&opening(&tree)), expected);
}

#[test]
fn long_files_are_found_and_tests_may_be_longer() {
    let lines = |count: usize| "\n".repeat(count);
    let tree = Tree::of(&[
        ("src/full.rs", &lines(500)),
        ("src/long.rs", &lines(501)),
        ("src/long/tests.rs", &lines(800)),
        ("crates/a/tests/long.rs", &lines(800)),
        ("crates/a/tests/longer.rs", &lines(801)),
        ("notes.md", &lines(2_000)),
    ]);
    let expected = [("src/long.rs", 501), ("crates/a/tests/longer.rs", 801)];
    assert_eq!(places(&length(&tree)), expected);
}

#[test]
fn unsafe_is_found_outside_its_places_and_only_as_code() {
    let code = "#![deny(unsafe_code)]\n// unsafe\nlet x = \"unsafe\";\nunsafe { x() }\n";
    let tree = Tree::of(&[
        ("crates/tollbar/src/memory/pages.rs", code),
        ("crates/tollbar/src/memory/prefetch.rs", code),
        ("crates/bench/src/floor.rs", code),
        ("crates/tollbar/src/memory/table.rs", code),
        ("crates/tollbar/src/memory/pages.rs.rs", code),
    ]);
    let expected =
        [("crates/tollbar/src/memory/table.rs", 4), ("crates/tollbar/src/memory/pages.rs.rs", 4)];
    assert_eq!(places(&unsafe_places(&tree)), expected);
}

#[test]
fn an_unsafe_block_with_its_reason_above_is_fine() {
    let texts = [
        "// SAFETY: it is mapped.\nunsafe { f() }\n",
        "// SAFETY: it is mapped,\n// and was so before.\nlet x = unsafe { f() };\n",
        "// SAFETY: it is mapped.\n#[expect(unsafe_code, reason = \"r\")]\nunsafe { f() }\n",
        "// SAFETY: it is mapped.\nlet value =\n    unsafe { f() };\n",
        "// SAFETY: no pointer is shared.\nunsafe impl Send for Pages {}\n",
        "/// # Safety\n/// `at` is mapped.\npub unsafe fn f(at: *mut u8) {}\n",
        "type Call = unsafe extern \"C\" fn();\n",
    ];
    for text in texts {
        assert_eq!(lines_found(safety_comments, text), [0_usize; 0], "{text}");
    }
}

#[test]
fn an_unsafe_block_without_a_reason_is_found() {
    let cases = [
        ("unsafe { f() }\n", 1),
        ("// It is mapped.\nunsafe { f() }\n", 2),
        ("// SAFETY: it is mapped.\n\nunsafe { f() }\n", 3),
        ("// SAFETY: it is mapped.\nf();\nunsafe { g() }\n", 3),
        ("// SAFETY: of another.\nunsafe { f() };\nunsafe { g() }\n", 3),
        ("unsafe impl Send for Pages {}\n", 1),
        ("#[unsafe(no_mangle)]\nfn f() {}\n", 1),
    ];
    for (text, line) in cases {
        assert_eq!(lines_found(safety_comments, text), [line], "{text}");
    }
}

#[test]
fn unfinished_code_is_found_and_words_about_it_are_not() {
    let text = "// todo!\nlet s = \"dbg!(x)\";\nlet todo = 1;\ntodo!()\nstd::dbg!(x);\nunimplemented!(\"y\")\n";
    assert_eq!(lines_found(unfinished, text), [4, 6, 5]);
}

#[test]
fn sleeping_is_for_benchmarks() {
    let text =
        "// thread::sleep\nstd::thread::sleep(d);\nuse std::thread::sleep;\nthread::sleepy();\n";
    let tree = Tree::of(&[("crates/bench/src/main.rs", text), ("crates/a/tests/b.rs", text)]);
    assert_eq!(places(&sleeping(&tree)), [("crates/a/tests/b.rs", 2), ("crates/a/tests/b.rs", 3)]);
}

#[test]
fn ignored_tests_say_that_they_are_long() {
    let fine = "#[test]\n#[ignore = \"long: a minute\"]\nfn a() {}\n";
    assert_eq!(lines_found(ignored_tests, fine), [0_usize; 0]);
    let fine = "#[expect(x, reason = \"we ignore it\")]\nlet ignore = a[0];\n";
    assert_eq!(lines_found(ignored_tests, fine), [0_usize; 0]);

    let cases = [
        "#[ignore]\nfn a() {}\n",
        "#[ignore = \"flaky\"]\nfn a() { b(\"long: \") }\n",
        "#[cfg_attr(miri, ignore)]\nfn a() {}\n",
    ];
    for text in cases {
        assert_eq!(lines_found(ignored_tests, text), [1], "{text}");
    }
}
