//! The commands between `MULTI` and `EXEC`. They are kept as they were sent and read again when they run, so that a
//! queued command is answered exactly as one that is sent alone. Which commands are queued is the session's business.

use thiserror::Error;

/// The most commands of a transaction.
pub(super) const COMMANDS_MAX: usize = 1_024;

/// The most bytes that the commands of a transaction have together, as they were sent.
pub(super) const BYTES_MAX: usize = 256 * 1024;

/// Commands that wait for `EXEC`.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    frames: Vec<u8>,
    count: usize,
    is_aborted: bool,
}

/// Commands that `EXEC` runs.
#[derive(Debug)]
pub(super) struct QueuedCommands {
    frames: Vec<u8>,
    /// Frames before this offset have run.
    start: usize,
    pub(super) count: usize,
}

/// A transaction that has room for no more commands.
#[derive(Debug, PartialEq, Eq, Error)]
#[error(
    "a transaction has at most {COMMANDS_MAX} commands and {BYTES_MAX} bytes: send EXEC sooner"
)]
pub(super) struct TransactionFull;

impl Transaction {
    /// Queues a command. An aborted transaction keeps nothing, because nothing of it will run.
    pub(super) fn push(&mut self, frame: &[u8]) -> Result<(), TransactionFull> {
        if self.is_aborted {
            return Ok(());
        }
        if self.count == COMMANDS_MAX || self.frames.len() + frame.len() > BYTES_MAX {
            return Err(TransactionFull);
        }
        self.frames.extend_from_slice(frame);
        self.count += 1;
        Ok(())
    }

    /// Makes `EXEC` run nothing, because a command could not be queued.
    pub(super) fn abort(&mut self) {
        *self = Self { is_aborted: true, ..Self::default() };
    }

    /// Returns the commands to run, or `None` if the transaction was aborted.
    pub(super) fn into_commands(self) -> Option<QueuedCommands> {
        let Self { frames, count, is_aborted } = self;
        (!is_aborted).then_some(QueuedCommands { frames, start: 0, count })
    }
}

impl QueuedCommands {
    /// Returns the frames that have not run yet.
    pub(super) fn rest(&self) -> &[u8] {
        &self.frames[self.start..]
    }

    /// Marks the next `bytes` as run.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.start += bytes;
    }
}
