//! The connection that a request came over, as handlers see it.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use hyper::http::Extensions;

use tollbar_daemon::net::http1;
use tollbar_daemon::net::phase_timer::PhaseTimer;
use tollbar_daemon::net::{BodyError, Peer};

/// Where a request came from, for handlers: every request carries it.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) peer: Peer,
    phase_timer: Arc<PhaseTimer>,
}

impl Origin {
    pub(crate) fn new(peer: Peer, phase_timer: Arc<PhaseTimer>) -> Self {
        Self { peer, phase_timer }
    }

    /// Returns the origin of the request with these extensions.
    pub(crate) fn from_extensions(extensions: &Extensions) -> &Self {
        extensions.get().expect("the listener adds it to every request")
    }

    /// Reads the whole body of a request, within bounds of size and time.
    pub(crate) async fn read(&self, body: Body, bytes_max: usize) -> Result<Bytes, BodyError> {
        http1::read_body(body, bytes_max, &self.phase_timer).await
    }
}
