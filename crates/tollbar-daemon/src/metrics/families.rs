//! Every metric there is, with its name, its labels and what it means. `docs/reference/metrics.md` has the
//! same list, and a test compares them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollbar_redis::LATENCY_BOUNDS_US;
use tollbar_rules::Counts;

use super::checks::{Outcome, Wire};
use super::exposition::{Kind, Text};
use super::histogram::{BOUNDS_NS, Exemplar};
use super::reloads::Reloaded;
use super::series::{Collected, OTHER, Row};
use super::store::StoreState;
use super::{Metrics, TextFormat};

/// The latest denial of each rule, where exemplars are wanted.
pub(super) type Denials = HashMap<Arc<str>, Exemplar>;

/// One of the counts.
type Count = fn(&Counts) -> u64;

/// What is written besides counters.
pub(super) struct Scrape {
    pub(super) collected: Collected,
    pub(super) store: StoreState,
    pub(super) denials: Denials,
    /// Denials without a rule, by counters that are ahead of the clock.
    pub(super) ahead_without_rule: u64,
}

pub(super) fn write(metrics: &Metrics, scrape: &Scrape, format: TextFormat) -> String {
    let mut text = Text::new(format);
    build(&mut text);
    rules(&mut text, &scrape.collected, &scrape.denials);
    ahead_of_clock(&mut text, &scrape.collected, scrape.ahead_without_rule);
    limits(&mut text, &scrape.collected);
    checks(&mut text, metrics, &scrape.collected.total);
    reloads(&mut text, metrics, &scrape.collected);
    store(&mut text, &scrape.store);
    connections(&mut text, metrics);
    text.finish()
}

fn build(text: &mut Text) {
    text.family("tollbar_build_info", Kind::Gauge, "1, with the version of the daemon.");
    text.gauge(&[("version", env!("CARGO_PKG_VERSION"))], 1);
}

/// Decisions, by rule and tier.
fn rules(text: &mut Text, collected: &Collected, denials: &Denials) {
    let outcomes: [(&str, Count); 6] = [
        ("allow", |it| it.allowed),
        ("deny", |it| it.denied),
        ("shadow_allow", |it| it.shadow_allowed),
        ("shadow_deny", |it| it.shadow_denied),
        ("degraded_allow", |it| it.degraded_allowed),
        ("degraded_deny", |it| it.degraded_denied),
    ];
    text.family(
        "tollbar_decisions",
        Kind::Counter,
        "Decisions of rules, each check once for a rule.",
    );
    for (rule, tier, counts) in each(collected) {
        for (outcome, count) in outcomes {
            let is_denial = outcome == "deny" && tier.is_none();
            let exemplar = denials.get(rule).filter(|_| is_denial).copied();
            with_labels(rule, tier, &[("outcome", outcome)], |labels| {
                text.counter_with(labels, count(counts), exemplar);
            });
        }
    }
    text.family(
        "tollbar_near_limit",
        Kind::Counter,
        "Allowed decisions that left at most a fifth of a limit.",
    );
    for (rule, tier, counts) in each(collected) {
        with_labels(rule, tier, &[], |labels| text.counter(labels, counts.near_limit));
    }
    text.family(
        "tollbar_admitted_tokens",
        Kind::Counter,
        "Tokens charged for requests that passed.",
    );
    for (rule, tier, counts) in each(collected) {
        with_labels(rule, tier, &[], |labels| text.counter(labels, counts.admitted_tokens));
    }
}

/// Denials by counters that are ahead of the clock, by rule: tiers are counted with their rule.
fn ahead_of_clock(text: &mut Text, collected: &Collected, without_rule: u64) {
    text.family(
        "tollbar_ahead_of_clock_denials",
        Kind::Counter,
        "Denials by counters that owe more than their policy can.",
    );
    for (rule, _, counts) in each(collected).filter(|(_, tier, _)| tier.is_none()) {
        text.counter(&[("rule", rule)], counts.ahead_of_clock);
    }
    text.counter(&[("rule", "(none)")], without_rule);
}

/// What rules are to admit, to be compared with what they have.
fn limits(text: &mut Text, collected: &Collected) {
    let per = |row: &Row| ("per", if row.is_for_all { "all" } else { "key" });
    let paced = || collected.rows.iter().filter_map(|row| Some((row, row.pace?)));
    text.family(
        "tollbar_limit_tokens_per_second",
        Kind::Gauge,
        "What a rule admits in the long run: to everybody together, or to each key.",
    );
    for (row, pace) in paced() {
        with_labels(&row.rule, row.tier.as_deref(), &[per(row)], |labels| {
            text.gauge(labels, pace.per_second());
        });
    }
    text.family(
        "tollbar_limit_burst_tokens",
        Kind::Gauge,
        "What a rule may admit at once, beyond its rate.",
    );
    for (row, pace) in paced() {
        with_labels(&row.rule, row.tier.as_deref(), &[per(row)], |labels| {
            text.gauge(labels, pace.burst);
        });
    }
}

/// Checks, by what they came over.
fn checks(text: &mut Text, metrics: &Metrics, total: &Counts) {
    text.family("tollbar_checks", Kind::Counter, "Checks, by what they came over and came to.");
    for wire in Wire::ALL {
        let outcomes = metrics.wires.of(wire);
        for outcome in Outcome::ALL {
            let labels = [("listener", wire.name()), ("outcome", outcome.name())];
            text.counter(&labels, outcomes.get(outcome));
        }
    }
    text.family(
        "tollbar_check_duration_seconds",
        Kind::Histogram,
        "Time a check took, without the wire. In memory one check in 16 is timed.",
    );
    let durations = metrics.durations.read();
    let exemplar = |class| metrics.durations.exemplar(class);
    text.histogram(BOUNDS_NS, &durations.counts, durations.ns_sum.into(), exemplar);
    text.family(
        "tollbar_false_rejections",
        Kind::Counter,
        "Decisions that denied without the counter that they are about.",
    );
    text.counter(&[("cause", "degraded")], total.degraded_denied);
}

fn reloads(text: &mut Text, metrics: &Metrics, collected: &Collected) {
    text.family("tollbar_rules", Kind::Gauge, "Rules in force.");
    text.gauge(&[], collected.rule_count);
    text.family("tollbar_rules_version", Kind::Gauge, "Counts up with every change of the rules.");
    text.gauge(&[], collected.rules_version);
    text.family(
        "tollbar_rules_loaded_timestamp_seconds",
        Kind::Gauge,
        "When the rules in force were read.",
    );
    let at = metrics.reloads.rules_loaded_at().map_or(0, |it| it.as_micros() / 1_000_000);
    text.gauge(&[], at);
    text.family("tollbar_reloads", Kind::Counter, "What was read again while the daemon served.");
    for what in Reloaded::ALL {
        text.counter(&[("what", what.name())], metrics.reloads.of(what).0);
    }
    text.family(
        "tollbar_reload_failures",
        Kind::Counter,
        "What was read again and could not be used.",
    );
    for what in Reloaded::ALL {
        text.counter(&[("what", what.name())], metrics.reloads.of(what).1);
    }
}

fn store(text: &mut Text, store: &StoreState) {
    text.family("tollbar_store_info", Kind::Gauge, "1, with the kind of the store.");
    text.gauge(&[("store", store.kind)], 1);
    text.family("tollbar_store_up", Kind::Gauge, "1 while the store answers.");
    text.gauge(&[], u8::from(store.is_up));
    text.family(
        "tollbar_store_breaker_opened",
        Kind::Counter,
        "How often the circuit breaker of the store has opened.",
    );
    text.counter(&[], store.breaker_opened);
    let errors = &store.redis.errors;
    text.family("tollbar_store_errors", Kind::Counter, "Questions the store did not answer.");
    for (kind, count) in [
        ("disconnected", errors.disconnected),
        ("deadline_missed", errors.deadline_missed),
        ("overloaded", errors.overloaded),
        ("refused", errors.refused),
    ] {
        text.counter(&[("kind", kind)], count);
    }
    text.family(
        "tollbar_store_duration_seconds",
        Kind::Histogram,
        "Time in which the store answered across the network.",
    );
    let bounds_ns = LATENCY_BOUNDS_US.map(|it| it * 1_000);
    let ns_sum = u128::from(store.redis.latency_us_sum) * 1_000;
    text.histogram(bounds_ns, &store.redis.latency, ns_sum, |_| None);
    text.family(
        "tollbar_deny_cache_hits",
        Kind::Counter,
        "Denials that were known to hold, so that the store was not asked.",
    );
    text.counter(&[], store.redis.deny_cache_hits);
    let Some(memory) = &store.memory else {
        return;
    };
    text.family("tollbar_live_keys", Kind::Gauge, "Counters in memory that are not fresh.");
    text.gauge(&[], memory.live_keys);
    text.family("tollbar_key_slots", Kind::Gauge, "Room for counters in memory.");
    text.gauge(&[], memory.slots);
    text.family(
        "tollbar_forced_evictions",
        Kind::Counter,
        "Counters in memory that were forgotten before they were fresh, for want of room.",
    );
    text.counter(&[], memory.forced_evictions);
    text.family(
        "tollbar_request_ids_forgotten",
        Kind::Counter,
        "Request ids in memory that were forgotten before their time, for want of room.",
    );
    text.counter(&[], memory.request_ids_forgotten);
}

fn connections(text: &mut Text, metrics: &Metrics) {
    let ports = metrics.connections.all();
    text.family(
        "tollbar_hold_failures",
        Kind::Counter,
        "Permits of the gateway's requests that the store did not renew or take back.",
    );
    text.counter(&[], metrics.hold_failures.load(Ordering::Relaxed));
    text.family("tollbar_connections", Kind::Gauge, "Connections that are open.");
    for port in &ports {
        text.gauge(&[("listener", port.listener)], port.open_count());
    }
    text.family("tollbar_connections_accepted", Kind::Counter, "Connections that were accepted.");
    for port in &ports {
        text.counter(&[("listener", port.listener)], port.accepted());
    }
}

/// Those with series of their own, and the others together.
fn each(collected: &Collected) -> impl Iterator<Item = (&str, Option<&str>, &Counts)> {
    let own = collected.rows.iter().map(|row| (&*row.rule, row.tier.as_deref(), &row.counts));
    own.chain(collected.others.iter().map(|counts| (OTHER, None, counts)))
}

fn with_labels(
    rule: &str,
    tier: Option<&str>,
    more: &[(&str, &str)],
    write: impl FnOnce(&[(&str, &str)]),
) {
    let mut labels = vec![("rule", rule)];
    labels.extend(tier.map(|tier| ("tier", tier)));
    labels.extend_from_slice(more);
    write(&labels);
}
