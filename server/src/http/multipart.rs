//! `multipart/mixed` answers, which CouchDB's replicator reads where it finds no `_bulk_get`.
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

use model::{JsonWriter, OpenRev, RevId};

use super::document::typed;
use super::error::{ApiError, Result};
use super::response::Response;
use super::uuids::random_hex;

/// `{"missing":"1-…"}`
pub(crate) fn write_missing(out: &mut Vec<u8>, rev: &RevId) {
    let mut json = JsonWriter::new(out);
    json.begin_object().name("missing").display(rev).end_object();
}

/// The answer to `open_revs`.
pub(crate) fn open_revs(found: &[OpenRev]) -> Result<Response> {
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
    Ok(typed(&format!("multipart/mixed; boundary=\"{boundary}\""), body))
}
