//! Counters in a plain Redis, without scripts: a load is one transaction with `TIME`, a swap is
//! `WATCH`, compare, `MULTI`, `EXEC`.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Client, Connection, RedisError};
use tollbar::counter::{BackendLimits, CounterBackend, CounterKey, Loaded, Swap, Value};
use tollbar::{Clock, ManualClock, Reply, StoreError, Timestamp};
use tollbar_testkit::redis::process::RedisProcess;

/// With a clock by hand, keys live for longer than any test: the server expires by its own clock.
const GRACE: Duration = Duration::from_hours(1);

type InterruptHook = Box<dyn FnOnce() + Send>;

pub(crate) struct WatchBackend {
    _server: Arc<RedisProcess>,
    client: Client,
    prefix: String,
    idle: Mutex<Vec<Connection>>,
    /// Tells the time in place of the server, in tests of the suite.
    clock: Option<ManualClock>,
    /// Runs once, after the values were compared and before they are replaced.
    between: Mutex<Option<InterruptHook>>,
}

impl WatchBackend {
    /// In `server`, under keys that begin with `prefix`.
    pub(crate) fn new(server: Arc<RedisProcess>, prefix: &str) -> Self {
        Self {
            client: Client::open(server.url()).expect("an address"),
            _server: server,
            prefix: prefix.to_owned(),
            idle: Mutex::default(),
            clock: None,
            between: Mutex::default(),
        }
    }

    /// Asks at another address of the same server.
    pub(crate) fn at(self, url: &str) -> Self {
        Self { client: Client::open(url).expect("an address"), ..self }
    }

    pub(crate) fn with_clock(self, clock: ManualClock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    pub(crate) fn after_next_compare(&self, step: impl FnOnce() + Send + 'static) {
        *lock(&self.between) = Some(Box::new(step));
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    fn name(&self, key: &CounterKey) -> String {
        format!("{}{key}", self.prefix)
    }

    fn with<T>(&self, ask: impl FnOnce(&mut Connection) -> Result<T, RedisError>) -> Reply<'_, T> {
        let idle = lock(&self.idle).pop();
        let connection = idle.map_or_else(|| self.client.get_connection(), Ok);
        let answer = connection.and_then(|mut connection| {
            let answer = ask(&mut connection)?;
            // One that has failed is dropped, with whatever it watches.
            lock(&self.idle).push(connection);
            Ok(answer)
        });
        Reply::Ready(answer.map_err(|error| StoreError::Unavailable { source: Arc::new(error) }))
    }

    fn load_now(
        &self,
        connection: &mut Connection,
        keys: &[CounterKey],
    ) -> Result<Loaded, RedisError> {
        let mut transaction = redis::pipe();
        transaction.atomic();
        transaction.cmd("MGET").arg(keys.iter().map(|key| self.name(key)).collect::<Vec<_>>());
        transaction.cmd("TIME");
        let (values, (seconds, micros)): (Vec<Option<Vec<u8>>>, (u64, u64)) =
            transaction.query(connection)?;
        let now = Timestamp::from_micros(seconds * 1_000_000 + micros);
        let value = |bytes: Option<Vec<u8>>| {
            Value::from_bytes(&bytes.unwrap_or_default()).expect("only words are stored here")
        };
        let now = self.clock.as_ref().map_or(now, Clock::now);
        Ok(Loaded { values: values.into_iter().map(value).collect(), now })
    }

    fn swap_now(&self, connection: &mut Connection, swaps: &[Swap]) -> Result<bool, RedisError> {
        let names: Vec<String> = swaps.iter().map(|swap| self.name(&swap.key)).collect();
        redis::cmd("WATCH").arg(&names).exec(connection)?;
        let values: Vec<Option<Vec<u8>>> = redis::cmd("MGET").arg(&names).query(connection)?;
        let is_same = |(swap, value): (&Swap, Option<Vec<u8>>)| {
            Value::to_bytes(&swap.before.words) == value.unwrap_or_default()
        };
        if !swaps.iter().zip(values).all(is_same) {
            redis::cmd("UNWATCH").exec(connection)?;
            return Ok(false);
        }
        // Taken first: what it runs may come here as well.
        let between = lock(&self.between).take();
        if let Some(step) = between {
            step();
        }
        let mut transaction = redis::pipe();
        transaction.atomic();
        for (swap, name) in swaps.iter().zip(&names) {
            if swap.after.is_empty() {
                transaction.cmd("DEL").arg(name);
                continue;
            }
            let command = transaction.cmd("SET").arg(name).arg(Value::to_bytes(&swap.after));
            if let Some(ttl) = swap.ttl {
                let grace = self.clock.as_ref().map_or(Duration::ZERO, |_| GRACE);
                command.arg("PX").arg((ttl + grace).as_micros().div_ceil(1_000) as u64);
            }
        }
        // Nothing, where a watched key was changed.
        let made: Option<redis::Value> = transaction.query(connection)?;
        Ok(made.is_some())
    }
}

impl CounterBackend for WatchBackend {
    fn limits(&self) -> BackendLimits {
        BackendLimits::new(1_000, 1 << 16)
    }

    fn load<'a>(&'a self, keys: &'a [CounterKey]) -> Reply<'a, Loaded> {
        self.with(|connection| self.load_now(connection, keys))
    }

    fn compare_and_swap<'a>(&'a self, swaps: &'a [Swap]) -> Reply<'a, bool> {
        self.with(|connection| self.swap_now(connection, swaps))
    }
}

impl fmt::Debug for WatchBackend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("WatchBackend").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
