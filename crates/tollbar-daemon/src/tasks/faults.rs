//! Faults on purpose, for tests of the real binary; builds for release have none of this.
//!
//! `TOLLBAR_TEST_TASK_FAULTS=panic:usage,stall:snapshot` makes these tasks fail once, after their first turn that
//! succeeds.

use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use super::state::TaskState;

static FAULTS: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(|| {
    let text = std::env::var("TOLLBAR_TEST_TASK_FAULTS").unwrap_or_default();
    Mutex::new(text.split(',').filter(|fault| !fault.is_empty()).map(str::to_owned).collect())
});

/// Runs a task until it is its turn to fail.
pub(super) async fn inject(state: &TaskState, run: impl Future<Output = ()>) {
    let mut run = pin!(run);
    let mut is_stalled = false;
    poll_fn(|context| {
        if state.successes() > 0 {
            assert!(!take("panic", state.name), "a fault on purpose");
            is_stalled |= take("stall", state.name);
        }
        if is_stalled { Poll::Pending } else { run.as_mut().poll(context) }
    })
    .await;
}

/// Returns the longest time for a turn: a few seconds for a task that will stall, so that tests need not wait long.
pub(super) fn turn_max(name: &str, turn_max: Duration) -> Duration {
    let faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    if faults.contains(&format!("stall:{name}")) { Duration::from_secs(4) } else { turn_max }
}

fn take(fault: &str, name: &str) -> bool {
    FAULTS.lock().unwrap_or_else(PoisonError::into_inner).remove(&format!("{fault}:{name}"))
}
