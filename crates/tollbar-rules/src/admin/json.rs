//! JSON as the tree that files are read from, so that both are read by the same code.

use std::rc::Rc;

use serde_json::Value as Json;

use super::FormError;
use crate::file::node::{DEPTH_MAX, Key, Node, Position, Value};

pub(super) fn to_node(json: &Json) -> Result<Node, FormError> {
    let mut names = Vec::new();
    convert(json, &mut names)
}

/// JSON has no places: fields are told by their names.
fn convert<'j>(json: &'j Json, names: &mut Vec<&'j str>) -> Result<Node, FormError> {
    if names.len() > DEPTH_MAX {
        let message = format!("nested deeper than {DEPTH_MAX} levels: rules need fewer");
        return Err(FormError::new(names.first().copied().unwrap_or_default(), message));
    }
    let scalar = |text: &str| Value::Scalar { text: text.into(), is_quoted: false };
    let value = match json {
        Json::Null => Value::Null,
        Json::Bool(true) => scalar("true"),
        Json::Bool(false) => scalar("false"),
        Json::Number(number) => scalar(&number.to_string()),
        Json::String(text) => scalar(text),
        Json::Array(items) => {
            let mut nodes = Vec::with_capacity(items.len());
            for item in items {
                names.push("");
                nodes.push(convert(item, names)?);
                names.pop();
            }
            Value::List(nodes.into())
        }
        Json::Object(fields) => {
            let mut nodes = Vec::with_capacity(fields.len());
            for (name, field) in fields {
                names.push(name);
                let key = Key { at: Position::START, text: Rc::from(name.as_str()) };
                nodes.push((key, convert(field, names)?));
                names.pop();
            }
            Value::Map(nodes.into())
        }
    };
    Ok(Node { at: Position::START, value })
}
