//! `CL.THROTTLE` beside an exact model of GCRA, and the numbers around each boundary.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tollbar::{Clock, ManualClock};
use tollbar_rules::{Effect, Override};

use super::super::session::Session;
use super::super::tests::{clock, frame, reply, shared, words};
use super::*;
use crate::net::Peer;

/// The five numbers, or the error.
async fn ask(session: &mut Session, command: &[u8]) -> Result<[i64; 5], String> {
    let mut replies = Replies::default();
    session.answer(command, &mut replies).await;
    let text = String::from_utf8(replies.bytes().to_vec()).unwrap();
    let Some(parameters) = text.strip_prefix("*5\r\n") else {
        return Err(text);
    };
    let parameters: Vec<i64> = parameters.lines().map(|line| line[1..].parse().unwrap()).collect();
    Ok(parameters.try_into().unwrap())
}

fn session(clock: &ManualClock) -> Session {
    Session::new(shared(clock, None), 1, Peer::Unix)
}

#[tokio::test]
async fn redis_cells_own_table_holds() {
    // The table of redis-cell's test `it_rate_limits`: a limit of 5, one a second; times in ms.
    let clock = clock();
    let mut session = session(&clock);
    let mut now_ms = 0;
    for (at_ms, quantity, expected) in [
        (0, 6, [1, 5, 5, -1, 0]),
        (0, 1, [0, 5, 4, -1, 1]),
        (0, 1, [0, 5, 3, -1, 2]),
        (0, 1, [0, 5, 2, -1, 3]),
        (0, 1, [0, 5, 1, -1, 4]),
        (0, 1, [0, 5, 0, -1, 5]),
        (0, 1, [1, 5, 0, 1, 5]),
        (3_000, 1, [0, 5, 2, -1, 3]),
        (3_100, 1, [0, 5, 1, -1, 4]),
        (4_000, 1, [0, 5, 1, -1, 4]),
        (8_000, 1, [0, 5, 4, -1, 1]),
        (9_500, 1, [0, 5, 4, -1, 1]),
        (9_500, 0, [0, 5, 4, -1, 1]),
        (9_500, 2, [0, 5, 2, -1, 3]),
        (9_500, 5, [1, 5, 2, 3, 3]),
    ] {
        clock.advance(Duration::from_millis(at_ms - now_ms));
        now_ms = at_ms;
        let told = ask(&mut session, &words(&format!("CL.THROTTLE foo 4 1 1 {quantity}"))).await;
        assert_eq!(told, Ok(expected), "{quantity} at {at_ms} ms");
    }
}

#[tokio::test]
async fn waits_round_up_to_whole_seconds_from_the_first_microsecond() {
    for (later_us, retry_after, reset_after) in [
        (0, 2, 2),
        (1, 2, 2),
        (999_999, 2, 2),
        // redis-cell drops what is below a millisecond, and says 1 here: who came back then would
        // come too early.
        (999_500, 2, 2),
        (1_000_000, 1, 1),
        (1_000_001, 1, 1),
        (1_999_999, 1, 1),
    ] {
        let clock = clock();
        let mut session = session(&clock);
        let command = words("CL.THROTTLE k 0 1 2");
        assert_eq!(ask(&mut session, &command).await, Ok([0, 1, 0, -1, 2]));
        clock.advance(Duration::from_micros(later_us));
        let expected = [1, 1, 0, retry_after, reset_after];
        assert_eq!(ask(&mut session, &command).await, Ok(expected), "{later_us} us later");
        clock.advance(Duration::from_secs(retry_after.unsigned_abs()));
        assert_eq!(ask(&mut session, &command).await, Ok([0, 1, 0, -1, 2]), "{later_us} us later");
    }
}

#[tokio::test]
async fn what_cannot_be_used_is_told_in_redis_cells_words() {
    let usage = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
    let mut session = session(&clock());
    for (command, expected) in [
        ("CL.THROTTLE", usage),
        ("CL.THROTTLE k 1 1", usage),
        ("cl.throttle k 1 1 1 1 1", usage),
        ("CL.THROTTLE k x 1 1", "Couldn't parse as integer: x"),
        ("CL.THROTTLE k 1 1.5 1", "Couldn't parse as integer: 1.5"),
        ("CL.THROTTLE k 1 1 9223372036854775808", "Couldn't parse as integer: 9223372036854775808"),
        ("CL.THROTTLE k 1 1 1 ", "Couldn't parse as integer: "),
        ("CL.THROTTLE k -1 1 1", "max_burst is -1: send at least 0"),
        ("CL.THROTTLE k 1 0 1", "count is 0: send at least 1"),
        ("CL.THROTTLE k 1 1 0", "period is 0: send at least 1"),
        ("CL.THROTTLE k 1 1 1 -1", "quantity is -1: send at least 0"),
        (
            "CL.THROTTLE k 1 1 9223372036854775807",
            "the period is longer than 366 days: send a shorter period, a smaller max_burst or a larger count",
        ),
        (
            "CL.THROTTLE k 9223372036854775807 1 1",
            "the time until a used-up key is whole again is longer than 366 days: send a shorter period, a smaller \
             max_burst or a larger count",
        ),
        (
            "CL.THROTTLE k 366 1 86400",
            "the time until a used-up key is whole again is longer than 366 days: send a shorter period, a smaller \
             max_burst or a larger count",
        ),
    ] {
        let told = ask(&mut session, &words(command)).await;
        assert_eq!(told, Err(format!("-Cell error: {expected}\r\n")), "{command}");
    }
    assert_eq!(
        ask(&mut session, &words("CL.THROTTLE y 365 1 86400 0")).await.map(|all| all[0]),
        Ok(0)
    );
    assert_eq!(ask(&mut session, &words("CL.THROTTLE k 1 +1 1")).await, Ok([0, 2, 1, -1, 1]));
    let most = words("CL.THROTTLE k 1 1 1 9223372036854775807");
    assert_eq!(ask(&mut session, &most).await, Ok([1, 2, 1, -1, 1]));
}

#[tokio::test]
async fn an_error_within_a_pipeline_takes_its_own_place_and_no_other() {
    let mut session = session(&clock());
    let mut asked = Vec::new();
    for command in ["CL.THROTTLE k 1 1 1", "CL.THROTTLE k x", "CL.THROTTLE k 1 1 1", "PING"] {
        asked.extend(words(command));
    }
    let mut replies = Replies::default();
    session.answer(&asked, &mut replies).await;
    assert_eq!(
        str::from_utf8(replies.bytes()).unwrap(),
        "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:1\r\n-Cell error: Usage: cl.throttle <key> <max_burst> <count \
         per period> <period> [<quantity>]\r\n*5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:2\r\n+PONG\r\n"
    );
}

#[tokio::test]
async fn keys_of_commands_and_keys_of_rules_do_not_meet() {
    let mut session = session(&clock());
    // The key that the rule `per_user` has for user 1 is not to be had from outside, so the rule's
    // counter is emptied, and what a command of the same numbers and any key sees is a fresh one.
    let mut replies = Replies::default();
    session.answer(&words("TB.CHECK GET /v1/a COST 10 WITH user 1"), &mut replies).await;
    for key in ["1", "a1", "user:1", "per_user"] {
        let told = ask(&mut session, &words(&format!("CL.THROTTLE {key} 9 10 86400"))).await;
        assert_eq!(told, Ok([0, 10, 9, -1, 8_640]), "{key}");
    }
    let policy = ThrottleParameters { max_burst: 0, count: 1, period_s: 1 }.policy().unwrap();
    assert_eq!(policy.name(), Some(POLICY_NAME));
    assert!(POLICY_NAME.contains(' '), "no rule can be called that");
}

#[tokio::test]
async fn any_number_of_limits_is_served_and_few_are_kept() {
    let mut session = session(&clock());
    for round in 0..2 {
        for burst in 0..300 {
            let command = words(&format!("CL.THROTTLE k{burst} {burst} 1 60"));
            let told = ask(&mut session, &command).await.unwrap();
            assert_eq!(told[..3], [i64::from(round > burst), burst + 1, (burst - round).max(0)]);
        }
    }
    let shared = shared(&clock(), None);
    let mut limits = ThrottleLimits::default();
    for burst in 0..1_000 {
        let command = words(&format!("CL.THROTTLE k {burst} 1 60"));
        let mut throttles = Throttles::default();
        let mut arguments = Arguments::new();
        super::super::frame::parse(&command, &mut arguments).unwrap();
        throttles.push(Throttle::parse(&arguments).unwrap(), &shared, &mut limits).unwrap();
        throttles.decide(&shared, &mut limits, &mut Replies::default()).await;
        assert!(limits.known.len() <= POLICIES_MAX);
    }
}

#[tokio::test]
async fn bans_and_boosts_under_every_rule_apply() {
    let clock = clock();
    let shared = shared(&clock, None);
    let mut session = Session::new(Arc::clone(&shared), 1, Peer::Unix);
    let overrides = vec![
        Override::new("bare", Effect::Ban),
        Override::new("user:3", Effect::Boost { factor_percent: 300 }),
    ];
    let engine = &shared.daemon.engine;
    engine.replace(engine.rules().with_overrides(overrides)).unwrap();
    for (key, expected) in [("bare", [1, 2, 0, -1, -1]), ("user:2", [0, 2, 1, -1, 1])] {
        let told = ask(&mut session, &words(&format!("CL.THROTTLE {key} 1 1 1"))).await;
        assert_eq!(told, Ok(expected), "{key}");
    }
    // Three times as much, at three times the pace.
    let told = ask(&mut session, &words("CL.THROTTLE user:3 1 1 1 6")).await;
    assert_eq!(told, Ok([0, 6, 0, -1, 2]));
    // What was banned has paid nothing; keys that are no text are nobody's.
    engine.replace(engine.rules().with_overrides(Vec::new())).unwrap();
    assert_eq!(ask(&mut session, &words("CL.THROTTLE bare 1 1 1")).await, Ok([0, 2, 1, -1, 1]));
    let ban = Override::new("user:9", Effect::Ban);
    engine.replace(engine.rules().with_overrides(vec![ban])).unwrap();
    let command = frame(&[b"CL.THROTTLE", b"user:9\xff", b"1", b"1", b"1"]);
    assert_eq!(ask(&mut session, &command).await, Ok([0, 2, 1, -1, 1]));
}

#[tokio::test]
async fn a_denial_can_be_looked_up() {
    let shared = shared(&clock(), None);
    let mut session = Session::new(Arc::clone(&shared), 1, Peer::Unix);
    for is_limited in [0, 1] {
        let told = ask(&mut session, &words("CL.THROTTLE user:1 0 1 60")).await;
        assert_eq!(told.unwrap()[0], is_limited);
    }
    let [denial] = &shared.daemon.decision_log.latest(9)[..] else {
        panic!("what was allowed is not kept");
    };
    assert_eq!(
        denial.request.as_deref(),
        Some(r#"{"cost":1,"rule":"CL.THROTTLE","subject":"user:1"}"#)
    );
    let mut replies = Replies::default();
    session.answer(&words(&format!("TB.EXPLAIN {}", denial.id)), &mut replies).await;
    let text = str::from_utf8(replies.bytes()).unwrap();
    let why = "`CL.THROTTLE` allows 1/60s, 1 at once: the request cost 1, 0 were left";
    assert!(text.starts_with('$') && text.contains(why), "{text}");
    for (id, expected) in [
        ("0".repeat(32), "$-1\r\n".to_owned()),
        (
            "x".to_owned(),
            "-ERR `x` is no decision id: write its 32 digits, as a denial or the log has them\r\n"
                .to_owned(),
        ),
    ] {
        replies.clear(0);
        session.answer(&words(&format!("TB.EXPLAIN {id}")), &mut replies).await;
        assert_eq!(str::from_utf8(replies.bytes()).unwrap(), expected);
    }
}

/// Five numbers had no place for a decision id, so that only the log had it.
#[tokio::test]
async fn a_client_that_asks_for_the_decision_id_gets_it_with_the_denial() {
    let shared = shared(&clock(), None);
    let ban = Override::new("user:9", Effect::Ban);
    let engine = &shared.daemon.engine;
    engine.replace(engine.rules().with_overrides(vec![ban])).unwrap();
    let mut session = Session::new(Arc::clone(&shared), 1, Peer::Unix);
    let mut told = async |command: &str| reply(&mut session, command).await;
    let allowed = told("CL.THROTTLE user:1 0 1 60 WITHID").await;
    assert_eq!(allowed, "*6\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:60\r\n$-1\r\n");
    let numbers = "*6\r\n:1\r\n:1\r\n:0\r\n:60\r\n:60\r\n$32\r\n";
    for (command, numbers) in [
        ("CL.THROTTLE user:1 0 1 60 1 withid", numbers),
        ("CL.THROTTLE user:9 0 1 60 WITHID", "*6\r\n:1\r\n:1\r\n:0\r\n:-1\r\n:-1\r\n$32\r\n"),
    ] {
        let denied = told(command).await;
        let id = denied.strip_prefix(numbers).unwrap_or_else(|| panic!("{denied}")).trim_end();
        let why = told(&format!("TB.EXPLAIN {id}")).await;
        let subject = format!(r#""subject":"{}""#, command.split(' ').nth(1).unwrap());
        assert!(why.contains(&subject), "{why}");
    }
    for command in ["CL.THROTTLE user:1 0 1 60 WITHID 1", "CL.THROTTLE user:1 0 1 60 1 1"] {
        assert!(told(command).await.starts_with("-Cell error: Usage: "), "{command}");
    }
}

/// GCRA as its definition has it, in units of `1 / count` microsecond, in which all is whole.
#[derive(Default)]
struct Gcra {
    arrivals: HashMap<u8, u128>,
}

impl Gcra {
    fn ask(
        &mut self,
        key: u8,
        parameters: ThrottleParameters,
        quantity: u64,
        now_us: u64,
    ) -> [i64; 5] {
        let count = u128::from(parameters.count);
        let now = u128::from(now_us) * count;
        let interval = u128::from(parameters.period_s) * 1_000_000;
        let tolerance = interval * u128::from(parameters.max_burst + 1);
        let arrival = self.arrivals.get(&key).copied().unwrap_or(0).max(now);
        let next = arrival + interval * u128::from(quantity);
        let seconds = |units: u128| i64::try_from(units.div_ceil(count * 1_000_000)).unwrap();
        let is_limited = next > now + tolerance;
        let arrival = if is_limited { arrival } else { next };
        self.arrivals.insert(key, arrival);
        let is_ever = interval * u128::from(quantity) <= tolerance;
        let retry_after = if is_limited && is_ever { seconds(next - now - tolerance) } else { -1 };
        let remaining = (tolerance - (arrival - now)) / interval;
        let limit = i64::try_from(parameters.max_burst + 1).unwrap();
        let remaining = i64::try_from(remaining).unwrap();
        [i64::from(is_limited), limit, remaining, retry_after, seconds(arrival - now)]
    }
}

proptest! {
    #[test]
    fn commands_are_decided_as_gcra_decides(
        max_burst in 0_u64..30,
        count in 1_u64..100,
        period_s in 1_u64..120,
        steps in prop::collection::vec((0_u8..3, 0_u64..40, 0_u64..3_000_000, 0_u32..22), 1..80),
    ) {
        let parameters = ThrottleParameters { max_burst, count, period_s };
        let clock = clock();
        let mut session = session(&clock);
        let mut model = Gcra::default();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (key, quantity, later_us, shift) in steps {
            clock.advance(Duration::from_micros(later_us >> shift));
            let command = format!("CL.THROTTLE {key} {max_burst} {count} {period_s} {quantity}");
            let told = runtime.block_on(ask(&mut session, &words(&command)));
            let expected = model.ask(key, parameters, quantity, clock.now().as_micros());
            prop_assert_eq!(told, Ok(expected), "{}", command);
        }
    }
}
