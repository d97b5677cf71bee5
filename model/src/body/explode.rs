//! From text to one row for each leaf.
//!
//! The path of the value at hand is one buffer that grows and shrinks with the nesting; each leaf
//! copies it behind the prefix into the arena. Which containers turn out empty, and so need a row of
//! their own, is known when they end.

use super::metadata::RevisionMetadata;
use super::{BodyError, BodyFormat, BodyLimits, Row, StoredBody, order, row_cost};
use crate::bigint::decimal_to_le_bytes;
use crate::json::{JsonText, RawStr, Token};
use crate::tuple::{self, Element, MAX_INT_BYTES};

/// A container that is open.
struct Level {
    /// The length of its own path.
    path_len: usize,
    is_array: bool,
    /// How many values it has had.
    count: u64,
}

/// Why exploding stopped early.
enum Stop {
    /// It costs more than is allowed.
    TooCostly,
    Failed(BodyError),
}

struct Exploder<'a> {
    prefix: &'a [u8],
    limits: &'a BodyLimits,
    path: Vec<u8>,
    arena: Vec<u8>,
    rows: Vec<Row>,
    /// The first row of each leaf.
    leaves: Vec<u32>,
    /// Whether the leaves so far are in the order of their keys.
    sorted: bool,
    cost: usize,
}

/// Lays a body out exploded; `None` where it has to be packed.
pub(super) fn explode(
    body: &JsonText,
    key_prefix: &[u8],
    limits: &BodyLimits,
) -> Result<Option<StoredBody>, BodyError> {
    // As many leaves as commas and one more, but for commas in strings and for empty containers.
    let leaves = memchr::memchr_iter(b',', body.as_bytes()).count() + 1;
    let leaves = leaves.min(limits.max_exploded_cost / row_cost(key_prefix.len(), 0));
    let arena = (leaves + 1) * (key_prefix.len() + 24) + body.len();
    let mut exploder = Exploder {
        prefix: key_prefix,
        limits,
        path: Vec::with_capacity(64),
        arena: Vec::with_capacity(arena.min(limits.max_exploded_cost)),
        rows: Vec::with_capacity(leaves + 1),
        leaves: Vec::with_capacity(leaves),
        sorted: true,
        cost: 0,
    };
    exploder.rows.push(Row { key: 0, value: 0, end: 0 });
    match exploder.walk(body).and_then(|()| exploder.finish(body)) {
        Ok(stored) => Ok(Some(stored)),
        Err(Stop::TooCostly) => Ok(None),
        Err(Stop::Failed(error)) => Err(error),
    }
}

impl Exploder<'_> {
    fn walk(&mut self, body: &JsonText) -> Result<(), Stop> {
        let mut levels: Vec<Level> = Vec::with_capacity(8);
        let mut tokens = body.scan();
        while let Some(token) = tokens.next() {
            match (token, levels.last_mut()) {
                (Token::Name(name), Some(level)) => {
                    level.count += 1;
                    self.path.truncate(level.path_len);
                    append_json_str(&mut self.path, name);
                    continue;
                }
                (Token::End, _) => {
                    if let Some(ended) = levels.pop()
                        && ended.count == 0
                        && !levels.is_empty()
                    {
                        self.path.truncate(ended.path_len);
                        let text: &[u8] = if ended.is_array { b"[]" } else { b"{}" };
                        self.leaf(|out| tuple::append_bytes(out, text))?;
                    }
                    continue;
                }
                (_, Some(level)) if level.is_array => {
                    self.path.truncate(level.path_len);
                    tuple::append_u64(&mut self.path, level.count);
                    level.count += 1;
                }
                _ => {}
            }
            match token {
                Token::Begin { is_array } => levels.push(Level { path_len: self.path.len(), is_array, count: 0 }),
                Token::Str(text) => self.string(text)?,
                Token::Int(value) => self.leaf(|out| tuple::append_i64(out, value))?,
                Token::LongInt(digits) => self.long_integer(digits)?,
                Token::Float(value) => self.leaf(|out| tuple::append_double(out, value))?,
                Token::Bool(value) => self.leaf(|out| tuple::append_bool(out, value))?,
                Token::Null => self.leaf(tuple::append_null)?,
                Token::End | Token::Name(_) => {}
            }
        }
        Ok(())
    }

    fn string(&mut self, text: RawStr<'_>) -> Result<(), Stop> {
        // An escape is at least as long as what it encodes to, so this settles it for most strings.
        if text.raw_len() + 2 <= self.limits.value_bytes() {
            return self.leaf(|out| append_json_str(out, text));
        }
        let text = text.json_str().to_cow();
        if tuple::encoded_len(text.as_bytes()) <= self.limits.value_bytes() {
            return self.leaf(|out| tuple::append_str(out, &text));
        }
        self.parts(&text, tuple::append_str)
    }

    fn long_integer(&mut self, digits: &str) -> Result<(), Stop> {
        let (negative, magnitude) = match digits.strip_prefix('-') {
            Some(magnitude) => (true, magnitude),
            None => (false, digits),
        };
        // 255 bytes hold any number of 614 digits and some of 615.
        if magnitude.len() <= 615 {
            let magnitude = decimal_to_le_bytes(magnitude);
            if magnitude.len() <= MAX_INT_BYTES {
                return self.leaf(|out| tuple::append_integer(out, negative, &magnitude));
            }
        }
        if digits.len() + 2 <= self.limits.value_bytes() {
            return self.leaf(|out| tuple::append_bytes(out, digits.as_bytes()));
        }
        self.parts(digits, |out, part| tuple::append_bytes(out, part.as_bytes()))
    }

    fn leaf(&mut self, value: impl FnOnce(&mut Vec<u8>)) -> Result<(), Stop> {
        self.begin_leaf();
        self.row(None, value)
    }

    /// A leaf in several rows.
    fn parts(&mut self, mut rest: &str, value: impl Fn(&mut Vec<u8>, &str)) -> Result<(), Stop> {
        self.begin_leaf();
        for number in 0..=u16::MAX {
            let (part, behind) = rest.split_at(part_len(rest, self.limits.value_bytes()));
            self.row(Some(number), |out| value(out, part))?;
            rest = behind;
            if rest.is_empty() {
                return Ok(());
            }
        }
        Err(Stop::TooCostly)
    }

    fn begin_leaf(&mut self) {
        self.leaves.push(self.rows.len() as u32);
    }

    /// Writes one row of the leaf that was begun last, at the path at hand.
    fn row(&mut self, part: Option<u16>, value: impl FnOnce(&mut Vec<u8>)) -> Result<(), Stop> {
        let limit = self.limits.max_key_bytes;
        let key = self.arena.len();
        self.arena.extend_from_slice(self.prefix);
        self.arena.extend_from_slice(&self.path);
        if let Some(number) = part {
            tuple::append_bytes(&mut self.arena, &number.to_be_bytes());
        }
        let start = self.arena.len();
        if start - key > limit {
            let path = pointer(&self.path);
            return Err(Stop::Failed(BodyError::PathTooLong { path, bytes: start - key, limit }));
        }
        value(&mut self.arena);
        let row = Row { key, value: start, end: self.arena.len() };
        if let Some(previous) = self.rows[1..].last() {
            let path = |row: Row| &self.arena[row.key + self.prefix.len()..row.value];
            self.sorted &= path(*previous) < path(row);
        }
        self.rows.push(row);
        self.count(row)
    }

    fn count(&mut self, row: Row) -> Result<(), Stop> {
        self.cost += row_cost(row.value - row.key, row.end - row.value);
        if self.cost > self.limits.max_exploded_cost { Err(Stop::TooCostly) } else { Ok(()) }
    }

    /// Writes the metadata's row, which is the first.
    fn finish(mut self, body: &JsonText) -> Result<StoredBody, Stop> {
        let order = if self.sorted { Vec::new() } else { self.sort() };
        let key = self.arena.len();
        self.arena.extend_from_slice(self.prefix);
        let value = self.arena.len();
        if value - key > self.limits.max_key_bytes {
            let (path, bytes, limit) = (String::new(), value - key, self.limits.max_key_bytes);
            return Err(Stop::Failed(BodyError::PathTooLong { path, bytes, limit }));
        }
        let metadata = RevisionMetadata::exploded(body.as_bytes(), self.leaves.len() as u64);
        metadata.with_payload(&order).append_to(&mut self.arena);
        let row = Row { key, value, end: self.arena.len() };
        if row.end - row.value > self.limits.value_bytes() {
            return Err(Stop::TooCostly);
        }
        self.rows[0] = row;
        self.count(row)?;
        let (format, arena) = (BodyFormat::Exploded, self.arena.into());
        Ok(StoredBody { format, arena, rows: self.rows, cost: self.cost })
    }

    /// Brings the rows into the order of their keys; what that order is of the document's leaves.
    fn sort(&mut self) -> Vec<u8> {
        let path = |leaf: u32| {
            let row = self.rows[self.leaves[leaf as usize] as usize];
            &self.arena[row.key + self.prefix.len()..row.value]
        };
        // The first bytes of a path as a number tell most of them apart.
        let mut by_key: Vec<(u64, u32)> =
            (0..self.leaves.len() as u32).map(|leaf| (order::head(path(leaf)), leaf)).collect();
        by_key.sort_unstable_by(|(head, left), (other, right)| {
            head.cmp(other).then_with(|| path(*left).cmp(path(*right)))
        });
        let mut ranks = vec![0; by_key.len()];
        let mut sorted = Vec::with_capacity(self.rows.len());
        sorted.extend(self.rows.first());
        for (rank, &(_, leaf)) in (0..).zip(&by_key) {
            ranks[leaf as usize] = rank;
            let begin = self.leaves[leaf as usize] as usize;
            let end = self.leaves.get(leaf as usize + 1).map_or(self.rows.len(), |&next| next as usize);
            sorted.extend_from_slice(&self.rows[begin..end]);
        }
        self.rows = sorted;
        order::encode(&ranks)
    }
}

fn append_json_str(out: &mut Vec<u8>, text: RawStr<'_>) {
    tuple::begin_str(out);
    match text.plain() {
        Some(plain) => out.extend_from_slice(plain),
        None => text.json_str().for_each_run(|run| tuple::append_run(out, run.as_bytes())),
    }
    tuple::end_run(out);
}

/// The length of the longest beginning of `text` whose element fits `limit` bytes, cut between
/// characters.
fn part_len(text: &str, limit: usize) -> usize {
    let mut room = limit.saturating_sub(2);
    let mut end = 0;
    for &byte in text.as_bytes() {
        let cost = if byte == 0 { 2 } else { 1 };
        if cost > room {
            break;
        }
        room -= cost;
        end += 1;
    }
    text.floor_char_boundary(end)
}

/// The JSON pointer of an encoded path, cut after some hundred bytes.
fn pointer(mut path: &[u8]) -> String {
    const ENOUGH: usize = 200;
    let mut pointer = String::new();
    while let Some((element, rest)) = tuple::read(path) {
        pointer.push('/');
        match element {
            Element::Str(name) => pointer.push_str(&name.replace('~', "~0").replace('/', "~1")),
            Element::Integer(index) => pointer.push_str(&index.as_u64().unwrap_or_default().to_string()),
            _ => {}
        }
        if pointer.len() > ENOUGH {
            pointer.truncate(pointer.floor_char_boundary(ENOUGH));
            pointer.push('…');
            break;
        }
        path = rest;
    }
    pointer
}
