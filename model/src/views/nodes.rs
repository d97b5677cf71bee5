//! Keeps the nodes above the rows of a view.
//!
//! Added and removed rows change the nodes above them. These nodes are computed from the level below, and then those
//! above them, up to the highest level.

use std::collections::BTreeSet;

use bytes::Bytes;
use kv_api::{KeySelector, RangeRequest, Read, Transaction, TransactionExt};

use super::tree::{Cover, Node, TOP, ViewTree, level_of};
use crate::error::Result;
use crate::write::unguarded::Unguarded;

/// Number of nodes that are looked up at the same time.
const AT_ONCE: usize = 256;

/// Number of nodes that are computed at the same time: the rows below all of these are in memory.
const COMPUTED_AT_ONCE: usize = 16;

impl<T: Transaction> ViewTree<'_, T> {
    /// Computes the nodes above rows that were added, changed or removed. The rows must be written before.
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
                    // Its sums are written below.
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

    /// The nodes of a level above these places: the place of each, and the key at which it ends.
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

    /// The nodes of level 1 directly before these, which are nodes too.
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

    /// The correct contents of these nodes, computed from the level below. Each node is given by its place, and by the
    /// key of the next one.
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

    /// Checks up to one page of the nodes of a level, after a place. Returns the number of wrong ones, and the last
    /// place that was checked; `None` after the last page.
    pub(super) async fn wrong_nodes(&self, level: u64, after: Option<&[u8]>) -> Result<(usize, Option<Vec<u8>>)> {
        let (begin, end) = self.level(level);
        let from = after.map_or(begin.clone(), |place| [self.at(level, place).as_slice(), &[0]].concat());
        // One more node, whose place is the end of the last one.
        let range = RangeRequest::keys(from, end.clone()).limit(COMPUTED_AT_ONCE + 1);
        let mut rows = self.tx.get_all(range, Read::Snapshot).await?;
        let beyond = if rows.len() > COMPUTED_AT_ONCE { rows.pop().map(|row| row.key.to_vec()) } else { None };
        let ends = rows.iter().skip(1).map(|row| row.key.to_vec()).chain([beyond.clone().unwrap_or(end)]);
        let mut nodes: Vec<_> =
            rows.iter().zip(ends).map(|(row, end)| (row.key[begin.len()..].to_vec(), end)).collect();
        let mut wrong = 0;
        for (row, expected) in rows.iter().zip(self.computed(level, &nodes).await?) {
            // Compared in the form as read back.
            let expected = Node::read(&expected.write().into())?;
            wrong += usize::from(expected.count == 0 || Node::read(&row.value).ok() != Some(expected));
        }
        let last = nodes.pop().map(|(place, _)| place);
        Ok((wrong, last.filter(|_| beyond.is_some())))
    }
}
