//! Policies as bytes: what no policy writes is refused.

use super::*;
use crate::policy::code::write_number;

/// The bytes of a policy without a name whose rate is `tokens / divisor` a second.
fn code(tag: u64, tokens: u64, divisor: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Burst 5, no overdraft, 4 sub-windows, a queue of 6; each algorithm reads its own.
    let options = [(1, 5), (2, 0), (3, 4), (9, 6)];
    let numbers = [tag, tokens, divisor, 1_000_000, options.len() as u64];
    let numbers = numbers.into_iter().chain(options.into_iter().flat_map(<[u64; 2]>::from));
    numbers.chain([0]).for_each(|number| write_number(&mut bytes, number));
    bytes
}

/// A receipt of another version could hold a rate whose divisor is 0, by which nothing can be
/// divided.
#[test]
fn a_rate_without_a_divisor_is_refused_by_every_algorithm() {
    let read = |tag, tokens, divisor| Policy::read_code(&mut code(tag, tokens, divisor).as_slice());
    for tag in [1, 2, 3, 4, 6, 7, 8, 9] {
        assert_eq!(read(tag, 6, 2).unwrap().limit(), 3);
        for tokens in [0, 1, 6] {
            assert!(read(tag, tokens, 0).is_none(), "{tokens} of algorithm {tag}");
        }
    }
}
