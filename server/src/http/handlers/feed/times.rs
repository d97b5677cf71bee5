//! `/{db}/_time_seq`: the number of changes by the time when they were made.

use hyper::StatusCode;

use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::handlers::root::NODE;
use crate::http::jobs::replicator::record;
use crate::http::operation::{Operation, Reply};
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};

/// The only range of shards.
const RANGE: &str = "00000000-ffffffff";

/// What [`list`] does.
pub(crate) const LIST: Operation =
    Operation::new("The number of changes by the time when they were made.", &[Reply::object(200)]);

/// `GET /{db}/_time_seq`
pub(crate) async fn list(request: &Request, db: &str) -> Result<Response> {
    let app = &request.app;
    let list = |database: Documents| async move { app.scan(async move { database.time_bins().await }).await };
    let bins = request.with_database(db, list).await?;
    Ok(response::object(|json| {
        json.name("time_seq").begin_object().name(RANGE).begin_object().name(NODE).begin_array();
        for bin in bins {
            json.begin_array().str(&record::time(bin.start_ms)).u64(bin.edits).end_array();
        }
        json.end_array().end_object().end_object();
    }))
}

/// What [`reset`] does.
pub(crate) const RESET: Operation = Operation::new("Forgets the times of changes.", &[Reply::done(200)]);

/// `DELETE /{db}/_time_seq`
pub(crate) async fn reset(request: &Request, db: &str) -> Result<Response> {
    request.with_database(db, |database| async move { Ok(database.reset_times().await?) }).await?;
    Ok(response::ok(StatusCode::OK))
}
