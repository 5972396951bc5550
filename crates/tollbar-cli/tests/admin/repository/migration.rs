//! A database that an earlier version made, with rules that say everything a rule can, is migrated when it
//! is opened: rules, their identities, exemptions, the audit and all that counters hang on stay.

use serde_json::{Value, json};
use tollbar_admin::database::{
    AuditFilter, DatabaseLocation, KeyFilter, NewToken, Owner, PageRequest, RuleFilter, RuleId,
    UsageFilter, UsageRow,
};
use tollbar_rules::admin::RuleView;

use super::rows::{token, used};
use super::{TestDatabase, rule, small};

/// What clients had sent to the earlier version, in the order of the rows.
fn sent() -> Vec<Value> {
    vec![
        json!({
            "name": "search", "scope": "endpoint", "tenantId": "acme", "httpMethod": "GET",
            "pathPattern": "/v1/users/{id}/**", "algorithm": "token_bucket", "maxRequests": 200,
            "windowSeconds": 60, "burstCapacity": 20, "priority": -7, "enabled": true,
            "description": "ünïcode \u{1F6A6} and \"quotes\" it's",
            "match": { "plan": ["bulk", "free"], "region": { "not": "eu" } },
            "per": ["user", "path"], "missing": "deny", "cost": { "GET /v1/search/all": 5 },
            "exempt": [{ "api_key": "internal" },
                       { "ip": "10.0.0.0/8", "until": "2027-01-01", "reason": "office" }],
            "tiers": { "free": "10/min", "gold": { "limit": "50/min", "burst": 7 }, "default": "free" },
            "candidate": { "limit": "80/min" }, "stop": true, "mode": "shadow",
            "on_store_failure": { "shed": "critical" },
        }),
        json!({ "name": "per_client", "maxRequests": 10, "windowSeconds": 1 }),
        json!({ "name": "acme/sub", "tenantId": "acme", "maxRequests": 5, "windowSeconds": 3600,
                "algorithm": "fixed_window", "staggered": true }),
        json!({ "name": "jobs", "algorithm": "concurrency", "maxRequests": 5, "lease": "30s",
                "per": [] }),
        json!({ "name": "queue", "limit": "20/s", "queue": 100, "max_wait": "2s",
                "algorithm": "leaky_queue" }),
        json!({ "name": "quota", "limit": ["10/s", "10_000 per calendar month"],
                "utc_offset": "+05:30", "on_store_failure": "local" }),
        json!({ "name": "strict", "maxRequests": 20, "windowSeconds": 61,
                "algorithm": "sliding_window_strict", "subwindows": 5 }),
        json!({ "name": "warm", "maxRequests": 100, "windowSeconds": 1, "burstCapacity": 50,
                "warm_up": { "start": 10, "over": "10min", "steps": 4 } }),
        json!({ "name": "health", "pathPattern": "/health", "unlimited": true, "priority": 100 }),
        json!({ "name": "rest", "fallback": true, "maxRequests": 100, "windowSeconds": 60,
                "replaces": ["per_client"] }),
        json!({ "name": "by_attribute", "limit": "9/h",
                "cost": { "attribute": "tokens", "/v1/**": 2, "default": 3 },
                "match": { "method": "POST", "user": { "one_of": ["a", "b"], "prefix": "a" } } }),
        json!({ "name": "leaky", "maxRequests": 6, "windowSeconds": 86400,
                "algorithm": "leaky_bucket", "burst": 3 }),
        json!({ "name": "log", "maxRequests": 6, "windowSeconds": 604_800,
                "algorithm": "sliding_window_log", "missing": "deny",
                "description": "ab \\u0000 c" }),
    ]
}

pub(crate) async fn a_database_of_version_2_is_migrated(database: TestDatabase) {
    database.empty();
    database.execute(match &database.location {
        DatabaseLocation::Sqlite(_) => include_str!("version_2/sqlite.sql"),
        DatabaseLocation::Postgres(_) => include_str!("version_2/postgres.sql"),
    });
    // Earlier versions kept any text that JSON has.
    let odd = json!({ "description": "a\0b \\u0000 c\0\0", "missing": "deny" });
    database.execute(&format!("UPDATE rate_limit_rules SET spec = '{odd}' WHERE name = 'log'"));
    let column = |name: &str| {
        database.column(&format!("SELECT CAST({name} AS text) FROM rate_limit_rules ORDER BY id"))
    };
    let kept = ["rule_uuid", "name", "scope", "tenant_id", "http_method", "path_pattern"];
    let kept = [&kept[..], &["algorithm", "max_requests", "window_seconds", "priority"]].concat();
    let not_null = |name: &&str| format!("coalesce(CAST({name} AS text), '')");
    let before: Vec<Vec<String>> = kept.iter().map(|name| column(&not_null(name))).collect();
    let revision = "SELECT CAST(rules AS text) FROM rate_limit_revision";
    let revision_before: u64 = database.column(revision)[0].parse().unwrap();

    let repository = database.again().await;
    let after: Vec<Vec<String>> = kept.iter().map(|name| column(&not_null(name))).collect();
    assert_eq!(after, before);
    assert_eq!(column("enabled").len(), 15);

    // Every rule says what its client sent, under the id that its counters are kept under.
    let rules =
        repository.rules(&RuleFilter::default(), &PageRequest::first(100)).await.unwrap().rows;
    let ids: Vec<RuleId> = rules.iter().map(|rule| rule.id).collect();
    assert_eq!(rules.len(), sent().len());
    for (at, sent) in sent().iter().enumerate() {
        let mut found = rules[at].rule.clone();
        // A character of code 0 stays in SQLite, and is left out in PostgreSQL.
        found.description = found.description.map(|text| text.replace('\0', "").into());
        assert_eq!(found, rule(sent));
        assert_eq!(rules[at].id.to_string(), before[0][at]);
    }
    assert_eq!(rules[0].version, 2);
    let path = RuleView::from_rule(&rules[0].rule).path_pattern;
    assert_eq!(path.as_deref(), Some("/v1/users/{id}/**"));

    // A row that said no rule says none, and takes no other with it.
    let loaded = repository.load().await.unwrap();
    assert!(loaded.revisions.rules > revision_before, "nodes read all of it again");
    assert_eq!(loaded.rules.len(), sent().len());
    let bad: Vec<&str> = loaded.bad.iter().map(|row| &*row.name).collect();
    assert_eq!(bad, ["broken"]);

    let exemptions =
        repository.exemptions(Some(ids[1]), &PageRequest::first(9)).await.unwrap().rows;
    let subjects: Vec<&str> =
        exemptions.iter().map(|exemption| &*exemption.form.subject_value).collect();
    assert_eq!(subjects, ["internal", "42", "10.0.0.0/8", "ci"]);
    assert!(
        exemptions
            .iter()
            .all(|exemption| exemption.form.exemption().is_ok() && exemption.created_by == "ada")
    );
    let keys = repository.keys(&KeyFilter::default(), &PageRequest::first(9)).await.unwrap().rows;
    assert_eq!(keys[0].record.rule, Some(ids[1].to_string()));
    assert!(repository.token_by_hash(&[7; 32]).await.unwrap().is_some());
    let usage =
        repository.usage(&UsageFilter::default(), &PageRequest::first(9)).await.unwrap().rows;
    assert_eq!((&usage[0].rule, usage[0].admitted_cost), (&ids[1].to_string(), 5));
    assert_eq!(repository.usage_sequence("node-a").await.unwrap(), 1);

    // The audit is read, and what it has can be put back, also what was deleted.
    let audit =
        repository.audit(&AuditFilter::default(), &PageRequest::first(100)).await.unwrap().rows;
    assert_eq!(audit.len(), 14 + 4 + 4 + 2 + 1);
    let mut first = sent()[0].clone();
    (first["maxRequests"], first["enabled"]) = (json!(100), json!(false));
    assert_eq!(repository.rule_at(ids[0], 1).await.unwrap(), rule(&first));
    let back = repository.rollback_rule(ids[0], 2, 1, "ada").await.unwrap();
    assert_eq!((back.version, &back.rule), (3, &rule(&first)));
    let gone: RuleId = before[0][13].parse().unwrap();
    let back = repository.rollback_rule(gone, 2, 1, "ada").await.unwrap();
    assert_eq!((&*back.rule.name, back.deleted_at), ("gone", None));

    // It is migrated once.
    let again =
        database.again().await.rules(&RuleFilter::default(), &PageRequest::first(100)).await;
    assert_eq!(again.unwrap().rows.len(), sent().len() + 1);
}

/// The first database with owners: what the audit says that a tenant's token made is the tenant's, all else is the operator's.
pub(crate) async fn rules_of_version_4_get_their_owners_from_the_audit(database: TestDatabase) {
    let repository = &database.repository;
    let mut tokens = Vec::new();
    for (hash, scopes) in [
        (1, vec!["tenant:acme"]),
        (2, vec!["admin", "tenant:acme"]),
        (3, vec!["read", "tenant:globex"]),
    ] {
        let scopes = scopes.into_iter().map(str::to_owned).collect();
        let token = NewToken { hash: [hash; 32], scopes, ..token(hash) };
        let id = repository.insert_token(&token, "ada").await.unwrap().id;
        tokens.push(format!("token:{id} {}", token.name));
    }
    let of_acme = |name: &str| {
        rule(&json!({ "name": name, "tenantId": "acme", "maxRequests": 1, "windowSeconds": 1 }))
    };
    let mut ids = Vec::new();
    for (name, actor) in [
        ("acme/own", &*tokens[0]),
        ("acme/given", &*tokens[1]),
        ("acme/foreign", &*tokens[2]),
        ("acme/by_hand", "ada"),
    ] {
        ids.push(repository.insert_rule(&of_acme(name), actor).await.unwrap().id);
    }
    let gone = repository.insert_rule(&of_acme("acme/gone"), &tokens[0]).await.unwrap();
    repository.delete_rule(gone.id, 1, "ada").await.unwrap();
    repository.update_rule(ids[3], 1, &of_acme("acme/touched"), &tokens[0]).await.unwrap();
    repository.insert_rule(&small("of_nobody"), &tokens[0]).await.unwrap();
    // A row that somebody wrote by hand does not keep the daemon from starting.
    if let DatabaseLocation::Sqlite(_) = database.location {
        database.execute("UPDATE rate_limit_tokens SET scopes = 'none' WHERE id = 3");
    } else {
        database.execute("UPDATE rate_limit_tokens SET scopes = '{}' WHERE id = 3");
    }
    database.execute(
        "ALTER TABLE rate_limit_rules DROP COLUMN owner; \
         ALTER TABLE rate_limit_nodes DROP COLUMN knows_loans; \
         DELETE FROM rate_limit_schema WHERE number >= 5",
    );
    // As it was before version 6.
    database.execute(
        "DROP TABLE usage_daily; CREATE TABLE usage_daily (day integer NOT NULL, tenant_id text NOT NULL, \
         subject text NOT NULL, rule text NOT NULL, admitted_cost bigint NOT NULL, denied_cost bigint NOT NULL, \
         PRIMARY KEY (day, tenant_id, subject, rule))",
    );

    let repository = database.again().await;
    let rules =
        repository.rules(&RuleFilter::default(), &PageRequest::first(9)).await.unwrap().rows;
    let owners: Vec<(&str, String)> =
        rules.iter().map(|row| (&*row.rule.name, row.owner.to_string())).collect();
    let expected = [
        ("acme/own", "tenant:acme"),
        ("acme/given", "operator"),
        ("acme/foreign", "operator"),
        ("acme/touched", "operator"),
        ("of_nobody", "operator"),
    ];
    assert_eq!(owners, expected.map(|(name, owner)| (name, owner.to_owned())));
    let back = repository.rollback_rule(gone.id, 2, 1, "ada").await.unwrap();
    assert_eq!(back.owner, Owner::Tenant("acme".to_owned()));
    let wrong = "UPDATE rate_limit_rules SET owner = 'acme'";
    assert!(database.try_execute(wrong).is_err(), "an owner is the operator or a tenant");
}

macro_rules! steps {
    ($kind:literal) => {
        [
            include_str!(concat!(
                "../../../../tollbar-admin/src/database/schema/",
                $kind,
                "_0001.sql"
            )),
            include_str!(concat!(
                "../../../../tollbar-admin/src/database/schema/",
                $kind,
                "_0002.sql"
            )),
            include_str!(concat!(
                "../../../../tollbar-admin/src/database/schema/",
                $kind,
                "_0003.sql"
            )),
            include_str!(concat!(
                "../../../../tollbar-admin/src/database/schema/",
                $kind,
                "_0004.sql"
            )),
            include_str!(concat!(
                "../../../../tollbar-admin/src/database/schema/",
                $kind,
                "_0005.sql"
            )),
        ]
    };
}

/// Version 5 knew neither clients nor tiers nor requests.
pub(crate) async fn usage_of_version_5_is_kept_and_goes_on(database: TestDatabase) {
    database.empty();
    let (steps, day) = match &database.location {
        DatabaseLocation::Sqlite(_) => (steps!("sqlite"), "20000"),
        DatabaseLocation::Postgres(_) => (steps!("postgres"), "date '2024-10-04'"),
    };
    database.execute("CREATE TABLE rate_limit_schema (number BIGINT NOT NULL PRIMARY KEY)");
    for (number, step) in (1..).zip(steps) {
        database.execute(step);
        database.execute(&format!("INSERT INTO rate_limit_schema (number) VALUES ({number})"));
    }
    for (subject, admitted) in [("user:7", 5), ("acme", 9)] {
        database.execute(&format!(
            "INSERT INTO usage_daily (day, tenant_id, subject, rule, admitted_cost, denied_cost) \
             VALUES ({day}, 'acme', '{subject}', 'per_client', {admitted}, 1)"
        ));
    }
    let repository = database.again().await;
    // What is the client of a subject is known where the subject says it.
    let old = |subject: &str, admitted| used(20_000, subject, admitted);
    let user = UsageRow { client: "user:7".to_owned(), ..old("user:7", 5) };
    let page = PageRequest::first(9);
    let rows = repository.usage(&UsageFilter::default(), &page).await.unwrap().rows;
    assert_eq!(rows, [old("acme", 9), user.clone()]);
    // The same account goes on.
    repository.add_usage("n", 1, &[UsageRow { admitted_requests: 2, ..user }]).await.unwrap();
    let rows = repository.usage(&UsageFilter::default(), &page).await.unwrap().rows;
    assert_eq!((rows.len(), rows[1].admitted_cost, rows[1].admitted_requests), (2, 10, 2));
}
