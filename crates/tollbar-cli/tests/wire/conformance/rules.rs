//! The rules that the table is about.
//!
//! Limits are per day, so that nothing comes back while the table is gone through, and every case has
//! rules, and so counters, of its own: a driver asks one daemon all of it in order.

/// More than a request may meet.
const MANY: usize = 33;

/// The rules of all cases.
pub(crate) fn counted() -> String {
    with_many(RULES)
}

/// The rules of all cases in which the store is out of reach.
pub(crate) fn without_store() -> String {
    with_many(RULES_WITHOUT_STORE)
}

/// Adds more rules for `/many` than a store takes at once.
fn with_many(rules: &str) -> String {
    let many = |at: usize| {
        format!("  - {{ name: many_{at}, match: {{ path: /many }}, limit: 9/day, burst: 9 }}\n")
    };
    rules.to_owned() + &(0..MANY).map(many).collect::<String>()
}

const RULES_WITHOUT_STORE: &str = "
nodes: 2
rules:
  - { name: open, match: { path: /open }, limit: 3/day, on_store_failure: allow }
  - { name: shut, match: { path: /shut }, limit: 3/day, on_store_failure: deny }
  - { name: share, match: { path: /share }, limit: 5/day, on_store_failure: local }
  - { name: shed, match: { path: /shed }, limit: 3/day, on_store_failure: shed }
  - { name: shedding, match: { path: /shedding/** }, limit: 3/day, on_store_failure: { shed: high } }
  - { name: paying, match: { path: /shedding/pay, method: POST }, criticality: critical }
  - { name: prefetching, match: { path: /shedding/prefetch }, criticality: low }
  - { name: gold, match: { path: /shedding/**, tier: gold }, criticality: high, priority: 1 }
  - { name: lacking, match: { path: /lacking }, per: [tenant], missing: deny, limit: 3/day }
  - { name: free, match: { path: /free }, unlimited: true }
  - { name: tried, match: { path: /tried }, limit: 3/day, mode: shadow, on_store_failure: deny }
  - { name: priced, match: { path: /priced }, limit: 3/day, cost: { attribute: tokens } }
  - { name: jobs, match: { path: /jobs }, algorithm: concurrency, limit: 2, lease: 1h, on_store_failure: local }
";

const RULES: &str = r#"
rules:
  - { name: plain, match: { path: /plain/** }, limit: 3/day, burst: 3 }
  - { name: gets, match: { method: GET, path: /methods/** }, limit: 2/day, burst: 2 }
  - { name: writes, match: { method: [POST, PUT], path: /methods/** }, limit: 1/day, burst: 1 }
  - { name: exact, match: { path: /paths/exact }, limit: 9/day, burst: 9 }
  - { name: one, match: { path: "/paths/one/{id}" }, limit: 9/day, burst: 9 }
  - { name: below, match: { path: /paths/below/** }, limit: 9/day, burst: 9 }
  - { name: shared_counter, match: { path: /everybody/** }, per: [], limit: 2/day, burst: 2 }
  - { name: by_user, match: { path: /by_user/** }, per: [user], limit: 1/day, burst: 1 }
  - { name: by_pair, match: { path: /by_pair/** }, per: [tenant, user], limit: 1/day, burst: 1 }
  - { name: by_ip, match: { path: /by_ip/** }, per: [ip], limit: 2/day, burst: 2 }
  - { name: missing_shared, match: { path: /missing/shared }, per: [tenant], missing: shared, limit: 1/day, burst: 1 }
  - { name: missing_skip, match: { path: /missing/skip }, per: [tenant], missing: skip, limit: 1/day, burst: 1 }
  - { name: missing_deny, match: { path: /missing/deny }, per: [tenant], missing: deny, limit: 1/day, burst: 1 }
  - { name: tenants, match: { path: /conditions/**, tenant: [acme, other] }, limit: 5/day, burst: 5 }
  - { name: prefixed, match: { path: /conditions/**, tenant: { prefix: in- } }, limit: 6/day, burst: 6 }
  - { name: inside, match: { path: /conditions/**, ip: 10.0.0.0/8 }, limit: 7/day, burst: 7 }
  - { name: small, match: { path: /several/** }, limit: 2/day, burst: 2 }
  - { name: large, match: { path: /several/** }, limit: 5/day, burst: 5 }
  - { name: twice, match: { path: /twice/** }, limit: [{ limit: 9/day, burst: 9 }, { limit: 8/year, burst: 2 }] }
  - name: pooled
    match: { path: /pooled/** }
    limit: { any_of: [{ limit: 2/day, burst: 2 }, { limit: 3/day, burst: 3, per: [] }] }
  - name: priced
    match: { path: /priced/** }
    limit: 10/day
    burst: 10
    cost: { "GET /priced/search": 5, default: 1 }
  - { name: paid_by, match: { path: /paid_by/** }, limit: 10/day, burst: 10, cost: { attribute: tokens } }
  - { name: never, match: { path: /never/** }, limit: 3/day, burst: 3 }
  - name: tiered
    match: { path: /tiers/** }
    algorithm: sliding_window_log
    tiers: { free: 1/day, premium: 3/day, staff: unlimited, default: free }
  - name: exempting
    match: { path: /exempt/** }
    limit: 1/day
    burst: 1
    exempt: [{ api_key: internal }, { ip: 10.0.0.0/8, until: 2100-01-01 }, { user: former, until: 2020-01-01 }]
  - { name: shadow_only, match: { path: /shadow/only }, limit: 1/day, burst: 1, mode: shadow }
  - { name: shadowed, match: { path: /shadow/beside }, limit: 1/day, burst: 1, mode: shadow }
  - { name: beside, match: { path: /shadow/beside }, limit: 2/day, burst: 2 }
  - { name: trying, match: { path: /candidate }, limit: 3/day, algorithm: sliding_window_log, candidate: { limit: 1/day } }
  - { name: open, match: { path: /open/health }, priority: 5, unlimited: true }
  - { name: closed, match: { path: /open/** }, limit: 1/day, burst: 1 }
  - { name: listed, match: { path: /fallback/listed }, limit: 2/day, burst: 2 }
  - { name: others, match: { path: /fallback/** }, fallback: true, limit: 1/day, burst: 1 }
  - { name: first, match: { path: /stop/** }, priority: 9, stop: true, limit: 4/day, burst: 4 }
  - { name: behind, match: { path: /stop/** }, limit: 1/day, burst: 1 }
  - { name: high, match: { path: /priority/** }, priority: 2, limit: 4/day, burst: 4 }
  - { name: low, match: { path: /priority/** }, priority: 1, limit: 4/day, burst: 4 }
  - { name: general, match: { path: /replaces/** }, limit: 1/day, burst: 1 }
  - { name: special, match: { path: /replaces/vip }, replaces: [general], limit: 3/day, burst: 3 }
  - { name: off, match: { path: /disabled }, enabled: false, limit: 1/day }
  - { name: fixed, match: { path: /algorithms/fixed }, algorithm: fixed_window, limit: 1/day }
  - { name: sliding, match: { path: /algorithms/sliding }, limit: 1/day }
  - { name: strict, match: { path: /algorithms/strict }, algorithm: sliding_window_strict, limit: 1/day }
  - { name: logged, match: { path: /algorithms/log }, algorithm: sliding_window_log, limit: 1/day }
  - { name: leaky, match: { path: /algorithms/leaky }, algorithm: leaky_bucket, limit: 1/day, burst: 1 }
  - { name: jobs, match: { path: /jobs }, algorithm: concurrency, limit: 1, lease: 1h }
  - { name: paying, match: { path: /reserve/pay, method: POST }, criticality: critical }
  - { name: gold, match: { path: /reserve/**, tier: gold }, criticality: high }
  - { name: reserving, match: { path: /reserve/** }, limit: 10/day, burst: 10, reserve: { critical: 20%, high: 30% } }
"#;
