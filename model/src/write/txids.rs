//! Transaction ids, which make transactions with an unknown result repeatable (RFC 003, "Handling of Unknown
//! Commit Results", option 3).
//!
//! Rows with the commit's versionstamp are not idempotent. Repeating a transaction with an unknown outcome (1021)
//! would write a second changes row, or find its own first edit and report a conflict. So every run has an id,
//! which it writes with its rows:
//!
//! ```text
//!  attempt 1   reads, writes, id = 1, commit ── 1021 ──┐
//!  attempt 2   reads id ─┬─ there: attempt 1 did it; its result is the answer
//!                        └─ not there: attempt 1 did not and no longer can (1021 excludes it); continue,
//!                                      unless the deadline is over: the id may have been cleared
//! ```
//!
//! The id is read with a conflict range: if an earlier attempt commits late, the next one fails and reads again. The
//! id's row has the attempt's number, since attempts may have different results.
//!
//! An id contains the read version of the attempt that wrote it first. Versions are the clock that all processes share:
//! every engine advances them by about a million a second. An id has expired for a transaction that reads
//! [`EXPIRED_AFTER`] versions later. A transaction clears only ids that have expired at its own read version. A run
//! that asks for an id which has expired at its own read version gets no answer. A transaction that sees the clearing
//! reads later than the one that cleared. So an id that could still decide something is never missing, whatever the
//! clocks of the processes show.
//!
//! A run gives up [`DEADLINE_MS`] after its start, by its own clock. Every [`RUNS_BETWEEN_CLEARING`]th run clears
//! up to [`CLEARED_AT_ONCE`] expired ids in its own transaction, which is more than the new ones. So writers clean up,
//! and no background task is needed. These runs first sweep abandoned uploads ([`attachments`](crate::attachments)), in
//! a separate transaction.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use kv_api::{Database, RangeRequest, Read, RetryError, Transaction, error};

use crate::admin::environment::Environment;
use crate::admin::format::StoreFormat;
use crate::attachments::{Abandoned, sweep};
use crate::error::{Error, Result};
use crate::keys::Key;
use crate::rows::row::Reader;
use crate::rows::tuple;
use crate::write::unguarded::Unguarded;

/// Time for which a run keeps trying, in milliseconds from its start.
pub(crate) const DEADLINE_MS: u64 = 60_000;

/// Age at which an id expires, in versions: ten minutes, or less if a cluster recovers meanwhile, which skips versions.
const EXPIRED_AFTER: u64 = 600_000_000;

/// Number of runs between two that clear expired ids. The first run of a process clears them too.
const RUNS_BETWEEN_CLEARING: u64 = 1_000;

/// Maximum number of ids that a run clears.
const CLEARED_AT_ONCE: usize = 2_000;

/// Result of an attempt.
pub(crate) enum Outcome<T> {
    /// It wrote: commit it.
    Write(T),
    /// It wrote nothing: its answer is final.
    ReadOnly(T),
}

/// Runs transactions with an id.
pub(crate) struct Guard<D> {
    pub(crate) engine: D,
    pub(crate) root: Bytes,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) abandoned: Arc<Abandoned>,
    pub(crate) format: Arc<StoreFormat>,
    nonces: Nonces,
    /// Number of runs so far.
    runs: AtomicU64,
}

/// Names of runs: random bytes, generated once, with a counter. So a run needs no system call, and two layers share a
/// name only if the random half is equal.
struct Nonces {
    drawn: [u8; 8],
    next: AtomicU64,
}

impl Nonces {
    fn draw(environment: &dyn Environment) -> Self {
        let (mut drawn, mut first) = ([0; 8], [0; 8]);
        environment.random(&mut drawn);
        environment.random(&mut first);
        Nonces { drawn, next: AtomicU64::new(u64::from_be_bytes(first)) }
    }

    fn next(&self) -> [u8; 16] {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.drawn);
        nonce[8..].copy_from_slice(&self.next.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        nonce
    }
}

impl<D: Database> Guard<D> {
    pub(crate) fn new(engine: D, root: Bytes, environment: Arc<dyn Environment>) -> Self {
        let nonces = Nonces::draw(environment.as_ref());
        Guard {
            engine,
            root,
            environment,
            abandoned: Arc::default(),
            format: Arc::default(),
            nonces,
            runs: AtomicU64::new(0),
        }
    }

    /// The same for work in the background. It leaves the clearing at a start to the other one.
    pub(crate) fn in_background(&self) -> Self {
        Guard {
            engine: self.engine.in_background(),
            root: self.root.clone(),
            environment: self.environment.clone(),
            abandoned: self.abandoned.clone(),
            format: self.format.clone(),
            nonces: Nonces::draw(self.environment.as_ref()),
            runs: AtomicU64::new(1),
        }
    }

    /// The claim of a run that starts now, and whether this run clears expired ids.
    pub(crate) fn claim<T>(&self) -> (Claim<T>, bool) {
        let began = self.environment.now_ms();
        let clears = self.runs.fetch_add(1, Ordering::Relaxed).is_multiple_of(RUNS_BETWEEN_CLEARING);
        let nonce = self.nonces.next();
        (Claim { root: self.root.clone(), nonce, id: None, began, attempt: 1, answers: Vec::new() }, clears)
    }

    /// Whether it is too late to ask whether an attempt of a run that started at `began` committed.
    pub(crate) fn is_late(&self, began: u64) -> bool {
        self.environment.now_ms().saturating_sub(began) > DEADLINE_MS
    }

    /// Removes abandoned uploads. A run that clears expired ids does this first, not after its commit: a caller that
    /// gives up waiting would not know of the commit.
    pub(crate) async fn sweep(&self, began: u64) {
        Box::pin(self.give_back()).await;
        Box::pin(sweep(&self.engine, &self.root, began)).await;
    }

    /// Runs `body` until it commits, answers without writing, or fails for good. Its writes happen once, and the
    /// answer is that of the attempt that wrote.
    ///
    /// `body` may run any number of times and must have no effects outside its transaction.
    pub(crate) async fn run<T, F, Fut>(&self, body: F) -> Result<T>
    where
        F: FnMut(D::Transaction) -> Fut,
        Fut: Future<Output = Result<Outcome<T>>>,
    {
        self.run_unless(|_| false, body).await
    }

    /// The same, but an error for which `hopeless` is true is returned at once if certainly nothing was written.
    pub(crate) async fn run_unless<T, E, F, Fut>(
        &self,
        hopeless: impl Fn(&kv_api::Error) -> bool,
        mut body: F,
    ) -> Result<T, E>
    where
        E: RetryError + From<Error>,
        F: FnMut(D::Transaction) -> Fut,
        Fut: Future<Output = Result<Outcome<T>, E>>,
    {
        let (mut claim, clears) = self.claim();
        if clears {
            self.sweep(claim.began).await;
        }
        let transaction = self.engine.begin()?;
        // Whether an earlier attempt may still commit. Only 1021 excludes that.
        let mut may_land = false;
        loop {
            // Whether certainly nothing was written.
            let mut unwritten = claim.answers.is_empty();
            let failure: E = 'attempt: {
                if !unwritten {
                    let landed = match claim.ask(&transaction).await {
                        Ok(asked) => claim.answer(&asked, self.is_late(claim.began)),
                        Err(error) => Err(error.into()),
                    };
                    match landed {
                        Ok(Some((_, answer))) => return Ok(answer),
                        Ok(None) => unwritten = !may_land,
                        Err(error) => break 'attempt error.into(),
                    }
                }
                let value = match body(transaction.clone()).await {
                    Ok(Outcome::Write(value)) => value,
                    Ok(Outcome::ReadOnly(value)) => return Ok(value),
                    Err(failure) => break 'attempt failure,
                };
                // If the body has read, the version is known already.
                let version = match transaction.get_read_version().await {
                    Ok(version) => version,
                    Err(error) => break 'attempt error.into(),
                };
                if let Err(error) = self.format.check(&transaction, &self.root, version).await {
                    break 'attempt error.into();
                }
                if clears && let Err(error) = self.clear_expired(&transaction, version).await {
                    break 'attempt error.into();
                }
                claim.sign(&transaction, version, claim.attempt);
                match transaction.commit().await {
                    Ok(()) => return Ok(value),
                    Err(failure) => {
                        if failure.is_maybe_committed() {
                            claim.keep(claim.attempt, value);
                            unwritten = false;
                            may_land |= failure.code() != error::COMMIT_UNKNOWN_RESULT;
                        }
                        break 'attempt failure.into();
                    }
                }
            };
            let Some(store) = failure.kv_error().cloned() else { return Err(failure) };
            if unwritten && hopeless(&store) {
                return Err(failure);
            }
            let retried = if self.is_late(claim.began) { Err(store) } else { transaction.on_error(store).await };
            if let Err(last) = retried {
                return Err(if !claim.answers.is_empty() && !last.is_maybe_committed() {
                    let context = format!("an earlier attempt; the last one: {last}");
                    kv_api::Error::new(error::COMMIT_UNKNOWN_RESULT).with_context(context).into()
                } else {
                    last.into()
                });
            }
            claim.attempt += 1;
        }
    }

    /// Clears the oldest expired ids, in the same transaction, which reads at `version`.
    pub(crate) async fn clear_expired(&self, transaction: &D::Transaction, version: i64) -> kv_api::Result<()> {
        let (begin, end) = Key::transactions_before(&self.root, before(version));
        // No decision depends on these rows, so they take no conflict ranges.
        let oldest = RangeRequest::keys(begin.clone(), end).limit(CLEARED_AT_ONCE);
        let expired = transaction.get_range(&oldest, Read::Snapshot).await?;
        if let Some(last) = expired.rows.last() {
            transaction.clear_range_unguarded(&begin, &[&last.key[..], &[0]].concat());
        }
        Ok(())
    }
}

/// The version before which ids have expired for a transaction that reads at `version`.
fn before(version: i64) -> u64 {
    u64::try_from(version).unwrap_or_default().saturating_sub(EXPIRED_AFTER)
}

/// Whether the id of this version is irrelevant to a transaction that reads at `version`: it has expired, or it was
/// written in another store, before a restore.
fn has_expired(id: u64, version: i64) -> bool {
    id < before(version) || u64::try_from(version).unwrap_or_default() < id
}

/// The id of a run, and the answers of its attempts that may have committed.
pub(crate) struct Claim<T> {
    root: Bytes,
    nonce: [u8; 16],
    /// The id's version, and its key, once an attempt was signed.
    id: Option<(u64, Vec<u8>)>,
    /// When the run started, in milliseconds.
    pub(crate) began: u64,
    /// Number of the current attempt.
    pub(crate) attempt: u64,
    /// By the number of the attempt.
    answers: Vec<(u64, T)>,
}

/// The reads about earlier attempts.
pub(crate) struct Asked {
    /// The id's row.
    row: Option<Bytes>,
    /// Whether the id may have been cleared.
    has_expired: bool,
}

impl Asked {
    /// Whether the outcome can no longer be known: the row is missing, and it is too late to ask.
    pub(crate) fn is_in_vain(&self, is_late: bool) -> bool {
        self.row.is_none() && (is_late || self.has_expired)
    }
}

impl<T> Claim<T> {
    /// Whether an attempt may have committed.
    pub(crate) fn may_have_committed(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Reads which attempt committed; the read is issued by the call.
    pub(crate) fn ask<X: Transaction>(
        &self,
        transaction: &X,
    ) -> impl Future<Output = kv_api::Result<Asked>> + Send + use<X, T> {
        let id = self.id.as_ref().map(|(id, key)| (*id, transaction.get(key, Read::Serializable)));
        let version = transaction.get_read_version();
        async move {
            let Some((id, row)) = id else { return Ok(Asked { row: None, has_expired: false }) };
            Ok(Asked { row: row.await?, has_expired: has_expired(id, version.await?) })
        }
    }

    /// The attempt that committed, as [`ask`](Self::ask) found it, and its answer; `None` if no attempt did.
    ///
    /// # Errors
    /// 1021 if there is no row and it is too late to ask: the row may have existed and expired.
    pub(crate) fn answer(&mut self, asked: &Asked, is_late: bool) -> Result<Option<(u64, T)>> {
        if asked.is_in_vain(is_late) {
            let context = "an earlier attempt, and it is too late to ask about it";
            return Err(kv_api::Error::new(error::COMMIT_UNKNOWN_RESULT).with_context(context).into());
        }
        let Some(row) = &asked.row else { return Ok(None) };
        let number = Reader::new(row).int()?;
        let found = self.answers.iter().position(|(attempt, _)| *attempt == number);
        let found = found.ok_or_else(|| Error::corrupt("a transaction id of an attempt that never was"))?;
        Ok(Some(self.answers.swap_remove(found)))
    }

    /// Keeps the answer of an attempt that may commit.
    pub(crate) fn keep(&mut self, attempt: u64, answer: T) {
        self.answers.push((attempt, answer));
    }

    /// Writes the id's row, which identifies the attempt, in a transaction that reads at `version`.
    pub(crate) fn sign<X: Transaction>(&mut self, transaction: &X, version: i64, attempt: u64) {
        let (_, key) = self.id.get_or_insert_with(|| {
            let version = u64::try_from(version).unwrap_or_default();
            (version, Key::Transaction { version, nonce: self.nonce }.under(&self.root))
        });
        let mut row = Vec::with_capacity(9);
        tuple::append_u64(&mut row, attempt);
        transaction.set(&key[..], row);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::admin::environment::SystemEnvironment;

    #[test]
    fn no_two_runs_share_a_nonce() {
        let layers = [Nonces::draw(&SystemEnvironment), Nonces::draw(&SystemEnvironment)];
        layers[1].next.store(u64::MAX, Ordering::Relaxed);
        let nonces: HashSet<[u8; 16]> = (0..100).flat_map(|_| layers.iter().map(Nonces::next)).collect();
        assert_eq!(nonces.len(), 200);
    }

    #[test]
    fn an_id_decides_until_it_may_have_been_cleared() {
        for (id, version, expired) in [
            (1_000_000_000, 1_000_000_000, false),
            (1_000_000_000, 1_600_000_000, false),
            (1_000_000_000, 1_600_000_001, true),
            // In a restored store.
            (1_000_000_000, 999_999_999, true),
            (0, 600_000_000, false),
            (0, 600_000_001, true),
        ] {
            assert_eq!(has_expired(id, version), expired, "{id} at {version}");
            // A transaction that reads earlier has not cleared it.
            assert!(expired || before(version) <= id);
        }
    }
}
