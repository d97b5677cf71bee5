//! Reads records from a file in one of the shapes that CouchDB and its tools write, as a stream.
//!
//! ```text
//! {"_id":"a"}                                   Lines: a document on each line
//! [{"_id":"a"},{"_id":"b"}]                     Array: one array, or one on each line (couchbackup)
//! {"docs":[{"_id":"a"}]}                        Docs: a body of _bulk_docs, an answer of _find
//! {"total_rows":1,"rows":[{"id":"a","doc":…}]}  Rows: an answer of _all_docs or a view, with include_docs
//! ```
//!
//! The first characters decide. Nothing is parsed here: a record is the bytes between two line ends, or between two
//! commas of an array. The caller parses them, so a bad record affects no other.
//!
//! Memory: one record of at most [`MAX_RECORD_BYTES`], and the reader's buffer.

use std::fmt;
use std::io::{self, BufRead};

use model::JsonText;

/// Maximum length of a record in bytes: as much as is parsed, since a document is exported with all its attachments.
/// Longer ones are skipped and reported.
pub(crate) const MAX_RECORD_BYTES: usize = model::MAX_INPUT_BYTES;

/// Position of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// The line that it starts on, from 1.
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

/// The form of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Lines,
    Array,
    Docs,
    Rows,
}

impl Shape {
    /// For `--json`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Shape::Lines => "lines",
            Shape::Array => "array",
            Shape::Docs => "docs",
            Shape::Rows => "rows",
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Shape::Lines => "JSON lines",
            Shape::Array => "JSON arrays",
            Shape::Docs => "an object with `docs`",
            Shape::Rows => "an object with `rows`",
        })
    }
}

/// Reads records one by one.
pub(crate) struct Records<R> {
    input: R,
    shape: Shape,
    place: Place,
    /// Bytes of the first line, read to find the shape.
    head: Vec<u8>,
    line: u64,
    records: u64,
    bytes: u64,
    limit: usize,
}

/// Where the reader is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the first record.
    Start,
    /// Before a line.
    Line,
    /// Before an element of an array.
    Element { is_first: bool },
    /// After the end of an array.
    Ended,
}

/// Maximum length of the text before the array in an object with `rows` or `docs`.
const MAX_HEAD_BYTES: usize = 4096;

/// Members that may come before `rows` or `docs`: those of answers and of `_bulk_docs`. A line with any other member is
/// a document, even if it has an array of that name.
const BEFORE_ARRAY: &[&str] = &["total_rows", "offset", "update_seq", "new_edits", "bookmark", "warning"];

/// Nesting of the reader in a record of an array.
#[derive(Default)]
struct Nesting {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl<R: BufRead> Records<R> {
    pub(crate) fn new(input: R) -> Self {
        Records {
            input,
            shape: Shape::Lines,
            place: Place::Start,
            head: Vec::new(),
            line: 1,
            records: 0,
            bytes: 0,
            limit: MAX_RECORD_BYTES,
        }
    }

    /// The file's shape, known once a record was read.
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of bytes read.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next record; `None` at the end of the input.
    pub(crate) fn next(&mut self) -> io::Result<Option<Record>> {
        loop {
            match self.place {
                Place::Start => match self.first_character()? {
                    None => return Ok(None),
                    Some(b'[') => {
                        self.take(1);
                        (self.shape, self.place) = (Shape::Array, Place::Element { is_first: true });
                    }
                    Some(_) => self.read_head()?,
                },
                Place::Line => {
                    let line = self.next_line()?;
                    // couchbackup's first line names the program and its version; arrays follow.
                    if self.is_couchbackup(&line) && self.first_character()? == Some(b'[') {
                        self.take(1);
                        (self.shape, self.place) = (Shape::Array, Place::Element { is_first: true });
                        continue;
                    }
                    return Ok(line);
                }
                Place::Element { is_first } => {
                    if let Some(record) = self.next_element(is_first)? {
                        return Ok(Some(record));
                    }
                }
                Place::Ended => match self.first_character()? {
                    None => return Ok(None),
                    // couchbackup writes an array on each line.
                    Some(b'[') if self.shape == Shape::Array => {
                        self.take(1);
                        self.place = Place::Element { is_first: true };
                    }
                    // The rest of the object, which nobody needs.
                    Some(b',' | b'}') if self.shape != Shape::Array => self.skip_rest()?,
                    Some(_) => {
                        // Reported once: the rest is not a record.
                        let position = self.position(None);
                        self.skip_rest()?;
                        return Ok(Some(Record { position, content: Err("there is text after the end of the array") }));
                    }
                },
            }
        }
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        while self.fill()? > 0 {
            let all = self.fill()?;
            self.take(all);
        }
        Ok(())
    }

    fn is_couchbackup(&self, line: &Option<Record>) -> bool {
        let text = line.as_ref().and_then(|line| line.content.as_ref().ok());
        text.is_some_and(|text| text.starts_with(b"{\"name\":\"@cloudant/couchbackup\""))
    }

    /// Reads far enough to tell an object with `rows` or `docs` from a document on a line. Bytes of a document are kept
    /// in `head`.
    fn read_head(&mut self) -> io::Result<()> {
        self.place = Place::Line;
        while self.head.len() < MAX_HEAD_BYTES {
            let Some(&byte) = self.input.fill_buf()?.first() else { return Ok(()) };
            if byte == b'[' {
                if let Some(shape) = shape_before_array(&self.head) {
                    self.take(1);
                    self.line += self.head.iter().filter(|byte| **byte == b'\n').count() as u64;
                    self.head = Vec::new();
                    (self.shape, self.place) = (shape, Place::Element { is_first: true });
                }
                return Ok(());
            }
            // An indented object continues on the next line; a document does not.
            if byte == b'\n' && !self.head.trim_ascii_end().ends_with(b",") && self.head.trim_ascii_end() != b"{" {
                return Ok(());
            }
            self.head.push(byte);
            self.take(1);
        }
        Ok(())
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
        if self.head.is_empty() && self.first_character()?.is_none() {
            return Ok(None);
        }
        let position = self.position(None);
        let mut record = Collected::new(self.limit);
        record.add(&std::mem::take(&mut self.head));
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
            self.place = Place::Ended;
            return Ok(None);
        }
        self.records += 1;
        let position = self.position(Some(self.records));
        let mut record = Collected::new(self.limit);
        let mut nesting = Nesting::default();
        loop {
            let buffer = self.input.fill_buf()?;
            if buffer.is_empty() {
                self.place = Place::Line;
                return Ok(Some(Record { position, content: Err("the file ends inside the array") }));
            }
            let end = buffer.iter().position(|byte| nesting.ends_at(*byte));
            let length = end.unwrap_or(buffer.len());
            record.add(&buffer[..length]);
            let closing = end.and_then(|end| buffer.get(end).copied());
            self.take_counting(length);
            if let Some(closing) = closing {
                self.take(1);
                self.place = if closing == b']' { Place::Ended } else { Place::Element { is_first: false } };
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

/// The shape of an object whose text before an array this is; `None` if it is a document.
fn shape_before_array(head: &[u8]) -> Option<Shape> {
    let json = JsonText::parse(&[head, b"[]}"].concat()).ok()?;
    let mut found = None;
    for (name, _) in json.root().members() {
        found = match name.as_ref() {
            "rows" => Some(Shape::Rows),
            "docs" => Some(Shape::Docs),
            name if BEFORE_ARRAY.contains(&name) => None,
            _ => return None,
        };
    }
    found
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
    fn answers_of_couchdb_are_taken_apart() {
        let shape = |text: &str| {
            let mut records = Records::new(text.as_bytes());
            while records.next().unwrap().is_some() {}
            records.shape()
        };
        let rows = "{\"total_rows\":2,\"offset\":0,\"rows\":[\r\n{\"id\":1},\r\n{\"id\":2}\r\n]}\n";
        assert_eq!(read(rows), [ok("line 2, record 1", "{\"id\":1}"), ok("line 3, record 2", "{\"id\":2}")]);
        let indented = "{\n  \"total_rows\": 2,\n  \"rows\": [\n{},\n{}\n  ],\n  \"x\": 3\n}\n";
        assert_eq!(read(indented), [ok("line 4, record 1", "{}"), ok("line 5, record 2", "{}")]);
        let docs = "{\"docs\":[{\"a\":[1]},{}],\n\"bookmark\":\"nil\"}";
        assert_eq!(read(docs), [ok("line 1, record 1", "{\"a\":[1]}"), ok("line 1, record 2", "{}")]);
        let kinds = [rows, indented, docs, "[{}]", "{}"].map(shape);
        assert_eq!(kinds, [Shape::Rows, Shape::Rows, Shape::Docs, Shape::Array, Shape::Lines]);
    }

    #[test]
    fn a_document_with_an_array_of_such_a_name_stays_a_document() {
        for line in [r#"{"_id":"a","rows":[1,2]}"#, r#"{"rows":1,"x":[]}"#, r#"{"a":[],"docs":[1]}"#] {
            assert_eq!(read(&format!("{line}\n{{}}\n")), [ok("line 1", line), ok("line 2", "{}")]);
        }
        assert_eq!(read("{\"a\":1\n{\"b\":[]}"), [ok("line 1", "{\"a\":1"), ok("line 2", "{\"b\":[]}")]);
    }

    #[test]
    fn a_backup_of_couchbackup_is_an_array_on_each_line() {
        let lines = "[1,2]\n[]\n[3]\n";
        let found = [ok("line 1, record 1", "1"), ok("line 1, record 2", "2"), ok("line 3, record 3", "3")];
        assert_eq!(read(lines), found);
        let headed = read(&format!("{{\"name\":\"@cloudant/couchbackup\"}}\n{lines}"));
        assert_eq!(headed.len(), 3, "{headed:?}");
    }

    #[test]
    fn what_is_wrong_with_the_whole_is_reported_once() {
        let ends = || Err("the file ends inside the array");
        assert_eq!(read("[1,{\"a\":"), [ok("line 1, record 1", "1"), ("line 1, record 2".into(), ends())]);
        assert_eq!(read("["), [("line 1, record 1".into(), ends())]);
        assert_eq!(
            read("[1]\n2\n3"),
            [ok("line 1, record 1", "1"), ("line 2".into(), Err("there is text after the end of the array"))]
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
