//! One limiter shared by all handlers of a web service.
//!
//! `cargo run --release --example web`, then: `for i in $(seq 7); do curl -i localhost:3000; done`
//! `PORT=0` takes any free port.

use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tollbar::{Denied, Limiter, Policy};

/// The denial as a response. Handlers return it with `?`.
struct TooManyRequests(Denied);

impl From<Denied> for TooManyRequests {
    fn from(denied: Denied) -> Self {
        Self(denied)
    }
}

impl IntoResponse for TooManyRequests {
    fn into_response(self) -> Response {
        // Whole seconds, rounded up: a client that comes back then gets through.
        let wait = self.0.retry_after().unwrap_or_default();
        let seconds = wait.as_micros().div_ceil(1_000_000).to_string();
        let headers = [(header::RETRY_AFTER, seconds)];
        (StatusCode::TOO_MANY_REQUESTS, headers, "too many requests\n").into_response()
    }
}

async fn hello(
    State(limiter): State<Limiter>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
) -> Result<String, TooManyRequests> {
    let decision = limiter.check(client.ip()).ok()?;
    Ok(format!("hello, {} left\n", decision.remaining().unwrap_or(0)))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::new(Policy::token_bucket("5/10s")?);
    let app = Router::new().route("/", get(hello)).with_state(limiter);
    let port = match std::env::var("PORT") {
        Ok(port) => port.parse().map_err(|_| format!("PORT={port}: write a port number"))?,
        Err(_) => 3000,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .map_err(|error| format!("cannot listen on port {port} ({error}): set PORT to another"))?;
    println!("listening on http://{}; 5 requests per 10 s pass", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
