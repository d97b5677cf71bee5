//! Upkeep of a database: `_compact`, `_view_cleanup`, `_ensure_full_commit`, and a check that its parts agree.

use hyper::StatusCode;

use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::request::Request;
use crate::http::wire::body::require_json;
use crate::http::wire::response::{self, Response};
use crate::report::Checked;

/// There is nothing to compact: an edit clears the rows that it replaces, and engines compact their files by
/// themselves. CouchDB answers 202 whether or not it finds anything to do.
pub(crate) async fn compact(request: &Request, db: &str) -> Result<Response> {
    accepted(request, db).await
}

/// There are no views, so no old indexes either.
pub(crate) async fn view_cleanup(request: &Request, db: &str) -> Result<Response> {
    accepted(request, db).await
}

async fn accepted(request: &Request, db: &str) -> Result<Response> {
    request.fresh_database(db).await?;
    require_json(&request.headers)?;
    Ok(response::ok(StatusCode::ACCEPTED))
}

/// Every acknowledged write is already as durable as the engine makes it.
pub(crate) async fn ensure_full_commit(request: &Request, db: &str) -> Result<Response> {
    require_json(&request.headers)?;
    let info = request.with_database(db, |database| async move { Ok(database.info().await?) }).await?;
    Ok(response::object_with(StatusCode::CREATED, |json| {
        json.name("ok").bool(true);
        json.name("instance_start_time").display(info.created_ms / 1000);
    }))
}

/// `GET /{db}/_couch_layer/check`: proves that the parts of a database agree. CouchDB has no such endpoint; it is what
/// `couch-layer check --url` asks for.
pub(crate) async fn check(request: &Request, db: &str) -> Result<Response> {
    let app = &request.app;
    let check = |database: Documents| app.scan(async move { database.check(|_| ()).await });
    let report = request.with_database(db, check).await?;
    Ok(response::json(StatusCode::OK, Checked::from(report).to_json(db)))
}
