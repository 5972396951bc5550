//! Numbers as header values, of which the recent ones are cached.
//!
//! A limit is the same in every response, a reset in all of a second: to share the text of the one
//! before costs less than to write it anew, which is an allocation.

use std::cell::RefCell;

use http::HeaderValue;

/// How many are kept, for each thread: limits and resets are few.
const KEPT: usize = 64;

thread_local! {
    static RECENT: RefCell<[Option<(u64, HeaderValue)>; KEPT]> =
        const { RefCell::new([const { None }; KEPT]) };
}

/// Returns the text of a number that is likely to be sent again.
pub(super) fn cached(value: u64) -> HeaderValue {
    let found = RECENT.try_with(|recent| {
        let place = &mut recent.borrow_mut()[value as usize % KEPT];
        match place {
            Some((known, text)) if *known == value => text.clone(),
            _ => place.insert((value, fresh(value))).1.clone(),
        }
    });
    // A thread that ends has none any more.
    found.unwrap_or_else(|_| fresh(value))
}

/// Returns the text of a number that is not. Does the same as `HeaderValue::from`, which allocates twice.
pub(super) fn fresh(value: u64) -> HeaderValue {
    HeaderValue::from_bytes(itoa::Buffer::new().format(value).as_bytes())
        .unwrap_or_else(|_| HeaderValue::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_before_is_not_written_anew() {
        let first = cached(1_000);
        let same = cached(1_000);
        assert_eq!((&first, first.as_bytes().as_ptr()), (&same, same.as_bytes().as_ptr()));
        // It has the same place, and takes it.
        assert_eq!(cached(1_000 + KEPT as u64), "1064");
        assert_eq!(cached(1_000), "1000");
    }
}
