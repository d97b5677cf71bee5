//! Compares the rows of views with documents, and nodes with rows.

use std::collections::{BTreeMap, BTreeSet};

use kv_api::{Database, KeySelector, RangeBatch, RangeRequest, Read, Transaction, TransactionExt};
use md5::{Digest, Md5};

use super::group::ViewGroup;
use super::prepare::{Prepared, mapped_documents, prepare_some};
use super::rows::{IdRow, Named, Place, parts_of, read_pair};
use super::tree::{Node, TOP, ViewTree, level_of};
use super::{GroupRow, Upto};
use crate::admin::check::CheckReport;
use crate::admin::purge;
use crate::documents::Documents;
use crate::error::{Error, NotFound, Result, damaged};
use crate::feed::change::{ChangesRequest, Since};
use crate::keys::{DatabaseKey, end_of};
use crate::rows::tuple;
use crate::write::txids::Outcome;

/// Number of rows in a page.
const PAGE: usize = 500;

/// Number of rows of a document that are read at the same time.
const AT_ONCE: usize = 100;

/// A number that exceeds the parts of any row.
const MAX_PARTS: u64 = 1_000;

/// Summary of a set, in any order: the number of its elements, the sum of their numbers, and a hash of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    count: u64,
    sum: u64,
    hash: u64,
}

impl Tally {
    fn add(&mut self, thing: &[u8], number: u64) {
        let hash: [u8; 16] = Md5::new().chain_update(thing).chain_update(number.to_be_bytes()).finalize().into();
        let [a, b, c, d, e, f, g, h, ..] = hash;
        self.count += 1;
        self.sum += number;
        self.hash = self.hash.wrapping_add(u64::from_be_bytes([a, b, c, d, e, f, g, h]));
    }

    /// A description of the difference if `found` is another set.
    fn other(&self, found: &Tally, what: &str) -> Option<String> {
        (self != found).then(|| format!("{what}: expected {self:?}, found {found:?}"))
    }
}

/// The rows and errors that id rows name.
#[derive(Default)]
struct Claims {
    /// By view, the places of rows, and whether they have parts.
    rows: BTreeMap<u64, Tally>,
    /// The documents with errors.
    errors: Tally,
    /// The documents that are left out, with their views.
    left_out: Tally,
    wrong: Vec<String>,
}

/// The result of a walk through the rows of a view.
#[derive(Default)]
struct Walked {
    /// The places of rows, and whether they have parts.
    rows: Tally,
    /// The parts that these rows must have.
    parts: Tally,
    expected: [Tally; TOP as usize + 1],
    found: [Tally; TOP as usize + 1],
}

impl<D: Database> Documents<D> {
    /// Brings a group up to date, and compares it with its documents ([`check_built_views`](Self::check_built_views)),
    /// and its rows with each other. Returns the differences. Rows that were updated meanwhile are left out.
    ///
    /// # Errors
    /// Like [`update_views`](Self::update_views).
    pub async fn check_views(&self, group: &ViewGroup) -> Result<Vec<String>> {
        self.update_views(group).await?;
        let mut report = CheckReport::default();
        self.check_built_views(group, &mut report, |_| ()).await?;
        let mut wrong: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        wrong.extend(self.wrong_view_rows(group.signature()).await?);
        Ok(wrong)
    }

    /// Compares the rows of a group with what its functions emit now, and each node with the reduction of the rows
    /// below it. Writes nothing. If the group is behind, documents that changed since are left out. Differences are
    /// added to `report`. Calls `progress` with the number of documents compared.
    ///
    /// A function whose result differs from call to call is reported like a wrong row.
    ///
    /// Returns false, and reports nothing, if the group has no rows, or was updated meanwhile.
    ///
    /// # Errors
    /// 404 if the database is gone; errors of the functions; the store's errors; an error for rows of a later version.
    pub async fn check_built_views(
        &self,
        group: &ViewGroup,
        report: &mut CheckReport,
        progress: impl FnMut(u64),
    ) -> Result<bool> {
        let mut found = CheckReport::default();
        let compare = async {
            let before = self.upto_of(group.signature()).await?;
            self.compare_views(group, before.1, &mut found, progress).await?;
            Ok(self.upto_of(group.signature()).await? == before)
        };
        match compare.await {
            Err(error) if super::upkeep::is_gone(&error) => Ok(false),
            Ok(true) => {
                report.append(found);
                Ok(true)
            }
            other => other,
        }
    }

    /// The same, for a group that does not change meanwhile.
    async fn compare_views(
        &self,
        group: &ViewGroup,
        upto: Upto,
        report: &mut CheckReport,
        mut progress: impl FnMut(u64),
    ) -> Result<()> {
        let (mut emitted, mut documents) = (vec![0u64; group.views().len()], 0);
        let mut request = ChangesRequest { limit: Some(PAGE), ..mapped_documents() };
        let is_behind = loop {
            let mut batch = self.changes(&request).await?;
            let read = batch.rows.len();
            batch.rows.retain(|change| change.seq <= upto.seq);
            let old = batch.rows.len();
            let prepared = prepare_some(group, batch.rows).await?;
            for one in &prepared {
                match damaged(self.differs(group, one).await)? {
                    Ok((what, views)) => {
                        let in_views = one.rows.iter().filter(|(view, ..)| !views.contains(view));
                        in_views.for_each(|(view, ..)| emitted[*view] += 1);
                        if !what.is_empty() {
                            report.add(Some(&one.id), format!("emits {what}, in the views of {:?}", group.name()));
                        }
                    }
                    Err(damage) => {
                        let what =
                            format!("its rows in the views of {:?} cannot be read: {}", group.name(), damage.reason());
                        report.add(Some(&one.id), what);
                    }
                }
            }
            documents += prepared.len() as u64;
            progress(documents);
            let is_cut = prepared.len() < old;
            match prepared.last() {
                Some(last) if is_cut => request.since = Since::Seq(last.seq),
                _ => request.since = Since::Seq(batch.last_seq),
            }
            if !is_cut && (old < read || !batch.more) {
                break old < read;
            }
        };
        // A document that changed or was purged since may have rows.
        let is_behind = is_behind || self.purge_seq().await? != upto.purge_seq;
        for (view, emitted) in emitted.into_iter().enumerate() {
            let name = format!("the view {:?} of {:?}", group.views()[view].name, group.name());
            if !is_behind {
                match damaged(self.rows_of_view(group, view).await)? {
                    Ok(rows) if rows == emitted => {}
                    Ok(rows) => report.add(None, format!("{name} has {rows} rows, but its documents emit {emitted}")),
                    Err(damage) => report.add(None, format!("{name} cannot be counted: {}", damage.reason())),
                }
            }
            for level in 1..=TOP {
                match damaged(self.wrong_nodes_of_view(group, view, level).await)? {
                    Ok(0) => {}
                    Ok(bad) => report.add(None, format!("{name} has {bad} wrong nodes at level {level}")),
                    Err(damage) => report.add(None, format!("{name} cannot be reduced: {}", damage.reason())),
                }
            }
        }
        Ok(())
    }

    /// The number of nodes of a view at a level that are not the reductions of the rows below them.
    async fn wrong_nodes_of_view(&self, group: &ViewGroup, view: usize, level: u64) -> Result<usize> {
        let (mut wrong, mut after): (usize, Option<Vec<u8>>) = (0, None);
        loop {
            let (bad, last) = self
                .read(|tx| {
                    let after = after.as_deref();
                    async move {
                        let (head, _) = self.built_view(&tx, group).await?;
                        let (keys, number) = (self.keys(), head.number);
                        let tree = ViewTree { tx: &tx, keys, group, secret: &head.secret, number, view };
                        tree.wrong_nodes(level, after).await
                    }
                })
                .await?;
            wrong += bad;
            after = last;
            if after.is_none() {
                return Ok(wrong);
            }
        }
    }

    /// The difference between the rows of a document and what the functions emit for it; empty if there is none. Views
    /// that leave the document out, or would do so now, are not compared: limits such as time are not exceeded each
    /// time. These views are returned too.
    async fn differs(&self, group: &ViewGroup, one: &Prepared) -> Result<(&'static str, BTreeSet<usize>)> {
        let keys = self.keys();
        self.read(|tx| async move {
            let (head, _) = self.built_view(&tx, group).await?;
            let first = tx.get(&keys.key(DatabaseKey::ViewIds(head.number, &one.id)), Read::Snapshot).await?;
            let had = match first {
                Some(first) => IdRow::read(&tx, keys, head.number, &one.id, &first).await?.0,
                None => IdRow::default(),
            };
            let left_out = had.left_out.iter().filter_map(|view| usize::try_from(*view).ok());
            let views: BTreeSet<usize> = left_out.chain(one.left_out.keys().copied()).collect();
            if views.is_empty() && had.has_error != one.error.is_some() {
                return Ok(("errors that differ from what is stored", views));
            }
            let rows: Vec<_> = one.rows.iter().filter(|(view, ..)| !views.contains(view)).collect();
            let named: Vec<_> = had.rows.iter().map(|row| (row.view, row.emit, &row.key)).collect();
            let emitted: Vec<_> = rows.iter().map(|(view, place, _)| (*view as u64, place.emit, &place.key)).collect();
            if named != emitted {
                return Ok(("rows that differ from its id row", views));
            }
            for some in rows.chunks(AT_ONCE) {
                let reads: Vec<_> = some
                    .iter()
                    .map(|(view, place, pair)| {
                        let (view, place) = (*view as u64, place.write());
                        let row = DatabaseKey::ViewRow { group: head.number, view, level: 0, place: &place };
                        let read = tx.get(&keys.key(row), Read::Snapshot);
                        (view, place, pair, read)
                    })
                    .collect();
                for (view, place, pair, read) in reads {
                    let Some(value) = read.await? else {
                        return Ok(("a row that is missing", views));
                    };
                    if read_pair(&tx, keys, (head.number, view), &place, &value).await? != *pair {
                        return Ok(("a row that differs from the stored one", views));
                    }
                }
            }
            Ok(("", views))
        })
        .await
    }

    async fn rows_of_view(&self, group: &ViewGroup, view: usize) -> Result<u64> {
        self.read(|tx| async move {
            let (head, _) = self.built_view(&tx, group).await?;
            let tree = ViewTree { tx: &tx, keys: self.keys(), group, secret: &head.secret, number: head.number, view };
            Ok(tree.cover(&[], None).await?.count())
        })
        .await
    }

    async fn upto_of(&self, signature: &[u8; 16]) -> Result<(GroupRow, Upto)> {
        self.read(|tx| async move {
            let head = self.view_head(&tx, signature, Read::Snapshot).await?;
            let head = head.ok_or_else(|| Error::not_found(NotFound::Index))?;
            let upto = self.view_upto(&tx, head.number, Read::Snapshot).await?;
            Ok((head, upto))
        })
        .await
    }

    /// Checks the rows of a group without its functions, and returns the problems. Each row, each error and each row of
    /// a document that is left out must be named by an id row of an existing document. Each part must belong to a row.
    /// The nodes must follow from the rows, with the numbers of rows below them. Returns nothing if the group was
    /// updated meanwhile.
    pub(crate) async fn wrong_view_rows(&self, signature: &[u8; 16]) -> Result<Vec<String>> {
        let before = match self.upto_of(signature).await {
            Err(error) if super::upkeep::is_gone(&error) => return Ok(Vec::new()),
            before => before?,
        };
        let (number, secret) = (before.0.number, before.0.secret);
        let Claims { rows: named, errors, left_out, mut wrong } = self.claims(number, before.1.purge_seq).await?;
        let views = self.views_with_rows(number).await?;
        for view in named.keys().copied().chain(views).collect::<BTreeSet<u64>>() {
            let walked = self.walk_view(number, view, &secret).await?;
            let named = named.get(&view).copied().unwrap_or_default();
            wrong.extend(named.other(&walked.rows, &format!("rows of view {view}, which id rows name")));
            for level in 1..=TOP as usize {
                let what = format!("nodes of view {view} at level {level}, which its rows make");
                wrong.extend(walked.expected[level].other(&walked.found[level], &what));
            }
            let place: &[u8] = &[];
            let parts = self.tally_keys(DatabaseKey::ViewLong { group: number, view, place }).await?;
            wrong.extend(walked.parts.other(&parts, &format!("parts of rows of view {view}")));
        }
        let noted = self.tally_keys(DatabaseKey::ViewErrors(number)).await?;
        wrong.extend(errors.other(&noted, "errors of documents, which id rows name"));
        let noted = self.tally_keys(DatabaseKey::ViewLeftOuts(number)).await?;
        wrong.extend(left_out.other(&noted, "documents that views leave out, which id rows name"));
        if noted.count != before.1.left_out {
            let (counted, rows) = (before.1.left_out, noted.count);
            wrong.push(format!("documents that views leave out: {counted} are counted, but there are {rows} rows"));
        }
        match self.upto_of(signature).await {
            Ok(after) if after == before => Ok(wrong),
            Err(error) if !super::upkeep::is_gone(&error) => Err(error),
            _ => Ok(Vec::new()),
        }
    }

    /// The numbers of groups that have rows but no head. Nothing else would remove them.
    pub(crate) async fn headless_view_groups(&self) -> Result<Vec<u64>> {
        let keys = self.keys();
        self.read(|tx| async move {
            let known = self.view_group_numbers(&tx).await?;
            let (mut next, end) = (keys.bounds(DatabaseKey::ViewGroups).1, keys.bounds(DatabaseKey::NextViewGroup).1);
            let mut headless = Vec::new();
            while let Some(row) =
                tx.get_range(&RangeRequest::keys(next, end.clone()).limit(1), Read::Snapshot).await?.rows.pop()
            {
                let group = keys.read_group_of_row(&row.key)?;
                if !known.contains(&group) {
                    headless.push(group);
                }
                next = keys.bounds(DatabaseKey::ViewRows(group)).1;
            }
            Ok(headless)
        })
        .await
    }

    /// Removes the rows of such a group.
    pub(crate) async fn remove_headless_view_group(&self, number: u64) -> Result<()> {
        let work = |tx: D::Transaction| async move {
            let instance = self.instance(&tx, Read::Serializable);
            let known = self.view_group_numbers(&tx);
            instance.await?;
            if known.await?.contains(&number) {
                return Ok(Outcome::ReadOnly(()));
            }
            let (begin, end) = self.keys().bounds(DatabaseKey::ViewRows(number));
            tx.clear_range(&begin, &end);
            Ok(Outcome::Write(()))
        };
        self.shared.guard.run(work).await
    }

    /// The numbers of all groups that have a head.
    async fn view_group_numbers(&self, tx: &D::Transaction) -> Result<BTreeSet<u64>> {
        let (begin, end) = self.keys().bounds(DatabaseKey::ViewGroups);
        let heads = tx.get_all(RangeRequest::keys(begin, end), Read::Serializable).await?;
        heads.iter().map(|row| Ok(GroupRow::read(&row.value)?.number)).collect()
    }

    /// Summary of the keys below this one, without its bytes.
    async fn tally_keys(&self, below: DatabaseKey<'_>) -> Result<Tally> {
        let (begin, end) = self.keys().bounds(below);
        let mut tally = Tally::default();
        let mut at = KeySelector::first_greater_or_equal(begin.clone());
        loop {
            let batch = self.page_of_rows(at, &end).await?;
            for row in &batch.rows {
                tally.add(&row.key[begin.len()..], 0);
            }
            match batch.rows.last().filter(|_| batch.more) {
                Some(last) => at = KeySelector::first_greater_than(last.key.clone()),
                None => return Ok(tally),
            }
        }
    }

    async fn page_of_rows(&self, at: KeySelector, end: &[u8]) -> Result<RangeBatch> {
        let range = RangeRequest::selectors(at, KeySelector::first_greater_or_equal(end.to_vec())).limit(PAGE);
        self.read(|tx| {
            let batch = tx.get_range(&range, Read::Snapshot);
            async move { Ok(batch.await?) }
        })
        .await
    }

    /// The numbers of the views of a group that have rows, nodes or parts.
    async fn views_with_rows(&self, group: u64) -> Result<BTreeSet<u64>> {
        let keys = self.keys();
        let (mut next, end) =
            (keys.bounds(DatabaseKey::ViewTree(group)).0, keys.bounds(DatabaseKey::ViewErrors(group)).0);
        let mut views = BTreeSet::new();
        loop {
            let range = RangeRequest::keys(next, end.clone()).limit(1);
            let found = self.read(|tx| {
                let first = tx.get_range(&range, Read::Snapshot);
                async move { Ok(first.await?.rows.pop()) }
            });
            let Some(row) = found.await? else { return Ok(views) };
            let (view, length) = keys.read_view_of_row(&row.key)?;
            views.insert(view);
            next = end_of(&row.key[..length]);
        }
    }

    /// Summary of the rows that the id rows of a group name. The group handled the purges up to `purge_seq`; a document
    /// purged later still has rows.
    async fn claims(&self, group: u64, purge_seq: u64) -> Result<Claims> {
        let keys = self.keys();
        let (begin, end) = keys.bounds(DatabaseKey::ViewAllIds(group));
        let mut claims = Claims::default();
        let mut at = KeySelector::first_greater_or_equal(begin);
        loop {
            let range = RangeRequest::selectors(at, KeySelector::first_greater_or_equal(end.clone())).limit(PAGE);
            let (rows, gone, more, last) = self
                .read(|tx| {
                    let range = range.clone();
                    async move {
                        let purged = tx.get_range(&purge::newest(keys), Read::Snapshot);
                        let batch = tx.get_range(&range, Read::Snapshot).await?;
                        let mut rows = Vec::new();
                        for row in &batch.rows {
                            // Further parts are read with the first.
                            if let Some(id) = keys.read_view_ids(&row.key)? {
                                let ids = IdRow::read(&tx, keys, group, &id, &row.value).await;
                                rows.push((id, damaged(ids)?));
                            }
                        }
                        let gone = match purge::seq_of(keys, &purged.await?.rows)? == purge_seq {
                            true => self.purged(&tx, rows.iter().map(|(id, _)| id.clone()).collect()).await?,
                            false => BTreeSet::new(),
                        };
                        Ok((rows, gone, batch.more, batch.rows.last().map(|row| row.key.clone())))
                    }
                })
                .await?;
            claims.wrong.extend(gone.iter().map(|id| format!("{id:?} has an id row but does not exist")));
            for (id, row) in rows {
                match row {
                    Ok((row, _)) => claims.add(&id, row),
                    Err(error) => claims.wrong.push(format!("the id row of {id:?} cannot be read: {}", error.reason())),
                }
            }
            match last.filter(|_| more) {
                Some(last) => at = KeySelector::first_greater_than(last),
                None => return Ok(claims),
            }
        }
    }

    async fn walk_view(&self, group: u64, view: u64, secret: &[u8; 16]) -> Result<Walked> {
        let mut walked = Walked::default();
        // The open node of each level.
        let mut open: [(Vec<u8>, u64); TOP as usize + 1] = Default::default();
        for level in 0..=TOP {
            let (begin, end) = self.keys().bounds(DatabaseKey::ViewRow { group, view, level, place: &[] });
            let mut at = KeySelector::first_greater_or_equal(begin.clone());
            loop {
                let batch = self.page_of_rows(at, &end).await?;
                for row in &batch.rows {
                    let place = &row.key[begin.len()..];
                    if level > 0 {
                        walked.found[level as usize].add(place, Node::read(&row.value)?.count);
                        continue;
                    }
                    Place::read(place)?;
                    // An unreadable row does not count as the row named by an id row.
                    let parts = damaged(parts_of(&row.value))?.ok();
                    walked.rows.add(place, parts.map_or(2, |parts| u64::from(parts > 0)));
                    for part in 0..parts.unwrap_or(0).min(MAX_PARTS) {
                        let mut key = place.to_vec();
                        tuple::append_u64(&mut key, part);
                        walked.parts.add(&key, 0);
                    }
                    let highest = level_of(secret, place) as usize;
                    for (of, (node, rows)) in open.iter_mut().enumerate().skip(1) {
                        if of <= highest {
                            if *rows > 0 {
                                walked.expected[of].add(node, *rows);
                            }
                            (*node, *rows) = (place.to_vec(), 0);
                        }
                        *rows += 1;
                    }
                }
                match batch.rows.last().filter(|_| batch.more) {
                    Some(last) => at = KeySelector::first_greater_than(last.key.clone()),
                    None => break,
                }
            }
        }
        for (level, (node, rows)) in open.iter().enumerate().skip(1).filter(|(_, (_, rows))| *rows > 0) {
            walked.expected[level].add(node, *rows);
        }
        Ok(walked)
    }
}

impl Claims {
    fn add(&mut self, id: &str, row: IdRow) {
        for Named { view, emit, has_parts, key } in row.rows {
            let place = Place { key, id: id.to_owned(), emit }.write();
            self.rows.entry(view).or_default().add(&place, u64::from(has_parts));
        }
        if row.has_error {
            let mut key = Vec::new();
            tuple::append_str(&mut key, id);
            self.errors.add(&key, 0);
            for view in row.left_out {
                let mut place = Vec::new();
                tuple::append_u64(&mut place, view);
                place.extend_from_slice(&key);
                self.left_out.add(&place, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateOptions, ErrorKind, Layer, LayerOptions};

    #[tokio::test]
    async fn nothing_is_removed_of_a_database_that_is_gone() {
        let layer = Layer::open(engine_mem::MemDatabase::new(), LayerOptions::default()).await.unwrap();
        let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
        documents.remove_headless_view_group(1).await.unwrap();
        layer.delete_database("db").await.unwrap();
        let error = documents.remove_headless_view_group(1).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NotFound(NotFound::Database)), "{error}");
    }
}
