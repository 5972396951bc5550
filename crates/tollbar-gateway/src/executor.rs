//! Where hyper runs the streams of a connection over HTTP/2, and connections to the upstream.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;

/// A future that runs beside a connection.
pub(crate) type BoxTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Spawns by the function of the gateway's user, or by tokio where there is none.
#[derive(Clone, Default)]
pub(crate) struct GatewayExecutor(pub(crate) Option<Arc<dyn Fn(BoxTask) + Send + Sync>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for GatewayExecutor {
    fn execute(&self, future: F) {
        match &self.0 {
            Some(spawn) => spawn(Box::pin(future)),
            None => TokioExecutor::new().execute(future),
        }
    }
}
