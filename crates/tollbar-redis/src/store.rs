//! The store: turns requests into script calls, and their replies into decisions.

pub(crate) mod cross_slot;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tollbar::remote::{DenyCache, Exchange, Gate, GatePass, Health, RemoteStats, SentRequest};
use tollbar::store::{Adjustment, ReservationId, Spending};
use tollbar::{
    Batch, Charge, Clock, Decision, Entry, Feature, Policy, Reply, Role, Store, StoreError,
    SystemClock, Timestamp,
};

use crate::error::RedisStoreError;
use crate::keys::KeyNamer;
use crate::script::blob::Blob;
use crate::script::call::{KeyLocation, ScriptCall};
use crate::script::policy::Kind;
use crate::script::reply;
use crate::script::{Script, Scripts};
use crate::server::route::Route;

/// The most entries of one batch, and the most adjustments of one settlement.
const ENTRIES_MAX: usize = 1_024;

/// Counters in Redis or Valkey, shared by all processes that have the same server, the same secret
/// and the same namespace.
pub struct RedisStore {
    pub(crate) route: Arc<Route>,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) names: KeyNamer,
    pub(crate) gate: Option<Arc<Gate>>,
    pub(crate) denials: Option<DenyCache>,
    pub(crate) denials_max: usize,
    /// Says how old a denial is. What is decided, the server's clock decides.
    pub(crate) clock: SystemClock,
    pub(crate) test_clock: Option<TestClock>,
}

/// Decides in place of the server's clock, in tests.
#[derive(Clone)]
pub(crate) struct TestClock {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) grace: Duration,
}

impl RedisStore {
    /// The same server over the same connection, with counters of their own. Replaces the namespace it
    /// was [built](crate::RedisStoreBuilder::namespace) with.
    #[must_use]
    pub fn with_namespace(&self, namespace: &str) -> Self {
        Self {
            route: self.route.clone(),
            scripts: self.scripts.clone(),
            names: self.names.with_namespace(namespace),
            gate: self.gate.clone(),
            denials: DenyCache::with_capacity(self.denials_max),
            denials_max: self.denials_max,
            clock: SystemClock::new(),
            test_clock: self.test_clock.clone(),
        }
    }

    /// How the connection is doing.
    #[must_use]
    pub fn health(&self) -> Health {
        self.route.health()
    }

    /// How the server has answered so far.
    #[must_use]
    pub fn stats(&self) -> RemoteStats {
        self.route.counters.read()
    }

    fn now_us(&self) -> u64 {
        match &self.test_clock {
            Some(test) => test.clock.now(),
            None => self.clock.now(),
        }
        .clamp_to_clock()
        .as_micros()
    }

    /// Asks, within one deadline.
    async fn ask(&self, call: &ScriptCall) -> Result<Vec<u8>, RedisStoreError> {
        self.ask_by(&self.route.begin()?, call).await
    }

    /// Asks in an exchange that has a deadline already.
    pub(crate) async fn ask_by(
        &self,
        exchange: &Exchange<'_>,
        call: &ScriptCall,
    ) -> Result<Vec<u8>, RedisStoreError> {
        let Script { sha, text } = self.scripts.get(call.task, call.kinds);
        let key = call.keys.first().map_or(&[][..], |key| key);
        let by_name = self.command("EVALSHA", sha, call);
        let answer = match self.route.ask(exchange, key, &by_name).await {
            // A server that has not seen it, or has forgotten it: this runs it and keeps it.
            Err(error) if error.is_unknown_script() => {
                let by_text = self.command("EVAL", text, call);
                self.route.ask(exchange, key, &by_text).await
            }
            answer => answer,
        };
        match answer? {
            Value::BulkString(bytes) => Ok(bytes),
            _ => Err(RedisStoreError::Garbled),
        }
    }

    /// Returns where everything of these keys is; an error where a cluster has it in several slots.
    fn locate<'k>(
        &self,
        mut keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<KeyLocation<'k>, RedisStoreError> {
        let first = keys.next();
        let Some(first) = first.filter(|_| self.route.is_cluster()) else {
            return Ok(KeyLocation::Server);
        };
        let tag = self.names.tag(first);
        if keys.all(|key| self.names.tag(key) == tag) {
            return Ok(KeyLocation::SlotOf(first));
        }
        Err(RedisStoreError::CrossSlot)
    }

    /// Answers a call from the denials that are remembered; if there are none, it is to be sent.
    fn look_up_denial(
        &self,
        call: &ScriptCall,
        cost: u64,
        on_known: impl FnMut(Decision),
    ) -> Option<SentRequest> {
        let denials = self.denials.as_ref()?;
        let identity = call.identity();
        let now_us = self.now_us();
        if denials.answer(&identity, cost, now_us, on_known) {
            self.route.counters.known();
            return None;
        }
        Some(denials.start_request(identity, cost, now_us))
    }

    /// Answers a request under several policies from the denials that are remembered; true if it is decided.
    fn look_up_denials(
        &self,
        call: &ScriptCall,
        batch: &mut Batch<'_, '_>,
    ) -> (bool, Option<SentRequest>) {
        let mut entries = batch.entries_mut().iter_mut();
        let mut is_known = false;
        let sent = self.look_up_denial(call, 0, |decision| {
            is_known = true;
            if let Some(entry) = entries.next() {
                entry.decide(decision);
            }
        });
        (is_known, sent)
    }

    /// Waits behind those who ask the same, where there is a gate.
    async fn pass(
        &self,
        exchange: &Exchange<'_>,
        call: &ScriptCall,
    ) -> Result<Option<GatePass<'_>>, RedisStoreError> {
        match &self.gate {
            Some(gate) => {
                let passed = gate.pass::<RedisStoreError>(exchange, &call.identity()).await;
                passed.inspect_err(|error| self.route.counters.failed(error)).map(Some)
            }
            None => Ok(None),
        }
    }

    fn remember_denial(&self, sent: Option<SentRequest>, decisions: &[Decision]) {
        if let (Some(denials), Some(sent)) = (&self.denials, sent) {
            denials.record(sent, decisions);
        }
    }

    fn command(&self, name: &str, script: &str, call: &ScriptCall) -> Cmd {
        // All at once, rather than piece by piece: it is the longest thing here.
        let len = call.keys.iter().map(Vec::len).sum::<usize>() + call.blob.len();
        let mut command =
            Cmd::with_capacity(call.keys.len() + 5, name.len() + script.len() + len + 32);
        command.arg(name).arg(script).arg(call.keys.len());
        for key in &call.keys {
            command.arg(key);
        }
        command.arg(&call.blob);
        if let Some(test) = &self.test_clock {
            let mut clock = Blob::default();
            clock.numbers([self.now_us(), test.grace.as_millis() as u64]);
            command.arg(clock.into_bytes());
        }
        command
    }
}

impl Store for RedisStore {
    /// Everything but custom algorithms, which have no twin in Lua. In a cluster, requests with an id
    /// and reservations also need their keys in one slot, which shows when they are sent:
    /// [`StoreError::CrossSlot`].
    fn supports(&self, feature: Feature<'_>) -> Result<(), StoreError> {
        match feature {
            Feature::Policy(policy) => Ok(Kind::of(policy).map(|_| ())?),
            Feature::SeveralCounters
            | Feature::RequestIds
            | Feature::Reservations
            | Feature::Refunds
            | Feature::LeaseRenewals
            | Feature::Resets => Ok(()),
            newer => Err(newer.unsupported()),
        }
    }

    fn check<'a>(&'a self, key: &'a [u8], policy: &'a Policy, cost: u64) -> Reply<'a, Decision> {
        let call = match ScriptCall::one(&self.names, key, policy, cost) {
            Ok(call) => call,
            Err(error) => return Reply::Ready(Err(error.into())),
        };
        let mut known = None;
        // A peek wants to know what remains now, and what can never pass is not denied for a while.
        let may_be_known = (1..=policy.capacity()).contains(&cost);
        let mut sent = may_be_known
            .then(|| self.look_up_denial(&call, cost, |decision| known = Some(decision)))
            .flatten();
        if let Some(decision) = known {
            return Reply::Ready(Ok(decision));
        }
        Reply::Pending(Box::pin(async move {
            let exchange = self.route.begin()?;
            let passed = if may_be_known { self.pass(&exchange, &call).await? } else { None };
            if passed.as_ref().is_some_and(|passed| passed.has_waited) {
                sent = self.look_up_denial(&call, cost, |decision| known = Some(decision));
                if let Some(decision) = known {
                    return Ok(decision);
                }
            }
            let decision = reply::read_one(&self.ask_by(&exchange, &call).await?, policy)?;
            self.remember_denial(sent, &[decision]);
            Ok(decision)
        }))
    }

    fn decide<'a, 'e: 'a>(&'a self, mut batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        if batch.entries().is_empty() {
            return Reply::Ready(Ok(()));
        }
        if let Err(error) = fits(batch.entries().len()) {
            return Reply::Ready(Err(error));
        }
        let has_name = batch.charged_once().is_some() || batch.hold().is_some();
        let location = match self.locate(batch.entries().iter().map(Entry::key)) {
            Err(_) if !has_name || batch.charge() == Charge::Independent => {
                return Reply::Pending(Box::pin(async move {
                    Ok(self.check_scattered(&mut batch).await?)
                }));
            }
            location => location,
        };
        let call = match location
            .and_then(|location| ScriptCall::for_batch(&self.names, &batch, location))
        {
            Ok(call) => call,
            Err(error) => return Reply::Ready(Err(error.into())),
        };
        // Independent ones are different requests, and those with a name are remembered elsewhere.
        let is_plain = batch.charge() == Charge::AllOrNone && !has_name;
        let mut sent = None;
        if is_plain {
            let is_known;
            (is_known, sent) = self.look_up_denials(&call, &mut batch);
            if is_known {
                return Reply::Ready(Ok(()));
            }
        }
        Reply::Pending(Box::pin(async move {
            let exchange = self.route.begin()?;
            let passed = if is_plain { self.pass(&exchange, &call).await? } else { None };
            if passed.as_ref().is_some_and(|passed| passed.has_waited) {
                let is_known;
                (is_known, sent) = self.look_up_denials(&call, &mut batch);
                if is_known {
                    return Ok(());
                }
            }
            reply::read_batch(&self.ask_by(&exchange, &call).await?, batch.entries_mut())?;
            let is_denied = |entry: &Entry<'_>| {
                entry.role() == Role::Enforce && entry.decision().is_some_and(|it| !it.is_allowed())
            };
            if sent.is_some() && batch.entries().iter().any(is_denied) {
                let decisions: Vec<Decision> =
                    batch.entries().iter().filter_map(Entry::decision).collect();
                self.remember_denial(sent, &decisions);
            }
            Ok(())
        }))
    }

    fn refund<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
        amount: u64,
    ) -> Reply<'a, u64> {
        Reply::Pending(Box::pin(async move {
            let spending = Spending { reserved: amount, spent: 0 };
            let mut refund = [Adjustment::new(key, policy, stamp, spending)];
            let bytes = self
                .ask(&ScriptCall::settle(&self.names, None, &refund, KeyLocation::Server)?)
                .await?;
            reply::read_settlement(&bytes, &mut refund)?;
            Ok(refund[0].adjusted())
        }))
    }

    fn renew<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
    ) -> Reply<'a, Option<Timestamp>> {
        let Some(call) = ScriptCall::renew(&self.names, key, policy, stamp) else {
            return Reply::Ready(Ok(None));
        };
        Reply::Pending(Box::pin(async move { Ok(reply::read_renewal(&self.ask(&call).await?)?) }))
    }

    fn settle<'a, 'e: 'a>(
        &'a self,
        id: ReservationId,
        adjustments: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        if let Err(error) = fits(adjustments.len()) {
            return Reply::Ready(Err(error));
        }
        Reply::Pending(Box::pin(async move {
            let location = self.locate(adjustments.iter().map(Adjustment::key))?;
            let call = ScriptCall::settle(&self.names, Some(id), adjustments, location)?;
            let bytes = self.ask(&call).await?;
            Ok(reply::read_settlement(&bytes, adjustments)?)
        }))
    }

    fn reset<'a>(&'a self, key: &'a [u8], policy: &'a Policy) -> Reply<'a, ()> {
        Reply::Pending(Box::pin(async move {
            if let Some(call) = ScriptCall::reset(&self.names, key, policy) {
                self.ask(&call).await?;
            } else {
                let name = self.names.counter(key, policy);
                let mut command = redis::cmd("DEL");
                command.arg(&name);
                self.route.ask(&self.route.begin()?, &name, &command).await?;
            }
            if let Some(denials) = &self.denials {
                denials.forget_all();
            }
            Ok(())
        }))
    }
}

fn fits(entries: usize) -> Result<(), StoreError> {
    let entries_max = ENTRIES_MAX;
    if entries > entries_max {
        return Err(StoreError::BatchTooLarge { entries, entries_max });
    }
    Ok(())
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RedisStore")
            .field("route", &self.route)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}
