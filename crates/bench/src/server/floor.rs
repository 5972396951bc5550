//! The least that an answer over HTTP costs: hyper by itself, which reads the body and answers with what the
//! daemon would, and decides nothing.

#![expect(clippy::disallowed_methods, reason = "a benchmark that panics is seen")]

use std::convert::Infallible;
use std::io;
use std::process::{Command, ExitCode};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use super::peers::Peer;
use super::process::{ServerProcess, free_port};

/// The verb by which this program serves it.
pub(crate) const SERVE_HYPER: &str = "serve-hyper";

/// What the daemon says to one who is allowed.
const HEADERS: [(&str, &str); 6] = [
    ("content-type", "application/json"),
    ("x-ratelimit-limit", "1000000"),
    ("x-ratelimit-remaining", "999999"),
    ("x-ratelimit-reset", "1794822474"),
    ("ratelimit-policy", "\"per_user\";q=1000000;w=1"),
    ("ratelimit", "\"per_user\";r=999999;t=0"),
];
const BODY: &str = r#"{"allowed":true,"degraded":false,"reason":"limits","rule":"per_user","limit":1000000,"remaining":999999,"retryAfterMs":null,"delayMs":0,"resetAt":"2026-11-16T09:47:53.808Z","decisionId":"7372c12e8cb0ed6d9f2c6092a9d0ebb3","decisions":[{"rule":"per_user","limitText":"1000000/s","tier":null,"capacity":"live","allowed":true,"degraded":false,"cost":1,"limit":1000000,"remaining":999999,"retryAfterMs":null,"resetAt":"2026-11-16T09:47:53.808Z"}]}"#;

pub(super) fn start() -> io::Result<Peer> {
    let http = free_port()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args([SERVE_HYPER, &http.to_string()]);
    Ok(Peer { server: ServerProcess::start(&mut command, http)?, resp: 0, http })
}

/// Serves until it is killed.
pub(crate) fn serve(args: &[&str]) -> ExitCode {
    let Some(port) = args.first().and_then(|arg| arg.parse::<u16>().ok()) else {
        return crate::args::refuse("it needs a port");
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let served: io::Result<()> = runtime.and_then(|runtime| {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let connection = http1::Builder::new()
                    .writev(false)
                    .serve_connection(TokioIo::new(stream), service_fn(answer));
                tokio::spawn(connection);
            }
        })
    });
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    // A body that does not come is no concern of a benchmark.
    let _ = request.into_body().collect().await;
    let builder = HEADERS
        .iter()
        .fold(Response::builder(), |builder, (name, value)| builder.header(*name, *value));
    let body = Full::new(Bytes::from_static(BODY.as_bytes()));
    Ok(builder.body(body).unwrap_or_default())
}
