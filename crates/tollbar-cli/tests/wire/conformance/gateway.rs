//! The table, asked of the gateway over HTTP/1.1. Attributes and costs are headers, and the client's address is
//! that of its connection.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollbar_gateway::{Gateway, GatewayBuilder, Visitor};
use tollbar_http::{ApiKeys, Identity};
use tollbar_rules::{AsyncEngine, Engine, RuleFile};
use tollbar_testkit::failing_store::FailingStore;

use super::step::Step;
use super::{Answer, COUNTED, Table, WITHOUT_STORE, go_through, limit_headers};

#[test]
fn the_gateway_answers_as_the_table_says() {
    answers_as(&COUNTED, |rules| Engine::new(rules).into());
}

#[test]
fn the_gateway_answers_as_the_table_says_without_its_store() {
    answers_as(&WITHOUT_STORE, |rules| {
        Arc::new(AsyncEngine::new(rules, Arc::new(FailingStore::unavailable())).unwrap())
    });
}

fn answers_as(table: &Table, engine: fn(tollbar_rules::RuleSet) -> Arc<AsyncEngine>) {
    let rules = RuleFile::parse("conformance.yaml", &(table.rules)()).unwrap().rules;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let gateway = runtime.block_on(builder()).build(engine(rules)).unwrap();
    let mut bodies = Vec::new();
    go_through(table, |step| runtime.block_on(ask(&gateway, step, &mut bodies)));
}

async fn builder() -> GatewayBuilder {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(begin_response(stream));
        }
    });
    let keys = ["k", "internal", "other"].map(|name| (name, name));
    let identity = ["user", "tenant", "tier", "tokens"]
        .into_iter()
        .fold(Identity::new().api_keys(ApiKeys::known(keys)), |identity, name| {
            identity.untrusted_header(name, &format!("x-{name}")).unwrap()
        });
    Gateway::builder(url).identity(identity).layer(|layer| {
        layer.cost(|parts| parts.headers["x-cost"].to_str().unwrap().parse().unwrap())
    })
}

/// The upstream: answers one request with a body that never ends.
async fn begin_response(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n").await.unwrap();
    std::future::pending::<()>().await;
}

async fn ask(gateway: &Gateway, step: &Step, bodies: &mut Vec<Incoming>) -> Answer {
    let ip = step.attributes.iter().find(|it| it.0 == "ip").map(|it| it.1.parse().unwrap());
    let (client, server) = tokio::io::duplex(64 * 1_024);
    let gateway = gateway.clone();
    tokio::spawn(
        async move { gateway.serve(server, Visitor { peer: ip, is_secure: false }).await },
    );
    let (mut sender, connection) = http1::handshake(TokioIo::new(client)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::builder().method(step.method).uri(step.path).header("host", "a");
    request = request.header("x-cost", step.cost);
    for (name, value) in step.attributes.iter().filter(|it| it.0 != "ip") {
        let name = if *name == "api_key" { "x-api-key".to_owned() } else { format!("x-{name}") };
        request = request.header(name, value.as_bytes());
    }
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    limit_headers::answer(step, response, bodies).await
}
