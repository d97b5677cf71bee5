//! A database that fails on purpose, to test the retry loops of layers.
//!
//! ```text
//!                    reads        commit
//!   1007, 1009         ×                      the transaction stays failed until on_error
//!   1020                            ×         nothing was committed
//!   1021 committed                  ×         it was, and the answer was lost
//!   1021 not committed              ×         it was not, and never will be
//!   1031                            ×         either
//!   2101                            ×         nothing was committed; scripts only
//!   latency            ×            ×
//! ```
//!
//! A [slow](Chaos::slow) database has one fault, which is not random: its read versions become too old (1007) after a
//! number of bytes. A database [without watches](Chaos::without_watches) refuses each of them (1032). One [with other
//! versions](Chaos::with_versions) acts as a store restored into another cluster. One [with outages](Chaos::with_outages)
//! acts as a cluster that does not answer, while a switch is on. A [starving](Chaos::starving) one acts as a cluster at
//! its limit.
//!
//! Faults are drawn from one seed at given rates, or come from a script. A transaction that writes nothing has no
//! faults at its commit, as on a cluster.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kv_api::error::{
    BATCH_TRANSACTION_THROTTLED, COMMIT_UNKNOWN_RESULT, FUTURE_VERSION, NOT_COMMITTED, STORAGE_QUOTA_EXCEEDED,
    TOO_MANY_WATCHES, TRANSACTION_CANCELLED, TRANSACTION_TIMED_OUT, TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD,
    USED_DURING_COMMIT,
};
use kv_api::{
    ConflictRange, Database, Durability, Error, Figure, IntoBytes, KeySelector, Limits, MutationType, RangeBatch,
    RangeRequest, Read, Result, Transaction, TransactionOption, Versionstamp,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::hold::Hold;
use crate::random::Random;

/// A fault of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// 1020: refused.
    NotCommitted,
    /// 1021 for a commit that happened.
    UnknownCommitted,
    /// 1021 for a commit that did not happen.
    UnknownNotCommitted,
    /// 1031 for a commit that happened.
    TimedOutCommitted,
    /// 1031 for a commit that did not happen.
    TimedOutNotCommitted,
    /// 2101: refused, and refused again at every retry.
    TooLarge,
    /// 1225: the store is full. It takes transactions that free space.
    Full,
}

impl Fault {
    fn committed(self) -> bool {
        matches!(self, Fault::UnknownCommitted | Fault::TimedOutCommitted)
    }

    fn error(self) -> Error {
        Error::new(match self {
            Fault::NotCommitted => NOT_COMMITTED,
            Fault::UnknownCommitted | Fault::UnknownNotCommitted => COMMIT_UNKNOWN_RESULT,
            Fault::TimedOutCommitted | Fault::TimedOutNotCommitted => TRANSACTION_TIMED_OUT,
            Fault::TooLarge => TRANSACTION_TOO_LARGE,
            Fault::Full => STORAGE_QUOTA_EXCEEDED,
        })
    }
}

/// Probability of each fault, from 0 to 1: for each read the first two, for each commit the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// 1007 from a read.
    pub too_old: f64,
    /// 1009 from a read.
    pub future_version: f64,
    /// 1020.
    pub not_committed: f64,
    /// 1021 for a commit that happened.
    pub unknown_committed: f64,
    /// 1021 for a commit that did not happen.
    pub unknown_not_committed: f64,
    /// 1031; half of these commits happened.
    pub timed_out: f64,
    /// A pause before an answer.
    pub latency: f64,
    /// Length of the longest such pause. Needs a tokio runtime with timers, unless the rate is zero.
    pub longest: Duration,
}

impl Rates {
    /// The rates at which every retryable fault has this probability.
    pub fn retryable(rate: f64) -> Self {
        Rates {
            too_old: rate,
            future_version: rate,
            not_committed: rate,
            unknown_committed: rate,
            unknown_not_committed: rate,
            ..Rates::default()
        }
    }
}

#[derive(Debug)]
enum FaultSource {
    Seeded { random: Random, rates: Rates },
    Script(VecDeque<Option<Fault>>),
}

impl FaultSource {
    fn of_read(&mut self) -> Option<Error> {
        let FaultSource::Seeded { random, rates } = self else { return None };
        if random.chance(rates.too_old) {
            Some(Error::new(TRANSACTION_TOO_OLD))
        } else if random.chance(rates.future_version) {
            Some(Error::new(FUTURE_VERSION))
        } else {
            None
        }
    }

    fn of_commit(&mut self) -> Option<Fault> {
        match self {
            FaultSource::Script(faults) => faults.pop_front().flatten(),
            FaultSource::Seeded { random, rates } => [
                (rates.not_committed, Fault::NotCommitted),
                (rates.unknown_committed, Fault::UnknownCommitted),
                (rates.unknown_not_committed, Fault::UnknownNotCommitted),
                (rates.timed_out / 2.0, Fault::TimedOutCommitted),
                (rates.timed_out / 2.0, Fault::TimedOutNotCommitted),
            ]
            .into_iter()
            .find_map(|(rate, fault)| random.chance(rate).then_some(fault)),
        }
    }

    fn pause(&mut self) -> Option<Duration> {
        let FaultSource::Seeded { random, rates } = self else { return None };
        let nanos = u64::try_from(rates.longest.as_nanos()).unwrap_or(u64::MAX);
        random.chance(rates.latency).then(|| Duration::from_nanos(random.below(nanos.saturating_add(1))))
    }
}

/// A database whose transactions fail on purpose.
#[derive(Clone)]
pub struct Chaos<D> {
    inner: D,
    plan: Arc<Mutex<FaultSource>>,
    window: Option<usize>,
    hold: Option<Arc<Hold>>,
    watches: bool,
    versions: Option<Arc<AtomicU64>>,
    outage: Arc<AtomicBool>,
    /// Whether transactions in the background have to wait.
    starved: Option<watch::Receiver<bool>>,
    /// Number of answers 1051, if such transactions get that answer at once.
    refusals: Option<Arc<AtomicU64>>,
    in_background: bool,
}

impl<D: Database> Chaos<D> {
    /// A database without faults, except for one commit that is held.
    pub(crate) fn holding(inner: D, hold: Arc<Hold>) -> Self {
        Chaos { hold: Some(hold), ..Chaos::scripted(inner, []) }
    }

    /// Faults at these rates, drawn from `seed`. [`Rates::default`] has none.
    pub fn new(inner: D, seed: u64, rates: Rates) -> Self {
        Chaos::of(inner, FaultSource::Seeded { random: Random::new(seed), rates })
    }

    /// Each commit of a transaction that writes takes one entry. `None` lets the commit pass. After the end of the
    /// script, all commits pass.
    pub fn scripted(inner: D, faults: impl IntoIterator<Item = Option<Fault>>) -> Self {
        Chaos::of(inner, FaultSource::Script(faults.into_iter().collect()))
    }

    /// A store so slow that a read version becomes too old once a transaction has read in ranges and written this
    /// many bytes: the range read that passes the limit fails, or the commit.
    pub fn slow(inner: D, window: usize) -> Self {
        Chaos { window: Some(window), ..Chaos::scripted(inner, []) }
    }

    /// A store that already has as many watches as it allows: each further one fails (1032).
    pub fn without_watches(inner: D) -> Self {
        Chaos { watches: false, ..Chaos::scripted(inner, []) }
    }

    /// A store with the same rows and other versions: the number in `versions` is the read version, and each
    /// transaction that asks for a versionstamp takes the next one. Only for one writer at a time: numbers are taken
    /// before the commit.
    pub fn with_versions(inner: D, versions: Arc<AtomicU64>) -> Self {
        Chaos { versions: Some(versions), ..Chaos::scripted(inner, []) }
    }

    /// A store that does not answer while `outage` is true: reads, watches and commits that begin meanwhile fail as if
    /// their time had passed (1031), at once.
    pub fn with_outages(inner: D, outage: Arc<AtomicBool>) -> Self {
        Chaos { outage, ..Chaos::scripted(inner, []) }
    }

    /// A cluster at its limit: while `starved` is true, transactions in the [background](Database::in_background) get no
    /// answer.
    pub fn starving(inner: D, starved: watch::Receiver<bool>) -> Self {
        Chaos { starved: Some(starved), ..Chaos::scripted(inner, []) }
    }

    /// The same, but such transactions get the answer 1051 at once, which is counted in `refusals`. Like that of
    /// FoundationDB's engine, their `on_error` does not count that answer as a retry. Needs a tokio runtime with timers.
    pub fn refusing(inner: D, starved: watch::Receiver<bool>, refusals: Arc<AtomicU64>) -> Self {
        Chaos { refusals: Some(refusals), ..Chaos::starving(inner, starved) }
    }

    fn of(inner: D, plan: FaultSource) -> Self {
        Chaos {
            inner,
            plan: Arc::new(Mutex::new(plan)),
            window: None,
            hold: None,
            watches: true,
            versions: None,
            outage: Arc::default(),
            starved: None,
            refusals: None,
            in_background: false,
        }
    }
}

impl<D> fmt::Debug for Chaos<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chaos").field("plan", &self.plan).finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
impl<D: Database> Database for Chaos<D> {
    type Transaction = ChaosTransaction<D::Transaction>;

    fn begin(&self) -> Result<Self::Transaction> {
        Ok(ChaosTransaction {
            inner: self.inner.begin()?,
            plan: self.plan.clone(),
            window: self.window,
            hold: self.hold.clone(),
            watches: self.watches,
            versions: self.versions.clone(),
            outage: self.outage.clone(),
            starved: self.starved.clone().filter(|_| self.in_background),
            refusals: self.refusals.clone().filter(|_| self.in_background),
            attempt: Arc::default(),
        })
    }

    fn in_background(&self) -> Self {
        Chaos { inner: self.inner.in_background(), in_background: true, ..self.clone() }
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
    }

    fn compact(&self, begin: &[u8], end: &[u8]) {
        self.inner.compact(begin, end);
    }

    fn is_compacting(&self, begin: &[u8], end: &[u8]) -> bool {
        self.inner.is_compacting(begin, end)
    }

    fn disk_bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        self.inner.disk_bytes(begin, end)
    }

    fn figures(&self) -> Vec<Figure> {
        self.inner.figures()
    }

    fn snapshot(&self, folder: &Path) -> Result<()> {
        self.inner.snapshot(folder)
    }
}

/// State of a transaction since its last reset.
#[derive(Debug)]
struct Attempt {
    wrote: bool,
    /// Whether it commits when the store is full.
    frees_space: bool,
    /// Bytes read and written.
    bytes: usize,
    /// Error of every operation after a fault, until a reset.
    failed: Option<Error>,
    /// The version of its versionstamp, if the store has [other versions](Chaos::with_versions).
    stamp: Option<u64>,
    /// Fails watches and versionstamps after a commit that failed on purpose: the inner transaction does not know of
    /// that failure.
    doom: watch::Sender<Option<Error>>,
}

impl Default for Attempt {
    fn default() -> Self {
        Attempt {
            wrote: false,
            frees_space: false,
            bytes: 0,
            failed: None,
            stamp: None,
            doom: watch::Sender::new(None),
        }
    }
}

/// A transaction of a [`Chaos`] database.
#[derive(Clone, Debug)]
pub struct ChaosTransaction<T> {
    inner: T,
    plan: Arc<Mutex<FaultSource>>,
    window: Option<usize>,
    hold: Option<Arc<Hold>>,
    watches: bool,
    versions: Option<Arc<AtomicU64>>,
    outage: Arc<AtomicBool>,
    starved: Option<watch::Receiver<bool>>,
    refusals: Option<Arc<AtomicU64>>,
    attempt: Arc<Mutex<Attempt>>,
}

/// The bytes with a versionstamp at the offset given by the last four.
fn stamped(bytes: &[u8], stamp: Versionstamp) -> Vec<u8> {
    let (bytes, place) = bytes.split_at(bytes.len() - 4);
    let place = place.iter().rev().fold(0, |place, byte| place << 8 | usize::from(*byte));
    let mut out = bytes.to_vec();
    out[place..place + Versionstamp::LEN].copy_from_slice(stamp.as_bytes());
    out
}

impl<T: Transaction> ChaosTransaction<T> {
    fn check(&self) -> Result<()> {
        if self.outage.load(Ordering::SeqCst) {
            return Err(Error::new(TRANSACTION_TIMED_OUT));
        }
        if let (Some(refusals), Some(starved)) = (&self.refusals, &self.starved)
            && *starved.borrow()
        {
            refusals.fetch_add(1, Ordering::SeqCst);
            return Err(Error::new(BATCH_TRANSACTION_THROTTLED));
        }
        self.attempt.lock().failed.clone().map_or(Ok(()), Err)
    }

    /// Draws the fault of a read. A transaction that has failed keeps failing.
    fn before_read(&self) -> Result<()> {
        self.check()?;
        match self.plan.lock().of_read() {
            Some(error) => {
                self.attempt.lock().failed = Some(error.clone());
                Err(error)
            }
            None => Ok(()),
        }
    }

    fn pause(&self) -> impl Future<Output = ()> + Send + use<T> {
        let starved = self.starved.clone().filter(|_| self.refusals.is_none());
        let pause = self.plan.lock().pause();
        async move {
            if let Some(mut starved) = starved {
                // An error says that the switch is gone.
                let _ = starved.wait_for(|starved| !starved).await;
            }
            if let Some(pause) = pause {
                tokio::time::sleep(pause).await;
            }
        }
    }

    fn wrote(&self, bytes: usize) {
        let mut attempt = self.attempt.lock();
        attempt.wrote = true;
        attempt.bytes += bytes;
    }

    /// Counts bytes that were read or are committed. Fails once they exceed the window.
    fn took(&self, bytes: usize) -> Result<()> {
        let mut attempt = self.attempt.lock();
        attempt.bytes += bytes;
        if self.window.is_some_and(|window| attempt.bytes > window) {
            attempt.failed = Some(Error::new(TRANSACTION_TOO_OLD));
        }
        attempt.failed.clone().map_or(Ok(()), Err)
    }

    /// The outcome of `future`, unless this attempt fails on purpose first.
    fn unless_doomed<V, F>(&self, future: F) -> impl Future<Output = Result<V>> + Send + use<T, V, F>
    where
        V: Send,
        F: Future<Output = Result<V>> + Send,
    {
        let mut doom = self.attempt.lock().doom.subscribe();
        async move {
            let doomed = async move {
                loop {
                    if let Some(error) = doom.borrow_and_update().clone() {
                        return error;
                    }
                    if doom.changed().await.is_err() {
                        // The attempt ended without a fault.
                        std::future::pending::<()>().await;
                    }
                }
            };
            tokio::select! {
                biased;
                outcome = future => outcome,
                error = doomed => Err(error),
            }
        }
    }

    /// The versionstamp, if the store has other versions.
    fn other_stamp(&self) -> Option<Versionstamp> {
        let versions = self.versions.as_ref()?;
        let next = || versions.fetch_add(1, Ordering::SeqCst) + 1;
        Some(Versionstamp::new(*self.attempt.lock().stamp.get_or_insert_with(next), 0))
    }

    fn begin_attempt(attempt: &Mutex<Attempt>) {
        let before = std::mem::take(&mut *attempt.lock());
        if before.failed.is_some() {
            before.doom.send_replace(Some(Error::new(TRANSACTION_CANCELLED)));
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl<T: Transaction> Transaction for ChaosTransaction<T> {
    fn get_read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<T> {
        let version = self.check().map(|()| self.inner.get_read_version());
        let (pause, versions) = (self.pause(), self.versions.clone());
        async move {
            pause.await;
            let version = version?.await?;
            let other = versions.map(|versions| versions.load(Ordering::SeqCst));
            Ok(other.and_then(|other| i64::try_from(other).ok()).unwrap_or(version))
        }
    }

    fn set_read_version(&self, version: i64) {
        // The store does not know other versions.
        if self.versions.is_none() {
            self.inner.set_read_version(version);
        }
    }

    fn get(&self, key: &[u8], read: Read) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<T> {
        let value = self.before_read().map(|()| self.inner.get(key, read));
        let pause = self.pause();
        async move {
            pause.await;
            value?.await
        }
    }

    fn get_key(&self, selector: &KeySelector, read: Read) -> impl Future<Output = Result<Bytes>> + Send + use<T> {
        let key = self.before_read().map(|()| self.inner.get_key(selector, read));
        let pause = self.pause();
        async move {
            pause.await;
            key?.await
        }
    }

    fn get_range(
        &self,
        request: &RangeRequest,
        read: Read,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<T> {
        let batch = self.before_read().map(|()| self.inner.get_range(request, read));
        let (this, pause) = (self.clone(), self.pause());
        async move {
            pause.await;
            let batch = batch?.await?;
            if this.window.is_some() {
                this.took(batch.rows.iter().map(|row| row.key.len() + row.value.len()).sum())?;
            }
            Ok(batch)
        }
    }

    fn set(&self, key: impl IntoBytes, value: impl IntoBytes) {
        self.wrote(key.as_ref().len() + value.as_ref().len());
        self.inner.set(key, value);
    }

    fn clear(&self, key: &[u8]) {
        self.wrote(key.len());
        self.inner.clear(key);
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.wrote(begin.len() + end.len());
        self.inner.clear_range(begin, end);
    }

    fn atomic_op(&self, mutation: MutationType, key: impl IntoBytes, operand: impl IntoBytes) {
        self.wrote(key.as_ref().len() + operand.as_ref().len());
        let is_stamped = matches!(mutation, MutationType::SetVersionstampedKey | MutationType::SetVersionstampedValue);
        match if is_stamped { self.other_stamp() } else { None } {
            None => self.inner.atomic_op(mutation, key, operand),
            Some(stamp) if mutation == MutationType::SetVersionstampedKey => {
                self.inner.set(stamped(key.as_ref(), stamp), operand);
            }
            Some(stamp) => self.inner.set(key, stamped(operand.as_ref(), stamp)),
        }
    }

    fn add_conflict_range(&self, begin: &[u8], end: &[u8], side: ConflictRange) {
        if side == ConflictRange::Write {
            self.wrote(0);
        }
        self.inner.add_conflict_range(begin, end, side);
    }

    fn set_option(&self, option: TransactionOption) {
        self.attempt.lock().frees_space |= option == TransactionOption::BypassStorageQuota;
        self.inner.set_option(option);
    }

    fn get_approximate_size(&self) -> impl Future<Output = Result<u64>> + Send + use<T> {
        self.inner.get_approximate_size()
    }

    fn get_estimated_range_size(&self, begin: &[u8], end: &[u8]) -> impl Future<Output = Result<u64>> + Send + use<T> {
        self.inner.get_estimated_range_size(begin, end)
    }

    fn get_range_split_points(
        &self,
        begin: &[u8],
        end: &[u8],
        chunk_bytes: u64,
    ) -> impl Future<Output = Result<Vec<Bytes>>> + Send + use<T> {
        self.inner.get_range_split_points(begin, end, chunk_bytes)
    }

    fn get_versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<T> {
        let other = self.other_stamp();
        let stamp = self.unless_doomed(self.inner.get_versionstamp());
        async move {
            let stamp = stamp.await?;
            Ok(other.unwrap_or(stamp))
        }
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<T> {
        let allowed = if self.watches { Ok(()) } else { Err(Error::new(TOO_MANY_WATCHES)) };
        let watch = self.check().and(allowed).map(|()| self.unless_doomed(self.inner.watch(key)));
        async move { watch?.await }
    }

    fn commit(&self) -> impl Future<Output = Result<()>> + Send + use<T> {
        let this = self.clone();
        async move {
            this.check()?;
            if this.window.is_some() && this.attempt.lock().wrote {
                this.took(0)?;
            }
            let wrote = this.attempt.lock().wrote;
            if let Some(hold) = this.hold.as_ref().filter(|_| wrote) {
                hold.before_commit().await;
            }
            let fault = if wrote { this.plan.lock().of_commit() } else { None };
            let fault = fault.filter(|fault| *fault != Fault::Full || !this.attempt.lock().frees_space);
            this.pause().await;
            let Some(fault) = fault else { return this.inner.commit().await };
            if fault.committed() {
                this.inner.commit().await?;
            }
            let mut attempt = this.attempt.lock();
            attempt.failed = Some(Error::new(USED_DURING_COMMIT));
            attempt.doom.send_replace(Some(fault.error()));
            Err(fault.error())
        }
    }

    fn get_committed_version(&self) -> Result<i64> {
        self.inner.get_committed_version()
    }

    fn on_error(&self, error: Error) -> impl Future<Output = Result<()>> + Send + use<T> {
        let is_refused = self.refusals.is_some() && error.code() == BATCH_TRANSACTION_THROTTLED;
        let decided = (!is_refused).then(|| self.inner.on_error(error));
        let this = self.clone();
        async move {
            match decided {
                Some(decided) => decided.await?,
                None => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    // It forgets the retry limit, which callers set again.
                    this.inner.reset();
                }
            }
            Self::begin_attempt(&this.attempt);
            Ok(())
        }
    }

    fn reset(&self) {
        self.inner.reset();
        Self::begin_attempt(&self.attempt);
    }

    fn cancel(&self) {
        self.inner.cancel();
    }
}
