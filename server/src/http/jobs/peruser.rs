//! Creates a database for each user. It is an option (`couch_peruser`).
//!
//! ```text
//!  feed of _users ─┬─ a user ──────► userdb-HEX exists, and the user is a member and an administrator of it
//!                  └─ a deletion ──► the user is neither; with `delete_dbs` the database is dropped
//! ```
//!
//! A job follows the feed, so it sees users whatever wrote them, and also those that existed before the option was set.
//! A change that is seen twice has no effect. When the option changes, the job starts again with all users.
//!
//! Invariants: other names in a database's `_security` are kept. A database is dropped only while its user does not
//! exist; if the user has come back by then, the database is created again.
//!
//! Source: CouchDB's `couch_peruser.erl`.

use std::sync::Arc;
use std::time::Duration;

use jobs::JobId;
use model::{Change, CreateOptions, ErrorKind, GetOptions, JsonText};

use crate::http::app::App;
use crate::http::authn::users;
use crate::http::config::peruser::{PerUser, with_user, without_user};
use crate::http::config::settings::DefaultSecurity;
use crate::http::error::Result;
use crate::http::jobs::following::{self, Reached};
use crate::http::jobs::optional;
use crate::http::jobs::run::{End, Run};
use crate::http::journal::Actor;
use crate::http::wire::response;

/// The kind of the job that follows `_users`.
pub(crate) const KIND: &str = "peruser";

/// Pause before a closed or missing database of users is looked up again.
const PAUSE: Duration = Duration::from_secs(1);

/// Starts and ends the job as the configuration says, until the server stops.
pub(crate) async fn begin(app: Arc<App>) {
    let data = response::object_text(|json| {
        json.name("task").begin_object().name("database").str(users::DATABASE).end_object();
    });
    optional::begin(&app, JobId::new(KIND, users::DATABASE), &data, |settings| &settings.per_user).await;
}

/// Runs the job.
pub(crate) async fn follow(app: Arc<App>, run: Arc<Run>) -> End {
    following::run(&app, &run, follow_all(&app, &run)).await
}

async fn follow_all(app: &App, run: &Run) -> Result<()> {
    // Another server may have changed the option just now.
    drop(app.auth.load(&app.layer).await?);
    let option = app.auth.settings().per_user.clone();
    let Some(option) = &option else { return Ok(()) };
    let mut reached = Reached::of(run);
    loop {
        match app.databases.stores.database(users::DATABASE).await {
            Ok(users) => {
                let instance = format!("{} {} {}", model::hex(&users.instance_id()), option.delete_dbs, option.prefix);
                let from = reached.take().and_then(|reached| reached.of_instance(&instance));
                let from = from.unwrap_or_else(|| Reached::new(instance));
                let each = |change| seen(app, option, change);
                reached = Some(following::follow(run, &users, false, from, each).await?);
            }
            Err(error) if error.is_no_database() => {}
            Err(error) => return Err(error),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Does what a change of a user requires.
async fn seen(app: &App, option: &PerUser, change: Change) -> Result<()> {
    let Some(user) = change.id.strip_prefix(users::PREFIX).filter(|user| !user.is_empty()) else { return Ok(()) };
    let done = if change.deleted { dismiss(app, option, user).await } else { admit(app, option, user).await };
    match done {
        // With this prefix the name is not valid for a database, or it is too long.
        Err(error) if error.status().is_client_error() => {
            tracing::warn!(user, ?error, "a user has no database");
            Ok(())
        }
        done => done,
    }
}

/// Creates the user's database, and makes the user a member and an administrator of it.
async fn admit(app: &App, option: &PerUser, user: &str) -> Result<()> {
    let name = option.database(user);
    let database = match app.databases.stores.database(&name).await {
        Err(error) if error.is_no_database() => {
            match app.layer.create_database(&name, CreateOptions::default()).await {
                Err(error) if *error.kind() == ErrorKind::FileExists => app.databases.stores.database(&name).await?,
                created => {
                    let created = created?;
                    app.audit(&Actor::default(), "database_created", &[("db", &name)]);
                    created
                }
            }
        }
        found => found?,
    };
    // As for other new databases; only the user's name is added.
    let is_open = app.auth.settings().default_security == DefaultSecurity::Everyone;
    let change = |security: Option<&JsonText>| {
        let empty = JsonText::empty_object();
        let usual = model::default_security();
        let before = security.unwrap_or(if is_open { &empty } else { &usual });
        with_user(before, user)
    };
    Ok(database.change_security(change).await?)
}

/// Removes the user from the database, or the database.
async fn dismiss(app: &App, option: &PerUser, user: &str) -> Result<()> {
    let name = option.database(user);
    let database = match app.databases.stores.database(&name).await {
        Err(error) if error.is_no_database() => return Ok(()),
        found => found?,
    };
    if is_there(app, user).await? {
        // A later change in the feed will handle this.
        return Ok(());
    }
    if !option.delete_dbs {
        return Ok(database.change_security(|security| without_user(security?, user)).await?);
    }
    match app.databases.stores.drop_database(&name).await {
        Err(error) if error.is_no_database() => {}
        dropped => {
            dropped?;
            app.audit(&Actor::default(), "database_dropped", &[("db", &name)]);
        }
    }
    // Another server may have seen the user come back, and still found the old database.
    if is_there(app, user).await? { admit(app, option, user).await } else { Ok(()) }
}

async fn is_there(app: &App, user: &str) -> Result<bool> {
    let users = app.databases.stores.database(users::DATABASE).await?;
    match users.get(&format!("{}{user}", users::PREFIX), &GetOptions::default()).await {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
