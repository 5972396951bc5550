//! Running the daemon: what it is told and by whom, what it tells, and what it reads again.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Stdio;
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
    let stamp = reloading.lines().find_map(|it| it.strip_prefix("MONOTONIC_USEC=")).unwrap();
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

#[test]
fn a_snapshot_that_cannot_be_written_is_told_once_and_at_the_end() {
    let scratch = Scratch::new("no-snapshot");
    let directory = scratch.0.join("gone");
    fs::create_dir(&directory).unwrap();
    let counters = directory.join("counters");
    let args = ["--snapshot", counters.to_str().unwrap(), "--snapshot-every", "20ms"];
    let mut daemon = Daemon::start_logged(&args);
    let _ = fs::remove_dir_all(&directory);
    let told = daemon.logged("cannot write the snapshot");
    assert!(told.contains(" WARN ") && told.contains(counters.to_str().unwrap()), "{told}");
    assert_eq!(daemon.check("7"), 200);
    daemon.signal("TERM");
    let log = daemon.rest_of_log();
    assert!(!log.contains("cannot write the snapshot"), "told twice: {log}");
    assert!(log.contains(" ERROR --snapshot: "), "{log}");
    assert_eq!(daemon.wait(), 1);
}
