//! Optimistic batching, as others do it: a node admits by what it heard last, counts what it has admitted, and tells
//! the server every 100 ms. Nothing keeps the nodes together from admitting more than the limit in between.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tollbar::{Policy, PolicyParts, StoreError};
use tollbar_bench::timer::Stopwatch;

const FLUSH_EVERY: Duration = Duration::from_millis(100);

/// Charges ARGV[1] tokens whatever is left, and returns for how many microseconds nothing is. A bucket has ARGV[2]
/// microseconds a token and holds ARGV[3] of them; for a window ARGV[2] is 0, ARGV[3] its limit and ARGV[4] its length.
const CHARGE: &str = "\
local time = redis.call('TIME') local now = time[1] * 1000000 + time[2] \
if ARGV[2] == '0' then \
  local length = tonumber(ARGV[4]) local window = math.floor(now / length) \
  local count = redis.call('INCRBY', KEYS[1] .. window, ARGV[1]) \
  redis.call('PEXPIRE', KEYS[1] .. window, math.ceil(length / 500)) \
  if count < tonumber(ARGV[3]) then return 0 end \
  return (window + 1) * length - now \
end \
local paid_at = tonumber(redis.call('GET', KEYS[1]) or 0) \
if paid_at < now then paid_at = now end \
paid_at = paid_at + ARGV[1] * ARGV[2] \
redis.call('SET', KEYS[1], string.format('%.0f', paid_at), 'PX', math.ceil((paid_at - now) / 1000) + 1) \
return math.max(0, paid_at - now + ARGV[2] - ARGV[3] * ARGV[2])";

pub(super) struct Batching {
    connection: MultiplexedConnection,
    script: Rc<str>,
    watch: Stopwatch,
    state: Rc<BatchingState>,
}

#[derive(Default)]
struct BatchingState {
    /// Admitted, and not told yet.
    pending: Cell<u64>,
    /// When the server was told last.
    told_at: Cell<Duration>,
    /// Until when nothing is left, as the server said last.
    closed_until: Cell<Duration>,
}

impl Batching {
    pub(super) async fn connect(url: &str) -> Result<Self, redis::RedisError> {
        let client = redis::Client::open(url)?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let script: String =
            redis::cmd("SCRIPT").arg("LOAD").arg(CHARGE).query_async(&mut connection).await?;
        Ok(Self {
            connection,
            script: script.into(),
            watch: Stopwatch::start(),
            state: Rc::default(),
        })
    }

    pub(super) fn ask(&self, key: &str, policy: &Policy) -> bool {
        let state = &self.state;
        let now = self.watch.elapsed();
        let is_admitted = now >= state.closed_until.get();
        if is_admitted {
            state.pending.set(state.pending.get() + 1);
        }
        if now >= state.told_at.get() + FLUSH_EVERY {
            state.told_at.set(now);
            let pending = state.pending.replace(0);
            let (batch, watch) = (self.charge(key, policy, pending), self.watch);
            let state = Rc::clone(state);
            tokio::task::spawn_local(async move {
                if let Ok(closed_us) = batch.await {
                    state.closed_until.set(watch.elapsed() + Duration::from_micros(closed_us));
                }
            });
        }
        is_admitted
    }

    pub(super) async fn spend(
        &self,
        key: &str,
        policy: &Policy,
        tokens: u64,
    ) -> Result<(), StoreError> {
        let charged = self.charge(key, policy, tokens).await;
        charged.map(drop).map_err(|error| StoreError::Unavailable { source: Arc::new(error) })
    }

    /// Tells the server of `tokens` that were admitted, and returns for how long nothing is left.
    fn charge(
        &self,
        key: &str,
        policy: &Policy,
        tokens: u64,
    ) -> impl Future<Output = Result<u64, redis::RedisError>> + 'static {
        let (token_us, held, window_us) = match policy.parts(b"") {
            PolicyParts::Bucket { interval, burst, .. } => {
                (interval.numerator_us / interval.denominator, burst, 0)
            }
            _ => (0, policy.limit(), policy.window().as_micros() as u64),
        };
        let mut connection = self.connection.clone();
        let mut command = redis::cmd("EVALSHA");
        command.arg(&*self.script).arg(1).arg(format!("batching {key}"));
        command.arg(tokens).arg(token_us).arg(held).arg(window_us);
        async move { command.query_async(&mut connection).await }
    }
}
