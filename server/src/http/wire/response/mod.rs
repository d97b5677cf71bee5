//! Responses: their status, headers and tags. [`body`] has what they carry.

mod body;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH, LOCATION};
use model::RevId;
use sha2::{Digest, Sha256};

use crate::http::config::sandbox::Foreign;
use crate::http::error::ApiError;
pub(crate) use crate::http::wire::response::body::{
    Body, BodyWriter, Broken, Gone, MOST_PAGE, PageRows, Stop, stream, stream_bytes,
};

/// A response of this server.
pub(crate) type Response = hyper::Response<Body>;

/// A response with a JSON body, whole or streamed, and the headers that every response of CouchDB has.
pub(crate) fn with_json(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("must-revalidate"));
    response
}

/// A response with the complete JSON `body`, and a line feed as in CouchDB.
pub(crate) fn json(status: StatusCode, mut body: Vec<u8>) -> Response {
    body.push(b'\n');
    with_json(status, Body::whole(body))
}

/// 200 and a JSON object that `write` fills.
pub(crate) fn object(write: impl FnOnce(&mut model::JsonWriter<'_>)) -> Response {
    object_with(StatusCode::OK, write)
}

/// A response with a JSON object that `write` fills.
pub(crate) fn object_with(status: StatusCode, write: impl FnOnce(&mut model::JsonWriter<'_>)) -> Response {
    json(status, object_text(write))
}

/// A JSON object with these members.
pub(crate) fn json_object(write: impl FnOnce(&mut model::JsonWriter<'_>)) -> model::JsonText {
    model::JsonText::parse(&object_text(write)).unwrap_or_else(|_| model::JsonText::empty_object())
}

/// The text of a JSON object that `write` fills.
pub(crate) fn object_text(write: impl FnOnce(&mut model::JsonWriter<'_>)) -> Vec<u8> {
    let mut text = Vec::with_capacity(256);
    let mut json = model::JsonWriter::new(&mut text);
    json.begin_object();
    write(&mut json);
    json.end_object();
    text
}

/// A response with `{"ok":true}`.
pub(crate) fn ok(status: StatusCode) -> Response {
    object_with(status, |json| {
        json.name("ok").bool(true);
    })
}

/// A response with a status and no body.
pub(crate) fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::whole(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// The answer to a refused request.
pub(crate) fn refusal(error: ApiError) -> Response {
    let mut response = object_with(error.status(), |json| error.write_members(json));
    response.headers_mut().extend(error.into_headers());
    response
}

/// 200 with a body of another type than JSON.
pub(crate) fn typed(content_type: &str, body: Body) -> Response {
    let mut response = with_json(StatusCode::OK, body);
    if let Ok(value) = HeaderValue::try_from(content_type) {
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
    response
}

/// Marks an answer as content of others, which browsers confine.
pub(crate) fn confine(response: &mut Response, foreign: Foreign) {
    response.extensions_mut().insert(foreign);
}

/// 200 with a body in parts, which may be attachments of any type. Some browsers show them one by one.
pub(crate) fn in_parts(content_type: &str, body: Body) -> Response {
    let mut response = typed(content_type, body);
    confine(&mut response, Foreign::Attachment);
    response
}

/// The name of a version of what is read, in quotes as in `ETag`.
#[derive(Clone, Debug)]
pub(crate) struct Tag(Vec<u8>);

impl Tag {
    pub(crate) fn new(name: &str) -> Self {
        Tag(["\"", name, "\""].concat().into_bytes())
    }

    /// The tag of these bytes.
    pub(crate) fn of_content(content: &[u8]) -> Self {
        Self::new(&model::hex(&Sha256::digest(content)[..16]))
    }

    /// The tag of a document at this revision.
    pub(crate) fn of_rev(rev: &RevId) -> Self {
        let mut tag = Vec::with_capacity(40);
        tag.push(b'"');
        rev.append_to(&mut tag);
        tag.push(b'"');
        Tag(tag)
    }

    /// Whether the client has this version already (`If-None-Match`, weak or strong). As in CouchDB, a tag without
    /// quotes and `*` match nothing.
    pub(crate) fn is_known(&self, headers: &HeaderMap) -> bool {
        headers.get_all(IF_NONE_MATCH).iter().any(|value| {
            value.as_bytes().split(|&byte| byte == b',').any(|one| {
                let one = one.trim_ascii();
                one.strip_prefix(b"W/").unwrap_or(one) == self.0
            })
        })
    }
}

/// Sets `ETag`. A tag that no header can have is left out.
pub(crate) fn set_etag(response: &mut Response, tag: Tag) {
    if let Ok(value) = HeaderValue::try_from(tag.0) {
        response.headers_mut().insert(ETAG, value);
    }
}

/// Sets `Location`. A location that no header can have is left out.
pub(crate) fn set_location(response: &mut Response, location: String) {
    if let Ok(value) = HeaderValue::try_from(location) {
        response.headers_mut().insert(LOCATION, value);
    }
}

/// A JSON document with the tag of its bytes, or 304 if the client has it.
pub(crate) fn tagged(headers: &HeaderMap, body: Vec<u8>) -> Response {
    let tag = Tag::of_content(&body);
    if tag.is_known(headers) {
        return not_modified(tag);
    }
    let mut response = json(StatusCode::OK, body);
    set_etag(&mut response, tag);
    response
}

/// 304 with the tag of the version that the client has.
pub(crate) fn not_modified(tag: Tag) -> Response {
    let mut response = empty(StatusCode::NOT_MODIFIED);
    set_etag(&mut response, tag);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_stand_in_quotes() {
        let has =
            |value: &str| Tag::new("a+b==").is_known(&HeaderMap::from_iter([(IF_NONE_MATCH, value.parse().unwrap())]));
        for same in ["\"a+b==\"", "W/\"a+b==\"", "\"x\", \"a+b==\""] {
            assert!(has(same), "{same}");
        }
        for other in ["a+b==", "*", "\"a+b\"", ""] {
            assert!(!has(other), "{other}");
        }
    }
}
