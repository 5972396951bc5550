//! A request with an id, or a reservation, whose counters are in several slots of a cluster.
//!
//! Such a request has to be remembered, and no script can see two slots. So one slot, its *coordinator*, knows
//! how the request ends: one of 16, found by the request id or, without one, by the name of the reservation.
//! It is a two-phase commit, whose commit point is one script in that slot.
//!
//! ```text
//!              coordinator                           each slot with counters
//!   begin      request known? its answers, the end.
//!              under way? wait.
//!              note the intent: this attempt, its
//!              deadline, how to cancel it
//!   charge                                           cancelled? refuse. decide; charge, and note in the
//!                                                    record of the attempt what was charged
//!   commit     intent pending, ours, in time?
//!              remember the answers and the
//!              reservation, drop the intent
//! or cancel                                          record? give back what it says.
//!                                                    leave a record that refuses the charge
//!   remove     drop the intent
//! ```
//!
//! A reservation is settled in the same way: the coordinator takes its name away, which happens once, and notes
//! what is due in each slot; a slot settles by the record of the attempt, and takes it away.
//!
//! # What holds
//!
//! 1. *Nothing passes that was not charged in every slot.* A caller is let through only by a commit, or by the
//!    answers that one has left. A commit is sent only after every slot has charged. What a slot has charged is
//!    given back only by a cancel; a caller cancels only an attempt that it has sent no commit for, and
//!    [recovery](super::recovery) only an attempt that the coordinator has marked as aborted, in the script
//!    that hands it out. After that mark a commit fails; and after a commit there is no intent to hand out.
//! 2. *An id is charged once in each slot.* There is one intent for an id at a time, and none once it is answered.
//!    The next attempt begins after the intent of the one before was removed, which happens after every slot has
//!    answered its cancel. Within an attempt a slot charges once, because the record refuses a second charge.
//! 3. *What is charged and not concluded comes back.* The intent is there before anything is charged, and names
//!    every slot. A process that dies leaves it, and any process of the fleet ends it after its deadline: see
//!    `recovery` for when. A charge that is late finds the record of the cancel. A cancel gives back once,
//!    because it replaces the record, and gives back what the record says.
//! 4. *A false denial lasts for one deadline.* Another attempt of the same id waits while the first is under way,
//!    for half of its own deadline, and then is denied ([`Outcome::Busy`](tollbar::Outcome::Busy)). The first is over after its deadline,
//!    or is ended by recovery.
//!
//! Clocks: the deadline of an intent is by the clock of its coordinator alone. Records are kept by the clocks of
//! their slots, for much longer. A master that dies loses what its replica was not told; an intent or an answer
//! that is lost is as with any other request id: charged again when it is sent again, and never admitted for
//! nothing.

use std::time::Duration;

use futures_util::future::{join, join_all};
use tollbar::remote::{Exchange, Failure, FailureKind};
use tollbar::store::{Adjustment, Hold, Once, ReservationRef};
use tollbar::{Batch, Entry, StoreError};

use crate::error::RedisStoreError;
use crate::script::call::{AttemptRecord, KeyLocation, ScriptCall};
use crate::script::intent::{
    self, Attempt, BeginReply, Coordinator, IntentTimes, PartCall, SettleReply,
};
use crate::script::reply;
use crate::store::RedisStore;
use crate::store::cross_slot::SlotBatch;

/// How much longer than its caller waits an attempt can be committed.
const LIFE_SLACK: Duration = Duration::from_secs(1);

/// How long a record is kept beyond its need, and for how long recovery tries: then a charge stands.
const RECORD_TTL: Duration = Duration::from_mins(2);

/// How soon a caller asks again while another attempt of its request is under way. Twice as late each time.
const PENDING_PAUSE: Duration = Duration::from_millis(1);
const PENDING_PAUSE_MAX: Duration = Duration::from_millis(50);

/// The most entries of such a request: an intent holds what it takes to give all of them back.
const ENTRIES_MAX: usize = 128;

/// A request that is being decided.
struct Transaction<'a> {
    coordinator: Coordinator,
    attempt: Attempt,
    once: Option<Once<'a>>,
    hold: Option<Hold>,
}

/// What an attempt charges in one slot.
struct AttemptPart<'e> {
    slot_batch: SlotBatch<'e>,
    record: AttemptRecord,
    cancel: ScriptCall,
    /// The decisions as the script has written them.
    answers: Vec<u8>,
}

/// What a slot has said to a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChargeReply {
    Decided,
    /// Recovery has ended the attempt.
    Cancelled,
}

impl RedisStore {
    /// Decides a request with an id, or a reservation, whose counters are in several slots.
    pub(super) async fn decide_across_slots(
        &self,
        exchange: &Exchange<'_>,
        batch: &mut Batch<'_, '_>,
    ) -> Result<(), StoreError> {
        let entries = batch.entries().len();
        if entries > ENTRIES_MAX {
            return Err(StoreError::BatchTooLarge { entries, entries_max: ENTRIES_MAX });
        }
        let (once, hold) = (batch.charged_once(), batch.hold());
        let Some(coordinator) = Coordinator::of_request(&self.names, once, hold) else {
            return Ok(self.check_scattered(exchange, batch).await?);
        };
        let transaction = Transaction { coordinator, attempt: Attempt::random(), once, hold };
        let (mut parts, cancels) = self.parts(&transaction, batch.entries())?;
        match self.begin_attempt(exchange, &transaction, batch.entries(), &cancels).await? {
            BeginReply::Begun => {}
            BeginReply::Answered(answers) => {
                let once = once.ok_or(RedisStoreError::Garbled)?;
                return Ok(reply::read_repeated(&answers, once, batch.entries_mut())?);
            }
            BeginReply::Reused => return Err(StoreError::RequestIdReused),
            // Charged in every slot, so that the limits hold, and remembered nowhere: an id that is sent again pays
            // again, and a reservation cannot be settled.
            BeginReply::Full => {
                if let Some(recovery) = &self.recovery {
                    recovery.record_backlog();
                }
                return Ok(self.check_scattered(exchange, batch).await?);
            }
            BeginReply::Pending => {
                self.deny_as_busy(batch.entries_mut());
                return Ok(());
            }
        }
        let charging = parts.iter_mut().map(|part| self.charge_part(exchange, part));
        let charged = join_all(charging).await;
        let is_charged = |(part, charged): (&AttemptPart<'_>, &Result<ChargeReply, _>)| {
            matches!(charged, Ok(ChargeReply::Decided)) && part.slot_batch.is_allowed()
        };
        let has_passed = parts.iter().zip(&charged).all(is_charged);
        if has_passed && !self.commit_attempt(exchange, &transaction, &parts).await? {
            // Recovery gives it back.
            self.deny_as_busy(batch.entries_mut());
            return Ok(());
        }
        if !has_passed {
            self.cancel_attempt(exchange, &transaction, &mut parts, &charged).await;
        }
        // A denial is one, also where other slots did not answer.
        let is_denied = parts.iter().any(|part| part.slot_batch.is_denied());
        if let (false, Some(failure)) =
            (is_denied, charged.iter().find_map(|charged| charged.as_ref().err()))
        {
            return Err(failure.clone().into());
        }
        if !is_denied && charged.iter().any(|charged| matches!(charged, Ok(ChargeReply::Cancelled)))
        {
            self.deny_as_busy(batch.entries_mut());
            return Ok(());
        }
        for part in parts {
            part.slot_batch.put_back(batch);
        }
        Ok(())
    }

    /// The entries by their slots, and the calls that give each part back.
    fn parts<'e>(
        &self,
        transaction: &Transaction<'_>,
        entries: &[Entry<'e>],
    ) -> Result<(Vec<AttemptPart<'e>>, Vec<PartCall>), RedisStoreError> {
        let settled_for = transaction.hold.map_or(Duration::ZERO, |hold| hold.ttl);
        let ttl = settled_for.saturating_add(self.intent_times().life).saturating_add(RECORD_TTL);
        let (mut parts, mut cancels) = (Vec::new(), Vec::new());
        for slot_batch in SlotBatch::group(entries, |entry| self.names.tag(entry.key())) {
            let cancel = ScriptCall::cancel_part(&self.names, &slot_batch.entries, RECORD_TTL)?;
            let call = cancel.for_attempt(transaction.attempt);
            let name = call.keys.last().cloned().unwrap_or_default();
            let record = AttemptRecord { name, ttl };
            parts.push(AttemptPart { slot_batch, record, cancel: call, answers: Vec::new() });
            cancels.push(cancel);
        }
        Ok((parts, cancels))
    }

    /// Asks the coordinator until there is no other attempt, or half of the time is over: the rest is for what a
    /// caller has to do that begins.
    async fn begin_attempt(
        &self,
        exchange: &Exchange<'_>,
        transaction: &Transaction<'_>,
        entries: &[Entry<'_>],
        cancels: &[PartCall],
    ) -> Result<BeginReply, RedisStoreError> {
        let Transaction { coordinator, attempt, .. } = transaction;
        let begin = coordinator.begin(&self.names, entries, *attempt, self.intent_times(), cancels);
        let mut pause = PENDING_PAUSE;
        loop {
            let reply = intent::read_begin(&self.ask_by(exchange, &begin).await?)?;
            if reply != BeginReply::Pending
                || exchange.time_left() < self.route.deadlines.deadline() / 2 + pause
            {
                return Ok(reply);
            }
            exchange.pause(pause).await?;
            pause = (pause * 2).min(PENDING_PAUSE_MAX);
        }
    }

    async fn charge_part(
        &self,
        exchange: &Exchange<'_>,
        part: &mut AttemptPart<'_>,
    ) -> Result<ChargeReply, RedisStoreError> {
        let batch = Batch::all_or_none(&mut part.slot_batch.entries);
        let location = KeyLocation::PartOfAttempt(&part.record);
        let call = ScriptCall::for_batch(&self.names, &batch, location)?;
        part.answers = self.ask_by(exchange, &call).await?;
        if part.answers == reply::CANCELLED {
            return Ok(ChargeReply::Cancelled);
        }
        reply::read_decisions(&part.answers, &mut part.slot_batch.entries)?;
        Ok(ChargeReply::Decided)
    }

    /// False where the attempt was ended by others, because its time was up.
    async fn commit_attempt(
        &self,
        exchange: &Exchange<'_>,
        transaction: &Transaction<'_>,
        parts: &[AttemptPart<'_>],
    ) -> Result<bool, RedisStoreError> {
        let Transaction { coordinator, attempt, once, hold } = transaction;
        let mut pieces: Vec<(usize, &[u8])> = Vec::new();
        for part in parts {
            let answers = part.answers.chunks(reply::ENTRY_BYTES);
            pieces.extend(part.slot_batch.positions.iter().copied().zip(answers));
        }
        pieces.sort_unstable_by_key(|(position, _)| *position);
        let answers: Vec<u8> = pieces.into_iter().flat_map(|(_, answer)| answer).copied().collect();
        let commit = coordinator.commit(*attempt, *once, *hold, &answers);
        intent::read_commit(&self.ask_by(exchange, &commit).await?)
    }

    /// Gives back what was charged, as far as there is time. Recovery does what remains.
    async fn cancel_attempt(
        &self,
        exchange: &Exchange<'_>,
        transaction: &Transaction<'_>,
        parts: &mut [AttemptPart<'_>],
        charged: &[Result<ChargeReply, RedisStoreError>],
    ) {
        let may_be_charged: Vec<&mut AttemptPart<'_>> = parts
            .iter_mut()
            .zip(charged)
            .filter_map(|(part, charged)| {
                let may_be = match charged {
                    Ok(ChargeReply::Decided) => part.slot_batch.is_allowed(),
                    Ok(ChargeReply::Cancelled) => false,
                    // These were not sent.
                    Err(error) => {
                        !matches!(error.kind(), FailureKind::Disconnected | FailureKind::Overloaded)
                    }
                };
                may_be.then_some(part)
            })
            .collect();
        let cancels = may_be_charged.iter().map(|part| self.ask_by(exchange, &part.cancel));
        if join_all(cancels).await.iter().any(Result::is_err) {
            return;
        }
        let remove = transaction.coordinator.remove(transaction.attempt);
        let peeks = may_be_charged
            .into_iter()
            .filter(|part| part.slot_batch.is_allowed())
            .map(|part| self.peek_again(exchange, &mut part.slot_batch));
        // What fails here is done by recovery, or only tells less.
        let (_removed, _peeked) = join(self.ask_by(exchange, &remove), join_all(peeks)).await;
    }

    /// Settles a reservation whose counters are in several slots, or were when it was made.
    pub(super) async fn settle_across_slots(
        &self,
        reservation: ReservationRef<'_>,
        adjustments: &mut [Adjustment<'_>],
    ) -> Result<bool, RedisStoreError> {
        let exchange = self.route.begin()?;
        let mut tags: Vec<&[u8]> =
            adjustments.iter().map(|adjustment| self.names.tag(adjustment.key())).collect();
        tags.sort_unstable();
        tags.dedup();
        let mut parts = Vec::new();
        for tag in tags {
            let is_here = |adjustment: &&Adjustment<'_>| self.names.tag(adjustment.key()) == tag;
            let part: Vec<Adjustment<'_>> = adjustments.iter().filter(is_here).cloned().collect();
            parts.push((tag, part));
        }
        let calls = parts.iter().map(|(_, part)| ScriptCall::settle_part(&self.names, part));
        let calls = calls.collect::<Result<Vec<PartCall>, _>>()?;
        let coordinator = Coordinator::of_settlement(&self.names, reservation, adjustments);
        let forgets_request = Adjustment::gives_back(adjustments);
        let settle = coordinator.settle(forgets_request, self.intent_times(), &calls);
        let attempt = match intent::read_settle(&self.ask_by(&exchange, &settle).await?)? {
            SettleReply::Open(attempt) => attempt,
            SettleReply::Absent => return Ok(false),
            SettleReply::Full => return Err(RedisStoreError::Backlog),
        };
        let calls: Vec<ScriptCall> = calls.iter().map(|call| call.for_attempt(attempt)).collect();
        let settled = join_all(calls.iter().map(|call| self.ask_by(&exchange, call))).await;
        for ((tag, mut part), answer) in parts.into_iter().zip(settled) {
            reply::read_settlement(&answer?, &mut part)?;
            let here =
                adjustments.iter_mut().filter(|adjustment| self.names.tag(adjustment.key()) == tag);
            for (adjustment, done) in here.zip(part) {
                adjustment.adjust(done.adjusted());
            }
        }
        // If this fails, recovery finds nothing left to do, and removes it. Of several callers that settle the
        // reservation at once, the one that removes the intent accounts for it.
        let removed = self.ask_by(&exchange, &coordinator.remove(attempt)).await;
        if !removed.is_ok_and(|reply| intent::read_remove(&reply)) {
            adjustments.iter_mut().for_each(Adjustment::mark_repeat);
        }
        Ok(true)
    }

    pub(super) fn intent_times(&self) -> IntentTimes {
        let life = self.route.deadlines.deadline().saturating_add(LIFE_SLACK);
        IntentTimes { life, drop_after: RECORD_TTL }
    }
}

#[cfg(test)]
mod tests {
    use tollbar::store::{ReservationId, Spending};
    use tollbar::{ManualClock, Policy, Store, Timestamp};
    use tollbar_testkit::redis::cluster::RedisCluster;

    use super::*;
    use crate::{FaultKind, KeyNames};

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
    const LONG: Duration = Duration::from_secs(20);

    struct Fixture {
        store: RedisStore,
        clock: ManualClock,
        policy: Policy,
        _cluster: RedisCluster,
    }

    impl Fixture {
        async fn new() -> Self {
            let cluster = RedisCluster::start();
            let urls = cluster.urls();
            let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
            let clock = ManualClock::at(START);
            let builder = RedisStore::cluster_builder(&urls, KeyNames::Raw)
                .timeout(LONG)
                .connect_timeout(LONG)
                .test_clock(clock.clone(), Duration::from_hours(1));
            let store = builder.connect().await.expect("the cluster is there");
            let policy = Policy::fixed_window("10/day").expect("ten a day is a policy");
            Self { store, clock, policy, _cluster: cluster }
        }

        fn entries(&self) -> Vec<Entry<'_>> {
            ["a", "b"].map(|key| Entry::new(key, &self.policy).with_cost(4)).into()
        }

        fn transaction<'r>(&self, request_id: &'r [u8]) -> Transaction<'r> {
            let once = Some(Once::new(request_id, Duration::from_mins(1)));
            let coordinator = Coordinator::of_request(&self.store.names, once, None);
            let coordinator = coordinator.expect("it has an id");
            Transaction { coordinator, attempt: Attempt::random(), once, hold: None }
        }

        async fn left(&self) -> Vec<u64> {
            let mut left = Vec::new();
            for key in ["a", "b"] {
                let peek = self.store.check(key.as_bytes(), &self.policy, 0).await;
                left.push(peek.unwrap().remaining().unwrap());
            }
            left
        }
    }

    /// Recovery has handed the intent out, and gives back what was charged: a commit must not come through, also if
    /// the clock of the coordinator was set back meanwhile.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_commit_comes_too_late_after_the_deadline_and_after_the_intent_was_handed_out() {
        let fixture = Fixture::new().await;
        let store = &fixture.store;
        for (request_id, is_handed_out) in [(b"r1", false), (b"r2", true)] {
            fixture.clock.set(START);
            let transaction = fixture.transaction(request_id);
            let entries = fixture.entries();
            let exchange = store.route.begin().unwrap();
            let (mut parts, cancels) = store.parts(&transaction, &entries).unwrap();
            let begun = store.begin_attempt(&exchange, &transaction, &entries, &cancels).await;
            assert_eq!(begun.unwrap(), BeginReply::Begun);
            for part in &mut parts {
                let charged = store.charge_part(&exchange, part).await.unwrap();
                assert_eq!(charged, ChargeReply::Decided);
            }
            fixture.clock.set(START.after(store.intent_times().life));
            if is_handed_out {
                for number in 0..crate::keys::COORDINATOR_COUNT {
                    let claim = intent::claim(&store.names, number, LONG, 16);
                    store.ask_by(&exchange, &claim).await.unwrap();
                }
                fixture.clock.set(START);
            }
            let committed = store.commit_attempt(&exchange, &transaction, &parts).await;
            assert!(!committed.unwrap(), "handed out: {is_handed_out}");
            for part in &parts {
                store.ask_by(&exchange, &part.cancel).await.unwrap();
            }
            fixture.clock.set(START);
            assert_eq!(fixture.left().await, [10, 10]);
        }
    }

    /// Messages pass each other: the cancel may come first, and either may come twice.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_charge_after_its_cancel_is_refused_and_a_cancel_gives_back_once() {
        let fixture = Fixture::new().await;
        let store = &fixture.store;
        let exchange = store.route.begin().unwrap();
        let entries = fixture.entries();
        for is_charged_first in [false, true] {
            // Of somebody else, which nothing here may give back.
            let before = fixture.left().await;
            let (mut parts, _) = store.parts(&fixture.transaction(b"r"), &entries).unwrap();
            for part in &mut parts {
                if is_charged_first {
                    let charged = store.charge_part(&exchange, part).await.unwrap();
                    assert_eq!(charged, ChargeReply::Decided);
                }
                for _ in 0..2 {
                    store.ask_by(&exchange, &part.cancel).await.unwrap();
                    let late = store.charge_part(&exchange, part).await.unwrap();
                    assert_eq!(late, ChargeReply::Cancelled, "charged first: {is_charged_first}");
                }
            }
            assert_eq!(fixture.left().await, before, "charged first: {is_charged_first}");
            store.check(b"a", &fixture.policy, 3).await.unwrap();
            store.check(b"b", &fixture.policy, 3).await.unwrap();
        }
    }

    /// Both were told that the reservation is settled, and both accounted for it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_two_that_settle_a_reservation_at_once_one_is_a_repeat() {
        let fixture = Fixture::new().await;
        let store = &fixture.store;
        let mut both_succeeded = 0;
        for number in 1..=8 {
            let hold = Hold { id: ReservationId(number), ttl: LONG };
            let mut entries =
                ["a", "b"].map(|key| Entry::new(key, &fixture.policy).with_cost(1)).to_vec();
            store.decide(Batch::all_or_none(&mut entries).held(hold)).await.unwrap();
            let settle = async || {
                let spending = Spending { reserved: 1, spent: 0 };
                let mut adjustments: Vec<Adjustment<'_>> = entries
                    .iter()
                    .map(|entry| {
                        Adjustment::new(entry.key(), entry.policy(), entry.stamp(), spending)
                    })
                    .collect();
                let is_settled = store.settle(hold.id.into(), &mut adjustments).await.unwrap();
                is_settled.then(|| adjustments.iter().any(Adjustment::is_repeat))
            };
            let (one, other) = join(settle(), settle()).await;
            let outcomes = [one, other];
            assert_eq!(outcomes.iter().filter(|outcome| **outcome == Some(false)).count(), 1);
            both_succeeded += usize::from(outcomes.contains(&Some(true)));
        }
        assert!(both_succeeded > 0, "no two calls met");
        assert_eq!(fixture.left().await, [10, 10]);
    }

    /// It was an outage: with one master down, a flood of such requests filled the coordinators and so lifted the limits of
    /// requests that need other masters only.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_full_coordinator_remembers_nothing_and_limits_hold() {
        const INTENTS_MAX: usize = 4_096;
        let fixture = Fixture::new().await;
        let store = &fixture.store;
        let exchange = store.route.begin().unwrap();
        for number in 0..crate::keys::COORDINATOR_COUNT {
            let key = [&store.names.coordinator(number)[..], b"intents"].concat();
            let mut fill = redis::cmd("HSET");
            fill.arg(&key);
            for field in 0..INTENTS_MAX {
                fill.arg(field).arg("");
            }
            store.route.ask(&exchange, &key, &fill).await.unwrap();
        }
        let hold = |id| Hold { id: ReservationId(id), ttl: LONG };
        for (request_id, is_allowed) in [(1_u128, true), (1, true), (2, false)] {
            let mut entries = fixture.entries();
            let request_id_bytes = request_id.to_le_bytes();
            let once = Once::new(&request_id_bytes, LONG);
            let batch = Batch::all_or_none(&mut entries).once(once).held(hold(request_id));
            store.decide(batch).await.unwrap();
            let allowed = entries.iter().all(|entry| entry.decision().unwrap().is_allowed());
            assert_eq!(allowed, is_allowed, "{request_id}");
        }
        assert_eq!(fixture.left().await, [2, 2]);
        let faults = store.faults();
        let fault = faults.iter().find(|fault| fault.kind == FaultKind::Unrecovered);
        assert!(fault.is_some_and(|fault| fault.detail.contains("not remembered")), "{faults:?}");
    }
}
