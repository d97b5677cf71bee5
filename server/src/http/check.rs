//! `GET /{db}/_couch_layer/check`: proves that the parts of a database agree. No endpoint of
//! CouchDB's: what `couch-layer check --url` asks for.

use hyper::StatusCode;

use super::error::Result;
use super::request::Request;
use super::response::{self, Response};
use crate::report::Checked;

pub(crate) async fn check(request: &Request, db: &str) -> Result<Response> {
    let database = request.database(db).await?;
    let report = request.app.scan(async move { database.check(|_| ()).await }).await?;
    Ok(response::json(StatusCode::OK, Checked::from(report).to_json(db)))
}
