//! The document of the admin API for people: one page, without anything from elsewhere.

use std::fmt::Write;
use std::sync::LazyLock;

use super::route::ROUTES;

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
    for route in &ROUTES {
        let scopes = route.need.map_or("open".to_owned(), |need| need.scopes().join(", "));
        let mut query: Vec<&str> = route.query.iter().map(|it| it.name()).collect();
        if route.dry_run {
            query.push("dryRun");
        }
        let query =
            if query.is_empty() { String::new() } else { format!("?{}", query.join("&amp;")) };
        // Nothing of it is anybody's input. Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "<tr><td><code>{}</code></td><td><code>{}{query}</code></td><td>{}</td><td>{scopes}</td></tr>",
            route.method, route.path, route.summary
        );
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
        assert!(ROUTES.iter().all(|it| page.contains(it.path)));
        assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("<script"));
    }
}
