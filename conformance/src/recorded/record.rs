//! Records tapes.

use std::collections::BTreeSet;
use std::fmt;

use kv_api::{Database, Error, MutationType, RangeRequest, Read, Transaction, Versionstamp};

use super::answer::{Answers, Unanswered};
use super::{FORMAT, Origin, Recording, Step};

use crate::tape::{Action, Instruction, TRANSACTIONS, generate};

/// The reason why a tape was not recorded.
#[derive(Clone, Debug)]
pub enum Unfit {
    /// The keyspace is not empty.
    NotEmpty,
    /// The engine broke a promise that every engine makes, at this step.
    Broken(usize, String),
    /// Elapsed time or other clients disturbed the recording. Another attempt on an empty keyspace may succeed.
    Disturbed(Error),
    /// Other clients committed at the same time, at this step. They influence the order in the batch, which is
    /// part of a stamp.
    Crowded(usize),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::NotEmpty => write!(f, "a tape is recorded in an empty keyspace, and this one is not"),
            Unfit::Broken(step, promise) => write!(f, "step {step}: {promise}"),
            Unfit::Disturbed(error) => write!(f, "the recording was disturbed: {error}"),
            Unfit::Crowded(step) => write!(f, "step {step}: others commit at the same time"),
        }
    }
}

impl std::error::Error for Unfit {}

/// Records the settled tape of `seed` on `database`, whose keyspace must be empty and used by nobody else: a
/// [`Prefixed`](kv_api::Prefixed) database, as in a replay. `engine` and `version` go into the [`Origin`].
///
/// # Errors
///
/// [`Unfit`]. The rows already written stay: the next attempt needs another keyspace.
pub async fn record<D: Database>(
    database: &D,
    engine: &str,
    version: &str,
    seed: u64,
    instructions: usize,
) -> Result<Recording, Unfit> {
    let everything = RangeRequest::keys("", b"\xff".as_slice()).limit(1);
    let first = database.begin().map_err(Unfit::Disturbed)?.get_range(&everything, Read::Snapshot).await;
    if !first.map_err(Unfit::Disturbed)?.rows.is_empty() {
        return Err(Unfit::NotEmpty);
    }
    let mut answers = Answers::new(database).map_err(Unfit::Disturbed)?;
    let mut steps = Vec::with_capacity(instructions);
    for (at, instruction) in settled(seed, instructions).into_iter().enumerate() {
        let answer = answers.answer(&instruction).await.map_err(|unanswered| match unanswered {
            Unanswered::Disturbed(error) => Unfit::Disturbed(error),
            Unanswered::Broken(promise) => Unfit::Broken(at, promise),
        })?;
        if answers.is_crowded() {
            return Err(Unfit::Crowded(at));
        }
        steps.push(Step { transaction: instruction.transaction, action: instruction.action, answer });
    }
    let origin = Origin { format: FORMAT, engine: engine.into(), version: version.into(), seed: Some(seed) };
    Ok(Recording::new(origin, steps))
}

/// More rows than any tape has.
const NO_BOUND: usize = 1_000;

/// The tape of `seed`, without everything that FoundationDB leaves open:
///
/// * A transaction asks for its read version before it reads, and before it sets a stamped key. Otherwise the
///   moment at which FoundationDB fetches it depends on its cache of the transaction.
/// * A range has no target size, which would count the bytes of the prefix. It has a limit: without one,
///   FoundationDB's client ends a batch where its cache of the transaction ends.
/// * An atomic operation on a key that ever gets a stamped value is an append. Most others would cut the stamp
///   into pieces, whose bytes differ between engines.
/// * The bytes after the stamp in stamped keys rise over the tape. A key stamped at the read version then sorts
///   before the range where a pending key may end up, and can be read. Otherwise that would depend on whether the
///   cluster's version has moved.
/// * There are no watches: they fire at no fixed moment.
/// * A cancelled transaction makes no invalid write, and one with an invalid write is not cancelled: the
///   precedence of the two errors is not documented.
pub fn settled(seed: u64, instructions: usize) -> Vec<Instruction> {
    // Twice as many, since some are left out.
    let drawn = generate(seed, instructions * 2);
    let stamped: BTreeSet<Vec<u8>> = drawn
        .iter()
        .filter_map(|instruction| match &instruction.action {
            Action::StampedValue { key, .. } => Some(key.clone()),
            _ => None,
        })
        .collect();
    let mut attempts = [Attempt::default(); TRANSACTIONS];
    let mut tape = Vec::with_capacity(instructions);
    let mut stamped_keys = 0;
    for mut instruction in drawn {
        let transaction = instruction.transaction;
        let attempt = &mut attempts[transaction];
        if matches!(instruction.action, Action::Watch { .. }) {
            continue;
        }
        let needs_version = match &mut instruction.action {
            Action::GetRange { request, .. } => {
                request.target_bytes = 0;
                if request.limit == 0 {
                    request.limit = NO_BOUND;
                }
                true
            }
            Action::Get { .. } | Action::GetKey { .. } => true,
            Action::StampedKey { template, .. } => {
                stamped_keys += 1;
                let after = format!("{stamped_keys:04}");
                *template =
                    [b"v", Versionstamp::PENDING.as_bytes().as_slice(), after.as_bytes(), &[1, 0, 0, 0]].concat();
                true
            }
            Action::Atomic { mutation, key, .. } if stamped.contains(key) => {
                *mutation = MutationType::AppendIfFits;
                false
            }
            _ => false,
        };
        if needs_version && !attempt.asked {
            tape.push(Instruction { transaction, action: Action::ReadVersion });
            attempt.asked = true;
        }
        match &instruction.action {
            Action::Cancel if attempt.wrong => continue,
            Action::Cancel => attempt.cancelled = true,
            Action::OnError { .. } if attempt.cancelled => {}
            Action::Commit | Action::OnError { .. } | Action::Reset => *attempt = Attempt::default(),
            Action::ReadVersion => attempt.asked = true,
            Action::SetReadVersion { .. } if !attempt.asked && !attempt.set => attempt.set = true,
            action if action.is_wrong() || matches!(action, Action::SetReadVersion { .. }) => {
                if attempt.cancelled {
                    continue;
                }
                attempt.wrong = true;
            }
            _ => {}
        }
        tape.push(instruction);
    }
    tape.truncate(instructions);
    tape
}

/// State of a transaction since it began.
#[derive(Clone, Copy, Debug, Default)]
struct Attempt {
    /// Whether its read version was asked for.
    asked: bool,
    /// Whether its read version may have been set.
    set: bool,
    cancelled: bool,
    wrong: bool,
}
