//! The task that makes a new connection whenever there is none, for as long as it takes.

use std::sync::Arc;

use crate::backoff;
use crate::link::Shared;

/// Runs until it is aborted, which whoever started it does.
pub(crate) async fn keep(shared: Arc<Shared>, is_connected: bool) {
    let mut failures = 0;
    if is_connected {
        shared.lost().await;
    }
    loop {
        match shared.node.connect().await {
            Ok(connections) => {
                shared.connected(connections);
                shared.lost().await;
                // One that is lost as soon as it is made counts as a failure.
                failures = 1;
            }
            Err(error) => {
                shared.not_connected(&error);
                failures += 1;
            }
        }
        tokio::time::sleep(backoff::delay(failures)).await;
    }
}
