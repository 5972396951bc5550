//! What is no snapshot, or no longer one, is refused; whatever the bytes, nothing panics.

use std::io;

use proptest::prelude::*;

use super::super::format::{Snapshot, VERSION};
use super::*;

/// A counter of the table, a wide one, and a log of two stamps, since one holds 4,095 at most.
fn small_snapshot() -> Vec<u8> {
    let store = store(4);
    check(&store, "a", &bucket(), 3);
    check(&store, "b", &strict(), 4);
    check(&store, "c", &log(), 5_000);
    let mut bytes = Vec::new();
    assert_eq!(store.write_snapshot(&mut bytes).unwrap().counters, 3);
    bytes
}

/// With the checksum that its bytes ask for.
fn signed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 4;
    let checksum = crc32fast::hash(&bytes[..end]);
    bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn every_flipped_bit_is_noticed() {
    let whole = small_snapshot();
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            let error = restore(4, &bytes).unwrap_err();
            let as_expected = match at {
                0..8 => matches!(error, SnapshotError::NotASnapshot),
                8..12 => matches!(error, SnapshotError::Version { .. }),
                _ => matches!(error, SnapshotError::Corrupt { .. }),
            };
            assert!(as_expected, "byte {at}, bit {bit}: {error}");
        }
    }
    assert!(restore(4, &whole).is_ok());
}

#[test]
fn whatever_is_missing_or_too_much_is_noticed() {
    let whole = small_snapshot();
    for length in 0..whole.len() {
        let error = restore(4, &whole[..length]).unwrap_err();
        let as_expected = match length {
            0..8 => matches!(error, SnapshotError::NotASnapshot),
            _ => matches!(error, SnapshotError::Corrupt { .. }),
        };
        assert!(as_expected, "{length} bytes: {error}");
    }
    for more in [1, 24, 48] {
        let longer = [whole.as_slice(), &vec![0; more]].concat();
        assert!(matches!(restore(4, &longer), Err(SnapshotError::Corrupt { .. })));
        // Not even with a checksum that is right.
        assert!(matches!(restore(4, &signed(longer)), Err(SnapshotError::Corrupt { .. })));
    }
}

#[test]
fn a_foreign_file_is_told_from_a_damaged_one() {
    for foreign in [&b""[..], b"toll", b"#!/bin/sh\nexit 0\n", &[0; 1_000]] {
        assert!(matches!(restore(4, foreign), Err(SnapshotError::NotASnapshot)));
    }
    // Of an endless one, no more is read than it takes to know.
    let endless = builder(4).0.restore(&mut io::repeat(b't'));
    assert!(matches!(endless, Err(SnapshotError::NotASnapshot)));
}

#[test]
fn another_version_is_named() {
    let mut bytes = small_snapshot();
    bytes[8..12].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let error = restore(4, &signed(bytes)).unwrap_err();
    let message = "the snapshot is of format 5, and this version reads format 4: start with an \
                   empty store, or restore with the version that wrote it";
    assert_eq!(error.to_string(), message);
}

#[test]
fn an_endless_snapshot_is_read_only_so_far() {
    let whole = small_snapshot();
    let mut endless = io::Read::chain(whole.as_slice(), io::repeat(0));
    let error = Snapshot::read(&mut endless, 1_000_000).unwrap_err();
    assert!(matches!(error, SnapshotError::TooLarge { bytes_max: 1_000_000 }));
    let length = whole.len() as u64;
    assert!(Snapshot::read(&mut whole.as_slice(), length).is_ok());
    assert!(Snapshot::read(&mut whole.as_slice(), length - 1).is_err());
}

#[test]
fn a_counter_that_cannot_be_is_refused_even_under_a_right_checksum() {
    // Where things are in the small snapshot: after the header of 44 bytes a counter of the table
    // (line, tag, state), a wide one (name, rank, 4 words), a log (name, rank, number of
    // stamps, 2 stamps), then what is told at the end.
    const TAKEN_AT: usize = 28;
    const LINE_COUNT: usize = 36;
    const LINE: usize = 44;
    const TAG: usize = 52;
    const STATE: usize = 60;
    const WIDE_NAME: usize = 68;
    const WIDE_RANK: usize = 76;
    const LOG_NAME: usize = 116;
    const LOG_RANK: usize = 124;
    const LOG_LEN: usize = 132;
    const FIRST_STAMP: usize = 140;
    const SECOND_STAMP: usize = 148;
    const LOGS: usize = 204;
    const STAMPS: usize = 212;
    const LEASES: usize = 220;
    const HAS_OUTGROWN: usize = 228;
    let whole = small_snapshot();
    let number = |at: usize| u64::from_le_bytes(*whole[at..].first_chunk().unwrap());
    assert_eq!((number(TAKEN_AT), number(LINE_COUNT)), (START_US, 2));
    assert_eq!((number(LOG_LEN), number(LOGS), number(STAMPS)), (2, 1, 2));
    assert_eq!(
        (number(FIRST_STAMP), number(SECOND_STAMP)),
        ((START_US << 12) + 4_095, (START_US << 12) + 905)
    );
    let with = |at: usize, number: u64| {
        let mut bytes = whole.clone();
        bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        restore(4, &signed(bytes))
    };
    for (at, wrong) in [
        (TAKEN_AT, Timestamp::MAX.as_micros() + 1),
        (LINE_COUNT, 0),
        (LINE_COUNT, u64::MAX),
        (LINE, 2),
        (LINE, u64::MAX),
        (TAG, 0),
        (TAG, number(TAG) & !0x80),
        (TAG, number(TAG) | 0x40),
        (TAG, number(TAG) | 0x3f),
        (STATE, number(STATE) | 1 << 63),
        (WIDE_NAME, 0),
        // A bit that means nothing, and a share that there is not.
        (WIDE_RANK, 1 << 61),
        (WIDE_RANK, 3 << 62),
        (LOG_NAME, 0),
        (LOG_RANK, number(LOG_RANK) | 1 << 61),
        (LOG_RANK, number(LOG_RANK) | 1 << 63),
        (LOG_RANK, START_US),
        (LOG_LEN, 0),
        (LOG_LEN, 1),
        (LOG_LEN, 3),
        (LOG_LEN, u64::MAX),
        // Nothing charged, and charged after the next.
        (FIRST_STAMP, START_US << 12),
        (FIRST_STAMP, (START_US + 1) << 12 | 1),
        (LOGS, 0),
        (LOGS, 2),
        (LOGS, u64::MAX),
        (STAMPS, 1),
        (STAMPS, u64::MAX),
        (LEASES, 1),
        (LEASES, u64::MAX),
        (HAS_OUTGROWN, 2),
    ] {
        let refused = with(at, wrong);
        assert!(matches!(refused, Err(SnapshotError::Corrupt { .. })), "{wrong} at {at}");
    }
    for (at, fine) in
        [(TAKEN_AT, Timestamp::MAX.as_micros()), (LINE, 0), (FIRST_STAMP, 1), (HAS_OUTGROWN, 1)]
    {
        assert!(with(at, fine).is_ok(), "{fine} at {at}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_read_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        cut in 0_usize..300,
    ) {
        prop_assert!(restore(4, &bytes).is_err());
        let whole = small_snapshot();
        // After a true beginning, and even with a true checksum.
        let mut bytes = [&whole[..cut.min(whole.len())], &bytes, &[0; 4]].concat();
        prop_assert!(restore(4, &bytes).is_err());
        bytes = signed(bytes);
        let _ = restore(4, &bytes);
    }

    #[test]
    fn any_number_in_it_is_refused_or_read_without_a_panic(
        changes in prop::collection::vec((12_usize..360, any::<u64>(), 0_u32..64), 1..4),
        max_keys in prop_oneof![Just(4_usize), 1_usize..2_000],
    ) {
        let mut bytes = small_snapshot();
        for (at, number, shift) in changes {
            let at = at.min(bytes.len() - 12);
            bytes[at..at + 8].copy_from_slice(&(number >> shift).to_le_bytes());
        }
        if let Ok(store) = restore(max_keys, &signed(bytes)) {
            // No slot is left locked, and no shift is one that no word has.
            let _ = store.stats();
            for key in (0..100).map(|key| key.to_string()).chain(["c".into()]) {
                check(&store, &key, &bucket(), 1);
                check(&store, &key, &log(), 1);
            }
        }
    }
}
