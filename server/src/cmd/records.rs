//! Reads records from a file of JSON lines or of one JSON array, as a stream.
//!
//! The first character decides: `[` begins an array. Nothing is parsed here: a record is the bytes between two
//! line ends, or between two commas of the outermost array. The caller parses them, so a bad record affects no
//! other.
//!
//! Memory: one record of at most [`MAX_RECORD_BYTES`], and the reader's buffer.

use std::fmt;
use std::io::{self, BufRead};

/// Maximum length of a record in bytes: as much as is parsed, since a document is exported with all its attachments. Longer
/// ones are skipped and reported.
pub(crate) const MAX_RECORD_BYTES: usize = model::MAX_INPUT_BYTES;

/// Position of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// The line it begins on, from 1.
    pub(crate) line: u64,
    /// Its number in the array, from 1; `None` for JSON lines.
    pub(crate) record: Option<u64>,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        match self.record {
            Some(record) => write!(f, ", record {record}"),
            None => Ok(()),
        }
    }
}

/// A record, or why it cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) position: Position,
    pub(crate) content: Result<Vec<u8>, &'static str>,
}

/// Reads records one by one.
pub(crate) struct Records<R> {
    input: R,
    shape: Shape,
    line: u64,
    records: u64,
    bytes: u64,
    limit: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Unknown,
    Lines,
    Array {
        is_first: bool,
    },
    /// After the end of the array.
    Ended,
}

/// Nesting of the reader in a record of an array.
#[derive(Default)]
struct Nesting {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl<R: BufRead> Records<R> {
    pub(crate) fn new(input: R) -> Self {
        Records { input, shape: Shape::Unknown, line: 1, records: 0, bytes: 0, limit: MAX_RECORD_BYTES }
    }

    /// Number of bytes read.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next record; `None` at the end of the input.
    pub(crate) fn next(&mut self) -> io::Result<Option<Record>> {
        loop {
            match self.shape {
                Shape::Unknown => match self.first_character()? {
                    None => return Ok(None),
                    Some(b'[') => {
                        self.take(1);
                        self.shape = Shape::Array { is_first: true };
                    }
                    Some(_) => self.shape = Shape::Lines,
                },
                Shape::Lines => return self.next_line(),
                Shape::Array { is_first } => {
                    if let Some(record) = self.next_element(is_first)? {
                        return Ok(Some(record));
                    }
                }
                Shape::Ended => {
                    if self.first_character()?.is_none() {
                        return Ok(None);
                    }
                    // Reported once: the rest is no record.
                    self.shape = Shape::Lines;
                    let position = self.position(None);
                    while self.fill()? > 0 {
                        let all = self.fill()?;
                        self.take(all);
                    }
                    return Ok(Some(Record { position, content: Err("there is text behind the end of the array") }));
                }
            }
        }
    }

    /// Skips white space (and a byte order mark at the very beginning), and peeks.
    fn first_character(&mut self) -> io::Result<Option<u8>> {
        loop {
            let at_start = self.bytes == 0;
            let buffer = self.input.fill_buf()?;
            if at_start && buffer.starts_with(b"\xEF\xBB\xBF") {
                self.take(3);
                continue;
            }
            let blank = buffer.iter().take_while(|byte| is_blank(**byte)).count();
            let first = buffer.get(blank).copied();
            let is_end = buffer.is_empty();
            self.take_counting(blank);
            if first.is_some() || is_end {
                return Ok(first);
            }
        }
    }

    /// The next line that is not blank.
    fn next_line(&mut self) -> io::Result<Option<Record>> {
        if self.first_character()?.is_none() {
            return Ok(None);
        }
        let position = self.position(None);
        let mut record = Collected::new(self.limit);
        loop {
            let buffer = self.input.fill_buf()?;
            let end = memchr::memchr(b'\n', buffer);
            let length = end.unwrap_or(buffer.len());
            let is_end = end.is_some() || buffer.is_empty();
            record.add(&buffer[..length]);
            self.take(length);
            if is_end {
                // The next record skips and counts the line end.
                return Ok(Some(record.at(position)));
            }
        }
    }

    /// The next element; `None` at the end of the array, which changes the shape.
    fn next_element(&mut self, is_first: bool) -> io::Result<Option<Record>> {
        if self.first_character()? == Some(b']') && is_first {
            self.take(1);
            self.shape = Shape::Ended;
            return Ok(None);
        }
        self.records += 1;
        let position = self.position(Some(self.records));
        let mut record = Collected::new(self.limit);
        let mut nesting = Nesting::default();
        loop {
            let buffer = self.input.fill_buf()?;
            if buffer.is_empty() {
                self.shape = Shape::Lines;
                return Ok(Some(Record { position, content: Err("the file ends inside the array") }));
            }
            let end = buffer.iter().position(|byte| nesting.ends_at(*byte));
            let length = end.unwrap_or(buffer.len());
            record.add(&buffer[..length]);
            let closing = end.and_then(|end| buffer.get(end).copied());
            self.take_counting(length);
            if let Some(closing) = closing {
                self.take(1);
                self.shape = if closing == b']' { Shape::Ended } else { Shape::Array { is_first: false } };
                return Ok(Some(record.at(position)));
            }
        }
    }

    fn position(&self, record: Option<u64>) -> Position {
        Position { line: self.line, record }
    }

    fn fill(&mut self) -> io::Result<usize> {
        self.input.fill_buf().map(<[u8]>::len)
    }

    fn take(&mut self, length: usize) {
        self.input.consume(length);
        self.bytes += length as u64;
    }

    /// Consumes bytes that may contain line ends.
    fn take_counting(&mut self, length: usize) {
        // The buffer still has them: nothing was consumed since it was filled.
        if let Ok(buffer) = self.input.fill_buf() {
            self.line += memchr::memchr_iter(b'\n', &buffer[..length.min(buffer.len())]).count() as u64;
        }
        self.take(length);
    }
}

impl Nesting {
    /// Whether `byte` ends the element: a comma or bracket of the outermost array.
    fn ends_at(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b',' | b']' if self.depth == 0 => return true,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        false
    }
}

/// The bytes of a record, up to the limit.
struct Collected {
    bytes: Vec<u8>,
    limit: usize,
    is_too_long: bool,
}

impl Collected {
    fn new(limit: usize) -> Self {
        Collected { bytes: Vec::new(), limit, is_too_long: false }
    }

    fn add(&mut self, more: &[u8]) {
        if self.is_too_long || self.bytes.len() + more.len() > self.limit {
            self.is_too_long = true;
            self.bytes = Vec::new();
        } else {
            self.bytes.extend_from_slice(more);
        }
    }

    fn at(self, position: Position) -> Record {
        Record { position, content: if self.is_too_long { Err("the record is too long") } else { Ok(self.bytes) } }
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    /// Reads `text` through buffers of several sizes. The size must make no difference.
    fn read(text: &str) -> Vec<(String, Result<String, &'static str>)> {
        let mut results = [1, 2, 3, 7, 8192].map(|capacity| {
            let mut records =
                Records { limit: 40, ..Records::new(BufReader::with_capacity(capacity, text.as_bytes())) };
            let mut found = Vec::new();
            while let Some(record) = records.next().unwrap() {
                let content = record.content.map(|bytes| String::from_utf8(bytes).unwrap().trim_end().to_owned());
                found.push((record.position.to_string(), content));
            }
            assert_eq!(records.bytes(), text.len() as u64, "{text:?}");
            found
        });
        results.sort();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{results:?}");
        results[0].clone()
    }

    fn ok(position: &str, content: &str) -> (String, Result<String, &'static str>) {
        (position.into(), Ok(content.into()))
    }

    #[test]
    fn lines_are_records_and_blank_ones_are_not() {
        assert_eq!(read(""), []);
        assert_eq!(read(" \n\r\n"), []);
        assert_eq!(
            read("{\"a\":\"[,\"}\n\n  {}\r\nnonsense ] ,\n3"),
            [ok("line 1", "{\"a\":\"[,\"}"), ok("line 3", "{}"), ok("line 4", "nonsense ] ,"), ok("line 5", "3")]
        );
    }

    #[test]
    fn an_array_is_taken_apart_at_its_own_commas() {
        assert_eq!(read("[]"), []);
        assert_eq!(read("  [ \n ] \n"), []);
        assert_eq!(
            read("\n[{\"a\":[1,2,{}]} ,\n {\"b\":\"],\\\"\\\\\"},3\n]\n"),
            [
                ok("line 2, record 1", "{\"a\":[1,2,{}]}"),
                ok("line 3, record 2", "{\"b\":\"],\\\"\\\\\"}"),
                ok("line 3, record 3", "3"),
            ]
        );
        assert_eq!(
            read("[1,,]"),
            [ok("line 1, record 1", "1"), ok("line 1, record 2", ""), ok("line 1, record 3", "")]
        );
    }

    #[test]
    fn what_is_wrong_with_the_whole_is_reported_once() {
        let ends = || Err("the file ends inside the array");
        assert_eq!(read("[1,{\"a\":"), [ok("line 1, record 1", "1"), ("line 1, record 2".into(), ends())]);
        assert_eq!(read("["), [("line 1, record 1".into(), ends())]);
        assert_eq!(
            read("[1]\n2\n3"),
            [ok("line 1, record 1", "1"), ("line 2".into(), Err("there is text behind the end of the array"))]
        );
    }

    #[test]
    fn a_record_that_is_too_long_spoils_only_itself() {
        let long = "x".repeat(41);
        let too_long = || Err("the record is too long");
        assert_eq!(
            read(&format!("1\n{long}\n2\n")),
            [ok("line 1", "1"), ("line 2".into(), too_long()), ok("line 3", "2")]
        );
        assert_eq!(
            read(&format!("[\"{long}\",2]")),
            [("line 1, record 1".into(), too_long()), ok("line 1, record 2", "2")]
        );
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_record() {
        let mut records = Records::new(&b"\xEF\xBB\xBF[1]"[..]);
        assert_eq!(records.next().unwrap().unwrap().content, Ok(b"1".to_vec()));
        assert_eq!(records.next().unwrap(), None);
    }
}
