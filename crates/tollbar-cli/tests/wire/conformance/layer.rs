//! The table, asked of the tower layer. Attributes and costs come from extensions of the request.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use tollbar_http::{Attributes, TollbarBody, TollbarLayer, TollbarService};
use tollbar_rules::{AsyncEngine, Engine, RuleFile, RuleSet};
use tollbar_testkit::failing_store::FailingStore;
use tonic::codegen::Service;

use super::step::Step;
use super::{Answer, COUNTED, Table, WITHOUT_STORE, go_through, limit_headers};

#[test]
fn the_layer_answers_as_the_table_says() {
    let layer = TollbarLayer::builder(Engine::new(rules(&COUNTED))).cost(cost).build();
    answers_as(&COUNTED, &layer);
}

#[test]
fn the_layer_answers_as_the_table_says_without_its_store() {
    let store = Arc::new(FailingStore::unavailable());
    let engine = AsyncEngine::new(rules(&WITHOUT_STORE), store).unwrap();
    answers_as(&WITHOUT_STORE, &TollbarLayer::builder(engine).cost(cost).build());
}

fn rules(table: &Table) -> RuleSet {
    RuleFile::parse("conformance.yaml", &(table.rules)()).unwrap().rules
}

fn answers_as(table: &Table, layer: &TollbarLayer) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut service = tower_layer::Layer::layer(layer, InnerService);
    let mut bodies = Vec::new();
    go_through(table, |step| runtime.block_on(ask(&mut service, step, &mut bodies)));
}

/// The cost of a request.
#[derive(Debug, Clone, Copy)]
struct Cost(u64);

fn cost(parts: &Parts) -> u64 {
    parts.extensions.get().map_or(1, |Cost(cost)| *cost)
}

/// The service behind the layer.
#[derive(Clone)]
struct InnerService;

impl Service<Request<()>> for InnerService {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(Full::from("served"))))
    }
}

async fn ask(
    service: &mut TollbarService<InnerService>,
    step: &Step,
    bodies: &mut Vec<TollbarBody<Full<Bytes>>>,
) -> Answer {
    let mut request = Request::builder().method(step.method).uri(step.path).body(()).unwrap();
    let attributes = step.attributes.iter();
    let attributes = attributes.fold(Attributes::new(), |all, (name, value)| all.with(name, value));
    request.extensions_mut().insert(attributes);
    request.extensions_mut().insert(Cost(step.cost));
    limit_headers::answer(step, service.call(request).await.unwrap(), bodies).await
}
