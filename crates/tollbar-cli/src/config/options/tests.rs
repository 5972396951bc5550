//! The table of options is whole, every cell has a test, and whatever is in no cell is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::CommandFactory;
use serde_json::Value;

use super::*;
use crate::command::Command;
use crate::config::file;

/// A field of rules: a test of its effect, and where it has none, the test that shows what follows. Rules are
/// decided by one engine, so that the tests of the row `rules` stand for every protocol.
type FieldRow = (&'static str, &'static str, &'static [(Part, &'static str)]);

#[rustfmt::skip]
const RULE_FIELDS: &[FieldRow] = &[
    ("name", "names_are_identities", &[]),
    ("id", "counts_go_on_when_the_rules_change_around_them", &[]),
    ("description", "other_forms_are_read", &[]),
    ("enabled", "fallbacks_are_for_requests_that_no_live_rule_matches", &[]),
    ("match", "unlimited_rules_lift_what_is_not_above_them", &[]),
    ("per", "a_missing_attribute_is_answered_as_the_rule_says", &[]),
    ("missing", "a_missing_attribute_is_answered_as_the_rule_says", &[]),
    ("new_keys", "names_that_are_made_up_are_new_keys_of_their_network", &[]),
    ("algorithm", "a_limit_means_a_policy", &[]),
    ("burst", "a_limit_means_a_policy", &[]),
    ("staggered", "a_limit_means_a_policy", &[]),
    ("utc_offset", "every_form_of_a_field_is_read", &[]),
    ("subwindows", "a_limit_means_a_policy", &[]),
    ("warm_up", "a_limit_means_a_policy", &[]),
    ("lease", "a_lease_is_held_until_it_is_released_or_ends", &[
        (ForwardAuth, "what_lacks_something_or_would_hold_a_permit_is_not_let_through"),
        (ExtAuthz, "what_cannot_be_decided_over_grpc_is_denied"),
        (Envoy, "rules_about_what_is_in_flight_are_named_in_a_warning_and_void_no_other"),
    ]),
    ("queue", "a_request_waits_for_the_longest_of_its_queues", &[
        (Envoy, "fields_that_have_no_effect_here_are_warned_of"),
    ]),
    ("max_wait", "a_limit_means_a_policy", &[
        (Envoy, "fields_that_have_no_effect_here_are_warned_of"),
    ]),
    ("limit", "several_limits_of_one_rule_hold_together", &[]),
    ("tiers", "tiers_have_limits_of_their_own", &[]),
    ("candidate", "shadows_and_candidates_report_and_never_deny", &[]),
    ("cost", "costs_go_by_route_and_attribute", &[]),
    ("priority", "rules_are_looked_at_by_priority_and_then_by_name", &[]),
    ("stop", "stop_and_replaces_keep_others_from_applying", &[]),
    ("fallback", "fallbacks_are_for_requests_that_no_live_rule_matches", &[]),
    ("unlimited", "unlimited_rules_lift_what_is_not_above_them", &[]),
    ("replaces", "stop_and_replaces_keep_others_from_applying", &[]),
    ("mode", "shadows_and_candidates_report_and_never_deny", &[]),
    ("on_store_failure", "each_rule_says_what_happens_while_the_store_cannot_answer", &[
        (Memory, "fields_that_have_no_effect_here_are_warned_of"),
    ]),
    ("accuracy", "every_limit_tier_and_candidate_is_counted_as_its_rule_says", &[
        (Memory, "fields_that_have_no_effect_here_are_warned_of"),
    ]),
    ("criticality", "the_first_rule_that_matches_and_says_it_makes_a_request_critical", &[]),
    ("reserve", "tiers_candidates_and_shadows_reserve_too_and_boosts_leave_a_token", &[]),
    ("exempt", "exemptions_end_when_they_say", &[]),
    // Of the file itself.
    ("nodes", "each_rule_says_what_happens_while_the_store_cannot_answer", &[]),
    ("paths", "every_spelling_of_a_path_meets_its_rule", &[]),
    ("rules", "rules_of_a_file_decide_about_the_proxy_too", &[]),
];

/// Parts that are there or not, one from each group: a protocol, a store, a database.
const PARTS: [Part; 11] =
    [Http, ForwardAuth, Grpc, Envoy, ExtAuthz, Resp, Gateway, Tcp, Memory, Redis, Database];

/// Runs `tollbar serve --check-config` in this process. Everything that is not among `args` is off.
fn check_config(args: &[String]) -> Result<(), String> {
    let off = ["tollbar", "serve", "--check-config"];
    let args = off.iter().map(|text| (*text).to_owned()).chain(args.iter().cloned());
    let config = Command::parse(args).map_err(|error| error.to_string())?.into_config();
    crate::serve::prepare(config).map(drop).map_err(|error| error.to_string())
}

/// The flags of a daemon with no more than this part. Nothing is opened by them.
fn only(part: Part) -> Vec<String> {
    let listens = |parts: &[Part]| if parts.contains(&part) { "127.0.0.1:0" } else { "off" };
    let mut args = vec!["--grpc", listens(&[Grpc, Envoy, ExtAuthz]), "--resp", listens(&[Resp])];
    // A daemon listens somewhere.
    let is_elsewhere = [Grpc, Envoy, ExtAuthz, Resp, Gateway].contains(&part);
    args.extend(match part {
        Http | ForwardAuth | Tcp => ["--listen", "127.0.0.1:0"],
        _ if is_elsewhere => ["--listen", "off"],
        _ => ["--listen", "unix:/nowhere/tollbar.sock"],
    });
    match part {
        Gateway => args.extend(["--upstream", "http://127.0.0.1:1"]),
        Redis => args.extend(["--store", "redis://127.0.0.1:1"]),
        Database => args.extend(["--database", "rules.sqlite"]),
        _ => {}
    }
    args.into_iter().map(ToOwned::to_owned).collect()
}

/// What a daemon of these flags has. Written down here, so that the check is not judged by itself.
fn parts_with(part: Part) -> &'static [Part] {
    match part {
        Always => &[Always],
        Http | ForwardAuth | Tcp => &[Http, ForwardAuth, Tcp, Memory],
        Grpc | Envoy | ExtAuthz => &[Grpc, Envoy, ExtAuthz, Tcp, Memory],
        Resp => &[Resp, Tcp, Memory],
        Gateway => &[Gateway, Tcp, Memory],
        Memory => &[Http, ForwardAuth, Memory],
        Redis => &[Http, ForwardAuth, Redis],
        Database => &[Http, ForwardAuth, Tcp, Memory, Database],
    }
}

/// An option with a value that it takes.
fn given(id: &str) -> Vec<String> {
    let command = Command::command();
    let serve = command.find_subcommand("serve").unwrap();
    let argument = serve.get_arguments().find(|argument| argument.get_id() == id).unwrap();
    let value = match id {
        "upstream" | "otlp" => "http://127.0.0.1:1",
        "store" => "memory",
        "database" => "rules.sqlite",
        "limit" | "tenant_writes" => "1/s",
        "node" | "store_namespace" => "a",
        "trusted_proxies" => "127.0.0.0/8",
        "trusted_headers" => "user=X-User-Id",
        "cost_header" | "request_id_header" | "criticality_header" => "x-a",
        "exempt_paths" => "/health",
        "request_id_replays" => "9",
        "loans" => "on",
        "trace_sample" => "0.5",
        _ => match argument.get_value_names().map_or("BOOL", |names| names[0].as_str()) {
            "BOOL" => "true",
            "TLS" => "cert=/nowhere/file",
            "TIME" => "5s",
            "COUNT" | "BYTES" => "2000",
            "ENDPOINT" => "127.0.0.1:0",
            "FILE" | "PATH" => "/nowhere/file",
            "HOW" => "all-or-none",
            "WHICH" => "split",
            "FORMAT" => "json",
            "LEVEL" => "error",
            _ => "http1",
        },
    };
    vec![format!("{}={value}", source::flag(id))]
}

/// What else has to be given for an option to have an effect, but for its part.
fn besides(row: &OptionRow) -> Vec<String> {
    row.beside.first().map(|id| given(id)).unwrap_or_default()
}

#[test]
fn the_table_has_every_flag_and_field_once_and_nothing_else() {
    let command = Command::command();
    let serve = command.find_subcommand("serve").unwrap();
    let ids: BTreeSet<&str> = OPTIONS.iter().map(|row| row.id).collect();
    assert_eq!(ids.len(), OPTIONS.len(), "an option is there twice");
    let flags: BTreeSet<&str> =
        serve.get_arguments().map(|argument| argument.get_id().as_str()).collect();
    assert_eq!(ids, flags, "add a row for each flag, and a test that shows its effect");
    let fields: BTreeSet<String> = file::arguments(serve).into_keys().collect();
    let no_fields = ["config", "check_config"];
    let expected = ids.iter().filter(|id| !no_fields.contains(id)).map(|id| (*id).to_owned());
    assert_eq!(fields, expected.collect());
}

#[test]
fn the_table_has_every_field_of_rules() {
    let schema: Value = serde_json::from_str(tollbar_rules::admin::FILE_SCHEMA).unwrap();
    let fields = |place: &str| {
        let properties = schema.pointer(place).and_then(Value::as_object).unwrap();
        properties.keys().cloned().collect::<Vec<_>>()
    };
    let mut known = fields("/properties");
    known.extend(fields("/$defs/rule/properties"));
    let known: BTreeSet<String> = known.into_iter().collect();
    let table: BTreeSet<String> =
        RULE_FIELDS.iter().map(|(field, ..)| (*field).to_owned()).collect();
    assert_eq!(table, known, "add a row for each field, and a test that shows its effect");
}

/// Tests that give an option or a field by a helper, so that their bodies do not name it.
#[rustfmt::skip]
const BY_HELPER: &[(&str, &str)] = &[
    // `CertificateFiles::mutual`.
    ("tls_client_ca", "with_an_authority_for_clients_only_those_it_signed_for_are_served"),
    // `Table::serve`.
    ("rules", "http_answers_as_the_tables_say"),
    ("rules", "nginx_is_answered_as_the_tables_say"),
    ("rules", "grpc_answers_as_the_tables_say"),
    ("rules", "envoy_s_protocol_answers_as_the_tables_say"),
    ("rules", "ext_authz_answers_as_the_tables_say"),
    ("rules", "resp_answers_as_the_tables_say"),
    // `AdminDaemon::open`.
    ("rules", "rules_of_the_file_are_seen_and_not_changed"),
    // `forward_auth::serve`.
    ("api_keys", "ext_authz_answers_as_the_tables_say"),
    // The rule `jobs` of `TestProxy`.
    ("lease", "what_lacks_something_or_would_hold_a_permit_is_not_let_through"),
    ("lease", "what_cannot_be_decided_over_grpc_is_denied"),
];

/// Cells named tests that were ignored, and tests about something else.
#[test]
fn every_cell_names_a_test_that_runs_and_names_the_option() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let tests = tests_below(root);
    assert!(tests.len() > 500, "{} tests in {}", tests.len(), root.display());
    // An id of one word, such as `proxy`, is in many a test that does not give the flag.
    let options = OPTIONS.iter().flat_map(|row| {
        let is_long = row.id.contains('_');
        let words = iter::once(source::flag(row.id)).chain(is_long.then(|| row.id.to_owned()));
        let words: Vec<String> = words.collect();
        row.cells.iter().map(move |cell| (row.id, cell.1, words.clone()))
    });
    let fields = RULE_FIELDS.iter().flat_map(|(field, shown_by, elsewhere)| {
        let tests = elsewhere.iter().map(|cell| cell.1).chain([*shown_by]);
        tests.map(|test| (*field, test, vec![(*field).to_owned()]))
    });
    let mut findings = Vec::new();
    let mut by_helper: BTreeSet<_> = BY_HELPER.iter().copied().collect();
    for (id, name, words) in options.chain(fields) {
        match tests.get(name) {
            None => findings.push(format!("{id}: there is no test {name}")),
            Some(test) if test.is_ignored => findings.push(format!("{id}: {name} is ignored")),
            Some(test) if words.iter().any(|word| has_word(&test.body, word)) => {}
            Some(_) if by_helper.remove(&(id, name)) => {}
            Some(_) => findings.push(format!("{id}: {name} does not name it")),
        }
    }
    findings.extend(by_helper.iter().map(|cell| format!("{cell:?} needs no exception")));
    assert!(findings.is_empty(), "{findings:#?}");
}

#[test]
fn a_test_is_found_with_its_body_and_what_ignores_it() {
    let text = "#[test]\nfn one() {\n    if a {\n    }\n    b();\n}\nfn helper() {\n    --c\n}\n\
                mod tests {\n    #[tokio::test]\n    #[ignore = \"long\"]\n    async fn two() {\n        --d-e\n    }\n}\n";
    let mut tests = BTreeMap::new();
    tests_of(text, &mut tests);
    let found: Vec<_> = tests
        .iter()
        .map(|(name, test)| (&**name, test.body.lines().count(), test.is_ignored))
        .collect();
    assert_eq!(found, [("one", 4, false), ("two", 2, true)]);
    assert!(has_word(&tests["one"].body, "b") && !has_word(&tests["one"].body, "--c"));
    assert!(has_word(&tests["two"].body, "--d-e") && !has_word(&tests["two"].body, "--d"));
}

/// A test as it is written.
#[derive(Debug, Default)]
struct TestCode {
    body: String,
    is_ignored: bool,
}

/// All tests in the files below `directory`, by name. Those of one name count as one.
fn tests_below(directory: &Path) -> BTreeMap<String, TestCode> {
    let mut tests = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                tests_of(&std::fs::read_to_string(path).unwrap(), &mut tests);
            }
        }
    }
    tests
}

/// A body ends with the brace that is indented as its first line is.
fn tests_of(text: &str, tests: &mut BTreeMap<String, TestCode>) {
    let (mut is_test, mut is_ignored) = (false, false);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        if code.starts_with("#[test]") || code.starts_with("#[tokio::test") {
            is_test = true;
        } else if code.starts_with("#[ignore") {
            is_ignored = true;
        } else if let Some(rest) = code.strip_prefix("async ").unwrap_or(code).strip_prefix("fn ")
            && std::mem::take(&mut is_test)
        {
            let name = rest.split('(').next().unwrap_or_default().to_owned();
            let found = tests.entry(name).or_default();
            found.is_ignored |= std::mem::take(&mut is_ignored);
            let end = format!("{indent}}}");
            for line in iter::once(line).chain(lines.by_ref().take_while(|line| *line != end)) {
                found.body.push_str(line);
                found.body.push('\n');
            }
        }
    }
}

/// True where `word` is in `text`, and not as a part of a longer one.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
    })
}

/// Options without an effect were accepted: `--store-*` over memory, `--upstream-*` without an upstream,
/// `--envoy-*` with gRPC off, `--usage-*` without a database.
#[test]
fn an_option_has_an_effect_or_is_an_error_in_every_cell() {
    let mut refused = 0;
    for row in OPTIONS {
        let parts: Vec<Part> = row.cells.iter().map(|cell| cell.0).collect();
        let is_listener =
            ["listen", "grpc", "resp", "upstream", "proxy", "store"].contains(&row.id);
        for part in PARTS {
            if parts.contains(&Always) || is_listener {
                continue;
            }
            let args = [only(part), given(row.id), besides(row)].concat();
            let config =
                Command::parse(["tollbar".into(), "serve".into()].into_iter().chain(args.clone()));
            let config = config.unwrap_or_else(|error| panic!("{args:?}: {error}")).into_config();
            let has_part = parts_with(part).iter().any(|part| parts.contains(part));
            let checked = check(&config);
            if has_part {
                assert!(checked.is_ok_and(|warnings| warnings.is_empty()), "{args:?}");
                continue;
            }
            refused += 1;
            let told = check_config(&args).unwrap_err();
            let flag = source::flag(row.id);
            assert!(told.contains(" has no effect without "), "{args:?}: {told}");
            let is_own = told.starts_with(&format!("{flag} has no effect"));
            assert!(is_own || !row.beside.is_empty(), "{args:?}: {told}");
        }
        if !row.beside.is_empty() {
            let part = if parts[0] == Always { Http } else { parts[0] };
            let args = [only(part), given(row.id)].concat();
            let told = check_config(&args).unwrap_err();
            let needed = source::flag(row.beside[0]);
            let expected = format!("{} has no effect without {needed}", source::flag(row.id));
            assert!(told.starts_with(&expected), "{args:?}: {told}");
        }
    }
    assert!(refused > 150, "{refused} combinations");
}

/// A file that was written, gone at the end.
struct WrittenFile(PathBuf);

impl WrittenFile {
    fn new(text: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollbar-options-{}-{number}.yaml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for WrittenFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// What comes of a file and flags, with the file called `config.yaml`: the options that are warned of.
fn checked(yaml: &str, flags: &[&str]) -> Result<Vec<String>, String> {
    let file = WrittenFile::new(yaml);
    let own = ["tollbar".to_owned(), "serve".to_owned(), "--config".to_owned(), file.path()];
    let args = own.into_iter().chain(flags.iter().map(|text| (*text).to_owned()));
    let config = Command::parse(args).map_err(|error| error.to_string())?.into_config();
    let plain = |errors: Vec<OptionError>| -> Vec<String> {
        let texts = errors.iter().map(ToString::to_string);
        texts.map(|text| text.replace(&file.path(), "config.yaml")).collect()
    };
    check(&config).map_err(|errors| plain(errors).join("\n")).map(plain)
}

/// `--limit 3/h` beside `rules:` in the file was ignored: all 50 of 50 requests passed.
#[test]
fn options_that_exclude_each_other_are_an_error_that_names_both_sources() {
    for (yaml, flags, told) in [
        ("rules: a.yaml", &["--limit", "3/h"][..], "--limit and rules (config.yaml:1) exclude"),
        ("\nlimit: 3/h", &["--rules", "a.yaml"], "limit (config.yaml:2) and --rules exclude"),
        (
            "rules: a.yaml\nlimit: 3/h",
            &[],
            "limit (config.yaml:2) and rules (config.yaml:1) exclude",
        ),
        (
            "store: { secret_file: a }\nstore_raw_keys: true",
            &["--store", "redis://127.0.0.1"],
            "store_raw_keys (config.yaml:2) and store_secret_file (config.yaml:1) exclude",
        ),
    ] {
        let error = checked(yaml, flags).unwrap_err();
        assert!(error.starts_with(told), "{yaml:?} {flags:?}: {error}");
        assert!(error.contains("leave one of them out"), "{error}");
    }
    // For one option the flag wins, and one that is switched off excludes nothing.
    assert!(checked("limit: 3/h", &["--limit", "4/h"]).unwrap().is_empty());
    let raw = ["--store", "redis://127.0.0.1", "--store-raw-keys=false"];
    assert!(checked("store_secret_file: a\nstore_raw_keys: true", &raw).unwrap().is_empty());
}

/// A file may be shared, and a flag may go before a part of it.
#[test]
fn what_a_flag_takes_the_effect_from_is_warned_of_and_what_never_had_one_is_an_error() {
    let shared = "store: redis://127.0.0.1\nstore_namespace: a\nstore_raw_keys: true\n";
    assert!(checked(shared, &[]).unwrap().is_empty());
    let warnings = checked(shared, &["--store", "memory"]).unwrap();
    let told =
        "store_namespace (config.yaml:2) has no effect without --store redis://HOST: add that";
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings.iter().any(|warning| warning.starts_with(told)), "{warnings:?}");
    // The flag itself is no part of the file.
    let error = checked(shared, &["--store", "memory", "--store-deadline", "1s"]).unwrap_err();
    assert!(error.starts_with("--store-deadline has no effect"), "{error}");
    let error = checked("store_namespace: a", &[]).unwrap_err();
    assert!(error.starts_with("store_namespace (config.yaml:1) has no effect"), "{error}");
}

#[test]
fn a_daemon_that_listens_nowhere_is_an_error() {
    let off = |text: &str| text.split(' ').map(ToOwned::to_owned).collect::<Vec<_>>();
    let told = check_config(&off("--listen off --grpc off --resp off")).unwrap_err();
    assert!(told.starts_with("every listener is off"), "{told}");
    let admin = "--listen off --grpc off --resp off --database a.sqlite";
    assert_eq!(check_config(&off(admin)), Ok(()));
}

#[test]
fn an_option_is_on_where_somebody_gave_it_and_did_not_switch_it_off() {
    let config = Command::parse(["tollbar", "serve", "--max-keys=5000", "--grpc=off"]);
    let config = config.unwrap().into_config();
    assert!(config.sources.is_on("max_keys"));
    assert_eq!(config.sources.name_of("max_keys"), "--max-keys");
    assert!(!config.sources.is_on("grpc") && config.sources.goes_before_the_file("grpc"));
    assert!(!config.sources.is_on("listen"), "nobody gave it");
}
