//! Whether a form was sent by a page of ours. The session's cookie is kept back by the browser when other
//! sites send forms; this holds where a browser does not know that.

use hyper::header::{HOST, HeaderMap, ORIGIN};

/// True where a page of this very origin has sent it. Browsers say so; whoever says nothing is no browser
/// and has no business with forms.
pub(crate) fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if text("sec-fetch-site").is_some_and(|site| site != "same-origin") {
        return false;
    }
    match (text(ORIGIN.as_str()), text(HOST.as_str())) {
        (Some(origin), Some(host)) => {
            let authority = origin.split_once("://").map(|(_, authority)| authority);
            authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
        }
        (None, _) => text("sec-fetch-site").is_some(),
        (Some(_), None) => false,
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn only_our_own_pages_send_forms() {
        let own = ("origin", "http://127.0.0.1:8082");
        let host = ("host", "127.0.0.1:8082");
        for (headers, is_own) in [
            (vec![host, own], true),
            (vec![host, own, ("sec-fetch-site", "same-origin")], true),
            (vec![host, ("sec-fetch-site", "same-origin")], true),
            (vec![("host", "Ops.Example"), ("origin", "https://ops.example")], true),
            (vec![host], false),
            (vec![host, ("origin", "null")], false),
            (vec![host, ("origin", "http://evil.example")], false),
            (vec![host, ("origin", "http://127.0.0.1:8083")], false),
            (vec![host, ("origin", "http://127.0.0.1:8082.evil.example")], false),
            (vec![host, own, ("sec-fetch-site", "cross-site")], false),
            (vec![host, own, ("sec-fetch-site", "same-site")], false),
            (vec![host, own, ("sec-fetch-site", "none")], false),
            (vec![own], false),
        ] {
            let map = headers.iter().map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            assert_eq!(is_same_origin(&map.collect()), is_own, "{headers:?}");
        }
    }
}
