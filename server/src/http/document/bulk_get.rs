//! `_bulk_get`: many documents read in one request.

use std::sync::Arc;

use hyper::StatusCode;
use model::{BulkGet, GetOptions, JsonRef, JsonWriter, OpenRev, RevId};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::document::read::get_options;
use crate::http::error::{ApiError, Result};
use crate::http::request::Request;
use crate::http::wire::params::parse_rev;
use crate::http::wire::response::{self, Response};

/// Documents that are read before any of them is sent.
const PAGE: usize = 200;

/// One entry of a bulk get: a request, or why it is none.
#[derive(Clone)]
enum Wanted {
    Request(BulkGet),
    Refused { id: Option<String>, rev: Option<String>, error: &'static str, reason: String },
}

pub(crate) async fn bulk_get(request: &mut Request, db: &str) -> Result<Response> {
    for unfit in ["open_revs", "new_edits", "w", "rev", "atts_since"] {
        if request.params.get(unfit).is_some() {
            return Err(ApiError::bad_request(format!("\"{unfit}\" query parameter is not acceptable")));
        }
    }
    let options = get_options(&request.params)?;
    let json = request.json_object().await?;
    let docs = json.get("docs").filter(|docs| docs.is_array());
    let docs = docs.ok_or_else(|| ApiError::bad_request("Missing JSON list of 'docs'."))?;
    let mut pages: Vec<Vec<Wanted>> = Vec::new();
    for (place, doc) in docs.elements().enumerate() {
        if place % PAGE == 0 {
            pages.push(Vec::with_capacity(PAGE));
        }
        if let Some(page) = pages.last_mut() {
            page.push(wanted(doc));
        }
    }
    let mut pages = pages.into_iter();
    let mut body = b"{\"results\":[".to_vec();
    let (app, options, first) = (&request.app, &options, &pages.next().unwrap_or_default());
    // The first page is read before the status is sent, so that an error has its own status.
    let begin = |database: Documents| async move {
        let reader = Reader { app: app.clone(), database, options: options.clone() };
        let mut body = Vec::new();
        reader.read(first.clone(), &mut body).await?;
        Ok((reader, body))
    };
    let (reader, rows) = request.with_database(db, begin).await?;
    body.extend_from_slice(&rows);
    if pages.len() == 0 {
        body.extend_from_slice(b"]}");
        return Ok(response::json(StatusCode::OK, body));
    }
    let body = response::stream(|writer| async move {
        writer.send(body).await?;
        for page in pages {
            let mut body = vec![b','];
            reader.read(page, &mut body).await?;
            writer.send(body).await?;
        }
        Ok(writer.send("]}\n").await?)
    });
    Ok(response::with_json(StatusCode::OK, body))
}

/// Reads an entry of a bulk get.
fn wanted(doc: JsonRef<'_>) -> Wanted {
    let text = |name: &str| doc.get(name).and_then(|value| value.as_str()).map(|value| value.into_owned());
    let refuse = |id, rev, error, reason: &str| Wanted::Refused { id, rev, error, reason: reason.to_owned() };
    if !doc.is_object() || doc.members().next().is_none() {
        return refuse(None, None, "bad_request", "document must be a JSON object");
    }
    let Some(id) = text("id") else {
        return refuse(None, None, "bad_request", "document id missed");
    };
    if let Err(error) = model::limits::check_document_id(&id) {
        return Wanted::Refused { id: Some(id), rev: None, error: error.error(), reason: error.reason().into_owned() };
    }
    let Some(rev) = doc.get("rev") else { return Wanted::Request(BulkGet { id, rev: None }) };
    match rev.as_str().and_then(|rev| parse_rev(&rev).ok()) {
        Some(rev) => Wanted::Request(BulkGet { id, rev: Some(rev) }),
        None => refuse(Some(id), text("rev"), "bad_request", "Invalid rev format"),
    }
}

/// What the pages of a bulk get share.
struct Reader {
    app: Arc<App>,
    database: Documents,
    options: GetOptions,
}

impl Reader {
    /// Appends the results of a page, with commas between them.
    async fn read(&self, page: Vec<Wanted>, body: &mut Vec<u8>) -> Result<()> {
        let requests: Vec<BulkGet> = page
            .iter()
            .filter_map(|wanted| match wanted {
                Wanted::Request(request) => Some(request.clone()),
                Wanted::Refused { .. } => None,
            })
            .collect();
        let (database, options) = (self.database.clone(), self.options.clone());
        let found = self.app.scan(async move { database.get_many(requests, &options).await }).await?;
        let mut found = found.into_iter();
        for (place, wanted) in page.into_iter().enumerate() {
            if place > 0 {
                body.push(b',');
            }
            match wanted {
                Wanted::Request(request) => {
                    let (id, leaves) = found.next().ok_or_else(ApiError::internal)?;
                    write_leaves(body, &id, request.rev.as_ref(), leaves);
                }
                Wanted::Refused { id, rev, error, reason } => {
                    write_result(body, id.as_deref(), |body| {
                        write_error(body, id.as_deref(), rev.as_deref(), error, &reason);
                    });
                }
            }
        }
        Ok(())
    }
}

/// `{"id":…,"docs":[…]}`
fn write_result(body: &mut Vec<u8>, id: Option<&str>, docs: impl FnOnce(&mut Vec<u8>)) {
    let mut json = JsonWriter::new(body);
    json.begin_object().name("id");
    match id {
        Some(id) => json.str(id),
        None => json.null(),
    };
    json.name("docs").begin_array();
    docs(body);
    body.extend_from_slice(b"]}");
}

fn write_leaves(body: &mut Vec<u8>, id: &str, asked: Option<&RevId>, leaves: model::Result<Vec<OpenRev>>) {
    write_result(body, Some(id), |body| {
        let asked = asked.map_or_else(|| "undefined".to_owned(), ToString::to_string);
        let leaves = match leaves {
            Ok(leaves) if leaves.is_empty() => {
                return write_error(body, Some(id), Some(&asked), "not_found", "missing");
            }
            Ok(leaves) => leaves,
            Err(error) => return write_error(body, Some(id), Some(&asked), error.error(), &error.reason()),
        };
        for (place, leaf) in leaves.iter().enumerate() {
            if place > 0 {
                body.push(b',');
            }
            match leaf {
                OpenRev::Found(document) => {
                    body.extend_from_slice(b"{\"ok\":");
                    document.write_json(body);
                    body.push(b'}');
                }
                OpenRev::Missing(rev) => write_error(body, Some(id), Some(&rev.to_string()), "not_found", "missing"),
            }
        }
    });
}

/// `{"error":{"id":…,"rev":…,"error":…,"reason":…}}`
fn write_error(body: &mut Vec<u8>, id: Option<&str>, rev: Option<&str>, error: &str, reason: &str) {
    let mut json = JsonWriter::new(body);
    json.begin_object().name("error").begin_object();
    for (name, value) in [("id", id), ("rev", rev)] {
        match value {
            Some(value) => json.name(name).str(value),
            None => json.name(name).null(),
        };
    }
    json.name("error").str(error);
    json.name("reason").str(reason);
    json.end_object().end_object();
}
