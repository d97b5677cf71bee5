//! Reads a document and the attachments that follow it: a `PUT` in `multipart/related`.
//!
//! As in CouchDB, the attachments arrive in the order in which the document names them, whatever the headers of the
//! parts say. Each is uploaded while it is read, so no attachment is held in memory.

use bytes::{Bytes, BytesMut};
use hyper::header::CONTENT_ENCODING;
use model::{AttachmentSource, Edit, RevId, WriteMode};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::request::Request;
use crate::http::wire::body::{RequestBody, parse_json};
use crate::http::wire::multipart::splitter::{Event, Malformed, Splitter};

/// Maximum number of bytes of small attachments that a request holds in memory. Further ones are stored at once.
const MOST_HELD: u64 = 2_000_000;

/// The parts of a request's body.
struct Parts<'a> {
    body: &'a mut RequestBody,
    splitter: Splitter,
    /// Whether the current part has not been read to its end.
    is_within: bool,
}

impl Parts<'_> {
    async fn event(&mut self) -> Result<Event> {
        loop {
            let next = self.splitter.next();
            match next.map_err(|Malformed(why)| ApiError::bad_request(format!("invalid multipart body: {why}")))? {
                Some(event) => {
                    self.is_within = event != Event::End;
                    return Ok(event);
                }
                None => match self.body.piece().await? {
                    Some(piece) => self.splitter.push(&piece),
                    None => self.splitter.end(),
                },
            }
        }
    }

    /// Starts the first part. `false` if there is none.
    async fn first(&mut self) -> Result<bool> {
        Ok(self.event().await? == Event::Part)
    }

    /// The next bytes of the part; `None` at its end, where `is_within` says whether another part follows.
    async fn data(&mut self) -> Result<Option<Bytes>> {
        match self.event().await? {
            Event::Data(data) => Ok(Some(data)),
            Event::Part | Event::End => Ok(None),
        }
    }
}

/// The edit of the request. Attachments that follow it are uploaded.
pub(crate) async fn edit(
    request: &mut Request,
    database: &Documents,
    id: &str,
    named: Option<&RevId>,
    mode: WriteMode,
    boundary: &str,
) -> Result<Edit> {
    let coding = request.headers.get(CONTENT_ENCODING);
    if coding.is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(ApiError::bad_content_type("a multipart body has no content encoding of its own"));
    }
    let limit = request.body.limit();
    let mut parts = Parts { body: &mut request.body, splitter: Splitter::new(boundary), is_within: false };
    let mut json = BytesMut::new();
    if parts.first().await? {
        while let Some(data) = parts.data().await? {
            if json.len() + data.len() > limit {
                return Err(ApiError::too_large());
            }
            parts.body.keep(json.len() + data.len()).await?;
            json.extend_from_slice(&data);
        }
    }
    parts.body.reserve(&json).await?;
    let json = parse_json(json.freeze()).await?;
    let mut edit = Edit::from_json_or_rev(Some(id), named, &json, mode)?;
    let mut held = 0;
    for attachment in &mut edit.attachments {
        if !matches!(attachment.source, AttachmentSource::Follows(_)) {
            continue;
        }
        let mut upload = database.upload_part(attachment)?;
        if !parts.is_within {
            return Err(ApiError::bad_request("attachment shorter than expected"));
        }
        while let Some(data) = parts.data().await? {
            upload.write(&data).await?;
        }
        let mut content = upload.finish().await?;
        held += content.encoded_length();
        if held > MOST_HELD {
            content = database.staged(&content).await?;
        }
        attachment.source = AttachmentSource::Content(content);
    }
    // Further parts and the epilogue. A client that is still sending does not read the response.
    while request.body.piece().await?.is_some() {}
    Ok(edit)
}

/// Discards the uploads of an edit that was refused.
pub(crate) async fn discard(request: &Request, db: &str, edit: Edit) {
    for attachment in edit.attachments {
        let AttachmentSource::Content(content) = attachment.source else { continue };
        let content = &content;
        let discard = |database: Documents| async move { Ok(database.discard(content.clone()).await?) };
        if let Err(error) = request.with_database(db, discard).await {
            // If this fails, it is swept later.
            tracing::debug!(?error, "an upload could not be discarded");
        }
    }
}
