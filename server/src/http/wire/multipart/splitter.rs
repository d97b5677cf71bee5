//! Splits a multipart body into parts while its bytes arrive.
//!
//! It holds back only possible starts of a delimiter, and the head of a part. Heads are skipped, as in CouchDB: the
//! document before them describes the parts.
//!
//! ```text
//!   Preamble ─► Delimiter ─► Head ─► Data ─► Delimiter ─► … ─► Over
//! ```

use bytes::{Buf, Bytes, BytesMut};
use memchr::memmem;

/// Maximum length of a part's head.
const MOST_HEAD: usize = 16 * 1024;

/// The next event in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A part starts. The previous part has ended.
    Part,
    /// The next bytes of the part; at least one.
    Data(Bytes),
    /// The last part has ended.
    End,
}

/// The body is not a multipart body: a sentence for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first delimiter.
    Preamble,
    /// After a delimiter.
    Delimiter,
    /// In the head of a part.
    Head,
    Data,
    Over,
}

/// Splits one body.
#[derive(Debug)]
pub(crate) struct Splitter {
    /// CRLF, two hyphens, the boundary.
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: State,
    has_ended: bool,
}

impl Splitter {
    pub(crate) fn new(boundary: &str) -> Self {
        let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
        // The first delimiter may start the body, without its CRLF. This supplies the CRLF.
        Splitter { delimiter, buffer: BytesMut::from("\r\n"), state: State::Preamble, has_ended: false }
    }

    /// Takes the next bytes of the body.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.state != State::Over {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// Records that the body has ended.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
    }

    /// The next event; `None` if it needs more bytes.
    pub(crate) fn next(&mut self) -> Result<Option<Event>, Malformed> {
        loop {
            match self.state {
                State::Preamble => {
                    let (data, delimiter) = self.find_delimiter();
                    self.buffer.advance(data);
                    if !delimiter {
                        return if self.has_ended { Err(Malformed("the body has no part")) } else { Ok(None) };
                    }
                    self.pass_delimiter();
                }
                State::Delimiter => match self.buffer.get(..2) {
                    Some(b"--") => self.state = State::Over,
                    Some(_) => self.state = State::Head,
                    // A delimiter without its last hyphens, which CouchDB accepts.
                    None if self.has_ended => self.state = State::Over,
                    None => return Ok(None),
                },
                State::Head => {
                    // The CRLF that ends the delimiter's line counts: a head may be empty.
                    let Some(end) = memmem::find(&self.buffer, b"\r\n\r\n") else {
                        if self.buffer.len() > MOST_HEAD {
                            return Err(Malformed("the head of a part is too long"));
                        }
                        return if self.has_ended { Err(Malformed("the body ends within a head")) } else { Ok(None) };
                    };
                    self.buffer.advance(end + 4);
                    self.state = State::Data;
                    return Ok(Some(Event::Part));
                }
                State::Data => {
                    let (data, delimiter) = self.find_delimiter();
                    if data > 0 {
                        return Ok(Some(Event::Data(self.buffer.split_to(data).freeze())));
                    }
                    if !delimiter {
                        if self.has_ended {
                            self.state = State::Over;
                            continue;
                        }
                        return Ok(None);
                    }
                    self.pass_delimiter();
                }
                State::Over => {
                    self.buffer.clear();
                    return Ok(Some(Event::End));
                }
            }
        }
    }

    /// Number of bytes that are certainly data, and whether a complete delimiter follows them.
    fn find_delimiter(&self) -> (usize, bool) {
        if let Some(at) = memmem::find(&self.buffer, &self.delimiter) {
            return (at, true);
        }
        if self.has_ended {
            return (self.buffer.len(), false);
        }
        // A possible start of a delimiter waits for more bytes.
        let from = self.buffer.len().saturating_sub(self.delimiter.len() - 1);
        let tail = &self.buffer[from..];
        let held = memchr::memchr_iter(b'\r', tail).find(|&at| self.delimiter.starts_with(&tail[at..]));
        (held.map_or(self.buffer.len(), |at| from + at), false)
    }

    /// Skips the delimiter at the start of the buffer.
    fn pass_delimiter(&mut self) {
        self.buffer.advance(self.delimiter.len());
        self.state = State::Delimiter;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a body that arrives in these pieces.
    fn split(boundary: &str, pieces: &[&[u8]]) -> Result<Vec<Vec<u8>>, Malformed> {
        let mut splitter = Splitter::new(boundary);
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut pieces = pieces.iter();
        loop {
            match splitter.next()? {
                Some(Event::Part) => parts.push(Vec::new()),
                Some(Event::Data(data)) => {
                    assert!(!data.is_empty());
                    parts.last_mut().unwrap().extend_from_slice(&data);
                }
                Some(Event::End) => return Ok(parts),
                None => match pieces.next() {
                    Some(piece) => splitter.push(piece),
                    None => splitter.end(),
                },
            }
        }
    }

    fn whole(body: &str) -> Result<Vec<Vec<u8>>, Malformed> {
        split("b", &[body.as_bytes()])
    }

    const BODIES: &[(&str, &[&str])] = &[
        ("--b\r\n\r\none\r\n--b\r\nContent-Type: x\r\nY: z\r\n\r\ntwo\r\n--b--", &["one", "two"]),
        ("preamble\r\n--b\r\n\r\none\r\n--b--\r\nepilogue\r\n--b\r\n\r\nno part", &["one"]),
        // Text that only resembles a delimiter is data.
        ("--b\r\n\r\n\r\n-\r\n--\r\n--c\r\r\n--B\r\n--b--", &["\r\n-\r\n--\r\n--c\r\r\n--B"]),
        ("--b\r\n\r\n\r\n--b\r\nH: 1\r\n\r\n\r\n--b--", &["", ""]),
        // Spaces after a delimiter.
        ("--b \t\r\nH: 1\r\n\r\none\r\n--b--", &["one"]),
        // Without the last delimiter, or its hyphens.
        ("--b\r\n\r\none", &["one"]),
        ("--b\r\n\r\none\r\n--b", &["one"]),
        ("--b\r\n\r\none\r\n--", &["one\r\n--"]),
        ("--b--", &[]),
    ];

    #[test]
    fn bodies_are_split_into_their_parts() {
        for (body, parts) in BODIES {
            let parts: Vec<Vec<u8>> = parts.iter().map(|part| part.as_bytes().to_vec()).collect();
            assert_eq!(whole(body).unwrap(), parts, "{body:?}");
        }
    }

    #[test]
    fn where_a_body_is_cut_makes_no_difference() {
        for (body, parts) in BODIES {
            let bytes = body.as_bytes();
            let parts: Vec<Vec<u8>> = parts.iter().map(|part| part.as_bytes().to_vec()).collect();
            for first in 0..=bytes.len() {
                for second in first..=bytes.len() {
                    let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                    assert_eq!(split("b", &pieces).unwrap(), parts, "{body:?} at {first} and {second}");
                }
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(split("b", &single).unwrap(), parts, "{body:?} byte by byte");
        }
    }

    #[test]
    fn what_is_no_multipart_body_is_refused() {
        for body in ["", "one", "--c\r\n\r\none\r\n--c--", "--b\r\nContent-Type: x", "--b\r\n"] {
            assert!(whole(body).is_err(), "{body:?}");
        }
        let endless = format!("--b\r\nX: {}", "y".repeat(2 * MOST_HEAD));
        assert!(whole(&endless).is_err());
    }

    #[test]
    fn little_is_held_back() {
        let mut splitter = Splitter::new("boundary");
        splitter.push(b"--boundary\r\n\r\n");
        assert_eq!(splitter.next(), Ok(Some(Event::Part)));
        for _ in 0..1000 {
            splitter.push(&[b'x'; 1000]);
            assert!(matches!(splitter.next(), Ok(Some(Event::Data(data))) if data.len() == 1000));
            assert_eq!((splitter.next(), splitter.buffer.len()), (Ok(None), 0));
        }
        splitter.push(&[b'\n'; 1_000_000]);
        let mut preamble = Splitter::new("boundary");
        preamble.push(&[b'\r'; 1_000_000]);
        assert_eq!(preamble.next(), Ok(None));
        assert!(preamble.buffer.len() < 20);
    }
}
