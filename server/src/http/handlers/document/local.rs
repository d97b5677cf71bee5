//! `/{db}/_local/{name}`: documents that are never replicated. Replicators keep their checkpoints in them. Their
//! revisions are counters, `0-1`, `0-2`, without a history. As in CouchDB 3 they never conflict, and cannot be read by
//! revision. After a deletion the counter starts at `0-1` again, so a revision does not identify a version. Their
//! `ETag` therefore depends on the body too.

use std::borrow::Cow;
use std::sync::LazyLock;

use hyper::StatusCode;
use memchr::memmem::Finder;
use model::limits::LOCAL_PREFIX;
use model::{Edit, ErrorKind, JsonRef, JsonText, NotFound, WriteMode};
use sha2::{Digest, Sha256};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::operation::{Content, IF_NONE_MATCH, Kind, Operation, Param, Reply};
use crate::http::request::{IF_MATCH_HEADER, REV, Request};
use crate::http::wire::params::BATCH;
use crate::http::wire::response::{self, Response, Tag};

/// What [`read`] does.
pub(crate) const READ: Operation =
    Operation::new("Reads a local document.", &[Reply::object(200), Reply::NOT_MODIFIED])
        .query(&[&[Param::text("rev", "Refused with 404: local documents cannot be read by revision.")]])
        .headers(&[IF_NONE_MATCH]);

pub(crate) async fn read(request: &Request, db: &str, id: &str) -> Result<Response> {
    let wanted = request.params.get("rev").map(check_rev).transpose()?;
    let document = request.with_database(db, |database| async move { Ok(database.get_local(id).await?) }).await?;
    if wanted.is_some() {
        return Err(ApiError::not_found("missing"));
    }
    let rev = format!("0-{}", document.rev);
    let tag = tag_of(document.rev, &document.body);
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

/// What [`put`] does.
pub(crate) const PUT: Operation =
    Operation::new("Writes a local document.", &[Reply::written(201), Reply::written(202), Reply::written(200)])
        .query(&[REV, BATCH, &[Param::flag("new_edits", "`false`: the body must have a revision.")]])
        .headers(&[IF_MATCH_HEADER])
        .bodies(&[Content::json(Kind::Object)])
        .refusals(&[409]);

pub(crate) async fn put(request: &mut Request, db: &str, id: &str) -> Result<Response> {
    let json = request.json().await?;
    let mut edit = LocalEdit::from_json(&json)?;
    let named = named_rev(request).map(local_rev).transpose()?;
    if edit.rev.zip(named).is_some_and(|(own, named)| own != named) {
        return Err(request.differs_from_body());
    }
    edit.rev = edit.rev.or(named);
    if request.params.get("new_edits") == Some("false") {
        edit.require_rev()?;
    }
    let status = if edit.deleted { StatusCode::OK } else { StatusCode::CREATED };
    write(request, db, id, &edit, status).await
}

/// What [`delete`] does.
pub(crate) const DELETE: Operation = Operation::new("Deletes a local document.", &[Reply::written(200)])
    .query(&[REV])
    .headers(&[IF_MATCH_HEADER])
    .refusals(&[409]);

pub(crate) async fn delete(request: &Request, db: &str, id: &str) -> Result<Response> {
    named_rev(request).map(check_rev).transpose()?;
    request.with_database(db, |database| async move { Ok(database.delete_local(id).await?) }).await?;
    Ok(written(id, 0, StatusCode::OK, false))
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
    let is_batch = request.params.is_batch();
    let mut response = written(id, rev, status, is_batch);
    if !is_batch && !edit.deleted {
        response::set_etag(&mut response, tag_of(rev, &edit.body));
    }
    response::set_location(&mut response, request.absolute(&[db, id]));
    Ok(response)
}

/// The id of a local document; `None` for others.
pub(crate) fn local_id(json: &JsonText) -> Option<String> {
    static PREFIX: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(LOCAL_PREFIX));
    // Few documents contain this text. Only those are searched for their id.
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
    /// Separates the special members of a document from its body. They are those of other documents, with the same
    /// errors, except for the revision. As in CouchDB, attachments are dropped.
    pub(crate) fn from_json(json: &JsonText) -> Result<Self> {
        // CouchDB's replicator also sends `0-N` of a checkpoint as a history, `{"start": 0, "ids": ["N"]}`, which other
        // documents never have. It overrides `_rev`.
        let history =
            json.get("_revisions").filter(|history| history.get("start").and_then(JsonRef::as_u64) == Some(0));
        let ids = history.and_then(|history| history.get("ids").filter(|ids| ids.is_array()));
        let ids = ids.filter(|ids| ids.elements().all(|id| id.as_str().is_some()));
        let split = json.split_top(|name| name == "_rev" || ids.is_some() && name == "_revisions");
        let split = split.ok_or_else(|| ApiError::bad_request("Document must be a JSON object"))?;
        let mut rev = None;
        for (_, value) in split.special.into_iter().filter(|(name, _)| name == "_rev") {
            rev = Some(local_rev(&value.as_str().unwrap_or_default())?);
        }
        if let Some(ids) = ids {
            let first = ids.elements().next().and_then(JsonRef::as_str);
            rev = first.map(|count| local_rev(&format!("0-{count}"))).transpose()?;
        }
        let Edit { deleted, body, .. } = Edit::from_json(None, &split.rest, WriteMode::Interactive)?;
        Ok(LocalEdit { rev, deleted, body })
    }

    /// Refuses an edit without a revision, as a replicated edit of any other document is refused.
    pub(crate) fn require_rev(&self) -> Result<()> {
        if self.rev.is_none() {
            let reason = "When `new_edits: false`, the document needs `_rev` or `_revisions` specified";
            return Err(ApiError::bad_request(reason));
        }
        Ok(())
    }

    /// Applies the edit. Returns the `N` of the revision, 0 for a deletion.
    pub(crate) async fn write(&self, database: Documents, id: &str) -> Result<u64> {
        if self.deleted {
            return match database.delete_local(id).await {
                // As in CouchDB, an edit may delete a missing document. `DELETE` may not.
                Err(error) if *error.kind() != ErrorKind::NotFound(NotFound::Missing) => Err(error.into()),
                _ => Ok(0),
            };
        }
        Ok(database.put_local(id, self.rev, self.body.clone()).await?)
    }
}

/// The revision that the query or `If-Match` names.
fn named_rev(request: &Request) -> Option<&str> {
    let matched = request.header(hyper::header::IF_MATCH).map(|value| value.trim_matches('"'));
    request.params.get("rev").or(matched)
}

/// Checks that a text has the form of a revision, of any document.
fn check_rev(text: &str) -> Result<()> {
    let is_rev = text
        .split_once('-')
        .is_some_and(|(position, _)| !position.is_empty() && position.bytes().all(|digit| digit.is_ascii_digit()));
    is_rev.then_some(()).ok_or_else(|| ApiError::bad_request("Invalid rev format"))
}

/// Parses `0-N`.
fn local_rev(text: &str) -> Result<u64> {
    let count = text.strip_prefix("0-").and_then(|count| count.parse().ok());
    count.ok_or_else(|| ApiError::bad_request("Invalid rev format"))
}

/// The name of a version.
fn tag_of(rev: u64, body: &JsonText) -> Tag {
    Tag::new(&format!("0-{rev}-{}", model::hex(&Sha256::digest(body.as_bytes())[..16])))
}

/// The answer to a write. As for other documents, one with `batch=ok` has no revision.
fn written(id: &str, rev: u64, status: StatusCode, is_batch: bool) -> Response {
    let status = if is_batch { StatusCode::ACCEPTED } else { status };
    response::object_with(status, |json| {
        json.name("ok").bool(true);
        json.name("id").str(id);
        if !is_batch {
            json.name("rev").display(format_args!("0-{rev}"));
        }
    })
}
