//! What messages about mistakes have in common: shortened quotes, and the known name nearest to one that is not.

/// The known name that `name` was probably meant to be: at most a third of it mistyped.
pub fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    /// Longer names are not typed by hand.
    const CHARS_MAX: usize = 64;
    let chars: Vec<char> = name.chars().take(CHARS_MAX + 1).collect();
    if chars.len() > CHARS_MAX {
        return None;
    }
    let mistakes_max = (chars.len() / 3).max(1);
    known
        .into_iter()
        .map(|known| (distance(&chars, &known.chars().collect::<Vec<_>>()), known))
        .filter(|(mistakes, _)| *mistakes <= mistakes_max)
        .min()
        .map(|(_, known)| known)
}

/// How many letters are to be put in, left out, changed or swapped with their neighbour.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let changed = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = changed.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// Error messages quote at most this much of what they were given.
const QUOTE_CHARS_MAX: usize = 40;

pub(crate) fn shorten(text: &str) -> String {
    match text.char_indices().nth(QUOTE_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_and_far_ones_are_not() {
        let known = ["limit", "tiers", "match", "priority", "per"];
        let table = [
            ("limits", Some("limit")),
            ("lmit", Some("limit")),
            ("limti", Some("limit")),
            ("tier", Some("tiers")),
            ("Match", Some("match")),
            ("prioritty", Some("priority")),
            ("pre", Some("per")),
            ("algorithm", None),
            ("x", None),
            ("", None),
        ];
        for (name, meant) in table {
            assert_eq!(nearest(name, known), meant, "{name}");
        }
        assert_eq!(nearest(&"limit".repeat(1_000), known), None);
    }
}
