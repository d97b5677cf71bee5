//! Writes documents with `_bulk_docs`.

use model::{JsonText, JsonWriter, RevId};

use super::answer::{Answer, is_success};
use super::answers::{refusal, text};
use super::{Http, Method, ceilings};
use crate::error::{Error, ErrorKind, Result};

/// Maximum size of the documents in one request, except a single larger document.
const BYTES_AT_ONCE: usize = 4 << 20;
const TOO_LARGE: u16 = 413;

/// A server's result for a document: its id, and the new revision or the reason why there is none.
type DocumentResult = (String, Result<Option<RevId>>);

/// What became of documents that were sent.
#[derive(Default)]
pub(super) struct BulkOutcome {
    /// The server's results. For leaves that were made elsewhere, it sends only those of refused ones.
    pub(super) results: Vec<DocumentResult>,
    /// The number of documents, from the first one, whose requests were answered.
    pub(super) answered: usize,
    /// The failure that ended the work.
    pub(super) failed: Option<Error>,
}

impl Http {
    /// Sends `_bulk_docs`, in several requests if there are too many documents, up to the first failure.
    pub(super) async fn bulk(&self, docs: Vec<(String, Vec<u8>)>, new_edits: bool) -> BulkOutcome {
        let mut bulk = BulkOutcome::default();
        let mut docs = docs.into_iter().peekable();
        while docs.peek().is_some() {
            let (mut some, mut bytes, most) = (Vec::new(), 0, self.writing.at_once());
            let mut fits = |doc: &(String, Vec<u8>)| {
                let fits = bytes == 0 || bytes + doc.1.len() <= BYTES_AT_ONCE;
                bytes += doc.1.len();
                fits
            };
            while some.len() < most
                && let Some(doc) = docs.next_if(&mut fits)
            {
                some.push(doc);
            }
            let count = some.len();
            if let Err(failure) = self.writing.keep(count, self.bulk_part(some, new_edits, &mut bulk)).await {
                bulk.failed = Some(failure);
                break;
            }
        }
        bulk
    }

    async fn bulk_part(&self, docs: Vec<(String, Vec<u8>)>, new_edits: bool, bulk: &mut BulkOutcome) -> Result<()> {
        let mut parts = vec![docs];
        while let Some(mut docs) = parts.pop() {
            let mut body = Vec::with_capacity(docs.iter().map(|(_, doc)| doc.len() + 1).sum::<usize>() + 40);
            JsonWriter::new(&mut body).begin_object().name("new_edits").bool(new_edits).name("docs");
            for (place, (_, doc)) in docs.iter().enumerate() {
                body.push(if place == 0 { b'[' } else { b',' });
                body.extend_from_slice(doc);
            }
            body.extend_from_slice(b"]}");
            let ids = docs.iter().map(|(id, _)| id.len()).sum();
            let ceiling = ceilings::written(ids, docs.len());
            let answer = self.send(ceiling, Method::POST, &["_bulk_docs"], &[], Some(body)).await?;
            if answer.status == TOO_LARGE {
                // CouchDB refuses the whole request because of one document.
                if docs.len() > 1 {
                    let second = docs.split_off(docs.len() / 2);
                    parts.push(second);
                    parts.push(docs);
                } else if let Some((id, _)) = docs.pop() {
                    let error = Error::new(ErrorKind::TooLarge, "document_too_large: the server refuses the request");
                    bulk.results.push((id, Err(error.with_status(TOO_LARGE))));
                    bulk.answered += 1;
                }
                continue;
            }
            let answer = answer.into_json()?;
            if !answer.root().is_array() {
                return Err(Error::nonsense("the server's answer to _bulk_docs is not a list"));
            }
            for row in answer.root().elements() {
                let id = text(row, "id").unwrap_or_default().into_owned();
                let rev = || text(row, "rev").and_then(|rev| RevId::parse(&rev).ok());
                bulk.results.push((id, refusal(row).map_or_else(|| Ok(rev()), Err)));
            }
            bulk.answered += docs.len();
        }
        Ok(())
    }
}

impl Answer {
    /// Whether the answer says that the document does not exist, in a database that exists.
    pub(super) fn is_missing(&self) -> bool {
        const NO_DATABASE: [&str; 2] = ["Database does not exist.", "no_db_file"];
        let Ok(json) = JsonText::parse(&self.body) else { return false };
        let reason = text(json.root(), "reason").unwrap_or_default();
        !is_success(self.status) && self.status == 404 && !NO_DATABASE.contains(&reason.as_ref())
    }
}
