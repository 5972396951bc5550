//! `tower_governor`, by the peer's address, with and without its headers.

use axum::Router;

#[cfg(feature = "tower_governor")]
pub(super) fn app(has_headers: bool) -> Option<Router> {
    use tower_governor::GovernorLayer;
    use tower_governor::governor::GovernorConfigBuilder;

    let mut builder = GovernorConfigBuilder::default();
    builder.per_nanosecond(1).burst_size(1_000_000_000);
    Some(if has_headers {
        let config = builder.use_headers().finish()?;
        super::app().layer(GovernorLayer::new(config))
    } else {
        super::app().layer(GovernorLayer::new(builder.finish()?))
    })
}

#[cfg(not(feature = "tower_governor"))]
pub(super) fn app(_: bool) -> Option<Router> {
    None
}
