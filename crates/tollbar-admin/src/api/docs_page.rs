//! The document of the admin API for people: one page, without anything from elsewhere.

use std::fmt::Write;
use std::sync::LazyLock;

use aide::openapi::Parameter;

use super::openapi::API;

/// The page, as it is served.
pub(crate) fn html() -> &'static str {
    static PAGE: LazyLock<String> = LazyLock::new(write);
    &PAGE
}

const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<title>Tollbar: admin API</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8886; padding: .3rem .6rem; text-align: left; vertical-align: top; }
code { font-family: ui-monospace, monospace; }
:root { color-scheme: light dark; }
</style>
<h1>Tollbar: admin API</h1>
<p>Send <code>Authorization: Bearer tbar_..</code>; <code>tollbar token create</code> makes a token.
The whole document is <a href=\"openapi.json\">openapi.json</a>.</p>
<table>
<tr><th>Method</th><th>Path</th><th>What it does</th><th>Scopes</th></tr>
";

fn write() -> String {
    let mut page = HEAD.to_owned();
    for (path, method, operation) in API.0.operations() {
        let scopes =
            operation.extensions.get("x-tollbar-scopes").and_then(|value| value.as_array());
        let scopes = scopes.map_or("open".to_owned(), |scopes| {
            scopes.iter().filter_map(|scope| scope.as_str()).collect::<Vec<_>>().join(", ")
        });
        let query = operation.parameters.iter().filter_map(|parameter| match parameter.as_item() {
            Some(Parameter::Query { parameter_data, .. }) => Some(&*parameter_data.name),
            _ => None,
        });
        let query = query.collect::<Vec<_>>().join("&amp;");
        let query = if query.is_empty() { query } else { format!("?{query}") };
        let (method, summary) = (method.to_uppercase(), operation.summary.as_deref());
        // Nothing of it is anybody's input. Writing to a string cannot fail.
        writeln!(
            page,
            "<tr><td><code>{method}</code></td><td><code>{path}{query}</code></td><td>{}</td><td>{scopes}</td></tr>",
            summary.unwrap_or_default()
        ).unwrap_or_default();
    }
    page.push_str("</table>\n</html>\n");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_on_the_page_and_nothing_from_elsewhere() {
        let page = html();
        assert!(API.0.operations().all(|(path, ..)| page.contains(path)));
        assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("<script"));
    }
}
