//! Documents: one, many, their revisions, and local ones.

pub(crate) mod bulk_docs;
pub(crate) mod bulk_get;
pub(crate) mod local;
mod open_revs;
pub(crate) mod read;
pub(crate) mod revs_diff;
pub(crate) mod write;

use model::GetOptions;
use model::limits::{LOCAL_PREFIX, check_document_id};

use crate::http::error::{ApiError, Result};
use crate::http::request::Request;
use crate::http::wire::body::content_type_is;
use crate::http::wire::response::Response;

pub(crate) async fn document(request: &mut Request, db: &str, id: &str) -> Result<Response> {
    match request.method.as_str() {
        "GET" => read::read(request, db, id).await,
        "PUT" => write::put(request, db, id).await,
        "DELETE" => write::delete(request, db, id).await,
        "COPY" => write::copy(request, db, id).await,
        "POST" => {
            request.database(db).await?;
            if content_type_is(&request.headers, "multipart/form-data") {
                return Err(ApiError::not_implemented("attachments"));
            }
            Err(ApiError::bad_content_type("Content-Type must be multipart/form-data"))
        }
        _ => Err(ApiError::unrouted()),
    }
}

/// 404 unless the document is there.
pub(crate) async fn require(request: &Request, db: &str, id: &str) -> Result<()> {
    let database = request.database(db).await?;
    require_possible(id)?;
    if id.starts_with(LOCAL_PREFIX) {
        database.get_local(id).await?;
    } else {
        database.get(id, &GetOptions::default()).await?;
    }
    Ok(())
}

/// 404 for an id that no document can have: who reads is told that it is missing, who writes what is wrong.
fn require_possible(id: &str) -> Result<()> {
    check_document_id(id).map_err(|_| ApiError::not_found("missing"))
}
