//! Removes bodies of replaced revisions: those that are too old, or all of them.
//!
//! ```text
//!  (18, SinceMs, DocID, Leaf) …   the next rows up to a time
//!  (18, DocID, Leaf)              read with a conflict range; cleared with the body and the references
//! ```
//!
//! Edits limit the number for each document. While a database keeps bodies for a time, a [job](FORGET_JOBS) removes
//! those that are too old; reads do not wait for it. When the setting is switched off, the job also removes the
//! remaining bodies, and then the setting itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jobs::{Hold, JobId, NewJob};
use json::JsonWriter;
use kv_api::{Database, RangeRequest, Read, RetryError, Transaction};

use super::Replaced;
use crate::attachments::{Change, Ledger};
use crate::documents::Documents;
use crate::error::{Result, alone};
use crate::keys::{DatabaseKey, Subspace};
use crate::layer::LayerState;
use crate::replaced::keep_replaced::KeepReplaced;
use crate::rows::instance::Instance;
use crate::write::is_too_much;
use crate::write::txids::Outcome;

/// The kind of the jobs that remove bodies of replaced revisions. Their ids are the names of the databases.
pub const FORGET_JOBS: &str = "forget";

/// Maximum number of revisions that a transaction removes.
const AT_ONCE: usize = 100;

/// Time between two runs of a database's job.
const SHORTEST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);

/// Fraction of the keeping time that passes between two runs.
const PAUSES: u64 = 16;

impl<D: Database> LayerState<D> {
    /// Adds or removes the job of a database, as this change of its setting requires.
    pub(crate) async fn plan_forgetting<T: Transaction>(
        &self,
        transaction: &T,
        name: &str,
        before: Option<KeepReplaced>,
        after: Option<KeepReplaced>,
    ) -> Result<()> {
        let job = JobId::new(FORGET_JOBS, name);
        match after {
            Some(keep) if has_work(keep) => {
                let mut data = Vec::new();
                let mut json = JsonWriter::new(&mut data);
                json.begin_object().name("keep").display(keep).end_object();
                self.registry().add(transaction, &job, &NewJob { data: data.into(), ..NewJob::default() }).await?;
            }
            _ if before.is_some_and(has_work) => drop(self.registry().remove(transaction, &job).await?),
            _ => {}
        }
        Ok(())
    }
}

/// Whether the setting needs the job.
fn has_work(keep: KeepReplaced) -> bool {
    !matches!(keep, KeepReplaced::Revisions(number) if number > 0)
}

impl<D: Database> Documents<D> {
    /// Removes bodies of replaced revisions that are no longer kept. Returns the time until the next call is useful, if
    /// the database keeps bodies for a time. Several concurrent calls are safe. A server calls it in [a
    /// job](FORGET_JOBS). A program without a server calls it now and then.
    ///
    /// # Errors
    /// 404 if the database is gone; the store's errors.
    pub async fn forget_replaced(&self) -> Result<Option<Duration>> {
        let mut after = Some(Vec::new());
        while let Some(next) = after {
            after = self.forget_replaced_batch(&next, false, None).await?;
        }
        self.forgetting_pause().await
    }

    /// The time until bodies must be removed again; `None` if the database does not keep them for a time.
    ///
    /// # Errors
    /// 404 if the database is gone; the store's errors.
    pub async fn forgetting_pause(&self) -> Result<Option<Duration>> {
        Ok(match self.keep_replaced().await? {
            Some(KeepReplaced::Milliseconds(number)) => {
                Some(Duration::from_millis(number / PAUSES).clamp(SHORTEST_PAUSE, LONGEST_PAUSE))
            }
            _ => None,
        })
    }

    /// Removes one batch after the key `after`, which is empty at the start: bodies that are no longer kept, or `all`.
    /// Returns the key at which to continue; `None` at the end. With `hold`, only a run that has the job can write.
    ///
    /// # Errors
    /// Like [`forget_replaced`](Self::forget_replaced), and [`ErrorKind::JobLost`](crate::ErrorKind::JobLost).
    pub async fn forget_replaced_batch(&self, after: &[u8], all: bool, hold: Option<&Hold>) -> Result<Option<Vec<u8>>> {
        let at_once = AtomicUsize::new(AT_ONCE);
        loop {
            let hopeless = |error: &kv_api::Error| is_too_much(error) && at_once.load(Ordering::Relaxed) > 1;
            let batch = self.shared.guard.run_unless(hopeless, |transaction| {
                let most = at_once.load(Ordering::Relaxed);
                async move { self.forget_some(&transaction, after, all, most, hold).await }
            });
            match batch.await {
                Err(error) if error.kv_error().is_some_and(hopeless) => {
                    at_once.store(at_once.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
                }
                done => return done,
            }
        }
    }

    async fn forget_some(
        &self,
        transaction: &D::Transaction,
        after: &[u8],
        all: bool,
        most: usize,
        hold: Option<&Hold>,
    ) -> Result<Outcome<Option<Vec<u8>>>> {
        let keys = self.keys();
        let instance = self.instance(transaction, Read::Serializable);
        let checked = hold.map(|hold| hold.check(transaction));
        let instance = instance.await?;
        if let Some(checked) = checked {
            checked.await?;
        }
        let now_ms = self.shared.guard.environment.now_ms();
        let beyond = match instance.keep {
            None => return Ok(Outcome::ReadOnly(None)),
            Some(keep) if all || !keep.keeps_any() => keys.bounds(DatabaseKey::All(Subspace::Replaced)).1,
            Some(KeepReplaced::Revisions(_)) => return Ok(Outcome::ReadOnly(None)),
            Some(KeepReplaced::Milliseconds(number)) => match now_ms.checked_sub(number) {
                Some(last) => keys.key(DatabaseKey::ReplacedFrom(last + 1)),
                None => return Ok(Outcome::ReadOnly(None)),
            },
        };
        let begin = match after {
            [] => keys.key(DatabaseKey::ReplacedFrom(0)),
            after => [keys.prefix(), after, &[0]].concat(),
        };
        if begin >= beyond {
            // The keeping time was extended meanwhile.
            return Ok(Outcome::ReadOnly(None));
        }
        let batch = transaction.get_range(&RangeRequest::keys(begin, beyond).limit(most), Read::Snapshot).await?;
        if batch.rows.is_empty() {
            return self.forgot_all(transaction, instance).await;
        }
        let reads = batch.rows.iter().filter_map(|row| {
            let (since_ms, id, leaf) = keys.read_replaced_since(&row.key).ok()?;
            let head = transaction.get(&keys.key(DatabaseKey::Replaced(&id, &leaf)), Read::Serializable);
            Some((row, since_ms, id, leaf, head))
        });
        let mut found = Vec::with_capacity(batch.rows.len());
        let mut stray = Vec::new();
        for (row, since_ms, id, leaf, head) in reads.collect::<Vec<_>>() {
            match head.await?.map(|head| Replaced::read(leaf, &head)) {
                Some(Ok(replaced)) if replaced.since_ms == since_ms => {
                    let contents = replaced.contents(transaction, keys, &id);
                    found.push((id, replaced, contents));
                }
                // Unreadable rows are kept.
                Some(Err(_)) => {}
                Some(Ok(_)) | None => stray.push(&row.key),
            }
        }
        let mut forgotten = Vec::with_capacity(found.len());
        for (id, replaced, contents) in found {
            if let Ok(contents) = alone(contents.await)? {
                forgotten.push((id, replaced, contents));
            }
        }
        let is_read_only = forgotten.is_empty() && stray.is_empty();
        for key in stray {
            transaction.clear(key);
        }
        for (id, replaced, _) in &forgotten {
            replaced.clear(transaction, keys, id);
        }
        let changes: Vec<Change<'_>> = forgotten
            .iter()
            .filter(|(_, _, contents)| !contents.is_empty())
            .map(|(id, replaced, contents)| Change::forgetting(id, vec![(replaced.leaf.clone(), contents.clone())]))
            .collect();
        if !changes.is_empty() {
            let guard = &self.shared.guard;
            let made = vec![true; changes.len()];
            let ledger = Ledger::default();
            ledger.write(transaction, &guard.root, guard.environment.as_ref(), keys, &changes, &made).await?;
        }
        transaction.set_option(kv_api::TransactionOption::BypassStorageQuota);
        let next = batch.rows.last().map(|row| row.key[keys.prefix().len()..].to_vec());
        Ok(if is_read_only { Outcome::ReadOnly(next) } else { Outcome::Write(next) })
    }

    /// Removes the setting of a database that no longer keeps bodies, once none are left.
    async fn forgot_all(&self, transaction: &D::Transaction, instance: Instance) -> Result<Outcome<Option<Vec<u8>>>> {
        if instance.keep.is_none_or(|keep| keep.keeps_any()) {
            return Ok(Outcome::ReadOnly(None));
        }
        for subspace in [Subspace::Replaced, Subspace::ReplacedDocs] {
            let first = self.keys().range(DatabaseKey::All(subspace)).limit(1);
            if !transaction.get_range(&first, Read::Serializable).await?.rows.is_empty() {
                return Ok(Outcome::ReadOnly(None));
            }
        }
        let ended = Instance { keep: None, ..instance };
        transaction.set(self.keys().key(DatabaseKey::Instance), ended.write());
        Ok(Outcome::Write(None))
    }
}
