//! `/{db}/{docid}`: one document.

use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use model::limits::{LOCAL_PREFIX, check_document_id};
use model::{Document, Edit, ErrorKind, GetOptions, OpenRev, OpenRevs, RevId, WriteMode};

use super::database::is_batch;
use super::error::{ApiError, Result};
use super::multipart;
use super::params::{self, Params};
use super::request::Request;
use super::response::{self, Body, Response};
use super::state::Documents;

pub(crate) async fn document(request: &mut Request, db: &str, id: &str) -> Result<Response> {
    match request.method.as_str() {
        "GET" => read(request, db, id).await,
        "PUT" => put(request, db, id).await,
        "DELETE" => delete(request, db, id).await,
        "COPY" => copy(request, db, id).await,
        "POST" => {
            request.database(db).await?;
            if super::json_body::content_type_is(&request.headers, "multipart/form-data") {
                return Err(ApiError::not_implemented("attachments"));
            }
            Err(ApiError::bad_content_type("Content-Type must be multipart/form-data"))
        }
        _ => Err(ApiError::unrouted()),
    }
}

/// What a reader asks for in a query. Values other than `true` ask for nothing, as in CouchDB.
pub(crate) fn get_options(params: &Params) -> Result<GetOptions> {
    let meta = params.is_true("meta");
    if let Some(since) = params.get("atts_since") {
        parse_revs(since)?;
    }
    Ok(GetOptions {
        rev: params.rev("rev")?,
        latest: params.is_true("latest"),
        revs: params.is_true("revs"),
        revs_info: meta || params.is_true("revs_info"),
        conflicts: meta || params.is_true("conflicts"),
        deleted_conflicts: meta || params.is_true("deleted_conflicts"),
        local_seq: params.is_true("local_seq"),
    })
}

fn parse_revs(value: &str) -> Result<Vec<RevId>> {
    let json = params::parse_json(value)?;
    if !json.root().is_array() {
        return Err(ApiError::bad_request("Invalid list of revisions"));
    }
    let text = |element: model::JsonRef<'_>| element.as_str().map(|text| text.into_owned());
    let revs = json
        .root()
        .elements()
        .map(|element| params::parse_rev(&text(element).ok_or_else(|| ApiError::bad_request("Invalid rev format"))?));
    revs.collect()
}

/// 404 unless the document is there.
pub(crate) async fn require(request: &Request, db: &str, id: &str) -> Result<()> {
    let database = request.database(db).await?;
    require_possible(id)?;
    if id.starts_with(LOCAL_PREFIX) {
        database.get_local(id).await?;
    } else {
        database.get(id, &GetOptions::default()).await?;
    }
    Ok(())
}

/// 404 for an id that no document can have: who reads is told that it is missing, who writes what is wrong.
fn require_possible(id: &str) -> Result<()> {
    check_document_id(id).map_err(|_| ApiError::not_found("missing"))
}

async fn read(request: &Request, db: &str, id: &str) -> Result<Response> {
    let options = get_options(&request.params)?;
    let database = request.database(db).await?;
    require_possible(id)?;
    match request.params.get("open_revs") {
        None => {}
        Some("all") => return open_revs(request, &database, id, OpenRevs::All, options).await,
        Some(list) => {
            let revs = parse_revs(list)?;
            // As in CouchDB, an empty list asks for the document itself.
            if !revs.is_empty() {
                return open_revs(request, &database, id, OpenRevs::These(revs), options).await;
            }
        }
    }
    let document = database.get(id, &options).await?;
    if has_meta(&document) {
        return Ok(response::json(StatusCode::OK, document.to_json()));
    }
    let tag = document.rev.to_string();
    if response::has_version(&request.headers, &tag) {
        return Ok(response::not_modified(&tag));
    }
    let mut response = response::json(StatusCode::OK, document.to_json());
    response::set_etag(&mut response, &tag);
    Ok(response)
}

/// Whether the answer holds what may change while the revision stays, so that it has no tag.
fn has_meta(document: &Document) -> bool {
    document.revs_info.is_some()
        || document.conflicts.is_some()
        || document.deleted_conflicts.is_some()
        || document.local_seq.is_some()
}

async fn open_revs(
    request: &Request,
    database: &Documents,
    id: &str,
    which: OpenRevs,
    options: GetOptions,
) -> Result<Response> {
    let all = which == OpenRevs::All;
    let found = database.open_revs(id, &which, &options).await?;
    if all && found.is_empty() {
        return Err(ApiError::not_found("missing"));
    }
    if accepts_multipart(request) {
        return multipart::open_revs(&found);
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
            OpenRev::Missing(rev) => multipart::write_missing(&mut body, rev),
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

/// Design documents say what others may do, so that only administrators write them.
pub(crate) fn require_design_admin(request: &Request, id: &str) -> Result<()> {
    if id.starts_with("_design/") && !request.user.is_admin() {
        return Err(ApiError::unauthorized("You are not a db or server admin."));
    }
    Ok(())
}

async fn put(request: &mut Request, db: &str, id: &str) -> Result<Response> {
    require_design_admin(request, id)?;
    let mode = match request.params.get("new_edits") {
        Some("false") => WriteMode::Replicated,
        _ => WriteMode::Interactive,
    };
    // 404 goes before the body is read.
    request.app.known(db).await?;
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
    let rev = request.app.with_database(db, |database| write_one(database, edit.clone(), mode)).await?;
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

async fn delete(request: &Request, db: &str, id: &str) -> Result<Response> {
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

async fn copy(request: &Request, db: &str, id: &str) -> Result<Response> {
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

/// A whole body of another type than JSON.
pub(crate) fn typed(content_type: &str, body: Vec<u8>) -> Response {
    let mut response = response::with_json(StatusCode::OK, Body::Whole(Some(body.into())));
    if let Ok(value) = hyper::header::HeaderValue::try_from(content_type) {
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
    response
}
