//! Our layer: one rule per client, all headers or none.

use axum::Router;
use tollbar_http::{HeaderStyle, TollbarLayer};
use tollbar_rules::{Engine, RuleFile};

/// So much that everything passes, as with the peer.
const RULES: &str = "rules: [{ name: per_client, limit: 1000000000/s, burst: 1000000000 }]";

pub(super) fn app(has_headers: bool) -> Router {
    let file = RuleFile::parse("bench.yaml", RULES).expect("this rule is sound");
    let style = if has_headers { HeaderStyle::default() } else { HeaderStyle::none() };
    let layer = TollbarLayer::builder(Engine::new(file.rules)).headers(style).build();
    super::app().layer(layer)
}
