//! Reservations that are settled by a text.

use std::sync::Arc;
use std::time::Duration;

use tollbar::store::block_on;
use tollbar::{ManualClock, MemoryStore, RECEIPT_BYTES_MAX};
use tollbar_rules::TokenError::NotAccepted;
use tollbar_rules::{AsyncEngine, Engine, Request, RuleSet, RuleSettlement, TokenError};

use crate::support::{
    answer, check, clock, engine, engine_at, engine_without_store, expect, reserve, rules,
};

/// That of `engine_without_store` too.
const SECRET: [u8; 32] = [1; 32];

const TTL: Duration = Duration::from_mins(1);

const TOKENS: &str = "rules:
  - { name: everybody, per: [], limit: 5000/h, cost: 2, algorithm: fixed_window }
  - { name: per_user, per: user, limit: 1000/h, algorithm: fixed_window }";

fn store(clock: &ManualClock) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build())
}

fn over(store: &Arc<MemoryStore>, rules: RuleSet, secret: [u8; 32]) -> Engine {
    Engine::builder(rules).store(store.clone()).receipt_secret(secret).build()
}

fn receipt(engine: &AsyncEngine, line: &str) -> String {
    engine.token(reserve(engine, line, TTL).hold.unwrap()).unwrap()
}

fn commit(
    engine: &AsyncEngine,
    receipt: &str,
    spent: Option<u64>,
) -> Result<RuleSettlement, TokenError> {
    block_on(engine.settle(&engine.resume(receipt)?, spent))
}

fn cancel(engine: &AsyncEngine, receipt: &str) -> Result<RuleSettlement, TokenError> {
    block_on(engine.cancel(&engine.resume(receipt)?))
}

#[test]
fn what_was_not_spent_comes_back_and_what_was_missing_is_charged() {
    let engine = engine(TOKENS);
    let first = receipt(&engine, "POST / user=1 cost=300");
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 700")]);
    let settled = commit(&engine, &first, Some(120)).unwrap();
    let charges: Vec<_> = settled
        .limits
        .iter()
        .map(|limit| {
            (limit.rule.as_str(), limit.reserved, limit.spent, limit.refunded, limit.overdrawn)
        })
        .collect();
    assert_eq!(charges, [("everybody", 600, 240, 360, 0), ("per_user", 300, 120, 180, 0)]);
    assert_eq!(settled.permits_returned, 0);
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 880")]);
    expect(&engine, &[("GET / user=2 cost=0", "allow everybody 4760")]);

    let second = receipt(&engine, "POST / user=1 cost=100");
    let settled = commit(&engine, &second, Some(150)).unwrap();
    assert_eq!((settled.limits[1].refunded, settled.limits[1].overdrawn), (0, 50));
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 730")]);

    let third = receipt(&engine, "POST / user=1 cost=100");
    let settled = commit(&engine, &third, None).unwrap();
    assert_eq!((settled.limits[1].spent, settled.limits[1].refunded), (100, 0));
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 630")]);

    let fourth = receipt(&engine, "POST / user=1 cost=630");
    assert_eq!(cancel(&engine, &fourth).unwrap().limits[1].refunded, 630);
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 630")]);
}

#[test]
fn a_receipt_is_redeemed_once_and_in_time() {
    let clock = clock();
    let engine = engine_at(TOKENS, &clock);
    let first = receipt(&engine, "POST / user=1 cost=300");
    commit(&engine, &first, Some(100)).unwrap();
    for again in
        [commit(&engine, &first, Some(0)), commit(&engine, &first, None), cancel(&engine, &first)]
    {
        assert!(matches!(again, Err(TokenError::NotOpen)));
    }
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 900")]);
    let late = receipt(&engine, "POST / user=1 cost=300");
    clock.advance(TTL);
    assert!(matches!(cancel(&engine, &late), Err(TokenError::NotOpen)));
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 600")]);
}

#[test]
fn nothing_is_given_out_where_nothing_was_charged() {
    let engine = engine(
        "rules:
         - { name: a, match: { path: /a }, limit: 1/h, algorithm: fixed_window }
         - { name: b, match: { path: /b }, unlimited: true }",
    );
    let of = |line| {
        let reservation = reserve(&engine, line, TTL);
        (answer(&reservation.verdict), reservation.hold.is_some())
    };
    assert_eq!(of("GET /a"), ("allow a 0".to_owned(), true));
    assert_eq!(of("GET /a"), ("deny a".to_owned(), false));
    assert_eq!(of("GET /b"), ("allow b (unlimited)".to_owned(), false));
    assert_eq!(of("GET /c"), ("allow (no rule)".to_owned(), false));
    let down = engine_without_store(TOKENS);
    let reservation = reserve(&down, "GET / user=1", TTL);
    assert!(reservation.verdict.is_allowed() && reservation.verdict.degraded().is_some());
    assert!(reservation.hold.is_none());
    let open = receipt(&engine, "GET /a user=2");
    assert!(matches!(commit(&down, &open, None), Err(TokenError::NotAccepted(_))));
    let ours = receipt(&over(&store(&clock()), rules(TOKENS), SECRET), "GET / user=1");
    assert!(matches!(commit(&down, &ours, None), Err(TokenError::Store(_))));
}

/// Settling what was never charged would give tokens away.
#[test]
fn a_request_that_was_not_charged_holds_no_reservation() {
    let engine = engine(
        "rules:
         - { name: everybody, per: [], limit: 100/h }
         - { name: per_user, per: user, limit: 1/h, algorithm: fixed_window }",
    );
    let admit = || reserve(&engine, "GET / user=1", TTL);
    assert!(admit().hold.is_some_and(|hold| hold.is_reservation()));
    let denied = admit();
    assert_eq!(answer(&denied.verdict), "deny per_user");
    assert!(denied.hold.is_none());
    let allowed = reserve(&engine_without_store(TOKENS), "GET / user=1", TTL);
    assert!(allowed.verdict.is_allowed() && allowed.verdict.degraded().is_some());
    assert!(allowed.hold.is_none());
}

/// Both are the same reservation, and it is settled once.
#[test]
fn a_reservation_is_settled_in_this_process_or_by_its_text() {
    let engine = engine(TOKENS);
    let hold = reserve(&engine, "POST / user=1 cost=300", TTL).hold.unwrap();
    assert_eq!(engine.settle(&hold, Some(120)).unwrap().limits[1].refunded, 180);
    assert!(matches!(engine.settle(&hold, Some(0)), Err(TokenError::NotOpen)));
    let text = engine.token(hold).unwrap();
    assert!(matches!(cancel(&engine, &text), Err(TokenError::NotOpen)));
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 880")]);
}

/// The hold is open until the store has answered.
#[test]
fn a_reservation_that_could_not_be_settled_can_be_settled_later() {
    let clock = clock();
    let memory = store(&clock);
    let later = Arc::new(tollbar_testkit::later_store::LaterStore::new(memory));
    let engine = AsyncEngine::builder(rules(TOKENS), later.clone()).build().unwrap();
    let hold = reserve(&engine, "POST / user=1 cost=300", TTL).hold.unwrap();
    later.set_down(true);
    assert!(matches!(block_on(engine.settle(&hold, Some(1))), Err(TokenError::Store(_))));
    later.set_down(false);
    assert_eq!(block_on(engine.settle(&hold, Some(1))).unwrap().limits[1].refunded, 299);
}

/// Somebody else's process, other rules, and the same store: everything is on the receipt.
#[test]
fn a_receipt_is_redeemed_whatever_has_become_of_the_rules() {
    let clock = clock();
    let store = store(&clock);
    let engine = over(&store, rules(TOKENS), SECRET);
    let other_node = over(&store, rules("rules: [{ name: other, limit: 1/s }]"), SECRET);
    let stranger = over(&store, rules(TOKENS), [8; 32]);
    let first = receipt(&engine, "POST / user=1 cost=300");
    let second = receipt(&engine, "POST / user=1 cost=300");
    let NotAccepted(error) = cancel(&stranger, &first).unwrap_err() else {
        panic!("accepted under another secret");
    };
    assert_eq!(error, tollbar::ReceiptError::NotOurs);
    commit(&other_node, &first, Some(100)).unwrap();
    engine.replace(rules("rules: [{ name: new, limit: 1/s }]"));
    cancel(&engine, &second).unwrap();
    engine.replace(rules(TOKENS));
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 900")]);
}

#[test]
fn a_receipt_is_redeemed_after_a_restart_with_a_snapshot() {
    let clock = clock();
    let before = store(&clock);
    let engine = over(&before, rules(TOKENS), SECRET);
    let open = receipt(&engine, "POST / user=1 cost=300");
    let settled = receipt(&engine, "POST / user=1 cost=50");
    cancel(&engine, &settled).unwrap();
    let mut bytes = Vec::new();
    before.write_snapshot(&mut bytes).unwrap();
    let builder = MemoryStore::builder().max_keys(1_000).clock(clock);
    let after = Arc::new(builder.restore(&mut bytes.as_slice()).unwrap());
    let engine = over(&after, rules(TOKENS), SECRET);
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 700")]);
    assert!(matches!(cancel(&engine, &settled), Err(TokenError::NotOpen)));
    commit(&engine, &open, Some(1)).unwrap();
    assert!(matches!(cancel(&engine, &open), Err(TokenError::NotOpen)));
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 999")]);
}

#[test]
fn the_same_request_gets_the_same_receipt() {
    let engine = engine(TOKENS);
    let first = receipt(&engine, "POST / user=1 cost=300 id=a");
    let again = receipt(&engine, "POST / user=1 cost=300 id=a");
    assert_eq!(first, again);
    assert_ne!(first, receipt(&engine, "POST / user=1 cost=300 id=b"));
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 400")]);
    cancel(&engine, &first).unwrap();
    assert!(matches!(cancel(&engine, &again), Err(TokenError::NotOpen)));
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 700")]);
}

#[test]
fn texts_that_are_not_ours_are_refused_without_a_panic() {
    let engine = engine(TOKENS);
    let ours = receipt(&engine, "POST / user=1 cost=300");
    assert!(ours.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
    let long = "A".repeat(100_000);
    for text in ["", "?", "AAAA", "é", &ours[1..], &ours[..ours.len() - 1], &long] {
        assert!(matches!(commit(&engine, text, None), Err(NotAccepted(_))), "{text:.20}");
        assert!(matches!(cancel(&engine, text), Err(NotAccepted(_))), "{text:.20}");
    }
    // Any one character changed.
    for at in 0..ours.len() - 1 {
        let mut text = ours.clone().into_bytes();
        text[at] = if text[at] == b'A' { b'B' } else { b'A' };
        let text = String::from_utf8(text).unwrap();
        assert!(matches!(cancel(&engine, &text), Err(NotAccepted(_))), "character {at}");
    }
    cancel(&engine, &ours).unwrap();
}

#[test]
fn keys_that_do_not_fit_a_receipt_are_denied_before_anything_is_charged() {
    let limits = "[9/s, 9/min, 9/h, 9/day, 9/2s, 9/2min, 9/2h]";
    let engine = engine(&format!("rules: [{{ name: a, per: user, limit: {limits} }}]"));
    let user = "u".repeat(8_000);
    let attributes = [("user", &*user)];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    let reservation = engine.admit(&request, Some(TTL));
    assert_eq!(answer(&reservation.verdict), "busy (too long)");
    assert!(reservation.hold.is_none());
    assert_eq!(answer(&engine.check(&request.with_cost(0))), "allow a 9");
    let attributes = [("user", &user[..6_500])];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    let text = engine.token(engine.admit(&request, Some(TTL)).hold.unwrap()).unwrap();
    assert!(text.len() <= RECEIPT_BYTES_MAX / 3 * 4);
    cancel(&engine, &text).unwrap();
}

#[test]
fn what_only_reports_is_settled_as_far_as_it_was_charged() {
    let engine = engine(
        "rules:
         - { name: live, per: [], limit: 100/h, algorithm: fixed_window, candidate: { limit: 50/h } }
         - { name: shadow, mode: shadow, per: [], limit: 20/h, algorithm: fixed_window }",
    );
    let first = receipt(&engine, "GET / cost=30");
    let settled = commit(&engine, &first, Some(10)).unwrap();
    let rules: Vec<&str> = settled.limits.iter().map(|limit| limit.rule.as_str()).collect();
    assert_eq!(rules, ["live", "live#candidate"], "the shadow would have denied");
    let verdict = check(&engine, "GET / cost=0");
    let left: Vec<u64> =
        verdict.decisions().map(|limit| limit.decision().remaining().unwrap()).collect();
    assert_eq!(left, [90, 40, 20]);
}

#[test]
fn a_receipt_holds_permits_too() {
    let clock = clock();
    let engine = engine_at(
        "rules:
         - { name: busy, per: [], algorithm: concurrency, limit: 2, lease: 30s }
         - { name: plain, per: [], algorithm: concurrency, limit: 5 }
         - { name: tokens, per: [], limit: 100/h, algorithm: fixed_window }",
        &clock,
    );
    let (first, second) = (receipt(&engine, "GET /"), receipt(&engine, "GET /"));
    let renew = |text: &str| engine.renew(&engine.resume(text).unwrap()).unwrap();
    expect(&engine, &[("GET /", "busy busy")]);
    let settled = commit(&engine, &first, Some(7)).unwrap();
    assert_eq!((settled.limits.len(), settled.permits_returned), (1, 2));
    assert_eq!(settled.limits[0].overdrawn, 6);
    let hold = engine.resume(&second).unwrap();
    assert!(matches!(engine.release(&hold), Err(TokenError::IsReservation)));
    clock.advance(Duration::from_secs(20));
    assert!(renew(&second).is_some());
    clock.advance(Duration::from_secs(20));
    expect(&engine, &[("GET / cost=0", "allow busy 1")]);
    clock.advance(Duration::from_secs(9));
    assert_eq!(renew(&second), Some(engine.now().after(Duration::from_secs(30))));
    // The reservation's time is up, but its lease still lasts. A cancel returns the lease.
    clock.advance(Duration::from_secs(11));
    expect(&engine, &[("GET / cost=0", "allow busy 1")]);
    assert!(matches!(cancel(&engine, &second), Err(TokenError::NotOpen)));
    // The permit without a lease is lost with the reservation: a token cannot tell whether the permit was
    // returned before.
    expect(&engine, &[("GET / cost=0", "allow plain 4")]);
    assert_eq!(renew(&second), None);
}
