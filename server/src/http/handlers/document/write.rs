//! `PUT`, `DELETE` and `COPY` of `/{db}/{docid}`, and `POST /{db}`: write one document.

use hyper::StatusCode;
use hyper::header::ETAG;
use model::limits::LOCAL_PREFIX;
use model::{AttachmentEdit, Edit, ErrorKind, GetOptions, RevId, WriteMode, Writing};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::document::follow;
use crate::http::handlers::document::local::{self, LocalEdit, local_id};
use crate::http::operation::{Content, Kind, Operation, Param, Reply};
use crate::http::request::{IF_MATCH_HEADER, REV, Request};
use crate::http::wire::body::{content_type_is, require_json};
use crate::http::wire::multipart::related_boundary;
use crate::http::wire::params::BATCH;
use crate::http::wire::params::{self, Params};
use crate::http::wire::response::{self, Response, Tag};

/// What [`put`] does.
pub(crate) const PUT: Operation =
    Operation::new("Writes a document.", &[Reply::written(201), Reply::written(202), Reply::written(200)])
        .query(&[REV, BATCH, &[Param::flag("new_edits", "`false`: the revision is given, as by a replication.")]])
        .headers(&[IF_MATCH_HEADER])
        .bodies(&[Content::json(Kind::Object), Content::of("multipart/related")])
        .refusals(&[409, 412, 417]);

pub(crate) async fn put(request: &mut Request, db: &str, id: &str) -> Result<Response> {
    let mode = match request.params.get("new_edits") {
        Some("false") => WriteMode::Replicated,
        _ => WriteMode::Interactive,
    };
    let named = request.named_rev()?;
    let edit = match related_boundary(&request.headers) {
        Some(boundary) => {
            // The body can be read only once, so a stale handle must be renewed before that.
            let database = request.fresh_database(db).await?;
            // Checked before the bytes arrive.
            database.authorize(Writing::Announced(id)).await?;
            database.require_quota().await?;
            follow::edit(request, &database, id, named.as_ref(), mode, &boundary).await?
        }
        None => Edit::from_json_or_rev(Some(id), named.as_ref(), &request.json().await?, mode)?,
    };
    if edit.rev.as_ref().zip(named.as_ref()).is_some_and(|(own, named)| own != named) {
        follow::discard(request, db, edit).await;
        return Err(request.differs_from_body());
    }
    let edit = Edit { rev: named.or_else(|| edit.rev.clone()), ..edit };
    let status = if edit.deleted { StatusCode::OK } else { StatusCode::CREATED };
    let rev = match request.with_database(db, |database| write_one(database, edit.clone(), mode)).await {
        Ok(rev) => rev,
        Err(refused) => {
            if refused.status().is_client_error() {
                follow::discard(request, db, edit).await;
            }
            return Err(refused);
        }
    };
    let mut response = written(id, &rev, status, request.params.is_batch());
    response::set_location(&mut response, request.absolute(&[db, id]));
    Ok(response)
}

async fn write_one(database: Documents, edit: Edit, mode: WriteMode) -> Result<RevId> {
    match mode {
        WriteMode::Interactive => Ok(database.put(edit).await?),
        WriteMode::Replicated => {
            let result = database.write(vec![edit], mode).await?.pop();
            Ok(result.ok_or_else(ApiError::internal)??)
        }
    }
}

/// Writes an interactive edit. Returns the id and the new revision.
pub(crate) async fn write_edit(request: &Request, db: &str, edit: Edit) -> Result<(String, RevId)> {
    let write = |database| write_one(database, edit.clone(), WriteMode::Interactive);
    let rev = request.with_database(db, write).await?;
    Ok((edit.id, rev))
}

/// The answer to a write.
pub(crate) fn written(id: &str, rev: &RevId, status: StatusCode, batch: bool) -> Response {
    let status = if batch { StatusCode::ACCEPTED } else { status };
    let mut response = response::object_with(status, |json| {
        json.name("ok").bool(true);
        json.name("id").str(id);
        if !batch {
            rev.write_json(json.name("rev"));
        }
    });
    if !batch {
        response::set_etag(&mut response, Tag::of_rev(rev));
    }
    response
}

/// What [`post`] does.
pub(crate) const POST: Operation =
    Operation::new("Writes a document; its id is in the body, or new.", &[Reply::written(201), Reply::written(202)])
        .query(&[BATCH])
        .bodies(&[Content::json(Kind::Object)])
        .refusals(&[409, 412]);

/// `POST /{db}`: writes a document whose id is in its body, or is generated.
pub(crate) async fn post(request: &mut Request, db: &str) -> Result<Response> {
    require_json(&request.headers)?;
    let json = request.json().await?;
    if let Some(id) = local_id(&json) {
        let edit = LocalEdit::from_json(&json)?;
        let mut response = local::write(request, db, &id, &edit, StatusCode::CREATED).await?;
        response.headers_mut().remove(ETAG);
        return Ok(response);
    }
    let mut edit = Edit::from_json(None, &json, WriteMode::Interactive)?;
    if edit.id.is_empty() {
        edit.id = request.app.fresh_ids(1)?.pop().unwrap_or_default();
    }
    let (id, rev) = write_edit(request, db, edit).await?;
    let mut response = written(&id, &rev, StatusCode::CREATED, request.params.is_batch());
    // CouchDB sends no `ETag` here.
    response.headers_mut().remove(ETAG);
    response::set_location(&mut response, request.absolute(&[db, &id]));
    Ok(response)
}

/// What [`delete`] does.
pub(crate) const DELETE: Operation = Operation::new("Deletes a document.", &[Reply::written(200)])
    .query(&[REV])
    .headers(&[IF_MATCH_HEADER])
    .refusals(&[409]);

pub(crate) async fn delete(request: &Request, db: &str, id: &str) -> Result<Response> {
    let rev = &request.named_rev()?;
    let rev = request.with_database(db, |database| delete_one(database, id, rev.clone())).await?;
    // As in CouchDB 3, despite its reference, `batch=ok` has no effect here.
    Ok(written(id, &rev, StatusCode::OK, false))
}

async fn delete_one(database: Documents, id: &str, rev: Option<RevId>) -> Result<RevId> {
    let mut edit = Edit { rev, ..Edit::new(id, model::JsonText::empty_object()).deleting() };
    let outcome = match edit.rev {
        Some(_) => database.put(edit).await,
        None => {
            // A refusal takes precedence: the client may not be allowed to know whether the document exists.
            database.authorize(Writing::Edit(&mut edit, WriteMode::Interactive)).await?;
            Err(ErrorKind::Conflict.into())
        }
    };
    if let Err(refused) = &outcome
        && *refused.kind() == ErrorKind::Conflict
    {
        // 404 for a missing document takes precedence over 409 for a wrong revision.
        database.get(id, &GetOptions::default()).await?;
    }
    Ok(outcome?)
}

/// What [`copy`] does.
pub(crate) const COPY: Operation = Operation::new("Copies a document.", &[Reply::written(201)])
    .query(&[REV])
    .headers(&[
        IF_MATCH_HEADER,
        Param::text("Destination", "The id of the copy, and `?rev=` with the revision that it replaces.").required(),
    ])
    .refusals(&[409, 412]);

pub(crate) async fn copy(request: &Request, db: &str, id: &str) -> Result<Response> {
    let (target, replaced) = &destination(request)?;
    if target.starts_with(LOCAL_PREFIX) {
        return Err(ApiError::bad_request("a document cannot be copied to a _local one"));
    }
    let options = &GetOptions { rev: request.named_rev()?, ..GetOptions::default() };
    let copy = |database: Documents| async move {
        // Before the source is read: the client may not be allowed to see it.
        database.authorize(Writing::Computed(target)).await?;
        let source = database.get(id, options).await?;
        let mut edit = Edit::new(target.clone(), source.body);
        edit.rev = replaced.clone();
        edit.deleted = source.deleted;
        edit.attachments = source.attachments.into_iter().map(AttachmentEdit::same).collect();
        Ok(database.put(edit).await?)
    };
    let rev = request.with_database(db, copy).await?;
    let mut response = written(target, &rev, StatusCode::CREATED, false);
    response::set_location(&mut response, request.absolute(&[db, target]));
    Ok(response)
}

/// What [`post_form`] does.
pub(crate) const POST_FORM: Operation = Operation::refusing("Forms of browsers are not supported.", &[415, 501]);

/// `POST` of a form with attachments, as a browser sends it. It is not supported.
pub(crate) fn post_form(request: &Request) -> Result<Response> {
    if content_type_is(&request.headers, "multipart/form-data") {
        return Err(ApiError::not_implemented("forms with attachments"));
    }
    Err(ApiError::bad_content_type("Content-Type must be multipart/form-data"))
}

/// The target of a `COPY`: a document's id and, after `?rev=`, the revision that it replaces.
fn destination(request: &Request) -> Result<(String, Option<RevId>)> {
    let Some(header) = request.headers.get("destination") else {
        return Err(ApiError::bad_request("Destination header is mandatory for COPY."));
    };
    let header = std::str::from_utf8(header.as_bytes());
    let header = header.map_err(|_| ApiError::bad_request("Destination header is not UTF-8."))?;
    if header.starts_with("http://") || header.starts_with("https://") {
        return Err(ApiError::bad_request("Destination URL must be relative."));
    }
    let (id, query) = header.split_once('?').unwrap_or((header, ""));
    Ok((params::decode(id)?.into_owned(), Params::parse(query)?.rev("rev")?))
}
