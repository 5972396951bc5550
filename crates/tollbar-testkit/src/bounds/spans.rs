//! Spans of time with tokens, and the sweeps that look at every interval of them.
//!
//! Sums are compared as integers: `tokens x numerator` against `microseconds x denominator`, where
//! `numerator / denominator` microseconds earn one token.

use std::ops::Range;

use tollbar::Interval;

/// Tokens that were admitted at some instant of `from_us..=to_us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The clock reading that decided, or when the request was sent.
    pub from_us: u64,
    /// When it had been applied, or the reply was received.
    pub to_us: u64,
    /// How many.
    pub tokens: u64,
}

/// Less than any excess: of intervals whose start does not count yet.
const NOT_YET: i128 = 1 << 120;

/// Spans in the order of their ends.
#[derive(Debug, Clone)]
pub struct Spans {
    by_end: Vec<Span>,
}

impl Spans {
    /// Takes spans in any order. One that ends before it begins, because two clocks were read, is
    /// turned around.
    #[must_use]
    pub fn new(spans: Vec<Span>) -> Self {
        let upright = |span: Span| Span {
            from_us: span.from_us.min(span.to_us),
            to_us: span.from_us.max(span.to_us),
            ..span
        };
        let mut by_end: Vec<Span> = spans.into_iter().map(upright).collect();
        by_end.sort_unstable_by_key(|span| span.to_us);
        Self { by_end }
    }

    /// Checks that no interval has more than `burst + rate x T` in it, T being longer than the
    /// interval by `slack_us`.
    ///
    /// # Errors
    /// If one has: how much, and which one.
    pub fn at_most_at_rate(
        &self,
        token: Interval,
        burst: u64,
        slack_us: u64,
    ) -> Result<(), String> {
        let (numerator, denominator) =
            (i128::from(token.numerator_us), i128::from(token.denominator));
        let mut starts: Vec<u64> = self.by_end.iter().map(|span| span.from_us).collect();
        starts.sort_unstable();
        starts.dedup();
        let since = |at_us: u64| i128::from(at_us) * denominator;
        // For each start s, the tokens of all spans so far that begin at s or later, and what has been
        // earned up to s; less what is earned up to an interval's end, that is its excess. A start
        // counts from when a span that begins there has ended.
        let mut excess = MaxTree::new(starts.iter().map(|start| since(*start) - NOT_YET));
        let mut is_counted = vec![false; starts.len()];
        let most = i128::from(burst) * numerator + i128::from(slack_us) * denominator;
        for span in &self.by_end {
            let at = starts.partition_point(|start| *start <= span.from_us);
            excess.add_to_first(at, i128::from(span.tokens) * numerator);
            if !std::mem::replace(&mut is_counted[at - 1], true) {
                excess.add_to_first(at, NOT_YET);
                excess.add_to_first(at - 1, -NOT_YET);
            }
            if excess.max() - since(span.to_us) > most {
                return Err(self.describe_excess(&starts, token, burst, span.to_us));
            }
        }
        Ok(())
    }

    /// Names the worst interval that ends at `end_us`.
    fn describe_excess(&self, starts: &[u64], token: Interval, burst: u64, end_us: u64) -> String {
        let earned = |us: u64| us as f64 * token.denominator as f64 / token.numerator_us as f64;
        let inside = |start_us: u64| {
            let spans = self.by_end.iter().filter(|span| span.to_us <= end_us);
            spans.filter(|span| span.from_us >= start_us).map(|span| span.tokens).sum::<u64>()
        };
        let worst = starts.iter().copied().filter(|start_us| *start_us <= end_us).max_by(|a, b| {
            let excess = |start_us: u64| inside(start_us) as f64 - earned(end_us - start_us);
            excess(*a).total_cmp(&excess(*b))
        });
        let start_us = worst.unwrap_or(end_us);
        format!(
            "{} tokens in {} us from {start_us} on, where a burst of {burst} and what is earned are {:.3}",
            inside(start_us),
            end_us - start_us,
            burst as f64 + earned(end_us - start_us),
        )
    }

    /// Checks that no interval of `within` has less than `rate x (T - slack) - 1` that touches it.
    ///
    /// # Errors
    /// If one has: how much, and which one.
    pub fn at_least_at_rate(
        &self,
        token: Interval,
        within: Range<u64>,
        slack_us: u64,
    ) -> Result<(), String> {
        let (numerator, denominator) =
            (i128::from(token.numerator_us), i128::from(token.denominator));
        let least = -(numerator + i128::from(slack_us) * denominator);
        let mut begins: Vec<(u64, u64)> =
            self.by_end.iter().map(|span| (span.from_us, span.tokens)).collect();
        begins.sort_unstable();
        // What touches [a, b] is what begins by b, less what ends before a. The least is found just
        // before something begins, or at the end, from just after something ended, or the start.
        let at = |tokens: i128, at_us: u64| tokens * numerator - i128::from(at_us) * denominator;
        let mut tokens_ended = i128::from(tokens_before(&self.by_end, within.start));
        let mut worst_start = (at(tokens_ended, within.start), within.start);
        let mut ended = self.by_end.iter().skip_while(|span| span.to_us < within.start).peekable();
        let mut tokens_begun = 0_i128;
        let begins = begins.into_iter().take_while(|(from_us, _)| *from_us <= within.end);
        let ends = begins.map(|(from_us, tokens)| (from_us.saturating_sub(1), tokens));
        for (end_us, tokens) in ends.chain([(within.end, 0)]) {
            while let Some(span) = ended.next_if(|span| span.to_us < end_us) {
                tokens_ended += i128::from(span.tokens);
                worst_start = worst_start.max((at(tokens_ended, span.to_us + 1), span.to_us + 1));
            }
            let (value, start_us) = worst_start;
            if start_us <= end_us && at(tokens_begun, end_us) - value < least {
                let earned = (end_us - start_us) as f64 * denominator as f64 / numerator as f64;
                return Err(format!(
                    "too few tokens from {start_us} to {end_us}, where {earned:.3} are earned"
                ));
            }
            tokens_begun += i128::from(tokens);
        }
        Ok(())
    }

    /// Checks that no interval of `window_us` has more than `limit` in it, wherever it begins. Its
    /// last instant is in it, the one a window before is not.
    ///
    /// # Errors
    /// If one has: how much, and which one.
    pub fn at_most_in_any(&self, window_us: u64, limit: u64) -> Result<(), String> {
        let mut starts: Vec<u64> = self.by_end.iter().map(|span| span.from_us).collect();
        starts.sort_unstable();
        starts.dedup();
        let mut counts = SumTree::new(starts.len());
        let mut total = 0;
        for span in &self.by_end {
            counts.add(starts.partition_point(|start| *start < span.from_us), span.tokens);
            total += span.tokens;
            let first = starts.partition_point(|start| start + window_us <= span.to_us);
            let inside = total - counts.sum_of_first(first);
            if inside > limit {
                let end_us = span.to_us;
                return Err(format!(
                    "{inside} tokens of {limit} in the window that ends at {end_us}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that every interval of `length_us` inside `within` is touched by at least `limit`.
    ///
    /// # Errors
    /// If one is not: by how much it is, and which one.
    pub fn at_least_in_any(
        &self,
        length_us: u64,
        limit: u64,
        within: Range<u64>,
    ) -> Result<(), String> {
        let mut begins: Vec<(u64, u64)> =
            self.by_end.iter().map(|span| (span.from_us, span.tokens)).collect();
        begins.sort_unstable();
        let begun_by = |at_us: u64| -> u64 {
            begins.iter().take_while(|(from_us, _)| *from_us <= at_us).map(|(_, n)| n).sum()
        };
        let starts = self.by_end.iter().map(|span| span.to_us + 1).chain([within.start]);
        for start_us in starts.filter(|start_us| *start_us >= within.start) {
            let end_us = start_us + length_us;
            if end_us > within.end {
                continue;
            }
            let ended = tokens_before(&self.by_end, start_us);
            let touching = begun_by(end_us) - ended;
            if touching < limit {
                return Err(format!("only {touching} of {limit} tokens in {start_us}..={end_us}"));
            }
        }
        Ok(())
    }

    /// Checks that no aligned window has more than `limit` wholly in it. Windows begin at
    /// `offset_us` and every `window_us` after it.
    ///
    /// # Errors
    /// If one has: how much, and which one.
    pub fn at_most_in_aligned(
        &self,
        window_us: u64,
        offset_us: u64,
        limit: u64,
    ) -> Result<(), String> {
        let number = |at_us: u64| (at_us + window_us - offset_us) / window_us;
        let mut current = (0, 0);
        for span in &self.by_end {
            let window = number(span.to_us);
            if window != number(span.from_us) {
                continue;
            }
            if window != current.0 {
                current = (window, 0);
            }
            current.1 += span.tokens;
            if current.1 > limit {
                let at_us = span.to_us;
                return Err(format!("{} tokens of {limit} in the window of {at_us}", current.1));
            }
        }
        Ok(())
    }

    /// Checks that every aligned window that lies in `within` is touched by at least `limit`.
    ///
    /// # Errors
    /// If one is not: by how much it is, and which one.
    pub fn at_least_in_aligned(
        &self,
        window_us: u64,
        offset_us: u64,
        limit: u64,
        within: Range<u64>,
    ) -> Result<(), String> {
        let first = (within.start + window_us - offset_us).div_ceil(window_us);
        let starts = (first..).map(|number| number * window_us + offset_us - window_us);
        for start_us in starts.take_while(|start_us| start_us + window_us <= within.end) {
            let touches =
                |span: &&Span| span.from_us < start_us + window_us && span.to_us >= start_us;
            let tokens: u64 = self.by_end.iter().filter(touches).map(|span| span.tokens).sum();
            if tokens < limit {
                return Err(format!(
                    "only {tokens} of {limit} tokens in the window from {start_us}"
                ));
            }
        }
        Ok(())
    }
}

/// The tokens of all spans that end before `at_us`.
fn tokens_before(by_end: &[Span], at_us: u64) -> u64 {
    let ended = by_end.partition_point(|span| span.to_us < at_us);
    by_end[..ended].iter().map(|span| span.tokens).sum()
}

/// The largest of many numbers, to the first few of which something is added again and again.
struct MaxTree {
    /// Of each node, the largest number below it without what was added above it.
    max: Vec<i128>,
    /// What was added to all below a node.
    added: Vec<i128>,
    leaves: usize,
}

impl MaxTree {
    fn new(numbers: impl ExactSizeIterator<Item = i128>) -> Self {
        let leaves = numbers.len().next_power_of_two().max(1);
        let mut max = vec![i128::MIN / 2; 2 * leaves];
        for (at, number) in numbers.enumerate() {
            max[leaves + at] = number;
        }
        for node in (1..leaves).rev() {
            max[node] = max[2 * node].max(max[2 * node + 1]);
        }
        Self { max, added: vec![0; 2 * leaves], leaves }
    }

    fn max(&self) -> i128 {
        self.max[1]
    }

    fn add_to_first(&mut self, count: usize, number: i128) {
        self.add(1, 0, self.leaves, count, number);
    }

    fn add(&mut self, node: usize, start: usize, end: usize, count: usize, number: i128) {
        if count <= start {
            return;
        }
        if count >= end {
            self.max[node] += number;
            self.added[node] += number;
            return;
        }
        let middle = start.midpoint(end);
        self.add(2 * node, start, middle, count, number);
        self.add(2 * node + 1, middle, end, count, number);
        self.max[node] = self.max[2 * node].max(self.max[2 * node + 1]) + self.added[node];
    }
}

/// Sums of the first few of many numbers, each of which grows now and then.
struct SumTree {
    sums: Vec<u64>,
}

impl SumTree {
    fn new(len: usize) -> Self {
        Self { sums: vec![0; len + 1] }
    }

    fn add(&mut self, at: usize, number: u64) {
        let mut at = at + 1;
        while let Some(sum) = self.sums.get_mut(at) {
            *sum += number;
            at += at & at.wrapping_neg();
        }
    }

    fn sum_of_first(&self, count: usize) -> u64 {
        let mut at = count;
        let mut sum = 0;
        while at > 0 {
            sum += self.sums[at];
            at -= at & at.wrapping_neg();
        }
        sum
    }
}

#[cfg(test)]
mod tests;
