//! Who gets in: the first token, revoked ones, wrong ones, and whoever listens beyond loopback.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::{Value, json};

use crate::admin_daemon::{AdminDaemon, RULES, TOKENS, first_token, send};
use crate::common::{Daemon, Scratch, serve};

const FILE: &str = "rules: [{ name: a, limit: 3/day }]";

#[test]
fn the_first_start_shows_a_token_once_and_never_in_the_log() {
    let admin = AdminDaemon::open("first", FILE);
    let AdminDaemon { daemon, token, database, scratch } = admin;
    assert_eq!((token.len(), &token[..5]), (69, "tbar_"));
    assert_eq!(daemon.stop(), 0);
    let mut again = Daemon::start_logged(&["--database", &database]);
    assert_eq!(first_token(&again), None, "{:?}", again.greeting);
    let lines = format!("authorization: Bearer {token}\r\n");
    assert_eq!(send(again.address("admin"), "GET", RULES, &lines, b"").status, 200);
    again.signal("TERM");
    assert_eq!(again.wait(), 0);
    assert!(!again.rest_of_log().contains("tbar_"));

    let fresh = scratch.path("fresh.sqlite");
    let mut logged = Daemon::start_logged(&["--database", &fresh]);
    assert!(first_token(&logged).is_some_and(|other| other != token));
    logged.signal("TERM");
    assert_eq!(logged.wait(), 0);
    assert!(!logged.rest_of_log().contains("tbar_"));
    // What is kept of a token is no token.
    for file in [&database, &fresh] {
        let bytes = std::fs::read(file).unwrap();
        assert!(!bytes.windows(16).any(|window| window == &token.as_bytes()[5..21]));
    }
}

/// The database, its log and the name of the node could be read by every user of the machine.
#[test]
fn files_that_the_daemon_creates_are_for_its_user_alone() {
    let admin = AdminDaemon::open("modes", FILE);
    admin.get(RULES);
    let files = std::fs::read_dir(&admin.scratch.0).unwrap().map(Result::unwrap);
    let mut names = Vec::new();
    for file in files.filter(|file| file.file_name() != "rules.yaml") {
        let mode = file.metadata().unwrap().permissions().mode() & 0o777;
        names.push(file.file_name().into_string().unwrap());
        assert_eq!(mode, 0o600, "{names:?}");
    }
    for name in ["rules.sqlite", "rules.sqlite-wal", "rules.sqlite.node"] {
        assert!(names.iter().any(|found| found == name), "{names:?}");
    }
}

/// It started in silence and let everything pass.
#[test]
fn a_database_without_a_rule_says_that_nothing_is_limited_and_how_to_begin() {
    let scratch = Scratch::new("no-rules");
    let database = scratch.path("rules.sqlite");
    let mut daemon = Daemon::start_logged(&["--database", &database]);
    daemon.logged("nothing is limited");
    let greeting = daemon.greeting.join("\n");
    assert!(greeting.contains("rules: none yet, so nothing is limited; begin with"), "{greeting}");
    assert!(greeting.contains("tollbar rules apply"), "{greeting}");
    assert_eq!(daemon.check("7"), 200);
    let file = scratch.file("rules.yaml", "rules: [{ name: a, limit: 9/s }]");
    let greeting = Daemon::start(&["--database", &database, "--rules", &file]).greeting.join("\n");
    assert!(!greeting.contains("nothing is limited"), "{greeting}");
}

#[test]
fn a_revoked_token_is_refused_on_every_node_within_a_second() {
    let admin = AdminDaemon::open("revoked", FILE);
    let other = Daemon::start(&["--database", &admin.database]);
    let form = json!({ "name": "ci", "scopes": ["read"] });
    let made = admin.ask("POST", TOKENS, &form).expect(201);
    let token = made["token"].as_str().unwrap();
    let lines = format!("authorization: Bearer {token}\r\n");
    let nodes = [admin.daemon.address("admin"), other.address("admin")];
    let status = |node: &str| send(node, "GET", RULES, &lines, b"").status;
    assert_eq!(nodes.map(status), [200, 200]);
    let revoked = format!("{TOKENS}/{}", made["tokenId"]);
    admin.ask("DELETE", &revoked, &Value::Null).expect(204);
    // How long exactly, the tests of the gate say by a clock of their own; here, that it comes about.
    for node in nodes {
        let refused = (0..100_000).map(|_| status(node)).find(|status| *status != 200);
        assert_eq!(refused, Some(401));
    }
    let told = send(nodes[1], "GET", RULES, &lines, b"").problem(401, "unauthorized");
    assert_eq!(told, "");
    admin.ask("DELETE", &revoked, &Value::Null).expect(204);
    admin.ask("DELETE", &format!("{TOKENS}/999"), &Value::Null).problem(404, "not_found");
    let listed = admin.get(TOKENS);
    let tokens = listed["items"].as_array().unwrap();
    assert!(
        tokens.iter().any(|token| token["name"] == "ci" && token["revokedAt"].is_string()),
        "{listed}"
    );
    assert!(!listed.to_string().contains("tbar_"));
}

#[test]
fn wrong_tokens_are_limited_and_lock_nobody_out_who_is_known() {
    let admin = AdminDaemon::open("wrong", FILE);
    admin.get(RULES);
    let wrong = format!("authorization: Bearer tbar_{}\r\n", "0".repeat(64));
    let statuses: Vec<u16> =
        (0..12).map(|_| admin.send("GET", RULES, &wrong, b"").status).collect();
    assert_eq!(statuses[..10], [401; 10], "ten wrong ones a minute are told so");
    assert!(statuses[10..].contains(&429), "{statuses:?}");
    let told = admin.send("GET", RULES, &wrong, b"");
    let after: u64 = told.header("retry-after").parse().unwrap();
    assert!((1..=6).contains(&after), "{after}");
    told.problem(429, "too_many_failures");
    for number in 0..40 {
        let wrong = format!("authorization: Bearer tbar_{number:064}\r\n");
        admin.send("GET", RULES, &wrong, b"");
    }
    // The cache of tokens is over by now; the token that worked is looked up all the same.
    let cli = |server: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollbar"));
        command.env("TOLLBAR_SERVER", server).env("TOLLBAR_TOKEN", &admin.token);
        command.args(["rules", "list"]).output().unwrap().status.code()
    };
    assert_eq!(cli(&format!("http://{}", admin.daemon.address("admin"))), Some(0));
    // To say nothing is no guess.
    admin.send("GET", RULES, "", b"").problem(401, "unauthorized");
    assert_eq!(admin.send("GET", "/healthz", "", b"").status, 200);
}

#[test]
fn whatever_is_no_token_is_told_what_to_send() {
    let admin = AdminDaemon::open("none", FILE);
    let token = &admin.token;
    let told = admin.send("GET", RULES, "", b"");
    told.problem(401, "unauthorized");
    assert_eq!(told.header("www-authenticate"), "Bearer");
    for lines in [
        format!("authorization: Basic {token}\r\n"),
        format!("authorization: {token}\r\n"),
        format!("authorization: Bearer {token} \r\nauthorization: Bearer {token}\r\n"),
        "authorization: Bearer \r\n".to_owned(),
        format!("authorization: Bearer {}\r\n", token.to_uppercase()),
        format!("authorization: Bearer {token}0\r\n"),
        "authorization: Bearer \u{e9}\r\n".to_owned(),
        format!("cookie: token={token}\r\n"),
    ] {
        admin.send("GET", RULES, &lines, b"").problem(401, "unauthorized");
    }
    let lines = format!("authorization: bearer {token}\r\n");
    assert_eq!(admin.send("GET", RULES, &lines, b"").status, 200, "the scheme has no case");
}

#[test]
fn nothing_else_of_a_request_is_looked_at_before_its_token() {
    let admin = AdminDaemon::open("before", FILE);
    let token = admin.token_of(&["usage:me"], Some("user:1"));
    let bearer = format!("if-match: nonsense\r\nauthorization: Bearer {token}\r\n");
    let document = admin.get("/openapi.json");
    let mut count = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        // No id, no parameter, no version and no body that could be used.
        let target = format!("{}?nosuch=%ff", path.replace('{', "%ff").replace('}', ""));
        for (method, operation) in operations.as_object().unwrap() {
            let send = |lines: &str| admin.send(&method.to_uppercase(), &target, lines, b"{");
            if operation["security"] == json!([]) {
                send("").problem(400, "bad_request");
                continue;
            }
            count += 1;
            send("if-match: nonsense\r\n").problem(401, "unauthorized");
            let scopes = operation["x-tollbar-scopes"].as_array().unwrap();
            if scopes.contains(&json!("usage:me")) {
                send(&bearer).problem(400, "bad_request");
            } else {
                send(&bearer).problem(403, "forbidden");
            }
        }
    }
    assert_eq!(count, 32);
}

#[test]
fn beyond_loopback_it_needs_tls_or_a_word_that_it_does_not() {
    let admin = AdminDaemon::open("exposed", FILE);
    let database = admin.scratch.path("exposed.sqlite");
    let args = ["--check-config", "--admin", "0.0.0.0:0", "--database", &database];
    let refused = serve(&args).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.contains("--admin 0.0.0.0:0 is beyond loopback"), "{told}");
    let meant = serve(&[&args[..], &["--insecure"]].concat()).output().unwrap();
    assert_eq!(meant.status.code(), Some(0));
    let off = Daemon::start(&["--admin", "off", "--database", &database]);
    assert!(!off.addresses().contains_key("admin"));
    let without = Daemon::start(&[]);
    assert!(!without.addresses().contains_key("admin"), "there is nothing to administer");
}
