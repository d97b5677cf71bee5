//! `_scheduler/jobs` and `_scheduler/docs`: the server's replications and their states.
//!
//! Source: `couch_replicator_httpd.erl`, `job_ejson/1` of `couch_replicator_scheduler.erl`, and `info_from_doc/2` of
//! `couch_replicator.erl`.

use std::collections::HashMap;

use hyper::StatusCode;
use jobs::{Job, JobState, pause_after_lost};
use model::limits::DESIGN_PREFIX;
use model::{AllDocsEntry, AllDocsRequest, JsonRef, JsonText, JsonWriter};

use crate::http::app::App;
use crate::http::error::{ApiError, Result};
use crate::http::jobs::replicator::documents::{ReplicationDocument, find_in};
use crate::http::jobs::replicator::has_jobs;
use crate::http::jobs::replicator::record::{
    Event, JobProgress, KIND, ReplicationJob, job_of_document, of_lost, plus_for_space, time,
};
use crate::http::jobs::replicator::requested::side_name;
use crate::http::operation::{Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::response::{self, Response, json_object};

/// Default number of jobs in an answer.
const USUAL_LIMIT: usize = 100;

/// The states of a replication, as CouchDB names them. While its job has no name, a document is `initializing` or in
/// `error`.
const STATES: [&str; 7] = ["initializing", "error", "running", "pending", "crashing", "completed", "failed"];

/// A replication's job, with its data and progress.
struct Known {
    job: Job,
    order: ReplicationJob,
    progress: JobProgress,
}

impl Known {
    fn of(job: Job) -> Option<Known> {
        Some(Known { order: ReplicationJob::read(&job.data)?, progress: JobProgress::of(&job), job })
    }

    /// The event since the last one in the history: the server ended while the job ran.
    fn loss(&self) -> Option<Event> {
        let Job { state: JobState::Pending, lost: times @ 1.., scheduled_ms, .. } = self.job else { return None };
        let at_ms = scheduled_ms.saturating_sub(pause_after_lost(times));
        Some(Event { kind: "crashed".to_owned(), at_ms, reason: Some(of_lost(times)) })
    }

    /// Why the last run failed, if it did.
    fn failure(&self) -> Option<String> {
        self.loss().and_then(|loss| loss.reason).or_else(|| self.progress.failure().map(str::to_owned))
    }

    fn state(&self) -> &'static str {
        match (&self.job.name, self.job.state, self.failure()) {
            (None, JobState::Running, _) | (None, _, None) => "initializing",
            (None, _, Some(_)) => "error",
            (_, JobState::Running, _) => "running",
            (_, _, Some(_)) => "crashing",
            (_, _, None) => "pending",
        }
    }

    fn started(&self) -> String {
        time(self.order.added_ms)
    }

    fn updated(&self) -> String {
        let last = self.loss().or_else(|| self.progress.history.first().cloned());
        time(last.map_or(self.order.added_ms, |event| event.at_ms))
    }

    fn node(&self) -> &str {
        self.job.run.as_ref().and_then(|run| run.server.as_deref()).unwrap_or("nonode@nohost")
    }

    /// The figures of the replication.
    fn write_info(&self, json: &mut JsonWriter<'_>) {
        json.name("info");
        match &self.progress.figures {
            Some(figures) => drop(json.text(figures)),
            None => drop(json.null()),
        }
    }

    /// The figures of the replication, or its failure.
    fn write_info_or_failure(&self, json: &mut JsonWriter<'_>) {
        match self.failure() {
            Some(reason) => drop(json.name("info").begin_object().name("error").str(&reason).end_object()),
            None => self.write_info(json),
        }
    }

    fn write_shown(&self, name: &str, json: &mut JsonWriter<'_>) {
        json.name(name);
        match self.order.described(name) {
            Some(value) => json.value(value),
            None => json.null(),
        };
    }

    /// The row in `_scheduler/jobs`.
    fn write(&self, json: &mut JsonWriter<'_>) {
        json.begin_object();
        self.write_shown("database", json);
        json.name("id");
        text(json, self.job.name.clone());
        json.name("pid");
        match &self.job.run {
            Some(run) => json.str(&format!("<0.{}.0>", run.number)),
            None => json.null(),
        };
        for name in ["source", "target", "user", "doc_id"] {
            self.write_shown(name, json);
        }
        self.write_info(json);
        json.name("history").begin_array();
        for event in self.loss().iter().chain(&self.progress.history) {
            json.begin_object().name("timestamp").str(&time(event.at_ms)).name("type").str(&event.kind);
            if let Some(reason) = &event.reason {
                json.name("reason").str(reason);
            }
            json.end_object();
        }
        json.end_array().name("node").str(self.node()).name("start_time").str(&self.started()).end_object();
    }
}

/// All jobs, with the names of the servers that run them.
async fn all(app: &App) -> Result<Vec<Known>> {
    let jobs = app.layer.jobs();
    let running = jobs.running().await?;
    let mut servers: HashMap<String, Option<String>> = running
        .into_iter()
        .filter(|job| job.id.kind == KIND)
        .filter_map(|job| Some((job.id.id, job.run?.server)))
        .collect();
    let listed = jobs.list(KIND).await?;
    let named = listed.into_iter().map(|mut job| {
        if let Some(run) = &mut job.run {
            run.server = servers.remove(&job.id.id).flatten();
        }
        job
    });
    Ok(named.filter_map(Known::of).collect())
}

/// The jobs that run or wait to run.
async fn scheduled(app: &App) -> Result<Vec<Known>> {
    let mut known = all(app).await?;
    known.retain(|known| known.job.name.is_some());
    known.sort_by(|one, other| one.job.name.cmp(&other.job.name));
    Ok(known)
}

/// What [`jobs()`] does.
pub(crate) const JOBS: Operation = Operation::new("The scheduled replications.", &[Reply::object(200)]).query(&[&[
    Param::count("limit", "How many rows at most."),
    Param::count("skip", "How many rows to leave out at the beginning."),
]]);

/// `GET /_scheduler/jobs`
pub(crate) async fn jobs(request: &Request) -> Result<Response> {
    let (limit, skip) = (number(request, "limit", USUAL_LIMIT)?, number(request, "skip", 0)?);
    let known = scheduled(&request.app).await?;
    Ok(response::object(|json| {
        json.name("total_rows").u64(known.len() as u64).name("offset").u64(skip.min(known.len()) as u64);
        json.name("jobs").begin_array();
        known.iter().skip(skip).take(limit).for_each(|one| one.write(json));
        json.end_array();
    }))
}

/// What [`job`] does.
pub(crate) const JOB: Operation = Operation::new("A scheduled replication.", &[Reply::object(200)]);

/// `GET /_scheduler/jobs/{id}`
pub(crate) async fn job(request: &Request, id: &str) -> Result<Response> {
    let id = plus_for_space(id);
    let known = scheduled(&request.app).await?.into_iter().find(|one| one.job.name.as_ref() == Some(&id));
    let known = known.ok_or_else(|| ApiError::not_found("missing"))?;
    let mut body = Vec::new();
    known.write(&mut JsonWriter::new(&mut body));
    Ok(response::json(StatusCode::OK, body))
}

/// What [`docs`] does.
pub(crate) const DOCS: Operation = Operation::new(
    "Documents that are replications, with their states: all of `_replicator`, all of a database, or one.",
    &[Reply::object(200)],
)
.query(&[&[
    Param::count("limit", "How many rows at most."),
    Param::count("skip", "How many rows to leave out at the beginning."),
    Param::text("states", "Only these states, separated by commas."),
]]);

/// `GET /_scheduler/docs`, `…/{db}` and `…/{db}/{docid}`, where the slashes of the database's name need not be escaped.
pub(crate) async fn docs(request: &Request, path: &[&str]) -> Result<Response> {
    if path.is_empty() {
        return list(request, "_replicator").await;
    }
    let end = path.iter().position(|part| has_jobs(part));
    let end = end.ok_or_else(|| ApiError::bad_request("Invalid path"))?;
    let database = path[..=end].join("/");
    match &path[end + 1..] {
        [] => list(request, &database).await,
        [id] => one(request, &database, id).await,
        _ => Err(ApiError::bad_request("Invalid path")),
    }
}

async fn list(request: &Request, name: &str) -> Result<Response> {
    let (limit, skip) = (number(request, "limit", usize::MAX)?, number(request, "skip", 0)?);
    let states = states(request.params.get("states").unwrap_or_default())?;
    let database = request.fresh_database(name).await?;
    let mut known: HashMap<String, Known> =
        all(&request.app).await?.into_iter().map(|one| (one.job.id.id.clone(), one)).collect();
    let mut rows = Vec::new();
    let mut next = Some(AllDocsRequest { include_docs: true, ..AllDocsRequest::default() });
    while let Some(asked) = next {
        let page = database.all_docs(&asked).await?;
        for row in page.rows.into_iter().filter(|row| !row.id.starts_with(DESIGN_PREFIX)) {
            if let AllDocsEntry::Live { doc: Some(document), .. } = row.entry {
                let known = known.remove(&job_of_document(name, &row.id).id);
                rows.push(ReplicationRow { database: name, found: ReplicationDocument::new(*document), known });
            }
        }
        next = page.next;
    }
    let total = rows.len() as u64;
    rows.retain(|row| states.is_empty() || row.state().is_some_and(|state| states.contains(&state.as_str())));
    Ok(response::object(|json| {
        json.name("total_rows").u64(total).name("offset").u64(skip.min(rows.len()) as u64);
        json.name("docs").begin_array();
        rows.iter().skip(skip).take(limit).for_each(|row| row.write(json));
        json.end_array();
    }))
}

async fn one(request: &Request, name: &str, id: &str) -> Result<Response> {
    let database = request.fresh_database(name).await?;
    let found = find_in(&database, id).await?.ok_or_else(|| ApiError::not_found("missing"))?;
    let wanted = job_of_document(name, id);
    let known = all(&request.app).await?.into_iter().find(|one| one.job.id == wanted);
    let mut body = Vec::new();
    ReplicationRow { database: name, found, known }.write(&mut JsonWriter::new(&mut body));
    Ok(response::json(StatusCode::OK, body))
}

/// A document and its job.
struct ReplicationRow<'n> {
    database: &'n str,
    found: ReplicationDocument,
    known: Option<Known>,
}

impl ReplicationRow<'_> {
    fn state(&self) -> Option<String> {
        if !self.found.is_to_run() {
            return self.found.state();
        }
        Some(self.known.as_ref().map_or("initializing", Known::state).to_owned())
    }

    fn write(&self, json: &mut JsonWriter<'_>) {
        let side = |name: &str| self.found.body.get(name).and_then(side_name);
        json.begin_object().name("database").str(self.database).name("doc_id").str(&self.found.id);
        let known = self.known.as_ref().filter(|_| self.found.is_to_run());
        json.name("id");
        let id = known.and_then(|known| known.job.name.clone());
        let is_scheduled = id.is_some();
        text(json, id);
        if self.found.is_to_run() {
            json.name("node").str(known.map_or("nonode@nohost", Known::node));
        }
        if is_scheduled || !self.found.is_to_run() {
            for name in ["source", "target"] {
                json.name(name);
                text(json, side(name));
            }
        }
        json.name("state");
        text(json, self.state());
        match known {
            Some(known) => {
                known.write_info_or_failure(json);
                json.name("error_count").u64(known.progress.errors + known.job.lost);
                json.name("last_updated").str(&known.updated()).name("start_time").str(&known.started());
            }
            None => self.write_outcome(json),
        }
        if is_scheduled {
            json.name("source_proxy").null().name("target_proxy").null();
        }
        json.end_object();
    }

    /// The outcome in the document itself.
    fn write_outcome(&self, json: &mut JsonWriter<'_>) {
        let at = || self.found.text("_replication_state_time");
        let (info, errors, began) = match self.found.state().as_deref() {
            Some("completed") => {
                let stats = self.found.body.get("_replication_stats").filter(|stats| stats.is_object());
                let began = stats.and_then(|stats| Some(stats.get("start_time")?.as_str()?.into_owned()));
                (Some(stats.map_or_else(JsonText::empty_object, without_start_time)), 0, began)
            }
            Some("failed") => {
                let info = |reason: String| {
                    json_object(|json| {
                        json.name("error").str(&reason);
                    })
                };
                (self.found.text("_replication_state_reason").map(info), 1, at())
            }
            _ => (None, 0, None),
        };
        json.name("info");
        match info {
            Some(info) => json.text(&info),
            None => json.null(),
        };
        json.name("error_count").u64(errors).name("last_updated");
        text(json, at());
        json.name("start_time");
        text(json, began);
    }
}

fn without_start_time(stats: JsonRef<'_>) -> JsonText {
    json_object(|json| {
        for (name, value) in stats.members().filter(|(name, _)| name != "start_time") {
            json.name(&name).value(value);
        }
    })
}

fn text(json: &mut JsonWriter<'_>, value: Option<String>) {
    match value {
        Some(value) => json.str(&value),
        None => json.null(),
    };
}

fn number(request: &Request, name: &str, usual: usize) -> Result<usize> {
    match request.params.get(name) {
        None => Ok(usual),
        Some(text) => text.parse().map_err(|_| {
            let what = if text.parse::<i64>().is_ok() { "not in range of [0,infinity]" } else { "must be an integer" };
            ApiError::query_parse(format!("{name} {what}"))
        }),
    }
}

fn states(asked: &str) -> Result<Vec<&'static str>> {
    let state = |asked: &str| {
        let known = STATES.into_iter().find(|known| known.eq_ignore_ascii_case(asked));
        known.ok_or_else(|| ApiError::query_parse(format!("States must be one or more of [{}]", STATES.join(","))))
    };
    asked.split(',').filter(|asked| !asked.is_empty()).map(state).collect()
}
