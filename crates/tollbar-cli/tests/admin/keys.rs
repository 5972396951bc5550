//! One key at a time: looked at, made fresh, banned, boosted; and what was used.

use serde_json::{Value, json};
use tollbar_admin::database::{DatabaseLocation, Repository, UsageRow};

use crate::office::{Office, RULES};

const FILE: &str = "rules: [{ name: five, match: { path: /five }, limit: 5/day, burst: 5 }, { name: by_user, match: \
                    { path: /user }, per: [user, path], limit: 2/day }]";
const KEYS: &str = "/v1/rate-limit/keys";

#[test]
fn a_key_is_looked_at_and_made_fresh() {
    let office = Office::open("peek", FILE);
    let key = json!({ "ruleId": "five", "subject": "user:7" });
    let peek = |key: &Value| office.ask("POST", &format!("{KEYS}/peek"), key);
    for _ in 0..6 {
        office.check("/five", "7");
    }
    let left = peek(&key).expect(200);
    assert_eq!(
        (&left["ruleId"], &left["limit"], &left["remaining"]),
        (&json!("five"), &json!(5), &json!(0))
    );
    assert_eq!(left["windowSeconds"], 86400);
    let usage = "/v1/rate-limit/usage?subjectType=user&subjectId=7";
    assert_eq!(office.get(&format!("{usage}&ruleId=five"))["remaining"], 0);
    assert_eq!(
        office.get(usage)["limits"].as_array().unwrap().len(),
        1,
        "one rule counts by the client"
    );
    let top = office.get(&format!("{KEYS}/top"));
    assert_eq!(
        (&top["items"][0]["subject"], &top["items"][0]["count"]),
        (&json!("user:7"), &json!(1))
    );
    let me = office.token_of(&["usage:me"], Some("user:7"));
    let told = office.ask_as(&me, "GET", "/v1/rate-limit/usage/me", "", &Value::Null).expect(200);
    assert_eq!(told["remaining"], 0);

    let reset = office.ask("POST", &format!("{KEYS}/reset"), &key).expect(200);
    assert_eq!(reset, json!({ "ruleId": "five", "reset": true }));
    assert_eq!(peek(&key).expect(200)["remaining"], 5);

    // A rule that counts by two attributes is asked by both.
    office.check("/user", "8");
    let both = json!({ "ruleId": "by_user", "attributes": { "user": "8" } });
    assert_eq!(peek(&both).expect(200)["limit"], 2);
    peek(&json!({ "ruleId": "by_user", "subject": "8" })).problem(422, "invalid");
    peek(&json!({ "ruleId": "nosuch", "subject": "8" })).problem(404, "not_found");
    let none = peek(&json!({ "ruleId": "five" }));
    assert_eq!(none.problem(422, "invalid"), "subject");
    let both = peek(&json!({ "ruleId": "five", "subject": "a", "attributes": {} }));
    assert_eq!(both.problem(422, "invalid"), "subject");
}

#[test]
fn a_ban_denies_a_boost_gives_more_and_both_end() {
    let office = Office::open("ban", FILE);
    let ban = json!({ "ruleId": "five", "subject": "user:7", "reason": "abuse", "expiresAt": "2100-01-01" });
    let banned = office.ask("POST", &format!("{KEYS}/ban"), &ban).expect(201);
    assert_eq!((&banned["kind"], &banned["factorPercent"]), (&json!("ban"), &Value::Null));
    assert_eq!((office.check("/five", "7"), office.check("/five", "8")), (429, 200));
    let everywhere = json!({ "subject": "user:9" });
    office.ask("POST", &format!("{KEYS}/ban"), &everywhere).expect(201);
    assert_eq!((office.check("/five", "9"), office.check("/user", "9")), (429, 429));
    let boost = json!({ "ruleId": "five", "subject": "user:10", "factorPercent": 200 });
    let boosted = office.ask("POST", &format!("{KEYS}/boost"), &boost).expect(201);
    let statuses: Vec<u16> = (0..11).map(|_| office.check("/five", "10")).collect();
    assert_eq!(statuses.iter().filter(|it| **it == 200).count(), 10);
    assert_eq!(office.get(KEYS)["items"].as_array().unwrap().len(), 3);
    assert_eq!(office.get(&format!("{KEYS}?ruleId=five&subject=user:7"))["items"], json!([banned]));

    office.ask("DELETE", &format!("{KEYS}/{}", banned["keyId"]), &Value::Null).expect(204);
    assert_eq!(office.check("/five", "7"), 200);
    office.ask("DELETE", &format!("{KEYS}/{}", boosted["keyId"]), &Value::Null).expect(204);
    assert_eq!(office.check("/five", "10"), 429);
    let audit = office.get("/v1/rate-limit/audit");
    let changes = audit["items"].as_array().unwrap().iter().filter(|it| it["kind"] == "key");
    assert_eq!(changes.count(), 5);

    for (form, field) in [
        (json!({ "subject": "" }), "subject"),
        (json!({ "subject": "a\u{0}" }), "subject"),
        (json!({ "subject": "a", "expiresAt": "1999-01-01" }), "expiresAt"),
        (json!({ "subject": "a", "expiresAt": "soon" }), "expiresAt"),
        (json!({ "subject": "a", "until": "2100-01-01" }), "until"),
        (json!({ "subject": 7 }), "subject"),
    ] {
        let told = office.ask("POST", &format!("{KEYS}/ban"), &form);
        assert_eq!(told.problem(422, "invalid"), field, "{form}");
    }
    for factor in [json!(0), json!(100_001), json!(-1), json!(1.5), json!("2")] {
        let form = json!({ "subject": "a", "factorPercent": factor });
        let told = office.ask("POST", &format!("{KEYS}/boost"), &form);
        assert_eq!(told.problem(422, "invalid"), "factorPercent", "{factor}");
    }
    let none = json!({ "ruleId": "nosuch", "subject": "a" });
    office.ask("POST", &format!("{KEYS}/ban"), &none).problem(404, "not_found");
}

#[tokio::test]
async fn what_was_used_is_exported_in_pages_of_the_database() {
    let office = Office::open("usage", FILE);
    let place: DatabaseLocation = office.database.parse().unwrap();
    let repository = Repository::open(&place).await.unwrap();
    let row = |at: u32| UsageRow {
        day: 20_000 + i32::try_from(at % 2).unwrap(),
        tenant: if at.is_multiple_of(3) { "acme".to_owned() } else { String::new() },
        subject: format!("user:{at:05}"),
        rule: "five".to_owned(),
        admitted_cost: u64::from(at),
        denied_cost: 1,
    };
    let rows: Vec<UsageRow> = (0..2_500).map(row).collect();
    repository.add_usage("elsewhere", 1, &rows).await.unwrap();

    let export = "/v1/rate-limit/usage/export?to=2024-10-31";
    let csv = office.ask("GET", export, &Value::Null);
    assert!(csv.head.contains("content-type: text/csv"), "{}", csv.head);
    let body = csv.body;
    assert_eq!(body.lines().count(), 2_501);
    assert!(
        body.starts_with("day,tenant,subject,ruleId,admitted,denied\r\n2024-10-04,"),
        "{}",
        &body[..90]
    );
    assert_eq!(body.matches("user:02499,five,2499,1").count(), 1);
    let lines = office.ask("GET", &format!("{export}&format=jsonl&tenant=acme"), &Value::Null);
    let body = lines.body;
    let sum: u64 = body
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["admitted"].as_u64().unwrap())
        .sum();
    assert_eq!(sum, (0..2_500).filter(|it| it % 3 == 0).sum::<u64>());
    let one_day = format!("{export}&from=2024-10-05");
    assert_eq!(office.ask("GET", &one_day, &Value::Null).body.lines().count(), 1_251);

    let daily = office.get("/v1/rate-limit/usage/daily?to=2024-10-31&subject=user:00003");
    assert_eq!(daily["items"][0]["tenant"], "acme");
    let acme = office.token_of(&["tenant:acme"], None);
    let told = office.ask_as(&acme, "GET", export, "", &Value::Null);
    assert_eq!(told.body.lines().count(), 835, "its own, and the head");
    let others = office.ask_as(&acme, "GET", &format!("{export}&tenant=globex"), "", &Value::Null);
    others.problem(403, "forbidden");
    for wrong in ["from=today", "to=2024-13-01", "format=xml", "limit=5"] {
        let told = office.ask("GET", &format!("/v1/rate-limit/usage/export?{wrong}"), &Value::Null);
        told.problem(400, "bad_request");
    }
    assert_eq!(office.get(&format!("{RULES}/five"))["name"], "five");
}
