//! `_users/_design/_auth`, in which CouchDB keeps the rules of `_users`.
//!
//! Programs look for it. [`users`](super::users) has the rules; the function only documents them, and is never run. The
//! document is written when the database is created, and when a server starts. Its text is our own, so a replication of
//! `_users` from a CouchDB leaves it in conflict, which has no effect.

use std::sync::Arc;

use model::{Edit, ErrorKind, GetOptions, JsonRef, JsonText, NotFound, Question, VALIDATE};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::authn::users::DATABASE;
use crate::http::error::{ApiError, Result};
use crate::http::jobs::run::PAUSE;
use crate::http::wire::response::object_text;

const ID: &str = "_design/_auth";

const FUNCTION: &str = include_str!("auth_design.js");

/// Whether a question is about the rules of `_users`, which the server has already checked.
pub(crate) fn is_asked(database: &str, question: &Question) -> bool {
    database == DATABASE && question.design.get("_id").and_then(JsonRef::as_str).as_deref() == Some(ID)
}

/// Writes the document into `_users`, unless it is there.
pub(crate) async fn ensure(users: &Documents) -> Result<()> {
    match users.get(ID, &GetOptions::default()).await {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound(NotFound::Missing | NotFound::Deleted)) => {}
        found => return Ok(found.map(drop)?),
    }
    let body = object_text(|json| {
        json.name("language").str("javascript").name(VALIDATE).str(FUNCTION);
    });
    let body = JsonText::parse(&body).map_err(|_| ApiError::internal())?;
    match users.clone().unvalidated().put(Edit::new(ID.to_owned(), body)).await {
        // Another server has written it.
        Err(error) if *error.kind() == ErrorKind::Conflict => Ok(()),
        written => Ok(written.map(drop)?),
    }
}

/// Does so when the server starts, for a database made by an earlier version or by a command.
pub(crate) async fn begin(app: Arc<App>) {
    let beginning = async {
        while let Err(error) = ensure_in(&app).await {
            tracing::warn!(?error, "cannot write {ID} to {DATABASE}");
            tokio::time::sleep(PAUSE).await;
        }
    };
    app.until_stopping(beginning).await;
}

async fn ensure_in(app: &App) -> Result<()> {
    match app.databases.stores.database(DATABASE).await {
        Err(error) if error.is_no_database() => Ok(()),
        users => ensure(&users?).await,
    }
}
