//! Runs two engines side by side: the first difference between their answers ends the program, and is printed.
//!
//! ```text
//!              caller: sees A's versions and stamps
//!                 │
//!            Mirror<A, B>   translates A's versions and stamps to B's; learns them at each read version and commit
//!             ┌───┴───┐
//!             A       B
//! ```
//!
//! Must be equal: values, keys, rows, error codes, whether a commit wrote, and when a watch fires. May differ:
//! versions, stamps, sizes, estimates, and where a batch of unlimited size ends.
//!
//! Both engines must see the same order of events, so a mirror is for one thread. Its transactions may interleave
//! in any way.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use kv_api::{
    ConflictRange, Database, Durability, Error, Figure, IntoBytes, KeySelector, KeyValue, Limits, MutationType,
    RangeBatch, RangeRequest, Read, Result, Transaction, TransactionOption, Versionstamp,
};
use parking_lot::Mutex;

type Stamp = [u8; Versionstamp::LEN];

/// Translates between A and B.
#[derive(Debug, Default)]
struct Pairs {
    versions: BTreeMap<i64, i64>,
    stamps: HashMap<Stamp, Stamp>,
}

impl Pairs {
    /// B's version for one of A's. An unknown one becomes the version that sees the same commits.
    fn version(&self, version: i64) -> i64 {
        match self.versions.range(..=version).next_back() {
            Some((&a, &b)) if a == version => b,
            // Beyond all known versions: as far in the future as A's.
            Some((&a, &b)) if self.versions.range(version..).next().is_none() => b.saturating_add(version - a),
            Some((_, &b)) => b,
            None => version,
        }
    }

    /// Bytes in which every stamp of A is replaced by B's.
    fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut translated = bytes.to_vec();
        if self.stamps.is_empty() {
            return translated;
        }
        let mut at = 0;
        while let Some(stamp) = bytes.get(at..).and_then(|rest| rest.first_chunk::<{ Versionstamp::LEN }>()) {
            match self.stamps.get(stamp) {
                Some(other) => {
                    translated[at..at + Versionstamp::LEN].copy_from_slice(other);
                    at += Versionstamp::LEN;
                }
                None => at += 1,
            }
        }
        translated
    }

    fn same(&self, a: &[u8], b: &[u8]) -> bool {
        a == b || self.bytes(a) == b
    }

    fn same_row(&self, a: &KeyValue, b: &KeyValue) -> bool {
        self.same(&a.key, &b.key) && self.same(&a.value, &b.value)
    }
}

fn differ(what: &str, a: &dyn Debug, b: &dyn Debug) -> ! {
    panic!("the mirrored engines differ: {what}\n  first:  {a:?}\n  second: {b:?}")
}

/// A's value, if both have one and `same` holds for them, or if both have the same error.
fn agree<T: Debug>(what: &str, a: Result<T>, b: Result<T>, same: impl FnOnce(&T, &T) -> bool) -> Result<T> {
    match (a, b) {
        (Ok(a), Ok(b)) if same(&a, &b) => Ok(a),
        (Err(a), Err(b)) if a == b => Err(a),
        (a, b) => differ(what, &a, &b),
    }
}

/// Two databases as one.
///
/// # Panics
///
/// Every operation of the mirror and of its transactions panics when the two engines differ.
#[derive(Clone, Debug)]
pub struct Mirror<A, B> {
    a: A,
    b: B,
    pairs: Arc<Mutex<Pairs>>,
}

impl<A: Database, B: Database> Mirror<A, B> {
    /// Mirrors two databases with the same contents; empty ones are best.
    pub fn new(a: A, b: B) -> Self {
        Mirror { a, b, pairs: Arc::default() }
    }
}

#[deny(clippy::missing_trait_methods)]
impl<A: Database, B: Database> Database for Mirror<A, B> {
    type Transaction = MirrorTransaction<A::Transaction, B::Transaction>;

    fn begin(&self) -> Result<Self::Transaction> {
        match (self.a.begin(), self.b.begin()) {
            (Ok(a), Ok(b)) => Ok(MirrorTransaction { a, b, pairs: self.pairs.clone() }),
            (Err(a), Err(b)) if a == b => Err(a),
            (a, b) => differ("begin", &a.map(drop), &b.map(drop)),
        }
    }

    fn in_background(&self) -> Self {
        Mirror { a: self.a.in_background(), b: self.b.in_background(), pairs: self.pairs.clone() }
    }

    fn limits(&self) -> Limits {
        let (mut limits, b) = (self.a.limits(), self.b.limits());
        limits.key_bytes = limits.key_bytes.min(b.key_bytes);
        limits.value_bytes = limits.value_bytes.min(b.value_bytes);
        limits.transaction_bytes = limits.transaction_bytes.min(b.transaction_bytes);
        limits.read_window = limits.read_window.min(b.read_window);
        limits.watches = limits.watches.min(b.watches);
        limits
    }

    fn durability(&self) -> Durability {
        self.a.durability()
    }

    fn compact(&self, begin: &[u8], end: &[u8]) {
        self.a.compact(begin, end);
        self.b.compact(begin, end);
    }

    fn is_compacting(&self, begin: &[u8], end: &[u8]) -> bool {
        self.a.is_compacting(begin, end) || self.b.is_compacting(begin, end)
    }

    fn disk_bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        Some(self.a.disk_bytes(begin, end)? + self.b.disk_bytes(begin, end)?)
    }

    fn figures(&self) -> Vec<Figure> {
        self.a.figures()
    }

    fn snapshot(&self, folder: &Path) -> Result<()> {
        self.a.snapshot(folder)
    }
}

/// A transaction of a [`Mirror`].
#[derive(Clone, Debug)]
pub struct MirrorTransaction<A, B> {
    a: A,
    b: B,
    pairs: Arc<Mutex<Pairs>>,
}

impl<A: Transaction, B: Transaction> MirrorTransaction<A, B> {
    fn translate(&self, bytes: &[u8]) -> Vec<u8> {
        self.pairs.lock().bytes(bytes)
    }

    fn translate_selector(&self, selector: &KeySelector) -> KeySelector {
        KeySelector { key: self.translate(&selector.key).into(), ..selector.clone() }
    }
}

#[deny(clippy::missing_trait_methods)]
impl<A: Transaction, B: Transaction> Transaction for MirrorTransaction<A, B> {
    fn get_read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<A, B> {
        let (a, b) = (self.a.get_read_version(), self.b.get_read_version());
        let pairs = self.pairs.clone();
        async move {
            let (a, b) = (a.await, b.await);
            if let (Ok(a), Ok(b)) = (&a, &b) {
                pairs.lock().versions.insert(*a, *b);
            }
            agree("the read version", a, b, |_, _| true)
        }
    }

    fn set_read_version(&self, version: i64) {
        self.a.set_read_version(version);
        self.b.set_read_version(self.pairs.lock().version(version));
    }

    fn get(&self, key: &[u8], read: Read) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<A, B> {
        let (a, b) = (self.a.get(key, read), self.b.get(&self.translate(key), read));
        let (pairs, key) = (self.pairs.clone(), Bytes::copy_from_slice(key));
        async move {
            let (a, b) = (a.await, b.await);
            agree(&format!("the value of {key:?}"), a, b, |a, b| match (a, b) {
                (Some(a), Some(b)) => pairs.lock().same(a, b),
                (a, b) => a.is_none() && b.is_none(),
            })
        }
    }

    fn get_key(&self, selector: &KeySelector, read: Read) -> impl Future<Output = Result<Bytes>> + Send + use<A, B> {
        let (a, b) = (self.a.get_key(selector, read), self.b.get_key(&self.translate_selector(selector), read));
        let (pairs, selector) = (self.pairs.clone(), selector.clone());
        async move {
            let (a, b) = (a.await, b.await);
            agree(&format!("the key of {selector:?}"), a, b, |a, b| pairs.lock().same(a, b))
        }
    }

    fn get_range(
        &self,
        request: &RangeRequest,
        read: Read,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<A, B> {
        let translated = RangeRequest {
            begin: self.translate_selector(&request.begin),
            end: self.translate_selector(&request.end),
            ..request.clone()
        };
        let (a, b) = (self.a.get_range(request, read), self.b.get_range(&translated, read));
        let (pairs, request) = (self.pairs.clone(), request.clone());
        async move {
            let (a, b) = (a.await, b.await);
            // The engine decides where a batch ends, and so whether it meets an error beyond that point.
            let left_open = request.limit == 0 || request.target_bytes > 0;
            match (&a, &b) {
                (Ok(batch), Err(_)) | (Err(_), Ok(batch)) if left_open && batch.more => return a,
                _ => {}
            }
            let shorter = a.as_ref().map_or(0, |a| a.rows.len()).min(b.as_ref().map_or(0, |b| b.rows.len()));
            let mut batch = agree(&format!("the rows of {request:?}"), a, b, |a, b| {
                let pairs = pairs.lock();
                // A batch may end earlier in one engine, if it says that more follow.
                let rest = |batch: &RangeBatch| batch.rows.len() > shorter;
                let ended = match (rest(a), rest(b)) {
                    (true, _) => b.more,
                    (_, true) => a.more,
                    // An engine with an unlimited batch may not know whether there is more.
                    (false, false) => a.more == b.more || left_open,
                };
                ended && a.rows.iter().zip(&b.rows).all(|(a, b)| pairs.same_row(a, b))
            })?;
            if batch.rows.len() > shorter {
                batch.rows.truncate(shorter);
                batch.more = true;
            }
            Ok(batch)
        }
    }

    fn set(&self, key: impl IntoBytes, value: impl IntoBytes) {
        self.b.set(self.translate(key.as_ref()), self.translate(value.as_ref()));
        self.a.set(key, value);
    }

    fn clear(&self, key: &[u8]) {
        self.a.clear(key);
        self.b.clear(&self.translate(key));
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.a.clear_range(begin, end);
        self.b.clear_range(&self.translate(begin), &self.translate(end));
    }

    fn atomic_op(&self, mutation: MutationType, key: impl IntoBytes, operand: impl IntoBytes) {
        self.b.atomic_op(mutation, self.translate(key.as_ref()), self.translate(operand.as_ref()));
        self.a.atomic_op(mutation, key, operand);
    }

    fn add_conflict_range(&self, begin: &[u8], end: &[u8], side: ConflictRange) {
        self.a.add_conflict_range(begin, end, side);
        self.b.add_conflict_range(&self.translate(begin), &self.translate(end), side);
    }

    fn set_option(&self, option: TransactionOption) {
        self.a.set_option(option);
        self.b.set_option(option);
    }

    fn get_approximate_size(&self) -> impl Future<Output = Result<u64>> + Send + use<A, B> {
        let (a, b) = (self.a.get_approximate_size(), self.b.get_approximate_size());
        async move { agree("the size so far", a.await, b.await, |_, _| true) }
    }

    fn get_estimated_range_size(
        &self,
        begin: &[u8],
        end: &[u8],
    ) -> impl Future<Output = Result<u64>> + Send + use<A, B> {
        let a = self.a.get_estimated_range_size(begin, end);
        let b = self.b.get_estimated_range_size(&self.translate(begin), &self.translate(end));
        async move { agree("the estimated size", a.await, b.await, |_, _| true) }
    }

    fn get_range_split_points(
        &self,
        begin: &[u8],
        end: &[u8],
        chunk_bytes: u64,
    ) -> impl Future<Output = Result<Vec<Bytes>>> + Send + use<A, B> {
        let a = self.a.get_range_split_points(begin, end, chunk_bytes);
        let b = self.b.get_range_split_points(&self.translate(begin), &self.translate(end), chunk_bytes);
        async move { agree("the split points", a.await, b.await, |_, _| true) }
    }

    fn get_versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<A, B> {
        let (a, b) = (self.a.get_versionstamp(), self.b.get_versionstamp());
        async move {
            match (a.await, b.await) {
                (Ok(a), Ok(_)) => Ok(a),
                // Engines may give different errors for the stamp of a failed commit.
                (Err(a), Err(_)) => Err(a),
                (a, b) => differ("the versionstamp", &a, &b),
            }
        }
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<A, B> {
        let (a, b) = (self.a.watch(key), self.b.watch(&self.translate(key)));
        async move {
            // A watch that fires in only one engine shows here as a watch that never ends.
            let (a, b) = tokio::join!(a, b);
            agree("a watch", a, b, |(), ()| true)
        }
    }

    fn commit(&self) -> impl Future<Output = Result<()>> + Send + use<A, B> {
        let this = self.clone();
        async move {
            let stamps = (this.a.get_versionstamp(), this.b.get_versionstamp());
            // Both commits are in progress together, so calls made during one are made during both.
            let (a, b) = tokio::join!(this.a.commit(), this.b.commit());
            if a.is_ok() && b.is_ok() {
                let versions = (this.a.get_committed_version()?, this.b.get_committed_version()?);
                match versions {
                    (-1, -1) => {}
                    (-1, _) | (_, -1) => differ("whether the commit wrote", &versions.0, &versions.1),
                    (version_a, version_b) => {
                        let (stamp_a, stamp_b) = (stamps.0.await?, stamps.1.await?);
                        let mut pairs = this.pairs.lock();
                        pairs.versions.insert(version_a, version_b);
                        pairs.stamps.insert(*stamp_a.as_bytes(), *stamp_b.as_bytes());
                    }
                }
            }
            agree("the commit", a, b, |(), ()| true)
        }
    }

    fn get_committed_version(&self) -> Result<i64> {
        let (a, b) = (self.a.get_committed_version(), self.b.get_committed_version());
        agree("the committed version", a, b, |a, b| (*a == -1) == (*b == -1))
    }

    fn on_error(&self, error: Error) -> impl Future<Output = Result<()>> + Send + use<A, B> {
        let (a, b) = (self.a.on_error(error.clone()), self.b.on_error(error));
        async move {
            let (a, b) = tokio::join!(a, b);
            agree("on_error", a, b, |(), ()| true)
        }
    }

    fn reset(&self) {
        self.a.reset();
        self.b.reset();
    }

    fn cancel(&self) {
        self.a.cancel();
        self.b.cancel();
    }
}
