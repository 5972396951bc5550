//! A proxy on a free port, between clients of several addresses and a real upstream, and the daemon
//! that it asks.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tokio::net::TcpSocket;

use crate::common::http::Answer;
use crate::common::{Daemon, Scratch};
use crate::envoy::proxy::{Upstream, envoy, send};

const RULES: &str = "
rules:
  - { name: per_client, match: { path: /api/** }, algorithm: sliding_window_log, limit: 3/day }
  - { name: posts, match: { path: /post, method: POST }, algorithm: sliding_window_log, limit: 1/day }
";

const KEYS: &str = "partner 0123456789abcdef\n";

/// How often a proxy is started until somebody else's connection has not taken its port.
const ATTEMPTS: u32 = 3;

/// Which proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProxyKind {
    Nginx,
    Caddy,
    /// Debian's, which is older.
    DebianCaddy,
    Envoy,
    /// Envoy, asking over gRPC.
    EnvoyGrpc,
    Haproxy,
}

/// All of it.
pub(crate) struct ProxySetup {
    pub(crate) upstream: Upstream,
    daemon: Option<Daemon>,
    process: Child,
    address: SocketAddr,
    _scratch: Scratch,
}

impl ProxySetup {
    /// With the configuration that is shipped, in which texts are replaced by others.
    pub(crate) fn start(name: &str, kind: ProxyKind, replaced: &[(&str, &str)]) -> Self {
        let scratch = Scratch::new(&format!("proxies-{name}-{kind:?}"));
        let (rules, keys) = (scratch.file("rules.yaml", RULES), scratch.file("keys", KEYS));
        let mut flags = vec!["--rules", &rules, "--api-keys", &keys];
        if matches!(kind, ProxyKind::Envoy | ProxyKind::EnvoyGrpc) {
            // As shipped, Envoy does not send what its clients send under this name.
            flags.extend(["--trusted-headers", "user=X-User-Id"]);
        }
        let daemon = Daemon::start(&flags);
        let upstream = Upstream::start();
        for _ in 0..ATTEMPTS {
            // A port that was free a moment ago: most proxies do not say which they have taken.
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = free.local_addr().unwrap();
            for file in kind.files() {
                let text = kind.shipped(file, replaced, address);
                let text = text.replace("{daemon port}", port(daemon.address("http")));
                let text = text.replace("{grpc port}", port(daemon.address("grpc")));
                let text = text.replace("{upstream port}", port(&upstream.address));
                scratch.file(file, &text.replace("{daemon}", daemon.address("http")));
            }
            drop(free);
            if let Some(process) = kind.run(&scratch, address) {
                let daemon = Some(daemon);
                return Self { upstream, daemon, process, address, _scratch: scratch };
            }
        }
        panic!("{kind:?} has ended: {}", std::fs::read_to_string(scratch.path("log")).unwrap());
    }

    pub(crate) fn stop_daemon(&mut self) {
        assert_eq!(self.daemon.take().map(Daemon::stop), Some(0));
    }

    /// Halts the daemon: it accepts connections and says nothing more.
    pub(crate) fn suspend_daemon(&self) {
        let daemon = self.daemon.as_ref().unwrap();
        daemon.signal("STOP");
        // The last thread stops a little later than the signal is sent.
        let stat = format!("/proc/{}/stat", daemon.process.id());
        let is_stopped = || std::fs::read_to_string(&stat).unwrap().contains(") T ");
        assert!((0..1_000_000).any(|_| is_stopped()));
    }

    /// What the daemon says about a decision.
    pub(crate) fn explain(&self, decision_id: &str) -> String {
        self.daemon.as_ref().unwrap().get_with(&format!("/v1/decisions/{decision_id}"), "")
    }

    /// Asks as the client at 127.0.0.`own`.
    pub(crate) fn get(&self, own: u8, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(own, "GET", path, headers)
    }

    pub(crate) fn send(
        &self,
        own: u8,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Answer {
        send(connect(Ipv4Addr::new(127, 0, 0, own), self.address), method, path, headers)
    }
}

impl Drop for ProxySetup {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl ProxyKind {
    /// The files that are shipped, the first of which is read by the proxy.
    fn files(self) -> &'static [&'static str] {
        match self {
            Self::Nginx => &["nginx.conf", "tollbar.conf"],
            Self::Caddy | Self::DebianCaddy => &["Caddyfile"],
            Self::Envoy => &["envoy.yaml"],
            Self::EnvoyGrpc => &["grpc.yaml"],
            Self::Haproxy => &["haproxy.cfg", "tollbar.lua"],
        }
    }

    /// A file that is shipped, with other addresses, and what a proxy needs that is not installed.
    fn shipped(self, file: &str, replaced: &[(&str, &str)], address: SocketAddr) -> String {
        let directory = match self {
            Self::Nginx => "nginx",
            Self::Caddy | Self::DebianCaddy => "caddy",
            Self::Envoy | Self::EnvoyGrpc => "envoy",
            Self::Haproxy => "haproxy",
        };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/proxies");
        let text = std::fs::read_to_string(path.join(directory).join(file)).unwrap();
        let mut text = text
            .replace("http://127.0.0.1:8080", "http://{daemon}")
            .replace("127.0.0.1:8080", "{daemon}")
            .replace("127.0.0.1:3000", "127.0.0.1:{upstream port}")
            .replace("port_value: 8080", "port_value: {daemon port}")
            .replace("port_value: 8081", "port_value: {grpc port}")
            .replace("port_value: 3000", "port_value: {upstream port}")
            .replace("port_value: 8000", &format!("port_value: {}", address.port()))
            // A machine under load must not look like a lost daemon.
            .replace("timeout 1s", "timeout 30s")
            .replace("timeout: 1s", "timeout: 30s")
            .replace("TIMEOUT_S = 3", "TIMEOUT_S = 30");
        text = match self {
            Self::Nginx => text.replace("listen 8000", &format!("listen {address}")).replace(
                "http {",
                "http { access_log off; client_body_temp_path b; proxy_temp_path p; \
                 fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;",
            ),
            Self::Caddy | Self::DebianCaddy => format!(
                "{{\n admin off\n auto_https off\n}}\n{}",
                text.replace(":8000 {", &format!("http://:{} {{", address.port()))
            ),
            Self::Haproxy => text.replace("bind :8000", &format!("bind {address}")),
            Self::Envoy | Self::EnvoyGrpc => text,
        };
        for (from, to) in replaced {
            text = text.replace(from, to);
        }
        text
    }

    /// Starts the proxy, and returns when it listens; `None` where it has ended.
    fn run(self, scratch: &Scratch, address: SocketAddr) -> Option<Child> {
        let config = scratch.path(self.files()[0]);
        let mut command = match self {
            Self::Nginx => {
                let mut command = Command::new("nginx");
                let globals = "daemon off; master_process off; pid nginx.pid; \
                               error_log stderr notice;";
                command.args(["-e", "stderr", "-c", &config, "-g", globals, "-p"]).arg(&scratch.0);
                command
            }
            Self::Caddy | Self::DebianCaddy => {
                let path = match self {
                    Self::DebianCaddy => "caddy".into(),
                    _ => std::env::var_os("TOLLBAR_CADDY").expect(
                        "no Caddy: run `cargo xtask test`, which sets TOLLBAR_CADDY to its binary",
                    ),
                };
                let mut command = Command::new(path);
                command.args(["run", "--adapter", "caddyfile", "--config", &config]);
                command.env("XDG_DATA_HOME", &scratch.0).env("XDG_CONFIG_HOME", &scratch.0);
                command
            }
            Self::Envoy | Self::EnvoyGrpc => {
                let mut command = envoy();
                command.args(["--concurrency", "2", "--log-level", "info"]);
                command.args(["--use-dynamic-base-id", "--config-path", &config]);
                command
            }
            Self::Haproxy => {
                let mut command = Command::new("haproxy");
                command.args(["-V", "-db", "-f", &config]);
                command
            }
        };
        let log = || File::options().append(true).create(true).open(scratch.path("log")).unwrap();
        command.current_dir(&scratch.0).stdin(Stdio::null()).stdout(log()).stderr(log());
        let mut process = command.spawn().unwrap_or_else(|error| {
            panic!("cannot start {self:?} ({error}): `cargo xtask test` installs it")
        });
        // What they say of themselves they say too early.
        while TcpStream::connect(address).is_err() {
            if process.try_wait().unwrap().is_some() {
                return None;
            }
            std::thread::yield_now();
        }
        Some(process)
    }
}

/// A connection from an address of one's own: all of 127.0.0.0/8 is this machine.
fn connect(own: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((own, 0).into()).unwrap();
        socket.connect(to).await.unwrap()
    });
    let stream = stream.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream
}

fn port(address: &str) -> &str {
    address.rsplit(':').next().unwrap()
}
