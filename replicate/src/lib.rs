//! CouchDB's replication between any two peers.
//!
//! ```text
//!  source                                         target
//!    _local/ID ───────── compared ───────────── _local/ID      where to begin
//!    _changes  ─ rows ─► revisions ── asked ──► _revs_diff     which are missing
//!    _bulk_get ◄──────── those of them ────────
//!              ─ leaves, with their histories ► _bulk_docs     new_edits=false
//!    attachment ─ leaves with attachments ────► PUT, in parts
//!                                               _ensure_full_commit
//!    _local/ID ◄──────── the same record ─────► _local/ID      how far it came
//! ```
//!
//! A replication can be begun again at any moment: a revision that is there is not written again. The record, a
//! checkpoint, only saves work. It is written when the target has acknowledged everything up to it, and it is
//! CouchDB's, so that a replication which a CouchDB began goes on here and the other way round.
//!
//! A document that the target refuses is counted and named, and the others go on. A peer that fails for a moment is
//! asked again; one that stays away ends the replication, without a checkpoint behind what it took.
//!
//! Memory is bounded: a page of the feed, and a few groups of leaves whose size follows what the last ones were.
//! Attachments are streams.
//!
//! Sources: CouchDB's documentation of the replication protocol, `couch_replicator_ids.erl`,
//! `couch_replicator_scheduler_job.erl`, `couch_replicator_worker.erl`.

mod checkpoint;
mod id;
mod progress;
mod run;
mod transfer;

pub use id::{Endpoint, Identity};
pub use progress::{Failed, Figures, Progress, Report};
pub use run::{Options, Replication, replicate};
