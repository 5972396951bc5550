//! In which of the 16,384 slots of a cluster a name lies.

/// So many are there.
pub(crate) const SLOT_COUNT: u16 = 16_384;

/// The slot: CRC-16 (XMODEM) of what is between the first brace and the next closing one, if there is
/// something; else of the whole name.
pub(crate) fn slot_of(name: &[u8]) -> u16 {
    let tag = name.iter().position(|byte| *byte == b'{').and_then(|open| {
        let after = &name[open + 1..];
        let len = after.iter().position(|byte| *byte == b'}').filter(|len| *len > 0)?;
        Some(&after[..len])
    });
    crc16(tag.unwrap_or(name)) % SLOT_COUNT
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `CLUSTER KEYSLOT` says.
    #[test]
    fn slots_are_those_of_a_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"tollbar1{foo}bar"), 12_182);
        assert_eq!(slot_of(b"{}foo"), slot_of(b"{}foo"));
        assert_ne!(slot_of(b"{}foo"), slot_of(b"{}bar"));
    }
}
