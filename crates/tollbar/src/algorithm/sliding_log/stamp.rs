//! One stamp of a log, and what any list of them can do.

/// An instant and the tokens charged at it, in a word: 52 bits of microseconds, which is all a
/// clock can show, and 12 bits of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stamp(u64);

impl Stamp {
    const TOKENS_BITS: u32 = 12;

    /// What one stamp holds; a larger cost takes several.
    pub(crate) const TOKENS_MAX: u64 = (1 << Self::TOKENS_BITS) - 1;

    #[inline]
    pub(crate) fn new(at_us: u64, tokens: u64) -> Self {
        debug_assert!(at_us < 1 << 52 && tokens <= Self::TOKENS_MAX);
        Self(at_us << Self::TOKENS_BITS | tokens)
    }

    #[inline]
    pub(crate) fn from_word(word: u64) -> Self {
        Self(word)
    }

    #[inline]
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn at_us(self) -> u64 {
        self.0 >> Self::TOKENS_BITS
    }

    #[inline]
    pub(crate) fn tokens(self) -> u64 {
        self.0 & Self::TOKENS_MAX
    }
}

/// The stamps of one log, oldest first. The newest one stands by itself, and is the only one that
/// may have no tokens: because it was given back, or because there is none.
pub(crate) trait Stamps {
    /// The tokens of all of them.
    fn tokens(&self) -> u64;

    /// How many there are.
    fn len(&self) -> usize;

    /// The newest; [`Stamp::default`] where there is none.
    fn newest(&self) -> Stamp;

    /// The newest that has tokens.
    fn newest_charged(&self) -> Option<Stamp>;

    /// Hands them out, oldest first, for as long as `visit` wants more.
    fn visit(&self, visit: impl FnMut(Stamp) -> bool);

    /// Drops the `count` oldest, which are worth `tokens`.
    fn drop_front(&mut self, count: usize, tokens: u64);

    /// Puts another value in the newest one's place.
    fn set_newest(&mut self, stamp: Stamp);

    /// Appends `stamp`; in place of the newest, where that has no tokens.
    fn push(&mut self, stamp: Stamp);

    /// Changes each but the newest to what `change` makes of it, or removes it.
    fn alter_older(&mut self, change: impl FnMut(Stamp) -> Option<Stamp>);
}
