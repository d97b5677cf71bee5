//! Who writes in a database: the validator of each handle that writes.
//!
//! ```text
//!   a request, a replication, a command
//!     └─ on_behalf ───────── a handle that writes as this client
//!           └─ Writer ────── called by the model, whatever the path of the write
//!                ├─ design documents are for administrators of the database, purges for those of the server
//!                ├─ the rules of `_users` and of databases of replications
//!                └─ `validate_doc_update` functions, asked as this client
//! ```
//!
//! All other handles of requests [only read](crate::http::app::stores::read_only), so a write must say on whose behalf
//! it is.

use std::net::IpAddr;
use std::sync::Arc;

use kv_api::AnyDatabase;
use model::limits::DESIGN_PREFIX;
use model::{JsonText, Layer, Question, Validator, Verdict, Writing};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::authn::principal::Principal;
use crate::http::authn::users;
use crate::http::authz::client::{Client, Means};
use crate::http::authz::rights::{not_database_admin, not_server_admin, standing};
use crate::http::authz::rules::{Rules, refusal};
use crate::http::authz::{auth_design, rules_of};
use crate::http::config::settings::{Flags, Settings};
use crate::http::config::unkept::Unkept;
use crate::http::functions::Functions;
use crate::http::functions::validate::{OnBehalf, THREADS};

/// A database that this client edits. `address`: the network in whose turn its passwords are hashed.
pub(crate) fn on_behalf(
    app: &Arc<App>,
    principal: &Principal,
    address: Option<IpAddr>,
    database: Documents,
) -> Documents {
    let functions = OnBehalf::new(&app.functions, principal, Some(app), &database);
    let means = Means::Server(app.clone(), address);
    database.clone().validated_by(Arc::new(Writer { database, functions, means }))
}

/// A database that a command edits: whoever can open the store is an administrator.
pub(crate) async fn by_command(layer: &Layer<AnyDatabase>, database: Documents) -> model::Result<Documents> {
    let functions = OnBehalf::new(&Arc::new(Functions::new(THREADS)), &Principal::open_admin(), None, &database);
    // Other databases need no configuration, which may be unreadable.
    let rows = if database.name() == users::DATABASE { layer.configuration().await?.0 } else { Vec::new() };
    let means = Means::Command(Arc::new(Settings::new(rows, &Unkept::default(), &Flags::default())));
    Ok(database.clone().validated_by(Arc::new(Writer { database, functions, means })))
}

/// A client that writes in a database.
struct Writer {
    /// The database, to read what the rules need.
    database: Documents,
    functions: OnBehalf,
    means: Means,
}

impl Writer {
    async fn authorize(&self, rules: Option<&'static dyn Rules>, writing: Writing<'_>) -> model::Result<()> {
        let principal = &self.functions.principal;
        // A user, and who may administrate users, outlast the time without an administrator.
        if let (users::DATABASE, Some(auth)) = (self.database.name(), self.means.auth()) {
            auth.require_setup_token(principal).map_err(refusal)?;
        }
        // Looked up now: the right may have ended since the request or the replication started.
        let is_admin = principal.is_server_admin() || {
            let security = self.means.security(&self.database).await?;
            standing(self.database.name(), &security, principal).map_err(refusal)?
        };
        if is_of_design(&writing) && !is_admin {
            return Err(refusal(not_database_admin(principal)));
        }
        let client = Client { principal, is_admin, database: &self.database, means: &self.means };
        match (rules, writing) {
            (_, Writing::Purge) if !principal.is_server_admin() => Err(refusal(not_server_admin())),
            (None, _) | (_, Writing::Announced(_) | Writing::Purge) => Ok(()),
            (Some(rules), Writing::Edit(edit, mode)) => rules.admit(&client, mode, edit).await,
            (Some(rules), Writing::Computed(id)) => rules.refuse_computed(&client, id),
            (Some(rules), Writing::Local(_)) => rules.require_admin(&client),
        }
    }
}

fn is_of_design(writing: &Writing<'_>) -> bool {
    writing.id().is_some_and(|id| id.starts_with(DESIGN_PREFIX))
}

impl Validator for Writer {
    fn authorize<'v>(&'v self, writing: Writing<'v>) -> Option<Verdict<'v>> {
        let rules = rules_of(self.database.name());
        let concerns_admins = is_of_design(&writing) || matches!(writing, Writing::Purge);
        // Most writes are of other documents, and pass without a lookup.
        if rules.is_none() && (!concerns_admins || self.functions.principal.is_server_admin()) {
            return None;
        }
        Some(Box::pin(self.authorize(rules, writing)))
    }

    fn ask(&self, question: Question) -> Verdict<'_> {
        match auth_design::is_asked(self.database.name(), &question) {
            true => Box::pin(std::future::ready(Ok(()))),
            false => self.functions.ask(question),
        }
    }

    fn admit(&self, design: JsonText) -> Verdict<'_> {
        self.functions.admit(design)
    }
}
