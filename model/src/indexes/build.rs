//! Builds indexes over existing documents.
//!
//! ```text
//!  all_docs      a  b  c  d  e  f  g  h …
//!                └──────────┘└────────┘
//!                 built up to d  this batch: reads winners, sets rows and the progress h, in one transaction
//! ```
//!
//! An edit indexes its document, whether the build has passed it or not. When the build reaches a document, it writes
//! the rows of the current winner, which may exist already.
//!
//! A batch reads each winner's row with a conflict range, and writes the id rows under one. So if a builder and an edit
//! meet at a document, the second to commit conflicts and reads again. Two builders write the same rows, and only lose
//! time. So any server may continue a build at any time. A job ([`job`](super::job)) makes sure that one server does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use jobs::Hold;
use json::JsonText;
use kv_api::{ConflictRange, Database, KeySelector, RangeRequest, Read, RetryError, Runner, Transaction};
use mango::Index;

use crate::documents::Documents;
use crate::error::{Error, Result, alone};
use crate::keys::{DatabaseKey, DatabaseKeys, Leaf, end_of};
use crate::read::batch::{BODIES_AT_ONCE, Batch, RETRIES};
use crate::read::document::Document;
use crate::read::winner::body_or_empty;
use crate::rows::instance::{Instance, Kept};
use crate::rows::row::Reader;
use crate::rows::tuple;
use crate::write::is_too_much;
use crate::write::unguarded::Unguarded;

use super::edit::rows_of;
use super::job::checked;
use super::winners::{Listed, Needs, Wanted, Winner, read_winners};
use super::{FORMAT, Indexed, values_of};

/// Maximum number of documents in a batch.
const DOCUMENTS_AT_ONCE: usize = 4_000;

/// Approximate size of rows that a batch writes, as FoundationDB counts bytes.
const WRITTEN_BYTES: usize = 2_000_000;

/// Size of a row in a transaction, without its key and value.
const ROW_BYTES: usize = 100;

/// The progress of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildProgress {
    /// Numbers of the indexes that are built together.
    pub indexes: Vec<u64>,
    /// Number of documents processed so far.
    pub documents: u64,
    /// Number of documents in the database.
    pub expected: u64,
    /// Whether these indexes are complete.
    pub done: bool,
}

/// The end of a batch that is not the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Numbers of the indexes that are built together.
    indexes: Vec<u64>,
    built: Built,
}

/// A batch whose rows are written in a transaction.
pub(super) struct Batched {
    pub(super) progress: BuildProgress,
    /// The start of the next batch; `None` after the last one.
    pub(super) place: Option<Place>,
}

/// The progress of an index, as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Built {
    /// The last document processed.
    pub(crate) upto: Option<String>,
    /// Number of documents processed.
    pub(super) documents: u64,
}

impl Built {
    fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        tuple::append_u64(&mut out, FORMAT);
        tuple::append_str(&mut out, self.upto.as_deref().unwrap_or_default());
        tuple::append_u64(&mut out, self.documents);
        out
    }

    pub(crate) fn read(row: Option<&[u8]>) -> Result<Built> {
        let Some(row) = row else { return Ok(Built::default()) };
        let mut reader = Reader::new(row);
        match reader.int()? {
            FORMAT => {}
            other => return Err(Error::unknown_format(format!("a progress of an index in format {other}"))),
        }
        let (upto, documents) = (reader.str()?.into_owned(), reader.int()?);
        reader.end()?;
        Ok(Built { upto: Some(upto).filter(|upto| !upto.is_empty()), documents })
    }
}

impl<D: Database> Documents<D> {
    /// Builds the indexes that are not active, in batches of one transaction each. `progress` is called after each
    /// batch. If a build is interrupted, the next call continues it. Several calls may run at the same time.
    ///
    /// A document whose fields cannot be read has no rows until it is repaired.
    ///
    /// # Errors
    /// 404 if the database is gone; the store's errors.
    pub async fn build_indexes(&self, mut progress: impl FnMut(&BuildProgress)) -> Result<()> {
        let mut build = self.index_build();
        while let Some(done) = build.next(usize::MAX, None, |ahead| ahead).await? {
            progress(&done);
        }
        Ok(())
    }

    /// Builds one batch, of at most `most` documents. `None` if every index is active. The batch that activates the
    /// last index removes [the job](Self::build_job) in its transaction. With `hold`, only a run that has the job can
    /// write.
    ///
    /// # Errors
    /// Like [`build_indexes`](Self::build_indexes), and [`ErrorKind::JobLost`](crate::ErrorKind::JobLost).
    pub async fn build_indexes_batch(&self, most: usize, hold: Option<&Hold>) -> Result<Option<BuildProgress>> {
        Ok(self.write_next_batch(most, hold).await?.map(|batched| batched.progress))
    }

    /// Writes the batch after the stored progress.
    pub(super) async fn write_next_batch(&self, most: usize, hold: Option<&Hold>) -> Result<Option<Batched>> {
        let at_once = AtomicUsize::new(most.clamp(1, DOCUMENTS_AT_ONCE));
        loop {
            let fewer = || at_once.store((at_once.load(Ordering::Relaxed) / 2).max(1), Ordering::Relaxed);
            let batch = Runner::new(self.engine())
                .option(RETRIES)
                .run(|transaction, attempt| {
                    // It was too old, or an edit was first. A smaller batch ends sooner, and meets fewer edits.
                    if attempt.number > 1 {
                        fewer();
                    }
                    let most = at_once.load(Ordering::Relaxed);
                    async move { self.build_batch(&transaction, most, hold, None).await }
                })
                .await;
            match batch {
                Err(error) if error.kv_error().is_some_and(is_too_much) && at_once.load(Ordering::Relaxed) > 1 => {
                    fewer();
                }
                done => return done,
            }
        }
    }

    /// Writes one batch in a transaction that the caller commits. It starts at the stored progress, or at `place`,
    /// which must be committed before it: see [`ahead`](super::ahead). `None` if there is nothing to build, or the set
    /// of indexes differs from that of `place`.
    pub(super) async fn build_batch(
        &self,
        transaction: &D::Transaction,
        most: usize,
        hold: Option<&Hold>,
        place: Option<Place>,
    ) -> Result<Option<Batched>> {
        let keys = self.keys();
        let most = most.clamp(1, DOCUMENTS_AT_ONCE);
        let instance = self.instance(transaction, Read::Serializable);
        let checked = checked(hold, transaction);
        let stats = transaction.get(&keys.key(DatabaseKey::Stats), Read::Snapshot);
        let instance = instance.await?;
        checked.await?;
        let mut waiting = self.definitions(transaction, &instance).await?;
        waiting.retain(|(kept, _)| !kept.active);
        let (least, together) = match place {
            Some(place) if waiting.iter().map(|(kept, _)| kept.number).eq(place.indexes.iter().copied()) => {
                (place.built, waiting)
            }
            Some(_) => return Ok(None),
            None => match self.least_built(transaction, waiting).await? {
                Some(least) => least,
                None => return Ok(None),
            },
        };
        let (next, more) = self.build_documents(transaction, &instance, &together, &least, most).await?;
        for (kept, _) in &together {
            let key = keys.key(DatabaseKey::IndexRows(kept.number));
            if more {
                transaction.set(key, next.write());
            } else {
                transaction.clear(&key);
            }
        }
        if !more {
            let mut changed = instance.clone();
            let is_built = |number: u64| together.iter().any(|(kept, _)| kept.number == number);
            changed.indexes.kept.iter_mut().for_each(|kept| kept.active |= is_built(kept.number));
            transaction.set(keys.key(DatabaseKey::Instance), changed.write());
            if !changed.indexes.are_to_build() {
                self.end_build(transaction).await?;
            }
        }
        let expected = crate::rows::stats::Stats::read(stats.await?.as_deref())?.doc_count;
        let indexes: Vec<u64> = together.iter().map(|(kept, _)| kept.number).collect();
        let progress = BuildProgress {
            indexes: indexes.clone(),
            documents: next.documents,
            expected: u64::try_from(expected).unwrap_or(0),
            done: !more,
        };
        Ok(Some(Batched { progress, place: more.then_some(Place { indexes, built: next }) }))
    }

    /// The indexes with the least progress, which are built together, and that progress. `None` without indexes.
    async fn least_built(
        &self,
        transaction: &D::Transaction,
        waiting: Vec<(Kept, Arc<Index>)>,
    ) -> Result<Option<(Built, Vec<(Kept, Arc<Index>)>)>> {
        let progress = |number| self.keys().key(DatabaseKey::IndexRows(number));
        let reads: Vec<_> =
            waiting.iter().map(|(kept, _)| transaction.get(&progress(kept.number), Read::Serializable)).collect();
        let mut built = Vec::with_capacity(waiting.len());
        for (one, read) in waiting.into_iter().zip(reads) {
            built.push((Built::read(read.await?.as_deref())?, one));
        }
        let Some(least) = built.iter().map(|(built, _)| built.clone()).min() else { return Ok(None) };
        built.retain(|(built, _)| built.upto == least.upto);
        Ok(Some((least, built.into_iter().map(|(_, one)| one).collect())))
    }

    /// Writes the rows of the next documents. Returns the new progress, and whether there may be more documents.
    async fn build_documents(
        &self,
        transaction: &D::Transaction,
        instance: &Instance,
        together: &[(Kept, Arc<Index>)],
        built: &Built,
        most: usize,
    ) -> Result<(Built, bool)> {
        let keys = self.keys();
        let (first, beyond) = keys.bounds(DatabaseKey::AllDocs);
        let begin = match &built.upto {
            Some(id) => KeySelector::first_greater_than(keys.key(DatabaseKey::AllDoc(id))),
            None => KeySelector::first_greater_or_equal(first),
        };
        let range = RangeRequest::selectors(begin, KeySelector::first_greater_or_equal(beyond)).limit(most);
        let listed = transaction.get_range(&range, Read::Snapshot).await?;
        let mut is_full = false;
        let needs = Needs::of(instance.format, together.iter().map(|(_, index)| &**index));
        let longest_key = self.engine().limits().key_bytes;
        let (mut next, mut batch) = (built.clone(), Batch::of(listed.rows.len()));
        let mut rows = NewRows::default();
        'full: for some in listed.rows.chunks(BODIES_AT_ONCE) {
            for Listed { id, winner } in read_winners(transaction, keys, longest_key, &needs, some).await? {
                if batch.is_full() || rows.bytes >= WRITTEN_BYTES {
                    is_full = true;
                    break 'full;
                }
                let mut bytes = 0;
                if let Some(Winner { leaf, indexed, body }) = winner {
                    guard(transaction, keys, &id, &leaf);
                    let body = match body {
                        Wanted::Read(body) => body,
                        Wanted::Later(body) => body.await,
                    };
                    if let Ok(body) = alone(body.and_then(|body| body_or_empty(&leaf, body)))? {
                        bytes = body.bytes_read();
                        let document = Document::new(id.clone(), leaf.rev, false, body).to_text();
                        rows.add(keys, instance, &id, &document, indexed.as_deref(), together)?;
                    }
                }
                batch.add(bytes);
                next.documents += 1;
                next.upto = Some(id);
            }
        }
        rows.write(transaction);
        Ok((next, is_full || listed.more))
    }
}

/// Makes the transaction conflict with every later write of the document.
fn guard<T: Transaction>(transaction: &T, keys: &DatabaseKeys, id: &str, leaf: &Leaf) {
    let begin = keys.key(DatabaseKey::Revision(id, leaf));
    let mut end = begin.clone();
    end.push(0);
    transaction.add_conflict_range(&begin, &end, ConflictRange::Read);
}

/// The rows that a batch sets.
#[derive(Default)]
struct NewRows {
    rows: Vec<(Vec<u8>, Bytes)>,
    id_rows: Vec<(Vec<u8>, Bytes)>,
    /// Approximate number of bytes, as FoundationDB counts them.
    bytes: usize,
}

impl NewRows {
    /// Adds the rows of a document in these indexes.
    fn add(
        &mut self,
        keys: &DatabaseKeys,
        instance: &Instance,
        id: &str,
        document: &JsonText,
        indexed: Option<&[u8]>,
        together: &[(Kept, Arc<Index>)],
    ) -> Result<()> {
        let rows = rows_of(document, together.iter());
        if rows.is_empty() {
            return Ok(());
        }
        let mut has = match indexed.map(Indexed::read).transpose() {
            Ok(indexed) => indexed.unwrap_or_default(),
            // Damaged: a check reports it, and a repair repairs it.
            Err(damage) => return alone(Err::<(), _>(damage)).map(drop),
        };
        has.0.retain(|(number, _)| instance.indexes.kept.iter().any(|kept| kept.number == *number));
        has.0.retain(|(number, _)| rows.iter().all(|(new, _)| new != number));
        for (number, row) in rows {
            let (key, value) = (keys.key(DatabaseKey::IndexRow(number, &row.key, id)), values_of(&row));
            self.bytes += key.len() + value.len() + ROW_BYTES;
            self.rows.push((key, value));
            has.0.push((number, row.key));
        }
        let (key, value) = (keys.key(DatabaseKey::Indexed(id)), has.write());
        self.bytes += key.len() + value.len() + ROW_BYTES;
        self.id_rows.push((key, value.into()));
        Ok(())
    }

    fn write<T: Transaction>(mut self, transaction: &T) {
        if let (Some((first, _)), Some((last, _))) = (self.id_rows.first(), self.id_rows.last()) {
            // One range for all id rows: those in between belong to documents of this batch, whose edits conflict
            // anyway.
            transaction.add_conflict_range(first, &end_of(last), ConflictRange::Write);
        }
        // Sorted by key: a transaction takes sorted rows fastest.
        self.rows.sort_unstable();
        for (key, value) in self.rows.into_iter().chain(self.id_rows) {
            transaction.set_unguarded(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        for built in [Built::default(), Built { upto: Some("a\0b".to_owned()), documents: 1 << 40 }] {
            let row = built.write();
            assert_eq!(Built::read(Some(&row)).unwrap(), built);
            for cut in 0..row.len() {
                assert!(Built::read(Some(&row[..cut])).is_err(), "cut at {cut}");
            }
        }
        assert_eq!(Built::read(None).unwrap(), Built::default());
    }
}
