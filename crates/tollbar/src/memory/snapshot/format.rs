//! The bytes of a snapshot. Numbers are little endian.
//!
//! ```text
//! magic 8 | version u32 | hash seeds 2 x u64 | taken at u64 | lines of the table u64
//! for each counter of the table:       line u64 | tag u64 | state u64
//! for each wide state, small first:    name u64 | rank u64 | 4, 8, 16, 32 or 64 words of u64
//! for each log:                        name u64 | rank u64 | how many stamps u64 | stamps of u64
//! for each lease:                      name and rank of its counter 2 x u64 | its own name u64 | end and permits u64
//! how many of the table u64 | of each size of wide 5 x u64 | logs u64 | stamps of them all u64
//! | leases u64 | has outgrown u64 | CRC-32 of all before u32
//! ```
//!
//! How many there are stands at the end, because nobody knows before they have been read: so a
//! snapshot is written in one go, without being kept in memory. No number in it is believed before
//! the checksum is right, and none is ever the size of an allocation.
//!
//! A rank is when the counter is fresh (the low 53 bits), the share of its capacity in use (8 bits),
//! and for wide states, in the highest two bits, what it is: see [`WideShare`]. Version 3 had the
//! time alone, and none for leases. It is still read: there, a wide state may be of any share, and
//! leases rank as if all permits of their counter were out.
//!
//! Whoever changes what a tag or a state means, the hash or the salt of a policy, raises
//! [`VERSION`]; the snapshot kept in `tests.rs` fails until then.

use std::io::{Read, Write};

use super::error::SnapshotError;
use super::logs::{LOG_HEAD_WORDS, LogEntry, logs};
use crate::Timestamp;
use crate::algorithm::leased::LeaseRecord;
use crate::algorithm::word::LOCK_BIT;
use crate::memory::counter_id::is_valid_tag;
use crate::memory::rank::{EntryRank, UsedShare};
use crate::memory::wide_table::{CLASS_COUNT, CLASS_WORDS};

/// The last one is what ends a text file on systems that print it by mistake.
const MAGIC: [u8; 8] = *b"tollbar\x1a";
pub(super) const VERSION: u32 = 4;
/// The oldest version that is read.
const VERSION_MIN: u32 = 3;

const HEADER_BYTES: usize = 8 + 4 + 4 * 8;
const TRAILER_BYTES: usize = (1 + CLASS_COUNT + 3 + 1) * 8 + CHECKSUM_BYTES;
const CHECKSUM_BYTES: usize = 4;
const WORD_ENTRY_BYTES: usize = 3 * 8;

/// 180 million counters. A restore has them in memory beside the store.
pub(super) const BYTES_MAX: u64 = 4 << 30;
/// 4 TiB of table: with more, a line's number could not be computed with safely.
const LINES_MAX: u64 = 1 << 36;
/// What is collected before it is passed on.
const PIECE_BYTES: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) seeds: [u64; 2],
    pub(super) taken_at_us: u64,
    pub(super) line_count: u64,
}

/// What a wide state is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::memory) enum WideShare {
    Counters = 0,
    RequestIds = 1,
    Reservations = 2,
}

impl WideShare {
    pub(in crate::memory) const ALL: [Self; 3] =
        [Self::Counters, Self::RequestIds, Self::Reservations];
    const SHIFT: u32 = 62;

    /// The rank as it is written for a state of this share.
    pub(in crate::memory) fn tagged(self, rank: EntryRank) -> u64 {
        rank.to_word() | (self as u64) << Self::SHIFT
    }
}

/// How many entries of each kind there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) words: u64,
    pub(super) wide: [u64; CLASS_COUNT],
    pub(super) logs: u64,
    /// Of all logs together.
    pub(super) stamps: u64,
    pub(super) leases: u64,
    /// How many counters those are of; told to whoever writes the file, and not written.
    pub(super) leased: u64,
}

impl Counts {
    pub(super) fn total(&self) -> u64 {
        self.words + self.wide.iter().sum::<u64>() + self.logs + self.leased
    }

    /// What all entries take in a file of this version, where that is a number.
    fn bytes(&self, version: u32) -> Option<u64> {
        let wide = self.wide.iter().zip(CLASS_WORDS);
        wide.map(|(count, words)| (*count, wide_entry_bytes(words)))
            .chain([(self.words, WORD_ENTRY_BYTES)])
            .chain([(self.logs, LOG_HEAD_WORDS * 8), (self.stamps, 8)])
            .chain([(self.leases, lease_words(version) * 8)])
            .try_fold(0_u64, |sum, (count, bytes)| {
                sum.checked_add(count.checked_mul(bytes as u64)?)
            })
    }
}

fn wide_entry_bytes(words: usize) -> usize {
    (2 + words) * 8
}

fn lease_words(version: u32) -> usize {
    let head_words = if version == VERSION_MIN { 1 } else { 2 };
    head_words + LeaseRecord::WORDS
}

/// Where a snapshot is written to, in pieces and with the checksum growing.
pub(super) struct Sink<'a, W: ?Sized> {
    to: &'a mut W,
    piece: Vec<u8>,
    checksum: crc32fast::Hasher,
    bytes: u64,
}

impl<'a, W: Write + ?Sized> Sink<'a, W> {
    pub(super) fn new(to: &'a mut W) -> Self {
        Self { to, piece: Vec::new(), checksum: crc32fast::Hasher::new(), bytes: 0 }
    }

    pub(super) fn header(&mut self, header: &Header) -> Result<(), SnapshotError> {
        self.piece.extend(MAGIC);
        self.piece.extend(VERSION.to_le_bytes());
        self.words(&[header.seeds[0], header.seeds[1], header.taken_at_us, header.line_count])
    }

    pub(super) fn words(&mut self, words: &[u64]) -> Result<(), SnapshotError> {
        self.buffer(words);
        self.pass_on()
    }

    /// Only keeps them, for the next [`pass_on`](Self::pass_on).
    pub(super) fn buffer(&mut self, words: &[u64]) {
        self.piece.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }

    /// Writes what was kept, if it is worth the while.
    pub(super) fn pass_on(&mut self) -> Result<(), SnapshotError> {
        if self.piece.len() < PIECE_BYTES { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<(), SnapshotError> {
        self.bytes += self.piece.len() as u64;
        if self.bytes > BYTES_MAX {
            return Err(SnapshotError::TooLarge { bytes_max: BYTES_MAX });
        }
        self.checksum.update(&self.piece);
        self.to.write_all(&self.piece).map_err(SnapshotError::io("write the snapshot"))?;
        self.piece.clear();
        Ok(())
    }

    /// How many bytes it came to.
    pub(super) fn finish(
        mut self,
        counts: &Counts,
        has_outgrown: bool,
    ) -> Result<u64, SnapshotError> {
        self.buffer(&[counts.words]);
        self.buffer(&counts.wide);
        self.buffer(&[counts.logs, counts.stamps, counts.leases]);
        self.buffer(&[u64::from(has_outgrown)]);
        self.write()?;
        self.piece.extend(self.checksum.clone().finalize().to_le_bytes());
        self.write()?;
        self.to.flush().map_err(SnapshotError::io("write the snapshot"))?;
        Ok(self.bytes)
    }
}

/// A whole snapshot whose checksum is right.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) header: Header,
    version: u32,
    pub(super) has_outgrown: bool,
    counts: Counts,
    bytes: Vec<u8>,
}

/// A counter of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct WordEntry {
    pub(super) line: usize,
    pub(super) tag: u64,
    pub(super) word: u64,
}

/// A wide state. It has as many words as its class.
#[derive(Debug, Clone, Copy)]
pub(super) struct WideEntry<'a> {
    pub(super) id: u64,
    rank_word: u64,
    /// What it may be of: of one share, or of any where the version does not tell.
    pub(super) shares: &'static [WideShare],
    state: &'a [[u8; 8]],
}

/// A lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseEntry {
    /// Of its counter.
    pub(super) name: u64,
    rank_word: u64,
    pub(super) lease: LeaseRecord,
}

impl LeaseEntry {
    /// The share of its counter's permits that were out.
    pub(super) fn used(&self) -> UsedShare {
        EntryRank::from_word(self.rank_word).used
    }
}

impl Snapshot {
    /// Reads to the end of `from`, at most `bytes_max`.
    pub(super) fn read(
        from: &mut (impl Read + ?Sized),
        bytes_max: u64,
    ) -> Result<Self, SnapshotError> {
        let mut bytes = Vec::new();
        let mut read_to = |bytes: &mut Vec<u8>, length: u64| {
            let more = length - bytes.len() as u64;
            let read = from.take(more).read_to_end(bytes);
            read.map_err(SnapshotError::io("read the snapshot"))
        };
        // What it is comes first: of a large file that is no snapshot, no more is read.
        read_to(&mut bytes, HEADER_BYTES as u64)?;
        let (version, header) = Header::parse(&bytes)?;
        read_to(&mut bytes, bytes_max + 1)?;
        if bytes.len() as u64 > bytes_max {
            return Err(SnapshotError::TooLarge { bytes_max });
        }
        Self::parse(version, header, bytes)
    }

    fn parse(version: u32, header: Header, bytes: Vec<u8>) -> Result<Self, SnapshotError> {
        if bytes.len() < HEADER_BYTES + TRAILER_BYTES {
            return Err(CUT_SHORT);
        }
        let (checked, checksum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
        if crc32fast::hash(checked).to_le_bytes() != checksum {
            return Err(corrupt("its checksum is wrong"));
        }
        let (_, trailer) = bytes.split_at(bytes.len() - TRAILER_BYTES);
        let (numbers, _) = trailer.as_chunks();
        let mut numbers = numbers.iter().copied().map(u64::from_le_bytes);
        let mut next = || numbers.next().unwrap_or_default();
        let counts = Counts {
            words: next(),
            wide: std::array::from_fn(|_| next()),
            logs: next(),
            stamps: next(),
            leases: next(),
            leased: 0,
        };
        let has_outgrown = match next() {
            0 => false,
            1 => true,
            _ => return Err(corrupt("it has a flag that is neither yes nor no")),
        };
        if counts.bytes(version) != Some((bytes.len() - HEADER_BYTES - TRAILER_BYTES) as u64) {
            return Err(corrupt("it has another length than its counters"));
        }
        let is_possible = header.taken_at_us <= Timestamp::MAX.as_micros()
            && (1..=LINES_MAX).contains(&header.line_count)
            && usize::try_from(header.line_count).is_ok();
        if !is_possible {
            return Err(corrupt("it is of a time or a size that cannot be"));
        }
        let snapshot = Self { header, version, has_outgrown, counts, bytes };
        snapshot.validate()?;
        Ok(snapshot)
    }

    /// What the checksum cannot know: that a counter is one that a store can hold.
    fn validate(&self) -> Result<(), SnapshotError> {
        let is_word = |entry: WordEntry| {
            let in_table = (entry.line as u64) < self.header.line_count;
            in_table && is_valid_tag(entry.tag) && entry.word & LOCK_BIT == 0
        };
        let is_wide = |entry: WideEntry<'_>| {
            entry.id != 0 && !entry.shares.is_empty() && self.can_be_rank(entry.rank_word)
        };
        let mut counts = (0, 0);
        let are_logs = self.logs().all(|log| {
            counts = (counts.0 + 1, counts.1 + log.stamp_count());
            log.is_possible() && self.can_be_rank(log.rank_word)
        });
        let are_logs = are_logs && counts == (self.counts.logs, self.counts.stamps);
        let is_lease = |LeaseEntry { name, rank_word, lease }: LeaseEntry| {
            name != 0 && EntryRank::is_word(rank_word) && lease.id() != 0 && lease.permits() > 0
        };
        let are_leases = self.leases().all(is_lease);
        if self.words().all(is_word) && self.wide().all(is_wide) && are_logs && are_leases {
            Ok(())
        } else {
            Err(corrupt("it has a counter that cannot be"))
        }
    }

    /// The counters of the table.
    pub(super) fn words(&self) -> impl Iterator<Item = WordEntry> {
        let entries = self.bytes[HEADER_BYTES..].chunks_exact(WORD_ENTRY_BYTES);
        entries.take(self.counts.words as usize).map(|entry| {
            let (numbers, _) = entry.as_chunks();
            let number = |at: usize| u64::from_le_bytes(numbers[at]);
            WordEntry { line: number(0) as usize, tag: number(1), word: number(2) }
        })
    }

    /// The wide counters.
    pub(super) fn wide(&self) -> impl Iterator<Item = WideEntry<'_>> {
        let mut start = HEADER_BYTES + self.counts.words as usize * WORD_ENTRY_BYTES;
        let classes = self.counts.wide.iter().zip(CLASS_WORDS);
        classes.flat_map(move |(count, words)| {
            let entries = self.bytes[start..].chunks_exact(wide_entry_bytes(words));
            start += *count as usize * wide_entry_bytes(words);
            entries.take(*count as usize).map(|entry| {
                let (numbers, _) = entry.as_chunks();
                let number = |at: usize| u64::from_le_bytes(numbers[at]);
                let (rank_word, shares) = self.split_rank(number(1));
                WideEntry { id: number(0), rank_word, shares, state: &numbers[2..] }
            })
        })
    }
}

impl Snapshot {
    /// The rank of a wide state, and what it may be of; nothing where it cannot be.
    fn split_rank(&self, word: u64) -> (u64, &'static [WideShare]) {
        if self.version == VERSION_MIN {
            return (word, &WideShare::ALL);
        }
        let share = (word >> WideShare::SHIFT) as usize;
        let rank_word = word & ((1 << WideShare::SHIFT) - 1);
        (rank_word, WideShare::ALL.get(share..=share).unwrap_or_default())
    }

    /// True where a snapshot of this version can have such a rank: before the fourth, it was a time
    /// alone.
    fn can_be_rank(&self, word: u64) -> bool {
        let rank = EntryRank::from_word(word);
        let is_time = rank == EntryRank::until(rank.fresh_at_us);
        EntryRank::is_word(word) && (is_time || self.version > VERSION_MIN)
    }

    /// The sliding window logs.
    pub(super) fn logs(&self) -> impl Iterator<Item = LogEntry<'_>> {
        let words = (self.counts.logs * LOG_HEAD_WORDS as u64 + self.counts.stamps) as usize;
        let end = self.leases_start();
        logs(self.bytes[end - words * 8..end].as_chunks().0)
    }

    /// The leases, with the names and ranks of their counters.
    pub(super) fn leases(&self) -> impl Iterator<Item = LeaseEntry> {
        let (words, _) = self.bytes[self.leases_start()..].as_chunks();
        let leases = words.chunks_exact(lease_words(self.version));
        leases.take(self.counts.leases as usize).map(|words| {
            let number = |at: usize| u64::from_le_bytes(words[at]);
            let lease = LeaseRecord::from_words([number(words.len() - 2), number(words.len() - 1)]);
            let rank_word = if self.version == VERSION_MIN {
                EntryRank { used: UsedShare::ALL, fresh_at_us: lease.ends_at_us() }.to_word()
            } else {
                number(1)
            };
            LeaseEntry { name: number(0), rank_word, lease }
        })
    }

    fn leases_start(&self) -> usize {
        let words = self.counts.leases as usize * lease_words(self.version);
        self.bytes.len() - TRAILER_BYTES - words * 8
    }
}

impl WideEntry<'_> {
    pub(super) fn rank(&self) -> EntryRank {
        EntryRank::from_word(self.rank_word)
    }

    pub(super) fn state(&self) -> impl Iterator<Item = u64> {
        self.state.iter().copied().map(u64::from_le_bytes)
    }
}

impl Header {
    fn parse(bytes: &[u8]) -> Result<(u32, Self), SnapshotError> {
        let bytes = bytes.strip_prefix(&MAGIC).ok_or(SnapshotError::NotASnapshot)?;
        let (version, bytes) = bytes.split_first_chunk().ok_or(CUT_SHORT)?;
        let found = u32::from_le_bytes(*version);
        if !(VERSION_MIN..=VERSION).contains(&found) {
            return Err(SnapshotError::Version { found, supported: VERSION });
        }
        let (numbers, _) = bytes.as_chunks();
        let &[seed_0, seed_1, taken_at_us, line_count] = numbers else {
            return Err(CUT_SHORT);
        };
        let header = Self {
            seeds: [seed_0, seed_1].map(u64::from_le_bytes),
            taken_at_us: u64::from_le_bytes(taken_at_us),
            line_count: u64::from_le_bytes(line_count),
        };
        Ok((found, header))
    }
}

const CUT_SHORT: SnapshotError = corrupt("it ends too early");

const fn corrupt(what: &'static str) -> SnapshotError {
    SnapshotError::Corrupt { what }
}
