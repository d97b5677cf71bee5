//! The rules of databases whose documents are replications: who may write what, and who may read it.
//!
//! | client | may |
//! |---|---|
//! | administrator of the server | everything; the owner is the account that the document names, or else the administrator |
//! | a member of the database, whom its `_security` names | write, read and delete own documents, and read others' without credentials |
//! | anybody else | nothing, even if `_security` names nobody |
//!
//! A document is a member's own if its [owner](crate::http::replicator::owner) has the member's name and proved it likewise.
//!
//! Source: CouchDB's `couch_replicator_docs.erl`, and its documentation of the replicator database.

use async_trait::async_trait;
use hyper::StatusCode;
use model::limits::DESIGN_PREFIX;
use model::{Edit, GetOptions, JsonText, RevId, WriteMode};

use crate::http::access::principal::Principal;
use crate::http::app::stores::Documents;
use crate::http::authz::rules::Rules;
use crate::http::authz::security::Security;
use crate::http::error::{ApiError, Result};
use crate::http::replicator::owner::{Context, Owner, owner_of};
use crate::http::replicator::requested::without_credentials;
use crate::http::replicator::{documents, proven};
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};

/// The members of a document that may have credentials.
const SIDES: [&str; 2] = ["source", "target"];
/// The members of a document that others do not see.
const HIDDEN: [&str; 4] = ["proxy", "source_proxy", "target_proxy", proven::MEMBER];

/// The rules of databases whose documents are replications.
pub(crate) struct Replications;

#[async_trait]
impl Rules for Replications {
    /// Members must be named. A database that names nobody is no invitation to make the server connect to other ones.
    fn is_member(&self, security: &Security, principal: &Principal) -> bool {
        principal.name.is_some() && !security.is_public() && security.is_member(principal)
    }

    fn is_admin(&self, _: &Security, _: &Principal) -> bool {
        false
    }

    fn is_for_members(&self, path: &str) -> bool {
        matches!(path, "/{db}" | "/{db}/{docid}" | "/{db}/_bulk_docs")
    }

    /// Names the owner too.
    async fn admit(&self, request: &Request, db: &str, mode: WriteMode, edit: &mut Edit) -> Result<()> {
        documents::check(mode, edit)?;
        if edit.id.starts_with(DESIGN_PREFIX) {
            return Ok(());
        }
        let principal = &request.principal;
        if principal.is_server_admin() {
            // The revision of a replicated document is made from its body.
            if mode == WriteMode::Interactive && !edit.deleted {
                let context = edit.body.get("user_ctx");
                if context.is_some_and(|context| Context::read(context).is_none()) {
                    return Err(ApiError::forbidden("`user_ctx` must be an object with a name and a list of roles."));
                }
                edit.body = with_named_owner(request, db, edit).await?;
            }
            return Ok(());
        }
        let Some(name) = &principal.name else { return Err(of_others()) };
        if mode == WriteMode::Replicated {
            return Err(ApiError::forbidden("Only administrators may replicate documents of replications."));
        }
        require_own(request, db, edit).await?;
        if edit.deleted {
            return Ok(());
        }
        if owner_of(&edit.body).is_some_and(|named| named != *name) {
            return Err(of_others());
        }
        edit.body = Owner::of_client(principal).write_into(&request.app.auth, &edit.body)?;
        let Some(context) = edit.body.get("user_ctx") else { return Ok(()) };
        let is_own = |context: &Context| {
            context.name.as_ref() == Some(name) && context.roles.iter().all(|role| principal.roles.contains(role))
        };
        if !Context::read(context).is_some_and(|context| is_own(&context)) {
            return Err(ApiError::forbidden("The `user_ctx` must have your name, and roles that you have."));
        }
        Ok(())
    }

    async fn admit_deletion(&self, request: &Request, db: &str, id: &str, rev: Option<RevId>) -> Result<()> {
        if request.principal.is_server_admin() {
            return Ok(());
        }
        let edit = Edit { rev, ..Edit::new(id, JsonText::empty_object()).deleting() };
        require_own(request, db, &edit).await
    }

    fn refuse_unseen(&self, request: &Request, _: &str) -> Result<()> {
        self.require_admin(request)
    }

    /// What reads or writes documents in other ways.
    fn require_admin(&self, request: &Request) -> Result<()> {
        if !request.principal.is_server_admin() {
            return Err(ApiError::forbidden("Only administrators may do this in a replicator database."));
        }
        Ok(())
    }

    async fn hidden(&self, request: &Request, db: &str, id: &str) -> Result<Option<Response>> {
        if request.principal.is_server_admin() {
            return Ok(None);
        }
        if id.starts_with(DESIGN_PREFIX) || ["rev", "open_revs"].iter().any(|name| request.params.get(name).is_some()) {
            // An earlier revision may have been somebody else's.
            self.require_admin(request)?;
        }
        let get = |database: Documents| async move { Ok(database.get(id, &GetOptions::default()).await?) };
        let document = request.with_database(db, get).await?;
        if Owner::of_document(&request.app.auth, &document.body).is(&request.principal) {
            return Ok(None);
        }
        Ok(Some(response::object_with(StatusCode::OK, |json| {
            json.name("_id").str(id).name("_rev").display(&document.rev);
            for (name, value) in document.body.root().members().filter(|(name, _)| !HIDDEN.contains(&name.as_ref())) {
                match SIDES.contains(&name.as_ref()) {
                    false => drop(json.name(&name).value(value)),
                    true => drop(json.name(&name).str(&without_credentials(value).unwrap_or_default())),
                }
            }
        })))
    }
}

fn of_others() -> ApiError {
    ApiError::forbidden("Can't update replication documents from other users.")
}

/// The body with the owner whom an administrator names, or else with the administrator. An owner who wrote the document stays
/// who it is: of two clients with one name, the one that proved it as before.
async fn with_named_owner(request: &Request, db: &str, edit: &Edit) -> Result<JsonText> {
    let auth = &request.app.auth;
    let Owner { name, proven, .. } = Owner::of_document(auth, &edit.body);
    let is_given = edit.body.get(proven::MEMBER).is_some_and(|given| !given.is_null());
    let owner = match name {
        Some(_) if proven.is_some() => return Ok(edit.body.clone()),
        Some(name) => match replaced(request, db, edit).await? {
            Some(old) if old.name.as_ref() == Some(&name) && old.proven.is_some() => old,
            _ if is_given => {
                let reason = "The `owner_proof` is not this owner's for this replication; leave it out to name an account \
                              of this server.";
                return Err(ApiError::forbidden(reason));
            }
            _ => Owner::of_account(auth, name),
        },
        None if request.principal.name.is_none() => return Ok(edit.body.clone()),
        None => Owner::of_client(&request.principal),
    };
    owner.write_into(auth, &edit.body)
}

/// Refuses an edit of a document that somebody else owns.
async fn require_own(request: &Request, db: &str, edit: &Edit) -> Result<()> {
    match replaced(request, db, edit).await? {
        Some(owner) if !owner.is(&request.principal) => Err(of_others()),
        None if request.principal.name.is_none() => Err(of_others()),
        _ => Ok(()),
    }
}

/// The owner of the live document that an edit replaces. If another document is stored by the time of the write, the write
/// conflicts.
async fn replaced(request: &Request, db: &str, edit: &Edit) -> Result<Option<Owner>> {
    let (id, options) = (&edit.id, &GetOptions { rev: edit.rev.clone(), ..GetOptions::default() });
    let get = |database: Documents| async move { Ok(database.get(id, options).await?) };
    match request.with_database(db, get).await {
        Ok(document) if document.deleted => Ok(None),
        Ok(document) => Ok(Some(Owner::of_document(&request.app.auth, &document.body))),
        // A new one; or the write conflicts.
        Err(error) if error.status() == StatusCode::NOT_FOUND && !error.is_no_database() => Ok(None),
        Err(error) => Err(error),
    }
}
