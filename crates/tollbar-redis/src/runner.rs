//! Runs scripts on the server that has their keys.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tollbar::Clock;
use tollbar::remote::Exchange;

use crate::error::RedisStoreError;
use crate::script::blob::Blob;
use crate::script::call::ScriptCall;
use crate::script::{Script, Scripts};
use crate::server::route::Route;

/// Decides in place of the server's clock, in tests.
#[derive(Clone)]
pub(crate) struct TestClock {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) grace: Duration,
}

impl TestClock {
    pub(crate) fn now_us(&self) -> u64 {
        self.clock.now().clamp_to_clock().as_micros()
    }
}

/// What it takes to run a script.
#[derive(Clone, Copy)]
pub(crate) struct ScriptRunner<'s> {
    pub(crate) route: &'s Route,
    pub(crate) scripts: &'s Scripts,
    pub(crate) test_clock: Option<&'s TestClock>,
    /// False for calls that no check waits for: they are not in the statistics.
    pub(crate) is_counted: bool,
}

impl ScriptRunner<'_> {
    /// Runs a script in an exchange that has a deadline already.
    pub(crate) async fn run(
        self,
        exchange: &Exchange<'_>,
        call: &ScriptCall,
    ) -> Result<Vec<u8>, RedisStoreError> {
        let Script { sha, text } = self.scripts.get(call.task, call.kinds);
        let key = call.keys.first().map_or(&[][..], |key| key);
        let by_name = self.command("EVALSHA", sha, call);
        let answer = match self.ask(exchange, key, &by_name).await {
            // A server that has not seen it, or has forgotten it: this runs it and keeps it.
            Err(error) if error.is_unknown_script() => {
                let by_text = self.command("EVAL", text, call);
                self.ask(exchange, key, &by_text).await
            }
            answer => answer,
        };
        match answer? {
            Value::BulkString(bytes) => Ok(bytes),
            _ => Err(RedisStoreError::Garbled),
        }
    }

    async fn ask(
        self,
        exchange: &Exchange<'_>,
        key: &[u8],
        command: &Cmd,
    ) -> Result<Value, RedisStoreError> {
        if self.is_counted {
            self.route.ask(exchange, key, command).await
        } else {
            self.route.send(exchange, key, command).await
        }
    }

    fn command(self, name: &str, script: &str, call: &ScriptCall) -> Cmd {
        // All at once, rather than piece by piece: it is the longest thing here.
        let len = call.keys.iter().map(Vec::len).sum::<usize>() + call.blob.len();
        let mut command =
            Cmd::with_capacity(call.keys.len() + 5, name.len() + script.len() + len + 32);
        command.arg(name).arg(script).arg(call.keys.len());
        for key in &call.keys {
            command.arg(key);
        }
        command.arg(&call.blob);
        if let Some(test) = self.test_clock {
            let mut clock = Blob::default();
            clock.numbers([test.now_us(), test.grace.as_millis() as u64]);
            command.arg(clock.into_bytes());
        }
        command
    }
}
