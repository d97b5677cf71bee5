//! Contents of attachments, read on the threads for scans.

use std::sync::Arc;

use bytes::Bytes;
use kv_api::AnyDatabase;
use model::Document;

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::wire::response::{BodyWriter, Stop};

/// Reader of a content.
pub(crate) type Contents = model::AttachmentReader<AnyDatabase>;

/// Reads the next piece. Returns it with the reader.
pub(crate) async fn next_piece(app: &Arc<App>, mut contents: Contents) -> Result<(Option<Bytes>, Contents)> {
    if let Some(piece) = contents.ready() {
        return Ok((Some(piece), contents));
    }
    let read = async move {
        let piece = contents.next().await?;
        Ok((piece, contents))
    };
    app.scan(read).await
}

/// Sends the rest of a content, piece by piece. The next pieces are read while those that were read are sent.
pub(crate) async fn send_all(app: &Arc<App>, mut contents: Contents, writer: &BodyWriter) -> Result<(), Stop> {
    loop {
        let ready: Vec<Bytes> = std::iter::from_fn(|| contents.ready()).collect();
        let send = async {
            for piece in ready {
                writer.send(piece).await?;
            }
            Ok::<_, Stop>(())
        };
        let (sent, next) = tokio::join!(send, next_piece(app, contents));
        sent?;
        let (Some(piece), rest) = next? else { return Ok(()) };
        writer.send(piece).await?;
        contents = rest;
    }
}

/// Whether an answer in JSON needs contents of the document's attachments.
pub(crate) fn are_wanted(document: &Document) -> bool {
    document.attachments.iter().any(|attachment| attachment.wanted)
}

/// The document with the contents of the requested attachments, for an answer in JSON; `None` if its leaf was replaced or
/// removed meanwhile.
pub(crate) async fn load(app: &Arc<App>, database: &Documents, mut document: Document) -> Result<Option<Document>> {
    if !are_wanted(&document) {
        return Ok(Some(document));
    }
    let database = database.clone();
    app.scan(async move { Ok(database.load_attachments_of_leaf(&mut document).await?.then_some(document)) }).await
}

/// Adds the contents of all attachments to a document's winner, for an answer in JSON. If the winner was replaced
/// meanwhile, `document` becomes the new one.
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
