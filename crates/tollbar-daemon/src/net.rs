//! Connections, whatever they speak: accepted up to a bound, and seen to their end when the daemon
//! stops. What is said on one is its [`Protocol`]'s business, one file each.

mod bounds;
pub mod endpoint;
pub mod http1;
mod idle_timer;
mod listeners;
pub mod open_files;
pub mod phase_timer;
pub mod stream;
pub mod tls;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tollbar_gateway::read_proxy_header;
use tollbar_http::ClientIp;
use tracing::{debug, info, warn};

use crate::metrics;
use crate::shutdown::Stopped;
pub use bounds::Bounds;
pub use http1::Unread;
pub use listeners::Listeners;
use stream::{Accepted, Wire};
pub use stream::{Connection, Peer, Socket, Stream, UnixSocket};
use tls::TlsPort;

/// After an error of `accept`, such as too many open files, which repeats at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What is spoken on connections.
pub trait Protocol: Send + Sync + 'static {
    /// How TLS calls it, where clients ask; nothing where it has no name there.
    const ALPN: &'static [&'static [u8]] = &[];

    /// Who must say in a PROXY header, in front of all else, whose connections they pass on. `None`
    /// where the peer is the client, or says so in other words.
    fn balancers(&self) -> Option<&ClientIp> {
        None
    }

    /// Serves one connection to its end. When `stopped` says so, what has been asked is answered,
    /// and the connection ended.
    fn serve(
        self: Arc<Self>,
        connection: Connection,
        stopped: Stopped,
    ) -> impl Future<Output = ()> + Send;
}

/// A place to listen on, and what holds there.
#[derive(Debug)]
struct Port {
    /// Which flag it is from, for the log.
    flag: &'static str,
    socket: Socket,
    bounds: Bounds,
    tls: Option<TlsPort>,
    counters: Arc<metrics::Port>,
}

/// Serves until the daemon stops, then until all connections have ended or their time is up.
async fn serve<P: Protocol>(port: Port, protocol: Arc<P>, mut stopped: Stopped) {
    let Port { flag, socket, bounds, tls, counters } = port;
    let mut places = Places::new(flag, bounds.max_connections);
    let mut is_failing = false;
    loop {
        let accepted = async {
            let place = places.take().await?;
            Some((socket.accept().await, place))
        };
        let (accepted, place) = tokio::select! {
            () = stopped.wait() => break,
            Some(accepted) = accepted => accepted,
        };
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    warn!(listener = flag, %error, "cannot accept connections");
                }
                let _ = timeout(ACCEPT_PAUSE, std::future::pending::<()>()).await;
                continue;
            }
        };
        if std::mem::take(&mut is_failing) {
            info!(listener = flag, "accepting connections again");
        }
        let (protocol, tls, mut stopped) = (Arc::clone(&protocol), tls.clone(), stopped.clone());
        let open = counters.open();
        tokio::spawn(async move {
            // Held to the end, however that comes.
            let _place = (place, open);
            let peer = accepted.peer;
            let connection = tokio::select! {
                connection = opened(accepted, protocol.balancers(), tls, bounds) => connection,
                () = stopped.wait() => return,
            };
            match connection {
                Ok(connection) => protocol.serve(connection, stopped).await,
                Err(error) => {
                    debug!(listener = flag, %peer, %error, "no agreement on how to begin");
                }
            }
        });
    }
    drop(socket);
    let _ = timeout(bounds.drain_timeout.0, places.all_back()).await;
}

/// A connection that is ready to be spoken on.
async fn opened(
    Accepted { mut stream, mut peer }: Accepted,
    balancers: Option<&ClientIp>,
    tls: Option<TlsPort>,
    bounds: Bounds,
) -> io::Result<Connection> {
    if let Some(balancers) = balancers {
        let told = client_behind(&mut stream, peer, balancers);
        peer = match timeout(bounds.handshake_timeout.0, told).await {
            Ok(told) => told?,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        };
    }
    let stream = match tls {
        None => stream,
        Some(tls) => match timeout(bounds.handshake_timeout.0, stream.secured(&tls)).await {
            Ok(secured) => secured?,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        },
    };
    Ok(Connection { stream: Stream::new(stream, bounds.idle_timeout.0), peer, bounds })
}

/// Who the client is, by the word of a balancer. Nobody else is listened to.
async fn client_behind(stream: &mut Wire, peer: Peer, balancers: &ClientIp) -> io::Result<Peer> {
    let told = match (stream, peer) {
        (Wire::Tcp(stream), Peer::Tcp(address)) if balancers.trusts(Some(address.ip())) => {
            read_proxy_header(stream).await
        }
        // Who may use a path, its permissions say.
        (Wire::Unix(stream), Peer::Unix) => read_proxy_header(stream).await,
        _ => return Err(io::Error::other("the peer is none of --trusted-proxies")),
    };
    Ok(told.map_err(io::Error::other)?.map_or(peer, Peer::Tcp))
}

/// The places for connections, and whether there is something to be told about them.
struct Places {
    flag: &'static str,
    count: u32,
    free: Arc<Semaphore>,
    is_full: bool,
}

impl Places {
    fn new(flag: &'static str, count: u32) -> Self {
        let free = Arc::new(Semaphore::new(count as usize));
        Self { flag, count, free, is_full: false }
    }

    async fn take(&mut self) -> Option<OwnedSemaphorePermit> {
        let free = self.free.available_permits();
        if free == 0 && !std::mem::replace(&mut self.is_full, true) {
            let (listener, max_connections) = (self.flag, self.count);
            warn!(listener, max_connections, "all connections are taken; more wait to be accepted");
        } else if free > self.count as usize / 2 {
            // Told again only after it was half empty: at the bound they come and go.
            self.is_full = false;
        }
        Arc::clone(&self.free).acquire_owned().await.ok()
    }

    /// Whoever has all places is alone.
    async fn all_back(&self) {
        let _ = self.free.acquire_many(self.count).await;
    }
}
