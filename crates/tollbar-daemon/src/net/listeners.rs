//! Everything that listens, started one by one and ended together.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::warn;

use super::endpoint::Endpoint;
use super::tls::Tls;
use super::{Bounds, ConnectionLimit, Listener, Protocol};
use crate::metrics::Metrics;
use crate::shutdown::ShutdownSignal;
use crate::tasks::Tasks;

/// A listener that accepts nothing and says nothing for so long is started again.
const TURN_MAX: Duration = Duration::from_secs(10);

/// Everything that listens.
#[derive(Debug)]
pub struct Listeners {
    tasks: Arc<Tasks>,
    /// Of each listener, what is free when it has no connection.
    connections: Vec<(&'static str, Arc<Semaphore>)>,
    stopped: ShutdownSignal,
    bounds: Bounds,
    metrics: Arc<Metrics>,
    pub tls: Option<Tls>,
    /// As URLs, in the order of their start.
    urls: Vec<String>,
}

impl Listeners {
    pub fn new(
        bounds: Bounds,
        tls: Option<Tls>,
        stopped: ShutdownSignal,
        metrics: Arc<Metrics>,
        tasks: Arc<Tasks>,
    ) -> Self {
        let (connections, urls) = (Vec::new(), Vec::new());
        Self { tasks, connections, stopped, bounds, metrics, tls, urls }
    }

    /// Listens where `endpoint` says, unless it is off.
    pub async fn start<P: Protocol>(
        &mut self,
        flag: &'static str,
        endpoint: &Endpoint,
        protocol: P,
    ) -> io::Result<()> {
        let Some(socket) = endpoint.bind().await? else {
            return Ok(());
        };
        let tls = self.tls.as_mut().and_then(|tls| tls.for_listener(flag, P::ALPN));
        let scheme = if flag == "--listen" { "http" } else { flag.trim_start_matches('-') };
        let secure = if tls.is_some() { "s" } else { "" };
        self.urls.push(format!("{scheme}{secure}://{socket}"));
        let counters = self.metrics.listener_connections(scheme);
        let connections = ConnectionLimit::new(flag, self.bounds.max_connections);
        self.connections.push((flag, Arc::clone(&connections.free)));
        let listener = Listener {
            flag,
            socket,
            protocol: Arc::new(protocol),
            bounds: self.bounds,
            tls,
            counters,
            connections,
            progress: P::EVICTS_SLOWEST.then(Arc::default),
            is_failing: false,
        };
        self.tasks.start(task_name(flag), TURN_MAX, &self.stopped, listener);
        Ok(())
    }

    /// Where it listens: `http://127.0.0.1:8080`, `grpcs://..`, `resp://unix:/run/tollbar.sock`.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Waits until all connections have ended, or their time to drain is over, after the daemon was told to stop.
    pub async fn join(self) {
        let Bounds { max_connections, drain_timeout, .. } = self.bounds;
        let drained = async {
            for (_, free) in &self.connections {
                // Fails only where it was closed, which nothing does.
                drop(free.acquire_many(max_connections).await);
            }
        };
        if timeout(drain_timeout.0, drained).await.is_err() {
            for (listener, free) in &self.connections {
                let open = (max_connections as usize).saturating_sub(free.available_permits());
                if open > 0 {
                    warn!(listener, open, "connections were cut off after --drain-timeout");
                }
            }
        }
    }
}

/// Returns the name of the task that accepts connections for a flag.
fn task_name(flag: &'static str) -> &'static str {
    match flag {
        "--listen" => "listen_http",
        "--grpc" => "listen_grpc",
        "--resp" => "listen_resp",
        "--proxy" => "listen_proxy",
        "--admin" => "listen_admin",
        "--health" => "listen_health",
        _ => "listen",
    }
}
