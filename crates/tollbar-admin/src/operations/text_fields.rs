//! Texts that people send: bounded, and of characters that can be shown.

use tollbar_daemon::problem::Problem;

/// The longest name.
const NAME_BYTES_MAX: usize = 128;

/// The longest subject: attributes of requests may be longer, and nobody bans those by hand.
const SUBJECT_BYTES_MAX: usize = 1_024;

/// The longest reason.
const REASON_BYTES_MAX: usize = 1_024;

/// Checks a name for people.
pub(crate) fn check_name(field: &str, text: &str) -> Result<String, Problem> {
    if text.trim().is_empty() {
        return Err(Problem::invalid_field(field, "this is empty: send a text such as \"ci\""));
    }
    check_text(field, text, NAME_BYTES_MAX)
}

/// Checks a subject of a rule.
pub(crate) fn check_subject(field: &str, text: &str) -> Result<String, Problem> {
    if text.is_empty() {
        return Err(Problem::invalid_field(
            field,
            "this is empty: send a text such as \"user:42\"",
        ));
    }
    check_text(field, text, SUBJECT_BYTES_MAX)
}

/// Checks the reason of a change.
pub(crate) fn check_reason(field: &str, text: Option<&str>) -> Result<Option<String>, Problem> {
    text.map(|text| check_text(field, text, REASON_BYTES_MAX)).transpose()
}

fn check_text(field: &str, text: &str, bytes_max: usize) -> Result<String, Problem> {
    if text.len() > bytes_max {
        let detail = format!("this is too long: send at most {bytes_max} bytes");
        return Err(Problem::invalid_field(field, detail));
    }
    // What cannot be seen makes two names look alike, and lists unreadable; PostgreSQL keeps no NUL.
    if text.chars().any(is_hidden) {
        let detail = "this has characters that cannot be seen: send it without them";
        return Err(Problem::invalid_field(field, detail));
    }
    Ok(text.to_owned())
}

/// True for control characters, and for those that take no room or turn the direction of writing.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{feff}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_seen_is_a_name() {
        for text in ["ci", "größe", "名前", "a b", "'; DROP TABLE tokens; --", "../../etc"] {
            assert_eq!(check_name("name", text).as_deref(), Ok(text));
        }
        let long = "é".repeat(65);
        for text in ["", "   ", "a\0", "a\nb", "\u{202e}nimda", "a\u{200b}b", &long] {
            let problem = check_name("name", text).unwrap_err();
            assert_eq!(problem.fields[0].field, "name", "{text:?}");
        }
    }
}
