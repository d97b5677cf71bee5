//! `open_revs`: several revisions of one document. CouchDB's replicator asks for `multipart/mixed` when its source
//! has no `_bulk_get`.
//!
//! ```text
//!   --BOUNDARY
//!   Content-Type: application/json
//!
//!   {"_id":…}
//!   --BOUNDARY
//!   Content-Type: application/json; error="true"
//!
//!   {"missing":"1-…"}
//!   --BOUNDARY--
//! ```
//! Source: `send_docs_multipart` of CouchDB's `chttpd_db.erl`; without attachments a document's part is
//! plain JSON there too.

use hyper::StatusCode;
use model::{GetOptions, JsonWriter, OpenRev, OpenRevs, RevId};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::ids::random_hex;
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};

pub(crate) async fn open_revs(
    request: &Request,
    database: Documents,
    id: &str,
    which: &OpenRevs,
    options: &GetOptions,
) -> Result<Response> {
    let all = *which == OpenRevs::All;
    let found = database.open_revs(id, which, options).await?;
    if all && found.is_empty() {
        return Err(ApiError::not_found("missing"));
    }
    if accepts_multipart(request) {
        return multipart(&found);
    }
    let mut body = vec![b'['];
    for (index, one) in found.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        match one {
            OpenRev::Found(document) => {
                body.extend_from_slice(b"{\"ok\":");
                document.write_json(&mut body);
                body.push(b'}');
            }
            OpenRev::Missing(rev) => write_missing(&mut body, rev),
        }
    }
    body.push(b']');
    Ok(response::json(StatusCode::OK, body))
}

/// Whether the client takes `multipart/mixed`, which in CouchDB it does unless it says otherwise.
fn accepts_multipart(request: &Request) -> bool {
    if !request.headers.contains_key(hyper::header::ACCEPT) {
        return true;
    }
    ["multipart/mixed", "multipart/*", "*/*"].iter().any(|kind| request.accepts(kind))
}

/// `{"missing":"1-…"}`
fn write_missing(out: &mut Vec<u8>, rev: &RevId) {
    let mut json = JsonWriter::new(out);
    json.begin_object().name("missing").display(rev).end_object();
}

/// The answer as `multipart/mixed`.
fn multipart(found: &[OpenRev]) -> Result<Response> {
    let boundary = random_hex::<16>().map_err(|_| ApiError::internal())?;
    let mut body = Vec::new();
    body.extend_from_slice(b"--");
    body.extend_from_slice(boundary.as_bytes());
    for one in found {
        match one {
            OpenRev::Found(document) => {
                body.extend_from_slice(b"\r\nContent-Type: application/json\r\n\r\n");
                document.write_json(&mut body);
            }
            OpenRev::Missing(rev) => {
                body.extend_from_slice(b"\r\nContent-Type: application/json; error=\"true\"\r\n\r\n");
                write_missing(&mut body, rev);
            }
        }
        body.extend_from_slice(b"\r\n--");
        body.extend_from_slice(boundary.as_bytes());
    }
    body.extend_from_slice(b"--");
    Ok(response::typed(&format!("multipart/mixed; boundary=\"{boundary}\""), body))
}
