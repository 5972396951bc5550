//! gRPC: HTTP/2 with a bound and a time for everything, on the accept loop that all listeners share.
//! Which services answer is a list; what they answer is in a file each.

mod admission;
mod check_many;
mod limiter;
mod preface;
mod request;
mod response;
mod services;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::timeout;

use super::envoy::{self, Envoy};
use super::forward_auth::{EXT_AUTHZ_METHOD, ExtAuthz};
use crate::daemon::Daemon;
use crate::net::{Connection, Protocol};
use crate::shutdown::ShutdownSignal;
use crate::tasks::ConnectionExecutor;
use admission::AdmissionService;
pub(crate) use admission::Caller;
use limiter::Limiter;
pub(crate) use services::Services;
use tollbar_proto::v1;

/// A connection on which nothing comes is asked whether somebody is there, and ended if nobody is.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIME_MAX: Duration = Duration::from_secs(20);
/// For calls to end after the daemon was told to stop.
const CALLS_TIME_MAX: Duration = Duration::from_secs(6);

/// Calls of one connection at once; more wait.
const CALLS_MAX: u32 = 256;
/// The metadata of one call.
const METADATA_BYTES_MAX: u32 = 16 * 1024;
/// What a client may send before it is read: of one call, and of all calls of a connection.
const CALL_WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// What one call may have ready to be sent.
const SEND_BYTES_MAX: usize = 128 * 1024;
/// The largest message that is read.
pub(crate) const MESSAGE_BYTES_MAX: usize = 256 * 1024;

/// gRPC, answered by [`Services`].
pub struct Grpc {
    admission: AdmissionService,
}

impl Grpc {
    /// Serves `tollbar.v1`, health, reflection and what else is on the list.
    pub fn new(
        daemon: Arc<Daemon>,
        envoy: Envoy,
        ext_authz: ExtAuthz,
        stopped: &ShutdownSignal,
    ) -> Self {
        let limiter = Limiter::new(Arc::clone(&daemon), stopped.clone());
        let limiter = v1::limiter_server::LimiterServer::new(limiter)
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        let of_envoy = [
            (envoy::METHOD, Arc::clone(envoy.daemon())),
            (EXT_AUTHZ_METHOD, Arc::clone(ext_authz.daemon())),
        ];
        let mut services = Services::default();
        services.add(limiter, v1::FILE_DESCRIPTOR_SET);
        services.add(envoy.into_service(), tollbar_proto::envoy::FILE_DESCRIPTOR_SET);
        services.add(ext_authz.into_service(), tollbar_proto::envoy::FILE_DESCRIPTOR_SET);
        let routes = services.into_routes(&daemon.tasks, stopped);
        Self { admission: AdmissionService::new(daemon, of_envoy, routes) }
    }
}

impl Protocol for Grpc {
    const ALPN: &'static [&'static [u8]] = &[b"h2"];

    async fn serve(self: Arc<Self>, connection: Connection, mut stopped: ShutdownSignal) {
        let (bounds, peer) = (connection.bounds, connection.peer);
        let opened = tokio::select! {
            opened = timeout(bounds.handshake_timeout.0, preface::read(connection.stream)) => opened,
            () = stopped.wait() => return,
        };
        let Ok(Ok(stream)) = opened else {
            return;
        };
        let connection = http2::Builder::new(ConnectionExecutor("--grpc"))
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIME_MAX)
            .max_concurrent_streams(CALLS_MAX)
            .max_header_list_size(METADATA_BYTES_MAX)
            .initial_stream_window_size(CALL_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buf_size(SEND_BYTES_MAX)
            // gRPC has no use for it.
            .auto_date_header(false)
            .serve_connection(
                TokioIo::new(stream),
                self.admission.for_connection(peer, bounds.body_timeout.0),
            );
        let mut connection = pin!(connection);
        // What a client does to its connection is its own affair: errors end it, and are not told.
        tokio::select! {
            _ = connection.as_mut() => return,
            () = stopped.wait() => connection.as_mut().graceful_shutdown(),
        }
        #[expect(clippy::let_underscore_must_use, reason = "calls that take longer are cut off")]
        let _ = timeout(CALLS_TIME_MAX, connection).await;
    }
}
