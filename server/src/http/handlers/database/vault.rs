//! `GET /{db}/_couch_layer/vault`: the diagnosis of a LiveSync vault. CouchDB has no such endpoint.

use std::sync::Arc;

use budget::{Owner, Use};
use chunks::store::PeerStore;
use chunks::{CensusOptions, ChunkStore, Error, StoreErrorKind};
use hyper::StatusCode;

use crate::http::error::{ApiError, Result};
use crate::http::operation::{Operation, Reply};
use crate::http::request::Request;
use crate::http::wire::body::WAIT;
use crate::http::wire::response::{self, Response};

/// Ids of chunks in memory. A vault with more takes several passes.
const IDS: usize = 250_000;
/// Memory of a diagnosis: ids that files name, ids of missing chunks, and documents as trees.
const MEMORY: usize = IDS * 36 + IDS * 18 + (16 << 20);

/// What [`doctor`] does.
pub(crate) const DOCTOR: Operation = Operation::new("The diagnosis of a LiveSync vault.", &[Reply::object(200)]);

/// Reads the whole vault. There is no passphrase: what is said of an encrypted vault is what can be seen without it.
pub(crate) async fn doctor(request: &Request, db: &str) -> Result<Response> {
    let app = &request.app;
    let database = request.fresh_database(db).await?;
    let chunks = ChunkStore::new(Arc::new(PeerStore::local(database)));
    let held = app.budget.part(Owner::Work("vaults")).take(MEMORY, Use::Quick, WAIT).await?;
    let work = async move {
        let found = chunks.doctor(CensusOptions { most_ids: IDS }, |_| ()).await;
        drop(held);
        found
    };
    let found = app.off_thread(Box::pin(work)).await?.map_err(|error| failed(db, &error))?;
    Ok(response::json(StatusCode::OK, found.to_json().to_string().into_bytes()))
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
