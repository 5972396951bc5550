//! What a file of settings may say.

use std::sync::atomic::{AtomicUsize, Ordering};

use clap::{Args, FromArgMatches};

use super::*;
use crate::config::Config;

/// What comes of this file and these flags.
fn read(yaml: &str, flags: &[&str]) -> Result<Config, String> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tollbar-config-{}-{number}.yaml", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, yaml).unwrap();
    let command = Config::augment_args(Command::new("serve"));
    let file = ConfigFile::read(&command, &path);
    std::fs::remove_file(&path).unwrap();
    let shown = path.display().to_string();
    if let Some(error) = file.error {
        return Err(error.to_string().replace(&shown, "config.yaml"));
    }
    let matches = file.apply(command).no_binary_name(true).get_matches_from(flags);
    Ok(Config::from_arg_matches(&matches).unwrap())
}

#[test]
fn fields_are_flags_and_groups_are_prefixes() {
    let config = read(
        "
listen: unix:/run/x.sock
max_connections: 7
insecure: true
tls: { cert: a.pem, key: b.pem }
snapshot_every: 5min
store:
  deadline: 40ms
log: { format: json, level: debug }
",
        &[],
    );
    let config = format!("{:?}", config.unwrap());
    for part in [
        "listen: Unix(\"/run/x.sock\")",
        "max_connections: 7",
        "insecure: true",
        "tls_cert: Some(\"a.pem\"), tls_key: Some(\"b.pem\")",
        "snapshot_every: DurationFlag(300s)",
        "store_deadline: DurationFlag(40ms)",
        "log_format: Json, log_level: Debug",
        // Not said: the default.
        "max_keys: 1000000",
    ] {
        assert!(config.contains(part), "{part} is not in {config}");
    }
}

#[test]
fn a_flag_goes_before_the_file_also_where_it_says_no() {
    let yaml = "{ max_connections: 7, insecure: true, head_timeout: 1s }";
    let config = read(yaml, &["--max-connections", "8", "--insecure=false"]).unwrap();
    assert_eq!(config.bounds.max_connections, 8);
    assert!(!config.insecure);
    assert_eq!(config.bounds.head_timeout.to_string(), "1s");
    assert!(read("{}", &["--insecure"]).unwrap().insecure);
}

#[test]
fn what_cannot_be_used_is_told_with_its_place_and_what_to_write() {
    for (yaml, told) in [
        ("", "config.yaml:1:1: the file is empty: write the names of flags"),
        ("[]", "config.yaml:1:1: this is a list: write the names of flags"),
        ("listn: off", "config.yaml:1:1: listn: there is no such setting: did you mean `listen`?"),
        (
            "tls:\n  certt: x",
            "config.yaml:2:3: tls.certt: there is no such setting: did you mean `tls_cert`?",
        ),
        ("colour: red", "config.yaml:1:1: colour: there is no such setting: the names are those"),
        ("config: x", "config.yaml:1:1: config: there is no such setting"),
        ("check_config: true", "config.yaml:1:1: check_config: there is no such setting"),
        (
            "a: &x 1\nlisten: localhost",
            "config.yaml:1:1: a: there is no such setting: the names are those of the flags; see \
             `tollbar serve --help`\nconfig.yaml:2:9: listen: cannot listen on `localhost`: write an address",
        ),
        ("listen:", "config.yaml:1:7: listen: this is nothing: write a single value"),
        ("listen: [off]", "config.yaml:1:9: listen: this is a list: write a single value"),
        (
            "no_watch: { a: b }",
            "config.yaml:1:11: no_watch: this is a mapping: write a single value",
        ),
        (
            "max_connections: 0",
            "config.yaml:1:18: max_connections: write a whole number from 1 to 1000000",
        ),
        (
            "max_keys: lots",
            "config.yaml:1:11: max_keys: write a whole number from 1000 to 1000000000",
        ),
        ("limit: 0/min", "config.yaml:1:8: limit: the limit is 0: write at least 1"),
        ("insecure: yes", "config.yaml:1:11: insecure: write one of true, false"),
        (
            "log_level: loud",
            "config.yaml:1:12: log_level: write one of error, warn, info, debug, trace",
        ),
        (
            "idle_timeout: 5",
            "config.yaml:1:15: idle_timeout: this is no time of 1ms to 24h: write one",
        ),
        ("store: postgres://x", "config.yaml:1:8: store: this is no store: write memory, redis://"),
        (
            "tls_cert: a\ntls: { cert: b }",
            "config.yaml:2:14: tls.cert: line 1 says this already: write it once",
        ),
        ("listen: off\nlisten: off", "config.yaml:2:1: "),
        ("a: b: c", "config.yaml:1:5: this is not YAML: "),
    ] {
        let error = read(yaml, &[]).unwrap_err();
        assert!(error.starts_with(told), "{yaml:?} gave {error}");
    }
}

/// `max_keys: lots` was answered with "invalid digit found in string".
#[test]
fn every_setting_that_refuses_a_value_says_what_to_write() {
    let command = Config::augment_args(Command::new("serve"));
    let mut refusals = 0;
    for (name, argument) in arguments(&command) {
        let Some(refusal) = refusal(argument, "\u{1}") else { continue };
        refusals += 1;
        assert!(refusal.contains("write "), "{name}: {refusal}");
    }
    assert!(refusals > 40, "{refusals} settings have a form");
}

#[test]
fn every_setting_is_in_the_reference_with_its_variable_and_default() {
    let reference = include_str!("../../../../../docs/reference/configuration.md");
    let command = Config::augment_args(Command::new("serve"));
    for argument in command.get_arguments() {
        let flag = format!("| `--{}` |", argument.get_long().unwrap());
        let line = reference.lines().find(|line| line.starts_with(&flag));
        let line =
            line.unwrap_or_else(|| panic!("{flag} is not in docs/reference/configuration.md"));
        let variable = argument.get_env().and_then(|name| name.to_str()).unwrap();
        assert!(line.contains(&format!("| `{variable}` |")), "{variable} is not in {line}");
        assert_eq!(
            variable,
            format!("TOLLBAR_{}", &flag[5..flag.len() - 3]).replace('-', "_").to_uppercase()
        );
        for value in argument.get_default_values() {
            let value = format!("| `{}` |", value.to_str().unwrap());
            assert!(line.contains(&value), "{value} is not in {line}");
        }
    }
}
