//! Encodes text as one row for each leaf.
//!
//! The path of the current value is one buffer that grows and shrinks with the nesting. Each leaf copies it, after the
//! prefix, to the arena. Whether a container is empty, and so needs its own row, is known when it ends.

use super::metadata::RevisionMetadata;
use super::order;
use super::stored::{BodyFormat, BodyLimits, RowSpan, StoredBody, row_cost};
use crate::rows::bigint::decimal_to_le_bytes;
use crate::rows::tuple::{self, MAX_INT_BYTES};
use json::{JsonText, RawStr, Token};

/// An open container.
struct Level {
    /// Length of its own path.
    path_len: usize,
    is_array: bool,
    /// Number of its values so far.
    count: u64,
}

/// The rows cost more than allowed, or one of them does not fit the store's limits.
struct DoesNotFit;

/// Memory that is reused for one body after the other.
#[derive(Default)]
pub(crate) struct Memory {
    path: Vec<u8>,
    levels: Vec<Level>,
    rows: Vec<RowSpan>,
    /// Index of each leaf's first row.
    leaves: Vec<u32>,
    /// The leaves in key order, with the [heads](order::head) of their paths.
    by_key: Vec<(u64, u32)>,
    ranks: Vec<u32>,
}

impl Memory {
    /// Makes room for a body of this number of leaves.
    fn begin(&mut self, leaves: usize) {
        self.path.clear();
        self.path.reserve(64);
        self.levels.clear();
        self.levels.reserve(8);
        self.rows.clear();
        self.rows.reserve(leaves + 1);
        self.rows.push(RowSpan { key: 0, value: 0, end: 0 });
        self.leaves.clear();
        self.leaves.reserve(leaves);
    }
}

struct Exploder<'a> {
    prefix: &'a [u8],
    limits: &'a BodyLimits,
    memory: &'a mut Memory,
    arena: Vec<u8>,
    /// Whether the leaves so far are in key order.
    sorted: bool,
    cost: usize,
}

/// Lays out an exploded body; `None` if it must be packed.
pub(super) fn explode(
    body: &JsonText,
    key_prefix: &[u8],
    limits: &BodyLimits,
    memory: &mut Memory,
) -> Option<StoredBody> {
    // The number of commas plus one, an upper bound: strings have commas too. Empty containers count as leaves.
    let leaves = memchr::memchr_iter(b',', body.as_bytes()).count() + 1;
    let leaves = leaves.min(limits.max_exploded_cost / row_cost(key_prefix.len(), 0));
    let arena = (leaves + 1) * (key_prefix.len() + 24) + body.len();
    let arena = Vec::with_capacity(arena.min(limits.max_exploded_cost));
    memory.begin(leaves);
    let mut exploder = Exploder { prefix: key_prefix, limits, memory, arena, sorted: true, cost: 0 };
    exploder.walk(body).and_then(|()| exploder.finish(body)).ok()
}

impl Exploder<'_> {
    fn walk(&mut self, body: &JsonText) -> Result<(), DoesNotFit> {
        for token in body.scan() {
            match (token, self.memory.levels.last_mut()) {
                (Token::Name(name), Some(level)) => {
                    level.count += 1;
                    self.memory.path.truncate(level.path_len);
                    append_json_str(&mut self.memory.path, name);
                    continue;
                }
                (Token::End, _) => {
                    if let Some(ended) = self.memory.levels.pop()
                        && ended.count == 0
                        && !self.memory.levels.is_empty()
                    {
                        self.memory.path.truncate(ended.path_len);
                        let text: &[u8] = if ended.is_array { b"[]" } else { b"{}" };
                        self.leaf(|out| tuple::append_bytes(out, text))?;
                    }
                    continue;
                }
                (_, Some(level)) if level.is_array => {
                    self.memory.path.truncate(level.path_len);
                    tuple::append_u64(&mut self.memory.path, level.count);
                    level.count += 1;
                }
                _ => {}
            }
            match token {
                Token::Begin { is_array } => {
                    self.memory.levels.push(Level { path_len: self.memory.path.len(), is_array, count: 0 })
                }
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

    fn string(&mut self, text: RawStr<'_>) -> Result<(), DoesNotFit> {
        // An escape is at least as long as the character's encoding, so this check suffices for most strings.
        if text.raw_len() + 2 <= self.limits.value_bytes() {
            return self.leaf(|out| append_json_str(out, text));
        }
        let text = text.json_str().to_cow();
        if tuple::encoded_len(text.as_bytes()) <= self.limits.value_bytes() {
            return self.leaf(|out| tuple::append_str(out, &text));
        }
        self.parts(&text, tuple::append_str)
    }

    fn long_integer(&mut self, digits: &str) -> Result<(), DoesNotFit> {
        let (negative, magnitude) = match digits.strip_prefix('-') {
            Some(magnitude) => (true, magnitude),
            None => (false, digits),
        };
        // 255 bytes hold any number of 614 digits, and some of 615.
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

    fn leaf(&mut self, value: impl FnOnce(&mut Vec<u8>)) -> Result<(), DoesNotFit> {
        self.begin_leaf();
        self.row(None, value)
    }

    /// Writes a leaf in several rows.
    fn parts(&mut self, mut rest: &str, value: impl Fn(&mut Vec<u8>, &str)) -> Result<(), DoesNotFit> {
        self.begin_leaf();
        for number in 0..=u16::MAX {
            let (part, behind) = rest.split_at(part_len(rest, self.limits.value_bytes()));
            self.row(Some(number), |out| value(out, part))?;
            rest = behind;
            if rest.is_empty() {
                return Ok(());
            }
        }
        Err(DoesNotFit)
    }

    fn begin_leaf(&mut self) {
        self.memory.leaves.push(self.memory.rows.len() as u32);
    }

    /// Writes one row of the current leaf, at the current path.
    fn row(&mut self, part: Option<u16>, value: impl FnOnce(&mut Vec<u8>)) -> Result<(), DoesNotFit> {
        let key = self.arena.len();
        self.arena.extend_from_slice(self.prefix);
        self.arena.extend_from_slice(&self.memory.path);
        if let Some(number) = part {
            tuple::append_bytes(&mut self.arena, &number.to_be_bytes());
        }
        let start = self.arena.len();
        if start - key > self.limits.max_key_bytes {
            return Err(DoesNotFit);
        }
        value(&mut self.arena);
        let row = RowSpan { key, value: start, end: self.arena.len() };
        if self.sorted
            && let Some(previous) = self.memory.rows[1..].last()
        {
            let path = |row: RowSpan| &self.arena[row.key + self.prefix.len()..row.value];
            self.sorted = path(*previous) < path(row);
        }
        self.memory.rows.push(row);
        self.count(row)
    }

    fn count(&mut self, row: RowSpan) -> Result<(), DoesNotFit> {
        self.cost += row_cost(row.value - row.key, row.end - row.value);
        if self.cost > self.limits.max_exploded_cost { Err(DoesNotFit) } else { Ok(()) }
    }

    /// Writes the metadata's row, which is the first in key order.
    fn finish(mut self, body: &JsonText) -> Result<StoredBody, DoesNotFit> {
        let order = if self.sorted { Vec::new() } else { self.sort() };
        let key = self.arena.len();
        self.arena.extend_from_slice(self.prefix);
        let value = self.arena.len();
        if value - key > self.limits.max_key_bytes {
            return Err(DoesNotFit);
        }
        let metadata = RevisionMetadata::exploded(body.as_bytes(), self.memory.leaves.len() as u64);
        metadata.with_payload(&order).append_to(&mut self.arena);
        let row = RowSpan { key, value, end: self.arena.len() };
        if row.end - row.value > self.limits.value_bytes() {
            return Err(DoesNotFit);
        }
        self.memory.rows[0] = row;
        self.count(row)?;
        let rows = self.rows_by_key();
        Ok(StoredBody { format: BodyFormat::Exploded, arena: self.arena.into(), rows, cost: self.cost })
    }

    /// Sorts the leaves by key. Returns the order of the document's leaves for the metadata.
    fn sort(&mut self) -> Vec<u8> {
        let Memory { rows, leaves, by_key, ranks, .. } = &mut *self.memory;
        let path = |leaf: u32| {
            let row = rows[leaves[leaf as usize] as usize];
            &self.arena[row.key + self.prefix.len()..row.value]
        };
        by_key.clear();
        by_key.extend((0..leaves.len() as u32).map(|leaf| (order::head(path(leaf)), leaf)));
        // The first bytes of a path, as a number, distinguish most paths.
        by_key.sort_unstable_by(|(head, left), (other, right)| {
            head.cmp(other).then_with(|| path(*left).cmp(path(*right)))
        });
        ranks.clear();
        ranks.resize(by_key.len(), 0);
        for (rank, &(_, leaf)) in (0..).zip(&*by_key) {
            ranks[leaf as usize] = rank;
        }
        order::encode(ranks)
    }

    /// The rows in key order.
    fn rows_by_key(&self) -> Vec<RowSpan> {
        let Memory { rows, leaves, by_key, .. } = &*self.memory;
        if self.sorted {
            return rows.clone();
        }
        let mut sorted = Vec::with_capacity(rows.len());
        sorted.extend(rows.first());
        for &(_, leaf) in by_key {
            let begin = leaves[leaf as usize] as usize;
            let end = leaves.get(leaf as usize + 1).map_or(rows.len(), |&next| next as usize);
            sorted.extend_from_slice(&rows[begin..end]);
        }
        sorted
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

/// Length of the longest prefix of `text` whose element fits in `limit` bytes, cut between characters.
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
