//! Everything that listens, started one by one and ended together.

use std::io;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::endpoint::Endpoint;
use super::tls::Tls;
use super::{Bounds, Listener, Protocol};
use crate::metrics::Metrics;
use crate::shutdown::ShutdownSignal;

/// Everything that listens.
#[derive(Debug)]
pub struct Listeners {
    tasks: JoinSet<()>,
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
    ) -> Self {
        Self { tasks: JoinSet::new(), stopped, bounds, metrics, tls, urls: Vec::new() }
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
        // A Unix socket never leaves the machine, and its permissions say who may connect.
        let has_tls = matches!(endpoint, Endpoint::Tcp(_));
        let tls = self.tls.as_mut().filter(|_| has_tls).map(|tls| tls.for_listener(P::ALPN));
        let scheme = if flag == "--listen" { "http" } else { flag.trim_start_matches('-') };
        let secure = if tls.is_some() { "s" } else { "" };
        self.urls.push(format!("{scheme}{secure}://{socket}"));
        let counters = self.metrics.listener_connections(scheme);
        let listener = Listener { flag, socket, bounds: self.bounds, tls, counters };
        self.tasks.spawn(super::serve(listener, Arc::new(protocol), self.stopped.clone()));
        Ok(())
    }

    /// Where it listens: `http://127.0.0.1:8080`, `grpcs://..`, `resp://unix:/run/tollbar.sock`.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Ends when all connections have.
    pub async fn join(self) {
        self.tasks.join_all().await;
    }
}
