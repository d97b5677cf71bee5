//! `PUT`, `DELETE` and `COPY` of `/{db}/{docid}`, and `POST /{db}`: one document written.

use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use model::{Edit, ErrorKind, GetOptions, RevId, WriteMode};

use crate::http::app::stores::Documents;
use crate::http::document::local::{self, LocalEdit, local_id};
use crate::http::error::{ApiError, Result};
use crate::http::request::Request;
use crate::http::wire::body::require_json;
use crate::http::wire::params::{self, Params};
use crate::http::wire::response::{self, Response};

pub(crate) async fn put(request: &mut Request, db: &str, id: &str) -> Result<Response> {
    require_design_admin(request, id)?;
    let mode = match request.params.get("new_edits") {
        Some("false") => WriteMode::Replicated,
        _ => WriteMode::Interactive,
    };
    // 404 goes before the body is read.
    request.app.databases.known(db).await?;
    let edit = match edit(request, id, mode).await {
        Ok(edit) => edit,
        Err(wrong) => {
            // That the database is gone, which the handle may not know, goes before what is wrong with the edit.
            request.database(db).await?;
            return Err(wrong);
        }
    };
    let status = match edit.deleted {
        true => StatusCode::OK,
        false => StatusCode::CREATED,
    };
    let rev = request.app.databases.with(db, |database| write_one(database, edit.clone(), mode)).await?;
    let mut response = written(id, &rev, status, is_batch(&request.params));
    response::set_location(&mut response, request.absolute(&[db, id]));
    Ok(response)
}

/// The edit that a `PUT` asks for.
async fn edit(request: &mut Request, id: &str, mode: WriteMode) -> Result<Edit> {
    if request.headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"multipart/related")) {
        return Err(ApiError::not_implemented("attachments"));
    }
    let json = request.json().await?;
    let mut edit = Edit::from_json(Some(id), &json, mode)?;
    if let Some(named) = request.named_rev()? {
        if edit.rev.as_ref().is_some_and(|own| *own != named) {
            let reason = "Document rev from request body and query string have different values";
            return Err(ApiError::bad_request(reason));
        }
        edit.rev = Some(named);
    }
    Ok(edit)
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

/// The answer to a write.
fn written(id: &str, rev: &RevId, status: StatusCode, batch: bool) -> Response {
    let status = if batch { StatusCode::ACCEPTED } else { status };
    let mut response = response::object_with(status, |json| {
        json.name("ok").bool(true);
        json.name("id").str(id);
        if !batch {
            json.name("rev").display(rev);
        }
    });
    if !batch {
        response::set_etag(&mut response, &rev.to_string());
    }
    response
}

/// `POST /{db}`: a document whose id is in its body, or is made here.
pub(crate) async fn post(request: &mut Request, name: &str) -> Result<Response> {
    require_json(&request.headers)?;
    let database = request.database(name).await?;
    let json = request.json().await?;
    if let Some(id) = local_id(&json) {
        let rev = LocalEdit::from_json(&json)?.write(&database, &id).await?;
        let mut response = local::written(&id, rev, StatusCode::CREATED);
        response::set_location(&mut response, request.absolute(&[name, &id]));
        return Ok(response);
    }
    let mut edit = Edit::from_json(None, &json, WriteMode::Interactive)?;
    if edit.id.is_empty() {
        edit.id = request.app.fresh_ids(1)?.pop().unwrap_or_default();
    }
    require_design_admin(request, &edit.id)?;
    let id = edit.id.clone();
    let rev = database.put(edit).await?;
    let batch = is_batch(&request.params);
    let status = if batch { StatusCode::ACCEPTED } else { StatusCode::CREATED };
    let mut response = response::object_with(status, |json| {
        json.name("ok").bool(true);
        json.name("id").str(&id);
        if !batch {
            json.name("rev").display(&rev);
        }
    });
    response::set_location(&mut response, request.absolute(&[name, &id]));
    Ok(response)
}

pub(crate) async fn delete(request: &Request, db: &str, id: &str) -> Result<Response> {
    require_design_admin(request, id)?;
    let database = request.database(db).await?;
    let Some(rev) = request.named_rev()? else {
        // 404 for what is not there goes before 409 for the missing revision.
        database.get(id, &GetOptions::default()).await?;
        return Err(model::Error::from(ErrorKind::Conflict).into());
    };
    let edit = Edit::new(id, model::JsonText::empty_object()).over(rev).deleting();
    let rev = match database.put(edit).await {
        Ok(rev) => rev,
        Err(refused) if *refused.kind() == ErrorKind::Conflict => {
            database.get(id, &GetOptions::default()).await?;
            return Err(refused.into());
        }
        Err(refused) => return Err(refused.into()),
    };
    Ok(written(id, &rev, StatusCode::OK, is_batch(&request.params)))
}

pub(crate) async fn copy(request: &Request, db: &str, id: &str) -> Result<Response> {
    let (target, replaced) = destination(request)?;
    require_design_admin(request, &target)?;
    let database = request.database(db).await?;
    let options = GetOptions { rev: request.named_rev()?, ..GetOptions::default() };
    let source = database.get(id, &options).await?;
    let mut edit = Edit::new(target, source.body);
    edit.rev = replaced;
    edit.deleted = source.deleted;
    let target = edit.id.clone();
    let rev = if target.starts_with("_local/") {
        return Err(ApiError::bad_request("a document cannot be copied to a _local one"));
    } else {
        database.put(edit).await?
    };
    let mut response = written(&target, &rev, StatusCode::CREATED, false);
    response::set_location(&mut response, request.absolute(&[db, &target]));
    Ok(response)
}

/// Where a `COPY` goes: a document's id and, behind `?rev=`, the revision that it replaces.
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

/// Design documents say what others may do, so that only administrators write them.
pub(crate) fn require_design_admin(request: &Request, id: &str) -> Result<()> {
    if id.starts_with("_design/") && !request.user.is_admin() {
        return Err(ApiError::unauthorized("You are not a db or server admin."));
    }
    Ok(())
}

/// `batch=ok`: the client does not wait for the disk in CouchDB, which then answers 202 without a
/// revision. Here the write is as durable as any other by the time of the same answer.
pub(crate) fn is_batch(params: &Params) -> bool {
    params.get("batch") == Some("ok")
}
