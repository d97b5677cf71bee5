//! Documents: single, in bulk, their revisions, their attachments, and local documents.

pub(crate) mod attachment;
pub(crate) mod bulk_docs;
pub(crate) mod bulk_get;
pub(crate) mod contents;
mod follow;
pub(crate) mod local;
mod open_revs;
pub(crate) mod patch;
pub(crate) mod read;
mod related;
pub(crate) mod revs_diff;
pub(crate) mod update;
pub(crate) mod write;

use model::limits::check_document_id;

use crate::http::error::{ApiError, Result};

/// 404 for an id that no document can have. (A write answers what is wrong with the id.)
fn require_possible(id: &str) -> Result<()> {
    check_document_id(id).map_err(|_| ApiError::not_found("missing"))
}
