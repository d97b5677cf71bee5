//! Checks indexes against documents, and documents against indexes.
//!
//! ```text
//!  with each page of documents   the id row names exactly the winner's rows in the indexes,
//!                                and these rows exist with the right values
//!  then all rows of indexes      each belongs to an existing index, and its document's id row names it
//!  then the definitions          each can be read, and is in its design document
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use kv_api::{ConflictRange, Database, KeySelector, KeyValue, RangeRequest, Read, Transaction, TransactionExt};
use mango::Index;

use crate::documents::Documents;
use crate::error::{Result, alone};
use crate::indexes::{Built, Indexed, Source, Touched, values_of};
use crate::keys::{DatabaseKey, Leaf, Subspace};
use crate::limits::DESIGN_PREFIX;
use crate::read::document::Document;
use crate::read::winner::{TreePart, body_of, decode};
use crate::rows::instance::{Instance, Kept};
use crate::write::txids::Outcome;

use super::report::{CheckReport, PAGE_ROWS};

/// A document whose rows in indexes do not agree with its winner.
pub(super) struct BadIndexed {
    pub(super) id: String,
    pub(super) what: String,
}

/// An index to check.
struct Checked {
    kept: Kept,
    index: Arc<Index>,
    built: Built,
}

impl Checked {
    /// Whether a live document must have its row.
    fn has(&self, id: &str) -> bool {
        self.kept.active || self.built.upto.as_deref().is_some_and(|upto| id <= upto)
    }
}

impl<D: Database> Documents<D> {
    /// The documents of a page whose rows in indexes do not agree with their winners.
    pub(super) async fn bad_indexed(
        &self,
        transaction: &D::Transaction,
        instance: &Instance,
        revisions: &[KeyValue],
        docs: &[KeyValue],
        (after, upto): (Option<&str>, Option<&str>),
    ) -> Result<Vec<BadIndexed>> {
        if instance.indexes.kept.is_empty() {
            return Ok(Vec::new());
        }
        let keys = self.keys();
        let indexed = self.after(DatabaseKey::All(Subspace::Indexed), DatabaseKey::Indexed, after, upto);
        let indexed = transaction.get_all(indexed, Read::Snapshot);
        let indexes = self.checked(transaction, instance).await?;
        let mut named: BTreeMap<String, Result<Indexed>> = BTreeMap::new();
        for row in indexed.await? {
            // A key that cannot be read belongs to no document.
            if let Ok(id) = keys.read_indexed(&row.key) {
                named.insert(id, Indexed::read(&row.value));
            }
        }
        let mut winners: BTreeMap<String, Leaf> = BTreeMap::new();
        for row in revisions {
            if let Ok((id, leaf)) = keys.read_revision(&row.key) {
                winners.insert(id, leaf);
            }
        }
        let mut bodies: BTreeMap<&str, Vec<KeyValue>> = BTreeMap::new();
        for row in docs {
            if let Ok((id, leaf, _)) = keys.read_doc(&row.key)
                && let Some((id, winner)) = winners.get_key_value(&id)
                && *winner == leaf
            {
                bodies.entry(id).or_default().push(row.clone());
            }
        }
        let ids: BTreeSet<&String> = winners.keys().chain(named.keys()).collect();
        let mut bad = Vec::new();
        for id in ids {
            let mut expected = Vec::new();
            if let Some(leaf) = winners.get(id)
                && leaf.not_deleted
                && !id.starts_with(DESIGN_PREFIX)
            {
                let rows = bodies.get(id.as_str()).map(Vec::as_slice).unwrap_or_default();
                // A body that cannot be read is reported with the document.
                let Ok(body) = decode(&keys.key(DatabaseKey::Doc(id, leaf)), rows) else { continue };
                let document = Document::new(id.clone(), leaf.rev.clone(), false, body).to_text();
                expected.extend(indexes.iter().map(|one| one.index.row(document.root())));
            } else {
                expected.extend(indexes.iter().map(|_| None));
            }
            let found = match named.get(id) {
                None => Indexed::default(),
                Some(Ok(found)) => found.clone(),
                Some(Err(error)) => {
                    let what = format!("the list of its rows in indexes cannot be read: {}", error.reason());
                    bad.push(BadIndexed { id: id.clone(), what });
                    continue;
                }
            };
            for (one, row) in indexes.iter().zip(expected) {
                if let Some(what) = self.compare(transaction, id, one, row, found.key(one.kept.number)).await? {
                    bad.push(BadIndexed {
                        id: id.clone(),
                        what: format!("in the index {:?}: {what}", one.index.name()),
                    });
                }
            }
        }
        Ok(bad)
    }

    /// The problem of a document's row in an index, if any: it should be `row`, and the id row has `key`.
    async fn compare(
        &self,
        transaction: &D::Transaction,
        id: &str,
        one: &Checked,
        row: Option<mango::IndexRow>,
        key: Option<&[u8]>,
    ) -> Result<Option<String>> {
        let (row, key) = match (row, key) {
            (None, None) => return Ok(None),
            (None, Some(_)) => return Ok(Some("has a row and should have none".to_owned())),
            (Some(_), None) if one.has(id) => return Ok(Some("has no row".to_owned())),
            (Some(_), None) => return Ok(None),
            (Some(row), Some(key)) => (row, key),
        };
        if row.key != key {
            return Ok(Some("its row has the key of another value".to_owned()));
        }
        let place = self.keys().key(DatabaseKey::IndexRow(one.kept.number, key, id));
        Ok(match transaction.get(&place, Read::Snapshot).await? {
            None => Some("its row is missing".to_owned()),
            Some(values) if values != values_of(&row) => Some("its row has other values".to_owned()),
            Some(_) => None,
        })
    }

    /// The indexes, and the progress of those that are being built.
    async fn checked(&self, transaction: &D::Transaction, instance: &Instance) -> Result<Vec<Checked>> {
        // Definitions that cannot be read are reported separately.
        let Ok(definitions) = alone(self.definitions(transaction, instance).await)? else { return Ok(Vec::new()) };
        let mut checked = Vec::with_capacity(definitions.len());
        for (kept, index) in definitions {
            let mut built = Built::default();
            if !kept.active {
                let key = self.keys().key(DatabaseKey::IndexRows(kept.number));
                let row = transaction.get(&key, Read::Snapshot).await?;
                built = alone(Built::read(row.as_deref()))?.unwrap_or_default();
            }
            checked.push(Checked { kept, index, built });
        }
        Ok(checked)
    }

    /// Walks the rows of all indexes. Reports and returns those without a document or an index.
    pub(super) async fn stray_index_rows(&self, report: &mut CheckReport) -> Result<Vec<Bytes>> {
        let mut strays = Vec::new();
        for subspace in [Subspace::Indexes, Subspace::IndexRows, Subspace::Indexed] {
            let (first, beyond) = self.keys().bounds(DatabaseKey::All(subspace));
            let mut begin = KeySelector::first_greater_or_equal(first);
            loop {
                let range = RangeRequest::selectors(begin, KeySelector::first_greater_or_equal(beyond.clone()));
                let range = range.limit(10 * PAGE_ROWS);
                let (bad, last) = self
                    .read(|transaction| {
                        let instance = self.instance(&transaction, Read::Snapshot);
                        let rows = transaction.get_range(&range, Read::Snapshot);
                        async move {
                            let instance = instance.await?;
                            let rows = rows.await?;
                            let last = rows.rows.last().map(|row| row.key.clone()).filter(|_| rows.more);
                            let mut bad = Vec::new();
                            let whose: Vec<_> = rows.rows.iter().map(|row| self.owner(&transaction, row)).collect();
                            for (row, owner) in rows.rows.iter().zip(whose) {
                                let owner = match owner {
                                    Some(owner) => owner.await?,
                                    None => None,
                                };
                                if let Some(what) = self.stray(&instance, row, owner.as_deref())? {
                                    bad.push((row.key.clone(), what));
                                }
                            }
                            Ok((bad, last))
                        }
                    })
                    .await?;
                for (key, (id, what)) in bad {
                    report.add(id.as_deref(), what);
                    strays.push(key);
                }
                let Some(last) = last else { break };
                begin = KeySelector::first_greater_than(last);
            }
        }
        Ok(strays)
    }

    /// Reads the id row that should name a row of an index.
    fn owner(
        &self,
        transaction: &D::Transaction,
        row: &KeyValue,
    ) -> Option<impl Future<Output = kv_api::Result<Option<Bytes>>> + Send + use<D>> {
        let (_, place) = self.keys().read_index_row(&row.key).ok()?;
        let (_, id) = place?;
        Some(transaction.get(&self.keys().key(DatabaseKey::Indexed(&id)), Read::Serializable))
    }

    /// The problem of an index row without a document or an index, and the document that it names.
    fn stray(
        &self,
        instance: &Instance,
        row: &KeyValue,
        owner: Option<&[u8]>,
    ) -> Result<Option<(Option<String>, String)>> {
        let keys = self.keys();
        let kept = |number: u64| instance.indexes.kept.iter().find(|kept| kept.number == number);
        let is_of = |subspace| {
            let (begin, end) = keys.bounds(DatabaseKey::All(subspace));
            row.key.as_ref() >= begin.as_slice() && row.key.as_ref() < end.as_slice()
        };
        if is_of(Subspace::Indexes) {
            let is_kept = instance.indexes.kept.iter().any(|kept| keys.key(DatabaseKey::Index(kept.number)) == row.key);
            let what = format!("a definition without an existing index: {}", row.key.escape_ascii());
            return Ok((!is_kept).then_some((None, what)));
        }
        if is_of(Subspace::Indexed) {
            // The rows that it names are compared with the documents.
            let is_needed = keys.read_indexed(&row.key).is_ok() && !instance.indexes.kept.is_empty();
            let what = format!("an id row of indexes is not needed: {}", row.key.escape_ascii());
            return Ok((!is_needed).then_some((None, what)));
        }
        Ok(match keys.read_index_row(&row.key) {
            Err(error) => Some((None, format!("a row of an index cannot be read: {}", error.reason()))),
            Ok((number, place)) => match (kept(number), place) {
                (None, place) => Some((place.map(|(_, id)| id), format!("a row of the index {number}, which is gone"))),
                (Some(kept), None) if kept.active => {
                    Some((None, format!("the index {number} is active and unfinished")))
                }
                (Some(_), None) => None,
                (Some(_), Some((key, id))) => {
                    // If that row cannot be read, the document is reported.
                    let named = owner.map(Indexed::read).transpose();
                    let is_unnamed = named.is_ok_and(|named| named.is_none_or(|named| named.key(number) != Some(&key)));
                    is_unnamed
                        .then(|| (Some(id), format!("has a row in the index {number} that its id row does not name")))
                }
            },
        })
    }

    /// Checks that each definition can be read and is in its design document. Returns the design documents in which one
    /// is missing, and `None` for a definition that cannot be read.
    pub(super) async fn check_definitions(&self, report: &mut CheckReport) -> Result<Vec<Option<String>>> {
        let wrong = self
            .read(|transaction| async move {
                let instance = self.instance(&transaction, Read::Snapshot).await?;
                let definitions = match alone(self.definitions(&transaction, &instance).await)? {
                    Ok(definitions) => definitions,
                    Err(error) => return Ok(vec![(None, error.reason().into_owned())]),
                };
                let mut wrong = Vec::new();
                for (_, index) in definitions {
                    let winner = TreePart::Winner.read(&transaction, self.keys(), index.design_id()).await;
                    // Damage of the design document is reported with that document.
                    let Ok(winner) = alone(winner)? else { continue };
                    let mut stands = false;
                    if let Some(winner) = winner.first().filter(|winner| winner.leaf.not_deleted) {
                        let body = body_of(&transaction, self.keys(), index.design_id(), &winner.leaf).await;
                        let Ok(Some(body)) = alone(body)? else { continue };
                        stands = Index::all_in(index.design_id(), body.text.root(), self.is_partitioned())
                            .iter()
                            .any(|one| one.is_same(&index));
                    }
                    if !stands {
                        let what = format!("does not define the index {:?}", index.name());
                        wrong.push((Some(index.design_id().to_owned()), what));
                    }
                }
                Ok(wrong)
            })
            .await?;
        for (id, what) in &wrong {
            report.add(id.as_deref(), what.clone());
        }
        Ok(wrong.into_iter().map(|(id, _)| id).collect())
    }

    /// Writes the rows of a document again, or the definitions of a design document.
    pub(super) async fn repair_indexed(&self, id: &str) -> Result<u64> {
        self.shared
            .guard
            .run(|transaction| async move {
                let (instance, winner) = self.instance_and_winner(&transaction, id).await?;
                let live = winner.as_ref().map(|(_, leaf)| leaf).filter(|leaf| leaf.not_deleted);
                let touched = Touched { id, had_rows: true, winner: live.map(|leaf| (leaf, Source::Stored)) };
                let mut indexing = self.index_changes(&transaction, &instance, &[touched], true).await?;
                if let Some((_, error)) = indexing.refused.pop() {
                    return Err(error);
                }
                if let Some((key, _)) = &winner {
                    // Every edit of the document reads this row, so an edit at the same time conflicts.
                    let end = [key.as_ref(), &[0]].concat();
                    transaction.add_conflict_range(key, &end, ConflictRange::Write);
                }
                indexing.write(&transaction);
                Ok(Outcome::Write(0))
            })
            .await
    }

    /// The instance, and the winner of a document with its key in `revisions`, read so that an edit of the document at
    /// the same time makes this transaction conflict.
    pub(super) async fn instance_and_winner(
        &self,
        transaction: &D::Transaction,
        id: &str,
    ) -> Result<(Instance, Option<(Bytes, Leaf)>)> {
        let keys = self.keys();
        let instance = self.instance(transaction, Read::Serializable);
        let last = keys.range(DatabaseKey::RevisionsOf(id)).reverse().limit(1);
        let last = transaction.get_range(&last, Read::Serializable);
        let (instance, mut last) = (instance.await?, last.await?);
        let Some(row) = last.rows.pop() else { return Ok((instance, None)) };
        let (_, leaf) = keys.read_revision(&row.key)?;
        Ok((instance, Some((row.key, leaf))))
    }

    /// Removes a row without a document or an index, if it still has none.
    pub(super) async fn remove_stray(&self, key: &Bytes) -> Result<u64> {
        self.shared
            .guard
            .run(|transaction| async move {
                let instance = self.instance(&transaction, Read::Serializable);
                let value = transaction.get(key, Read::Serializable);
                let instance = instance.await?;
                let Some(value) = value.await? else { return Ok(Outcome::ReadOnly(0)) };
                let row = KeyValue { key: key.clone(), value };
                let owner = match self.owner(&transaction, &row) {
                    Some(owner) => owner.await?,
                    None => None,
                };
                if self.stray(&instance, &row, owner.as_deref())?.is_none() {
                    return Ok(Outcome::ReadOnly(0));
                }
                transaction.clear(key);
                Ok(Outcome::Write(0))
            })
            .await
    }
}
