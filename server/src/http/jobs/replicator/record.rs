//! Data and progress of a replication's job.
//!
//! ```text
//!  name       the id of the replication; without one, the job is not scheduled yet, or has ended
//!  data       {"task": {…}, "added_ms": 1, "database": "_replicator", "doc_id": "x", "definition": "…"}
//!             {"task": {…}, "added_ms": 1, "request": {…}, "owner": {…}}
//!  progress   {"task": {…figures…}, "errors": 1, "history": [{"type": "crashed", "at_ms": 2, "reason": "…"}, …]}
//!             {"task": {}, "errors": 0, "history": [], "answer": {"status": 200, "body": {"ok": true, …}}}
//! ```
//!
//! A request that is not continuous ends with an answer for the waiting clients.
//!
//! `_active_tasks` shows `task`. A replication without a document has its credentials in `request`, so the rest of the
//! data is never shown.

use std::time::{Duration, UNIX_EPOCH};

use hyper::StatusCode;
use jobs::{Job, JobId};
use model::{JsonRef, JsonText};
use replicate::{Figures, Progress, Report};

use crate::http::error::{ApiError, Result};
use crate::http::jobs::replicator::owner::Owner;
use crate::http::jobs::replicator::requested::RequestedReplication;
use crate::http::wire::response::{self, json_object};

/// The kind of these jobs.
pub(crate) const KIND: &str = "replication";

/// Maximum size of a request and its owner in a job's data.
pub(crate) const MOST_REQUEST: usize = 60_000;

/// Maximum size of the record in an answer. A record with a single session may be larger.
const MOST_RECORD: usize = 80_000;

/// Maximum number of shown characters of a database's address.
const MOST_NAME: usize = 1_000;

/// Maximum length of a stored failure reason.
const MOST_REASON: usize = 200;

/// Maximum size of a job's progress.
const MOST_PROGRESS: usize = 90_000;

/// Number of events in a history, as in CouchDB.
const MOST_EVENTS: usize = 20;

/// A run of this length resets the count of errors.
const HEALTHY_MS: u64 = 120_000;

/// The origin of a replication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A document.
    Document {
        /// Its database.
        database: String,
        /// Its id.
        id: String,
        /// The hash of its definition.
        definition: String,
    },
    /// A request of this owner.
    Request(Request, Owner),
}

/// A request. It may have credentials, so its `Debug` shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Request(pub(crate) JsonText);

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}

/// A job's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplicationJob {
    pub(crate) origin: Origin,
    pub(crate) added_ms: u64,
    /// The description for `_active_tasks`.
    task: JsonText,
}

/// The job of a document. Names of databases have no colon.
pub(crate) fn job_of_document(database: &str, id: &str) -> JobId {
    JobId::new(KIND, format!("{database}:{id}"))
}

/// The id of a replication whose `+` was decoded as a space in a path, as CouchDB restores it.
pub(crate) fn plus_for_space(id: &str) -> String {
    id.replace(' ', "+")
}

/// Whether a job is a document's. Ids of replications have no colon.
pub(crate) fn is_of_document(id: &JobId) -> bool {
    id.id.contains(':')
}

/// The job of a request, by the id that the replication had at that time.
pub(crate) fn job_of_request(id: &str) -> JobId {
    JobId::new(KIND, id)
}

/// Whether a job is a continuous replication.
pub(crate) fn is_continuous(job: &Job) -> bool {
    ReplicationJob::read(&job.data).is_some_and(|order| order.is_continuous())
}

impl ReplicationJob {
    /// `user` is the name of the owner.
    pub(crate) fn new(
        origin: Origin,
        asked: &RequestedReplication,
        user: Option<&str>,
        added_ms: u64,
    ) -> ReplicationJob {
        let shortened = |name: &str| name.chars().take(MOST_NAME).collect::<String>();
        let task = json_object(|json| {
            match &origin {
                Origin::Document { database, id, .. } => {
                    json.name("database").str(database).name("doc_id").str(id);
                }
                Origin::Request(..) => {
                    json.name("database").null().name("doc_id").null();
                }
            }
            match user {
                Some(user) => json.name("user").str(user),
                None => json.name("user").null(),
            };
            json.name("source").str(&shortened(&asked.source.name)).name("target").str(&shortened(&asked.target.name));
            json.name("continuous").bool(asked.options.continuous);
            json.name("checkpoint_interval").u64(asked.options.checkpoint_interval.as_millis() as u64);
        });
        ReplicationJob { origin, added_ms, task }
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        response::object_text(|json| {
            json.name("task").text(&self.task).name("added_ms").u64(self.added_ms);
            match &self.origin {
                Origin::Document { database, id, definition } => {
                    json.name("database").str(database).name("doc_id").str(id).name("definition").str(definition);
                }
                Origin::Request(Request(text), owner) => {
                    json.name("request").text(text).name("owner").text(&owner.to_json());
                }
            }
        })
    }

    pub(crate) fn read(data: &[u8]) -> Option<ReplicationJob> {
        let json = JsonText::parse(data).ok()?;
        let text = |name| Some(json.get(name)?.as_str()?.into_owned());
        let task = json.slice_ref(json.get("task")?);
        let origin = match json.get("request") {
            Some(request) => {
                // An owner without a proof has no rights.
                let named = || Owner::unproven(task.get("user").and_then(|user| Some(user.as_str()?.into_owned())));
                let owner = json.get("owner").and_then(Owner::read).unwrap_or_else(named);
                Origin::Request(Request(json.slice_ref(request)), owner)
            }
            None => {
                Origin::Document { database: text("database")?, id: text("doc_id")?, definition: text("definition")? }
            }
        };
        Some(ReplicationJob { origin, added_ms: json.get("added_ms")?.as_u64()?, task })
    }

    /// Whether it continues with later changes.
    fn is_continuous(&self) -> bool {
        self.described("continuous").and_then(JsonRef::as_bool) == Some(true)
    }

    /// Whether clients wait for its end.
    pub(crate) fn is_awaited(&self) -> bool {
        matches!(self.origin, Origin::Request(..)) && !self.is_continuous()
    }

    /// The description under this name.
    pub(crate) fn described(&self, name: &str) -> Option<JsonRef<'_>> {
        self.task.get(name)
    }
}

/// Something that happened to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: String,
    pub(crate) at_ms: u64,
    pub(crate) reason: Option<String>,
}

/// A job's progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobProgress {
    /// Figures of the replication, as `_active_tasks` shows them.
    pub(crate) figures: Option<JsonText>,
    /// Number of failed runs in a row.
    pub(crate) errors: u64,
    /// Events, the newest first.
    pub(crate) history: Vec<Event>,
    /// The outcome for clients that wait.
    pub(crate) answer: Option<Answer>,
}

/// The answer for clients that wait for a replication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: JsonText,
}

impl Answer {
    /// The answer of a replication that ended.
    pub(crate) fn new(ended: &Result<Report>) -> Answer {
        match ended {
            Ok(report) => Answer { status: StatusCode::OK, body: record_of(report) },
            Err(error) => Answer { status: error.status(), body: json_object(|json| error.write_members(json)) },
        }
    }
}

/// The record of a replication, with as many sessions as fit into a job's progress, the newest first.
fn record_of(report: &Report) -> JsonText {
    let mut sessions = report.record.get("history").map_or(0, |history| history.elements().count());
    loop {
        let record = json_object(|json| {
            json.name("ok").bool(true);
            if report.no_changes {
                json.name("no_changes").bool(true);
            }
            for (name, value) in report.record.root().members() {
                json.name(&name);
                if name != "history" {
                    json.value(value);
                    continue;
                }
                json.begin_array();
                for session in value.elements().take(sessions) {
                    json.value(session);
                }
                json.end_array();
            }
        });
        if record.len() <= MOST_RECORD || sessions <= 1 {
            return record;
        }
        sessions /= 2;
    }
}

impl JobProgress {
    pub(crate) fn of(job: &Job) -> JobProgress {
        job.progress.as_ref().and_then(|progress| JobProgress::read(&progress.bytes)).unwrap_or_default()
    }

    fn read(bytes: &[u8]) -> Option<JobProgress> {
        let json = JsonText::parse(bytes).ok()?;
        let event = |event: JsonRef<'_>| {
            let text = |name| Some(event.get(name)?.as_str()?.into_owned());
            Some(Event { kind: text("type")?, at_ms: event.get("at_ms")?.as_u64()?, reason: text("reason") })
        };
        let answer = |answer: JsonRef<'_>| {
            let status = u16::try_from(answer.get("status")?.as_u64()?).ok()?;
            Some(Answer { status: StatusCode::from_u16(status).ok()?, body: json.slice_ref(answer.get("body")?) })
        };
        Some(JobProgress {
            figures: json.get("task").filter(|task| task.members().next().is_some()).map(|task| json.slice_ref(task)),
            errors: json.get("errors")?.as_u64()?,
            history: json.get("history")?.elements().filter_map(event).collect(),
            answer: json.get("answer").and_then(answer),
        })
    }

    /// The row. It can be stored whatever a peer sent: if it is too large, it has no figures or another answer.
    pub(crate) fn write(&self) -> Vec<u8> {
        let fits = |row: &Vec<u8>| row.len() <= MOST_PROGRESS;
        if let Some(row) = Some(self.write_whole()).filter(fits) {
            return row;
        }
        let without = JobProgress { figures: None, ..self.clone() };
        if let Some(row) = Some(without.write_whole()).filter(fits) {
            return row;
        }
        let reason = "the answer of the replication is too long to be kept";
        let error = ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "replication_failed", reason);
        let answer = self.answer.is_some().then(|| Answer::new(&Err(error)));
        JobProgress { answer, history: Vec::new(), ..without }.write_whole()
    }

    fn write_whole(&self) -> Vec<u8> {
        response::object_text(|json| {
            // An empty object if there are no figures: nothing else may be shown as a task.
            json.name("task").text(self.figures.as_ref().unwrap_or(&JsonText::empty_object()));
            json.name("errors").u64(self.errors).name("history").begin_array();
            for event in &self.history {
                json.begin_object().name("type").str(&event.kind).name("at_ms").u64(event.at_ms);
                if let Some(reason) = &event.reason {
                    json.name("reason").str(reason);
                }
                json.end_object();
            }
            json.end_array();
            if let Some(Answer { status, body }) = &self.answer {
                json.name("answer").begin_object().name("status").u64(u64::from(status.as_u16()));
                json.name("body").text(body).end_object();
            }
        })
    }

    fn note(&mut self, kind: &str, at_ms: u64, reason: Option<String>) {
        self.history.insert(0, Event { kind: kind.to_owned(), at_ms, reason });
        self.history.truncate(MOST_EVENTS);
    }

    /// Notes the start of a run, after this number of lost runs.
    pub(crate) fn begins(&mut self, order: &ReplicationJob, lost: u64, now_ms: u64) {
        if self.history.is_empty() {
            self.note("added", order.added_ms, None);
        }
        if lost > 0 {
            self.note("crashed", now_ms, Some(of_lost(lost)));
        }
        self.note("started", now_ms, None);
    }

    /// When the last run started.
    pub(crate) fn began_ms(&self) -> Option<u64> {
        self.history.iter().find(|event| event.kind == "started").map(|event| event.at_ms)
    }

    /// Notes the failure of the last run.
    pub(crate) fn crashed(&mut self, reason: &str, now_ms: u64) {
        if now_ms.saturating_sub(self.began_ms().unwrap_or(now_ms)) >= HEALTHY_MS {
            self.errors = 0;
        }
        self.errors += 1;
        self.note("crashed", now_ms, Some(peer::cut(reason, MOST_REASON).into_owned()));
    }

    /// Why the last run failed, if it did.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.history.first().filter(|event| event.kind == "crashed").and_then(|event| event.reason.as_deref())
    }
}

/// The reason for waiting after this many lost runs.
pub(crate) fn of_lost(times: u64) -> String {
    match times {
        1 => "the server ended while it ran".to_owned(),
        _ => format!("the server ended while it ran, {times} times in a row"),
    }
}

/// The figures of a replication, with CouchDB's names.
pub(crate) fn figures(progress: &Progress) -> JsonText {
    let Figures {
        missing_checked,
        missing_found,
        docs_read,
        docs_written,
        doc_write_failures,
        bulk_get_docs,
        bulk_get_attempts,
    } = progress.of_all_sessions;
    json_object(|json| {
        json.name("revisions_checked").u64(missing_checked).name("missing_revisions_found").u64(missing_found);
        json.name("docs_read").u64(docs_read).name("docs_written").u64(docs_written);
        json.name("doc_write_failures").u64(doc_write_failures).name("changes_pending");
        match progress.pending {
            Some(pending) => json.u64(pending),
            None => json.null(),
        };
        json.name("bulk_get_docs").u64(bulk_get_docs).name("bulk_get_attempts").u64(bulk_get_attempts);
        json.name("checkpointed_source_seq").str(&progress.checkpointed_seq);
        json.name("source_seq").str(&progress.through_seq).name("through_seq").str(&progress.through_seq);
    })
}

/// A time as CouchDB's scheduler writes it.
pub(crate) fn time(ms: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::authn::principal::{Principal, Proof, Voucher};
    use crate::http::error::ApiError;

    #[test]
    fn what_a_job_has_is_read_back_and_its_task_has_no_credentials() {
        let text = r#"{"source":"http://berta:geheim@a:1/x","target":"b","continuous":true}"#;
        let text = JsonText::parse(text.as_bytes()).unwrap();
        let asked = RequestedReplication::read(&text).unwrap();
        let document =
            Origin::Document { database: "a/_replicator".into(), id: "x:\"y\"".into(), definition: "d".into() };
        let request = |owner: Owner| Origin::Request(Request(text.clone()), owner);
        let token = Proof::Token(Voucher { key: [1; 16], until: Some(7) });
        let user = |proof| Principal { name: Some("anna".to_owned()), roles: vec!["a".to_owned()], proof };
        let owners =
            [user(Proof::Cookie), user(token), Principal::open_admin()].map(|client| Owner::of_client(&client));
        for origin in [document].into_iter().chain(owners.map(request)) {
            let order = ReplicationJob::new(origin, &asked, Some("anna"), 7);
            assert_eq!(ReplicationJob::read(&order.write()), Some(order.clone()));
            assert!(!order.task.as_str().contains("geheim") && !format!("{order:?}").contains("geheim"), "{order:?}");
            assert_eq!(order.described("user").and_then(JsonRef::as_str).as_deref(), Some("anna"));
        }
        // An owner without a proof keeps the name.
        let order = ReplicationJob::new(request(Owner::default()), &asked, Some("anna"), 7);
        let before = String::from_utf8(order.write()).unwrap().replace(r#","owner":{"name":null}"#, "");
        let read = ReplicationJob::read(before.as_bytes()).unwrap();
        assert_eq!(read.origin, request(Owner::unproven(Some("anna".to_owned()))));
        for wrong in [&b""[..], b"{}", b"[1]", br#"{"task":{},"added_ms":1,"database":"a"}"#] {
            assert_eq!(ReplicationJob::read(wrong), None);
        }
    }

    #[test]
    fn answers_are_read_back_and_fit_into_a_job() {
        let error = ApiError::new(StatusCode::NOT_FOUND, "db_not_found", "could not open x");
        let refused = Answer::new(&Err(error));
        assert_eq!(refused.body.as_str(), r#"{"error":"db_not_found","reason":"could not open x"}"#);
        let session = format!(r#"{{"session_id":"s","recorded_seq":"{}"}}"#, "x".repeat(3_000));
        let record = format!(r#"{{"session_id":"s","history":[{}]}}"#, vec![session; 50].join(","));
        let record = JsonText::parse(record.as_bytes()).unwrap();
        let report = Report { figures: Figures::default(), no_changes: true, record };
        let done = Answer::new(&Ok(report));
        let sessions = done.body.get("history").unwrap().elements().count();
        assert!(sessions == 25 && done.body.len() < MOST_RECORD, "{sessions}");
        assert!(done.body.as_str().starts_with(r#"{"ok":true,"no_changes":true,"session_id":"s","#));
        for answer in [refused, done] {
            let progress = JobProgress { answer: Some(answer), ..JobProgress::default() };
            assert_eq!(JobProgress::read(&progress.write()), Some(progress));
        }
    }

    #[test]
    fn histories_are_bounded_and_healthy_runs_forget_errors() {
        let text = JsonText::parse(br#"{"source":"a","target":"b"}"#).unwrap();
        let asked = RequestedReplication::read(&text).unwrap();
        let order = ReplicationJob::new(Origin::Request(Request(text), Owner::default()), &asked, None, 1);
        let mut progress = JobProgress::default();
        for run in 1..=30 {
            progress.begins(&order, 0, run * 10);
            progress.crashed("no answer", run * 10 + 1);
            assert_eq!((progress.errors, progress.failure()), (run, Some("no answer")));
        }
        assert_eq!(progress.history.len(), MOST_EVENTS);
        assert_eq!(JobProgress::read(&progress.write()), Some(progress.clone()));
        progress.begins(&order, 0, 1_000);
        assert_eq!(progress.failure(), None);
        progress.crashed("later", 1_000 + HEALTHY_MS);
        assert_eq!(progress.errors, 1);
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        progress.history.truncate(0);
        progress.begins(&order, 0, 9);
        assert_eq!(
            progress.history.iter().map(|event| (&*event.kind, event.at_ms)).collect::<Vec<_>>(),
            [("started", 9), ("added", 1)]
        );
        progress.begins(&order, 2, 20);
        let event = &progress.history[1];
        assert_eq!((&*event.kind, event.reason.as_deref()), ("crashed", Some(&*of_lost(2))));
    }

    /// Otherwise the row could not be stored, and the replication could be neither ended nor seen.
    #[test]
    fn whatever_a_peer_says_there_is_a_row() {
        let long = |name: &str| {
            json_object(|json| {
                json.name(name).str(&"x".repeat(200_000));
            })
        };
        let event = Event { kind: "started".into(), at_ms: 1, reason: None };
        let progress = JobProgress { figures: Some(long("seq")), errors: 3, history: vec![event], answer: None };
        let read = JobProgress::read(&progress.write()).unwrap();
        assert_eq!(read, JobProgress { figures: None, ..progress.clone() });
        let answer = Some(Answer { status: StatusCode::OK, body: long("session_id") });
        let row = JobProgress { answer, ..progress }.write();
        assert!(row.len() <= MOST_PROGRESS);
        let answer = JobProgress::read(&row).unwrap().answer.unwrap();
        assert_eq!((answer.status.as_u16(), answer.body.get("error").unwrap().text()), (500, "\"replication_failed\""));
    }
}
