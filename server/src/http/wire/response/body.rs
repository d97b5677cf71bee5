//! Bodies of responses, whole and streamed, and their writers.
//!
//! A streamed body is complete only if its writer finishes. If the writer is dropped earlier, by a panic for example,
//! the connection breaks, so that a client never takes half an answer for a whole one.
//!
//! An answer's bytes are counted in the [budget](crate::http::app::App::budget), for their client, until the connection
//! has them. A writer whose client holds too much waits.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use budget::{Held, Use};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::http::error::ApiError;
use crate::http::wire::body::{REQUEST_BYTES, SMALL};

/// Number of pieces by which a writer may be ahead of its client. Each piece is a page of an answer, so this limits the
/// memory held for a slow client.
const PIECES_AHEAD: usize = 1;

/// Number of bytes that a connection gets at once. It copies them, and keeps that memory until it ends.
const MOST_FRAME: usize = 64 << 10;

/// How long a writer waits for its client to hold less, before it breaks off.
const HELD_UP: Duration = Duration::from_secs(60);

/// The body of a response.
#[derive(Debug)]
pub(crate) enum Body {
    /// The unsent rest of a whole body, and its reservation.
    Whole(Bytes, Option<Held>),
    /// A streamed body, whose pieces come from a [`BodyWriter`].
    Streamed(Stream),
    /// The body of an answer to `HEAD` that would be streamed for `GET`: empty, without a length.
    Untold,
}

/// A streamed body.
#[derive(Debug)]
pub(crate) struct Stream {
    pieces: mpsc::Receiver<Piece>,
    /// The rest of the piece that is being sent.
    rest: Bytes,
    account: Arc<Account>,
}

/// The memory of a streamed answer.
#[derive(Debug, Default)]
struct Account {
    ahead: Mutex<Ahead>,
    /// Wakes the writer when its client has received everything written.
    drained: Notify,
}

#[derive(Debug, Default)]
struct Ahead {
    /// Number of bytes written and not sent.
    bytes: usize,
    /// The reservation of the request and of these bytes; `None` before the answer starts.
    held: Option<Held>,
    /// The request's part of it.
    request: usize,
}

impl Account {
    /// `counted` changes the number of bytes.
    fn change(&self, counted: impl FnOnce(usize) -> usize) {
        let mut ahead = self.ahead.lock();
        ahead.bytes = counted(ahead.bytes);
        if ahead.bytes == 0 {
            self.drained.notify_one();
        }
        let bytes = ahead.request + ahead.bytes;
        if let Some(held) = &mut ahead.held {
            held.count(bytes);
        }
    }

    fn hold(&self, held: Held) {
        let mut ahead = self.ahead.lock();
        ahead.request = held.bytes();
        ahead.held = Some(held);
        drop(ahead);
        self.change(|bytes| bytes);
    }

    /// Waits until the client may hold more, or has received everything.
    async fn room(&self) -> Result<(), Gone> {
        let part = self.ahead.lock().held.as_ref().map(|held| held.part().clone());
        let Some(part) = part else { return Ok(()) };
        let granted = tokio::select! {
            biased;
            granted = part.take(1, Use::Slow, HELD_UP) => granted.map(drop),
            () = self.is_drained() => Ok(()),
        };
        granted.map_err(|_| {
            tracing::debug!("an answer broke off: its client does not read, and memory is needed for others");
            Gone
        })
    }

    async fn is_drained(&self) {
        while self.ahead.lock().bytes > 0 {
            self.drained.notified().await;
        }
    }
}

/// A message of a writer to its body.
#[derive(Debug)]
pub(crate) enum Piece {
    Bytes(Bytes),
    End,
}

/// The writer of a streamed body was dropped before the end.
#[derive(Debug)]
pub(crate) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the answer broke off")
    }
}

impl std::error::Error for Broken {}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.get_mut() {
            Body::Whole(rest, held) => {
                let frame = rest.split_to(rest.len().min(MOST_FRAME));
                match held {
                    _ if rest.is_empty() => *held = None,
                    Some(held) => held.count(REQUEST_BYTES + rest.len()),
                    None => {}
                }
                Poll::Ready((!frame.is_empty()).then(|| Ok(Frame::data(frame))))
            }
            Body::Untold => Poll::Ready(None),
            Body::Streamed(Stream { pieces, rest, account }) => {
                if rest.is_empty() {
                    match ready!(pieces.poll_recv(cx)) {
                        Some(Piece::Bytes(bytes)) => *rest = bytes,
                        Some(Piece::End) => return Poll::Ready(None),
                        None => return Poll::Ready(Some(Err(Broken))),
                    }
                }
                let frame = rest.split_to(rest.len().min(MOST_FRAME));
                account.change(|bytes| bytes.saturating_sub(frame.len()));
                Poll::Ready(Some(Ok(Frame::data(frame))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Whole(rest, _) if rest.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(rest, _) => SizeHint::with_exact(rest.len() as u64),
            Body::Streamed(..) | Body::Untold => SizeHint::default(),
        }
    }
}

impl Body {
    /// The whole body.
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Body {
        Body::Whole(bytes.into(), None)
    }

    /// Whether a connection needs no large buffer for it.
    pub(crate) fn is_small(&self) -> bool {
        match self {
            Body::Whole(bytes, _) => bytes.len() <= SMALL,
            Body::Streamed(_) => false,
            Body::Untold => true,
        }
    }

    /// Keeps the request's reservation, and counts the answer in it.
    pub(crate) fn hold(&mut self, mut held: Held) {
        match self {
            Body::Whole(bytes, place) => {
                held.count(REQUEST_BYTES + bytes.len());
                *place = Some(held);
            }
            Body::Streamed(stream) => stream.account.hold(held),
            Body::Untold => {}
        }
    }
}

/// The client is gone, or its connection is closing.
#[derive(Debug)]
pub(crate) struct Gone;

/// Writes a streamed body.
#[derive(Debug)]
pub(crate) struct BodyWriter {
    pieces: mpsc::Sender<Piece>,
    account: Arc<Account>,
}

impl BodyWriter {
    /// Sends a piece. Waits while the client is slower than the writer, or holds too much memory.
    pub(crate) async fn send(&self, bytes: impl Into<Bytes>) -> Result<(), Gone> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Ok(());
        }
        self.account.change(|ahead| ahead + bytes.len());
        self.pieces.send(Piece::Bytes(bytes)).await.map_err(|_| Gone)?;
        self.account.room().await
    }

    /// Completes when the client is gone.
    pub(crate) async fn gone(&self) {
        self.pieces.closed().await;
    }
}

/// Number of rows in the pages of a long answer, so that little of it waits in memory for a slow client.
#[derive(Debug)]
pub(crate) struct PageRows {
    /// Maximum number of rows in the next page.
    pub(crate) rows: usize,
    /// Number of rows written since the last page was sent.
    pub(crate) written: usize,
}

impl PageRows {
    /// Number of bytes that a page should have.
    const PAGE_BYTES: usize = 256 << 10;
    const MOST_ROWS: usize = 2_000;
    const MOST_FIRST_DOCUMENTS: usize = 200;

    /// Number of rows for a slow client: one for which a page waits longer than `SLOW_CLIENT`.
    const FEW_ROWS: usize = 100;
    const SLOW_CLIENT: Duration = Duration::from_millis(100);

    /// For an answer with or without documents. An answer that fits the first page is sent whole.
    pub(crate) fn new(documents: bool) -> Self {
        PageRows { rows: if documents { Self::MOST_FIRST_DOCUMENTS } else { Self::MOST_ROWS }, written: 0 }
    }

    /// Sends a page.
    pub(crate) async fn send(&mut self, writer: &BodyWriter, page: Vec<u8>) -> Result<(), Gone> {
        let (begun, bytes) = (Instant::now(), page.len());
        writer.send(page).await?;
        self.sent(bytes, begun.elapsed());
        Ok(())
    }

    /// Adapts the number of rows: a page of this many bytes was sent after this wait.
    fn sent(&mut self, bytes: usize, waited: Duration) {
        let row = bytes / std::mem::take(&mut self.written).max(1);
        let most = if waited > Self::SLOW_CLIENT { Self::FEW_ROWS } else { Self::MOST_ROWS };
        self.rows = (Self::PAGE_BYTES / row.max(1)).clamp(1, most);
    }
}

/// Why a writer stops before the end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The client is gone.
    Gone,
    /// The rest could not be read.
    Failed(ApiError),
}

impl From<Gone> for Stop {
    fn from(_: Gone) -> Self {
        Stop::Gone
    }
}

impl From<ApiError> for Stop {
    fn from(error: ApiError) -> Self {
        Stop::Failed(error)
    }
}

impl From<model::Error> for Stop {
    fn from(error: model::Error) -> Self {
        Stop::Failed(error.into())
    }
}

/// An answer is sent after this many written bytes. One more row may be added to them.
pub(crate) const MOST_PAGE: usize = 8 << 20;

/// A streamed JSON body, which `write` writes in its own task. If that fails, the body ends with CouchDB's error
/// line in the middle of the answer (`send_chunked_error`), which makes the answer invalid JSON on purpose.
pub(crate) fn stream<F, Fut>(write: F) -> Body
where
    F: FnOnce(BodyWriter) -> Fut,
    Fut: Future<Output = Result<(), Stop>> + Send + 'static,
{
    write_in_task(write, |error| {
        let mut line = vec![b'\n'];
        let mut json = model::JsonWriter::new(&mut line);
        json.begin_object();
        json.name("code").u64(error.status().as_u16().into());
        error.write_members(&mut json);
        json.end_object();
        line.push(b'\n');
        Some(line)
    })
}

/// The same for content that is not JSON. If writing fails, the connection breaks, since a file has no place for an
/// error.
pub(crate) fn stream_bytes<F, Fut>(write: F) -> Body
where
    F: FnOnce(BodyWriter) -> Fut,
    Fut: Future<Output = Result<(), Stop>> + Send + 'static,
{
    write_in_task(write, |_| None)
}

/// `last_words` creates the end of a body whose writer failed. `None`: the connection breaks.
fn write_in_task<F, Fut>(write: F, last_words: fn(ApiError) -> Option<Vec<u8>>) -> Body
where
    F: FnOnce(BodyWriter) -> Fut,
    Fut: Future<Output = Result<(), Stop>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
    let account = Arc::new(Account::default());
    let writing = write(BodyWriter { pieces: sender.clone(), account: account.clone() });
    tokio::spawn(async move {
        let last = match writing.await {
            Ok(()) => None,
            Err(Stop::Gone) => return,
            Err(Stop::Failed(error)) => match last_words(error) {
                Some(line) => Some(Piece::Bytes(line.into())),
                None => return,
            },
        };
        for piece in last.into_iter().chain([Piece::End]) {
            // If the client is gone, there is nobody to tell.
            let _ = sender.send(piece).await;
        }
    });
    Body::Streamed(Stream { pieces: receiver, rest: Bytes::new(), account })
}

/// Number of pieces by which a writer may be ahead of its client. Each piece is a page of an answer, so this limits the
/// memory held for a slow client.
#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn fail(writer: BodyWriter) -> Result<(), Stop> {
        writer.send("begun").await?;
        Err(Stop::Failed(ApiError::not_found("gone")))
    }

    #[tokio::test]
    async fn a_file_that_fails_breaks_off_and_json_says_why() {
        let mut file = stream_bytes(fail);
        assert_eq!(file.frame().await.unwrap().unwrap().into_data().unwrap(), "begun");
        assert!(file.frame().await.unwrap().is_err());
        let json = stream(fail).collect().await.unwrap().to_bytes();
        assert_eq!(json, "begun\n{\"code\":404,\"error\":\"not_found\",\"reason\":\"gone\"}\n");
    }

    /// A page is not given to the connection as a whole.
    #[tokio::test]
    async fn a_page_goes_out_in_frames() {
        let page: Vec<u8> = (0..3 * MOST_FRAME + 5).map(|n| n as u8).collect();
        let sent = page.clone();
        let mut body = stream_bytes(|writer| async move { Ok(writer.send(sent).await?) });
        let mut got = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.unwrap().into_data().unwrap();
            assert!(!frame.is_empty() && frame.len() <= MOST_FRAME);
            got.extend_from_slice(&frame);
        }
        assert!(got == page);
    }

    #[tokio::test]
    async fn a_whole_answer_goes_out_in_frames_and_gives_its_memory_back() {
        let budget = budget::Budget::new(1 << 30);
        let mut body = Body::whole(vec![7; 2 * MOST_FRAME + 1]);
        body.hold(budget.part(budget::Owner::Work("test")).nothing());
        for left in [MOST_FRAME + 1, 1] {
            assert_eq!(budget.used(), REQUEST_BYTES + left + MOST_FRAME);
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), MOST_FRAME);
            assert_eq!((budget.used(), body.size_hint().exact()), (REQUEST_BYTES + left, Some(left as u64)));
        }
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), vec![7]);
        assert!(body.frame().await.is_none() && body.is_end_stream());
        assert_eq!(budget.used(), 0);
    }

    /// The written bytes are counted for a client that reads nothing, and its writer writes no more.
    #[tokio::test(start_paused = true)]
    async fn a_writer_stops_where_its_client_holds_too_much() {
        let budget = budget::Budget::new(800_000);
        let part = budget.part(budget::Owner::Work("test"));
        let (sent, mut made) = tokio::sync::mpsc::unbounded_channel();
        let write = |writer: BodyWriter| {
            let sent = sent.clone();
            async move {
                loop {
                    writer.send(vec![0; 200_000]).await?;
                    let _ = sent.send(());
                }
            }
        };
        let mut bodies = Vec::new();
        for _ in 0..10 {
            let mut body = stream_bytes(write);
            body.hold(part.nothing());
            bodies.push(body);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((made.len(), budget.used()), (1, 2_200_000), "the others have the page that they began with");
        made.recv().await.unwrap();
        // A client that has read everything continues, whatever others hold.
        let last = &mut bodies[9];
        for _ in 0..4 {
            last.frame().await.unwrap().unwrap();
        }
        made.recv().await.unwrap();
        // When the others are gone and the client has read, its answer continues.
        drop(bodies.split_off(1));
        let body = &mut bodies[0];
        for _ in 0..3 {
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), MOST_FRAME);
        }
        made.recv().await.unwrap();
        assert!(budget.used() < 420_000, "{budget:?}");
    }

    #[test]
    fn pages_have_about_one_size_and_slow_clients_get_small_ones() {
        let (quick, slow) = (Duration::ZERO, Duration::from_secs(1));
        let next = |rows, bytes, waited| {
            let mut pace = PageRows { written: rows, ..PageRows::new(false) };
            pace.sent(bytes, waited);
            (pace.rows, pace.written)
        };
        assert_eq!(next(2_000, 2_000 << 8, quick), (1_024, 0), "rows of 256 bytes");
        assert_eq!(next(2_000, 2_000 << 8, slow), (100, 0));
        assert_eq!(next(100, 100 << 14, slow), (16, 0), "rows of 16 KB");
        assert_eq!(next(1, 50 << 20, quick), (1, 0), "a row larger than a page");
        assert_eq!(next(0, 0, quick), (2_000, 0), "all rows were filtered out");
    }

    /// A writer is at most some pieces ahead of its client.
    #[tokio::test]
    async fn a_writer_waits_for_its_client() {
        let (sent, mut sending) = tokio::sync::mpsc::unbounded_channel();
        let mut body = stream_bytes(|writer| async move {
            for piece in 0..100_u8 {
                writer.send(vec![piece]).await?;
                // Fails if the test has ended.
                let _ = sent.send(piece);
            }
            Ok(())
        });
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(sending.len(), PIECES_AHEAD);
        for piece in 0..100_u8 {
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), vec![piece]);
        }
        assert!(body.frame().await.is_none());
        assert_eq!(sending.recv().await, Some(0));
    }
}
