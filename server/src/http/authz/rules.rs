//! Databases with their own rules about who writes and reads their documents: databases of users, and databases of
//! replications.
//!
//! Writes: the model calls its validator, which is the [`Writer`](super::writer) of each handle that writes, and that
//! asks the rules. Reads of a document ask [`Rules::hidden`]. A path for which [`Rules::is_for_members`] is false is
//! closed to everyone except administrators of the server, before its handler runs.

use async_trait::async_trait;
use model::{Edit, ErrorKind, WriteMode};

use crate::http::authn::principal::Principal;
use crate::http::authz::client::Client;
use crate::http::authz::security::Security;
use crate::http::error::{ApiError, Result};
use crate::http::wire::params::Params;
use crate::http::wire::response::Response;

/// The rules of a database.
#[async_trait]
pub(crate) trait Rules: Send + Sync {
    /// Whether a client that is not a server administrator may use the database.
    fn is_member(&self, security: &Security, principal: &Principal) -> bool;

    /// Whether a client that is not a server administrator administers the database.
    fn is_admin(&self, security: &Security, principal: &Principal) -> bool;

    /// Whether members may ask for this path, within these rules. All others are for administrators of the server.
    fn is_for_members(&self, path: &str) -> bool;

    /// Admits an edit, and changes it to the form that is stored.
    async fn admit(&self, client: &Client<'_>, mode: WriteMode, edit: &mut Edit) -> model::Result<()>;

    /// Refuses an edit of a document whose content is not known before it is written.
    fn refuse_computed(&self, client: &Client<'_>, id: &str) -> model::Result<()>;

    /// Refuses what only administrators may do with any document of the database.
    fn require_admin(&self, client: &Client<'_>) -> model::Result<()>;

    /// The answer to a client that may not read the whole of a document that it asks for with these parameters; `None`
    /// if it may.
    async fn hidden(&self, client: &Client<'_>, params: &Params, id: &str) -> Result<Option<Response>>;
}

/// A refusal of an edit by the rules, with the reason.
pub(crate) fn forbidden(reason: impl Into<String>) -> model::Error {
    ErrorKind::Forbidden(reason.into()).into()
}

/// An answer of the server as the model's refusal of an edit.
pub(crate) fn refusal(answer: ApiError) -> model::Error {
    let (status, error, reason) =
        (answer.status().as_u16(), answer.error().to_owned().into(), answer.reason().to_owned());
    ErrorKind::ValidationFailed { status, error, reason }.into()
}
