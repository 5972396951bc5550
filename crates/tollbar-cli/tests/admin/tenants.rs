//! Tenants limit themselves: they see and change what is theirs, and never get more than the operator's
//! rules allow.

use serde_json::{Value, json};
use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::transport::Endpoint;

use crate::admin_daemon::{AdminDaemon, RULES};
use crate::common::http::Answer;
use crate::common::status;

const FILE: &str = "rules: [{ name: per_tenant, per: [tenant], limit: 100/min }, { name: burst, per: [tenant], \
                    limit: [20/s, 1000/h], priority: 5 }, { name: others, match: { tenant: globex }, limit: 1/h }]";

fn sub(more: &Value) -> Value {
    let mut form = json!({
        "name": "acme/search", "tenantId": "acme", "pathPattern": "/search", "maxRequests": 2,
        "windowSeconds": 86400, "priority": 0,
    });
    form.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    form
}

struct Tenant<'o> {
    admin: &'o AdminDaemon,
    token: String,
}

impl Tenant<'_> {
    fn ask(&self, method: &str, target: &str, body: &Value) -> Answer {
        self.admin.ask_as(&self.token, method, target, "if-match: *\r\n", body)
    }
}

fn check(admin: &AdminDaemon, tenant: &str) -> u16 {
    let body = json!({ "path": "/search", "attributes": { "user": "7", "tenant": tenant } });
    status(&admin.daemon.post("/v1/check", &body.to_string()))
}

#[test]
fn a_tenant_makes_changes_and_deletes_its_own_sub_limits() {
    let admin = AdminDaemon::open("own", FILE);
    let acme = Tenant { admin: &admin, token: admin.token_of(&["tenant:acme"], None) };
    let globex = Tenant { admin: &admin, token: admin.token_of(&["tenant:globex"], None) };
    let made = acme.ask("POST", RULES, &sub(&json!({}))).expect(201);
    let target = format!("{RULES}/{}", made["ruleId"].as_str().unwrap());
    assert_eq!(
        [check(&admin, "acme"), check(&admin, "acme"), check(&admin, "acme")],
        [200, 200, 429]
    );
    assert_eq!(check(&admin, "initech"), 200, "it is nobody else's");
    acme.ask("PUT", &target, &sub(&json!({ "maxRequests": 3 }))).expect(200);
    assert_eq!([check(&admin, "acme"), check(&admin, "acme")], [200, 429]);
    let exemption = json!({ "subjectType": "user", "subjectValue": "7" });
    let exempt = acme.ask("POST", &format!("{target}/exemptions"), &exemption).expect(201);
    assert_eq!(check(&admin, "acme"), 200);

    // To others it is not there.
    let one = format!("/v1/rate-limit/exemptions/{}", exempt["exemptionId"]);
    for (method, target, body) in [
        ("GET", target.clone(), Value::Null),
        ("PUT", target.clone(), sub(&json!({}))),
        ("DELETE", target.clone(), Value::Null),
        ("GET", format!("{target}/history"), Value::Null),
        ("POST", format!("{target}/rollback"), json!({ "version": 1 })),
        ("GET", format!("{target}/exemptions"), Value::Null),
        ("POST", format!("{target}/exemptions"), exemption.clone()),
        ("DELETE", one.clone(), Value::Null),
        (
            "POST",
            "/v1/rate-limit/keys/peek".into(),
            json!({ "ruleId": made["ruleId"], "subject": "user:7" }),
        ),
        (
            "POST",
            "/v1/rate-limit/keys/reset".into(),
            json!({ "ruleId": made["ruleId"], "subject": "user:7" }),
        ),
        (
            "POST",
            "/v1/rate-limit/keys/ban".into(),
            json!({ "ruleId": made["ruleId"], "subject": "user:7" }),
        ),
    ] {
        globex.ask(method, &target, &body).problem(404, "not_found");
    }
    // Nor are the operator's rules to a tenant.
    for rule in ["per_tenant", "others"] {
        acme.ask("GET", &format!("{RULES}/{rule}"), &Value::Null).problem(404, "not_found");
        acme.ask("DELETE", &format!("{RULES}/{rule}"), &Value::Null).problem(404, "not_found");
    }
    let operators = admin.rule(&json!({
        "name": "for_acme", "tenantId": "acme", "pathPattern": "/x", "maxRequests": 9, "windowSeconds": 60,
    }));
    acme.ask("DELETE", &format!("{RULES}/{operators}"), &Value::Null).problem(404, "not_found");
    let names = |tenant: &Tenant<'_>| {
        let listed = tenant.ask("GET", RULES, &Value::Null).expect(200);
        let items = listed["items"].as_array().unwrap().clone();
        items.iter().map(|rule| rule["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((names(&acme), names(&globex)), (vec!["acme/search".to_owned()], vec![]));
    acme.ask("GET", &format!("{RULES}?tenant=globex"), &Value::Null).problem(403, "forbidden");

    acme.ask("DELETE", &one, &Value::Null).expect(204);
    assert_eq!(check(&admin, "acme"), 429);
    acme.ask("DELETE", &target, &Value::Null).expect(204);
    assert_eq!(check(&admin, "acme"), 200);
    // What was its own still is, also to be brought back.
    let back = format!("{target}/rollback");
    globex.ask("POST", &back, &json!({ "version": 1 })).problem(404, "not_found");
    acme.ask("POST", &back, &json!({ "version": 1 })).expect(200);
    assert_eq!(check(&admin, "acme"), 429);
}

#[test]
fn a_sub_limit_never_gives_more_than_the_operator_does() {
    let admin = AdminDaemon::open("parents", FILE);
    let acme = Tenant { admin: &admin, token: admin.token_of(&["tenant:acme"], None) };
    for (more, field) in [
        (json!({ "tenantId": "globex", "name": "globex/x" }), "tenantId"),
        (json!({ "tenantId": null }), "tenantId"),
        (json!({ "name": "search" }), "name"),
        (json!({ "name": "acme/" }), "name"),
        (json!({ "name": "acmex/search" }), "name"),
        (json!({ "name": "globex/search" }), "name"),
        (json!({ "stop": true }), "stop"),
        // Or a tenant would take what is reserved for the requests that the operator calls critical.
        (json!({ "criticality": "critical" }), "criticality"),
        (json!({ "name": "per_tenant" }), "name"),
        (json!({ "replaces": ["per_tenant"] }), "replaces"),
        (json!({ "replaces": ["nosuch"] }), "replaces"),
        (json!({ "maxRequests": null, "windowSeconds": null, "unlimited": true }), "unlimited"),
        (json!({ "tiers": { "gold": "unlimited" } }), "tiers"),
        (json!({ "tiers": { "gold": "1001/h" } }), "maxRequests"),
        (json!({ "priority": 1 }), "priority"),
        // Forward-auth would sleep for an hour on a connection of the operator's proxy.
        (json!({ "algorithm": "leaky_queue", "queue": 100, "maxWait": "1h" }), "queue"),
        (json!({ "algorithm": "leaky_queue", "queue": 1 }), "queue"),
        // 1000/h is the lowest of the operator's: 0.277.. a second.
        (json!({ "maxRequests": 1001, "windowSeconds": 3600 }), "maxRequests"),
        (json!({ "maxRequests": 1, "windowSeconds": 3 }), "maxRequests"),
        (json!({ "maxRequests": 24001, "windowSeconds": 86400 }), "maxRequests"),
    ] {
        let told = acme.ask("POST", RULES, &sub(&more));
        assert_eq!(told.problem(403, "forbidden"), field, "{more}");
        let told = acme.ask("POST", &format!("{RULES}?dryRun=true"), &sub(&more));
        assert_eq!(told.problem(403, "forbidden"), field, "{more}");
    }
    for (at, more) in [
        json!({ "maxRequests": 1000, "windowSeconds": 3600 }),
        json!({ "maxRequests": 24000 }),
        json!({ "maxRequests": 1, "windowSeconds": 4 }),
        json!({ "maxRequests": null, "windowSeconds": null, "limit": ["10/s", "500/h"] }),
        json!({ "maxRequests": null, "windowSeconds": null, "limit": "0.25/s", "burst": 1 }),
        json!({ "mode": "shadow" }),
    ]
    .iter()
    .enumerate()
    {
        let mut form = sub(more);
        form["name"] = json!(format!("acme/{at}"));
        acme.ask("POST", RULES, &form).expect(201);
    }
    // A version from before the operator's rule does not come back above it.
    let globex = Tenant { admin: &admin, token: admin.token_of(&["tenant:initech"], None) };
    let form = |count: u64| json!({ "name": "initech/a", "tenantId": "initech", "maxRequests": count, "windowSeconds": 3600 });
    let made = globex.ask("POST", RULES, &form(900)).expect(201);
    let target = format!("{RULES}/{}", made["ruleId"].as_str().unwrap());
    globex.ask("PUT", &target, &form(100)).expect(200);
    admin.rule(&json!({ "name": "less", "tenantId": "initech", "maxRequests": 200, "windowSeconds": 3600 }));
    let told = globex.ask("POST", &format!("{target}/rollback"), &json!({ "version": 1 }));
    assert_eq!(told.problem(403, "forbidden"), "maxRequests");
    globex.ask("PUT", &target, &form(200)).expect(200);
    // It bans and boosts nobody beyond its own.
    let everywhere = json!({ "subject": "user:7" });
    let told = acme.ask("POST", "/v1/rate-limit/keys/ban", &everywhere);
    assert_eq!(told.problem(403, "forbidden"), "ruleId");
    let boost = json!({ "subject": "user:7", "factorPercent": 200 });
    acme.ask("POST", "/v1/rate-limit/keys/boost", &boost).problem(403, "forbidden");
    // A boost under its own sub-limit is the operator's gift, and not the tenant's to end.
    let made = acme.ask("POST", RULES, &sub(&json!({ "name": "acme/gift" }))).expect(201);
    let boost = json!({ "ruleId": made["ruleId"], "subject": "user:7", "factorPercent": 200 });
    let boost = admin.ask("POST", "/v1/rate-limit/keys/boost", &boost).expect(201);
    let target = format!("/v1/rate-limit/keys/{}", boost["keyId"]);
    acme.ask("DELETE", &target, &Value::Null).problem(404, "not_found");
}

/// A login rule of 5 an hour forbade every sub-limit above that, and the message named the rule.
#[test]
fn a_sub_limit_is_compared_only_with_rules_that_can_match_the_same_request() {
    let file = "rules:
      - { name: login_secret, match: { path: /login, method: POST }, per: [ip], limit: 5/h, priority: -5 }
      - { name: rest_secret, match: { path: /rest/x/** }, fallback: true, limit: 5/h }
      - { name: beta_secret, match: { beta: in }, limit: 5/h }
      - { name: jobs_secret, match: { path: /jobs }, algorithm: concurrency, limit: 2, lease: 30s }";
    let admin = AdminDaemon::open("related", file);
    let acme = Tenant { admin: &admin, token: admin.token_of(&["tenant:acme"], None) };
    let beta = |value: &str| json!({ "match": { "beta": value } });
    let fast = json!({ "maxRequests": 600, "windowSeconds": 60 });
    let merge = |parts: &[&Value]| {
        let fields = parts.iter().flat_map(|part| part.as_object().unwrap().clone());
        Value::Object(fields.collect())
    };
    let (path, method) = (
        |path: &str| json!({ "pathPattern": path }),
        |method: &str| json!({ "httpMethod": method }),
    );
    let table = [
        (merge(&[&path("/search"), &beta("out"), &fast]), None),
        (merge(&[&path("/login"), &method("GET"), &beta("out"), &fast]), None),
        (merge(&[&path("/log/**"), &beta("out"), &fast]), None),
        // Each of these may match a request of the operator's rule.
        (merge(&[&path("/search"), &fast]), Some("maxRequests")),
        (merge(&[&path("/search"), &beta("in"), &fast]), Some("maxRequests")),
        (merge(&[&path("/login"), &beta("out"), &fast]), Some("priority")),
        (
            merge(&[&path("/login"), &beta("out"), &fast, &json!({ "priority": -5 })]),
            Some("maxRequests"),
        ),
        (merge(&[&path("/{page}"), &beta("out")]), Some("priority")),
        (merge(&[&path("/rest/x/a"), &beta("out")]), Some("fallback")),
        (
            merge(&[
                &path("/jobs"),
                &beta("out"),
                &json!({ "algorithm": "concurrency", "maxRequests": 3, "lease": "30s", "windowSeconds": null }),
            ]),
            Some("maxRequests"),
        ),
    ];
    for (at, (more, refused)) in table.iter().enumerate() {
        let answer = acme.ask(
            "POST",
            RULES,
            &merge(&[&sub(more), &json!({ "name": format!("acme/{at}") })]),
        );
        match refused {
            None => assert_eq!(answer.status, 201, "{more}: {}", answer.body),
            Some(field) => {
                assert_eq!(answer.problem(403, "forbidden"), *field, "{more}");
                assert!(!answer.body.contains("secret"), "{more}: {}", answer.body);
            }
        }
    }
}

#[test]
fn a_sub_limit_does_not_keep_the_operators_fallback_from_applying() {
    let admin =
        AdminDaemon::open("fallback", "rules: [{ name: rest, fallback: true, limit: 1/day }]");
    let acme = Tenant { admin: &admin, token: admin.token_of(&["tenant:acme"], None) };
    let form = |more: Value| {
        sub(&json!({ "maxRequests": 1 })
            .as_object()
            .map(|fields| {
                let mut fields = fields.clone();
                fields.extend(more.as_object().unwrap().clone());
                Value::Object(fields)
            })
            .unwrap())
    };
    assert_eq!(acme.ask("POST", RULES, &form(json!({}))).problem(403, "forbidden"), "fallback");
    assert_eq!(check(&admin, "acme"), 200);
    acme.ask("POST", RULES, &form(json!({ "fallback": true }))).expect(201);
    assert_eq!(check(&admin, "acme"), 429, "the operator's rule still counts");
}

/// A limit on what is in flight voided every other limit of Envoy's calls: a tenant lifted the operator's by making one.
#[tokio::test]
async fn a_sub_limit_on_what_is_in_flight_leaves_the_operators_limit_over_envoy() {
    let rules = "rules: [{ name: per_tenant, per: [tenant], limit: 3/day }]";
    let admin = AdminDaemon::open("in-flight", rules);
    let acme = Tenant { admin: &admin, token: admin.token_of(&["tenant:acme"], None) };
    let form = json!({
        "name": "acme/jobs", "tenantId": "acme", "algorithm": "concurrency", "maxRequests": 1, "lease": "30s",
    });
    acme.ask("POST", RULES, &form).expect(201);
    let uri = format!("http://{}", admin.daemon.address("grpc"));
    let channel = Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
    let mut client = RateLimitServiceClient::new(channel);
    let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
    let entries = vec![entry("user", "7"), entry("tenant", "acme")];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    let call = RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend: 1 };
    let mut codes = Vec::new();
    for _ in 0..5 {
        let answer = client.should_rate_limit(call.clone()).await.unwrap().into_inner();
        codes.push(answer.overall_code());
    }
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit, Code::OverLimit]);
}

#[test]
fn a_tenant_has_room_for_so_many_and_no_more() {
    let rules = "rules: [{ name: a, match: { path: /a }, limit: 3000/s }]";
    let admin = AdminDaemon::open_with("room", rules, &["--tenant-writes", "1000/s"]);
    let acme = Tenant { admin: &admin, token: admin.token_of(&["tenant:acme"], None) };
    let form =
        |at: usize| sub(&json!({ "name": format!("acme/{at}"), "pathPattern": format!("/{at}") }));
    for at in 0..100 {
        acme.ask("POST", RULES, &form(at)).expect(201);
    }
    acme.ask("POST", RULES, &form(100)).problem(403, "forbidden");
    admin.rule(&form(100));
}

/// A tenant could delete and change every rule that was named after it, also those that the operator had made.
#[test]
fn a_tenant_changes_nothing_that_the_operator_made_for_it() {
    let admin = AdminDaemon::open("owner", FILE);
    let acme = Tenant { admin: &admin, token: admin.token_of(&["tenant:acme"], None) };
    // Who made a rule is not for its maker to say.
    let given = sub(&json!({ "name": "acme/given", "owner": "tenant:acme", "maxRequests": 4 }));
    let made = admin.ask("POST", RULES, &given).expect(201);
    assert_eq!(made["owner"], "operator");
    let given_id = made["ruleId"].as_str().unwrap();
    let target = format!("{RULES}/{given_id}");
    assert_eq!(acme.ask("GET", &target, &Value::Null).expect(200)["owner"], "operator");
    acme.ask("GET", &format!("{target}/history"), &Value::Null).expect(200);
    let exemption = json!({ "subjectType": "user", "subjectValue": "7" });
    let exempt = admin.ask("POST", &format!("{target}/exemptions"), &exemption).expect(201);
    let key = json!({ "ruleId": given_id, "subject": "user:8" });
    let ban = admin.ask("POST", "/v1/rate-limit/keys/ban", &key).expect(201);
    acme.ask("POST", "/v1/rate-limit/keys/peek", &key).expect(200);
    let other = json!({ "subjectType": "user", "subjectValue": "9" });
    let attempts = [
        ("PUT", target.clone(), sub(&json!({ "name": "acme/given" }))),
        ("PUT", format!("{target}?dryRun=true"), sub(&json!({ "name": "acme/given" }))),
        ("DELETE", target.clone(), Value::Null),
        ("DELETE", format!("{target}?dryRun=true"), Value::Null),
        ("POST", format!("{target}/rollback"), json!({ "version": 1 })),
        ("POST", format!("{target}/exemptions"), other),
        ("DELETE", format!("/v1/rate-limit/exemptions/{}", exempt["exemptionId"]), Value::Null),
        ("POST", "/v1/rate-limit/keys/reset".into(), key.clone()),
        ("POST", "/v1/rate-limit/keys/ban".into(), key),
        ("DELETE", format!("/v1/rate-limit/keys/{}", ban["keyId"]), Value::Null),
    ];
    for (method, target, body) in &attempts {
        let refused = acme.ask(method, target, body);
        refused.problem(403, "forbidden");
        let told = "rule `acme/given` belongs to the operator: ask the operator to change it";
        assert!(refused.body.contains(told), "{method} {target}: {}", refused.body);
    }
    // It bounds the tenant's own rules as the operator's other rules do, and may be named.
    let more = acme.ask("POST", RULES, &sub(&json!({ "maxRequests": 5 })));
    assert_eq!(more.problem(403, "forbidden"), "maxRequests");
    assert!(more.body.contains("rule `acme/given`"), "{}", more.body);

    // Its own rules stay its own, whatever becomes of them and whoever changes them.
    let own = acme.ask("POST", &format!("{RULES}?dryRun=true"), &sub(&json!({}))).expect(200);
    assert_eq!(own["rule"]["owner"], "tenant:acme");
    let own = acme.ask("POST", RULES, &sub(&json!({ "owner": "operator" }))).expect(201);
    assert_eq!(own["owner"], "tenant:acme");
    let target = format!("{RULES}/{}", own["ruleId"].as_str().unwrap());
    let renamed = sub(&json!({ "name": "acme/renamed", "maxRequests": 1 }));
    assert_eq!(acme.ask("PUT", &target, &renamed).expect(200)["owner"], "tenant:acme");
    let by_operator = sub(&json!({ "name": "acme/renamed", "priority": -1 }));
    assert_eq!(admin.ask_of("*", "PUT", &target, &by_operator).expect(200)["owner"], "tenant:acme");
    admin.ask_of("*", "DELETE", &target, &Value::Null).expect(204);
    let back = acme.ask("POST", &format!("{target}/rollback"), &json!({ "version": 1 }));
    assert_eq!(back.expect(200)["owner"], "tenant:acme");
    let history = admin.get(&format!("{target}/history"));
    let owners: Vec<&Value> = history["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| &change["after"]["owner"])
        .collect();
    assert_eq!(owners, vec![&json!("tenant:acme"); 5]);
    acme.ask("DELETE", &target, &Value::Null).expect(204);
    // A rule of the operator's that was deleted is not the tenant's to bring back.
    let target = format!("{RULES}/{given_id}");
    admin.ask_of("*", "DELETE", &target, &Value::Null).expect(204);
    acme.ask("POST", &format!("{target}/rollback"), &json!({ "version": 1 }))
        .problem(403, "forbidden");
}

#[test]
fn a_tenant_that_writes_too_often_is_told_when_to_write_again() {
    let admin = AdminDaemon::open_with("writes", FILE, &["--tenant-writes", "3/h"]);
    let acme = Tenant { admin: &admin, token: admin.token_of(&["tenant:acme"], None) };
    // Another token of the tenant has no writes of its own, and what is refused counts too.
    let second = Tenant { admin: &admin, token: admin.token_of(&["read", "tenant:acme"], None) };
    let globex = Tenant { admin: &admin, token: admin.token_of(&["tenant:globex"], None) };
    let made = acme.ask("POST", RULES, &sub(&json!({}))).expect(201);
    let target = format!("{RULES}/{}", made["ruleId"].as_str().unwrap());
    second.ask("POST", RULES, &sub(&json!({ "name": "elsewhere" }))).problem(403, "forbidden");
    acme.ask("PUT", &format!("{target}?dryRun=true"), &sub(&json!({}))).expect(200);
    let key = json!({ "ruleId": made["ruleId"], "subject": "user:7" });
    let exemption = json!({ "subjectType": "user", "subjectValue": "7" });
    for (method, target, body) in [
        ("POST", RULES.to_owned(), sub(&json!({ "name": "acme/b" }))),
        ("PUT", target.clone(), sub(&json!({}))),
        ("DELETE", target.clone(), Value::Null),
        ("POST", format!("{target}/rollback"), json!({ "version": 1 })),
        ("POST", format!("{target}/exemptions"), exemption),
        ("DELETE", "/v1/rate-limit/exemptions/1".to_owned(), Value::Null),
        ("POST", "/v1/rate-limit/keys/reset".to_owned(), key.clone()),
        ("POST", "/v1/rate-limit/keys/ban".to_owned(), key.clone()),
        ("DELETE", "/v1/rate-limit/keys/1".to_owned(), Value::Null),
    ] {
        let refused = acme.ask(method, &target, &body);
        refused.problem(429, "too_many_writes");
        let wait: u64 = refused.header("retry-after").parse().unwrap();
        // A sliding window counts the last hour too, so that a wait may be longer than one.
        assert!((1..=7_200).contains(&wait), "{method} {target}: {}", refused.head);
        assert_eq!(refused.header("x-ratelimit-limit"), "3", "{}", refused.head);
        assert_eq!(refused.header("x-ratelimit-remaining"), "0");
        assert!(refused.header("ratelimit").starts_with("\"tenant_writes\""), "{}", refused.head);
    }
    second.ask("POST", RULES, &sub(&json!({}))).problem(429, "too_many_writes");
    // Reading is free, and so are the writes of others.
    acme.ask("GET", &target, &Value::Null).expect(200);
    acme.ask("POST", "/v1/rate-limit/keys/peek", &key).expect(200);
    globex.ask("DELETE", "/v1/rate-limit/keys/1", &Value::Null).problem(404, "not_found");
    for count in 0..5 {
        admin.rule(
            &json!({ "name": format!("more_{count}"), "maxRequests": 9, "windowSeconds": 1 }),
        );
    }
}
