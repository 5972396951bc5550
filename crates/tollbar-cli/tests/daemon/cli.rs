//! The commands that speak to a daemon, as people see them: what they print and how they end, compared with
//! the files beside this one, word for word. Ids, instants and tokens are written as if they were others.
//!
//! `TOLLBAR_WRITE_TRANSCRIPTS=1 cargo test -p tollbar-cli --test daemon cli` writes the files anew; read what has changed.

mod transcript;

use crate::common::authority::{Authority, Identity};
use crate::common::{Daemon, Scratch};
use transcript::Transcript;

const FILE: &str = "\
rules:
  - { name: everybody, per: [], limit: 1000/s }
";

const RULES: &str = "\
rules:
  - { name: per_client, limit: [10/s, 450/15min] }
  - { name: search, match: { method: GET, path: /v1/search/** }, limit: 30/min, priority: 5 }
";

const CHANGED: &str = "\
rules:
  - { name: per_client, limit: [20/s, 450/15min] }
  - { name: login, match: { method: POST, path: /v1/login }, per: [ip], limit: 5/min }
";

const FLEET: &str = "\
nodes: 4
accuracy: conservative
rules:
  - { name: bucket, limit: 1000/s, burst: 10000, on_store_failure: deny }
  - { name: window, limit: 3/s, tiers: { gold: 600/min, staff: unlimited }, on_store_failure: local }
  - { name: local, limit: 100/min, algorithm: fixed_window, accuracy: local }
";

#[test]
fn rules_are_shown_applied_exported_and_put_back() {
    let scratch = Scratch::new("cli-rules");
    let file = scratch.file("daemon.yaml", FILE);
    scratch.file("rules.yaml", RULES);
    scratch.file("changed.yaml", CHANGED);
    scratch.file("bad.yaml", "rules:\n- { name: a, limt: 10/s }\n");
    scratch.file("clash.yaml", FILE);
    scratch.file("fleet.yaml", FLEET);
    let mut transcript = Transcript::start(&scratch, &["--rules", &file]);
    transcript.run("rules list");
    transcript.run("rules diff rules.yaml");
    transcript.run("rules apply rules.yaml --dry-run");
    transcript.run("rules apply rules.yaml");
    transcript.say("Again: nothing changes.");
    transcript.run("rules apply rules.yaml");
    transcript.run("rules diff rules.yaml");
    transcript.run("rules list");
    transcript.run("rules list --scope endpoint --json");
    transcript.run("rules get search");
    transcript.run("rules diff changed.yaml");
    transcript.run("rules diff changed.yaml --prune --json");
    transcript.run("rules apply changed.yaml --prune --dry-run");
    transcript.run("rules apply changed.yaml --prune");
    transcript.run("rules export");
    transcript.say("What was exported is what there is.");
    let exported = transcript.output("rules export");
    scratch.file("exported.yaml", &exported);
    transcript.run("rules diff exported.yaml --prune");
    transcript.run("rules history per_client");
    transcript.run("rules rollback per_client --to 1");
    transcript.run("rules get per_client");
    transcript.run("rules rollback per_client --to 99");
    transcript.run("rules get nobody");
    transcript.run("rules apply bad.yaml");
    transcript.run("rules apply clash.yaml");
    transcript.run("rules rollback everybody --to 1");
    transcript.run("rules bounds fleet.yaml --over 1s,1min");
    transcript.run("rules bounds fleet.yaml --over 1m");
    transcript.run("rules explain fleet.yaml --request 'GET /' -a user=42");
    transcript.compare("rules");
}

#[test]
fn exemptions_bans_and_boosts_come_and_go() {
    let scratch = Scratch::new("cli-keys");
    let file = scratch.file("daemon.yaml", "rules: [{ name: daily, limit: 3/day }]");
    scratch.file("rules.yaml", "rules: [{ name: hourly, limit: 4/day }]");
    let mut transcript = Transcript::start(&scratch, &["--rules", &file]);
    transcript.run("rules apply rules.yaml");
    transcript.run("exempt list");
    transcript.run("exempt add hourly user 42 --reason 'load test' --until 2099-01-01");
    transcript.run("exempt add hourly ip_cidr 10.0.0.0/8");
    transcript.run("exempt add hourly user 42");
    transcript.run("exempt add hourly ip_cidr 10.0.0.0/99");
    transcript.run("exempt list hourly");
    transcript.run("exempt delete 1");
    transcript.run("exempt delete 1");
    transcript.run("exempt list --json");
    for _ in 0..4 {
        transcript.daemon.check("7");
    }
    transcript.run("key peek daily user:7");
    transcript.run("key top daily");
    transcript.run("key reset daily user:7");
    transcript.run("key peek daily user:7");
    transcript.run("key ban user:7 --until 2099-01-01 --reason abuse");
    transcript.run("key boost user:8 --rule daily --factor 1.5 --until 2099-01-01T12:00:00Z");
    transcript.run("key list");
    transcript.run("key unban user:7");
    transcript.run("key unban user:7");
    transcript.run("key unboost user:8 --json");
    transcript.run("key list");
    transcript.run("key peek daily");
    transcript.run("key boost user:8 --factor x --until 2h");
    transcript.run("explain --request 'GET /x' -a user=8");
    transcript.compare("keys");
}

#[test]
fn counters_ahead_of_the_clock_are_cleared() {
    let scratch = Scratch::new("cli-counters");
    scratch.file("rules.yaml", "rules: [{ name: hourly, limit: 24/day, burst: 600 }]");
    scratch.file("lowered.yaml", "rules: [{ name: hourly, limit: 24/day, burst: 6 }]");
    let empty = scratch.file("daemon.yaml", "rules: []");
    let mut transcript = Transcript::start(&scratch, &["--rules", &empty]);
    transcript.run("rules apply rules.yaml");
    transcript.daemon.post("/v1/check", r#"{"attributes":{"user":"7"},"cost":600}"#);
    transcript.run("counters clear-ahead");
    transcript.run("rules apply lowered.yaml");
    transcript.say("Whoever has spent the old burst is denied once more, and then begins anew.");
    assert_eq!([(); 3].map(|()| transcript.daemon.check("7")), [429, 200, 200]);
    transcript.run("counters clear-ahead --for 1h");
    transcript.run("counters clear-ahead --for 10m");
    transcript.run("counters clear-ahead --for 25h");
    transcript.compare("counters");
}

#[test]
fn tokens_are_made_used_and_revoked() {
    let scratch = Scratch::new("cli-tokens");
    let mut transcript = Transcript::start(&scratch, &[]);
    transcript.run("token list");
    transcript.run("token create ci --scope read --until 2099-01-01");
    transcript.run("token create nothing --scope everything");
    transcript.run("token create someone --scope usage:me --subject user:42 --json");
    transcript.say("With a token that may only read:");
    let reading = transcript.output("token create reader --scope read --json");
    transcript.with_token(&serde_json::from_str::<serde_json::Value>(&reading).unwrap()["token"]);
    transcript.run("rules list --json");
    transcript.run("token list");
    transcript.say("With one that nobody knows, and with none:");
    transcript.with_token(&format!("tbar_{}", "0".repeat(64)).into());
    transcript.run("rules list");
    transcript.with_token(&"".into());
    transcript.run("rules list");
    transcript.say("The database itself needs none:");
    let database = scratch.path("rules.sqlite");
    transcript.run("token create lost --scope admin --database absent.sqlite");
    let made =
        transcript.output(&format!("token create lost --scope admin --json --database {database}"));
    transcript.with_token(&serde_json::from_str::<serde_json::Value>(&made).unwrap()["token"]);
    transcript.run("token revoke 2");
    transcript.run("token revoke 99");
    transcript.run("token list");
    transcript.compare("tokens");
}

#[test]
fn usage_is_shown_and_exported_and_nodes_are_listed() {
    let scratch = Scratch::new("cli-usage");
    let file = scratch.file("daemon.yaml", "rules: [{ name: daily, limit: 3/day }]");
    let mut transcript = Transcript::start(&scratch, &["--rules", &file, "--node", "edge-1"]);
    transcript.run("usage");
    for user in ["7", "7", "7", "7", "=8"] {
        transcript.daemon.check(user);
    }
    let acme = r#"{"attributes":{"user":"9","tenant":"acme"},"cost":2}"#;
    transcript.daemon.post("/v1/check", acme);
    transcript.say("A daemon that stops writes what it has counted.");
    transcript.restart(&scratch, &["--rules", &file, "--node", "edge-1"]);
    transcript.run("usage");
    transcript.run("usage --tenant acme --json");
    transcript.run("usage --subject user:7 --rule daily");
    transcript.run("usage --from 2099-01-01");
    transcript.run("usage --from tomorrow");
    transcript.run("usage export");
    transcript.run("usage export --format jsonl --tenant acme");
    transcript.run("usage export --by tenant");
    transcript.run("usage export --by rule --format csv");
    transcript.run("usage export --by client --format jsonl --tenant acme");
    transcript.run("usage export --by day");
    // A node reports soon after it has started, and not at the moment it listens.
    while !transcript.output("nodes --json").contains("edge-1") {}
    transcript.run("nodes");
    transcript.compare("usage");
}

#[test]
fn who_cannot_be_reached_is_told_apart_from_who_refuses() {
    let scratch = Scratch::new("cli-errors");
    let mut transcript = Transcript::start(&scratch, &[]);
    transcript.run("rules list --server http://127.0.0.1:1");
    transcript.run("rules list --server unix:nowhere.sock");
    transcript.run("rules list --server nowhere");
    transcript.run("rules list --token-file nowhere");
    transcript.run("rules list --ca nowhere --server https://127.0.0.1:1");
    transcript.say("Another port of the daemon is no admin interface.");
    let http = transcript.daemon.address("http").to_owned();
    transcript.run(&format!("nodes --server http://{http}"));
    transcript.compare("errors");
}

/// The codes of the one table in docs/reference/cli.md.
#[test]
fn commands_end_with_the_exit_codes_of_the_reference() {
    let scratch = Scratch::new("cli-exit-codes");
    let good = scratch.file("good.yaml", FILE);
    let bad = scratch.file("bad.yaml", "rules:\n- { name: a, limt: 10/s }\n");
    let daemon = Daemon::start(&["--database", &scratch.path("a.sqlite")]);
    let admin = format!("http://{}", daemon.address("admin"));
    let http = format!("http://{}", daemon.address("http"));
    let token = format!("tbar_{}", "0".repeat(64));
    for (args, code) in [
        (&["--version"][..], 0),
        (&["rules", "check", &good], 0),
        (&["rules", "check", &bad], 1),
        (&["rules", "chek", &good], 2),
        (&["rules", "check", "/no/such/file"], 2),
        (&["nodes", "--server", &admin], 3),
        (&["nodes", "--server", &http], 4),
        (&["nodes", "--server", "http://127.0.0.1:1"], 4),
        (&["serve", "--check-config", "--rules", &good], 0),
        (&["serve", "--listen", daemon.address("http")], 1),
        (&["serve", "--rules", &bad], 2),
        (&["serve", "--max-keys", "lots"], 2),
    ] {
        let run = transcript::tollbar().args(args).env("TOLLBAR_TOKEN", &token).output().unwrap();
        let told = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(code), "{args:?}: {told}");
    }
}

/// The exit code of `tollbar nodes`, and what it prints.
fn nodes(daemon: &Daemon, flags: &[&str]) -> (Option<i32>, String) {
    let token =
        daemon.greeting.iter().find_map(|line| line.split_once("(shown once): ")).unwrap().1;
    let mut command = transcript::tollbar();
    let output = command.args(["nodes", "--json"]).args(flags).env("TOLLBAR_TOKEN", token).output();
    let output = output.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_daemon_is_asked_on_a_path_too() {
    let scratch = Scratch::new("cli-unix");
    let place = format!("unix:{}", scratch.path("admin.sock"));
    let daemon = Daemon::start(&["--database", &scratch.path("a.sqlite"), "--admin", &place]);
    let (code, text) = nodes(&daemon, &["--server", &place]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("\"revision\""), "{text}");
}

#[test]
fn over_tls_only_the_right_daemon_is_told_the_token() {
    let scratch = Scratch::new("cli-tls");
    let issue = || rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (ours, other) = (issue(), issue());
    let cert = scratch.file("cert.pem", &ours.cert.pem());
    let key = scratch.file("key.pem", &ours.signing_key.serialize_pem());
    let other = scratch.file("other.pem", &other.cert.pem());
    let flags = ["--tls-cert", &cert, "--tls-key", &key, "--admin", "127.0.0.1:0"];
    let database = scratch.path("a.sqlite");
    let daemon = Daemon::start(&[&flags[..], &["--database", &database]].concat());
    let port = daemon.address("admins").rsplit_once(':').unwrap().1.to_owned();
    let server = format!("https://localhost:{port}");
    let (code, text) = nodes(&daemon, &["--server", &server, "--ca", &cert]);
    assert_eq!(code, Some(0), "{text}");
    // Not one of another, not one that browsers believe, not one of another name, and not without TLS.
    let address = format!("https://127.0.0.1:{port}");
    let plain = format!("http://localhost:{port}");
    for flags in [
        &["--server", &server, "--ca", &other][..],
        &["--server", &server],
        &["--server", &address, "--ca", &cert],
        &["--server", &plain],
    ] {
        let (code, text) = nodes(&daemon, flags);
        assert_eq!(code, Some(4), "{flags:?}: {text}");
    }
}

/// A daemon that asks its clients for certificates could not be asked by the command line.
#[test]
fn a_certificate_is_shown_to_a_daemon_that_asks_for_one() {
    let scratch = Scratch::new("cli-client-cert");
    let (authority, strangers) = (Authority::new(), Authority::new());
    let ca = scratch.file("ca.pem", &authority.pem());
    let file = |name: &str, identity: &Identity| {
        let cert = scratch.file(&format!("{name}.pem"), &identity.cert);
        (cert, scratch.file(&format!("{name}.key"), &identity.key))
    };
    let (cert, key) = file("daemon", &authority.issue("localhost"));
    let (client_cert, client_key) = file("client", &authority.issue("client"));
    let (other_cert, other_key) = file("other", &strangers.issue("client"));
    let flags = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
    let database = scratch.path("a.sqlite");
    let daemon =
        Daemon::start(&[&flags[..], &["--admin", "127.0.0.1:0", "--database", &database]].concat());
    let port = daemon.address("admins").rsplit_once(':').unwrap().1.to_owned();
    let server = format!("https://localhost:{port}");
    let server = ["--server", &server, "--ca", &ca];
    let ask = |more: &[&str]| nodes(&daemon, &[&server[..], more].concat());
    let (code, text) = ask(&["--cert", &client_cert, "--key", &client_key]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(ask(&[]).0, Some(4));
    assert_eq!(ask(&["--cert", &other_cert, "--key", &other_key]).0, Some(4));
    for (more, told) in [
        (&["--cert", &client_cert][..], "--key"),
        (&["--cert", &client_cert, "--key", &other_key], "is not the key of"),
    ] {
        let (code, text) = ask(more);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(told), "{text}");
    }
    let plain = ["--server", "http://127.0.0.1:1", "--cert", &client_cert, "--key", &client_key];
    let (code, text) = nodes(&daemon, &plain);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--cert has no effect on http://127.0.0.1:1"), "{text}");
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = transcript::tollbar().args(["completions", shell]).output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("rollback") && text.contains("token-file"), "{shell}: {text}");
    }
}
