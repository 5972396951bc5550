//! The store: turns requests into script calls, and their replies into decisions.

pub(crate) mod cross_slot;
pub(crate) mod probe;
pub(crate) mod recovery;
pub(crate) mod transaction;

use std::fmt;
use std::sync::Arc;

use tollbar::remote::{DenyCache, Exchange, Gate, GatePass, Health, RemoteStats, SentRequest};
use tollbar::store::{Adjustment, Loan, LoanRequest, ReservationRef, Spending, is_allowed};
use tollbar::{
    Batch, Charge, Clock, Decision, Entry, Feature, Outcome, Policy, Reply, Role, Store,
    StoreError, SystemClock, Timestamp,
};

use crate::error::RedisStoreError;
use crate::keys::KeyNamer;
use crate::runner::{ScriptRunner, TestClock};
use crate::script::Scripts;
use crate::script::call::{KeyLocation, ScriptCall};
use crate::script::intent::Coordinator;
use crate::script::policy::Kind;
use crate::script::reply;
use crate::server::route::Route;
use crate::store::probe::ProbeState;
use crate::store::recovery::{Recovery, RecoveryTask};

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
    pub(crate) probe_state: ProbeState,
    /// Ends what dead processes have left behind in a cluster. Ends with the store.
    pub(crate) recovery: Option<RecoveryTask>,
}

/// Whether a check may be sent.
enum GateReply<'g> {
    /// It may, until the pass is dropped. There is none where nothing is kept back.
    Passed(Option<GatePass<'g>>),
    /// Too many checks of the same keys are under way.
    Busy,
}

impl GateReply<'_> {
    /// True if it had to wait for others: their answers may be known now.
    fn has_waited(&self) -> bool {
        matches!(self, Self::Passed(Some(pass)) if pass.has_waited)
    }

    fn is_busy(&self) -> bool {
        matches!(self, Self::Busy)
    }
}

/// What a store is made of.
pub(crate) struct RedisStoreParts {
    pub(crate) route: Arc<Route>,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) names: KeyNamer,
    pub(crate) gate: Option<Arc<Gate>>,
    pub(crate) denials_max: usize,
    pub(crate) test_clock: Option<TestClock>,
}

impl RedisStore {
    pub(crate) fn new(parts: RedisStoreParts) -> Self {
        let RedisStoreParts { route, scripts, names, gate, denials_max, test_clock } = parts;
        let recovery = Recovery {
            route: route.clone(),
            scripts: scripts.clone(),
            names: names.clone(),
            test_clock: test_clock.clone(),
        };
        let recovery = route.is_cluster().then(|| recovery.start());
        let denials = DenyCache::with_capacity(denials_max);
        let clock = SystemClock::new();
        Self {
            route,
            scripts,
            names,
            gate,
            denials,
            denials_max,
            clock,
            test_clock,
            probe_state: ProbeState::default(),
            recovery,
        }
    }

    /// The same server over the same connection, with counters of their own. Replaces the namespace it
    /// was [built](crate::RedisStoreBuilder::namespace) with.
    #[must_use]
    pub fn with_namespace(&self, namespace: &str) -> Self {
        Self::new(RedisStoreParts {
            route: self.route.clone(),
            scripts: self.scripts.clone(),
            names: self.names.with_namespace(namespace),
            gate: self.gate.clone(),
            denials_max: self.denials_max,
            test_clock: self.test_clock.clone(),
        })
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
            Some(test) => test.now_us(),
            None => self.clock.now().clamp_to_clock().as_micros(),
        }
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
        let Self { route, scripts, test_clock, .. } = self;
        let test_clock = test_clock.as_ref();
        ScriptRunner { route, scripts, test_clock, is_counted: true }.run(exchange, call).await
    }

    /// Returns where everything of these keys is; `None` where a cluster has it in several slots.
    fn locate<'k>(&self, mut keys: impl Iterator<Item = &'k [u8]>) -> Option<KeyLocation<'k>> {
        let first = keys.next();
        let Some(first) = first.filter(|_| self.route.is_cluster()) else {
            return Some(KeyLocation::Server);
        };
        let tag = self.names.tag(first);
        keys.all(|key| self.names.tag(key) == tag).then_some(KeyLocation::SlotOf(first))
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

    /// Waits behind checks of the same keys, where there is a gate.
    async fn pass(&self, exchange: &Exchange<'_>, keys: &[&[u8]]) -> GateReply<'_> {
        let Some(gate) = &self.gate else {
            return GateReply::Passed(None);
        };
        let pass = gate.pass(exchange, keys).await;
        pass.map_or(GateReply::Busy, |pass| GateReply::Passed(Some(pass)))
    }

    /// Waits behind requests of the same keys. Independent entries are different requests, and do not wait.
    async fn pass_batch(&self, exchange: &Exchange<'_>, batch: &Batch<'_, '_>) -> GateReply<'_> {
        if batch.charge() == Charge::Independent {
            return GateReply::Passed(None);
        }
        let keys: Vec<&[u8]> = batch.entries().iter().map(Entry::key).collect();
        self.pass(exchange, &keys).await
    }

    /// The denial of a check that was not sent. It has charged nothing, and when there is room is not known.
    fn busy(&self, policy: &Policy) -> Decision {
        let now = Timestamp::from_micros(self.now_us());
        Decision::new(Outcome::Busy, policy.limit(), 0, now)
    }

    /// Denies a request that was not sent, or is under way elsewhere.
    pub(crate) fn deny_as_busy(&self, entries: &mut [Entry<'_>]) {
        for entry in entries.iter_mut().filter(|entry| entry.role() == Role::Enforce) {
            entry.decide(self.busy(entry.policy()));
        }
    }

    /// An error if alternatives of one group lie in several slots: no script could choose one and leave the others.
    fn check_groups(&self, entries: &[Entry<'_>]) -> Result<(), StoreError> {
        let is_apart = |pair: &[Entry<'_>]| {
            let groups =
                [&pair[0], &pair[1]].map(|entry| entry.alternative().map(|place| place.group));
            groups[0].is_some()
                && groups[0] == groups[1]
                && self.names.tag(pair[0].key()) != self.names.tag(pair[1].key())
        };
        if entries.windows(2).any(is_apart) {
            return Err(StoreError::CrossSlot { detail: GROUP_APART.into() });
        }
        Ok(())
    }

    fn remember_denial(&self, sent: Option<SentRequest>, decisions: &[Decision]) {
        if let (Some(denials), Some(sent)) = (&self.denials, sent) {
            denials.record(sent, decisions);
        }
    }
}

impl Store for RedisStore {
    /// Everything but custom algorithms, which have no twin in Lua.
    fn supports(&self, feature: Feature<'_>) -> Result<(), StoreError> {
        match feature {
            Feature::Policy(policy) => Ok(Kind::for_policy(policy).map(|_| ())?),
            // They are in one slot only if something brings them together.
            Feature::SplitAlternatives
                if self.route.is_cluster() && !self.names.brings_keys_together() =>
            {
                Err(StoreError::unsupported(GROUP_APART))
            }
            Feature::SeveralCounters
            | Feature::SplitAlternatives
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
            let pass =
                if cost > 0 { self.pass(&exchange, &[key]).await } else { GateReply::Passed(None) };
            if pass.is_busy() {
                return Ok(self.busy(policy));
            }
            if pass.has_waited() && may_be_known {
                sent = self.look_up_denial(&call, cost, |decision| known = Some(decision));
                if let Some(decision) = known {
                    return Ok(decision);
                }
            }
            let answer = self.ask_by(&exchange, &call).await;
            let answer =
                answer.inspect_err(|error| self.suspect(error, &[Entry::new(key, policy)]));
            let decision = reply::read_one(&answer?, policy)?;
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
        let Some(location) = self.locate(batch.entries().iter().map(Entry::key)) else {
            if let Err(error) = self.check_groups(batch.entries()) {
                return Reply::Ready(Err(error));
            }
            return Reply::Pending(Box::pin(async move {
                let exchange = self.route.begin()?;
                let pass = self.pass_batch(&exchange, &batch).await;
                if pass.is_busy() {
                    self.deny_as_busy(batch.entries_mut());
                    Ok(())
                } else if has_name && batch.charge() == Charge::AllOrNone {
                    self.decide_across_slots(&exchange, &mut batch).await
                } else {
                    Ok(self.check_scattered(&exchange, &mut batch).await?)
                }
            }));
        };
        let call = match ScriptCall::for_batch(&self.names, &batch, location) {
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
            let pass = self.pass_batch(&exchange, &batch).await;
            if pass.is_busy() {
                self.deny_as_busy(batch.entries_mut());
                return Ok(());
            }
            if pass.has_waited() && is_plain {
                let is_known;
                (is_known, sent) = self.look_up_denials(&call, &mut batch);
                if is_known {
                    return Ok(());
                }
            }
            let answer = self.ask_by(&exchange, &call).await;
            let answer = answer.inspect_err(|error| self.suspect(error, batch.entries()));
            let once = batch.charged_once();
            reply::read_batch(&answer?, once, batch.entries_mut())?;
            if sent.is_some() && is_lasting_denial(batch.entries()) {
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
            let bytes =
                self.ask(&ScriptCall::refund(&self.names, &refund, KeyLocation::Server)?).await?;
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
        reservation: ReservationRef<'a>,
        adjustments: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        if let Err(error) = fits(adjustments.len()) {
            return Reply::Ready(Err(error));
        }
        Reply::Pending(Box::pin(async move {
            if let Some(location) = self.locate(adjustments.iter().map(Adjustment::key)) {
                let call = ScriptCall::settle(&self.names, reservation, adjustments, location)?;
                let is_settled = reply::read_settlement(&self.ask(&call).await?, adjustments)?;
                // Those of other slots may have been shadows that denied, and are not on the receipt.
                if is_settled || !self.route.is_cluster() {
                    return Ok(is_settled);
                }
            }
            Ok(self.settle_across_slots(reservation, adjustments).await?)
        }))
    }

    fn forget_request<'a>(&'a self, request_id: &'a [u8], key: &'a [u8]) -> Reply<'a, ()> {
        Reply::Pending(Box::pin(async move {
            let mut keys = if self.route.is_cluster() {
                vec![Coordinator::request_key(&self.names, request_id)]
            } else {
                Vec::new()
            };
            let slot_of = self.route.is_cluster().then_some(key);
            keys.push(self.names.request(slot_of, request_id));
            let exchange = self.route.begin()?;
            for key in keys {
                self.route.ask(&exchange, &key, redis::cmd("DEL").arg(&key)).await?;
            }
            Ok(())
        }))
    }

    /// A denial that is remembered says nothing of loans, and holds after one: a loan only charges.
    fn lend<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        request: LoanRequest,
    ) -> Reply<'a, Loan> {
        let Some(call) = ScriptCall::lend(&self.names, key, policy, request) else {
            return Reply::Ready(Ok(Loan::NONE));
        };
        Reply::Pending(Box::pin(async move {
            let answer = self.ask(&call).await;
            let answer =
                answer.inspect_err(|error| self.suspect(error, &[Entry::new(key, policy)]));
            Ok(reply::read_loan(&answer?, policy)?)
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

/// The error message for alternatives in several slots.
const GROUP_APART: &str = "alternatives of one limit lie in several slots of the cluster: count them by the same \
                           attributes, without a `per` of their own, or bring their keys together with `colocate_by`";

/// True if a request was denied, and for as long as each denial of it says. A denied alternative without an end may be
/// allowed at any moment.
fn is_lasting_denial(entries: &[Entry<'_>]) -> bool {
    let has_no_end = |entry: &Entry<'_>| {
        entry.alternative().is_some()
            && entry.decision().is_some_and(|decision| decision.outcome() == Outcome::Busy)
    };
    !is_allowed(entries) && !entries.iter().any(has_no_end)
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
