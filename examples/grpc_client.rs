//! Twenty tasks ask the daemon at once, over one connection; without a daemon, all of them pass, marked
//! degraded.
//!
//! `cargo run -- serve` in one terminal, `cargo run --example grpc_client` in another; `TOLLBAR_URL` names
//! another daemon than the one at 127.0.0.1:8081.

use std::error::Error;

use tokio::task::JoinSet;
use tollbar_proto::client::{Client, FailurePolicy};
use tollbar_proto::v1::CheckRequest;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("TOLLBAR_URL").unwrap_or_else(|_| "http://127.0.0.1:8081".to_owned());
    let client = Client::connect(&url)?;
    let mut callers = JoinSet::new();
    for _ in 0..20 {
        let client = client.clone();
        callers.spawn(async move {
            let attributes = [("user".to_owned(), "42".to_owned())].into();
            let request = CheckRequest { attributes, ..CheckRequest::default() };
            client.check_or(request, FailurePolicy::Allow).await
        });
    }
    let (mut allowed, mut denied, mut degraded) = (0, 0, 0);
    while let Some(answer) = callers.join_next().await {
        match answer?? {
            answer if answer.degraded => degraded += 1,
            answer if answer.allowed => allowed += 1,
            _ => denied += 1,
        }
    }
    println!("{allowed} passed, {denied} were denied, {degraded} passed because nobody answered");
    Ok(())
}
