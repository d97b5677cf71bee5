//! `POST /_replicate`: a replication that runs while its client waits, a continuous one, or the end of such
//! a one.
//!
//! A continuous replication is a job with the id of the replication, so a repeated request adds no second one. Unlike
//! CouchDB's, it outlives the server.
//!
//! Source: CouchDB's `couch_replicator_httpd.erl`.

use hyper::StatusCode;
use jobs::NewJob;
use model::{JsonRef, JsonText, JsonWriter};

use crate::http::app::App;
use crate::http::app::jobs::now_ms;
use crate::http::error::{ApiError, Result};
use crate::http::replicator::owner::Owner;
use crate::http::replicator::record::{self, MOST_REQUEST, Origin, ReplicationJob, job_of_request};
use crate::http::replicator::requested::RequestedReplication;
use crate::http::replicator::run;
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};

pub(crate) async fn replicate(request: &mut Request) -> Result<Response> {
    let body = request.json_object().await?;
    let app = request.app.clone();
    match body.get("cancel").filter(|cancel| !cancel.is_null()).map(JsonRef::as_bool) {
        Some(None) => return Err(ApiError::bad_request("parameter `cancel` must be a boolean")),
        Some(Some(true)) => return cancel(&app, &body).await,
        Some(Some(false)) | None => {}
    }
    let asked = RequestedReplication::read_with(&body, &app.auth.settings().rows)?;
    if asked.options.continuous {
        return begin(&app, &asked, &Owner::of_client(&request.principal), body).await;
    }
    let (working, owner) = (app.clone(), Owner::of_client(&request.principal));
    // A replication reads much, and ends when its client is gone.
    let done = app.aside(async move { wait(&working, &asked, &owner).await });
    tokio::select! {
        done = done => done?,
        () = app.stopping() => Err(ApiError::unavailable("The server is shutting down; requested again, the replication continues from its last checkpoint.")),
    }
}

/// Replicates to the end.
async fn wait(app: &std::sync::Arc<App>, asked: &RequestedReplication, owner: &Owner) -> Result<Response> {
    let report = run::replicate(app, asked, owner, |_| {}).await?;
    let mut body = Vec::with_capacity(report.record.len() + 40);
    let mut json = JsonWriter::new(&mut body);
    json.begin_object().name("ok").bool(true);
    if report.no_changes {
        json.name("no_changes").bool(true);
    }
    json.members_of(&report.record).end_object();
    Ok(response::json(StatusCode::OK, body))
}

/// Adds a job, unless there is the same.
async fn begin(app: &App, asked: &RequestedReplication, owner: &Owner, body: JsonText) -> Result<Response> {
    if body.len() > MOST_REQUEST {
        let reason = format!("A replication that goes on has at most {MOST_REQUEST} bytes; a document may have more.");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason));
    }
    let replication = asked.id(&app.uuid);
    let (jobs, id) = (app.layer.jobs(), job_of_request(&replication));
    let known = jobs.get(&id).await?.and_then(|job| ReplicationJob::read(&job.data));
    let origin = Origin::Request(record::Request(body));
    if known.is_none_or(|known| known.origin != origin || known.user() != owner.name) {
        let order = ReplicationJob::new(origin, asked, owner.name.as_deref(), &app.uuid, now_ms());
        let new = NewJob { data: order.write().into(), ..NewJob::default() };
        jobs.add(&id, &new).await?;
    }
    Ok(response::object_with(StatusCode::ACCEPTED, |json| {
        json.name("ok").bool(true).name("_local_id").str(&replication);
    }))
}

/// Removes the job of a replication, which is named or described.
async fn cancel(app: &App, body: &JsonText) -> Result<Response> {
    let named = ["replication_id", "_local_id", "id"].into_iter().find_map(|name| body.get(name)?.as_str());
    let replication = match named {
        Some(id) => id.into_owned(),
        None => RequestedReplication::read(body)?.id(&app.uuid),
    };
    // A job of a document ends with its document.
    let is_request = !replication.contains(':');
    if !is_request || !app.layer.jobs().remove(&job_of_request(&replication)).await? {
        return Err(ApiError::not_found("missing"));
    }
    Ok(response::object(|json| {
        json.name("ok").bool(true).name("_local_id").str(&replication);
    }))
}
