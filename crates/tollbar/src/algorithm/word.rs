//! What an algorithm adds so that its state fits one word of the memory store.
//!
//! A store that reuses a slot must know whether its counter is fresh without knowing whose it is.
//! So every word leads with the time from which it is fresh, in units of 2^`shift` microseconds,
//! rounded up, and what else the algorithm needs follows in the bits that the coarser unit frees:
//!
//! ```text
//!  63     62   61 ................. 10+shift  9+shift ..... 0
//! lock | heavy | fresh_at >> shift, 52-shift bits |  payload  |
//! ```
//!
//! The heavy bit is set while more than half of the capacity is in use. A full table forgets light
//! counters first: so a flood of keys that ask once cannot free a key that is throttled.
//!
//! A bucket has shift 0, so 10 bits for fractions of a microsecond. A window of `W` microseconds
//! has the shift of [`window_shift`]: an end rounded up to it is less than an eighth of a window
//! too late, which a counter may outstay its time by, and the exact end can be had back by rounding
//! down to a multiple of `W`.

use super::Algorithm;
use crate::{Decision, Outcome, Timestamp};

/// Times and counts are below this. What a wide state holds beyond it, which no check has written,
/// is cut to it, so that no sum overflows.
pub(crate) const NUMBER_MAX: u64 = (1 << 53) - 1;

/// The latest time that fits a word. What a clock can show, and the longest debt or two of the
/// longest windows after it, do.
pub(crate) const TIME_MAX: u64 = (1 << 52) - 1;

/// Bits of payload at shift 0.
pub(crate) const PAYLOAD_BITS: u32 = 10;

/// Set while one thread owns the slot; never part of a state.
pub(crate) const LOCK_BIT: u64 = 1 << 63;

/// Set while more than half of the counter's capacity is in use.
pub(crate) const HEAVY_BIT: u64 = 1 << 62;

/// The shift of permits in flight, which are fresh at once or never and need hardly a bit of time.
/// No window has it: ten years, the longest, have 45. So the tag of a slot tells them apart, and a
/// snapshot can leave out what ends with its process.
pub(crate) const PERMITS_SHIFT: u32 = 48;

/// The unit for the ends of windows: more than a sixteenth and at most an eighth of the window.
/// Finer, and less is left for the counts; coarser, and slots are reused later.
pub(super) fn window_shift(window_us: u64) -> u32 {
    window_us.ilog2().saturating_sub(3)
}

/// The largest count that the payload of a word holds if it holds nothing else.
#[inline]
pub(super) fn count_max(shift: u32) -> u64 {
    (1 << (PAYLOAD_BITS + shift)) - 1
}

/// What a step came to.
///
/// Not yet a [`Decision`]: what remains and when it resets take a division or two, which
/// [`WordState::decision`] does after the state is stored. Before, it would hold the store up, and
/// on a key that two threads want at once the one that holds up is overtaken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step<S> {
    pub(crate) outcome: Outcome,
    /// The state to store; `None` where nothing changed.
    pub(crate) next: Option<S>,
    pub(crate) basis: DecisionBasis,
}

/// What a decision's other numbers follow from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecisionBasis {
    /// After the charge, where there was one: what a bucket owes, what of a window remains.
    pub(crate) amount: u64,
    /// The reset of a window; of a queue, the delay; buckets have none.
    pub(crate) end_us: u64,
    /// What a bucket or a queue owes beyond the policy's largest debt; windows have none.
    pub(crate) excess_us: u64,
}

/// A state split as the word splits it. Time rounds up when it is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WordParts {
    pub(crate) fresh_at_us: u64,
    pub(crate) payload: u64,
}

impl WordParts {
    /// The word, `fresh_at_us` rounded up to a multiple of 2^shift.
    #[inline]
    pub(crate) fn to_word(self, shift: u32) -> u64 {
        let coarse = self.fresh_at_us.div_ceil(1 << shift);
        debug_assert!(coarse < 1 << (52 - shift) && self.payload < 1 << (PAYLOAD_BITS + shift));
        coarse << (PAYLOAD_BITS + shift) | self.payload
    }

    #[inline]
    pub(crate) fn from_word(word: u64, shift: u32) -> Self {
        let payload_bits = PAYLOAD_BITS + shift;
        let word = word & !HEAVY_BIT;
        Self {
            fresh_at_us: word >> payload_bits << shift,
            payload: word & ((1 << payload_bits) - 1),
        }
    }
}

/// An algorithm whose typed state has a word form, at least for most policies.
pub(crate) trait WordState: Algorithm {
    /// The state, unpacked.
    type State: Copy + Default;

    /// The unit of the leading time; the same for all policies of one identity.
    fn shift(&self) -> u32;

    /// The pure step.
    fn step(&self, state: Self::State, now_us: u64, cost: u64) -> Step<Self::State>;

    /// The decision that a step at `now_us` came to.
    #[inline(always)]
    fn decision(&self, step: &Step<Self::State>, _now_us: u64) -> Decision {
        let reset_at = Timestamp::from_micros(step.basis.end_us);
        Decision::new(step.outcome, self.limit(), step.basis.amount, reset_at)
    }

    /// True where a step leaves more than half of the capacity in use.
    fn is_heavy(&self, basis: &DecisionBasis) -> bool;

    /// True where `state` fits a word. Always, but for counts from before a limit was lowered to
    /// what a word can hold, and for times that no clock can have led to.
    fn fits(&self, state: Self::State) -> bool;

    /// Of a state that [`fits`](Self::fits).
    fn pack(&self, state: Self::State) -> WordParts;
    fn unpack(&self, parts: WordParts) -> Self::State;

    /// The word that holds `state`, to which a step has come.
    #[inline(always)]
    fn to_word(&self, state: Self::State, basis: &DecisionBasis) -> u64 {
        let heavy = if self.is_heavy(basis) { HEAVY_BIT } else { 0 };
        self.pack(state).to_word(self.shift()) | heavy
    }

    /// Converts between the typed state and its wide form.
    fn from_words(words: &[u64]) -> Self::State;
    fn to_words(state: Self::State, words: &mut [u64]);

    /// [`Algorithm::transition`] for the wide form.
    fn transition_words(&self, words: &mut [u64], now: Timestamp, cost: u64) -> Decision {
        let step = self.step(Self::from_words(words), now.as_micros(), cost);
        if let Some(next) = step.next {
            Self::to_words(next, words);
        }
        self.decision(&step, now.as_micros())
    }
}

/// The longest wide form of a state that has a word form.
pub(crate) const WORD_STATE_WORDS_MAX: usize = 4;

/// What a step on a word came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WordStep {
    pub(crate) decision: Decision,
    pub(crate) next: Option<u64>,
    /// What the charge is called, where there was one.
    pub(crate) stamp: u64,
}

/// [`WordState`] without its type, for the paths where several algorithms meet.
pub(crate) trait PackedAlgorithm {
    fn load(&self, word: u64, words: &mut [u64]);
    /// The word for a state at `now_us`; `None` where it does not fit one.
    fn save(&self, words: &[u64], now_us: u64) -> Option<u64>;
    fn word_shift(&self) -> u32;
    /// [`WordState::step`] on a word. The next one is there only where it differs and fits.
    fn step_word(&self, word: u64, now_us: u64, cost: u64) -> WordStep;
    /// Of the wide form.
    fn state_words(&self) -> usize;
}

impl<A: WordState> PackedAlgorithm for A {
    fn load(&self, word: u64, words: &mut [u64]) {
        A::to_words(self.unpack(WordParts::from_word(word, self.shift())), words);
    }

    fn save(&self, words: &[u64], now_us: u64) -> Option<u64> {
        let state = A::from_words(words);
        if !self.fits(state) {
            return None;
        }
        // A fresh state is all zeros.
        let is_fresh = self.pack(state).to_word(self.shift()) == 0;
        let peek = self.step(state, now_us, 0);
        Some(if is_fresh { 0 } else { self.to_word(state, &peek.basis) })
    }

    fn word_shift(&self) -> u32 {
        self.shift()
    }

    fn step_word(&self, word: u64, now_us: u64, cost: u64) -> WordStep {
        let shift = self.shift();
        let step = self.step(self.unpack(WordParts::from_word(word, shift)), now_us, cost);
        let decision = self.decision(&step, now_us);
        let Some(next) = step.next else {
            return WordStep { decision, next: None, stamp: 0 };
        };
        let mut words = [0; WORD_STATE_WORDS_MAX];
        A::to_words(next, &mut words);
        WordStep {
            decision,
            next: Some(self.to_word(next, &step.basis)),
            stamp: self.stamp(&words[..self.words()]),
        }
    }

    fn state_words(&self) -> usize {
        self.words()
    }
}
