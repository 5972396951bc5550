//! Running the daemon: what it is told and by whom, what it tells, and what it reads again.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Daemon, Scratch, request, serve, status};

/// A daemon that does nothing more is a failure, not a reason to wait for ever.
const PATIENCE: Duration = Duration::from_secs(30);

const ONE_A_DAY: &str = "rules: [{ name: a, limit: 1/day }]";
const TWO_A_DAY: &str = "rules: [{ name: a, limit: 2/day }]";

#[test]
fn a_flag_goes_before_a_variable_that_before_the_file_and_that_before_the_default() {
    let scratch = Scratch::new("precedence");
    let one = scratch.file("one.yaml", ONE_A_DAY);
    let two = scratch.file("two.yaml", TWO_A_DAY);
    let three = scratch.file("three.yaml", "rules: [{ name: a, limit: 3/day }]");
    let config = scratch.file("config.yaml", &format!("rules: {three}\nlog: {{ level: error }}\n"));
    let passed = |daemon: &Daemon| (0..7).filter(|_| daemon.check("7") == 200).count();

    assert_eq!(passed(&Daemon::start(&[])), 5, "the default");
    assert_eq!(passed(&Daemon::start(&["--config", &config])), 3, "the file");
    let mut command = serve(&["--config", &config]);
    command.env("TOLLBAR_RULES", &two);
    assert_eq!(passed(&Daemon::spawn(command)), 2, "the variable");
    let mut command = serve(&["--rules", &one]);
    command.env("TOLLBAR_RULES", &two).env("TOLLBAR_CONFIG", &config);
    assert_eq!(passed(&Daemon::spawn(command)), 1, "the flag");
}

/// `--limit 3/h` beside `rules:` of the file was ignored, and so was a variable beside a flag that excludes it.
#[test]
fn what_excludes_or_has_no_effect_is_told_with_its_flag_variable_or_line() {
    let scratch = Scratch::new("sources");
    let rules = scratch.file("rules.yaml", ONE_A_DAY);
    let config = scratch.file("config.yaml", &format!("log: {{ level: error }}\nrules: {rules}\n"));
    let told = |args: &[&str], (name, value): (&str, &str)| {
        let args = [&["--check-config"], args].concat();
        let output = serve(&args).env(name, value).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let none = ("TOLLBAR_GRPC", "off");
    for (args, variable, expected) in [
        (
            &["--config", &config, "--limit", "3/h"][..],
            none,
            &*format!(
                "--limit and rules ({config}:2) exclude each other: write the limit as a rule"
            ),
        ),
        (
            &["--config", &config],
            ("TOLLBAR_LIMIT", "3/h"),
            &format!("TOLLBAR_LIMIT and rules ({config}:2) exclude each other"),
        ),
        (&["--rules", &rules], ("TOLLBAR_LIMIT", "3/h"), "TOLLBAR_LIMIT and --rules exclude"),
        (&["--envoy-charge", "all-or-none"], none, "--envoy-charge has no effect without a --grpc"),
        (&[], ("TOLLBAR_NODE", "a"), "TOLLBAR_NODE has no effect without --database DATABASE"),
    ] {
        let told = told(args, variable);
        assert!(told.starts_with(expected), "{args:?} {variable:?} gave {told}");
    }
}

#[test]
fn fields_that_have_no_effect_here_are_warned_of() {
    let scratch = Scratch::new("idle-fields");
    let rules = "rules:
- { name: shut, limit: 9/s, on_store_failure: deny }
- { name: open, limit: 9/s, on_store_failure: allow }
- { name: spaced, limit: 9/s, queue: 3, max_wait: 1s }
- { name: lent, limit: 9/s, accuracy: conservative }
- { name: absent, enabled: false, limit: 9/s, queue: 3, on_store_failure: deny }
";
    let rules = scratch.file("rules.yaml", rules);
    let log = |args: &[&str]| {
        let args = [&["--check-config", "--rules", &rules][..], args].concat();
        let output = serve(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stderr).unwrap()
    };
    let told = log(&[]);
    let line = |part: &str| told.lines().find(|line| line.contains(part)).unwrap_or_default();
    assert!(line("`on_store_failure` has no effect").ends_with("rules=\"shut\""), "{told}");
    assert!(line("`accuracy` has no effect").ends_with("rules=\"lent\""), "{told}");
    assert!(line("`queue` holds no request of Envoy").ends_with("rules=\"spaced\""), "{told}");
    let elsewhere = log(&["--store", "redis://127.0.0.1:1", "--store-raw-keys", "--grpc", "off"]);
    assert!(!elsewhere.contains("has no effect") && !elsewhere.contains("`queue`"), "{elsewhere}");
}

#[test]
fn a_file_of_settings_is_checked_with_its_lines() {
    let scratch = Scratch::new("settings");
    let bad = scratch.file("config.yaml", "max_keys: 1000\nlisten: everywhere\n");
    let output = serve(&["--check-config", "--config", &bad]).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = format!("--config: {bad}:2:9: listen: cannot listen on `everywhere`: write ");
    assert!(err.starts_with(&told), "{err}");

    let absent = scratch.path("absent.yaml");
    let output = serve(&["--check-config", "--config", &absent]).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.starts_with(&format!("--config: cannot read {absent}: ")), "{err}");
}

/// Only the first mistake was told, so that people corrected one at a time.
#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let scratch = Scratch::new("all-at-once");
    let rules = "rules:\n- { name: a, limt: 1/s }\n- { name: b, limit: 0/s }";
    let rules = scratch.file("rules.yaml", rules);
    let tokens = scratch.secret("tokens", "short\n");
    let config = format!(
        "max_keys: lots\nrules: {rules}\nlisten: everywhere\ntoken_file: {tokens}\nstore_raw_keys: true\n"
    );
    let config = scratch.file("config.yaml", &config);
    let check = |args: &[&str], (name, value): (&str, &str)| {
        let args = [&["--check-config"], args].concat();
        let output = serve(&args).env(name, value).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    // Wrong values of flags and variables, settings of the file, the files that they name, and the store.
    let args = ["--config", &config, "--usage-entries", "few", "--idle-timeout=never"];
    let files = ["--tls-cert=/no/cert", "--tls-key=/no/key", "--store=redis://127.0.0.1:1"];
    let told = check(&[&args[..], &files].concat(), ("TOLLBAR_MAX_CONNECTIONS", "many"));
    for expected in [
        "error: invalid value 'few' for '--usage-entries <COUNT>': write a whole number from 1 to",
        "error: invalid value 'many' for '--max-connections <COUNT>': write a whole number from 1",
        "error: invalid value 'never' for '--idle-timeout <TIME>': ",
        &format!("--config: {config}:1:11: max_keys: write a whole number from 1000 to"),
        &format!("{config}:3:9: listen: cannot listen on `everywhere`: write "),
        &format!("--token-file: {tokens} holds no tokens"),
        "--tls-cert: cannot read /no/cert",
        &format!("--rules: {rules}:2:"),
        &format!("{rules}:3:"),
        "--store: 127.0.0.1:1 cannot be reached",
    ] {
        assert!(told.contains(expected), "`{expected}` is not in {told}");
    }
    // Options that have no effect, exclude each other or expose a listener.
    let args = ["--limit=1/s", "--rules", &rules, "--node=a", "--listen=0.0.0.0:0"];
    let told = check(&[&args[..], &["--grpc=0.0.0.0:0"]].concat(), ("TOLLBAR_RESP", "off"));
    for expected in [
        "--limit and --rules exclude each other",
        "--node has no effect without --database",
        "--listen 0.0.0.0:0 is beyond loopback",
        "--grpc 0.0.0.0:0 is beyond loopback",
        &format!("--rules: {rules}:2:"),
    ] {
        assert!(told.contains(expected), "`{expected}` is not in {told}");
    }
}

#[test]
fn rules_that_change_are_put_in_force_and_bad_ones_are_not() {
    let scratch = Scratch::new("watch");
    let rules = scratch.file("rules.yaml", ONE_A_DAY);
    let mut daemon = Daemon::start_logged(&["--rules", &rules]);
    assert_eq!((daemon.check("7"), daemon.check("7")), (200, 429));
    let put = |text: &str| {
        // As careful people do it: nobody ever sees half of a file.
        fs::rename(scratch.file("rules.new", text), &rules).unwrap();
    };
    put("rules:\n- { name: a, limt: 2/day }");
    let told = daemon.logged("the rules stay as they were");
    assert!(told.contains("rules.yaml:2:14: "), "{told}");
    assert_eq!(daemon.check("7"), 429);
    put(TWO_A_DAY);
    daemon.logged("rules reloaded rules=1 added=0 changed=1 removed=0");
    assert_eq!((daemon.check("7"), daemon.check("7")), (200, 429), "and the counters are kept");
}

#[test]
fn files_that_nobody_watches_are_read_when_asked() {
    let scratch = Scratch::new("no-watch");
    let rules = scratch.file("rules.yaml", ONE_A_DAY);
    let mut daemon = Daemon::start_logged(&["--no-watch", "--rules", &rules]);
    let mut watching = Daemon::start_logged(&["--rules", &rules]);
    assert_eq!((daemon.check("7"), daemon.check("7")), (200, 429));
    // Both look equally often, so between two reloads of the one there was a look of the other.
    for text in [TWO_A_DAY, "rules: [{ name: a, limit: 3/day }]"] {
        scratch.file("rules.yaml", text);
        watching.logged("rules reloaded");
    }
    assert_eq!(daemon.check("7"), 429);
    daemon.signal("HUP");
    daemon.logged("rules reloaded");
    assert_eq!([0; 3].map(|_| daemon.check("7")), [200, 200, 429]);
}

#[test]
fn the_log_has_no_events_below_its_level() {
    for (level, is_told) in [("info", true), ("error", false)] {
        let mut daemon = Daemon::start_logged(&["--log-level", level]);
        daemon.signal("TERM");
        let log = daemon.rest_of_log();
        assert_eq!(log.contains(" INFO "), is_told, "{level}: {log}");
    }
}

#[test]
fn tokens_are_read_again_on_a_hang_up_and_a_bad_file_leaves_them() {
    let scratch = Scratch::new("tokens");
    let [old, new] = ["0123456789abcdef-old", "0123456789abcdef-new"];
    let file = scratch.file("tokens", &format!("{old}\n{new}\n"));
    let mut daemon = Daemon::start_logged(&["--token-file", &file]);
    let ask = |daemon: &Daemon, token: &str| {
        let mut stream = daemon.connect();
        let head = format!("POST /v1/check HTTP/1.1\r\nauthorization: Bearer {token}\r\n");
        let rest = request("", "{}").replacen("POST  HTTP/1.1\r\n", &head, 1);
        stream.write_all(rest.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        status(&response)
    };
    assert_eq!([ask(&daemon, old), ask(&daemon, new), ask(&daemon, "x")], [200, 200, 401]);
    scratch.file("tokens", &format!("{new}\n"));
    daemon.signal("HUP");
    daemon.logged("tokens reloaded");
    assert_eq!([ask(&daemon, old), ask(&daemon, new)], [401, 200]);
    scratch.file("tokens", "short\n");
    daemon.signal("HUP");
    let told = daemon.logged("the tokens stay as they were");
    assert!(told.contains("--token-file: "), "{told}");
    assert_eq!([ask(&daemon, old), ask(&daemon, new)], [401, 200]);
    daemon.signal("TERM");
    let log = daemon.rest_of_log();
    assert!(!log.contains(new) && !told.contains(new), "a token is in the log");
}

#[test]
fn a_unix_socket_is_for_the_group_and_goes_with_the_daemon() {
    let scratch = Scratch::new("unix");
    let path = scratch.path("tollbar.sock");
    let daemon = Daemon::start(&["--listen", &format!("unix:{path}")]);
    assert_eq!(daemon.address("http"), format!("unix:{path}"));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(request("/v1/check", "{}").as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert_eq!(status(&response), 200);
    // A second one does not take its place.
    let second = serve(&["--listen", &format!("unix:{path}")]).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let err = String::from_utf8(second.stderr).unwrap();
    assert!(err.contains(&format!("--listen: cannot listen on unix:{path}: ")), "{err}");
    assert_eq!(daemon.stop(), 0);
    assert!(!fs::exists(&path).unwrap());
    // What a killed one leaves behind does not keep the next from starting.
    let mut killed = Daemon::start(&["--listen", &format!("unix:{path}")]);
    killed.process.kill().unwrap();
    killed.process.wait().unwrap();
    assert!(fs::exists(&path).unwrap());
    assert_eq!(Daemon::start(&["--listen", &format!("unix:{path}")]).stop(), 0);
}

#[test]
fn a_log_in_json_has_an_object_a_line() {
    let scratch = Scratch::new("json");
    let rules = scratch.file("rules.yaml", ONE_A_DAY);
    let args = ["--log-format", "json", "--log-level", "debug", "--rules", &rules];
    let mut daemon = Daemon::start_logged(&args);
    assert_eq!(daemon.check("a-clients-key"), 200);
    daemon.signal("HUP");
    let reloaded = daemon.logged("rules reloaded");
    let reloaded: serde_json::Value = serde_json::from_str(&reloaded).unwrap();
    assert_eq!(reloaded["level"], "INFO");
    assert_eq!(reloaded["message"], "rules reloaded");
    assert_eq!((&reloaded["rules"], &reloaded["changed"]), (&1.into(), &0.into()));
    assert!(reloaded["timestamp"].as_str().unwrap().ends_with('Z'));
    daemon.signal("TERM");
    let rest = daemon.rest_of_log();
    for line in rest.lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
    }
    assert!(rest.contains("stopped") && !rest.contains("a-clients-key"), "{rest}");
}

#[test]
fn systemd_is_told_of_every_step() {
    let scratch = Scratch::new("systemd");
    let path = scratch.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut buffer = [0; 4_096];
        let length = socket.recv(&mut buffer).expect("systemd was told nothing");
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let until = |part: &str| loop {
        let told = told();
        if told.contains(part) {
            return told;
        }
        assert_eq!(told.trim(), "WATCHDOG=1", "waiting for {part}");
    };
    let mut command = serve(&[]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "100000").stderr(Stdio::null());
    let daemon = Daemon::spawn(command);
    until("READY=1");
    assert_eq!(told().trim(), "WATCHDOG=1");
    daemon.signal("HUP");
    let reloading = until("RELOADING=1");
    let stamp = reloading.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).unwrap();
    assert!(stamp.parse::<u64>().unwrap() > 0);
    until("READY=1");
    daemon.signal("TERM");
    until("STOPPING=1");
}

#[test]
fn a_snapshot_is_written_now_and_then() {
    let scratch = Scratch::new("snapshot-every");
    let rules = scratch.file("rules.yaml", ONE_A_DAY);
    let counters = scratch.path("counters");
    let args = ["--rules", &rules, "--snapshot", &counters, "--snapshot-every", "20ms"];
    let mut daemon = Daemon::start(&args);
    assert_eq!(daemon.check("7"), 200);
    // Two files after the check: at least the second was begun after it.
    for _ in 0..2 {
        let _ = fs::remove_file(&counters);
        while !fs::exists(&counters).unwrap() {
            assert!([200, 429].contains(&daemon.check("8")));
        }
    }
    daemon.process.kill().unwrap();
    daemon.process.wait().unwrap();
    let daemon = Daemon::start(&args);
    assert_eq!((daemon.check("7"), daemon.check("9")), (429, 200));
}

/// The health of the daemon as JSON.
fn health(daemon: &Daemon) -> String {
    daemon.get_with("/healthz", "")
}

fn until_health(daemon: &Daemon, part: &str) {
    assert!(
        (0..100_000).any(|_| health(daemon).contains(part)),
        "never {part}: {}",
        health(daemon)
    );
}

/// One line in the log was all that told of it, and a quota was forgotten at the next restart.
#[test]
fn a_snapshot_that_cannot_be_written_is_seen_until_it_can_and_at_the_end() {
    let scratch = Scratch::new("no-snapshot");
    let directory = scratch.0.join("gone");
    fs::create_dir(&directory).unwrap();
    let counters = directory.join("counters");
    let args = ["--snapshot", counters.to_str().unwrap(), "--snapshot-every", "20ms"];
    let mut daemon = Daemon::start_logged(&args);
    let told = daemon.logged("there is no snapshot: counters begin fresh");
    assert!(told.contains(" WARN ") && told.contains(counters.to_str().unwrap()), "{told}");
    assert!(health(&daemon).contains(r#""snapshot":"ok""#), "{}", health(&daemon));
    // Moved and not removed: a file that is written meanwhile must not be in the way.
    let take_away = |name: &str| fs::rename(&directory, scratch.0.join(name)).unwrap();
    take_away("first");
    let told = daemon.logged("cannot write the snapshot");
    assert!(told.contains(" WARN ") && told.contains(counters.to_str().unwrap()), "{told}");
    let seen = health(&daemon);
    assert!(
        seen.starts_with("HTTP/1.1 200 ") && seen.contains(r#"{"status":"degraded""#),
        "{seen}"
    );
    assert!(seen.contains(r#""snapshot":"degraded""#), "{seen}");
    let metrics = daemon.get_with("/metrics", "");
    assert!(metrics.contains("tollbar_part_up{part=\"snapshot\"} 0"), "{metrics}");
    assert!(!metrics.contains("tollbar_task_failures_total{task=\"snapshot\"} 0\n"), "{metrics}");
    assert!(metrics.contains("tollbar_task_age_seconds{task=\"snapshot\"} "), "{metrics}");
    assert_eq!(daemon.check("7"), 200);

    fs::create_dir(&directory).unwrap();
    daemon.logged("the snapshot is written again");
    until_health(&daemon, r#""snapshot":"ok""#);
    assert!(health(&daemon).contains(r#"{"status":"ok""#));

    take_away("second");
    until_health(&daemon, r#""snapshot":"degraded""#);
    daemon.signal("TERM");
    let log = daemon.rest_of_log();
    assert!(log.contains(" ERROR --snapshot: "), "{log}");
    assert_eq!(daemon.wait(), 1);
}

#[test]
fn a_snapshot_that_is_damaged_or_empty_is_kept_aside_and_the_daemon_starts_with_a_warning() {
    let scratch = Scratch::new("damaged");
    let rules = scratch.file("rules.yaml", ONE_A_DAY);
    let (counters, aside) = (scratch.path("counters"), scratch.path("counters.damaged"));
    let args = ["--rules", &rules, "--snapshot", &counters];
    let daemon = Daemon::start(&args);
    assert_eq!(daemon.check("7"), 200);
    assert_eq!(daemon.stop(), 0);
    let whole = fs::read(&counters).unwrap();
    let half = whole[..whole.len() / 2].to_vec();
    for damaged in [half, Vec::new(), whole[..3].to_vec(), vec![0; 4_096]] {
        fs::write(&counters, &damaged).unwrap();
        let mut daemon = Daemon::start_logged(&args);
        let told = daemon.logged("COUNTERS ARE LOST");
        assert!(told.contains(" WARN ") && told.contains(&aside), "{told}");
        assert_eq!(fs::read(&aside).unwrap(), damaged, "it is kept for those who look into it");
        assert_eq!((daemon.check("7"), daemon.check("7")), (200, 429), "fresh, and limited");
        assert_eq!(daemon.stop(), 0);
        let daemon = Daemon::start(&args);
        assert_eq!(daemon.check("7"), 429, "the next snapshot is whole");
        assert_eq!(daemon.stop(), 0);
    }
    // A file of somebody else is not ours to replace.
    fs::write(&counters, "rules: [{ name: a, limit: 1/day }]").unwrap();
    let output = serve(&args).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("this is not a snapshot of a memory store: correct the path"), "{told}");
}

#[test]
fn a_required_snapshot_that_is_missing_or_damaged_is_not_started_without() {
    let scratch = Scratch::new("required");
    let counters = scratch.path("counters");
    let args = ["--snapshot", &counters, "--snapshot-required"];
    let refused = |expected: &str| {
        let output = serve(&args).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(
            told.contains(expected) && told.contains("leave --snapshot-required out"),
            "{told}"
        );
    };
    refused("there is no snapshot at");
    scratch.file("counters", "");
    refused("this is not a snapshot");
    assert!(fs::exists(&counters).unwrap(), "it is left where it is");
    fs::remove_file(&counters).unwrap();
    assert_eq!(Daemon::start(&["--snapshot", &counters]).stop(), 0);
    let whole = fs::read(&counters).unwrap();
    assert_eq!(Daemon::start(&args).stop(), 0);
    fs::write(&counters, &whole[..whole.len() - 1]).unwrap();
    refused("the snapshot is damaged");
}

/// They were not looked at: a limit of a day over the memory store was forgotten without a word.
#[test]
fn limits_of_envoys_files_that_a_restart_would_forget_are_named() {
    let scratch = Scratch::new("long-envoy-windows");
    let text = "domain: shop
descriptors:
  - { key: ip, rate_limit: { unit: minute, requests_per_unit: 9 } }
  - { key: tried, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 9 } }
  - { key: plan, value: free, descriptors: [{ key: path, rate_limit: { unit: day, requests_per_unit: 9 } }] }
";
    let limits = scratch.file("limits.yaml", text);
    let mut daemon = Daemon::start_logged(&["--envoy-config", &limits]);
    let told = daemon.logged("a restart forgets what was used");
    let expected = "limits of --envoy-config shop/plan_free/path count for";
    assert!(told.contains(" WARN ") && told.contains(expected), "{told}");
    // So are those that come later.
    let hourly = "  - { key: user, rate_limit: { unit: hour, requests_per_unit: 9 } }\n";
    scratch.file("limits.yaml", &format!("{text}{hourly}"));
    let told = daemon.logged("a restart forgets what was used");
    assert!(told.contains("limits of --envoy-config shop/user count for"), "{told}");
}

#[test]
fn rules_that_a_restart_would_forget_are_named_where_there_is_no_snapshot() {
    let scratch = Scratch::new("long-windows");
    let text = "rules:\n  - { name: burst, match: { path: / }, limit: 5/s }\n  \
                - { name: quota, match: { path: /q }, limit: 100 per calendar month }\n";
    let rules = scratch.file("rules.yaml", text);
    let mut daemon = Daemon::start_logged(&["--rules", &rules]);
    let told = daemon.logged("a restart forgets what was used");
    assert!(told.contains(" WARN ") && told.contains("rules quota count for"), "{told}");
    // So are rules that come later.
    let hourly = "{ name: hourly, match: { path: /h }, limit: 9/h }";
    scratch.file("rules.yaml", &format!("{text}  - {hourly}\n"));
    let told = daemon.logged("a restart forgets what was used");
    assert!(told.contains("rules hourly count for"), "each is named once: {told}");
    assert_eq!(daemon.stop(), 0);

    let counters = scratch.path("counters");
    let mut daemon = Daemon::start_logged(&["--rules", &rules, "--snapshot", &counters]);
    // By the second look at files, the first look at the rules in force is over.
    scratch.file("rules.yaml", text);
    let reloaded = "tollbar_reloads_total{what=\"rules\"} 1";
    assert!((0..100_000).any(|_| daemon.get_with("/metrics", "").contains(reloaded)));
    scratch.file("rules.yaml", &format!("{text}  - {hourly}\n"));
    daemon.signal("TERM");
    let log = daemon.rest_of_log();
    assert!(!log.contains("a restart forgets"), "{log}");

    let mut check = Command::new(env!("CARGO_BIN_EXE_tollbar"));
    let output = check.args(["rules", "check", "--strict", &rules]).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "the file does not say which store: {told}");
    assert!(told.contains("warning: rules hourly, quota count for an hour or longer"), "{told}");
}
