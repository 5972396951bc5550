//! What was written of each row last time: one that is the very same is not written out again. Of ten
//! thousand rules, that takes a hundred milliseconds.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

/// Rows by where they are, each with what it says in JSON. None goes elsewhere while it is here.
#[derive(Debug)]
pub(super) struct SerializedRows<T: ?Sized>(HashMap<usize, (Arc<T>, Box<str>)>);

impl<T: ?Sized> SerializedRows<T> {
    /// Appends a list of what `rows` say to `body`, and remembers that and nothing else.
    pub(super) fn append<'r>(
        &mut self,
        rows: impl ExactSizeIterator<Item = &'r Arc<T>>,
        json: impl Fn(&T) -> Vec<Value>,
        body: &mut String,
    ) where
        T: 'r,
    {
        let mut last = std::mem::replace(&mut self.0, HashMap::with_capacity(rows.len()));
        body.push('[');
        let start = body.len();
        for row in rows {
            let address = Arc::as_ptr(row).addr();
            let previous = last.remove(&address);
            let (row, text) = previous.unwrap_or_else(|| (Arc::clone(row), join(&json(row))));
            if !text.is_empty() {
                body.push_str(if body.len() > start { "," } else { "" });
                body.push_str(&text);
            }
            self.0.insert(address, (row, text));
        }
        body.push(']');
    }
}

fn join(values: &[Value]) -> Box<str> {
    let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
    texts.join(",").into()
}

impl<T: ?Sized> Default for SerializedRows<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}
