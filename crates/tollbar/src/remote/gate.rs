//! Keeps a stampede from the network: of equal questions at the same time, only some are sent.
//!
//! The others wait here, within their own deadlines. If one that was sent is denied, its denial answers
//! the others too, through the [deny cache](super::DenyCache). If it is allowed, the next one is sent. So
//! the gate denies nothing that the server would allow, and allows nothing without the server. A key that
//! is denied costs the server as many calls as may be under way, however many clients ask.
//!
//! Questions share a fixed number of places by their hash. Two that share a place wait for each other.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::deadlines::Exchange;
use super::failure::Failure;

const PLACES: usize = 1_024;

/// Lets a bounded number of equal questions through at once.
#[derive(Debug)]
pub struct Gate {
    places: Box<[Semaphore]>,
    hasher: RandomState,
}

/// A question that has passed the gate. The next may pass when this is dropped.
#[derive(Debug)]
pub struct GatePass<'g> {
    _permit: Option<SemaphorePermit<'g>>,
    /// True if it had to wait for others: their answers may be known now.
    pub has_waited: bool,
}

impl Gate {
    /// A gate that lets so many pass at once; `None` where that is 0.
    #[must_use]
    pub fn with_limit(passing_max: usize) -> Option<Self> {
        let passing_max = passing_max.min(Semaphore::MAX_PERMITS);
        let places = || (0..PLACES).map(|_| Semaphore::new(passing_max)).collect();
        (passing_max > 0).then(|| Self { places: places(), hasher: RandomState::new() })
    }

    /// Waits until there is room, at most until the deadline of `exchange`.
    pub async fn pass<E: Failure>(
        &self,
        exchange: &Exchange<'_>,
        question: &[u8],
    ) -> Result<GatePass<'_>, E> {
        let at = self.hasher.hash_one(question) % self.places.len() as u64;
        let place = &self.places[at as usize];
        if let Ok(permit) = place.try_acquire() {
            return Ok(GatePass { _permit: Some(permit), has_waited: false });
        }
        // Fails only if it is closed, which nothing does.
        let waiting = async { Ok(place.acquire().await.ok()) };
        Ok(GatePass { _permit: exchange.in_time(waiting).await?, has_waited: true })
    }
}
