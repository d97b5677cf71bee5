//! Reads leaves by `_bulk_get`, or one document at a time if the server has no such endpoint.
//!
//! Source: CouchDB's `couch_replicator_api_wrap.erl`, which falls back in the same way.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use model::{BulkGet, JsonRef, JsonText, JsonWriter};

use super::address::id_path;
use super::answer::{Answer, Held, problem};
use super::answers::{list, refusal, revision, text};
use super::ceilings::{DOCUMENT, SEVERAL};
use super::{Http, Method};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{ReadOptions, Revision, is_enough};

/// Number of documents requested at the same time, if each takes its own request.
const AT_ONCE: usize = 8;

/// Maximum length of an answer, as a multiple of the requested bytes.
const ANSWER: usize = 2;

impl Http {
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
        // Fewer after an answer that was too long.
        let mut at_most = wanted.len();
        while all.len() < wanted.len() && !is_enough(&all, options.most_bytes) {
            let rest = &wanted[all.len()..];
            if self.has_no_bulk_get.load(Ordering::Relaxed) {
                let reads: Vec<BoxFuture<'_, _>> = rest.iter().map(|one| self.open_revs(one, &query).boxed()).collect();
                let mut reads = stream::iter(reads).buffered(AT_ONCE);
                while !is_enough(&all, options.most_bytes)
                    && let Some(found) = reads.try_next().await?
                {
                    all.push(found);
                }
                break;
            }
            let some: Vec<&BulkGet> = rest.iter().take(self.reading.at_once().min(at_most)).collect();
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
            let ceiling = match options.most_bytes {
                _ if some.len() == 1 => DOCUMENT,
                Some(most) => most.saturating_mul(ANSWER).min(SEVERAL),
                None => SEVERAL,
            };
            let asking = async {
                let answer = self.send(ceiling, Method::POST, &["_bulk_get"], &query, Some(body)).await?;
                if answer.has_no_such_endpoint() { Ok(None) } else { answer.into_held().map(Some) }
            };
            match self.reading.keep(some.len(), asking).await {
                Ok(Some((answer, held))) => all.extend(matched(&some, &answer, &held)?),
                Ok(None) => self.has_no_bulk_get.store(true, Ordering::Relaxed),
                Err(error) if error.kind() == ErrorKind::TooLarge && some.len() > 1 => at_most = some.len() / 2,
                // The other documents may be shorter.
                Err(error) if error.kind() == ErrorKind::TooLarge => all.push(Err(error)),
                // The caller uses these documents before it requests the rest again.
                Err(error) if error.is_transient() && options.most_bytes.is_some() && !all.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Reads the leaves of one document.
    async fn open_revs(&self, one: &BulkGet, options: &[(&str, String)]) -> Result<Result<Vec<Revision>>> {
        let revs = match &one.rev {
            Some(rev) => format!("[\"{rev}\"]"),
            None => "all".to_owned(),
        };
        let query: Vec<_> = options.iter().cloned().chain([("open_revs", revs)]).collect();
        let answer = match self.send_for_json(DOCUMENT, &id_path(&one.id), &query).await {
            Err(error) if error.kind() == ErrorKind::TooLarge => return Ok(Err(error)),
            answer => answer?,
        };
        if answer.is_missing() {
            return Ok(Ok(Vec::new()));
        }
        let (answer, held) = answer.into_held()?;
        if !answer.root().is_array() {
            return Err(Error::nonsense("the server's answer to open_revs is not a list"));
        }
        let found = answer.root().elements().filter_map(|leaf| leaf.get("ok"));
        Ok(found.map(|leaf| revision(&one.id, &answer.slice_ref(leaf), &held)).collect())
    }
}

impl Answer {
    /// Whether the server does not know `_bulk_get`. A server that takes it for a document's id does not know it
    /// either.
    fn has_no_such_endpoint(&self) -> bool {
        match self.status {
            400 | 405 | 501 => true,
            404 => self.is_missing(),
            _ => false,
        }
    }
}

/// The leaves for each request. CouchDB's results are in the order of the requests. Other servers have another order,
/// or one result for all revisions of a document.
fn matched(some: &[&BulkGet], answer: &JsonText, held: &Held) -> Result<Vec<Result<Vec<Revision>>>> {
    let mut results: HashMap<String, VecDeque<JsonRef<'_>>> = HashMap::new();
    for result in list(answer.root(), "results")? {
        let id = text(result, "id").ok_or_else(|| Error::nonsense("a result of the server's _bulk_get has no id"))?;
        results.entry(id.into_owned()).or_default().push_back(result);
    }
    let mut last: HashMap<&str, JsonRef<'_>> = HashMap::new();
    let mut all = Vec::with_capacity(some.len());
    for one in some {
        match results.get_mut(&one.id).and_then(VecDeque::pop_front) {
            Some(result) => {
                last.insert(&one.id, result);
                all.push(leaves(&one.id, answer, held, result));
            }
            // The leaf came in the result of another revision.
            None if last.get(&*one.id).is_some_and(|result| names(*result, one)) => all.push(Ok(Vec::new())),
            None => {
                let sentence = format!("the server's _bulk_get says nothing of \"{}\"", one.id);
                return Err(Error::nonsense(sentence));
            }
        }
    }
    Ok(all)
}

/// Whether a result names the revision that is wanted.
fn names(result: JsonRef<'_>, one: &BulkGet) -> bool {
    let Some(rev) = one.rev.as_ref().map(ToString::to_string) else { return true };
    let docs = result.get("docs").map(JsonRef::elements).into_iter().flatten();
    let mut revs = docs.filter_map(|doc| match doc.get("ok") {
        Some(doc) => text(doc, "_rev"),
        None => text(doc.get("error")?, "rev"),
    });
    revs.any(|found| found == *rev)
}

/// The leaves in a result of `_bulk_get`.
fn leaves(id: &str, answer: &JsonText, held: &Held, result: JsonRef<'_>) -> Result<Vec<Revision>> {
    let docs = list(result, "docs")?;
    let mut leaves = Vec::with_capacity(docs.len());
    for doc in docs {
        if let Some(doc) = doc.get("ok") {
            leaves.push(revision(id, &answer.slice_ref(doc), held)?);
            continue;
        }
        let failed = doc.get("error");
        if failed.and_then(|failed| text(failed, "error")).as_deref() == Some("not_found") {
            continue;
        }
        let sentence = format!("\"{id}\" cannot be read: {}", failed.and_then(problem).unwrap_or_default());
        let error = Error::new(ErrorKind::Unavailable, sentence);
        let status = failed.and_then(refusal).and_then(|error| error.status());
        return Err(status.map_or(error.clone(), |status| error.with_status(status)));
    }
    Ok(leaves)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(names: &[(&str, &str)]) -> Vec<BulkGet> {
        names.iter().map(|(id, rev)| BulkGet { id: (*id).into(), rev: Some(rev.parse().unwrap()) }).collect()
    }

    fn found(wanted: &[BulkGet], answer: &str) -> Result<Vec<Vec<String>>> {
        let answer = JsonText::parse(answer.as_bytes()).unwrap();
        let all = matched(&wanted.iter().collect::<Vec<_>>(), &answer, &Held::default())?;
        let revs = |leaves: Result<Vec<Revision>>| leaves.unwrap().iter().map(|leaf| leaf.rev.to_string()).collect();
        Ok(all.into_iter().map(revs).collect())
    }

    #[test]
    fn results_are_matched_by_id_whatever_their_order() {
        let wanted = wanted(&[("a", "1-a"), ("b", "1-b"), ("a", "1-c")]);
        let doc = |id: &str, rev: &str| format!(r#"{{"ok":{{"_id":"{id}","_rev":"{rev}"}}}}"#);
        let (a, b, c) = (doc("a", "1-a"), doc("b", "1-b"), doc("a", "1-c"));
        let others =
            format!(r#"{{"results":[{{"id":"b","docs":[{b}]}},{{"id":"a","docs":[{a}]}},{{"id":"a","docs":[{c}]}}]}}"#);
        assert_eq!(found(&wanted, &others).unwrap(), [["1-a"], ["1-b"], ["1-c"]]);
        let merged = format!(r#"{{"results":[{{"id":"b","docs":[{b}]}},{{"id":"a","docs":[{c},{a}]}}]}}"#);
        assert_eq!(found(&wanted, &merged).unwrap(), [vec!["1-c", "1-a"], vec!["1-b"], vec![]]);
        // A leaf that the answer does not mention does not count as missing.
        for docs in
            [format!(r#"{{"id":"a","docs":[{a}]}}"#), format!(r#"{{"id":"a","docs":[{a}]}},{{"id":"b","docs":[]}}"#)]
        {
            assert!(found(&wanted, &format!(r#"{{"results":[{docs}]}}"#)).is_err(), "{docs}");
        }
        assert!(found(&wanted, r#"{"results":[{"docs":[]}]}"#).is_err());
    }
}
