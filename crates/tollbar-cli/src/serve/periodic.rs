//! What the daemon does every second beside answering requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::{info, warn};

use tollbar_daemon::background;
use tollbar_daemon::daemon::Daemon;
use tollbar_daemon::health::Health;
use tollbar_daemon::store::ahead_of_clock;

/// How often files are looked at and the store is probed.
const PERIOD: Duration = Duration::from_secs(1);

/// The probe of the store, the history of the metrics, and what they find. A task that is still running is not
/// started a second time, so a store that does not answer is not asked by a crowd.
pub(super) struct PeriodicWork {
    daemon: Arc<Daemon>,
    interval: Interval,
    store_health: Health,
    probe: JoinHandle<()>,
    metrics_tick: JoinHandle<Option<()>>,
}

impl PeriodicWork {
    pub(super) fn start(daemon: Arc<Daemon>) -> Self {
        let mut interval = interval(PERIOD);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (probe, metrics_tick) = (spawn_probe(&daemon), spawn_metrics_tick(&daemon));
        Self { daemon, interval, store_health: Health::Ok, probe, metrics_tick }
    }

    /// Waits until the work is due.
    pub(super) async fn due(&mut self) {
        self.interval.tick().await;
    }

    pub(super) fn run(&mut self) {
        self.log_store_health();
        ahead_of_clock::log_news(&self.daemon.engine);
        if self.probe.is_finished() {
            self.probe = spawn_probe(&self.daemon);
        }
        if self.metrics_tick.is_finished() {
            self.metrics_tick = spawn_metrics_tick(&self.daemon);
        }
    }

    /// Logs when the store is lost, and when it is back.
    fn log_store_health(&mut self) {
        let health = self.daemon.health();
        match (&self.store_health, &health) {
            (Health::Ok, Health::Degraded { why }) => {
                warn!(%why, "the store does not answer: rules say what to answer without it");
            }
            (Health::Degraded { .. }, Health::Ok) => info!("the store answers again"),
            _ => return,
        }
        self.store_health = health;
    }
}

fn spawn_probe(daemon: &Daemon) -> JoinHandle<()> {
    tokio::spawn(daemon.counters.clone().probe())
}

/// Adds what was decided lately to the history, which takes longer the more rules there are.
fn spawn_metrics_tick(daemon: &Arc<Daemon>) -> JoinHandle<Option<()>> {
    let daemon = Arc::clone(daemon);
    tokio::spawn(background::run(move || daemon.metrics.tick(&daemon.engine, daemon.now())))
}
