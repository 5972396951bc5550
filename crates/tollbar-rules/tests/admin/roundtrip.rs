//! A rule, its JSON, and the rule again.

use std::fs;
use std::path::Path;

use proptest::collection::{btree_map, vec};
use proptest::option::{self, of};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};
use tollbar_rules::admin::{from_yaml, to_json, to_yaml};
use tollbar_rules::{Rule, RuleFile};

/// By way of the text, as it comes over a wire.
fn there_and_back(rule: &Rule) -> Rule {
    let text = serde_json::to_string(rule).unwrap();
    let read = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(to_json(&read), to_json(rule), "{text}");
    read
}

/// By way of YAML.
fn written_and_read(rule: &Rule) -> Rule {
    let text = to_yaml(rule);
    from_yaml("r", &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn word() -> impl Strategy<Value = String> {
    "[a-z0-9 :*\"é-]{1,6}"
}

fn time() -> impl Strategy<Value = String> {
    let unit = select(vec!["us", "ms", "s", "min", "h", "day"]);
    (1_u32..200, unit).prop_map(|(count, unit)| format!("{count}{unit}"))
}

fn rate() -> impl Strategy<Value = String> {
    let separator = select(vec!["/", " per "]);
    let window =
        select(vec!["s", "10s", "min", "60s", "minute", "15min", "h", "day", "24h", "week"]);
    (1_u32..50_000, separator, window)
        .prop_map(|(tokens, by, window)| format!("{tokens}{by}{window}"))
}

/// A limit, whose options may not fit: such a file is refused and says nothing here.
fn limit() -> impl Strategy<Value = Value> {
    let options = (
        of(select(vec!["token_bucket", "fixed_window", "sliding_window_strict", "leaky_bucket"])),
        of(1_u32..100),
        option::weighted(0.2, Just(true)),
        option::weighted(0.2, 1_u32..62),
        option::weighted(0.2, (1_u32..5, time(), 1_u32..5)),
        option::weighted(0.2, (select(vec!["normal", "high", "critical"]), 1_u32..60)),
    );
    let permits = (1_u32..50, of(time())).prop_map(|(permits, lease)| {
        object([
            ("limit", Some(json!(permits.to_string()))),
            ("algorithm", Some(json!("concurrency"))),
            ("lease", lease.map(|lease| json!(lease))),
        ])
    });
    let queue = (rate(), 1_u32..50, of(time())).prop_map(|(rate, queue, wait)| {
        object([
            ("limit", Some(json!(rate))),
            ("queue", Some(json!(queue))),
            ("max_wait", wait.map(|wait| json!(wait))),
        ])
    });
    let calendar =
        (1_u32..1_000, of(select(vec!["+05:30", "-08:00", "Z"]))).prop_map(|(tokens, offset)| {
            object([
                ("limit", Some(json!(format!("{tokens} per calendar month")))),
                ("utc_offset", offset.map(|offset| json!(offset))),
            ])
        });
    let with_options = (rate(), options).prop_map(
        |(rate, (algorithm, burst, staggered, parts, warm, reserve))| {
            object([
                ("limit", Some(json!(rate))),
                ("algorithm", algorithm.map(|algorithm| json!(algorithm))),
                ("burst", burst.map(|burst| json!(burst))),
                ("staggered", staggered.map(|staggered| json!(staggered))),
                ("subwindows", parts.map(|parts| json!(parts))),
                (
                    "warm_up",
                    warm.map(|(start, over, steps)| {
                        json!({ "start": start, "over": over, "steps": steps })
                    }),
                ),
                (
                    "reserve",
                    reserve.map(|(of, percent)| json!({ of: format!("{percent}%") })),
                ),
            ])
        },
    );
    prop_oneof![4 => rate().prop_map(Value::String), 3 => with_options, 1 => permits, 1 => queue, 1 => calendar]
}

fn limits() -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => limit(),
        1 => vec(limit(), 1..4).prop_map(Value::Array),
        1 => vec(alternative(), 2..4).prop_map(|any_of| json!({ "any_of": any_of })),
    ]
}

fn alternative() -> impl Strategy<Value = Value> {
    let per = of(select(vec![json!([]), json!(["tenant"]), json!(["client", "path"])]));
    let limit =
        (limit(), per).prop_map(|(limit, per): (Value, Option<Value>)| match (limit, per) {
            (limit, None) => limit,
            (Value::Object(mut fields), Some(per)) => {
                fields.insert("per".to_owned(), per);
                Value::Object(fields)
            }
            (text, Some(per)) => json!({ "limit": text, "per": per }),
        });
    let limit = limit.boxed();
    prop_oneof![3 => limit.clone(), 1 => vec(limit, 1..3).prop_map(Value::Array)]
}

fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let there = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(there.collect())
}

fn path() -> impl Strategy<Value = String> {
    select(vec!["/", "/**", "/v1/users/{id}/**", "/a b/%2A", "/v1/*", "/é"]).prop_map(str::to_owned)
}

fn test() -> impl Strategy<Value = Value> {
    let one = prop_oneof![
        word().prop_map(Value::String),
        vec(word(), 1..3).prop_map(|words| json!(words)),
        word().prop_map(|word| json!({ "prefix": word })),
        word().prop_map(|word| json!({ "equal": word })),
        Just(json!({ "cidr": ["10.0.0.0/8", "::1"] })),
        Just(json!({ "present": true })),
        Just(json!({ "absent": true })),
        word().prop_map(|word| json!({ "prefix": word, "present": true, "one_of": ["x", "y"] })),
    ];
    prop_oneof![3 => one.clone(), 1 => one.prop_map(|test| json!({ "not": test }))]
}

fn conditions() -> impl Strategy<Value = Value> {
    let fixed = (
        of(path()),
        of(prop_oneof![
            Just(json!("GET")),
            Just(json!(["post", "GET"])),
            Just(json!({ "not": "GET" }))
        ]),
        of(prop_oneof![Just(json!("10.0.0.0/8")), Just(json!({ "equal": "10.0.0.1" }))]),
    );
    let names = select(vec!["tenant", "user", "plan", "api_key"]).prop_map(str::to_owned);
    (fixed, btree_map(names, test(), 0..3)).prop_map(|((path, method, ip), tests)| {
        let mut all: Map<String, Value> = tests.into_iter().collect();
        all.extend(path.map(|path| ("path".to_owned(), json!(path))));
        all.extend(method.map(|method| ("method".to_owned(), method)));
        all.extend(ip.map(|ip| ("ip".to_owned(), ip)));
        Value::Object(all)
    })
}

fn costs() -> impl Strategy<Value = Value> {
    prop_oneof![
        (1_u32..5).prop_map(|cost| json!(cost)),
        (1_u32..5).prop_map(|cost| json!({ "GET /v1/search": cost, "/v1/**": 2, "default": 1 })),
        (1_u32..5).prop_map(|cost| json!({ "attribute": "tokens", "/v1/**": cost, "default": 3 })),
        (conditions(), 1_u32..5).prop_map(|(of, cost)| json!([{ "match": of, "cost": cost }])),
    ]
}

fn exemption() -> impl Strategy<Value = Value> {
    let until = select(vec!["2027-01-01", "2027-01-01T12:00:00.25Z", "2030-06-01 00:00:00+02:00"]);
    (word(), of(until), of(word())).prop_map(|(user, until, reason)| {
        object([
            ("user", Some(json!(user))),
            ("until", until.map(|until| json!(until))),
            ("reason", reason.map(|reason| json!(reason))),
        ])
    })
}

/// A rule as a file has it, in JSON, which is YAML too.
fn rule() -> impl Strategy<Value = Value> {
    let who = (
        of(conditions()),
        of(prop_oneof![Just(json!([])), Just(json!(["user", "path"])), Just(json!("tenant"))]),
        of(select(vec!["ip", "shared", "skip", "deny"])),
        of("[a-z0-9]{1,6}"),
        of(select(vec!["low", "normal", "high", "critical"])),
    );
    let what = (
        option::weighted(0.9, limits()),
        option::weighted(0.3, (limits(), limits(), any::<bool>())),
        option::weighted(0.3, limits()),
        of(costs()),
        option::weighted(0.3, select(vec!["token_bucket", "fixed_window"])),
    );
    let how = (
        of(-5_i32..5),
        any::<bool>(),
        of(select(vec!["enforce", "shadow"])),
        of(prop_oneof![
            select(vec!["allow", "deny", "local", "shed"]).prop_map(|action| json!(action)),
            select(vec!["low", "critical"]).prop_map(|criticality| json!({ "shed": criticality })),
        ]),
        vec(exemption(), 0..3),
        of(word()),
        option::weighted(0.2, limit()),
        of(select(vec!["exact", "conservative(2.5%)", "optimistic(5%)", "local", "local(4)"])),
    );
    (who, what, how).prop_map(
        |((of, per, missing, id, criticality), (limit, tiers, candidate, cost, algorithm), how)| {
            let (priority, is_on, mode, failure, exempt, description, new_keys, accuracy) = how;
            object([
                ("name", Some(json!("a"))),
                ("id", id.map(|id| json!(id))),
                ("description", description.map(|description| json!(description))),
                ("match", of),
                ("criticality", criticality.map(|criticality| json!(criticality))),
                ("per", per),
                ("missing", missing.map(|missing| json!(missing))),
                ("new_keys", new_keys),
                ("limit", limit),
                ("algorithm", algorithm.map(|algorithm| json!(algorithm))),
                (
                    "tiers",
                    tiers.map(|(free, gold, has_default)| {
                        let default = has_default.then(|| json!("free"));
                        object([("free", Some(free)), ("gold", Some(gold)), ("default", default)])
                    }),
                ),
                ("candidate", candidate),
                ("cost", cost),
                ("priority", priority.map(|priority| json!(priority))),
                ("enabled", (!is_on).then_some(Value::Bool(false))),
                ("stop", is_on.then_some(Value::Bool(true))),
                ("mode", mode.map(|mode| json!(mode))),
                ("accuracy", accuracy.map(|accuracy| json!(accuracy))),
                ("on_store_failure", failure),
                ("exempt", (!exempt.is_empty()).then(|| json!(exempt))),
            ])
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        max_global_rejects: 4_000,
        ..ProptestConfig::default()
    })]

    /// Keys are sorted here as JSON sorts them, so that the rule is the very same.
    #[test]
    fn a_rule_is_the_same_after_it_was_json_or_yaml(rule in rule()) {
        let text = json!({ "rules": [rule] }).to_string();
        let file = RuleFile::parse("r", &text);
        prop_assume!(file.is_ok());
        let rule = &*file.unwrap().rules.rules()[0].clone();
        prop_assert_eq!(&there_and_back(rule), rule);
        prop_assert_eq!(&written_and_read(rule), rule);
    }
}

/// The generator is of use only if many of its files are rules.
#[test]
fn the_generator_writes_rules() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut is_sound = || {
        let rule = rule().new_tree(&mut runner).unwrap().current();
        RuleFile::parse("r", &json!({ "rules": [rule] }).to_string()).is_ok()
    };
    let sound = (0..500).filter(|_| is_sound()).count();
    assert!(sound > 100, "{sound} of 500");
}

#[test]
fn every_rule_of_the_documents_can_be_sent() {
    let mut count = 0;
    for name in ["reference/rules.md", "guides/rules.md", "guides/running-the-daemon.md"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        let text = fs::read_to_string(path).unwrap();
        for block in text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
            for rule in
                RuleFile::parse(name, block).map_or(Vec::new(), |file| file.rules.rules().to_vec())
            {
                // Written in any order, so what is compared is JSON, which has one.
                assert_eq!(to_json(&there_and_back(&rule)), to_json(&rule), "{}", rule.name);
                assert_eq!(to_json(&written_and_read(&rule)), to_json(&rule), "{}", rule.name);
                count += 1;
            }
        }
    }
    assert!(count > 10, "{count}");
}

#[test]
fn what_flat_fields_cannot_say_is_said_by_those_of_a_file() {
    let form = |text: &str| {
        let file = RuleFile::parse("r", &format!("rules: [{{ name: a, {text} }}]")).unwrap();
        let json = to_json(&file.rules.rules()[0]);
        let said = json.iter().filter(|(name, value)| {
            !value.is_null() && !["name", "enabled", "priority"].contains(&name.as_str())
        });
        said.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    };
    let table = [
        ("limit: 10/s", "maxRequests=10 scope=\"global\" windowSeconds=1"),
        ("limit: 450/15min", "maxRequests=450 scope=\"global\" windowSeconds=900"),
        ("limit: 5/week", "maxRequests=5 scope=\"global\" windowSeconds=604800"),
        // The same numbers in other words, which people have chosen.
        ("limit: 10 per hour", "limit=\"10 per hour\" scope=\"global\""),
        ("limit: 1/500ms", "limit=\"1/500ms\" scope=\"global\""),
        ("limit: [1/s, 9/h]", "limit=[\"1/s\",\"9/h\"] scope=\"global\""),
        ("limit: 1 per calendar day", "limit=\"1 per calendar day\" scope=\"global\""),
        (
            "limit: 9/h, algorithm: fixed_window, staggered: true",
            "algorithm=\"fixed_window\" maxRequests=9 scope=\"global\" staggered=true windowSeconds=3600",
        ),
        // A tier that counts otherwise keeps the algorithm with its limit.
        (
            "limit: { limit: 9/h, algorithm: fixed_window }, tiers: { gold: 10/s }",
            "limit={\"algorithm\":\"fixed_window\",\"limit\":\"9/h\"} scope=\"global\" tiers={\"gold\":\"10/s\"}",
        ),
        // What all limits count by is said once.
        (
            "limit: [{ limit: 9/h, algorithm: fixed_window }, { limit: 1/s, algorithm: fixed_window }]",
            "algorithm=\"fixed_window\" limit=[\"9/h\",\"1/s\"] scope=\"global\"",
        ),
        (
            "limit: 10 per hour, burst: 5, tiers: { gold: { limit: 20/h, burst: 9 } }",
            "burstCapacity=5 limit=\"10 per hour\" scope=\"global\" tiers={\"gold\":{\"burst\":9,\"limit\":\"20/h\"}}",
        ),
        (
            "limit: 9/h, on_store_failure: { shed: low }, algorithm: leaky_queue, queue: 3, max_wait: 2s",
            "algorithm=\"leaky_queue\" maxRequests=9 maxWait=\"2s\" onStoreFailure={\"shed\":\"low\"} queue=3 scope=\"global\" windowSeconds=3600",
        ),
        (
            "limit: 100/h, reserve: { high: 2.50%, critical: 010% }, tiers: { gold: 1000/h }",
            "maxRequests=100 reserve={\"critical\":\"10%\",\"high\":\"2.5%\"} scope=\"global\" tiers={\"gold\":\"1000/h\"} windowSeconds=3600",
        ),
        (
            "limit: 1/s, match: { plan: { equal: a, one_of: [b, c] }, path: '/v1/users/{id}' }",
            "match={\"plan\":{\"equal\":\"a\",\"oneOf\":[\"b\",\"c\"]}} maxRequests=1 pathPattern=\"/v1/users/{id}\" scope=\"endpoint\" windowSeconds=1",
        ),
        (
            "limit: 9/s, cost: { GET /a: 2, /b: 3 }",
            "cost={\"/b\":3,\"GET /a\":2} maxRequests=9 scope=\"global\" windowSeconds=1",
        ),
        // No route: what stands before a space would be a method.
        (
            "limit: 9/s, cost: [{ match: { path: /a b }, cost: 2 }]",
            "cost=[{\"cost\":2,\"match\":{\"path\":\"/a b\"}}] maxRequests=9 scope=\"global\" windowSeconds=1",
        ),
        (
            "unlimited: true, match: { path: /health }",
            "pathPattern=\"/health\" scope=\"endpoint\" unlimited=true",
        ),
        (
            "limit: 1/s, match: { method: GET }",
            "match={\"method\":\"GET\"} maxRequests=1 scope=\"global\" windowSeconds=1",
        ),
        (
            "limit: 1/s, match: { method: [GET, PUT], path: /a, tenant: t }",
            "match={\"method\":[\"GET\",\"PUT\"]} maxRequests=1 pathPattern=\"/a\" scope=\"endpoint\" tenantId=\"t\" windowSeconds=1",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(form(text), expected, "{text}");
    }
}
