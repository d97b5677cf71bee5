//! `/{db}/{docid}/{attachment}`: one attachment.
//!
//! Source: `db_attachment_req` in CouchDB's `chttpd_db.erl`.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderName,
    HeaderValue, RANGE,
};
use model::limits::{LOCAL_PREFIX, check_document_id};
use model::{Attachment, Encoding, RevId, UploadAs, Writing, check_attachment_name};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::config::sandbox::Foreign;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::document::contents::{Contents, read_ahead, send_all};
use crate::http::handlers::document::require_possible;
use crate::http::operation::{Content, IF_NONE_MATCH, Operation, Param, Reply};
use crate::http::request::{IF_MATCH_HEADER, REV, Request};
use crate::http::wire::accept::takes_coding;
use crate::http::wire::headers::text;
use crate::http::wire::multipart::writer::{Multipart, range_head};
use crate::http::wire::range::{self, Wanted};
use crate::http::wire::response::{self, Body, Response, Tag};

/// The name of an attachment, from the path after the document. Its slashes may be escaped or not.
fn name_of(rest: &[&str]) -> String {
    rest.join("/")
}

/// What [`read`] does.
pub(crate) const READ: Operation = Operation::new(
    "Reads an attachment.",
    &[Reply::new(200, &[Content::of("*/*")]), Reply::new(206, &[Content::of("*/*")]), Reply::NOT_MODIFIED],
)
.query(&[&[Param::text("rev", "The revision of the document; the winner by default.")]])
.headers(&[
    IF_NONE_MATCH,
    Param::text("Range", "Only these bytes."),
    Param::text("Accept-Encoding", "`gzip`: compressed if it is stored so."),
])
.refusals(&[406, 416]);

/// `GET` and `HEAD`
pub(crate) async fn read(request: &Request, db: &str, id: &str, rest: &[&str]) -> Result<Response> {
    require_possible(id)?;
    let (name, rev) = (&name_of(rest), &request.params.rev("rev")?);
    let find = |database: Documents| async move {
        if id.starts_with(LOCAL_PREFIX) {
            database.get_local(id).await?;
            return Err(ApiError::bad_request("_local documents do not accept attachments."));
        }
        let (_, contents) = database.attachment(id, rev.as_ref(), name).await?;
        Ok((database, contents))
    };
    let (database, contents) = request.with_database(db, find).await?;
    let attachment = contents.attachment().clone();
    let tag = Tag::new(&attachment.etag());
    if tag.is_known(&request.headers) {
        return Ok(response::not_modified(tag));
    }
    let form = Form::choose(&request.headers, &attachment)?;
    let wanted = match form.length {
        Some(length) => range::parse(request.header(RANGE), length).map_err(|_| unsatisfiable())?,
        None => Wanted::Whole,
    };
    let mut response = match (attachment.encoding, wanted) {
        (Encoding::Identity, Wanted::One(range)) => part(&request.app, contents, range).await?,
        (Encoding::Identity, Wanted::Several(ranges)) => parts(&request.app, database, &attachment, ranges)?,
        _ => whole(&request.app, if form.unpacks { contents } else { contents.stored() }, form.length).await?,
    };
    response::set_etag(&mut response, tag);
    let headers = response.headers_mut();
    let packed = attachment.encoding == Encoding::Gzip;
    if packed && !form.unpacks {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static(if packed { "none" } else { "bytes" }));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("must-revalidate"));
    let unknown = HeaderValue::from_static("application/octet-stream");
    let own = || HeaderValue::try_from(&*attachment.content_type).unwrap_or(unknown);
    headers.entry(CONTENT_TYPE).or_insert_with(own);
    // An attached page must not act as a page of this server.
    response::confine(&mut response, Foreign::Attachment);
    Ok(response)
}

/// Form in which a content is sent.
struct Form {
    /// Whether it is decompressed on the way.
    unpacks: bool,
    /// Number of bytes sent. `None` if unknown: the decompressed length of a compressed content was not stated.
    length: Option<u64>,
}

impl Form {
    fn choose(headers: &HeaderMap, attachment: &Attachment) -> Result<Form> {
        if attachment.encoding == Encoding::Identity {
            return Ok(Form { unpacks: false, length: Some(attachment.length) });
        }
        if takes_coding(headers, "gzip") {
            return Ok(Form { unpacks: false, length: Some(attachment.encoded_length) });
        }
        if !takes_coding(headers, "identity") {
            let reason = "the attachment is available as gzip and as identity";
            return Err(ApiError::new(StatusCode::NOT_ACCEPTABLE, "not_acceptable", reason));
        }
        let is_known = attachment.length != attachment.encoded_length;
        Ok(Form { unpacks: true, length: is_known.then_some(attachment.length) })
    }
}

fn unsatisfiable() -> ApiError {
    let (error, reason) = ("requested_range_not_satisfiable", "Requested range not satisfiable");
    ApiError::new(StatusCode::RANGE_NOT_SATISFIABLE, error, reason)
}

/// A response with a content, of `length` bytes if that is known.
async fn whole(app: &Arc<App>, contents: Contents, length: Option<u64>) -> Result<Response> {
    // Reads the first piece before it sends the status, so that an error has its own status.
    let mut contents = read_ahead(app, contents);
    let body = match contents.next().await? {
        None => Body::whole(Bytes::new()),
        Some(first) => response::stream_bytes(|writer| async move {
            writer.send(first).await?;
            send_all(contents, &writer).await
        }),
    };
    let mut response = Response::new(body);
    if let Some(length) = length {
        set(&mut response, CONTENT_LENGTH, &length.to_string());
    }
    Ok(response)
}

/// 206 with one range.
async fn part(app: &Arc<App>, contents: Contents, range: Range<u64>) -> Result<Response> {
    let content_range = range::content_range(&range, contents.attachment().length);
    let length = range.end - range.start;
    let mut response = whole(app, contents.range(range), Some(length)).await?;
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    set(&mut response, CONTENT_RANGE, &content_range);
    Ok(response)
}

/// 206 with several ranges, each a part of a multipart body.
fn parts(app: &Arc<App>, database: Documents, attachment: &Attachment, ranges: Vec<Range<u64>>) -> Result<Response> {
    let multipart = Multipart::new()?;
    let content_type = multipart.content_type("byteranges");
    let (app, attachment) = (app.clone(), attachment.clone());
    let mut response = Response::new(response::stream_bytes(|writer| async move {
        writer.send(multipart.begin()).await?;
        for range in ranges {
            let content_range = range::content_range(&range, attachment.length);
            writer.send(range_head(&attachment.content_type, &content_range)).await?;
            let contents = database.attachment_reader(&attachment).range(range);
            send_all(read_ahead(&app, contents), &writer).await?;
            writer.send(multipart.next()).await?;
        }
        Ok(writer.send(Multipart::END).await?)
    }));
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    set(&mut response, CONTENT_TYPE, &content_type);
    Ok(response)
}

/// Sets a header. Characters that a header cannot have are left out.
fn set(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::try_from(value) {
        response.headers_mut().insert(name, value);
    }
}

/// What [`put`] does.
pub(crate) const PUT: Operation = Operation::new("Writes an attachment.", &[Reply::written(201)])
    .query(&[REV])
    .headers(&[IF_MATCH_HEADER, Param::text("Content-MD5", "The MD5 of the body; 400 if it differs.")])
    .bodies(&[Content::of("*/*")])
    .refusals(&[409, 412]);

/// `PUT`: the body is uploaded while it is read.
pub(crate) async fn put(request: &mut Request, db: &str, id: &str, rest: &[&str]) -> Result<Response> {
    require_writable(id)?;
    let name = name_of(rest);
    check_attachment_name(&name)?;
    let rev = request.named_rev()?;
    let content_type = request.headers.get(CONTENT_TYPE).map(text);
    let content_type = content_type.map_or_else(|| "application/octet-stream".to_owned(), Cow::into_owned);
    let coding = request.header(CONTENT_ENCODING).map_or("identity", str::trim);
    let how = match coding {
        "" => UploadAs::Plain { content_type: &content_type },
        coding if coding.eq_ignore_ascii_case("identity") => UploadAs::Plain { content_type: &content_type },
        coding if coding.eq_ignore_ascii_case("gzip") => UploadAs::Gzip { length: None },
        _ => return Err(ApiError::bad_content_type("Only gzip and identity content-encodings are supported")),
    };
    // A body can be read only once, so the handle must not be stale.
    let database = request.fresh_database(db).await?;
    // Checked before the bytes arrive.
    database.authorize(Writing::Announced(id)).await?;
    database.require_quota().await?;
    let mut upload = database.upload(&name, how);
    // CouchDB compared it up to 3.3, and ignores it since. An invalid MD5 is ignored here.
    let stated = request.headers.get("content-md5").and_then(|md5| STANDARD.decode(md5.as_bytes().trim_ascii()).ok());
    if let Some(md5) = stated.and_then(|md5| md5.try_into().ok()) {
        upload = upload.expect_md5(md5);
    }
    while let Some(piece) = request.body.piece().await? {
        upload.write(&piece).await?;
    }
    let content = upload.finish().await?;
    let written = database.put_attachment(id, rev.as_ref(), &name, &content_type, content.clone()).await;
    let rev = match written {
        Ok(rev) => rev,
        Err(refused) => {
            let refused = ApiError::from(refused);
            if refused.status().is_client_error() {
                // If this fails, it is swept later.
                let _ = database.discard(content).await;
            }
            return Err(refused);
        }
    };
    let mut response = written_attachment(id, &rev, StatusCode::CREATED);
    response::set_location(&mut response, request.absolute(&[db, id, &name]));
    Ok(response)
}

/// What [`delete`] does.
pub(crate) const DELETE: Operation = Operation::new("Deletes an attachment.", &[Reply::written(200)])
    .query(&[REV])
    .headers(&[IF_MATCH_HEADER])
    .refusals(&[409]);

/// `DELETE`
pub(crate) async fn delete(request: &Request, db: &str, id: &str, rest: &[&str]) -> Result<Response> {
    require_writable(id)?;
    let (name, rev) = (&name_of(rest), &request.named_rev()?);
    let delete = |database: Documents| async move { Ok(database.delete_attachment(id, rev.as_ref(), name).await?) };
    let rev = request.with_database(db, delete).await?;
    Ok(written_attachment(id, &rev, StatusCode::OK))
}

fn require_writable(id: &str) -> Result<()> {
    if id.starts_with(LOCAL_PREFIX) {
        return Err(ApiError::bad_request("_local documents do not accept attachments."));
    }
    Ok(check_document_id(id)?)
}

fn written_attachment(id: &str, rev: &RevId, status: StatusCode) -> Response {
    response::object_with(status, |json| {
        json.name("ok").bool(true).name("id").str(id).name("rev").display(rev);
    })
}
