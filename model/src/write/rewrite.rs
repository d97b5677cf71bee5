//! Changes the layout of a database's bodies, while the database is in use.
//!
//! ```text
//!  set_body_format   the instance has the new layout, and says that other bodies may be left; adds the job
//!  edits             write new bodies in the new layout from then on
//!  a batch           docs   a  b  c  d  e  f  g …
//!                           └──────┘└────┘
//!                            before  this batch: old bodies are read, and written in the new layout
//!  the last batch    the instance says that no other is left; removes the job
//! ```
//!
//! Each body states its own layout, so readers need not know of this, and any mixture is valid. Text, revisions,
//! sequences, sizes and attachments do not change.
//!
//! A batch reads the winner's row of each document that it writes with a conflict range. Every edit of a document
//! writes that row, so a body that is replaced or removed meanwhile makes the batch conflict. An edit never conflicts
//! with a batch: it reads nothing that a batch writes, and removes its old body as a range, in whatever layout. Two
//! batches write the same rows.
//!
//! The checkpoint is the progress of the job ([`jobs`]), written by the batch itself. It belongs to one request, named
//! in the job's data. After another request, a walk starts at the first body. A body that cannot be read, or that does
//! not fit into the new layout, is not changed.

use std::sync::atomic::{AtomicUsize, Ordering};

use jobs::{Hold, Job, JobId, NewJob};
use json::{JsonText, JsonWriter};
use kv_api::error::TRANSACTION_TOO_OLD;
use kv_api::{Bytes, Database, KeyValue, RangeRequest, Read, RetryError, Runner, Transaction, TransactionExt};

use super::interactive::last;
use super::is_too_much;
use crate::documents::Documents;
use crate::error::{Result, alone};
use crate::keys::{self, DatabaseKey, Leaf};
use crate::layer::LayerState;
use crate::read::batch::RETRIES;
use crate::read::winner::decode;
use crate::rows::body::{BodyFormat, RevisionMetadata, StoredBody};
use crate::rows::instance::Instance;
use crate::rows::revid::hex;
use crate::rows::stats::Stats;
use crate::write::unguarded::Unguarded;

/// The kind of these jobs. Their ids are the names of the databases.
pub const REWRITE_JOBS: &str = "rewrite";

/// Approximate size of the rows that a batch reads, and of those that it writes, as FoundationDB counts bytes. A single
/// body may take more.
const READ_BYTES: usize = 1_000_000;
const WRITTEN_BYTES: usize = 2_000_000;

/// Maximum number of bodies in a batch.
const BODIES_AT_ONCE: usize = 2_000;

/// The progress of rewriting bodies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewriting {
    /// The request, as in the job's data.
    request: Bytes,
    /// The last body read: its key without the database's prefix. Empty at the start.
    after: Vec<u8>,
    /// Number of bodies read.
    pub bodies: u64,
    /// Number of documents in the database. Each has a body or more.
    pub expected: u64,
}

/// The rows of one body.
struct BodyRows {
    /// The document and the leaf, with the length of the keys' common prefix, unless the key cannot be read.
    of: Option<(String, Leaf, usize)>,
    rows: Vec<KeyValue>,
}

impl BodyRows {
    fn prefix(&self) -> &[u8] {
        let len = self.of.as_ref().map_or(usize::MAX, |(_, _, len)| *len);
        self.rows.first().map(|row| row.key.get(..len).unwrap_or(&row.key)).unwrap_or_default()
    }
}

impl Rewriting {
    /// The progress of earlier runs of a job.
    pub fn of_job(job: &Job) -> Rewriting {
        let begin = Rewriting { request: job.data.clone(), ..Rewriting::default() };
        let read = || {
            let progress = JsonText::parse(&job.progress.as_ref()?.bytes).ok()?;
            let after = bytes_of(&progress.get("after")?.as_str()?)?;
            Some(Rewriting { after, bodies: progress.get("changes_done")?.as_u64()?, ..begin.clone() })
        };
        read().unwrap_or(begin)
    }

    /// The same as JSON: the progress of the job, with the members of an active task in CouchDB.
    fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut json = JsonWriter::new(&mut out);
        let total = self.expected.max(self.bodies);
        json.begin_object().name("changes_done").u64(self.bodies).name("total_changes").u64(total);
        json.name("progress").u64((self.bodies * 100).checked_div(total).unwrap_or(0));
        json.name("after").str(&hex(&self.after)).end_object();
        out
    }
}

/// The bytes in hexadecimal digits.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    pairs.map(|pair| u8::from_str_radix(pair.filter(|pair| pair.len() == 2)?, 16).ok()).collect()
}

impl<D: Database> LayerState<D> {
    /// Adds or removes the job of a database, as this change of its instance requires.
    pub(crate) async fn plan_rewrite<T: Transaction>(
        &self,
        transaction: &T,
        name: &str,
        before: bool,
        after: Option<&Instance>,
    ) -> Result<()> {
        match after.filter(|after| after.rewrites) {
            Some(after) => drop(self.registry().add(transaction, &job_of(name), &self.new_rewrite(name, after)).await?),
            None if before => drop(self.registry().remove(transaction, &job_of(name)).await?),
            None => {}
        }
        Ok(())
    }

    fn new_rewrite(&self, name: &str, instance: &Instance) -> NewJob {
        let mut request = [0; 16];
        self.guard.environment.random(&mut request);
        let mut data = Vec::new();
        let mut json = JsonWriter::new(&mut data);
        json.begin_object().name("task").begin_object().name("database").str(name);
        json.name("format").str(instance.format.name()).end_object().name("request").str(&hex(&request)).end_object();
        NewJob { data: data.into(), ..NewJob::default() }
    }
}

impl<D: Database> Documents<D> {
    /// The job that rewrites the database's bodies, while some are left to rewrite.
    pub fn rewrite_job(&self) -> JobId {
        job_of(self.name())
    }

    /// Sets the layout of bodies. New bodies have it at once, and [the job](Self::rewrite_job) rewrites the others.
    /// Returns whether there are bodies to rewrite.
    ///
    /// # Errors
    /// 404 if the database is gone; [`ErrorKind::Moving`](crate::ErrorKind::Moving) in the last step of a relocation.
    pub async fn set_body_format(&self, format: BodyFormat) -> Result<bool> {
        let change = |transaction: D::Transaction, instance: Instance| async move {
            if instance.format == format {
                return Ok((instance.rewrites, None));
            }
            let changed = Instance { format, rewrites: true, ..instance };
            self.shared.plan_rewrite(&transaction, self.name(), false, Some(&changed)).await?;
            Ok((true, Some(changed)))
        };
        self.change_instance(change).await
    }

    /// Rewrites bodies that are not in the database's layout, in batches of one transaction each. `progress` is called
    /// after each batch. Several concurrent calls are safe.
    ///
    /// # Errors
    /// 404 if the database is gone; the store's errors.
    pub async fn rewrite_bodies(&self, mut progress: impl FnMut(&Rewriting)) -> Result<()> {
        let mut at = Rewriting::default();
        while let Some(next) = self.rewrite_bodies_batch(&at, usize::MAX, None).await? {
            progress(&next);
            at = next;
        }
        Ok(())
    }

    /// Rewrites one batch after `from`, of at most `most` bodies. `None` if nothing is left to rewrite. With `hold`,
    /// only a run that has the job can write, and the batch stores its progress.
    ///
    /// # Errors
    /// Like [`rewrite_bodies`](Self::rewrite_bodies), and [`ErrorKind::JobLost`](crate::ErrorKind::JobLost).
    pub async fn rewrite_bodies_batch(
        &self,
        from: &Rewriting,
        most: usize,
        hold: Option<&Hold>,
    ) -> Result<Option<Rewriting>> {
        let at_once = AtomicUsize::new(most.clamp(1, BODIES_AT_ONCE));
        let fewer = || at_once.store((at_once.load(Ordering::Relaxed) / 2).max(1), Ordering::Relaxed);
        loop {
            let batch = Runner::new(self.engine()).option(RETRIES).run(|transaction, _| {
                let most = at_once.load(Ordering::Relaxed);
                async move {
                    let done = self.rewrite_batch(&transaction, from, most, hold).await;
                    let old = |error: &kv_api::Error| error.code() == TRANSACTION_TOO_OLD;
                    if done.as_ref().is_err_and(|error| error.kv_error().is_some_and(old)) {
                        fewer();
                    }
                    done
                }
            });
            match batch.await {
                Err(error) if error.kv_error().is_some_and(is_too_much) && at_once.load(Ordering::Relaxed) > 1 => {
                    fewer();
                }
                done => return done,
            }
        }
    }

    /// Writes one batch in a transaction that the caller commits.
    async fn rewrite_batch(
        &self,
        transaction: &D::Transaction,
        from: &Rewriting,
        most: usize,
        hold: Option<&Hold>,
    ) -> Result<Option<Rewriting>> {
        let (keys, registry, id) = (self.keys(), self.shared.registry(), self.rewrite_job());
        let instance = self.instance(transaction, Read::Serializable);
        let checked = hold.map(|hold| hold.check(transaction));
        let stats = transaction.get(&keys.key(DatabaseKey::Stats), Read::Snapshot);
        let job = registry.get(transaction, &id, Read::Serializable).await?;
        let instance = instance.await?;
        if let Some(checked) = checked {
            checked.await?;
        }
        if !instance.rewrites {
            return Ok(None);
        }
        let request = job.map(|job| job.data).unwrap_or_default();
        let mut next =
            if from.request == request { from.clone() } else { Rewriting { request, ..Rewriting::default() } };
        next.expected = u64::try_from(Stats::read(stats.await?.as_deref())?.doc_count).unwrap_or(0);

        let (bodies, mut more) = self.bodies_after(transaction, &next.after).await?;
        let (mut written, mut count) = (0, 0);
        for body in bodies {
            if count == most || written >= WRITTEN_BYTES {
                more = true;
                break;
            }
            written += self.rewrite(transaction, &instance, &body).await?;
            count += 1;
            next.bodies += 1;
            next.after = body.prefix()[keys.prefix().len()..].to_vec();
        }
        if more {
            if let Some(hold) = hold {
                hold.update(transaction, &next.write(), self.shared.guard.environment.now_ms()).await?;
            }
        } else {
            let done = Instance { rewrites: false, ..instance };
            transaction.set(keys.key(DatabaseKey::Instance), done.write());
            self.shared.plan_rewrite(transaction, self.name(), true, None).await?;
        }
        Ok(Some(next))
    }

    /// Reads the next complete bodies, and whether there are more.
    async fn bodies_after(&self, transaction: &D::Transaction, after: &[u8]) -> Result<(Vec<BodyRows>, bool)> {
        let keys = self.keys();
        let (first, beyond) = keys.bounds(DatabaseKey::Docs);
        let begin = if after.is_empty() { first } else { [keys.prefix(), after, &[keys::BEYOND]].concat() };
        let range = RangeRequest::keys(begin, beyond.clone()).target_bytes(READ_BYTES);
        let batch = transaction.get_range(&range, Read::Snapshot).await?;
        let mut bodies: Vec<BodyRows> = Vec::new();
        for row in batch.rows {
            match bodies.last_mut().filter(|body| row.key.starts_with(body.prefix())) {
                Some(body) => body.rows.push(row),
                None => bodies.push(BodyRows { of: keys.read_doc(&row.key).ok(), rows: vec![row] }),
            }
        }
        if batch.more {
            // The last body may have more rows.
            let cut = bodies.pop();
            if let (Some(mut cut), true) = (cut, bodies.is_empty()) {
                let end = [cut.prefix(), &[keys::BEYOND]].concat();
                if let Some(last) = cut.rows.last() {
                    let rest = RangeRequest::keys([&last.key[..], &[0]].concat(), end);
                    cut.rows.extend(transaction.get_all(rest, Read::Snapshot).await?);
                }
                bodies.push(cut);
            }
        }
        Ok((bodies, batch.more))
    }

    /// Rewrites a body, if it is not in the database's layout. Returns the approximate number of bytes written.
    async fn rewrite(&self, transaction: &D::Transaction, instance: &Instance, body: &BodyRows) -> Result<usize> {
        let (Some((id, leaf, prefix)), Some(first)) = (&body.of, body.rows.first()) else { return Ok(0) };
        let metadata = Some(first).filter(|row| row.key.len() == *prefix);
        let stored = metadata.and_then(|row| RevisionMetadata::read(&row.value).ok()).map(|metadata| metadata.format());
        if stored.is_none_or(|stored| stored == instance.format) {
            return Ok(0);
        }
        let prefix = &first.key[..*prefix];
        let Ok(found) = alone(decode(prefix, &body.rows))? else { return Ok(0) };
        let limits = self.body_context().limits;
        let Ok(encoded) = StoredBody::encode(&found.text, prefix, instance.format, &limits) else { return Ok(0) };
        if encoded.format() != instance.format {
            return Ok(0);
        }
        let winner = transaction.get_range(&last(self.keys(), id), Read::Serializable).await?;
        if winner.rows.is_empty() {
            return Ok(0);
        }
        transaction.clear_range_unguarded(prefix, &self.keys().key(DatabaseKey::Attachments(id, leaf)));
        for (key, value) in encoded.shared_rows() {
            transaction.set_unguarded(key, value);
        }
        Ok(encoded.cost())
    }
}

fn job_of(name: &str) -> JobId {
    JobId::new(REWRITE_JOBS, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobs::{JobState, Priority, Progress};

    #[test]
    fn the_progress_of_a_job_is_read_back_and_damage_begins_anew() {
        let (data, is_resubmitted) = (Bytes::from_static(b"{}"), false);
        let (state, priority, id) = (JobState::Pending, Priority::Normal, job_of("db"));
        let job = |progress: Option<&[u8]>| Job {
            id: id.clone(),
            state,
            priority,
            scheduled_ms: 0,
            attempts: 1,
            lost: 0,
            is_resubmitted,
            name: None,
            data: data.clone(),
            progress: progress.map(|bytes| Progress { updated_ms: 0, bytes: bytes.to_vec().into() }),
            run: None,
        };
        let begin = Rewriting { request: data.clone(), ..Rewriting::default() };
        let at = Rewriting { after: vec![0x15, 6, 0, 255], bodies: 9, ..begin.clone() };
        assert_eq!(Rewriting::of_job(&job(Some(&at.write()))), at);
        assert_eq!(Rewriting::of_job(&job(None)), begin);
        for wrong in ["", "{}", r#"{"changes_done":1,"after":"1"}"#, r#"{"changes_done":1,"after":"é1"}"#] {
            assert_eq!(Rewriting::of_job(&job(Some(wrong.as_bytes()))), begin, "{wrong}");
        }
    }
}
