//! A server, and how a connection to it is made: within a time, and only if it is one that the
//! scripts run on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, InfoDict, IntoConnectionInfo, RedisResult};

use crate::error::RedisStoreError;

/// The oldest Redis: the first whose `SET` and `TIME` do in scripts what is needed.
const VERSION_MIN: (u32, u32) = (6, 2);

/// One server.
#[derive(Clone)]
pub(crate) struct Node {
    client: Client,
    name: Arc<str>,
    connect_timeout: Duration,
}

impl Node {
    pub(crate) fn new(
        address: impl IntoConnectionInfo,
        connect_timeout: Duration,
    ) -> RedisResult<Self> {
        let client = Client::open(address)?;
        // The address alone: what else is in a URL is a secret.
        let name = client.get_connection_info().addr().to_string().into();
        Ok(Self { client, name, connect_timeout })
    }

    pub(crate) fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    /// A connection that has answered.
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, RedisStoreError> {
        let attempt = tokio::time::timeout(self.connect_timeout, self.attempt());
        let deadline = self.connect_timeout;
        attempt.await.unwrap_or(Err(RedisStoreError::DeadlineMissed { deadline }))
    }

    async fn attempt(&self) -> Result<MultiplexedConnection, RedisStoreError> {
        // Each check has a deadline of its own, and each attempt to connect has ours.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let mut connection =
            self.client.get_multiplexed_async_connection_with_config(&config).await?;
        let info: InfoDict = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
        // Valkey says that it is compatible with a Redis that is new enough.
        let version: String = info.get("redis_version").unwrap_or_default();
        if version_of(&version).is_none_or(|version| version < VERSION_MIN) {
            return Err(RedisStoreError::TooOld { node: self.name(), version });
        }
        Ok(connection)
    }
}

fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

impl fmt::Debug for Node {
    /// Without its URL, which may hold a password.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Node({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(version_of("6.2.0").unwrap() >= VERSION_MIN);
        assert!(version_of("10.0.1").unwrap() >= VERSION_MIN);
        assert!(version_of("6.0.16").unwrap() < VERSION_MIN);
        assert_eq!(version_of("unknown"), None);
    }

    #[test]
    fn a_password_does_not_show() {
        let node = Node::new("redis://user:hunter2@127.0.0.1:7", Duration::from_secs(1)).unwrap();
        assert_eq!(format!("{node:?}"), "Node(127.0.0.1:7)");
    }
}
