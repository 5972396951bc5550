//! Keeps a stampede from the network: of those who ask the same at the same time, only some are sent.
//!
//! The others wait here, within their own deadlines. If one that was sent is denied, its denial answers
//! them too, by the [deny cache](crate::deny_cache); if it is allowed, the next one is sent. So nobody is
//! denied whom the server would allow, and nobody allowed without it: what is asked for in vain costs it
//! as many calls as may be under way, however many ask.
//!
//! Questions share a fixed number of places by their hash. Two that share one wait for each other.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::RedisStoreError;
use crate::exchange::Exchange;

const PLACES: usize = 1_024;

/// The gate, where there is one.
#[derive(Debug)]
pub(crate) struct Gate {
    places: Box<[Semaphore]>,
    hasher: RandomState,
}

/// Whoever has passed; the next may when this is dropped.
#[derive(Debug)]
pub(crate) struct Passed<'g> {
    _permit: SemaphorePermit<'g>,
    /// Whether others were before it, whose answers may be known now.
    pub(crate) has_waited: bool,
}

impl Gate {
    /// That lets so many pass at once; none where that is none.
    pub(crate) fn of(passing_max: usize) -> Option<Self> {
        let passing_max = passing_max.min(Semaphore::MAX_PERMITS);
        let places = || (0..PLACES).map(|_| Semaphore::new(passing_max)).collect();
        (passing_max > 0).then(|| Self { places: places(), hasher: RandomState::new() })
    }

    /// Waits until there is room, no longer than there is time.
    pub(crate) async fn pass(
        &self,
        exchange: &Exchange<'_>,
        question: &[u8],
    ) -> Result<Passed<'_>, RedisStoreError> {
        let at = self.hasher.hash_one(question) % self.places.len() as u64;
        let place = &self.places[at as usize];
        if let Ok(permit) = place.try_acquire() {
            return Ok(Passed { _permit: permit, has_waited: false });
        }
        let waiting = async {
            // Fails only where somebody closes it, which nobody does.
            place.acquire().await.map_err(|_| RedisStoreError::Garbled)
        };
        Ok(Passed { _permit: exchange.in_time(waiting).await?, has_waited: true })
    }
}
