//! What the server does at best: a minimal script, and `INCR`, both by redis-benchmark.

use std::process::Command;
use std::rc::Rc;

use redis::aio::MultiplexedConnection;

use super::server::RedisServer;

/// The least that a limiter can do in Lua: one number for each key, one policy, two numbers answered.
pub(super) const GCRA: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local paid_at = tonumber(redis.call('GET', KEYS[1]) or 0)
if paid_at < now then paid_at = now end
local next = paid_at + tonumber(ARGV[1])
if next - now > tonumber(ARGV[2]) then return {0, paid_at - now} end
redis.call('SET', KEYS[1], string.format('%.0f', next), 'PX', math.ceil((next - now) / 1000))
return {1, next - now}
";

/// As our own bucket: one a second, and a million of them at once.
const PERIOD_US: &str = "1000000";
const BURST_US: &str = "1000000000000";

/// A command for redis-benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FloorCommand {
    Gcra,
    Incr,
}

impl FloorCommand {
    pub(super) const ALL: [Self; 2] = [Self::Gcra, Self::Incr];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gcra => "minimal GCRA, redis-benchmark",
            Self::Incr => "INCR, redis-benchmark",
        }
    }

    /// Calls a second, `depth` of them under way at once over one connection.
    pub(super) fn run(self, server: &mut RedisServer, depth: usize, calls: usize) -> Option<f64> {
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &server.port().to_string(), "-c", "1", "--csv", "-r", "10000"]);
        command.args(["-P", &depth.to_string(), "-n", &calls.to_string()]);
        match self {
            Self::Gcra => {
                let sha = server.load(GCRA).ok()?;
                command.args(["EVALSHA", &sha, "1", "key:__rand_int__", PERIOD_US, BURST_US]);
            }
            Self::Incr => {
                command.args(["INCR", "counter:__rand_int__"]);
            }
        }
        let output = command.output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        // "the command","rps","latency",..
        text.lines().last()?.split("\",\"").nth(1)?.parse().ok()
    }
}

/// One call of the minimal script, over a connection that others use at the same time.
pub(super) async fn ask(
    mut connection: MultiplexedConnection,
    script: Rc<String>,
    key: String,
) -> bool {
    let mut command = redis::cmd("EVALSHA");
    command.arg(&*script).arg(1).arg(key).arg(PERIOD_US).arg(BURST_US);
    let answer: Result<(u64, u64), redis::RedisError> = command.query_async(&mut connection).await;
    answer.is_ok_and(|(is_allowed, _)| is_allowed == 1)
}
