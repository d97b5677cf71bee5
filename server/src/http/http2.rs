//! Connections of HTTP/2, on which requests run side by side.
//!
//! A browser opens at most six connections of HTTP/1.1 to a host, and a live database takes one for its feed. It opens
//! one connection of HTTP/2 for all.
//!
//! What HTTP/1.1 bounds for a connection is bounded here for each request: its head and its unsent bytes are counted for
//! the client, and a client that does not read an answer is cut off. The library knows no such time, so the connection
//! looks at its answers at intervals.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use budget::Part;
use bytes::Bytes;
use hyper::Method;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_LENGTH, HOST, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::http::app::App;
use crate::http::journal::Counted;
use crate::http::serve::serve;
use crate::http::wire::body::CONNECTION_BYTES;
use crate::http::wire::response::Broken;

/// The start of a connection without TLS. No method of HTTP/1.1 is called so.
const PREFACE: &[u8] = b"PRI ";

/// Pause before the first bytes of a connection are looked at again, if they are too few.
const FEW_BYTES_PAUSE: Duration = Duration::from_millis(10);

/// Maximum number of requests that run at a time on a connection. Further ones wait in the client.
const MOST_STREAMS: u32 = 64;

/// Maximum bytes of a request's head. With the unsent bytes of its answer it is counted as [`CONNECTION_BYTES`].
const MOST_HEAD: u32 = 16 << 10;

/// Maximum unsent bytes of an answer in the library's buffer, and the size of a frame.
const UNSENT: usize = 8 << 10;

/// Maximum received bytes of bodies that are not read yet, for a request and for a connection.
const UNREAD_OF_REQUEST: u32 = 64 << 10;
const UNREAD: u32 = 256 << 10;

/// Memory of a connection beside its running requests: unread bodies, and the ends of answers that the client does not
/// take.
pub(crate) const BYTES: usize = CONNECTION_BYTES + UNREAD as usize + MOST_STREAMS as usize * 2 * UNSENT;

/// Whether a client without TLS starts with HTTP/2. Waits for its first bytes.
pub(crate) async fn is_spoken(stream: &TcpStream) -> std::io::Result<bool> {
    let mut first = [0; PREFACE.len()];
    loop {
        let read = stream.peek(&mut first).await?;
        if read == 0 || read == first.len() || !PREFACE.starts_with(&first[..read]) {
            return Ok(first == PREFACE);
        }
        tokio::time::sleep(FEW_BYTES_PAUSE).await;
    }
}

/// Serves the requests of a connection. Their memory comes from this part of the budget.
pub(crate) async fn requests<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    app: Arc<App>,
    stream: S,
    peer: SocketAddr,
    mut cut: watch::Receiver<bool>,
    part: &Part,
) {
    let (idle, unread) = (app.options.head_timeout, app.options.write_timeout);
    let answers = Arc::new(Mutex::new(Answers::default()));
    let service = {
        let (app, part, answers) = (app.clone(), part.clone(), answers.clone());
        service_fn(move |request: hyper::Request<Incoming>| {
            let (app, part, progress) = (app.clone(), part.clone(), answers.lock().begin());
            let is_head = request.method() == Method::HEAD;
            async move {
                let mut held = part.nothing();
                held.count(CONNECTION_BYTES);
                let seat = Mutex::new(held);
                let mut answer = serve(app, as_http1(request), peer, &seat).await?;
                if is_head && let Some(length) = answer.body().size_hint().exact() {
                    answer.headers_mut().insert(CONTENT_LENGTH, length.into());
                }
                let seat = seat.into_inner();
                let rest = Bytes::new();
                Ok::<_, Infallible>(answer.map(|body| Answer { body, is_head, rest, progress, _seat: seat }))
            }
        })
    };
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).max_concurrent_streams(MOST_STREAMS).max_header_list_size(MOST_HEAD);
    builder.max_send_buf_size(UNSENT);
    builder.initial_stream_window_size(UNREAD_OF_REQUEST).initial_connection_window_size(UNREAD);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut looks = tokio::time::interval((idle.min(unread) / 4).max(Duration::from_millis(100)));
    let mut is_ending = false;
    let ended = loop {
        tokio::select! {
            ended = connection.as_mut() => break ended,
            () = app.stopping(), if !is_ending => {}
            // An error means that the server is gone.
            _ = cut.wait_for(|cut| *cut) => return,
            _ = looks.tick() => match answers.lock().state(idle, unread, Instant::now()) {
                State::Used => continue,
                State::Unused if is_ending => {
                    tracing::debug!(peer = %peer.ip(), "a client that does not end its connection is cut off");
                    return;
                }
                State::Unused => {}
                State::Stuck => {
                    tracing::debug!(peer = %peer.ip(), "a client that does not read its answer is cut off");
                    return;
                }
            },
        }
        if !is_ending {
            connection.as_mut().graceful_shutdown();
        }
        is_ending = true;
    };
    if let Err(error) = ended {
        tracing::debug!(peer = %peer.ip(), %error, "a connection broke");
    }
}

/// The host of a request is where HTTP/1.1 has it, in a header. Everything that asks who sent a request reads it there.
fn as_http1(mut request: hyper::Request<Incoming>) -> hyper::Request<Incoming> {
    let host = request.uri().authority().map(|authority| HeaderValue::from_str(authority.as_str()));
    if let Some(Ok(host)) = host {
        request.headers_mut().insert(HOST, host);
    }
    request
}

/// The answers that a connection sends.
#[derive(Debug, Default)]
struct Answers {
    running: Vec<Weak<Progress>>,
    /// Since when there is none.
    unused: Option<Instant>,
}

/// How far an answer is: since when its client could have taken more of it. `None` while the server makes the answer.
type Progress = Mutex<Option<Instant>>;

#[derive(Debug, PartialEq)]
enum State {
    Used,
    /// Without a request for as long as a connection may be idle.
    Unused,
    /// With an answer that its client does not read.
    Stuck,
}

impl Answers {
    fn begin(&mut self) -> Arc<Progress> {
        let progress = Arc::new(Progress::default());
        self.running.retain(|other| other.strong_count() > 0);
        self.running.push(Arc::downgrade(&progress));
        self.unused = None;
        progress
    }

    fn state(&mut self, idle: Duration, unread: Duration, now: Instant) -> State {
        self.running.retain(|progress| progress.strong_count() > 0);
        if self.running.is_empty() {
            let since = *self.unused.get_or_insert(now);
            if now.duration_since(since) < idle {
                return State::Used;
            }
            // The client has as long again to end the connection.
            self.unused = None;
            return State::Unused;
        }
        let is_stuck =
            |progress: Arc<Progress>| progress.lock().is_some_and(|since| now.duration_since(since) >= unread);
        if self.running.iter().filter_map(Weak::upgrade).any(is_stuck) { State::Stuck } else { State::Used }
    }
}

/// The body of an answer. It is read when the client has room for more.
struct Answer {
    body: Counted,
    /// Whether only the head is sent. For HTTP/1.1 the library sees to that.
    is_head: bool,
    rest: Bytes,
    progress: Arc<Progress>,
    /// The memory of the request, until its answer is sent.
    _seat: budget::Held,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let answer = self.get_mut();
        if answer.is_head {
            return Poll::Ready(None);
        }
        if answer.rest.is_empty() {
            let polled = Pin::new(&mut answer.body).poll_frame(cx);
            let Poll::Ready(Some(Ok(frame))) = polled else {
                *answer.progress.lock() = None;
                return polled;
            };
            match frame.into_data() {
                Ok(data) => answer.rest = data,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            }
        }
        *answer.progress.lock() = Some(Instant::now());
        let frame = answer.rest.split_to(answer.rest.len().min(UNSENT));
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_head || (self.rest.is_empty() && self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.body.size_hint();
        body.exact().map_or(body, |left| SizeHint::with_exact(left + self.rest.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_without_requests_and_with_unread_answers_end() {
        let (idle, unread) = (Duration::from_secs(10), Duration::from_secs(100));
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut answers = Answers::default();
        assert_eq!(answers.state(idle, unread, begun), State::Used);
        assert_eq!(answers.state(idle, unread, after(10)), State::Unused);
        let (feed, file) = (answers.begin(), answers.begin());
        assert_eq!(answers.state(idle, unread, after(1_000)), State::Used, "the server makes them");
        *file.lock() = Some(after(1_000));
        assert_eq!(answers.state(idle, unread, after(1_099)), State::Used);
        assert_eq!(answers.state(idle, unread, after(1_100)), State::Stuck);
        drop(file);
        assert_eq!(answers.state(idle, unread, after(1_100)), State::Used);
        drop(feed);
        assert_eq!(answers.state(idle, unread, after(1_101)), State::Used);
        assert_eq!(answers.state(idle, unread, after(1_111)), State::Unused);
    }
}
