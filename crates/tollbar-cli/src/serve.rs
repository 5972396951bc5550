//! The daemon from start to end: [`prepare`] reads what the configuration names, [`run`] opens the parts, starts the
//! listeners, serves until a signal, and drains.

mod database;
mod greeting;
pub(crate) mod periodic;
mod reload;
mod systemd;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Interval, interval, sleep};
use tollbar::{Clock, SnapshotError, SystemClock};
use tollbar_rules::{AsyncEngine, RuleSet, RuleSetError};
use tracing::{error, info, warn};

use crate::config::{Config, ConfigError, ConfigErrors, IdleField};
use database::{Database, DatabaseError};
use periodic::RuleWarningLog;
use reload::{ReloadTask, Reloader, warn_of};
use tollbar_admin::dashboard::Dashboard;
use tollbar_admin::database::{DATABASE, LiveRules};
use tollbar_admin::listener::AdminHttp;
use tollbar_admin::operations::{Admin, tokens as admin_tokens};
use tollbar_admin::usage::node::NodeIdentity;
use tollbar_daemon::daemon::Daemon;
use tollbar_daemon::metrics::ProtocolName;
use tollbar_daemon::net::endpoint::Endpoint;
use tollbar_daemon::net::tls::{CERTIFICATES, Tls};
use tollbar_daemon::net::{Listeners, Protocol};
use tollbar_daemon::protocol::envoy::{self, Envoy, EnvoyLimits};
use tollbar_daemon::protocol::forward_auth::{ExtAuthz, ProxyTrust};
use tollbar_daemon::protocol::grpc::Grpc;
use tollbar_daemon::protocol::health::HealthProtocol;
use tollbar_daemon::protocol::http::{Callers, Http};
use tollbar_daemon::protocol::proxy::{GatewayFlagsError, PreparedProxy};
use tollbar_daemon::protocol::resp::Resp;
use tollbar_daemon::shutdown::{ShutdownSignal, ShutdownTrigger};
use tollbar_daemon::store::StoreFlagsError;
use tollbar_daemon::store::counters::Counters;
use tollbar_daemon::store::snapshot::{SNAPSHOT, SnapshotFile, snapshot_error_text};
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
    trust: Arc<ProxyTrust>,
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

/// Reads what `config` names. Serves nothing. The error has everything that is wrong, not only the first mistake.
pub(crate) fn prepare(config: Config) -> Result<PreparedConfig, ConfigErrors> {
    let mut errors = ConfigErrors::default();
    errors.extend(config.unusable.iter().cloned());
    // Options at their defaults because they cannot be used would make others look wrong.
    if config.unusable.is_empty() {
        errors.extend(config.check_options().err().into_iter().flatten());
        errors.take(config.check_listeners());
        errors.extend(config.exposures());
    }
    let tokens = errors.take(config.read_tokens());
    let receipt_secret = errors.take(config.read_receipt_secret());
    let tls = errors.take(config.read_tls(SystemClock::new().now()));
    let rules = errors.take(config.read_rules()).map(|file| {
        warn_of(&file.warnings, config.database.database.is_some());
        file.rules
    });
    let envoy = EnvoyLimits::read(&config.envoy);
    let envoy = errors.take(envoy.map_err(ConfigError::Envoy));
    let trust = errors.take(config.proxies.trust()).map(Arc::new);
    errors.take(config.store.check());
    let proxy = trust.as_ref().and_then(|trust| {
        errors.take(config.gateway.prepare(&config.proxies, trust, config.bounds))
    });
    errors.take(config.allow_open_files());
    match (rules, receipt_secret, tokens, tls, envoy, trust, proxy) {
        (
            Some(rules),
            Some(receipt_secret),
            Some(tokens),
            Some(tls),
            Some(envoy),
            Some(trust),
            Some(proxy),
        ) if errors.is_empty() => {
            Ok(PreparedConfig { config, rules, receipt_secret, tokens, tls, envoy, trust, proxy })
        }
        _ => Err(errors),
    }
}

impl PreparedConfig {
    /// Warns of what the rules say and has no effect. A daemon that serves does so by a task, with the rules of the
    /// database too.
    pub(crate) fn warn_of_idle_fields(&self) {
        self.config.idle_fields(&self.rules).iter().for_each(IdleField::log);
    }
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
    trust: Arc<ProxyTrust>,
    proxy: Option<PreparedProxy>,
}

/// The daemon while it serves.
struct Server {
    daemon: Arc<Daemon>,
    listeners: Listeners,
    signals: Signals,
    /// Stops the listeners.
    stop: ShutdownTrigger,
    /// Ends what goes on until the last response is sent.
    end: ShutdownTrigger,
    /// Its name is this node's for as long as the daemon runs.
    _node: Option<NodeIdentity>,
    snapshot: Option<Arc<SnapshotFile>>,
    traces: Option<Arc<Traces>>,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
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
    // What a store refuses is known before the first request, and a store that is there is connected to.
    counters.clone().probe().await;
    let engine =
        AsyncEngine::builder(rules, counters.store()).request_id_replays(config.request_id_replays);
    let engine = Arc::new(match receipt_secret {
        Some(secret) => engine.receipt_secret(secret).build()?,
        None => engine.build()?,
    });
    let traces = config.traces.open()?.map(Arc::new);
    let has_database = config.database.database.is_some();
    let tally = has_database.then(|| Arc::new(config.metering.tally()));
    let live = Arc::new(LiveRules::new(Arc::clone(&engine)));
    let daemon = Daemon::new(engine, counters.clone(), tokens.clone())
        .with_metering(tally.clone())
        .with_queue_waiters(config.waits.queue_waiters())
        .with_client_headers(config.headers.client_headers())
        .with_telemetry(config.denials.open(), traces.clone());
    let of_database = Arc::clone(&live);
    daemon.health.add(DATABASE, move || of_database.health());
    let database = Database::open(&config, &live, tally, counters.loans().cloned()).await?;
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
        trust,
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
    };
    let hang_up = signal(SignalKind::hangup())?;
    let (stop, stopped) = ShutdownSignal::new();
    let options = envoy::EnvoyConfig::new(&config.envoy, config.has_rules());
    let service = Envoy::new(daemon.for_protocol(ProtocolName::Envoy), Arc::clone(&envoy), options);
    let handle = |protocol, flag, endpoint: &Endpoint| {
        daemon.for_listener(protocol, !endpoint.is_local() && !config.asks_who(flag))
    };
    let ext_authz = ExtAuthz::new(daemon.for_protocol(ProtocolName::ExtAuthz), Arc::clone(&trust));
    let grpc = handle(ProtocolName::Grpc, "--grpc", &config.grpc);
    let grpc = Grpc::new(grpc, service, ext_authz, &stopped);
    let accepting_stopped = stopped.clone();
    if let Some(tls) = &tls {
        let (health, clock) = (tls.health(), Arc::downgrade(&daemon));
        daemon.health.add(CERTIFICATES, move || Some(health(clock.upgrade()?.now())));
    }
    let (metrics, tasks) = (Arc::clone(&daemon.metrics), Arc::clone(&daemon.tasks));
    let mut listeners = Listeners::new(config.bounds, tls, stopped, metrics, tasks);
    let callers = Callers::new(&config.listen, config.allowed_hosts.clone());
    let http = handle(ProtocolName::Http, "--listen", &config.listen);
    let http = Http::new(http, Arc::clone(&trust), callers);
    listen(&mut listeners, "--listen", &config.listen, http).await?;
    listen(&mut listeners, "--health", &config.health, HealthProtocol::new(Arc::clone(&daemon)))
        .await?;
    listen(&mut listeners, "--grpc", &config.grpc, grpc).await?;
    listen(
        &mut listeners,
        "--resp",
        &config.resp,
        Resp::new(handle(ProtocolName::Resp, "--resp", &config.resp)),
    )
    .await?;
    if let Some(proxy) = proxy {
        let proxy = proxy.open(&daemon.for_protocol(ProtocolName::Proxy))?;
        proxy.probe_upstream();
        listen(&mut listeners, "--proxy", &config.gateway.endpoint(), proxy).await?;
    }
    let (end, ended) = ShutdownSignal::new();
    let (mut admin_token, mut node) = (None, None);
    if let Some(database) = database {
        let repository = database.repository.clone();
        let writes = config.admin.tenant_writes.clone();
        let admin = Admin::new(repository, Arc::clone(&daemon), Arc::clone(&live), writes);
        let admin = Arc::new(admin);
        // Requests are limited while the database is down. Nobody can use a token then.
        admin_token = match admin_tokens::create_first(&admin.repository).await {
            Err(error) if error.is_outage() => None,
            token => token.map_err(DatabaseError::from)?,
        };
        let endpoint = config.admin_endpoint();
        let is_secure = config.tls.is_given("--admin") && matches!(endpoint, Endpoint::Tcp(_));
        let dashboard = Dashboard::start(Arc::clone(&admin), is_secure, &accepting_stopped);
        listen(&mut listeners, "--admin", &endpoint, AdminHttp::new(admin, dashboard)).await?;
        node = Some(database.start(&daemon, &ended));
    }
    let snapshot = config.store.snapshot.file_for(counters.memory());
    if let Some(snapshot) = &snapshot {
        let pulse = snapshot.start(&daemon.tasks, &ended);
        daemon.health.add(SNAPSHOT, move || Some(pulse.health()));
    }
    let is_forgetful = counters.memory().is_some() && snapshot.is_none();
    let rule_warnings = RuleWarningLog::new(&config, &envoy, is_forgetful);
    periodic::start(&daemon, rule_warnings, &ended);

    let rules = daemon.engine.rules();
    greeting::print(&config, &rules, listeners.urls(), admin_token.as_ref());
    if node.is_some() && greeting::is_without_limits(&config, &rules) {
        warn!(
            "there is no rule, in --rules or in --database: nothing is limited until one is added"
        );
    }
    info!(store = %config.store, listeners = listeners.urls().join(" "), "serving");
    systemd::notify_ready();
    let reloader = Reloader::new(config, Arc::clone(&daemon), live, tokens, envoy, trust);
    let reload = ReloadTask { reloader, hang_up, tls: listeners.tls.take() };
    reload.start(&daemon.tasks, &accepting_stopped);
    Ok(Server { daemon, listeners, signals, stop, end, _node: node, snapshot, traces })
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
    /// Waits until a signal says to stop. Everything else is done by tasks.
    async fn run(&mut self) {
        let Signals { terminate, interrupt } = &mut self.signals;
        let mut watchdog = systemd::watchdog_period().map(interval);
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                () = tick(&mut watchdog) => systemd::feed_watchdog(),
            }
        }
    }

    /// Answers what was read, closes every connection, and writes counters, usage and traces once more.
    async fn drain(self) -> Result<(), ServeError> {
        systemd::notify_stopping();
        info!("stopping: answering the requests that were read");
        self.stop.announce();
        sleep(NOTICE).await;
        drop(self.stop);
        self.listeners.join().await;
        drop(self.end);
        // The last usage and the last rules are written by their tasks.
        self.daemon.tasks.join().await;
        if let Some(traces) = self.traces
            && tokio::task::spawn_blocking(move || traces.finish()).await.is_err()
        {
            error!("the last traces are lost");
        }
        let written = match self.snapshot {
            None => Ok(()),
            Some(snapshot) => snapshot.write_last().await.map_err(ServeError::Snapshot),
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
