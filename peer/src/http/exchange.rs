//! Sends requests, and reads their answers. Only this module has the HTTP client, so no answer is read without a
//! ceiling.
//!
//! ```text
//!  request ── a turn ── redirects ──► Incoming ─┬─ whole: up to a ceiling, out of the budget
//!                                               └─ stream: as many bytes as were promised
//! ```
//!
//! * An answer has a ceiling ([`ceilings`](super::ceilings)). A longer answer is an error, and is not read further.
//! * The memory for all answers of a program comes out of one part of a budget. If nothing is left, a request waits. In
//!   the end it fails like a request that a busy server refused.
//! * An answer slower than [`SLOWEST`] is ended after [`MOST_SILENCES`] times the longest silence.
//! * Credentials and headers are sent only to the server for which they were given, never to one that it redirects to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use budget::{Part, Use};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use reqwest::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION,
    TRANSFER_ENCODING,
};
use reqwest::{Client, Method, Request, Response, Url};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::{Answer, Held, is_success};
use super::ceilings::SMALL;
use super::{Address, trust};
use crate::ByteStream;
use crate::error::{Error, ErrorKind, Result};

/// An answer may take this many times the longest silence, and longer for its bytes at [`SLOWEST`].
const MOST_SILENCES: u32 = 10;
/// Bytes in a second below which an answer is too slow.
const SLOWEST: u64 = 1_024;
/// Maximum number of redirects of one request.
const MOST_REDIRECTS: usize = 10;
/// Number of bytes that an answer reserves at once. The first ones of each answer are free.
const UNIT: usize = 64 << 10;
/// An answer may reserve at most this fraction of the budget. Its own ceiling applies too.
const PART_OF_ONE: usize = 8;

/// Grows the reservation to this many bytes.
async fn grow(held: &mut budget::Held, bytes: usize, timeout: Duration) -> Result<()> {
    let most = held.part().budget().total() / PART_OF_ONE;
    let full = |_| Error::new(ErrorKind::Unavailable, "there is no memory for answers of other servers at the moment");
    held.grow((bytes / UNIT * UNIT).min(most), Use::Slow, timeout).await.map_err(full)
}

/// The way to one server.
#[derive(Clone)]
pub(super) struct Line {
    client: Client,
    /// Maximum time without a byte from the server.
    silence: Duration,
    /// A permit for each request that may run at the same time.
    turns: Arc<Semaphore>,
    memory: Part,
}

impl Line {
    pub(super) fn new(client: Client, silence: Duration, connections: usize, memory: Part) -> Line {
        let turns = Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS)));
        Line { client, silence, turns, memory }
    }

    pub(super) fn silence(&self) -> Duration {
        self.silence
    }

    /// Sends a request when there is a turn for it. The turn ends with the answer.
    pub(super) async fn send(&self, home: &Address, request: Request) -> Result<Incoming> {
        // The semaphore is never closed.
        let turn = self.turns.clone().acquire_owned().await.ok();
        let response = self.deliver(home, request).await?;
        let (memory, silence, home) = (self.memory.clone(), self.silence, home.clone());
        Ok(Incoming { response, home, silence, memory, waited: Duration::ZERO, bytes: 0, _turn: turn })
    }

    /// Sends a request, and again where the server redirects. A body that is a stream cannot be sent again.
    async fn deliver(&self, home: &Address, mut request: Request) -> Result<Response> {
        for _ in 0..=MOST_REDIRECTS {
            let (method, headers, again) = (request.method().clone(), request.headers().clone(), request.try_clone());
            if request.url().origin() == home.url().origin() {
                add_credentials(home, request.headers_mut());
            }
            let response = self.client.execute(request).await.map_err(|error| unreachable(home, &error))?;
            let Some(url) = redirect(&response) else { return Ok(response) };
            // A client for `http://` has no roots, and one for `https://` must not continue without TLS.
            if (url.scheme() == "https") != home.is_secure() {
                return Err(Error::refused("the server redirects between http and https; name the other address"));
            }
            request = match (response.status().as_u16(), again) {
                (303, _) if method != Method::HEAD => read_instead(&url, headers),
                (301 | 302, _) if method == Method::POST => read_instead(&url, headers),
                (_, Some(mut again)) => {
                    *again.url_mut() = url;
                    again
                }
                (_, None) => return Ok(response),
            };
        }
        Err(Error::refused(format!("the server redirects more than {MOST_REDIRECTS} times")))
    }
}

/// The read request after a write was redirected.
fn read_instead(url: &Url, mut headers: HeaderMap) -> Request {
    for name in [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    let mut request = Request::new(Method::GET, url.clone());
    *request.headers_mut() = headers;
    request
}

/// The URL to which an answer redirects.
fn redirect(response: &Response) -> Option<Url> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let mut url = response.url().join(response.headers().get(LOCATION)?.to_str().ok()?).ok()?;
    let _ = url.set_username("");
    let _ = url.set_password(None);
    Some(url)
}

/// Adds the credentials and headers that were given for this server only.
fn add_credentials(home: &Address, headers: &mut HeaderMap) {
    if let Some((user, password)) = home.user() {
        let basic = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
        if let Ok(mut basic) = HeaderValue::try_from(basic) {
            basic.set_sensitive(true);
            headers.append(AUTHORIZATION, basic);
        }
    }
    for (name, value) in home.headers() {
        headers.append(name, value.clone());
    }
}

/// An answer whose head was received.
pub(super) struct Incoming {
    response: Response,
    home: Address,
    silence: Duration,
    memory: Part,
    /// Time that was spent waiting for its body.
    waited: Duration,
    /// Number of received bytes.
    bytes: u64,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Incoming {
    pub(super) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(super) fn header(&self, name: HeaderName) -> Option<&HeaderValue> {
        self.response.headers().get(name)
    }

    /// The next piece of the body.
    async fn piece(&mut self) -> Result<Option<Bytes>> {
        let allowed = self.silence * MOST_SILENCES + Duration::from_secs(self.bytes / SLOWEST);
        let began = Instant::now();
        let next = tokio::time::timeout(allowed.saturating_sub(self.waited), self.response.chunk()).await;
        self.waited += began.elapsed();
        let slow = |_| {
            let server = self.home.url().origin().ascii_serialization();
            let sentence = format!("an answer of {server} comes too slowly: {} bytes in {allowed:?}", self.bytes);
            Error::new(ErrorKind::Unavailable, sentence)
        };
        let piece = next.map_err(slow)?.map_err(|error| unreachable(&self.home, &error))?;
        self.bytes += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Ok(piece)
    }

    /// Reads the whole answer. More than `ceiling` bytes are an error, [`ErrorKind::TooLarge`]. A refusal longer
    /// than [`SMALL`] keeps only its status.
    pub(super) async fn whole(self, ceiling: usize) -> Result<Answer> {
        let refusal = ceiling.min(SMALL);
        self.whole_or_refusal(ceiling, refusal).await
    }

    /// The same, with another ceiling for refusals.
    pub(super) async fn whole_or_refusal(mut self, ceiling: usize, refusal: usize) -> Result<Answer> {
        let (status, path) = (self.status(), self.response.url().path().to_owned());
        let most = if is_success(status) { ceiling } else { refusal };
        let (mut body, mut held) = (Vec::new(), self.memory.nothing());
        let mut is_longer = self.response.content_length().is_some_and(|length| length > most as u64);
        while !is_longer && let Some(piece) = self.piece().await? {
            is_longer = body.len() + piece.len() > most;
            if !is_longer {
                grow(&mut held, body.len() + piece.len(), self.silence).await?;
                body.extend_from_slice(&piece);
            }
        }
        if is_longer && is_success(status) {
            let sentence = format!("the server's answer to {path} is longer than {most} bytes");
            return Err(Error::new(ErrorKind::TooLarge, sentence));
        }
        if is_longer {
            body.clear();
        }
        Ok(Answer { status, path, body, held: Held(Some(Arc::new(held))) })
    }

    /// The next piece of a body. At most `ceiling` bytes of the body are read.
    pub(super) async fn piece_up_to(&mut self, ceiling: usize) -> Result<Option<Bytes>> {
        let piece = self.piece().await?;
        if self.bytes > ceiling as u64 {
            let path = self.response.url().path();
            let sentence = format!("the server's answer to {path} is longer than {ceiling} bytes");
            return Err(Error::new(ErrorKind::TooLarge, sentence));
        }
        Ok(piece)
    }

    /// The body as it comes. It fails if there are fewer or more bytes than promised.
    pub(super) fn stream(self, promised: u64) -> ByteStream {
        let cut = || Error::new(ErrorKind::Unavailable, "an attachment has another length than it says");
        let step = move |(mut incoming, left): (Incoming, u64)| async move {
            match incoming.piece().await? {
                Some(piece) => {
                    let left = left.checked_sub(piece.len() as u64).ok_or_else(cut)?;
                    Ok(Some((piece, (incoming, left))))
                }
                None if left == 0 => Ok(None),
                None => Err(cut()),
            }
        };
        stream::try_unfold((self, promised), step).boxed()
    }
}

/// A failure below HTTP, in one line with its causes. It does not name the URL, which may have credentials.
fn unreachable(home: &Address, error: &reqwest::Error) -> Error {
    let server = home.url().origin().ascii_serialization();
    let mut sentence = format!("no answer from {server}");
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        if trust::is_untrusted(source) {
            // Only an administrator can correct this, so there is no retry.
            return Error::refused(format!("the certificate of {server} is not trusted: {source}"));
        }
        sentence = format!("{sentence}: {source}");
        cause = source.source();
    }
    Error::new(ErrorKind::Unavailable, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_share_a_budget_and_give_it_back() {
        let (budget, timeout) = (budget::Budget::new(64 * UNIT), Duration::from_millis(10));
        let held = || budget.part(budget::Owner::Work("test")).nothing();
        let mut all = Vec::new();
        for bytes in [UNIT - 1, UNIT, 3 * UNIT, 3 * UNIT + 1, 100 * UNIT] {
            let mut one = held();
            grow(&mut one, bytes, timeout).await.unwrap();
            all.push(one);
        }
        let units: Vec<usize> = all.iter().map(|held| held.bytes() / UNIT).collect();
        assert_eq!(units, [0, 1, 3, 3, 8], "small ones take none, and large ones a part");
        let mut more = held();
        grow(&mut more, 8 * UNIT, timeout).await.unwrap();
        let full = grow(&mut held(), 8 * UNIT, timeout).await.unwrap_err();
        assert!(full.is_transient(), "{full}");
        let one = Held(Some(Arc::new(more)));
        let clone = one.clone();
        drop(one);
        assert!(grow(&mut held(), 8 * UNIT, timeout).await.is_err());
        drop(clone);
        grow(&mut held(), 8 * UNIT, timeout).await.unwrap();
    }
}
