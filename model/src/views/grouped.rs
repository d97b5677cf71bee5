//! Reads reductions of a view, of all rows of a range or by groups of keys.
//!
//! The first row of a group is read together with some that follow. If the group ends among them, they are reduced. If
//! not, the group's sum comes from the [`tree`](super::tree), and the next group begins behind it. So small groups cost
//! their rows, and large ones a few nodes each.

use json::{JsonText, JsonWriter};
use kv_api::{Database, Transaction};

use super::group::{ReduceRow, Reduced, ViewGroup};
use super::left_out::LeftOut;
use super::query::Found;
use super::request::{Position, Resume, ViewRequest};
use super::rows::{RowOrder, at_key, at_prefix, cut, is_cut};
use super::tree::{Cover, Tree};
use super::upkeep::is_gone;
use super::window::Window;
use crate::documents::Documents;
use crate::error::{Error, NotFound, Result};
use crate::keys::end_of;
use crate::seq::Seq;

/// Maximum number of groups in a page.
const GROUPS_AT_ONCE: usize = 500;

/// Number of rows that are read to see where a group ends: at first, and at most.
const PEEKED: usize = 32;
const MOST_PEEKED: usize = 1_024;

/// How rows are grouped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// All rows together.
    #[default]
    None,
    /// By the first elements of keys that are arrays; other keys are groups of their own.
    Level(u64),
    /// By keys.
    Exact,
}

/// A group of rows and its reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReducedRow {
    /// The group's key; `null` without groups.
    pub key: JsonText,
    /// The reduction, or the error of the reduce function.
    pub value: Reduced,
}

/// A page of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReducedPage {
    /// The sequence up to which the view is built.
    pub seq: Seq,
    /// The groups. A page may be empty and not be the last one.
    pub rows: Vec<ReducedRow>,
    /// The documents that are left out of the view.
    pub left_out: LeftOut,
    /// The request for the rest; `None` after the last page.
    pub next: Option<ViewRequest>,
}

impl<D: Database> Documents<D> {
    /// Brings a view up to date and reads its first page of reductions. Continue with
    /// [`view_reductions`](Self::view_reductions) and the page's `next`.
    ///
    /// # Errors
    /// Like [`update_views`](Self::update_views) and [`view_reductions`](Self::view_reductions).
    pub async fn reduce_view(
        &self,
        group: &ViewGroup,
        view: &str,
        request: &ViewRequest,
        grouping: Grouping,
    ) -> Result<ReducedPage> {
        loop {
            self.update_views(group).await?;
            match self.view_reductions(group, view, request, grouping).await {
                Err(error) if is_gone(&error) && group.view(view).is_some() => {}
                page => return page,
            }
        }
    }

    /// Reads a page of reductions as they are, without an update. `skip` and `limit` count groups; documents are not
    /// included.
    ///
    /// # Errors
    /// 404 if the database is gone, the group was never built, or it has no such view, or no reduce function;
    /// `bad_request` as for [`view_rows`](Self::view_rows).
    pub async fn view_reductions(
        &self,
        group: &ViewGroup,
        view: &str,
        request: &ViewRequest,
        grouping: Grouping,
    ) -> Result<ReducedPage> {
        let reduced = |view: &usize| group.views().get(*view).is_some_and(|view| view.reduce.is_some());
        let view = group.view(view).filter(reduced).ok_or_else(|| Error::not_found(NotFound::Index))?;
        group.check(request)?;
        self.read_batch(GROUPS_AT_ONCE, |tx, most| async move {
            let (head, upto) = self.built_view(&tx, group).await?;
            let (keys, number) = (self.keys(), head.number);
            let tree = Tree { tx: &tx, keys, group, secret: &head.secret, number, view };
            let mut page = tree.groups(request, grouping, most).await?;
            page.seq = upto.seq;
            page.left_out = self.left_out(&tx, number, view, upto, request.partition.as_deref()).await?;
            Ok(page)
        })
        .await
    }
}

fn null() -> JsonText {
    JsonText::from_normalised(&b"null"[..]).unwrap_or_else(JsonText::empty_object)
}

/// A group: its key, the places it spans, and the bytes with which the whole keys of its rows begin.
struct Group {
    key: JsonText,
    low: Vec<u8>,
    high: Vec<u8>,
    prefix: Vec<u8>,
    /// Whether the group has all keys with the prefix, and not only the key that the prefix is.
    is_open: bool,
}

impl Group {
    fn of(key: &JsonText, grouping: Grouping, order: &RowOrder) -> Group {
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
                let key = JsonText::from_normalised(out).unwrap_or_else(null);
                let mut prefix = order.whole_key(key.root());
                // Without the end of the array, longer arrays begin with these bytes too.
                prefix.pop();
                let low = at_prefix(&cut(prefix.clone()));
                return Group { key, high: end_of(&low), low, prefix, is_open: true };
            }
        }
        let prefix = order.whole_key(key.root());
        let low = at_key(&cut(prefix.clone()));
        Group { key: key.clone(), high: end_of(&low), low, prefix, is_open: false }
    }

    fn has(&self, position: &Position) -> bool {
        if self.is_open { position.key.starts_with(&self.prefix) } else { position.key == self.prefix }
    }

    /// Whether its rows have a cut key, which rows of other groups may have too.
    fn is_cut(&self) -> bool {
        is_cut(&self.prefix)
    }
}

impl<T: Transaction> Tree<'_, T> {
    async fn groups(&self, request: &ViewRequest, grouping: Grouping, most: usize) -> Result<ReducedPage> {
        let mut page = Groups {
            page: ReducedPage { seq: Seq::ZERO, rows: Vec::new(), left_out: LeftOut::default(), next: None },
            request: request.clone(),
            seen: 0,
        };
        let resume = request.resume.clone().unwrap_or_default();
        let order = self.order(request);
        // Unlike rows, groups follow the order of the keys even with `descending`, as in CouchDB.
        for at in resume.key..request.ranges() {
            let key = request.key_of(at, false);
            let mut window = Window::of(request, key.as_ref(), &order);
            if let Some(bound) = resume.bound.as_ref().filter(|_| at == resume.key) {
                match request.descending {
                    true => window.high = window.high.min(bound.clone()),
                    false => window.low = window.low.max(bound.clone()),
                }
            }
            // Keys without rows take time too.
            if at - resume.key >= most {
                page.stop(at, &window);
                return Ok(page.page);
            }
            if matches!(grouping, Grouping::None | Grouping::Level(0)) {
                if !page.is_full() && !window.is_empty() {
                    let cover = self.cover_window(&window, &window.low, &window.high).await?;
                    let has_rows = cover.count() > 0;
                    if has_rows && page.takes() {
                        let value = self.sum(cover).await?;
                        page.page.rows.extend(value.map(|value| ReducedRow { key: null(), value }));
                    }
                }
                continue;
            }
            let whole = window.clone();
            let mut rest = Some(window);
            let mut peeked = PEEKED;
            let mut buffer: std::collections::VecDeque<Found> = Default::default();
            let mut ended_in_buffer = 0;
            loop {
                if buffer.is_empty() {
                    let Some(window) = rest.take() else { break };
                    if page.is_full() {
                        break;
                    }
                    if page.seen >= most || page.is_long_enough() {
                        page.stop(at, &window);
                        return Ok(page.page);
                    }
                    peeked = if ended_in_buffer > 1 { (peeked * 4).min(MOST_PEEKED) } else { PEEKED };
                    ended_in_buffer = 0;
                    let (found, more) = self.read_rows(&window, peeked).await?;
                    buffer.extend(found);
                    rest = more;
                    continue;
                }
                if page.is_full() {
                    break;
                }
                // All rows with the same cut key are read again, so a page does not end among them.
                if page.is_long_enough() && !is_cut(&buffer[0].position.key) {
                    page.stop(at, &whole.beginning_at(&self.place_of(&buffer[0])));
                    return Ok(page.page);
                }
                let mut group = Group::of(&self.key_of(&buffer[0]).await?, grouping, &order);
                // Rows at the same place may have different keys, such as composed and decomposed letters.
                if let (Some(key), Grouping::Exact) = (&key, grouping) {
                    group.key = key.clone();
                }
                let length = buffer.iter().take_while(|one| group.has(&one.position)).count();
                let ends_here = length < buffer.len() || rest.is_none();
                let takes = page.takes();
                if ends_here || group.is_cut() {
                    // Rows with a cut key were read together.
                    ended_in_buffer += 1;
                    let mut rows: Vec<Found> = buffer.drain(..length).collect();
                    if request.descending {
                        rows.reverse();
                    }
                    if takes {
                        let value = self.sum_of_rows(self.reduce_rows(rows).await?).await?;
                        page.page.rows.extend(value.map(|value| ReducedRow { key: group.key, value }));
                    }
                    continue;
                }
                // The group continues after the rows that were read: the tree sums the part of it that is in the range.
                let Some(window) = rest.as_mut() else { break };
                let (mut low, mut high) = (group.low.clone().max(window.low.clone()), group.high.clone());
                match window.descending {
                    true => high = high.min(end_of(&self.place_of(&buffer[0]))),
                    false => {
                        (low, high) = (group.low.clone().max(self.place_of(&buffer[0])), high.min(window.high.clone()))
                    }
                }
                if takes {
                    let cover = self.cover_window(window, &low, &high).await?;
                    let value = self.sum(cover).await?;
                    page.page.rows.extend(value.map(|value| ReducedRow { key: group.key, value }));
                }
                buffer.clear();
                match window.descending {
                    true => window.high = low,
                    false => window.low = high,
                }
                if window.is_empty() {
                    rest = None;
                }
            }
        }
        Ok(page.page)
    }

    /// The rows and nodes between two places of a range. Rows with a cut key at its ends are looked at one by one.
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
            // The end of the range at which these rows are.
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

    /// The place of a row, or that of all rows with its cut key.
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
            rows.push(ReduceRow { key: pair.key()?, id: one.position.id, value: pair.value()? });
        }
        Ok(rows)
    }
}

/// A page of groups while it is read.
struct Groups {
    page: ReducedPage,
    request: ViewRequest,
    /// Number of groups so far, with those that were skipped.
    seen: usize,
}

impl Groups {
    fn is_full(&self) -> bool {
        self.request.limit.is_some_and(|limit| self.page.rows.len() as u64 >= limit)
    }

    fn is_long_enough(&self) -> bool {
        self.request.at_once.is_some_and(|most| self.page.rows.len() >= most)
    }

    /// Counts the next group. Returns whether it belongs to the page.
    fn takes(&mut self) -> bool {
        self.seen += 1;
        let skipped = self.request.skip > 0;
        self.request.skip -= u64::from(skipped);
        !skipped
    }

    /// Ends the page before this range.
    fn stop(&mut self, key: usize, window: &Window) {
        let limit = self.request.limit.map(|limit| limit.saturating_sub(self.page.rows.len() as u64));
        let bound = Some(if window.descending { window.high.clone() } else { window.low.clone() });
        let resume = Some(Resume { key, after: None, bound });
        self.page.next = Some(ViewRequest { limit, resume, ..self.request.clone() });
    }
}
