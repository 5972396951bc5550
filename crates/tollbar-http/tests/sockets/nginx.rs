//! A real nginx in front: what it writes is believed, what its clients write is not.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command};

use axum::Router;
use axum::routing::get;
use tollbar_http::{ClientIp, Identity, TollbarLayer};

use crate::client::{Connection, Response};
use crate::server::{engine, eventually, serve};

/// Ends nginx and its files when the test ends, however it ends.
struct Nginx {
    child: Child,
    directory: PathBuf,
    address: SocketAddr,
}

impl Nginx {
    /// In front of `upstream`, with these directives about its headers.
    async fn start(name: &str, upstream: SocketAddr, directives: &str) -> Self {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("nginx-{name}"));
        // What a test that was killed has left behind.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        // A port that was free a moment ago.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let config = format!(
            "daemon off; master_process off; pid nginx.pid; error_log error.log;
            events {{ worker_connections 64; }}
            http {{
              access_log off; client_body_temp_path b; proxy_temp_path p;
              fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
              underscores_in_headers on;
              server {{ listen {address}; location / {{ proxy_pass http://{upstream}; {directives} }} }}
            }}"
        );
        std::fs::write(directory.join("nginx.conf"), config).unwrap();
        let child = Command::new("nginx")
            .args(["-e", "error.log", "-c", "nginx.conf", "-p"])
            .arg(&directory)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("cannot start nginx ({error}): `cargo xtask test` installs it")
            });
        let nginx = Self { child, directory, address };
        eventually(|| std::net::TcpStream::connect(address).is_ok()).await;
        nginx
    }

    /// Asks as the client at `own`, with these header lines.
    async fn get(&self, own: [u8; 4], lines: &str) -> Response {
        let mut connection = Connection::open_from(IpAddr::from(own), self.address).await;
        let request = format!("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{lines}\r\n");
        connection.write(request.as_bytes()).await;
        connection.response().await
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

const APPENDS: &str = "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;";

fn app(client_ip: ClientIp) -> Router {
    app_for(Identity::new().client_ip(client_ip))
}

fn app_for(identity: Identity) -> Router {
    let (engine, _) = engine("rules: [{ name: a, limit: 3/100s, algorithm: fixed_window }]");
    let layer = TollbarLayer::builder(engine).identity(identity).build();
    Router::new().route("/", get(async || "hello")).layer(layer)
}

/// Nginx connects from 127.0.0.1; its clients are elsewhere in 127.0.0.0/8.
fn behind_nginx() -> ClientIp {
    ClientIp::behind_proxies(["127.0.0.1".parse().unwrap()])
}

#[tokio::test]
async fn clients_behind_nginx_are_counted_apart_whatever_they_claim() {
    let upstream = serve(app(behind_nginx())).await;
    let nginx = Nginx::start("appends", upstream, APPENDS).await;
    let claims = [
        "",
        "x-forwarded-for: 1.2.3.4\r\n",
        "x-forwarded-for: 127.0.0.1\r\n",
        "x-forwarded-for: 127.0.0.1, 127.0.0.1\r\nx-forwarded-for: 5.6.7.8\r\n",
        "forwarded: for=1.2.3.4\r\nx-real-ip: 1.2.3.4\r\nx_forwarded_for: 1.2.3.4\r\n",
        "x-forwarded-for: \"\r\n",
        "x-user-id:\r\nx-api-key: invented\r\n",
    ];
    for own in [[127, 0, 0, 2], [127, 0, 0, 3]] {
        for (at, claim) in claims.iter().enumerate() {
            let response = nginx.get(own, claim).await;
            assert_eq!(response.status == 200, at < 3, "{claim:?} as {own:?}: {response:?}");
        }
    }
    // Around nginx one is oneself.
    let mut around = Connection::open_from(IpAddr::from([127, 0, 0, 4]), upstream).await;
    around.write(b"GET / HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 127.0.0.2\r\n\r\n").await;
    assert_eq!(around.response().await.header("x-ratelimit-remaining"), Some("2"));
}

#[tokio::test]
async fn one_hop_is_nginx() {
    let upstream = serve(app(ClientIp::trusted_hops(1.try_into().unwrap()))).await;
    let nginx = Nginx::start("hop", upstream, APPENDS).await;
    for left in ["2", "1", "0"] {
        let response = nginx.get([127, 0, 0, 2], "x-forwarded-for: 9.9.9.9\r\n").await;
        assert_eq!(response.header("x-ratelimit-remaining"), Some(left));
    }
    assert_eq!(nginx.get([127, 0, 0, 2], "x-forwarded-for: 8.8.8.8\r\n").await.status, 429);
}

#[tokio::test]
async fn a_user_that_nginx_sets_counts_and_one_that_the_client_sets_does_not() {
    let identity = Identity::new().client_ip(behind_nginx());
    let upstream = serve(app_for(identity.trusted_header("user", "x-user-id").unwrap())).await;
    let directives = format!("{APPENDS} proxy_set_header X-User-Id $arg_none;");
    let clears = Nginx::start("clears", upstream, &directives).await;
    for at in 0..4 {
        let response = clears.get([127, 0, 0, 2], &format!("x-user-id: {at}\r\n")).await;
        assert_eq!(response.status == 200, at < 3, "{response:?}");
    }
    let directives = format!("{APPENDS} proxy_set_header X-User-Id 42;");
    let sets = Nginx::start("sets", upstream, &directives).await;
    for (at, own) in [2, 3, 4, 5].into_iter().enumerate() {
        // The same user at four addresses.
        let response = sets.get([127, 0, 0, own], "x-user-id: other\r\n").await;
        assert_eq!(response.status == 200, at < 3, "{response:?}");
    }
}
