//! All of what was used as one stream, a page of the database at a time: how much there is does not
//! matter to memory.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use futures_util::stream;

use super::query::Format;
use crate::api::response::{HttpResponse, respond_with_body};
use crate::database::{Cursor, PAGE_ROWS_MAX, Page, PageRequest, UsageFilter};
use crate::operations::auth::access::Actor;
use crate::operations::{Admin, usage};
use crate::usage::format::{CSV_HEADER, write_csv, write_json};
use tollbar_daemon::problem::Problem;
use tollbar_daemon::usage::UsageRow;

/// A usage export that is being sent.
struct ExportStream {
    admin: Arc<Admin>,
    actor: Arc<Actor>,
    filter: UsageFilter,
    format: Format,
    /// Rows that are written out and not sent yet.
    text: String,
    next: Option<Cursor>,
}

/// The answer, once the first page is there: until then it can still be refused.
pub(crate) async fn stream(
    admin: Arc<Admin>,
    actor: Arc<Actor>,
    filter: UsageFilter,
    format: Format,
) -> Result<HttpResponse, Problem> {
    let first = PageRequest::first(PAGE_ROWS_MAX);
    let page = usage::list_rows(&admin, &actor, filter.clone(), &first).await?;
    let (kind, head) = match format {
        Format::Csv => ("text/csv; charset=utf-8; header=present", CSV_HEADER),
        Format::JsonLines => ("application/jsonl", ""),
    };
    let mut export =
        ExportStream { admin, actor, filter, format, text: head.to_owned(), next: None };
    export.write(&page);
    export.next = page.next;
    Ok(respond_with_body(
        kind,
        Body::from_stream(stream::unfold(Some(export), ExportStream::next_piece)),
    ))
}

impl ExportStream {
    /// The next piece; an error cuts the answer off, so that nobody takes a part for all of it.
    async fn next_piece(export: Option<Self>) -> Option<(io::Result<String>, Option<Self>)> {
        let mut export = export?;
        if export.text.is_empty() {
            let next = export.next.take()?;
            let page = PageRequest::after(next, PAGE_ROWS_MAX);
            let rows = usage::list_rows(&export.admin, &export.actor, export.filter.clone(), &page);
            match rows.await {
                Ok(page) => {
                    export.write(&page);
                    export.next = page.next;
                }
                Err(problem) => return Some((Err(io::Error::other(problem.detail)), None)),
            }
        }
        let text = std::mem::take(&mut export.text);
        Some((Ok(text), Some(export)))
    }

    fn write(&mut self, page: &Page<UsageRow>) {
        let write = match self.format {
            Format::Csv => write_csv,
            Format::JsonLines => write_json,
        };
        for row in &page.rows {
            write(row, &mut self.text);
        }
    }
}
