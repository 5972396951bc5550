//! Connections, whatever they speak: accepted up to a bound, and seen to their end when the daemon
//! stops. What is said on one is its [`Protocol`]'s business, one file each.

pub(crate) mod http;
mod patience;
mod stream;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

pub(crate) use stream::{Connection, Peer, Socket, Stream, UnixSocket};

/// For connections to end by themselves when the daemon stops.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);
/// After an error of `accept`, such as too many open files, which repeats at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What is spoken on connections.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// Serves one connection to its end. When `stopped` says so, what has been asked is answered,
    /// and the connection ended.
    fn serve(
        self: Arc<Self>,
        connection: Connection,
        stopped: Stopped,
    ) -> impl Future<Output = ()> + Send;
}

/// Tells when the daemon stops.
#[derive(Debug, Clone)]
pub(crate) struct Stopped(watch::Receiver<()>);

impl Stopped {
    /// The daemon stops when the sender is dropped.
    pub(crate) fn new() -> (watch::Sender<()>, Self) {
        let (sender, receiver) = watch::channel(());
        (sender, Self(receiver))
    }

    /// Ends when the daemon stops. Can be dropped and asked again.
    pub(crate) async fn wait(&mut self) {
        // Nothing is ever sent: it ends with the sender.
        while self.0.changed().await.is_ok() {}
    }
}

/// Serves until the daemon stops, then until all connections have ended or their time is up.
pub(crate) async fn serve<P: Protocol>(
    socket: Socket,
    protocol: Arc<P>,
    connections_max: u32,
    mut stopped: Stopped,
) {
    let places = Arc::new(Semaphore::new(connections_max as usize));
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await.ok()?;
            Some((socket.accept().await, place))
        };
        let (accepted, place) = tokio::select! {
            () = stopped.wait() => break,
            Some(accepted) = accepted => accepted,
        };
        let Ok(connection) = accepted else {
            let _ = timeout(ACCEPT_PAUSE, std::future::pending::<()>()).await;
            continue;
        };
        let (protocol, stopped) = (Arc::clone(&protocol), stopped.clone());
        tokio::spawn(async move {
            protocol.serve(connection, stopped).await;
            drop(place);
        });
    }
    drop(socket);
    // Whoever has all places is alone.
    let _ = timeout(DRAIN_TIME_MAX, places.acquire_many(connections_max)).await;
}
