//! Maintenance of a database: `_compact`, `_ensure_full_commit`, and a consistency check.

use hyper::StatusCode;

use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::request::Request;
use crate::http::views;
use crate::http::wire::body::require_json;
use crate::http::wire::response::{self, Response};

/// Asks for the space of what was removed. Engines free it by themselves too, when that is worth the work. CouchDB answers
/// 202 whether or not there is anything to do.
pub(crate) async fn compact(request: &Request, db: &str) -> Result<Response> {
    let database = request.fresh_database(db).await?;
    require_json(&request.headers)?;
    database.compact();
    Ok(response::ok(StatusCode::ACCEPTED))
}

/// Does nothing: every acknowledged write is already durable, as far as the engine makes it so.
pub(crate) async fn ensure_full_commit(request: &Request, db: &str) -> Result<Response> {
    require_json(&request.headers)?;
    let info = request.with_database(db, |database| async move { Ok(database.info().await?) }).await?;
    Ok(response::object_with(StatusCode::CREATED, |json| {
        json.name("ok").bool(true);
        json.name("instance_start_time").display(info.created_ms / 1000);
    }))
}

/// Does nothing, as in a CouchDB without indexes of text: there are none to clean up.
pub(crate) async fn clean_up_search(request: &Request, db: &str) -> Result<Response> {
    request.fresh_database(db).await?;
    Ok(response::ok(StatusCode::ACCEPTED))
}

/// `GET /{db}/_couch_layer/check`: checks that the parts of a database are consistent, and its views those that their
/// functions make. CouchDB has no such endpoint; `couch-layer check --url` uses it.
pub(crate) async fn check(request: &Request, db: &str) -> Result<Response> {
    let app = &request.app;
    let check = |database: Documents| {
        let functions = app.functions.clone();
        app.scan(async move {
            let report = database.check(|_| ()).await?;
            views::check::check(&functions, &database, report, |_, _| ()).await
        })
    };
    let checked = request.with_database(db, check).await?;
    Ok(response::json(StatusCode::OK, checked.to_json(db)))
}
