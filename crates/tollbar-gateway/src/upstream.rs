//! The upstream's side: connecting to it, a pool of connections, bodies in both directions, and a breaker.

pub(crate) mod body;
pub(crate) mod breaker;
pub(crate) mod connection;
pub(crate) mod connector;
pub(crate) mod failure;
pub(crate) mod options;
pub(crate) mod pool;
pub(crate) mod stream;
pub(crate) mod trailers;
pub(crate) mod waker;
