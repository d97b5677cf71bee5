//! Who owns a replication, and the rights that it has in databases of this server.
//!
//! A document of `_replicator` names its owner, as in CouchDB: whoever wrote it. Beside the name it has how this was
//! [proved](super::proven), without which it has no rights. A replication reads and writes databases of this server with the
//! rights that its owner has at that time, so it stops when these end. Sides behind a URL have the credentials that the
//! replication names, whoever owns it.
//!
//! | client | may |
//! |---|---|
//! | administrator of the server | everything; the owner is the account that the document names, or else the administrator |
//! | a member of the database, whom its `_security` names | write, read and delete own documents, and read others' without credentials |
//! | anybody else | nothing, even if `_security` names nobody |
//!
//! A document is a member's own if its owner has the member's name and proved it likewise. `user_ctx` restricts the owner's
//! roles. An administrator's document runs as the client that it describes.
//!
//! Source: CouchDB's `couch_replicator_docs.erl`, and its documentation of the replicator database.

use hyper::StatusCode;
use model::limits::DESIGN_PREFIX;
use model::{Edit, GetOptions, JsonRef, JsonText, WriteMode};

use crate::http::access::auth::Auth;
use crate::http::access::principal::Principal;
use crate::http::access::security::Security;
use crate::http::access::session::seconds_now;
use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::replicator::has_jobs;
use crate::http::replicator::proven::{self, Proven};

use crate::http::replicator::requested::without_credentials;
use crate::http::request::Request;
use crate::http::wire::response::{self, Response, json_object};

/// The members of a document that may have credentials.
const SIDES: [&str; 2] = ["source", "target"];
/// The members of a document that others do not see.
const HIDDEN: [&str; 4] = ["proxy", "source_proxy", "target_proxy", proven::MEMBER];

/// The member of a document that names its owner.
const OWNER: &str = "owner";

/// The owner of a replication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    /// `None`: everyone, on a server without administrators.
    pub(crate) name: Option<String>,
    /// `None` if nothing proves that it was the owner who asked for the replication.
    proven: Option<Proven>,
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
    /// The owner of a document of `_replicator`.
    pub(crate) fn of_document(auth: &Auth, body: &JsonText) -> Owner {
        let name = owner_of(body);
        let proven = name.as_ref().and_then(|name| Proven::of_document(auth, body, name));
        // What is malformed has no rights.
        let context = body.get("user_ctx").map(|context| Context::read(context).unwrap_or_default());
        Owner { name, proven, context }
    }

    /// The owner that a client is, for what goes on after its request.
    pub(crate) fn of_client(principal: &Principal) -> Owner {
        Owner { name: principal.name.clone(), proven: Proven::of_client(principal), context: None }
    }

    /// The account with this name, which an administrator names.
    fn of_account(auth: &Auth, name: String) -> Owner {
        Owner { proven: Some(Proven::of_account(auth, &name)), name: Some(name), context: None }
    }

    /// An owner of whom only the name is known.
    pub(crate) fn unproven(name: Option<String>) -> Owner {
        Owner { name, ..Owner::default() }
    }

    /// Reads the owner in a job's data. Only servers write these.
    pub(crate) fn read(stored: JsonRef<'_>) -> Option<Owner> {
        let name = match stored.get("name")? {
            name if name.is_null() => None,
            name => Some(name.as_str()?.into_owned()),
        };
        Some(Owner { name, proven: Proven::read(stored), context: None })
    }

    /// The owner for a job's data.
    pub(crate) fn to_json(&self) -> JsonText {
        json_object(|json| {
            match &self.name {
                Some(name) => json.name("name").str(name),
                None => json.name("name").null(),
            };
            if let Some(proven) = &self.proven {
                proven.write(json);
            }
        })
    }

    /// Whether this client is the owner.
    fn is(&self, principal: &Principal) -> bool {
        let proven = self.proven.as_ref().zip(Proven::of_client(principal));
        self.name.is_some() && self.name == principal.name && proven.is_some_and(|(own, other)| own.is_like(&other))
    }

    /// The name and its proof; `None` if everyone owns it, and is an administrator.
    fn known(&self, auth: &Auth) -> Result<Option<(&str, &Proven)>> {
        let refused = |reason: String| Err(ApiError::forbidden(reason));
        match (&self.name, &self.proven) {
            (None, _) if auth.is_party() => Ok(None),
            (None, _) => refused("nobody owns the replication; an administrator has to ask for it again".to_owned()),
            (Some(name), None) => refused(format!(
                "nothing proves that {name} owns the replication; an administrator has to ask for it again"
            )),
            (Some(name), Some(proven)) if proven.is_over(seconds_now()) => {
                refused(format!("the token of the owner {name} of the replication has expired"))
            }
            (Some(name), Some(proven)) => Ok(Some((name, proven))),
        }
    }

    /// # Errors
    /// 403 if the owner has no rights, and never will.
    pub(crate) fn require_rights(&self, auth: &Auth) -> Result<()> {
        self.known(auth).map(drop)
    }

    /// The rights of the owner now.
    ///
    /// # Errors
    /// 401 and 403 if the owner could not send a request now.
    pub(crate) async fn principal(&self, app: &App) -> Result<Principal> {
        let owner = match self.known(&app.auth)? {
            None => Principal::party(),
            Some((name, proven)) => proven.principal(app, name).await?,
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

    /// The body with this owner.
    fn write_into(&self, auth: &Auth, body: &JsonText) -> Result<JsonText> {
        let text = response::object_text(|json| {
            let is_other = |name: &str| name != OWNER && name != proven::MEMBER;
            for (name, value) in body.root().members().filter(|(name, _)| is_other(name)) {
                json.name(&name).value(value);
            }
            if let Some(name) = &self.name {
                json.name(OWNER).str(name);
                if let Some(proven) = &self.proven {
                    proven.write_signed(auth, name, body, json);
                }
            }
        });
        JsonText::parse(&text).map_err(|_| ApiError::too_large())
    }
}

fn owner_of(body: &JsonText) -> Option<String> {
    Some(body.get(OWNER)?.as_str()?.into_owned())
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

/// Admits the deletion of a document of such a database.
pub(crate) async fn admit_deletion(request: &Request, db: &str, edit: &Edit) -> Result<()> {
    if !has_jobs(db) || request.principal.is_server_admin() {
        return Ok(());
    }
    require_own(request, db, edit).await
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
