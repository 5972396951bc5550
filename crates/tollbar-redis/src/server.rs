//! The servers that hold the counters: connections, and which server a call goes to.

pub(crate) mod cluster;
pub(crate) mod findings;
pub(crate) mod info;
pub(crate) mod node;
pub(crate) mod route;
pub(crate) mod sentinel;
pub(crate) mod slot_map;
pub(crate) mod tls;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, RedisResult, Value};

/// A connection to one server that many checks share. Clones are the same connection.
#[derive(Clone)]
pub(crate) struct Connection(MultiplexedConnection);

impl Connection {
    pub(crate) async fn to(info: &ConnectionInfo) -> RedisResult<Self> {
        // Each check has a deadline of its own, and so has each attempt to connect.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let client = Client::open(info.clone())?;
        client.get_multiplexed_async_connection_with_config(&config).await.map(Self)
    }

    pub(crate) async fn ask(&mut self, command: &Cmd) -> RedisResult<Value> {
        command.query_async(&mut self.0).await
    }

    /// Asks a node of a cluster for what it is about to take over.
    pub(crate) async fn ask_with_asking(&mut self, command: &Cmd) -> RedisResult<Value> {
        let mut both = redis::pipe();
        both.cmd("ASKING").ignore().add_command(command.clone());
        let (answer,): (Value,) = both.query_async(&mut self.0).await?;
        Ok(answer)
    }
}
