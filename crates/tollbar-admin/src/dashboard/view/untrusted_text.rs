//! Texts of others as they are shown: keys, tenants, reasons, whatever a client can send. They are never
//! taken for markup, their direction of writing ends with them, and what cannot be seen is spelled out.

use std::fmt::{self, Write};

use askama::filters::HtmlSafe;

use crate::operations::text_fields::is_hidden;

/// The longest text that a page has room for.
const CHARS_MAX: usize = 512;

/// A text that a client or another administrator wrote. Displays as HTML.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UntrustedText(String);

impl UntrustedText {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// As it is, for fields of forms, which templates escape.
    pub(crate) fn raw(&self) -> &str {
        &self.0
    }

    /// For addresses of pages.
    pub(crate) fn in_query(&self) -> String {
        form_urlencoded::byte_serialize(self.0.as_bytes()).collect()
    }
}

/// Of markup only what is written here.
impl HtmlSafe for UntrustedText {}

impl fmt::Display for UntrustedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Isolated, so that Arabic does not turn the rest of the line round.
        f.write_str("<bdi>")?;
        if self.0.is_empty() {
            f.write_str("<span class=\"ctl\">empty</span>")?;
        }
        for (at, c) in self.0.chars().enumerate() {
            if at == CHARS_MAX {
                f.write_str("<span class=\"ctl\">…</span>")?;
                break;
            }
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c if is_hidden(c) => {
                    write!(f, "<span class=\"ctl\">\\u{{{:x}}}</span>", u32::from(c))?;
                }
                c => f.write_char(c)?,
            }
        }
        f.write_str("</bdi>")
    }
}

/// A text with what cannot be seen spelled out, for places that take no markup: titles and labels.
pub(crate) fn escape_invisible(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars().take(CHARS_MAX) {
        if is_hidden(c) {
            // Writing to a string cannot fail.
            write!(escaped, "\\u{{{:x}}}", u32::from(c)).unwrap_or_default();
        } else {
            escaped.push(c);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What clients may send, and how it is shown.
    const TABLE: [(&str, &str); 8] = [
        ("user:42", "user:42"),
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("\"><img src=x onerror='x'>", "&quot;&gt;&lt;img src=x onerror=&#39;x&#39;&gt;"),
        ("a&amp;b", "a&amp;amp;b"),
        ("\u{202e}nimda", "<span class=\"ctl\">\\u{202e}</span>nimda"),
        (
            "a\0\u{1b}[31m\n",
            "a<span class=\"ctl\">\\u{0}</span><span class=\"ctl\">\\u{1b}</span>[31m<span class=\"ctl\">\\u{a}</span>",
        ),
        ("שלום", "שלום"),
        ("", "<span class=\"ctl\">empty</span>"),
    ];

    #[test]
    fn texts_of_others_are_texts() {
        for (text, html) in TABLE {
            assert_eq!(
                UntrustedText::new(text).to_string(),
                format!("<bdi>{html}</bdi>"),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_long_text_is_cut_where_a_character_ends() {
        let html = UntrustedText::new("é".repeat(10_000)).to_string();
        assert_eq!(html.matches('é').count(), CHARS_MAX);
        assert!(html.ends_with("…</span></bdi>"));
        assert_eq!(escape_invisible(&"é".repeat(10_000)).chars().count(), CHARS_MAX);
    }

    #[test]
    fn what_cannot_be_seen_is_spelled_out_in_titles_too() {
        assert_eq!(escape_invisible("a\u{202e}b\u{e0041}"), "a\\u{202e}b\\u{e0041}");
    }
}
