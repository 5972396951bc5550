//! Sentinels: who know which of several servers is the master.
//!
//! All are asked at once, and the first one counts whose master is one: a sentinel that is gone, or has
//! missed a failover, holds nobody up.

use std::sync::Arc;

use futures_util::future::select_ok;
use redis::{ConnectionInfo, Value};

use super::Connection;
use super::tls::{self, Tls};
use crate::error::RedisStoreError;

/// Sentinels, and the master they are asked for.
#[derive(Clone)]
pub(crate) struct Sentinels {
    infos: Vec<ConnectionInfo>,
    master: Arc<str>,
}

impl Sentinels {
    /// The master is reached as they are: with TLS or without, as the same user, with the database of
    /// their URLs.
    pub(crate) fn new(
        urls: &[String],
        master: &str,
        tls: Option<&Tls>,
    ) -> Result<Self, RedisStoreError> {
        let infos: Vec<ConnectionInfo> =
            urls.iter().map(|url| tls::connection_info(url, tls)).collect::<Result<_, _>>()?;
        if infos.is_empty() {
            return Err(RedisStoreError::NoAddress);
        }
        Ok(Self { infos, master: master.into() })
    }

    /// Where the master is now.
    pub(crate) async fn master(&self) -> Result<ConnectionInfo, RedisStoreError> {
        let asked = self.infos.iter().map(|sentinel| Box::pin(self.master_by(sentinel)));
        let (master, _others) = select_ok(asked).await?;
        Ok(master)
    }

    async fn master_by(
        &self,
        sentinel: &ConnectionInfo,
    ) -> Result<ConnectionInfo, RedisStoreError> {
        // A sentinel has no databases.
        let settings = sentinel.redis_settings().clone().set_db(0);
        let mut connection = Connection::to(&sentinel.clone().set_redis_settings(settings)).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.master);
        let address: Option<(String, u16)> =
            redis::from_redis_value(connection.ask(&command).await?)
                .map_err(|_| RedisStoreError::Garbled)?;
        let (host, port) = address.ok_or_else(|| self.unknown())?;
        let master = tls::with_address(sentinel, host, port);
        if is_master(&Connection::to(&master).await?.ask(&redis::cmd("ROLE")).await?) {
            return Ok(master);
        }
        Err(RedisStoreError::NoMaster { master: self.master.clone() })
    }

    /// The address of the first.
    pub(crate) fn first(&self) -> &ConnectionInfo {
        &self.infos[0]
    }

    /// Why there is no connection to any.
    pub(crate) fn explain_timeout(&self, error: RedisStoreError) -> RedisStoreError {
        tls::explain_timeout(error, &self.infos[0])
    }

    fn unknown(&self) -> RedisStoreError {
        RedisStoreError::UnknownMaster { master: self.master.clone() }
    }
}

/// What a server answers that is asked for its role.
fn is_master(role: &Value) -> bool {
    let Value::Array(parts) = role else {
        return false;
    };
    parts.first().is_some_and(|role| *role == Value::BulkString(b"master".to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_its_first_word() {
        let role = |word: &str| Value::Array(vec![Value::BulkString(word.into()), Value::Int(7)]);
        assert!(is_master(&role("master")));
        assert!(!is_master(&role("slave")));
        assert!(!is_master(&Value::Nil));
    }
}
