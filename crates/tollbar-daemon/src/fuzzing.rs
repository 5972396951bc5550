//! The HTTP interface for fuzzers: a body in, a status out, and what has been charged. No sockets, and
//! a clock that stands still.

use std::sync::Arc;

use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, Uri};
use tollbar::{ManualClock, MemoryStore, Timestamp};
use tollbar_rules::{Engine, Request, RuleFile};

use crate::daemon::Daemon;
use crate::net::Peer;
use crate::protocol::http::{Api, RequestHead, Route};
use crate::store::counters::Counters;

/// One counter for everybody under each rule, so that whatever is charged can be seen.
const RULES: &str = "
rules:
  - { name: all, per: [], limit: 1000000/day, burst: 1000000 }
  - { name: jobs, per: [], match: { path: /j }, algorithm: concurrency, limit: 1000, lease: 30s }
  - { name: tenants, match: { path: /t }, per: [tenant], missing: deny, limit: 5/day, burst: 5 }
";

/// The interface over rules of its own.
#[derive(Debug)]
pub struct HttpFuzzer {
    api: Api,
    engine: Engine,
}

impl HttpFuzzer {
    /// Fresh: nothing has been charged.
    ///
    /// # Panics
    ///
    /// Never: the rules are part of the program, and a test reads them.
    #[must_use]
    pub fn new() -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
        let store = MemoryStore::builder().max_keys(10_000).clock(clock.clone()).build();
        let store = Arc::new(store);
        let file =
            RuleFile::parse("fuzzing.yaml", RULES).expect("the rules are part of the program");
        let engine = Engine::builder(file.rules).store(store.clone()).clock(clock).build();
        let daemon = Daemon::new((&engine).into(), Counters::Memory(store), None);
        Self { api: Api::new(Arc::new(daemon)), engine }
    }

    /// Every path that takes a body.
    pub fn paths() -> impl Iterator<Item = &'static str> {
        Route::with_bodies()
    }

    /// Sends a body; the status and the body of the answer.
    #[must_use]
    pub fn post(&self, path: &'static str, body: &[u8]) -> (u16, Vec<u8>) {
        let (method, uri, peer) = (&Method::POST, &Uri::from_static(path), Peer::Unix);
        let json = HeaderValue::from_static("application/json");
        let headers = &HeaderMap::from_iter([(CONTENT_TYPE, json)]);
        let head = RequestHead { method, uri, headers, peer };
        let answer = match self.api.route_for(&head) {
            Err(answer) => *answer,
            // The store is in this process: nothing is waited for.
            Ok(route) => tollbar::store::block_on(self.api.answer(route, &head, body)),
        };
        (answer.status().as_u16(), answer.into_body().to_vec())
    }

    /// What is left under the rules that count everybody: changes with every charge.
    #[must_use]
    pub fn left(&self) -> Vec<u64> {
        let Ok(request) = Request::new("GET", "/") else {
            return Vec::new();
        };
        let rules = ["all", "jobs"].into_iter().filter_map(|name| self.engine.rule(name).ok());
        let usages = rules.flat_map(|rule| rule.usage(&request).unwrap_or_default());
        usages.map(|usage| usage.remaining).collect()
    }
}

impl Default for HttpFuzzer {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_is_seen_and_a_refusal_is_not() {
        let http = HttpFuzzer::new();
        let fresh = http.left();
        assert_eq!(fresh, [1_000_000, 1_000]);
        for path in HttpFuzzer::paths() {
            assert_eq!(http.post(path, b"{").0, 400);
        }
        assert_eq!((http.post("/v1/check", br#"{"path":"/t"}"#).0, http.left()), (400, fresh));
        assert_eq!(http.post("/v1/check", br#"{"path":"/j"}"#).0, 200);
        assert_eq!(http.left(), [999_999, 999]);
    }
}
