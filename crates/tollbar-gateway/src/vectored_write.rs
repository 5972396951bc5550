//! Writes of several pieces, of which the small ones are put together first.
//!
//! A head and a few bytes of body are two pieces to hyper. The kernel takes longer to take in two, and to be
//! told of one by a list, than it takes to copy them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use arrayvec::ArrayVec;
use tokio::io::AsyncWrite;

/// What is more than this goes as it is.
const BYTES_MAX: usize = 1_024;

/// Writes what `bufs` have, or as much of it as `io` takes.
pub(crate) fn poll_write(
    io: Pin<&mut impl AsyncWrite>,
    cx: &mut Context<'_>,
    bufs: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    if let [only] = bufs {
        return io.poll_write(cx, only);
    }
    let mut joined = ArrayVec::<u8, BYTES_MAX>::new();
    match bufs.iter().try_for_each(|buf| joined.try_extend_from_slice(buf)) {
        Ok(()) => io.poll_write(cx, &joined),
        Err(_) => io.poll_write_vectored(cx, bufs),
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// What it was given, call by call: the pieces of each.
    #[derive(Default)]
    struct RecordedWrites(Vec<Vec<usize>>);

    impl AsyncWrite for RecordedWrites {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.get_mut().0.push(vec![buf.len()]);
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let pieces: Vec<usize> = bufs.iter().map(|buf| buf.len()).collect();
            let bytes = pieces.iter().sum();
            self.get_mut().0.push(pieces);
            Poll::Ready(Ok(bytes))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn what_is_small_goes_in_one_piece_and_what_is_large_as_it_is() {
        for (pieces, expected) in [
            (&[200, 12][..], &[212][..]),
            (&[1_000, 24], &[1_024]),
            (&[1_000, 25], &[1_000, 25]),
            (&[200, 65_536], &[200, 65_536]),
            (&[65_536], &[65_536]),
            (&[], &[0]),
        ] {
            let texts: Vec<Vec<u8>> = pieces.iter().map(|bytes| vec![b'x'; *bytes]).collect();
            let bufs: Vec<IoSlice<'_>> = texts.iter().map(|text| IoSlice::new(text)).collect();
            let mut calls = RecordedWrites::default();
            let mut cx = Context::from_waker(Waker::noop());
            let written = poll_write(Pin::new(&mut calls), &mut cx, &bufs);
            let bytes: usize = pieces.iter().sum();
            assert!(matches!(written, Poll::Ready(Ok(count)) if count == bytes), "{pieces:?}");
            assert_eq!(calls.0, [expected.to_vec()], "{pieces:?}");
        }
    }
}
