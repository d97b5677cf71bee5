//! Adds the mutations of a transaction to a batch: fills versionstamps in and computes atomic operations.

use bytes::Bytes;
use kv_api::{MutationType, Result, Versionstamp};

use crate::mutation::{Mutation, Write, atomic, versionstamp};
use crate::store::{Batch, View};

/// Adds mutations in their order. An atomic operation reads what the batch has written so far, else `head`, the
/// newest snapshot. `on_conflict` is called with each key on which others conflict. After an error, which is the
/// store's, the batch is incomplete.
pub(super) fn add(
    batch: &mut Batch,
    mutations: Vec<Mutation>,
    stamp: &Versionstamp,
    head: &impl View,
    value_limit: usize,
    mut on_conflict: impl FnMut(&Bytes),
) -> Result<()> {
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
                let existing = match batch.get(&key) {
                    Some(value) => value.cloned(),
                    None => head.get(&key)?,
                };
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
