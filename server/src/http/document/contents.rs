//! Contents of attachments, read on the threads for scans.

use std::sync::Arc;

use bytes::Bytes;
use kv_api::AnyDatabase;
use model::Document;

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::wire::response::{BodyWriter, Stop};

/// A content that is being read.
pub(crate) type Contents = model::AttachmentReader<AnyDatabase>;

/// The next piece, and the rest.
pub(crate) async fn next_piece(app: &Arc<App>, mut contents: Contents) -> Result<(Option<Bytes>, Contents)> {
    let read = async move {
        let piece = contents.next().await?;
        Ok((piece, contents))
    };
    app.scan(read).await
}

/// Sends all that is left of a content, a piece at a time.
pub(crate) async fn send_all(app: &Arc<App>, mut contents: Contents, writer: &BodyWriter) -> Result<(), Stop> {
    while let (Some(piece), rest) = next_piece(app, contents).await? {
        writer.send(piece).await?;
        contents = rest;
    }
    Ok(())
}

/// Whether contents of a document's attachments are to be read for an answer in JSON.
pub(crate) fn are_wanted(document: &Document) -> bool {
    document.attachments.iter().any(|attachment| attachment.wanted)
}

/// The document with the contents of the attachments that are wanted, for an answer in JSON; `None` where its leaf was
/// replaced or removed meanwhile.
pub(crate) async fn load(app: &Arc<App>, database: &Documents, mut document: Document) -> Result<Option<Document>> {
    if !are_wanted(&document) {
        return Ok(Some(document));
    }
    let database = database.clone();
    app.scan(async move { Ok(database.load_attachments_of_leaf(&mut document).await?.then_some(document)) }).await
}

/// Gives the winner of a document the contents of all its attachments, for an answer in JSON. It is another winner where
/// this one was replaced meanwhile.
pub(crate) async fn load_all(app: &Arc<App>, database: &Documents, document: &mut Document) -> Result<()> {
    if document.attachments.is_empty() {
        return Ok(());
    }
    let (database, mut winner) = (database.clone(), document.clone());
    let load = async move {
        database.load_all_attachments(&mut winner).await?;
        Ok(winner)
    };
    *document = app.scan(load).await?;
    Ok(())
}
