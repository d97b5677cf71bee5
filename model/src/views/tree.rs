//! Sums over the rows of a view, in levels, so that the sum over a range reads a few nodes of each level.
//!
//! ```text
//!  level 2   ·───────────────────────────e──────────────────      every node has the sums of the rows from
//!  level 1   ·───────c───────────────────e───────────g──────      its own place up to the next node of its
//!  level 0     a  b  c   d   d   d   d   e   e   f   g   h         level; · is the start of the view
//! ```
//!
//! A row has a node at level 1 with a chance of one in 32, at level 2 with one in 32 times 32, and so on. The hash of
//! its place decides, so the nodes of a view follow from its rows alone. An added or removed row changes only the nodes
//! around it, and no balancing is needed. The hash uses a secret of the group, so clients cannot choose keys without
//! nodes.
//!
//! An update clears and sets rows, and then computes each node above them from the level below, so sums of doubles
//! never drift. A node without rows below it is the start of an empty view, and is removed.
//!
//! The sum over a range goes up from its first row to the highest level that fits into it, and down again to its last
//! row. It reads about 16 nodes of each level on either side.
//!
//! ```text
//!  sum from b to g:   b | c ─────────────► e | e f       level 0, level 1, level 0
//! ```
//!
//! Source: RFC 012, which has levels by hash too, and its skip list's own source, Pugh 1990.

use bytes::Bytes;
use json::JsonText;
use kv_api::{KeySelector, KeyValue, RangeRequest, Read, Transaction};
use md5::{Digest, Md5};

use super::MAX_VALUE;
use super::errors::FunctionError;
use super::group::{Reduce, ReduceRow, Reduced, Reduction, ViewGroup};
use super::reduce::overflow;
use super::request::ViewRequest;
use super::rows::{Pair, Place, RowOrder, read_pair};
use crate::error::{Error, Result};
use crate::keys::{DatabaseKey, DatabaseKeys};
use crate::rows::row::Reader;
use crate::rows::tuple;

/// The highest level. A view of a million rows has about one node there.
pub(super) const TOP: u64 = 4;

/// Number of bits of the hash that decide on a level.
const BITS: u32 = 5;

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
    pub(super) fn write(&self) -> Vec<u8> {
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
pub(super) struct ViewTree<'t, T> {
    pub(super) tx: &'t T,
    pub(super) keys: &'t DatabaseKeys,
    pub(super) group: &'t ViewGroup,
    pub(super) secret: &'t [u8; 16],
    /// The number of the group.
    pub(super) number: u64,
    /// The place of the view in the group.
    pub(super) view: usize,
}

impl<T> ViewTree<'_, T> {
    /// The order of the rows that a request reads.
    pub(super) fn order(&self, request: &ViewRequest) -> RowOrder {
        RowOrder::of(self.is_raw(), request.partition.as_deref())
    }

    /// The order of the rows of a document.
    pub(super) fn order_of(&self, id: &str) -> RowOrder {
        RowOrder::of(self.is_raw(), self.group.partition_of(id))
    }

    /// Whether its rows are in raw collation.
    pub(super) fn is_raw(&self) -> bool {
        self.group.is_raw(self.view)
    }
}

/// The rows and nodes that make up a range, in order.
#[derive(Default)]
pub(super) struct Cover {
    pub(super) before: Vec<KeyValue>,
    pub(super) nodes: Vec<Node>,
    pub(super) after: Vec<KeyValue>,
}

impl Cover {
    /// The same, with more rows on both sides.
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

impl<T: Transaction> ViewTree<'_, T> {
    pub(super) fn at(&self, level: u64, place: &[u8]) -> Vec<u8> {
        self.keys.key(DatabaseKey::ViewRow { group: self.number, view: self.view as u64, level, place })
    }

    /// The first key of a level, and the first key after it.
    pub(super) fn level(&self, level: u64) -> (Vec<u8>, Vec<u8>) {
        let view = self.view as u64;
        self.keys.bounds(DatabaseKey::ViewRow { group: self.number, view, level, place: &[] })
    }

    pub(super) fn reduce(&self) -> Option<Reduce> {
        self.group.views().get(self.view).and_then(|view| view.reduce)
    }

    /// The rows and nodes of a range of places. Without `end`, the range ends with the view.
    pub(super) async fn cover(&self, begin: &[u8], end: Option<&[u8]>) -> Result<Cover> {
        let mut cover = Cover::default();
        if end.is_some_and(|end| end <= begin) {
            return Ok(cover);
        }
        // Up. From the start of the view, the highest level fits at once.
        let (mut at, mut level, mut is_up) = (begin.to_vec(), if begin.is_empty() { TOP } else { 0 }, true);
        loop {
            match self.walk(level, &at, end, is_up, &mut cover).await? {
                Walk::Higher(place) => (at, level) = (place, level + 1),
                Walk::End(None) if is_up => return Ok(cover),
                Walk::End(Some((_, node))) if end.is_none() => {
                    cover.nodes.push(node);
                    return Ok(cover);
                }
                // The last node may extend beyond the range. Down.
                Walk::End(held) => {
                    at = held.map_or(at, |(place, _)| place);
                    is_up = false;
                    if level == 0 {
                        return Ok(cover);
                    }
                    level -= 1;
                }
            }
        }
    }

    /// Walks through a level from a place, and adds its rows, or all of its nodes but the last.
    async fn walk(&self, level: u64, from: &[u8], end: Option<&[u8]>, is_up: bool, cover: &mut Cover) -> Result<Walk> {
        let depth = self.level(level).0.len();
        let mut held: Option<(Vec<u8>, Node)> = None;
        let mut next = Some(self.range(level, from, end));
        while let Some(request) = next {
            let batch = self.tx.get_range(&request, Read::Snapshot).await?;
            next = after(&request, &batch);
            for row in batch.rows {
                cover.nodes.extend(held.take().map(|(_, node)| node));
                let place = row.key[depth..].to_vec();
                if is_up && level < TOP && !place.is_empty() && level_of(self.secret, &place) > level {
                    return Ok(Walk::Higher(place));
                }
                match level {
                    0 if is_up => cover.before.push(row),
                    0 => cover.after.push(row),
                    _ => held = Some((place, Node::read(&row.value)?)),
                }
            }
        }
        Ok(Walk::End(held))
    }

    fn range(&self, level: u64, begin: &[u8], end: Option<&[u8]>) -> RangeRequest {
        let end = end.map_or_else(|| self.level(level).1, |end| self.at(level, end));
        RangeRequest::keys(self.at(level, begin), end).limit(PAGE)
    }

    /// The reduction of a range, for a client; `None` for an empty range.
    pub(super) async fn sum(&self, cover: Cover) -> Result<Option<Reduced>> {
        Ok(self.sums_of(vec![cover]).await?.pop().flatten().map(|sum| self.finished(sum)))
    }

    fn finished(&self, sum: Reduced) -> Reduced {
        super::reduce::finished(self.reduce().unwrap_or(Reduce::Count), sum)
    }

    /// The reductions of these ranges; `None` for empty ranges.
    pub(super) async fn sums_of(&self, covers: Vec<Cover>) -> Result<Vec<Option<Reduced>>> {
        let reduce = self.reduce().unwrap_or(Reduce::Count);
        // First the rows on both sides are reduced.
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
                sums.push(Ok((count > 0).then(|| Ok(super::reduce::count(count)))));
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
            let (key, value) = pair.split()?;
            found.push(ReduceRow { key, id: place.id, value });
        }
        Ok(found)
    }

    /// The key, the value and the place of a row of level 0, whose place starts at `depth`.
    pub(super) async fn pair(&self, row: &KeyValue, depth: usize) -> Result<(Pair, Place)> {
        let place = row.key.get(depth..).unwrap_or_default();
        let pair = read_pair(self.tx, self.keys, (self.number, self.view as u64), place, &row.value).await?;
        Ok((pair, Place::read(place)?))
    }

    /// Reduces rows that were read, in the order of the view, for a client.
    pub(super) async fn sum_of_rows(&self, rows: Vec<ReduceRow>) -> Result<Option<Reduced>> {
        let reduce = self.reduce().unwrap_or(Reduce::Count);
        if rows.is_empty() {
            return Ok(None);
        }
        Ok(self.call(reduce, vec![Reduction::Rows(rows)]).await?.pop().map(|sum| self.finished(sum)))
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
                Err(Error::corrupt("a reduce function without results"))
            };
        }
        Ok(calls.iter().map(|call| super::reduce::reduce(reduce, call)).collect())
    }
}

/// Where a walk through a level ended.
enum Walk {
    /// On the way up, at a place that has a node of the next level.
    Higher(Vec<u8>),
    /// At the end of the range: the last node, which may extend beyond it.
    End(Option<(Vec<u8>, Node)>),
}

/// The request for the rest of a range. The limit applies to each batch.
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
