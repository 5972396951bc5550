//! The daemon as a whole: what it is made of, and from its start to its end.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tollbar::SnapshotError;
use tollbar_rules::{AsyncEngine, RuleSet, RuleSetError};
use tracing::{info, warn};

use crate::admin::credential::Credential;
use crate::admin::{self, Admin};
use crate::ahead;
use crate::background;
use crate::config::{Config, ConfigError};
use crate::counters::{Counters, Health};
use crate::daemon::Daemon;
use crate::dashboard::Dashboard;
use crate::database::{Database, DatabaseError};
use crate::endpoint::Endpoint;
use crate::forward_auth::Trust;
use crate::listener::admin::AdminHttp;
use crate::listener::envoy::{self, Envoy, EnvoyLimits};
use crate::listener::gateway::{GatewayFlagsError, PreparedProxy};
use crate::listener::grpc::Grpc;
use crate::listener::http::Http;
use crate::listener::resp::Resp;
use crate::listener::tls::Tls;
use crate::listener::{Listeners, Protocol, Stopped};
use crate::metrics::Wire;
use crate::reload::{Reload, warn_of};
use crate::snapshot::told;
use crate::store::StoreFlagsError;
use crate::systemd;
use crate::telemetry::TracesError;
use crate::token::Tokens;

/// How often files of rules and the store's health are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// From the announcement of the end to the closing of idle connections: for what has been sent to be
/// read, and for clients to hear of it.
const ANNOUNCED_FOR: Duration = Duration::from_millis(250);

/// What the daemon needs, read and found good.
pub(crate) struct Prepared {
    config: Config,
    pub(crate) rules: RuleSet,
    receipt_secret: Option<[u8; 32]>,
    tokens: Option<Arc<Tokens>>,
    tls: Option<Tls>,
    envoy: EnvoyLimits,
    trust: Trust,
    proxy: Option<PreparedProxy>,
}

/// Why the daemon could not go on.
#[derive(Debug, Error)]
pub(crate) enum AppError {
    #[error("{flag}: cannot listen on {endpoint}: {source}")]
    Listen { flag: &'static str, endpoint: Endpoint, source: io::Error },
    #[error(transparent)]
    Store(#[from] StoreFlagsError),
    #[error(transparent)]
    Gateway(#[from] GatewayFlagsError),
    #[error("--rules: {0}")]
    Unsupported(#[from] RuleSetError),
    #[error("--snapshot: {}", told(.0))]
    Snapshot(SnapshotError),
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Traces(#[from] TracesError),
    #[error("cannot set up threads or signals: {0}")]
    Runtime(#[from] io::Error),
}

/// Reads what `config` names. Serves nothing.
pub(crate) fn prepare(config: Config) -> Result<Prepared, ConfigError> {
    config.check_exposure()?;
    let tokens = config.read_tokens()?;
    let receipt_secret = config.read_receipt_secret()?;
    let tls = Tls::read(&config.tls)?;
    let file = config.read_rules()?;
    warn_of(&file.warnings);
    envoy::warn_of_permits(&config, &file.rules);
    let envoy = EnvoyLimits::read(config.envoy.envoy_config.clone()).map_err(ConfigError::Envoy)?;
    let trust = config.proxies.trust()?;
    config.store.check()?;
    let proxy = config.gateway.prepare(&config.proxies.trusted_proxies, config.bounds)?;
    config.allow_open_files()?;
    Ok(Prepared { config, rules: file.rules, receipt_secret, tokens, tls, envoy, trust, proxy })
}

/// Serves until a signal says to stop, and what was asked is answered.
pub(crate) fn run(prepared: Prepared) -> Result<(), AppError> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(prepared))
}

async fn serve(prepared: Prepared) -> Result<(), AppError> {
    let Prepared { config, rules, receipt_secret, tokens, tls, envoy, trust, proxy } = prepared;
    let config = Arc::new(config);
    let counters = config.store.open()?;
    let engine = AsyncEngine::builder(rules, counters.store());
    let engine = Arc::new(match receipt_secret {
        Some(secret) => engine.receipt_secret(secret).build()?,
        None => engine.build()?,
    });
    let traces = config.traces.open()?.map(Arc::new);
    let has_database = config.database.database.is_some();
    let tally = has_database.then(|| Arc::new(config.metering.tally()));
    let daemon = Daemon::new(Arc::clone(&engine), counters.clone(), tokens.clone());
    let daemon =
        daemon.with_metering(tally.clone()).with_telemetry(config.denials.open(), traces.clone());
    let daemon = Arc::new(daemon);
    let database = Database::open(&config, &daemon, tally).await?;

    // Before anything is printed: whoever reads the first line may send signals.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let (stop, stopped) = Stopped::new();
    let envoy = Arc::new(envoy);
    let options = envoy::Options::new(&config.envoy, config.rules.is_some());
    let service = Envoy::new(daemon.for_protocol(Wire::Envoy), Arc::clone(&envoy), options);
    let grpc = Grpc::new(daemon.for_protocol(Wire::Grpc), service, &stopped);
    let metrics = Arc::clone(&daemon.metrics);
    let (is_secure, watched) = (tls.is_some(), stopped.clone());
    let mut listeners = Listeners::new(config.bounds, tls, stopped, Arc::clone(&metrics));
    let trust = Arc::new(ArcSwap::from_pointee(trust));
    let http = Http::new(Arc::clone(&daemon), Arc::clone(&trust));
    start(&mut listeners, "--listen", &config.listen, http).await?;
    start(&mut listeners, "--grpc", &config.grpc, grpc).await?;
    start(&mut listeners, "--resp", &config.resp, Resp::new(daemon.for_protocol(Wire::Resp)))
        .await?;
    if let Some(proxy) = proxy {
        let proxy = proxy.open(&daemon.for_protocol(Wire::Proxy))?;
        start(&mut listeners, "--proxy", &config.gateway.endpoint(), proxy).await?;
    }
    // The counters are written once more after the last answer.
    let (end, ended) = Stopped::new();
    let (mut admin_token, mut kept) = (None, None);
    if let Some(database) = database {
        let admin = Arc::new(Admin::new(database.repository.clone(), Arc::clone(&daemon)));
        // Without its database it limits all the same, and nobody can use a token yet.
        admin_token = match admin::tokens::first(&admin.repository).await {
            Err(error) if error.is_outage() => None,
            token => token.map_err(DatabaseError::from)?,
        };
        let endpoint = config.admin_endpoint();
        let is_secure = is_secure && matches!(endpoint, Endpoint::Tcp(_));
        let dashboard = Dashboard::start(Arc::clone(&admin), is_secure, watched);
        start(&mut listeners, "--admin", &endpoint, AdminHttp::new(admin, dashboard)).await?;
        kept = Some(database.keep(&ended));
    }
    let snapshot = config.store.snapshot.of(counters.memory());
    let snapshot = snapshot.map(|it| tokio::spawn(it.keep(ended)));

    greet(&config, listeners.urls(), admin_token.as_ref());
    info!(store = %config.store, listeners = listeners.urls().join(" "), "serving");
    systemd::ready();
    let mut reload = Reload::new(Arc::clone(&config), Arc::clone(&daemon), tokens, envoy, trust);
    let mut health = Health::Ok;
    let mut chores = Chores::begin(Arc::clone(&daemon));
    let mut looks = every(LOOK_EVERY);
    let mut signs_of_life = systemd::alive_every().map(every);
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => {
                systemd::reloading();
                reload.everything(listeners.tls.as_mut());
                systemd::ready();
            }
            _ = looks.tick() => {
                reload.look();
                tell_health(&counters, &mut health);
                ahead::log_news(&engine);
                chores.go_on();
            }
            () = next(&mut signs_of_life) => systemd::alive(),
        }
    }
    systemd::stopping();
    info!("stopping: answering what has been asked");
    stop.announce();
    let _ = timeout(ANNOUNCED_FOR, std::future::pending::<()>()).await;
    drop(stop);
    listeners.join().await;
    drop(end);
    if let Some(kept) = kept {
        kept.finish().await;
    }
    if let Some(traces) = traces {
        let _ = tokio::task::spawn_blocking(move || traces.finish()).await;
    }
    let written = match snapshot {
        None => Ok(()),
        Some(task) => task.await.map_err(io::Error::other)?.map_err(AppError::Snapshot),
    };
    info!("stopped");
    written
}

async fn start<P: Protocol>(
    listeners: &mut Listeners,
    flag: &'static str,
    endpoint: &Endpoint,
    protocol: P,
) -> Result<(), AppError> {
    let started = listeners.start(flag, endpoint, protocol).await;
    started.map_err(|source| AppError::Listen { flag, endpoint: endpoint.clone(), source })
}

fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// What is done again and again, each one at a time: a store that does not answer gets no crowd.
struct Chores {
    daemon: Arc<Daemon>,
    probe: JoinHandle<()>,
    tick: JoinHandle<Option<()>>,
}

impl Chores {
    fn begin(daemon: Arc<Daemon>) -> Self {
        let (probe, tick) = (Self::probe(&daemon), Self::tick(&daemon));
        Self { daemon, probe, tick }
    }

    fn go_on(&mut self) {
        if self.probe.is_finished() {
            self.probe = Self::probe(&self.daemon);
        }
        if self.tick.is_finished() {
            self.tick = Self::tick(&self.daemon);
        }
    }

    fn probe(daemon: &Daemon) -> JoinHandle<()> {
        tokio::spawn(daemon.counters.clone().probe())
    }

    /// Counts up what was decided lately, which takes the longer the more rules there are.
    fn tick(daemon: &Arc<Daemon>) -> JoinHandle<Option<()>> {
        let daemon = Arc::clone(daemon);
        let tick = move || daemon.metrics.tick(&daemon.engine, daemon.now());
        tokio::spawn(background::run(tick))
    }
}

/// The next tick; never where there is no interval.
async fn next(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// Tells when the store is lost, and when it is back.
fn tell_health(counters: &Counters, known: &mut Health) {
    let health = counters.health();
    match (&*known, &health) {
        (Health::Ok, Health::Degraded { why }) => {
            warn!(%why, "the store does not answer: rules say what to answer without it");
        }
        (Health::Degraded { .. }, Health::Ok) => info!("the store answers again"),
        _ => return,
    }
    *known = health;
}

/// Says on standard output where it listens and how to try it. Who started it may have closed that.
fn greet(config: &Config, urls: &[String], admin_token: Option<&Credential>) {
    let _ = write_greeting(config, urls, admin_token, io::stdout().lock());
}

fn write_greeting(
    config: &Config,
    urls: &[String],
    admin_token: Option<&Credential>,
    mut to: impl Write,
) -> io::Result<()> {
    for url in urls {
        writeln!(to, "listening on {url}")?;
    }
    if let Some(token) = admin_token {
        // Here and nowhere else: what is logged is read by many, and kept.
        writeln!(to, "admin token (shown once): {}", token.reveal())?;
    }
    match (&config.rules, &config.gateway.limit) {
        (Some(path), _) => writeln!(to, "rules: {}", path.display())?,
        (None, Some(limit)) => writeln!(to, "rules: {limit} for each client")?,
        (None, None) if config.database.database.is_some() => {}
        (None, None) => {
            writeln!(to, "rules: the built-in example, 5 requests per 10 s for each client")?;
        }
    }
    if let Some(place) = &config.database.database {
        writeln!(to, "rules: {place}")?;
    }
    let proxy = urls.iter().find_map(|url| url.strip_prefix("proxy"));
    if let (Some(proxy), Some(upstream)) = (proxy, &config.gateway.upstream) {
        writeln!(to, "passing on to {upstream}")?;
        return match proxy.strip_prefix("://unix:") {
            Some(path) => writeln!(to, "try: curl -i --unix-socket {path} http://localhost/"),
            None => writeln!(to, "try: curl -i http{proxy}/"),
        };
    }
    let Some(url) = urls.iter().find(|url| url.starts_with("http")) else {
        return writeln!(to, "ready");
    };
    let bearer = if config.token_file.is_some() { " -H 'Authorization: Bearer ..'" } else { "" };
    let target = match url.strip_prefix("http://unix:") {
        Some(path) => format!("--unix-socket {path} http://localhost"),
        None => url.clone(),
    };
    writeln!(
        to,
        "try: curl -i{bearer} {target}/v1/check -d '{{\"path\":\"/\",\"attributes\":{{\"user\":\"42\"}}}}'"
    )
}
