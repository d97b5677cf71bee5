//! `/_couch_layer/backup`: backs up databases while the server serves them.
//!
//! ```text
//!   POST    starts a backup    {"to": "/backups/notes", "passphrase_file": "/etc/key",
//!                               "databases": ["notes"], "keep": "30d"}
//!   GET     the progress, or the outcome of the last one
//! ```
//!
//! A backup is a folder on the server's machine, and so is the file with its passphrase. Only an administrator may name
//! them; on a server without an administrator, nobody may. One backup runs at a time. It ends with the server; the
//! client has to start another one. [`repository`](super::repository) looks at what backups are there.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use backup::{Folder, Protection, Pruned, Report, Repository, RunDatabase};
use hyper::StatusCode;
use model::{Environment, JsonText, JsonWriter, LayerOptions, SystemEnvironment};
use parking_lot::Mutex;

use crate::backup_state::{BackupCounts, BackupState, Copying, Progress, Work};
use crate::http::app::App;
use crate::http::error::{ApiError, Result};
use crate::http::operation::{Content, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::body::require_json;
use crate::http::wire::response::{self, Response};

/// Maximum number of databases that a request names.
const MOST_DATABASES: usize = 10_000;

/// The members that [`Named::read`] reads.
pub(super) const TO: Param = Param::text("to", "The absolute path of the folder.").required();
pub(super) const PASSPHRASE_FILE: Param =
    Param::text("passphrase_file", "The absolute path of a file with the passphrase.");
pub(super) const NO_ENCRYPTION: Param =
    Param::flag("no_encryption", "Instead of a passphrase: the backup is not encrypted.");

/// The repository that a request names.
pub(super) struct Named {
    pub(super) to: String,
    protection: Protection,
}

impl Named {
    /// Reads the request, and the file with the passphrase.
    pub(super) fn read(json: &JsonText) -> Result<Named> {
        let to = absolute(json, "to").ok_or_else(|| bad("`to` must be the absolute path of a folder"))?;
        let protection = match (absolute(json, "passphrase_file"), flag(json, "no_encryption")?) {
            (Some(file), false) => {
                let passphrase = crate::passphrase::read(Path::new(&file));
                Protection::Passphrase(passphrase.map_err(|reason| bad(&reason))?)
            }
            (None, true) => Protection::None,
            _ => {
                let reason = "`passphrase_file` must be the absolute path of a file, or `no_encryption` true";
                return Err(bad(reason));
            }
        };
        Ok(Named { to, protection })
    }

    /// Opens the repository, which exists.
    pub(super) async fn open(&self) -> backup::Result<Repository> {
        Repository::open(Arc::new(Folder::new(&self.to)), &self.protection, Arc::new(SystemEnvironment)).await
    }
}

fn text(json: &JsonText, name: &str) -> Option<String> {
    json.get(name)?.as_str().map(|text| text.into_owned())
}

/// The absolute path in a member.
pub(super) fn absolute(json: &JsonText, name: &str) -> Option<String> {
    text(json, name).filter(|path| Path::new(path).is_absolute())
}

fn bad(reason: &str) -> ApiError {
    ApiError::bad_request(reason.to_owned())
}

fn flag(json: &JsonText, name: &str) -> Result<bool> {
    match json.get(name) {
        None => Ok(false),
        Some(value) => value.as_bool().ok_or_else(|| bad(&format!("`{name}` must be true or false"))),
    }
}

/// The contents of a request.
struct Asked {
    named: Named,
    databases: Vec<String>,
    keep_ms: Option<u64>,
    whole: bool,
}

impl Asked {
    /// Reads a request and the file with its passphrase.
    fn read(json: &JsonText) -> Result<Asked> {
        let databases = match json.get("databases") {
            None => Vec::new(),
            Some(names) => {
                let names = names.elements().take(MOST_DATABASES + 1).map(|name| Some(name.as_str()?.into_owned()));
                let names: Option<Vec<String>> = names.collect();
                // An empty list would mean all databases.
                let named = names.filter(|names| !names.is_empty() && names.len() <= MOST_DATABASES);
                named.ok_or_else(|| bad(&format!("`databases` must be a list of 1 to {MOST_DATABASES} names")))?
            }
        };
        let keep_ms = match text(json, "keep") {
            Some(keep) => Some(model::parse_time(&keep).ok_or_else(|| bad("`keep` must be a time such as 7d or 12h"))?),
            None => None,
        };
        let whole = flag(json, "whole")?;
        Ok(Asked { named: Named::read(json)?, databases, keep_ms, whole })
    }
}

/// Refuses all requests if the server has no administrator.
pub(super) fn require_administrator(request: &Request) -> Result<()> {
    if request.app.auth.is_open_admin() {
        return Err(ApiError::forbidden(
            "naming a folder needs an administrator, and this server has none; set COUCHDB_USER and \
             COUCHDB_PASSWORD, or back up while it is stopped",
        ));
    }
    Ok(())
}

/// What [`begin`] does.
pub(crate) const BEGIN: Operation = Operation::new("Begins a backup to a folder of the server.", &[Reply::object(202)])
    .bodies(&[Content::members(&[
        TO,
        Param::texts("databases", "The databases; all by default."),
        PASSPHRASE_FILE,
        NO_ENCRYPTION,
        Param::text("keep", "Older runs are removed: a time such as `7d`."),
        Param::flag("whole", "Copies everything, and not only what is new."),
    ])])
    .refusals(&[409]);

/// `POST /_couch_layer/backup`
pub(crate) async fn begin(request: &mut Request) -> Result<Response> {
    require_administrator(request)?;
    require_json(&request.headers)?;
    let asked = Asked::read(&request.json_object().await?)?;
    let (app, to) = (request.app.clone(), asked.named.to.clone());
    let work = async move {
        let mut counting = Counting { counts: &app.backup.counts, is_whole: false };
        let outcome = run(&app, &asked).await;
        if let Ok((report, _)) = &outcome {
            counting.counts.bytes.add(report.bytes);
            let is_whole = |database: &RunDatabase| database.damaged.is_empty();
            counting.is_whole = report.failed.is_empty() && report.run.databases.iter().all(is_whole);
        }
        outcome
    };
    start(&request.app, |state| &state.backup, to, work)?;
    status(request).await.map(accepted)
}

/// Counts a backup when it ends, even by a panic.
struct Counting<'a> {
    counts: &'a BackupCounts,
    is_whole: bool,
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        match self.is_whole {
            true => {
                self.counts.ended.add(1);
                self.counts.last_ms.store(now_ms(), Ordering::Relaxed);
            }
            false => self.counts.failed.add(1),
        }
    }
}

/// The answer to a request that began work.
pub(super) fn accepted(mut response: Response) -> Response {
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

/// Begins work on the repository `to`, which goes on when its client leaves.
///
/// # Errors
/// 409 while work of its kind runs.
pub(super) fn start<R, D>(
    app: &Arc<App>,
    of: fn(&BackupState) -> &Mutex<Work<R, D>>,
    to: String,
    work: impl Future<Output = backup::Result<D>> + Send + 'static,
) -> Result<()>
where
    R: Default + Send + 'static,
    D: Send + 'static,
{
    {
        let mut state = of(&app.backup).lock();
        if matches!(state.progress, Progress::Running(_)) {
            return Err(ApiError::new(StatusCode::CONFLICT, "conflict", "it is running already"));
        }
        *state = Work { to: to.clone(), progress: Progress::Running(R::default()) };
    }
    let ended = app.clone();
    let began = app.spawn_scan(async move {
        let _ending = Ending { state: of(&ended.backup) };
        let outcome = work.await;
        of(&ended.backup).lock().progress = match outcome {
            Ok(done) => Progress::Ended(done, now_ms()),
            Err(error) => {
                tracing::warn!(%error, to, "work on a backup failed");
                Progress::Failed(error.to_string(), now_ms())
            }
        };
    });
    if began.is_none() {
        of(&app.backup).lock().progress = Progress::None;
        return Err(ApiError::internal());
    }
    Ok(())
}

fn now_ms() -> u64 {
    SystemEnvironment.now_ms()
}

/// Ends work whose task panicked.
struct Ending<'a, R, D> {
    state: &'a Mutex<Work<R, D>>,
}

impl<R, D> Drop for Ending<'_, R, D> {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        if matches!(state.progress, Progress::Running(_)) {
            let reason = "the work ended unexpectedly; the server's log has the details";
            state.progress = Progress::Failed(reason.to_owned(), now_ms());
        }
    }
}

async fn run(app: &Arc<App>, asked: &Asked) -> backup::Result<(Report, Option<Pruned>)> {
    let place = Arc::new(Folder::new(&asked.named.to));
    let repository = Repository::open_or_create(place, &asked.named.protection, Arc::new(SystemEnvironment)).await?;
    let mut progress = |database: &str, documents: u64| {
        app.backup.backup.lock().progress = Progress::Running(Copying { database: database.to_owned(), documents });
    };
    let engine = app.layer.engine().clone();
    let (options, names) = (LayerOptions::default(), &asked.databases[..]);
    let report = match asked.whole {
        true => repository.back_up_whole(engine, &options, names, &mut progress).await?,
        false => repository.back_up(engine, &options, names, &mut progress).await?,
    };
    let pruned = match asked.keep_ms {
        Some(keep_ms) if report.failed.is_empty() => Some(repository.prune(keep_ms).await?),
        _ => None,
    };
    Ok((report, pruned))
}

/// What [`status`] does.
pub(crate) const STATUS: Operation =
    Operation::new("The progress of the backup, or the outcome of the last one.", &[Reply::object(200)]);

/// `GET /_couch_layer/backup`
pub(crate) async fn status(request: &Request) -> Result<Response> {
    require_administrator(request)?;
    let state = request.app.backup.backup.lock();
    Ok(response::object(|json| {
        write(
            json,
            &state,
            |json, at| {
                json.name("database").str(&at.database).name("documents").u64(at.documents);
            },
            write_report,
        );
    }))
}

/// Writes the state of work, where it is, and when it ended.
pub(super) fn write<R, D>(
    json: &mut JsonWriter<'_>,
    work: &Work<R, D>,
    running: impl FnOnce(&mut JsonWriter<'_>, &R),
    ended: impl FnOnce(&mut JsonWriter<'_>, &D),
) {
    let state = match &work.progress {
        Progress::None => "none",
        Progress::Running(_) => "running",
        Progress::Ended(..) => "ended",
        Progress::Failed(..) => "failed",
    };
    json.name("state").str(state);
    if state != "none" {
        json.name("to").str(&work.to);
    }
    match &work.progress {
        Progress::None => {}
        Progress::Running(at) => running(json, at),
        Progress::Ended(done, at_ms) => {
            json.name("ended_ms").u64(*at_ms);
            ended(json, done);
        }
        Progress::Failed(reason, at_ms) => {
            json.name("ended_ms").u64(*at_ms).name("reason").str(reason);
        }
    }
}

fn write_report(json: &mut JsonWriter<'_>, (report, pruned): &(Report, Option<Pruned>)) {
    json.name("run").str(&report.run.id);
    json.name("copied_whole").u64(report.whole as u64).name("bytes").u64(report.bytes);
    json.name("databases").begin_array();
    for database in &report.run.databases {
        json.begin_object().name("name").str(&database.name).name("seq").str(&database.seq);
        json.name("documents").u64(database.documents).name("damaged").begin_array();
        database.damaged.iter().for_each(|id| {
            json.str(id);
        });
        json.end_array().end_object();
    }
    json.end_array();
    json.name("failed").begin_array();
    for (name, reason) in &report.failed {
        json.begin_object().name("name").str(name).name("reason").str(reason).end_object();
    }
    json.end_array().name("remarks").begin_array();
    report.remarks.iter().for_each(|sentence| {
        json.str(sentence);
    });
    json.end_array();
    if let Some(pruned) = pruned {
        json.name("removed").begin_object().name("runs").u64(pruned.runs.len() as u64);
        json.name("packs").u64(pruned.packs as u64).name("bytes").u64(pruned.bytes).end_object();
    }
}
