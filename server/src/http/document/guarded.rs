//! Documents whose database has rules of its own about who writes and reads them: those of users ([`registration`]) and
//! those that are replications ([`owner`]).

use model::{Edit, JsonText, RevId, WriteMode};

use crate::http::access::{registration, users};
use crate::http::error::Result;
use crate::http::replicator::{self, owner};
use crate::http::request::Request;
use crate::http::wire::response::Response;

/// Whether a database has such rules. The functions of this module do nothing for other databases. Callers ask this first
/// where the future of such a call would make a common request slower.
pub(crate) fn has_rules(db: &str) -> bool {
    db == users::DATABASE || replicator::has_jobs(db)
}

/// Admits a document, and changes it to what is stored.
pub(crate) async fn admit(request: &Request, db: &str, mode: WriteMode, edit: &mut Edit) -> Result<()> {
    registration::admit(request, db, mode, edit).await?;
    owner::admit(request, db, mode, edit).await
}

/// Admits the deletion of a document.
pub(crate) async fn admit_deletion(request: &Request, db: &str, id: &str, rev: Option<RevId>) -> Result<()> {
    registration::admit_deletion(request, db, id)?;
    let edit = Edit { rev, ..Edit::new(id, JsonText::empty_object()).deleting() };
    owner::admit_deletion(request, db, &edit).await
}

/// Refuses ways of writing a document whose result is not known before it is written.
pub(crate) fn refuse_unseen(request: &Request, db: &str, id: &str) -> Result<()> {
    registration::refuse_unseen(db, id)?;
    owner::require_admin(request, db)
}

/// Refuses what only administrators may do with any document of such a database.
pub(crate) fn require_admin(request: &Request, db: &str) -> Result<()> {
    registration::require_admin(request, db)?;
    owner::require_admin(request, db)
}

/// The answer to a client that may not read all of a document: `None` if it may.
pub(crate) async fn hidden(request: &Request, db: &str, id: &str) -> Result<Option<Response>> {
    match registration::hidden(request, db, id).await? {
        None => owner::hidden(request, db, id).await,
        answer => Ok(answer),
    }
}
