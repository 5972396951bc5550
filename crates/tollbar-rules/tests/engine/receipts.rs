//! Reservations that are settled by a text.

use std::sync::Arc;
use std::time::Duration;

use tollbar::{ManualClock, MemoryStore, RECEIPT_BYTES_MAX};
use tollbar_rules::ReceiptError::NotAccepted;
use tollbar_rules::{Engine, ReceiptError, Request, Reservation, RuleSet};

use crate::support::{answer, ask, check, clock, engine, engine_at, expect, rules};
use tollbar_testkit::failing_store::FailingStore;

const SECRET: [u8; 32] = [7; 32];

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

fn reserve(engine: &Engine, line: &str) -> Reservation {
    ask(line, |request| engine.reserve(request, TTL))
}

fn receipt(engine: &Engine, line: &str) -> String {
    reserve(engine, line).receipt.unwrap()
}

#[test]
fn what_was_not_spent_comes_back_and_what_was_missing_is_charged() {
    let engine = engine(TOKENS);
    let first = receipt(&engine, "POST / user=1 cost=300");
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 700")]);
    let settled = engine.commit(&first, Some(120)).unwrap();
    let charges: Vec<_> = settled
        .charges
        .iter()
        .map(|it| (it.rule.as_str(), it.reserved, it.spent, it.refunded, it.overdrawn))
        .collect();
    assert_eq!(charges, [("everybody", 600, 240, 360, 0), ("per_user", 300, 120, 180, 0)]);
    assert_eq!(settled.permits_returned, 0);
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 880")]);
    expect(&engine, &[("GET / user=2 cost=0", "allow everybody 4760")]);

    let second = receipt(&engine, "POST / user=1 cost=100");
    let settled = engine.commit(&second, Some(150)).unwrap();
    assert_eq!((settled.charges[1].refunded, settled.charges[1].overdrawn), (0, 50));
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 730")]);

    let third = receipt(&engine, "POST / user=1 cost=100");
    let settled = engine.commit(&third, None).unwrap();
    assert_eq!((settled.charges[1].spent, settled.charges[1].refunded), (100, 0));
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 630")]);

    let fourth = receipt(&engine, "POST / user=1 cost=630");
    assert_eq!(engine.cancel(&fourth).unwrap().charges[1].refunded, 630);
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 630")]);
}

#[test]
fn a_receipt_is_redeemed_once_and_in_time() {
    let clock = clock();
    let engine = engine_at(TOKENS, &clock);
    let first = receipt(&engine, "POST / user=1 cost=300");
    engine.commit(&first, Some(100)).unwrap();
    for again in
        [engine.commit(&first, Some(0)), engine.commit(&first, None), engine.cancel(&first)]
    {
        assert!(matches!(again, Err(ReceiptError::NotOpen)));
    }
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 900")]);
    let late = receipt(&engine, "POST / user=1 cost=300");
    clock.advance(TTL);
    assert!(matches!(engine.cancel(&late), Err(ReceiptError::NotOpen)));
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
        let reservation = reserve(&engine, line);
        (answer(&reservation.verdict), reservation.receipt.is_some())
    };
    assert_eq!(of("GET /a"), ("allow a 0".to_owned(), true));
    assert_eq!(of("GET /a"), ("deny a".to_owned(), false));
    assert_eq!(of("GET /b"), ("allow b (unlimited)".to_owned(), false));
    assert_eq!(of("GET /c"), ("allow (no rule)".to_owned(), false));
    let down = Engine::builder(rules(TOKENS))
        .clock(clock())
        .store(Arc::new(FailingStore::unavailable()))
        .build();
    let reservation = reserve(&down, "GET / user=1");
    assert!(reservation.verdict.is_allowed() && reservation.verdict.degraded().is_some());
    assert!(reservation.receipt.is_none());
    let open = receipt(&engine, "GET /a user=2");
    let same_secret = Engine::builder(rules(TOKENS)).receipt_secret(SECRET);
    let down = same_secret.clock(clock()).store(Arc::new(FailingStore::unavailable())).build();
    assert!(matches!(down.commit(&open, None), Err(ReceiptError::NotAccepted(_))));
    let ours = receipt(&over(&store(&clock()), rules(TOKENS), SECRET), "GET / user=1");
    assert!(matches!(down.commit(&ours, None), Err(ReceiptError::Store(_))));
}

/// Settling what was never charged would give tokens away.
#[test]
fn a_request_that_was_not_charged_holds_no_reservation() {
    let engine = engine(
        "rules:
         - { name: everybody, per: [], limit: 100/h }
         - { name: per_user, per: user, limit: 1/h, algorithm: fixed_window }",
    );
    let admit = || ask("GET / user=1", |request| engine.admit(request, Some(TTL)));
    assert!(admit().holding.is_some_and(|holding| holding.is_reserved()));
    let denied = admit();
    assert_eq!(answer(&denied.verdict), "deny per_user");
    assert!(denied.holding.is_none());
    let down = Engine::builder(rules(TOKENS))
        .clock(clock())
        .store(Arc::new(FailingStore::unavailable()))
        .build();
    let allowed = ask("GET / user=1", |request| down.admit(request, Some(TTL)));
    assert!(allowed.verdict.is_allowed() && allowed.verdict.degraded().is_some());
    assert!(allowed.holding.is_none());
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
    let NotAccepted(error) = stranger.cancel(&first).unwrap_err() else {
        panic!("accepted under another secret");
    };
    assert_eq!(error, tollbar::ReceiptError::NotOurs);
    other_node.commit(&first, Some(100)).unwrap();
    engine.replace(rules("rules: [{ name: new, limit: 1/s }]"));
    engine.cancel(&second).unwrap();
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
    engine.cancel(&settled).unwrap();
    let mut bytes = Vec::new();
    before.write_snapshot(&mut bytes).unwrap();
    let builder = MemoryStore::builder().max_keys(1_000).clock(clock);
    let after = Arc::new(builder.restore(&mut bytes.as_slice()).unwrap());
    let engine = over(&after, rules(TOKENS), SECRET);
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 700")]);
    assert!(matches!(engine.cancel(&settled), Err(ReceiptError::NotOpen)));
    engine.commit(&open, Some(1)).unwrap();
    assert!(matches!(engine.cancel(&open), Err(ReceiptError::NotOpen)));
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
    engine.cancel(&first).unwrap();
    assert!(matches!(engine.cancel(&again), Err(ReceiptError::NotOpen)));
    expect(&engine, &[("GET / user=1 cost=0", "allow per_user 700")]);
}

#[test]
fn texts_that_are_not_ours_are_refused_without_a_panic() {
    let engine = engine(TOKENS);
    let ours = receipt(&engine, "POST / user=1 cost=300");
    assert!(ours.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'-' || it == b'_'));
    let long = "A".repeat(100_000);
    for text in ["", "?", "AAAA", "é", &ours[1..], &ours[..ours.len() - 1], &long] {
        assert!(matches!(engine.commit(text, None), Err(NotAccepted(_))), "{text:.20}");
        assert!(matches!(engine.cancel(text), Err(NotAccepted(_))), "{text:.20}");
        assert!(matches!(engine.release_text(text), Err(NotAccepted(_))), "{text:.20}");
        assert!(matches!(engine.renew_text(text), Err(NotAccepted(_))), "{text:.20}");
    }
    // Any one character changed.
    for at in 0..ours.len() - 1 {
        let mut text = ours.clone().into_bytes();
        text[at] = if text[at] == b'A' { b'B' } else { b'A' };
        let text = String::from_utf8(text).unwrap();
        assert!(matches!(engine.cancel(&text), Err(NotAccepted(_))), "character {at}");
    }
    engine.cancel(&ours).unwrap();
}

#[test]
fn keys_that_do_not_fit_a_receipt_are_denied_before_anything_is_charged() {
    let limits = "[9/s, 9/min, 9/h, 9/day, 9/2s, 9/2min, 9/2h]";
    let engine = engine(&format!("rules: [{{ name: a, per: user, limit: {limits} }}]"));
    let user = "u".repeat(8_000);
    let attributes = [("user", &*user)];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    let reservation = engine.reserve(&request, TTL);
    assert_eq!(answer(&reservation.verdict), "busy (too long)");
    assert!(reservation.receipt.is_none());
    assert_eq!(answer(&engine.check(&request.with_cost(0))), "allow a 9");
    let attributes = [("user", &user[..6_500])];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    let text = engine.reserve(&request, TTL).receipt.unwrap();
    assert!(text.len() <= RECEIPT_BYTES_MAX / 3 * 4);
    engine.cancel(&text).unwrap();
}

#[test]
fn what_only_reports_is_settled_as_far_as_it_was_charged() {
    let engine = engine(
        "rules:
         - { name: live, per: [], limit: 100/h, algorithm: fixed_window, candidate: { limit: 50/h } }
         - { name: shadow, mode: shadow, per: [], limit: 20/h, algorithm: fixed_window }",
    );
    let first = receipt(&engine, "GET / cost=30");
    let settled = engine.commit(&first, Some(10)).unwrap();
    let rules: Vec<&str> = settled.charges.iter().map(|it| it.rule.as_str()).collect();
    assert_eq!(rules, ["live", "live#candidate"], "the shadow would have denied");
    let verdict = check(&engine, "GET / cost=0");
    let left: Vec<u64> = verdict.decisions().map(|it| it.decision().remaining()).collect();
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
    let first = reserve(&engine, "GET /");
    // It is on the receipt, so that nobody gives it back twice.
    assert!(!first.verdict.holds_permits() && !engine.release(&first.verdict));
    let (first, second) = (first.receipt.unwrap(), receipt(&engine, "GET /"));
    expect(&engine, &[("GET /", "busy busy")]);
    let settled = engine.commit(&first, Some(7)).unwrap();
    assert_eq!((settled.charges.len(), settled.permits_returned), (1, 2));
    assert_eq!(settled.charges[0].overdrawn, 6);
    assert!(matches!(engine.release_text(&second), Err(ReceiptError::IsReservation)));
    clock.advance(Duration::from_secs(20));
    assert!(engine.renew_text(&second).unwrap().is_some());
    clock.advance(Duration::from_secs(20));
    expect(&engine, &[("GET / cost=0", "allow busy 1")]);
    clock.advance(Duration::from_secs(9));
    assert_eq!(
        engine.renew_text(&second).unwrap(),
        Some(engine.now().after(Duration::from_secs(30)))
    );
    // Its time is up, but its lease is not: whoever cancels has done with it.
    clock.advance(Duration::from_secs(11));
    expect(&engine, &[("GET / cost=0", "allow busy 1")]);
    assert!(matches!(engine.cancel(&second), Err(ReceiptError::NotOpen)));
    // The permit that has no lease is lost with the reservation.
    expect(&engine, &[("GET / cost=0", "allow plain 4")]);
    assert_eq!(engine.renew_text(&second).unwrap(), None);
}
