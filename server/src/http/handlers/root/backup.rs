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
//! client has to start another one.

use std::path::Path;
use std::sync::Arc;

use backup::{Folder, Protection, Pruned, Report, Repository};
use hyper::StatusCode;
use model::{JsonText, JsonWriter, LayerOptions, SystemEnvironment};

use crate::backup_state::BackupProgress;
use crate::http::app::App;
use crate::http::error::{ApiError, Result};
use crate::http::operation::{Content, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::body::require_json;
use crate::http::wire::response::{self, Response};

/// Maximum number of databases that a request names.
const MOST_DATABASES: usize = 10_000;

/// The contents of a request.
struct Asked {
    to: String,
    databases: Vec<String>,
    protection: Protection,
    keep_ms: Option<u64>,
    whole: bool,
}

impl Asked {
    /// Reads a request and the file with its passphrase.
    fn read(json: &JsonText) -> Result<Asked> {
        let text = |name: &str| json.get(name).and_then(|value| value.as_str().map(|text| text.into_owned()));
        let bad = |reason: &str| ApiError::bad_request(reason.to_owned());
        let absolute = |path: String| if Path::new(&path).is_absolute() { Some(path) } else { None };
        let to = text("to").and_then(absolute).ok_or_else(|| bad("`to` must be the absolute path of a folder"))?;
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
        let keep_ms = match text("keep") {
            Some(keep) => Some(model::parse_time(&keep).ok_or_else(|| bad("`keep` must be a time such as 7d or 12h"))?),
            None => None,
        };
        let flag = |name: &str| match json.get(name) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| bad(&format!("`{name}` must be true or false"))),
        };
        let (is_plain, whole) = (flag("no_encryption")?, flag("whole")?);
        let protection = match (text("passphrase_file").and_then(absolute), is_plain) {
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
        Ok(Asked { to, databases, protection, keep_ms, whole })
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
        Param::text("to", "The absolute path of the folder.").required(),
        Param::texts("databases", "The databases; all by default."),
        Param::text("passphrase_file", "The absolute path of a file with the passphrase."),
        Param::flag("no_encryption", "Instead of a passphrase: the backup is not encrypted."),
        Param::text("keep", "Older runs are removed: a time such as `7d`."),
        Param::flag("whole", "Copies everything, and not only what is new."),
    ])])
    .refusals(&[409]);

/// `POST /_couch_layer/backup`
pub(crate) async fn begin(request: &mut Request) -> Result<Response> {
    require_administrator(request)?;
    require_json(&request.headers)?;
    let asked = Asked::read(&request.json_object().await?)?;
    let app = &request.app;
    {
        let mut state = app.backup.0.lock();
        if matches!(*state, BackupProgress::Running { .. }) {
            return Err(ApiError::new(StatusCode::CONFLICT, "conflict", "a backup is running"));
        }
        *state = BackupProgress::Running { database: String::new(), documents: 0 };
    }
    let work = app.clone();
    let began = app.spawn_scan(async move {
        let _ending = Ending(&work);
        let state = match run(&work, &asked).await {
            Ok(done) => BackupProgress::Ended(Box::new(done)),
            Err(error) => {
                tracing::warn!(%error, to = asked.to, "a backup failed");
                BackupProgress::Failed(error.to_string())
            }
        };
        *work.backup.0.lock() = state;
    });
    if began.is_none() {
        *app.backup.0.lock() = BackupProgress::None;
        return Err(ApiError::internal());
    }
    status(request).await.map(|mut response| {
        *response.status_mut() = StatusCode::ACCEPTED;
        response
    })
}

/// Ends a backup whose task panicked.
struct Ending<'a>(&'a App);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut state = self.0.backup.0.lock();
        if matches!(*state, BackupProgress::Running { .. }) {
            *state =
                BackupProgress::Failed("the backup ended unexpectedly; the server's log has the details".to_owned());
        }
    }
}

async fn run(app: &Arc<App>, asked: &Asked) -> backup::Result<(Report, Option<Pruned>)> {
    let place = Arc::new(Folder::new(&asked.to));
    let repository = Repository::open_or_create(place, &asked.protection, Arc::new(SystemEnvironment)).await?;
    let mut progress = |database: &str, documents: u64| {
        *app.backup.0.lock() = BackupProgress::Running { database: database.to_owned(), documents };
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
    let state = request.app.backup.0.lock();
    Ok(response::object(|json| write(json, &state)))
}

fn write(json: &mut JsonWriter<'_>, state: &BackupProgress) {
    match state {
        BackupProgress::None => {
            json.name("state").str("none");
        }
        BackupProgress::Running { database, documents } => {
            json.name("state").str("running").name("database").str(database).name("documents").u64(*documents);
        }
        BackupProgress::Failed(reason) => {
            json.name("state").str("failed").name("reason").str(reason);
        }
        BackupProgress::Ended(done) => {
            let (report, pruned) = done.as_ref();
            json.name("state").str("ended").name("run").str(&report.run.id);
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
    }
}
