//! Writes documents with `_bulk_docs`, and reads them with `_bulk_get`.

use model::{BulkGet, JsonRef, JsonText, JsonWriter, RevId};

use super::answers::{list, refusal, revision, text};
use super::{Answer, Http, Method, is_success};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{ReadOptions, Revision};

/// Maximum size of the documents in one request, except a single larger document.
const BYTES_AT_ONCE: usize = 4 << 20;
const TOO_LARGE: u16 = 413;

/// A server's result for a document: its id, and the new revision or the reason why there is none.
pub(super) type DocumentResult = (String, Result<Option<RevId>>);

impl Http {
    /// Sends `_bulk_docs`, in several requests if there are too many documents. Returns the results up to the first
    /// failure, and that failure.
    pub(super) async fn bulk(
        &self,
        docs: Vec<(String, Vec<u8>)>,
        new_edits: bool,
    ) -> (Vec<DocumentResult>, Option<Error>) {
        let mut results = Vec::new();
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
            if let Err(failure) = self.writing.keep(count, self.bulk_part(some, new_edits, &mut results)).await {
                return (results, Some(failure));
            }
        }
        (results, None)
    }

    async fn bulk_part(
        &self,
        docs: Vec<(String, Vec<u8>)>,
        new_edits: bool,
        results: &mut Vec<DocumentResult>,
    ) -> Result<()> {
        let mut parts = vec![docs];
        while let Some(mut docs) = parts.pop() {
            let mut body = Vec::with_capacity(docs.iter().map(|(_, doc)| doc.len() + 1).sum::<usize>() + 40);
            JsonWriter::new(&mut body).begin_object().name("new_edits").bool(new_edits).name("docs");
            for (place, (_, doc)) in docs.iter().enumerate() {
                body.push(if place == 0 { b'[' } else { b',' });
                body.extend_from_slice(doc);
            }
            body.extend_from_slice(b"]}");
            let answer = self.send(Method::POST, &["_bulk_docs"], &[], Some(body)).await?;
            if answer.status == TOO_LARGE {
                // CouchDB refuses the whole request because of one document.
                if docs.len() > 1 {
                    let second = docs.split_off(docs.len() / 2);
                    parts.push(second);
                    parts.push(docs);
                } else if let Some((id, _)) = docs.pop() {
                    let error = Error::new(ErrorKind::TooLarge, "document_too_large: the server refuses the request");
                    results.push((id, Err(error.with_status(TOO_LARGE))));
                }
                continue;
            }
            let answer = answer.into_json()?;
            if !answer.root().is_array() {
                return Err(Error::nonsense("the server's answer to _bulk_docs is no list"));
            }
            for row in answer.root().elements() {
                let id = text(row, "id").unwrap_or_default().into_owned();
                let rev = || text(row, "rev").and_then(|rev| RevId::parse(&rev).ok());
                results.push((id, refusal(row).map_or_else(|| Ok(rev()), Err)));
            }
        }
        Ok(())
    }

    /// Reads leaves, in as many requests as are needed.
    pub(super) async fn bulk_get(
        &self,
        wanted: &[BulkGet],
        options: ReadOptions,
    ) -> Result<Vec<Result<Vec<Revision>>>> {
        let query = [
            ("revs", options.ancestors.to_string()),
            ("latest", options.latest.to_string()),
            ("att_encoding_info", "true".to_owned()),
        ];
        let mut all = Vec::with_capacity(wanted.len());
        while all.len() < wanted.len() {
            let some: Vec<&BulkGet> = wanted[all.len()..].iter().take(self.reading.at_once()).collect();
            let mut body = Vec::new();
            let mut json = JsonWriter::new(&mut body);
            json.begin_object().name("docs").begin_array();
            for one in &some {
                json.begin_object().name("id").str(&one.id);
                if let Some(rev) = &one.rev {
                    json.name("rev").display(rev);
                }
                json.end_object();
            }
            json.end_array().end_object();
            let answer = self.ask(Method::POST, &["_bulk_get"], &query, Some(body));
            let answer = self.reading.keep(some.len(), answer).await?;
            let results = list(answer.root(), "results")?;
            if results.len() != some.len() {
                return Err(Error::nonsense("the server's _bulk_get has results that nobody asked for"));
            }
            for (one, result) in some.iter().zip(results) {
                if text(result, "id").as_deref() != Some(one.id.as_str()) {
                    return Err(Error::nonsense("the server's _bulk_get answers in another order"));
                }
                all.push(leaves(&one.id, &answer, result));
            }
        }
        Ok(all)
    }
}

/// The leaves in a result of `_bulk_get`.
fn leaves(id: &str, answer: &JsonText, result: JsonRef<'_>) -> Result<Vec<Revision>> {
    let docs = list(result, "docs")?;
    let mut leaves = Vec::with_capacity(docs.len());
    for doc in docs {
        if let Some(doc) = doc.get("ok") {
            leaves.push(revision(id, &answer.slice_ref(doc))?);
            continue;
        }
        let problem = doc.get("error");
        if problem.and_then(|problem| text(problem, "error")).as_deref() == Some("not_found") {
            continue;
        }
        let sentence = format!("\"{id}\" cannot be read: {}", problem.and_then(super::problem).unwrap_or_default());
        let error = Error::new(ErrorKind::Unavailable, sentence);
        let status = problem.and_then(refusal).and_then(|error| error.status());
        return Err(status.map_or(error.clone(), |status| error.with_status(status)));
    }
    Ok(leaves)
}

impl Answer {
    /// Whether it says that the document does not exist, in a database that exists.
    pub(super) fn is_missing(&self) -> bool {
        const NO_DATABASE: [&str; 2] = ["Database does not exist.", "no_db_file"];
        let Ok(json) = JsonText::parse(&self.body) else { return false };
        let reason = text(json.root(), "reason").unwrap_or_default();
        !is_success(self.status) && self.status == 404 && !NO_DATABASE.contains(&reason.as_ref())
    }
}
