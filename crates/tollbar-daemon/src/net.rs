//! Connections, whatever they speak: accepted up to a bound, and seen to their end when the daemon
//! stops. What is said on one is its [`Protocol`]'s business, one file each.

mod address_slots;
mod bounds;
pub mod endpoint;
pub mod http1;
mod idle_timer;
mod listeners;
pub mod open_files;
pub mod phase_timer;
mod progress;
pub mod stream;
pub mod tls;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{MissedTickBehavior, sleep, timeout};
use tollbar_gateway::read_proxy_header;
use tollbar_http::ClientIp;
use tracing::{debug, info, warn};

use crate::metrics::{self, ConnectionRefusal};
use crate::shutdown::ShutdownSignal;
use crate::tasks::{IDLE_TURN, Pulse, Task, spawn_connection};
pub use address_slots::AddressSlots;
use address_slots::{AddressSlot, TooManyConnections};
pub use bounds::Bounds;
pub use http1::BodyError;
pub use listeners::Listeners;
use progress::{ConnectionProgress, ProgressTable};
pub use stream::{Connection, Peer, Socket, Stream, UnixSocket};
use stream::{IncomingConnection, Transport};
use tls::ListenerTls;

/// After an error of `accept`, such as too many open files, which repeats at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a connection waits for another to end, until the slowest is looked for again.
const EVICTION_PAUSE: Duration = Duration::from_millis(100);

/// What is spoken on connections.
pub trait Protocol: Send + Sync + 'static {
    /// How TLS calls it, where clients ask; nothing where it has no name there.
    const ALPN: &'static [&'static [u8]] = &[];

    /// Whether a full listener closes the slowest connection that waits for its client.
    const EVICTS_SLOWEST: bool = false;

    /// Who must say in a PROXY header, in front of all else, whose connections they pass on. `None`
    /// where the peer is the client, or says so in other words.
    fn balancers(&self) -> Option<&ClientIp> {
        None
    }

    /// Bounds how many connections one address may hold. `None` where only their number in all is bounded.
    fn address_slots(&self) -> Option<&Arc<AddressSlots>> {
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
    /// Where the slowest connection is found, if the protocol wants it closed.
    progress: Option<Arc<ProgressTable>>,
    is_failing: bool,
}

impl<P: Protocol> Task for Listener<P> {
    /// Accepts connections until the daemon stops. Those that were accepted go on.
    async fn run(&mut self, pulse: &Pulse, mut stopped: ShutdownSignal) {
        let mut idle = tokio::time::interval(IDLE_TURN);
        idle.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                () = stopped.wait() => return,
                accepted = self.socket.accept() => accepted,
                _ = idle.tick() => {
                    if !self.is_failing {
                        pulse.succeed();
                    }
                    continue;
                }
            };
            match accepted {
                Ok(accepted) => {
                    // Behind a balancer the address of the client is in the PROXY header.
                    let is_client = self.protocol.balancers().is_none();
                    let slot = if is_client { self.take_slot(accepted.peer) } else { Ok(None) };
                    let Ok(slot) = slot else { continue };
                    let permit = tokio::select! {
                        () = stopped.wait() => return,
                        Some(permit) = self.wait_for_permit(pulse) => permit,
                    };
                    self.serve(accepted, (slot, permit), &stopped);
                }
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
    /// Waits until a connection may be served. It has been accepted, so that no other is asked to make room before
    /// somebody needs it.
    async fn wait_for_permit(&mut self, pulse: &Pulse) -> Option<OwnedSemaphorePermit> {
        loop {
            if self.connections.free.available_permits() == 0 {
                self.evict_slowest();
            }
            match timeout(EVICTION_PAUSE, self.connections.acquire()).await {
                Ok(permit) => return permit,
                Err(_) => pulse.succeed(),
            }
        }
    }

    fn evict_slowest(&self) {
        if self.progress.as_ref().is_some_and(|table| table.evict_slowest()) {
            let count = self.counters.refuse(ConnectionRefusal::Evicted);
            if count.is_power_of_two() {
                warn!(listener = self.flag, count, "closed the slowest connection for a new one");
            }
        }
    }

    fn take_slot(&self, peer: Peer) -> Result<Option<AddressSlot>, TooManyConnections> {
        take_slot(&*self.protocol, peer, self.flag, &self.counters)
    }

    fn serve(
        &mut self,
        accepted: IncomingConnection,
        permits: (Option<AddressSlot>, OwnedSemaphorePermit),
        stopped: &ShutdownSignal,
    ) {
        let flag = self.flag;
        if std::mem::take(&mut self.is_failing) {
            info!(listener = flag, "accepting connections again");
        }
        let (protocol, tls) = (Arc::clone(&self.protocol), self.tls.clone());
        let (mut stopped, bounds, open) = (stopped.clone(), self.bounds, self.counters.open());
        let counters = Arc::clone(&self.counters);
        let tracked = self.progress.as_ref().map(|table| table.track(counters.accepted()));
        spawn_connection(flag, async move {
            // Held to the end, however that comes.
            let _guards = (permits, open);
            // Leaves the table before its permit is free, so that it is not closed for two others.
            let tracked = tracked;
            let progress = tracked.as_ref().map(|tracked| &tracked.progress);
            let peer = accepted.peer;
            // Pinned here, because every place that it is moved to would keep room for it.
            let mut served = pin!(async {
                let balancers = protocol.balancers();
                let connection = tokio::select! {
                    opened = open_connection(accepted, balancers, tls, bounds, progress) => opened,
                    () = stopped.wait() => return,
                };
                match connection {
                    Ok(connection) => {
                        let client = balancers.map(|_| connection.peer);
                        let slot =
                            client.map(|client| take_slot(&*protocol, client, flag, &counters));
                        if !matches!(slot, Some(Err(_))) {
                            Arc::clone(&protocol).serve(connection, stopped).await;
                        }
                    }
                    Err(error) => {
                        debug!(listener = flag, %peer, %error, "no agreement on how to begin");
                    }
                }
            });
            match progress {
                None => served.await,
                Some(progress) => tokio::select! {
                    () = &mut served => {}
                    () = progress.wait_until_evicted() => {
                        debug!(listener = flag, %peer, "closed as the slowest connection");
                    }
                },
            }
        });
    }
}

/// Takes the slot of an address, or counts and logs that it has none left.
fn take_slot<P: Protocol>(
    protocol: &P,
    peer: Peer,
    listener: &'static str,
    counters: &metrics::ListenerConnections,
) -> Result<Option<AddressSlot>, TooManyConnections> {
    let Some(slots) = protocol.address_slots() else { return Ok(None) };
    slots.take(peer).inspect_err(|error| {
        let count = counters.refuse(ConnectionRefusal::Address);
        // A flood writes a few lines.
        if count.is_power_of_two() {
            warn!(listener, count, "closed a connection: {error}");
        }
    })
}

/// Reads the PROXY header and does the TLS handshake, where they are asked for.
async fn open_connection(
    IncomingConnection { mut stream, mut peer }: IncomingConnection,
    balancers: Option<&ClientIp>,
    tls: Option<ListenerTls>,
    bounds: Bounds,
    progress: Option<&Arc<ConnectionProgress>>,
) -> io::Result<Connection> {
    let mut names_client = true;
    if let Some(balancers) = balancers {
        let client = read_client_address(&mut stream, peer, balancers);
        let client = match timeout(bounds.handshake_timeout.0, client).await {
            Ok(client) => client?,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        };
        names_client = client.is_some();
        peer = client.map_or(peer, Peer::Tcp);
    }
    let stream = match tls {
        None => stream,
        Some(tls) => match timeout(bounds.handshake_timeout.0, stream.into_tls(&tls)).await {
            Ok(into_tls) => into_tls?,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        },
    };
    let activity = progress.map(|progress| Arc::clone(&progress.activity));
    let stream = Stream::new(stream, bounds.idle_timeout.0, progress.cloned());
    Ok(Connection { stream, peer, names_client, bounds, activity })
}

/// Reads the address of the client from the PROXY header of a trusted balancer; `None` if the header names none. A header
/// from any other peer is an error.
async fn read_client_address(
    stream: &mut Transport,
    peer: Peer,
    balancers: &ClientIp,
) -> io::Result<Option<SocketAddr>> {
    let client = match (stream, peer) {
        (Transport::Tcp(stream), Peer::Tcp(address)) if balancers.trusts(Some(address.ip())) => {
            read_proxy_header(stream).await
        }
        // Who may use a path, its permissions say.
        (Transport::Unix(stream), Peer::Unix) => read_proxy_header(stream).await,
        _ => return Err(io::Error::other("the peer is none of --trusted-proxies")),
    };
    client.map_err(io::Error::other)
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
