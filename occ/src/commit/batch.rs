//! Adds the mutations of a transaction to a batch: fills versionstamps in and computes atomic operations.

use bytes::Bytes;
use kv_api::{MutationType, Result, Versionstamp};

use crate::mutation::{Mutation, Write, atomic, versionstamp};
use crate::store::{Batch, Snapshot};

/// Adds mutations in their order. An atomic operation reads what the batch has written so far, else `head`, the newest
/// snapshot. Calls `on_conflict` with each key that gets a write conflict. After an error of the store the batch is
/// unchanged and `on_conflict` was not called.
pub(super) fn add(
    batch: &mut Batch,
    mutations: Vec<Mutation>,
    stamp: &Versionstamp,
    head: &impl Snapshot,
    value_limit: usize,
    mut on_conflict: impl FnMut(&Bytes),
) -> Result<()> {
    // All reads come before the first write: a transaction that cannot read fails alone.
    let mut found = Vec::new();
    for mutation in &mutations {
        if let Mutation::Key { key, write: Write::Atomic(operation, _), .. } = mutation
            && !operation.is_versionstamped()
        {
            found.push(if batch.get(key).is_none() { head.get(key)? } else { None });
        }
    }
    let mut found = found.into_iter();
    for mutation in mutations {
        let (key, write) = match mutation {
            Mutation::Key { key, write, conflicts } => {
                if conflicts {
                    on_conflict(&key);
                }
                (key, write)
            }
            Mutation::ClearRange(range) if range.is_point() => (range.begin, Write::Set(None)),
            Mutation::ClearRange(range) => {
                batch.clear_range(range);
                continue;
            }
        };
        let (key, value) = match write {
            Write::Set(value) => (key, value),
            Write::Atomic(MutationType::SetVersionstampedKey, value) => {
                let key = versionstamp::fill(key, stamp);
                on_conflict(&key);
                (key, Some(value))
            }
            Write::Atomic(MutationType::SetVersionstampedValue, value) => (key, Some(versionstamp::fill(value, stamp))),
            Write::Atomic(operation, operand) => {
                let found = found.next().flatten();
                let existing = batch.get(&key).map_or(found, |value| value.cloned());
                (key, atomic::apply(operation, existing.as_ref(), &operand, value_limit))
            }
        };
        match value {
            Some(value) => batch.set(key, value),
            None => batch.clear(key),
        }
    }
    Ok(())
}
