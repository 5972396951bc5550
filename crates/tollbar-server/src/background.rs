//! Work that takes a while, such as putting ten thousand rules together: on threads that stand back for
//! those that answer requests.
//!
//! The runtime's threads are not for it, and those that it keeps for what blocks are as important as the
//! ones that answer: where all cores are busy, a request would wait until such a one has had its turn.

use std::thread;

use tokio::sync::{Semaphore, oneshot};

/// How far it stands back. Where all cores are busy it still gets about a quarter of one, so that rules
/// of usual number are in force within a second.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

/// How much is worked on at once: each may hold all rules once more. Who comes then waits.
static PLACES: Semaphore = Semaphore::const_new(4);

/// Does `work`, and answers what came of it: `None` where it has panicked, or no thread is to be had.
pub(crate) async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let place = PLACES.acquire().await.ok()?;
    let (answer, answered) = oneshot::channel();
    let serve = move || {
        stand_back();
        // Who gave up waiting is not told, and the place is taken until it is done all the same.
        let _ = answer.send(work());
        drop(place);
    };
    thread::Builder::new().name("tollbar-work".to_owned()).spawn(serve).ok()?;
    answered.await.ok()
}

/// This thread stands back from now on. Where that cannot be had, it works all the same.
pub(crate) fn stand_back() {
    // Elsewhere it would be all of the process.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICENESS);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test]
    async fn what_came_of_it_is_answered_and_a_panic_is_none() {
        assert_eq!(run(|| 6 * 7).await, Some(42));
        assert_eq!(run(|| -> u8 { std::panic::resume_unwind(Box::new(())) }).await, None);
    }

    #[tokio::test]
    async fn four_at_once_also_where_nobody_waits_for_them() {
        let (at_work, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let job = || {
            let (at_work, most) = (Arc::clone(&at_work), Arc::clone(&most));
            run(move || {
                most.fetch_max(at_work.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                at_work.fetch_sub(1, Ordering::SeqCst);
            })
        };
        for _ in 0..100 {
            // Begun, and given up.
            let mut given_up = Box::pin(job());
            let _ = given_up.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        futures_util::future::join_all((0..100).map(|_| job())).await;
        assert!((1..=4).contains(&most.load(Ordering::SeqCst)), "{most:?}");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn only_who_works_stands_back() {
        let niceness = || rustix::process::getpriority_process(None).unwrap_or(i32::MAX);
        let before = niceness();
        assert_eq!(run(niceness).await, Some((before + NICENESS).min(19)));
        assert_eq!(niceness(), before);
    }
}
