//! The latest denials, so that whoever was turned away can be told why.
//!
//! A denial is kept as it was made, with the request as one would ask again, and put into words when
//! somebody asks. How many are kept, and how many bytes, is bounded; the oldest go first. What was
//! allowed is not kept.

mod decision_id;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use tollbar::Timestamp;
use tollbar_rules::{Criticality, Request, Verdict};

pub use decision_id::DecisionId;

/// How many denials are kept.
const KEPT_MAX: usize = 10_000;

/// What the requests of all of them may take.
const TEXT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The longest request that is kept: of longer ones only the verdict is. A request through the gateway is shorter: 8 KiB of
/// path and 32 KiB of headers, of which each byte may take two in JSON.
const REQUEST_BYTES_MAX: usize = 96 * 1024;

/// Versions of the rules that denials hold on to: each is as large as the rules are.
const VERSIONS_MAX: u64 = 4;

/// So that threads that deny at the same time seldom meet.
const SHARDS: usize = 16;

/// The latest denials.
#[derive(Debug)]
pub struct DecisionLog {
    shards: [Mutex<Shard>; SHARDS],
    /// The version of the rules by which the latest denial was made.
    rules_version: AtomicU64,
}

#[derive(Debug, Default)]
struct Shard {
    /// The oldest first.
    denials: VecDeque<Denial>,
    text_bytes: usize,
}

/// A request that was denied.
#[derive(Debug, Clone)]
pub struct Denial {
    pub id: DecisionId,
    pub at: Timestamp,
    pub verdict: Verdict,
    /// The request, as JSON that can be asked again; none where it was too long.
    pub request: Option<Box<str>>,
}

/// A request as it is logged: what can be sent to `POST /v1/check` again.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LoggedRequest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<LoggedPath<'a>>,
    #[serde(skip_serializing_if = "LoggedAttributes::is_empty")]
    attributes: LoggedAttributes<'a>,
    cost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    criticality: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a str>,
}

/// A path that is written so that it is read back as it was: a `?` or `#` in it was encoded, or it would have ended the
/// path.
#[derive(Debug, Clone, Copy)]
struct LoggedPath<'a>(&'a str);

#[derive(Debug, Clone, Copy)]
struct LoggedAttributes<'a>(&'a [(&'a str, &'a str)]);

impl<'a> LoggedRequest<'a> {
    pub(crate) fn from_request(request: &'a Request<'_>) -> Self {
        Self {
            method: Some(request.method()),
            // Of this reading the other one follows, and not the other way round.
            path: Some(LoggedPath(request.path_with_slashes_kept().unwrap_or(request.path()))),
            attributes: LoggedAttributes(request.attributes()),
            cost: request.cost(),
            criticality: request.claimed_criticality().map(Criticality::name),
            rule: None,
            subject: None,
        }
    }

    pub(crate) fn under(self, rule: &'a str) -> Self {
        Self { rule: Some(rule), ..self }
    }

    pub(crate) fn subject(rule: &'a str, subject: &'a str, cost: u64) -> Self {
        Self::attributes(rule, &[], cost).of(subject)
    }

    /// Names whom a rule counts, beside the attributes.
    pub(crate) fn of(self, subject: &'a str) -> Self {
        Self { subject: Some(subject), ..self }
    }

    /// What is counted under one rule, or under a limit that stands in no rule.
    pub(crate) fn attributes(
        rule: &'a str,
        attributes: &'a [(&'a str, &'a str)],
        cost: u64,
    ) -> Self {
        let attributes = LoggedAttributes(attributes);
        let (method, path, criticality, subject) = (None, None, None, None);
        Self { method, path, attributes, cost, criticality, rule: Some(rule), subject }
    }

    /// `None` where it is too long. What is sure to be is not even written.
    fn text(&self) -> Option<Box<str>> {
        let attributes = self.attributes.0.iter().map(|(name, value)| name.len() + value.len());
        let texts = [self.path.map(|path| path.0), self.subject];
        let texts = texts.into_iter().flatten().map(str::len);
        if attributes.chain(texts).sum::<usize>() > REQUEST_BYTES_MAX {
            return None;
        }
        let text = serde_json::to_string(self).ok()?;
        (text.len() <= REQUEST_BYTES_MAX).then(|| text.into_boxed_str())
    }
}

impl Serialize for LoggedPath<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.0.contains(['?', '#']) {
            to.serialize_str(&self.0.replace('?', "%3F").replace('#', "%23"))
        } else {
            to.serialize_str(self.0)
        }
    }
}

impl LoggedAttributes<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for LoggedAttributes<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl Default for DecisionLog {
    fn default() -> Self {
        Self { shards: Default::default(), rules_version: AtomicU64::new(0) }
    }
}

impl DecisionLog {
    /// Keeps a denial.
    pub(crate) fn record(
        &self,
        id: DecisionId,
        at: Timestamp,
        request: &LoggedRequest<'_>,
        verdict: &Verdict,
    ) {
        let denial = Denial { id, at, verdict: verdict.clone(), request: request.text() };
        self.shard(id).push(denial);
        let version = verdict.rules_version();
        if self.rules_version.fetch_max(version, Ordering::Relaxed) < version {
            self.forget_versions_before(version.saturating_sub(VERSIONS_MAX - 1));
        }
    }

    /// The denial of that name, if it is one of the latest.
    pub fn find(&self, id: DecisionId) -> Option<Denial> {
        self.shard(id).denials.iter().rev().find(|denial| denial.id == id).cloned()
    }

    /// Shows all that are kept, those of a shard together, the oldest of it first.
    pub(crate) fn for_each(&self, mut show: impl FnMut(&Denial)) {
        for shard in &self.shards {
            lock(shard).denials.iter().for_each(&mut show);
        }
    }

    /// The latest of all, the newest first.
    pub fn latest(&self, count: usize) -> Vec<Denial> {
        let mut latest: Vec<Denial> = Vec::new();
        for shard in &self.shards {
            latest.extend(lock(shard).denials.iter().rev().take(count).cloned());
        }
        latest.sort_by_key(|denial| std::cmp::Reverse(denial.at));
        latest.truncate(count);
        latest
    }

    /// Denials by rules that were replaced long ago would keep all of those rules in memory.
    fn forget_versions_before(&self, version: u64) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            let is_kept = |denial: &Denial| {
                let its_version = denial.verdict.rules_version();
                // A limit that stands in no rule holds on to nothing but itself.
                its_version >= version || its_version == 0
            };
            shard.denials.retain(is_kept);
            shard.text_bytes = shard.denials.iter().map(Denial::text_bytes).sum();
        }
    }

    fn shard(&self, id: DecisionId) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(id.0 % SHARDS as u128) as usize])
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shard {
    fn push(&mut self, denial: Denial) {
        self.text_bytes += denial.text_bytes();
        self.denials.push_back(denial);
        while self.denials.len() > KEPT_MAX / SHARDS || self.text_bytes > TEXT_BYTES_MAX / SHARDS {
            let Some(oldest) = self.denials.pop_front() else {
                return;
            };
            self.text_bytes -= oldest.text_bytes();
        }
    }
}

impl Denial {
    fn text_bytes(&self) -> usize {
        self.request.as_ref().map_or(0, |request| request.len())
    }
}

#[cfg(test)]
mod tests {
    use tollbar_rules::{Engine, RuleFile};

    use super::*;

    const RULES: &str = "rules: [{ name: nothing, per: [tenant], missing: deny, limit: 1/day }]";

    fn engine() -> Engine {
        Engine::new(RuleFile::parse("rules.yaml", RULES).unwrap().rules)
    }

    fn deny(engine: &Engine, decision_log: &DecisionLog, id: u128, user: &str) {
        let attributes = [("user", user)];
        let request = Request::new("GET", "/x").unwrap().with_attributes(&attributes).unwrap();
        let verdict = engine.check(&request);
        assert!(!verdict.is_allowed());
        let at = Timestamp::from_micros(1);
        decision_log.record(DecisionId(id), at, &LoggedRequest::from_request(&request), &verdict);
    }

    fn count_denials(decision_log: &DecisionLog) -> (usize, usize) {
        let shards = decision_log.shards.iter().map(lock);
        shards.fold((0, 0), |sum, shard| {
            assert_eq!(
                shard.text_bytes,
                shard.denials.iter().map(Denial::text_bytes).sum::<usize>()
            );
            (sum.0 + shard.denials.len(), sum.1 + shard.text_bytes)
        })
    }

    #[test]
    fn a_denial_is_found_with_its_request() {
        let (engine, decision_log) = (engine(), DecisionLog::default());
        deny(&engine, &decision_log, 7, "4\"2");
        let denial = decision_log.find(DecisionId(7)).unwrap();
        assert_eq!(
            denial.request.as_deref(),
            Some(r#"{"method":"GET","path":"/x","attributes":{"user":"4\"2"},"cost":1}"#)
        );
        assert!(decision_log.find(DecisionId(23)).is_none());
    }

    #[test]
    fn the_oldest_go_first_when_there_are_too_many() {
        let (engine, decision_log) = (engine(), DecisionLog::default());
        for id in 0..2 * KEPT_MAX as u128 {
            deny(&engine, &decision_log, id, "1");
        }
        assert_eq!(count_denials(&decision_log).0, KEPT_MAX);
        assert!(decision_log.find(DecisionId(KEPT_MAX as u128 - 1)).is_none());
        assert!(decision_log.find(DecisionId(KEPT_MAX as u128)).is_some());
    }

    #[test]
    fn long_requests_take_no_more_than_their_share() {
        let (engine, decision_log) = (engine(), DecisionLog::default());
        let long = "x".repeat(4_000);
        for id in 0..4_000 {
            deny(&engine, &decision_log, id, &long);
        }
        let (count, text_bytes) = count_denials(&decision_log);
        assert!(text_bytes <= TEXT_BYTES_MAX && count > 1_000, "{count} {text_bytes}");
        // Quotes double when they are written, and control characters take six bytes.
        for (letter, is_kept) in [("x", true), ("\"", true), ("\u{1}", false)] {
            let text = letter.repeat(8_000);
            let names: Vec<String> = (0..6).map(|at| format!("a{at}")).collect();
            let attributes: Vec<_> = names.iter().map(|name| (&**name, &*text)).collect();
            let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
            let (verdict, id) = (engine.check(&request), DecisionId(5_000));
            let logged = LoggedRequest::from_request(&request);
            decision_log.record(id, Timestamp::from_micros(1), &logged, &verdict);
            let found = decision_log.find(id).unwrap().request;
            assert_eq!(found.is_some(), is_kept, "{letter:?}");
        }
        let (_, text_bytes) = count_denials(&decision_log);
        assert!(text_bytes <= TEXT_BYTES_MAX, "{text_bytes}");
    }

    /// An explanation of `/api%2Fx` spoke of `/api/x`, one of `/a%3Fb` of `/a`, and none knew how critical the request was.
    #[test]
    fn a_denial_keeps_its_path_in_every_reading_and_its_criticality() {
        let (engine, decision_log) = (engine(), DecisionLog::default());
        for path in ["/api%2Fx", "/a%3Fb%23c", "/%2561", "/plain"] {
            let request = Request::new("GET", path).unwrap().with_criticality(Criticality::High);
            let logged = LoggedRequest::from_request(&request);
            decision_log.record(DecisionId(1), Timestamp::ZERO, &logged, &engine.check(&request));
            let text = decision_log.find(DecisionId(1)).unwrap().request.unwrap();
            let read: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(read["criticality"], "high");
            let again = Request::new("GET", read["path"].as_str().unwrap()).unwrap();
            assert_eq!(again.path(), request.path(), "{text}");
            assert_eq!(again.path_with_slashes_kept(), request.path_with_slashes_kept(), "{text}");
        }
    }

    #[test]
    fn the_latest_come_first_whichever_shard_they_are_in() {
        let (engine, decision_log) = (engine(), DecisionLog::default());
        let request = Request::new("GET", "/x").unwrap();
        let verdict = engine.check(&request);
        for id in 0..100 {
            let at = Timestamp::from_micros(id as u64);
            decision_log.record(
                DecisionId(id),
                at,
                &LoggedRequest::from_request(&request),
                &verdict,
            );
        }
        let latest: Vec<u128> = decision_log.latest(20).iter().map(|denial| denial.id.0).collect();
        assert_eq!(latest, (80..100).rev().collect::<Vec<_>>());
    }

    #[test]
    fn rules_of_long_ago_are_let_go() {
        let (engine, decision_log) = (engine(), DecisionLog::default());
        for id in 0..10 {
            deny(&engine, &decision_log, id, "1");
            engine.replace(RuleFile::parse("rules.yaml", RULES).unwrap().rules);
        }
        let found: Vec<bool> =
            (0..10).map(|id| decision_log.find(DecisionId(id)).is_some()).collect();
        assert_eq!(found[..6], [false; 6]);
        assert_eq!(found[6..], [true; 4]);
    }
}
