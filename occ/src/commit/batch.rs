//! From the transactions of a round to one batch of sets and clears: versionstamps are filled in and
//! atomic operations settled, in the order of the transactions.
//!
//! Only atomic operations read: the store's head, under what the batch itself has written so far. An
//! account is kept of the keys that they read, and of no others.

use bytes::Bytes;
use kv_api::{MutationType, Result, Versionstamp};

use crate::KeyRange;
use crate::mutation::versionstamp::Stamps;
use crate::mutation::{Mutation, atomic};
use crate::store::{Batch, Op, View};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct BatchBuilder<'a, V> {
    batch: Batch,
    value_limit: usize,
    account: Option<Account<'a, V>>,
    stamps: Stamps,
}

/// What the batch has written so far to the keys that atomic operations read.
#[derive(Debug)]
struct Account<'a, V> {
    head: &'a V,
    /// These keys, in their order.
    points: Vec<Point>,
    /// A bit for each of their lengths, which tells most other keys apart.
    lengths: u64,
    /// Range clears with their places, oldest first.
    clears: Vec<(usize, KeyRange)>,
}

#[derive(Debug)]
struct Point {
    key: Bytes,
    /// The last write of the key, with its place in the batch.
    last: Option<(usize, Option<Bytes>)>,
}

impl<V: View> Account<'_, V> {
    fn find(&self, key: &Bytes) -> Option<usize> {
        if self.lengths & length_bit(key) == 0 {
            return None;
        }
        self.points.binary_search_by(|point| point.key.cmp(key)).ok()
    }

    fn get(&self, key: &Bytes) -> Result<Option<Bytes>> {
        let point = self.find(key).and_then(|at| self.points[at].last.as_ref());
        let cleared = self.clears.iter().rev().find(|(_, range)| range.begin <= *key && *key < range.end);
        match (point, cleared) {
            (Some((at, value)), Some((cleared_at, _))) if at > cleared_at => Ok(value.clone()),
            (_, Some(_)) => Ok(None),
            (Some((_, value)), None) => Ok(value.clone()),
            (None, None) => self.head.get(key),
        }
    }
}

fn length_bit(key: &[u8]) -> u64 {
    1 << (key.len() % 64)
}

impl<'a, V: View> BatchBuilder<'a, V> {
    /// A batch for `version`, to which nothing but these mutations is going to be added; some of them
    /// may read `head`.
    pub(crate) fn new<'m>(
        version: i64,
        mutations: impl Iterator<Item = &'m Mutation>,
        head: &'a V,
        value_limit: usize,
    ) -> Self {
        let mut points: Vec<Point> =
            mutations.filter_map(Mutation::read_key).map(|key| Point { key: key.clone(), last: None }).collect();
        points.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        points.dedup_by(|a, b| a.key == b.key);
        let lengths = points.iter().fold(0, |lengths, point| lengths | length_bit(&point.key));
        let account = (!points.is_empty()).then(|| Account { head, points, lengths, clears: Vec::new() });
        BatchBuilder { batch: Batch { version, ops: Vec::new() }, value_limit, account, stamps: Stamps::default() }
    }

    /// Adds a transaction's mutations; `on_stamped_key` sees the keys that got its stamp. An error is
    /// the store's, and leaves the batch unusable.
    pub(crate) fn add(
        &mut self,
        mutations: Vec<Mutation>,
        stamp: &Versionstamp,
        mut on_stamped_key: impl FnMut(&Bytes),
    ) -> Result<()> {
        // And for what is going to keep the sample, and the version: moving very many rows again costs more.
        self.batch.ops.reserve(mutations.len() + mutations.len() / 64 + 4);
        self.stamps.expect(mutations.iter().map(Mutation::stamped_len).sum());
        for mutation in mutations {
            match mutation {
                Mutation::Set { key, value } => self.put(key, Some(value)),
                Mutation::ClearRange(range) if range.is_point() => self.put(range.begin, None),
                Mutation::ClearRange(range) => {
                    if let Some(account) = &mut self.account {
                        account.clears.push((self.batch.ops.len(), range.clone()));
                    }
                    self.batch.ops.push(Op::ClearRange { begin: range.begin, end: range.end });
                }
                Mutation::Atomic { operation: MutationType::SetVersionstampedKey, key, operand } => {
                    let key = self.stamps.fill(&key, stamp);
                    on_stamped_key(&key);
                    self.put(key, Some(operand));
                }
                Mutation::Atomic { operation: MutationType::SetVersionstampedValue, key, operand } => {
                    let value = self.stamps.fill(&operand, stamp);
                    self.put(key, Some(value));
                }
                Mutation::Atomic { operation, key, operand } => {
                    let existing = match &self.account {
                        Some(account) => account.get(&key)?,
                        None => None,
                    };
                    let value = atomic::apply(operation, existing.as_ref(), &operand, self.value_limit);
                    self.put(key, value);
                }
            }
        }
        Ok(())
    }

    /// The batch.
    pub(crate) fn finish(self) -> Batch {
        self.batch
    }

    fn put(&mut self, key: Bytes, value: Option<Bytes>) {
        if let Some(account) = &mut self.account
            && let Some(at) = account.find(&key)
        {
            account.points[at].last = Some((self.batch.ops.len(), value.clone()));
        }
        self.batch.ops.push(match value {
            Some(value) => Op::Set { key, value },
            None => Op::Clear { key },
        });
    }
}
