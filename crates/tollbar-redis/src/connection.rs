//! A connection that many checks share, to one server or to a cluster.

use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisResult, Value};

/// Cheap to clone: all clones are the same connection.
#[derive(Clone)]
pub(crate) enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    /// To one server.
    pub(crate) async fn to(client: &Client) -> RedisResult<Self> {
        // Each check has a deadline of its own, and so has each attempt to connect.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        client.get_multiplexed_async_connection_with_config(&config).await.map(Self::Single)
    }

    pub(crate) async fn ask(&mut self, question: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Single(connection) => question.query_async(connection).await,
            Self::Cluster(connection) => question.query_async(connection).await,
        }
    }
}
