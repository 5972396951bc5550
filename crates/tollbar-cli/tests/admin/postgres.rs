//! The same API over PostgreSQL, which keeps other texts than SQLite does, and may go away.

use serde_json::{Value, json};

use crate::admin_daemon::{AdminDaemon, RULES};
use crate::common::Scratch;
use crate::common::postgres::Postgres;

const FILE: &str = "rules: [{ name: in_file, match: { path: /file }, limit: 3/day }]";

#[test]
fn what_cannot_be_kept_is_refused_and_without_a_database_nothing_is_changed() {
    let mut server = Postgres::start();
    let scratch = Scratch::new("admin-postgres");
    let admin = AdminDaemon::open_at(scratch, FILE, server.database());
    let form = |more: Value| {
        let mut form =
            json!({ "name": "p", "pathPattern": "/p", "maxRequests": 1, "windowSeconds": 86400 });
        form.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        form
    };
    // PostgreSQL has no place for a character of code 0.
    let odd = [
        ("tenantId", json!("a\u{0}")),
        ("description", json!("a\u{0}")),
        ("match", json!({ "plan": { "not": ["a", "b\u{0}"] } })),
        ("match", json!({ "a\u{0}": "b" })),
    ];
    for (field, value) in odd {
        let told = admin.ask("POST", RULES, &form(json!({ field: value })));
        assert_eq!(told.problem(422, "invalid"), field);
    }
    let told = admin.ask("GET", &format!("{RULES}?tenant=%00"), &Value::Null);
    assert_eq!(told.problem(400, "bad_request"), "tenant");
    let text = "größe 名前 \\u0000 \u{1F4A9} '; DROP TABLE rate_limit_rules; --";
    let id =
        admin.rule(&form(json!({ "description": text, "match": { "plan": { "not": text } } })));
    let target = format!("{RULES}/{id}");
    assert_eq!(admin.get(&target)["description"], text);
    assert_eq!((admin.check("/p", "7"), admin.check("/p", "7")), (200, 429));
    admin.ask_of("\"9\"", "DELETE", &target, &Value::Null).problem(412, "conflict");
    let exemption = json!({ "subjectType": "user", "subjectValue": "8", "reason": "größe" });
    admin.ask("POST", &format!("{target}/exemptions"), &exemption).expect(201);
    assert_eq!((admin.check("/p", "8"), admin.check("/p", "8")), (200, 200));

    server.kill();
    let change = form(json!({ "maxRequests": 9 }));
    admin.ask_of("*", "PUT", &target, &change).problem(503, "unavailable");
    // Known at the latest by the next look, which is within a second.
    let health = || admin.send("GET", "/healthz", "", b"").expect(200);
    assert!((0..100_000).any(|_| health()["parts"]["database"] == "degraded"));
    assert_eq!((admin.check("/p", "7"), admin.check("/p", "9")), (429, 200), "checks go on");
    server.restart();
    let rule = (0..100_000)
        .map(|_| admin.ask("GET", &target, &Value::Null))
        .find(|answer| answer.status == 200);
    assert_eq!(rule.expect("it is back").expect(200)["maxRequests"], 1, "nothing was changed");
}
