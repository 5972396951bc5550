//! Rules that change between requests, and boosts that come and go.
//!
//! A counter knows nothing of a change: buckets keep their debt as time, windows keep their counts.
//! So whatever the versions of a bucket, and whoever has an old one, each admitted token takes the
//! interval of the version that admitted it, and none lies further ahead than the longest full debt:
//! in any interval, the tokens at their own prices take at most T + that debt. For bursts alone that
//! is burst + rate x T with the largest burst. For a boost it is no more than a bucket of f times the
//! rate and burst admits.

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::{Interval, Outcome, Policy};

use super::{KINDS, Simulation, run, staleness_us};
use crate::bounds::{AdmissionLog, Span, Spans};
use crate::spec::{Kind, PolicySpec};
use crate::strategy::{self, Move};
use crate::subject::Factory;
use crate::suite::stale_time::answer_log::{turn, turns_follow_each_other};

/// A request under one version of its rule.
#[derive(Debug, Clone)]
struct VersionedRequest {
    next_move: Move,
    staleness_us: u64,
    /// Taken modulo the number of versions.
    version: usize,
}

/// What became of a trace.
struct TraceResult {
    /// Of every request, its true time and its version.
    timeline: Vec<(u64, usize)>,
    admitted: Vec<Admission>,
}

struct Admission {
    /// Its place in the timeline.
    request: usize,
    span: Span,
    version: usize,
    delay_us: u64,
}

fn requests(
    staleness_us: impl Strategy<Value = u64>,
) -> impl Strategy<Value = Vec<VersionedRequest>> {
    let next_move = strategy::trace(1..2).prop_map(|moves| moves[0]);
    let request =
        (next_move, staleness_us, 0_usize..4).prop_map(|(next_move, staleness_us, version)| {
            VersionedRequest { next_move, staleness_us, version }
        });
    vec(request, 1..60)
}

/// The same counter under other limits and bursts. Intervals are whole microseconds here, which a
/// change carries over exactly: of a part of one, less than a microsecond may be lost.
fn versions(kind: Kind) -> impl Strategy<Value = Vec<Policy>> {
    let window_us = (1_u64..1_000).prop_map(|parts| parts * 5_040);
    let numbers = vec((1_u64..8, 1_u64..8), 2..4);
    (window_us, numbers, 1_u32..7).prop_map(move |(window_us, numbers, parts)| {
        let version = |(limit, burst)| policy(kind, limit, burst, window_us, parts);
        numbers.into_iter().map(version).collect()
    })
}

/// A policy, and the same with its limit and its burst multiplied: as rules make boosts.
fn boost(kind: Kind) -> impl Strategy<Value = Vec<Policy>> {
    let window_us = (1_u64..1_000).prop_map(|parts| parts * 5_040);
    (window_us, 1_u64..8, 1_u64..8, 2_u64..5, 1_u32..7).prop_map(
        move |(window_us, limit, burst, factor, parts)| {
            [1, factor]
                .map(|factor| policy(kind, limit * factor, burst * factor, window_us, parts))
                .to_vec()
        },
    )
}

fn policy(kind: Kind, limit: u64, burst: u64, window_us: u64, parts: u32) -> Policy {
    let burst = kind.is_bucket().then_some(burst);
    let spec = PolicySpec { burst, ..PolicySpec::new(kind, limit, window_us) }.with_parts(parts);
    spec.build().expect("small numbers are a policy")
}

pub(super) fn changed_rules(factory: &Factory<'_>, trace_count: u32) {
    for kind in KINDS {
        let traces = (versions(kind), requests(staleness_us()));
        run(factory, trace_count, kind.name(), traces, |simulation, (versions, requests)| {
            let key = simulation.keys[0].clone();
            judge(&versions, &key, &play(simulation, &versions, &requests))
        });
    }
    for kind in [Kind::TokenBucket, Kind::LeakyBucket] {
        let traces = (versions(kind), requests(Just(0)));
        run(factory, trace_count, kind.name(), traces, |simulation, (versions, requests)| {
            forgives_as_documented(&versions, &play(simulation, &versions, &requests))
        });
    }
}

pub(super) fn boosts(factory: &Factory<'_>, trace_count: u32) {
    for kind in KINDS {
        let traces = (boost(kind), requests(staleness_us()));
        run(factory, trace_count, kind.name(), traces, |simulation, (versions, requests)| {
            let key = simulation.keys[0].clone();
            judge(&versions, &key, &play(simulation, &versions, &requests))
        });
    }
}

fn play(
    mut simulation: Simulation<'_>,
    versions: &[Policy],
    requests: &[VersionedRequest],
) -> TraceResult {
    let key = simulation.keys[0].clone();
    let mut result = TraceResult { timeline: Vec::new(), admitted: Vec::new() };
    for request in requests {
        let version = request.version % versions.len();
        let policy = &versions[version];
        simulation.trace_state.now =
            simulation.trace_state.advanced(request.next_move.advance, policy);
        let moment = simulation.moment(request.staleness_us);
        result.timeline.push((moment.applied_us, version));
        let cost = simulation.trace_state.cost(request.next_move.price, policy);
        let answer = simulation.subject.check(moment.reading(), &key, policy, cost);
        if answer.outcome == Outcome::Allow && cost > 0 {
            let span = moment.span(cost);
            let (request, delay_us) = (result.timeline.len() - 1, answer.delay_us);
            result.admitted.push(Admission { request, span, version, delay_us });
        }
        simulation.trace_state.last = Some(answer);
    }
    result
}

/// Checks buckets and queues by the price of each token, and windows by the largest limit.
fn judge(versions: &[Policy], key: &[u8], result: &TraceResult) -> Result<(), String> {
    let intervals: Vec<Interval> = versions.iter().filter_map(Policy::interval).collect();
    let judged = if intervals.is_empty() {
        let largest = versions.iter().max_by_key(|policy| policy.limit());
        let largest = largest.expect("a rule has at least one version");
        let admitted = result.admitted.iter().map(|admission| admission.span).collect();
        AdmissionLog { admitted, ..AdmissionLog::default() }.at_most(largest, key)
    } else {
        judge_prices(versions, &intervals, result)
    };
    judged.map_err(|story| format!("{versions:?}: {story}"))
}

fn judge_prices(
    versions: &[Policy],
    intervals: &[Interval],
    result: &TraceResult,
) -> Result<(), String> {
    // A unit earns itself in this part of a microsecond, and all prices are whole units.
    let denominator = intervals.iter().map(|token| token.denominator).product();
    let unit = Interval { numerator_us: 1, denominator };
    let price = |version: usize| {
        let token = intervals[version];
        token.numerator_us * (denominator / token.denominator)
    };
    let is_queue = versions[0].queue_length().is_some();
    let admitted = result.admitted.iter().map(|&Admission { span, version, delay_us, .. }| {
        let priced = Span { tokens: span.tokens * price(version), ..span };
        if is_queue { turn(priced, unit, delay_us) } else { priced }
    });
    let admitted: Vec<Span> = admitted.collect();
    if is_queue {
        return turns_follow_each_other(unit, admitted);
    }
    let full = |version: usize| versions[version].capacity() * price(version);
    let most = (0..versions.len()).map(full).max().unwrap_or(0);
    Spans::new(admitted).at_most_at_rate(unit, most, 0)
}

/// Checks the bound of the documents, in tokens and in true time: the largest burst, what was earned at
/// the rate in force, and for each change to a lower rate (1 - new/old) of one burst.
fn forgives_as_documented(versions: &[Policy], result: &TraceResult) -> Result<(), String> {
    // All sums below are in parts of a token: of a window, and of any limit up to seven.
    const LIMIT_PARTS: u64 = 420;
    let window_us = versions[0].window().as_micros() as u64;
    let parts = i128::from(window_us * LIMIT_PARTS);
    let burst = versions.iter().map(Policy::capacity).max().unwrap_or(0);
    // What may have been admitted until each request, beside one burst.
    let mut allowed = vec![0_i128];
    for pair in result.timeline.windows(2) {
        let [(before_us, before), (now_us, version)] = [pair[0], pair[1]];
        let (old, new) = (versions[before].limit(), versions[version].limit());
        let earned = old * (now_us - before_us) * LIMIT_PARTS;
        let forgiven = old.saturating_sub(new) * (LIMIT_PARTS / old) * burst * window_us;
        allowed.push(allowed[allowed.len() - 1] + i128::from(earned) + i128::from(forgiven));
    }
    for (number, first) in result.admitted.iter().enumerate() {
        let mut tokens = 0;
        for last in &result.admitted[number..] {
            tokens += last.span.tokens;
            let more = allowed[last.request] - allowed[first.request];
            if i128::from(tokens) * parts > i128::from(burst) * parts + more {
                let (from, to) = (first.span, last.span);
                return Err(format!("{versions:?}: {tokens} tokens from {from:?} to {to:?}"));
            }
        }
    }
    Ok(())
}
