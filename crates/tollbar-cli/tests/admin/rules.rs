//! Rules are made, changed, tried out, put back and deleted, and what is answered is enforced.

use serde_json::{Value, json};

use crate::office::{Office, RULES};

const FILE: &str = "rules: [{ name: in_file, match: { path: /file }, limit: 3/day }, { name: other, match: \
                    { path: /other, tenant: acme }, limit: 3/day }]";

#[test]
fn a_rule_is_enforced_when_it_is_answered_and_every_change_is_written_down() {
    let office = Office::open("life", FILE);
    let form =
        json!({ "name": "a", "pathPattern": "/a", "maxRequests": 2, "windowSeconds": 86400 });
    let made = office.ask("POST", RULES, &form);
    let rule = made.expect(201);
    let id = rule["ruleId"].as_str().unwrap().to_owned();
    let target = format!("{RULES}/{id}");
    assert_eq!((made.header("location"), made.etag()), (target.as_str(), "\"1\"".to_owned()));
    assert_eq!(rule["source"], "database");
    let checks = |count: usize| (0..count).map(|_| office.check("/a", "7")).collect::<Vec<u16>>();
    assert_eq!(checks(3), [200, 200, 429]);

    // What a GET gave can be changed and sent back; counters go on.
    let mut changed = office.get(&target);
    changed["maxRequests"] = json!(3);
    changed["name"] = json!("renamed");
    office.ask("PUT", &target, &changed).problem(428, "precondition_required");
    office.ask_of("\"2\"", "PUT", &target, &changed).problem(412, "conflict");
    let put = office.ask_of("\"1\"", "PUT", &target, &changed);
    assert_eq!((put.expect(200)["version"].clone(), put.etag()), (json!(2), "\"2\"".to_owned()));
    office.ask_of("\"1\"", "PUT", &target, &changed).problem(412, "conflict");
    assert_eq!(checks(2), [200, 429]);

    // Back to the first version, which is a third one.
    let back = format!("{target}/rollback");
    office.ask("POST", &back, &json!({ "version": 1 })).problem(428, "precondition_required");
    office.ask_of("\"2\"", "POST", &back, &json!({ "version": 9 })).problem(404, "not_found");
    let rolled = office.ask_of("\"2\"", "POST", &back, &json!({ "version": 1 })).expect(200);
    assert_eq!((&rolled["version"], &rolled["name"]), (&json!(3), &json!("a")));
    assert_eq!(office.check("/a", "8"), 200);

    office.ask("DELETE", &target, &Value::Null).problem(428, "precondition_required");
    office.ask_of("\"2\"", "DELETE", &target, &Value::Null).problem(412, "conflict");
    office.ask_of("\"3\"", "DELETE", &target, &Value::Null).expect(204);
    office.ask("GET", &target, &Value::Null).problem(404, "not_found");
    assert_eq!(checks(2), [200, 200], "nothing limits /a any more");

    // One that is deleted comes back, and so does its counter.
    let history = office.get(&format!("{target}/history"));
    let actions: Vec<&str> = history["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["action"].as_str().unwrap())
        .collect();
    assert_eq!(actions, ["delete", "update", "update", "insert"]);
    let last = history["items"][0]["version"].as_u64().unwrap();
    let revived = office.ask_of(&format!("\"{last}\""), "POST", &back, &json!({ "version": 2 }));
    assert_eq!(revived.expect(200)["name"], "renamed");
    assert_eq!(checks(1), [429]);

    let audit = office.get(&format!("/v1/rate-limit/audit?ruleId={id}"));
    let written = audit["items"].as_array().unwrap();
    assert_eq!(written.len(), 5);
    assert!(written.iter().all(|it| it["actor"] == "token:1 first"), "{audit}");
    assert_eq!(
        (&written[4]["before"], &written[4]["after"]["maxRequests"]),
        (&Value::Null, &json!(2))
    );
    assert_eq!(written[3]["before"]["name"], "a");
    assert_eq!(office.daemon.stop(), 0);
}

#[test]
fn rules_of_the_file_are_seen_and_not_changed() {
    let office = Office::open("file", FILE);
    let target = format!("{RULES}/in_file");
    let rule = office.get(&target);
    assert_eq!((&rule["source"], &rule["version"]), (&json!("file"), &Value::Null));
    let before = office.get("/v1/rate-limit/audit");
    let form = json!({ "name": "in_file", "maxRequests": 9, "windowSeconds": 1 });
    office.ask_of("*", "PUT", &target, &form).problem(403, "read_only");
    office.ask_of("*", "DELETE", &target, &Value::Null).problem(403, "read_only");
    let back = json!({ "version": 1 });
    office.ask_of("*", "POST", &format!("{target}/rollback"), &back).problem(403, "read_only");
    let exemption = json!({ "subjectType": "user", "subjectValue": "7" });
    office.ask("POST", &format!("{target}/exemptions"), &exemption).problem(403, "read_only");
    office.ask("POST", RULES, &form).problem(409, "exists");
    assert_eq!(office.get("/v1/rate-limit/audit"), before, "nothing was changed");
}

#[test]
fn a_list_has_every_rule_once_whatever_the_size_of_its_pages() {
    let office = Office::open("pages", FILE);
    for at in 0..4 {
        let tenant = (at % 2 == 0).then_some("acme");
        office.rule(&json!({
            "name": format!("r{at}"), "tenantId": tenant, "match": { "plan": format!("p{at}") },
            "maxRequests": 1, "windowSeconds": 1, "enabled": at != 3,
        }));
    }
    let walk = |filter: &str, limit: u32| {
        let mut names = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = office.get(&format!("{RULES}?limit={limit}{filter}{cursor}"));
            let items = page["items"].as_array().unwrap();
            assert!(items.len() <= limit as usize);
            names.extend(items.iter().map(|it| it["name"].as_str().unwrap().to_owned()));
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
        let told = office.ask("GET", &format!("{RULES}?cursor={cursor}"), &Value::Null);
        assert_eq!(told.problem(400, "bad_request"), "cursor", "{cursor}");
    }
}

#[test]
fn a_dry_run_tells_what_would_be_and_changes_nothing() {
    let office = Office::open("dry", FILE);
    let mut form = json!({
        "name": "d", "pathPattern": "/d", "algorithm": "fixed_window", "maxRequests": 5, "windowSeconds": 86400,
    });
    let dry = office.ask("POST", &format!("{RULES}?dryRun=true"), &form).expect(200);
    assert_eq!((&dry["dryRun"], &dry["diff"]["added"]), (&json!(true), &json!(["d"])));
    let id = office.rule(&form);
    let target = format!("{RULES}/{id}");
    // One has used up its five, so that it is known to be limited; another has used two of five.
    for _ in 0..6 {
        office.check("/d", "gone");
    }
    office.check("/d", "near");
    office.check("/d", "near");
    form["maxRequests"] = json!(2);
    let reset = json!({ "ruleId": id, "subject": "user:gone" });
    office.ask("POST", "/v1/rate-limit/keys/reset", &reset).expect(200);
    for _ in 0..3 {
        office.check("/d", "gone");
    }
    let audit = office.get("/v1/rate-limit/audit");
    let dry = office.ask_of("\"1\"", "PUT", &format!("{target}?dryRun=true"), &form).expect(200);
    assert_eq!(
        dry["diff"]["changed"],
        json!([{ "rule": "d", "fields": ["maxRequests"], "startsFresh": [] }])
    );
    let denied: Vec<&Value> =
        dry["newlyDenied"].as_array().unwrap().iter().map(|it| &it["subject"]).collect();
    assert!(denied.contains(&&json!("user:gone")), "{dry}");
    assert!(dry["examinedKeys"].as_u64() >= Some(1));
    assert_eq!(dry["rule"]["maxRequests"], 2);
    office.ask_of("\"7\"", "PUT", &format!("{target}?dryRun=true"), &form).problem(412, "conflict");
    let dry =
        office.ask_of("*", "DELETE", &format!("{target}?dryRun=true"), &Value::Null).expect(200);
    assert_eq!((&dry["diff"]["removed"], &dry["rule"]), (&json!(["d"]), &Value::Null));
    assert_eq!(office.get("/v1/rate-limit/audit"), audit);
    assert_eq!(office.get(&target)["maxRequests"], 5);
    assert_eq!(office.check("/d", "gone"), 200, "nothing was changed or charged");
}

/// A row that somebody wrote by hand could neither be seen nor repaired but by hand.
#[test]
fn a_row_that_is_no_rule_is_repaired_by_a_put_and_removed_by_a_delete() {
    let office = Office::open("broken", FILE);
    let by_hand = rusqlite::Connection::open(&office.database).unwrap();
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
    let told = office.ask("GET", &target(&uuid(1)), &Value::Null);
    told.problem(409, "broken_rule");
    let told = told.expect(409);
    let detail = told["detail"].as_str().unwrap();
    assert!(detail.contains("send a rule by PUT to repair it"), "{detail}");
    let listed = office.get(RULES)["items"].as_array().unwrap().len();
    assert_eq!(listed, 2, "a row that is no rule is in no list");

    // By its id, of the version that it has; what is sent has to be a rule itself.
    let (first, second) = (target(&uuid(1)), target(&uuid(2)));
    office.ask_of("\"2\"", "PUT", &first, &rule("repaired")).problem(412, "conflict");
    let wrong = json!({ "name": "repaired" });
    office.ask_of("*", "PUT", &first, &wrong).problem(422, "invalid");
    office.ask_of("*", "PUT", &first, &rule("in_file")).problem(409, "exists");
    let dry = office.ask_of("*", "PUT", &format!("{first}?dryRun=true"), &rule("repaired"));
    assert_eq!(dry.expect(200)["diff"]["added"], json!(["repaired"]));
    let repaired = office.ask_of("\"1\"", "PUT", &first, &rule("repaired")).expect(200);
    assert_eq!((&repaired["ruleId"], &repaired["version"]), (&json!(uuid(1)), &json!(2)));
    let checks = [(); 3].map(|()| office.check("/repaired", "7"));
    assert_eq!(checks, [200, 200, 429], "it is enforced");
    let history = office.get(&format!("{first}/history"));
    assert_eq!(history["items"][0]["before"]["limit"], "many");
    assert_eq!(history["items"][0]["after"]["name"], "repaired");

    // By its name, where its id is none; it gets one.
    let named = office.ask_of("*", "PUT", &target("no_id"), &rule("named")).expect(200);
    assert_eq!(named["ruleId"].as_str().unwrap().len(), 36, "{named}");
    assert_eq!(office.get(&target(named["ruleId"].as_str().unwrap()))["name"], "named");

    // A tenant sees nothing of it.
    let tenant = office.token_of(&["tenant:acme"], None);
    let lines = "if-match: *\r\n";
    office.ask_as(&tenant, "DELETE", &second, lines, &Value::Null).problem(404, "not_found");

    office.ask_of("\"9\"", "DELETE", &second, &Value::Null).problem(412, "conflict");
    office.ask_of("*", "DELETE", &format!("{second}?dryRun=true"), &Value::Null).expect(200);
    office.ask_of("\"4\"", "DELETE", &second, &Value::Null).expect(204);
    office.ask_of("*", "DELETE", &second, &Value::Null).problem(404, "not_found");
    office.ask_of("*", "DELETE", &target("no_version"), &Value::Null).expect(204);
    let audit = office.get("/v1/rate-limit/audit")["items"].clone();
    assert_eq!((&audit[0]["action"], &audit[1]["version"]), (&json!("delete"), &json!(5)));
    assert_eq!(audit[1]["before"]["speed"], 9);
    let left: u32 = by_hand
        .query_row("SELECT count(*) FROM rate_limit_rules WHERE deleted_at IS NULL", (), |it| {
            it.get(0)
        })
        .unwrap();
    assert_eq!(left, 2);
}

#[test]
fn a_rule_that_does_not_fit_with_the_others_is_refused_with_its_field() {
    let office = Office::open("fit", FILE);
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
        let told = office.ask("POST", RULES, &form);
        assert_eq!(told.problem(422, "invalid"), field, "{form}");
    }
    assert_eq!(office.get(&format!("{RULES}?limit=1000"))["items"].as_array().unwrap().len(), 2);
}

#[test]
fn an_exemption_is_enforced_and_ends() {
    let office = Office::open("exempt", FILE);
    let form =
        json!({ "name": "e", "pathPattern": "/e", "maxRequests": 1, "windowSeconds": 86400 });
    let id = office.rule(&form);
    assert_eq!((office.check("/e", "7"), office.check("/e", "7")), (200, 429));
    let target = format!("{RULES}/{id}/exemptions");
    let exemption = json!({ "subjectType": "user", "subjectValue": "7", "reason": "ours" });
    let made = office.ask("POST", &target, &exemption).expect(201);
    assert_eq!(office.check("/e", "7"), 200);
    office.ask("POST", &target, &exemption).problem(409, "exists");
    let past = json!({ "subjectType": "user", "subjectValue": "8", "expiresAt": "2020-01-01" });
    assert_eq!(office.ask("POST", &target, &past).problem(422, "invalid"), "expiresAt");
    let block = json!({ "subjectType": "ip_cidr", "subjectValue": "10.0.0.0/99" });
    assert_eq!(office.ask("POST", &target, &block).problem(422, "invalid"), "subjectValue");
    assert_eq!(office.get(&target)["items"][0], made);
    assert_eq!(office.get("/v1/rate-limit/exemptions")["items"].as_array().unwrap().len(), 1);
    let one = format!("/v1/rate-limit/exemptions/{}", made["exemptionId"]);
    office.ask("DELETE", &one, &Value::Null).expect(204);
    office.ask("DELETE", &one, &Value::Null).problem(404, "not_found");
    assert_eq!(office.check("/e", "7"), 429);
}
