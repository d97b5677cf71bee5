//! Contents of attachments, read on the threads for scans.

use std::sync::Arc;

use budget::{Held, Owner, Use};
use hyper::StatusCode;
use kv_api::AnyDatabase;
use model::{Attachment, Document};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::wire::body::WAIT;
use crate::http::wire::response::{BodyWriter, Stop};

/// A content in a JSON answer takes this many times its own bytes: as read, as Base64, and as a part of a page.
const TIMES: u64 = 4;

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

/// Reserves the memory of these contents.
async fn reserve<'a>(app: &App, of: &Document, wanted: impl Iterator<Item = &'a Attachment>) -> Result<Held> {
    let bytes = wanted.fold(0_u64, |bytes, attachment| bytes.saturating_add(attachment.length));
    let taken = usize::try_from(bytes.saturating_mul(TIMES)).unwrap_or(usize::MAX);
    if taken > app.budget.most_of_one() {
        let reason = format!("the attachments of {} have {bytes} bytes: read them one by one", of.id);
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason));
    }
    Ok(app.budget.part(Owner::Work("attachments")).take(taken, Use::Quick, WAIT).await?)
}

/// The document with the contents of the requested attachments, for an answer in JSON, and their reservation until they
/// are written; `None` if its leaf was replaced or removed meanwhile.
pub(crate) async fn load(
    app: &Arc<App>,
    database: &Documents,
    mut document: Document,
) -> Result<Option<(Document, Held)>> {
    let held = reserve(app, &document, document.attachments.iter().filter(|attachment| attachment.wanted)).await?;
    if !are_wanted(&document) {
        return Ok(Some((document, held)));
    }
    let database = database.clone();
    let load = async move { Ok(database.load_attachments_of_leaf(&mut document).await?.then_some(document)) };
    Ok(app.scan(load).await?.map(|document| (document, held)))
}

/// Adds the contents of all attachments to a document's winner, for an answer in JSON. If the winner was replaced
/// meanwhile, `document` becomes the new one. Returns their reservation until they are written.
pub(crate) async fn load_all(app: &Arc<App>, database: &Documents, document: &mut Document) -> Result<Held> {
    let held = reserve(app, document, document.attachments.iter()).await?;
    if document.attachments.is_empty() {
        return Ok(held);
    }
    let (database, mut winner) = (database.clone(), document.clone());
    let load = async move {
        database.load_all_attachments(&mut winner).await?;
        Ok(winner)
    };
    *document = app.scan(load).await?;
    Ok(held)
}
