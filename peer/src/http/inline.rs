//! Streams a document with its attachments inside the JSON of `_bulk_docs`: for ids that a URL cannot have, and for
//! pouchdb-server. That server reads `multipart/related` differently: it stores compressed parts as they are, and
//! crashes at a part without a file name.

use futures_util::{StreamExt, stream};
use model::JsonText;
use reqwest::Body;

use super::answers::refusal;
use super::{Http, Method, ceilings};
use crate::ByteStream;
use crate::error::{Error, Result};
use crate::types::Revision;
use crate::whole::piece;

/// A target's status if it lacks an attachment that was assumed to be there.
const MISSING_STUB: u16 = 412;

impl Http {
    /// Writes a leaf that was made elsewhere. All its attachments must have contents, since a stub needs a digest at
    /// pouchdb-server.
    pub(super) async fn put_inline(&self, revision: &Revision, contents: Vec<Option<ByteStream>>) -> Result<()> {
        let contents: Option<Vec<ByteStream>> = contents.into_iter().collect();
        let no_stubs = || Error::refused("the server does not take attachments without their contents");
        let contents = contents.ok_or_else(|| no_stubs().with_status(MISSING_STUB))?;
        let (length, body) = body(revision, contents);
        let url = self.url(&["_bulk_docs"], &[])?;
        let (ceiling, body) = (ceilings::written(revision.id.len(), 1), Body::wrap_stream(body));
        let answer =
            self.send_stream(ceiling, Method::POST, url, "application/json", length, body).await?.into_json()?;
        // Leaves that were written have no row.
        answer.root().elements().find_map(refusal).map_or(Ok(()), Err)
    }
}

/// The request's body and its length.
fn body(revision: &Revision, contents: Vec<ByteStream>) -> (u64, ByteStream) {
    const BEFORE: &[u8] = br#"{"new_edits":false,"docs":["#;
    const AFTER: &[u8] = b"]}";
    let (length, document) = revision.clone().into_json(contents);
    let pieces = [piece(BEFORE.to_vec()), document, piece(AFTER.to_vec())];
    (length + (BEFORE.len() + AFTER.len()) as u64, stream::iter(pieces).flatten().boxed())
}

/// Whether the description of a database is pouchdb-server's.
pub(super) fn is_pouchdb(info: &JsonText) -> bool {
    info.get("adapter").or_else(|| info.get("backend_adapter")).is_some()
}
