//! A database behind a server that speaks CouchDB's protocol.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Method, StatusCode, Url};
use serde_json::{Value, json};

use super::model::page;
use super::pace::Pace;
use super::{
    Body, Change, Changes, DocumentStore, Edit, Figures, IdRange, Leaf, Page, Refusal, Row, StoreResult, Written, sort,
};
use crate::error::{StoreError, StoreErrorKind};

/// Documents asked for in one request, and sent in one, at first and at most.
const READ_AT_ONCE: (usize, usize) = (200, 1_000);
const SENT_AT_ONCE: (usize, usize) = (200, 2_000);
/// A request that takes longer was too large: servers and what stands before them give up after a minute.
const SLOW: Duration = Duration::from_secs(5);
/// Bytes of documents sent in one request, at most, but for a document larger than that.
const BYTES_AT_ONCE: usize = 4 << 20;
/// Without a byte for so long a server counts as gone.
const SILENCE: Duration = Duration::from_secs(120);

/// A database behind a server.
#[derive(Clone)]
pub struct HttpStore {
    client: Client,
    database: Url,
    user: Option<(String, String)>,
    reading: Arc<Pace>,
    writing: Arc<Pace>,
}

impl HttpStore {
    /// The database at this address (`http://HOST:PORT/NAME`), as `user` (name and password) if there is
    /// one. Nothing is sent yet.
    ///
    /// # Errors
    /// [`StoreErrorKind::Refused`] where the address is none that can have paths below it.
    pub fn new(database: &str, user: Option<(String, String)>) -> StoreResult<Self> {
        let refused = |sentence: String| StoreError::new(StoreErrorKind::Refused, sentence);
        let client = Client::builder().no_proxy().connect_timeout(Duration::from_secs(10)).read_timeout(SILENCE);
        let client = client.build().map_err(|error| refused(error.to_string()))?;
        let url = Url::parse(database).map_err(|error| refused(format!("{database}: {error}")))?;
        if url.cannot_be_a_base() {
            return Err(refused(format!("{database} cannot have a database")));
        }
        let [reading, writing] =
            [READ_AT_ONCE, SENT_AT_ONCE].map(|(first, most)| Arc::new(Pace::new(first, most, SLOW)));
        Ok(HttpStore { client, database: url, user, reading, writing })
    }

    async fn send(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<Vec<u8>>,
    ) -> StoreResult<(StatusCode, Value)> {
        let mut url = self.database.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.client.request(method, url);
        if let Some((user, password)) = &self.user {
            request = request.basic_auth(user, Some(password));
        }
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        let body = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        match serde_json::from_slice(&body) {
            Ok(answer) => Ok((status, answer)),
            Err(_) if status.is_server_error() => {
                Err(StoreError::new(StoreErrorKind::Unavailable, format!("the server answered {status}")))
            }
            Err(error) => Err(nonsense(format!("the server's answer ({status}) is no JSON: {error}"))),
        }
    }

    /// As `send`, where anything but a success is a failure.
    async fn ask(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> StoreResult<Value> {
        let (status, answer) = self.send(method, path, query, body.map(|body| body.to_string().into_bytes())).await?;
        if status.is_success() { Ok(answer) } else { Err(self.refused(status, &answer)) }
    }

    fn refused(&self, status: StatusCode, answer: &Value) -> StoreError {
        let kind = match status.as_u16() {
            404 => StoreErrorKind::NoDatabase,
            408 | 425 | 429 | 500..=599 => StoreErrorKind::Unavailable,
            _ => StoreErrorKind::Refused,
        };
        let place = self.database.path();
        StoreError::new(kind, format!("the server answered {} for {place}: {}", status.as_u16(), problem(answer)))
    }

    /// A failure below HTTP, in one line with its causes.
    fn unreachable(&self, error: &reqwest::Error) -> StoreError {
        let mut sentence = format!("no answer from {}", self.database.origin().ascii_serialization());
        let mut cause = std::error::Error::source(error);
        while let Some(source) = cause {
            sentence = format!("{sentence}: {source}");
            cause = source.source();
        }
        StoreError::new(StoreErrorKind::Unavailable, sentence)
    }

    /// Sends a `_bulk_docs`, cut where it would be too long; the rows up to the first failure, and that failure.
    async fn bulk(&self, docs: Vec<String>, new_edits: bool) -> (Vec<Value>, Option<StoreError>) {
        let mut results = Vec::new();
        let mut docs = docs.into_iter().peekable();
        while docs.peek().is_some() {
            let (mut some, mut bytes, most) = (Vec::new(), 0, self.writing.at_once());
            let mut fits = |doc: &String| {
                let fits = bytes == 0 || bytes + doc.len() <= BYTES_AT_ONCE;
                bytes += doc.len();
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

    async fn bulk_part(&self, docs: Vec<String>, new_edits: bool, results: &mut Vec<Value>) -> StoreResult<()> {
        let mut parts = vec![docs];
        while let Some(mut docs) = parts.pop() {
            let body = format!("{{\"new_edits\":{new_edits},\"docs\":[{}]}}", docs.join(","));
            let (status, answer) = self.send(Method::POST, &["_bulk_docs"], &[], Some(body.into_bytes())).await?;
            match answer {
                Value::Array(rows) if status.is_success() => results.extend(rows),
                _ if status == StatusCode::PAYLOAD_TOO_LARGE && docs.len() > 1 => {
                    // CouchDB refuses a whole request for one document in it.
                    let second = docs.split_off(docs.len() / 2);
                    parts.push(second);
                    parts.push(docs);
                }
                _ if status == StatusCode::PAYLOAD_TOO_LARGE => {
                    let id = docs.first().and_then(|doc| serde_json::from_str::<Value>(doc).ok());
                    let id = id.as_ref().and_then(|doc| doc.get("_id")).cloned().unwrap_or_default();
                    results.push(json!({"id": id, "error": "document_too_large"}));
                }
                answer => return Err(self.refused(status, &answer)),
            }
        }
        Ok(())
    }
}

impl fmt::Debug for HttpStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HttpStore").field(&self.database.as_str()).finish()
    }
}

#[async_trait]
impl DocumentStore for HttpStore {
    async fn leaves(&self, ids: &[String], with_ancestors: bool) -> StoreResult<Vec<Vec<Leaf>>> {
        let mut all = Vec::with_capacity(ids.len());
        let mut rest = ids;
        while !rest.is_empty() {
            let some;
            (some, rest) = rest.split_at(self.reading.at_once().min(rest.len()));
            let docs: Vec<Value> = some.iter().map(|id| json!({"id": id})).collect();
            let (query, wanted) = ([("revs", with_ancestors.to_string())], json!({"docs": docs}));
            let answer = self.ask(Method::POST, &["_bulk_get"], &query, Some(&wanted));
            let answer = self.reading.keep(some.len(), answer).await?;
            let Some(Value::Array(results)) = take(answer, "results") else {
                return Err(nonsense("the server's _bulk_get has no results"));
            };
            if results.len() != some.len() {
                return Err(nonsense("the server's _bulk_get has results that nobody asked for"));
            }
            for (id, result) in some.iter().zip(results) {
                all.push(leaves(id, result)?);
            }
        }
        Ok(all)
    }

    async fn local(&self, id: &str) -> StoreResult<Option<Body>> {
        let path: Vec<&str> = id.splitn(2, '/').collect();
        let (status, answer) = self.send(Method::GET, &path, &[], None).await?;
        match status {
            StatusCode::NOT_FOUND if answer["reason"] != "Database does not exist." => Ok(None),
            _ if status.is_success() => body(answer).map(Some),
            _ => Err(self.refused(status, &answer)),
        }
    }

    async fn revs(&self, ids: &[String]) -> StoreResult<Vec<Option<String>>> {
        let mut revs = Vec::with_capacity(ids.len());
        let mut rest = ids;
        while !rest.is_empty() {
            let some;
            (some, rest) = rest.split_at(self.reading.at_once().min(rest.len()));
            let wanted = json!({"keys": some});
            let answer = self.ask(Method::POST, &["_all_docs"], &[], Some(&wanted));
            let answer = self.reading.keep(some.len(), answer).await?;
            let rows = rows(answer)?;
            if rows.len() != some.len() {
                return Err(nonsense("the server's _all_docs has rows that nobody asked for"));
            }
            for (id, row) in some.iter().zip(rows) {
                // A document that cannot be read is not one that is not there.
                if row.get("error").is_some_and(|error| error != "not_found") {
                    return Err(nonsense(format!("\"{id}\" cannot be read: {}", problem(&row))));
                }
                let rev = row["value"]["rev"].as_str().filter(|_| row["value"]["deleted"] != true);
                revs.push(rev.map(str::to_owned));
            }
        }
        Ok(revs)
    }

    async fn write(&self, edits: Vec<Edit>) -> StoreResult<Vec<Written>> {
        let ids: Vec<String> = edits.iter().map(|edit| edit.id.clone()).collect();
        let docs = edits.into_iter().map(|edit| {
            let mut doc = edit.body;
            doc.insert("_id".into(), edit.id.into());
            if let Some(rev) = edit.rev {
                doc.insert("_rev".into(), rev.into());
            }
            if edit.deleted {
                doc.insert("_deleted".into(), true.into());
            }
            Value::Object(doc).to_string()
        });
        let (results, failed) = self.bulk(docs.collect(), true).await;
        if let Some(failure) = failed.clone().filter(|failure| results.is_empty() || !failure.is_transient()) {
            return Err(failure);
        }
        let mut outcomes: std::collections::HashMap<&str, Written> =
            results.iter().filter_map(|row| Some((row["id"].as_str()?, written(row)))).collect();
        let unsaid = failed.map_or_else(|| "the server said nothing of it".to_owned(), |failure| failure.to_string());
        let unsaid = || Err(Refusal::Unknown(unsaid.clone()));
        Ok(ids.iter().map(|id| outcomes.remove(id.as_str()).unwrap_or_else(unsaid)).collect())
    }

    async fn graft(&self, leaves: Vec<(String, Leaf)>) -> StoreResult<()> {
        let docs = leaves.into_iter().map(|(id, leaf)| {
            let position = leaf.rev.split_once('-').and_then(|(position, _)| position.parse::<u64>().ok());
            let revs = std::iter::once(&leaf.rev).chain(&leaf.ancestors);
            let hashes: Vec<&str> = revs.map(|rev| rev.split_once('-').map_or("", |(_, hash)| hash)).collect();
            let mut doc = leaf.body;
            doc.insert("_revisions".into(), json!({"start": position, "ids": hashes}));
            doc.insert("_id".into(), id.into());
            doc.insert("_rev".into(), leaf.rev.into());
            if leaf.deleted {
                doc.insert("_deleted".into(), true.into());
            }
            Value::Object(doc).to_string()
        });
        let (results, failed) = self.bulk(docs.collect(), false).await;
        // Only what failed is answered.
        match (results.iter().find(|row| row.get("error").is_some()), failed) {
            (Some(row), _) => {
                let kind = match written(row) {
                    Err(Refusal::Unknown(_)) => StoreErrorKind::Unavailable,
                    _ => StoreErrorKind::Refused,
                };
                Err(StoreError::new(kind, format!("{}: {}", row["id"], problem(row))))
            }
            (None, Some(failure)) => Err(failure),
            (None, None) => Ok(()),
        }
    }

    async fn list(&self, range: &IdRange) -> StoreResult<Page> {
        let query = [
            ("startkey", Value::from(range.start.as_str()).to_string()),
            ("endkey", Value::from(range.end.as_str()).to_string()),
            ("inclusive_end", "false".to_owned()),
            ("limit", range.limit.to_string()),
            ("include_docs", range.bodies.to_string()),
        ];
        let answer = self.ask(Method::GET, &["_all_docs"], &query, None).await?;
        let mut found = Vec::new();
        for mut row in rows(answer)? {
            let body = range.bodies.then(|| body(row["doc"].take())).transpose()?;
            let text = |value: &Value| value.as_str().map(str::to_owned);
            match (text(&row["id"]), text(&row["value"]["rev"])) {
                (Some(id), Some(rev)) => found.push(Row { id, rev, body }),
                _ => return Err(nonsense("a row of the server's _all_docs has no id or no revision")),
            }
        }
        Ok(page(range, found, false))
    }

    async fn changes(&self, since: Option<&str>, limit: usize) -> StoreResult<Changes> {
        let query = [("since", since.unwrap_or("0").to_owned()), ("limit", limit.to_string())];
        let mut answer = self.ask(Method::GET, &["_changes"], &query, None).await?;
        let last_seq = match &answer["last_seq"] {
            Value::String(seq) => seq.clone(),
            Value::Null => return Err(nonsense("the server's _changes has no last_seq")),
            seq => seq.to_string(),
        };
        let Value::Array(results) = answer["results"].take() else {
            return Err(nonsense("the server's _changes has no results"));
        };
        let more = results.len() >= limit;
        let mut rows = Vec::with_capacity(results.len());
        for row in results {
            let Some(id) = row["id"].as_str().map(str::to_owned) else {
                return Err(nonsense("a row of the server's _changes has no id"));
            };
            rows.push(Change { id, deleted: row["deleted"] == true });
        }
        Ok(Changes { rows, last_seq, more })
    }

    async fn figures(&self) -> StoreResult<Figures> {
        let info = self.ask(Method::GET, &[], &[], None).await?;
        let number = |value: &Value| value.as_u64().ok_or_else(|| nonsense("the database does not say its size"));
        Ok(Figures {
            documents: number(&info["doc_count"])?,
            deleted: number(&info["doc_del_count"])?,
            document_bytes: number(&info["sizes"]["external"])?,
            file_bytes: info["sizes"]["file"].as_u64(),
        })
    }

    async fn takes(&self, bytes: usize) -> StoreResult<bool> {
        // A server looks at the size before it looks for the revision, which is one of no document.
        const FRAME: usize = r#"{"pad":""}"#.len();
        let pad = "x".repeat(bytes.saturating_sub(FRAME));
        let doc = json!({"_id": "chunks:probe", "_rev": "1-00000000000000000000000000000000", "pad": pad});
        let mut results = Vec::new();
        self.bulk_part(vec![doc.to_string()], true, &mut results).await?;
        match results.first().map(written) {
            Some(Err(Refusal::Conflict)) => Ok(true),
            Some(Err(Refusal::TooLarge)) => Ok(false),
            Some(outcome) => Err(nonsense(format!("the server says {outcome:?} of an edit that replaces nothing"))),
            None => Err(nonsense("the server said nothing of an edit")),
        }
    }
}

/// The leaves in a result of `_bulk_get`.
fn leaves(id: &str, result: Value) -> StoreResult<Vec<Leaf>> {
    if result["id"] != *id {
        return Err(nonsense("the server's _bulk_get answers in another order"));
    }
    let Some(Value::Array(docs)) = take(result, "docs") else {
        return Err(nonsense(format!("the server's _bulk_get has no docs for \"{id}\"")));
    };
    let mut leaves = Vec::with_capacity(docs.len());
    for mut doc in docs {
        if doc.get("ok").is_none() {
            let error = &doc["error"]["error"];
            if error == "not_found" {
                continue;
            }
            return Err(StoreError::new(StoreErrorKind::Unavailable, format!("\"{id}\" cannot be read: {error}")));
        }
        let doc = doc["ok"].take();
        let Some(rev) = doc["_rev"].as_str().map(str::to_owned) else {
            return Err(nonsense(format!("the document \"{id}\" comes without a revision")));
        };
        let start = doc["_revisions"]["start"].as_u64().unwrap_or(0);
        let known = doc["_revisions"]["ids"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let ancestors =
            known.enumerate().skip(1).map(|(back, hash)| format!("{}-{hash}", start.saturating_sub(back as u64)));
        let ancestors = ancestors.collect();
        leaves.push(Leaf { rev, deleted: doc["_deleted"] == true, ancestors, body: body(doc)? });
    }
    sort(&mut leaves);
    Ok(leaves)
}

/// A document's members without the special ones; none where the document is `null`.
fn body(doc: Value) -> StoreResult<Body> {
    match doc {
        Value::Object(mut members) => {
            members.retain(|name, _| !name.starts_with('_'));
            Ok(members)
        }
        Value::Null => Ok(Body::new()),
        _ => Err(nonsense("a document is no object")),
    }
}

fn rows(answer: Value) -> StoreResult<Vec<Value>> {
    match take(answer, "rows") {
        Some(Value::Array(rows)) => Ok(rows),
        _ => Err(nonsense("the server's _all_docs has no rows")),
    }
}

fn take(mut object: Value, name: &str) -> Option<Value> {
    object.get_mut(name).map(Value::take)
}

/// What a row of `_bulk_docs` says.
fn written(row: &Value) -> Written {
    match (row["error"].as_str(), row["rev"].as_str()) {
        (None, Some(rev)) => Ok(rev.to_owned()),
        (Some("conflict"), _) => Err(Refusal::Conflict),
        (Some("document_too_large"), _) => Err(Refusal::TooLarge),
        (Some("service unavailable" | "internal_server_error" | "timeout" | "unknown_error"), _) | (None, None) => {
            Err(Refusal::Unknown(problem(row)))
        }
        (Some(_), _) => Err(Refusal::Other(problem(row))),
    }
}

/// `error: reason`.
fn problem(row: &Value) -> String {
    let text = |name: &str| row[name].as_str().unwrap_or_default();
    format!("{}: {}", text("error"), text("reason"))
}

fn nonsense(sentence: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Nonsense, sentence)
}
