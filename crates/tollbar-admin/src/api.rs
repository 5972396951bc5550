//! The admin API over HTTP: its routes call [`operations`](crate::operations).

pub(crate) mod body;
mod docs_page;
pub(crate) mod extract;
pub mod openapi;
pub(crate) mod query;
pub(crate) mod response;
pub(crate) mod routes;
pub(crate) mod usage_export;
