//! Where the counters are, and how a connection is made: within a time, and only to servers that the
//! scripts run on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::sentinel::{Sentinel, SentinelNodeConnectionInfo};
use redis::{Client, ConnectionInfo, IntoConnectionInfo, RedisResult, Value};

use crate::connection::Connection;
use crate::error::RedisStoreError;
use crate::link::Connections;

/// The oldest Redis: the first whose `SET` and `TIME` do in scripts what is needed.
const VERSION_MIN: (u32, u32) = (6, 2);

/// To one server. While the answers of one are handed out, it works for the other: with one alone,
/// both sides wait for each other by turns.
const CONNECTIONS: usize = 2;

/// A server, a set of servers with one master, or a cluster.
#[derive(Clone)]
pub(crate) struct Node {
    topology: Topology,
    name: Arc<str>,
    connect_timeout: Duration,
}

#[derive(Clone)]
enum Topology {
    Single(Client),
    /// Who is the master is asked at every connection.
    Sentinel {
        sentinels: Vec<ConnectionInfo>,
        master: String,
    },
    Cluster(Box<ClusterClient>),
}

impl Node {
    pub(crate) fn single(url: &str, connect_timeout: Duration) -> RedisResult<Self> {
        let client = Client::open(url)?;
        // The address alone: what else is in a URL is a secret.
        let name = client.get_connection_info().addr().to_string().into();
        Ok(Self { topology: Topology::Single(client), name, connect_timeout })
    }

    /// The sentinels watch over `master`, which is reached with the user, the password and the
    /// database of the first one's URL.
    pub(crate) fn sentinel(
        urls: &[String],
        master: &str,
        connect_timeout: Duration,
    ) -> RedisResult<Self> {
        let sentinels: Vec<ConnectionInfo> =
            urls.iter().map(|url| url.as_str().into_connection_info()).collect::<Result<_, _>>()?;
        let name = format!("the master `{master}`").into();
        let topology = Topology::Sentinel { sentinels, master: master.to_owned() };
        Ok(Self { topology, name, connect_timeout })
    }

    pub(crate) fn cluster(
        urls: &[String],
        connect_timeout: Duration,
        deadline: Duration,
    ) -> RedisResult<Self> {
        let client = ClusterClientBuilder::new(urls.iter().map(String::as_str))
            .connection_timeout(connect_timeout)
            // Of one node; the check's own deadline is kept by the link.
            .response_timeout(deadline.max(connect_timeout))
            .overall_response_timeout(None)
            .build()?;
        let name = format!("the cluster of {} nodes", urls.len()).into();
        Ok(Self { topology: Topology::Cluster(Box::new(client)), name, connect_timeout })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    pub(crate) fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    /// Connections that have answered.
    pub(crate) async fn connect(&self) -> Result<Connections, RedisStoreError> {
        // A cluster's has some for each node already.
        let count = if self.is_cluster() { 1 } else { CONNECTIONS };
        let attempts = async {
            let mut connections = Connections::with_capacity(count);
            for _ in 0..count {
                connections.push(self.attempt().await?);
            }
            Ok(connections)
        };
        let attempt = tokio::time::timeout(self.connect_timeout, attempts);
        let deadline = self.connect_timeout;
        attempt.await.unwrap_or(Err(RedisStoreError::DeadlineMissed { deadline }))
    }

    async fn attempt(&self) -> Result<Connection, RedisStoreError> {
        let mut connection = match &self.topology {
            Topology::Single(client) => Connection::to(client).await?,
            Topology::Sentinel { sentinels, master } => {
                let settings = sentinels.first().map(|first| {
                    SentinelNodeConnectionInfo::default()
                        .set_redis_connection_info(first.redis_settings().clone())
                });
                let mut sentinel = Sentinel::build(sentinels.clone())?;
                let client = sentinel.async_master_for(master, settings.as_ref()).await?;
                Connection::to(&client).await?
            }
            Topology::Cluster(client) => Connection::Cluster(client.get_async_connection().await?),
        };
        let info = connection.ask(redis::cmd("INFO").arg("server")).await?;
        for version in versions(&info) {
            if version_of(&version).is_none_or(|version| version < VERSION_MIN) {
                return Err(RedisStoreError::TooOld { node: self.name(), version });
            }
        }
        Ok(connection)
    }
}

/// What the servers call their versions: a cluster has several.
fn versions(info: &Value) -> Vec<String> {
    match info {
        Value::Map(nodes) => nodes.iter().flat_map(|(_, info)| versions(info)).collect(),
        Value::Array(nodes) => nodes.iter().flat_map(versions).collect(),
        other => {
            let text: String = redis::from_redis_value_ref(other).unwrap_or_default();
            // Valkey says that it is compatible with a Redis that is new enough.
            let line = text.lines().find_map(|line| line.strip_prefix("redis_version:"));
            vec![line.unwrap_or_default().trim().to_owned()]
        }
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
    fn versions_are_found_in_the_answers_of_one_node_and_of_many() {
        let info = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let one = info("# Server\r\nredis_version:7.0.15\r\nredis_mode:cluster\r\n");
        assert_eq!(versions(&one), ["7.0.15"]);
        let name = || info("127.0.0.1:1");
        let many = Value::Map(vec![(name(), one), (name(), info("redis_version:6.0.1\r\n"))]);
        assert_eq!(versions(&many), ["7.0.15", "6.0.1"]);
        assert_eq!(versions(&Value::Nil), [""]);
    }

    #[test]
    fn a_password_does_not_show() {
        let node =
            Node::single("redis://user:hunter2@127.0.0.1:7", Duration::from_secs(1)).unwrap();
        assert_eq!(format!("{node:?}"), "Node(127.0.0.1:7)");
    }
}
