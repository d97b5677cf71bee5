//! `/{db}/_couch_layer/vault`: the diagnosis of a LiveSync vault, and the collection of its chunks. CouchDB has no such
//! endpoint.

use std::sync::Arc;

use budget::{Owner, Use};
use chunks::store::PeerStore;
use chunks::{CensusOptions, ChunkStore, Error, StoreErrorKind, Trash, WouldCollect, would_collect_vault};
use hyper::StatusCode;
use model::{JsonText, KeepReplaced, MOST_MILLISECONDS, Passed};
use serde_json::{Value, json};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::jobs::collect_vaults::{self, CENSUS_MEMORY, ELSEWHERE, GRACE_MS, IDS, MEMORY, Schedule, Times};
use crate::http::operation::{Content, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::body::{WAIT, require_json};
use crate::http::wire::params::parse_bool;
use crate::http::wire::response::{self, Response};

/// Maximum size of the body of a request.
const MOST_BYTES: usize = 1_000;

/// The shortest time between two collections: each reads the whole vault.
const SHORTEST_MS: u64 = 60_000;

const GRACE: Param = Param::text("grace", "How long a chunk is condemned before it is deleted: a time such as `30d`.");
const TRASH: Param = Param::json(
    "trash",
    "How long its text stays in the trash after all devices have passed the deletion: a time such as `30d`, of two days at \
     least. No text leaves the trash without it, and with `null` or `off`.",
);

/// What [`doctor`] does.
pub(crate) const DOCTOR: Operation = Operation::new("The diagnosis of a LiveSync vault.", &[Reply::object(200)])
    .query(&[&[Param::flag("examine", "`false`: only what its collections left; the vault is not read.")]]);

/// Reads the whole vault, or with `examine=false` only what its collections left. There is no passphrase: what is said
/// of an encrypted vault is what can be seen without it.
pub(crate) async fn doctor(request: &Request, db: &str) -> Result<Response> {
    let examine = request.params.get("examine").map(parse_bool).transpose()?.unwrap_or(true);
    let app = &request.app;
    let database = request.fresh_database(db).await?;
    let scheduled = collect_vaults::scheduled(&app.layer.jobs(), &database.info().await?).await?;
    let memory = if examine { CENSUS_MEMORY } else { 0 };
    let held = app.budget.part(Owner::Work("vaults")).take(memory, Use::Quick, WAIT).await?;
    let work = async move {
        let chunks = ChunkStore::new(Arc::new(PeerStore::local(database.clone())));
        let mut told = match examine {
            true => chunks.doctor(census(), |_| ()).await?.to_json(),
            false => json!({}),
        };
        let trash = Trash::read(&database).await?;
        told["trash"] = trash.to_json();
        if told["files"]["unread"]["count"].as_u64() > Some(0)
            && let (Some(warning), Some(advice)) = (trash.warning(), told["advice"].as_array_mut())
        {
            advice.push(warning.into());
        }
        drop(held);
        Ok(told)
    };
    let told: chunks::Result<Value> = app.off_thread(Box::pin(work)).await?;
    let mut told = told.map_err(|error| failed(db, &error))?;
    told["collect"] = scheduled.unwrap_or_default();
    Ok(answer(&told))
}

/// What [`collect`] does.
pub(crate) const COLLECT: Operation =
    Operation::new("Removes chunks of a LiveSync vault that no file needs.", &[Reply::object(200)])
        .bodies(&[Content::members(&[GRACE, TRASH])])
        .refusals(&[412]);

/// `POST`: one run of a collection of chunks that have documents of their own.
///
/// ```text
///   {"grace": "30d", "trash": "30d"}  ─►  {"referenced": …, "holds": […], "trash_holds": […], "collected": {"deleted": …, …}}
/// ```
///
/// Nothing is done while `holds` has a reason. Nothing leaves the trash while `trash_holds` has one, and without `trash`,
/// whatever the schedule says.
///
/// # Errors
/// 412 if it cannot be known which chunks are needed.
pub(crate) async fn collect(request: &mut Request, db: &str) -> Result<Response> {
    let body = members(request, &["grace", "trash"]).await?;
    let times = times(&body)?;
    let database = request.fresh_database(db).await?;
    let app = request.app.clone();
    let work = async move { collect_vaults::collect(&app, &database, times).await };
    let done = request.app.off_thread(Box::pin(work)).await??.map_err(|error| refused(db, &error))?;
    if done.failed.is_none() || done.has_written() {
        request.audit("vault_collected", &[("db", db)]);
    }
    match &done.failed {
        None => Ok(answer(&done.to_json())),
        Some(error) => {
            let done = format!(
                "{} chunks were condemned, {} deleted, and {} left the trash before.",
                done.condemned, done.deleted.count, done.emptied.documents
            );
            Err(refused_after(db, error, &done))
        }
    }
}

/// What [`schedule`] does.
pub(crate) const SCHEDULE: Operation =
    Operation::new("Sets how often chunks of a LiveSync vault are collected.", &[Reply::object(200)])
        .bodies(&[Content::members(&[
            Param::json("collect", "A time such as `1d`; `null` or `off` for never.").required(),
            GRACE,
            TRASH,
        ])])
        .refusals(&[412]);

/// `PUT`: lets a server collect the chunks now and then, or no longer.
///
/// ```text
///   {"collect": "1d", "grace": "30d", "trash": "30d"}  ─►  {"ok": true, "holds": […], "trash_holds": […]}
/// ```
///
/// The vault is read first. While `holds` has a reason, runs remove nothing; while `trash_holds` has one, nothing leaves the
/// trash.
///
/// # Errors
/// 412 if it cannot be known which chunks are needed: the server could collect nothing, and protect nobody.
pub(crate) async fn schedule(request: &mut Request, db: &str) -> Result<Response> {
    let body = members(request, &["collect", "grace", "trash"]).await?;
    if body.get("collect").is_none() {
        return Err(ApiError::bad_request("`collect` must be a time, for example 1d, or off"));
    }
    let is_off = is_off(&body, "collect");
    let times = times(&body)?;
    let database = request.fresh_database(db).await?;
    let (schedule, holds, trash_holds) = if is_off {
        (None, Vec::new(), Vec::new())
    } else {
        let every_ms = time(&body, "collect")?.filter(|every_ms| *every_ms >= SHORTEST_MS);
        let every_ms = every_ms
            .ok_or_else(|| ApiError::bad_request(format!("`collect` must be {}s at least", SHORTEST_MS / 1_000)))?;
        if times.trash_ms.is_some_and(|trash_ms| every_ms > Passed::longest_pause_ms(trash_ms)) {
            let what = "`trash` must be at least twice as long as `collect`: otherwise a clock that jumps cannot be told apart";
            return Err(ApiError::bad_request(what));
        }
        if collect_vaults::is_elsewhere(&request.app, db).await? {
            return Err(ApiError::precondition_failed(ELSEWHERE));
        }
        let found = would_collect(request, &database).await?.map_err(|error| refused(db, &error))?;
        (Some(Schedule { every_ms, times }), found.holds, found.trash_holds)
    };
    Schedule::set(&request.app.layer.jobs(), &database.info().await?, schedule).await?;
    request.audit("vault_collection_changed", &[("db", db)]);
    Ok(answer(&json!({"ok": true, "holds": holds, "trash_holds": trash_holds})))
}

/// What a collection would do now.
async fn would_collect(request: &Request, database: &Documents) -> Result<std::result::Result<WouldCollect, Error>> {
    let app = &request.app;
    // What a run needs, so that one which can never have it is not set.
    let held = app.budget.part(Owner::Work("vaults")).take(MEMORY, Use::Quick, WAIT).await?;
    let database = database.clone();
    let work = async move {
        let found = would_collect_vault(&database, census(), |_| ()).await;
        drop(held);
        found
    };
    app.off_thread(Box::pin(work)).await
}

fn census() -> CensusOptions {
    CensusOptions { most_ids: IDS, ..CensusOptions::default() }
}

/// The body of a request, which may have only these members.
async fn members(request: &mut Request, known: &[&str]) -> Result<JsonText> {
    require_json(&request.headers)?;
    request.body.narrow(MOST_BYTES);
    let body = request.json_object().await?;
    match body.root().members().any(|(name, _)| !known.contains(&&*name)) {
        true => Err(ApiError::bad_request(format!("only these may be given: {}", known.join(", ")))),
        false => Ok(body),
    }
}

/// How long chunks are kept.
fn times(body: &JsonText) -> Result<Times> {
    let trash_ms = if is_off(body, "trash") { None } else { time(body, "trash")? };
    if trash_ms.is_some_and(|trash_ms| trash_ms < Passed::SHORTEST_MS) {
        let shortest = KeepReplaced::Milliseconds(Passed::SHORTEST_MS);
        return Err(ApiError::bad_request(format!(
            "`trash` must be at least {shortest}: within it a device that was cut off sends what it had written"
        )));
    }
    Ok(Times { grace_ms: time(body, "grace")?.unwrap_or(GRACE_MS), trash_ms })
}

/// Whether a member of a body says "never".
fn is_off(body: &JsonText, name: &str) -> bool {
    body.get(name).is_some_and(|value| value.is_null() || value.as_str().as_deref() == Some("off"))
}

/// The time in a member of a body, in milliseconds.
fn time(body: &JsonText, name: &str) -> Result<Option<u64>> {
    let Some(time) = body.get(name) else { return Ok(None) };
    match time.as_str().and_then(|text| model::parse_time(&text)) {
        Some(time) if time <= MOST_MILLISECONDS => Ok(Some(time)),
        Some(_) => {
            Err(ApiError::bad_request(format!("`{name}` must be at most {} days", MOST_MILLISECONDS / 86_400_000)))
        }
        None => Err(ApiError::bad_request(format!("`{name}` must be a time, for example 30d"))),
    }
}

fn answer(told: &Value) -> Response {
    response::json(StatusCode::OK, told.to_string().into_bytes())
}

/// The answer if it cannot be known which chunks are needed.
fn refused(db: &str, error: &Error) -> ApiError {
    match error {
        Error::Unread { .. } | Error::Setting(_) => ApiError::precondition_failed(error.to_string()),
        _ => failed(db, error),
    }
}

/// The same for a collection that ended after it had done something.
fn refused_after(db: &str, error: &Error, done: &str) -> ApiError {
    match error {
        Error::Setting(what) => ApiError::precondition_failed(format!("{what}. {done}")),
        Error::Store(store) if store.kind() == StoreErrorKind::NoDatabase => failed(db, error),
        _ => {
            tracing::warn!(database = db, %error, "a collection of a vault ended before it had done everything");
            ApiError::unavailable(format!(
                "The collection ended before it had done everything; the log says why. {done}"
            ))
        }
    }
}

fn failed(db: &str, error: &Error) -> ApiError {
    match error {
        Error::Store(store) if store.kind() == StoreErrorKind::NoDatabase => {
            ApiError::not_found("Database does not exist.")
        }
        _ => {
            // It may have paths of this machine.
            tracing::warn!(database = db, %error, "a vault cannot be examined");
            ApiError::unavailable("The vault cannot be read as a whole at the moment; the log says why.")
        }
    }
}
