//! Endpoints of the server itself: `/`, `/_up`, `/_uuids`, `/_active_tasks`, `/_replicate`, `/_transact`.

pub(crate) mod backup;
pub(crate) mod configuration;
pub(crate) mod databases;
pub(crate) mod figures;
pub(crate) mod log;
pub(crate) mod node;
pub(crate) mod promote;
pub(crate) mod replicate;
pub(crate) mod repository;
pub(crate) mod scheduler;
pub(crate) mod session;
pub(crate) mod setup;
pub(crate) mod ship;
pub(crate) mod snapshot;
pub(crate) mod transact;
pub(crate) mod updates;

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, EXPIRES, HeaderValue, PRAGMA};
use jobs::Job;
use model::{JsonText, JsonWriter};

use crate::http::app::outage::try_store;
use crate::http::error::{ApiError, Result};
use crate::http::jobs::view_update;
use crate::http::operation::{IF_NONE_MATCH, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};

/// The release of CouchDB whose API the server implements. Clients parse it.
const API_VERSION: &str = "3.5.2";

/// The name of the only node: CouchDB's name without a cluster.
pub(crate) const NODE: &str = "nonode@nohost";

/// Refuses names of other nodes.
pub(super) fn require_node(node: &str) -> Result<()> {
    match node {
        "_local" | NODE => Ok(()),
        _ => Err(ApiError::not_found("no such node: ".to_owned() + node)),
    }
}

/// What [`welcome`] does.
pub(crate) const WELCOME: Operation = Operation::new("The server's name, version and UUID.", &[Reply::object(200)]);

pub(crate) fn welcome(request: &Request) -> Result<Response> {
    Ok(response::object(|json| {
        json.name("couchdb").str("Welcome");
        json.name("version").str(API_VERSION);
        json.name("uuid").str(&request.app.uuid);
        json.name("features").begin_array().end_array();
        json.name("vendor").begin_object();
        json.name("name").str("couch-layer");
        json.name("version").str(env!("CARGO_PKG_VERSION"));
        json.end_object();
    }))
}

/// What [`up`] does.
pub(crate) const UP: Operation =
    Operation::new("Whether the server can read its store; 503 if it cannot.", &[Reply::object(200)]);

/// Whether the server can read its store. A store that closed itself after a failure stays closed until the process is
/// restarted, so the process's supervisor must be able to see it here.
pub(crate) async fn up(request: &Request) -> Result<Response> {
    if let Err(error) = try_store(&request.app.layer).await {
        tracing::error!(error, "the store cannot be read");
        return Err(ApiError::unavailable("the store cannot be read; the server's log has the details"));
    }
    request.app.layer.check_known_format()?;
    Ok(response::object(|json| {
        json.name("status").str("ok");
        json.name("seeds").begin_object().end_object();
    }))
}

/// What [`active_tasks`] does.
pub(crate) const ACTIVE_TASKS: Operation =
    Operation::new("The running jobs: replications, builds of indexes and views, relocations.", &[Reply::array(200)]);

pub(crate) async fn active_tasks(request: &Request) -> Result<Response> {
    let mut body = Vec::new();
    let mut json = JsonWriter::new(&mut body);
    json.begin_array();
    for store in request.app.databases.stores.all().await {
        for job in store.layer.jobs().running().await? {
            write_task(&job, &mut json);
        }
    }
    json.end_array();
    Ok(response::json(StatusCode::OK, body))
}

/// Writes a running job: the members of `task` in its data, then those of its progress.
fn write_task(job: &Job, json: &mut JsonWriter<'_>) {
    let Some(run) = &job.run else { return };
    let seconds = |ms: u64| ms / 1000;
    // `node` is the name under `_node`, and `server` is the server that runs the task.
    json.begin_object().name("node").str(NODE);
    if let Some(server) = &run.server {
        json.name("server").str(server);
    }
    // In CouchDB's form of a process. The number distinguishes the runs of a node.
    json.name("pid").str(&format!("<0.{}.0>", run.number)).name("process_status").str("running");
    json.name("type").str(type_of(&job.id.kind));
    json.name("started_on").u64(seconds(run.started_ms));
    let updated_ms = job.progress.as_ref().map_or(0, |progress| progress.updated_ms);
    json.name("updated_on").u64(seconds(updated_ms.max(run.started_ms)));
    let task = JsonText::parse(&job.data).ok();
    // Only replications have names. Their data from the start of the job has an id too.
    if let Some(name) = &job.name {
        json.name("replication_id").str(name);
    }
    if let Some(task) = task.as_ref().and_then(|data| data.get("task")) {
        for (name, value) in task.members().filter(|(name, _)| name != "replication_id") {
            json.name(&name).value(value);
        }
    }
    let progress = job.progress.as_ref().and_then(|progress| JsonText::parse(&progress.bytes).ok());
    match progress.as_ref().map(|progress| (progress, progress.get("task"))) {
        // Progress without `task` is shown as a whole; otherwise only `task` is shown.
        Some((_, Some(task))) => {
            for (name, value) in task.members() {
                json.name(&name).value(value);
            }
        }
        Some((progress, None)) => drop(json.members_of(progress)),
        None => {}
    }
    json.end_object();
}

/// CouchDB's name for a kind of job. It has one kind for builds of Mango's indexes and updates of views.
fn type_of(kind: &str) -> &str {
    if kind == view_update::KIND { model::BUILD_JOBS } else { kind }
}

/// What [`uuids`] does.
pub(crate) const UUIDS: Operation = Operation::new("New ids.", &[Reply::object(200), Reply::NOT_MODIFIED])
    .query(&[&[Param::count("count", "How many; 1 by default.")]])
    .headers(&[IF_NONE_MATCH]);

pub(crate) fn uuids(request: &Request) -> Result<Response> {
    let count = match request.params.get("count") {
        None => 1,
        Some(text) => match text.parse::<i64>() {
            Ok(count) if usize::try_from(count).is_ok_and(|count| count > request.app.auth.settings().max_ids) => {
                return Err(ApiError::bad_request("count parameter too large"));
            }
            Ok(count) => usize::try_from(count).ok(),
            Err(_) => None,
        }
        .ok_or_else(|| ApiError::bad_request("count must be a positive integer"))?,
    };
    let made = request.app.fresh_ids(count)?;
    let mut response = response::tagged(
        &request.headers,
        response::object_text(|json| {
            json.name("uuids").begin_array();
            for uuid in &made {
                json.str(uuid);
            }
            json.end_array();
        }),
    );
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(PRAGMA, HeaderValue::from_static("no-cache"));
    // As in CouchDB, a date in the past, so that caches never return the same ids twice.
    headers.insert(EXPIRES, HeaderValue::from_static("Mon, 01 Jan 1990 00:00:00 GMT"));
    Ok(response)
}
