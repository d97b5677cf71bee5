//! Normalises any JSON text in one pass.
//!
//! It never recurses. Open containers are on an explicit stack, so the input's nesting takes eight bytes a level and no
//! thread's stack. Values need no allocation.
//!
//! # Copying
//! Input that is already normalised is copied in long runs. `clean` is the beginning of the run that can be copied
//! unchanged. The run is flushed to `out` only where the output must differ: at white space, at an escape that is not
//! minimal, or at a float with another text.
//!
//! ```text
//!   input   {"a":1, "b":1e2}
//!           └──┬──┘└┬┘
//!       flushed │  └ pending: [clean, at)
//!   out     {"a":1,
//! ```
//! So a position of the output is `out.len() + (position in the input - clean)`.
//!
//! # Repeated member names
//! The last occurrence wins and keeps its own place, like with `dedupe_keys` of CouchDB's jiffy. (The order matters:
//! the revision depends on it.) While parsing, earlier occurrences are only marked, as spans of the output from their
//! name to the next member's name. They are cut out in one pass at the end. Cutting them at once would take quadratic
//! time for duplicates nested in duplicates.

use super::error::{JsonError, JsonErrorKind};
use super::number::{FloatText, is_written_so, parse_float};
use super::string::{append_escape, plain_run_end};

/// Limits of [`JsonText::parse_with`](super::JsonText::parse_with).
#[derive(Clone, Copy, Debug)]
pub struct ParseOptions {
    /// Maximum number of open containers.
    pub max_depth: usize,
    /// Maximum number of digits of an integer. The default is the limit of Erlang's integers (4,194,304 bits since OTP
    /// 26), so every accepted document is also valid for CouchDB.
    pub max_integer_digits: usize,
}

impl Default for ParseOptions {
    fn default() -> ParseOptions {
        ParseOptions { max_depth: 1_000_000, max_integer_digits: 1_262_611 }
    }
}

/// Maximum length of the input in bytes. Positions of the output must fit in 32 bits. It may be five times as long as
/// the input: `1e20,` becomes `100000000000000000000.0,`.
pub const MAX_INPUT_BYTES: usize = (u32::MAX / 8) as usize;

/// In objects with at most this many members, names are compared in pairs. In larger ones, hashes are sorted.
const PAIRWISE_MEMBERS: usize = 24;

/// An open container.
struct Frame {
    is_object: bool,
    /// Index of its first member on the stack of members.
    first_member: u32,
}

/// A member of an object that is still open.
#[derive(Clone, Copy)]
struct Member {
    /// Position of its name's opening quote in the output.
    start: u32,
    /// Length of its name in the output, including quotes.
    name_len: u32,
    hash: u32,
}

struct Parser<'i> {
    input: &'i str,
    options: ParseOptions,
    at: usize,
    clean: usize,
    out: Vec<u8>,
    frames: Vec<Frame>,
    members: Vec<Member>,
    dead: Vec<(u32, u32)>,
}

/// Normalises one JSON value. The output is UTF-8 if the input is.
pub(super) fn normalise(input: &[u8], options: ParseOptions) -> Result<Vec<u8>, JsonError> {
    if input.len() > MAX_INPUT_BYTES {
        return Err(JsonError { offset: MAX_INPUT_BYTES, kind: JsonErrorKind::TooLarge });
    }
    let input = std::str::from_utf8(input)
        .map_err(|error| JsonError { offset: error.valid_up_to(), kind: JsonErrorKind::Utf8 })?;
    let mut parser = Parser {
        input,
        options,
        at: 0,
        clean: 0,
        out: Vec::with_capacity(input.len()),
        // Enough for most documents.
        frames: Vec::with_capacity(8),
        members: Vec::with_capacity(16),
        dead: Vec::new(),
    };
    match parser.document() {
        Ok(()) => Ok(parser.finish()),
        Err(kind) => Err(JsonError { offset: parser.at, kind }),
    }
}

impl Parser<'_> {
    fn document(&mut self) -> Result<(), JsonErrorKind> {
        loop {
            self.skip_white_space();
            match self.peek() {
                Some(b'"') => {
                    self.string()?;
                }
                Some(open @ (b'{' | b'[')) => {
                    if self.open(open == b'{')? {
                        continue;
                    }
                }
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.literal("true")?,
                Some(b'f') => self.literal("false")?,
                Some(b'n') => self.literal("null")?,
                Some(_) => return Err(JsonErrorKind::ExpectedValue),
                None => return Err(JsonErrorKind::UnexpectedEnd),
            }
            if !self.after_value()? {
                break;
            }
        }
        self.skip_white_space();
        self.flush();
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(JsonErrorKind::TrailingCharacters),
        }
    }

    /// Opens a container. Returns whether a value comes next, instead of the container's end.
    fn open(&mut self, is_object: bool) -> Result<bool, JsonErrorKind> {
        if self.frames.len() >= self.options.max_depth {
            return Err(JsonErrorKind::TooDeep);
        }
        self.at += 1;
        self.skip_white_space();
        if self.peek() == Some(if is_object { b'}' } else { b']' }) {
            self.at += 1;
            return Ok(false);
        }
        self.frames.push(Frame { is_object, first_member: self.members.len() as u32 });
        if is_object {
            self.name()?;
        }
        Ok(true)
    }

    /// Continues after a value, and closes the containers that end there. Returns whether another value comes.
    fn after_value(&mut self) -> Result<bool, JsonErrorKind> {
        loop {
            let Some(&Frame { is_object, first_member }) = self.frames.last() else { return Ok(false) };
            self.skip_white_space();
            match (self.peek(), is_object) {
                (Some(b','), _) => {
                    self.at += 1;
                    if is_object {
                        self.skip_white_space();
                        self.name()?;
                    }
                    return Ok(true);
                }
                (Some(b'}'), true) => {
                    self.mark_duplicates(first_member as usize);
                    self.members.truncate(first_member as usize);
                }
                (Some(b']'), false) => {}
                (None, _) => return Err(JsonErrorKind::UnexpectedEnd),
                (_, true) => return Err(JsonErrorKind::ExpectedCommaOrBrace),
                (_, false) => return Err(JsonErrorKind::ExpectedCommaOrBracket),
            }
            self.frames.pop();
            self.at += 1;
        }
    }

    fn name(&mut self) -> Result<(), JsonErrorKind> {
        match self.peek() {
            Some(b'"') => {}
            Some(_) => return Err(JsonErrorKind::ExpectedName),
            None => return Err(JsonErrorKind::UnexpectedEnd),
        }
        let start = self.out_len();
        let opening = self.at;
        let rewritten = self.string()?;
        let hash = if rewritten {
            self.flush();
            hash(&self.out[start..])
        } else {
            hash(&self.input.as_bytes()[opening..self.at])
        };
        let name_len = (self.out_len() - start) as u32;
        self.members.push(Member { start: start as u32, name_len, hash });
        self.skip_white_space();
        match self.peek() {
            Some(b':') => {
                self.at += 1;
                Ok(())
            }
            Some(_) => Err(JsonErrorKind::ExpectedColon),
            None => Err(JsonErrorKind::UnexpectedEnd),
        }
    }

    /// Parses a string from its opening quote. Returns whether any part was rewritten.
    fn string(&mut self) -> Result<bool, JsonErrorKind> {
        let bytes = self.input.as_bytes();
        let mut rewritten = false;
        self.at += 1;
        loop {
            self.at = plain_run_end(bytes, self.at);
            match bytes.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(rewritten);
                }
                Some(b'\\') => rewritten |= self.escape()?,
                Some(_) => return Err(JsonErrorKind::ControlCharacter),
                None => return Err(JsonErrorKind::UnexpectedEnd),
            }
        }
    }

    /// Parses an escape. Returns whether it had to be rewritten.
    fn escape(&mut self) -> Result<bool, JsonErrorKind> {
        let bytes = self.input.as_bytes();
        match bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'b' | b't' | b'n' | b'f' | b'r') => {
                self.at += 2;
                Ok(false)
            }
            Some(b'/') => {
                // The slash itself begins the next run.
                self.flush();
                self.at += 1;
                self.clean = self.at;
                self.at += 1;
                Ok(true)
            }
            Some(b'u') => {
                self.flush();
                let meant = self.unicode_escape()?;
                match meant {
                    '"' | '\\' | '\0'..'\u{20}' => append_escape(&mut self.out, meant as u8),
                    _ => self.out.extend_from_slice(meant.encode_utf8(&mut [0; 4]).as_bytes()),
                }
                self.clean = self.at;
                Ok(true)
            }
            Some(_) => Err(JsonErrorKind::InvalidEscape),
            None => Err(JsonErrorKind::UnexpectedEnd),
        }
    }

    /// Parses `\uXXXX`, or two of them that form a surrogate pair.
    fn unicode_escape(&mut self) -> Result<char, JsonErrorKind> {
        let first = self.four_digits(self.at)?;
        if !(0xd800..0xe000).contains(&first) {
            self.at += 6;
            return char::from_u32(first).ok_or(JsonErrorKind::InvalidEscape);
        }
        if first >= 0xdc00 || !self.input.as_bytes()[self.at + 6..].starts_with(b"\\u") {
            return Err(JsonErrorKind::LoneSurrogate);
        }
        let second = self.four_digits(self.at + 6)?;
        if !(0xdc00..0xe000).contains(&second) {
            return Err(JsonErrorKind::LoneSurrogate);
        }
        self.at += 12;
        char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)).ok_or(JsonErrorKind::LoneSurrogate)
    }

    /// The value of the four hexadecimal digits after the `\u` at `at`.
    fn four_digits(&self, at: usize) -> Result<u32, JsonErrorKind> {
        let mut value = 0;
        for offset in 2..6 {
            let digit = self.input.as_bytes().get(at + offset).ok_or(JsonErrorKind::UnexpectedEnd)?;
            value = value << 4 | char::from(*digit).to_digit(16).ok_or(JsonErrorKind::InvalidEscape)?;
        }
        Ok(value)
    }

    fn number(&mut self) -> Result<(), JsonErrorKind> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let digits = self.digits()?;
        if digits > 1 && self.input.as_bytes()[self.at - digits] == b'0' {
            return Err(JsonErrorKind::InvalidNumber);
        }
        let mut fraction = None;
        if self.peek() == Some(b'.') {
            self.at += 1;
            fraction = Some(self.digits()?);
        }
        let mut has_exponent = false;
        if let Some(b'e' | b'E') = self.peek() {
            has_exponent = true;
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        let text = &self.input[start..self.at];
        if let (Some(fraction), false) = (fraction, has_exponent)
            && is_written_so(text.as_bytes(), digits, fraction)
        {
            return Ok(());
        }
        if fraction.is_some() || has_exponent {
            let value = parse_float(text)?;
            let mut float = FloatText::new();
            let normalised = float.write(value);
            if normalised != text {
                self.replace(start, normalised);
            }
        } else if text == "-0" {
            self.replace(start, "0");
        } else if digits > self.options.max_integer_digits {
            self.at = start;
            return Err(JsonErrorKind::IntegerTooLong);
        }
        Ok(())
    }

    /// Skips digits, at least one. Returns their number.
    fn digits(&mut self) -> Result<usize, JsonErrorKind> {
        let rest = &self.input.as_bytes()[self.at..];
        let count = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        self.at += count;
        match (count, self.peek()) {
            (0, None) => Err(JsonErrorKind::UnexpectedEnd),
            (0, Some(_)) => Err(JsonErrorKind::InvalidNumber),
            _ => Ok(count),
        }
    }

    fn literal(&mut self, literal: &str) -> Result<(), JsonErrorKind> {
        let rest = &self.input.as_bytes()[self.at..];
        if rest.starts_with(literal.as_bytes()) {
            self.at += literal.len();
            return Ok(());
        }
        if literal.as_bytes().starts_with(rest) {
            self.at += rest.len();
            return Err(JsonErrorKind::UnexpectedEnd);
        }
        Err(JsonErrorKind::ExpectedValue)
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.input.as_bytes().get(self.at).copied()
    }

    #[inline]
    fn skip_white_space(&mut self) {
        if !matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            return;
        }
        self.flush();
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
        self.clean = self.at;
    }

    #[inline]
    fn out_len(&self) -> usize {
        self.out.len() + (self.at - self.clean)
    }

    /// Copies the pending run to the output.
    fn flush(&mut self) {
        self.out.extend_from_slice(&self.input.as_bytes()[self.clean..self.at]);
        self.clean = self.at;
    }

    /// Writes `text` in place of the input from `start` to the current position. `start` must not be before `clean`.
    fn replace(&mut self, start: usize, text: &str) {
        self.out.extend_from_slice(&self.input.as_bytes()[self.clean..start]);
        self.out.extend_from_slice(text.as_bytes());
        self.clean = self.at;
    }

    /// Marks overridden members of the object that ends here, the last on the stack: those with a later member of the
    /// same name.
    fn mark_duplicates(&mut self, first_member: usize) {
        let count = self.members.len() - first_member;
        if count <= PAIRWISE_MEMBERS {
            for earlier in first_member..self.members.len() {
                for later in earlier + 1..self.members.len() {
                    if self.same_hash(earlier, later) && self.same_name(earlier, later) {
                        self.mark(earlier);
                        break;
                    }
                }
            }
            return;
        }
        // Four bytes each, as there may be many.
        let mut order: Vec<u32> = (first_member as u32..self.members.len() as u32).collect();
        let key = |members: &[Member], index: u32| (members[index as usize].hash, members[index as usize].name_len);
        order.sort_unstable_by_key(|&index| (key(&self.members, index), index));
        if !order.windows(2).any(|pair| self.same_hash(pair[0] as usize, pair[1] as usize)) {
            return;
        }
        // The names are sorted too, so that the work is bounded even if all hashes collide on purpose.
        self.flush();
        order.sort_unstable_by(|&left, &right| {
            (key(&self.members, left), self.name_of(left as usize), left).cmp(&(
                key(&self.members, right),
                self.name_of(right as usize),
                right,
            ))
        });
        for pair in order.windows(2) {
            let (earlier, later) = (pair[0] as usize, pair[1] as usize);
            if self.same_hash(earlier, later) && self.name_of(earlier) == self.name_of(later) {
                self.mark(earlier);
            }
        }
    }

    fn same_hash(&self, left: usize, right: usize) -> bool {
        self.members[left].hash == self.members[right].hash
            && self.members[left].name_len == self.members[right].name_len
    }

    fn same_name(&mut self, left: usize, right: usize) -> bool {
        self.flush();
        self.name_of(left) == self.name_of(right)
    }

    /// The name as written, including quotes. It must have been flushed.
    fn name_of(&self, index: usize) -> &[u8] {
        let Member { start, name_len, .. } = self.members[index];
        &self.out[start as usize..(start + name_len) as usize]
    }

    /// Marks a member, which must not be its object's last.
    fn mark(&mut self, index: usize) {
        self.dead.push((self.members[index].start, self.members[index + 1].start));
    }

    fn finish(mut self) -> Vec<u8> {
        if self.dead.is_empty() {
            return self.out;
        }
        // Two texts are in memory here, so the memory of many members matters.
        self.members = Vec::new();
        self.dead.sort_unstable();
        let mut kept = Vec::with_capacity(self.out.len());
        let mut from = 0;
        for (start, end) in self.dead {
            // A span within a span that was already cut begins before `from`.
            if let Some(alive) = self.out.get(from..start as usize) {
                kept.extend_from_slice(alive);
                from = end as usize;
            }
        }
        kept.extend_from_slice(&self.out[from..]);
        kept
    }
}

/// A fast hash of a name. Collisions only cost time.
fn hash(name: &[u8]) -> u32 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = name.len() as u64;
    let mut chunks = name.chunks_exact(8);
    for chunk in &mut chunks {
        let word = chunk.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        state = (state.rotate_left(5) ^ word).wrapping_mul(MULTIPLIER);
    }
    let word = chunks.remainder().iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    state = (state.rotate_left(5) ^ word).wrapping_mul(MULTIPLIER);
    (state >> 32) as u32
}
