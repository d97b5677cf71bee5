//! Reads the rows of a view.
//!
//! One call reads one page in one transaction, and returns the request for the rest. So a query of any length takes
//! bounded memory, and transactions do not become too old. Rows whose keys are cut are read together with all rows of
//! the same cut key, and ordered by the whole keys. In descending order, rows of one document with one key are still
//! ascending, as in CouchDB, and are read together too.

use futures_util::StreamExt;
use json::JsonRef;
use kv_api::{Database, KeyValue, RangeRequest, Read, Transaction, TransactionExt};

use super::group::ViewGroup;
use super::left_out::LeftOut;
use super::request::{Position, Resume, ViewPage, ViewRequest, ViewRow};
use super::rows::{Pair, Place, at_id, at_key, cut, is_cut};
use super::tree::ViewTree;
use super::upkeep::is_gone;
use super::window::Window;
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::feed::seq::Seq;
use crate::keys::end_of;
use crate::read::all_docs::{AllDocsEntry, AllDocsRequest};
use crate::read::batch::{BATCH_BYTES, BODIES_AT_ONCE};
use crate::read::document::GetOptions;
use crate::rows::revid::RevId;

/// Maximum number of rows in a page.
const ROWS_AT_ONCE: usize = 2_000;

/// A transaction looks up at most this many requested keys for each document that it may read.
const KEYS_FOR_EACH: usize = 10;

/// Maximum number of rows skipped in one transaction.
const SKIPPED_AT_ONCE: usize = 20_000;

/// Maximum number of bytes of rows that have the same cut key.
const MAX_RUN: usize = 32_000_000;

/// A row that was read.
pub(super) struct Found {
    pub(super) position: Position,
    /// The row's own key, for rows whose value is read later.
    pub(super) row: KeyValue,
    pub(super) pair: Option<Pair>,
}

impl<T: Transaction> ViewTree<'_, T> {
    /// A batch of rows of a range, in its order, and the range of the rest. The limit may be exceeded by rows with a
    /// cut key.
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
                let key = self.order_of(&place.id).whole_key(pair.key()?.root());
                let position = Position { key, id: place.id, emit: place.emit };
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

impl<T: Transaction> ViewTree<'_, T> {
    /// Puts rows that were read in descending order into the order of a descending view, where rows of one document
    /// and key are still ascending. Also reads the other rows of the last document and key, and removes them from the
    /// rest. They are not too many, since all rows of a document fit into a transaction.
    async fn descending(&self, mut found: Vec<Found>, rest: &mut Option<Window>) -> Result<Vec<Found>> {
        if let (Some(last), Some(window)) = (found.last(), rest.as_mut())
            && last.position.emit > 0
            && !is_cut(&last.position.key)
        {
            let Position { key, id, .. } = last.position.clone();
            let (begin, all) = (self.level(0).0, at_id(&key, &id));
            let range = RangeRequest::keys([begin.as_slice(), &all].concat(), last.row.key.clone());
            for row in self.tx.get_all(range, Read::Snapshot).await? {
                let emit = Place::read(row.key.get(begin.len()..).unwrap_or_default())?.emit;
                let position = Position { key: key.clone(), id: id.clone(), emit };
                found.push(Found { position, row, pair: None });
            }
            window.high = all;
        }
        found.sort_by(|a, b| a.position.compare(&b.position, true));
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

    /// Reads a page of rows without an update.
    ///
    /// # Errors
    /// 404 if the database is gone, the group was never built, or it has no such view; `bad_request` if the group is
    /// partitioned and the request does not name a partition, or the reverse.
    pub async fn view_rows(&self, group: &ViewGroup, view: &str, request: &ViewRequest) -> Result<ViewPage> {
        let view = group.view(view).ok_or_else(|| Error::not_found(NotFound::Index))?;
        group.check(request)?;
        self.read_batch(BODIES_AT_ONCE, |tx, at_once| async move {
            let (head, upto) = self.built_view(&tx, group).await?;
            let (keys, number) = (self.keys(), head.number);
            let tree = ViewTree { tx: &tx, keys, group, secret: &head.secret, number, view };
            let mut page = tree.page(request, KEYS_FOR_EACH * at_once).await?;
            page.seq = upto.seq;
            page.left_out = self.left_out(&tx, number, view, upto, request.partition.as_deref()).await?;
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
        // Documents never have an empty id.
        let ids: Vec<String> = page.rows.iter().map(|(_, row)| linked(row).0.unwrap_or_default()).collect();
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
            if let (Some(id), Some(rev)) = linked(row)
                && !row.doc.iter().flatten().any(|doc| doc.rev == rev)
            {
                let leaf = GetOptions { rev: Some(rev), ..GetOptions::default() };
                row.doc = Some(match self.get(&id, &leaf).await {
                    // The row is kept, without the document that its value names.
                    Err(error) if is_no_revision(&error) => None,
                    found => crate::error::alone(found)?.ok().map(Box::new),
                });
            }
        }
        Ok(())
    }
}

fn is_no_revision(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound(NotFound::Missing | NotFound::Deleted))
}

/// The document that a row refers to: the one named by `_id` and `_rev` in its value, or its own. An `_id` that is not
/// a string does not name a document.
fn linked(row: &ViewRow) -> (Option<String>, Option<RevId>) {
    let text = |value: JsonRef<'_>| value.as_str().map(std::borrow::Cow::into_owned);
    let id = match row.value.get("_id") {
        Some(id) => text(id),
        None => Some(row.id.clone()),
    };
    (id, row.value.get("_rev").and_then(text).and_then(|rev| rev.parse().ok()))
}

/// A page while it is read.
struct Reading {
    rows: Vec<(Position, ViewRow)>,
    /// Maximum number of rows.
    wanted: usize,
    /// The bytes of the rows.
    bytes: usize,
    /// Number of rows to skip.
    skip: u64,
    skipped: usize,
    /// The first row and the last one, including skipped rows.
    first: Option<Position>,
    last: Option<Position>,
    total_rows: u64,
    offset: u64,
    seq: Seq,
    left_out: LeftOut,
    /// The requested key of each row.
    at: Vec<usize>,
    next: Option<ViewRequest>,
}

impl Reading {
    fn new(request: &ViewRequest, total_rows: u64) -> Reading {
        // With a limit of 0, the first row is still read: the offset needs it.
        let is_empty = request.limit == Some(0);
        let limit = request.limit.map_or(ROWS_AT_ONCE, |limit| usize::try_from(limit).unwrap_or(ROWS_AT_ONCE));
        let wanted = limit.min(ROWS_AT_ONCE).min(request.at_once.unwrap_or(ROWS_AT_ONCE)).max(usize::from(is_empty));
        Reading {
            rows: Vec::new(),
            wanted,
            bytes: 0,
            skip: if is_empty { 0 } else { request.skip },
            skipped: 0,
            first: None,
            last: None,
            total_rows,
            offset: 0,
            seq: Seq::ZERO,
            left_out: LeftOut::default(),
            at: Vec::new(),
            next: None,
        }
    }

    fn is_full(&self) -> bool {
        self.rows.len() >= self.wanted || self.bytes >= BATCH_BYTES
    }

    /// Number of rows that the page can take and skip.
    fn room(&self) -> usize {
        let skip = usize::try_from(self.skip).unwrap_or(usize::MAX).min(SKIPPED_AT_ONCE - self.skipped);
        skip.saturating_add(self.wanted - self.rows.len())
    }

    /// Moves to a row. Returns whether it is skipped.
    fn skips(&mut self, position: &Position) -> bool {
        self.last = Some(position.clone());
        self.first.get_or_insert_with(|| position.clone());
        let skips = self.skip > 0;
        if skips {
            (self.skip, self.skipped) = (self.skip - 1, self.skipped + 1);
        }
        skips
    }

    /// Adds a row of the requested key with this number.
    fn add(&mut self, at: usize, position: Position, pair: &Pair) -> Result<()> {
        self.bytes += pair.len();
        let (id, (key, value)) = (position.id.clone(), pair.split()?);
        self.at.push(at);
        self.rows.push((position, ViewRow { id, key, value, doc: None, error: None }));
        Ok(())
    }

    /// Leaves out the rows from this one on. The first row is always kept.
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
        let Reading { total_rows, offset, seq, left_out, next, .. } = self;
        ViewPage { total_rows, offset, seq, rows, left_out, next }
    }
}

impl<T: Transaction> ViewTree<'_, T> {
    /// Reads a page, without documents, of at most this many of the requested keys.
    async fn page(&self, request: &ViewRequest, most_keys: usize) -> Result<Reading> {
        let order = self.order(request);
        let total_rows = self.count_all(request).await?;
        let resume = request.resume.clone().unwrap_or_default();
        let mut page = Reading::new(request, total_rows);
        let mut stopped_at = None;
        for at in resume.key..request.ranges() {
            page.last = if at == resume.key { resume.after.clone() } else { None };
            let window = Window::of(request, request.key_of(at, request.descending).as_ref(), &order);
            if at - resume.key >= most_keys || !self.read_range(window, at, &mut page).await? {
                stopped_at = Some(at);
                break;
            }
        }
        if request.limit == Some(0) {
            page.rows.clear();
            page.at.clear();
        }
        let left = request.limit.map(|limit| limit.saturating_sub(page.rows.len() as u64));
        if let Some(key) = stopped_at
            && left != Some(0)
        {
            let resume = Some(Resume { key, after: page.last.take(), bound: None });
            page.next = Some(ViewRequest { skip: page.skip, limit: left, resume, ..request.clone() });
        }
        // Later pages of an answer need no offset, unless all earlier keys were missing.
        let is_first = request.resume.as_ref().is_none_or(|resume| resume.after.is_none());
        if is_first || request.at_once.is_some() {
            // As in CouchDB, each skipped row counts as one, even if the rows are not neighbours, or there are fewer
            // rows.
            let before = self.offset(request, page.first.as_ref(), total_rows).await?;
            page.offset = before.saturating_add(request.skip).min(total_rows);
        }
        Ok(page)
    }

    /// Reads the rows of a range after the last row of the page, that of the requested key with this number. Returns
    /// whether the page has room for all of them.
    async fn read_range(&self, mut window: Window, at: usize, page: &mut Reading) -> Result<bool> {
        let depth = self.level(0).0.len();
        let (after, descending) = (page.last.clone(), window.descending);
        if let Some(after) = &after {
            window.go_on_after(after);
        }
        let mut rest = Some(window);
        while let Some(window) = rest.take() {
            if page.is_full() || page.skipped >= SKIPPED_AT_ONCE {
                return Ok(false);
            }
            let (found, more) = self.read_rows(&window, page.room()).await?;
            rest = more;
            let found = if descending { self.descending(found, &mut rest).await? } else { found };
            // Some rows are read again: with a cut key, or with one key of one document, descending.
            let is_new =
                |found: &Found| after.as_ref().is_none_or(|after| found.position.compare(after, descending).is_gt());
            for one in found.into_iter().filter(is_new) {
                if page.is_full() {
                    return Ok(false);
                }
                if page.skips(&one.position) {
                    continue;
                }
                let pair = match one.pair {
                    Some(pair) => pair,
                    None => self.pair(&one.row, depth).await?.0,
                };
                page.add(at, one.position, &pair)?;
            }
        }
        Ok(true)
    }

    /// Number of rows before the first one, or before the range if it has no rows. With several keys, it is the range
    /// of the last key.
    async fn offset(&self, request: &ViewRequest, first: Option<&Position>, total: u64) -> Result<u64> {
        let Some(last) = request.ranges().checked_sub(1) else { return Ok(0) };
        let window = Window::of(request, request.key_of(last, request.descending).as_ref(), &self.order(request));
        // Rows of partitions before this one do not count.
        let all = self.all_of(request);
        let Some(first) = first else {
            return Ok(match request.descending {
                true => total.saturating_sub(self.cover(&all.low, Some(&window.high)).await?.count()),
                false => self.cover(&all.low, Some(&window.low)).await?.count(),
            });
        };
        // The rows with the same cut key, or with one key of one document, and how many of them come before the first
        // one.
        let (run, within) = if is_cut(&first.key) {
            let key = cut(first.key.clone());
            let rows = self.run(&all, &key).await?;
            let is_before = |one: &&Found| one.position.compare(first, request.descending).is_lt();
            (at_key(&key), rows.iter().filter(is_before).count() as u64)
        } else {
            (at_id(&first.key, &first.id), first.emit)
        };
        let before = match request.descending {
            true => total.saturating_sub(self.cover(&all.low, Some(&end_of(&run))).await?.count()),
            false => self.cover(&all.low, Some(&run)).await?.count(),
        };
        Ok(before + within)
    }

    /// The range of all rows of a request's partition, or of the view.
    fn all_of(&self, request: &ViewRequest) -> Window {
        let all = ViewRequest { partition: request.partition.clone(), ..ViewRequest::default() };
        Window::of(&all, None, &self.order(request))
    }

    /// Number of rows of the view, or of the request's partition.
    async fn count_all(&self, request: &ViewRequest) -> Result<u64> {
        if request.partition.is_none() {
            return Ok(self.cover(&[], None).await?.count());
        }
        let all = self.all_of(request);
        Ok(self.cover_window(&all, &all.low, &all.high).await?.count())
    }
}
