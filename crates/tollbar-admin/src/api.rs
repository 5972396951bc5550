//! The admin API over HTTP: its routes call [`operations`](crate::operations).
//!
//! | module | what it has |
//! |---|---|
//! | `routes` | every path, with its handler |
//! | `extract` | what handlers read from a request: token, query, body |
//! | `query`, `body` | parameters and JSON bodies |
//! | `response` | the responses that handlers return |
//! | `usage_export` | usage as one stream of CSV or JSON lines |
//! | `openapi`, `docs_page` | the document of the API, for programs and for people |

pub(crate) mod body;
mod docs_page;
pub(crate) mod extract;
pub mod openapi;
pub(crate) mod query;
pub(crate) mod response;
pub(crate) mod routes;
pub(crate) mod usage_export;
