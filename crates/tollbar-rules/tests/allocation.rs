//! A check of usual size allocates nothing, building the request included.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tollbar_rules::{AsyncEngine, Engine, Request, RuleFile};
use tollbar_testkit::allocations::{CountingAllocator, allocates_nothing};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn no_usual_check_allocates() {
    const RULES: &str = r#"
rules:
  - { name: general, per: [], limit: 1000/s }
  - { name: client, limit: [10/s, 100/h], candidate: { limit: 5/s } }
  - { name: users, match: { method: GET, path: "/v1/users/{id}/**", tenant: acme }, per: [user, path], limit: 5/h }
  - { name: tiers, match: { ip: 10.0.0.0/8 }, tiers: { free: 1/h, default: free }, cost: { "GET /v1/**": 1 } }
  - { name: off, match: { tenant: { prefix: b } }, limit: 1/h, exempt: { user: root } }
"#;
    let rules = RuleFile::parse("rules.yaml", RULES).unwrap().rules;
    let engine = Engine::builder(rules).build();
    let attributes = [("tenant", "acme"), ("user", "42"), ("ip", "10.1.2.3"), ("tier", "free")];
    let check = |path| {
        let request = Request::new("GET", path).unwrap().with_attributes(&attributes).unwrap();
        engine.check(&request)
    };
    // The first denial of a rule makes room for its list of the most limited.
    for _ in 0..20 {
        let _ = check("/v1/users/7/orders");
    }
    allocates_nothing("a check that is denied", || {
        assert!(!check("/v1/users/7/orders").is_allowed());
    });
    let attributes = [("user", "43"), ("ip", "203.0.113.7")];
    allocates_nothing("a check that is allowed", || {
        for _ in 0..5 {
            let request = Request::new("GET", "/v1").unwrap();
            assert!(engine.check(&request.with_attributes(&attributes).unwrap()).is_allowed());
        }
    });
    let shared: Arc<AsyncEngine> = engine.clone().into();
    allocates_nothing("a check by the engine for any store", || {
        let request = Request::new("GET", "/v2").unwrap();
        let future = shared.check(&request);
        let Poll::Ready(verdict) = pin!(future).poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("it waits for a memory store");
        };
        assert!(verdict.is_allowed());
    });
}
