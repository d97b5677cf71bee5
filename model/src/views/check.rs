//! Compares the rows of views with documents, and nodes with rows.

use std::collections::BTreeMap;

use kv_api::{Database, KeySelector, RangeRequest, Read, Transaction};
use md5::{Digest, Md5};

use super::group::{FunctionError, ViewGroup};
use super::rows::{IdRow, Place, read_pair};
use super::tree::{Node, TOP, Tree, level_of};
use super::update::{EMITTED_TOO_MUCH, Prepared, prepare};
use super::{Head, Upto};
use crate::changes::{ChangesRequest, Since};
use crate::documents::Documents;
use crate::error::{Error, NotFound, Result};
use crate::keys::DatabaseKey;

/// Number of rows in a page.
const PAGE: usize = 500;

/// Number of rows of a document that are read at the same time.
const AT_ONCE: usize = 100;

/// The nodes that a level must have, or has: their number and a hash of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Nodes {
    count: u64,
    rows: u64,
    hash: u64,
}

impl Nodes {
    fn add(&mut self, place: &[u8], rows: u64) {
        let hash: [u8; 16] = Md5::new().chain_update(place).chain_update(rows.to_be_bytes()).finalize().into();
        let [a, b, c, d, e, f, g, h, ..] = hash;
        self.count += 1;
        self.rows += rows;
        self.hash ^= u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    }
}

/// What a walk through the rows of a view found.
#[derive(Default)]
struct Walked {
    rows: u64,
    expected: [Nodes; TOP as usize + 1],
    found: [Nodes; TOP as usize + 1],
}

impl<D: Database> Documents<D> {
    /// Compares a group with its documents: its rows must be those that its functions emit now, and each node the
    /// reduction of the rows below it. Brings the group up to date first. Returns what is wrong; nothing if documents
    /// or the group changed meanwhile.
    ///
    /// # Errors
    /// Like [`update_views`](Self::update_views).
    pub async fn check_views(&self, group: &ViewGroup) -> Result<Vec<String>> {
        self.update_views(group).await?;
        let before = (self.upto_of(group.signature()).await?, self.last_seq().await?);
        let (mut wrong, mut emitted) = (Vec::new(), vec![0u64; group.views().len()]);
        let mut request = ChangesRequest { include_docs: true, limit: Some(PAGE), ..ChangesRequest::default() };
        loop {
            let batch = self.changes(&request).await?;
            for one in prepare(group, batch.rows).await? {
                let Some(what) = self.differs(group, &one).await? else { continue };
                one.rows.iter().for_each(|(view, ..)| emitted[*view] += 1);
                wrong.extend((!what.is_empty()).then(|| format!("{:?} emits {what}", one.id)));
            }
            request.since = Since::Seq(batch.last_seq);
            if !batch.more {
                break;
            }
        }
        for (view, emitted) in emitted.into_iter().enumerate() {
            let name = &group.views()[view].name;
            let rows = self.rows_of_view(group, view).await?;
            if rows != emitted {
                wrong.push(format!("the view {name:?} has {rows} rows, its documents emit {emitted}"));
            }
            for level in 1..=TOP {
                let mut after: Option<Vec<u8>> = None;
                loop {
                    let (bad, last) = self
                        .read(|tx| {
                            let after = after.as_deref();
                            async move {
                                let (head, _) = self.built_view(&tx, group).await?;
                                let (keys, number) = (self.keys(), head.number);
                                let tree = Tree { tx: &tx, keys, group, secret: &head.secret, number, view };
                                tree.wrong_nodes(level, after).await
                            }
                        })
                        .await?;
                    if bad > 0 {
                        wrong.push(format!("the view {name:?} has {bad} wrong nodes at level {level}"));
                    }
                    after = last;
                    if after.is_none() {
                        break;
                    }
                }
            }
        }
        wrong.extend(self.wrong_view_rows(group.signature()).await?);
        let after = (self.upto_of(group.signature()).await?, self.last_seq().await?);
        Ok(if before == after { wrong } else { Vec::new() })
    }

    /// How the rows of a document differ from what it emits; empty if they do not, and `None` if the document has no rows
    /// because they do not fit into a transaction.
    async fn differs(&self, group: &ViewGroup, one: &Prepared) -> Result<Option<&'static str>> {
        let keys = self.keys();
        self.read(|tx| async move {
            let (head, _) = self.built_view(&tx, group).await?;
            let first = tx.get(&keys.key(DatabaseKey::ViewIds(head.number, &one.id)), Read::Snapshot).await?;
            let had = match first {
                Some(first) => IdRow::read(&tx, keys, head.number, &one.id, &first).await?.0,
                None => IdRow::default(),
            };
            if had.has_error && had.rows.is_empty() {
                let error = tx.get(&keys.key(DatabaseKey::ViewError(head.number, &one.id)), Read::Snapshot).await?;
                let error = error.map(FunctionError::of_row).transpose()?;
                if error.is_some_and(|error| error.error == EMITTED_TOO_MUCH) {
                    return Ok(None);
                }
            }
            if had.has_error != one.error.is_some() {
                return Ok(Some("another error than noted"));
            }
            let named: Vec<_> = had.rows.iter().map(|row| (row.view, row.emit, &row.key)).collect();
            let emitted: Vec<_> =
                one.rows.iter().map(|(view, place, _)| (*view as u64, place.emit, &place.key)).collect();
            if named != emitted {
                return Ok(Some("other rows than its id row names"));
            }
            for some in one.rows.chunks(AT_ONCE) {
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
                        return Ok(Some("a row that is missing"));
                    };
                    if read_pair(&tx, keys, (head.number, view), &place, &value).await? != *pair {
                        return Ok(Some("another row than there is"));
                    }
                }
            }
            Ok(Some(""))
        })
        .await
    }

    async fn rows_of_view(&self, group: &ViewGroup, view: usize) -> Result<u64> {
        self.read(|tx| async move {
            let (head, _) = self.built_view(&tx, group).await?;
            let tree = Tree { tx: &tx, keys: self.keys(), group, secret: &head.secret, number: head.number, view };
            Ok(tree.cover(&[], None).await?.count())
        })
        .await
    }

    async fn upto_of(&self, signature: &[u8; 16]) -> Result<(Head, Upto)> {
        self.read(|tx| async move {
            let head = self.view_head(&tx, signature, Read::Snapshot).await?;
            let head = head.ok_or_else(|| Error::not_found(NotFound::Index))?;
            let upto = self.view_upto(&tx, head.number, Read::Snapshot).await?;
            Ok((head, upto))
        })
        .await
    }

    /// What is wrong with the rows of a group, as far as that is known without its functions: each row is named by an id
    /// row, and the nodes are those that the rows make, with the numbers of rows below them. Nothing if the group was
    /// updated meanwhile.
    pub(crate) async fn wrong_view_rows(&self, signature: &[u8; 16]) -> Result<Vec<String>> {
        let before = match self.upto_of(signature).await {
            Err(error) if super::upkeep::is_gone(&error) => return Ok(Vec::new()),
            before => before?,
        };
        let (number, secret) = (before.0.number, before.0.secret);
        let (named, mut wrong) = self.named_rows(number).await?;
        let mut views: BTreeMap<u64, Walked> = BTreeMap::new();
        let last = self.last_view(number).await?;
        for view in 0..=last.unwrap_or(0).max(named.keys().last().copied().unwrap_or(0)) {
            views.insert(view, self.walk_view(number, view, &secret).await?);
        }
        for (view, walked) in views {
            let named = named.get(&view).copied().unwrap_or(0);
            if walked.rows != named {
                wrong.push(format!("view {view} has {} rows, and id rows name {named}", walked.rows));
            }
            for level in 1..=TOP as usize {
                let (expected, found) = (walked.expected[level], walked.found[level]);
                if expected != found {
                    wrong.push(format!("view {view} has {found:?} at level {level}, and its rows make {expected:?}"));
                }
            }
        }
        match self.upto_of(signature).await {
            Ok(after) if after == before => Ok(wrong),
            Err(error) if !super::upkeep::is_gone(&error) => Err(error),
            _ => Ok(Vec::new()),
        }
    }

    /// The greatest number of a view with rows.
    async fn last_view(&self, group: u64) -> Result<Option<u64>> {
        let view = |view| self.keys().bounds(DatabaseKey::ViewRow { group, view, level: 0, place: &[] }).0;
        let (mut last, mut next) = (None, 0);
        loop {
            let range = RangeRequest::keys(view(next), self.keys().bounds(DatabaseKey::ViewTree(group)).1).limit(1);
            let found = self.read(|tx| {
                let first = tx.get_range(&range, Read::Snapshot);
                async move { Ok(first.await?.rows.pop()) }
            });
            let Some(row) = found.await? else { return Ok(last) };
            let number = self.keys().read_view_of_row(&row.key)?;
            (last, next) = (Some(number), number + 1);
        }
    }

    /// The number of rows that id rows name, by view.
    async fn named_rows(&self, group: u64) -> Result<(BTreeMap<u64, u64>, Vec<String>)> {
        let (begin, end) = self.keys().bounds(DatabaseKey::ViewAllIds(group));
        let (mut named, mut wrong) = (BTreeMap::new(), Vec::new());
        let mut at = KeySelector::first_greater_or_equal(begin);
        loop {
            let range = RangeRequest::selectors(at, KeySelector::first_greater_or_equal(end.clone())).limit(PAGE);
            let (rows, more, last) = self
                .read(|tx| {
                    let range = range.clone();
                    async move {
                        let batch = tx.get_range(&range, Read::Snapshot).await?;
                        let mut rows = Vec::new();
                        for row in &batch.rows {
                            // Further parts are read with the first.
                            if let Some(id) = self.keys().read_view_ids(&row.key)? {
                                let ids = IdRow::read(&tx, self.keys(), group, &id, &row.value).await;
                                rows.push((id, crate::error::alone(ids)?));
                            }
                        }
                        Ok((rows, batch.more, batch.rows.last().map(|row| row.key.clone())))
                    }
                })
                .await?;
            for (id, row) in rows {
                match row {
                    Ok((row, _)) => row.rows.iter().for_each(|row| *named.entry(row.view).or_default() += 1),
                    Err(error) => wrong.push(format!("the id row of {id:?} cannot be read: {}", error.reason())),
                }
            }
            match last.filter(|_| more) {
                Some(last) => at = KeySelector::first_greater_than(last),
                None => return Ok((named, wrong)),
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
                let range = RangeRequest::selectors(at, KeySelector::first_greater_or_equal(end.clone())).limit(PAGE);
                let batch = self
                    .read(|tx| {
                        let batch = tx.get_range(&range, Read::Snapshot);
                        async move { Ok(batch.await?) }
                    })
                    .await?;
                for row in &batch.rows {
                    let place = &row.key[begin.len()..];
                    if level > 0 {
                        walked.found[level as usize].add(place, Node::read(&row.value)?.count);
                        continue;
                    }
                    Place::read(place)?;
                    walked.rows += 1;
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
