//! Contents of attachments, read on the threads for scans.

use std::sync::Arc;

use kv_api::AnyDatabase;
use model::Document;

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::wire::response::{BodyWriter, Stop};

/// Reader of a content.
pub(crate) type Contents = model::AttachmentReader<AnyDatabase>;

/// A reader that reads and decompresses on the threads for scans. The caller's thread hashes and sends meanwhile.
pub(crate) fn read_ahead(app: &Arc<App>, contents: Contents) -> Contents {
    let app = app.clone();
    contents.ahead(move |step| app.ahead(step))
}

/// Sends the rest of a content, piece by piece.
pub(crate) async fn send_all(mut contents: Contents, writer: &BodyWriter) -> Result<(), Stop> {
    while let Some(piece) = contents.next().await? {
        writer.send(piece).await?;
    }
    Ok(())
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
