//! Finds the starts and ends of requests in the bytes of a connection.
//!
//! ```text
//!  BeforeRequest ─► Method ─► Target ─► Query ─► Version ─► Headers ─► HeadEnded
//!        ▲                                                                 │
//!        ├──────────── Body(n) ◄──────── the service: exactly n ───────────┤
//!        └──────────── Chunks(…) ◄────── the service: chunked ─────────────┘
//! ```
//!
//! Heads are read as httparse reads them by default: a line ends with LF or CRLF, a head ends with the first empty
//! line, empty lines before a request are ignored, and one space separates the three parts of a request line. A
//! connection with anything else is left unchanged from there on.

use bytes::{BufMut, BytesMut};
use memchr::{memchr, memchr_iter, memchr3};

/// Length of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Exact(u64),
    Chunked,
}

/// The part of a connection to which the next byte belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Before a request, or in the empty lines before it.
    BeforeRequest,
    Method,
    /// The target up to its `?`.
    Target,
    /// The target after its `?`: here quotes are escaped.
    Query,
    /// The target after its `#`, which hyper drops.
    Fragment,
    /// The rest of the request line.
    Version,
    Headers(Line),
    /// After a head that was passed on, while the length of its body is unknown.
    HeadEnded,
    /// This many bytes of a body are left, at least one.
    Body(u64),
    Chunks(Chunk),
    /// All bytes are passed on unchanged.
    Through,
}

/// Position in a header line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Begin,
    /// After a CR at the start of the line.
    Cr,
    Within,
}

/// Position in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// In the size, of which this much was read.
    Size {
        size: u64,
        digits: u8,
    },
    SizeLf(u64),
    /// This many bytes of the chunk are left, at least one.
    Data(u64),
    DataCr,
    DataLf,
    /// After the empty chunk: the empty line that ends the body.
    LastCr,
    LastLf,
}

impl Chunk {
    const BEGIN: Chunk = Chunk::Size { size: 0, digits: 0 };

    /// Maximum number of digits of a size, so that it cannot overflow.
    const MOST_DIGITS: u8 = 15;

    /// The state after `byte`.
    fn after(self, byte: u8) -> State {
        let next = match (self, byte) {
            (Chunk::Size { digits: 1.., size }, b'\r') => Chunk::SizeLf(size),
            (Chunk::Size { size, digits }, _) => match char::from(byte).to_digit(16) {
                Some(digit) if digits < Chunk::MOST_DIGITS => {
                    Chunk::Size { size: size << 4 | u64::from(digit), digits: digits + 1 }
                }
                _ => return State::Through,
            },
            (Chunk::SizeLf(0), b'\n') => Chunk::LastCr,
            (Chunk::SizeLf(size), b'\n') => Chunk::Data(size),
            (Chunk::Data(1), _) => Chunk::DataCr,
            (Chunk::Data(left), _) => Chunk::Data(left - 1),
            (Chunk::DataCr, b'\r') => Chunk::DataLf,
            (Chunk::DataLf, b'\n') => Chunk::BEGIN,
            (Chunk::LastCr, b'\r') => Chunk::LastLf,
            (Chunk::LastLf, b'\n') => return State::BeforeRequest,
            _ => return State::Through,
        };
        State::Chunks(next)
    }
}

impl State {
    /// The state after a head whose body has this length. `None`: the service reported none, so hyper has not accepted
    /// the head.
    pub(super) fn behind_head(length: Option<Length>) -> State {
        match length {
            Some(Length::Exact(0)) => State::BeforeRequest,
            Some(Length::Exact(length)) => State::Body(length),
            Some(Length::Chunked) => State::Chunks(Chunk::BEGIN),
            None => State::Through,
        }
    }

    /// Reads `bytes`, up to the end of a head if there is one. Returns the number of bytes read (at least one, unless a
    /// head has just ended), and the positions of quotes in them.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> (usize, Vec<usize>) {
        if let Some(end) = self.plain_head(bytes) {
            *self = State::HeadEnded;
            return (end, Vec::new());
        }
        let (mut at, mut quotes) = (0, Vec::new());
        while at < bytes.len() {
            // Long parts are skipped without reading each byte.
            let rest = (bytes.len() - at) as u64;
            match *self {
                State::HeadEnded => break,
                State::Through => at = bytes.len(),
                State::Body(left) if left > rest => {
                    *self = State::Body(left - rest);
                    at = bytes.len();
                }
                State::Body(left) => {
                    *self = State::BeforeRequest;
                    at += left as usize;
                }
                State::Chunks(Chunk::Data(left)) if left > rest => {
                    *self = State::Chunks(Chunk::Data(left - rest));
                    at = bytes.len();
                }
                State::Chunks(Chunk::Data(left)) => {
                    *self = State::Chunks(Chunk::DataCr);
                    at += left as usize;
                }
                state => {
                    let byte = bytes[at];
                    if state == State::Query && escape_of(byte).is_some() {
                        quotes.push(at);
                    }
                    *self = state.after(byte);
                    at += 1;
                }
            }
        }
        (at, quotes)
    }

    /// The end of a head that is complete in `bytes` and has no quote in its request line. Nearly every request is like
    /// this. Reading it byte by byte would take a twentieth of the instructions of a `GET` of a document.
    ///
    /// If hyper refuses the head, the service reports no length.
    fn plain_head(self, bytes: &[u8]) -> Option<usize> {
        if self != State::BeforeRequest || !bytes.first()?.is_ascii_uppercase() {
            return None;
        }
        let line = memchr(b'\n', bytes)?;
        if memchr3(b'"', b'<', b'>', &bytes[..line]).is_some() {
            return None;
        }
        memchr_iter(b'\n', &bytes[line..]).find_map(|lf| match &bytes[line + lf + 1..] {
            [b'\n', ..] => Some(line + lf + 2),
            [b'\r', b'\n', ..] => Some(line + lf + 3),
            _ => None,
        })
    }

    /// The state after `byte`.
    fn after(self, byte: u8) -> State {
        match (self, byte) {
            (State::BeforeRequest, b'\r' | b'\n') => State::BeforeRequest,
            (State::BeforeRequest | State::Method, b'!'..=b'~') => State::Method,
            (State::Method, b' ') => State::Target,
            (State::Target, b'?') => State::Query,
            (State::Target | State::Query, b'#') => State::Fragment,
            (State::Target | State::Query | State::Fragment, b' ') => State::Version,
            // The bytes that httparse accepts.
            (State::Target | State::Query | State::Fragment, b'!'..=b'~' | 0x80..) => self,
            (State::Version, b'\n') => State::Headers(Line::Begin),
            (State::Version, _) => State::Version,
            (State::Headers(Line::Begin | Line::Cr), b'\n') => State::HeadEnded,
            (State::Headers(Line::Begin), b'\r') => State::Headers(Line::Cr),
            (State::Headers(Line::Within), b'\n') => State::Headers(Line::Begin),
            (State::Headers(Line::Begin | Line::Within), _) => State::Headers(Line::Within),
            (State::Chunks(chunk), _) => chunk.after(byte),
            _ => State::Through,
        }
    }
}

fn escape_of(byte: u8) -> Option<&'static [u8]> {
    match byte {
        b'"' => Some(b"%22"),
        b'<' => Some(b"%3C"),
        b'>' => Some(b"%3E"),
        _ => None,
    }
}

/// Appends `bytes` to `out`, with the bytes at `quotes` escaped.
pub(super) fn escape(bytes: &[u8], quotes: &[usize], out: &mut BytesMut) {
    let mut from = 0;
    for &at in quotes {
        out.put_slice(&bytes[from..at]);
        out.put_slice(escape_of(bytes[at]).unwrap_or(&bytes[at..=at]));
        from = at + 1;
    }
    out.put_slice(&bytes[from..]);
}
