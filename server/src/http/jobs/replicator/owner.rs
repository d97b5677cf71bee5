//! Who owns a replication, and the rights that it has in databases of this server.
//!
//! A document of `_replicator` names its owner, as in CouchDB: the client that wrote it. Beside the name it stores how
//! the name was [proved](super::proven); without a proof the name has no rights. A replication reads and writes
//! databases of this server with its owner's current rights, so it stops when these end. Sides behind a URL use the
//! credentials in the replication, whoever owns it.
//!
//! `user_ctx` restricts the owner's roles. An administrator's document runs as the client that it describes. Who may
//! write and read such documents is in [`replications`](crate::http::authz::replications).
//!
//! Source: CouchDB's `couch_replicator_docs.erl`, and its documentation of the replicator database.

use model::{JsonRef, JsonText};

use crate::http::app::App;
use crate::http::authn::auth::Auth;
use crate::http::authn::principal::Principal;
use crate::http::authn::session::seconds_now;
use crate::http::error::{ApiError, Result};
use crate::http::jobs::replicator::proven::{self, Proven};
use crate::http::wire::response::{self, json_object};

/// The member of a document that names its owner.
const OWNER: &str = "owner";

/// The owner of a replication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    /// `None`: everyone, on a server without administrators.
    pub(crate) name: Option<String>,
    /// `None` if nothing proves that the owner asked for the replication.
    pub(crate) proven: Option<Proven>,
    context: Option<Context>,
}

/// A `user_ctx`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) name: Option<String>,
    pub(crate) roles: Vec<String>,
}

impl Context {
    /// `None` if malformed.
    pub(crate) fn read(context: JsonRef<'_>) -> Option<Context> {
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
        // A malformed context has no rights.
        let context = body.get("user_ctx").map(|context| Context::read(context).unwrap_or_default());
        Owner { name, proven, context }
    }

    /// The client as an owner, for work that continues after its request.
    pub(crate) fn of_client(principal: &Principal) -> Owner {
        Owner { name: principal.name.clone(), proven: Proven::of_client(principal), context: None }
    }

    /// The account with this name, which an administrator names.
    pub(crate) fn of_account(auth: &Auth, name: String) -> Owner {
        Owner { proven: Some(Proven::of_account(auth, &name)), name: Some(name), context: None }
    }

    /// An owner known by name only.
    pub(crate) fn unproven(name: Option<String>) -> Owner {
        Owner { name, ..Owner::default() }
    }

    /// Reads the owner in a job's data. Only servers write job data.
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
    pub(crate) fn is(&self, principal: &Principal) -> bool {
        let proven = self.proven.as_ref().zip(Proven::of_client(principal));
        self.name.is_some() && self.name == principal.name && proven.is_some_and(|(own, other)| own.is_like(&other))
    }

    /// The name and its proof; `None` if the owner is everyone on a server without administrators.
    fn known(&self, auth: &Auth) -> Result<Option<(&str, &Proven)>> {
        let refused = |reason: String| Err(ApiError::forbidden(reason));
        match (&self.name, &self.proven) {
            (None, _) if auth.is_open_admin() => Ok(None),
            (None, _) => refused("the replication has no owner; an administrator has to request it again".to_owned()),
            (Some(name), None) => refused(format!(
                "nothing proves that {name} owns the replication; an administrator has to request it again"
            )),
            (Some(name), Some(proven)) if proven.is_over(seconds_now()) => {
                refused(format!("the token of the owner {name} of the replication has expired"))
            }
            (Some(name), Some(proven)) => Ok(Some((name, proven))),
        }
    }

    /// # Errors
    /// 403 if the owner has no rights and will never have any.
    pub(crate) fn require_rights(&self, auth: &Auth) -> Result<()> {
        self.known(auth).map(drop)
    }

    /// The owner's current rights.
    ///
    /// # Errors
    /// 401 and 403 if the owner could not send a request now.
    pub(crate) async fn principal(&self, app: &App) -> Result<Principal> {
        let owner = match self.known(&app.auth)? {
            None => Principal::open_admin(),
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
    pub(crate) fn write_into(&self, auth: &Auth, body: &JsonText) -> Result<JsonText> {
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

/// The name of the owner in a document.
pub(crate) fn owner_of(body: &JsonText) -> Option<String> {
    Some(body.get(OWNER)?.as_str()?.into_owned())
}
