//! Who waits for one key, and the turns they have taken. Knows no lock, no clock and no store.
//!
//! The first waiter has the first turn, the second the second. There are never fewer turns than
//! waiters, and each is as wide as its waiter needs. What is more is left over, at the end.

use std::collections::VecDeque;
use std::task::Waker;

use crate::Interval;

/// A place in the store's queue, or several in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    /// When it comes, by the store's clock.
    pub(super) at_us: u64,
    /// How many tokens it was charged.
    pub(super) places: u64,
    /// How long they take: until then after it, nobody else's turn comes. Nanoseconds, rounded down.
    pub(super) width_ns: u64,
    /// What the store calls the charge; 0 where it cannot be given back.
    pub(super) stamp: u64,
}

impl Turn {
    /// When the turn after it may come at the earliest.
    fn end_us(self) -> u64 {
        self.at_us.saturating_add(self.width_ns / 1_000)
    }
}

/// A turn that somebody is giving back to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InHand {
    pub(super) turn: Turn,
    /// How many had gone back when it was taken.
    returned_count: u64,
}

/// Names a waiter for as long as it waits. Later ones are larger.
pub(super) type Ticket = u64;

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    width_ns: u64,
    waker: Option<Waker>,
    has_left: bool,
}

/// Who waits for one key.
#[derive(Debug)]
pub(super) struct Line {
    /// In the order of their tickets. Those who have left from the middle stay as gaps until they
    /// are at an end or outnumber the others: the first and the last one are always there.
    waiters: VecDeque<Waiting>,
    gap_count: usize,
    /// In the order of time.
    turns: VecDeque<Turn>,
    /// Turns that somebody is giving back to the store at this moment.
    in_hand_count: usize,
    /// Turns that the store has taken back so far.
    returned_count: u64,
    interval: Interval,
    /// How wide all turns are, and what all waiters need; `None` once there were two widths.
    width_ns: Option<u64>,
}

/// What a waiter is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Go: its turn has come.
    Go,
    /// Sleep until then, and look again: it is the first.
    First { until_us: u64 },
    /// Wait to be woken.
    Behind,
}

/// Gaps are worth a pass over the line once there are more than this, and more than waiters.
const GAP_COUNT_MAX: usize = 32;

impl Line {
    pub(super) fn new(interval: Interval, width_ns: u64) -> Self {
        Self {
            waiters: VecDeque::new(),
            gap_count: 0,
            turns: VecDeque::new(),
            in_hand_count: 0,
            returned_count: 0,
            interval,
            width_ns: Some(width_ns),
        }
    }

    pub(super) fn waiter_count(&self) -> usize {
        self.waiters.len() - self.gap_count
    }

    /// Nobody waits, and whoever has a turn in hand has done with it: what is left of its turns, no
    /// store would take.
    pub(super) fn is_over(&self) -> bool {
        self.waiters.is_empty() && self.in_hand_count == 0
    }

    /// What it takes up beside itself.
    pub(super) fn bytes(&self) -> usize {
        self.waiters.capacity() * size_of::<Waiting>() + self.turns.capacity() * size_of::<Turn>()
    }

    /// A waiter joins at the end and brings a turn. `is_exact` is false where the turn was reckoned
    /// from the moment an answer came in: then it may be out of step with those before it.
    pub(super) fn join(
        &mut self,
        ticket: Ticket,
        mut turn: Turn,
        interval: Interval,
        is_exact: bool,
        woken: &mut Vec<Waker>,
    ) {
        let width_ns = turn.width_ns;
        if interval != self.interval {
            // The rule has changed: what is given back must be what was taken.
            turn.stamp = 0;
        }
        if self.width_ns != Some(width_ns) {
            self.width_ns = None;
        }
        if is_exact && self.width_ns.is_some() {
            // Two who asked the store at the same time may come here in the other order. Any turn
            // will do for anybody, so the first to come has the first.
            let at = self.insert(turn);
            if at == 0 {
                // The first sleeps until a later one.
                woken.extend(self.wake_first());
            }
        } else {
            let after_last = self.turns.back().map(|last| last.end_us());
            turn.at_us = turn.at_us.max(after_last.unwrap_or(0));
            self.turns.push_back(turn);
            // A turn that was left over has to be wide enough.
            let own = self.waiter_count();
            while self.turns[own].width_ns < width_ns {
                self.turns.remove(own);
            }
        }
        self.waiters.push_back(Waiting { ticket, width_ns, waker: None, has_left: false });
    }

    /// Lets everybody go whose turn has come, and says who has to be woken for it: they, and the
    /// one who is the first now.
    pub(super) fn let_go(&mut self, now_us: u64, woken: &mut Vec<Waker>) {
        let mut has_changed = false;
        while let Some(turn) = self.turns.front()
            && turn.at_us <= now_us
            && let Some(first) = self.waiters.pop_front()
        {
            self.turns.pop_front();
            woken.extend(first.waker);
            self.trim();
            has_changed = true;
        }
        if has_changed {
            woken.extend(self.wake_first());
        }
    }

    /// Whoever is not in the line has been let go.
    pub(super) fn progress(&self, ticket: Ticket) -> Progress {
        match self.find(ticket) {
            None => Progress::Go,
            Some(0) => {
                let until_us = self.turns.front().map_or(0, |turn| turn.at_us);
                Progress::First { until_us }
            }
            Some(_) => Progress::Behind,
        }
    }

    /// Stops waking a waiter, which is awake.
    pub(super) fn take_waker(&mut self, ticket: Ticket) -> Option<Waker> {
        let at = self.find(ticket)?;
        self.waiters[at].waker.take()
    }

    /// Has `waker` woken when it is the turn of `ticket`, or `ticket` is the first.
    pub(super) fn set_waker(&mut self, ticket: Ticket, waker: Waker) {
        if let Some(at) = self.find(ticket) {
            self.waiters[at].waker = Some(waker);
        }
    }

    /// A waiter gives up; false where it was not waiting any more.
    pub(super) fn leave(&mut self, ticket: Ticket, woken: &mut Vec<Waker>) -> bool {
        let Some(at) = self.find(ticket) else {
            return false;
        };
        if self.width_ns.is_none() {
            self.close_up(at);
        }
        self.waiters[at].has_left = true;
        self.gap_count += 1;
        self.trim();
        if at == 0 {
            woken.extend(self.wake_first());
        }
        true
    }

    /// Before the waiter at `at` leaves: the first behind it that needs more than the turn it would
    /// move up to stays where it is, and that turn is lost.
    fn close_up(&mut self, at: usize) {
        let before = self.waiters.iter().take(at).filter(|waiter| !waiter.has_left).count();
        let behind = self.waiters.iter().skip(at + 1).filter(|waiter| !waiter.has_left);
        let too_narrow = behind
            .zip(self.turns.iter().skip(before))
            .position(|(waiter, turn)| turn.width_ns < waiter.width_ns);
        if let Some(steps) = too_narrow {
            self.turns.remove(before + steps);
        }
    }

    /// Takes the last turn out of the line if nobody has it and the store might take it back. It
    /// would not take `refused`, unless another has gone back since: then that may be the last.
    /// Places are as wide as `interval`, under which they are given back: it must be the line's.
    pub(super) fn take_left_over(
        &mut self,
        interval: Interval,
        refused: Option<InHand>,
    ) -> Option<InHand> {
        let turn = self.turns.back().copied().filter(|_| interval == self.interval)?;
        let in_hand = InHand { turn, returned_count: self.returned_count };
        if !self.has_left_over() || turn.stamp == 0 || refused == Some(in_hand) {
            return None;
        }
        self.turns.pop_back();
        self.in_hand_count += 1;
        Some(in_hand)
    }

    /// A turn that was [taken](Self::take_left_over) is the store's again.
    pub(super) fn returned(&mut self) {
        self.in_hand_count -= 1;
        self.returned_count += 1;
    }

    /// The store has not taken a turn back. It is for whoever comes next, if all need the same: only
    /// then is it known to fit.
    pub(super) fn refused(&mut self, turn: Option<Turn>, woken: &mut Vec<Waker>) {
        self.in_hand_count -= 1;
        let Some(turn) = turn.filter(|turn| self.width_ns == Some(turn.width_ns)) else {
            return;
        };
        if self.insert(turn) == 0 {
            // The first sleeps until a later one.
            woken.extend(self.wake_first());
        }
    }

    /// Puts a turn where it belongs, and says where that is: as a rule at the end.
    fn insert(&mut self, turn: Turn) -> usize {
        let is_last = self.turns.back().is_none_or(|last| last.at_us <= turn.at_us);
        let at = if is_last {
            self.turns.len()
        } else {
            self.turns.partition_point(|earlier| earlier.at_us <= turn.at_us)
        };
        self.turns.insert(at, turn);
        at
    }

    /// True where a turn may be given back.
    pub(super) fn has_left_over(&self) -> bool {
        self.turns.len() > self.waiter_count()
    }

    fn wake_first(&mut self) -> Option<Waker> {
        self.waiters.front_mut()?.waker.take()
    }

    fn find(&self, ticket: Ticket) -> Option<usize> {
        // Where no other key of the shard has tickets in between, it is at its distance from the first.
        let distance = ticket.checked_sub(self.waiters.front()?.ticket)?;
        let guess = usize::try_from(distance).ok();
        let is_there = |at: &usize| self.waiters.get(*at).is_some_and(|it| it.ticket == ticket);
        guess
            .filter(is_there)
            .or_else(|| self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok())
    }

    fn trim(&mut self) {
        let has_left = |waiter: Option<&Waiting>| waiter.is_some_and(|it| it.has_left);
        while has_left(self.waiters.front()) {
            self.waiters.pop_front();
            self.gap_count -= 1;
        }
        while has_left(self.waiters.back()) {
            self.waiters.pop_back();
            self.gap_count -= 1;
        }
        if self.gap_count > GAP_COUNT_MAX.max(self.waiter_count()) {
            self.waiters.retain(|waiter| !waiter.has_left);
            self.gap_count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Interval = Interval { numerator_us: 10, denominator: 1 };

    fn turn(at_us: u64) -> Turn {
        Turn { at_us, places: 1, width_ns: 10_000, stamp: at_us }
    }

    fn line(turns_us: &[u64]) -> Line {
        let mut line = Line::new(INTERVAL, 10_000);
        for (ticket, at_us) in (1..).zip(turns_us) {
            line.join(ticket, turn(*at_us), INTERVAL, true, &mut Vec::new());
        }
        line
    }

    #[test]
    fn the_first_to_come_has_the_first_turn_whoever_asked_the_store_first() {
        let mut line = line(&[20]);
        line.set_waker(1, Waker::noop().clone());
        let mut woken = Vec::new();
        line.join(2, turn(10), INTERVAL, true, &mut woken);
        assert_eq!(woken.len(), 1, "it sleeps until 20");
        assert_eq!(line.progress(1), Progress::First { until_us: 10 });
        line.let_go(10, &mut woken);
        assert_eq!(line.progress(1), Progress::Go);
        assert_eq!(line.progress(2), Progress::First { until_us: 20 });
    }

    #[test]
    fn a_turn_that_is_not_exact_keeps_its_distance() {
        let mut line = line(&[20]);
        line.join(2, turn(23), INTERVAL, false, &mut Vec::new());
        line.let_go(20, &mut Vec::new());
        assert_eq!(line.progress(2), Progress::First { until_us: 30 });
    }

    #[test]
    fn who_needs_a_wide_turn_does_not_move_up_to_a_narrow_one_and_those_before_keep_theirs() {
        let mut line = line(&[10, 20]);
        let wide = Turn { places: 2, width_ns: 20_000, ..turn(30) };
        line.join(3, wide, INTERVAL, true, &mut Vec::new());
        assert!(line.leave(2, &mut Vec::new()));
        assert_eq!(line.progress(1), Progress::First { until_us: 10 });
        line.let_go(10, &mut Vec::new());
        assert_eq!(line.progress(3), Progress::First { until_us: 30 });
    }

    #[test]
    fn those_who_left_from_the_middle_take_up_no_more_room_than_those_who_stay() {
        let mut line = line(&[10]);
        for ticket in 2..10_000 {
            line.join(ticket, turn(10 * ticket), INTERVAL, true, &mut Vec::new());
            line.join(100_000, turn(1_000_000), INTERVAL, true, &mut Vec::new());
            assert!(line.leave(ticket, &mut Vec::new()));
            assert!(line.leave(100_000, &mut Vec::new()));
            assert!(!line.leave(ticket, &mut Vec::new()));
        }
        assert_eq!(line.waiter_count(), 1);
        assert!(line.waiters.len() <= 2 + GAP_COUNT_MAX, "{}", line.waiters.len());
    }

    #[test]
    fn gaps_are_closed_once_they_are_too_many_and_more_than_those_who_stay() {
        for stay_count in [2, 50] {
            let gap_count_max = GAP_COUNT_MAX.max(stay_count);
            let leave_count = gap_count_max as u64 + 1;
            let turns_us: Vec<u64> =
                (1..=leave_count + stay_count as u64).map(|it| 10 * it).collect();
            let mut line = line(&turns_us);
            // The first one stays, and all behind those who leave.
            for ticket in 2..=leave_count {
                assert!(line.leave(ticket, &mut Vec::new()));
            }
            assert_eq!(line.waiters.len(), turns_us.len(), "not yet");
            assert!(line.leave(leave_count + 1, &mut Vec::new()));
            assert_eq!((line.waiters.len(), line.waiter_count()), (stay_count, stay_count));
        }
    }
}
