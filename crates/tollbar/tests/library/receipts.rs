//! Receipts that somebody has changed.

use tollbar::{Limiter, Policy, Receipt, ReceiptError, ReceiptKey};

/// The digits of a receipt's text, each of which stands for six bits.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The text with bit `bit` of the digit at `at` turned over.
fn flip(text: &str, at: usize, bit: u32) -> String {
    let mut text = text.as_bytes().to_vec();
    let value = DIGITS.iter().position(|digit| *digit == text[at]).unwrap();
    text[at] = DIGITS[value ^ 1 << bit];
    String::from_utf8(text).unwrap()
}

/// Its last bytes say that a receipt is ours. Compared bit by bit, two changes of the same bit in
/// different bytes must not cancel each other out.
#[test]
fn no_two_changes_of_a_receipt_cancel_each_other_out() {
    let key = ReceiptKey::new([7; 32]);
    let policy = Policy::token_bucket("100/min").unwrap();
    let limiter = Limiter::builder(policy).receipt_key(key.clone()).build().unwrap();
    let reservation = limiter.reserve("user:42", 30).unwrap();
    let text = reservation.receipt().expect("it is allowed").to_string();
    assert!(text.parse::<Receipt>().unwrap().content(&key).is_ok());
    // Four digits are three bytes, so the same bit of digits four apart is the same bit of two bytes.
    for first in text.len() - 16..text.len() - 5 {
        for bit in 0..6 {
            let changed = flip(&flip(&text, first, bit), first + 4, bit);
            let refused = changed.parse::<Receipt>().and_then(|receipt| receipt.content(&key));
            assert_eq!(refused.unwrap_err(), ReceiptError::NotOurs, "bit {bit} of digit {first}");
        }
    }
}
