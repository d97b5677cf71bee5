//! `_bulk_docs`: many documents written in one request.
//!
//! An invalid request is refused as a whole, before anything is written. An error of one edit (a conflict, a
//! document that is too large) is reported at its place.

use hyper::StatusCode;
use model::{Edit, EditResult, JsonRef, JsonText, JsonWriter, RevId, WriteMode};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::document::local::{self, LocalEdit};
use crate::http::operation::{Content, Kind, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::body::at_most;
use crate::http::wire::response::{self, Response};

/// The error of a request with too many documents.
pub(crate) const TOO_MANY: &str = "max_bulk_docs_count_exceeded";

/// Maximum number of attachments of all documents of a request. Each takes hundreds of bytes in memory.
const MOST_ATTACHMENTS: usize = 100_000;

/// Number of documents parsed before an invalid one among them is noticed.
const PARSED_AT_ONCE: usize = 2_000;

/// Maximum number of edits that are written on the serving thread, and kept for a second attempt.
const FEW_EDITS: usize = 16;

/// A place in the response.
struct ResponseEntry {
    id: String,
    /// The revision of a replicated edit.
    brought: Option<RevId>,
    /// Result of the edit; `None` if the database returns it, in order.
    outcome: Option<Result<Written>>,
}

/// The revision that was written.
enum Written {
    Document(RevId),
    /// The `N` in `0-N`.
    Local(u64),
}

/// Contents of a request.
struct BulkRequest {
    mode: WriteMode,
    all_or_nothing: bool,
    /// One place for each document, in order.
    places: Vec<ResponseEntry>,
    /// The edits of documents, in the order of their places.
    edits: Vec<Edit>,
    /// The edits of local documents, with their places.
    locals: Vec<(usize, LocalEdit)>,
}

/// What [`bulk_docs`] does.
pub(crate) const BULK_DOCS: Operation = Operation::new(
    "Writes several documents, each on its own.",
    &[
        Reply::new(201, &[Content::json(Kind::Objects)]),
        // As in CouchDB: a refusal for each document.
        Reply::new(417, &[Content::json(Kind::Objects)]),
    ],
)
.bodies(&[Content::members(&[
    Param::objects("docs", "The documents.").required(),
    Param::flag("new_edits", "`false`: the revisions are given, as by a replication."),
    Param::flag("all_or_nothing", "Refused with 417."),
])])
.refusals(&[409, 412]);

pub(crate) async fn bulk_docs(request: &mut Request, db: &str) -> Result<Response> {
    let BulkRequest { mode, all_or_nothing, mut places, edits, locals } = read(request).await?;
    if all_or_nothing {
        request.fresh_database(db).await?;
        let refusal = || {
            let reason = "all_or_nothing is not supported";
            ApiError::new(StatusCode::EXPECTATION_FAILED, "not_implemented", reason)
        };
        places.iter_mut().for_each(|place| place.outcome = Some(Err(refusal())));
        return Ok(response::json(StatusCode::EXPECTATION_FAILED, answer(&places, mode)));
    }
    let ids: &Vec<&str> = &places.iter().map(|place| place.id.as_str()).collect();
    let check = |database: Documents| async move { Ok(database.check_ids(ids).await?) };
    request.with_database(db, check).await?;
    if edits.is_empty() {
        // A write of edits would notice that the database is gone; without edits, this does.
        request.fresh_database(db).await?;
    }
    for (place, edit) in locals {
        let Some(place) = places.get_mut(place) else { continue };
        let written = request.with_database(db, |database| edit.write(database, &place.id)).await;
        place.outcome = Some(written.map(Written::Local));
    }
    let results = write(request, db, edits, mode).await?;
    request.app.statistics.wrote(places.len());
    let open = places.iter_mut().filter(|place| place.outcome.is_none());
    for (place, result) in open.zip(results) {
        place.outcome = Some(result.map(Written::Document).map_err(ApiError::from));
    }
    Ok(response::json(StatusCode::CREATED, answer(&places, mode)))
}

/// Reads the request.
async fn read(request: &mut Request) -> Result<BulkRequest> {
    let json = request.json_object().await?;
    // In one pass: looking up a member by name would walk over all documents.
    let (mut docs, mut new_edits, mut all_or_nothing) = (None, Some(true), false);
    for (name, value) in json.root().members() {
        match name.as_ref() {
            "docs" => docs = Some(value),
            "new_edits" => new_edits = value.as_bool(),
            "all_or_nothing" => all_or_nothing = value.as_bool() == Some(true),
            _ => {}
        }
    }
    let docs = docs.ok_or_else(|| ApiError::bad_request("POST body must include `docs` parameter."))?;
    if !docs.is_array() {
        return Err(ApiError::bad_request("`docs` parameter must be an array."));
    }
    let most = request.app.auth.settings().max_bulk_docs;
    let mut docs = at_most(docs, most, || ApiError::bulk_count(TOO_MANY, most))?;
    let mode = match new_edits {
        Some(true) => WriteMode::Interactive,
        Some(false) => WriteMode::Replicated,
        None => return Err(ApiError::bad_request("`new_edits` parameter must be a boolean.")),
    };
    let (mut places, mut edits, mut locals) = (Vec::new(), Vec::new(), Vec::new());
    let mut attachments = 0;
    let read = |(): &mut (), doc: &JsonRef<'_>| Submitted::read(&json.slice_ref(*doc), mode);
    loop {
        let some: Vec<JsonRef<'_>> = docs.by_ref().take(PARSED_AT_ONCE).collect();
        if some.is_empty() {
            break;
        }
        for submitted in model::parallel::map(request.app.options.threads, &some, || (), read) {
            match submitted? {
                Submitted::Local { id, edit } => {
                    locals.push((places.len(), edit));
                    places.push(ResponseEntry { id, brought: None, outcome: None });
                }
                Submitted::Edit { mut edit, brought } => {
                    count_attachments(&mut attachments, &edit)?;
                    if edit.id.is_empty() {
                        edit.id = request.app.fresh_ids(1)?.pop().unwrap_or_default();
                    }
                    places.push(ResponseEntry { id: edit.id.clone(), brought, outcome: None });
                    edits.push(edit);
                }
            }
        }
    }
    Ok(BulkRequest { mode, all_or_nothing, places, edits, locals })
}

async fn write(request: &Request, db: &str, edits: Vec<Edit>, mode: WriteMode) -> Result<Vec<EditResult>> {
    if edits.len() <= FEW_EDITS {
        let write = async |database: Documents| Ok(database.write(edits.clone(), mode).await?);
        return request.with_database(db, write).await;
    }
    // Many edits take much memory. So the handle is renewed first, instead of keeping a copy for a second attempt.
    let database = request.fresh_database(db).await?;
    // They also read much.
    request.app.scan(async move { database.write(edits, mode).await }).await
}

/// Adds the attachments of an edit to those of the request, or 413.
pub(crate) fn count_attachments(sum: &mut usize, edit: &Edit) -> Result<()> {
    *sum += edit.attachments.len();
    if *sum <= MOST_ATTACHMENTS {
        return Ok(());
    }
    let reason = format!("the documents of a request may have {MOST_ATTACHMENTS} attachments at most");
    Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason))
}

/// A document of the request.
enum Submitted {
    Local { id: String, edit: LocalEdit },
    Edit { edit: Edit, brought: Option<RevId> },
}

impl Submitted {
    fn read(doc: &JsonText, mode: WriteMode) -> Result<Self> {
        if let Some(id) = local::local_id(doc) {
            let edit = LocalEdit::from_json(doc)?;
            if mode == WriteMode::Replicated {
                edit.require_rev()?;
            }
            return Ok(Submitted::Local { id, edit });
        }
        let edit = Edit::from_json(None, doc, mode)?;
        let brought = edit.rev.as_ref().filter(|_| mode == WriteMode::Replicated).cloned();
        Ok(Submitted::Edit { edit, brought })
    }
}

fn answer(places: &[ResponseEntry], mode: WriteMode) -> Vec<u8> {
    let mut body = Vec::with_capacity(places.len() * 96);
    let mut json = JsonWriter::new(&mut body);
    json.begin_array();
    for place in places {
        match &place.outcome {
            // Replicators read errors only.
            Some(Ok(_)) if mode == WriteMode::Replicated => continue,
            Some(Ok(rev)) => {
                json.begin_object().name("ok").bool(true);
                json.name("id").str(&place.id).name("rev");
                match rev {
                    Written::Document(rev) => rev.write_json(&mut json),
                    Written::Local(rev) => {
                        json.display(format_args!("0-{rev}"));
                    }
                }
            }
            refused => {
                json.begin_object().name("id").str(&place.id);
                if let Some(rev) = &place.brought {
                    rev.write_json(json.name("rev"));
                }
                match refused {
                    Some(Err(error)) => error.write_members(&mut json),
                    // The database returns a result for every edit. If one were missing, the client must be told.
                    _ => ApiError::internal().write_members(&mut json),
                }
            }
        }
        json.end_object();
    }
    json.end_array();
    body
}
