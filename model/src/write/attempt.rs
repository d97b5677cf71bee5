//! One attempt to write edits: what happens in one transaction, before it is committed.
//!
//! ```text
//!  decide      branches and stubs are read; each document gets a plan, or an error
//!  validate    plans that a validator refuses become errors
//!  prepare     everything else is read; edits that cannot be written become errors
//!  apply       the remaining plans become rows
//! ```
//!
//! Nothing is written before the last step, so each step before it can refuse a document without affecting the others.
//! Each step has its own file: [`decide`](super::decide), [`validate`](super::validate), and
//! [`prepare`](super::prepare) with the last one.

use kv_api::Database;

use super::draft::Draft;
use super::plan::Decided;
use super::verdicts::Verdicts;
use crate::documents::Documents;
use crate::rows::instance::Instance;
use crate::write::edit::WriteMode;

/// Target size of a batch of branches. It is large, so that a document's branches usually take one round trip.
pub(super) const TARGET_BYTES: usize = 8_000_000;

/// Edits of a database in a transaction.
pub(super) struct Attempt<'t, 'e, D: Database> {
    pub(super) documents: &'t Documents<D>,
    pub(super) transaction: &'t D::Transaction,
    /// The edits. Those of one document are adjacent.
    pub(super) drafts: &'t [Draft<'e>],
    pub(super) mode: WriteMode,
    /// The verdicts of all attempts.
    pub(super) verdicts: &'t Verdicts,
    pub(super) missing_stub: MissingStub,
}

/// The effect of an edit with a stub whose attachment is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MissingStub {
    /// It fails the whole batch, as in CouchDB.
    FailsTheBatch,
    /// Only this edit is refused.
    FailsItsEdit,
}

/// The decisions about the documents of an attempt.
pub(super) struct Decisions<'e> {
    pub(super) instance: Instance,
    pub(super) documents: Vec<Decided<'e>>,
}

impl<D: Database> Documents<D> {
    /// An attempt to write a whole batch.
    pub(super) fn attempt<'t, 'e>(
        &'t self,
        transaction: &'t D::Transaction,
        drafts: &'t [Draft<'e>],
        mode: WriteMode,
        verdicts: &'t Verdicts,
    ) -> Attempt<'t, 'e, D> {
        Attempt { documents: self, transaction, drafts, mode, verdicts, missing_stub: MissingStub::FailsTheBatch }
    }
}
