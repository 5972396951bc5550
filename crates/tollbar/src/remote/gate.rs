//! Keeps a stampede from the network: of those who ask the same at the same time, only some are sent.
//!
//! The others wait here, within their own deadlines. If one that was sent is denied, its denial answers
//! them too, by the [deny cache](super::DenyCache); if it is allowed, the next one is sent. So nobody is
//! denied whom the server would allow, and nobody allowed without it: what is asked for in vain costs it
//! as many calls as may be under way, however many ask.
//!
//! Questions share a fixed number of places by their hash. Two that share one wait for each other.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::deadlines::Exchange;
use super::failure::Failure;

const PLACES: usize = 1_024;

/// The gate.
#[derive(Debug)]
pub struct Gate {
    places: Box<[Semaphore]>,
    hasher: RandomState,
}

/// One that has passed. The next may pass when this is dropped.
#[derive(Debug)]
pub struct Passed<'g> {
    _permit: Option<SemaphorePermit<'g>>,
    /// Whether others were before it, whose answers may be known now.
    pub has_waited: bool,
}

impl Gate {
    /// A gate that lets so many pass at once; `None` where that is 0.
    #[must_use]
    pub fn of(passing_max: usize) -> Option<Self> {
        let passing_max = passing_max.min(Semaphore::MAX_PERMITS);
        let places = || (0..PLACES).map(|_| Semaphore::new(passing_max)).collect();
        (passing_max > 0).then(|| Self { places: places(), hasher: RandomState::new() })
    }

    /// Waits until there is room, no longer than there is time.
    pub async fn pass<E: Failure>(
        &self,
        exchange: &Exchange<'_>,
        question: &[u8],
    ) -> Result<Passed<'_>, E> {
        let at = self.hasher.hash_one(question) % self.places.len() as u64;
        let place = &self.places[at as usize];
        if let Ok(permit) = place.try_acquire() {
            return Ok(Passed { _permit: Some(permit), has_waited: false });
        }
        // Fails only if it is closed, which nothing does.
        let waiting = async { Ok(place.acquire().await.ok()) };
        Ok(Passed { _permit: exchange.in_time(waiting).await?, has_waited: true })
    }
}
