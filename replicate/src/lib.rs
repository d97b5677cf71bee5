//! CouchDB's replication between any two peers.
//!
//! ```text
//!  source                                         target
//!    _local/ID ───────── compared ───────────── _local/ID      where to start
//!    _changes  ─ rows ─► revisions ─ request ─► _revs_diff     the missing ones
//!    _bulk_get ◄──────── the missing ones ─────
//!              ─ leaves, with their histories ► _bulk_docs     new_edits=false
//!    attachment ─ leaves with attachments ────► PUT, multipart
//!                                               _ensure_full_commit
//!    _local/ID ◄──────── the same record ─────► _local/ID      the checkpoint
//! ```
//!
//! A replication can be started again at any time: an existing revision is not written again. The record, a checkpoint,
//! only saves work. It is written after the target has acknowledged everything up to it. Its format is CouchDB's, so
//! this crate can continue a CouchDB's replication, and the other way round.
//!
//! A document that the target refuses is counted and reported, and the others continue. Requests that fail temporarily
//! are repeated. If a peer stays unavailable, the replication ends, without a checkpoint beyond what the target has.
//!
//! While leaves are copied, the next pages of the feed are read and the target is asked about them. A target that had
//! no documents at the start is not asked until the feed's end is reached once: it lacks everything.
//!
//! Memory is bounded: a few pages of the feed and a few groups of leaves. The number of leaves in a group follows the
//! size of recent ones. Attachments are streams.
//!
//! Sources: CouchDB's documentation of the replication protocol, `couch_replicator_ids.erl`,
//! `couch_replicator_scheduler_job.erl`, `couch_replicator_worker.erl`.

mod checkpoint;
mod id;
mod options;
mod progress;
mod run;
mod stages;
mod transfer;

pub use id::{Endpoint, Identity};
pub use options::Options;
pub use progress::{Failed, Figures, Progress, Report};
pub use run::{Replication, replicate};
