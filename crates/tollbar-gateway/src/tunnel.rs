//! A connection that no longer speaks HTTP: bytes both ways, until both ends have closed.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::sync::OwnedSemaphorePermit;
use tollbar_http::TollbarBody;
use tracing::debug;

use crate::upstream::body::UpstreamBody;
use crate::upstream::connection::Http1Connection;

/// What is read at once, in each direction.
const BUFFER_BYTES: usize = 16 * 1024;

/// Both ends, and what is held until they are closed.
pub(crate) struct Tunnel {
    pub(crate) client: OnUpgrade,
    pub(crate) connection: Box<Http1Connection>,
    pub(crate) place: OwnedSemaphorePermit,
    /// What the request holds: a permit of a rule, for example.
    pub(crate) held: Option<TollbarBody<UpstreamBody>>,
}

impl Tunnel {
    /// Copies until both ends have closed, or one breaks. Silence is bounded by the client's stream.
    pub(crate) async fn run(self) {
        let Self { client, connection, place, held } = self;
        if let Err(error) = copy(client, connection).await {
            debug!(%error, "a tunnel broke");
        }
        drop((place, held));
    }
}

async fn copy(client: OnUpgrade, connection: Box<Http1Connection>) -> std::io::Result<()> {
    let mut client = TokioIo::new(client.await.map_err(std::io::Error::other)?);
    let Some((mut upstream, read_ahead)) = connection.upgraded().await else {
        return Ok(());
    };
    client.write_all(&read_ahead).await?;
    let bytes = BUFFER_BYTES;
    copy_bidirectional_with_sizes(&mut client, &mut upstream, bytes, bytes).await?;
    Ok(())
}
