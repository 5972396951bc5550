//! One key at a time: looked at, made fresh, banned, boosted; and what was used.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tollbar_admin::database::{DatabaseLocation, Repository, UsageRow};

use crate::admin_daemon::{AdminDaemon, RULES};
use crate::common::status;

const FILE: &str = "rules: [{ name: five, match: { path: /five }, limit: 5/day, burst: 5 }, { name: by_user, match: \
                    { path: /user }, per: [user, path], limit: 2/day }]";
const KEYS: &str = "/v1/rate-limit/keys";

#[test]
fn a_key_is_looked_at_and_made_fresh() {
    let admin = AdminDaemon::open("peek", FILE);
    let key = json!({ "ruleId": "five", "subject": "user:7" });
    let peek = |key: &Value| admin.ask("POST", &format!("{KEYS}/peek"), key);
    for _ in 0..6 {
        admin.check("/five", "7");
    }
    let left = peek(&key).expect(200);
    assert_eq!(
        (&left["ruleId"], &left["limit"], &left["remaining"]),
        (&json!("five"), &json!(5), &json!(0))
    );
    assert_eq!(left["windowSeconds"], 86400);
    let usage = "/v1/rate-limit/usage?subjectType=user&subjectId=7";
    assert_eq!(admin.get(&format!("{usage}&ruleId=five"))["remaining"], 0);
    assert_eq!(
        admin.get(usage)["limits"].as_array().unwrap().len(),
        1,
        "one rule counts by the client"
    );
    let top = admin.get(&format!("{KEYS}/top"));
    assert_eq!(
        (&top["items"][0]["subject"], &top["items"][0]["count"]),
        (&json!("user:7"), &json!(1))
    );
    let me = admin.token_of(&["usage:me"], Some("user:7"));
    let told = admin.ask_as(&me, "GET", "/v1/rate-limit/usage/me", "", &Value::Null).expect(200);
    assert_eq!(told["remaining"], 0);

    let reset = admin.ask("POST", &format!("{KEYS}/reset"), &key).expect(200);
    assert_eq!(reset, json!({ "ruleId": "five", "reset": true }));
    assert_eq!(peek(&key).expect(200)["remaining"], 5);
    let audit = admin.get("/v1/rate-limit/audit");
    let written = json!({ "ruleId": "five", "subject": "user:7", "reset": true });
    assert_eq!(audit["items"][0]["after"], written, "{audit}");
    assert!(audit["items"][0]["actor"].is_string(), "{audit}");

    // A rule that counts by two attributes is asked by both.
    admin.check("/user", "8");
    let both = json!({ "ruleId": "by_user", "attributes": { "user": "8", "path": "/user" } });
    assert_eq!(peek(&both).expect(200)["remaining"], 1);
    let before = admin.get("/v1/rate-limit/audit")["items"].as_array().unwrap().len();
    admin.ask("POST", &format!("{KEYS}/reset"), &both).expect(200);
    let audit = admin.get("/v1/rate-limit/audit");
    let written = json!({ "ruleId": "by_user", "subject": "path:/user | user:8", "reset": true });
    assert_eq!(audit["items"][0]["after"], written, "{audit}");
    assert!(audit["items"][0]["actor"].as_str().unwrap().starts_with("token:"), "{audit}");
    assert_eq!(audit["items"].as_array().unwrap().len(), before + 1);
    peek(&json!({ "ruleId": "by_user", "subject": "8" })).problem(422, "invalid");
    peek(&json!({ "ruleId": "nosuch", "subject": "8" })).problem(404, "not_found");
    let none = peek(&json!({ "ruleId": "five" }));
    assert_eq!(none.problem(422, "invalid"), "subject");
    let both = json!({ "ruleId": "five", "subject": "user:7", "attributes": { "user": "8" } });
    assert_eq!(peek(&both).problem(422, "invalid"), "subject", "who it is is said once");
}

#[test]
fn a_ban_denies_a_boost_gives_more_and_both_end() {
    let admin = AdminDaemon::open("ban", FILE);
    let ban = json!({ "ruleId": "five", "subject": "user:7", "reason": "abuse", "expiresAt": "2100-01-01" });
    let banned = admin.ask("POST", &format!("{KEYS}/ban"), &ban).expect(201);
    assert_eq!((&banned["kind"], &banned["factorPercent"]), (&json!("ban"), &Value::Null));
    assert_eq!((admin.check("/five", "7"), admin.check("/five", "8")), (429, 200));
    let everywhere = json!({ "subject": "user:9" });
    admin.ask("POST", &format!("{KEYS}/ban"), &everywhere).expect(201);
    assert_eq!((admin.check("/five", "9"), admin.check("/user", "9")), (429, 429));
    let boost = json!({ "ruleId": "five", "subject": "user:10", "factorPercent": 200 });
    let boosted = admin.ask("POST", &format!("{KEYS}/boost"), &boost).expect(201);
    let statuses: Vec<u16> = (0..11).map(|_| admin.check("/five", "10")).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 10);
    assert_eq!(admin.get(KEYS)["items"].as_array().unwrap().len(), 3);
    assert_eq!(admin.get(&format!("{KEYS}?ruleId=five&subject=user:7"))["items"], json!([banned]));

    admin.ask("DELETE", &format!("{KEYS}/{}", banned["keyId"]), &Value::Null).expect(204);
    assert_eq!(admin.check("/five", "7"), 200);
    admin.ask("DELETE", &format!("{KEYS}/{}", boosted["keyId"]), &Value::Null).expect(204);
    assert_eq!(admin.check("/five", "10"), 429);
    let audit = admin.get("/v1/rate-limit/audit");
    let changes =
        audit["items"].as_array().unwrap().iter().filter(|change| change["kind"] == "key");
    assert_eq!(changes.count(), 5);

    for (form, field) in [
        (json!({ "subject": "" }), "subject"),
        (json!({ "subject": "a\u{0}" }), "subject"),
        // No request could have these, and the bans would never apply.
        (json!({ "subject": "a" }), "subject"),
        (json!({ "subject": "usr:7" }), "subject"),
        (json!({ "subject": "ip:nowhere" }), "subject"),
        (json!({ "subject": "user:a", "expiresAt": "1999-01-01" }), "expiresAt"),
        (json!({ "subject": "user:a", "expiresAt": "soon" }), "expiresAt"),
        (json!({ "subject": "user:a", "until": "2100-01-01" }), "until"),
        (json!({ "subject": 7 }), "subject"),
    ] {
        let told = admin.ask("POST", &format!("{KEYS}/ban"), &form);
        assert_eq!(told.problem(422, "invalid"), field, "{form}");
    }
    for factor in [json!(0), json!(100_001), json!(-1), json!(1.5), json!("2")] {
        let form = json!({ "subject": "user:a", "factorPercent": factor });
        let told = admin.ask("POST", &format!("{KEYS}/boost"), &form);
        assert_eq!(told.problem(422, "invalid"), "factorPercent", "{factor}");
    }
    let none = json!({ "ruleId": "nosuch", "subject": "a" });
    admin.ask("POST", &format!("{KEYS}/ban"), &none).problem(404, "not_found");
}

/// The counters of `u-001` were shown, which nobody has, where those of `user:u-001` were meant.
#[test]
fn a_subject_without_its_kind_is_asked_about() {
    let admin = AdminDaemon::open("kind", "rules: [{ name: per_client, limit: 5/day }]");
    assert_eq!(admin.check("/", "u-001"), 200);
    for what in ["peek", "reset", "ban"] {
        let key = json!({ "ruleId": "per_client", "subject": "u-001" });
        let told = admin.ask("POST", &format!("{KEYS}/{what}"), &key);
        assert_eq!(told.problem(422, "invalid"), "subject");
        assert!(told.body.contains("did you mean `user:u-001`?"), "{}", told.body);
        let other = json!({ "ruleId": "per_client", "subject": "u-002" });
        let told = admin.ask("POST", &format!("{KEYS}/{what}"), &other);
        assert_eq!(told.problem(422, "invalid"), "subject", "nobody is counted so");
    }
    // These were accepted, and applied to nobody.
    for (subject, meant) in [
        ("u-002", "send `user:u-002`, `api:u-002`, or `ip:` and an address"),
        ("usr:7", "did you mean `user:7`?"),
        ("tenant:acme", "send `user:tenant:acme`"),
        ("ip:nowhere", "is no address"),
    ] {
        for what in ["ban", "boost"] {
            let mut form = json!({ "ruleId": "per_client", "subject": subject });
            if what == "boost" {
                form["factorPercent"] = json!(200);
            }
            let told = admin.ask("POST", &format!("{KEYS}/{what}"), &form);
            assert_eq!(told.problem(422, "invalid"), "subject");
            assert!(told.body.contains(meant), "{what} {subject}: {}", told.body);
        }
    }
    // A check by rule and subject may call its client anything, and such a client is banned once it is counted.
    let check = || {
        let body = json!({ "rule": "per_client", "subject": "job-17" });
        status(&admin.daemon.post("/v1/check", &body.to_string()))
    };
    assert_eq!(check(), 200);
    let job = json!({ "ruleId": "per_client", "subject": "job-17" });
    admin.ask("POST", &format!("{KEYS}/ban"), &job).expect(201);
    assert_eq!(check(), 429);
    let misspelt = admin.ask("POST", &format!("{KEYS}/ban"), &json!({ "subject": "usr:7" }));
    assert!(misspelt.body.contains("did you mean `user:7`?"), "{}", misspelt.body);
}

/// Bans of addresses were accepted in spellings that no counter has, and applied to nobody.
#[test]
fn every_spelling_of_an_address_bans_it_or_is_told_what_to_send() {
    let file = "rules: [{ name: per_client, limit: 1000/day }, { name: per_ip, match: { path: /ip }, per: [ip], \
                limit: 1000/day }]";
    let admin = AdminDaemon::open("spelling", file);
    let check = |path: &str, ip: &str| {
        let body = json!({ "path": path, "attributes": { "ip": ip } });
        status(&admin.daemon.post("/v1/check", &body.to_string()))
    };
    let ban = |rule: Option<&str>, subject: &str| {
        let form = json!({ "ruleId": rule, "subject": subject });
        admin.ask("POST", &format!("{KEYS}/ban"), &form)
    };
    let rules = [(None, "/"), (Some("per_client"), "/"), (Some("per_ip"), "/ip")];
    for (number, (rule, path)) in rules.into_iter().enumerate() {
        for (at, (spelling, client, other)) in [
            ("ip:203.0.113.9", "203.0.113.9", "203.0.113.10"),
            ("ip:::ffff:203.0.113.9", "203.0.113.9", "203.0.113.10"),
            ("ip:203.0.113.9/32", "::ffff:203.0.113.9", "203.0.113.8"),
            ("ip:203.0.113.0/24", "203.0.113.200", "203.0.114.1"),
            ("ip:::ffff:203.0.113.0/120", "203.0.113.7", "203.0.112.255"),
            ("ip:2001:db8::1", "2001:db8::ffff", "2001:db8:0:1::1"),
            ("ip:2001:DB8::/64", "2001:db8::1", "2001:db8:0:1::1"),
            ("ip:2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(check(path, client), 200, "{rule:?} {spelling}");
            let banned = ban(rule, spelling).expect(201);
            assert_eq!(check(path, client), 429, "{rule:?} {spelling}");
            assert_eq!(check(path, other), 200, "{rule:?} {spelling}");
            let rule = rule.map(|rule| format!("&ruleId={rule}")).unwrap_or_default();
            let listed = admin.get(&format!("{KEYS}?subject={spelling}{rule}"));
            assert_eq!(listed["items"], json!([banned]), "{number} {at}");
            admin.ask("DELETE", &format!("{KEYS}/{}", banned["keyId"]), &Value::Null).expect(204);
        }
        for subject in ["ip:203.0.113.9/24", "ip:2001:db8::1/128", "ip:nowhere", "ip:203.0.113"] {
            let told = ban(rule, subject);
            assert_eq!(told.problem(422, "invalid"), "subject", "{rule:?} {subject}");
        }
    }
    for rule in [None, Some("per_client")] {
        for subject in ["203.0.113.9", "::ffff:203.0.113.9", "203.0.113.9:443"] {
            let told = ban(rule, subject);
            assert_eq!(told.problem(422, "invalid"), "subject");
            assert!(told.body.contains("`ip:203.0.113.9`"), "{}", told.body);
        }
    }
    // What a rule of one attribute counts by needs no kind, and look-ups take what bans take.
    ban(Some("per_ip"), "203.0.113.77").expect(201);
    assert_eq!(check("/ip", "203.0.113.77"), 429);
    let peek = |rule: &str, subject: &str| {
        let key = json!({ "ruleId": rule, "subject": subject });
        admin.ask("POST", &format!("{KEYS}/peek"), &key)
    };
    assert_eq!(check("/ip", "2001:db8:7::1"), 200);
    for (rule, subject) in [
        ("per_client", "ip:2001:db8:7::2"),
        ("per_client", "ip:2001:db8:7::/64"),
        ("per_ip", "2001:db8:7::3"),
        ("per_ip", "ip:2001:db8:7::/64"),
    ] {
        assert_eq!(peek(rule, subject).expect(200)["remaining"], 999, "{rule} {subject}");
    }
    for (rule, subject) in [("per_client", "203.0.113.9"), ("per_ip", "ip:203.0.113.0/24")] {
        assert_eq!(peek(rule, subject).problem(422, "invalid"), "subject");
    }
    let rule = admin.rule(&json!({
        "name": "exempting", "scope": "endpoint", "pathPattern": "/x", "algorithm": "token_bucket",
        "maxRequests": 1, "windowSeconds": 60,
    }));
    let exempt = json!({ "subjectType": "user", "subjectValue": "user:8" });
    let told = admin.ask("POST", &format!("{RULES}/{rule}/exemptions"), &exempt);
    assert_eq!(told.problem(422, "invalid"), "subjectValue");
}

#[tokio::test]
async fn what_was_used_is_exported_in_pages_of_the_database() {
    let admin = AdminDaemon::open("usage", FILE);
    let place: DatabaseLocation = admin.database.parse().unwrap();
    let repository = Repository::open(&place).await.unwrap();
    let row = |at: u32| UsageRow {
        day: 20_000 + i32::try_from(at % 2).unwrap(),
        tenant: if at.is_multiple_of(3) { "acme".to_owned() } else { String::new() },
        subject: format!("user:{at:05}"),
        rule: "five".to_owned(),
        admitted_cost: i64::from(at),
        denied_cost: 1,
        client: format!("user:{}", at % 10),
        tier: if at.is_multiple_of(2) { "gold".to_owned() } else { String::new() },
        admitted_requests: 1,
        denied_requests: 0,
    };
    let rows: Vec<UsageRow> = (0..2_500).map(row).collect();
    repository.add_usage("elsewhere", 1, &rows).await.unwrap();

    let export = "/v1/rate-limit/usage/export?to=2024-10-31";
    let csv = admin.ask("GET", export, &Value::Null);
    assert!(csv.head.contains("content-type: text/csv"), "{}", csv.head);
    let body = csv.body;
    assert_eq!(body.lines().count(), 2_501);
    assert!(
        body.starts_with("day,tenant,subject,ruleId,admitted,denied,client,tier,"),
        "{}",
        &body[..90]
    );
    assert_eq!(body.matches("user:02499,five,2499,1,user:9,,1,0,five").count(), 1);
    let lines = admin.ask("GET", &format!("{export}&format=jsonl&tenant=acme"), &Value::Null);
    let body = lines.body;
    let sum: u64 = body
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["admitted"].as_u64().unwrap())
        .sum();
    assert_eq!(sum, (0..2_500).filter(|number| number % 3 == 0).sum::<u64>());
    let one_day = format!("{export}&from=2024-10-05");
    assert_eq!(admin.ask("GET", &one_day, &Value::Null).body.lines().count(), 1_251);

    let totals = |by: &str| {
        let told = admin.ask("GET", &format!("{export}&by={by}"), &Value::Null);
        told.body.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let all: u32 = (0..2_500).sum();
    let acme: u32 = (0..2_500).filter(|number| number % 3 == 0).sum();
    let expected = [
        "line,tenant,rule,ruleId,unit,admitted,denied".to_owned(),
        "tenant,,,,requests,1666,0".to_owned(),
        format!("tenant,,five,five,tokens,{},1666", all - acme),
        "tenant,acme,,,requests,834,0".to_owned(),
        format!("tenant,acme,five,five,tokens,{acme},834"),
        "total,,,,requests,2500,0".to_owned(),
        format!("total,,five,five,tokens,{all},2500"),
    ];
    assert_eq!(totals("tenant"), expected);
    assert_eq!(totals("client").len(), 1 + 2 * 10 + 2);
    assert_eq!(totals("tier").len(), 1 + 2 * 2 + 2);
    let rule = format!("rule,five,five,tokens,{all},2500");
    let of_rule = ["line,rule,ruleId,unit,admitted,denied", &rule, "total,,,requests,2500,0"];
    assert_eq!(totals("rule"), of_rule);
    let lines = admin.ask("GET", &format!("{export}&by=tier&format=jsonl"), &Value::Null).body;
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    let expected = json!({ "line": "tier", "tier": null, "rule": null, "ruleId": null,
                           "unit": "requests", "admitted": 1250, "denied": 0 });
    assert_eq!(first, expected);

    let daily = admin.get("/v1/rate-limit/usage/daily?to=2024-10-31&subject=user:00003");
    assert_eq!(daily["items"][0]["tenant"], "acme");
    let acme = admin.token_of(&["tenant:acme"], None);
    let told = admin.ask_as(&acme, "GET", export, "", &Value::Null);
    assert_eq!(told.body.lines().count(), 835, "its own, and the head");
    let told = admin.ask_as(&acme, "GET", &format!("{export}&by=tenant"), "", &Value::Null);
    assert!(told.body.ends_with(",834\r\n") && told.body.lines().count() == 5, "{}", told.body);
    let others = admin.ask_as(&acme, "GET", &format!("{export}&tenant=globex"), "", &Value::Null);
    others.problem(403, "forbidden");
    for wrong in ["from=today", "to=2024-13-01", "format=xml", "limit=5", "by=day"] {
        let told = admin.ask("GET", &format!("/v1/rate-limit/usage/export?{wrong}"), &Value::Null);
        told.problem(400, "bad_request");
    }
    assert_eq!(admin.get(&format!("{RULES}/five"))["name"], "five");
}

/// The identity of a rule of the database is a UUID, which tells nobody what was used.
#[tokio::test]
async fn usage_under_a_rule_of_the_database_shows_the_name_of_the_rule() {
    let admin = AdminDaemon::open("usage-names", FILE);
    let id = admin.rule(&json!({ "name": "search", "maxRequests": 5, "windowSeconds": 60 }));
    let place: DatabaseLocation = admin.database.parse().unwrap();
    let repository = Repository::open(&place).await.unwrap();
    let row = |rule: &str| UsageRow {
        day: 20_000,
        tenant: String::new(),
        subject: "user:7".to_owned(),
        rule: rule.to_owned(),
        admitted_cost: 3,
        denied_cost: 0,
        client: "user:7".to_owned(),
        tier: String::new(),
        admitted_requests: 1,
        denied_requests: 0,
    };
    // A rule that was deleted has no name any more.
    repository.add_usage("elsewhere", 1, &[row(&id), row("deleted")]).await.unwrap();

    let daily = admin.get("/v1/rate-limit/usage/daily?to=2024-10-31");
    let names: BTreeMap<&str, &str> = (daily["items"].as_array().unwrap().iter())
        .map(|item| (item["ruleId"].as_str().unwrap(), item["rule"].as_str().unwrap()))
        .collect();
    assert_eq!(names, [(&*id, "search"), ("deleted", "deleted")].into());
    let export = "/v1/rate-limit/usage/export?to=2024-10-31";
    let csv = admin.ask("GET", export, &Value::Null).body;
    assert!(csv.contains(&format!("user:7,{id},3,0,user:7,,1,0,search\r\n")), "{csv}");
    let lines = admin.ask("GET", &format!("{export}&format=jsonl"), &Value::Null).body;
    assert!(lines.contains(r#""rule":"search""#), "{lines}");

    let server = format!("http://{}", admin.daemon.address("admin"));
    for args in [&["usage"][..], &["usage", "export", "--format", "table"]] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollbar"));
        command.args(args).args(["--to", "2024-10-31", "--server", &server]);
        let output = command.env("TOLLBAR_TOKEN", &admin.token).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(told.contains("search") && !told.contains(&id), "{args:?}: {told}");
    }
}
