//! Our layer: one rule per client, with the headers it is told to send.

use axum::Router;
use tollbar_http::{HeaderStyle, TollbarLayer};
use tollbar_rules::{Engine, RuleFile};

/// So much that everything passes, as with the peer.
const RULES: &str = "rules: [{ name: per_client, limit: 1000000000/s, burst: 1000000000 }]";

pub(super) fn app(style: HeaderStyle) -> Router {
    let file = RuleFile::parse("bench.yaml", RULES).expect("this rule is sound");
    let layer = TollbarLayer::builder(Engine::new(file.rules)).headers(style).build();
    super::app().layer(layer)
}
