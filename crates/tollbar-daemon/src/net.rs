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
use tokio::time::{MissedTickBehavior, sleep, timeout};
use tollbar_gateway::read_proxy_header;
use tollbar_http::ClientIp;
use tracing::{debug, info, warn};

use crate::metrics;
use crate::shutdown::ShutdownSignal;
use crate::tasks::{IDLE_TURN, Pulse, Task, spawn_connection};
pub use bounds::Bounds;
pub use http1::BodyError;
pub use listeners::Listeners;
pub use stream::{Connection, Peer, Socket, Stream, UnixSocket};
use stream::{IncomingConnection, Transport};
use tls::ListenerTls;

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
        stopped: ShutdownSignal,
    ) -> impl Future<Output = ()> + Send;
}

/// An open port and its bounds, TLS and counters. As a task it accepts connections.
#[derive(Debug)]
struct Listener<P> {
    /// Which flag it is from, for the log.
    flag: &'static str,
    socket: Socket,
    protocol: Arc<P>,
    bounds: Bounds,
    tls: Option<ListenerTls>,
    counters: Arc<metrics::ListenerConnections>,
    connections: ConnectionLimit,
    is_failing: bool,
}

impl<P: Protocol> Task for Listener<P> {
    /// Accepts connections until the daemon stops. Those that were accepted go on.
    async fn run(&mut self, pulse: &Pulse, mut stopped: ShutdownSignal) {
        let mut idle = tokio::time::interval(IDLE_TURN);
        idle.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = async {
                let permit = self.connections.acquire().await?;
                Some((self.socket.accept().await, permit))
            };
            let (accepted, permit) = tokio::select! {
                () = stopped.wait() => return,
                Some(accepted) = accepted => accepted,
                _ = idle.tick() => {
                    if !self.is_failing {
                        pulse.succeed();
                    }
                    continue;
                }
            };
            match accepted {
                Ok(accepted) => self.serve(accepted, permit, &stopped),
                Err(error) => {
                    pulse.fail(error.to_string());
                    if !std::mem::replace(&mut self.is_failing, true) {
                        warn!(listener = self.flag, %error, "cannot accept connections");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl<P: Protocol> Listener<P> {
    fn serve(
        &mut self,
        accepted: IncomingConnection,
        permit: OwnedSemaphorePermit,
        stopped: &ShutdownSignal,
    ) {
        let flag = self.flag;
        if std::mem::take(&mut self.is_failing) {
            info!(listener = flag, "accepting connections again");
        }
        let (protocol, tls) = (Arc::clone(&self.protocol), self.tls.clone());
        let (mut stopped, bounds, open) = (stopped.clone(), self.bounds, self.counters.open());
        spawn_connection(flag, async move {
            // Held to the end, however that comes.
            let _guards = (permit, open);
            let peer = accepted.peer;
            let connection = tokio::select! {
                connection = open_connection(accepted, protocol.balancers(), tls, bounds) => connection,
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
}

/// Reads the PROXY header and does the TLS handshake, where they are asked for.
async fn open_connection(
    IncomingConnection { mut stream, mut peer }: IncomingConnection,
    balancers: Option<&ClientIp>,
    tls: Option<ListenerTls>,
    bounds: Bounds,
) -> io::Result<Connection> {
    if let Some(balancers) = balancers {
        let client = read_client_address(&mut stream, peer, balancers);
        peer = match timeout(bounds.handshake_timeout.0, client).await {
            Ok(client) => client?,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        };
    }
    let stream = match tls {
        None => stream,
        Some(tls) => match timeout(bounds.handshake_timeout.0, stream.into_tls(&tls)).await {
            Ok(into_tls) => into_tls?,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        },
    };
    Ok(Connection { stream: Stream::new(stream, bounds.idle_timeout.0), peer, bounds })
}

/// Reads the address of the client from the PROXY header of a trusted balancer. A header from any other peer is an error.
async fn read_client_address(
    stream: &mut Transport,
    peer: Peer,
    balancers: &ClientIp,
) -> io::Result<Peer> {
    let client = match (stream, peer) {
        (Transport::Tcp(stream), Peer::Tcp(address)) if balancers.trusts(Some(address.ip())) => {
            read_proxy_header(stream).await
        }
        // Who may use a path, its permissions say.
        (Transport::Unix(stream), Peer::Unix) => read_proxy_header(stream).await,
        _ => return Err(io::Error::other("the peer is none of --trusted-proxies")),
    };
    Ok(client.map_err(io::Error::other)?.map_or(peer, Peer::Tcp))
}

/// Bounds the connections of a listener, and warns when they are all in use.
#[derive(Debug)]
struct ConnectionLimit {
    flag: &'static str,
    count: u32,
    free: Arc<Semaphore>,
    is_full: bool,
}

impl ConnectionLimit {
    fn new(flag: &'static str, count: u32) -> Self {
        let free = Arc::new(Semaphore::new(count as usize));
        Self { flag, count, free, is_full: false }
    }

    async fn acquire(&mut self) -> Option<OwnedSemaphorePermit> {
        let free = self.free.available_permits();
        if free == 0 && !std::mem::replace(&mut self.is_full, true) {
            let (listener, max_connections) = (self.flag, self.count);
            warn!(listener, max_connections, "all connections are taken; more wait to be accepted");
        } else if free > self.count as usize / 2 {
            // Warned of again only after half of them are free: at the bound they come and go.
            self.is_full = false;
        }
        Arc::clone(&self.free).acquire_owned().await.ok()
    }
}
