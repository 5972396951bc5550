//! Rules in front of an axum service, in ten lines.
//!
//! `cargo run --release --example layer`, then: `for i in $(seq 7); do curl -i localhost:3000; done`
//! `PORT=0` takes any free port.

use std::net::{Ipv4Addr, SocketAddr};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tollbar_http::TollbarLayer;
use tollbar_rules::{Engine, RuleFile};

const RULES: &str = "
rules:
  - { name: per_client, limit: 5/10s, burst: 5 }
  - { name: in_flight, limit: 100, algorithm: concurrency, per: [] }
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rules = RuleFile::parse("rules.yaml", RULES)?.rules;
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(TollbarLayer::new(Engine::new(rules)));
    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!("listening on http://{}; 5 requests per 10 s pass", listener.local_addr()?);
    // With the peer's address: it is who the client is.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
