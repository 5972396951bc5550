//! The daemon from start to end: [`prepare`] reads what the configuration names, [`run`] opens the parts, starts the
//! listeners, serves until a signal, and drains.

mod database;
mod greeting;
mod periodic;
mod reload;
mod systemd;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Interval, interval, timeout};
use tollbar::SnapshotError;
use tollbar_rules::{AsyncEngine, RuleSet, RuleSetError};
use tracing::info;

use crate::config::{Config, ConfigError};
use database::{Database, DatabaseError, DatabaseTasks};
use periodic::PeriodicWork;
use reload::{Reloader, warn_of};
use tollbar_admin::dashboard::Dashboard;
use tollbar_admin::database::LiveRules;
use tollbar_admin::listener::AdminHttp;
use tollbar_admin::operations::{Admin, tokens as admin_tokens};
use tollbar_daemon::daemon::Daemon;
use tollbar_daemon::health::HealthSource;
use tollbar_daemon::metrics::ProtocolName;
use tollbar_daemon::net::endpoint::Endpoint;
use tollbar_daemon::net::tls::Tls;
use tollbar_daemon::net::{Listeners, Protocol};
use tollbar_daemon::protocol::envoy::{self, Envoy, EnvoyLimits};
use tollbar_daemon::protocol::forward_auth::Trust;
use tollbar_daemon::protocol::grpc::Grpc;
use tollbar_daemon::protocol::http::Http;
use tollbar_daemon::protocol::proxy::{GatewayFlagsError, PreparedProxy};
use tollbar_daemon::protocol::resp::Resp;
use tollbar_daemon::shutdown::{ShutdownSignal, ShutdownTrigger};
use tollbar_daemon::store::StoreFlagsError;
use tollbar_daemon::store::counters::Counters;
use tollbar_daemon::store::snapshot::snapshot_error_text;
use tollbar_daemon::telemetry::{Traces, TracesError};
use tollbar_daemon::token::Tokens;

/// How long clients are told that the daemon stops before idle connections are closed. What they had sent before is
/// read in that time.
const NOTICE: Duration = Duration::from_millis(250);

/// The configuration, with the files that it names read and checked.
pub(crate) struct PreparedConfig {
    config: Config,
    pub(crate) rules: RuleSet,
    receipt_secret: Option<[u8; 32]>,
    tokens: Option<Arc<Tokens>>,
    tls: Option<Tls>,
    envoy: EnvoyLimits,
    trust: Trust,
    proxy: Option<PreparedProxy>,
}

/// Why the daemon stopped, or did not start.
#[derive(Debug, Error)]
pub(crate) enum ServeError {
    #[error("{flag}: cannot listen on {endpoint}: {source}")]
    Listen { flag: &'static str, endpoint: Endpoint, source: io::Error },
    #[error(transparent)]
    Store(#[from] StoreFlagsError),
    #[error(transparent)]
    Gateway(#[from] GatewayFlagsError),
    #[error("--rules: {0}")]
    Unsupported(#[from] RuleSetError),
    #[error("--snapshot: {}", snapshot_error_text(.0))]
    Snapshot(SnapshotError),
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Traces(#[from] TracesError),
    #[error("cannot set up threads or signals: {0}")]
    Runtime(#[from] io::Error),
}

/// Reads what `config` names. Serves nothing.
pub(crate) fn prepare(config: Config) -> Result<PreparedConfig, ConfigError> {
    config.check_exposure()?;
    let tokens = config.read_tokens()?;
    let receipt_secret = config.read_receipt_secret()?;
    let tls = Tls::read(&config.tls)?;
    let file = config.read_rules()?;
    warn_of(&file.warnings);
    config.warn_of_permits(&file.rules);
    let envoy = EnvoyLimits::read(config.envoy.envoy_config.clone()).map_err(ConfigError::Envoy)?;
    let trust = config.proxies.trust()?;
    config.store.check()?;
    let proxy = config.gateway.prepare(&config.proxies.trusted_proxies, config.bounds)?;
    config.allow_open_files()?;
    Ok(PreparedConfig {
        config,
        rules: file.rules,
        receipt_secret,
        tokens,
        tls,
        envoy,
        trust,
        proxy,
    })
}

/// The parts of the daemon before it accepts connections.
struct DaemonParts {
    config: Arc<Config>,
    counters: Counters,
    daemon: Arc<Daemon>,
    live: Arc<LiveRules>,
    database: Option<Database>,
    traces: Option<Arc<Traces>>,
    tokens: Option<Arc<Tokens>>,
    tls: Option<Tls>,
    envoy: Arc<EnvoyLimits>,
    trust: Arc<ArcSwap<Trust>>,
    proxy: Option<PreparedProxy>,
}

/// The daemon while it serves.
struct Server {
    daemon: Arc<Daemon>,
    listeners: Listeners,
    reload: Reloader,
    signals: Signals,
    /// Stops the listeners.
    stop: ShutdownTrigger,
    /// Ends what goes on until the last response is sent.
    end: ShutdownTrigger,
    database_tasks: Option<DatabaseTasks>,
    snapshot: Option<JoinHandle<Result<(), SnapshotError>>>,
    traces: Option<Arc<Traces>>,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

/// Serves until a signal says to stop and every request that was read is answered.
pub(crate) fn run(prepared: PreparedConfig) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let parts = open(prepared).await?;
        let mut server = start(parts).await?;
        server.run().await;
        server.drain().await
    })
}

/// Opens the store and the database. The rules are in force when it returns.
async fn open(prepared: PreparedConfig) -> Result<DaemonParts, ServeError> {
    let PreparedConfig { config, rules, receipt_secret, tokens, tls, envoy, trust, proxy } =
        prepared;
    let counters = config.store.open()?;
    let engine = AsyncEngine::builder(rules, counters.store());
    let engine = Arc::new(match receipt_secret {
        Some(secret) => engine.receipt_secret(secret).build()?,
        None => engine.build()?,
    });
    let traces = config.traces.open()?.map(Arc::new);
    let has_database = config.database.database.is_some();
    let tally = has_database.then(|| Arc::new(config.metering.tally()));
    let live = Arc::new(LiveRules::new(Arc::clone(&engine)));
    let daemon = Daemon::new(engine, counters.clone(), tokens.clone())
        .with_database(Arc::clone(&live) as Arc<dyn HealthSource>)
        .with_metering(tally.clone())
        .with_telemetry(config.denials.open(), traces.clone());
    let database = Database::open(&config, &live, tally).await?;
    Ok(DaemonParts {
        config: Arc::new(config),
        counters,
        daemon: Arc::new(daemon),
        live,
        database,
        traces,
        tokens,
        tls,
        envoy: Arc::new(envoy),
        trust: Arc::new(ArcSwap::from_pointee(trust)),
        proxy,
    })
}

/// Starts every listener and prints where it listens.
async fn start(parts: DaemonParts) -> Result<Server, ServeError> {
    let DaemonParts { config, counters, daemon, live, database, traces, tokens, tls, .. } = parts;
    let DaemonParts { envoy, trust, proxy, .. } = parts;
    // Signals may come as soon as the first line is printed.
    let signals = Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
        hang_up: signal(SignalKind::hangup())?,
    };
    let (stop, stopped) = ShutdownSignal::new();
    let options = envoy::EnvoyConfig::new(&config.envoy, config.rules.is_some());
    let service = Envoy::new(daemon.for_protocol(ProtocolName::Envoy), Arc::clone(&envoy), options);
    let grpc = Grpc::new(daemon.for_protocol(ProtocolName::Grpc), service, &stopped);
    let (is_secure, admin_stopped) = (tls.is_some(), stopped.clone());
    let metrics = Arc::clone(&daemon.metrics);
    let mut listeners = Listeners::new(config.bounds, tls, stopped, metrics);
    let http = Http::new(Arc::clone(&daemon), Arc::clone(&trust));
    listen(&mut listeners, "--listen", &config.listen, http).await?;
    listen(&mut listeners, "--grpc", &config.grpc, grpc).await?;
    listen(
        &mut listeners,
        "--resp",
        &config.resp,
        Resp::new(daemon.for_protocol(ProtocolName::Resp)),
    )
    .await?;
    if let Some(proxy) = proxy {
        let proxy = proxy.open(&daemon.for_protocol(ProtocolName::Proxy))?;
        listen(&mut listeners, "--proxy", &config.gateway.endpoint(), proxy).await?;
    }
    let (end, ended) = ShutdownSignal::new();
    let (mut admin_token, mut database_tasks) = (None, None);
    if let Some(database) = database {
        let repository = database.repository.clone();
        let admin = Arc::new(Admin::new(repository, Arc::clone(&daemon), Arc::clone(&live)));
        // Requests are limited while the database is down. Nobody can use a token then.
        admin_token = match admin_tokens::create_first(&admin.repository).await {
            Err(error) if error.is_outage() => None,
            token => token.map_err(DatabaseError::from)?,
        };
        let endpoint = config.admin_endpoint();
        let is_secure = is_secure && matches!(endpoint, Endpoint::Tcp(_));
        let dashboard = Dashboard::start(Arc::clone(&admin), is_secure, admin_stopped);
        listen(&mut listeners, "--admin", &endpoint, AdminHttp::new(admin, dashboard)).await?;
        database_tasks = Some(database.start(&ended));
    }
    let snapshot = config.store.snapshot.file_for(counters.memory());
    let snapshot = snapshot.map(|snapshot| tokio::spawn(snapshot.run(ended)));

    greeting::print(&config, listeners.urls(), admin_token.as_ref());
    info!(store = %config.store, listeners = listeners.urls().join(" "), "serving");
    systemd::notify_ready();
    let reload = Reloader::new(config, Arc::clone(&daemon), live, tokens, envoy, trust);
    Ok(Server { daemon, listeners, reload, signals, stop, end, database_tasks, snapshot, traces })
}

async fn listen<P: Protocol>(
    listeners: &mut Listeners,
    flag: &'static str,
    endpoint: &Endpoint,
    protocol: P,
) -> Result<(), ServeError> {
    let started = listeners.start(flag, endpoint, protocol).await;
    started.map_err(|source| ServeError::Listen { flag, endpoint: endpoint.clone(), source })
}

impl Server {
    /// Reloads and does periodic work until a signal says to stop.
    async fn run(&mut self) {
        let Signals { terminate, interrupt, hang_up } = &mut self.signals;
        let mut work = PeriodicWork::start(Arc::clone(&self.daemon));
        let mut watchdog = systemd::watchdog_period().map(interval);
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hang_up.recv() => {
                    systemd::notify_reloading();
                    self.reload.reload_all(self.listeners.tls.as_mut());
                    systemd::notify_ready();
                }
                () = work.due() => {
                    self.reload.reload_changed();
                    work.run();
                }
                () = tick(&mut watchdog) => systemd::feed_watchdog(),
            }
        }
    }

    /// Answers what was read, closes every connection, and writes counters, usage and traces once more.
    async fn drain(self) -> Result<(), ServeError> {
        systemd::notify_stopping();
        info!("stopping: answering the requests that were read");
        self.stop.announce();
        let _ = timeout(NOTICE, std::future::pending::<()>()).await;
        drop(self.stop);
        self.listeners.join().await;
        drop(self.end);
        if let Some(tasks) = self.database_tasks {
            tasks.finish().await;
        }
        if let Some(traces) = self.traces {
            let _ = tokio::task::spawn_blocking(move || traces.finish()).await;
        }
        let written = match self.snapshot {
            None => Ok(()),
            Some(task) => task.await.map_err(io::Error::other)?.map_err(ServeError::Snapshot),
        };
        info!("stopped");
        written
    }
}

/// Waits for the next tick, forever where there is no interval.
async fn tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}
