//! Ten thousand tasks that take permits, leases and reservations, and give them back, settle them,
//! give up, or vanish: nothing is lost, nothing is doubled, and nothing piles up.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tollbar::{
    Clock, Concurrency, ConcurrencyLimiter, Lease, Limiter, ManualClock, MemoryStore, Permit,
    Policy, Receipt, Timestamp,
};
use tollbar_testkit::xorshift::Xorshift;

const TASKS: usize = 10_000;
const THREADS: usize = 8;
const KEYS: usize = 97;
const LIMIT: u64 = 40;
const TTL: Duration = Duration::from_secs(30);
const TOKENS: u64 = 1_000_000_000;

/// What a task has in hand.
enum Holding {
    Nothing,
    Permit(usize, Permit<'static>),
    Lease(usize, Lease),
    Reservation(usize, Receipt, u64),
}

struct Fixture {
    clock: ManualClock,
    store: Arc<MemoryStore>,
    permits: ConcurrencyLimiter,
    leases: ConcurrencyLimiter,
    tokens: Limiter,
    keys: Vec<Key>,
}

/// What must be true of a key, written down beside the store.
#[derive(Default)]
struct Key {
    in_flight: AtomicI64,
    /// Id and end of every lease that was granted and not released.
    leased: Mutex<Vec<(u64, Timestamp)>>,
    spent: AtomicU64,
}

impl Fixture {
    fn new() -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
        // The names of open reservations are wide states, also of those whose task has vanished.
        let builder = MemoryStore::builder().max_keys(10_000).max_wide_keys(200_000);
        let store = Arc::new(builder.clock(clock.clone()).build());
        let limiter = |permits: Concurrency| {
            ConcurrencyLimiter::builder(permits).store(store.clone()).build().unwrap()
        };
        let permits = Concurrency::new(LIMIT).unwrap().with_name("permits");
        let tokens = Policy::fixed_window("1000000000/year").unwrap().with_name("tokens");
        let tokens = Limiter::builder(tokens).store(store.clone()).reservation_ttl(TTL);
        Self {
            permits: limiter(permits.clone()),
            leases: limiter(permits.with_lease(TTL).unwrap()),
            tokens: tokens.build().unwrap(),
            keys: (0..KEYS).map(|_| Key::default()).collect(),
            clock,
            store,
        }
    }

    /// One thing that a task does.
    fn act(&self, random: &mut Xorshift, holding: &mut Holding) {
        *holding = match std::mem::replace(holding, Holding::Nothing) {
            Holding::Nothing => self.take(random),
            Holding::Permit(key, permit) => {
                if random.below(3) == 0 {
                    return *holding = Holding::Permit(key, permit);
                }
                self.keys[key].in_flight.fetch_sub(1, Ordering::SeqCst);
                drop(permit);
                Holding::Nothing
            }
            Holding::Lease(key, lease) => self.go_on(random, key, lease),
            Holding::Reservation(key, receipt, reserved) => {
                match random.below(4) {
                    0 => return *holding = Holding::Reservation(key, receipt, reserved),
                    // Vanishes: what it has reserved stays charged.
                    1 => self.spend(key, reserved),
                    _ => {
                        let spent = random.below(2 * reserved);
                        match self.tokens.commit(&receipt, spent) {
                            Ok(_) => self.spend(key, spent),
                            Err(_) => self.spend(key, reserved),
                        }
                        assert!(self.tokens.commit(&receipt, 0).is_err(), "redeemed twice");
                    }
                }
                Holding::Nothing
            }
        }
    }

    fn spend(&self, key: usize, tokens: u64) {
        self.keys[key].spent.fetch_add(tokens, Ordering::SeqCst);
    }

    fn take(&self, random: &mut Xorshift) -> Holding {
        let key = random.below(KEYS as u64) as usize;
        let name = key.to_le_bytes();
        match random.below(3) {
            0 => match self.permits.try_acquire(&name) {
                Ok(permit) => {
                    let out = 1 + self.keys[key].in_flight.fetch_add(1, Ordering::SeqCst);
                    assert!(out <= LIMIT.cast_signed(), "{out} in flight");
                    Holding::Permit(key, permit.into_owned())
                }
                Err(_) => Holding::Nothing,
            },
            1 => {
                let mut leased = self.keys[key].leased.lock().unwrap();
                let Ok(lease) = self.leases.lease(&name) else { return Holding::Nothing };
                leased.push((lease.id, lease.ends_at));
                let now = self.clock.now();
                let live = leased.iter().filter(|(_, ends_at)| *ends_at > now).count();
                assert!(live <= LIMIT as usize, "{live} leases");
                Holding::Lease(key, lease)
            }
            _ => {
                let reserved = 1 + random.below(100);
                match self.tokens.reserve(&name, reserved) {
                    Ok(reservation) => {
                        Holding::Reservation(key, reservation.receipt().unwrap().clone(), reserved)
                    }
                    Err(_) => Holding::Nothing,
                }
            }
        }
    }

    fn go_on(&self, random: &mut Xorshift, key: usize, mut lease: Lease) -> Holding {
        let mut leased = self.keys[key].leased.lock().unwrap();
        match random.below(4) {
            // Vanishes: its lease ends by itself.
            0 => Holding::Nothing,
            1 => {
                if !self.leases.renew(&mut lease) {
                    return Holding::Nothing;
                }
                for (id, ends_at) in leased.iter_mut().filter(|(id, _)| *id == lease.id) {
                    assert_eq!(*id, lease.id);
                    *ends_at = lease.ends_at;
                }
                Holding::Lease(key, lease)
            }
            _ => {
                leased.retain(|(id, _)| *id != lease.id);
                self.leases.release(&lease);
                assert!(!self.leases.release(&lease), "released twice");
                Holding::Nothing
            }
        }
    }

    /// So many acts by every task, on a few threads, while time passes.
    fn round(&self, round: usize, acts: usize) {
        thread::scope(|scope| {
            for number in 0..THREADS {
                scope.spawn(move || {
                    let mut random = Xorshift::named(&format!("round {round}, thread {number}"));
                    let mut tasks: Vec<Holding> =
                        (0..TASKS / THREADS).map(|_| Holding::Nothing).collect();
                    for _ in 0..acts * tasks.len() {
                        let at = random.below(tasks.len() as u64) as usize;
                        self.act(&mut random, &mut tasks[at]);
                        if random.below(1_000) == 0 {
                            self.clock.advance(Duration::from_millis(random.below(500)));
                        }
                    }
                    for holding in tasks {
                        match holding {
                            Holding::Permit(key, permit) => {
                                self.keys[key].in_flight.fetch_sub(1, Ordering::SeqCst);
                                drop(permit);
                            }
                            Holding::Reservation(key, _, reserved) => self.spend(key, reserved),
                            Holding::Nothing | Holding::Lease(..) => {}
                        }
                    }
                });
            }
        });
        // Whoever has vanished with a lease has lost it by now.
        self.clock.advance(TTL);
        for key in &self.keys {
            key.leased.lock().unwrap().clear();
        }
    }

    fn check(&self) {
        for (number, key) in self.keys.iter().enumerate() {
            let name = number.to_le_bytes();
            assert_eq!(key.in_flight.load(Ordering::SeqCst), 0);
            assert_eq!(self.permits.peek(&name).remaining().unwrap(), LIMIT, "a permit was lost");
            assert_eq!(self.leases.peek(&name).remaining().unwrap(), LIMIT, "a lease was lost");
            let spent = key.spent.load(Ordering::SeqCst);
            assert_eq!(
                self.tokens.peek(&name).remaining().unwrap(),
                TOKENS - spent,
                "tokens were lost"
            );
        }
        let stats = self.store.stats();
        assert_eq!(stats.forced_evictions, 0);
        assert_eq!(stats.live_keys, KEYS, "what is left is the tokens that were spent");
    }
}

fn soak(rounds: usize, acts: usize) {
    let fixture = Fixture::new();
    for round in 0..rounds {
        fixture.round(round, acts);
        fixture.check();
    }
}

#[test]
fn ten_thousand_tasks_lose_nothing_and_double_nothing() {
    soak(1, 3);
}

#[test]
#[ignore = "long: the same, a hundred times as much"]
fn ten_thousand_tasks_lose_nothing_and_double_nothing_for_long() {
    soak(10, 30);
}
