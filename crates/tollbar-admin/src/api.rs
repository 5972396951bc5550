//! The admin API over HTTP: its routes call [`operations`](crate::operations).

pub(crate) mod body;
pub(crate) mod call;
pub(crate) mod export;
pub mod openapi;
mod page;
pub(crate) mod query;
pub(crate) mod route;
pub(crate) mod wire;
