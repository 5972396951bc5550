//! What the daemon does every second beside answering requests, each a task of its own.

use std::collections::{HashMap, HashSet};
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use tollbar_rules::AsyncEngine;
use tracing::warn;

use crate::config::{Config, IdleField};
use tollbar_daemon::background;
use tollbar_daemon::clock_watch::ClockWatch;
use tollbar_daemon::daemon::Daemon;
use tollbar_daemon::health::HealthLog;
use tollbar_daemon::protocol::envoy::EnvoyLimits;
use tollbar_daemon::shutdown::ShutdownSignal;
use tollbar_daemon::store::ahead_of_clock;

/// How often the store is probed and the health is looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// For one turn of any of them. A probe has the deadline of a check, and ten thousand rules take less than a second.
const TURN_MAX: Duration = Duration::from_secs(10);

/// Starts the probe of the store, the history of the metrics, and the log of what they find. A turn that is still
/// going on is not begun a second time, so a store that does not answer is not asked by a crowd.
pub(super) fn start(
    daemon: &Arc<Daemon>,
    mut rule_warnings: RuleWarningLog,
    stopped: &ShutdownSignal,
) {
    let counters = daemon.counters.clone();
    daemon.tasks.start_periodic("store_probe", PERIOD, TURN_MAX, stopped, move || {
        let probe = counters.clone().probe();
        async {
            probe.await;
            Ok(())
        }
    });
    let counted = Arc::clone(daemon);
    daemon.tasks.start_periodic("metrics_history", PERIOD, TURN_MAX, stopped, move || {
        let daemon = Arc::clone(&counted);
        // It takes longer the more rules there are.
        let tick = background::run(move || daemon.metrics.tick(&daemon.engine, daemon.now()));
        async { tick.await.ok_or_else(|| "the thread that adds it has ended".into()) }
    });
    let (watched, mut log) = (Arc::clone(daemon), HealthLog::default());
    let mut clock_watch = ClockWatch::default();
    daemon.tasks.start_periodic("health_log", PERIOD, TURN_MAX, stopped, move || {
        log.log(&watched.health.report());
        ahead_of_clock::log_news(&watched.engine);
        clock_watch.look(watched.wall_difference_us());
        rule_warnings.look(&watched.engine);
        ready(Ok(()))
    });
}

/// Warns of the rules in force, wherever they come from: of what they say without an effect, and of counters that a
/// restart forgets too early, those of Envoy's files too. Each warning names a rule once.
pub(super) struct RuleWarningLog {
    config: Arc<Config>,
    envoy: Arc<EnvoyLimits>,
    /// True if a restart forgets all counters.
    is_forgetful: bool,
    rules_version: Option<u64>,
    envoy_limits: Arc<Vec<Arc<str>>>,
    /// The rules of each warning when it was last looked for.
    named: HashMap<&'static str, HashSet<Arc<str>>>,
}

impl RuleWarningLog {
    pub(super) fn new(config: &Arc<Config>, envoy: &Arc<EnvoyLimits>, is_forgetful: bool) -> Self {
        Self {
            config: Arc::clone(config),
            envoy: Arc::clone(envoy),
            is_forgetful,
            rules_version: None,
            envoy_limits: Arc::default(),
            named: HashMap::new(),
        }
    }

    /// Looks at the rules and at the limits of Envoy's files, if they have changed.
    fn look(&mut self, engine: &AsyncEngine) {
        let version = Some(engine.tallies().rules_version());
        if std::mem::replace(&mut self.rules_version, version) != version {
            let rules = engine.rules();
            for IdleField { why, rules } in self.config.idle_fields(&rules) {
                IdleField { why, rules: self.new_names(why, rules) }.log();
            }
            let long = rules.rules_with_long_windows().map(|rule| Arc::clone(&rule.name));
            self.warn_of_long_windows("rules", long.collect());
        }
        let limits = self.envoy.limits_with_long_windows();
        if !Arc::ptr_eq(&limits, &self.envoy_limits) {
            self.warn_of_long_windows("limits of --envoy-config", limits.to_vec());
            self.envoy_limits = limits;
        }
    }

    fn warn_of_long_windows(&mut self, what: &'static str, names: Vec<Arc<str>>) {
        let new = self.new_names(what, names);
        if self.is_forgetful && !new.is_empty() {
            warn!("{}", long_window_warning(what, new.iter().map(|name| &**name).collect()));
        }
    }

    /// Returns those of `names` that `warning` did not name before.
    fn new_names(&mut self, warning: &'static str, mut names: Vec<Arc<str>>) -> Vec<Arc<str>> {
        let known = self.named.entry(warning).or_default();
        let before = std::mem::replace(known, names.iter().cloned().collect());
        names.retain(|name| !before.contains(name));
        names
    }
}

/// The most rules that are named in one warning.
const NAMED_MAX: usize = 20;

/// Returns the warning that these rules, or whatever `what` says they are, need a snapshot.
pub(crate) fn long_window_warning(what: &str, mut names: Vec<&str>) -> String {
    names.sort_unstable();
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    let names = names.join(", ");
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "{what} {names}{more} count for an hour or longer, and in memory a restart forgets what was used: add \
         --snapshot FILE, or count in Redis by --store"
    )
}
