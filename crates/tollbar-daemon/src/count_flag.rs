//! A whole number as people write it behind a flag. What is no such number is told with what to write.

use std::ops::RangeInclusive;

/// Returns a parser of whole numbers within `range`, for a flag of clap.
pub fn count<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let count = text.parse().ok().filter(|count| range.contains(count));
        count.and_then(|count| T::try_from(count).ok()).ok_or_else(|| {
            format!("write a whole number from {} to {}", range.start(), range.end())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_the_range_and_other_texts_are_told_the_range() {
        let parse = count::<u16>(5..=70_000);
        assert_eq!((parse("5"), parse("65535")), (Ok(5), Ok(65_535)));
        // The type ends before the range does.
        for text in ["", "4", "-5", "lots", "5.0", "1e3", "65536", "70001", "99999999999999999999"]
        {
            assert_eq!(
                parse(text),
                Err("write a whole number from 5 to 70000".to_owned()),
                "{text}"
            );
        }
    }
}
