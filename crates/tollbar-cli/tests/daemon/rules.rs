//! The binary's words and exit codes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::common::serve;

/// A file of its own for each test, gone at the end.
struct RulesFile(PathBuf);

impl RulesFile {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("tollbar-{}-{name}.yaml", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, text).unwrap();
        Self(path)
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for RulesFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The exit code, standard output and standard error.
fn tollbar(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tollbar")).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

const GOOD: &str =
    "rules:\n- { name: a, limit: 10/s }\n- { name: b, match: { path: /b }, limit: 5/s }\n";

#[test]
fn a_good_file_is_well() {
    let file = RulesFile::new("good", GOOD);
    let (code, out, err) = tollbar(&["rules", "check", file.name()]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(out, format!("{}: 2 rules, 0 warnings\n", file.name()));
}

#[test]
fn a_bad_file_is_found_out_with_its_place() {
    let good = RulesFile::new("beside", GOOD);
    let bad = RulesFile::new("bad", "rules:\n- { name: a, limt: 10/s }\n");
    let (code, out, err) = tollbar(&["rules", "check", bad.name(), good.name()]);
    assert_eq!(code, 1);
    let place = format!(
        "{}:2:14: error: rules[0].limt: there is no field `limt` here: did you mean `limit`?",
        bad.name()
    );
    assert!(err.starts_with(&place), "{err}");
    assert!(out.contains("2 rules"), "the other file is checked all the same: {out}");
}

#[test]
fn warnings_are_told_and_found_only_if_asked() {
    let text =
        "rules: [{ name: a, limit: 9/min, algorithm: fixed_window, match: { path: /login } }]";
    let file = RulesFile::new("warned", text);
    let (code, out, err) = tollbar(&["rules", "check", file.name()]);
    assert_eq!(code, 0);
    assert!(
        out.ends_with("1 rules, 1 warnings\n") && err.contains(": warning: rules[0].limit: "),
        "{out}{err}"
    );
    assert_eq!(tollbar(&["rules", "check", "--strict", file.name()]).0, 1);
}

/// 31 of 32 spellings of `/login` reached a server that ignores case.
#[test]
fn login_paths_are_advised_about_until_the_file_says_how_paths_are_read() {
    let advised = |head: &str, path: &str| {
        let text = format!(
            "{head}\nrules: [{{ name: a, limit: 9/min, match: {{ path: {path} }} }}, {{ name: b, limit: 9/s }}]"
        );
        let file = RulesFile::new("login", &text);
        let (code, _, err) = tollbar(&["rules", "check", "--strict", file.name()]);
        assert_eq!(code, 0, "advice is no warning: {err}");
        err.contains(&format!(": advice: `{path}` looks like"))
            && err.contains("`paths: { case: insensitive }`")
            && err.contains("`paths: { matrix: strip }`")
    };
    for path in ["/login", "/api/v1/Sign-In", "/reset-password"] {
        assert!(advised("", path), "{path}");
        for paths in ["{ case: insensitive }", "{ matrix: strip }", "{ case: sensitive }"] {
            assert!(!advised(&format!("paths: {paths}"), path), "{paths} {path}");
        }
    }
    assert!(!advised("", "/search"));
}

#[test]
fn misuse_is_told_apart() {
    let (code, _, err) = tollbar(&["rules", "check", "/no/such/file"]);
    assert_eq!(code, 2);
    assert!(err.starts_with("cannot read /no/such/file: "), "{err}");
    let file = RulesFile::new("misused", GOOD);
    for args in [
        &["rules", "check"][..],
        &["rules", "chekc", file.name()],
        &["rules", "explain", file.name()],
        &["rules", "explain", file.name(), "--request", "users"],
        &["rules", "explain", file.name(), "--request", "GET /", "-a", "user"],
        &["rules", "explain", file.name(), "--request", "GET /", "-a", "path=/"],
        &["rules", "explain", file.name(), "--request", "GET /", "-a", "a=1", "-a", "a=2"],
    ] {
        assert_eq!(tollbar(args).0, 2, "{args:?}");
    }
}

#[test]
fn a_request_is_explained_as_text_and_as_data() {
    let file = RulesFile::new("explained", GOOD);
    let args = ["rules", "explain", file.name(), "--request", "GET /x", "-a", "user=42"];
    let (code, out, _) = tollbar(&args);
    assert_eq!(code, 0);
    let expected = "\
GET /x
allowed: `a` binds

[x] a: all its conditions hold
    counts user:42 at a cost of 1
    10/s (sliding_window_counter): 10 of 10 left, binds

[ ] b: it asks that `path` matches `/b`, and the request has `/x`
";
    assert_eq!(out, expected);
    let (code, out, _) = tollbar(&[&args[..], &["--json", "--cost", "11"]].concat());
    assert_eq!(code, 0);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["allowed"], false);
    assert_eq!(json["rules"][0]["limits"][0]["wouldPass"], false);
    assert_eq!(json["rules"][1]["fate"], "not_matched");
}

/// Such files loaded without a word, and every request passed.
#[test]
fn a_file_that_limits_nothing_is_warned_of() {
    let off = "{ name: a, limit: 5/s, enabled: false }";
    let shadow = "{ name: b, limit: 5/s, mode: shadow }";
    for (name, rules, why) in [
        ("none", String::new(), "there are no rules"),
        ("off", off.to_owned(), "of 1 rule, 1 is disabled"),
        ("shadow", shadow.to_owned(), "of 1 rule, 1 is in shadow mode"),
        ("both", format!("{off}, {shadow}"), "of 2 rules, 1 is disabled and 1 is in shadow mode"),
    ] {
        let file = RulesFile::new(&format!("idle-{name}"), &format!("rules: [{rules}]"));
        let (code, _, err) = tollbar(&["rules", "check", "--strict", file.name()]);
        assert_eq!(code, 1, "{err}");
        assert!(err.contains(&format!("warning: rules: nothing is limited: {why}\n")), "{err}");
        let mut serve = serve(&["--rules", file.name(), "--check-config"]);
        let log = String::from_utf8(serve.output().unwrap().stderr).unwrap();
        let line = log.lines().find(|line| line.contains(&format!("nothing is limited: {why}")));
        assert!(line.is_some_and(|line| line.contains(" WARN ")), "{log}");
    }
}

#[test]
fn help_says_what_there_is() {
    for args in [
        &["--help"][..],
        &["rules", "--help"],
        &["rules", "check", "--help"],
        &["rules", "explain", "--help"],
    ] {
        let (code, out, _) = tollbar(args);
        assert_eq!(code, 0, "{args:?}");
        assert!(out.contains("Exit codes:"), "{args:?} gave {out}");
    }
}
