//! Accepts raw `"`, `<` and `>` in a query, as CouchDB's tutorials write them (`?startkey="a"`).
//!
//! RFC 3986 requires them to be escaped. CouchDB accepts them raw; the `http` crate, inside hyper, refuses exactly
//! these three and answers with an empty 400. [`Quotes`] sits between the socket and hyper and replaces them by `%22`,
//! `%3C` and `%3E`, only in the query of a request line:
//!
//! ```text
//!   socket ── Quotes ── hyper ── service
//!               ▲                   │
//!               └── BodyLength ◄────┘   the length of the body after this head, as hyper parsed it
//! ```
//!
//! Request lines are not guessed. `Quotes` passes on a head up to its end and not a byte more. Hyper calls the service
//! as soon as it has parsed the head, before it reads on, and the service reports the length that hyper found. So the
//! two always agree on the start of the next request. A chunked body is followed only in its plain form, without
//! extensions and trailers.
//!
//! If anything is unclear, `Quotes` changes nothing else on this connection: [`State::Through`]. Escaping never changes
//! a request that hyper would have accepted without it.
//!
//! [ADR 0022](../../../../../docs/adr/0022-raw-quotes-in-queries.md) has the proof.

mod framing;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use hyper::body::Body;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use framing::{Length, State};

/// Lets the service tell the reader how long the current request's body is.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyLength(Arc<Mutex<Option<Length>>>);

impl BodyLength {
    /// Reports the length that hyper found. Call it when hyper calls the service, before any future is polled.
    pub(crate) fn tell(&self, body: &impl Body) {
        let length = body.size_hint().exact().map_or(Length::Chunked, Length::Exact);
        *self.0.lock() = Some(length);
    }

    fn take(&self) -> Option<Length> {
        self.0.lock().take()
    }
}

/// A connection whose request lines hyper can read.
#[derive(Debug)]
pub(crate) struct Quotes<S> {
    stream: S,
    state: State,
    length: BodyLength,
    /// Bytes after a head, read from the socket and not examined yet.
    behind: BytesMut,
    /// Escaped bytes of a request line, not passed on yet.
    escaped: BytesMut,
}

impl<S> Quotes<S> {
    /// Wraps a connection. The service reports each request to `length`.
    pub(crate) fn new(stream: S, length: BodyLength) -> Self {
        Quotes { stream, state: State::BeforeRequest, length, behind: BytesMut::new(), escaped: BytesMut::new() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Quotes<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.escaped.is_empty() {
            if this.state == State::HeadEnded {
                this.state = State::behind_head(this.length.take());
            }
            if this.behind.is_empty() {
                let begin = out.filled().len();
                ready!(Pin::new(&mut this.stream).poll_read(cx, out))?;
                let read = &out.filled()[begin..];
                let (part, quotes) = this.state.advance(read);
                this.behind.extend_from_slice(&read[part..]);
                if !quotes.is_empty() {
                    framing::escape(&read[..part], &quotes, &mut this.escaped);
                }
                out.set_filled(if quotes.is_empty() { begin + part } else { begin });
            } else {
                let fits = this.behind.len().min(out.remaining());
                let (part, quotes) = this.state.advance(&this.behind[..fits]);
                let taken = this.behind.split_to(part);
                match quotes.is_empty() {
                    true => out.put_slice(&taken),
                    false => framing::escape(&taken, &quotes, &mut this.escaped),
                }
            }
        }
        if !this.escaped.is_empty() {
            let fits = this.escaped.len().min(out.remaining());
            out.put_slice(&this.escaped.split_to(fits));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Quotes<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
