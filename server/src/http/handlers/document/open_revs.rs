//! `open_revs`: several revisions of one document. CouchDB's replicator requests `multipart/mixed`, to get attachments
//! in their stored form.
//!
//! ```text
//!   --BOUNDARY
//!   Content-Type: multipart/related; boundary="INNER"      a document with attachments
//!
//!   --INNER …
//!   --BOUNDARY
//!   Content-Type: application/json                         one without
//!
//!   {"_id":…}
//!   --BOUNDARY
//!   Content-Type: application/json; error="true"
//!
//!   {"missing":"1-…"}
//!   --BOUNDARY--
//! ```
//! Source: `send_docs_multipart` of CouchDB's `chttpd_db.erl`.

use std::sync::Arc;

use hyper::StatusCode;
use model::{GetOptions, JsonWriter, OpenRev, OpenRevs, RevId};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::document::contents;
use crate::http::handlers::document::related::{Related, all_stubs};
use crate::http::request::Request;
use crate::http::wire::accept::takes;
use crate::http::wire::multipart::writer::{Multipart, head};
use crate::http::wire::response::{self, MOST_PAGE, Response};

pub(crate) async fn open_revs(
    request: &Request,
    database: Documents,
    id: &str,
    which: &OpenRevs,
    options: &GetOptions,
) -> Result<Response> {
    let in_parts = takes(&request.headers, "multipart/mixed");
    let mut options = options.clone();
    // An answer in parts includes attachments, requested or not.
    options.attachments |= in_parts;
    let found = database.open_revs(id, which, &options).await?;
    if found.is_empty() && *which == OpenRevs::All {
        return Err(ApiError::not_found("missing"));
    }
    if in_parts {
        return multipart(request, database, found);
    }
    let has_contents = |one: &OpenRev| matches!(one, OpenRev::Found(document) if contents::are_wanted(document));
    let streams = found.iter().any(has_contents);
    let app = request.app.clone();
    if !streams {
        let mut body = vec![b'['];
        for (index, one) in found.into_iter().enumerate() {
            write(&app, &database, index, one, &mut body).await?;
        }
        body.push(b']');
        return Ok(response::json(StatusCode::OK, body));
    }
    let body = response::stream(|writer| async move {
        let mut body = vec![b'['];
        for (index, one) in found.into_iter().enumerate() {
            write(&app, &database, index, one, &mut body).await?;
            if body.len() > MOST_PAGE {
                writer.send(std::mem::take(&mut body)).await?;
            }
        }
        body.extend_from_slice(b"]\n");
        Ok(writer.send(body).await?)
    });
    Ok(response::with_json(StatusCode::OK, body))
}

/// Appends the revision at this place, after a comma unless it is the first.
async fn write(app: &Arc<App>, database: &Documents, place: usize, one: OpenRev, body: &mut Vec<u8>) -> Result<()> {
    if place > 0 {
        body.push(b',');
    }
    match one {
        OpenRev::Found(document) => {
            let rev = document.rev.clone();
            match contents::load(app, database, document).await? {
                Some((document, _held)) => {
                    body.extend_from_slice(b"{\"ok\":");
                    document.write_json(body);
                    body.push(b'}');
                }
                None => body.extend_from_slice(&missing(&rev)),
            }
        }
        OpenRev::Missing(rev) => body.extend_from_slice(&missing(&rev)),
    }
    Ok(())
}

/// The text `{"missing":"1-…"}`.
fn missing(rev: &RevId) -> Vec<u8> {
    let mut out = Vec::new();
    let mut json = JsonWriter::new(&mut out);
    json.begin_object().name("missing").display(rev).end_object();
    out
}

/// The answer as `multipart/mixed`.
fn multipart(request: &Request, database: Documents, found: Vec<OpenRev>) -> Result<Response> {
    let multipart = Multipart::new()?;
    let content_type = multipart.content_type("mixed");
    let app = request.app.clone();
    let body = response::stream_bytes(|writer| async move {
        writer.send(multipart.begin()).await?;
        for one in found {
            match one {
                OpenRev::Found(document) => match Related::new(&document)? {
                    Some(related) => {
                        writer.send(head(&related.content_type())).await?;
                        related.send(&app, &database, &writer).await?;
                    }
                    None => {
                        writer.send(head("application/json")).await?;
                        writer.send(all_stubs(&document)).await?;
                    }
                },
                OpenRev::Missing(rev) => {
                    writer.send(head("application/json; error=\"true\"")).await?;
                    writer.send(missing(&rev)).await?;
                }
            }
            writer.send(multipart.next()).await?;
        }
        Ok(writer.send(Multipart::END).await?)
    });
    Ok(response::in_parts(&content_type, body))
}
