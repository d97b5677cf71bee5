//! `/{db}/_couch_layer/relocate`: moves a database to another store while it is served.
//!
//! ```text
//!   POST    begins, or joins the one under way      {"to": "lsm:/srv/new", "verify": true}
//!   GET     how far it has come
//!   DELETE  stops it, and removes the copy          ?to=lsm:/srv/new
//! ```
//!
//! Requests that write wait at a gate while the last step is done, a moment as a rule, and go on at the new
//! place; feeds that wait are woken and go on there by themselves.
//!
//! The store is a folder of the server's machine, or a cluster that it can reach: only an administrator may
//! name one, and where everyone is the administrator nobody may.

use std::ops::ControlFlow;
use std::sync::Arc;

use hyper::StatusCode;
use model::{ErrorKind, JsonWriter, RelocatePhase, RelocateProgress};
use tokio::sync::OwnedRwLockWriteGuard;

use crate::engine::{EngineUrl, IfMissing};
use crate::http::app::App;
use crate::http::app::relocations::{Relocation, Relocations};
use crate::http::app::stores::Store;
use crate::http::error::{ApiError, Result};
use crate::http::request::Request;
use crate::http::wire::body::require_json;
use crate::http::wire::response::{self, Response};
use crate::relocation::{Asked, Status};

/// Refuses requests of everyone where everyone is the administrator.
fn require_administrator(request: &Request) -> Result<()> {
    if request.app.auth.is_party() {
        return Err(ApiError::forbidden(
            "a request that names a store needs an administrator, and this server has none; set COUCHDB_USER and \
             COUCHDB_PASSWORD, or relocate while it is stopped",
        ));
    }
    Ok(())
}

pub(crate) async fn status(request: &Request, name: &str) -> Result<Response> {
    require_administrator(request)?;
    let relocation = request.app.relocations.of(name);
    if relocation.is_none() {
        request.fresh_database(name).await?;
    }
    Ok(response::object(|json| match &relocation {
        Some(relocation) => {
            json.name("to").str(&relocation.asked.to);
            relocation.status().write(json);
        }
        None => Status::None.write(json),
    }))
}

pub(crate) async fn begin(request: &mut Request, name: &str) -> Result<Response> {
    require_administrator(request)?;
    require_json(&request.headers)?;
    let asked = Asked::from_json(&request.json_object().await?);
    let asked = asked.ok_or_else(|| {
        ApiError::bad_request("`to` must be the URL of a store; `verify` and `delete_source` are true or false")
    })?;
    let app = &request.app;
    let source = app.databases.stores.home(name).await?;
    let target = store(app, &asked.to, IfMissing::Create).await?;
    let (Some(from), Some(to)) = (source.url.clone(), target.url.clone()) else {
        return Err(ApiError::not_implemented("relocations from or to a store without a name"));
    };
    if from == to {
        return Err(ApiError::precondition_failed("The database is in that store already."));
    }
    let asked = Asked { to: to.to_string(), ..asked };
    let begun = app.relocations.begin(name, asked.clone(), |relocation| {
        app.spawn_scan(run(app.clone(), relocation, name.to_owned(), source, from, target, to))
    });
    match begun.await {
        Err(running) if running != asked => {
            Err(ApiError::precondition_failed("Another relocation of the database is under way."))
        }
        _ => Ok(response::ok(StatusCode::ACCEPTED)),
    }
}

/// Marks a relocation as failed when its task ends without a status.
struct CutOff(Arc<Relocation>);

impl Drop for CutOff {
    fn drop(&mut self) {
        if self.0.is_running() {
            self.0.set_status(Status::Failed("it was cut off; begun again it goes on from where it is".into()));
        }
    }
}

async fn run(
    app: Arc<App>,
    relocation: Arc<Relocation>,
    name: String,
    source: Store,
    from: EngineUrl,
    target: Store,
    to: EngineUrl,
) {
    let _cut_off = CutOff(relocation.clone());
    tracing::info!(database = %name, %from, %to, "a relocation begins");
    let options = relocation.asked.options(&from, &to);
    let mut held: Option<OwnedRwLockWriteGuard<()>> = None;
    let mut gate_was_tried = false;
    let progress = |at: RelocateProgress| {
        relocation.set_status(at.into());
        if matches!(at.phase, RelocatePhase::Finishing | RelocatePhase::Leaving) {
            // Nothing breaks it off any more: that would leave the database closed.
            if !std::mem::replace(&mut gate_was_tried, true) {
                held = relocation.close_gate();
            }
        } else if relocation.is_stopped() || app.is_stopping() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    let moved = model::relocate(&source.layer, &target.layer, &name, &options, progress).await;
    // Before the gate opens: whoever waited there must not find the old handle.
    app.databases.forget(&name);
    let status = match moved {
        Ok(report) => {
            tracing::info!(database = %name, moved = report.moved, documents = report.documents, "a relocation ends");
            Status::Ended(report.into())
        }
        Err(error) => {
            tracing::warn!(database = %name, %error, "a relocation ends");
            Status::Failed(match error.kind() {
                ErrorKind::FileExists => "there is another database of this name in the target already".to_owned(),
                ErrorKind::Stopped => "it was stopped; begun again it goes on from where it is".to_owned(),
                // An administrator reads this, who named the store.
                _ => error.reason().into_owned(),
            })
        }
    };
    relocation.set_status(status);
    drop(held);
}

pub(crate) async fn abandon(request: &Request, name: &str) -> Result<Response> {
    require_administrator(request)?;
    let app = &request.app;
    let relocation = app.relocations.of(name);
    let to = match (request.params.get("to"), &relocation) {
        (Some(to), _) => to.to_owned(),
        (None, Some(relocation)) => relocation.asked.to.clone(),
        (None, None) => return Err(ApiError::bad_request("`to` must be the URL of the store that it was to move to")),
    };
    let target = store(app, &to, IfMissing::Fail).await?;
    if let Some(relocation) = relocation {
        if Some(&relocation.asked.to) != target.url.as_ref().map(ToString::to_string).as_ref()
            && relocation.is_running()
        {
            return Err(ApiError::precondition_failed("The relocation under way goes to another store."));
        }
        relocation.stop().await;
    }
    let source = match app.databases.stores.home(name).await {
        // Dropped under its copy, which is left.
        Err(error) if error.is_no_database() => app.layer.clone(),
        found => {
            let source = found?;
            if source.url == target.url {
                return Err(ApiError::precondition_failed("The database has moved already."));
            }
            source.layer
        }
    };
    let abandoned = model::abandon_relocation(&source, &target.layer, name).await?;
    Ok(response::object(|json| {
        json.name("ok").bool(true).name("abandoned").bool(abandoned);
    }))
}

/// The store that a client names.
async fn store(app: &App, url: &str, if_missing: IfMissing) -> Result<Store> {
    let url: EngineUrl =
        url.parse().map_err(|error: crate::engine::EngineError| ApiError::bad_request(error.to_string()))?;
    if url == EngineUrl::Memory {
        return Err(ApiError::bad_request("mem: keeps nothing when the server stops"));
    }
    if !url.is_absolute() {
        return Err(ApiError::bad_request("the folder must be named by its whole path on the server's machine"));
    }
    let opened = app.databases.stores.open(&url, if_missing).await;
    opened.map_err(|error| {
        tracing::warn!(%error, store = %url, "a store that was named cannot be opened");
        // To the administrator, who named it.
        ApiError::precondition_failed(error.to_string())
    })
}

/// What `_active_tasks` says of them, into the array that is open.
pub(crate) fn write_tasks(relocations: &Relocations, json: &mut JsonWriter<'_>) {
    for (name, relocation) in relocations.running() {
        let to = &relocation.asked.to;
        let Status::Running { phase, documents, expected } = relocation.status() else { continue };
        json.begin_object().name("type").str("relocation").name("database").str(&name).name("target").str(to);
        json.name("phase").str(phase).name("changes_done").u64(documents);
        json.name("total_changes").u64(expected.max(documents));
        json.name("progress").u64((documents * 100).checked_div(expected).unwrap_or(0).min(100));
        json.end_object();
    }
}
