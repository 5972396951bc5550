//! What changes while the daemon serves: rules, limits, tokens, keys and certificates, from the files they came from.
//! What cannot be used leaves all as it was, and is told.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tollbar::Store;
use tollbar_rules::{Finding, RuleFile, RuleWatch};
use tracing::{error, info, warn};

use crate::config::{Config, ConfigError};
use tollbar_admin::database::LiveRules;
use tollbar_daemon::daemon::Daemon;
use tollbar_daemon::metrics::ReloadKind;
use tollbar_daemon::net::tls::Tls;
use tollbar_daemon::protocol::envoy::EnvoyLimits;
use tollbar_daemon::protocol::forward_auth::Trust;
use tollbar_daemon::token::Tokens;

/// Reads files again and puts them in force.
pub(crate) struct Reloader {
    config: Arc<Config>,
    daemon: Arc<Daemon>,
    live: Arc<LiveRules>,
    tokens: Option<Arc<Tokens>>,
    envoy: Arc<EnvoyLimits>,
    trust: Arc<ArcSwap<Trust>>,
    watch: Option<RuleWatch>,
}

impl Reloader {
    pub(crate) fn new(
        config: Arc<Config>,
        daemon: Arc<Daemon>,
        live: Arc<LiveRules>,
        tokens: Option<Arc<Tokens>>,
        envoy: Arc<EnvoyLimits>,
        trust: Arc<ArcSwap<Trust>>,
    ) -> Self {
        let watched = config.rules.as_deref().filter(|_| !config.no_watch);
        let watch = watched.map(RuleWatch::new);
        Self { config, daemon, live, tokens, envoy, trust, watch }
    }

    /// Reads everything again, whether it has changed or not.
    pub(crate) fn reload_all(&mut self, tls: Option<&mut Tls>) {
        // What is read here is no news to who watches.
        let _ = self.watch.as_mut().and_then(RuleWatch::read_changed);
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
            match self.config.proxies.trust() {
                Ok(trust) => {
                    self.trust.store(Arc::new(trust));
                    info!("API keys reloaded");
                }
                Err(error) => error!(%error, "the API keys stay as they were"),
            }
        }
        self.envoy.reload();
        let reloaded = tls.map(Tls::reload);
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
            self.envoy.reload_changed();
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

    /// Tells that nothing has changed only to who asked.
    fn put_in_force(&self, read: Result<RuleFile, ConfigError>, was_asked: bool) {
        let Daemon { engine, metrics, .. } = &*self.daemon;
        match read.and_then(|file| check_supported(file, &*self.daemon.counters.store())) {
            Ok(file) => {
                let rules = file.rules.len();
                let warnings = file.warnings;
                let diff = self.live.put_file(file.rules);
                metrics.rules_loaded(self.daemon.now());
                if was_asked || !diff.is_empty() {
                    metrics.count_reload(ReloadKind::Rules, true);
                    warn_of(&warnings);
                    self.config.warn_of_permits(&engine.rules());
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

/// Tells what the rules' writer should know.
pub(crate) fn warn_of(warnings: &[Finding]) {
    for warning in warnings {
        warn!(%warning, "--rules");
    }
}
