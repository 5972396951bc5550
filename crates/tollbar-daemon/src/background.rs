//! Work that takes a while, such as putting ten thousand rules together: on threads that stand back for
//! those that answer requests.
//!
//! The runtime's threads are not for it: a request would wait until it is done. Those that the runtime keeps
//! for what blocks are as important as the ones that answer.

use std::thread;

use tokio::sync::{Semaphore, oneshot};
use tracing::{debug, error};

/// How far it stands back. Where all cores are busy it still gets about a quarter of one, so that rules
/// of usual number are in force within a second.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

/// How much is worked on at once: each may hold all rules once more. Who comes then waits.
static SLOTS: Semaphore = Semaphore::const_new(SLOTS_MAX);
const SLOTS_MAX: usize = 4;

/// Does `work`, and returns what came of it: `None` where it has panicked, or no thread is to be had. Either is logged.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let place = SLOTS.acquire().await.ok()?;
    let (answer, answered) = oneshot::channel();
    let serve = move || {
        lower_priority();
        #[expect(clippy::let_underscore_must_use, reason = "the caller gave up waiting")]
        let _ = answer.send(work());
        // Taken until it is done, also where nobody waits for it.
        drop(place);
    };
    let thread = thread::Builder::new().name("tollbar-work".to_owned()).spawn(serve);
    if let Err(error) = thread {
        error!(%error, "cannot start a thread for background work");
        return None;
    }
    answered.await.ok()
}

/// This thread stands back from now on. Where that cannot be had, it works all the same.
pub fn lower_priority() {
    // Elsewhere it would be all of the process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(NICENESS) {
        debug!(%error, "background work does not stand back");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};
    use std::task::{Context, Waker};

    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[tokio::test]
    async fn what_came_of_it_is_answered_and_a_panic_is_none() {
        assert_eq!(run(|| 6 * 7).await, Some(42));
        assert_eq!(run(|| -> u8 { std::panic::resume_unwind(Box::new(())) }).await, None);
    }

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "the tasks of a test")]
    async fn a_place_is_taken_until_the_work_is_done_also_where_nobody_waits_for_it() {
        let (begun, mut has_begun) = unbounded_channel();
        let end = Arc::new(Barrier::new(SLOTS_MAX + 1));
        let job = || {
            let (begun, end) = (begun.clone(), Arc::clone(&end));
            tokio::spawn(run(move || {
                begun.send(()).unwrap();
                end.wait();
            }))
        };
        let jobs: Vec<_> = (0..SLOTS_MAX).map(|_| job()).collect();
        for _ in &jobs {
            has_begun.recv().await;
        }
        for given_up in jobs {
            given_up.abort();
            assert!(given_up.await.is_err());
        }
        let mut next = Box::pin(run(|| 42));
        assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(SLOTS.available_permits(), 0);
        end.wait();
        assert_eq!(next.await, Some(42));
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
