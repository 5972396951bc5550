//! A connection that hears of changes the moment they are made. That it may miss some is no matter:
//! the follower looks by itself now and then.

use std::fmt;
use std::pin::pin;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tokio_postgres::{AsyncMessage, Client, Error};

use super::address::Address;
use super::{repository_error, with_timeout};
use crate::database::{RepositoryError, Result};

/// The notifications of changes, until it is dropped.
pub(crate) struct ChangeNotifications {
    /// The connection, which goes on while the next message is waited for.
    messages: BoxStream<'static, std::result::Result<AsyncMessage, Error>>,
    /// The connection lasts as long as its client.
    _client: Client,
}

impl ChangeNotifications {
    pub(super) async fn begin(address: &Address) -> Result<Self> {
        let connect = async {
            let connected = address.config.connect(address.tls.clone()).await;
            let (client, mut connection) = connected.map_err(repository_error)?;
            let mut messages =
                stream::poll_fn(move |context| connection.poll_message(context)).boxed();
            {
                let mut listen = pin!(client.batch_execute("LISTEN tollbar_revision"));
                loop {
                    tokio::select! {
                        listening = &mut listen => break listening.map_err(repository_error)?,
                        message = messages.next() => drop(check(message)?),
                    }
                }
            }
            Ok((messages, client))
        };
        let (messages, client) = with_timeout(connect).await?;
        Ok(Self { messages, _client: client })
    }

    /// Waits for the next change; an error where the connection is gone. May be dropped and called again.
    pub(crate) async fn next(&mut self) -> Result<()> {
        loop {
            if let AsyncMessage::Notification(_) = check(self.messages.next().await)? {
                return Ok(());
            }
        }
    }
}

/// Returns a message, or why there will be none.
fn check(message: Option<std::result::Result<AsyncMessage, Error>>) -> Result<AsyncMessage> {
    let gone = || RepositoryError::unavailable("the connection that listens is gone");
    message.ok_or_else(gone)?.map_err(repository_error)
}

impl fmt::Debug for ChangeNotifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeNotifications").finish_non_exhaustive()
    }
}
