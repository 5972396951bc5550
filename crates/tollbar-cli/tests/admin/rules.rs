//! Rules are made, changed, tried out, put back and deleted, and what is answered is enforced.

use std::process::Command;

use serde_json::{Value, json};

use crate::admin_daemon::{AdminDaemon, RULES, first_token, send};
use crate::common::{Daemon, Scratch};

const FILE: &str = "rules: [{ name: in_file, match: { path: /file }, limit: 3/day }, { name: other, match: \
                    { path: /other, tenant: acme }, limit: 3/day }]";

#[test]
fn a_rule_is_enforced_when_it_is_answered_and_every_change_is_written_down() {
    let admin = AdminDaemon::open("life", FILE);
    let form =
        json!({ "name": "a", "pathPattern": "/a", "maxRequests": 2, "windowSeconds": 86400 });
    let made = admin.ask("POST", RULES, &form);
    let rule = made.expect(201);
    let id = rule["ruleId"].as_str().unwrap().to_owned();
    let target = format!("{RULES}/{id}");
    assert_eq!((made.header("location"), made.etag()), (target.as_str(), "\"1\"".to_owned()));
    assert_eq!(rule["source"], "database");
    let checks = |count: usize| (0..count).map(|_| admin.check("/a", "7")).collect::<Vec<u16>>();
    assert_eq!(checks(3), [200, 200, 429]);

    // What a GET gave can be changed and sent back; counters go on.
    let mut changed = admin.get(&target);
    changed["maxRequests"] = json!(3);
    changed["name"] = json!("renamed");
    admin.ask("PUT", &target, &changed).problem(428, "precondition_required");
    admin.ask_of("\"2\"", "PUT", &target, &changed).problem(412, "conflict");
    let put = admin.ask_of("\"1\"", "PUT", &target, &changed);
    assert_eq!((put.expect(200)["version"].clone(), put.etag()), (json!(2), "\"2\"".to_owned()));
    admin.ask_of("\"1\"", "PUT", &target, &changed).problem(412, "conflict");
    assert_eq!(checks(2), [200, 429]);

    // Back to the first version, which is a third one.
    let back = format!("{target}/rollback");
    admin.ask("POST", &back, &json!({ "version": 1 })).problem(428, "precondition_required");
    admin.ask_of("\"2\"", "POST", &back, &json!({ "version": 9 })).problem(404, "not_found");
    let rolled = admin.ask_of("\"2\"", "POST", &back, &json!({ "version": 1 })).expect(200);
    assert_eq!((&rolled["version"], &rolled["name"]), (&json!(3), &json!("a")));
    assert_eq!(admin.check("/a", "8"), 200);

    admin.ask("DELETE", &target, &Value::Null).problem(428, "precondition_required");
    admin.ask_of("\"2\"", "DELETE", &target, &Value::Null).problem(412, "conflict");
    admin.ask_of("\"3\"", "DELETE", &target, &Value::Null).expect(204);
    admin.ask("GET", &target, &Value::Null).problem(404, "not_found");
    assert_eq!(checks(2), [200, 200], "nothing limits /a any more");

    // One that is deleted comes back, and so does its counter.
    let history = admin.get(&format!("{target}/history"));
    let actions: Vec<&str> = history["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["action"].as_str().unwrap())
        .collect();
    assert_eq!(actions, ["delete", "update", "update", "insert"]);
    let last = history["items"][0]["version"].as_u64().unwrap();
    let revived = admin.ask_of(&format!("\"{last}\""), "POST", &back, &json!({ "version": 2 }));
    assert_eq!(revived.expect(200)["name"], "renamed");
    assert_eq!(checks(1), [429]);

    let audit = admin.get(&format!("/v1/rate-limit/audit?ruleId={id}"));
    let written = audit["items"].as_array().unwrap();
    assert_eq!(written.len(), 5);
    assert!(written.iter().all(|entry| entry["actor"] == "token:1 first"), "{audit}");
    assert_eq!(
        (&written[4]["before"], &written[4]["after"]["maxRequests"]),
        (&Value::Null, &json!(2))
    );
    assert_eq!(written[3]["before"]["name"], "a");
    assert_eq!(admin.daemon.stop(), 0);
}

#[test]
fn rules_of_the_file_are_seen_and_not_changed() {
    let admin = AdminDaemon::open("file", FILE);
    let target = format!("{RULES}/in_file");
    let rule = admin.get(&target);
    assert_eq!((&rule["source"], &rule["version"]), (&json!("file"), &Value::Null));
    let before = admin.get("/v1/rate-limit/audit");
    let form = json!({ "name": "in_file", "maxRequests": 9, "windowSeconds": 1 });
    admin.ask_of("*", "PUT", &target, &form).problem(403, "read_only");
    admin.ask_of("*", "DELETE", &target, &Value::Null).problem(403, "read_only");
    let back = json!({ "version": 1 });
    admin.ask_of("*", "POST", &format!("{target}/rollback"), &back).problem(403, "read_only");
    let exemption = json!({ "subjectType": "user", "subjectValue": "7" });
    admin.ask("POST", &format!("{target}/exemptions"), &exemption).problem(403, "read_only");
    admin.ask("POST", RULES, &form).problem(409, "exists");
    assert_eq!(admin.get("/v1/rate-limit/audit"), before, "nothing was changed");
}

#[test]
fn a_list_has_every_rule_once_whatever_the_size_of_its_pages() {
    let admin = AdminDaemon::open("pages", FILE);
    for at in 0..4 {
        let tenant = (at % 2 == 0).then_some("acme");
        admin.rule(&json!({
            "name": format!("r{at}"), "tenantId": tenant, "match": { "plan": format!("p{at}") },
            "maxRequests": 1, "windowSeconds": 1, "enabled": at != 3,
        }));
    }
    let walk = |filter: &str, limit: u32| {
        let mut names = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = admin.get(&format!("{RULES}?limit={limit}{filter}{cursor}"));
            let items = page["items"].as_array().unwrap();
            assert!(items.len() <= limit as usize);
            names.extend(items.iter().map(|rule| rule["name"].as_str().unwrap().to_owned()));
            match page["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return names,
            }
        }
    };
    for limit in 1..=7 {
        assert_eq!(walk("", limit), ["in_file", "other", "r0", "r1", "r2", "r3"], "by {limit}");
        assert_eq!(walk("&tenant=acme", limit), ["other", "r0", "r2"]);
        assert_eq!(walk("&enabled=false", limit), ["r3"]);
        assert_eq!(walk("&scope=endpoint", limit), ["in_file", "other"]);
        assert_eq!(walk("&scope=tenant&enabled=true", limit), ["r0", "r2"]);
        assert_eq!(walk("&name=r1", limit), ["r1"]);
    }
    for cursor in ["x", "f", "f-1", "dx", "d'", "%00"] {
        let told = admin.ask("GET", &format!("{RULES}?cursor={cursor}"), &Value::Null);
        assert_eq!(told.problem(400, "bad_request"), "cursor", "{cursor}");
    }
}

#[test]
fn a_dry_run_tells_what_would_be_and_changes_nothing() {
    let admin = AdminDaemon::open("dry", FILE);
    let mut form = json!({
        "name": "d", "pathPattern": "/d", "algorithm": "fixed_window", "maxRequests": 5, "windowSeconds": 86400,
    });
    let dry = admin.ask("POST", &format!("{RULES}?dryRun=true"), &form).expect(200);
    assert_eq!((&dry["dryRun"], &dry["diff"]["added"]), (&json!(true), &json!(["d"])));
    let id = admin.rule(&form);
    let target = format!("{RULES}/{id}");
    // One has used up its five, so that it is known to be limited; another has used two of five.
    for _ in 0..6 {
        admin.check("/d", "gone");
    }
    admin.check("/d", "near");
    admin.check("/d", "near");
    form["maxRequests"] = json!(2);
    let reset = json!({ "ruleId": id, "subject": "user:gone" });
    admin.ask("POST", "/v1/rate-limit/keys/reset", &reset).expect(200);
    for _ in 0..3 {
        admin.check("/d", "gone");
    }
    let audit = admin.get("/v1/rate-limit/audit");
    let dry = admin.ask_of("\"1\"", "PUT", &format!("{target}?dryRun=true"), &form).expect(200);
    assert_eq!(
        dry["diff"]["changed"],
        json!([{ "rule": "d", "fields": ["maxRequests"], "startsFresh": [] }])
    );
    let denied: Vec<&Value> =
        dry["newlyDenied"].as_array().unwrap().iter().map(|denial| &denial["subject"]).collect();
    assert!(denied.contains(&&json!("user:gone")), "{dry}");
    assert!(dry["examinedKeys"].as_u64() >= Some(1));
    assert_eq!(dry["rule"]["maxRequests"], 2);
    admin.ask_of("\"7\"", "PUT", &format!("{target}?dryRun=true"), &form).problem(412, "conflict");
    let dry =
        admin.ask_of("*", "DELETE", &format!("{target}?dryRun=true"), &Value::Null).expect(200);
    assert_eq!((&dry["diff"]["removed"], &dry["rule"]), (&json!(["d"]), &Value::Null));
    assert_eq!(admin.get("/v1/rate-limit/audit"), audit);
    assert_eq!(admin.get(&target)["maxRequests"], 5);
    assert_eq!(admin.check("/d", "gone"), 200, "nothing was changed or charged");
}

/// A row that somebody wrote by hand could neither be seen nor repaired but by hand.
#[test]
fn a_row_that_is_no_rule_is_repaired_by_a_put_and_removed_by_a_delete() {
    let admin = AdminDaemon::open("broken", FILE);
    let by_hand = rusqlite::Connection::open(&admin.database).unwrap();
    let uuid = |last: u8| format!("00000000-0000-4000-8000-00000000000{last}");
    for (id, spec, version) in [
        (&*uuid(1), json!({ "name": "no_limit", "limit": "many" }), 1),
        (&*uuid(2), json!({ "name": "unknown_field", "limit": "1/s", "speed": 9 }), 4),
        ("nonsense", json!({ "name": "no_id", "limit": "1/s" }), 1),
        (&*uuid(3), json!({ "name": "no_version", "limit": "1/s" }), -7),
    ] {
        let statement =
            "INSERT INTO rate_limit_rules (rule_uuid, spec, version) VALUES (?1, ?2, ?3)";
        by_hand.execute(statement, (id, spec.to_string(), version)).unwrap();
    }
    let rule =
        |name: &str| json!({ "name": name, "pathPattern": format!("/{name}"), "limit": "2/day" });
    let target = |named: &str| format!("{RULES}/{named}");
    let told = admin.ask("GET", &target(&uuid(1)), &Value::Null);
    told.problem(409, "broken_rule");
    let told = told.expect(409);
    let detail = told["detail"].as_str().unwrap();
    assert!(detail.contains("send a rule by PUT to repair it"), "{detail}");
    let listed = admin.get(RULES)["items"].as_array().unwrap().len();
    assert_eq!(listed, 2, "a row that is no rule is in no list");

    // By its id, of the version that it has; what is sent has to be a rule itself.
    let (first, second) = (target(&uuid(1)), target(&uuid(2)));
    admin.ask_of("\"2\"", "PUT", &first, &rule("repaired")).problem(412, "conflict");
    let wrong = json!({ "name": "repaired" });
    admin.ask_of("*", "PUT", &first, &wrong).problem(422, "invalid");
    admin.ask_of("*", "PUT", &first, &rule("in_file")).problem(409, "exists");
    let dry = admin.ask_of("*", "PUT", &format!("{first}?dryRun=true"), &rule("repaired"));
    assert_eq!(dry.expect(200)["diff"]["added"], json!(["repaired"]));
    let repaired = admin.ask_of("\"1\"", "PUT", &first, &rule("repaired")).expect(200);
    assert_eq!((&repaired["ruleId"], &repaired["version"]), (&json!(uuid(1)), &json!(2)));
    let checks = [(); 3].map(|()| admin.check("/repaired", "7"));
    assert_eq!(checks, [200, 200, 429], "it is enforced");
    let history = admin.get(&format!("{first}/history"));
    assert_eq!(history["items"][0]["before"]["limit"], "many");
    assert_eq!(history["items"][0]["after"]["name"], "repaired");

    // By its name, where its id is none; it gets one.
    let named = admin.ask_of("*", "PUT", &target("no_id"), &rule("named")).expect(200);
    assert_eq!(named["ruleId"].as_str().unwrap().len(), 36, "{named}");
    assert_eq!(admin.get(&target(named["ruleId"].as_str().unwrap()))["name"], "named");

    // A tenant sees nothing of it.
    let tenant = admin.token_of(&["tenant:acme"], None);
    let lines = "if-match: *\r\n";
    admin.ask_as(&tenant, "DELETE", &second, lines, &Value::Null).problem(404, "not_found");

    admin.ask_of("\"9\"", "DELETE", &second, &Value::Null).problem(412, "conflict");
    admin.ask_of("*", "DELETE", &format!("{second}?dryRun=true"), &Value::Null).expect(200);
    admin.ask_of("\"4\"", "DELETE", &second, &Value::Null).expect(204);
    admin.ask_of("*", "DELETE", &second, &Value::Null).problem(404, "not_found");
    admin.ask_of("*", "DELETE", &target("no_version"), &Value::Null).expect(204);
    let audit = admin.get("/v1/rate-limit/audit")["items"].clone();
    assert_eq!((&audit[0]["action"], &audit[1]["version"]), (&json!("delete"), &json!(5)));
    assert_eq!(audit[1]["before"]["speed"], 9);
    let left: u32 = by_hand
        .query_row("SELECT count(*) FROM rate_limit_rules WHERE deleted_at IS NULL", (), |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(left, 2);
}

#[test]
fn a_rule_that_does_not_fit_with_the_others_is_refused_with_its_field() {
    let admin = AdminDaemon::open("fit", FILE);
    let rule = |more: Value| {
        let mut form = json!({ "name": "x", "maxRequests": 1, "windowSeconds": 1 });
        form.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        form
    };
    for (form, field) in [
        (rule(json!({ "replaces": ["nosuch"] })), "replaces"),
        (rule(json!({ "cost": 5 })), "cost"),
        (rule(json!({ "name": "" })), "name"),
        (rule(json!({ "name": "a b" })), "name"),
        (rule(json!({ "id": "in_file" })), "id"),
        (rule(json!({ "maxReqests": 1 })), "maxReqests"),
        (rule(json!({ "maxRequests": 0 })), "maxRequests"),
        (rule(json!({ "maxRequests": -1 })), "maxRequests"),
        (rule(json!({ "maxRequests": 1.5 })), "maxRequests"),
        (rule(json!({ "maxRequests": "1" })), "maxRequests"),
        (rule(json!({ "maxRequests": u64::MAX })), "maxRequests"),
        (rule(json!({ "windowSeconds": 0 })), "windowSeconds"),
        (rule(json!({ "priority": 3_000_000_000_u64 })), "priority"),
        (rule(json!({ "enabled": "yes" })), "enabled"),
        (rule(json!({ "scope": "planet" })), "scope"),
        (rule(json!({ "scope": "tenant" })), "tenantId"),
        (rule(json!({ "pathPattern": "no slash" })), "pathPattern"),
        (json!({ "name": "jobs", "algorithm": "concurrency", "maxRequests": 1 }), "lease"),
    ] {
        let told = admin.ask("POST", RULES, &form);
        assert_eq!(told.problem(422, "invalid"), field, "{form}");
    }
    assert_eq!(admin.get(&format!("{RULES}?limit=1000"))["items"].as_array().unwrap().len(), 2);
}

#[test]
fn an_exemption_is_enforced_and_ends() {
    let admin = AdminDaemon::open("exempt", FILE);
    let form =
        json!({ "name": "e", "pathPattern": "/e", "maxRequests": 1, "windowSeconds": 86400 });
    let id = admin.rule(&form);
    assert_eq!((admin.check("/e", "7"), admin.check("/e", "7")), (200, 429));
    let target = format!("{RULES}/{id}/exemptions");
    let exemption = json!({ "subjectType": "user", "subjectValue": "7", "reason": "ours" });
    let made = admin.ask("POST", &target, &exemption).expect(201);
    assert_eq!(admin.check("/e", "7"), 200);
    admin.ask("POST", &target, &exemption).problem(409, "exists");
    let past = json!({ "subjectType": "user", "subjectValue": "8", "expiresAt": "2020-01-01" });
    assert_eq!(admin.ask("POST", &target, &past).problem(422, "invalid"), "expiresAt");
    let block = json!({ "subjectType": "ip_cidr", "subjectValue": "10.0.0.0/99" });
    assert_eq!(admin.ask("POST", &target, &block).problem(422, "invalid"), "subjectValue");
    assert_eq!(admin.get(&target)["items"][0], made);
    assert_eq!(admin.get("/v1/rate-limit/exemptions")["items"].as_array().unwrap().len(), 1);
    let one = format!("/v1/rate-limit/exemptions/{}", made["exemptionId"]);
    admin.ask("DELETE", &one, &Value::Null).expect(204);
    admin.ask("DELETE", &one, &Value::Null).problem(404, "not_found");
    assert_eq!(admin.check("/e", "7"), 429);
}

/// 50 of 50 requests passed: a rule of the file had the name, and the API listed the other one as enabled.
#[test]
fn a_rule_that_is_not_in_force_is_shown_so_wherever_one_looks() {
    let admin = AdminDaemon::open("unfit", FILE);
    let taken = json!({ "name": "in_file", "maxRequests": 1, "windowSeconds": 60 });
    admin.ask("POST", RULES, &taken).problem(409, "exists");
    let form =
        json!({ "name": "late", "pathPattern": "/late", "maxRequests": 1, "windowSeconds": 60 });
    let target = format!("{RULES}/{}", admin.rule(&form));
    assert_eq!(admin.get(&target)["notInForce"], Value::Null);

    // The file gets a rule of that name afterwards.
    let AdminDaemon { daemon, token, database, scratch } = admin;
    assert_eq!(daemon.stop(), 0);
    let rules =
        scratch.file("rules.yaml", "rules: [{ name: late, match: { path: /x }, limit: 3/day }]");
    let mut daemon = Daemon::start_logged(&["--rules", &rules, "--database", &database]);
    let logged = daemon.logged("a row of the database is not enforced");
    assert!(
        logged.contains("late") && logged.contains("the file has a rule of that name"),
        "{logged}"
    );
    let admin = AdminDaemon { daemon, token, database, scratch };
    let rule = admin.get(&target);
    let why = rule["notInForce"].as_str().expect("it says why");
    assert!(why.starts_with("the file has a rule of that name"), "{why}");
    assert_eq!(rule["enabled"], true);
    let listed = admin.get(&format!("{RULES}?name=late"));
    let items = listed["items"].as_array().unwrap();
    let states: Vec<bool> = items.iter().map(|item| item["notInForce"].is_null()).collect();
    assert_eq!(states, [true, false], "the file's rule is in force, and the other is not");
    assert_eq!(admin.send("GET", "/healthz", "", b"").expect(200)["notInForce"], 1);
    let health = admin.daemon.get_with("/healthz", "");
    assert!(health.contains("degraded"), "{health}");

    let output = Command::new(env!("CARGO_BIN_EXE_tollbar"))
        .args(["rules", "list", "--server", &format!("http://{}", admin.daemon.address("admin"))])
        .env("TOLLBAR_TOKEN", &admin.token)
        .output()
        .unwrap();
    let [shown, told] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(shown.contains("not in force"), "{shown}");
    assert!(
        told.contains("error: rule `late` is enabled and not in force: the file has"),
        "{told}"
    );

    // What does not fit can be mended: under another name it is in force.
    let mut renamed = rule;
    renamed["name"] = json!("later");
    let put = admin.ask_of("\"1\"", "PUT", &target, &renamed).expect(200);
    assert_eq!((&put["notInForce"], &put["warnings"]), (&Value::Null, &json!([])));
    assert_eq!((admin.check("/late", "1"), admin.check("/late", "1")), (200, 429));
    assert_eq!(admin.send("GET", "/healthz", "", b"").expect(200)["notInForce"], 0);
}

/// Rules of a file were warned of, and those of a database were not.
#[test]
fn a_rule_of_the_database_has_the_warnings_that_one_of_a_file_has() {
    let admin = AdminDaemon::open("warned", "rules: []");
    let form =
        json!({ "name": "free", "maxRequests": 5, "windowSeconds": 60, "cost": 0, "per": ["usr"] });
    let dry = admin.ask("POST", &format!("{RULES}?dryRun=true"), &form).expect(200);
    let made = admin.ask("POST", RULES, &form).expect(201);
    let listed = admin.get(RULES);
    for rule in [&dry["rule"], &made, &listed["items"][0]] {
        let warnings = rule["warnings"].as_array().unwrap();
        let fields: Vec<&str> =
            warnings.iter().map(|warning| warning["field"].as_str().unwrap()).collect();
        assert_eq!(fields, ["per", "cost"], "{rule}");
        assert!(warnings[0]["message"].as_str().unwrap().contains("if you meant `user`"), "{rule}");
    }
    let AdminDaemon { daemon, database, scratch, .. } = admin;
    assert_eq!(daemon.stop(), 0);
    let rules = scratch.path("rules.yaml");
    let mut daemon = Daemon::start_logged(&["--rules", &rules, "--database", &database]);
    let logged = daemon.logged("a rule of the database");
    assert!(logged.contains("free") && logged.contains("usr"), "{logged}");
    let idle = daemon.logged("nothing is limited");
    assert!(idle.contains("of 1 rule, 1 is unlimited or free of cost"), "{idle}");
}

/// Only a file's rules were looked at, before the database was open: nothing told that Envoy is not limited by this one.
#[test]
fn what_has_no_effect_in_a_rule_of_the_database_is_warned_of_once() {
    let scratch = Scratch::new("admin-idle-fields");
    let args = ["--database", &scratch.path("rules.sqlite")];
    let mut daemon = Daemon::start_logged(&args);
    let token = first_token(&daemon).unwrap();
    daemon.logged("serving");
    let mut warnings_of = |name: &str| {
        let form = json!({
            "name": name, "algorithm": "concurrency", "maxRequests": 1, "lease": "30s", "onStoreFailure": "deny",
        });
        let lines = format!("authorization: Bearer {token}\r\n");
        let body = form.to_string();
        send(daemon.address("admin"), "POST", RULES, &lines, body.as_bytes()).expect(201);
        ["`on_store_failure` has no effect", "do not apply to its calls"]
            .map(|part| daemon.logged(part))
    };
    for name in ["jobs", "uploads"] {
        for line in warnings_of(name) {
            let expected = format!("rules=\"{name}\"");
            assert!(line.contains(" WARN ") && line.ends_with(&expected), "{line}");
        }
    }
    assert_eq!(daemon.stop(), 0);
    // A start finds them in the database.
    let mut daemon = Daemon::start_logged(&args);
    let line = daemon.logged("do not apply to its calls");
    assert!(line.contains("jobs") && line.contains("uploads"), "{line}");
}

#[test]
fn the_bounds_of_a_rule_are_numbers_or_unbounded() {
    let file = "rules: [{ name: in_file, match: { path: /file }, limit: 60/min, burst: 9 }]";
    let admin = AdminDaemon::open("bounds", file);
    let in_file = admin.get(&format!("{RULES}/in_file/bounds?over=2s"));
    let interval = json!({
        "lengthUs": 2_000_000,
        "answering": { "most": 11, "least": 1 },
        "unreachable": { "most": "unbounded", "least": "unbounded" },
    });
    assert_eq!(in_file["limits"][0]["intervals"], json!([interval]));
    let form = json!({ "name": "a", "maxRequests": 2, "windowSeconds": 1, "accuracy": "exact" });
    let id = admin.ask("POST", RULES, &form).expect(201)["ruleId"].as_str().unwrap().to_owned();
    let bounds = &admin.get(&format!("{RULES}/{id}/bounds"))["limits"][0];
    assert_eq!((&bounds["rule"], &bounds["limitText"]), (&json!("a"), &json!("2/s")));
    assert_eq!(bounds["accuracy"]["mode"], "exact");
    assert_eq!(bounds["intervals"].as_array().unwrap().len(), 3, "by default three");
    let wrong = format!("{RULES}/{id}/bounds?over=1m");
    admin.ask("GET", &wrong, &json!(null)).problem(400, "bad_request");
    admin.ask("GET", &format!("{RULES}/nobody/bounds"), &json!(null)).problem(404, "not_found");
}

#[test]
fn an_accuracy_that_a_rule_cannot_have_is_told_at_its_field() {
    let admin = AdminDaemon::open("accuracy", "nodes: 4\nrules: []");
    let form = |max_requests: u64, accuracy: &str| json!({ "name": "a", "maxRequests": max_requests, "windowSeconds": 60, "accuracy": accuracy });
    for (form, part) in [
        (form(9, "conservative(0%)"), "`0%` is no share of the burst"),
        (form(9, "local(0)"), "`0` is no number of nodes"),
        (form(3, "local"), "leaves less than a token for each of 4 nodes"),
        (form(3, "optimistic"), "a limit of 3 is too small to lend from"),
    ] {
        let told = admin.ask("POST", RULES, &form);
        assert_eq!(told.problem(422, "invalid"), "accuracy", "{form}");
        let detail = &told.expect(422)["errors"][0]["detail"];
        assert!(detail.as_str().unwrap().contains(part), "{detail}");
    }
    let made = admin.ask("POST", RULES, &form(9, "conservative"));
    assert_eq!(made.expect(201)["accuracy"], "conservative(5%)");
}

/// A rule that replaced one which was disabled was dropped, and limited nobody.
#[test]
fn a_rule_stays_in_force_when_the_one_it_replaces_is_not() {
    let admin = AdminDaemon::open("void", "rules: []");
    let form = |name: &str, path: &str| {
        json!({
            "name": name, "pathPattern": path, "maxRequests": 1, "windowSeconds": 86400,
        })
    };
    let old = admin.rule(&form("old", "/**"));
    let mut new = form("new", "/new");
    new["replaces"] = json!(["old"]);
    let new = format!("{RULES}/{}", admin.rule(&new));
    let target = format!("{RULES}/{old}");
    // It cannot be deleted while it is named; its dry run says the same.
    for dry in ["", "?dryRun=true"] {
        let gone = admin.ask_of("*", "DELETE", &format!("{target}{dry}"), &Value::Null);
        assert_eq!(gone.status, 422, "{}", gone.body);
    }
    let mut disabled = admin.get(&target);
    disabled["enabled"] = json!(false);
    admin.ask_of("*", "PUT", &target, &disabled).expect(200);
    assert_eq!((admin.check("/new", "1"), admin.check("/new", "1")), (200, 429));
    let rule = admin.get(&new);
    assert_eq!(rule["notInForce"], Value::Null);
    assert_eq!(rule["warnings"][0]["field"], "replaces");
    // Enabled again, it is replaced again.
    disabled["enabled"] = json!(true);
    admin.ask_of("*", "PUT", &target, &disabled).expect(200);
    assert_eq!(admin.get(&new)["warnings"], json!([]));
    assert_eq!((admin.check("/new", "2"), admin.check("/else", "2")), (200, 200));
}
