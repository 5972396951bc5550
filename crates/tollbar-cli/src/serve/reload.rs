//! What changes while the daemon serves: rules, limits, tokens, keys and certificates, from the files they came from.
//! What cannot be used leaves all as it was, and is told.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::time::{MissedTickBehavior, interval};
use tollbar::Store;
use tollbar_rules::{Finding, RuleFile, RuleWatch};
use tracing::{error, info, warn};

use super::systemd;
use crate::config::{Config, ConfigError, IdleField};
use tollbar_admin::database::LiveRules;
use tollbar_daemon::daemon::Daemon;
use tollbar_daemon::metrics::ReloadKind;
use tollbar_daemon::net::tls::Tls;
use tollbar_daemon::protocol::envoy::EnvoyLimits;
use tollbar_daemon::protocol::forward_auth::ProxyTrust;
use tollbar_daemon::shutdown::ShutdownSignal;
use tollbar_daemon::tasks::{Pulse, Task, Tasks};
use tollbar_daemon::token::Tokens;

/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// For reading all files once.
const TURN_MAX: Duration = Duration::from_secs(30);

/// Looks at files every second, and reads all of them again on SIGHUP.
pub(crate) struct ReloadTask {
    pub(crate) reloader: Reloader,
    pub(crate) hang_up: Signal,
    pub(crate) tls: Option<Tls>,
}

impl ReloadTask {
    pub(crate) fn start(self, tasks: &Tasks, stopped: &ShutdownSignal) {
        tasks.start("reload", TURN_MAX, stopped, self);
    }
}

impl Task for ReloadTask {
    async fn run(&mut self, pulse: &Pulse, mut stopped: ShutdownSignal) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopped.wait() => return,
                _ = self.hang_up.recv() => {
                    systemd::notify_reloading();
                    self.reloader.reload_all(self.tls.as_mut());
                    systemd::notify_ready();
                }
                _ = looks.tick() => self.reloader.reload_changed(),
            }
            pulse.succeed();
        }
    }
}

/// Reads files again and puts them in force.
pub(crate) struct Reloader {
    config: Arc<Config>,
    daemon: Arc<Daemon>,
    live: Arc<LiveRules>,
    tokens: Option<Arc<Tokens>>,
    envoy: Arc<EnvoyLimits>,
    trust: Arc<ProxyTrust>,
    watch: Option<RuleWatch>,
}

impl Reloader {
    pub(crate) fn new(
        config: Arc<Config>,
        daemon: Arc<Daemon>,
        live: Arc<LiveRules>,
        tokens: Option<Arc<Tokens>>,
        envoy: Arc<EnvoyLimits>,
        trust: Arc<ProxyTrust>,
    ) -> Self {
        let watched = config.rules.as_deref().filter(|_| !config.no_watch);
        let watch = watched.map(RuleWatch::new);
        Self { config, daemon, live, tokens, envoy, trust, watch }
    }

    /// Reads everything again, whether it has changed or not.
    pub(crate) fn reload_all(&mut self, tls: Option<&mut Tls>) {
        // What is read here is no news to the watch.
        drop(self.watch.as_mut().and_then(RuleWatch::read_changed));
        self.put_in_force(self.config.read_rules(), true);
        let metrics = &self.daemon.metrics;
        if let (Some(tokens), read) = (&self.tokens, self.config.read_tokens()) {
            metrics.count_reload(ReloadKind::Tokens, read.is_ok());
            match read {
                Ok(Some(read)) => {
                    tokens.replace(&read);
                    info!("tokens reloaded");
                }
                Ok(None) => {}
                Err(error) => error!(%error, "the tokens stay as they were"),
            }
        }
        if self.config.proxies.api_keys.is_some() {
            let read = self.trust.reload_api_keys(&self.config.proxies);
            metrics.count_reload(ReloadKind::ApiKeys, read.is_ok());
            match read {
                Ok(()) => info!("API keys reloaded"),
                Err(error) => error!(%error, "the API keys stay as they were"),
            }
        }
        self.count_envoy_reload(self.envoy.reload());
        let reloaded = tls.map(|tls| tls.reload(self.daemon.now()));
        if let Some(reloaded) = &reloaded {
            metrics.count_reload(ReloadKind::Certificates, reloaded.is_ok());
        }
        match reloaded {
            Some(Err(error)) => error!(%error, "the certificates stay as they were"),
            Some(Ok(())) => info!("certificates reloaded"),
            None => {}
        }
    }

    /// Looks whether files of rules or limits have changed, and puts them in force then.
    pub(crate) fn reload_changed(&mut self) {
        if !self.config.no_watch {
            self.count_envoy_reload(self.envoy.reload_changed());
        }
        let Some(read) = self.watch.as_mut().and_then(RuleWatch::read_changed) else {
            return;
        };
        let read = match read {
            Ok(file) => self.config.check_usable(file),
            Err(error) => Err(error.into()),
        };
        // The first look finds what is in force already.
        self.put_in_force(read, false);
    }

    /// Counts a reload of Envoy's files, if there was one.
    fn count_envoy_reload(&self, is_good: Option<bool>) {
        if let Some(is_good) = is_good {
            self.daemon.metrics.count_reload(ReloadKind::EnvoyLimits, is_good);
        }
    }

    /// Tells that nothing has changed only to who asked.
    fn put_in_force(&self, read: Result<RuleFile, ConfigError>, was_asked: bool) {
        let Daemon { engine, metrics, .. } = &*self.daemon;
        match read.and_then(|file| check_supported(file, &*self.daemon.counters.store())) {
            Ok(file) => {
                let rules = file.rules.len();
                let warnings = file.warnings;
                let diff = self.live.put_file(file.rules);
                metrics.rules_loaded(self.daemon.now());
                // What changes is warned of by the task that looks at the rules in force.
                if was_asked {
                    self.config.idle_fields(&engine.rules()).iter().for_each(IdleField::log);
                }
                if was_asked || !diff.is_empty() {
                    metrics.count_reload(ReloadKind::Rules, true);
                    warn_of(&warnings, self.config.database.database.is_some());
                    let [added, removed] = [diff.added.len(), diff.removed.len()];
                    let changed = diff.changed.len();
                    info!(rules, added, changed, removed, "rules reloaded");
                }
            }
            Err(error) => {
                metrics.count_reload(ReloadKind::Rules, false);
                error!(%error, "the rules stay as they were");
            }
        }
    }
}

/// The file, if `store` can count all of its rules.
fn check_supported(file: RuleFile, store: &dyn Store) -> Result<RuleFile, ConfigError> {
    file.rules.check_support(store)?;
    Ok(file)
}

/// Logs what is allowed in the file and probably not meant. That its rules limit nothing is no news where a
/// database may have more.
pub(crate) fn warn_of(warnings: &[Finding], has_database: bool) {
    for warning in warnings.iter().filter(|warning| !(has_database && warning.field == "rules")) {
        warn!(%warning, "--rules");
    }
}
