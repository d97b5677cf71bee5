//! A database behind a server: couch-layer's own, or for all but `check` any CouchDB.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chunks::store::{DocumentStore, HttpStore};
use model::{JsonRef, JsonText, JsonWriter};
use percent_encoding::percent_decode_str;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Method, StatusCode, Url};

use super::{IfNoDatabase, NewDocument, Page, Rows, failure};
use crate::cli::Failure;
use crate::relocation::{Asked, Status};
use crate::report::Checked;

/// How many rows of a feed are asked for at a time.
const ROWS: u64 = 1_000;

/// How long a server is asked to hold a feed open that has nothing to say, in milliseconds. A server
/// that went away without a word is noticed after about as long.
const WAIT_MS: u64 = 30_000;

/// How often a server is asked whether it still compacts.
const COMPACTION_PAUSE: Duration = Duration::from_millis(500);

/// Where relocations are asked for.
const RELOCATE: [&str; 2] = ["_couch_layer", "relocate"];

/// The address of a server, with or without a user.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    url: Url,
    user: Option<(String, String)>,
}

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerUrlError {
    #[error("it is no URL: {0}; write http://HOST:PORT")]
    NoUrl(String),
    #[error("only http:// is spoken; put a proxy that ends TLS in front of the server, or a tunnel")]
    NotHttp,
    #[error("the user or the password is not UTF-8")]
    NotUtf8,
}

impl FromStr for ServerUrl {
    type Err = ServerUrlError;

    fn from_str(text: &str) -> Result<Self, ServerUrlError> {
        let mut url = Url::parse(text).map_err(|error| ServerUrlError::NoUrl(error.to_string()))?;
        if url.scheme() != "http" {
            return Err(ServerUrlError::NotHttp);
        }
        let decode =
            |text: &str| percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| ServerUrlError::NotUtf8);
        let user = match url.username() {
            "" => None,
            user => Some((decode(user)?, decode(url.password().unwrap_or_default())?)),
        };
        // It goes into a header, never into a message.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_query(None);
        url.set_fragment(None);
        Ok(ServerUrl { url, user })
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerUrl").field(&self.url.as_str()).finish()
    }
}

/// A database behind a server.
#[derive(Clone)]
pub(crate) struct Remote {
    client: Client,
    database: Url,
    user: Option<(String, String)>,
}

impl Remote {
    pub(crate) async fn open(server: &ServerUrl, name: &str, if_none: IfNoDatabase) -> Result<Self, Failure> {
        let client = Client::builder().no_proxy().connect_timeout(Duration::from_secs(10)).build()?;
        let mut database = server.url.clone();
        match database.path_segments_mut() {
            Ok(mut segments) => drop(segments.pop_if_empty().push(name)),
            Err(()) => return Err(failure(format!("{} cannot have a database", server.url))),
        }
        let from_environment = || Some((std::env::var("COUCHDB_USER").ok()?, std::env::var("COUCHDB_PASSWORD").ok()?));
        let remote = Remote { client, database, user: server.user.clone().or_else(from_environment) };
        if if_none == IfNoDatabase::Create {
            let answer = remote.send(Method::PUT, &[], &[], None).await?;
            // 412 is the answer where there is one already.
            if answer.status != StatusCode::PRECONDITION_FAILED {
                answer.into_json()?;
            }
        }
        Ok(remote)
    }

    pub(super) async fn write(&self, documents: Vec<NewDocument>) -> Result<Vec<Option<String>>, Failure> {
        let mut results = vec![None; documents.len()];
        for has_revision in [false, true] {
            let indexes: Vec<usize> =
                (0..documents.len()).filter(|index| documents[*index].has_revision == has_revision).collect();
            if indexes.is_empty() {
                continue;
            }
            let mut body = Vec::new();
            let mut writer = JsonWriter::new(&mut body);
            writer.begin_object().name("new_edits").bool(!has_revision).name("docs").begin_array();
            for index in &indexes {
                writer.text(&documents[*index].json);
            }
            writer.end_array().end_object();
            let answer = self.send(Method::POST, &["_bulk_docs"], &[], Some(body)).await?.into_json()?;
            if has_revision {
                // Only what failed is answered, by id.
                for row in answer.root().elements() {
                    let Some(problem) = problem(row) else { continue };
                    let id = row.get("id").and_then(JsonRef::as_str).unwrap_or_default();
                    let index = indexes.iter().find(|index| documents[**index].id == id && results[**index].is_none());
                    match index {
                        Some(index) => results[*index] = Some(problem),
                        None => {
                            return Err(failure(format!("the server refused \"{id}\", which was not sent: {problem}")));
                        }
                    }
                }
            } else {
                let rows: Vec<JsonRef<'_>> = answer.root().elements().collect();
                if rows.len() != indexes.len() {
                    let (sent, answered) = (indexes.len(), rows.len());
                    return Err(failure(format!("the server answered {answered} of {sent} documents")));
                }
                for (index, row) in indexes.into_iter().zip(rows) {
                    results[index] = problem(row);
                }
            }
        }
        Ok(results)
    }

    pub(super) async fn count(&self) -> Result<u64, Failure> {
        let info = self.send(Method::GET, &[], &[], None).await?.into_json()?;
        Ok(info.get("doc_count").and_then(JsonRef::as_u64).unwrap_or_default())
    }

    pub(super) async fn page(&self, after: Option<&str>, limit: u64) -> Result<Page, Failure> {
        let mut query = vec![
            ("include_docs", "true".to_owned()),
            ("attachments", "true".to_owned()),
            ("limit", (limit + 1).to_string()),
        ];
        if let Some(after) = after {
            let mut key = Vec::new();
            JsonWriter::new(&mut key).str(after);
            query.push(("startkey", String::from_utf8(key)?));
        }
        let listing = self.send(Method::GET, &["_all_docs"], &query, None).await?.into_json()?;
        let rows = listing.get("rows").map(|rows| rows.elements().collect::<Vec<_>>()).unwrap_or_default();
        let is_last = (rows.len() as u64) < limit + 1;
        let mut page = Page { documents: Vec::with_capacity(rows.len()), last_id: None };
        for row in rows {
            let id = row.get("id").and_then(JsonRef::as_str).ok_or_else(|| failure("a row of _all_docs has no id"))?;
            // The document to go on after may have gone in the meantime; it may also still be there.
            if after == Some(id.as_ref()) {
                page.last_id = Some(id.into_owned());
                continue;
            }
            match row.get("doc") {
                Some(document) if document.is_object() => page.documents.push(listing.slice_ref(document).into_bytes()),
                _ => return Err(failure(format!("the server did not send the document \"{id}\""))),
            }
            page.last_id = Some(id.into_owned());
        }
        if is_last {
            page.last_id = None;
        }
        Ok(page)
    }

    pub(super) async fn changes(&self, since: &str) -> Result<Rows, Failure> {
        self.feed(since, &[]).await
    }

    pub(super) async fn next_changes(&self, since: &str) -> Result<Rows, Failure> {
        let wait = [("feed", "longpoll".to_owned()), ("timeout", WAIT_MS.to_string())];
        let mut since = since.to_owned();
        loop {
            let deadline = Duration::from_millis(3 * WAIT_MS);
            let Ok(rows) = tokio::time::timeout(deadline, self.feed(&since, &wait)).await else {
                return Err(failure(format!("{} has not answered for {deadline:?}", self.database)));
            };
            let rows = rows?;
            if !rows.rows.is_empty() {
                return Ok(rows);
            }
            since = rows.last_seq;
        }
    }

    async fn feed(&self, since: &str, more: &[(&str, String)]) -> Result<Rows, Failure> {
        let mut query = vec![("since", since.to_owned()), ("limit", ROWS.to_string())];
        query.extend_from_slice(more);
        let feed = self.send(Method::GET, &["_changes"], &query, None).await?.into_json()?;
        let results = feed.get("results").map(JsonRef::elements).into_iter().flatten();
        let rows: Vec<Bytes> = results.map(|row| feed.slice_ref(row).into_bytes()).collect();
        let last_seq = match feed.get("last_seq") {
            Some(seq) => seq.as_str().map_or_else(|| seq.text().to_owned(), String::from),
            None => return Err(failure("the server's _changes has no last_seq")),
        };
        let pending = feed.get("pending").and_then(JsonRef::as_u64);
        let more = !rows.is_empty() && pending.map_or(rows.len() as u64 == ROWS, |pending| pending > 0);
        Ok(Rows { rows, last_seq, more })
    }

    pub(crate) fn document_store(&self) -> Result<Arc<dyn DocumentStore>, Failure> {
        Ok(Arc::new(HttpStore::new(self.database.as_str(), self.user.clone())?))
    }

    pub(super) fn beside(&self, name: &str) -> Result<Self, Failure> {
        let mut other = self.clone();
        match other.database.path_segments_mut() {
            Ok(mut segments) => drop(segments.pop().push(name)),
            Err(()) => return Err(failure(format!("{} cannot have a database", self.database))),
        }
        Ok(other)
    }

    pub(super) async fn disk_bytes(&self) -> Result<Option<u64>, Failure> {
        let info = self.send(Method::GET, &[], &[], None).await?.into_json()?;
        Ok(info.get("sizes").and_then(|sizes| sizes.get("file")?.as_u64()))
    }

    pub(super) async fn compact(&self) -> Result<(), Failure> {
        self.send(Method::POST, &["_compact"], &[], Some(Vec::new())).await?.into_json()?;
        loop {
            let info = self.send(Method::GET, &[], &[], None).await?.into_json()?;
            if !info.get("compact_running").and_then(JsonRef::as_bool).unwrap_or_default() {
                return Ok(());
            }
            tokio::time::sleep(COMPACTION_PAUSE).await;
        }
    }

    pub(super) async fn check(&self) -> Result<Checked, Failure> {
        let answer = self.send(Method::GET, &["_couch_layer", "check"], &[], None).await?.into_json()?;
        let number = |name| {
            let number = answer.get(name).and_then(JsonRef::as_u64);
            number.ok_or_else(|| failure("the server's answer is not that of a check; is it couch-layer?"))
        };
        let problems = answer.get("problems").map(JsonRef::elements).into_iter().flatten();
        Ok(Checked {
            documents: number("documents")?,
            revisions: number("revisions")?,
            changes: number("changes")?,
            problem_count: number("problem_count")?,
            changed_meanwhile: answer.get("changed_meanwhile").and_then(JsonRef::as_bool).unwrap_or_default(),
            problems: problems.map(|problem| problem.as_str().unwrap_or_default().into_owned()).collect(),
        })
    }

    /// Begins a relocation of the database within the server, or joins the one under way.
    pub(crate) async fn relocate(&self, asked: &Asked) -> Result<(), Failure> {
        let answer = self.send(Method::POST, &RELOCATE, &[], Some(asked.to_json())).await?;
        answer.into_json().map(drop)
    }

    /// How far it has come.
    pub(crate) async fn relocation(&self) -> Result<Status, Failure> {
        let answer = self.send(Method::GET, &RELOCATE, &[], None).await?.into_json()?;
        Status::from_json(&answer)
            .ok_or_else(|| failure("the server's answer is not about a relocation; is it couch-layer?"))
    }

    /// Stops it and removes the copy; whether there was one.
    pub(crate) async fn abandon_relocation(&self, to: &str) -> Result<bool, Failure> {
        let answer = self.send(Method::DELETE, &RELOCATE, &[("to", to.to_owned())], None).await?.into_json()?;
        Ok(answer.get("abandoned").and_then(JsonRef::as_bool).unwrap_or_default())
    }

    async fn send(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<Vec<u8>>,
    ) -> Result<Answer, Failure> {
        let mut url = self.database.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.client.request(method, url.clone());
        if let Some((user, password)) = &self.user {
            request = request.basic_auth(user, Some(password));
        }
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        let response = request.send().await.map_err(|error| unreachable(&url, &error))?;
        let status = response.status();
        let body = response.bytes().await.map_err(|error| unreachable(&url, &error))?;
        Ok(Answer { url, status, body: body.to_vec() })
    }
}

struct Answer {
    url: Url,
    status: StatusCode,
    body: Vec<u8>,
}

impl Answer {
    /// The body of a success; the server's own words otherwise.
    fn into_json(self) -> Result<JsonText, Failure> {
        let json = JsonText::parse(&self.body);
        let path = self.url.path();
        match json {
            Ok(json) if self.status.is_success() => Ok(json),
            Ok(json) => {
                let problem = problem(json.root()).unwrap_or_default();
                Err(failure(format!("the server answered {} to {path}: {problem}", self.status.as_u16())))
            }
            Err(error) => Err(failure(format!("the server's answer ({}) to {path} is {error}", self.status.as_u16()))),
        }
    }
}

/// `error` and `reason` of an answer or of a row of one, if it has them.
fn problem(row: JsonRef<'_>) -> Option<String> {
    let error = row.get("error")?.as_str()?;
    let reason = row.get("reason").and_then(JsonRef::as_str).unwrap_or_default();
    Some(format!("{error}: {reason}"))
}

/// A failure below HTTP, in one line with its causes.
fn unreachable(url: &Url, error: &reqwest::Error) -> Failure {
    let mut sentence = format!("no answer from {}", url.origin().ascii_serialization());
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        sentence = format!("{sentence}: {source}");
        cause = source.source();
    }
    failure(sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_in_the_address_is_taken_out_of_it() {
        let server: ServerUrl = "http://anna:p%40ss%20word@localhost:5984/".parse().unwrap();
        assert_eq!(server.user, Some(("anna".into(), "p@ss word".into())));
        assert_eq!(server.url.as_str(), "http://localhost:5984/");
        assert!(!format!("{server:?}").contains("p@ss"));
        assert_eq!("http://localhost:5984".parse::<ServerUrl>().unwrap().user, None);
        for bad in ["localhost:5984", "https://localhost", "", "http://"] {
            assert!(bad.parse::<ServerUrl>().is_err(), "{bad}");
        }
    }
}
