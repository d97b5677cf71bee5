//! Tests with random connections, cut at random places.
//!
//! The reader alone is compared with a reference that sees the whole stream: the output is the input, except for quotes
//! in queries. In front of a real hyper, hyper must see exactly the requests that were written, with their bodies.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;

use super::*;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

struct Random(fastrand::Rng);

impl Random {
    fn of(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    fn below(&mut self, n: usize) -> usize {
        self.0.usize(..n)
    }

    fn pick<'a>(&mut self, some: &[&'a str]) -> &'a str {
        some[self.below(some.len())]
    }

    /// Text of pieces that could be mistaken for parts of a request.
    fn text(&mut self, pieces: usize) -> String {
        let pieces = 0..self.below(pieces + 1);
        let some =
            ["\"", "<", ">", "?", "GET /x?y=\"z\" HTTP/1.1", "\r\n", "\n", "\r\n\r\n", "0\r\n\r\n", "5\r\n", "a", " "];
        pieces.map(|_| self.pick(&some)).collect()
    }
}

/// How the body of a request is sent.
#[derive(Clone, Copy, PartialEq)]
enum Sent {
    None,
    Exact,
    Chunked,
    /// Chunked, in a form that the reader does not follow.
    Odd,
}

/// A request as sent, and as a server should see it.
struct Case {
    target: String,
    body: String,
    sent: Sent,
    wire: Vec<u8>,
    /// The bytes that hyper should read.
    expected: Vec<u8>,
}

fn case(random: &mut Random, sent: Sent) -> Case {
    let newline = random.pick(&["\r\n", "\r\n", "\n"]);
    let before = random.pick(&["", "", "\r\n", "\n\r\n"]).as_bytes().to_vec();
    let mut query = String::new();
    for _ in 0..random.below(6) {
        query.push_str(random.pick(&["\"", "<", ">", "startkey=\"a\"", "&", "?", "x", "%22", "\u{e4}"]));
    }
    let fragment = random.pick(&["", "", "", "#", "#\"?<"]);
    let path = random.pick(&["/", "/db/_all_docs", "/db/a%22", "http://host/db"]);
    let target = if random.below(4) == 0 { path.to_owned() } else { format!("{path}?{query}") };
    let body = match sent {
        Sent::None => String::new(),
        _ => random.text(12),
    };
    let method = random.pick(&["GET", "PUT", "POST", "COPY"]);
    let mut rest = format!(" HTTP/1.1{newline}host: \"<>?{newline}x: GET /?\" HTTP/1.1{newline}");
    match sent {
        Sent::None => rest.push_str(newline),
        Sent::Exact => rest.push_str(&format!("content-length: {}{newline}{newline}{body}", body.len())),
        Sent::Chunked | Sent::Odd => {
            rest.push_str(&format!("transfer-encoding: chunked{newline}{newline}"));
            let mut left = body.as_str();
            while !left.is_empty() {
                let (chunk, after) = left.split_at(1 + random.below(left.len()));
                let size = random.pick(&["", "0", "000"]);
                let extension = if sent == Sent::Odd { random.pick(&["", ";a=\"b\"", " "]) } else { "" };
                rest.push_str(&format!("{size}{:X}{extension}\r\n{chunk}\r\n", chunk.len()));
                left = after;
            }
            rest.push_str(if sent == Sent::Odd { "0;\r\nx: \"y\r\n\r\n" } else { "0\r\n\r\n" });
        }
    }
    let line = |target: &str| [&before[..], format!("{method} {target}{fragment}{rest}").as_bytes()].concat();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query.replace('"', "%22").replace('<', "%3C").replace('>', "%3E");
    let escaped = if target.contains('?') { format!("{path}?{query}") } else { path.to_owned() };
    let (wire, expected) = (line(&target), line(&escaped));
    Case { target: escaped, body, sent, wire, expected }
}

fn cases(random: &mut Random, kinds: &[Sent]) -> Vec<Case> {
    (0..1 + random.below(5))
        .map(|_| {
            let sent = kinds[random.below(kinds.len())];
            case(random, sent)
        })
        .collect()
}

/// A connection that returns its bytes in pieces of random length, and discards writes.
struct Pieces {
    bytes: Vec<u8>,
    at: usize,
    random: Random,
}

impl AsyncRead for Pieces {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.random.below(3) == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let long = [4, 40, 400, 4000][this.random.below(4)];
        let piece = (this.bytes.len() - this.at).min(out.remaining()).min(1 + this.random.below(long));
        out.put_slice(&this.bytes[this.at..this.at + piece]);
        this.at += piece;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn what_comes_out_is_what_went_in_but_for_quotes_in_queries() {
    let mut escaped = 0;
    for seed in 0..3000 {
        let mut random = Random::of(seed);
        let cases = cases(&mut random, &[Sent::None, Sent::Exact, Sent::Chunked]);
        let bytes: Vec<u8> = cases.iter().flat_map(|case| case.wire.clone()).collect();
        let expected: Vec<u8> = cases.iter().flat_map(|case| case.expected.clone()).collect();
        escaped += usize::from(bytes != expected);
        let length = BodyLength::default();
        let mut reader = Quotes::new(Pieces { bytes, at: 0, random: Random::of(!seed) }, length.clone());
        let (mut read, mut heads, mut ends) = (Vec::new(), cases.iter(), 0);
        loop {
            let mut piece = [0; 64];
            let mut out = ReadBuf::new(&mut piece[..1 + random.below(64)]);
            poll_fn(|cx| Pin::new(&mut reader).poll_read(cx, &mut out)).await.unwrap();
            if out.filled().is_empty() {
                break;
            }
            read.extend_from_slice(out.filled());
            if reader.state == State::HeadEnded && reader.escaped.is_empty() {
                // As in hyper: the head is complete, and nothing after it was read.
                let case = heads.next().unwrap();
                let length_of_it = match case.sent {
                    Sent::Chunked => Length::Chunked,
                    _ => {
                        let head = case.expected.len() - case.body.len();
                        assert_eq!(read.len(), ends + head, "seed {seed}");
                        Length::Exact(case.body.len() as u64)
                    }
                };
                *length.0.lock() = Some(length_of_it);
                ends += case.expected.len();
            }
        }
        assert_eq!(String::from_utf8_lossy(&read), String::from_utf8_lossy(&expected), "seed {seed}");
    }
    assert!(escaped > 1000, "{escaped} tests test anything");
}

/// The requests that a service sees: the target of each request, and its body; `None` if the body was incomplete.
type Seen = Vec<(String, Option<Vec<u8>>)>;

/// Serves the bytes of a connection with hyper.
async fn serve(bytes: &[u8], seed: u64, quotes: bool, reads_bodies: bool) -> Seen {
    let seen = Arc::new(Mutex::new(Seen::new()));
    let length = BodyLength::default();
    let (reported, record) = (length.clone(), seen.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        reported.tell(request.body());
        let record = record.clone();
        async move {
            let (parts, body) = request.into_parts();
            let target = parts.uri.to_string();
            let mut seen = None;
            if reads_bodies || target.len() % 2 == 0 {
                seen = body.collect().await.ok().map(|body| body.to_bytes().to_vec());
            }
            record.lock().push((target, seen));
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"{}"))))
        }
    });
    let connection = Pieces { bytes: bytes.to_vec(), at: 0, random: Random::of(!seed) };
    let mut builder = http1::Builder::new();
    // Otherwise the end of the input would abort the last request.
    builder.half_close(true).pipeline_flush(true);
    // A connection with damaged bytes may break.
    let _ = match quotes {
        true => builder.serve_connection(TokioIo::new(Quotes::new(connection, length)), service).await,
        false => builder.serve_connection(TokioIo::new(connection), service).await,
    };
    let mut seen = seen.lock();
    std::mem::take(&mut *seen)
}

/// The requests as hyper passes them on: without host and fragment.
fn expected(cases: &[Case]) -> Seen {
    cases.iter().map(|case| (case.target.clone(), Some(case.body.clone().into_bytes()))).collect()
}

#[tokio::test]
async fn hyper_sees_each_request_and_its_body_to_the_byte() {
    for seed in 0..2000 {
        let mut random = Random::of(seed);
        let cases = cases(&mut random, &[Sent::None, Sent::Exact, Sent::Chunked]);
        let bytes: Vec<u8> = cases.iter().flat_map(|case| case.wire.clone()).collect();
        assert_eq!(serve(&bytes, seed, true, true).await, expected(&cases), "seed {seed}");
        // A service that answers before it reads may lose the connection, and then sees no further requests.
        let some = serve(&bytes, seed, true, false).await;
        let all = expected(&cases).into_iter().zip(&some);
        assert!(all.clone().count() == some.len() && !some.is_empty(), "seed {seed}");
        for (expected, seen) in all {
            assert!(expected.0 == seen.0 && seen.1.as_ref().is_none_or(|body| Some(body) == expected.1.as_ref()));
        }
    }
}

#[tokio::test]
async fn behind_a_body_that_is_not_followed_nothing_is_changed() {
    for seed in 0..1000 {
        let mut random = Random::of(seed);
        let mut cases = cases(&mut random, &[Sent::None, Sent::Exact, Sent::Odd]);
        let bytes: Vec<u8> = cases.iter().flat_map(|case| case.wire.clone()).collect();
        let seen = serve(&bytes, seed, true, true).await;
        // From there on, hyper refuses raw quotes as it would without the reader.
        let odd = cases.iter().position(|case| case.sent == Sent::Odd).unwrap_or(cases.len());
        let refused = |case: &Case| case.wire != case.expected;
        let end = cases.iter().enumerate().position(|(at, case)| at > odd && refused(case));
        cases.truncate(end.unwrap_or(cases.len()));
        assert_eq!(seen, expected(&cases), "seed {seed}");
    }
}

#[tokio::test]
async fn what_hyper_accepts_by_itself_is_never_changed() {
    let (mut more, mut requests) = (0, 0);
    for seed in 0..4000 {
        let mut random = Random::of(seed);
        let cases = cases(&mut random, &[Sent::None, Sent::Exact, Sent::Chunked, Sent::Odd]);
        let unescaped = random.below(2) == 0;
        let wire = |case: &Case| if unescaped { case.wire.clone() } else { case.expected.clone() };
        let mut bytes: Vec<u8> = cases.iter().flat_map(wire).collect();
        for _ in 0..random.below(4) {
            let at = random.below(bytes.len());
            let byte = random.pick(&["\r", "\n", " ", "?", "\"", "0", "9", ":", "\0", "#", "\t"]).as_bytes()[0];
            match random.below(3) {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        let (alone, seen) = (serve(&bytes, seed, false, true).await, serve(&bytes, seed, true, true).await);
        assert!(seen.len() >= alone.len() && seen[..alone.len()] == alone[..], "seed {seed}: {alone:?} {seen:?}");
        more += usize::from(seen.len() > alone.len());
        requests += alone.len();
    }
    assert!(more > 200 && requests > 2000, "{more}, {requests}");
}
