//! Where the counters are, and how connections are made: within a time, and only to servers that the
//! scripts run on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ConnectionInfo, Value};
use tollbar::remote::{Connector, Exchange, Link, within};

use super::Connection;
use super::sentinel::Sentinels;
use super::tls::{self, Tls};
use crate::error::RedisStoreError;

/// The oldest Redis: the first whose `SET` and `TIME` do in scripts what is needed.
const VERSION_MIN: (u32, u32) = (6, 2);

/// To one server. While the answers of one are handed out, it works for the other: with one alone,
/// both sides wait for each other by turns.
const CONNECTIONS: usize = 2;

/// As many as are shared.
pub(crate) type Connections = Vec<Connection>;

/// A server, or the one of several that is the master.
#[derive(Clone)]
pub(crate) struct Node {
    endpoint: Endpoint,
    name: Arc<str>,
    connect_timeout: Duration,
}

#[derive(Clone)]
enum Endpoint {
    At(Box<ConnectionInfo>),
    /// Who is the master is asked at every connection.
    MasterOf(Sentinels),
}

impl Node {
    /// The server at an address. Its name is the address alone: what else is known of it is secret.
    pub(crate) fn at(info: ConnectionInfo, connect_timeout: Duration) -> Self {
        let name = info.addr().to_string().into();
        Self { endpoint: Endpoint::At(Box::new(info)), name, connect_timeout }
    }

    pub(crate) fn single(
        url: &str,
        tls: Option<&Tls>,
        connect_timeout: Duration,
    ) -> Result<Self, RedisStoreError> {
        Ok(Self::at(tls::connection_info(url, tls)?, connect_timeout))
    }

    /// The master that the sentinels at `urls` call `master`.
    pub(crate) fn sentinel(
        urls: &[String],
        master: &str,
        tls: Option<&Tls>,
        connect_timeout: Duration,
    ) -> Result<Self, RedisStoreError> {
        let sentinels = Sentinels::new(urls, master, tls)?;
        let name = format!("the master `{master}`").into();
        Ok(Self { endpoint: Endpoint::MasterOf(sentinels), name, connect_timeout })
    }

    async fn attempt(&self, info: &ConnectionInfo) -> Result<Connection, RedisStoreError> {
        let mut connection = Connection::to(info).await?;
        let info = connection.ask(redis::cmd("INFO").arg("server")).await?;
        let version = version_in(&info);
        if version_of(&version).is_none_or(|version| version < VERSION_MIN) {
            return Err(RedisStoreError::TooOld { node: self.name(), version });
        }
        Ok(connection)
    }
}

impl Connector for Node {
    type Connection = Connection;
    type Error = RedisStoreError;

    fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    async fn connect(&self) -> Result<Connections, RedisStoreError> {
        let attempts = async {
            let info = match &self.endpoint {
                Endpoint::At(info) => (**info).clone(),
                Endpoint::MasterOf(sentinels) => sentinels.master().await?,
            };
            let mut connections = Connections::with_capacity(CONNECTIONS);
            for _ in 0..CONNECTIONS {
                connections.push(self.attempt(&info).await?);
            }
            Ok(connections)
        };
        let connected = within(self.connect_timeout, attempts).await;
        connected.map_err(|error| match &self.endpoint {
            Endpoint::At(info) => tls::explain_timeout(error, info),
            Endpoint::MasterOf(sentinels) => sentinels.explain_timeout(error),
        })
    }
}

/// How a command is sent to a node of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendMode {
    Plain,
    /// After `ASKING`, about what the node is taking over at the moment.
    Asking,
}

/// Asks over `link`, in time.
///
/// Checks that are under way at the same time go out in one write and come back in one read: the
/// connection's driver takes what has come in meanwhile, and waits for nothing. An idle connection sends a
/// check at once. One whose deadline has passed before it was written is never sent.
pub(crate) async fn ask(
    link: &Link<Node>,
    exchange: &Exchange<'_>,
    command: &Cmd,
    mode: SendMode,
) -> Result<Value, RedisStoreError> {
    let ask = |mut connection: Connection| async move {
        Ok(match mode {
            SendMode::Plain => connection.ask(command).await,
            SendMode::Asking => connection.ask_with_asking(command).await,
        }?)
    };
    link.ask(exchange, ask).await
}

/// What the server calls its version.
fn version_in(info: &Value) -> String {
    let text: String = redis::from_redis_value_ref(info).unwrap_or_default();
    // Valkey says that it is compatible with a Redis that is new enough.
    let line = text.lines().find_map(|line| line.strip_prefix("redis_version:"));
    line.unwrap_or_default().trim().to_owned()
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
    fn a_version_is_found_in_what_a_server_says_of_itself() {
        let info = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let said = info("# Server\r\nredis_version:7.0.15\r\nredis_mode:cluster\r\n");
        assert_eq!(version_in(&said), "7.0.15");
        assert_eq!(version_in(&Value::Nil), "");
    }

    #[test]
    fn a_password_does_not_show() {
        let timeout = Duration::from_secs(1);
        let node = Node::single("redis://user:hunter2@127.0.0.1:7", None, timeout).unwrap();
        assert_eq!(format!("{node:?}"), "Node(127.0.0.1:7)");
    }
}
