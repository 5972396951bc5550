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
    let admin =
        AdminDaemon::open("room", "rules: [{ name: a, match: { path: /a }, limit: 3000/s }]");
    let acme = Tenant { admin: &admin, token: admin.token_of(&["tenant:acme"], None) };
    let form =
        |at: usize| sub(&json!({ "name": format!("acme/{at}"), "pathPattern": format!("/{at}") }));
    for at in 0..100 {
        acme.ask("POST", RULES, &form(at)).expect(201);
    }
    acme.ask("POST", RULES, &form(100)).problem(403, "forbidden");
    admin.rule(&form(100));
}
