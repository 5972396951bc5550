//! The Redis protocol: `CL.THROTTLE` as redis-cell has it, and the daemon's rules as commands.
//!
//! Here are the bytes: one buffer in, one buffer out, both bounded. What has arrived is answered as a
//! whole and written at once; while a client does not take its answers, nothing more is read from it.
//! What is said is the [`Session`]'s business.
//!
//! When the daemon stops, a connection reads no more, answers what it has read, and closes.

mod check;
mod command;
pub mod frame;
mod reply;
mod session;
mod throttle;
mod transaction;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};
use tollbar::Store;

use crate::daemon::Daemon;
use crate::net::{Connection, Protocol};
use crate::shutdown::ShutdownSignal;
use frame::FRAME_BYTES_MAX;
use reply::Replies;
use session::{NextStep, Session};

/// What a connection has at first, in each direction, and comes back to when it is quiet.
const BUFFER_BYTES: usize = 16 * 1024;
/// Replies are written when they are so many, with at most one more.
const REPLIES_BYTES_MAX: usize = 64 * 1024;
/// For the token to be shown, where one is asked for.
const ADMISSION_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a client may go on sending after the last reply, when the daemon stops. What it sends is
/// discarded.
const LINGER_TIME_MAX: Duration = Duration::from_millis(250);

/// A client that has sent nothing for this long after the last reply is not waited for.
const QUIET_TIME: Duration = Duration::from_millis(20);

/// The Redis protocol over the daemon's engine and its store.
pub struct Resp {
    shared: Arc<RespState>,
    /// The number of the last connection.
    last_id: AtomicU64,
}

/// What all connections have in common.
struct RespState {
    daemon: Arc<Daemon>,
    store: Arc<dyn Store>,
}

impl Resp {
    pub fn new(daemon: Arc<Daemon>) -> Self {
        let store = daemon.counters.store();
        Self { shared: Arc::new(RespState { daemon, store }), last_id: AtomicU64::new(0) }
    }
}

impl Protocol for Resp {
    async fn serve(self: Arc<Self>, connection: Connection, stopped: ShutdownSignal) {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let session = Session::new(Arc::clone(&self.shared), id, connection.peer);
        // What a client does to its connection is its own affair: errors end it, and are not told.
        #[expect(
            clippy::let_underscore_must_use,
            reason = "an error of the client's connection ends it, and it has ended"
        )]
        let _ =
            converse(connection.stream, session, connection.bounds.body_timeout.0, stopped).await;
    }
}

/// Answers until either end has enough. A connection on which nothing moves is the stream's business. One whose command
/// has begun and does not end within `command_time` is closed.
async fn converse<S>(
    mut stream: S,
    mut session: Session,
    command_time: Duration,
    stopped: ShutdownSignal,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut input = InputBuffer::default();
    let mut replies = Replies::default();
    let mut stop = stopped.clone();
    let mut stop = pin!(stop.wait());
    let mut admission = pin!(sleep(ADMISSION_TIME_MAX));
    let mut late = pin!(sleep(command_time));
    let mut has_begun = false;
    loop {
        input.make_room();
        let bytes_read = tokio::select! {
            biased;
            read = stream.read_buf(&mut input.bytes) => read?,
            () = &mut admission, if !session.is_authorized() => return Ok(()),
            () = &mut late, if has_begun => return Ok(()),
            // Nothing that has arrived is unread: reading comes first.
            () = &mut stop => return end(stream).await,
        };
        if bytes_read == 0 {
            return Ok(());
        }
        let was_admitted = session.is_authorized();
        loop {
            let progress = session.answer(input.unread(), &mut replies).await;
            input.take(progress.bytes);
            // What is left is the beginning of another command.
            has_begun &= progress.bytes == 0;
            // A client that never pauses must not keep a daemon from stopping.
            let is_over = stopped.is_stopping();
            if progress.next == NextStep::Read && !is_over && input.read_on(&mut stream).await? {
                continue;
            }
            if !replies.bytes().is_empty() {
                stream.write_all(replies.bytes()).await?;
                stream.flush().await?;
                replies.clear(BUFFER_BYTES);
            }
            match progress.next {
                NextStep::Read if is_over => return end(stream).await,
                NextStep::Read => break,
                NextStep::Write => {}
                NextStep::End => return stream.shutdown().await,
            }
        }
        let is_begun = !input.unread().is_empty();
        if is_begun && !has_begun {
            late.as_mut().reset(Instant::now() + command_time);
        }
        has_begun = is_begun;
        if was_admitted && !session.is_authorized() {
            admission.as_mut().reset(Instant::now() + ADMISSION_TIME_MAX);
        }
    }
}

/// Ends a connection whose client may go on sending. A socket that is closed over unread bytes is reset,
/// and replies that are still on their way are lost. So the client is told that no more replies come, and
/// what it sends is discarded until it closes or pauses, or its time is up.
async fn end<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> io::Result<()> {
    stream.shutdown().await?;
    let mut discarded = vec![0; BUFFER_BYTES];
    let discard =
        async { while let Ok(Ok(1..)) = timeout(QUIET_TIME, stream.read(&mut discarded)).await {} };
    #[expect(clippy::let_underscore_must_use, reason = "a client that goes on sending is cut off")]
    let _ = timeout(LINGER_TIME_MAX, discard).await;
    Ok(())
}

/// What was read and is not answered yet.
#[derive(Debug, Default)]
struct InputBuffer {
    bytes: Vec<u8>,
    /// What lies before is answered.
    start: usize,
}

impl InputBuffer {
    fn unread(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn take(&mut self, bytes: usize) {
        self.start += bytes;
    }

    /// Makes room for at least one byte more. A frame that is not whole moves to the front; the buffer
    /// grows only for one that fills it, and no frame is larger than it can grow.
    fn make_room(&mut self) {
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(BUFFER_BYTES);
        } else if self.start > 0 {
            self.bytes.copy_within(self.start.., 0);
            self.bytes.truncate(self.bytes.len() - self.start);
        }
        self.start = 0;
        let wanted = match self.bytes.len() {
            len if len < self.bytes.capacity() => return,
            0 => BUFFER_BYTES,
            len => (2 * len).min(FRAME_BYTES_MAX + 1),
        };
        self.bytes.reserve_exact(wanted - self.bytes.len());
    }

    /// Reads what else is there without waiting for it, where the last reading filled the buffer: the
    /// rest of a long pipeline, which is answered in one piece. False where nothing is.
    async fn read_on<S: AsyncRead + Unpin>(&mut self, stream: &mut S) -> io::Result<bool> {
        if self.bytes.len() < self.bytes.capacity() {
            return Ok(false);
        }
        self.make_room();
        let mut read = pin!(stream.read_buf(&mut self.bytes));
        match poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx))).await {
            Poll::Ready(bytes_read) => Ok(bytes_read? > 0),
            Poll::Pending => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests;
