//! A Redis store under judgement: one server for all tests of a file, a namespace for each subject.

#![allow(dead_code, reason = "each file of tests uses a part of it")]

pub(crate) mod authority;
pub(crate) mod proxy;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Runtime;
use tollbar::{ManualClock, Store, StoreError, Timestamp};
use tollbar_redis::{FleetSecret, KeyNames, RedisStore, RedisStoreBuilder, RedisStoreError};
use tollbar_testkit::redis::launch::{Launch, Program};
use tollbar_testkit::redis::process::RedisProcess;
use tollbar_testkit::subject::Subject;

/// Drives the connections of all stores.
pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().expect("a runtime can be made")
});

pub(crate) fn server() -> Arc<RedisProcess> {
    server_of(Program::Redis)
}

/// The tests of a file share a server of each kind; who is the last to need it ends it.
pub(crate) fn server_of(program: Program) -> Arc<RedisProcess> {
    static SERVERS: [Mutex<Weak<RedisProcess>>; Program::ALL.len()] =
        [const { Mutex::new(Weak::new()) }; Program::ALL.len()];
    // Where a server could not be started, other tests see that for themselves.
    let mut server = SERVERS[program as usize].lock().unwrap_or_else(PoisonError::into_inner);
    server.upgrade().unwrap_or_else(|| {
        let new = Arc::new(RedisProcess::launch(Launch::new(program)));
        *server = Arc::downgrade(&new);
        new
    })
}

/// A name that nothing else in this process has.
pub(crate) fn unique() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed).to_string()
}

/// A store whose counters nobody else has.
pub(crate) fn builder(server: &RedisProcess) -> RedisStoreBuilder {
    RedisStore::builder(&server.url(), KeyNames::Hashed(FleetSecret::new([7; 32])))
        .namespace(&unique())
}

/// A store and the clock it decides by.
pub(crate) struct RedisSubject {
    store: RedisStore,
    clock: ManualClock,
    _server: Arc<RedisProcess>,
}

/// Longer than any test: the server expires counters by its own clock.
const GRACE: Duration = Duration::from_hours(1);

/// Machines that run tests are slow at times.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A store that waits for as long as the machine is slow: for tests that are not about waiting.
pub(crate) trait Patient {
    fn patient(self) -> Self;
}

impl Patient for RedisStoreBuilder {
    fn patient(self) -> Self {
        self.timeout(DEADLINE).connect_timeout(DEADLINE)
    }
}

impl RedisSubject {
    pub(crate) fn boxed(now: Timestamp) -> Box<dyn Subject> {
        Self::on(Program::Redis, now)
    }

    pub(crate) fn on(program: Program, now: Timestamp) -> Box<dyn Subject> {
        let server = server_of(program);
        let clock = ManualClock::at(now);
        let builder = builder(&server).test_clock(clock.clone(), GRACE).patient();
        let store = RUNTIME.block_on(builder.connect()).expect("the server is there");
        Box::new(Self { store, clock, _server: server })
    }
}

impl Subject for RedisSubject {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn set_now(&self, now: Timestamp) {
        self.clock.set(now);
    }
}

/// What the store has said about an outage.
pub(crate) fn cause(error: &StoreError) -> &RedisStoreError {
    let (StoreError::Unavailable { source }
    | StoreError::Timeout { source }
    | StoreError::Overloaded { source }
    | StoreError::Refused { source }) = error
    else {
        panic!("not the server's fault: {error:?}");
    };
    source.downcast_ref().expect("it is an error of this store")
}
