//! All of what was used as one stream, a page of the database at a time: how much there is does not
//! matter to memory.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use futures_util::stream;

use super::query::Format;
use crate::api::response::{HttpResponse, respond_with_body};
use crate::database::{Cursor, PAGE_ROWS_MAX, PageRequest, UsageFilter, UsageGroup};
use crate::operations::auth::access::Actor;
use crate::operations::{Admin, usage};
use crate::usage::format::{CSV_HEADER, write_csv, write_json};
use crate::usage::totals::{Totals, TotalsLine};
use tollbar_daemon::problem::Problem;

const CSV: &str = "text/csv; charset=utf-8; header=present";

/// A usage export that is being sent.
struct ExportStream {
    admin: Arc<Admin>,
    actor: Arc<Actor>,
    filter: UsageFilter,
    format: Format,
    /// What rows are added up by; `None` if they are sent one by one.
    totals: Option<Totals>,
    /// Rows that are written out and not sent yet.
    text: String,
    next: Option<Cursor>,
}

/// Sends usage row by row, or added up by something. The answer can be refused until the first page is there.
pub(crate) async fn stream(
    admin: Arc<Admin>,
    actor: Arc<Actor>,
    filter: UsageFilter,
    by: Option<UsageGroup>,
    format: Format,
) -> Result<HttpResponse, Problem> {
    let (kind, text) = match (format, by) {
        (Format::Csv, None) => (CSV, CSV_HEADER.to_owned()),
        (Format::Csv, Some(by)) => (CSV, TotalsLine::csv_header(by)),
        (Format::JsonLines, _) => ("application/jsonl", String::new()),
    };
    let totals = by.map(Totals::new);
    let mut export = ExportStream { admin, actor, filter, format, totals, text, next: None };
    export.write_page(&PageRequest::first(PAGE_ROWS_MAX)).await?;
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
            if let Err(problem) = export.write_page(&PageRequest::after(next, PAGE_ROWS_MAX)).await
            {
                return Some((Err(io::Error::other(problem.detail)), None));
            }
        }
        let text = std::mem::take(&mut export.text);
        Some((Ok(text), Some(export)))
    }

    async fn write_page(&mut self, page: &PageRequest) -> Result<(), Problem> {
        let Self { admin, actor, filter, format, totals, text, next } = self;
        let Some(totals) = totals else {
            let page = usage::list_daily(admin, actor, filter.clone(), page).await?;
            for row in &page.rows {
                match format {
                    Format::Csv => write_csv(row, text),
                    Format::JsonLines => write_json(row, text),
                }
            }
            *next = page.next;
            return Ok(());
        };
        let page = usage::list_totals(admin, actor, totals.by(), filter.clone(), page).await?;
        let rules = admin.daemon.engine.rules();
        let mut lines = Vec::new();
        for total in page.rows {
            lines.extend(totals.read(total, &rules));
        }
        if page.next.is_none() {
            lines.extend(totals.finish(&rules));
        }
        for line in &lines {
            match format {
                Format::Csv => line.write_csv(text),
                Format::JsonLines => write_json(line, text),
            }
        }
        *next = page.next;
        Ok(())
    }
}
