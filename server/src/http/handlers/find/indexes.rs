//! `_index`: creates, lists and deletes indexes.
//!
//! An index is a view in a design document, so this reads and writes design documents. Their edits start the indexes.
//!
//! Source: `mango_httpd.erl`.

use std::time::Duration;

use hyper::StatusCode;
use mango::NewIndex;
use model::{Document, Edit, ErrorKind, GetOptions, JsonText, MAX_INDEXES, NotFound};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::find::explain::write_index_members;
use crate::http::handlers::find::names::auto_name;
use crate::http::jobs::index_build;
use crate::http::operation::{Content, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};

/// Time that an answer waits for the rows of a new index. A larger index is completed in the background.
const WAIT: Duration = Duration::from_secs(2);

/// Number of attempts to edit a design document while others edit it.
const TRIES: usize = 5;

/// What [`create`] does.
pub(crate) const CREATE: Operation = Operation::new("Creates an index.", &[Reply::object(200)])
    .bodies(&[Content::members(&[
        Param::object("index", "`fields`, and `partial_filter_selector`.").required(),
        Param::text("ddoc", "The design document; made from the index by default."),
        Param::text("name", "The name; made from the index by default."),
        Param::choice("type", &["json"], "The kind of index."),
        Param::flag("partitioned", "Whether it is one of partitions."),
    ])])
    .refusals(&[409, 500]);

/// `POST /{db}/_index`
pub(crate) async fn create(request: &mut Request, db: &str) -> Result<Response> {
    let body = request.json_object().await?;
    let new = NewIndex::parse(&body)?;
    let database = request.fresh_database(db).await?;
    if new.partitioned == Some(true) && !database.is_partitioned() {
        let reason = "partitioned option cannot be true in a non-partitioned database.";
        return Err(ApiError::bad_request(reason));
    }
    let auto = auto_name(&new);
    let name = new.name.as_deref().unwrap_or(&auto);
    let design_id = &design_id(new.ddoc.as_deref().unwrap_or(&auto));
    let known = database.indexes().await?;
    let is_new = !known.iter().any(|info| info.index.design_id() == design_id && info.index.name() == name);
    if is_new && known.len() >= MAX_INDEXES {
        let reason = format!("A database has at most {MAX_INDEXES} indexes.");
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_index", reason));
    }
    let changed = change(&database, design_id, |design| match new.add_to(design_id, name, design)? {
        Some(body) => Ok(Change::Write(body)),
        None => Ok(Change::Nothing),
    });
    let changed = changed.await?;
    index_build::wait_a_little(&request.app, &database, WAIT).await;
    Ok(response::object(|json| {
        json.name("result").str(if changed { "created" } else { "exists" });
        json.name("id").str(design_id);
        json.name("name").str(name);
    }))
}

/// What [`list`] does.
pub(crate) const LIST: Operation = Operation::new("The indexes.", &[Reply::object(200)]).query(&[&[
    Param::count("limit", "How many indexes at most."),
    Param::count("skip", "How many indexes to leave out at the beginning."),
]]);

/// `GET /{db}/_index`
pub(crate) async fn list(request: &mut Request, db: &str) -> Result<Response> {
    let number = |name: &str, least: u128| match request.params.get(name).map(str::parse::<u128>) {
        None => Ok(None),
        Some(Ok(number)) if number >= least => Ok(Some(usize::try_from(number).unwrap_or(usize::MAX))),
        Some(_) => {
            let reason = "Index parameter ranges: limit > 1, skip > 0";
            Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_list_index_params", reason))
        }
    };
    let (limit, skip) = (number("limit", 1)?, number("skip", 0)?);
    let database = request.fresh_database(db).await?;
    let mut indexes = database.indexes().await?;
    if indexes.iter().any(|info| !info.active) {
        database.request_build().await?;
    }
    indexes.sort_by(|a, b| (a.index.design_id(), a.index.name()).cmp(&(b.index.design_id(), b.index.name())));
    Ok(response::object(|json| {
        json.name("total_rows").u64(indexes.len() as u64 + 1);
        json.name("indexes").begin_array();
        let all = std::iter::once(None).chain(indexes.iter().map(Some));
        for info in all.skip(skip.unwrap_or(0)).take(limit.unwrap_or(usize::MAX)) {
            json.begin_object();
            write_index_members(json, info.map(|info| &*info.index));
            if let Some(info) = info.filter(|info| !info.active) {
                json.name("build_status").str("building");
                json.name("documents_done").u64(info.documents);
            }
            json.end_object();
        }
        json.end_array();
    }))
}

/// What [`delete`] does.
pub(crate) const DELETE: Operation = Operation::new("Deletes an index.", &[Reply::done(200)]).refusals(&[409, 500]);

/// `DELETE /{db}/_index/{ddoc}/json/{name}`. The document's name may start with `_design/`.
pub(crate) async fn delete(request: &mut Request, db: &str, design: &str, name: &str) -> Result<Response> {
    let database = request.fresh_database(db).await?;
    let design_id = design_id(design);
    let known = database.indexes().await?;
    if !known.iter().any(|info| info.index.design_id() == design_id && info.index.name() == name) {
        return Err(ApiError::not_found("missing"));
    }
    remove(&database, &design_id, &[name]).await?;
    Ok(response::object(|json| {
        json.name("ok").bool(true);
    }))
}

/// What [`bulk_delete`] does.
pub(crate) const BULK_DELETE: Operation =
    Operation::new("Deletes all indexes of some design documents.", &[Reply::object(200)]).bodies(&[Content::members(
        &[Param::texts("docids", "The design documents.").required(), Param::json("w", "Checked, without effect.")],
    )]);

/// `POST /{db}/_index/_bulk_delete`: all indexes of some design documents.
pub(crate) async fn bulk_delete(request: &mut Request, db: &str) -> Result<Response> {
    let body = request.json_object().await?;
    let designs = mango::parse_bulk_delete(&body)?;
    let database = request.fresh_database(db).await?;
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for design in &designs {
        let id = design_id(design);
        let known = database.indexes().await?;
        let names = known.iter().filter(|info| info.index.design_id() == id).map(|info| info.index.name());
        let names: Vec<&str> = names.collect();
        if names.is_empty() {
            failed.push((id, "not_found".to_owned()));
            continue;
        }
        match remove(&database, &id, &names).await {
            Ok(()) => done.push(id),
            Err(error) => failed.push((id, error.error().to_owned())),
        }
    }
    Ok(response::object(|json| {
        json.name("success").begin_array();
        // In reverse order, as in CouchDB.
        for id in done.iter().rev() {
            json.begin_object().name("id").str(id).name("ok").bool(true).end_object();
        }
        json.end_array();
        json.name("fail").begin_array();
        for (id, error) in failed.iter().rev() {
            json.begin_object().name("id").str(id).name("error").str(error).end_object();
        }
        json.end_array();
    }))
}

/// Removes indexes from their design document.
async fn remove(database: &Documents, design_id: &str, names: &[&str]) -> Result<()> {
    let changed = change(database, design_id, |design| {
        let mut left = design.ok_or_else(|| ApiError::not_found("missing"))?.clone();
        for name in names {
            match NewIndex::remove_from(name, &left)? {
                Some(body) => left = body,
                None => return Ok(Change::Delete),
            }
        }
        Ok(Change::Write(left))
    });
    changed.await.map(drop)
}

/// A change of a design document.
enum Change {
    Nothing,
    Write(JsonText),
    Delete,
}

/// Edits a design document. `change` gets its body, if it exists. Returns whether the document was changed.
async fn change(
    database: &Documents,
    design_id: &str,
    change: impl Fn(Option<&JsonText>) -> Result<Change>,
) -> Result<bool> {
    for _ in 0..TRIES {
        let known = match database.get(design_id, &GetOptions::default()).await {
            Ok(known) => Some(known),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound(NotFound::Missing | NotFound::Deleted)) => None,
            Err(error) => return Err(error.into()),
        };
        let edit = match change(known.as_ref().map(|known| &known.body))? {
            Change::Nothing => return Ok(false),
            Change::Write(body) => over(Edit::new(design_id, body), known),
            Change::Delete => over(Edit::new(design_id, JsonText::empty_object()), known).deleting(),
        };
        match database.put(edit).await {
            Ok(_) => return Ok(true),
            Err(error) if *error.kind() == ErrorKind::Conflict => {}
            Err(error) => return Err(error.into()),
        }
    }
    let reason = "Encountered a conflict while saving the design document.";
    Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "error_saving_ddoc", reason))
}

/// The edit as a replacement of the known document, with its attachments.
fn over(edit: Edit, known: Option<Document>) -> Edit {
    match known {
        None => edit,
        Some(known) => {
            let attachments = known.attachments.into_iter().map(model::AttachmentEdit::same).collect();
            Edit { attachments, ..edit.over(known.rev) }
        }
    }
}

fn design_id(name: &str) -> String {
    if name.starts_with("_design/") { name.to_owned() } else { format!("_design/{name}") }
}
