//! Every metric there is, with its name, its labels and what it means. `docs/reference/metrics.md` has the
//! same list, and a test compares them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollbar_redis::LATENCY_BOUNDS_US;
use tollbar_rules::Counts;

use super::checks::{Outcome, ProtocolName};
use super::exposition::{Exposition, MetricType};
use super::histogram::{BOUNDS_NS, Exemplar};
use super::reloads::ReloadKind;
use super::series::{OTHER, RuleSample, RuleSamples};
use super::store::StoreState;
use super::{Metrics, TextFormat};

/// The latest denial of each rule, where exemplars are wanted.
pub(super) type Denials = HashMap<Arc<str>, Exemplar>;

/// One of the counts.
type Count = fn(&Counts) -> u64;

/// What is written besides counters.
pub(super) struct Scrape {
    pub(super) samples: RuleSamples,
    pub(super) store: StoreState,
    pub(super) denials: Denials,
    /// Denials without a rule, by counters that are ahead of the clock.
    pub(super) ahead_without_rule: u64,
}

pub(super) fn write(metrics: &Metrics, scrape: &Scrape, format: TextFormat) -> String {
    let mut text = Exposition::new(format);
    build(&mut text);
    rules(&mut text, &scrape.samples, &scrape.denials);
    ahead_of_clock(&mut text, &scrape.samples, scrape.ahead_without_rule);
    limits(&mut text, &scrape.samples);
    checks(&mut text, metrics, &scrape.samples.total);
    reloads(&mut text, metrics, &scrape.samples);
    store(&mut text, &scrape.store);
    connections(&mut text, metrics);
    text.finish()
}

fn build(text: &mut Exposition) {
    text.family("tollbar_build_info", MetricType::Gauge, "1, with the version of the daemon.");
    text.gauge(&[("version", env!("CARGO_PKG_VERSION"))], 1);
}

/// Decisions, by rule and tier.
fn rules(text: &mut Exposition, samples: &RuleSamples, denials: &Denials) {
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
        MetricType::Counter,
        "Decisions of rules, each check once for a rule.",
    );
    for (rule, tier, counts) in each(samples) {
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
        MetricType::Counter,
        "Allowed decisions that left at most a fifth of a limit.",
    );
    for (rule, tier, counts) in each(samples) {
        with_labels(rule, tier, &[], |labels| text.counter(labels, counts.near_limit));
    }
    text.family(
        "tollbar_admitted_tokens",
        MetricType::Counter,
        "Tokens charged for requests that passed.",
    );
    for (rule, tier, counts) in each(samples) {
        with_labels(rule, tier, &[], |labels| text.counter(labels, counts.admitted_tokens));
    }
}

/// Denials by counters that are ahead of the clock, by rule: tiers are counted with their rule.
fn ahead_of_clock(text: &mut Exposition, samples: &RuleSamples, without_rule: u64) {
    text.family(
        "tollbar_ahead_of_clock_denials",
        MetricType::Counter,
        "Denials by counters that owe more than their policy can.",
    );
    for (rule, _, counts) in each(samples).filter(|(_, tier, _)| tier.is_none()) {
        text.counter(&[("rule", rule)], counts.ahead_of_clock);
    }
    text.counter(&[("rule", "(none)")], without_rule);
}

/// What rules are to admit, to be compared with what they have.
fn limits(text: &mut Exposition, samples: &RuleSamples) {
    let per = |sample: &RuleSample| ("per", if sample.is_for_all { "all" } else { "key" });
    let with_rate = || samples.own.iter().filter_map(|sample| Some((sample, sample.rate?)));
    text.family(
        "tollbar_limit_tokens_per_second",
        MetricType::Gauge,
        "What a rule admits in the long run: to everybody together, or to each key.",
    );
    for (sample, rate) in with_rate() {
        with_labels(&sample.rule, sample.tier.as_deref(), &[per(sample)], |labels| {
            text.gauge(labels, rate.per_second());
        });
    }
    text.family(
        "tollbar_limit_burst_tokens",
        MetricType::Gauge,
        "What a rule may admit at once, beyond its rate.",
    );
    for (sample, rate) in with_rate() {
        with_labels(&sample.rule, sample.tier.as_deref(), &[per(sample)], |labels| {
            text.gauge(labels, rate.burst);
        });
    }
}

/// Checks, by what they came over.
fn checks(text: &mut Exposition, metrics: &Metrics, total: &Counts) {
    text.family(
        "tollbar_checks",
        MetricType::Counter,
        "Checks, by what they came over and came to.",
    );
    for protocol in ProtocolName::ALL {
        let outcomes = metrics.checks.of(protocol);
        for outcome in Outcome::ALL {
            let labels = [("listener", protocol.name()), ("outcome", outcome.name())];
            text.counter(&labels, outcomes.get(outcome));
        }
    }
    text.family(
        "tollbar_check_duration_seconds",
        MetricType::Histogram,
        "Time a check took, without the wire. In memory one check in 16 is timed.",
    );
    let durations = metrics.durations.read();
    let exemplar = |class| metrics.durations.exemplar(class);
    text.histogram(BOUNDS_NS, &durations.counts, durations.ns_sum.into(), exemplar);
    text.family(
        "tollbar_false_rejections",
        MetricType::Counter,
        "Decisions that denied without the counter that they are about.",
    );
    text.counter(&[("cause", "degraded")], total.degraded_denied);
}

fn reloads(text: &mut Exposition, metrics: &Metrics, samples: &RuleSamples) {
    text.family("tollbar_rules", MetricType::Gauge, "Rules in force.");
    text.gauge(&[], samples.rule_count);
    text.family(
        "tollbar_rules_version",
        MetricType::Gauge,
        "Counts up with every change of the rules.",
    );
    text.gauge(&[], samples.rules_version);
    text.family(
        "tollbar_rules_loaded_timestamp_seconds",
        MetricType::Gauge,
        "When the rules in force were read.",
    );
    let at = metrics.reloads.rules_loaded_at().map_or(0, |it| it.as_micros() / 1_000_000);
    text.gauge(&[], at);
    text.family(
        "tollbar_reloads",
        MetricType::Counter,
        "What was read again while the daemon served.",
    );
    for kind in ReloadKind::ALL {
        text.counter(&[("what", kind.name())], metrics.reloads.of(kind).0);
    }
    text.family(
        "tollbar_reload_failures",
        MetricType::Counter,
        "What was read again and could not be used.",
    );
    for kind in ReloadKind::ALL {
        text.counter(&[("what", kind.name())], metrics.reloads.of(kind).1);
    }
}

fn store(text: &mut Exposition, store: &StoreState) {
    text.family("tollbar_store_info", MetricType::Gauge, "1, with the kind of the store.");
    text.gauge(&[("store", store.kind)], 1);
    text.family("tollbar_store_up", MetricType::Gauge, "1 while the store answers.");
    text.gauge(&[], u8::from(store.is_up));
    text.family(
        "tollbar_store_breaker_opened",
        MetricType::Counter,
        "How often the circuit breaker of the store has opened.",
    );
    text.counter(&[], store.breaker_opened);
    let errors = &store.redis.errors;
    text.family("tollbar_store_errors", MetricType::Counter, "Questions the store did not answer.");
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
        MetricType::Histogram,
        "Time in which the store answered across the network.",
    );
    let bounds_ns = LATENCY_BOUNDS_US.map(|it| it * 1_000);
    let ns_sum = u128::from(store.redis.latency_us_sum) * 1_000;
    text.histogram(bounds_ns, &store.redis.latency, ns_sum, |_| None);
    text.family(
        "tollbar_deny_cache_hits",
        MetricType::Counter,
        "Denials that were known to hold, so that the store was not asked.",
    );
    text.counter(&[], store.redis.deny_cache_hits);
    let Some(memory) = &store.memory else {
        return;
    };
    text.family("tollbar_live_keys", MetricType::Gauge, "Counters in memory that are not fresh.");
    text.gauge(&[], memory.live_keys);
    text.family("tollbar_key_slots", MetricType::Gauge, "Room for counters in memory.");
    text.gauge(&[], memory.slots);
    text.family(
        "tollbar_forced_evictions",
        MetricType::Counter,
        "Counters in memory that were forgotten before they were fresh, for want of room.",
    );
    text.counter(&[], memory.forced_evictions);
    text.family(
        "tollbar_request_ids_forgotten",
        MetricType::Counter,
        "Request ids in memory that were forgotten before their time, for want of room.",
    );
    text.counter(&[], memory.request_ids_forgotten);
}

fn connections(text: &mut Exposition, metrics: &Metrics) {
    let listeners = metrics.connections.all();
    text.family(
        "tollbar_hold_failures",
        MetricType::Counter,
        "Permits of the gateway's requests that the store did not renew or take back.",
    );
    text.counter(&[], metrics.hold_failures.load(Ordering::Relaxed));
    text.family("tollbar_connections", MetricType::Gauge, "Connections that are open.");
    for listener in &listeners {
        text.gauge(&[("listener", listener.listener)], listener.open_count());
    }
    text.family(
        "tollbar_connections_accepted",
        MetricType::Counter,
        "Connections that were accepted.",
    );
    for listener in &listeners {
        text.counter(&[("listener", listener.listener)], listener.accepted());
    }
}

/// Those with series of their own, and the others together.
fn each(samples: &RuleSamples) -> impl Iterator<Item = (&str, Option<&str>, &Counts)> {
    let own =
        samples.own.iter().map(|sample| (&*sample.rule, sample.tier.as_deref(), &sample.counts));
    own.chain(samples.others.iter().map(|counts| (OTHER, None, counts)))
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
