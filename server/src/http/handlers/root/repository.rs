//! What is in a repository: its runs, and whether they can be restored.
//!
//! ```text
//!   POST /_couch_layer/backup/runs      {"to", "passphrase_file"}    its runs, the newest first, its bytes, its ship
//!   POST /_couch_layer/backup/verify    the same                     begins to read all of its files
//!   GET  /_couch_layer/backup/verify    the progress, or the outcome of the last one
//! ```
//!
//! A server knows no repository by itself: only its folder says which runs are there and whole. So whoever asks names
//! it, with the rights of whoever [backs up](super::backup) into it.

use std::sync::atomic::{AtomicU64, Ordering};

use backup::{Error, RunInfo, ShippedSpan, Verified};
use hyper::StatusCode;
use model::JsonWriter;

use crate::backup_state::{Progress, Reading};
use crate::http::error::{ApiError, Result};
use crate::http::handlers::root::backup::{
    NO_ENCRYPTION, Named, PASSPHRASE_FILE, TO, accepted, require_administrator, start, write,
};
use crate::http::operation::{Content, Operation, Reply};
use crate::http::request::Request;
use crate::http::wire::body::require_json;
use crate::http::wire::response::{self, Response};

/// Maximum number of runs in an answer.
const MOST_RUNS: usize = 50;

/// Maximum number of named databases, and of named problems.
const MOST_NAMED: usize = 20;

/// A repository, as [`Named`] reads it.
const REPOSITORY: &[Content] = &[Content::members(&[TO, PASSPHRASE_FILE, NO_ENCRYPTION])];

/// What [`runs`] does.
pub(crate) const RUNS: Operation =
    Operation::new("The runs of a backup, its bytes, and what is shipped there.", &[Reply::object(200)])
        .bodies(REPOSITORY)
        .refusals(&[500]);

/// `POST /_couch_layer/backup/runs`
///
/// # Errors
/// 400 if there is no repository, or another passphrase opens it; 500 if it cannot be read or is damaged.
pub(crate) async fn runs(request: &mut Request) -> Result<Response> {
    require_administrator(request)?;
    require_json(&request.headers)?;
    let named = Named::read(&request.json_object().await?)?;
    let listed = request.app.off_thread(list(named)).await?.map_err(refused)?;
    Ok(response::object(|json| write_listed(json, &listed)))
}

/// What [`verify`] does.
pub(crate) const VERIFY: Operation =
    Operation::new("Begins to read a whole backup.", &[Reply::object(202)]).bodies(REPOSITORY).refusals(&[409]);

/// `POST /_couch_layer/backup/verify`
pub(crate) async fn verify(request: &mut Request) -> Result<Response> {
    require_administrator(request)?;
    require_json(&request.headers)?;
    let named = Named::read(&request.json_object().await?)?;
    let app = request.app.clone();
    start(&request.app, |state| &state.verification, named.to.clone(), async move {
        let repository = named.open().await?;
        let files = AtomicU64::new(0);
        let mut progress = |_: &str| {
            let files = files.fetch_add(1, Ordering::Relaxed) + 1;
            app.backup.verification.lock().progress = Progress::Running(Reading { files });
        };
        repository.verify(&mut progress).await
    })?;
    verification(request).map(accepted)
}

/// What [`verification`] does.
pub(crate) const VERIFICATION: Operation =
    Operation::new("The progress of the verification, or the outcome of the last one.", &[Reply::object(200)]);

/// `GET /_couch_layer/backup/verify`
pub(crate) fn verification(request: &Request) -> Result<Response> {
    require_administrator(request)?;
    let state = request.app.backup.verification.lock();
    let running = |json: &mut JsonWriter<'_>, at: &Reading| {
        json.name("files").u64(at.files);
    };
    Ok(response::object(|json| write(json, &state, running, write_verified)))
}

/// The content of a repository.
struct Listed {
    bytes: u64,
    number: usize,
    runs: Vec<RunInfo>,
    /// Runs whose lists cannot be read, and why.
    damaged: Vec<(String, String)>,
    shipped: Option<ShippedSpan>,
}

async fn list(named: Named) -> backup::Result<Listed> {
    let repository = named.open().await?;
    let ids = repository.runs().await?;
    let (mut runs, mut damaged) = (Vec::new(), Vec::new());
    for id in ids.iter().rev().take(MOST_RUNS) {
        match repository.run(id).await {
            Ok(run) => runs.push(run),
            Err(Error::Damaged { file, reason }) => damaged.push((file, reason)),
            Err(error) => return Err(error),
        }
    }
    let shipped = match repository.shipped().await {
        Ok(shipped) => shipped,
        Err(Error::Damaged { file, reason }) => {
            damaged.push((file, reason));
            None
        }
        Err(error) => return Err(error),
    };
    Ok(Listed { bytes: repository.bytes().await?, number: ids.len(), runs, damaged, shipped })
}

fn refused(error: Error) -> ApiError {
    match error {
        Error::Passphrase | Error::Refused(_) => ApiError::bad_request(error.to_string()),
        _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "unreadable", error.to_string()),
    }
}

fn write_listed(json: &mut JsonWriter<'_>, listed: &Listed) {
    json.name("bytes").u64(listed.bytes).name("number").u64(listed.number as u64).name("runs").begin_array();
    for run in &listed.runs {
        let documents = run.databases.iter().map(|database| database.documents).sum();
        let damaged: usize = run.databases.iter().map(|database| database.damaged.len()).sum();
        json.begin_object().name("run").str(&run.id).name("began_ms").u64(run.began_ms).name("store").str(&run.store);
        json.name("databases").u64(run.databases.len() as u64).name("documents").u64(documents);
        json.name("damaged").u64(damaged as u64).name("not_renewed").begin_array();
        let old = run.databases.iter().filter(|database| database.not_renewed.is_some());
        old.take(MOST_NAMED).for_each(|database| {
            json.str(&database.name);
        });
        json.end_array().end_object();
    }
    json.end_array();
    problems(json, "problems", &listed.damaged);
    if let Some(shipped) = &listed.shipped {
        json.name("shipped").begin_object().name("store").str(&shipped.store);
        json.name("from_ms").u64(shipped.from_ms).name("until_ms").u64(shipped.until_ms);
        json.name("bases").u64(shipped.bases as u64);
        problems(json, "problems", &shipped.damaged);
        json.end_object();
    }
}

fn write_verified(json: &mut JsonWriter<'_>, verified: &Verified) {
    json.name("runs").u64(verified.runs as u64).name("bases").u64(verified.bases as u64);
    json.name("files").u64(verified.files as u64).name("bytes").u64(verified.bytes);
    json.name("unused").u64(verified.unused as u64).name("number_of_problems").u64(verified.problems.len() as u64);
    problems(json, "problems", &verified.problems);
}

fn problems(json: &mut JsonWriter<'_>, name: &str, all: &[(String, String)]) {
    json.name(name).begin_array();
    for (file, reason) in all.iter().take(MOST_NAMED) {
        json.begin_object().name("file").str(file).name("reason").str(reason).end_object();
    }
    json.end_array();
}
