//! Maintenance of a database: `_compact`, `_ensure_full_commit`, and a consistency check.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use kv_api::AnyDatabase;
use model::Stemming;

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::handlers::views;
use crate::http::jobs::run::{End, Run};
use crate::http::operation::{Operation, Reply};
use crate::http::request::Request;
use crate::http::wire::body::require_json;
use crate::http::wire::response::{self, Response};

/// What [`compact`] does.
pub(crate) const COMPACT: Operation = Operation::new("Frees space.", &[Reply::done(202)]);

/// Stems the branches, removes the bodies of replaced revisions, and asks the engine to free the space. Engines
/// free it by themselves too, when that is worth the work. CouchDB answers 202 whether or not there is anything to do.
pub(crate) async fn compact(request: &Request, db: &str) -> Result<Response> {
    let database = request.fresh_database(db).await?;
    require_json(&request.headers)?;
    if let Some(mut stemming) = database.stemming() {
        // A small database is finished before the answer.
        match stemming.next().await {
            Ok(true) => drop(tokio::spawn(stem(request.app.clone(), database.clone(), stemming.in_background()))),
            Ok(false) => {}
            Err(error) => not_stemmed(&database, &error),
        }
    }
    database.compact();
    Ok(response::ok(StatusCode::ACCEPTED))
}

/// Does the rest of a compaction, and asks the engine to free the space. After a stop of the server the next
/// compaction does it.
async fn stem(app: Arc<App>, database: Documents, mut stemming: Stemming<AnyDatabase>) {
    while !app.is_stopping() {
        match stemming.next().await {
            Ok(true) => {}
            Ok(false) => return database.compact(),
            Err(error) => return not_stemmed(&database, &error),
        }
    }
}

fn not_stemmed(database: &Documents, error: &model::Error) {
    tracing::warn!(database = database.name(), %error, "the compaction stopped before all branches were stemmed and old bodies removed");
}

/// Runs a job that removes bodies of replaced revisions when they are too old, or when the setting was switched off.
pub(crate) async fn forget(app: Arc<App>, run: Arc<Run>) -> End {
    match forget_replaced(&app, &run).await {
        Ok(Some(pause)) => End::Again(pause),
        Ok(None) => End::Removed,
        Err(error) => run.end_of(Err(error)),
    }
}

/// Removes bodies that are no longer kept. Returns the time until the next removal; `None` for never.
async fn forget_replaced(app: &App, run: &Run) -> model::Result<Option<Duration>> {
    let database = run.layer.database(&run.job.id.id).await?;
    let mut after = Vec::new();
    while !run.should_stop() && !app.is_stopping() {
        match database.forget_replaced_batch(&after, false, Some(&run.hold)).await? {
            Some(next) => after = next,
            None => return database.forgetting_pause().await,
        }
    }
    Ok(Some(Duration::ZERO))
}

/// What [`ensure_full_commit`] does.
pub(crate) const ENSURE_FULL_COMMIT: Operation =
    Operation::new("Answers at once: writes are on the disk before they are answered.", &[Reply::object(201)]);

/// Does nothing: every acknowledged write is already durable, as far as the engine makes it so.
pub(crate) async fn ensure_full_commit(request: &Request, db: &str) -> Result<Response> {
    require_json(&request.headers)?;
    let info = request.with_database(db, |database| async move { Ok(database.info().await?) }).await?;
    Ok(response::object_with(StatusCode::CREATED, |json| {
        json.name("ok").bool(true);
        json.name("instance_start_time").display(info.created_ms / 1000);
    }))
}

/// What [`clean_up_search`] does.
pub(crate) const CLEAN_UP_SEARCH: Operation =
    Operation::new("Has nothing to do: there are no indexes of text.", &[Reply::done(202)]);

/// Does nothing, as in a CouchDB without indexes of text: there are none to clean up.
pub(crate) async fn clean_up_search(request: &Request, db: &str) -> Result<Response> {
    request.fresh_database(db).await?;
    Ok(response::ok(StatusCode::ACCEPTED))
}

/// What [`check`] does.
pub(crate) const CHECK: Operation =
    Operation::new("Checks that the parts of the database are consistent.", &[Reply::object(200)]);

/// `GET /{db}/_couch_layer/check`: checks that the parts of a database are consistent, and that its views have the rows
/// that their functions emit. CouchDB has no such endpoint; `couch-layer check --url` uses it.
pub(crate) async fn check(request: &Request, db: &str) -> Result<Response> {
    let app = &request.app;
    let check = |database: Documents| {
        // It reads everything.
        let database = database.in_background();
        let functions = app.functions.clone();
        app.scan(async move {
            let report = database.check(|_| ()).await?;
            views::check::check(&functions, &database, report, |_, _| ()).await
        })
    };
    let checked = request.with_database(db, check).await?;
    Ok(response::json(StatusCode::OK, checked.to_json(db)))
}
