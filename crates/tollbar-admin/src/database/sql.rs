//! What the repository asks of any database: statements with values, inside a transaction. Which
//! database it is, is no matter here; what their statements have in common is all that is used.

use std::vec;

use serde_json::Value as Json;
use tollbar::Timestamp;

use super::{RepositoryError, Result};

/// A value that goes into a statement or comes out of one. Each database turns it into the type of
/// its column: an instant, a day, a truth and a number are all [`Int`](Self::Int) here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SqlValue {
    Null,
    Int(i64),
    Text(String),
}

/// A transaction, in which all is done or nothing.
pub(crate) trait Sql {
    /// The rows that a statement yields. Places for values are written `$1`, `$2` and so on.
    async fn query(&self, statement: &str, values: &[SqlValue]) -> Result<Vec<SqlRow>>;

    /// How many rows a statement changes.
    async fn execute(&self, statement: &str, values: &[SqlValue]) -> Result<u64>;

    /// When the transaction began, by the repository's clock.
    fn now(&self) -> Timestamp;
}

/// What a transaction is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It reads, and sees one state of everything.
    Read,
    /// It writes what nobody has to hear of.
    Write,
    /// It changes what nodes enforce. Such changes come one after the other: what one has read stays
    /// so until it is done.
    Change,
}

/// One row, whose values are taken in their order.
#[derive(Debug)]
pub(crate) struct SqlRow(vec::IntoIter<SqlValue>);

impl SqlRow {
    pub(crate) fn new(values: Vec<SqlValue>) -> Self {
        Self(values.into_iter())
    }

    pub(crate) fn optional_int(&mut self) -> Result<Option<i64>> {
        match self.0.next() {
            Some(SqlValue::Null) => Ok(None),
            Some(SqlValue::Int(int)) => Ok(Some(int)),
            other => Err(unexpected("a number", other.as_ref())),
        }
    }

    pub(crate) fn int(&mut self) -> Result<i64> {
        self.optional_int()?.ok_or_else(|| unexpected("a number", None))
    }

    pub(crate) fn optional_text(&mut self) -> Result<Option<String>> {
        match self.0.next() {
            Some(SqlValue::Null) => Ok(None),
            Some(SqlValue::Text(text)) => Ok(Some(text)),
            other => Err(unexpected("a text", other.as_ref())),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        self.optional_text()?.ok_or_else(|| unexpected("a text", None))
    }

    /// A number that is not below 0.
    pub(crate) fn optional_count(&mut self) -> Result<Option<u64>> {
        let count = |int: i64| u64::try_from(int).map_err(|_| invalid_row("a number below 0"));
        self.optional_int()?.map(count).transpose()
    }

    pub(crate) fn count(&mut self) -> Result<u64> {
        self.optional_count()?.ok_or_else(|| unexpected("a number", None))
    }

    pub(crate) fn optional_time(&mut self) -> Result<Option<Timestamp>> {
        Ok(self.optional_count()?.map(Timestamp::from_micros))
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp> {
        self.optional_time()?.ok_or_else(|| unexpected("an instant", None))
    }

    pub(crate) fn optional_json(&mut self) -> Result<Option<Json>> {
        let read =
            |text: String| serde_json::from_str(&text).map_err(|_| invalid_row("what is no JSON"));
        self.optional_text()?.map(read).transpose()
    }

    pub(crate) fn json(&mut self) -> Result<Json> {
        self.optional_json()?.ok_or_else(|| unexpected("JSON", None))
    }
}

fn unexpected(what: &str, found: Option<&SqlValue>) -> RepositoryError {
    let found = match found {
        None | Some(SqlValue::Null) => "nothing",
        Some(SqlValue::Int(_)) => "a number",
        Some(SqlValue::Text(_)) => "a text",
    };
    RepositoryError::database(format!("a row has {found} where {what} belongs"))
}

/// A row that the repository could not have written.
pub(crate) fn invalid_row(what: &str) -> RepositoryError {
    RepositoryError::database(format!("a row has {what} where that cannot be"))
}

impl From<i64> for SqlValue {
    fn from(int: i64) -> Self {
        Self::Int(int)
    }
}

impl From<bool> for SqlValue {
    fn from(is: bool) -> Self {
        Self::Int(i64::from(is))
    }
}

impl From<&str> for SqlValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for SqlValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&String> for SqlValue {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<&Json> for SqlValue {
    fn from(json: &Json) -> Self {
        Self::Text(json.to_string())
    }
}

impl From<Timestamp> for SqlValue {
    fn from(instant: Timestamp) -> Self {
        // Instants end in 2255.
        Self::Int(instant.as_micros().cast_signed())
    }
}

impl<T: Into<SqlValue>> From<Option<T>> for SqlValue {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// A number for a column, which ends where `i64` does. What is counted here stays far below.
pub(crate) fn number(count: u64) -> SqlValue {
    SqlValue::Int(i64::try_from(count).unwrap_or(i64::MAX))
}

/// The conditions of a statement, each of which may be absent.
#[derive(Debug)]
pub(crate) struct WhereClause {
    text: String,
    values: Vec<SqlValue>,
}

impl WhereClause {
    /// Beginning with what always holds.
    pub(crate) fn new(condition: &str) -> Self {
        Self { text: format!("WHERE {condition}"), values: Vec::new() }
    }

    /// And where `value` is there, `condition` holds, in which a `$` stands for it.
    pub(crate) fn and(mut self, condition: &str, value: Option<impl Into<SqlValue>>) -> Self {
        if let Some(value) = value {
            self.values.push(value.into());
            let place = format!("${}", self.values.len());
            self.text.push_str(" AND ");
            self.text.push_str(&condition.replacen('$', &place, 1));
        }
        self
    }

    /// And what `columns` say comes after these values.
    pub(crate) fn and_after<const N: usize>(
        mut self,
        columns: &str,
        values: [SqlValue; N],
    ) -> Self {
        let first = self.values.len() + 1;
        let places: Vec<String> =
            (first..first + N).map(|position| format!("${position}")).collect();
        self.text = format!("{} AND {columns} > ({})", self.text, places.join(", "));
        self.values.extend(values);
        self
    }

    /// Rows are added up that say the same in `columns`. Comes after all conditions.
    pub(crate) fn group_by(mut self, columns: &str) -> Self {
        self.text = format!("{} GROUP BY {columns}", self.text);
        self
    }

    /// A statement that begins so and is in that order, and its values: for one row more than a page
    /// has. How many that is, is a value too, so that there are few statements to be prepared.
    pub(crate) fn statement(
        mut self,
        beginning: &str,
        order: &str,
        rows_max: usize,
    ) -> (String, Vec<SqlValue>) {
        self.values.push(number(rows_max as u64 + 1));
        let (text, place) = (&self.text, self.values.len());
        (format!("{beginning} {text} ORDER BY {order} LIMIT ${place}"), self.values)
    }
}
