//! Rules: versions, the audit, and what is refused.

use serde_json::json;
use tollbar_admin::database::{
    AuditAction, AuditFilter, AuditKind, Cursor, PageRequest, RepositoryError, Revisions,
    RuleFilter, RuleId,
};
use tollbar_rules::admin::{RuleView, Scope, from_json};
use tollbar_rules::{Conditions, Rule, Test};

use super::{TestDatabase, rule, small};

fn full() -> Rule {
    rule(&json!({
        "name": "search", "scope": "endpoint", "tenantId": "acme", "httpMethod": "GET",
        "pathPattern": "/v1/search/**", "algorithm": "token_bucket", "maxRequests": 100,
        "windowSeconds": 60, "burstCapacity": 20, "priority": -7, "enabled": false,
        "exempt": [{ "api_key": "internal" }], "description": "ünïcode \u{1F6A6} and \"quotes\"",
        "per": ["user"], "cost": { "GET /v1/search/all": 5 },
    }))
}

pub(crate) async fn a_rule_is_read_as_it_was_written(database: TestDatabase) {
    let written = database.repository.insert_rule(&full(), "ada").await.unwrap();
    assert_eq!((written.version, written.deleted_at), (1, None));
    assert_eq!(
        (written.created_at, written.updated_at),
        (database.clock_now(), database.clock_now())
    );
    assert_eq!(written.rule, full());
    let read = database.repository.rule(written.id).await.unwrap();
    assert_eq!(read, written);
    assert_eq!(database.again().await.rule(written.id).await.unwrap(), written, "on disk");
    let other = RuleId::of_u128(7);
    let missing = database.repository.rule(other).await.unwrap_err();
    assert!(matches!(missing, RepositoryError::NotFound { what: "rule" }), "{missing}");
}

pub(crate) async fn a_change_needs_the_version_it_was_made_for(database: TestDatabase) {
    let repository = &database.repository;
    let first = repository.insert_rule(&small("a"), "ada").await.unwrap();
    database.clock.advance(std::time::Duration::from_secs(1));
    let second = repository.update_rule(first.id, 1, &small("b"), "bob").await.unwrap();
    assert_eq!((second.version, &*second.rule.name), (2, "b"));
    assert_eq!((second.created_at, second.updated_at), (first.created_at, database.clock_now()));
    let stale = [
        repository.update_rule(first.id, 1, &small("c"), "eve").await.unwrap_err(),
        repository.delete_rule(first.id, 1, "eve").await.unwrap_err(),
        repository.enable_rule(first.id, 1, false, "eve").await.unwrap_err(),
        repository.rollback_rule(first.id, 1, 1, "eve").await.unwrap_err(),
    ];
    for error in stale {
        let is_conflict = matches!(error, RepositoryError::Conflict { expected: 1, found: 2 });
        assert!(is_conflict, "{error}");
    }
    assert_eq!(repository.rule(first.id).await.unwrap(), second);
    let audit = repository.audit(&AuditFilter::default(), &PageRequest::first(10)).await.unwrap();
    assert_eq!(audit.rows.len(), 2, "what failed is not in the audit");
}

pub(crate) async fn every_change_is_in_the_audit_with_who_and_what_it_was(database: TestDatabase) {
    use AuditAction::{Delete, Disable, Enable, Insert, Update};

    let repository = &database.repository;
    let id = repository.insert_rule(&small("a"), "ada").await.unwrap().id;
    repository.update_rule(id, 1, &small("b"), "bob").await.unwrap();
    repository.enable_rule(id, 2, false, "cyd").await.unwrap();
    repository.enable_rule(id, 3, true, "dan").await.unwrap();
    repository.delete_rule(id, 4, "eve").await.unwrap();
    repository.rollback_rule(id, 5, 1, "fay").await.unwrap();
    let page = repository.history(id, &PageRequest::first(10)).await.unwrap();
    assert_eq!(page.next, None);
    let told: Vec<_> = page
        .rows
        .iter()
        .rev()
        .map(|change| {
            (change.action, change.version, change.actor.as_str(), change.kind, change.rule)
        })
        .collect();
    let expected = [
        (Insert, "ada"),
        (Update, "bob"),
        (Disable, "cyd"),
        (Enable, "dan"),
        (Delete, "eve"),
        (Update, "fay"),
    ];
    let expected: Vec<_> = (1..)
        .zip(expected)
        .map(|(version, (action, actor))| (action, Some(version), actor, AuditKind::Rule, Some(id)))
        .collect();
    assert_eq!(told, expected);
    // Each begins where the one before has ended.
    let rows: Vec<_> = page.rows.iter().rev().collect();
    assert_eq!(rows[0].before, None);
    for pair in rows.windows(2) {
        assert_eq!(pair[0].after, pair[1].before);
    }
    let new_row = json!(rows[1].after);
    assert_eq!(
        (&new_row["name"], &new_row["version"], &new_row["ruleId"], &new_row["deletedAt"]),
        (&json!("b"), &json!(2), &json!(id.to_string()), &json!(null))
    );
    assert!(json!(rows[4].after)["deletedAt"].is_string());
}

pub(crate) async fn a_deleted_rule_is_gone_and_can_be_brought_back(database: TestDatabase) {
    let repository = &database.repository;
    let rule = repository.insert_rule(&small("a"), "ada").await.unwrap();
    let deleted = repository.delete_rule(rule.id, 1, "ada").await.unwrap();
    assert_eq!((deleted.version, deleted.deleted_at), (2, Some(database.clock_now())));
    let gone = [
        repository.rule(rule.id).await.unwrap_err(),
        repository.update_rule(rule.id, 2, &small("b"), "ada").await.unwrap_err(),
        repository.delete_rule(rule.id, 2, "ada").await.unwrap_err(),
        repository.enable_rule(rule.id, 2, true, "ada").await.unwrap_err(),
    ];
    for error in gone {
        assert!(matches!(error, RepositoryError::NotFound { what: "rule" }), "{error}");
    }
    assert!(database.names(&RuleFilter::default()).await.is_empty());
    let back = repository.rollback_rule(rule.id, 2, 1, "ada").await.unwrap();
    assert_eq!((back.version, back.deleted_at, &back.rule), (3, None, &rule.rule));
    assert_eq!(repository.rule(rule.id).await.unwrap(), back);
}

pub(crate) async fn any_version_can_be_put_back(database: TestDatabase) {
    let repository = &database.repository;
    let id = repository.insert_rule(&full(), "ada").await.unwrap().id;
    for (version, name) in [(1, "b"), (2, "c"), (3, "d")] {
        repository.update_rule(id, version, &small(name), "ada").await.unwrap();
    }
    for (at, to, name) in [(4, 2, "b"), (5, 1, "search"), (6, 5, "b"), (7, 4, "d")] {
        assert_eq!(&*repository.rule_at(id, to).await.unwrap().name, name);
        let back = repository.rollback_rule(id, at, to, "ada").await.unwrap();
        assert_eq!((back.version, &*back.rule.name), (at + 1, name));
    }
    assert_eq!(repository.rule_at(id, 6).await.unwrap(), full());
    for version in [0, 9, u64::MAX] {
        let error = repository.rollback_rule(id, 8, version, "ada").await.unwrap_err();
        assert!(matches!(error, RepositoryError::NotFound { what: "version" }), "{error}");
    }
}

pub(crate) async fn names_are_taken_once_among_the_living(database: TestDatabase) {
    let repository = &database.repository;
    let a = repository.insert_rule(&small("a"), "ada").await.unwrap();
    let b = repository.insert_rule(&small("b"), "ada").await.unwrap();
    let taken = |error: RepositoryError| matches!(error, RepositoryError::NameTaken { .. });
    assert!(taken(repository.insert_rule(&small("a"), "ada").await.unwrap_err()));
    assert!(taken(repository.update_rule(b.id, 1, &small("a"), "ada").await.unwrap_err()));
    repository.delete_rule(a.id, 1, "ada").await.unwrap();
    repository.update_rule(b.id, 1, &small("a"), "ada").await.unwrap();
    assert!(taken(repository.rollback_rule(a.id, 2, 1, "ada").await.unwrap_err()));
}

pub(crate) async fn what_cannot_be_enforced_is_not_kept(database: TestDatabase) {
    let table = [
        (json!({ "name": "no spaces", "maxRequests": 1, "windowSeconds": 1 }), "name: "),
        (json!({ "name": "a" }), "limit: "),
        (json!({ "name": "a", "maxRequests": 1, "windowSeconds": 1, "id": "x" }), "id: "),
        (json!({ "name": "a", "algorithm": "concurrency", "maxRequests": 3 }), "lease: "),
        (
            json!({ "name": "a", "tenantId": "a\0b", "maxRequests": 1, "windowSeconds": 1 }),
            "tenantId: ",
        ),
        (json!({ "name": "a", "maxRequests": u64::MAX, "windowSeconds": 1 }), "maxRequests: "),
        (
            json!({ "name": "a", "maxRequests": 1, "windowSeconds": 1,
                    "description": "x".repeat(300_000) }),
            "",
        ),
    ];
    for (json, field) in table {
        let error = match from_json(json.clone()) {
            Ok(rule) => database.repository.insert_rule(&rule, "ada").await.unwrap_err(),
            Err(error) => error.into(),
        };
        assert!(error.to_string().starts_with(field), "{json}: {error}");
        let is_told = matches!(error, RepositoryError::Invalid { .. } | RepositoryError::Form(_));
        assert!(is_told, "{error:?}");
    }
    let error = database.repository.insert_rule(&small("a"), "").await.unwrap_err();
    assert!(error.to_string().starts_with("actor: "), "{error}");
    assert!(database.names(&RuleFilter::default()).await.is_empty());
}

pub(crate) async fn lists_are_filtered_and_paged(database: TestDatabase) {
    let repository = &database.repository;
    for at in 0..25 {
        let mut rule = small(&format!("rule{at:02}"));
        if at % 5 == 0 {
            let tenant = format!("tenant{}", at % 2);
            rule.conditions = Conditions::new().and("tenant", Test::equal(&tenant));
        }
        rule.enabled = at % 2 == 0;
        repository.insert_rule(&rule, "ada").await.unwrap();
    }
    let all = RuleFilter::default();
    assert_eq!(database.names(&all).await.len(), 25);
    let table = [
        (RuleFilter { tenant: Some("tenant0".into()), ..all.clone() }, 3),
        (RuleFilter { scope: Some(Scope::Tenant), ..all.clone() }, 5),
        (RuleFilter { scope: Some(Scope::Endpoint), ..all.clone() }, 0),
        (RuleFilter { enabled: Some(true), ..all.clone() }, 13),
        (RuleFilter { enabled: Some(false), ..all.clone() }, 12),
        (RuleFilter { name: Some("rule07".into()), ..all.clone() }, 1),
        (RuleFilter { name: Some("rule".into()), ..all.clone() }, 0),
        (RuleFilter { enabled: Some(true), scope: Some(Scope::Tenant), ..all.clone() }, 3),
    ];
    for (filter, count) in table {
        assert_eq!(database.names(&filter).await.len(), count, "{filter:?}");
    }
    // Page by page: each once, in order, whatever is deleted meanwhile.
    let mut names = Vec::new();
    let mut page = PageRequest::first(7);
    loop {
        let found = repository.rules(&all, &page).await.unwrap();
        if let Some(rule) = found.rows.last() {
            repository.delete_rule(rule.id, 1, "ada").await.unwrap();
        }
        names.extend(found.rows.into_iter().map(|row| row.rule.name.to_string()));
        match found.next {
            Some(next) => page = PageRequest::after(Cursor::of_text(next.as_text()), 7),
            None => break,
        }
    }
    let expected: Vec<String> = (0..25).map(|at| format!("rule{at:02}")).collect();
    assert_eq!(names, expected);
    for cursor in ["", "x", "1; DROP TABLE rate_limit_rules", "99999999999999999999"] {
        let error = repository.rules(&all, &PageRequest::after(Cursor::of_text(cursor), 7)).await;
        assert!(matches!(error, Err(RepositoryError::Cursor)), "{cursor}");
    }
    assert_eq!(repository.rules(&all, &PageRequest::first(0)).await.unwrap().rows.len(), 1);
}

pub(crate) async fn texts_are_kept_and_never_obeyed(database: TestDatabase) {
    let repository = &database.repository;
    let evil = "'; DROP TABLE rate_limit_rules; -- $1 ?1 \" \\ % _ \u{202e}";
    let mut rule = small("a");
    rule.conditions = Conditions::new().and("tenant", Test::equal(evil));
    rule.description = Some(evil.into());
    let rule = repository.insert_rule(&rule, evil).await.unwrap();
    let filter = RuleFilter { tenant: Some(evil.to_owned()), ..RuleFilter::default() };
    assert_eq!(database.names(&filter).await, ["a"]);
    let read = repository.rule(rule.id).await.unwrap();
    assert_eq!(RuleView::from_rule(&read.rule).tenant_id.as_deref(), Some(evil));
    assert_eq!(read.rule.description.as_deref(), Some(evil));
    let audit = AuditFilter { tenant: Some(evil.to_owned()), ..AuditFilter::default() };
    let audit = repository.audit(&audit, &PageRequest::first(10)).await.unwrap();
    assert_eq!(audit.rows[0].actor, evil);
}

pub(crate) async fn columns_say_what_the_rule_says_and_cannot_be_written(database: TestDatabase) {
    let repository = &database.repository;
    repository.insert_rule(&full(), "ada").await.unwrap();
    let columns = "name = 'search' AND scope = 'endpoint' AND tenant_id = 'acme' AND \
                   http_method = 'GET' AND path_pattern = '/v1/search/**' AND \
                   algorithm = 'token_bucket' AND max_requests = 100 AND window_seconds = 60 AND \
                   burst_capacity = 20 AND priority = -7 AND NOT enabled";
    let found = database.column(&format!("SELECT name FROM rate_limit_rules WHERE {columns}"));
    assert_eq!(found, ["search"]);
    for wrong in [
        "UPDATE rate_limit_rules SET max_requests = 5",
        "UPDATE rate_limit_rules SET name = 'b'",
        "UPDATE rate_limit_rules SET spec = '[]'",
        "UPDATE rate_limit_rules SET spec = '{'",
        "UPDATE rate_limit_rules SET spec = '{\"name\":\"a\",\"maxRequests\":0}'",
        "UPDATE rate_limit_rules SET spec = '{\"name\":\"a\",\"scope\":\"world\"}'",
    ] {
        assert!(database.try_execute(wrong).is_err(), "{wrong}");
    }
    let rules = repository.rules(&RuleFilter::default(), &PageRequest::first(9)).await.unwrap();
    assert_eq!(rules.rows[0].rule, full());
}

pub(crate) async fn the_revision_grows_with_what_nodes_enforce_and_nothing_else(
    database: TestDatabase,
) {
    let repository = &database.repository;
    let mut known = repository.revisions().await.unwrap();
    let mut grown = async |rules: bool, tokens: bool, what: &str| {
        let now = repository.revisions().await.unwrap();
        let Revisions { rules: old_rules, tokens: old_tokens } = std::mem::replace(&mut known, now);
        assert_eq!((now.rules > old_rules, now.tokens > old_tokens), (rules, tokens), "{what}");
        assert!(now.rules >= old_rules && now.tokens >= old_tokens);
    };
    let rule = repository.insert_rule(&small("a"), "ada").await.unwrap();
    grown(true, false, "insert").await;
    repository.update_rule(rule.id, 1, &small("b"), "ada").await.unwrap();
    grown(true, false, "update").await;
    let exemption = super::rows::internal();
    let exemption = repository.add_exemption(rule.id, &exemption, "ada").await.unwrap();
    grown(true, false, "exemption").await;
    repository.delete_exemption(exemption.id, "ada").await.unwrap();
    grown(true, false, "no exemption").await;
    let ban = repository.put_key(&super::rows::ban("user:1"), "ada").await.unwrap();
    grown(true, false, "ban").await;
    repository.delete_key(ban.id, "ada").await.unwrap();
    grown(true, false, "no ban").await;
    let token = repository.insert_token(&super::rows::token(1), "ada").await.unwrap();
    grown(false, true, "token").await;
    repository.record_token_use(&[(token.id, database.clock_now())]).await.unwrap();
    grown(false, false, "a token that is used").await;
    repository.revoke_token(token.id, "ada").await.unwrap();
    grown(false, true, "revoked").await;
    repository.add_usage("n", 1, &[super::rows::used(1, "u", 1)]).await.unwrap();
    repository.report_node("n", 1, "memory").await.unwrap();
    let _ = repository.update_rule(rule.id, 1, &small("c"), "eve").await.unwrap_err();
    grown(false, false, "what changes nothing that is enforced").await;
    repository.delete_rule(rule.id, 2, "ada").await.unwrap();
    grown(true, false, "delete").await;
}
