//! `match`, and what is written like it: attributes and what must hold of them.

use super::node::Value;
use super::reader::{Field, Fields, LIST_MAX, Reader};
use crate::message::shorten;
use crate::request::ATTRIBUTE_NAME_BYTES_MAX;
use crate::{Cidr, Condition, Conditions, PathPattern, Test};

/// The conditions of a mapping from attributes to what must hold.
pub(super) fn read(reader: &mut Reader, field: &Field<'_>) -> Conditions {
    let what = "a mapping such as `{ method: GET, path: \"/v1/**\" }`";
    let fields = reader.fields(field, what);
    fields.map_or_else(Conditions::new, |fields| read_fields(reader, &fields))
}

/// The conditions of whatever fields have not been taken yet.
pub(super) fn read_fields(reader: &mut Reader, fields: &Fields<'_>) -> Conditions {
    let mut conditions = Vec::new();
    for (key, field) in fields.rest() {
        let attribute = &*key.text;
        if attribute.is_empty() || attribute.len() > ATTRIBUTE_NAME_BYTES_MAX {
            let message = format!(
                "an attribute has a name of 1 to {ATTRIBUTE_NAME_BYTES_MAX} bytes: write one such \
                 as `tenant`"
            );
            reader.error(key.at, &field.path, message);
            continue;
        }
        if attribute == "client" {
            reader.error(
                key.at,
                &field.path,
                "`client` is a chain of attributes: write `api_key`, `user` or `ip`",
            );
            continue;
        }
        for test in read_tests(reader, attribute, &field) {
            conditions.push(Condition { attribute: attribute.into(), test });
        }
    }
    conditions.into_iter().collect()
}

/// What must hold of one attribute: a value, a list of them, or a mapping of tests, all of which
/// must hold.
fn read_tests(reader: &mut Reader, attribute: &str, field: &Field<'_>) -> Vec<Test> {
    match &field.node.value {
        Value::Map(_) => read_mapping(reader, attribute, field),
        Value::Null => {
            reader.refuse(field, "there is no value: write one, or `{ absent: true }` for none");
            Vec::new()
        }
        Value::Scalar { .. } | Value::List(_) => match attribute {
            "path" => patterns(reader, field).into_iter().collect(),
            "ip" => blocks(reader, field).into_iter().collect(),
            _ => values(reader, attribute, field).into_iter().collect(),
        },
    }
}

fn read_mapping(reader: &mut Reader, attribute: &str, field: &Field<'_>) -> Vec<Test> {
    let Some(mut fields) = reader.fields(field, "a mapping") else {
        return Vec::new();
    };
    let mut tests = Vec::new();
    if let Some(field) = fields.take("not") {
        let within = read_tests(reader, attribute, &field);
        // Not (a and b) would be a question of taste; one test has one opposite.
        match <[Test; 1]>::try_from(within) {
            Ok([test]) => tests.push(Test::Not(Box::new(test))),
            Err(within) if within.len() > 1 => {
                reader.refuse(&field, "`not` is of one test: write a `not` for each");
            }
            Err(_) => {}
        }
    }
    if attribute != "path" {
        if let Some(field) = fields.take("equal") {
            tests.extend(values(reader, attribute, &field));
        }
        if let Some(field) = fields.take("one_of") {
            tests.extend(values(reader, attribute, &field));
        }
        if let Some(field) = fields.take("prefix") {
            tests.extend(prefix(reader, &field));
        }
        if let Some(field) = fields.take("cidr") {
            tests.extend(blocks(reader, &field));
        }
        for (name, is_there) in [("present", true), ("absent", false)] {
            if let Some(field) = fields.take(name)
                && let Some(is_so) = reader.boolean(&field)
            {
                tests.push(if is_so == is_there { Test::Present } else { Test::absent() });
            }
        }
    }
    let is_empty = fields.rest().is_empty() && tests.is_empty();
    if is_empty && reader.errors.is_empty() {
        reader.refuse(field, "there is no test: write one such as `{ prefix: \"in-\" }`");
    }
    fields.finish(reader);
    tests
}

fn texts<'n>(reader: &mut Reader, field: &Field<'n>, what: &str) -> Vec<(Field<'n>, &'n str)> {
    let many = field.one_or_many();
    if many.is_empty() {
        reader.refuse(field, format!("the list is empty, so nothing would match: write {what}"));
    }
    if many.len() > LIST_MAX {
        reader
            .refuse(field, format!("{} values are too many: write at most {LIST_MAX}", many.len()));
        return Vec::new();
    }
    let read = |item: Field<'n>| reader.text(&item, what).map(|text| (item, text));
    many.into_iter().filter_map(read).collect()
}

fn values(reader: &mut Reader, attribute: &str, field: &Field<'_>) -> Option<Test> {
    let mut known: Vec<Box<str>> = Vec::new();
    for (item, text) in texts(reader, field, "a value, or a list of them") {
        if text.is_empty() {
            reader
                .refuse(&item, "an empty attribute is as good as absent: write `{ absent: true }`");
        }
        known.push(match attribute {
            // As requests have it.
            "method" => text.to_ascii_uppercase().into(),
            _ => text.into(),
        });
    }
    known.sort();
    known.dedup();
    (!known.is_empty()).then(|| Test::OneOf(known.into()))
}

fn prefix(reader: &mut Reader, field: &Field<'_>) -> Option<Test> {
    match reader.text(field, "the beginning of a value")? {
        "" => {
            reader.refuse(field, "everything begins with nothing: write `{ present: true }`");
            None
        }
        text => Some(Test::Prefix(text.into())),
    }
}

fn patterns(reader: &mut Reader, field: &Field<'_>) -> Option<Test> {
    let mut patterns: Vec<PathPattern> = Vec::new();
    for (item, text) in texts(reader, field, "a path pattern such as `/v1/**`, or a list of them") {
        match text.parse() {
            Ok(pattern) => patterns.push(pattern),
            Err(error) => reader.refuse(&item, error),
        }
    }
    patterns.sort();
    patterns.dedup();
    (!patterns.is_empty()).then(|| Test::Path(patterns.into()))
}

fn blocks(reader: &mut Reader, field: &Field<'_>) -> Option<Test> {
    let mut blocks: Vec<Cidr> = Vec::new();
    for (item, text) in texts(reader, field, "a block such as `10.0.0.0/8`, or a list of them") {
        match text.parse() {
            Ok(block) => blocks.push(block),
            Err(error) => reader.refuse(&item, error),
        }
    }
    blocks.sort();
    blocks.dedup();
    (!blocks.is_empty()).then(|| Test::Within(blocks.into()))
}

/// `GET /v1/search`, or a path alone: the key of a cost.
pub(crate) fn route(text: &str) -> Result<Conditions, String> {
    let (method, path) = match text.split_once(' ') {
        Some((method, path)) => (Some(method), path.trim()),
        None => (None, text),
    };
    let pattern: PathPattern = path.parse().map_err(|error| {
        format!("`{}` is not a route such as `GET /v1/search`: {error}", shorten(text))
    })?;
    let conditions = Conditions::new();
    let conditions = match method {
        Some(method) => conditions.and("method", Test::equal(&method.to_ascii_uppercase())),
        None => conditions,
    };
    Ok(conditions.and("path", Test::Path([pattern].into())))
}
