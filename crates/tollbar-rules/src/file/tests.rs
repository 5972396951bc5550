//! What files say, and what is said of files that say it wrong.

mod schema;

use super::*;
use crate::{Criticality, Limit, Mode, OnMissing, OnOutage, Per, Request, TierLimits};

/// The example of the reference, whole.
const WHOLE: &str = r#"
nodes: 4
accuracy: conservative
rules:
  - name: per_client             # identity (or `id`): counters survive a change of the numbers
    match: { method: [GET, POST], path: "/v1/**", tenant: acme }
    per: [client]
    limit: [10/s, 450/15min]
    algorithm: sliding_window_counter
    missing: ip
    tiers: { free: 100/hour, premium: 10000/hour, default: free }
    cost: { "GET /v1/search": 5, "POST /v1/reports": 50 }
    priority: 10
    mode: enforce
    candidate: { limit: 8/s }
    on_store_failure: local
    exempt: [ { api_key: internal }, { ip: 10.0.0.0/8, until: 2027-01-01 } ]
  - { name: health, match: { path: /health }, unlimited: true }
  - { name: everyone_else, fallback: true, limit: 100/min }
"#;

/// A sound file, which the schema accepts as well.
fn parse(text: &str) -> RuleFile {
    let file = RuleFile::parse("rules.yaml", text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(schema::objections(text), [] as [&str; 0], "{text}");
    file
}

/// One rule with these fields.
fn rule(fields: &str) -> std::sync::Arc<crate::Rule> {
    parse(&format!("rules: [{{ name: a, {fields} }}]")).rules.rules()[0].clone()
}

#[track_caller]
fn refused(text: &str, message: &str) {
    let error = RuleFile::parse("rules.yaml", text).expect_err(text);
    assert_eq!(error.to_string(), message, "of {text}");
}

/// What is said of a rule with these fields; columns count from the field on.
#[track_caller]
fn refused_rule(fields: &str, message: &str) {
    refused(&format!("rules:\n- name: a\n  {fields}"), message);
}

#[test]
fn the_example_of_the_reference_says_what_it_says() {
    let file = parse(WHOLE);
    let warnings: Vec<String> = file.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "8:12: rules[0].limit: no request is under these limits, because every one has a tier, \
             `free` by default: leave out the limits, or the default",
            "15:16: rules[0].candidate: a cost of 50 can never be paid under the candidate `8/s`: it \
             will report such requests as never allowed",
        ]
    );
    assert_eq!(file.rules.node_count(), 4);
    assert_eq!(file.rules.accuracy().to_string(), "conservative(5%)");
    let [first, fallback, health] = file.rules.rules() else {
        panic!("three rules");
    };
    assert_eq!(&*first.name, "per_client");
    assert_eq!(first.per, [Per::Client]);
    let texts: Vec<&str> = first.limits.iter().map(crate::Limit::text).collect();
    assert_eq!(texts, ["10/s", "450/15min"]);
    assert_eq!((first.tiers.limits.len(), first.tiers.default.as_deref()), (2, Some("free")));
    assert_eq!((first.missing, first.mode, first.priority), (OnMissing::Ip, Mode::Enforce, 10));
    assert_eq!(first.on_store_failure, OnOutage::Local);
    assert_eq!((first.candidate.len(), first.exemptions.len()), (1, 2));
    assert!(fallback.fallback && health.unlimited && health.limits.is_empty());

    let attributes = [("tenant", "acme")];
    let ask = |method: &'static str, path: &'static str| {
        let request = Request::new(method, path).unwrap();
        request.with_attributes(&attributes).unwrap()
    };
    assert!(first.conditions.hold(&ask("GET", "/v1/x")));
    assert!(!first.conditions.hold(&ask("PUT", "/v1/x")));
    assert!(!first.conditions.hold(&ask("GET", "/v2")));
    assert_eq!(first.costs.of(&ask("GET", "/v1/search")), 5);
    assert_eq!(first.costs.of(&ask("POST", "/v1/search")), 1);
}

#[test]
fn every_form_of_a_field_is_read() {
    let limited = rule(
        "limit: { limit: 10/s, burst: 50 }, tiers: { free: unlimited, gold: { limit: 5/s, burst: 9 } }",
    );
    assert_eq!(limited.limits[0].policy().capacity(), 50);
    assert_eq!(limited.tiers.limits[0].1, TierLimits::Unlimited);
    assert_eq!(limited.tiers.limits[1].1.limits()[0].policy().capacity(), 9);
    let several = rule(
        "limit: [{ limit: 10/s, burst: 50 }, 9/h, 7 per calendar day], algorithm: fixed_window, staggered: true, utc_offset: '+05:30'",
    );
    let names: Vec<&str> =
        several.limits.iter().map(|limit| limit.policy().algorithm().name()).collect();
    assert_eq!(names, ["token_bucket", "staggered_window", "calendar_window"]);
    assert_eq!(several.limits[2].policy().utc_offset_minutes(), Some(330));
}

#[test]
fn other_forms_are_read() {
    let warm = rule("limit: 100/s, warm_up: { start: 10, over: 1min }");
    let warm_up = warm.limits[0].policy().warm_up().unwrap();
    assert_eq!((warm_up.start, warm_up.over.as_secs(), warm_up.steps), (10, 60, 4));
    assert_eq!(warm.limits[0].policy().share(4).warm_up().map(|warm_up| warm_up.start), Some(2));
    let tiers = "tiers: { gold: 5/s, platinum: { limit: 9/s, warm_up: { start: 3, over: 1h } } }";
    let tiered = rule(&format!("limit: 100/s, warm_up: {{ start: 10, over: 1min }}, {tiers}"));
    let starts = tiered.tiers.limits.iter().map(|(_, tier)| tier.limits()[0].policy().warm_up());
    let starts: Vec<Option<u64>> =
        starts.map(|warm_up| warm_up.map(|warm_up| warm_up.start)).collect();
    assert_eq!(starts, [None, Some(3)], "the rule's warm-up is not that of its tiers");
    let queue = rule("limit: 20/s, queue: 5, max_wait: 100ms");
    let policy = queue.limits[0].policy();
    assert_eq!((policy.algorithm().name(), policy.capacity()), ("leaky_queue", 6));
    let permits = rule("limit: [{ limit: 20, algorithm: concurrency }, 9/s], lease: 30s");
    let algorithms: Vec<&str> =
        permits.limits.iter().map(|limit| limit.policy().algorithm().name()).collect();
    assert_eq!(algorithms, ["leased_concurrency", "sliding_window_counter"]);
    assert_eq!(rule("limit: 1/s, per: []").per, []);
    assert_eq!(rule("limit: 1/s, per: user").per, [Per::of_name("user")]);
    assert_eq!(rule("limit: 1/s, missing: deny").missing, OnMissing::Deny);
    assert_eq!(rule("limit: 1/s, mode: shadow").mode, Mode::Shadow);
    assert_eq!(rule("limit: 9/s, cost: 7").costs.default, 7);
    assert_eq!(rule("limit: 1/s, priority: -3").priority, -3);
    assert!(!rule("limit: 1/s, enabled: false").enabled);
    assert_eq!(rule("limit: 1/s, description: for all").description.as_deref(), Some("for all"));
    let shed = |keep| OnOutage::Shed { keep };
    assert_eq!(
        rule("limit: 1/s, on_store_failure: shed").on_store_failure,
        shed(Criticality::High)
    );
    assert_eq!(
        rule("limit: 1/s, on_store_failure: { shed: critical }").on_store_failure,
        shed(Criticality::Critical)
    );
    let named = parse("rules: [{ id: 7f3, limit: 1/s }]");
    assert_eq!(
        (&*named.rules.rules()[0].name, &**named.rules.rules()[0].identity()),
        ("7f3", "7f3")
    );
    assert_eq!(parse("rules: []").rules.len(), 0);
    // JSON is YAML.
    assert_eq!(parse(r#"{"rules":[{"name":"a","limit":["10/s"]}]}"#).rules.len(), 1);
}

#[test]
fn every_condition_is_read() {
    let table = [
        ("tenant: acme", "`tenant` is `acme`"),
        ("tenant: 42", "`tenant` is `42`"),
        ("tenant: [b, a, b]", "`tenant` is `a` or `b`"),
        ("tenant: { not: acme }", "`tenant` is not `acme`"),
        ("tenant: { prefix: in- }", "`tenant` begins with `in-`"),
        ("tenant: { present: true }", "`tenant` is present"),
        ("tenant: { present: false }", "`tenant` is absent"),
        ("tenant: { absent: true }", "`tenant` is absent"),
        ("tenant: { one_of: [a], not: b }", "`tenant` is not `b`, `tenant` is `a`"),
        ("ip: [10.0.0.0/8, 192.0.2.1]", "`ip` is within `10.0.0.0/8` or `192.0.2.1/32`"),
        ("peer: { cidr: '::/0' }", "`peer` is within `::/0`"),
        ("method: get", "`method` is `GET`"),
        ("path: [/a, '/b/{id}/**']", "`path` matches `/a` or `/b/{id}/**`"),
        ("path: { not: /health }", "`path` not: matches `/health`"),
    ];
    for (text, conditions) in table {
        let rule = rule(&format!("limit: 1/s, match: {{ {text} }}"));
        let read: Vec<String> = rule.conditions.all().iter().map(ToString::to_string).collect();
        assert_eq!(read.join(", "), conditions, "{text}");
    }
}

/// Files, and what is said of them.
const REFUSED: &[(&str, &str)] = &[
    ("", "rules.yaml:1:1: the file is empty: write `rules:` and a list of rules"),
    ("- a", "rules.yaml:1:1: this is a list: write `rules:` and a list of rules"),
    (
        "nodes: 1",
        "rules.yaml:1:1: rules: there is no `rules` here: write `rules:` and a list, `[]` for none",
    ),
    (
        "rules: 7",
        "rules.yaml:1:8: rules: this is a single value: write a list of rules, `[]` for none",
    ),
    (
        "rules: []\nnodes: 0",
        "rules.yaml:2:8: nodes: a fleet has 1 to 1000000 nodes: write how many share the limits",
    ),
    (
        "rule: []",
        "rules.yaml:1:1: rules: there is no `rules` here: write `rules:` and a list, `[]` for none\nrules.yaml:1:1: rule: there is no field `rule` here: did you mean `rules`? the fields are `nodes`, `accuracy`, `paths`, `rules`",
    ),
    (
        "paths: { case: ignore }\nrules: []",
        "rules.yaml:1:16: paths.case: `ignore` is not known here: write one of `sensitive`, `insensitive`",
    ),
    (
        "rules: [a]",
        "rules.yaml:1:9: rules[0]: this is a single value: write a mapping such as `{ name: per_client, limit: 10/s }`",
    ),
    (
        "rules:\n- limit: 1/s",
        "rules.yaml:2:3: rules[0]: the rule has no name: write one such as `name: per_client`",
    ),
    (
        "rules:\n  - name: a\n    limit: 1/s\n   mode: x",
        "rules.yaml:4:4: this is not YAML: while parsing a block collection, did not find expected '-' indicator",
    ),
    (
        "rules: []\n---\nrules: []",
        "rules.yaml:2:1: a second document begins here: write all in one",
    ),
    ("rules: !!seq []", "rules.yaml:1:8: tags such as `!!str` mean nothing here: leave it out"),
    ("? [a]\n: b", "rules.yaml:1:3: a field is named by a text, not by a list"),
    (
        "rules: []\nrules: []",
        "rules.yaml:2:1: `rules` was written before, in line 1: keep one of them",
    ),
    (
        "accuracy: local(0)\nrules: []",
        "rules.yaml:1:11: accuracy: `0` is no number of nodes: write 1 to 1000000, such as `local(4)`",
    ),
];

#[test]
fn what_is_wrong_is_named_with_its_place_and_what_to_write() {
    for (text, message) in REFUSED {
        refused(text, message);
    }
}

/// The fields of a rule, and what is said of them.
const WRONG_RULES: &[(&str, &str)] = &[
    (
        "limit: 100",
        "3:10: rules[0].limit: `100` is not a rate: write a number, `/` and a window, such as `10/s` or `450/15min`",
    ),
    (
        "limit: 10/fortnight",
        "3:10: rules[0].limit: `fortnight` is not a unit of time: write us, ms, s, min, h, day, week or month (30 days); a bare `m` could be either, so it is none",
    ),
    (
        "limit: [1/s, 10/0s]",
        "3:16: rules[0].limit[1]: the window is 0: write a window of at least 1 microsecond, such as `10/s`",
    ),
    (
        "limit: { rate: 10/s }",
        "3:10: rules[0].limit: there is no `limit` here: write one such as `limit: 10/s`\nrules.yaml:3:12: rules[0].limit.rate: there is no field `rate` here: the fields are `limit`, `algorithm`, `burst`, `staggered`, `utc_offset`, `subwindows`, `warm_up`, `lease`, `queue`, `max_wait`, `reserve`",
    ),
    (
        "limit: [1/s, 60/60s, 5/min]",
        "3:10: rules[0].limit: `60/60s` and `5/min` have the same algorithm and window, so they would count together: keep the lower one",
    ),
    (
        "algorithm: tokenbucket",
        "3:14: rules[0].algorithm: `tokenbucket` is not known here: did you mean `token_bucket`? write one of `sliding_window_counter`, `sliding_window_strict`, `sliding_window_log`, `token_bucket`, `leaky_bucket`, `leaky_queue`, `fixed_window`, `calendar_window`, `concurrency`",
    ),
    (
        "limit: 1/s\n  burst: -1",
        "4:10: rules[0].burst: `-1` is not a whole number: write digits such as `10000` or `10_000`",
    ),
    (
        "limit: [1/s, 9/h]\n  burst: 5",
        "4:10: rules[0].burst: the rule has several limits: write the burst with the one it is for, such as `{ limit: 10/s, burst: 50 }`",
    ),
    (
        "tiers: { a: 1/s, default: a }\n  burst: 5",
        "4:10: rules[0].burst: a burst is of the rule's own `limit`: write it with the limit it is for, such as `{ limit: 10/s, burst: 50 }`",
    ),
    (
        "limit: 1/s\n  staggered: true",
        "4:14: rules[0].staggered: no limit of this rule is a fixed window: write `algorithm: fixed_window`, or leave this out",
    ),
    (
        "limit: 9/s\n  warm_up: { start: 9, over: 1h }",
        "4:12: rules[0].warm_up: a warm-up cannot start at 9 where the limit is 9: write at least 1, and less than the limit",
    ),
    (
        "limit: 9/s\n  warm_up: { start: 1 }",
        "4:12: rules[0].warm_up: a warm-up has a `start` and an `over`: write a mapping such as `{ start: 10, over: 10min, steps: 4 }`",
    ),
    (
        "limit: 9/s\n  warm_up: { start: 1, over: 1m }",
        "4:30: rules[0].warm_up.over: `m` is not a unit of time: write us, ms, s, min, h, day, week or month (30 days); a bare `m` could be either, so it is none",
    ),
    (
        "limit: [9/s, 9/h]\n  warm_up: { start: 1, over: 1h }",
        "4:12: rules[0].warm_up: the rule has several limits: write the warm-up with the one it is for, such as `{ limit: 10/s, warm_up: { start: 1, over: 10min } }`",
    ),
    (
        "limit: 20000/s\n  algorithm: sliding_window_log",
        "3:10: rules[0].limit: a sliding window log keeps every instant, so a limit of 20000 is too large for it: write at most 10000, or use `sliding_window_strict` or `sliding_window`",
    ),
    (
        "limit: 20/15us\n  algorithm: sliding_window_strict",
        "3:10: rules[0].limit: a window of 15 us cannot be cut into 10 sub-windows of whole microseconds: write 5 of them, or a window of 20 us",
    ),
    (
        "limit: 20/s\n  algorithm: sliding_window_strict\n  subwindows: 63",
        "5:15: rules[0].subwindows: a strict window cannot have 63 sub-windows: write 1 to 62",
    ),
    (
        "limit: 20/ms\n  algorithm: sliding_window_strict\n  subwindows: 62",
        "5:15: rules[0].subwindows: a window of 1000 us cannot be cut into 62 sub-windows of whole microseconds: write 50 of them, or a window of 1054 us",
    ),
    (
        "limit: 20/s\n  algorithm: concurrency",
        "3:10: rules[0].limit: permits have no window: write the number that may be in flight, such as `20`",
    ),
    (
        "limit: 20/s\n  lease: 30s",
        "4:10: rules[0].lease: no limit of this rule has permits: write `algorithm: concurrency`, or leave this out",
    ),
    (
        "limit: { limit: 20/s, lease: 30s }",
        "3:32: rules[0].limit.lease: `sliding_window_counter` has nothing to lease: leave it out, or use concurrency",
    ),
    (
        "limit: 20/s\n  algorithm: leaky_queue",
        "3:10: rules[0].limit: a queue has a length: write `queue: 100`, or as many as may wait",
    ),
    (
        "limit: 20/s\n  algorithm: token_bucket\n  queue: 5",
        "5:10: rules[0].queue: no limit of this rule is a queue: write `algorithm: leaky_queue`, or leave this out",
    ),
    (
        "limit: { limit: 20/s, max_wait: 1s }",
        "3:35: rules[0].limit.max_wait: nobody waits in `sliding_window_counter`: leave the longest wait out, or use a leaky queue",
    ),
    (
        "limit: 20/s\n  criticality: urgent",
        "4:16: rules[0].criticality: `urgent` is not known here: write one of `low`, `normal`, `high`, `critical`",
    ),
    (
        "limit: 20/s\n  reserve: { critical: 100% }",
        "4:24: rules[0].reserve.critical: `100%` is no share of a limit: write one above 0% and below 100%, such as `10%`",
    ),
    (
        "limit: 20/s\n  reserve: { critical: 50%, high: 50% }",
        "4:12: rules[0].reserve: 100% of the limit are reserved in all, which leaves nothing to other requests: reserve less than 100% together",
    ),
    (
        "limit: 20/s\n  reserve: { low: 10% }",
        "4:19: rules[0].reserve.low: nothing is less critical than `low`, so nothing can be reserved for it: reserve for `normal`, `high` or `critical`",
    ),
    (
        "limit: 20/s\n  reserve: { urgent: 10% }",
        "4:14: rules[0].reserve.urgent: there is no field `urgent` here: the fields are `low`, `normal`, `high`, `critical`",
    ),
    (
        "limit: 20/s\n  reserve: {}",
        "4:12: rules[0].reserve: nothing is reserved: write a share for a criticality, such as `{ critical: 10% }`, or leave this out",
    ),
    (
        "limit: 3/s\n  reserve: { critical: 75% }",
        "4:12: rules[0].reserve: a limit of 3 leaves less than a token to requests that are low: write 4 or more, or reserve less",
    ),
    (
        "limit: { limit: 9/s, warm_up: { start: 1, over: 1h }, reserve: { high: 10% } }",
        "3:66: rules[0].limit.reserve: a limit with a warm-up cannot be reserved in part: leave the reserve out, or the warm-up",
    ),
    (
        "limit: 1000/s\n  burst: 1000\n  reserve: { high: 10% }\n  accuracy: conservative",
        "6:13: rules[0].accuracy: `1000/s`: a limit with a `reserve` is always counted exactly: write `accuracy: exact`, or leave the reserve out",
    ),
    (
        "unlimited: true\n  reserve: { high: 10% }",
        "4:12: rules[0].reserve: no limit of this rule has a use for it: write it with the limit that it is for, or leave this out",
    ),
    (
        "limit: 1/s\n  utc_offset: India",
        "4:15: rules[0].utc_offset: `India` is not an offset from UTC: write one such as `+05:30` or `-08:00`",
    ),
    (
        "limit: 1/s\n  match: { path: v1 }",
        "4:18: rules[0].match.path: a path pattern begins with `/`: write `/v1`",
    ),
    (
        "limit: 1/s\n  match: { ip: 10.1.0.0/8 }",
        "4:16: rules[0].match.ip: `10.1.0.0/8` has bits beyond its prefix: write `10.0.0.0/8`",
    ),
    (
        "limit: 1/s\n  match: { tenant: }",
        "4:18: rules[0].match.tenant: there is no value: write one, or `{ absent: true }` for none",
    ),
    (
        "limit: 1/s\n  match: { tenant: [] }",
        "4:20: rules[0].match.tenant: the list is empty, so nothing would match: write a value, or a list of them",
    ),
    (
        "limit: 1/s\n  match: { tenant: { prefx: a } }",
        "4:22: rules[0].match.tenant.prefx: there is no field `prefx` here: did you mean `prefix`? the fields are `not`, `equal`, `one_of`, `prefix`, `cidr`, `present`, `absent`",
    ),
    (
        "limit: 1/s\n  match: { client: a }",
        "4:12: rules[0].match.client: `client` is a chain of attributes: write `api_key`, `user` or `ip`",
    ),
    (
        "limit: 1/s\n  mode: shadwo",
        "4:9: rules[0].mode: `shadwo` is not known here: did you mean `shadow`? write one of `enforce`, `shadow`",
    ),
    (
        "limit: 1/s\n  enabled: yes",
        "4:12: rules[0].enabled: `yes` is neither `true` nor `false`: write one of them",
    ),
    (
        "limit: 1/s\n  priority: high",
        "4:13: rules[0].priority: `high` is not a whole number of at most nine digits: write one such as `10` or `-1`",
    ),
    (
        "limit: 1/s\n  exempt: [{ until: 2027-01-01 }]",
        "4:12: rules[0].exempt[0]: this exempts everybody: write whom, such as `{ api_key: internal }`, or `enabled: false` for the rule",
    ),
    (
        "limit: 1/s\n  exempt: [{ user: a, until: soon }]",
        "4:30: rules[0].exempt[0].until: `soon` is not a date: write one such as `2027-01-01` or `2027-01-01T12:00:00Z`",
    ),
    (
        "limit: 9/s\n  cost: { search: 5 }",
        "4:11: rules[0].cost.search: `search` is not a route such as `GET /v1/search`: a path pattern begins with `/`: write `/search`",
    ),
    (
        "limit: 9/s\n  cost: { /a: 10 }",
        "4:9: rules[0].cost: a cost of 10 can never be paid under `9/s`, which holds 9: write a lower cost, or a larger limit or burst",
    ),
    ("per: [user, user]", "3:15: rules[0].per[1]: `user` is there already: leave it out"),
    (
        "unlimited: true\n  limit: 1/s",
        "4:10: rules[0].limit: an unlimited rule has no limits: leave out `limit`, or `unlimited`",
    ),
    (
        "match: { path: /a }",
        "2:3: rules[0].limit: the rule has no limit: write one such as `limit: 10/s`, or `unlimited: true`",
    ),
    (
        "limit: 10/s\n  accuracy: exactly",
        "4:13: rules[0].accuracy: `exactly` is no accuracy: write `exact`, `conservative(5%)`, `optimistic(5%)`, `local` or `local(4)` for 4 nodes",
    ),
    (
        "limit: 10/s\n  accuracy: { local: 4 }",
        "4:13: rules[0].accuracy: this is a mapping: write one such as `conservative(5%)` or `local(4)`",
    ),
    (
        "limit: 10/s\n  accuracy: conservative(0%)",
        "4:13: rules[0].accuracy: `0%` is no share of the burst: write one above 0% and up to 50%, such as `conservative(5%)`",
    ),
    (
        "limit: 10/s\n  accuracy: optimistic(150%)",
        "4:13: rules[0].accuracy: `150%` is no share of the burst: write one above 0% and up to 50%, such as `conservative(5%)`",
    ),
    (
        "limit: 10/s\n  accuracy: local(0)",
        "4:13: rules[0].accuracy: `0` is no number of nodes: write 1 to 1000000, such as `local(4)`",
    ),
    (
        "limit: 10/s\n  accuracy: local(11)",
        "4:13: rules[0].accuracy: `10/s`: a limit of 10 leaves less than a token for each of 11 nodes: write 11 or more, or `accuracy: exact`",
    ),
    (
        "limit: 1000/s\n  burst: 10\n  accuracy: conservative",
        "5:13: rules[0].accuracy: `1000/s`: a burst of 10 is too small to lend from: its loans would end after 500µs, and 20ms is the least. Write `burst: 400` or more, or `accuracy: exact`",
    ),
    (
        "tiers: { a: 10/s, b: { limit: 5/s, algorithm: sliding_window_log }, default: a }\n  accuracy: local(2)",
        "4:13: rules[0].accuracy: `5/s`: `sliding_window_log` is always counted exactly: write `accuracy: exact`, or count by a bucket, a fixed, calendar or sliding window",
    ),
    (
        "limit: { any_of: [] }",
        "3:20: rules[0].limit.any_of: `any_of` is empty: write alternatives, such as `any_of: [20/s, { limit: 1000/min, per: [] }]`",
    ),
    (
        "limit: { any_of: 20/s }",
        "3:20: rules[0].limit.any_of: this is a single value: write a list of alternatives, such as `any_of: [20/s, { limit: 1000/min, per: [] }]`",
    ),
    (
        "limit: { any_of: [20/s] }",
        "3:20: rules[0].limit.any_of: `any_of` has one alternative: write a second one, or the limits without `any_of`",
    ),
    (
        "limit: { any_of: [20/s, []] }",
        "3:27: rules[0].limit.any_of[1]: an alternative without a limit allows everything: write one, or leave it out",
    ),
    (
        "limit: { any_of: [20/s, { any_of: [5/s, 9/min] }] }",
        "3:37: rules[0].limit.any_of[1].any_of: alternatives have no alternatives of their own: write these among the others, or a list of limits that must all allow",
    ),
    (
        "limit: [50/h, { any_of: [20/s, 100/min] }]",
        "3:27: rules[0].limit[1].any_of: `any_of` holds by itself: write the limits that stand beside it into each of its alternatives, or into a rule of their own",
    ),
    (
        "limit: { any_of: [20/s, 100/min], burst: 5 }",
        "3:37: rules[0].limit.burst: there is no field `burst` here: the fields are `any_of`",
    ),
    (
        "limit: { any_of: [20/s, 100/min] }\n  burst: 5",
        "4:10: rules[0].burst: the rule has several limits: write the burst with the one it is for, such as `{ limit: 10/s, burst: 50 }`",
    ),
    (
        "limit: { limit: 20/s, per: [] }",
        "3:25: rules[0].limit.per: there is no field `per` here: the fields are `limit`, `algorithm`, `burst`, `staggered`, `utc_offset`, `subwindows`, `warm_up`, `lease`, `queue`, `max_wait`, `reserve`",
    ),
    (
        "limit: { any_of: [20/s, { limit: 9/s, per: [user, user] }] }",
        "3:53: rules[0].limit.any_of[1].per[1]: `user` is there already: leave it out",
    ),
    (
        "limit: { any_of: [20/s, { limit: 100/s, per: [client] }] }",
        "3:10: rules[0].limit: `20/s` and `100/s` are in different alternatives and would count in one counter, because they have the same algorithm, window and `per`: write one of them with another window, or with a `per` of its own",
    ),
    (
        "limit: { any_of: [20/s, [9/min, 60/min]] }",
        "3:10: rules[0].limit: `9/min` and `60/min` have the same algorithm and window, so they would count together: keep the lower one",
    ),
    (
        "limit: { any_of: [20/s, [1/min, 2/h, 3/2h, 4/3h], [5/day, 6/2days, 7/3days, 8/4days]] }",
        "3:10: rules[0].limit: 9 limits are too many: write at most 8",
    ),
    (
        "limit: { any_of: [20/s, 100/min] }\n  accuracy: conservative",
        "4:13: rules[0].accuracy: `20/s`: alternatives are counted exactly, because which of them pays is decided in one place: write `accuracy: exact`, or leave it out",
    ),
    (
        "limit: { any_of: [20/s, { limit: 9/s, per: [tenant] }] }\n  missing: deny",
        "3:10: rules[0].limit: an alternative counts per `tenant`, which the rule does not: `missing: deny` is about the rule's `per` only, so write `tenant` there too, or `missing: shared`",
    ),
    (
        "limit: { any_of: [3/s, 20/min] }\n  cost: { /a: 30 }",
        "4:9: rules[0].cost: a cost of 30 can never be paid under `20/min`, which holds 20: write a lower cost, or a larger limit or burst",
    ),
];

#[test]
fn what_is_wrong_with_a_rule_is_named_too() {
    for (fields, message) in WRONG_RULES {
        refused_rule(fields, &format!("rules.yaml:{message}"));
    }
}

#[test]
fn alternatives_are_read_in_all_their_forms() {
    let file = parse(
        "rules:
         - name: a
           algorithm: token_bucket
           cost: { /report: 50 }
           accuracy: exact
           limit:
             any_of: [5/s, [{ limit: 100/min, per: [] }, 60/h], { limit: 7/s, burst: 9, per: tenant }]
         - { name: b, limit: { any_of: [[5/s, 100/min], [9/2s, 100/min]] } }",
    );
    let rule = &file.rules.rules()[0];
    let said = |limit: &Limit| {
        let per = limit.per().map(|per| per.iter().map(Per::name).collect::<Vec<_>>().join(","));
        (limit.text().to_owned(), limit.alternative(), per, limit.policy().capacity())
    };
    let limits: Vec<_> = rule.limits.iter().map(said).collect();
    let expected = [
        ("5/s".to_owned(), Some(0), None, 5),
        ("100/min".to_owned(), Some(1), Some(String::new()), 100),
        ("60/h".to_owned(), Some(1), None, 60),
        ("7/s".to_owned(), Some(2), Some("tenant".to_owned()), 9),
    ];
    assert_eq!(limits, expected);
    let is_bucket = |limit: &Limit| limit.policy().algorithm().name() == "token_bucket";
    assert!(rule.limits.iter().all(is_bucket), "the algorithm is the rule's");
    assert_eq!(file.warnings, []);
}

#[test]
fn everything_wrong_is_told_at_once() {
    let text = "rules:\n- { name: a, limit: 1 }\n- { name: b, limit: 2 }\n- { nmae: c }";
    let error = RuleFile::parse("r", text).unwrap_err().to_string();
    let places: Vec<&str> = error.lines().map(|line| &line[..6]).collect();
    assert_eq!(places, ["r:2:21", "r:3:21", "r:4:3:"], "{error}");
}

#[test]
fn probable_mistakes_are_warned_of() {
    let warnings = |fields: &str| {
        let file = parse(&format!("rules:\n- name: a\n  {fields}"));
        file.warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let login = "limit: 5/min\n  algorithm: fixed_window\n  match: { path: /v1/login }";
    assert_eq!(
        warnings(login),
        "3:10: rules[0].limit: a fixed window lets up to twice the limit through around its boundary, and `/v1/login` looks like a place where passwords are guessed: write `algorithm: sliding_window_strict`"
    );
    assert_eq!(
        warnings("limit: 5/min\n  match: { pth: /v1 }"),
        "4:12: rules[0].match.pth: no listener sets an attribute `pth` by itself: if you meant `path`, write that"
    );
    assert_eq!(warnings("limit: 5/min\n  match: { path: /v1/login }"), "");
    let unleased = warnings("limit: 5\n  algorithm: concurrency");
    assert_eq!(
        unleased,
        "3:10: rules[0].limit: a holder that vanishes keeps its permit of `5` for ever: write `lease: 30s`, or as long as a request may take"
    );
}

#[test]
fn a_file_of_as_many_values_as_are_allowed_is_read() {
    // The list itself, 1,999 lists of 1,000 values each, and 999 more.
    let thousand = vec!["x"; 999].join(", ");
    let lists = vec!["*a"; 1_998].join(", ");
    let most = format!("&a [{thousand}], {lists}, {thousand}");
    let error = |text: &str| RuleFile::parse("r", text).unwrap_err().to_string();
    let allowed = error(&format!("[{most}]"));
    assert!(!allowed.contains("more than"), "it is a list and no rules, only: {allowed}");
    assert!(error(&format!("[{most}, x]")).contains("more than 2000000 values"));
}

#[test]
fn merge_keys_bring_the_fields_of_other_mappings_along() {
    let limit_of = |file: &RuleFile, at: usize| file.rules.rules()[at].limits[0].text().to_owned();
    let file = RuleFile::parse(
        "r",
        "rules:
           - &base { name: a, per: [ip], limit: 1/s }
           - { <<: *base, name: b, limit: 2/s }
           - { <<: [{ name: c }, *base] }
           - { <<: *base, \"name\": d }",
    )
    .unwrap();
    let names: Vec<&str> = file.rules.rules().iter().map(|rule| &*rule.name).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
    assert_eq!([0, 1, 2, 3].map(|at| limit_of(&file, at)), ["1/s", "2/s", "1/s", "1/s"]);
    let error = |text: &str| RuleFile::parse("r", text).unwrap_err().to_string();
    // Readers of YAML disagree on which of the two counts.
    assert_eq!(
        error("rules:\n- &a { name: a, limit: 1/s }\n- name: b\n  <<: *a"),
        "r:4:3: `<<` brings `name`, which was written above it, in line 3: write `<<` first"
    );
    assert_eq!(
        error("rules:\n- { <<: a }"),
        "r:2:5: `<<` takes a mapping, or a list of them, and this is a single value: write such as `<<: *NAME`"
    );
    assert!(
        error("rules:\n- &a { name: a }\n- { <<: *a, <<: *a }").contains("`<<` was written before")
    );
    // What is wrong in a merged field is wrong where it was written.
    assert!(
        error("rules:\n- &a { limit: x, name: a }\n- { <<: *a, name: b }").contains("r:2:15: ")
    );
}

#[test]
fn bombs_are_defused() {
    let mut laughs = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, before) in "bcdefgh".chars().zip("abcdefg".chars()) {
        let ten = vec![format!("*{before}"); 10].join(", ");
        laughs = format!("{laughs}{name}: &{name} [{ten}]\n");
    }
    let error = RuleFile::parse("r", &laughs).unwrap_err().to_string();
    assert!(error.contains("more than 2000000 values"), "{error}");
    let error = RuleFile::parse("r", &"[".repeat(1_000_000)).unwrap_err().to_string();
    assert_eq!(error, "r:1:256: this is not YAML: recursion limit exceeded");
    let error = RuleFile::parse("r", &"{a: ".repeat(40)).unwrap_err().to_string();
    assert_eq!(error, "r:1:129: nested deeper than 32 levels: write fewer");
    let chain: String = "bcdefg"
        .chars()
        .zip("abcdef".chars())
        .fold("a: &a [x]\n".to_owned(), |chain, (name, before)| {
            format!("{chain}{name}: &{name} [[[[[[*{before}]]]]]]\n")
        });
    let error = RuleFile::parse("r", &chain).unwrap_err().to_string();
    assert!(error.contains("nested deeper"), "{error}");
    let error = RuleFile::parse("r", "a: &a [*a]").unwrap_err().to_string();
    assert!(error.contains("alias") || error.contains("anchor"), "{error}");
    let large = " ".repeat(17 << 20);
    assert!(RuleFile::parse("r", &large).unwrap_err().to_string().contains("17825792 bytes"));
    let error = RuleFile::parse_bytes("r", b"rules:\n- \xff").unwrap_err().to_string();
    assert_eq!(error, "r:2: this is not UTF-8: save the file in that encoding");
    for text in
        ["{---", "{- a", "\u{0}", "&", "*", "|", ">", "!", "%", "@", "? ", ": ", "- - -", "\"", "'"]
    {
        let _ = RuleFile::parse("r", text);
    }
}

#[test]
fn a_limit_has_a_token_for_each_node_of_the_file() {
    refused(
        "nodes: 4\nrules:\n- { name: a, limit: 3/s, accuracy: local }",
        "rules.yaml:3:36: rules[0].accuracy: `3/s`: a limit of 3 leaves less than a token for each of 4 nodes: write 4 or more, or `accuracy: exact`",
    );
    let inherits = "nodes: 4\naccuracy: local\nrules: [{ name: a, limit: 3/s }]";
    assert_eq!(parse(inherits).rules.accuracy(), crate::RuleAccuracy::Local { nodes: None });
}
