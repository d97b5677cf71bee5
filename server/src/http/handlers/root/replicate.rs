//! `POST /_replicate`: a replication whose client waits, a continuous one, or the cancellation of one.
//!
//! Both are jobs with the id of the replication, so a repeated request does not add a second job. Therefore the source
//! is asked for the code of its filter function, as in CouchDB. The answer is in the store, whichever server runs the
//! job, and all waiting clients read it there. A replication outlives its client, as in CouchDB, and its server. If it
//! is cancelled, its client is told; CouchDB never answers it.
//!
//! Source: CouchDB's `couch_replicator_httpd.erl`, `couch_replicator.erl` and `couch_replicator_scheduler.erl`.

use std::future::pending;
use std::sync::Arc;

use hyper::StatusCode;
use jobs::{JobId, NewJob};
use model::limits::HIGHEST_MAX_DOCUMENT_SIZE;
use model::{JsonRef, JsonText};

use crate::http::app::App;
use crate::http::authn::principal::Principal;
use crate::http::error::{ApiError, Result};
use crate::http::jobs::replicator::owner::Owner;
use crate::http::jobs::replicator::record::{
    self, Answer, JobProgress, KIND, MOST_REQUEST, Origin, ReplicationJob, is_of_document, job_of_request,
    plus_for_space,
};
use crate::http::jobs::replicator::requested::RequestedReplication;
use crate::http::jobs::replicator::run;
use crate::http::jobs::run::{now_ms, woken};
use crate::http::operation::{Content, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};

/// The members of a request; [`RequestedReplication`] reads them, with all others of a document in `_replicator`.
const MEMBERS: &[Param] = &[
    Param::json("source", "A database: its name, its URL, or an object with `url`, `headers` and `auth`.").required(),
    Param::json("target", "The same.").required(),
    Param::flag("create_target", "Whether the target is created if it does not exist."),
    Param::object("create_target_params", "Parameters of the new database."),
    Param::flag("continuous", "Whether the replication goes on with later changes."),
    Param::flag("cancel", "Ends the replication with these members."),
    Param::texts("doc_ids", "Only these documents."),
    Param::object("selector", "Only documents that match this selector."),
    Param::text("filter", "Only documents for which this filter returns true: `design/name`."),
    Param::object("query_params", "The parameters of the filter."),
    Param::json("since_seq", "The sequence to begin at."),
    Param::flag("winning_revs_only", "Only winning revisions."),
];

/// What [`replicate()`] does.
pub(crate) const REPLICATE: Operation = Operation::new(
    "Replicates one database to another. 202: a continuous replication, or one that goes on.",
    &[Reply::object(200), Reply::object(202)],
)
.bodies(&[Content::members(MEMBERS)])
.refusals(&[409, 500, 501]);

pub(crate) async fn replicate(request: &mut Request) -> Result<Response> {
    request.body.narrow(HIGHEST_MAX_DOCUMENT_SIZE);
    let body = request.json_object().await?;
    let app = request.app.clone();
    match body.get("cancel").map(JsonRef::as_bool) {
        Some(None) => return Err(ApiError::bad_request("parameter `cancel` must be a boolean")),
        Some(Some(true)) => return cancel(&app, &body, &request.principal).await,
        Some(Some(false)) | None => {}
    }
    let asked = RequestedReplication::read_with(&body, &app.auth.settings().rows)?;
    let owner = Owner::of_client(&request.principal);
    let is_too_large = body.len() + owner.to_json().len() > MOST_REQUEST;
    if !asked.options.continuous {
        app.require_jobs()?;
    }
    let id = tokio::select! {
        id = run::id(&app, &asked, &owner) => id?,
        () = app.stopping() => return Err(stopping()),
    };
    if asked.options.continuous {
        if is_too_large {
            let reason =
                format!("A continuous replication has at most {MOST_REQUEST} bytes; a document may have more.");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason));
        }
        // If it runs for a document already, it needs no second job.
        if app.layer.jobs().named(KIND, &id).await?.is_none_or(|job| job == job_of_request(&id)) {
            add(&app, &id, &asked, &owner, body).await?;
        }
        return Ok(response::object_with(StatusCode::ACCEPTED, |json| {
            json.name("ok").bool(true).name("_local_id").str(&id);
        }));
    }
    let working = app.clone();
    let answer = async {
        if is_too_large {
            // Too large for a job: it runs while its client waits, and others cannot see it.
            return app
                .off_thread(
                    async move { Answer::new(&run::replicate(&working, &asked, &owner, pending(), |_| {}).await) },
                )
                .await;
        }
        add(&app, &id, &asked, &owner, body).await?;
        wait(&app, &job_of_request(&id)).await
    };
    let Answer { status, body } = tokio::select! {
        answer = answer => answer?,
        () = app.stopping() => return Err(stopping()),
    };
    Ok(response::json(status, body.as_str().into()))
}

fn stopping() -> ApiError {
    let reason = "The server is shutting down; requested again, the replication continues from its last checkpoint.";
    ApiError::unavailable(reason)
}

/// Waits until a replication has ended.
async fn wait(app: &App, id: &JobId) -> Result<Answer> {
    let jobs = app.layer.jobs();
    loop {
        let (job, changed) = jobs.watch(id).await?;
        let Some(job) = job else {
            let reason = "The replication was cancelled.";
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "stopped", reason));
        };
        // A job that was added again may still have the answer to an earlier request.
        if let Some(answer) = JobProgress::of(&job).answer.filter(|_| !job.is_resubmitted) {
            return Ok(answer);
        }
        woken(changed).await;
    }
}

/// Adds a job, unless the same one exists.
async fn add(app: &App, name: &str, asked: &RequestedReplication, owner: &Owner, body: JsonText) -> Result<()> {
    let (jobs, id) = (app.layer.jobs(), job_of_request(name));
    let origin = Origin::Request(record::Request(body), owner.clone());
    let is_same = |known: ReplicationJob| known.origin == origin;
    let known = jobs.get(&id).await?.filter(|job| JobProgress::of(job).answer.is_none());
    if known.and_then(|job| ReplicationJob::read(&job.data)).is_some_and(is_same) {
        return Ok(());
    }
    let order = ReplicationJob::new(origin, asked, owner.name.as_deref(), now_ms());
    let new = NewJob { data: order.write().into(), name: Some(name.to_owned()), ..NewJob::default() };
    jobs.add(&id, &new).await?;
    Ok(())
}

/// Removes the job of a replication that is named or described.
async fn cancel(app: &Arc<App>, body: &JsonText, principal: &Principal) -> Result<Response> {
    let named = ["replication_id", "_local_id", "id"].into_iter().find_map(|name| body.get(name)?.as_str());
    let replication = match named {
        Some(id) => plus_for_space(&id),
        None => run::id(app, &RequestedReplication::read(body)?, &Owner::of_client(principal)).await?,
    };
    let jobs = app.layer.jobs();
    let is_cancelled = match jobs.named(KIND, &replication).await? {
        // A job of a document ends with its document.
        Some(id) if !is_of_document(&id) => jobs.remove(&id).await?,
        _ => false,
    };
    if !is_cancelled {
        return Err(ApiError::not_found("missing"));
    }
    Ok(response::object(|json| {
        json.name("ok").bool(true).name("_local_id").str(&replication);
    }))
}
