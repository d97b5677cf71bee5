//! Where requests begin and end within the bytes of a connection.
//!
//! ```text
//!  BeforeRequest ─► Method ─► Target ─► Query ─► Version ─► Headers ─► HeadEnded
//!        ▲                                                                 │
//!        ├──────────── Body(n) ◄──────── the service: exactly n ───────────┤
//!        └──────────── Chunks(…) ◄────── the service: chunked ─────────────┘
//! ```
//!
//! Heads are read as httparse reads them by default, or the connection is left alone: a line ends with LF
//! or CRLF, the head with the first empty line, empty lines before a request do not count, and one space
//! stands between the three parts of a request line.

use bytes::{BufMut, BytesMut};
use memchr::memchr;

use super::Length;

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No request, or the empty lines before it.
    BeforeRequest,
    Method,
    /// The target up to its `?`.
    Target,
    /// The target behind its `?`: here quotes are escaped.
    Query,
    /// The target behind its `#`, which hyper drops.
    Fragment,
    /// The rest of the request line.
    Version,
    Headers(Line),
    /// The head has been handed out; how it goes on is not known yet.
    HeadEnded,
    /// This many bytes of a body are left, at least one.
    Body(u64),
    Chunks(Chunk),
    /// Nothing is changed any more.
    Through,
}

/// Where in a header line the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Begin,
    /// Behind a CR with which the line began.
    Cr,
    Within,
}

/// Where in a chunked body the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// The size, of which this much was read.
    Size {
        size: u64,
        digits: u8,
    },
    SizeLf(u64),
    /// This many bytes of the chunk are left, at least one.
    Data(u64),
    DataCr,
    DataLf,
    /// Behind the chunk of no bytes: the empty line that ends the body.
    LastCr,
    LastLf,
}

impl Chunk {
    const BEGIN: Chunk = Chunk::Size { size: 0, digits: 0 };

    /// Size digits that cannot overflow.
    const MOST_DIGITS: u8 = 15;

    /// What the byte behind `byte` belongs to.
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
    /// What follows a head, as the service says. If it says nothing, hyper has not taken the head.
    pub(super) fn behind_head(length: Option<Length>) -> State {
        match length {
            Some(Length::Exact(0)) => State::BeforeRequest,
            Some(Length::Exact(length)) => State::Body(length),
            Some(Length::Chunked) => State::Chunks(Chunk::BEGIN),
            None => State::Through,
        }
    }

    /// Reads on through `bytes`, up to the end of a head if there is one. Gives how many bytes that was
    /// (at least one of several), and the places of quotes among them.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> (usize, Vec<usize>) {
        let (mut at, mut quotes) = (0, Vec::new());
        while at < bytes.len() {
            at += self.run(&bytes[at..]);
            if at == bytes.len() {
                break;
            }
            // What is long is not looked at byte by byte.
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

    /// How many of the first bytes change nothing. `after` says the same of each, in ten times the instructions.
    fn run(self, bytes: &[u8]) -> usize {
        let end = match self {
            State::Method | State::Target => {
                bytes.iter().position(|byte| matches!(byte, b'?' | b'#' | ..=b' ' | 0x7f..))
            }
            State::Version | State::Headers(Line::Within) => memchr(b'\n', bytes),
            _ => return 0,
        };
        end.unwrap_or(bytes.len())
    }

    /// What the byte behind `byte` belongs to.
    fn after(self, byte: u8) -> State {
        match (self, byte) {
            (State::BeforeRequest, b'\r' | b'\n') => State::BeforeRequest,
            (State::BeforeRequest | State::Method, b'!'..=b'~') => State::Method,
            (State::Method, b' ') => State::Target,
            (State::Target, b'?') => State::Query,
            (State::Target | State::Query, b'#') => State::Fragment,
            (State::Target | State::Query | State::Fragment, b' ') => State::Version,
            // As httparse takes them.
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

/// Appends `bytes` to `out` with what stands at `quotes` escaped.
pub(super) fn escape(bytes: &[u8], quotes: &[usize], out: &mut BytesMut) {
    let mut from = 0;
    for &at in quotes {
        out.put_slice(&bytes[from..at]);
        out.put_slice(escape_of(bytes[at]).unwrap_or(&bytes[at..=at]));
        from = at + 1;
    }
    out.put_slice(&bytes[from..]);
}
