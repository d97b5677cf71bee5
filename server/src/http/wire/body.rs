//! Reads the bodies of requests.
//!
//! A body is read piece by piece, or as a whole. A whole body is held in memory, so its size is limited, both as sent
//! and after gzip is unpacked. The size as sent is checked by `Content-Length` before the first byte, or while reading
//! if that header is missing.
//!
//! Its memory comes out of the budget. While it is received, its bytes are reserved as they arrive. Before it is
//! unpacked or parsed, the multiple that this takes is reserved.

use std::io::Read;
use std::time::{Duration, Instant};

use budget::{Held, Part, Use};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HeaderMap};
use model::{Elements, JsonErrorKind, JsonRef, JsonText};

use crate::http::error::{ApiError, Result};
use crate::http::wire::headers::text;

/// Number of bytes a second below which a client is too slow, once its timeout is used up.
const SLOWEST: u64 = 1024;

/// Bodies above this many bytes are parsed and unpacked on threads that do not serve requests.
const LARGE: usize = 256 * 1024;

/// Number of bytes that a connection reserves at its start.
pub(crate) const CONNECTION_BYTES: usize = 32 << 10;

/// Minimum number of bytes that a request reserves.
pub(crate) const REQUEST_BYTES: usize = 64 << 10;

/// Maximum memory of a body while it is served, as a multiple of its bytes: as sent, as unpacked, as parsed, and the
/// data made from it. `server/tests/bodies` measures this at each endpoint.
const TIMES: usize = 12;

/// Number of additional bytes for each value in a body, for example a document of a bulk request, or a condition of a
/// selector.
const VALUE_BYTES: usize = 2_560;

/// Maximum number of values taken at once: the greatest number of documents in a bulk request, and of conditions in a
/// selector. Lists that may be longer are taken in pages.
const MOST_VALUES: usize = 10_000;

/// How long a request waits for memory before it is refused.
pub(crate) const WAIT: Duration = Duration::from_secs(10);

/// The largest body for which such a part of a budget has room while others hold a sixteenth of it: a body that only
/// fits without any other connection would never be served.
pub(crate) const fn largest(memory: usize) -> usize {
    (memory - memory / 16).saturating_sub(REQUEST_BYTES + MOST_VALUES * VALUE_BYTES) / TIMES
}

/// The memory that this body takes while it is served.
fn cost_of(bytes: &[u8]) -> usize {
    let values = bytes.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    bytes.len().saturating_mul(TIMES).saturating_add(values.min(MOST_VALUES) * VALUE_BYTES)
}

/// Up to this size of bodies and answers, a connection needs no large buffers.
pub(crate) const SMALL: usize = 16 << 10;

/// The unread body of a request.
#[derive(Debug)]
pub(crate) struct RequestBody {
    incoming: Option<Incoming>,
    limit: usize,
    timeout: BodyTimeout,
    held: Held,
}

/// The time that the server waits for a client's body: between two pieces, and in total beyond the time for the
/// received bytes at the slowest rate. Time in which the server does not read is not counted.
#[derive(Clone, Copy, Debug)]
struct BodyTimeout {
    pause: Duration,
    waited: Duration,
    received: u64,
}

impl BodyTimeout {
    /// How long the server waits for the next piece.
    fn left(&self) -> Duration {
        let earned = Duration::from_millis(self.received.saturating_mul(1_000) / SLOWEST);
        (self.pause.saturating_add(earned)).saturating_sub(self.waited).min(self.pause)
    }

    fn received(&mut self, bytes: usize, waited: Duration) {
        self.received = self.received.saturating_add(bytes as u64);
        self.waited = self.waited.saturating_add(waited);
    }
}

impl RequestBody {
    /// `pause` is the longest time between two pieces, and the extra time of a slow client beyond its rate. The memory
    /// comes from this part of the budget.
    pub(crate) fn new(incoming: Incoming, limit: usize, pause: Duration, part: &Part) -> Self {
        let timeout = BodyTimeout { pause, waited: Duration::ZERO, received: 0 };
        let limit = limit.min(largest(part.budget().most_of_one()));
        RequestBody { incoming: Some(incoming), limit, timeout, held: part.nothing() }
    }

    /// Reserves the minimum of a request, from the part of its sender.
    pub(crate) async fn admit(&mut self, part: &Part) -> Result<()> {
        self.held = part.take(REQUEST_BYTES, Use::Quick, WAIT).await?;
        Ok(())
    }

    /// The reservation of the request.
    pub(crate) fn into_held(self) -> Held {
        self.held
    }

    /// Reserves memory to keep this many bytes of a body that is still being received.
    pub(crate) async fn keep(&mut self, bytes: usize) -> Result<()> {
        let wanted = REQUEST_BYTES.saturating_add(bytes);
        if wanted > self.held.bytes() {
            // In steps, not for each piece.
            self.held.grow(wanted.saturating_add(bytes.clamp(LARGE, 16 * LARGE)), Use::Slow, WAIT).await?;
        }
        Ok(())
    }

    /// Reserves memory to serve a received body.
    pub(crate) async fn reserve(&mut self, body: &[u8]) -> Result<()> {
        let wanted = REQUEST_BYTES.saturating_add(cost_of(body));
        Ok(self.held.grow(wanted, Use::Quick, WAIT).await?)
    }

    /// How long the server has waited for pieces of the body.
    pub(crate) fn waited(&self) -> Duration {
        self.timeout.waited
    }

    /// Maximum size of a body held in memory.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Lowers that size, for clients or requests that need no large body.
    pub(crate) fn narrow(&mut self, limit: usize) {
        self.limit = self.limit.min(limit);
    }

    /// Whether the request has no body, according to its headers.
    pub(crate) fn is_absent(&self) -> bool {
        self.incoming.as_ref().is_none_or(|incoming| incoming.is_end_stream())
    }

    /// Whether the request needs no large buffer of its connection, according to its headers.
    pub(crate) fn is_small(&self) -> bool {
        let upper = |incoming: &Incoming| incoming.size_hint().upper().unwrap_or(u64::MAX);
        self.incoming.as_ref().map_or(0, upper) <= SMALL as u64
    }

    /// The whole body. Gzip is unpacked.
    pub(crate) async fn bytes(&mut self, headers: &HeaderMap) -> Result<Bytes> {
        enum Encoding {
            Identity,
            Gzip,
        }
        let encoding = match headers.get(CONTENT_ENCODING).map(|value| value.as_bytes()) {
            None => Encoding::Identity,
            Some(value) if value.is_empty() || value.eq_ignore_ascii_case(b"identity") => Encoding::Identity,
            Some(value) if value.eq_ignore_ascii_case(b"gzip") => Encoding::Gzip,
            Some(other) => {
                let other = String::from_utf8_lossy(other);
                return Err(ApiError::bad_content_type(format!("{other} is not a supported content encoding.")));
            }
        };
        let packed = self.read().await?;
        let body = match encoding {
            Encoding::Identity => packed,
            Encoding::Gzip => self.unpack(packed).await?,
        };
        self.reserve(&body).await?;
        Ok(body)
    }

    /// Unpacks step by step, since only the end shows how large it becomes.
    async fn unpack(&mut self, packed: Bytes) -> Result<Bytes> {
        let mut most = (8 * packed.len()).max(LARGE);
        let mut unpacking = Unpacking::new(packed);
        loop {
            most = most.min(self.limit + 1);
            let wanted = REQUEST_BYTES + unpacking.packed + most;
            self.held.grow(wanted, Use::Quick, WAIT).await?;
            unpacking = off_thread_if_large(most, move || unpacking.up_to(most)).await??;
            match unpacking.unpacked.len() {
                bytes if bytes > self.limit => return Err(ApiError::too_large()),
                bytes if bytes < most => return Ok(unpacking.unpacked.into()),
                _ => most *= 4,
            }
        }
    }

    /// The next piece of the body as sent; `None` at its end. The size is not limited. Back-pressure: the client waits
    /// until this is called.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>> {
        loop {
            let Some(incoming) = &mut self.incoming else { return Ok(None) };
            if incoming.is_end_stream() {
                self.incoming = None;
                return Ok(None);
            }
            let began = Instant::now();
            match tokio::time::timeout(self.timeout.left(), incoming.frame()).await {
                Ok(Some(Ok(frame))) => {
                    self.timeout.received(frame.data_ref().map_or(0, Bytes::len), began.elapsed());
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        return Ok(Some(data));
                    }
                }
                Ok(None) => self.incoming = None,
                Ok(Some(Err(_))) => return Err(ApiError::bad_request("the request ended within its body")),
                Err(_) => {
                    let reason = "the client sends its request too slowly";
                    return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", reason));
                }
            }
        }
    }

    async fn read(&mut self) -> Result<Bytes> {
        let announced = self.incoming.as_ref().map_or(0, |incoming| incoming.size_hint().lower());
        if announced > self.limit as u64 {
            return Err(ApiError::too_large());
        }
        let mut whole = Bytes::new();
        let mut joined = BytesMut::new();
        while let Some(data) = self.piece().await? {
            if whole.is_empty() && joined.is_empty() {
                // Most bodies are a single piece, which is not copied.
                whole = data;
            } else {
                joined.extend_from_slice(&std::mem::take(&mut whole));
                joined.extend_from_slice(&data);
            }
            let bytes = whole.len() + joined.len();
            if bytes > self.limit {
                return Err(ApiError::too_large());
            }
            self.keep(bytes).await?;
        }
        Ok(if joined.is_empty() { whole } else { joined.freeze() })
    }

    /// The body as JSON. An absent body is not JSON.
    pub(crate) async fn json(&mut self, headers: &HeaderMap) -> Result<JsonText> {
        let bytes = self.bytes(headers).await?;
        parse_json(bytes).await
    }

    /// The body as a JSON object. The client must send `Content-Type: application/json`.
    pub(crate) async fn json_object(&mut self, headers: &HeaderMap) -> Result<JsonText> {
        require_json(headers)?;
        self.object(headers).await
    }

    /// The body as a JSON object, whatever the client declares it as.
    pub(crate) async fn object(&mut self, headers: &HeaderMap) -> Result<JsonText> {
        let json = self.json(headers).await?;
        if json.root().is_object() {
            Ok(json)
        } else {
            Err(ApiError::bad_request("Request body must be a JSON object"))
        }
    }

    /// Reads and discards the rest of the body while the answer is sent. Unread bytes would reset the connection at its
    /// end, and the client might not see the answer. A client that continues for longer is cut off.
    pub(crate) fn discard(&mut self, headers: &HeaderMap) {
        const PAUSE: Duration = Duration::from_secs(2);
        const AT_MOST: Duration = Duration::from_secs(30);
        // A client that waits for `100 Continue` sends nothing, and reading its body would ask for it.
        let is_held_back = headers.contains_key(EXPECT) && self.timeout.received == 0;
        let held = self.held.part().nothing();
        let mut rest = RequestBody { incoming: self.incoming.take(), held, ..*self };
        if rest.is_absent() || is_held_back {
            return;
        }
        rest.timeout.pause = rest.timeout.pause.min(PAUSE);
        tokio::spawn(tokio::time::timeout(AT_MOST, async move { while let Ok(Some(_)) = rest.piece().await {} }));
    }
}

/// Refuses a request whose `Content-Type` is not JSON.
pub(crate) fn require_json(headers: &HeaderMap) -> Result<()> {
    if content_type_is(headers, "application/json") {
        return Ok(());
    }
    Err(ApiError::bad_content_type("Content-Type must be application/json"))
}

/// Whether the request's `Content-Type` is this type, with any parameters.
pub(crate) fn content_type_is(headers: &HeaderMap, expected: &str) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).map(text) else { return false };
    value.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(expected))
}

/// Parses the bytes of a request as JSON.
pub(crate) async fn parse_json(bytes: Bytes) -> Result<JsonText> {
    off_thread_if_large(bytes.len(), move || parse(&bytes)).await?
}

/// Runs work on a body of this many bytes, on a thread for blocking work if that may take long.
pub(crate) async fn off_thread_if_large<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if bytes > LARGE { off_thread(work).await } else { Ok(work()) }
}

/// The elements of a list in a body. They are counted before the first one is taken, since each takes much more memory
/// than its text.
///
/// # Errors
/// `refusal` if there are more than `most`.
pub(crate) fn at_most<'a>(list: JsonRef<'a>, most: usize, refusal: impl FnOnce() -> ApiError) -> Result<Elements<'a>> {
    match list.elements().nth(most) {
        Some(_) => Err(refusal()),
        None => Ok(list.elements()),
    }
}

fn parse(bytes: &[u8]) -> Result<JsonText> {
    JsonText::parse(bytes).map_err(|error| match error.kind {
        JsonErrorKind::TooLarge => ApiError::too_large(),
        _ => ApiError::invalid_json(),
    })
}

/// A gzip body of any number of members, partly unpacked.
struct Unpacking {
    decoder: flate2::read::MultiGzDecoder<std::io::Cursor<Bytes>>,
    /// Number of bytes as sent.
    packed: usize,
    unpacked: Vec<u8>,
}

impl Unpacking {
    fn new(packed: Bytes) -> Self {
        let bytes = packed.len();
        let decoder = flate2::read::MultiGzDecoder::new(std::io::Cursor::new(packed));
        Unpacking { decoder, packed: bytes, unpacked: Vec::new() }
    }

    /// Unpacks until there are `most` bytes, or to the end.
    fn up_to(mut self, most: usize) -> Result<Self> {
        let left = most.saturating_sub(self.unpacked.len());
        self.unpacked.reserve_exact(left);
        let unpacked = self.decoder.by_ref().take(left as u64).read_to_end(&mut self.unpacked);
        unpacked.map_err(|_| ApiError::bad_request("Request body is not properly gzipped."))?;
        Ok(self)
    }
}

/// Runs long work on a thread for blocking work.
pub(crate) async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::internal())
}

/// The value of a member that, if present, must be an array.
pub(crate) fn array_member<'a>(object: &'a JsonText, name: &'static str) -> Result<Option<JsonRef<'a>>> {
    match object.get(name) {
        None => Ok(None),
        Some(value) if value.is_array() => Ok(Some(value)),
        Some(_) => Err(ApiError::bad_request(format!("`{name}` parameter must be an array."))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_client_has_the_timeout_and_the_time_of_the_slowest_rate() {
        let pause = Duration::from_secs(60);
        let mut timeout = BodyTimeout { pause, waited: Duration::ZERO, received: 0 };
        let mut trickled = timeout;
        for _ in 0..59 {
            trickled.received(1, Duration::from_secs(1));
        }
        assert_eq!(trickled.left(), Duration::from_millis(1_057), "59 bytes earn 57 ms");
        // At twice the slowest rate, it is never cut off.
        for _ in 0..10_000 {
            timeout.received(2 * SLOWEST as usize, Duration::from_secs(1));
            assert_eq!(timeout.left(), pause);
        }
        // A fast client may not pause longer for that.
        timeout.received(1 << 40, Duration::ZERO);
        assert_eq!(timeout.left(), pause);
        timeout.received(0, Duration::MAX);
        assert_eq!(timeout.left(), Duration::ZERO);
    }

    /// A body being received, which the test must end, in a budget of this many bytes.
    fn body(limit: usize, total: usize) -> RequestBody {
        let part = budget::Budget::new(total).part(budget::Owner::Work("test"));
        let timeout = BodyTimeout { pause: Duration::from_secs(1), waited: Duration::ZERO, received: 0 };
        RequestBody { incoming: None, limit, timeout, held: part.nothing() }
    }

    #[tokio::test]
    async fn gzip_unpacks_up_to_the_limit() {
        let unpack = async |packed: &[u8], limit: usize| body(limit, 1 << 30).unpack(packed.to_vec().into()).await;
        let bomb = gzip(&vec![0; 10_000_000]);
        assert!(bomb.len() < 20_000);
        assert_eq!(unpack(&bomb, 9_999_999).await.unwrap_err().status(), 413);
        assert_eq!(unpack(&bomb, 10_000_000).await.unwrap().len(), 10_000_000);
        assert_eq!(unpack(b"not gzip", 100).await.unwrap_err().status(), 400);
        assert_eq!(unpack(&bomb[..bomb.len() / 2], 100_000_000).await.unwrap_err().status(), 400);
        let two_members = [gzip(b"{\"a\""), gzip(b":1}")].concat();
        assert_eq!(unpack(&two_members, 100).await.unwrap(), "{\"a\":1}");
        assert_eq!(unpack(&gzip(b""), 0).await.unwrap(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_fit_into_memory_is_refused_for_now() {
        let bomb = gzip(&vec![0; 10_000_000]);
        let refused = body(10_000_000, 8 << 20).unpack(bomb.into()).await.unwrap_err();
        assert_eq!(refused.status(), 503);
        assert!(refused.into_headers().contains_key(hyper::header::RETRY_AFTER));
        let mut small = body(1 << 20, 32 << 20);
        small.reserve(&[b'x'; 1 << 20]).await.unwrap();
        assert_eq!(small.held.bytes(), REQUEST_BYTES + (12 << 20));
        // Twenty kilobytes of ten thousand values.
        assert_eq!(small.reserve(&b",0".repeat(10_000)).await.unwrap_err().status(), 503);
    }

    #[test]
    fn the_largest_body_costs_what_there_is_beside_others() {
        for memory in [64 << 20, 1 << 30, 5 << 30] {
            let costs = |bytes: usize| REQUEST_BYTES + TIMES * bytes + MOST_VALUES * VALUE_BYTES;
            let room = memory - memory / 16;
            assert!(costs(largest(memory)) <= room && costs(largest(memory) + 1) > room);
        }
        assert_eq!(largest(1 << 20), 0);
    }
}
