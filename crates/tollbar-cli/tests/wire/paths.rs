//! Attacks with spellings of a path over HTTP: all of them meet the same rule, or are refused.

use serde_json::{Value, json};

use crate::common::http::Answer;
use crate::common::{Daemon, Scratch};

/// Every way to write `login` in capital and small letters.
fn spellings() -> Vec<String> {
    let spelling = |bits: u32| {
        let letters = "login".chars().enumerate();
        let letter = |(at, letter): (usize, char)| match bits >> at & 1 {
            0 => letter,
            _ => letter.to_ascii_uppercase(),
        };
        letters.map(letter).collect::<String>()
    };
    (0..32).map(spelling).collect()
}

fn check(daemon: &Daemon, path: &str) -> (u16, Value) {
    let body = json!({ "path": path, "attributes": { "user": "7" } });
    let answer = Answer::read(&daemon.post("/v1/check", &body.to_string())).unwrap();
    (answer.status, serde_json::from_str(&answer.body).unwrap())
}

/// 31 of 32 spellings of `/login` reached a server that ignores case past 3 an hour, and `;x`, `%00` and `\` missed the
/// rule too.
#[test]
fn every_spelling_of_a_path_meets_its_rule() {
    let scratch = Scratch::new("spellings");
    let text = "paths: { case: insensitive, matrix: strip }
rules: [{ name: guesses, match: { path: /Login }, per: user, limit: 3/h }]";
    let daemon = Daemon::start(&["--rules", &scratch.file("rules.yaml", text)]);
    for path in ["/login%00", "/login\\", "/x\\..\\login", "/x%5C..%5Clogin"] {
        let (status, response) = check(&daemon, path);
        assert_eq!((status, &response["error"]), (400, &"ambiguous_path".into()), "{path}");
    }
    let endings = ["", ";x", ";jsessionid=1", "/", "/;x", "%3Bx", "/..;/login"];
    let paths = spellings().into_iter().zip(endings.iter().cycle());
    let statuses: Vec<u16> =
        paths.map(|(login, ending)| check(&daemon, &format!("/{login}{ending}")).0).collect();
    let passed = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!((passed, statuses.len()), (3, 32), "{statuses:?}");
    assert!(statuses[3..].iter().all(|status| *status == 429), "{statuses:?}");
    let body = json!({ "path": "/LOGIN;x" }).to_string();
    let explained = Answer::read(&daemon.post("/v1/explain", &body)).unwrap();
    assert!(explained.body.contains(r#""path":"/login""#), "{}", explained.body);
}

/// By default a path is what it says, but for bytes that no two servers read alike; a file can allow those.
#[test]
fn what_is_ambiguous_is_refused_unless_the_file_allows_it() {
    let scratch = Scratch::new("ambiguous");
    let rules = "rules: [{ name: all, limit: 100/h }]";
    for (paths, status) in [("", 400), ("paths: { ambiguous: allow }\n", 200)] {
        let rules = scratch.file("rules.yaml", &format!("{paths}{rules}"));
        let daemon = Daemon::start(&["--rules", &rules]);
        for path in ["/a%00b", "/a\\b", "/a%5cb"] {
            assert_eq!(check(&daemon, path).0, status, "{paths}{path}");
        }
        let lines = "x-real-ip: 192.0.2.1\r\nx-original-method: GET\r\nx-original-uri: /a%00b\r\n";
        let proxied = daemon.get_with("/v1/forward-auth/haproxy", lines);
        // To a proxy every denial that may end is 429.
        let proxied_status = if status == 400 { 429 } else { 200 };
        assert_eq!(crate::common::status(&proxied), proxied_status, "{paths}{proxied}");
        assert_eq!(proxied.contains("ambiguous_path"), status == 400, "{paths}{proxied}");
        assert_eq!(check(&daemon, "/A;b").0, 200);
    }
}

/// A cost that was no number was ignored: `tokens: many` cost one.
#[test]
fn a_cost_that_is_not_a_number_is_refused() {
    let scratch = Scratch::new("costs");
    let text = "rules: [{ name: spent, per: user, cost: { attribute: tokens }, limit: 100/h }]";
    let daemon = Daemon::start(&["--rules", &scratch.file("rules.yaml", text)]);
    let check = |tokens: &str| {
        let body = json!({ "attributes": { "user": "7", "tokens": tokens } }).to_string();
        let answer = Answer::read(&daemon.post("/v1/check", &body)).unwrap();
        let response: Value = serde_json::from_str(&answer.body).unwrap();
        (answer.status, response["error"].as_str().unwrap_or_default().to_owned())
    };
    for tokens in ["many", "-1", "1.5", "1e3", "0x10", " 7", "７"] {
        assert_eq!(check(tokens), (400, "invalid_cost".to_owned()), "{tokens}");
    }
    for tokens in ["", "0", "7", "007"] {
        assert_eq!(check(tokens).0, 200, "{tokens}");
    }
    assert_eq!(check("99999999999999999999").0, 422, "more than any limit holds");
}
