//! `PATCH /{db}/{docid}`: applies a patch to a document. CouchDB has no such method.
//!
//! The body's content type names the kind of patch: a JSON Merge Patch (RFC 7396) or a JSON Patch (RFC 6902). Without
//! `rev` and `If-Match` it is applied to the current winner.

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use model::{Patch, Writing};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::document::write::written;
use crate::http::operation::{Content, Kind, Operation, Reply};
use crate::http::request::{IF_MATCH_HEADER, REV, Request};
use crate::http::wire::body::content_type_is;
use crate::http::wire::params::BATCH;
use crate::http::wire::response::{self, Response};

const MERGE: &str = "application/merge-patch+json";
const OPERATIONS: &str = "application/json-patch+json";

/// Maximum size of a patch, twice that of a document. In memory, a patch may take twenty times its size.
const MOST_BYTES: usize = 2 * model::limits::HIGHEST_MAX_DOCUMENT_SIZE;

/// The header with the accepted kinds (RFC 5789).
const ACCEPT_PATCH: HeaderName = HeaderName::from_static("accept-patch");
const KINDS: HeaderValue = HeaderValue::from_static("application/merge-patch+json, application/json-patch+json");

/// What [`patch`] does.
pub(crate) const PATCH: Operation = Operation::new(
    "Changes a document: a merge patch, or a list of operations.",
    &[Reply::written(201), Reply::written(202)],
)
.query(&[REV, BATCH])
.headers(&[IF_MATCH_HEADER])
.bodies(&[
    Content { media: MERGE, ..Content::json(Kind::Object) },
    Content { media: OPERATIONS, ..Content::json(Kind::Objects) },
])
.refusals(&[409, 412]);

pub(crate) async fn patch(request: &mut Request, db: &str, id: &str) -> Result<Response> {
    // Checked before any fault of the patch is reported.
    let authorize = |database: Documents| async move { Ok(database.authorize(Writing::Computed(id)).await?) };
    request.with_database(db, authorize).await?;
    let is_merge = content_type_is(&request.headers, MERGE);
    if !is_merge && !content_type_is(&request.headers, OPERATIONS) {
        let refusal = ApiError::bad_content_type(format!("Content-Type must be {MERGE} or {OPERATIONS}"));
        return Err(refusal.with_header(ACCEPT_PATCH, KINDS));
    }
    let named = &request.named_rev()?;
    request.body.narrow(MOST_BYTES);
    let json = request.json().await?;
    let patch = if is_merge { Patch::merge(json) } else { Patch::operations(&json).map_err(model::Error::from)? };
    let patch = &patch;
    let apply = |database: Documents| async move { Ok(database.patch(id, named.as_ref(), patch).await?) };
    let rev = request.with_database(db, apply).await?;
    let mut response = written(id, &rev, StatusCode::CREATED, request.params.is_batch());
    response::set_location(&mut response, request.absolute(&[db, id]));
    Ok(response)
}
