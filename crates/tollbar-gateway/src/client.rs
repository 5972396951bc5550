//! The client's side: a stream that reads along with the parser and refuses what could be read in two ways, the bounds of
//! a request's head, and the PROXY header of a load balancer.

pub(crate) mod checked_stream;
pub(crate) mod findings;
pub(crate) mod framing;
pub(crate) mod guard;
pub(crate) mod proxy_protocol;
pub(crate) mod visitor;
