//! Replications that the server runs by itself.
//!
//! ```text
//!  document of _replicator ── follower ──► job ──► run ──► completed or failed, in the document
//!  POST /_replicate, continuous ─────────► job ──► run ──► until it is cancelled
//!  POST /_replicate ─────────────────────► job ──► run ──► an answer, for which the client waits
//! ```
//!
//! | file | |
//! |---|---|
//! | [`requested`] | parses a document or a request into options |
//! | [`record`] | data and progress of a replication's job |
//! | [`run`] | runs a replication |
//! | [`owner`] | who owns a replication |
//! | [`proven`] | how the owner proved its name |
//! | [`side`] | a database of this server, used with the owner's rights |
//! | [`documents`] | follows databases whose documents are replications, and writes states into these |
//!
//! Invariants:
//! * A database whose documents are replications has a job on some server that follows its feed. So a document runs
//!   whatever wrote it, and a document written before a crash is found after it.
//! * A document that cannot run here is refused, or its state becomes `failed`.
//! * In databases of this server, a replication has its owner's current rights. The owner is a name with its proof; a
//!   name alone has no rights.
//! * Credentials are only in the document, or in the data of a request's job.
//!
//! Sources: CouchDB's `couch_replicator_doc_processor.erl`, `couch_replicator_docs.erl`, `couch_replicator_httpd.erl`,
//! and RFC 016; [0038](../../../../../docs/adr/0038-builds-and-replications-are-jobs.md).

pub(crate) mod documents;
pub(crate) mod owner;
pub(crate) mod proven;
pub(crate) mod record;
pub(crate) mod requested;
pub(crate) mod run;
mod side;

/// The suffix of replicator databases with other names.
const NAME: &str = "_replicator";

/// Whether documents of this database are replications in CouchDB.
pub(crate) fn has_jobs(database: &str) -> bool {
    database.strip_suffix(NAME).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}
