//! The real Envoy on free ports, before a real upstream.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use crate::common::Scratch;
use crate::common::http::{Answer, exchange};

/// What stands behind Envoy, and counts what comes through.
pub(crate) struct Upstream {
    pub(crate) address: String,
    count: Arc<AtomicUsize>,
    _runtime: tokio::runtime::Runtime,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.enable_all().worker_threads(1).build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let count = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&count);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let counting = Arc::clone(&counting);
                let service = service_fn(move |request: hyper::Request<Incoming>| {
                    counting.fetch_add(1, Ordering::SeqCst);
                    let mut answer = hyper::Response::new(Full::<Bytes>::from("upstream"));
                    // What it is told about who asks.
                    if let Some(user) = request.headers().get("x-user-id") {
                        answer.headers_mut().insert("x-upstream-user", user.clone());
                    }
                    async move { Ok::<_, std::convert::Infallible>(answer) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        Self { address, count, _runtime: runtime }
    }

    /// How many requests have come through.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

/// Envoy as it runs.
pub(crate) struct Proxy {
    process: Child,
    address: String,
}

impl Proxy {
    /// Starts it with `config`, and returns when it serves.
    pub(crate) fn start(scratch: &Scratch, config: &str) -> Self {
        let admin = scratch.path("admin");
        let mut process = envoy()
            .args(["--config-path", &scratch.file("envoy.yaml", config)])
            .args(["--admin-address-path", &admin, "--concurrency", "1", "--log-level", "info"])
            .args(["--use-dynamic-base-id", "--drain-time-s", "1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("starting workers") {
            assert_ne!(log.read_line(&mut said).unwrap(), 0, "Envoy has ended: {said}");
        }
        // A pipe that nobody reads would hold it up.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let admin = std::fs::read_to_string(admin).unwrap();
        let listeners = get(&admin, "/listeners", &[]).body;
        let address = listeners.trim().split_once("::").unwrap().1.to_owned();
        Self { process, address }
    }

    pub(crate) fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        get(&self.address, path, headers)
    }

    pub(crate) fn post(&self, path: &str) -> Answer {
        send(TcpStream::connect(&self.address).unwrap(), "POST", path, &[])
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Its binary.
pub(crate) fn envoy() -> Command {
    match std::env::var_os("TOLLBAR_ENVOY") {
        Some(path) => Command::new(path),
        None => panic!("no Envoy: run `cargo xtask test`, which sets TOLLBAR_ENVOY to its binary"),
    }
}

/// Has Envoy say whether it can use the configuration at `path`.
pub(crate) fn validate(path: &str) {
    let output = envoy().args(["--mode", "validate", "--config-path", path]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn get(address: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    send(TcpStream::connect(address).unwrap(), "GET", path, headers)
}

/// Sends a request without a body; the whole response.
pub(crate) fn send(
    stream: TcpStream,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Answer {
    let lines: Vec<String> =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{}\r\n",
        lines.concat()
    );
    let response = exchange(stream, request);
    Answer::read(&response).unwrap_or_else(|| panic!("no answer: {response}"))
}
