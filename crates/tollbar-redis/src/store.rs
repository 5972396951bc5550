//! The store: turns questions into script calls, and what they answer into decisions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tollbar::store::{Adjustment, ReservationId, Spending};
use tollbar::{Batch, Clock, Decision, Policy, Reply, Store, StoreError};

use crate::answer;
use crate::blob::Blob;
use crate::builder::RedisStoreBuilder;
use crate::error::RedisStoreError;
use crate::keys::{Names, Subjects};
use crate::link::{Exchange, Health, Link};
use crate::question::Question;
use crate::script::{Script, Scripts};

/// The most entries of one batch, and the most adjustments of one settlement.
const ENTRIES_MAX: usize = 1_024;

/// Counters in Redis or Valkey, shared by all processes that have the same server, the same secret
/// and the same namespace.
pub struct RedisStore {
    pub(crate) link: Link,
    pub(crate) scripts: Scripts,
    pub(crate) names: Names,
    pub(crate) test_clock: Option<TestClock>,
}

/// Decides in place of the server's clock, in tests.
pub(crate) struct TestClock {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) grace: Duration,
}

impl RedisStore {
    /// A store at `url`: `redis://[user:password@]host[:port][/database]`, or `unix:///path`.
    #[must_use]
    pub fn builder(url: &str, subjects: Subjects) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url, subjects)
    }

    /// How the connection is doing.
    #[must_use]
    pub fn health(&self) -> Health {
        self.link.health()
    }

    /// Asks, within one deadline.
    async fn ask(&self, question: &Question) -> Result<Vec<u8>, RedisStoreError> {
        let Script { sha, text } = self.scripts.get(question.task, question.kinds);
        let exchange = |mut exchange: Exchange| async move {
            let answer = match exchange.ask(&self.command("EVALSHA", sha, question)).await {
                // A server that has not seen it, or has forgotten it: this runs it and keeps it.
                Err(error) if is_unknown_script(&error) => {
                    exchange.ask(&self.command("EVAL", text, question)).await
                }
                answer => answer,
            };
            Ok(answer?)
        };
        match self.link.exchange(exchange).await? {
            Value::BulkString(bytes) => Ok(bytes),
            _ => Err(RedisStoreError::Garbled),
        }
    }

    fn command(&self, name: &str, script: &str, question: &Question) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(question.keys.len());
        for key in &question.keys {
            command.arg(key);
        }
        command.arg(&question.blob);
        if let Some(test) = &self.test_clock {
            let mut clock = Blob::default();
            let now = test.clock.now().clamp_to_clock();
            clock.numbers([now.as_micros(), test.grace.as_millis() as u64]);
            command.arg(clock.into_bytes());
        }
        command
    }
}

impl Store for RedisStore {
    fn check<'a>(&'a self, key: &'a [u8], policy: &'a Policy, cost: u64) -> Reply<'a, Decision> {
        Reply::Pending(Box::pin(async move {
            let bytes = self.ask(&Question::one(&self.names, key, policy, cost)?).await?;
            Ok(answer::one(&bytes, policy)?)
        }))
    }

    fn check_all<'a, 'e: 'a>(&'a self, mut batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        if batch.entries().is_empty() {
            return Reply::Ready(Ok(()));
        }
        if let Err(error) = fits(batch.entries().len()) {
            return Reply::Ready(Err(error));
        }
        Reply::Pending(Box::pin(async move {
            let bytes = self.ask(&Question::many(&self.names, &batch)?).await?;
            answer::many(&bytes, batch.entries_mut())
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
            let bytes = self.ask(&Question::settle(&self.names, None, &refund)?).await?;
            answer::settled(&bytes, &mut refund)?;
            Ok(refund[0].adjusted())
        }))
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
            let question = Question::settle(&self.names, Some(id), adjustments)?;
            let bytes = self.ask(&question).await?;
            Ok(answer::settled(&bytes, adjustments)?)
        }))
    }

    fn reset<'a>(&'a self, key: &'a [u8], policy: &'a Policy) -> Reply<'a, ()> {
        Reply::Pending(Box::pin(async move {
            let mut command = redis::cmd("DEL");
            command.arg(self.names.counter(key, policy));
            let exchange =
                |mut exchange: Exchange| async move { Ok(exchange.ask(&command).await?) };
            self.link.exchange(exchange).await?;
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

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RedisStore")
            .field("link", &self.link)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}
