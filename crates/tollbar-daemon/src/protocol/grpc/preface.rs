//! The first bytes of a connection: that it speaks HTTP/2 is heard before anything is set up for it, so
//! that who is silent or speaks something else costs nothing and has no time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// What every client of HTTP/2 says first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream whose preface was read, and is read once more from here.
#[derive(Debug)]
pub(super) struct PrefacedStream<S> {
    stream: S,
    replayed: usize,
}

/// Reads the preface. A connection that begins in another way is an error at its first wrong byte.
pub(super) async fn read<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<PrefacedStream<S>> {
    let (mut received, mut count) = ([0; PREFACE.len()], 0);
    while count < PREFACE.len() {
        match stream.read(&mut received[count..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => count += more,
        }
        if received[..count] != PREFACE[..count] {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(PrefacedStream { stream, replayed: 0 })
}

impl<S: AsyncRead + Unpin> AsyncRead for PrefacedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &PREFACE[self.replayed..];
        if rest.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, into);
        }
        let count = rest.len().min(into.remaining());
        into.put_slice(&rest[..count]);
        self.replayed += count;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PrefacedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_preface_is_told_once_more_and_what_follows_is_not_lost() {
        let said: Vec<u8> = [PREFACE, &b"rest"[..]].concat();
        let mut opened = read(&said[..]).await.unwrap();
        let mut received = Vec::new();
        opened.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, said);
    }

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "a test that panics is seen")]
    async fn anything_else_is_an_error_at_its_first_wrong_byte() {
        for said in [&b"GET / HTTP/1.1\r\n"[..], b"PRI * HTTP/1", b"\x16\x03\x01", b"PRI", b""] {
            // One byte at a time, and then silence: who waits for more would wait for ever.
            let (mut client, server) = tokio::io::duplex(1);
            let said = said.to_owned();
            let talking = tokio::spawn(async move {
                use tokio::io::AsyncWriteExt;
                let _ = client.write_all(&said).await;
                if said.starts_with(b"PRI") && said.len() == 3 || said.is_empty() {
                    return None;
                }
                Some(client)
            });
            assert!(read(server).await.is_err());
            talking.await.unwrap();
        }
    }
}
