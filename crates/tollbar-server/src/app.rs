//! The daemon as a whole: what it is made of, and from its start to its end.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tollbar::{MemoryStore, SnapshotError};
use tollbar_rules::{Engine, RuleSet};

use crate::config::{Config, ConfigError};
use crate::counters::Counters;
use crate::daemon::Daemon;
use crate::endpoint::Endpoint;
use crate::listener::http::Http;
use crate::listener::resp::Resp;
use crate::listener::{self, Protocol, Stopped};
use crate::token::Token;

/// How often the counters are written while the daemon runs.
const SNAPSHOT_EVERY: Duration = Duration::from_mins(1);

/// What the daemon needs, read and found good.
pub(crate) struct Prepared {
    config: Config,
    pub(crate) rules: RuleSet,
    token: Option<Token>,
}

/// Why the daemon could not go on.
#[derive(Debug, Error)]
pub(crate) enum AppError {
    #[error("{flag}: cannot listen on {endpoint}: {source}")]
    Listen { flag: &'static str, endpoint: Endpoint, source: io::Error },
    #[error("--snapshot: {}: {}", path.display(), told(source))]
    Snapshot { path: PathBuf, source: SnapshotError },
    #[error("cannot set up threads or signals: {0}")]
    Runtime(#[from] io::Error),
}

/// What an error of a snapshot says, with what the system said.
fn told(error: &SnapshotError) -> String {
    match error {
        SnapshotError::Io { source, .. } => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}

/// Reads what `config` names. Serves nothing.
pub(crate) fn prepare(config: Config) -> Result<Prepared, ConfigError> {
    let token = config.read_token()?;
    let file = config.read_rules()?;
    for warning in &file.warnings {
        eprintln!("warning: --rules: {warning}");
    }
    Ok(Prepared { config, rules: file.rules, token })
}

/// Serves until a signal says to stop, and what was asked is answered.
pub(crate) fn run(prepared: Prepared) -> Result<(), AppError> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(prepared))
}

async fn serve(Prepared { config, rules, token }: Prepared) -> Result<(), AppError> {
    let counters = Counters::Memory(Arc::new(open_store(&config)?));
    let engine = Arc::new(Engine::builder(rules).store(counters.store()).build());
    let daemon = Arc::new(Daemon::new(Arc::clone(&engine), counters.clone(), token));

    // Before anything is printed: whoever reads the first line may send signals.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let (stop, stopped) = Stopped::new();
    let mut listeners = Listeners { tasks: JoinSet::new(), stopped, config: &config };
    let http = listeners.start("--listen", &config.listen, Http::new(Arc::clone(&daemon))).await?;
    let resp = listeners.start("--resp", &config.resp, Resp::new(daemon)).await?;
    greet(&config, http.as_deref(), resp.as_deref());

    let mut minutes = tokio::time::interval(SNAPSHOT_EVERY);
    // The first tick is at once, and there is nothing to write yet.
    minutes.tick().await;
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => reload(&config, &engine),
            _ = minutes.tick() => if let Err(error) = write_snapshot(&config, &counters).await {
                // The next minute may go better; the counters are in memory all the same.
                eprintln!("{error}");
            },
        }
    }
    println!("stopping: answering what has been asked");
    drop(stop);
    listeners.tasks.join_all().await;
    write_snapshot(&config, &counters).await
}

/// Everything that listens.
struct Listeners<'c> {
    tasks: JoinSet<()>,
    stopped: Stopped,
    config: &'c Config,
}

impl Listeners<'_> {
    /// Listens where `endpoint` says, and says where that is; `None` where it is off.
    async fn start<P: Protocol>(
        &mut self,
        flag: &'static str,
        endpoint: &Endpoint,
        protocol: P,
    ) -> Result<Option<String>, AppError> {
        let failed = |source| AppError::Listen { flag, endpoint: endpoint.clone(), source };
        let Some(socket) = endpoint.bind().await.map_err(failed)? else {
            return Ok(None);
        };
        let place = socket.to_string();
        let (bound, stopped) = (self.config.max_connections, self.stopped.clone());
        self.tasks.spawn(listener::serve(socket, Arc::new(protocol), bound, stopped));
        Ok(Some(place))
    }
}

fn open_store(config: &Config) -> Result<MemoryStore, AppError> {
    let builder =
        || MemoryStore::builder().max_keys(usize::try_from(config.max_keys).unwrap_or(usize::MAX));
    let Some(path) = &config.snapshot else {
        return Ok(builder().build());
    };
    match builder().restore_from_file(path) {
        Err(SnapshotError::Missing { .. }) => Ok(builder().build()),
        restored => restored.map_err(|source| AppError::Snapshot { path: path.clone(), source }),
    }
}

/// Writes the counters where they are to be kept, if they are.
async fn write_snapshot(config: &Config, counters: &Counters) -> Result<(), AppError> {
    let (Some(path), Some(store)) = (&config.snapshot, counters.memory()) else {
        return Ok(());
    };
    let (store, to) = (Arc::clone(store), path.clone());
    // Disks are slow, and the threads of the runtime have requests to answer.
    let written = tokio::task::spawn_blocking(move || store.snapshot_to_file(to)).await;
    match written.map_err(io::Error::other)? {
        Ok(_) => Ok(()),
        Err(source) => Err(AppError::Snapshot { path: path.clone(), source }),
    }
}

/// Puts the rules of the file in force as they are now, if they can be used.
fn reload(config: &Config, engine: &Engine) {
    match config.read_rules() {
        Ok(file) => {
            for warning in &file.warnings {
                eprintln!("warning: --rules: {warning}");
            }
            let count = file.rules.len();
            engine.replace(file.rules);
            println!("reloaded: {count} rules");
        }
        Err(error) => println!("the rules stay as they were: {error}"),
    }
}

fn greet(config: &Config, http: Option<&str>, resp: Option<&str>) {
    if let Some(place) = http {
        println!("listening on http://{place}");
    }
    if let Some(place) = resp {
        println!("listening on resp://{place}");
    }
    match &config.rules {
        Some(path) => println!("rules: {}", path.display()),
        None => println!("rules: the built-in example, 5 requests per 10 s for each client"),
    }
    let Some(place) = http else {
        return;
    };
    let bearer = if config.token_file.is_some() { " -H 'Authorization: Bearer ..'" } else { "" };
    let target = match place.strip_prefix("unix:") {
        Some(path) => format!("--unix-socket {path} http://localhost"),
        None => format!("http://{place}"),
    };
    println!(
        "try: curl -i{bearer} {target}/v1/check -d '{{\"path\":\"/\",\"attributes\":{{\"user\":\"42\"}}}}'"
    );
}
