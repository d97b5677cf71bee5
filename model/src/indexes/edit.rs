//! Changes indexes in a transaction that changes winners, and the list of design documents that
//! [validate](crate::write::validation) edits.
//!
//! ```text
//!  documents ─┬─ design documents ─► definitions: indexes kept, removed and added ─► instance, definitions
//!             └─ others ─► their rows so far, from their id rows
//!                          the rows of their new winners ─────────────────────────► rows, id rows
//! ```
//!
//! The new winner is usually the leaf that the edit adds. If it is another one, after a deletion for example, its body
//! is read. An index added by this transaction gets no rows from it: it is built later, from committed documents.
//!
//! Index rows are written without conflict ranges: every transaction that writes those of a document has read or
//! written its winner's row with one. The exception is a builder, which writes index rows without a new winner. While
//! an index is being built, writers read the id row with a conflict range, and the builder writes it with one.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use json::JsonText;
use kv_api::{Database, Read, Transaction};
use mango::Index;

use crate::attachments::Attachment;
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, Result, alone};
use crate::keys::{DatabaseKey, DatabaseKeys, Leaf, Subspace};
use crate::limits::DESIGN_PREFIX;
use crate::read::batch::BODIES_AT_ONCE;
use crate::read::document::{Body, Document};
use crate::read::winner::{body_of, body_or_empty};
use crate::rows::instance::{Indexes, Instance, Kept, Validation};
use crate::rows::revid::RevId;
use crate::write::unguarded::Unguarded;
use crate::write::validation::{MAX_VALIDATING, MAX_VALIDATING_BYTES, VALIDATE};

use super::{Indexed, MAX_INDEXES, definition_row, values_of};

/// A document whose winner changes.
pub(crate) struct Touched<'d> {
    pub(crate) id: &'d str,
    /// Whether it may have index rows.
    pub(crate) had_rows: bool,
    /// Its new winner, if that is live.
    pub(crate) winner: Option<(&'d Leaf, Source<'d>)>,
}

/// The source of a winner's body.
pub(crate) enum Source<'d> {
    /// The edit contains it.
    Brought(&'d JsonText, Option<Arc<[Attachment]>>),
    /// It is in the store.
    Stored,
}

/// The changes of the indexes in a transaction.
#[derive(Default)]
pub(crate) struct Indexing {
    /// Indexes of those touched documents that cannot be indexed because their rows are damaged, with the errors.
    pub(crate) refused: Vec<(usize, Error)>,
    cleared_ranges: Vec<(Vec<u8>, Vec<u8>)>,
    cleared: Vec<Vec<u8>>,
    set: Vec<(Vec<u8>, Bytes)>,
    /// Key and row of the instance, if the set of indexes changes, or that of design documents that validate edits.
    instance: Option<(Vec<u8>, Vec<u8>)>,
}

impl Indexing {
    pub(crate) fn write<T: Transaction>(mut self, transaction: &T) {
        if let Some((key, row)) = self.instance {
            transaction.set(key, row);
        }
        for (begin, end) in self.cleared_ranges {
            transaction.clear_range(&begin, &end);
        }
        for key in self.cleared {
            transaction.clear_unguarded(&key);
        }
        // Sorted by key: a transaction takes sorted rows fastest.
        self.set.sort_unstable();
        for (key, value) in self.set {
            transaction.set_unguarded(key, value);
        }
    }

    /// Replaces the rows of a document by `rows`; `had` are the current ones. `stays` tells whether an index remains.
    pub(super) fn put(
        &mut self,
        keys: &DatabaseKeys,
        id: &str,
        had: Option<&Indexed>,
        rows: Vec<(u64, mango::IndexRow)>,
        stays: impl Fn(u64) -> bool,
    ) {
        for (index, key) in had.into_iter().flat_map(|had| &had.0) {
            // Rows of dropped indexes are cleared with the index, so they are left out here.
            if stays(*index) && rows.iter().all(|(number, row)| number != index || row.key != *key) {
                self.cleared.push(keys.key(DatabaseKey::IndexRow(*index, key, id)));
            }
        }
        for (index, row) in &rows {
            self.set.push((keys.key(DatabaseKey::IndexRow(*index, &row.key, id)), values_of(row)));
        }
        let has = Indexed(rows.into_iter().map(|(index, row)| (index, row.key)).collect());
        let key = keys.key(DatabaseKey::Indexed(id));
        if !has.0.is_empty() {
            self.set.push((key, has.write().into()));
        } else if had.is_some() {
            self.cleared.push(key);
        }
    }
}

/// The set of indexes while a transaction changes it.
struct Changing {
    kept: Vec<(Kept, Arc<Index>)>,
    gone: Vec<u64>,
    come: Vec<(u64, Vec<u8>)>,
    next: u64,
    validation: Validation,
}

impl Changing {
    fn new(instance: &Instance, kept: Vec<(Kept, Arc<Index>)>, gone: Vec<u64>) -> Changing {
        let (next, validation) = (instance.indexes.next, instance.validation.clone());
        Changing { kept, gone, come: Vec::new(), next, validation }
    }

    fn remove(&mut self, number: u64) {
        self.kept.retain(|(kept, _)| kept.number != number);
        self.come.retain(|(come, _)| *come != number);
        self.gone.push(number);
    }

    fn add(&mut self, index: Arc<Index>) {
        let row = definition_row(&index).filter(|_| self.kept.len() < MAX_INDEXES);
        if let Some(row) = row {
            self.kept.push((Kept { number: self.next, active: false }, index));
            self.come.push((self.next, row));
            self.next += 1;
        }
    }

    /// Sets whether a design document validates edits. Refuses one too many.
    fn validate(&mut self, design_id: &str, rev: Option<&RevId>) -> Result<()> {
        if rev.is_some() && !self.validation.has(design_id) {
            let listed = &self.validation.designs;
            let bytes: usize = listed.iter().map(|(id, _)| id.len()).sum();
            if listed.len() >= MAX_VALIDATING {
                let reason = format!("At most {MAX_VALIDATING} design documents of a database may have {VALIDATE}.");
                return Err(Error::bad_request(reason));
            }
            if bytes + design_id.len() > MAX_VALIDATING_BYTES {
                let most = MAX_VALIDATING_BYTES;
                let reason =
                    format!("The ids of design documents with {VALIDATE} may have at most {most} bytes together.");
                return Err(Error::bad_request(reason));
            }
        }
        self.validation.set(design_id, rev);
        Ok(())
    }

    /// Sets the indexes of a design document.
    fn define(&mut self, design_id: &str, indexes: Vec<Index>) {
        let mut new: Vec<Index> = indexes;
        let mut gone = Vec::new();
        for (kept, index) in self.kept.iter().filter(|(_, index)| index.design_id() == design_id) {
            match new.iter().position(|new| new.is_same(index)) {
                Some(at) => drop(new.remove(at)),
                None => gone.push(kept.number),
            }
        }
        gone.into_iter().for_each(|number| self.remove(number));
        new.into_iter().for_each(|index| self.add(Arc::new(index)));
    }
}

impl<D: Database> Documents<D> {
    /// Computes the changes of indexes if the winners of these documents change. With `mends`, rows that cannot be read
    /// are replaced. The job that builds the indexes is written at once.
    pub(crate) async fn index_changes(
        &self,
        transaction: &D::Transaction,
        instance: &Instance,
        touched: &[Touched<'_>],
        mends: bool,
    ) -> Result<Indexing> {
        let keys = self.keys();
        let mut indexing = Indexing::default();
        let (mut definitions, mut damaged) = (Vec::new(), Vec::new());
        for (kept, definition) in self.each_definition(transaction, instance).await? {
            match definition {
                Ok(definition) => definitions.push((kept, definition)),
                Err(damage) if mends && !matches!(damage.kind(), ErrorKind::UnknownFormat(_)) => {
                    damaged.push(kept.number)
                }
                Err(damage) => return Err(damage),
            }
        }
        let mut changing = Changing::new(instance, definitions, damaged);
        for (at, design) in touched.iter().enumerate().filter(|(_, one)| one.id.starts_with(DESIGN_PREFIX)) {
            let mut validates = None;
            let indexes = match &design.winner {
                None => Vec::new(),
                Some((leaf, source)) => {
                    let stored = source.read(transaction, keys, design.id, leaf);
                    match alone(source.text(design.id, leaf, stored).await)? {
                        Ok(text) => {
                            validates = text.get(VALIDATE).map(|_| &leaf.rev);
                            Index::all_in(design.id, text.root(), instance.partitioned)
                        }
                        Err(damage) => {
                            indexing.refused.push((at, damage.of_document(design.id)));
                            continue;
                        }
                    }
                }
            };
            if let Err(refused) = changing.validate(design.id, validates) {
                indexing.refused.push((at, refused));
                continue;
            }
            changing.define(design.id, indexes);
        }
        // Indexes that this transaction adds are built later.
        let is_new = |number: u64| changing.come.iter().any(|(come, _)| *come == number);
        let stay: Vec<&(Kept, Arc<Index>)> = changing.kept.iter().filter(|(kept, _)| !is_new(kept.number)).collect();
        if !stay.is_empty() {
            self.index_rows_of(transaction, touched, &stay, mends, &mut indexing).await?;
        }
        if let Some(indexes) = changing.write(keys, instance, &mut indexing) {
            self.shared.plan_build(transaction, self.name(), &instance.indexes, &indexes).await?;
        }
        Ok(indexing)
    }

    async fn index_rows_of(
        &self,
        transaction: &D::Transaction,
        touched: &[Touched<'_>],
        stay: &[&(Kept, Arc<Index>)],
        mends: bool,
        indexing: &mut Indexing,
    ) -> Result<()> {
        let keys = self.keys();
        // If an index is being built, its builder writes the same row.
        let read = if stay.iter().all(|(kept, _)| kept.active) { Read::Snapshot } else { Read::Serializable };
        let documents: Vec<_> =
            touched.iter().enumerate().filter(|(_, one)| !one.id.starts_with(DESIGN_PREFIX)).collect();
        for some in documents.chunks(BODIES_AT_ONCE) {
            let reads: Vec<_> = some
                .iter()
                .map(|(_, one)| {
                    let had = one.had_rows.then(|| transaction.get(&keys.key(DatabaseKey::Indexed(one.id)), read));
                    let winner = one.winner.as_ref();
                    (had, winner.and_then(|(leaf, source)| source.read(transaction, keys, one.id, leaf)))
                })
                .collect();
            for ((at, one), (had, stored)) in some.iter().zip(reads) {
                let had = match had {
                    Some(had) => had.await?.map(|row| Indexed::read(&row)),
                    None => None,
                };
                let had = match had.transpose() {
                    Ok(had) => had,
                    Err(damage) if mends && !matches!(damage.kind(), ErrorKind::UnknownFormat(_)) => {
                        // A repair removes the rows that this id row named, as rows without a document.
                        Some(Indexed::default())
                    }
                    Err(damage) => {
                        indexing.refused.push((*at, damage.of_document(one.id)));
                        continue;
                    }
                };
                let mut rows = Vec::new();
                if let Some((leaf, source)) = &one.winner {
                    match alone(source.text(one.id, leaf, stored).await)? {
                        Ok(text) => rows.extend(rows_of(&text, stay.iter().copied())),
                        Err(damage) => {
                            indexing.refused.push((*at, damage.of_document(one.id)));
                            continue;
                        }
                    }
                }
                let stays = |number: u64| stay.iter().any(|(kept, _)| kept.number == number);
                indexing.put(keys, one.id, had.as_ref(), rows, stays);
            }
        }
        Ok(())
    }
}

impl Changing {
    /// The indexes afterwards, if they changed.
    fn write(self, keys: &DatabaseKeys, instance: &Instance, indexing: &mut Indexing) -> Option<Indexes> {
        let validation = self.validation;
        if self.gone.is_empty() && self.come.is_empty() {
            if validation != instance.validation {
                let changed = Instance { validation, ..instance.clone() };
                indexing.instance = Some((keys.key(DatabaseKey::Instance), changed.write()));
            }
            return None;
        }
        for number in self.gone {
            for key in [DatabaseKey::Index(number), DatabaseKey::IndexRows(number)] {
                indexing.cleared_ranges.push(keys.bounds(key));
            }
        }
        if self.kept.is_empty() {
            // Without indexes, no reader needs the id rows.
            indexing.cleared_ranges.push(keys.bounds(DatabaseKey::All(Subspace::Indexed)));
        }
        for (number, row) in self.come {
            indexing.set.push((keys.key(DatabaseKey::Index(number)), row.into()));
        }
        let kept = self.kept.into_iter().map(|(kept, _)| kept).collect();
        let indexes = Indexes { next: self.next, kept };
        let changed = Instance { indexes: indexes.clone(), validation, ..instance.clone() };
        indexing.instance = Some((keys.key(DatabaseKey::Instance), changed.write()));
        Some(indexes)
    }
}

impl Source<'_> {
    /// Reads the body if the edit does not have it. The call issues the first read.
    fn read<T: Transaction>(
        &self,
        transaction: &T,
        keys: &DatabaseKeys,
        id: &str,
        leaf: &Leaf,
    ) -> Option<impl Future<Output = Result<Option<Body>>> + Send + use<T>> {
        matches!(self, Source::Stored).then(|| body_of(transaction, keys, id, leaf))
    }

    /// The document as a plain read returns it.
    async fn text(
        &self,
        id: &str,
        leaf: &Leaf,
        stored: Option<impl Future<Output = Result<Option<Body>>>>,
    ) -> Result<JsonText> {
        let body = match (self, stored) {
            (Source::Brought(text, attachments), _) => {
                let attachments = attachments.as_deref().unwrap_or_default().to_vec();
                Body { text: (*text).clone(), attachments }
            }
            (Source::Stored, Some(stored)) => body_or_empty(leaf, stored.await?)?,
            (Source::Stored, None) => return Err(Error::corrupt("a body that was not read")),
        };
        Ok(Document::new(id.to_owned(), leaf.rev.clone(), false, body).to_text())
    }
}

/// The rows of a document in these indexes.
pub(crate) fn rows_of<'i>(
    document: &JsonText,
    indexes: impl Iterator<Item = &'i (Kept, Arc<Index>)>,
) -> Vec<(u64, mango::IndexRow)> {
    indexes.filter_map(|(kept, index)| Some((kept.number, index.row(document.root())?))).collect()
}
