//! Everything that is kept beside rules.

use std::time::Duration;

use serde_json::json;
use tollbar::Timestamp;
use tollbar_admin::database::{
    AuditAction, AuditFilter, AuditKind, BatchOutcome, Cursor, KeyEffect, KeyFilter, KeyRecord,
    NewToken, PageRequest, Repository, RepositoryError, UsageFilter, UsageGroup, UsageRow,
    UsageTotal,
};
use tollbar_rules::admin::{ExemptionForm, SubjectType};

use super::{TestDatabase, small};

pub(crate) fn internal() -> ExemptionForm {
    ExemptionForm::new(SubjectType::ApiKey, "internal")
}

pub(crate) fn token(hash: u8) -> NewToken {
    NewToken {
        hash: [hash; 32],
        name: format!("token {hash}"),
        scopes: vec!["read".to_owned(), "tenant:acme".to_owned()],
        subject: Some("user:42".to_owned()),
        expires_at: None,
    }
}

pub(crate) fn ban(subject: &str) -> KeyRecord {
    KeyRecord {
        rule: None,
        subject: subject.to_owned(),
        effect: KeyEffect::Ban,
        reason: Some("abuse".to_owned()),
        expires_at: None,
    }
}

pub(crate) fn used(day: i32, subject: &str, admitted_cost: i64) -> UsageRow {
    let (tenant, rule) = ("acme".to_owned(), "per_client".to_owned());
    let subject = subject.to_owned();
    UsageRow { day, tenant, subject, rule, admitted_cost, denied_cost: 1, ..UsageRow::default() }
}

pub(crate) async fn exemptions_are_added_once_and_deleted(database: TestDatabase) {
    let repository = &database.repository;
    let rule = repository.insert_rule(&small("a"), "ada").await.unwrap();
    let other = repository.insert_rule(&small("b"), "ada").await.unwrap();
    let mut office = ExemptionForm::new(SubjectType::IpCidr, "10.0.0.0/8");
    office.reason = Some("the office".to_owned());
    office.expires_at = Some(Timestamp::from_micros(1_900_000_000_123_456));
    let one = repository.add_exemption(rule.id, &office, "ada").await.unwrap();
    assert_eq!((&one.form, one.rule, one.created_by.as_str()), (&office, rule.id, "ada"));
    assert_eq!(repository.exemption(one.id).await.unwrap(), one);
    let two = repository.add_exemption(rule.id, &internal(), "ada").await.unwrap();
    let three = repository.add_exemption(other.id, &internal(), "ada").await.unwrap();
    let again = repository.add_exemption(rule.id, &internal(), "ada").await.unwrap_err();
    assert!(matches!(again, RepositoryError::Duplicate { .. }), "{again}");
    let bad = ExemptionForm::new(SubjectType::IpCidr, "10.0.0.0/99");
    let bad = repository.add_exemption(rule.id, &bad, "ada").await.unwrap_err();
    assert!(matches!(bad, RepositoryError::Form(_)), "{bad}");
    let page = async |rule| {
        let page = repository.exemptions(rule, &PageRequest::first(10)).await.unwrap();
        page.rows.iter().map(|exemption| exemption.id).collect::<Vec<_>>()
    };
    assert_eq!(page(None).await, [one.id, two.id, three.id]);
    assert_eq!(page(Some(rule.id)).await, [one.id, two.id]);
    assert_eq!(repository.delete_exemption(one.id, "bob").await.unwrap(), one);
    let gone = repository.delete_exemption(one.id, "bob").await.unwrap_err();
    assert!(matches!(gone, RepositoryError::NotFound { what: "exemption" }), "{gone}");
    let filter = AuditFilter { kind: Some(AuditKind::Exemption), ..AuditFilter::default() };
    let audit = repository.audit(&filter, &PageRequest::first(10)).await.unwrap().rows;
    assert_eq!(
        (audit.len(), audit[0].action, audit[0].actor.as_str()),
        (4, AuditAction::Delete, "bob")
    );
    assert_eq!((&audit[0].before, &audit[0].after), (&audit[3].after, &None));
    assert_eq!(json!(audit[0].before)["subjectValue"], "10.0.0.0/8");
    // With its rule, an exemption is out of sight; with it, it comes back.
    repository.delete_rule(rule.id, 1, "ada").await.unwrap();
    assert_eq!(page(None).await, [three.id]);
    repository.rollback_rule(rule.id, 2, 1, "ada").await.unwrap();
    assert_eq!(page(None).await, [two.id, three.id]);
}

pub(crate) async fn tokens_are_found_by_their_hash_until_they_are_revoked(database: TestDatabase) {
    let repository = &database.repository;
    let made = repository.insert_token(&token(1), "ada").await.unwrap();
    assert_eq!((&made.scopes, made.subject.as_deref()), (&token(1).scopes, Some("user:42")));
    let second = repository.insert_token(&token(2), "ada").await.unwrap();
    let again = repository.insert_token(&token(1), "ada").await.unwrap_err();
    assert!(matches!(again, RepositoryError::Duplicate { .. }), "{again}");
    assert_eq!(repository.token_by_hash(&[1; 32]).await.unwrap(), Some(made.clone()));
    assert_eq!(repository.token_by_hash(&[3; 32]).await.unwrap(), None);
    let later = Timestamp::from_micros(super::START_US + 5);
    repository
        .record_token_use(&[(made.id, later), (second.id, later), (99, later)])
        .await
        .unwrap();
    // Nodes tell of it in any order: the latest stands.
    repository.record_token_use(&[(made.id, Timestamp::from_micros(1))]).await.unwrap();
    assert_eq!(repository.token(made.id).await.unwrap().last_used_at, Some(later));
    let revoked = repository.revoke_token(made.id, "bob").await.unwrap();
    assert_eq!(revoked.revoked_at, Some(database.clock_now()));
    database.clock.advance(Duration::from_secs(1));
    assert_eq!(repository.revoke_token(made.id, "bob").await.unwrap(), revoked);
    assert_eq!(repository.token_by_hash(&[1; 32]).await.unwrap(), Some(revoked));
    let tokens = repository.tokens(&PageRequest::first(1)).await.unwrap();
    assert_eq!((tokens.rows.len(), tokens.next.is_some()), (1, true));
    let tokens = repository.tokens(&PageRequest::first(2)).await.unwrap();
    assert_eq!((tokens.rows.len(), tokens.next), (2, None), "a full page may be the last");
    let audit =
        repository.audit(&AuditFilter::default(), &PageRequest::first(10)).await.unwrap().rows;
    assert_eq!(audit.len(), 3);
    assert!(!format!("{audit:?}").contains("0101010101"), "a hash is in the audit");
}

pub(crate) async fn the_first_token_is_made_once(database: TestDatabase) {
    let repository = &database.repository;
    let first = repository.insert_first_token(&token(1), "start").await.unwrap().unwrap();
    assert_eq!(repository.insert_first_token(&token(2), "start").await.unwrap(), None);
    repository.revoke_token(first.id, "ada").await.unwrap();
    assert_eq!(repository.insert_first_token(&token(3), "start").await.unwrap(), None);
}

pub(crate) async fn bans_and_boosts_replace_their_like_and_end(database: TestDatabase) {
    use AuditAction::{Delete, Insert, Update};

    let repository = &database.repository;
    let first = repository.put_key(&ban("user:1"), "ada").await.unwrap();
    let mut record = ban("user:1");
    record.expires_at = Some(Timestamp::from_micros(super::START_US + 1_000_000));
    let second = repository.put_key(&record, "bob").await.unwrap();
    assert_eq!(second.record, record);
    let gone = repository.key(first.id).await.unwrap_err();
    assert!(matches!(gone, RepositoryError::NotFound { .. }), "{gone}");
    let mut boost = ban("user:1");
    (boost.rule, boost.effect) = (Some("r".into()), KeyEffect::Boost { factor_percent: 150 });
    let boost = repository.put_key(&boost, "ada").await.unwrap();
    assert_eq!(repository.key(boost.id).await.unwrap(), boost);
    let ids = async |filter: &KeyFilter| {
        let page = repository.keys(filter, &PageRequest::first(10)).await.unwrap();
        page.rows.iter().map(|key| key.id).collect::<Vec<_>>()
    };
    let all = KeyFilter::default();
    assert_eq!(ids(&all).await, [second.id, boost.id]);
    assert_eq!(ids(&KeyFilter { rule: Some("r".into()), ..all.clone() }).await, [boost.id]);
    assert!(ids(&KeyFilter { subject: Some("user:2".into()), ..all.clone() }).await.is_empty());
    database.clock.advance(Duration::from_secs(1));
    assert_eq!(ids(&all).await, [boost.id]);
    assert_eq!(ids(&KeyFilter { with_expired: true, ..all }).await, [second.id, boost.id]);
    for factor_percent in [0, 100_001, u32::MAX] {
        let effect = KeyEffect::Boost { factor_percent };
        let error = repository.put_key(&KeyRecord { effect, ..ban("x") }, "ada").await.unwrap_err();
        assert!(error.to_string().starts_with("factorPercent: "), "{error}");
    }
    for subject in ["", "a\0b"] {
        let error = repository.put_key(&ban(subject), "ada").await.unwrap_err();
        assert!(error.to_string().starts_with("subject: "), "{error}");
    }
    repository.delete_key(boost.id, "ada").await.unwrap();
    let audit =
        repository.audit(&AuditFilter::default(), &PageRequest::first(10)).await.unwrap().rows;
    let actions: Vec<_> = audit.iter().rev().map(|entry| entry.action).collect();
    assert_eq!(actions, [Insert, Update, Insert, Delete]);
    assert_eq!(json!(audit[0].before)["factorPercent"], json!(150));
}

async fn usage(repository: &Repository, filter: &UsageFilter, rows_max: u32) -> Vec<UsageRow> {
    let (mut rows, mut page) = (Vec::new(), PageRequest::first(rows_max));
    loop {
        let found = repository.usage(filter, &page).await.unwrap();
        rows.extend(found.rows);
        match found.next {
            Some(next) => page = PageRequest::after(Cursor::of_text(next.as_text()), rows_max),
            None => return rows,
        }
    }
}

pub(crate) async fn usage_is_added_once_for_each_node_and_sequence(database: TestDatabase) {
    let repository = &database.repository;
    assert_eq!(repository.usage_sequence("n1").await.unwrap(), 0);
    let add = async |node: &str, sequence, rows: &[UsageRow]| {
        repository.add_usage(node, sequence, rows).await.unwrap()
    };
    let batch = [used(20_000, "u", 5), used(20_000, "v", 7), used(20_000, "u", 1)];
    assert_eq!(add("n1", 1, &batch).await, BatchOutcome::Added);
    assert_eq!(add("n1", 1, &batch).await, BatchOutcome::AlreadyAdded);
    assert_eq!(add("n2", 1, &batch).await, BatchOutcome::Added);
    assert_eq!(add("n1", 3, &[used(20_000, "u", 1)]).await, BatchOutcome::Added);
    assert_eq!(add("n1", 2, &batch).await, BatchOutcome::AlreadyAdded);
    assert_eq!(add("n3", 1, &[]).await, BatchOutcome::Added);
    assert_eq!(repository.usage_sequence("n1").await.unwrap(), 3);
    let rows = usage(repository, &UsageFilter::default(), 10).await;
    let told: Vec<_> =
        rows.iter().map(|row| (row.subject.as_str(), row.admitted_cost, row.denied_cost)).collect();
    assert_eq!(told, [("u", 13, 5), ("v", 14, 2)]);
    // What fails half-way leaves nothing behind, not even that it came.
    let bad = [used(20_000, "u", 5), used(20_000, "a\0b", 1)];
    let error = repository.add_usage("n1", 4, &bad).await.unwrap_err();
    assert!(matches!(error, RepositoryError::Invalid { .. }), "{error}");
    assert_eq!(repository.usage_sequence("n1").await.unwrap(), 3);
    assert_eq!(usage(repository, &UsageFilter::default(), 10).await, rows);
}

pub(crate) async fn usage_is_listed_in_pages_by_day(database: TestDatabase) {
    let repository = &database.repository;
    // Texts are in the order of their bytes everywhere: capitals, small letters, then the rest.
    let subjects = ["Z", "a", "a ", "b", "é", "\u{1F6A6}"];
    let mut rows = Vec::new();
    for day in [19_999, 20_000, 20_001] {
        rows.extend(subjects.map(|subject| used(day, subject, 1)));
    }
    let mut many: Vec<UsageRow> =
        (0..2_500).map(|at| used(20_002, &format!("s{at:05}"), 1)).collect();
    rows.append(&mut many);
    let mut shuffled = rows.clone();
    shuffled.reverse();
    repository.add_usage("n", 1, &shuffled).await.unwrap();
    for rows_max in [1, 7, 1_000] {
        let days = UsageFilter { last_day: Some(20_001), ..UsageFilter::default() };
        assert_eq!(usage(repository, &days, rows_max).await, rows[..18], "by {rows_max}");
    }
    assert_eq!(usage(repository, &UsageFilter::default(), 999).await, rows);
    let all = UsageFilter::default();
    let table = [
        (UsageFilter { first_day: Some(20_000), last_day: Some(20_000), ..all.clone() }, 6),
        (UsageFilter { subject: Some("é".into()), ..all.clone() }, 3),
        (UsageFilter { tenant: Some(String::new()), ..all.clone() }, 0),
        (
            UsageFilter { tenant: Some("acme".into()), first_day: Some(20_001), ..all.clone() },
            2_506,
        ),
        (UsageFilter { rule: Some("other".into()), ..all.clone() }, 0),
    ];
    for (filter, count) in table {
        assert_eq!(usage(repository, &filter, 1_000).await.len(), count, "{filter:?}");
    }
    for cursor in ["", "zz", "5b5d", "5", "12"] {
        let page = PageRequest::after(Cursor::of_text(cursor), 7);
        let error = repository.usage(&all, &page).await;
        assert!(matches!(error, Err(RepositoryError::Cursor)), "{cursor}");
    }
}

pub(crate) async fn sums_of_usage_stop_at_the_largest_number(database: TestDatabase) {
    let repository = &database.repository;
    for sequence in 1..4 {
        repository.add_usage("n", sequence, &[used(1, "u", i64::MAX / 2)]).await.unwrap();
    }
    let rows = usage(repository, &UsageFilter::default(), 10).await;
    assert_eq!((rows[0].admitted_cost, rows[0].denied_cost), (i64::MAX, 3));
}

pub(crate) async fn a_correction_takes_back_what_another_node_has_added(database: TestDatabase) {
    let repository = &database.repository;
    repository.add_usage("n1", 1, &[used(1, "u", 4)]).await.unwrap();
    let correction = UsageRow { admitted_requests: -1, denied_cost: 0, ..used(1, "u", -3) };
    repository.add_usage("n2", 1, std::slice::from_ref(&correction)).await.unwrap();
    let rows = usage(repository, &UsageFilter::default(), 10).await;
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].admitted_cost, rows[0].admitted_requests), (1, -1));
    // The node that had charged it may have died before it wrote that.
    repository.add_usage("n2", 2, &[UsageRow { day: 2, ..correction }]).await.unwrap();
    assert_eq!(usage(repository, &UsageFilter::default(), 10).await[1].admitted_cost, -3);
}

pub(crate) async fn usage_is_added_up_by_tenant_client_rule_and_tier(database: TestDatabase) {
    let repository = &database.repository;
    let row = |day, who: [&str; 4], rule: &str, admitted_cost, admitted_requests| {
        let [tenant, client, tier, subject] = who.map(str::to_owned);
        let who = UsageRow { tenant, client, tier, subject, ..UsageRow::default() };
        UsageRow { day, rule: rule.to_owned(), admitted_cost, admitted_requests, ..who }
    };
    let (one, two) = (["acme", "user:1", "gold", "s1"], ["", "user:2", "", "s2"]);
    let rows = [
        row(10, one, "a", 5, 5),
        row(10, one, "b", 50, 0),
        row(11, one, "a", 7, 7),
        row(11, two, "a", 1, 1),
        row(12, two, "a", 1_000, 1_000),
    ];
    repository.add_usage("n", 1, &rows).await.unwrap();
    let days = UsageFilter { first_day: Some(10), last_day: Some(11), ..UsageFilter::default() };
    for (by, expected) in [
        (UsageGroup::Tenant, ["| a 1 1", "acme| a 12 12", "acme| b 50 0"].as_slice()),
        (UsageGroup::Client, &["user:1| a 12 12", "user:1| b 50 0", "user:2| a 1 1"]),
        (UsageGroup::Rule, &["a| a 13 13", "b| b 50 0"]),
        (UsageGroup::Tier, &["| a 1 1", "gold| a 12 12", "gold| b 50 0"]),
    ] {
        for rows_max in [1, 2, 100] {
            let (mut told, mut page) = (Vec::new(), PageRequest::first(rows_max));
            loop {
                let found = repository.usage_totals(by, &days, &page).await.unwrap();
                for UsageTotal { group, rule, amounts } in found.rows {
                    let (tokens, requests) = (amounts.admitted, amounts.admitted_requests);
                    told.push(format!("{group}| {rule} {tokens} {requests}"));
                }
                match found.next {
                    Some(next) => page = PageRequest::after(next, rows_max),
                    None => break,
                }
            }
            assert_eq!(told, expected, "{by:?} by {rows_max}");
        }
    }
    let page = PageRequest::after(Cursor::of_text("5b5d"), 7);
    let error = repository.usage_totals(UsageGroup::Tier, &days, &page).await;
    assert!(matches!(error, Err(RepositoryError::Cursor)));
}

/// A client may ask for a cost of any size and be denied. Two such rows once were more than a database adds up.
pub(crate) async fn totals_of_the_largest_numbers_are_the_largest_number(database: TestDatabase) {
    let repository = &database.repository;
    let large = ["u", "v", "w"].map(|subject| used(1, subject, i64::MAX));
    repository.add_usage("n", 1, &large).await.unwrap();
    repository.add_usage("n", 2, &[used(2, "x", -5)]).await.unwrap();
    for (first_day, expected) in [(1, i64::MAX), (2, -5)] {
        let filter = UsageFilter { first_day: Some(first_day), ..UsageFilter::default() };
        let page = PageRequest::first(9);
        let page = repository.usage_totals(UsageGroup::Rule, &filter, &page).await.unwrap();
        assert_eq!(page.rows[0].amounts.admitted, expected);
    }
}

pub(crate) async fn nodes_are_known_by_what_they_enforce_until_they_are_silent(
    database: TestDatabase,
) {
    let repository = &database.repository;
    repository.report_node("b", 7, "redis:shop").await.unwrap();
    database.clock.advance(Duration::from_secs(10));
    repository.report_node("a", 8, "memory").await.unwrap();
    let told = async || {
        let nodes = repository.nodes().await.unwrap();
        nodes.into_iter().map(|node| (node.node, node.revision)).collect::<Vec<_>>()
    };
    assert_eq!(told().await, [("a".to_owned(), 8), ("b".to_owned(), 7)]);
    let stores: Vec<_> =
        repository.nodes().await.unwrap().into_iter().map(|node| node.store).collect();
    assert_eq!(stores, [Some("memory".to_owned()), Some("redis:shop".to_owned())]);
    // A node of a version before loans does not say that it knows them.
    database.execute("UPDATE rate_limit_nodes SET knows_loans = NULL WHERE node = 'b'");
    let know_loans: Vec<_> =
        repository.nodes().await.unwrap().into_iter().map(|node| node.knows_loans).collect();
    assert_eq!(know_loans, [true, false]);
    assert_eq!(repository.forget_nodes(database.clock_now()).await.unwrap(), 1);
    repository.report_node("a", 9, "memory").await.unwrap();
    assert_eq!(told().await, [("a".to_owned(), 9)]);
}

pub(crate) async fn a_newer_schema_is_refused(database: TestDatabase) {
    database.execute("INSERT INTO rate_limit_schema (number) VALUES (99)");
    let error = Repository::open(&database.location).await.unwrap_err();
    let is_told = matches!(error, RepositoryError::NewerSchema { found: 99, .. });
    assert!(is_told && error.to_string().contains("schema 99"), "{error}");
}
