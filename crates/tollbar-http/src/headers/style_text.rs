//! The families of headers as people write them, `x,ietf,split` or `none`, and names of limits as headers can have them.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::{HeaderStyle, NAME_BYTES_MAX};

/// Why a text names no families of headers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HeaderStyleError {
    /// There is no family of this name.
    #[error(
        "unknown family of headers `{name}`: write x, ietf, split, several of them with commas between, or none"
    )]
    Unknown {
        /// The name.
        name: String,
    },
    /// `none` stands beside a family.
    #[error("`none` stands alone: leave it out, or the families beside it")]
    NoneAndOthers,
}

impl FromStr for HeaderStyle {
    type Err = HeaderStyleError;

    fn from_str(text: &str) -> Result<Self, HeaderStyleError> {
        let names: Vec<&str> = text.split(',').map(str::trim).collect();
        if names == ["none"] {
            return Ok(Self::none());
        }
        names.into_iter().try_fold(Self::none(), |style, name| match name {
            "x" => Ok(Self { has_x: true, ..style }),
            "ietf" => Ok(Self { has_ietf: true, ..style }),
            "split" => Ok(Self { has_split: true, ..style }),
            "none" => Err(HeaderStyleError::NoneAndOthers),
            other => Err(HeaderStyleError::Unknown {
                name: other.chars().take(NAME_BYTES_MAX).collect(),
            }),
        })
    }
}

impl fmt::Display for HeaderStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let families = [(self.has_x, "x"), (self.has_ietf, "ietf"), (self.has_split, "split")];
        let names: Vec<&str> =
            families.iter().filter(|(is_in, _)| *is_in).map(|(_, name)| *name).collect();
        if names.is_empty() { f.write_str("none") } else { f.write_str(&names.join(",")) }
    }
}

/// Returns the name of a limit with `_` for every character that a structured string would have to escape or cannot
/// have. A limit without a name is called `limit`.
pub(super) fn header_name_of(name: &str) -> String {
    let is_plain = |c: &char| matches!(c, ' '..='~') && !matches!(c, '"' | '\\');
    match name {
        "" => "limit".to_owned(),
        name => {
            let characters = name.chars().take(NAME_BYTES_MAX);
            characters.map(|c| if is_plain(&c) { c } else { '_' }).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_of_families_reads_as_it_is_written() {
        for text in
            ["none", "x", "ietf", "split", "x,ietf", "x,split", "ietf,split", "x,ietf,split"]
        {
            assert_eq!(text.parse::<HeaderStyle>().unwrap().to_string(), text);
        }
        assert_eq!("split , x,x".parse::<HeaderStyle>().unwrap().to_string(), "x,split");
        assert_eq!("x,ietf".parse(), Ok(HeaderStyle::default()));
    }

    #[test]
    fn an_unknown_family_is_named_and_told_what_to_write() {
        for (text, named) in [("y", "`y`"), ("x,IETF", "`IETF`"), ("", "``"), ("x,", "``")] {
            let error = text.parse::<HeaderStyle>().unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("x, ietf, split"), "{error}");
        }
        assert_eq!("none,x".parse::<HeaderStyle>(), Err(HeaderStyleError::NoneAndOthers));
    }

    #[test]
    fn names_that_headers_cannot_have_are_cut_and_replaced() {
        assert_eq!(header_name_of(""), "limit");
        assert_eq!(header_name_of("a \"b\" \\ \u{e9}\n"), "a _b_ _ __");
        assert_eq!(header_name_of(&"n".repeat(1_000)).len(), NAME_BYTES_MAX);
    }
}
