//! A real Prometheus, on a free port, and its checker.

#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::Scratch;

/// `promtool`, which must be content; what it said.
pub(crate) fn promtool(args: &[&str], input: &str) -> String {
    let mut process = Command::new("promtool")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool, of Debian's package prometheus");
    process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    assert!(output.status.success(), "promtool {args:?}: {said}");
    said
}

/// It runs until it is dropped.
pub(crate) struct Prometheus {
    process: Child,
    address: String,
}

impl Prometheus {
    /// Scrapes these addresses twice a second.
    pub(crate) fn start(scratch: &Scratch, targets: &[&str]) -> Self {
        let targets: Vec<String> = targets.iter().map(|target| format!("\"{target}\"")).collect();
        let config = format!(
            "global: {{ scrape_interval: 500ms }}\nscrape_configs:\n  - job_name: tollbar\n    \
             static_configs: [{{ targets: [{}] }}]\n",
            targets.join(", ")
        );
        let config = scratch.file("prometheus.yaml", &config);
        // It cannot be told to take any free port: one that was free a moment ago is.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={config}"))
            .arg(format!("--storage.tsdb.path={}", scratch.path("tsdb")))
            .arg(format!("--web.listen-address={free}"))
            .arg("--enable-feature=exemplar-storage")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus, of Debian's package of that name");
        Self { process, address: free.to_string() }
    }

    /// What it answers to a path of its API; nothing while it starts.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        // The older version sends the body as it is, not in chunks.
        write!(stream, "GET /api/v1/{path} HTTP/1.0\r\nhost: localhost\r\n\r\n").ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).ok()?;
        let (_, body) = response.split_once("\r\n\r\n")?;
        let answer: Value = serde_json::from_str(body).ok()?;
        (answer["status"] == "success").then(|| answer["data"].clone())
    }

    /// Asks until the answer is so; the answer.
    pub(crate) fn until(&mut self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        // Each takes a millisecond or so: minutes, all in all.
        for _ in 0..300_000 {
            if let Some(answer) = self.get(path).filter(&is_so) {
                return answer;
            }
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "prometheus has ended: {ended:?}");
        }
        panic!("prometheus never says so about {path}: {:?}", self.get(path));
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Passes requests on to `target`, as one that reads Prometheus' own format only; where it listens.
pub(crate) fn plain_only(target: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let target = target.to_owned();
    // It ends with the test's process.
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let _ = pass_on(client, &target);
        }
    });
    address
}

fn pass_on(mut client: TcpStream, target: &str) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < 1 << 16 {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let mut server = TcpStream::connect(target)?;
    let accept = "accept: text/plain;version=0.0.4\r\nconnection: close\r\n";
    write!(server, "GET /metrics HTTP/1.1\r\nhost: localhost\r\n{accept}\r\n")?;
    std::io::copy(&mut server, &mut client)?;
    Ok(())
}
