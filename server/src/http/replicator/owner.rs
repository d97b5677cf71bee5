//! Who owns a replication, and the rights that it has in databases of this server.
//!
//! A document of `_replicator` names its owner, as in CouchDB: whoever wrote it. A replication reads and writes databases of
//! this server with the rights that its owner has at that time, so it stops when these end. Sides behind a URL have the
//! credentials that the replication names, whoever owns it.
//!
//! | client | may |
//! |---|---|
//! | administrator of the server | everything; the owner is the one that the document names, or else the administrator |
//! | a member of the database, whom its `_security` names | write, read and delete own documents, and read others' without credentials |
//! | anybody else | nothing, even if `_security` names nobody |
//!
//! `user_ctx` restricts the owner's roles. An administrator's document runs as the client that it describes.
//!
//! Source: CouchDB's `couch_replicator_docs.erl`, and its documentation of the replicator database.

use hyper::StatusCode;
use model::limits::DESIGN_PREFIX;
use model::{Edit, GetOptions, JsonRef, JsonText, WriteMode};

use crate::http::access::principal::{Principal, Proof};
use crate::http::access::security::Security;
use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::replicator::has_jobs;
use crate::http::replicator::requested::without_credentials;
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};

/// The members of a document that may have credentials.
const SIDES: [&str; 2] = ["source", "target"];
const PROXIES: [&str; 3] = ["proxy", "source_proxy", "target_proxy"];

/// The owner of a replication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    /// `None`: an administrator whose name this server cannot look up.
    pub(crate) name: Option<String>,
    context: Option<Context>,
}

/// A `user_ctx`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Context {
    name: Option<String>,
    roles: Vec<String>,
}

impl Context {
    /// `None` if it is malformed.
    fn read(context: JsonRef<'_>) -> Option<Context> {
        let name = match context.get("name").filter(|name| !name.is_null()) {
            Some(name) => Some(name.as_str()?.into_owned()),
            None => None,
        };
        let roles = context.get("roles").filter(|roles| roles.is_array());
        let roles = roles.map(|roles| roles.elements().map(|role| Some(role.as_str()?.into_owned())).collect());
        context.is_object().then_some(Context { name, roles: roles.unwrap_or_else(|| Some(Vec::new()))? })
    }
}

impl Owner {
    /// The owner of a document of `_replicator`. Only administrators can write one without an owner.
    pub(crate) fn of_document(body: &JsonText) -> Owner {
        // What is malformed has no rights.
        let context = body.get("user_ctx").map(|context| Context::read(context).unwrap_or_default());
        Owner { name: owner_of(body), context }
    }

    /// The owner with this name.
    pub(crate) fn named(name: Option<String>) -> Owner {
        Owner { name, context: None }
    }

    /// The owner that a client is, for what goes on after its request. Tokens and proxies, and a server without
    /// administrators, name nobody whom this server could look up later.
    pub(crate) fn of_client(principal: &Principal) -> Owner {
        Owner::named(lasting_name(principal))
    }

    /// The rights of the owner now.
    ///
    /// # Errors
    /// 403 if the owner cannot log in any more.
    pub(crate) async fn principal(&self, app: &App) -> Result<Principal> {
        let owner = match &self.name {
            None => Principal::party(),
            Some(name) => {
                let found = app.auth.by_name(&app.databases, name).await?;
                found
                    .ok_or_else(|| ApiError::forbidden(format!("the owner {name} of the replication has no account")))?
            }
        };
        Ok(match &self.context {
            None => owner,
            Some(Context { name, roles }) if owner.is_server_admin() => {
                Principal { name: name.clone(), roles: roles.clone(), proof: owner.proof }
            }
            Some(Context { roles, .. }) => {
                let roles = owner.roles.iter().filter(|role| roles.contains(role)).cloned().collect();
                Principal { roles, ..owner }
            }
        })
    }
}

fn owner_of(body: &JsonText) -> Option<String> {
    Some(body.get("owner")?.as_str()?.into_owned())
}

fn lasting_name(principal: &Principal) -> Option<String> {
    principal.name.clone().filter(|_| matches!(principal.proof, Proof::Basic | Proof::Cookie))
}

/// Whether a client that is no server administrator may use such a database: members must be named. A database that names
/// nobody is no invitation to make the server connect to other ones.
pub(crate) fn is_member(security: &Security, principal: &Principal) -> bool {
    principal.name.is_some() && !security.is_public() && security.is_member(principal)
}

/// Whether members may ask for this path, within the rules of this module. All others are for administrators of the server.
pub(crate) fn is_for_members(path: &str) -> bool {
    matches!(path, "/{db}" | "/{db}/{docid}" | "/{db}/_bulk_docs")
}

fn of_others() -> ApiError {
    ApiError::forbidden("Can't update replication documents from other users.")
}

/// Admits a document of such a database, and names its owner. Documents of other databases are left alone.
pub(crate) async fn admit(request: &Request, db: &str, mode: WriteMode, edit: &mut Edit) -> Result<()> {
    if !has_jobs(db) || edit.id.starts_with(DESIGN_PREFIX) {
        return Ok(());
    }
    let principal = &request.principal;
    let named = owner_of(&edit.body);
    if principal.is_server_admin() {
        let context = edit.body.get("user_ctx").filter(|_| mode == WriteMode::Interactive && !edit.deleted);
        if context.is_some_and(|context| Context::read(context).is_none()) {
            return Err(ApiError::forbidden("`user_ctx` must be an object with a name and a list of roles."));
        }
        // The revision of a replicated document is made from its body.
        let writer = lasting_name(principal).filter(|_| mode == WriteMode::Interactive && !edit.deleted);
        if let (None, Some(writer)) = (named, writer) {
            edit.body = with_owner(&edit.body, &writer)?;
        }
        return Ok(());
    }
    let Some(name) = &principal.name else { return Err(of_others()) };
    if mode == WriteMode::Replicated {
        return Err(ApiError::forbidden("Only administrators may replicate documents of replications."));
    }
    require_own(request, db, edit, name).await?;
    if edit.deleted {
        return Ok(());
    }
    match named {
        Some(named) if named != *name => return Err(of_others()),
        Some(_) => {}
        None => edit.body = with_owner(&edit.body, name)?,
    }
    let Some(context) = edit.body.get("user_ctx") else { return Ok(()) };
    let is_own = |context: &Context| {
        context.name.as_ref() == Some(name) && context.roles.iter().all(|role| principal.roles.contains(role))
    };
    if !Context::read(context).is_some_and(|context| is_own(&context)) {
        return Err(ApiError::forbidden("The `user_ctx` must have your name, and roles that you have."));
    }
    Ok(())
}

/// Admits the deletion of a document of such a database.
pub(crate) async fn admit_deletion(request: &Request, db: &str, edit: &Edit) -> Result<()> {
    match &request.principal.name {
        _ if !has_jobs(db) || request.principal.is_server_admin() => Ok(()),
        Some(name) => require_own(request, db, edit, name).await,
        None => Err(of_others()),
    }
}

/// Refuses an edit of a document that somebody else owns. If another document is stored by the time of the write, the
/// write conflicts.
async fn require_own(request: &Request, db: &str, edit: &Edit, name: &str) -> Result<()> {
    let (id, options) = (&edit.id, &GetOptions { rev: edit.rev.clone(), ..GetOptions::default() });
    let get = |database: Documents| async move { Ok(database.get(id, options).await?) };
    match request.with_database(db, get).await {
        Ok(document) if document.deleted || owner_of(&document.body).as_deref() == Some(name) => Ok(()),
        Ok(_) => Err(of_others()),
        // A new one; or the write conflicts.
        Err(error) if error.status() == StatusCode::NOT_FOUND && !error.is_no_database() => Ok(()),
        Err(error) => Err(error),
    }
}

fn with_owner(body: &JsonText, owner: &str) -> Result<JsonText> {
    let text = response::object_text(|json| {
        for (name, value) in body.root().members().filter(|(name, _)| name != "owner") {
            json.name(&name).value(value);
        }
        json.name("owner").str(owner);
    });
    JsonText::parse(&text).map_err(|_| ApiError::too_large())
}

/// Refuses what only administrators may do with documents of such a database: what reads or writes them in other ways.
pub(crate) fn require_admin(request: &Request, db: &str) -> Result<()> {
    if has_jobs(db) && !request.principal.is_server_admin() {
        return Err(ApiError::forbidden("Only administrators may do this in a replicator database."));
    }
    Ok(())
}

/// The answer to a member that reads somebody else's document: without credentials. `None` if it may read all of it.
pub(crate) async fn hidden(request: &Request, db: &str, id: &str) -> Result<Option<Response>> {
    if !has_jobs(db) || request.principal.is_server_admin() {
        return Ok(None);
    }
    if id.starts_with(DESIGN_PREFIX) || ["rev", "open_revs"].iter().any(|name| request.params.get(name).is_some()) {
        // An earlier revision may have been somebody else's.
        require_admin(request, db)?;
    }
    let get = |database: Documents| async move { Ok(database.get(id, &GetOptions::default()).await?) };
    let document = request.with_database(db, get).await?;
    if owner_of(&document.body).is_some_and(|owner| request.principal.name.as_ref() == Some(&owner)) {
        return Ok(None);
    }
    Ok(Some(response::object_with(StatusCode::OK, |json| {
        json.name("_id").str(id).name("_rev").display(&document.rev);
        for (name, value) in document.body.root().members().filter(|(name, _)| !PROXIES.contains(&name.as_ref())) {
            match SIDES.contains(&name.as_ref()) {
                false => drop(json.name(&name).value(value)),
                true => drop(json.name(&name).str(&without_credentials(value).unwrap_or_default())),
            }
        }
    })))
}
