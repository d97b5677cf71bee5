//! The steps of a tape.

use model::{Edit, RevId, WriteMode};

/// The edits, the purges or the patch that one client sends.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) client: usize,
    pub(super) mode: WriteMode,
    pub(super) edits: Vec<Edit>,
    /// Leaves of documents to purge, instead of edits.
    pub(super) purges: Vec<(String, Vec<RevId>)>,
    /// A patch, instead of edits.
    pub(super) patch: Option<Patch>,
    /// Whether all edits are one transaction of the client's own, together with its rows.
    pub(super) together: bool,
}

/// Sets the member `n` of a document, and removes the member `a`.
#[derive(Clone, Debug)]
pub(super) struct Patch {
    pub(super) id: String,
    /// The leaf; `None` for the winner.
    pub(super) rev: Option<RevId>,
    pub(super) n: u64,
}

/// One step.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A client writes.
    Write(Batch),
    /// Several clients write at the same time. No batch has two edits of a document.
    Race(Vec<Batch>),
    /// The number of revisions that a branch remembers is changed.
    RevsLimit(u32),
    /// A client builds indexes, for at most this many documents.
    BuildIndexes(usize, usize),
    /// A client brings the views up to date, for at most this many documents.
    UpdateViews(usize, usize),
}

/// Number of clients.
pub(super) const CLIENTS: usize = 3;
