//! Batches of loaned, local and exact entries, over a lender that the tests answer for.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollbar::store::{Hold, Once, Spending};
use tollbar::{LoanMode, LoanTerms, ManualClock, Outcome, Role, Source};

use super::*;

const HOT: &[u8] = b"hot";
const COLD: &[u8] = b"cold";

/// A store in memory that lends all it is asked for, counts what it is asked, and can be slow: before it answers, the
/// clock moves on.
#[derive(Debug)]
struct Lender {
    memory: MemoryStore,
    clock: TestClock,
    loans: AtomicU64,
    decided: Mutex<Vec<Vec<Vec<u8>>>>,
    slow_us: AtomicU64,
    is_down: std::sync::atomic::AtomicBool,
}

#[derive(Debug, Clone, Default)]
struct TestClock(Arc<AtomicU64>);

impl BootClock for TestClock {
    fn now_us(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl TestClock {
    fn advance_us(&self, step_us: u64) {
        self.0.fetch_add(step_us, Ordering::SeqCst);
    }
}

impl Store for Lender {
    fn supports(&self, _: Feature<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        let keys = batch.entries().iter().map(|entry| entry.key().to_vec()).collect();
        self.decided.lock().unwrap().push(keys);
        Reply::Pending(Box::pin(async move {
            self.clock.advance_us(self.slow_us.swap(0, Ordering::SeqCst));
            if self.is_down.load(Ordering::SeqCst) {
                return Err(StoreError::Unavailable { source: Arc::new(std::fmt::Error) });
            }
            self.memory.decide(batch).await
        }))
    }

    fn refund<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
        amount: u64,
    ) -> Reply<'a, u64> {
        self.memory.refund(key, policy, stamp, amount)
    }

    fn lend<'a>(&'a self, _: &'a [u8], _: &'a Policy, request: LoanRequest) -> Reply<'a, Loan> {
        self.loans.fetch_add(1, Ordering::SeqCst);
        let decision = Some(Decision::new(Outcome::Allow, 1_000, 5, Timestamp::from_micros(77)));
        Reply::Ready(Ok(Loan { tokens: request.tokens, life: request.term, decision }))
    }

    fn reset<'a>(&'a self, key: &'a [u8], policy: &'a Policy) -> Reply<'a, ()> {
        self.memory.reset(key, policy)
    }
}

struct Fixture {
    store: LendingStore,
    lender: Arc<Lender>,
    clock: TestClock,
    hot: Policy,
    cold: Policy,
    terms: LoanTerms,
}

impl Fixture {
    fn new() -> Self {
        let clock = TestClock::default();
        let memory = || {
            let now = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
            MemoryStore::builder().max_keys(1_000).clock(now).build()
        };
        let lender = Arc::new(Lender {
            memory: memory(),
            clock: clock.clone(),
            loans: AtomicU64::new(0),
            decided: Mutex::default(),
            slow_us: AtomicU64::new(0),
            is_down: false.into(),
        });
        let inner: Arc<dyn Store> = lender.clone();
        let builder = LendingStore::builder(inner).boot_clock(Arc::new(clock.clone()));
        let store = builder.local_store(memory()).jitter_seed(1).build();
        store.set_lending(true);
        let hot = Policy::token_bucket("1000/s").unwrap().with_burst(10_000).unwrap();
        let cold = Policy::fixed_window("2/day").unwrap();
        let terms = LoanTerms::new(&hot, LoanMode::Conservative { share_ppm: 50_000 }).unwrap();
        Self { store, lender, clock, hot, cold, terms }
    }

    fn hot(&self) -> Entry<'_> {
        Entry::new(HOT, &self.hot).with_accuracy(Accuracy::Loaned(self.terms))
    }

    fn cold(&self) -> Entry<'_> {
        Entry::new(COLD, &self.cold)
    }

    fn local(&self) -> Entry<'_> {
        Entry::new(b"local", &self.cold).with_accuracy(Accuracy::Local)
    }

    /// Asks until tokens are held: 100 in a window, which are 125 in a period.
    async fn warm_up(&self) -> u64 {
        let mut entries = [self.hot().with_cost(100)];
        self.decide(&mut entries).await.unwrap();
        tokio::task::yield_now().await;
        self.lender.decided.lock().unwrap().clear();
        let held = self.held();
        assert_eq!(held, 125);
        held
    }

    async fn decide(&self, entries: &mut [Entry<'_>]) -> Result<(), StoreError> {
        self.store.decide(Batch::all_or_none(entries)).await
    }

    fn held(&self) -> u64 {
        self.store.loan_holding(HOT, &self.hot).map_or(0, |holding| holding.tokens)
    }

    /// The keys of each batch that the store was asked for.
    fn decided(&self) -> Vec<Vec<Vec<u8>>> {
        std::mem::take(&mut self.lender.decided.lock().unwrap())
    }

    /// Spends the cold limit.
    async fn spend_cold(&self) {
        let mut entries = [self.cold().with_cost(2)];
        self.decide(&mut entries).await.unwrap();
        assert!(entries[0].is_paid());
        self.decided();
    }
}

#[tokio::test]
async fn a_hot_key_is_paid_from_loans_without_asking_the_store() {
    let fixture = Fixture::new();
    let held = fixture.warm_up().await;
    let mut entries = [fixture.hot().with_cost(3)];
    let reply = fixture.store.decide(Batch::all_or_none(&mut entries));
    assert!(matches!(reply, Reply::Ready(Ok(()))));
    drop(reply);
    assert!(entries[0].is_paid());
    assert_eq!(entries[0].source(), Source::Loan);
    let decision = entries[0].decision().unwrap();
    assert_eq!((decision.limit(), decision.remaining()), (1_000, Some(5 + held - 3)));
    assert_eq!((fixture.held(), fixture.decided().len()), (held - 3, 0));
    let stats = fixture.store.stats();
    assert_eq!((stats.loans_full, stats.tokens_spent, stats.loaned_keys), (1, 3, 1));
}

#[tokio::test]
async fn nothing_is_borrowed_unless_lending_is_on() {
    let fixture = Fixture::new();
    fixture.store.set_lending(false);
    for _ in 0..100 {
        fixture.decide(&mut [fixture.hot()]).await.unwrap();
    }
    assert_eq!((fixture.decided().len(), fixture.held()), (100, 0));
    // Tokens that are held stay where they are.
    fixture.store.set_lending(true);
    let held = fixture.warm_up().await;
    fixture.store.set_lending(false);
    fixture.decide(&mut [fixture.hot()]).await.unwrap();
    assert_eq!((fixture.decided().len(), fixture.held()), (1, held));
}

#[tokio::test]
async fn what_is_always_exact_leaves_the_lots_alone() {
    let fixture = Fixture::new();
    let held = fixture.warm_up().await;
    let (store, id) = (&fixture.store, fixture.store.reservation_ids.next());
    let mut entries = [fixture.hot()];
    let once = Once::new(b"id", Duration::from_secs(9));
    store.decide(Batch::all_or_none(&mut entries).once(once)).await.unwrap();
    let reservation = Hold { id, ttl: Duration::from_secs(9) };
    store.decide(Batch::all_or_none(&mut entries).held(reservation)).await.unwrap();
    fixture.decide(&mut [fixture.hot().with_cost(0)]).await.unwrap();
    fixture.decide(&mut [Entry::new(HOT, &fixture.hot)]).await.unwrap();
    store.check(HOT, &fixture.hot, 1).await.unwrap();
    assert_eq!((fixture.held(), fixture.lender.loans.load(Ordering::SeqCst)), (held, 1));
    assert_eq!(fixture.decided().len(), 5);
    assert_eq!(entries[0].source(), Source::Store);
}

/// Batches with a local limit come here whether or not anything of them may be loaned.
#[tokio::test]
async fn a_request_with_an_id_is_exact_beside_a_local_limit() {
    let fixture = Fixture::new();
    let held = fixture.warm_up().await;
    let mut entries = [fixture.hot(), fixture.local()];
    let once = Once::new(b"id", Duration::from_secs(9));
    fixture.store.decide(Batch::all_or_none(&mut entries).once(once)).await.unwrap();
    assert_eq!(entries.map(|entry| entry.source()), [Source::Store, Source::Local]);
    assert_eq!((fixture.held(), fixture.decided()), (held, vec![vec![HOT.to_vec()]]));
}

#[tokio::test]
async fn a_cost_above_any_loan_is_no_reason_to_borrow() {
    let fixture = Fixture::new();
    fixture.decide(&mut [fixture.hot().with_cost(fixture.terms.tokens_max + 1)]).await.unwrap();
    tokio::task::yield_now().await;
    assert_eq!((fixture.held(), fixture.lender.loans.load(Ordering::SeqCst)), (0, 0));
}

#[tokio::test]
async fn a_mixed_batch_asks_the_store_for_the_rest_alone() {
    let fixture = Fixture::new();
    let held = fixture.warm_up().await;
    let mut entries = [fixture.cold(), fixture.hot()];
    fixture.decide(&mut entries).await.unwrap();
    assert!(entries.iter().all(Entry::is_paid));
    assert_eq!(entries.map(|entry| entry.source()), [Source::Store, Source::Loan]);
    assert_eq!((fixture.held(), fixture.decided()), (held - 1, vec![vec![COLD.to_vec()]]));
}

#[tokio::test]
async fn a_denied_batch_puts_tokens_back() {
    let fixture = Fixture::new();
    let held = fixture.warm_up().await;
    fixture.spend_cold().await;
    let mut entries = [fixture.hot(), fixture.cold(), fixture.local()];
    fixture.decide(&mut entries).await.unwrap();
    assert!(!entries[1].is_paid());
    assert_eq!((fixture.held(), fixture.store.stats().tokens_spent), (held, 0));
    // Nor is the local limit charged: both of its tokens are there.
    let mut entries = [fixture.local().with_cost(2)];
    fixture.decide(&mut entries).await.unwrap();
    assert!(entries[0].is_paid());
}

#[tokio::test]
async fn a_store_that_fails_or_a_caller_that_leaves_puts_tokens_back() {
    let fixture = Fixture::new();
    let held = fixture.warm_up().await;
    let mut entries = [fixture.hot(), fixture.cold(), fixture.local()];
    drop(fixture.store.decide(Batch::all_or_none(&mut entries)));
    assert_eq!(fixture.held(), held);
    fixture.lender.is_down.store(true, Ordering::SeqCst);
    assert!(fixture.decide(&mut entries).await.is_err());
    assert_eq!(fixture.held(), held);
    let mut entries = [fixture.local().with_cost(2)];
    fixture.decide(&mut entries).await.unwrap();
    assert!(entries[0].is_paid());
}

#[tokio::test]
async fn tokens_that_end_before_the_store_answers_do_not_count() {
    let fixture = Fixture::new();
    fixture.warm_up().await;
    fixture.lender.slow_us.store(1_000_000, Ordering::SeqCst);
    let mut entries = [fixture.hot(), fixture.cold()];
    fixture.decide(&mut entries).await.unwrap();
    assert!(entries.iter().all(Entry::is_paid));
    assert_eq!(entries.map(|entry| entry.source()), [Source::Store; 2]);
    assert_eq!(fixture.decided(), [vec![COLD.to_vec()], vec![HOT.to_vec()]]);
    assert_eq!(fixture.store.stats().tokens_spent, 0);
}

#[tokio::test]
async fn a_batch_that_is_denied_after_all_gives_back_what_it_was_charged() {
    let fixture = Fixture::new();
    fixture.warm_up().await;
    let mut rest = [fixture.hot().with_cost(9_900).with_accuracy(Accuracy::Exact)];
    fixture.decide(&mut rest).await.unwrap();
    assert!(rest[0].is_paid(), "the bucket is empty now");
    fixture.decided();
    fixture.lender.slow_us.store(1_000_000, Ordering::SeqCst);
    let mut entries = [fixture.hot(), fixture.cold(), fixture.local()];
    fixture.decide(&mut entries).await.unwrap();
    assert!(!entries[0].is_paid());
    assert_eq!(fixture.decided(), [vec![COLD.to_vec()], vec![HOT.to_vec()]]);
    for mut entries in [[fixture.cold().with_cost(2)], [fixture.local().with_cost(2)]] {
        fixture.decide(&mut entries).await.unwrap();
        assert!(entries[0].is_paid(), "{:?}", entries[0].key());
    }
}

#[tokio::test]
async fn lots_that_are_about_to_end_are_left_alone_if_the_store_is_asked() {
    let fixture = Fixture::new();
    let held = fixture.warm_up().await;
    fixture.clock.advance_us(498_500 - 24_999);
    let mut entries = [fixture.hot(), fixture.cold()];
    fixture.decide(&mut entries).await.unwrap();
    assert_eq!(entries.map(|entry| entry.source()), [Source::Store; 2]);
    assert_eq!(fixture.held(), held);
    assert_eq!(fixture.decided(), [[HOT.to_vec(), COLD.to_vec()]]);
}

#[tokio::test]
async fn independent_entries_are_answered_one_by_one() {
    let fixture = Fixture::new();
    let held = fixture.warm_up().await;
    fixture.spend_cold().await;
    let mut entries = [fixture.cold(), fixture.hot(), fixture.local().with_cost(3), fixture.hot()];
    fixture.store.decide(Batch::independent(&mut entries)).await.unwrap();
    assert_eq!(entries.each_ref().map(Entry::is_paid), [false, true, false, true]);
    let sources = [Source::Store, Source::Loan, Source::Local, Source::Loan];
    assert_eq!(entries.map(|entry| entry.source()), sources);
    assert_eq!((fixture.held(), fixture.decided()), (held - 2, vec![vec![COLD.to_vec()]]));
}

#[tokio::test]
async fn a_shadow_never_denies() {
    let fixture = Fixture::new();
    let held = fixture.warm_up().await;
    let mut entries = [
        fixture.hot().with_role(Role::Shadow),
        fixture.local().with_cost(3).with_role(Role::Shadow),
        fixture.cold(),
    ];
    fixture.decide(&mut entries).await.unwrap();
    assert_eq!(entries.each_ref().map(Entry::is_paid), [true, false, true]);
    assert_eq!(fixture.held(), held - 1);
}

#[tokio::test]
async fn local_limits_are_counted_here() {
    let fixture = Fixture::new();
    let mut paid = 0;
    for _ in 0..5 {
        let mut entries = [fixture.local()];
        fixture.decide(&mut entries).await.unwrap();
        paid += u64::from(entries[0].is_paid());
        assert_eq!(entries[0].source(), Source::Local);
    }
    assert_eq!((paid, fixture.decided().len()), (2, 0));
    fixture.store.reset(b"local", &fixture.cold).await.unwrap();
    let mut entries = [fixture.local()];
    fixture.decide(&mut entries).await.unwrap();
    assert!(entries[0].is_paid());
}

#[tokio::test]
async fn a_repeated_request_pays_its_local_limit_once() {
    let fixture = Fixture::new();
    for at in 0..2 {
        let mut entries = [fixture.cold(), fixture.local()];
        let once = Once::new(b"id", Duration::from_secs(9));
        fixture.store.decide(Batch::all_or_none(&mut entries).once(once)).await.unwrap();
        assert!(entries.iter().all(Entry::is_paid));
        assert_eq!(entries.map(|entry| entry.repeat_of().is_some()), [at == 1; 2]);
    }
    let mut entries = [fixture.local().with_cost(0)];
    fixture.decide(&mut entries).await.unwrap();
    assert_eq!(entries[0].decision().unwrap().remaining(), Some(1));
}

#[tokio::test]
async fn a_reservation_of_local_limits_is_settled_here() {
    let fixture = Fixture::new();
    let hold = Hold { id: fixture.store.reservation_ids.next(), ttl: Duration::from_secs(9) };
    let mut entries = [fixture.local().with_cost(2)];
    fixture.store.decide(Batch::all_or_none(&mut entries).held(hold)).await.unwrap();
    let [entry] = entries;
    let spending = Spending { reserved: 2, spent: 1 };
    let mut adjustments = [Adjustment::new(entry.key(), entry.policy(), entry.stamp(), spending)];
    assert!(fixture.store.settle(hold.id.into(), &mut adjustments).await.unwrap());
    let mut entries = [fixture.local().with_cost(0)];
    fixture.decide(&mut entries).await.unwrap();
    assert_eq!(entries[0].decision().unwrap().remaining(), Some(1));
}

#[tokio::test]
async fn a_reset_drops_what_is_held() {
    let fixture = Fixture::new();
    let held = fixture.warm_up().await;
    fixture.store.reset(HOT, &fixture.hot).await.unwrap();
    assert_eq!((fixture.held(), fixture.store.stats().tokens_dropped), (0, held));
}

#[test]
fn without_a_runtime_every_check_is_exact() {
    let fixture = Fixture::new();
    for _ in 0..100 {
        let mut entries = [fixture.hot()];
        fixture.store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
        assert!(entries[0].is_paid());
    }
    assert_eq!((fixture.held(), fixture.decided().len()), (0, 100));
}
