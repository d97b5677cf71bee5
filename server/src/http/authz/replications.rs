//! The rules of databases whose documents are replications: who may write what, and who may read it.
//!
//! | client | may |
//! |---|---|
//! | administrator of the server | everything except patches and copies; the owner is the account that the document names, or else the administrator |
//! | a member of the database, whom its `_security` names | write, read and delete own documents, and read others' without credentials |
//! | anybody else | nothing, even if `_security` names nobody |
//!
//! A document is a member's own if its [owner](crate::http::jobs::replicator::owner) has the member's name and proved
//! it likewise.
//!
//! Source: CouchDB's `couch_replicator_docs.erl`, and its documentation of the replicator database.

use async_trait::async_trait;
use hyper::StatusCode;
use model::limits::DESIGN_PREFIX;
use model::{Edit, ErrorKind, GetOptions, JsonText, NotFound, Result, WriteMode};

use crate::http::authn::auth::Auth;
use crate::http::authn::principal::Principal;
use crate::http::authz::client::Client;
use crate::http::authz::rules::{Rules, forbidden, refusal};
use crate::http::authz::security::Security;
use crate::http::error::ApiError;
use crate::http::jobs::replicator::owner::{Context, Owner, owner_of};
use crate::http::jobs::replicator::requested::without_credentials;
use crate::http::jobs::replicator::{documents, proven};
use crate::http::wire::params::Params;
use crate::http::wire::response::{self, Response};

/// The members of a document that may have credentials.
const SIDES: [&str; 2] = ["source", "target"];
/// The members of a document that others do not see.
const HIDDEN: [&str; 4] = ["proxy", "source_proxy", "target_proxy", proven::MEMBER];

/// The rules of databases whose documents are replications.
pub(crate) struct Replications;

#[async_trait]
impl Rules for Replications {
    /// Members must be named. A database that names nobody does not let everyone make the server connect to others.
    fn is_member(&self, security: &Security, principal: &Principal) -> bool {
        principal.name.is_some() && !security.is_public() && security.is_member(principal)
    }

    fn is_admin(&self, _: &Security, _: &Principal) -> bool {
        false
    }

    fn is_for_members(&self, path: &str) -> bool {
        matches!(path, "/{db}" | "/{db}/{docid}" | "/{db}/_bulk_docs")
    }

    /// Also names the owner.
    async fn admit(&self, client: &Client<'_>, mode: WriteMode, edit: &mut Edit) -> Result<()> {
        documents::check(mode, edit).map_err(refusal)?;
        if edit.id.starts_with(DESIGN_PREFIX) {
            return Ok(());
        }
        let Some(auth) = client.means.auth() else { return Ok(()) };
        let principal = client.principal;
        if principal.is_server_admin() {
            // The revision of a replicated document is made from its body.
            if mode == WriteMode::Interactive && !edit.deleted {
                let context = edit.body.get("user_ctx");
                if context.is_some_and(|context| Context::read(context).is_none()) {
                    return Err(forbidden("`user_ctx` must be an object with a name and a list of roles."));
                }
                edit.body = with_named_owner(client, auth, edit).await?;
            }
            return Ok(());
        }
        let Some(name) = &principal.name else { return Err(of_others()) };
        if mode == WriteMode::Replicated {
            return Err(forbidden("Only administrators may replicate documents of replications."));
        }
        let owns = |body: JsonText| Owner::of_document(auth, &body).is(principal);
        if !replaced(client, edit).await?.is_none_or(owns) {
            return Err(of_others());
        }
        if edit.deleted {
            return Ok(());
        }
        if owner_of(&edit.body).is_some_and(|named| named != *name) {
            return Err(of_others());
        }
        edit.body = Owner::of_client(principal).write_into(auth, &edit.body).map_err(refusal)?;
        let Some(context) = edit.body.get("user_ctx") else { return Ok(()) };
        let is_own = |context: &Context| {
            context.name.as_ref() == Some(name) && context.roles.iter().all(|role| principal.roles.contains(role))
        };
        if !Context::read(context).is_some_and(|context| is_own(&context)) {
            return Err(forbidden("The `user_ctx` must have your name, and roles that you have."));
        }
        Ok(())
    }

    fn refuse_computed(&self, client: &Client<'_>, id: &str) -> Result<()> {
        if !id.starts_with(DESIGN_PREFIX) {
            return Err(forbidden("Documents of replications are written whole."));
        }
        self.require_admin(client)
    }

    /// Refuses other ways to read or write documents.
    fn require_admin(&self, client: &Client<'_>) -> Result<()> {
        if !client.principal.is_server_admin() {
            return Err(forbidden("Only administrators may do this in a replicator database."));
        }
        Ok(())
    }

    async fn hidden(
        &self,
        client: &Client<'_>,
        params: &Params,
        id: &str,
    ) -> std::result::Result<Option<Response>, ApiError> {
        let Some(auth) = client.means.auth().filter(|_| !client.principal.is_server_admin()) else { return Ok(None) };
        if id.starts_with(DESIGN_PREFIX) || ["rev", "open_revs"].iter().any(|name| params.get(name).is_some()) {
            // An earlier revision may have been somebody else's.
            self.require_admin(client)?;
        }
        let document = client.database.get(id, &GetOptions::default()).await?;
        if Owner::of_document(auth, &document.body).is(client.principal) {
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

fn of_others() -> model::Error {
    forbidden("Can't update replication documents from other users.")
}

/// The body with the owner named by an administrator, or else with the administrator. An owner who wrote the document
/// and proved it stays the owner. Whoever writes an attachment sends no body, and so names nobody.
async fn with_named_owner(client: &Client<'_>, auth: &Auth, edit: &Edit) -> Result<JsonText> {
    let Owner { name, proven, .. } = Owner::of_document(auth, &edit.body);
    let old = replaced(client, edit).await?;
    if name.is_some() && proven.is_some() || old.as_ref() == Some(&edit.body) {
        return Ok(edit.body.clone());
    }
    let is_given = edit.body.get(proven::MEMBER).is_some_and(|given| !given.is_null());
    let owner = match name {
        Some(name) => match old.map(|old| Owner::of_document(auth, &old)) {
            Some(old) if old.name.as_ref() == Some(&name) && old.proven.is_some() => old,
            _ if is_given => {
                let reason = "The `owner_proof` is not this owner's for this replication; leave it out to name an account \
                              of this server.";
                return Err(forbidden(reason));
            }
            _ => Owner::of_account(auth, name),
        },
        None if client.principal.name.is_none() => return Ok(edit.body.clone()),
        None => Owner::of_client(client.principal),
    };
    owner.write_into(auth, &edit.body).map_err(refusal)
}

/// The body of the live document that an edit replaces. If another revision is stored before the write, the write
/// conflicts.
async fn replaced(client: &Client<'_>, edit: &Edit) -> Result<Option<JsonText>> {
    let options = &GetOptions { rev: edit.rev.clone(), ..GetOptions::default() };
    match client.database.get(&edit.id, options).await {
        Ok(document) => Ok((!document.deleted).then_some(document.body)),
        // The document is new, or the write will conflict.
        Err(error) if error.status() == 404 && *error.kind() != ErrorKind::NotFound(NotFound::Database) => Ok(None),
        Err(error) => Err(error),
    }
}
