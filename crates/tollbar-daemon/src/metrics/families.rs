//! Every metric there is, with its name, its labels and what it means. `docs/reference/metrics.md` has the
//! same list, and a test compares them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollbar_fleet::LendingStats;
use tollbar_redis::LATENCY_BOUNDS_US;
use tollbar_rules::Counts;

use super::checks::{Outcome, ProtocolName};
use super::connections::ConnectionRefusal;
use super::exposition::{Exposition, MetricType};
use super::histogram::{BOUNDS_NS, Exemplar};
use super::reloads::ReloadKind;
use super::series::{OTHER, RuleSample, RuleSamples};
use super::store::StoreState;
use super::{DaemonState, Metrics, TextFormat};
use crate::panics;

/// The latest denial by each tier of each rule, where exemplars are wanted. Limits that belong to no tier have `None`.
pub(super) type DenialExemplars = HashMap<Arc<str>, Vec<(Option<Box<str>>, Exemplar)>>;

/// One of the counts.
type CountReader = fn(&Counts) -> u64;

/// What is written besides counters.
pub(super) struct Scrape {
    pub(super) samples: RuleSamples,
    pub(super) store: StoreState,
    pub(super) denials: DenialExemplars,
    /// Denials without a rule, by counters that are ahead of the clock.
    pub(super) ahead_without_rule: u64,
    pub(super) daemon: DaemonState,
}

pub(super) fn write(metrics: &Metrics, scrape: &Scrape, format: TextFormat) -> String {
    let mut text = Exposition::new(format);
    build(&mut text);
    rules(&mut text, &scrape.samples, &scrape.denials);
    ahead_of_clock(&mut text, &scrape.samples, scrape.ahead_without_rule);
    new_keys(&mut text, &scrape.samples);
    limits(&mut text, &scrape.samples);
    accuracy(&mut text, &scrape.samples);
    checks(&mut text, metrics, &scrape.samples.total);
    reloads(&mut text, metrics, &scrape.samples);
    store(&mut text, &scrape.store);
    connections(&mut text, metrics);
    daemon(&mut text, &scrape.daemon);
    text.finish()
}

fn build(text: &mut Exposition) {
    text.family("tollbar_build_info", MetricType::Gauge, "1, with the version of the daemon.");
    text.gauge(&[("version", env!("CARGO_PKG_VERSION"))], 1);
}

/// Decisions, by rule and tier.
fn rules(text: &mut Exposition, samples: &RuleSamples, denials: &DenialExemplars) {
    let outcomes: [(&str, CountReader); 6] = [
        ("allow", |counts| counts.allowed),
        ("deny", |counts| counts.denied),
        ("shadow_allow", |counts| counts.shadow_allowed),
        ("shadow_deny", |counts| counts.shadow_denied),
        ("degraded_allow", |counts| counts.degraded_allowed),
        ("degraded_deny", |counts| counts.degraded_denied),
    ];
    text.family(
        "tollbar_decisions",
        MetricType::Counter,
        "Decisions of rules, each check once for a rule.",
    );
    for (rule, tier, counts) in each(samples) {
        let of_tier = |(its_tier, _): &&(Option<Box<str>>, Exemplar)| its_tier.as_deref() == tier;
        let denial = denials.get(rule).and_then(|denials| denials.iter().find(of_tier));
        for (outcome, count) in outcomes {
            let exemplar = denial.filter(|_| outcome == "deny").map(|(_, exemplar)| *exemplar);
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

/// Requests of new keys that shared the counter of their network, for rules that bound new keys.
fn new_keys(text: &mut Exposition, samples: &RuleSamples) {
    text.family(
        "tollbar_new_keys_limited",
        MetricType::Counter,
        "Requests of new keys that shared the counter of their network.",
    );
    let counts = each(samples).filter(|(_, tier, _)| tier.is_none());
    for (rule, _, counts) in counts.filter(|(_, _, counts)| counts.new_keys_limited > 0) {
        text.counter(&[("rule", rule)], counts.new_keys_limited);
    }
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

/// By how much rules that do not count exactly may be off.
fn accuracy(text: &mut Exposition, samples: &RuleSamples) {
    let own = || samples.own.iter().filter_map(|sample| Some((sample, sample.over_and_under?)));
    text.family(
        "tollbar_bound_over_tokens",
        MetricType::Gauge,
        "Tokens that a rule admits more than exact counting would, at most.",
    );
    for (sample, (over_tokens, _)) in own() {
        text.gauge(&[("rule", &sample.rule)], over_tokens);
    }
    text.family(
        "tollbar_bound_under_tokens",
        MetricType::Gauge,
        "Tokens that a rule admits fewer than exact counting would, at most.",
    );
    for (sample, (_, under_tokens)) in own() {
        text.gauge(&[("rule", &sample.rule)], under_tokens);
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
        let outcomes = metrics.checks.for_protocol(protocol);
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
        "tollbar_idle_rules",
        MetricType::Gauge,
        "Rules that have decided nothing for an hour in which requests were checked.",
    );
    text.gauge(&[], metrics.idle_rules().idle_count());
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
    let at =
        metrics.reloads.rules_loaded_at().map_or(0, |loaded_at| loaded_at.as_micros() / 1_000_000);
    text.gauge(&[], at);
    text.family(
        "tollbar_reloads",
        MetricType::Counter,
        "What was read again while the daemon served.",
    );
    for kind in ReloadKind::ALL {
        text.counter(&[("what", kind.name())], metrics.reloads.counts(kind).0);
    }
    text.family(
        "tollbar_reload_failures",
        MetricType::Counter,
        "What was read again and could not be used.",
    );
    for kind in ReloadKind::ALL {
        text.counter(&[("what", kind.name())], metrics.reloads.counts(kind).1);
    }
}

fn store(text: &mut Exposition, store: &StoreState) {
    text.family("tollbar_store_info", MetricType::Gauge, "1, with the kind of the store.");
    text.gauge(&[("store", store.kind)], 1);
    text.family(
        "tollbar_store_up",
        MetricType::Gauge,
        "1 while the store decides every check: all of its servers answer, and none refuses.",
    );
    text.gauge(&[], u8::from(store.is_up));
    text.family(
        "tollbar_store_faults",
        MetricType::Gauge,
        "Servers of the store with a fault, by its kind.",
    );
    for (kind, count) in store.faults {
        text.gauge(&[("kind", kind)], count);
    }
    text.family(
        "tollbar_store_refusals",
        MetricType::Counter,
        "How often servers of the store refused, by reason.",
    );
    for (reason, count) in store.refusals {
        text.counter(&[("reason", reason.name())], count);
    }
    text.family(
        "tollbar_store_evicted_keys",
        MetricType::Counter,
        "Keys that servers of the store have evicted to make room.",
    );
    text.counter(&[], store.evicted_keys);
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
    let bounds_ns = LATENCY_BOUNDS_US.map(|bound_us| bound_us * 1_000);
    let ns_sum = u128::from(store.redis.latency_us_sum) * 1_000;
    text.histogram(bounds_ns, &store.redis.latency, ns_sum, |_| None);
    text.family(
        "tollbar_deny_cache_hits",
        MetricType::Counter,
        "Denials that were known to hold, so that the store was not asked.",
    );
    text.counter(&[], store.redis.deny_cache_hits);
    loans(text, &store.lending);
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

/// What was borrowed from the store, and what became of it.
fn loans(text: &mut Exposition, lending: &LendingStats) {
    text.family(
        "tollbar_loans",
        MetricType::Counter,
        "Questions for a loan, by what the store has lent.",
    );
    for (outcome, count) in lending.loans() {
        text.counter(&[("outcome", outcome)], count);
    }
    text.family(
        "tollbar_loan_tokens",
        MetricType::Counter,
        "Tokens that were lent, by their fate.",
    );
    for (fate, count) in lending.tokens() {
        text.counter(&[("fate", fate)], count);
    }
    text.family("tollbar_loaned_keys", MetricType::Gauge, "Keys that tokens are borrowed for.");
    text.gauge(&[], lending.loaned_keys);
    text.family("tollbar_lending", MetricType::Gauge, "1 while tokens may be borrowed.");
    text.gauge(&[], u64::from(lending.is_lending));
}

fn connections(text: &mut Exposition, metrics: &Metrics) {
    let listeners = metrics.connections.all();
    text.family(
        "tollbar_hold_failures",
        MetricType::Counter,
        "Permits of the gateway's requests that were not renewed in time or given back.",
    );
    text.counter(&[], metrics.hold_failures.load(Ordering::Relaxed));
    text.family(
        "tollbar_permit_limits_skipped",
        MetricType::Counter,
        "Limits on what is in flight that calls of Envoy met, and that do not apply to them.",
    );
    text.counter(&[], metrics.permit_limits_skipped.load(Ordering::Relaxed));
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
    text.family(
        "tollbar_connections_refused",
        MetricType::Counter,
        "Connections that were closed so that others can be served, by reason.",
    );
    for listener in &listeners {
        for reason in ConnectionRefusal::ALL {
            let labels = [("listener", listener.listener), ("reason", reason.name())];
            text.counter(&labels, listener.refused(reason));
        }
    }
}

/// How the daemon itself is doing. Parts and tasks are a few, each with a name of ours.
fn daemon(text: &mut Exposition, state: &DaemonState) {
    text.family("tollbar_part_up", MetricType::Gauge, "1 while a part of the daemon is well.");
    for (part, health) in &state.health.parts {
        text.gauge(&[("part", part.name)], u8::from(health.is_ok()));
    }
    text.family(
        "tollbar_task_age_seconds",
        MetricType::Gauge,
        "Time since a task of the daemon last succeeded, or started.",
    );
    for task in &state.tasks {
        text.gauge(&[("task", task.name)], task.age.as_secs());
    }
    text.family(
        "tollbar_task_failures",
        MetricType::Counter,
        "Turns of tasks that failed, such as a snapshot that could not be written.",
    );
    for task in &state.tasks {
        text.counter(&[("task", task.name)], task.failures);
    }
    text.family(
        "tollbar_task_restarts",
        MetricType::Counter,
        "Tasks that panicked, hung or ended, and were started again.",
    );
    for task in &state.tasks {
        text.counter(&[("task", task.name)], task.restarts);
    }
    text.family(
        "tollbar_clock_difference_seconds",
        MetricType::Gauge,
        "How far the wall clock is ahead of the clock that limits go by.",
    );
    text.gauge(&[], state.wall_difference_us as f64 / 1e6);
    text.family(
        "tollbar_log_lines_dropped",
        MetricType::Counter,
        "Lines of the log that standard error did not take in time.",
    );
    text.counter(&[], state.log_lines_dropped as u64);
    text.family(
        "tollbar_auth_failures",
        MetricType::Counter,
        "Wrong tokens, by the listener they were sent to.",
    );
    for (listener, count) in &state.auth_failures {
        text.counter(&[("listener", listener)], *count);
    }
    text.family(
        "tollbar_waiters",
        MetricType::Gauge,
        "Requests that wait for their turn in a queue.",
    );
    text.gauge(&[], state.waiters as u64);
    text.family(
        "tollbar_waits_refused",
        MetricType::Counter,
        "Requests that were denied because too many others waited under their rule and tenant.",
    );
    text.counter(&[], state.waits_refused);
    text.family("tollbar_panics", MetricType::Counter, "Panics, by what they ended.");
    for (origin, count) in panics::counts() {
        text.counter(&[("origin", origin)], count);
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
