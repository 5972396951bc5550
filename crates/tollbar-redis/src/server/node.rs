//! Where the counters are, and how connections are made: within a time, and only to servers that the
//! scripts run on and that take writes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ConnectionInfo, Value};
use tollbar::remote::{BreakerState, Connector, Exchange, Link, within};

use super::Connection;
use super::findings::{Findings, NodeReport};
use super::info::ServerInfo;
use super::sentinel::Sentinels;
use super::tls::{self, Tls};
use crate::error::RedisStoreError;

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
    pub(crate) findings: Arc<Findings>,
}

#[derive(Clone)]
enum Endpoint {
    At(Box<ConnectionInfo>),
    /// Who is the master is asked at every connection.
    MasterOf(Sentinels),
}

impl Node {
    /// The server at an address. Its name is the address alone: what else is known of it is secret.
    pub(crate) fn at(info: ConnectionInfo, connect_timeout: Duration, findings: Findings) -> Self {
        let name = info.addr().to_string().into();
        let findings = Arc::new(findings);
        Self { endpoint: Endpoint::At(Box::new(info)), name, connect_timeout, findings }
    }

    pub(crate) fn single(
        url: &str,
        tls: Option<&Tls>,
        connect_timeout: Duration,
        findings: Findings,
    ) -> Result<Self, RedisStoreError> {
        Ok(Self::at(tls::connection_info(url, tls)?, connect_timeout, findings))
    }

    /// The master that the sentinels at `urls` call `master`.
    pub(crate) fn sentinel(
        urls: &[String],
        master: &str,
        tls: Option<&Tls>,
        connect_timeout: Duration,
        findings: Findings,
    ) -> Result<Self, RedisStoreError> {
        let sentinels = Sentinels::new(urls, master, tls)?;
        let name = format!("the master `{master}`").into();
        let findings = Arc::new(findings);
        Ok(Self { endpoint: Endpoint::MasterOf(sentinels), name, connect_timeout, findings })
    }

    /// The user that connects.
    pub(crate) fn user(&self) -> &str {
        let info = match &self.endpoint {
            Endpoint::At(info) => info,
            Endpoint::MasterOf(sentinels) => sentinels.first(),
        };
        info.redis_settings().username().unwrap_or("default")
    }

    /// True where sentinels name the server.
    pub(crate) fn has_sentinels(&self) -> bool {
        matches!(self.endpoint, Endpoint::MasterOf(_))
    }

    async fn attempt(&self, info: &ConnectionInfo) -> Result<Connection, RedisStoreError> {
        let mut connection = Connection::to(info).await?;
        let info = ServerInfo::parse(&connection.ask(&redis::cmd("INFO")).await?);
        // A connection to a server that answers no check would be given up and made again all the time.
        if info.is_too_old() {
            return Err(RedisStoreError::TooOld { node: self.name(), version: info.version });
        } else if info.is_loading {
            return Err(RedisStoreError::Loading { node: self.name() });
        } else if info.is_read_only {
            return Err(RedisStoreError::Replica { node: self.name() });
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
        if let Err(error) = &connected {
            self.findings.record_connect(error);
        }
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
    let answer = link.ask(exchange, ask).await;
    if let Err(error) = &answer {
        link.server().findings.record(error);
    }
    answer
}

/// What is known of the server that `link` leads to.
pub(crate) fn report(link: &Link<Node>) -> NodeReport {
    let health = link.health();
    let down = (health.breaker != BreakerState::Closed)
        .then(|| health.last_error.unwrap_or_else(|| "connecting".into()));
    link.server().findings.report(link.name(), down)
}

/// Asks the server of itself, in time, and notes what it says.
pub(crate) async fn ask_info(
    link: &Link<Node>,
    exchange: &Exchange<'_>,
) -> Result<(), RedisStoreError> {
    let answer = ask(link, exchange, &redis::cmd("INFO"), SendMode::Plain).await?;
    link.server().findings.record_info(&ServerInfo::parse(&answer));
    Ok(())
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
    fn a_password_does_not_show() {
        let timeout = Duration::from_secs(1);
        let (url, findings) = ("redis://user:hunter2@127.0.0.1:7", Findings::new(Arc::default()));
        let node = Node::single(url, None, timeout, findings).unwrap();
        assert_eq!(format!("{node:?}"), "Node(127.0.0.1:7)");
        assert_eq!(node.user(), "user");
    }
}
