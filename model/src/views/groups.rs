//! The groups of a range of rows, one after the other.
//!
//! The first row of a group is read together with some that follow. If the group ends among them, they are its rows. If
//! not, it is a span of places, whose sum comes from the [`tree`](super::tree), and the next group starts behind it. So
//! small groups cost their rows, and large groups cost a few nodes each.

use std::collections::VecDeque;

use json::{JsonText, JsonWriter};
use kv_api::Transaction;

use super::group::{ReduceRow, Reduced};
use super::query::Found;
use super::request::{Grouping, Position};
use super::rows::{RowOrder, at_key, at_prefix, cut, is_cut};
use super::tree::{Cover, ViewTree};
use super::window::Window;
use crate::error::Result;
use crate::keys::end_of;

/// Number of rows that are read to find the end of a group: at first, and at most.
const PEEKED: usize = 32;
const MOST_PEEKED: usize = 1_024;

/// A group that has rows.
pub(super) struct Group {
    pub(super) key: JsonText,
    members: Members,
}

/// The rows of a group.
enum Members {
    /// Rows that were read.
    Read(Vec<Found>),
    /// The rows between two places of a range.
    Between { window: Window, low: Vec<u8>, high: Vec<u8> },
}

/// The place of a group's rows: the group's key, the span of places, and the start of the whole keys of its rows.
struct Span {
    key: JsonText,
    low: Vec<u8>,
    high: Vec<u8>,
    prefix: Vec<u8>,
    /// Whether the group has all keys with the prefix, not only the key that equals the prefix.
    is_open: bool,
}

impl Span {
    fn of(key: &JsonText, grouping: Grouping, order: &RowOrder) -> Span {
        if let Grouping::Level(level) = grouping
            && key.root().is_array()
        {
            let most = usize::try_from(level).unwrap_or(usize::MAX);
            let elements: Vec<_> = key.root().elements().take(most).collect();
            if elements.len() == most {
                let mut out = Vec::new();
                let mut json = JsonWriter::new(&mut out);
                json.begin_array();
                for element in elements {
                    json.value(element);
                }
                json.end_array();
                // The text consists of normalised values.
                let key = JsonText::from_normalised(out).unwrap_or_else(JsonText::null);
                let mut prefix = order.whole_key(key.root());
                // Without the end of the array, longer arrays also start with these bytes.
                prefix.pop();
                let low = at_prefix(&cut(prefix.clone()));
                return Span { key, high: end_of(&low), low, prefix, is_open: true };
            }
        }
        let prefix = order.whole_key(key.root());
        let low = at_key(&cut(prefix.clone()));
        Span { key: key.clone(), high: end_of(&low), low, prefix, is_open: false }
    }

    fn has(&self, position: &Position) -> bool {
        if self.is_open { position.key.starts_with(&self.prefix) } else { position.key == self.prefix }
    }

    /// Whether its rows have a cut key, which rows of other groups may have too.
    fn is_cut(&self) -> bool {
        is_cut(&self.prefix)
    }
}

/// Reads the groups of a range.
pub(super) struct Groups<'t, T> {
    tree: &'t ViewTree<'t, T>,
    grouping: Grouping,
    order: &'t RowOrder,
    /// The key of the range, if the range is a single key.
    key: Option<JsonText>,
    range: Window,
    /// Rows of the next groups that were already read.
    rows: VecDeque<Found>,
    /// The range after those rows.
    rest: Option<Window>,
    /// Number of rows of the last read.
    peeked: usize,
    /// Number of groups that ended among the rows of the last read.
    ended: usize,
}

impl<'t, T: Transaction> Groups<'t, T> {
    pub(super) fn new(
        tree: &'t ViewTree<'t, T>,
        grouping: Grouping,
        order: &'t RowOrder,
        range: Window,
        key: Option<JsonText>,
    ) -> Self {
        let rest = Some(range.clone());
        Groups { tree, grouping, order, key, range, rows: VecDeque::new(), rest, peeked: PEEKED, ended: 0 }
    }

    /// Whether the next group must be read from the store. There may be none.
    pub(super) fn has_to_read(&self) -> bool {
        self.rows.is_empty()
    }

    /// The remaining range, for another page; `None` if nothing is left, or if a page cannot end here.
    pub(super) fn left(&self) -> Option<Window> {
        match self.rows.front() {
            // All rows with the same cut key are read again, so a page does not end among them.
            Some(next) if is_cut(&next.position.key) => None,
            Some(next) => Some(self.range.clone().beginning_at(&self.tree.place_of(next))),
            None => self.rest.clone(),
        }
    }

    /// The next group.
    pub(super) async fn next(&mut self) -> Result<Option<Group>> {
        let tree = self.tree;
        while self.rows.is_empty() {
            let Some(window) = self.rest.take() else { return Ok(None) };
            self.peeked = if self.ended > 1 { (self.peeked * 4).min(MOST_PEEKED) } else { PEEKED };
            self.ended = 0;
            let (found, more) = tree.read_rows(&window, self.peeked).await?;
            self.rows.extend(found);
            self.rest = more;
        }
        let first = &self.rows[0];
        let span = Span::of(&tree.key_of(first).await?, self.grouping, self.order);
        // Keys that collate equally may differ, such as composed and decomposed letters.
        let key = match (&self.key, self.grouping) {
            (Some(key), Grouping::Exact) => key.clone(),
            _ => span.key.clone(),
        };
        let length = self.rows.iter().take_while(|one| span.has(&one.position)).count();
        // Rows with a cut key were read together.
        if let Some(rest) = self.rest.take_if(|_| length == self.rows.len() && !span.is_cut()) {
            return Ok(Some(Group { key, members: self.continued(span, rest) }));
        }
        self.ended += 1;
        let mut rows: Vec<Found> = self.rows.drain(..length).collect();
        if self.range.descending {
            rows.reverse();
        }
        Ok(Some(Group { key, members: Members::Read(rows) }))
    }

    /// The members of a group that continues after the rows that were read: the tree sums the part of it that is in the
    /// range.
    fn continued(&mut self, span: Span, mut rest: Window) -> Members {
        let first = self.tree.place_of(&self.rows[0]);
        self.rows.clear();
        let window = rest.clone();
        let (low, high) = match rest.descending {
            true => (span.low.max(rest.low.clone()), span.high.min(end_of(&first))),
            false => (span.low.max(first), span.high.min(rest.high.clone())),
        };
        match rest.descending {
            true => rest.high = low.clone(),
            false => rest.low = high.clone(),
        }
        self.rest = (!rest.is_empty()).then_some(rest);
        Members::Between { window, low, high }
    }
}

impl<T: Transaction> ViewTree<'_, T> {
    /// The reduction of a group.
    pub(super) async fn reduce_group(&self, group: Group) -> Result<Option<Reduced>> {
        match group.members {
            Members::Read(rows) => self.sum_of_rows(self.reduce_rows(rows).await?).await,
            Members::Between { window, low, high } => {
                let cover = self.cover_window(&window, &low, &high).await?;
                self.sum(cover).await
            }
        }
    }

    /// The rows and nodes between two places of a range. Rows with a cut key at its ends are checked one by one.
    pub(super) async fn cover_window(&self, window: &Window, low: &[u8], high: &[u8]) -> Result<Cover> {
        let (mut low, mut high) = (low.to_vec(), high.to_vec());
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for key in window.cut_ends() {
            let (begin, end) = (at_key(&key), end_of(&at_key(&key)));
            if begin < low || end > high {
                continue;
            }
            let mut rows = self.run(window, &key).await?;
            if window.descending {
                rows.reverse();
            }
            let rows = rows.into_iter().map(|one| one.row);
            // The end of the range that has these rows.
            if begin == low {
                before.extend(rows);
                low = end;
            } else {
                after.extend(rows);
                high = begin;
            }
        }
        let end = (high != [0xff]).then_some(high.as_slice());
        Ok(self.cover(&low, end).await?.with(before, after))
    }

    /// The place of a row, or the place of all rows with its cut key.
    fn place_of(&self, found: &Found) -> Vec<u8> {
        if is_cut(&found.position.key) {
            return at_key(&cut(found.position.key.clone()));
        }
        found.row.key.get(self.level(0).0.len()..).unwrap_or_default().to_vec()
    }

    async fn key_of(&self, found: &Found) -> Result<JsonText> {
        match &found.pair {
            Some(pair) => pair.key(),
            None => self.pair(&found.row, self.level(0).0.len()).await?.0.key(),
        }
    }

    async fn reduce_rows(&self, found: Vec<Found>) -> Result<Vec<ReduceRow>> {
        let depth = self.level(0).0.len();
        let mut rows = Vec::with_capacity(found.len());
        for one in found {
            let pair = match one.pair {
                Some(pair) => pair,
                None => self.pair(&one.row, depth).await?.0,
            };
            let (key, value) = pair.split()?;
            rows.push(ReduceRow { key, id: one.position.id, value });
        }
        Ok(rows)
    }
}
