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

/// A reader that reads on the threads for scans. The caller's thread hashes and decompresses between sends, a fraction of a
/// millisecond at a time. So 100 MB come out in 0.83 of the time that they took while a scan both read and hashed. A third
/// thread for hashes was no faster: threads wait for each other at each piece.
pub(crate) fn read_ahead(app: &Arc<App>, contents: Contents) -> Contents {
    let app = app.clone();
    contents.ahead(move |parts| app.ahead(parts))
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
