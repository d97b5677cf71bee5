//! Sums over the rows of a view, in levels, so that the sum over a range reads a few nodes of each level.
//!
//! ```text
//!  level 2   ·───────────────────────────e──────────────────      every node has the sums of the rows from
//!  level 1   ·───────c───────────────────e───────────g──────      its own place up to the next node of its
//!  level 0     a  b  c   d   d   d   d   e   e   f   g   h         level; · is the beginning of the view
//! ```
//!
//! A row has a node at level 1 with a chance of one in 32, at level 2 with one in 32 times 32, and so on. The hash of its
//! place decides, so the nodes of a view are known from its rows alone: a row that comes or goes changes only the nodes
//! around it, and nothing is ever balanced. The hash has a secret of the group, so nobody can choose keys without nodes.
//!
//! An update clears and sets rows, and then computes each node above them anew from the level below, so sums of
//! doubles never drift. A node without rows below it is the beginning of an empty view, and is removed.
//!
//! The sum over a range goes up from its first row to the highest level that fits into it, and down again to its last:
//! about 16 nodes of each level on either side.
//!
//! ```text
//!  sum from b to g:   b | c ─────────────► e | e f       level 0, level 1, level 0
//! ```
//!
//! Source: RFC 012, which has levels by hash too, and its skip list's own source, Pugh 1990.

use std::collections::BTreeSet;

use bytes::Bytes;
use json::JsonText;
use kv_api::{KeySelector, KeyValue, RangeRequest, Read, Transaction, TransactionExt};
use md5::{Digest, Md5};

use super::MAX_VALUE;
use super::group::{FunctionError, Reduce, ReduceRow, Reduced, Reduction, ViewGroup};
use super::reduce::overflow;
use super::rows::{Pair, Place, read_pair};
use crate::error::{Error, Result};
use crate::keys::{DatabaseKey, DatabaseKeys};
use crate::row::Reader;
use crate::tuple;
use crate::txids::Unguarded;

/// The highest level. A view of a million rows has about one node there.
pub(super) const TOP: u64 = 4;

/// Number of bits of the hash that decide about a level.
const BITS: u32 = 5;

/// Number of nodes that are looked up at the same time.
const AT_ONCE: usize = 256;

/// Number of nodes that are computed at the same time: the rows below all of them are in memory.
const COMPUTED_AT_ONCE: usize = 16;

/// Number of rows or nodes read at a time on the way through a range.
const PAGE: usize = 64;

/// The highest level at which the row has a node.
pub(super) fn level_of(secret: &[u8; 16], place: &[u8]) -> u64 {
    let mut hash = Md5::new();
    hash.update(secret);
    hash.update(place);
    let hash: [u8; 16] = hash.finalize().into();
    let bits = u64::from_be_bytes([hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]]);
    u64::from(bits.trailing_zeros() / BITS).min(TOP)
}

/// The sums of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Number of rows.
    pub(super) count: u64,
    /// Their reduction, if the view has one.
    pub(super) reduced: Option<Reduced>,
}

impl Node {
    fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        tuple::append_u64(&mut out, self.count);
        match &self.reduced {
            None => {}
            Some(Ok(value)) if value.len() <= MAX_VALUE => {
                out.push(b'v');
                out.extend_from_slice(value.as_bytes());
            }
            Some(Ok(_)) => write_error(&mut out, &overflow()),
            Some(Err(error)) => write_error(&mut out, error),
        }
        out
    }

    pub(super) fn read(value: &Bytes) -> Result<Node> {
        let mut reader = Reader::new(value);
        let count = reader.int()?;
        let text = || {
            let text = value.slice(value.len() - reader.rest().len() + 1..);
            JsonText::from_normalised(text).ok_or_else(|| Error::corrupt("a node of a view that is not UTF-8"))
        };
        let reduced = match reader.peek() {
            None => None,
            Some(b'v') => Some(Ok(text()?)),
            Some(b'e') => Some(Err(FunctionError::read(&text()?))),
            Some(_) => return Err(Error::unknown_format("a node of a view")),
        };
        Ok(Node { count, reduced })
    }
}

fn write_error(out: &mut Vec<u8>, error: &FunctionError) {
    out.push(b'e');
    error.write(out);
}

/// The tree of one view.
#[derive(Clone, Copy)]
pub(super) struct Tree<'t, T> {
    pub(super) tx: &'t T,
    pub(super) keys: &'t DatabaseKeys,
    pub(super) group: &'t ViewGroup,
    pub(super) secret: &'t [u8; 16],
    /// The number of the group.
    pub(super) number: u64,
    /// The place of the view in the group.
    pub(super) view: usize,
}

/// The rows and nodes that make up a range, in order.
#[derive(Default)]
pub(super) struct Cover {
    before: Vec<KeyValue>,
    nodes: Vec<Node>,
    after: Vec<KeyValue>,
}

impl Cover {
    /// The same with more rows on both sides.
    pub(super) fn with(mut self, mut before: Vec<KeyValue>, after: Vec<KeyValue>) -> Cover {
        before.append(&mut self.before);
        self.before = before;
        self.after.extend(after);
        self
    }

    /// Number of rows in the range.
    pub(super) fn count(&self) -> u64 {
        (self.before.len() + self.after.len()) as u64 + self.nodes.iter().map(|node| node.count).sum::<u64>()
    }
}

impl<T: Transaction> Tree<'_, T> {
    fn at(&self, level: u64, place: &[u8]) -> Vec<u8> {
        self.keys.key(DatabaseKey::ViewRow { group: self.number, view: self.view as u64, level, place })
    }

    /// The first key of a level, and the first key after it.
    pub(super) fn level(&self, level: u64) -> (Vec<u8>, Vec<u8>) {
        let view = self.view as u64;
        self.keys.bounds(DatabaseKey::ViewRow { group: self.number, view, level, place: &[] })
    }

    fn reduce(&self) -> Option<Reduce> {
        self.group.views().get(self.view).and_then(|view| view.reduce)
    }

    /// Computes the nodes above rows that came, changed or went. The rows are written before.
    pub(super) async fn update(&self, came: &BTreeSet<Vec<u8>>, went: &BTreeSet<Vec<u8>>) -> Result<()> {
        let mut changed: BTreeSet<Vec<u8>> = came.union(went).cloned().collect();
        let mut with_nodes = Vec::new();
        for (places, is_there) in [(came, true), (went, false)] {
            for place in places {
                match level_of(self.secret, place) {
                    0 => {}
                    level => with_nodes.push((level, place, is_there)),
                }
            }
        }
        for level in 1..=TOP {
            for (_, place, is_there) in with_nodes.iter().filter(|(highest, ..)| *highest >= level) {
                match is_there {
                    // Its sums follow below.
                    true => self.tx.set_unguarded(self.at(level, place), Bytes::new()),
                    false => self.tx.clear_unguarded(&self.at(level, place)),
                }
            }
            let mut nodes = self.nodes_above(level, &changed).await?;
            if level == 1 {
                // The nodes before new ones have fewer rows now. At higher levels these are above the changed ones.
                let new: BTreeSet<Vec<u8>> = with_nodes
                    .iter()
                    .filter(|(.., is_there)| *is_there)
                    .map(|(_, place, _)| (*place).clone())
                    .collect();
                nodes.extend(self.nodes_before(&new).await?);
            }
            nodes.sort();
            nodes.dedup();
            self.compute(level, &nodes).await?;
            changed = nodes.into_iter().map(|(place, _)| place).collect();
        }
        Ok(())
    }

    /// The nodes of a level above these places: where each begins, and the key at which it ends.
    async fn nodes_above(&self, level: u64, places: &BTreeSet<Vec<u8>>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let (begin, end) = self.level(level);
        let mut nodes: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let mut rest = places.iter().peekable();
        while rest.peek().is_some() {
            let mut reads = Vec::new();
            while reads.len() < AT_ONCE
                && let Some(place) = rest.next()
            {
                let key = self.at(level, place);
                if nodes.last().is_some_and(|(_, upto)| key < *upto) {
                    continue;
                }
                let floor = RangeRequest::selectors(
                    KeySelector::first_greater_or_equal(begin.clone()),
                    KeySelector::first_greater_than(key.clone()),
                );
                let next = RangeRequest::selectors(
                    KeySelector::first_greater_than(key),
                    KeySelector::first_greater_or_equal(end.clone()),
                );
                let read = |range: RangeRequest| self.tx.get_range(&range.limit(1), Read::Snapshot);
                reads.push((read(floor.reverse()), read(next)));
            }
            for (floor, next) in reads {
                let place = floor.await?.rows.pop().map_or(Vec::new(), |row| row.key[begin.len()..].to_vec());
                let upto = next.await?.rows.pop().map_or_else(|| end.clone(), |row| row.key.to_vec());
                if nodes.last().is_none_or(|(last, _)| *last != place) {
                    nodes.push((place, upto));
                }
            }
        }
        Ok(nodes)
    }

    /// The nodes of level 1 right before these, which are nodes too.
    async fn nodes_before(&self, new: &BTreeSet<Vec<u8>>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let begin = self.level(1).0;
        let mut nodes = Vec::new();
        let new: Vec<&Vec<u8>> = new.iter().collect();
        for some in new.chunks(AT_ONCE) {
            let reads: Vec<_> = some
                .iter()
                .map(|place| {
                    let upto = self.at(1, place);
                    let before = RangeRequest::keys(begin.clone(), upto.clone()).reverse().limit(1);
                    (self.tx.get_range(&before, Read::Snapshot), upto)
                })
                .collect();
            for (before, upto) in reads {
                let place = before.await?.rows.pop().map_or(Vec::new(), |row| row.key[begin.len()..].to_vec());
                nodes.push((place, upto));
            }
        }
        Ok(nodes)
    }

    /// Computes nodes of a level from the level below, and writes them.
    async fn compute(&self, level: u64, nodes: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
        for some in nodes.chunks(COMPUTED_AT_ONCE) {
            for ((place, _), node) in some.iter().zip(self.computed(level, some).await?) {
                let key = self.at(level, place);
                match node.count {
                    0 => self.tx.clear_unguarded(&key),
                    _ => self.tx.set_unguarded(key, node.write()),
                }
            }
        }
        Ok(())
    }

    /// What these nodes of a level must be by the level below. Each is given by its place, and by the key of the next one.
    async fn computed(&self, level: u64, nodes: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<Node>> {
        let depth = self.level(level).0.len();
        let reads: Vec<_> = nodes
            .iter()
            .map(|(place, upto)| {
                // The same end, one level lower.
                let end = self.at(level - 1, upto.get(depth..).unwrap_or_default());
                self.tx.get_all(RangeRequest::keys(self.at(level - 1, place), end), Read::Snapshot)
            })
            .collect();
        let mut covers = Vec::with_capacity(nodes.len());
        for read in reads {
            let rows = read.await?;
            covers.push(match level {
                1 => Cover { before: rows, ..Cover::default() },
                _ => {
                    let nodes = rows.iter().map(|row| Node::read(&row.value)).collect::<Result<_>>()?;
                    Cover { nodes, ..Cover::default() }
                }
            });
        }
        let counts: Vec<u64> = covers.iter().map(Cover::count).collect();
        let reduced = match self.reduce() {
            None => vec![None; covers.len()],
            Some(_) => self.sums_of(covers).await?,
        };
        Ok(counts.into_iter().zip(reduced).map(|(count, reduced)| Node { count, reduced }).collect())
    }

    /// The nodes of a level after a place, at most a page of them, that are not what they must be. Returns the last place
    /// that was looked at too; `None` after the last page.
    pub(super) async fn wrong_nodes(&self, level: u64, after: Option<&[u8]>) -> Result<(usize, Option<Vec<u8>>)> {
        let (begin, end) = self.level(level);
        let from = after.map_or(begin.clone(), |place| [self.at(level, place).as_slice(), &[0]].concat());
        // One more, which is the end of the last.
        let range = RangeRequest::keys(from, end.clone()).limit(COMPUTED_AT_ONCE + 1);
        let mut rows = self.tx.get_all(range, Read::Snapshot).await?;
        let beyond = if rows.len() > COMPUTED_AT_ONCE { rows.pop().map(|row| row.key.to_vec()) } else { None };
        let ends = rows.iter().skip(1).map(|row| row.key.to_vec()).chain([beyond.clone().unwrap_or(end)]);
        let mut nodes: Vec<_> =
            rows.iter().zip(ends).map(|(row, end)| (row.key[begin.len()..].to_vec(), end)).collect();
        let mut wrong = 0;
        for (row, expected) in rows.iter().zip(self.computed(level, &nodes).await?) {
            // As it is read back.
            let expected = Node::read(&expected.write().into())?;
            wrong += usize::from(expected.count == 0 || Node::read(&row.value).ok() != Some(expected));
        }
        let last = nodes.pop().map(|(place, _)| place);
        Ok((wrong, last.filter(|_| beyond.is_some())))
    }

    /// The rows and nodes of a range of places; to the end of the view without `end`.
    pub(super) async fn cover(&self, begin: &[u8], end: Option<&[u8]>) -> Result<Cover> {
        let mut cover = Cover::default();
        if end.is_some_and(|end| end <= begin) {
            return Ok(cover);
        }
        let mut at = begin.to_vec();
        // Up. From the beginning of the view, the highest level fits at once.
        let mut level = if begin.is_empty() { TOP } else { 0 };
        'up: loop {
            let depth = self.level(level).0.len();
            let mut held: Option<(Vec<u8>, Node)> = None;
            let mut next = Some(self.range(level, &at, end));
            while let Some(request) = next {
                let batch = self.tx.get_range(&request, Read::Snapshot).await?;
                next = after(&request, &batch);
                for row in batch.rows {
                    let place = row.key[depth..].to_vec();
                    cover.nodes.extend(held.take().map(|(_, node)| node));
                    if level < TOP && !place.is_empty() && level_of(self.secret, &place) > level {
                        (at, level) = (place, level + 1);
                        continue 'up;
                    }
                    match level {
                        0 => cover.before.push(row),
                        _ => held = Some((place, Node::read(&row.value)?)),
                    }
                }
            }
            match (held, end) {
                (None, _) => return Ok(cover),
                (Some((_, node)), None) => {
                    cover.nodes.push(node);
                    return Ok(cover);
                }
                // Its end may be beyond the range.
                (Some((place, _)), Some(_)) => at = place,
            }
            break;
        }
        // Down.
        while level > 0 {
            level -= 1;
            let depth = self.level(level).0.len();
            let mut held: Option<(Vec<u8>, Node)> = None;
            let mut next = Some(self.range(level, &at, end));
            while let Some(request) = next {
                let batch = self.tx.get_range(&request, Read::Snapshot).await?;
                next = after(&request, &batch);
                for row in batch.rows {
                    match level {
                        0 => cover.after.push(row),
                        _ => {
                            cover.nodes.extend(held.take().map(|(_, node)| node));
                            held = Some((row.key[depth..].to_vec(), Node::read(&row.value)?));
                        }
                    }
                }
            }
            if let Some((place, _)) = held {
                at = place;
            }
        }
        Ok(cover)
    }

    fn range(&self, level: u64, begin: &[u8], end: Option<&[u8]>) -> RangeRequest {
        let end = end.map_or_else(|| self.level(level).1, |end| self.at(level, end));
        RangeRequest::keys(self.at(level, begin), end).limit(PAGE)
    }

    /// The reduction of a range that is not empty; `None` for one that is.
    pub(super) async fn sum(&self, cover: Cover) -> Result<Option<Reduced>> {
        Ok(self.sums_of(vec![cover]).await?.pop().flatten())
    }

    /// The reductions of these ranges. Empty ones have none.
    async fn sums_of(&self, covers: Vec<Cover>) -> Result<Vec<Option<Reduced>>> {
        let reduce = self.reduce().unwrap_or(Reduce::Count);
        // What is reduced first: the rows on both sides.
        let (mut calls, mut parts) = (Vec::new(), Vec::with_capacity(covers.len()));
        for cover in covers {
            let count = cover.count();
            let mut of_cover = Vec::new();
            let Cover { before, nodes, after } = cover;
            if reduce == Reduce::Count {
                parts.push((count, of_cover));
                continue;
            }
            for (rows, nodes) in [(before, nodes), (after, Vec::new())] {
                if !rows.is_empty() {
                    of_cover.push(Err(calls.len()));
                    calls.push(Reduction::Rows(self.rows(rows).await?));
                }
                of_cover.extend(nodes.into_iter().filter_map(|node| node.reduced).map(Ok));
            }
            parts.push((count, of_cover));
        }
        let reduced = self.call(reduce, calls).await?;
        // Then the results and the nodes together.
        let (mut calls, mut sums) = (Vec::new(), Vec::with_capacity(parts.len()));
        for (count, of_cover) in parts {
            if reduce == Reduce::Count {
                sums.push(Ok((count > 0).then(|| super::reduce::reduce(reduce, count, &[]))));
                continue;
            }
            let all: std::result::Result<Vec<JsonText>, FunctionError> = of_cover
                .into_iter()
                .map(|part| match part {
                    Ok(reduced) => reduced,
                    Err(call) => reduced.get(call).cloned().unwrap_or_else(|| Err(overflow())),
                })
                .collect();
            sums.push(match all {
                Ok(all) if all.is_empty() => Ok(None),
                Ok(mut all) if all.len() == 1 => Ok(all.pop().map(Ok)),
                Ok(all) => {
                    calls.push(Reduction::Values(all));
                    Err(calls.len() - 1)
                }
                Err(error) => Ok(Some(Err(error))),
            });
        }
        let reduced = self.call(reduce, calls).await?;
        Ok(sums
            .into_iter()
            .map(|sum| match sum {
                Ok(sum) => sum,
                Err(call) => reduced.get(call).cloned(),
            })
            .collect())
    }

    async fn rows(&self, rows: Vec<KeyValue>) -> Result<Vec<ReduceRow>> {
        let depth = self.level(0).0.len();
        let mut found = Vec::with_capacity(rows.len());
        for row in rows {
            let (pair, place) = self.pair(&row, depth).await?;
            found.push(ReduceRow { key: pair.key()?, id: place.id, value: pair.value()? });
        }
        Ok(found)
    }

    /// The key, the value and the place of a row of level 0, whose place begins at `depth`.
    pub(super) async fn pair(&self, row: &KeyValue, depth: usize) -> Result<(Pair, Place)> {
        let place = row.key.get(depth..).unwrap_or_default();
        let pair = read_pair(self.tx, self.keys, (self.number, self.view as u64), place, &row.value).await?;
        Ok((pair, Place::read(place)?))
    }

    /// Reduces rows that were read.
    pub(super) async fn sum_of_rows(&self, rows: Vec<ReduceRow>) -> Result<Option<Reduced>> {
        let reduce = self.reduce().unwrap_or(Reduce::Count);
        if rows.is_empty() {
            return Ok(None);
        }
        Ok(self.call(reduce, vec![Reduction::Rows(rows)]).await?.pop())
    }

    async fn call(&self, reduce: Reduce, calls: Vec<Reduction>) -> Result<Vec<Reduced>> {
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        if reduce == Reduce::Custom {
            let expected = calls.len();
            let reduced = self.group.functions().reduce(self.view, calls).await?;
            return if reduced.len() == expected {
                Ok(reduced)
            } else {
                Err(Error::corrupt("a reduce without results"))
            };
        }
        let call = |call| match call {
            Reduction::Rows(rows) => {
                let values: Vec<JsonText> = rows.into_iter().map(|row| row.value).collect();
                super::reduce::reduce(reduce, values.len() as u64, &values)
            }
            Reduction::Values(values) => super::reduce::reduce(reduce, 0, &values),
        };
        Ok(calls.into_iter().map(call).collect())
    }
}

/// The request for the rest of a range whose limit is that of one batch.
fn after(request: &RangeRequest, batch: &kv_api::RangeBatch) -> Option<RangeRequest> {
    let last = batch.rows.last().filter(|_| batch.more)?;
    Some(RangeRequest { begin: KeySelector::first_greater_than(last.key.clone()), ..request.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_round_trip_and_long_results_are_errors() {
        let text = |text: &str| JsonText::parse(text.as_bytes()).unwrap();
        for reduced in [None, Some(Ok(text("[1]"))), Some(Err(FunctionError::new("a\"", "b")))] {
            let node = Node { count: 70_000, reduced };
            assert_eq!(Node::read(&node.write().into()).unwrap(), node);
        }
        let long = text(&format!("\"{}\"", "x".repeat(MAX_VALUE)));
        let read = Node::read(&Node { count: 1, reduced: Some(Ok(long)) }.write().into()).unwrap();
        assert_eq!(read.reduced, Some(Err(overflow())));
        let named = FunctionError::new("é".repeat(MAX_VALUE), "b");
        assert_eq!(FunctionError::of_row(named.row().into()).unwrap().error.len(), 2_000);
        assert!(Node { count: 1, reduced: Some(Err(named)) }.write().len() < MAX_VALUE);
        assert!(Node::read(&Bytes::new()).is_err() && Node::read(&Bytes::from_static(b"\x14x")).is_err());
    }

    #[test]
    fn one_row_in_32_has_a_node_of_the_next_level() {
        let mut counts = [0u32; 5];
        for place in 0..200_000u32 {
            counts[level_of(&[7; 16], &place.to_be_bytes()) as usize] += 1;
        }
        assert!((5_000..7_000).contains(&counts[1]) && (100..300).contains(&counts[2]), "{counts:?}");
    }
}
