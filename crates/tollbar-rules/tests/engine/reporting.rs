//! Shadows and candidates.

use crate::support::{answer, check, engine};
use tollbar_rules::Enforcement;

#[test]
fn shadows_and_candidates_report_and_never_deny() {
    let engine = engine(
        "rules:
         - { name: live, limit: 4/h, candidate: { limit: 2/h } }
         - { name: shadow, mode: shadow, limit: 1/h, stop: true, priority: 9, replaces: live }",
    );
    let reports = |request: &str| {
        let verdict = check(&engine, request);
        let would: Vec<String> = verdict
            .would_deny()
            .map(|limit| format!("{} {:?}", limit.rule().name, limit.enforcement()))
            .collect();
        (answer(&verdict), would.join(", "))
    };
    let row = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(reports("GET /"), row("allow live 3", ""));
    assert_eq!(reports("GET /"), row("allow live 2", "shadow Shadow"));
    assert_eq!(reports("GET /"), row("allow live 1", "shadow Shadow, live Candidate"));
    assert_eq!(reports("GET /"), row("allow live 0", "shadow Shadow, live Candidate"));
    assert_eq!(reports("GET /"), row("deny live", "shadow Shadow, live Candidate"));
}

#[test]
fn a_shadow_is_charged_only_if_the_live_verdict_allows() {
    let engine = engine(
        "rules:
         - { name: live, per: user, limit: 1/h }
         - { name: shadow, mode: shadow, per: [], limit: 2/h }",
    );
    for _ in 0..5 {
        let _ = check(&engine, "GET / user=1");
    }
    let verdict = check(&engine, "GET / user=2");
    let shadow =
        verdict.decisions().find(|limit| limit.enforcement() == Enforcement::Shadow).unwrap();
    assert_eq!((shadow.decision().is_allowed(), shadow.decision().remaining().unwrap()), (true, 0));
}
