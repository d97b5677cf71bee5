//! From the transactions of a round to one batch of sets and clears: versionstamps are filled in and
//! atomic operations settled, in the order of the transactions.
//!
//! Only atomic operations read: the store's head, under what the batch itself has written so far. A
//! round without any reads nothing and keeps no account of its own writes.

use std::collections::HashMap;

use bytes::Bytes;
use kv_api::{MutationType, Result, Versionstamp};

use crate::mutation::{Mutation, stamped};
use crate::store::{Batch, Op, View};
use crate::{KeyRange, atomic};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct BatchBuilder<'a, V> {
    batch: Batch,
    value_limit: usize,
    account: Option<Account<'a, V>>,
}

/// What the batch has written so far, for the atomic operations that follow.
#[derive(Debug)]
struct Account<'a, V> {
    head: &'a V,
    /// The last write of each key, with its place in the batch.
    points: HashMap<Bytes, (usize, Option<Bytes>)>,
    /// Range clears with their places, oldest first.
    clears: Vec<(usize, KeyRange)>,
}

impl<V: View> Account<'_, V> {
    fn get(&self, key: &Bytes) -> Result<Option<Bytes>> {
        let point = self.points.get(key);
        let cleared = self.clears.iter().rev().find(|(_, range)| range.begin <= *key && *key < range.end);
        match (point, cleared) {
            (Some((at, value)), Some((cleared_at, _))) if at > cleared_at => Ok(value.clone()),
            (_, Some(_)) => Ok(None),
            (Some((_, value)), None) => Ok(value.clone()),
            (None, None) => self.head.get(key),
        }
    }
}

impl<'a, V: View> BatchBuilder<'a, V> {
    /// A batch for `version`; `head` is given if any of its operations reads.
    pub(crate) fn new(version: i64, head: Option<&'a V>, value_limit: usize) -> Self {
        let account = head.map(|head| Account { head, points: HashMap::default(), clears: Vec::new() });
        BatchBuilder { batch: Batch { version, ops: Vec::new() }, value_limit, account }
    }

    /// Adds a transaction's mutations; `on_stamped_key` sees the keys that got its stamp. An error is
    /// the store's, and leaves the batch unusable.
    pub(crate) fn add(
        &mut self,
        mutations: Vec<Mutation>,
        stamp: &Versionstamp,
        mut on_stamped_key: impl FnMut(&Bytes),
    ) -> Result<()> {
        self.batch.ops.reserve(mutations.len() + 1);
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
                    let key = stamped(&key, stamp);
                    on_stamped_key(&key);
                    self.put(key, Some(operand));
                }
                Mutation::Atomic { operation: MutationType::SetVersionstampedValue, key, operand } => {
                    self.put(key, Some(stamped(&operand, stamp)));
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
        if let Some(account) = &mut self.account {
            account.points.insert(key.clone(), (self.batch.ops.len(), value.clone()));
        }
        self.batch.ops.push(match value {
            Some(value) => Op::Set { key, value },
            None => Op::Clear { key },
        });
    }
}
