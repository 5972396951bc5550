//! What a form or an address has sent: named texts, bounded, the last of a name.

use crate::dashboard::view::untrusted_text::escape_invisible;
use tollbar_daemon::problem::Problem;

/// The most fields of a form.
const FIELDS_MAX: usize = 64;

/// The largest form. A rule in YAML is the longest.
pub(crate) const FORM_BYTES_MAX: usize = 256 * 1024;

/// Named texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FormFields(Vec<(String, String)>);

impl FormFields {
    /// Of a query, or of a body that is written like one.
    pub(crate) fn read(sent: &[u8]) -> Result<Self, Problem> {
        let mut fields = Vec::new();
        for (name, value) in form_urlencoded::parse(sent) {
            if fields.len() == FIELDS_MAX {
                let detail = format!("a form has at most {FIELDS_MAX} fields: send fewer");
                return Err(Problem::bad_request(detail));
            }
            // Browsers end lines as on paper; what was typed had one character there.
            fields.push((name.into_owned(), value.replace("\r\n", "\n")));
        }
        Ok(Self(fields))
    }

    /// What stands in a field; nothing where there is none.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.0.iter().rev().find(|(it, _)| it == name).map_or("", |(_, value)| value)
    }

    /// What stands in a field, without spaces around it; `None` where that is nothing.
    pub(crate) fn non_empty(&self, name: &str) -> Option<&str> {
        Some(self.text(name).trim()).filter(|text| !text.is_empty())
    }

    /// The same as a text of one's own.
    pub(crate) fn non_empty_owned(&self, name: &str) -> Option<String> {
        self.non_empty(name).map(str::to_owned)
    }

    /// A whole number.
    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, Problem> {
        let sent = self.non_empty(name).unwrap_or_default();
        sent.parse().map_err(|_| {
            let detail =
                format!("`{}` is no whole number: write one such as 100", escape_invisible(sent));
            Problem::invalid_field(name, detail)
        })
    }

    /// Returns all fields but the CSRF token, which each page has its own of.
    pub(crate) fn without_csrf(&self) -> Vec<(String, String)> {
        self.0.iter().filter(|(name, _)| name != "csrf").cloned().collect()
    }

    /// Returns a path on this server to go back to; `None` for any other address.
    pub(crate) fn local_path(&self, name: &str) -> Option<&str> {
        self.non_empty(name).filter(|path| is_local_path(path))
    }
}

/// True for a path of this origin, however browsers read slashes.
fn is_local_path(text: &str) -> bool {
    let is_path = text.starts_with('/') && !text.starts_with("//");
    is_path && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_browsers_write_them() {
        let fields = FormFields::read(b"a=1&b=x+y%0D%0Az&a=2&e=&n=+7+").unwrap();
        assert_eq!(fields.text("a"), "2");
        assert_eq!(fields.text("b"), "x y\nz");
        assert_eq!((fields.text("none"), fields.non_empty("e")), ("", None));
        assert_eq!(fields.number::<u64>("n"), Ok(7));
        assert!(fields.number::<u64>("b").is_err());
        let many = "a=1&".repeat(65);
        assert!(FormFields::read(many.as_bytes()).is_err());
        let _ = FormFields::read(&[0xff, b'=', 0xfe, b'%', b'&']).unwrap();
    }

    #[test]
    fn one_goes_back_to_places_of_ours_only() {
        for (text, is) in [
            ("/rules", true),
            ("/key?rule=a&subject=b%20c", true),
            ("//evil.example", false),
            ("/\\evil.example", false),
            ("https://evil.example", false),
            ("rules", false),
            ("/a\nb", false),
            ("/é", false),
        ] {
            assert_eq!(is_local_path(text), is, "{text}");
        }
    }
}
