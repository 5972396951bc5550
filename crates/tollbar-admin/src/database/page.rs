//! Lists a page at a time. A page begins after the last row of the one before, so it costs the same
//! wherever it is, and rows that come or go meanwhile make none appear twice.

use schemars::JsonSchema;
use serde::Serialize;

use super::{RepositoryError, Result};

/// The most rows of a page.
pub const PAGE_ROWS_MAX: u32 = 1_000;

/// Which page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// What the page before said comes next; the first page where there is none.
    pub after: Option<Cursor>,
    /// How many rows at most: 1 to [`PAGE_ROWS_MAX`]; what is beyond counts as that.
    pub rows_max: u32,
}

/// A page, and where the next one is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "{T}List")]
pub struct Page<T> {
    /// The rows of the page.
    #[serde(rename = "items")]
    pub rows: Vec<T>,
    /// For the next page; null where this is the last.
    #[serde(rename = "nextCursor")]
    #[schemars(with = "Option<String>")]
    pub next: Option<Cursor>,
}

/// A place in a list, as a text that means nothing to others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cursor(String);

impl PageRequest {
    /// The first page, of so many rows.
    #[must_use]
    pub fn first(rows_max: u32) -> Self {
        Self { after: None, rows_max }
    }

    /// The page after `after`, of so many rows.
    #[must_use]
    pub fn after(after: Cursor, rows_max: u32) -> Self {
        Self { after: Some(after), rows_max }
    }

    pub(crate) fn rows_max(&self) -> usize {
        self.rows_max.clamp(1, PAGE_ROWS_MAX) as usize
    }

    /// The id that rows come after, where rows are in the order of their ids.
    pub(crate) fn after_id(&self) -> Result<Option<i64>> {
        let Some(cursor) = &self.after else {
            return Ok(None);
        };
        cursor.0.parse().map(Some).map_err(|_| RepositoryError::Cursor)
    }
}

impl Cursor {
    /// A cursor as somebody sent it; whether it is one, the list says.
    #[must_use]
    pub fn of_text(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// As it is sent to others: letters, digits, `-` and `_` only.
    #[must_use]
    pub fn as_text(&self) -> &str {
        &self.0
    }
}

impl<T> Page<T> {
    /// The page with each row as something else.
    pub(crate) fn map<U>(self, change: impl FnMut(T) -> U) -> Page<U> {
        Page { rows: self.rows.into_iter().map(change).collect(), next: self.next }
    }

    /// Of rows of which one more was asked for than the page has.
    pub(crate) fn cut(mut rows: Vec<T>, of: &PageRequest, cursor: impl Fn(&T) -> String) -> Self {
        let has_more = rows.len() > of.rows_max();
        rows.truncate(of.rows_max());
        let next = rows.last().filter(|_| has_more).map(|row| Cursor(cursor(row)));
        Self { rows, next }
    }
}
