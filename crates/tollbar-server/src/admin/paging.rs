//! Lists a page at a time, as they are asked for and told.

use schemars::JsonSchema;
use serde::Serialize;

use crate::repository::{Cursor, Page, PageOf};

/// Rows of a page where nothing else is asked for.
pub(crate) const LIMIT_DEFAULT: u32 = 100;

/// The most rows of a page.
pub(crate) const LIMIT_MAX: u32 = 1_000;

/// Which page is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) limit: u32,
    pub(crate) cursor: Option<String>,
}

/// A page, and where the next one is.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "{T}List")]
pub(crate) struct Paged<T> {
    pub(crate) items: Vec<T>,
    /// For the next page; null where this is the last.
    pub(crate) next_cursor: Option<String>,
}

impl Default for Asked {
    fn default() -> Self {
        Self { limit: LIMIT_DEFAULT, cursor: None }
    }
}

impl Asked {
    pub(crate) fn page(&self) -> PageOf {
        match &self.cursor {
            Some(cursor) => PageOf::after(Cursor::of_text(cursor), self.limit),
            None => PageOf::first(self.limit),
        }
    }
}

impl<T> Paged<T> {
    pub(crate) fn of<R: Into<T>>(page: Page<R>) -> Self {
        let next_cursor = page.next.map(|it| it.as_text().to_owned());
        Self { items: page.rows.into_iter().map(Into::into).collect(), next_cursor }
    }
}
