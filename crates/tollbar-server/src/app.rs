//! The daemon as a whole: what it is made of, and from its start to its end.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tollbar::{MemoryStore, SnapshotError};
use tollbar_rules::{Engine, RuleSet};

use crate::api::Api;
use crate::config::{Config, ConfigError};
use crate::listener;

/// How often the counters are written while the daemon runs.
const SNAPSHOT_EVERY: Duration = Duration::from_mins(1);

/// What the daemon needs, read and found good.
pub(crate) struct Prepared {
    config: Config,
    pub(crate) rules: RuleSet,
    token: Option<String>,
}

/// Why the daemon could not go on.
#[derive(Debug, Error)]
pub(crate) enum AppError {
    #[error("--listen: cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
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
    let store = Arc::new(open_store(&config)?);
    let engine = Arc::new(Engine::builder(rules).store(store.clone()).build());
    let api = Arc::new(Api::new(engine.clone(), store.clone(), token));

    // Before anything is printed: whoever reads the first line may send signals.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let address = config.listen;
    let listen = |source| AppError::Listen { address, source };
    let socket = TcpListener::bind(address).await.map_err(listen)?;
    greet(&config, socket.local_addr().map_err(listen)?);

    let (stop, stopped) = watch::channel(());
    let serving = listener::serve(socket, api, config.max_connections, stopped);
    let serving = tokio::spawn(serving);
    let mut minutes = tokio::time::interval(SNAPSHOT_EVERY);
    // The first tick is at once, and there is nothing to write yet.
    minutes.tick().await;
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => reload(&config, &engine),
            _ = minutes.tick() => if let Some(path) = &config.snapshot
                && let Err(error) = write_snapshot(&store, path).await
            {
                // The next minute may go better; the counters are in memory all the same.
                eprintln!("{error}");
            },
        }
    }
    println!("stopping: answering what has been asked");
    // Received or not, `stopped` sees that its sender is gone.
    drop(stop);
    let _ = serving.await;
    match &config.snapshot {
        Some(path) => write_snapshot(&store, path).await,
        None => Ok(()),
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

async fn write_snapshot(store: &Arc<MemoryStore>, path: &Path) -> Result<(), AppError> {
    let (store, to) = (Arc::clone(store), path.to_owned());
    // Disks are slow, and the threads of the runtime have requests to answer.
    let written = tokio::task::spawn_blocking(move || store.snapshot_to_file(to)).await;
    match written.map_err(io::Error::other)? {
        Ok(_) => Ok(()),
        Err(source) => Err(AppError::Snapshot { path: path.to_owned(), source }),
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

fn greet(config: &Config, address: SocketAddr) {
    println!("listening on http://{address}");
    match &config.rules {
        Some(path) => println!("rules: {}", path.display()),
        None => println!("rules: the built-in example, 5 requests per 10 s for each client"),
    }
    let bearer = if config.token_file.is_some() { " -H 'Authorization: Bearer ..'" } else { "" };
    println!(
        "try: curl -i{bearer} http://{address}/v1/check -d '{{\"path\":\"/\",\"attributes\":{{\"user\":\"42\"}}}}'"
    );
}
