//! Reads the rows of a view.
//!
//! One call reads one page in one transaction, and returns the request for the rest. So a query of any length takes
//! bounded memory, and no transaction grows too old. Rows whose keys are cut are read together with all rows that have the
//! same cut key, and ordered by the whole keys.

use std::cmp::Ordering;
use std::sync::Arc;

use futures_util::StreamExt;
use json::JsonText;
use kv_api::{Database, KeyValue, RangeRequest, Read, Transaction, TransactionExt};

use super::group::ViewGroup;
use super::rows::{Pair, Place, at_id, at_key, cut, is_cut, whole_key};
use super::tree::Tree;
use super::upkeep::is_gone;
use crate::all_docs::{AllDocsEntry, AllDocsRequest};
use crate::batch::{BATCH_BYTES, BODIES_AT_ONCE};
use crate::document::{Document, GetOptions};
use crate::documents::Documents;
use crate::error::{Error, NotFound, Result};
use crate::keys::end_of;
use crate::revid::RevId;
use crate::seq::Seq;

/// Maximum number of rows in a page.
const ROWS_AT_ONCE: usize = 2_000;

/// Number of requested keys that are looked up in one transaction, for each document that one reads at most.
const KEYS_FOR_EACH: usize = 10;

/// Maximum number of rows skipped in one transaction.
const SKIPPED_AT_ONCE: usize = 20_000;

/// Maximum number of bytes of rows that have the same cut key.
const MAX_RUN: usize = 32_000_000;

/// The rows to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewRequest {
    /// These keys, in this order, instead of a range; with `descending` from the last one.
    pub keys: Option<Arc<[JsonText]>>,
    /// The first key; with `descending` the highest.
    pub start: Option<JsonText>,
    /// The first document among those with the key `start`.
    pub start_id: Option<String>,
    /// The last key; with `descending` the lowest.
    pub end: Option<JsonText>,
    /// The last document among those with the key `end`.
    pub end_id: Option<String>,
    /// Whether the rows at the end itself are read.
    pub inclusive_end: bool,
    /// In descending order.
    pub descending: bool,
    /// Number of rows to skip first.
    pub skip: u64,
    /// Maximum number of rows.
    pub limit: Option<u64>,
    /// Include the documents, or those that the values name by `_id`.
    pub include_docs: bool,
    /// Include the live losing leaves in the documents.
    pub conflicts: bool,
    /// Where to go on: from [`ViewPage::next`], and nothing in a first request.
    pub resume: Option<Resume>,
}

impl Default for ViewRequest {
    fn default() -> Self {
        ViewRequest {
            keys: None,
            start: None,
            start_id: None,
            end: None,
            end_id: None,
            inclusive_end: true,
            descending: false,
            skip: 0,
            limit: None,
            include_docs: false,
            conflicts: false,
            resume: None,
        }
    }
}

/// Where a query goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// The number of the requested key.
    pub(super) key: usize,
    /// The last row.
    pub(super) after: Option<Position>,
    /// In a query of groups, the place where the next one begins or, descending, before which it ends.
    pub(super) bound: Option<Vec<u8>>,
}

/// A row's position in the order of its view.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    /// The bytes of the whole key.
    pub(super) key: Vec<u8>,
    pub(super) id: String,
    pub(super) emit: u64,
}

/// A row of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewRow {
    /// The document that emitted it.
    pub id: String,
    /// The key.
    pub key: JsonText,
    /// The value.
    pub value: JsonText,
    /// The document, if requested; `None` inside if it does not exist.
    pub doc: Option<Option<Box<Document>>>,
    /// The error of a document that cannot be read.
    pub error: Option<Error>,
}

/// A page of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewPage {
    /// Number of rows of the view.
    pub total_rows: u64,
    /// Number of rows of the view before the first one of this page.
    pub offset: u64,
    /// The sequence up to which the view is built.
    pub seq: Seq,
    /// The rows. A page may be empty and not be the last one.
    pub rows: Vec<ViewRow>,
    /// The request for the rest; `None` after the last page.
    pub next: Option<ViewRequest>,
}

/// A bound of a range.
#[derive(Clone, Debug)]
struct Bound {
    key: Vec<u8>,
    id: Option<String>,
}

impl Bound {
    fn new(key: &JsonText, id: Option<&String>) -> Bound {
        Bound { key: whole_key(key.root()), id: id.cloned() }
    }

    /// Where the rows at the bound begin. All rows with the same cut key are at it.
    fn place(&self) -> Vec<u8> {
        match &self.id {
            Some(id) if !is_cut(&self.key) => at_id(&self.key, id),
            _ => at_key(&cut(self.key.clone())),
        }
    }

    /// How a row compares with the bound.
    fn compare(&self, position: &Position) -> Ordering {
        position.key.cmp(&self.key).then_with(|| match &self.id {
            Some(id) => position.id.as_str().cmp(id.as_str()),
            None => Ordering::Equal,
        })
    }
}

/// A range of rows.
#[derive(Clone, Debug)]
pub(super) struct Window {
    start: Option<Bound>,
    end: Option<Bound>,
    inclusive_end: bool,
    pub(super) descending: bool,
    /// The places of the range. At either end there may be rows with cut keys that do not belong to it.
    pub(super) low: Vec<u8>,
    pub(super) high: Vec<u8>,
}

impl Window {
    /// The range that a request asks for; that of one of its keys if it has some.
    pub(super) fn of(request: &ViewRequest, key: Option<&JsonText>) -> Window {
        let (start, end) = match key {
            Some(key) => (Some(Bound::new(key, None)), Some(Bound::new(key, None))),
            None => (
                request.start.as_ref().map(|key| Bound::new(key, request.start_id.as_ref())),
                request.end.as_ref().map(|key| Bound::new(key, request.end_id.as_ref())),
            ),
        };
        let (descending, inclusive_end) = (request.descending, request.inclusive_end || key.is_some());
        let (mut low, mut high) = (Vec::new(), vec![0xff]);
        for (bound, is_start) in [(&start, true), (&end, false)] {
            let Some(bound) = bound else { continue };
            let place = bound.place();
            let is_inside = is_start || inclusive_end || is_cut(&bound.key);
            if is_start != descending {
                low = if is_inside { place } else { end_of(&place) };
            } else {
                high = if is_inside { end_of(&place) } else { place };
            }
        }
        Window { start, end, inclusive_end, descending, low, high }
    }

    /// Whether a row is in the range.
    pub(super) fn has(&self, position: &Position) -> bool {
        let ahead = |order: Ordering| if self.descending { order.reverse() } else { order };
        let after_start = self.start.as_ref().is_none_or(|start| ahead(start.compare(position)).is_ge());
        let before_end = self.end.as_ref().is_none_or(|end| match ahead(end.compare(position)) {
            Ordering::Less => true,
            Ordering::Equal => self.inclusive_end,
            Ordering::Greater => false,
        });
        after_start && before_end
    }

    /// The cut keys at its ends, whose rows may not all belong to it.
    pub(super) fn cut_ends(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        let ends = [&self.start, &self.end].into_iter().flatten();
        ends.filter(|bound| is_cut(&bound.key)).map(|bound| cut(bound.key.clone()))
    }

    /// The rest of the range after a row.
    fn go_on_after(&mut self, after: &Position) {
        let place = match is_cut(&after.key) {
            // All rows with this cut key are read again.
            true => at_key(&cut(after.key.clone())),
            false => Place { key: after.key.clone(), id: after.id.clone(), emit: after.emit }.write(),
        };
        match (self.descending, is_cut(&after.key)) {
            (false, true) => self.low = self.low.clone().max(place),
            (false, false) => self.low = self.low.clone().max([place.as_slice(), &[0]].concat()),
            (true, true) => self.high = self.high.clone().min(end_of(&place)),
            (true, false) => self.high = self.high.clone().min(place),
        }
    }

    /// Whether nothing can be in it.
    pub(super) fn is_empty(&self) -> bool {
        self.low >= self.high
    }
}

/// A row that was read.
pub(super) struct Found {
    pub(super) position: Position,
    /// The row's own key, for rows whose value is read later.
    pub(super) row: KeyValue,
    pub(super) pair: Option<Pair>,
}

impl<T: Transaction> Tree<'_, T> {
    /// A batch of rows of a range, in its order, and the range of the rest. The limit may be exceeded by rows with a cut key.
    pub(super) async fn read_rows(&self, window: &Window, limit: usize) -> Result<(Vec<Found>, Option<Window>)> {
        let (begin, _) = self.level(0);
        let key = |place: &[u8]| [begin.as_slice(), place].concat();
        if window.is_empty() {
            return Ok((Vec::new(), None));
        }
        let range = RangeRequest::keys(key(&window.low), key(&window.high)).limit(limit.max(1));
        let range = range.target_bytes(BATCH_BYTES);
        let range = if window.descending { range.reverse() } else { range };
        let batch = self.tx.get_range(&range, Read::Snapshot).await?;
        let mut found = Vec::with_capacity(batch.rows.len());
        let mut rest = window.clone();
        let mut last = None;
        for row in batch.rows {
            let place = Place::read(row.key.get(begin.len()..).unwrap_or_default())?;
            if place.is_cut() {
                // The whole run, and then what is after it.
                let run = at_key(&place.key);
                found.extend(self.run(window, &place.key).await?);
                match window.descending {
                    true => rest.high = run,
                    false => rest.low = end_of(&run),
                }
                return Ok((found, (!rest.is_empty()).then_some(rest)));
            }
            last = Some(row.key.slice(begin.len()..));
            let position = Position { key: place.key, id: place.id, emit: place.emit };
            found.push(Found { position, row, pair: None });
        }
        let Some(last) = last.filter(|_| batch.more) else { return Ok((found, None)) };
        match window.descending {
            true => rest.high = last.to_vec(),
            false => rest.low = [&last, &[0][..]].concat(),
        }
        Ok((found, Some(rest)))
    }

    /// All rows of a range that have the same cut key, in the range's order.
    pub(super) async fn run(&self, window: &Window, key: &[u8]) -> Result<Vec<Found>> {
        let (begin, _) = self.level(0);
        let run = [begin.as_slice(), &at_key(key)].concat();
        let range = RangeRequest::keys(run.clone(), end_of(&run)).target_bytes(BATCH_BYTES);
        let mut rows = std::pin::pin!(self.tx.stream(range, Read::Snapshot));
        let (mut found, mut bytes) = (Vec::new(), 0);
        while let Some(some) = rows.next().await {
            for row in some? {
                let (pair, place) = self.pair(&row, begin.len()).await?;
                bytes += pair.len();
                if bytes > MAX_RUN {
                    let reason = "Too many rows have keys that differ only after their first 2,000 bytes.";
                    return Err(Error::bad_request(reason));
                }
                let position = Position { key: whole_key(pair.key()?.root()), id: place.id, emit: place.emit };
                if window.has(&position) {
                    found.push(Found { position, row, pair: Some(pair) });
                }
            }
        }
        found.sort_by(|a, b| a.position.cmp(&b.position));
        if window.descending {
            found.reverse();
        }
        Ok(found)
    }
}

impl<D: Database> Documents<D> {
    /// Brings a view up to date and reads its first page of rows. Continue with [`view_rows`](Self::view_rows) and the
    /// page's `next`.
    ///
    /// # Errors
    /// Like [`update_views`](Self::update_views) and [`view_rows`](Self::view_rows).
    pub async fn query_view(&self, group: &ViewGroup, view: &str, request: &ViewRequest) -> Result<ViewPage> {
        loop {
            self.update_views(group).await?;
            match self.view_rows(group, view, request).await {
                Err(error) if is_gone(&error) && group.view(view).is_some() => {}
                page => return page,
            }
        }
    }

    /// Reads a page of rows as they are, without an update.
    ///
    /// # Errors
    /// 404 if the database is gone, the group was never built, or it has no such view.
    pub async fn view_rows(&self, group: &ViewGroup, view: &str, request: &ViewRequest) -> Result<ViewPage> {
        let view = group.view(view).ok_or_else(|| Error::not_found(NotFound::Index))?;
        self.read_batch(BODIES_AT_ONCE, |tx, at_once| async move {
            let (head, upto) = self.built_view(&tx, group).await?;
            let (keys, number) = (self.keys(), head.number);
            let tree = Tree { tx: &tx, keys, group, secret: &head.secret, number, view };
            let mut page = tree.page(request, KEYS_FOR_EACH * at_once).await?;
            page.seq = upto.seq;
            if request.include_docs {
                self.add_view_docs(&tx, request, &mut page, at_once).await?;
            }
            Ok(page.into_page())
        })
        .await
    }

    /// Adds the documents to as many rows as a batch holds.
    async fn add_view_docs(
        &self,
        tx: &D::Transaction,
        request: &ViewRequest,
        page: &mut Reading,
        at_once: usize,
    ) -> Result<()> {
        let ids: Vec<String> = page.rows.iter().map(|(_, row)| linked(row).0).collect();
        let documents =
            AllDocsRequest { include_docs: true, conflicts: request.conflicts, ..AllDocsRequest::default() };
        let entries = self.list_keys(tx, &documents, &ids, at_once).await?.rows;
        if entries.len() < page.rows.len() {
            page.end_at(entries.len(), request);
        }
        for ((_, row), entry) in page.rows.iter_mut().zip(entries) {
            row.doc = Some(None);
            match entry.entry {
                AllDocsEntry::Live { doc, .. } => row.doc = Some(doc),
                AllDocsEntry::Damaged { error } => row.error = Some(error),
                AllDocsEntry::Deleted { .. } | AllDocsEntry::Missing => {}
            }
            if let (id, Some(rev)) = linked(row)
                && !row.doc.iter().flatten().any(|doc| doc.rev == rev)
            {
                let leaf = GetOptions { rev: Some(rev), ..GetOptions::default() };
                row.doc = Some(crate::error::alone(self.get(&id, &leaf).await)?.ok().map(Box::new));
            }
        }
        Ok(())
    }
}

/// The document that a row means: that of its value's `_id` and `_rev`, or its own.
fn linked(row: &ViewRow) -> (String, Option<RevId>) {
    let member = |name| row.value.get(name).and_then(|value: json::JsonRef<'_>| value.as_str());
    let id = member("_id").map_or_else(|| row.id.clone(), std::borrow::Cow::into_owned);
    (id, member("_rev").and_then(|rev| rev.parse().ok()))
}

/// A page while it is read.
struct Reading {
    rows: Vec<(Position, ViewRow)>,
    total_rows: u64,
    offset: u64,
    seq: Seq,
    /// Which of the requested keys each row has.
    at: Vec<usize>,
    next: Option<ViewRequest>,
}

impl Reading {
    /// Leaves out the rows from this one on. The first one stays in any case.
    fn end_at(&mut self, count: usize, request: &ViewRequest) {
        let count = count.max(1).min(self.rows.len());
        self.rows.truncate(count);
        if let (Some((last, _)), Some(&key)) = (self.rows.last(), self.at.get(count - 1)) {
            let limit = request.limit.map(|limit| limit.saturating_sub(count as u64));
            let resume = Some(Resume { key, after: Some(last.clone()), bound: None });
            self.next = Some(ViewRequest { skip: 0, limit, resume, ..request.clone() });
        }
    }

    fn into_page(self) -> ViewPage {
        let rows = self.rows.into_iter().map(|(_, row)| row).collect();
        ViewPage { total_rows: self.total_rows, offset: self.offset, seq: self.seq, rows, next: self.next }
    }
}

impl<T: Transaction> Tree<'_, T> {
    /// Reads a page, without documents, of at most this many of the requested keys.
    async fn page(&self, request: &ViewRequest, most_keys: usize) -> Result<Reading> {
        let depth = self.level(0).0.len();
        let total_rows = self.cover(&[], None).await?.count();
        let mut page = Reading { rows: Vec::new(), total_rows, offset: 0, seq: Seq::ZERO, at: Vec::new(), next: None };
        let mut first: Option<Position> = None;
        let resume = request.resume.clone().unwrap_or_default();
        let wanted = request.limit.map_or(ROWS_AT_ONCE, |limit| usize::try_from(limit).unwrap_or(ROWS_AT_ONCE));
        let wanted = wanted.min(ROWS_AT_ONCE);
        let (mut skip, mut skipped, mut bytes) = (request.skip, 0, 0);
        let mut last = resume.after.clone();
        let keys: Vec<Option<JsonText>> = match &request.keys {
            None => vec![None],
            Some(keys) if request.descending => keys.iter().rev().cloned().map(Some).collect(),
            Some(keys) => keys.iter().cloned().map(Some).collect(),
        };
        let mut stopped_at = None;
        'keys: for (at, key) in keys.iter().enumerate().skip(resume.key) {
            let mut window = Window::of(request, key.as_ref());
            if at > resume.key {
                last = None;
            }
            if at - resume.key >= most_keys {
                stopped_at = Some(at);
                break;
            }
            let after = last.clone();
            if let Some(after) = &after {
                window.go_on_after(after);
            }
            let mut rest = Some(window);
            while let Some(window) = rest.take() {
                if page.rows.len() >= wanted || skipped >= SKIPPED_AT_ONCE || bytes >= BATCH_BYTES {
                    stopped_at = Some(at);
                    break 'keys;
                }
                let to_skip = usize::try_from(skip).unwrap_or(usize::MAX).min(SKIPPED_AT_ONCE - skipped);
                let (found, more) = self.read_rows(&window, to_skip.saturating_add(wanted - page.rows.len())).await?;
                rest = more;
                let is_after = |position: &Position| match (&after, request.descending) {
                    (None, _) => true,
                    (Some(after), false) => position > after,
                    (Some(after), true) => position < after,
                };
                for one in found {
                    // Only rows with a cut key are read again.
                    if !is_after(&one.position) {
                        continue;
                    }
                    if page.rows.len() >= wanted || bytes >= BATCH_BYTES {
                        stopped_at = Some(at);
                        break 'keys;
                    }
                    last = Some(one.position.clone());
                    if skip > 0 {
                        (skip, skipped) = (skip - 1, skipped + 1);
                        continue;
                    }
                    first.get_or_insert_with(|| one.position.clone());
                    let pair = match one.pair {
                        Some(pair) => pair,
                        None => self.pair(&one.row, depth).await?.0,
                    };
                    bytes += pair.len();
                    let (key, value) = (pair.key()?, pair.value()?);
                    page.at.push(at);
                    page.rows.push((
                        one.position.clone(),
                        ViewRow { id: one.position.id, key, value, doc: None, error: None },
                    ));
                }
            }
        }
        let left = request.limit.map(|limit| limit.saturating_sub(page.rows.len() as u64));
        if let Some(key) = stopped_at
            && left != Some(0)
        {
            let resume = Some(Resume { key, after: last, bound: None });
            page.next = Some(ViewRequest { skip, limit: left, resume, ..request.clone() });
        }
        if request.resume.is_none() {
            page.offset = self.offset(request, first.as_ref(), total_rows).await?;
        }
        Ok(page)
    }

    /// Number of rows before the first one, or before the range if there is none.
    async fn offset(&self, request: &ViewRequest, first: Option<&Position>, total: u64) -> Result<u64> {
        let window = Window::of(request, request.keys.as_ref().and_then(|keys| keys.first()));
        let before = match first {
            // Among rows with the same cut key, those that come first are counted one by one.
            Some(first) if is_cut(&first.key) => {
                let key = cut(first.key.clone());
                let all = Window::of(&ViewRequest::default(), None);
                let run = self.run(&all, &key).await?;
                let place = run.iter().filter(|one| one.position < *first).count() as u64;
                self.cover(&[], Some(&at_key(&key))).await?.count() + place
            }
            Some(first) => {
                let place = Place { key: first.key.clone(), id: first.id.clone(), emit: first.emit }.write();
                self.cover(&[], Some(&place)).await?.count()
            }
            None if request.descending => self.cover(&[], Some(&window.high)).await?.count(),
            None => self.cover(&[], Some(&window.low)).await?.count(),
        };
        Ok(match (request.descending, first) {
            (false, _) => before,
            (true, Some(_)) => total.saturating_sub(before + 1),
            (true, None) => total.saturating_sub(before),
        })
    }
}
