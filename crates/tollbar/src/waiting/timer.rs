//! What sleeps until a turn comes.

mod manual;
mod thread;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

pub use manual::ManualTimer;
pub(super) use thread::ThreadTimer;

/// A sleep that has begun.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sleeps without holding up a thread.
///
/// Any function from a duration to a future is a timer, so a runtime's own will do:
///
/// ```
/// # mod tokio { pub mod time { pub async fn sleep(_: std::time::Duration) {} } }
/// use tollbar::{Limiter, Policy};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter =
///     Limiter::builder(Policy::leaky_queue("10/s", 100)?).timer(tokio::time::sleep).build()?;
/// # Ok(())
/// # }
/// ```
///
/// It may be late, as every timer is. If it is early by the clock of the store, whoever sleeps
/// goes to sleep again.
pub trait Timer: Send + Sync + 'static {
    /// A future that is ready `duration` from now. The time runs from this call, not from the first
    /// poll.
    fn sleep(&self, duration: Duration) -> Sleep;
}

impl<T, F> Timer for T
where
    T: Fn(Duration) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(self(duration))
    }
}
