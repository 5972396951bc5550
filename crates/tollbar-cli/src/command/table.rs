//! Tables and texts for people. What others have written cannot speak to their terminal.

use serde_json::Value;

/// Rows under headings, each column as wide as it must be.
pub(super) struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(headings: &[&'static str]) -> Self {
        Self { headings: headings.to_vec(), rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| visible(&cell)).collect());
    }

    /// The whole, or `nothing` where there are no rows.
    pub(super) fn text(&self, nothing: &str) -> String {
        if self.rows.is_empty() {
            return format!("{nothing}\n");
        }
        let width = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at));
            let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            widest.max(self.headings[at].len())
        };
        let widths: Vec<usize> = (0..self.headings.len()).map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let cells = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
        };
        let mut text = line(&mut self.headings.iter().copied());
        for row in &self.rows {
            text += &line(&mut row.iter().map(String::as_str));
        }
        text
    }
}

/// A table of rows of an answer: each column has a heading and the field it shows.
pub(super) fn columns(fields: &[(&'static str, &str)], rows: &[Value], nothing: &str) -> String {
    let mut table = Table::new(&fields.iter().map(|field| field.0).collect::<Vec<_>>());
    for row in rows {
        table.row(fields.iter().map(|field| cell(&row[field.1])));
    }
    table.text(nothing)
}

/// A value of an answer, for people: nothing where it is `null`.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

/// A text without what a terminal would obey.
pub(super) fn visible(text: &str) -> String {
    text.replace(char::is_control, "\u{FFFD}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let mut table = Table::new(&["NAME", "N"]);
        assert_eq!(table.text("there are none"), "there are none\n");
        table.row(vec!["é".to_owned(), String::new()]);
        table.row(vec!["per_client\u{1b}[2J".to_owned(), "12".to_owned()]);
        let expected = "NAME            N\né\nper_client\u{fffd}[2J  12\n";
        assert_eq!(table.text(""), expected);
    }

    #[test]
    fn cells_are_short() {
        for (value, expected) in [
            (json!(null), ""),
            (json!("a"), "a"),
            (json!(["a", "b"]), "a, b"),
            (json!([1]), "[1]"),
            (json!(7), "7"),
        ] {
            assert_eq!(cell(&value), expected);
        }
    }
}
