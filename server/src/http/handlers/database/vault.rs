//! `/{db}/_couch_layer/vault`: the diagnosis of a LiveSync vault, and the collection of its chunks. CouchDB has no such
//! endpoint.

use std::sync::Arc;

use budget::{Owner, Use};
use chunks::store::PeerStore;
use chunks::{CensusOptions, ChunkStore, Error, StoreErrorKind, VaultCollectOptions, collect_vault};
use hyper::StatusCode;

use crate::http::error::{ApiError, Result};
use crate::http::operation::{Content, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::body::{WAIT, require_json};
use crate::http::wire::response::{self, Response};

/// Ids of chunks in memory. A vault with more takes several passes.
const IDS: usize = 250_000;
/// Memory of a diagnosis: ids that files name, ids of missing chunks, and documents as trees.
const MEMORY: usize = IDS * 36 + IDS * 18 + (16 << 20);

/// Number of unreferenced chunks that one collection takes, and their memory: ids in a few lists.
const TAKEN: usize = 100_000;
const TAKEN_MEMORY: usize = TAKEN * 300;
/// Maximum size of the body of a request for a collection.
const MOST_BYTES: usize = 1_000;
/// The time between condemning a chunk and deleting it, in milliseconds, unless the request names another one.
const GRACE_MS: u64 = 30 * 24 * 3_600 * 1_000;

/// What [`doctor`] does.
pub(crate) const DOCTOR: Operation = Operation::new("The diagnosis of a LiveSync vault.", &[Reply::object(200)]);

/// Reads the whole vault. There is no passphrase: what is said of an encrypted vault is what can be seen without it.
pub(crate) async fn doctor(request: &Request, db: &str) -> Result<Response> {
    let app = &request.app;
    let database = request.fresh_database(db).await?;
    let chunks = ChunkStore::new(Arc::new(PeerStore::local(database)));
    let held = app.budget.part(Owner::Work("vaults")).take(MEMORY, Use::Quick, WAIT).await?;
    let work = async move {
        let found = chunks.doctor(CensusOptions { most_ids: IDS, ..CensusOptions::default() }, |_| ()).await;
        drop(held);
        found
    };
    let found = app.off_thread(Box::pin(work)).await?.map_err(|error| failed(db, &error))?;
    Ok(response::json(StatusCode::OK, found.to_json().to_string().into_bytes()))
}

/// What [`collect`] does.
pub(crate) const COLLECT: Operation =
    Operation::new("Removes chunks of a LiveSync vault that no file needs.", &[Reply::object(200)])
        .bodies(&[Content::members(&[Param::text(
            "grace",
            "How long a chunk is condemned before it is deleted: a time such as `30d`.",
        )])])
        .refusals(&[412]);

/// `POST`: one run of a collection of chunks that have documents of their own.
///
/// ```text
///   {"grace": "30d"}  ─►  {"referenced": …, "holds": […], "collected": {"deleted": …, …}}
/// ```
///
/// Nothing is done while `holds` has a reason.
///
/// # Errors
/// 412 if it cannot be known which chunks are needed.
pub(crate) async fn collect(request: &mut Request, db: &str) -> Result<Response> {
    require_json(&request.headers)?;
    request.body.narrow(MOST_BYTES);
    let body = request.json_object().await?;
    if body.root().members().any(|(name, _)| name != "grace") {
        return Err(ApiError::bad_request("only `grace` may be given"));
    }
    let grace_ms = match body.get("grace") {
        None => GRACE_MS,
        Some(time) => match time.as_str().and_then(|text| model::parse_time(&text)) {
            Some(time) => time,
            None => return Err(ApiError::bad_request("`grace` must be a time, for example 30d")),
        },
    };
    let options = VaultCollectOptions { grace_ms, census: CensusOptions { most_ids: IDS, most_named: TAKEN } };
    let database = request.fresh_database(db).await?;
    let app = &request.app;
    let held = app.budget.part(Owner::Work("vaults")).take(MEMORY + TAKEN_MEMORY, Use::Quick, WAIT).await?;
    let work = async move {
        let done = collect_vault(&database, options, |_| ()).await;
        drop(held);
        done
    };
    let done = app.off_thread(Box::pin(work)).await?.map_err(|error| match &error {
        Error::Unread { .. } | Error::Setting(_) => ApiError::precondition_failed(error.to_string()),
        _ => failed(db, &error),
    })?;
    request.audit("vault_collected", &[("db", db)]);
    Ok(response::json(StatusCode::OK, done.to_json().to_string().into_bytes()))
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
