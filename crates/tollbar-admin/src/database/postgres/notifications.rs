//! A connection that hears of changes the moment they are made. That it may miss some is no matter:
//! whoever follows looks by themselves now and then.

use std::future::poll_fn;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client};

use super::address::Address;
use super::{repository_error, with_timeout};
use crate::database::{RepositoryError, Result};

/// The notifications of changes, until it is dropped.
#[derive(Debug)]
pub(crate) struct ChangeNotifications {
    receiver: mpsc::Receiver<()>,
    /// The connection lasts as long as its client.
    _client: Client,
    task: JoinHandle<()>,
}

impl ChangeNotifications {
    pub(super) async fn begin(address: &Address) -> Result<Self> {
        let connect = async {
            let connected = address.config.connect(address.tls.clone()).await;
            let (client, mut connection) = connected.map_err(repository_error)?;
            // One is as good as many: all they say is to look.
            let (sender, receiver) = mpsc::channel(1);
            let task = tokio::spawn(async move {
                while let Some(Ok(message)) =
                    poll_fn(|context| connection.poll_message(context)).await
                {
                    if let AsyncMessage::Notification(_) = message {
                        let _ = sender.try_send(());
                    }
                }
            });
            client.batch_execute("LISTEN tollbar_revision").await.map_err(repository_error)?;
            Ok(Self { receiver, _client: client, task })
        };
        with_timeout(connect).await
    }

    /// Waits for the next change; an error where the connection is gone.
    pub(crate) async fn next(&mut self) -> Result<()> {
        let gone = || RepositoryError::unavailable("the connection that listens is gone");
        self.receiver.recv().await.ok_or_else(gone)
    }
}

impl Drop for ChangeNotifications {
    fn drop(&mut self) {
        self.task.abort();
    }
}
