//! `/{db}/_couch_layer/format`: the layout of a database's bodies, and the job that changes it.
//!
//! New bodies have the new layout at once. The job ([`model::REWRITE_JOBS`]) rewrites the others batch by batch, and
//! its last batch removes it. Any server of the store runs it, and continues where another one stopped.

use std::sync::Arc;

use hyper::StatusCode;
use model::{BodyFormat, Rewriting};

use crate::http::app::App;
use crate::http::error::{ApiError, Result};
use crate::http::jobs::run::{End, Run};
use crate::http::operation::{Content, Kind, Operation, Reply};
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};

/// What [`get`] does.
pub(crate) const GET: Operation = Operation::new("The layout of bodies.", &[Reply::object(200)]);

/// `GET /{db}/_couch_layer/format`: the layout, and whether bodies are still being rewritten.
pub(crate) async fn get(request: &Request, db: &str) -> Result<Response> {
    let info = request.with_database(db, |database| async move { Ok(database.info().await?) }).await?;
    Ok(response::object(|json| {
        json.name("format").str(info.format.name()).name("rewriting").bool(info.rewrites);
    }))
}

/// What [`set`] does.
pub(crate) const SET: Operation =
    Operation::new("Sets the layout of bodies, and rewrites them in the background.", &[Reply::done(202)])
        .bodies(&[Content::json(Kind::Choice(&["exploded", "packed"]))]);

/// `PUT /{db}/_couch_layer/format`, with the name of a layout as a JSON string.
pub(crate) async fn set(request: &mut Request, db: &str) -> Result<Response> {
    let name = request.json().await?;
    let format = read(name.root().as_str().as_deref())?;
    request.with_database(db, |database| async move { Ok(database.set_body_format(format).await?) }).await?;
    Ok(response::ok(StatusCode::ACCEPTED))
}

/// The layout with this name.
pub(crate) fn read(name: Option<&str>) -> Result<BodyFormat> {
    let format = name.and_then(|name| name.parse().ok());
    format.ok_or_else(|| ApiError::bad_request("The `format` value should be exploded or packed."))
}

/// Runs a job.
pub(crate) async fn run(app: Arc<App>, run: Arc<Run>) -> End {
    match run.end_of(rewrite(&app, &run).await) {
        // The progress is kept, since it is the checkpoint.
        End::Failed(_, pause) => End::Failed(None, pause),
        end => end,
    }
}

/// Rewrites to the end. Returns false if the run was stopped before the end.
async fn rewrite(app: &App, run: &Run) -> model::Result<bool> {
    let database = run.layer.database(&run.job.id.id).await?;
    let mut at = Rewriting::of_job(&run.job);
    while !run.should_stop() && !app.is_stopping() {
        match database.rewrite_bodies_batch(&at, usize::MAX, Some(&run.hold)).await? {
            Some(next) => at = next,
            None => return Ok(true),
        }
    }
    Ok(false)
}
