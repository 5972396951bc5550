//! The connection that a request came over, as handlers see it.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use hyper::http::Extensions;

use tollbar_daemon::net::http1;
use tollbar_daemon::net::phase_timer::Patience;
use tollbar_daemon::net::{Peer, Unread};

/// Where a request came from, for handlers: every request carries it.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) peer: Peer,
    patience: Arc<Patience>,
}

impl Origin {
    pub(crate) fn new(peer: Peer, patience: Arc<Patience>) -> Self {
        Self { peer, patience }
    }

    /// Returns the origin of the request with these extensions.
    pub(crate) fn of(extensions: &Extensions) -> &Self {
        extensions.get().expect("the listener adds it to every request")
    }

    /// Reads the whole body of a request, within bounds of size and time.
    pub(crate) async fn read(&self, body: Body, bytes_max: usize) -> Result<Bytes, Unread> {
        http1::read(body, bytes_max, &self.patience).await
    }
}
