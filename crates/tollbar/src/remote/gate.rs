//! Keeps a stampede from the network: of equal questions at the same time, only some are sent.
//!
//! The others wait here, for half of their deadlines. If one that was sent is denied, its denial answers
//! the others too, through the [deny cache](super::DenyCache). If it is allowed, the next one is sent. A key
//! that is denied costs the server as many calls as may be under way, however many clients ask.
//!
//! A question that has waited for too long, or finds too many that wait, does not pass. Its caller denies it as
//! busy: one key that is asked for too much is no outage of the server, and must not be let through like one.
//!
//! Questions share a fixed number of places by their hash. Two that share a place wait for each other.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::deadlines::Exchange;

const PLACES: usize = 1_024;

/// Lets a bounded number of equal questions through at once.
#[derive(Debug)]
pub struct Gate {
    places: Box<[Place]>,
    hasher: RandomState,
}

/// Room for equal questions.
#[derive(Debug)]
struct Place {
    passing: Semaphore,
    waiting: Semaphore,
}

/// A question that has passed the gate. The next may pass when this is dropped.
#[derive(Debug)]
pub struct GatePass<'g> {
    _permit: SemaphorePermit<'g>,
    /// True if it had to wait for others: their answers may be known now.
    pub has_waited: bool,
}

impl Gate {
    /// A gate that lets `passing_max` equal questions pass at once and `waiting_max` wait; `None` where none may pass.
    #[must_use]
    pub fn with_limits(passing_max: usize, waiting_max: usize) -> Option<Self> {
        let room = |max: usize| Semaphore::new(max.min(Semaphore::MAX_PERMITS));
        let place = |_| Place { passing: room(passing_max), waiting: room(waiting_max) };
        let places = || (0..PLACES).map(place).collect();
        (passing_max > 0).then(|| Self { places: places(), hasher: RandomState::new() })
    }

    /// Waits until there is room, for half of the time of `exchange` at most. Returns `None` if there was none, or if
    /// too many wait already.
    pub async fn pass(&self, exchange: &Exchange<'_>, question: impl Hash) -> Option<GatePass<'_>> {
        let at = self.hasher.hash_one(question) % self.places.len() as u64;
        let place = &self.places[at as usize];
        if let Ok(permit) = place.passing.try_acquire() {
            return Some(GatePass { _permit: permit, has_waited: false });
        }
        let _waiting = place.waiting.try_acquire().ok()?;
        // Fails only if it is closed, which nothing does.
        let permit = exchange.in_half_time(place.passing.acquire()).await?.ok()?;
        Some(GatePass { _permit: permit, has_waited: true })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::runtime::Handle;
    use tokio::time::Instant;

    use super::super::deadlines::Deadlines;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_question_waits_for_half_of_its_time_and_not_at_all_behind_too_many() {
        let deadline = Duration::from_mins(1);
        let deadlines = Deadlines::new(Handle::current(), deadline, 9);
        let exchange = deadlines.begin().unwrap();
        let gate = Gate::with_limits(1, 1).unwrap();
        let pass = gate.pass(&exchange, "hot").await.unwrap();
        assert!(!pass.has_waited);
        let started = Instant::now();
        let one_too_many = async {
            assert!(gate.pass(&exchange, "hot").await.is_none());
            assert_eq!(started.elapsed(), Duration::ZERO);
        };
        let (second, ()) = tokio::join!(gate.pass(&exchange, "hot"), one_too_many);
        assert!(second.is_none());
        let waited = started.elapsed();
        assert!((deadline / 2..deadline * 2 / 3).contains(&waited), "{waited:?}");
        let (third, ()) = tokio::join!(gate.pass(&exchange, "hot"), async { drop(pass) });
        assert!(third.unwrap().has_waited);
    }
}
