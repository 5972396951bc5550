//! FNV-1a, for what must be the same everywhere and holds no secret: two policies told apart, the
//! moment at which a key's window begins. Never for the place of a key in a table.

/// FNV-1a in 64 bits, then its low half into its high one and times the golden ratio: the last byte
/// alone would otherwise hardly reach the high bits.
#[inline]
pub(crate) fn fnv1a_spread(bytes: impl Iterator<Item = u8>) -> u64 {
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
