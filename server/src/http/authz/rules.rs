//! Databases that have rules of their own about who writes and reads their documents: those of users and those whose
//! documents are replications.
//!
//! Every path by which a client writes or reads such documents asks [`rules_of`](super::rules_of) for the rules. A way
//! of writing or reading that is not named in [`Rules::is_for_members`] is closed to all but administrators of the
//! server, before its handler runs.

use async_trait::async_trait;
use model::{Edit, RevId, WriteMode};

use crate::http::access::principal::Principal;
use crate::http::authz::security::Security;
use crate::http::error::Result;
use crate::http::request::Request;
use crate::http::wire::response::Response;

/// The rules of a database.
#[async_trait]
pub(crate) trait Rules: Send + Sync {
    /// Whether a client that is no server administrator may use the database.
    fn is_member(&self, security: &Security, principal: &Principal) -> bool;

    /// Whether a client that is no server administrator administers the database.
    fn is_admin(&self, security: &Security, principal: &Principal) -> bool;

    /// Whether members may ask for this path, within these rules. All others are for administrators of the server.
    fn is_for_members(&self, path: &str) -> bool;

    /// Admits a document, and changes it to what is stored.
    async fn admit(&self, request: &Request, db: &str, mode: WriteMode, edit: &mut Edit) -> Result<()>;

    /// Admits the deletion of a document.
    async fn admit_deletion(&self, request: &Request, db: &str, id: &str, rev: Option<RevId>) -> Result<()>;

    /// Refuses ways of writing a document whose result is not known before it is written.
    fn refuse_unseen(&self, request: &Request, id: &str) -> Result<()>;

    /// Refuses what only administrators may do with any document of the database.
    fn require_admin(&self, request: &Request) -> Result<()>;

    /// The answer to a client that may not read all of a document: `None` if it may.
    async fn hidden(&self, request: &Request, db: &str, id: &str) -> Result<Option<Response>>;
}
