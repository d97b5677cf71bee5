//! `/{db}/_local/{name}`: documents that are never replicated. Replicators keep their checkpoints in them. Their
//! revisions are counters, `0-1`, `0-2`, have no history and, as in CouchDB 3, never conflict.

use std::borrow::Cow;
use std::sync::LazyLock;

use hyper::StatusCode;
use memchr::memmem::Finder;
use model::JsonText;
use model::limits::LOCAL_PREFIX;

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::request::Request;
use crate::http::wire::response::{self, Response, Tag};

pub(crate) async fn read(request: &Request, db: &str, id: &str) -> Result<Response> {
    let document = request.with_database(db, |database| async move { Ok(database.get_local(id).await?) }).await?;
    let rev = format!("0-{}", document.rev);
    let tag = Tag::new(&rev);
    if tag.is_known(&request.headers) {
        return Ok(response::not_modified(tag));
    }
    let mut response = response::object(|json| {
        json.name("_id").str(id);
        json.name("_rev").str(&rev);
        json.members_of(&document.body);
    });
    response::set_etag(&mut response, tag);
    Ok(response)
}

pub(crate) async fn put(request: &mut Request, db: &str, id: &str) -> Result<Response> {
    let json = request.json().await?;
    let mut edit = LocalEdit::from_json(&json)?;
    edit.rev = edit.rev.or(named_rev(request)?);
    let status = if edit.deleted { StatusCode::OK } else { StatusCode::CREATED };
    write(request, db, id, &edit, status).await
}

pub(crate) async fn delete(request: &Request, db: &str, id: &str) -> Result<Response> {
    named_rev(request)?;
    request.with_database(db, |database| async move { Ok(database.delete_local(id).await?) }).await?;
    Ok(written(id, 0, StatusCode::OK))
}

/// Applies an edit, and answers with its revision.
pub(crate) async fn write(
    request: &Request,
    db: &str,
    id: &str,
    edit: &LocalEdit,
    status: StatusCode,
) -> Result<Response> {
    let rev = request.with_database(db, |database| edit.write(database, id)).await?;
    let mut response = written(id, rev, status);
    response::set_location(&mut response, request.absolute(&[db, id]));
    Ok(response)
}

/// The id of a document, if it is a local one.
pub(crate) fn local_id(json: &JsonText) -> Option<String> {
    static PREFIX: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(LOCAL_PREFIX));
    // Few documents have this anywhere. Only those are searched for their id.
    PREFIX.find(json.as_bytes())?;
    json.get("_id")?.as_str().filter(|id| id.starts_with(LOCAL_PREFIX)).map(Cow::into_owned)
}

/// An edit of a local document.
pub(crate) struct LocalEdit {
    rev: Option<u64>,
    deleted: bool,
    body: JsonText,
}

impl LocalEdit {
    /// Separates the special members of a document from its body.
    pub(crate) fn from_json(json: &JsonText) -> Result<Self> {
        let split = json
            .split_top(|name| name.starts_with('_'))
            .ok_or_else(|| ApiError::bad_request("Document must be a JSON object"))?;
        let (mut rev, mut deleted) = (None, false);
        for (name, value) in split.special {
            match name.as_ref() {
                "_rev" => rev = Some(local_rev(&value.as_str().unwrap_or_default())?),
                "_deleted" => deleted = value.as_bool() == Some(true),
                // As in CouchDB, attachments are dropped.
                "_id" | "_revisions" | "_attachments" => {}
                other => {
                    let reason = format!("Bad special document member: {other}");
                    return Err(ApiError::new(StatusCode::BAD_REQUEST, "doc_validation", reason));
                }
            }
        }
        Ok(LocalEdit { rev, deleted, body: split.rest })
    }

    /// Applies the edit. Returns the `N` of the revision, 0 for a deletion.
    pub(crate) async fn write(&self, database: Documents, id: &str) -> Result<u64> {
        if self.deleted {
            database.delete_local(id).await?;
            return Ok(0);
        }
        Ok(database.put_local(id, self.rev, self.body.clone()).await?)
    }
}

/// The revision that the query or `If-Match` names.
fn named_rev(request: &Request) -> Result<Option<u64>> {
    let matched = request.header(hyper::header::IF_MATCH).map(|value| value.trim_matches('"'));
    request.params.get("rev").or(matched).map(local_rev).transpose()
}

/// Parses `0-N`. As in CouchDB, a bare number is accepted too.
fn local_rev(text: &str) -> Result<u64> {
    let count = text.strip_prefix("0-").unwrap_or(text);
    count.parse().map_err(|_| ApiError::bad_request("Invalid rev format"))
}

/// The answer to a write.
fn written(id: &str, rev: u64, status: StatusCode) -> Response {
    let rev = format!("0-{rev}");
    let mut response = response::object_with(status, |json| {
        json.name("ok").bool(true);
        json.name("id").str(id);
        json.name("rev").str(&rev);
    });
    response::set_etag(&mut response, Tag::new(&rev));
    response
}
