//! Rust text without its comments and the insides of its literals.
//!
//! Enough of Rust's lexical grammar to look for words that are code. It is no parser: text that
//! does not compile may be blanked wrongly, and never makes it panic.

/// `text` with comments and the insides of literals turned into spaces. Length and line breaks
/// stay, so an offset into the result is an offset into `text`.
pub(crate) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at + 1..].starts_with(b"/") => line_end(bytes, at),
            b'/' if bytes[at + 1..].starts_with(b"*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' if starts_literal(bytes, at) => raw_string_end(bytes, at).unwrap_or(at + 1),
            b'\'' => char_end(text, at),
            _ => at + 1,
        };
        if end > at + 1 {
            for byte in &mut code[at..end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
        }
        at = end;
    }
    // Whole characters were blanked, so what is left is whole characters too.
    String::from_utf8(code).unwrap_or_default()
}

/// Where `word` stands in `code` as a word of its own: `unsafe` is not in `unsafe_code`.
pub(crate) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = at.checked_sub(1).and_then(|it| bytes.get(it));
        let after = bytes.get(at + word.len());
        !before.copied().is_some_and(is_word) && !after.copied().is_some_and(is_word)
    })
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    find(bytes, at, |rest| rest[0] == b'\n')
}

fn find(bytes: &[u8], from: usize, is_there: impl Fn(&[u8]) -> bool) -> usize {
    (from..bytes.len()).find(|&at| is_there(&bytes[at..])).unwrap_or(bytes.len())
}

/// Block comments nest.
fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = start;
    while at < bytes.len() {
        let step = match &bytes[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                2
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Whether the `r` at `at` can open a raw string: alone, or after the `b` or `c` of `br`, `cr`.
fn starts_literal(bytes: &[u8], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).map(|it| bytes[it]);
    match before(1) {
        Some(b'b' | b'c') => !before(2).is_some_and(is_word),
        Some(byte) => !is_word(byte),
        None => true,
    }
}

/// `None` where no raw string starts: `r` as a name, or `r#type`.
fn raw_string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let hashes = bytes[start + 1..].iter().take_while(|&&byte| byte == b'#').count();
    let open = start + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let at = find(bytes, open + 1, |rest| rest.starts_with(&close));
    Some((at + close.len()).min(bytes.len()))
}

/// The end of a character literal, or of the quote alone where it opens a lifetime.
fn char_end(text: &str, start: usize) -> usize {
    let inside = &text[start + 1..];
    let mut chars = inside.chars();
    match chars.next() {
        Some('\\') => {
            // The character after the backslash may be a quote: '\''.
            let escaped = 1 + chars.next().map_or(0, char::len_utf8);
            inside[escaped..].find('\'').map_or(text.len(), |at| start + 1 + escaped + at + 1)
        }
        Some(first) if chars.next() == Some('\'') => start + 1 + first.len_utf8() + 1,
        _ => start + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_code_is_kept() {
        // Blanks are shown as one here; the next test counts them.
        let cases = [
            ("a // b\nc", "a c"),
            ("a /* b /* c */ d */ e", "a e"),
            ("f(\"x\")", "f( )"),
            (r#"f("\"x")"#, "f( )"),
            (r##"f(r#"a"b"#, c)"##, "f( , c)"),
            (r#"f(br"a\", c)"#, "f(b , c)"),
            ("r#type + for", "r#type + for"),
            ("x = 'a';", "x = ;"),
            (r"f('\'', x)", "f( , x)"),
            ("y + '\"' + x", "y + + x"),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("('é', x)", "( , x)"),
            ("f(\"// no comment\", x)", "f( , x)"),
            ("x // \"no string\ny", "x y"),
        ];
        for (text, code) in cases {
            let words: Vec<String> =
                code_only(text).split_whitespace().map(str::to_owned).collect();
            assert_eq!(words.join(" "), code, "{text}");
        }
    }

    #[test]
    fn length_and_lines_stay_even_where_nothing_is_closed() {
        for text in ["\"a\nb", "/* a\n", "r##\"a\"#\n", "'\\", "'", "\"\\", "é 'é \"é\n\"", "/"]
        {
            let code = code_only(text);
            assert_eq!(code.len(), text.len(), "{text:?}");
            assert_eq!(code.matches('\n').count(), text.matches('\n').count(), "{text:?}");
        }
    }

    #[test]
    fn a_word_stands_alone() {
        let found: Vec<usize> = words("go ago go_on go!", "go").collect();
        assert_eq!(found, [0, 13]);
    }
}
