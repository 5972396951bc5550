//! The stamps of a log in a slice of words: oldest first, then zeros.

use super::stamp::{Stamp, Stamps};

/// A list in a slice. Whatever the words are, nothing here panics.
#[derive(Debug)]
pub(super) struct StampSlice<'a> {
    words: &'a mut [u64],
    len: usize,
    tokens: u64,
}

fn len(words: &[u64]) -> usize {
    words.iter().position(|word| *word == 0).unwrap_or(words.len())
}

fn stamps(words: &[u64]) -> impl DoubleEndedIterator<Item = Stamp> {
    words[..len(words)].iter().copied().map(Stamp::from_word)
}

/// The newest stamp in `words`.
pub(super) fn newest(words: &[u64]) -> Stamp {
    stamps(words).next_back().unwrap_or_default()
}

/// The newest stamp in `words` that has tokens.
pub(super) fn newest_charged(words: &[u64]) -> Option<Stamp> {
    stamps(words).rfind(|stamp| stamp.tokens() > 0)
}

impl<'a> StampSlice<'a> {
    pub(super) fn new(words: &'a mut [u64]) -> Self {
        let tokens = stamps(words).map(Stamp::tokens).sum();
        Self { len: len(words), tokens, words }
    }
}

impl Stamps for StampSlice<'_> {
    fn tokens(&self) -> u64 {
        self.tokens
    }

    fn len(&self) -> usize {
        self.len
    }

    fn newest(&self) -> Stamp {
        newest(self.words)
    }

    fn newest_charged(&self) -> Option<Stamp> {
        newest_charged(self.words)
    }

    fn visit(&self, mut visit: impl FnMut(Stamp) -> bool) {
        let _ = stamps(self.words).all(&mut visit);
    }

    fn drop_front(&mut self, count: usize, tokens: u64) {
        let count = count.min(self.len);
        self.words.copy_within(count..self.len, 0);
        self.words[self.len - count..self.len].fill(0);
        self.len -= count;
        self.tokens = self.tokens.saturating_sub(tokens);
    }

    fn set_newest(&mut self, stamp: Stamp) {
        let Some(newest) = self.words[..self.len].last_mut() else {
            return;
        };
        self.tokens = self.tokens - Stamp::from_word(*newest).tokens() + stamp.tokens();
        *newest = stamp.word();
    }

    fn push(&mut self, stamp: Stamp) {
        let newest = self.newest();
        if self.len > 0 && newest.tokens() == 0 {
            return self.set_newest(stamp);
        }
        if self.len == self.words.len() {
            // Only where the words are no log: each stamp of one is worth a token of the limit.
            let oldest = stamps(self.words).next().unwrap_or_default();
            self.drop_front(1, oldest.tokens());
        }
        if let Some(end) = self.words.get_mut(self.len) {
            *end = stamp.word();
            self.len += 1;
            self.tokens += stamp.tokens();
        }
    }

    fn alter_older(&mut self, mut change: impl FnMut(Stamp) -> Option<Stamp>) {
        let Some((&newest, older)) = self.words[..self.len].split_last() else {
            return;
        };
        let older_len = older.len();
        let mut kept = 0;
        for at in 0..older_len {
            let before = Stamp::from_word(self.words[at]);
            let after = change(before);
            self.tokens = self.tokens - before.tokens() + after.map_or(0, Stamp::tokens);
            if let Some(after) = after {
                self.words[kept] = after.word();
                kept += 1;
            }
        }
        self.words[kept] = newest;
        self.words[kept + 1..self.len].fill(0);
        self.len = kept + 1;
    }
}
