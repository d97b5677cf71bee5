//! A database on a server that speaks CouchDB's protocol: the one HTTP client.

mod address;
mod answers;
mod bulk_get;
mod clients;
mod documents;
mod inline;
mod peer;
mod related;
mod sent;
mod trust;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use model::{JsonRef, JsonText};
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Body, Client, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use address::{Address, AddressError, Given};
pub use clients::{Clients, Connecting};

pub use reqwest::{Method, Url};
pub use trust::{Trust, TrustError};

use crate::error::{Error, ErrorKind, Result};
use crate::pace::Pace;

/// Number of documents requested, and sent, in one request: first and maximum.
const READ_AT_ONCE: (usize, usize) = (200, 1_000);
const SENT_AT_ONCE: (usize, usize) = (200, 2_000);
/// A request that takes longer was too large. Servers and proxies give up after a minute.
const SLOW: Duration = Duration::from_secs(5);

/// A database on a server.
#[derive(Clone)]
pub struct Http {
    client: Client,
    address: Address,
    /// Maximum time without a byte from the server.
    silence: Duration,
    /// One for each request that may be under way.
    turns: Arc<Semaphore>,
    reading: Arc<Pace>,
    writing: Arc<Pace>,
    /// Whether the server has said that it does not know `_bulk_get`.
    has_no_bulk_get: Arc<AtomicBool>,
    /// Whether the database has described itself as one of pouchdb-server.
    is_pouchdb: Arc<AtomicBool>,
}

impl Http {
    /// The database at this address. Sends nothing yet. Behind `https://` the server is believed by the system's roots.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if the system provides no HTTP client, or no roots.
    pub fn new(address: Address) -> Result<Self> {
        Self::trusting(address, &Trust::default())
    }

    /// The same, with own roots.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn trusting(address: Address, trust: &Trust) -> Result<Self> {
        Clients::new(trust.clone()).database(address)
    }

    fn through(client: Client, address: Address, silence: Duration, connections: usize) -> Self {
        let turns = Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS)));
        let [reading, writing] =
            [READ_AT_ONCE, SENT_AT_ONCE].map(|(first, most)| Arc::new(Pace::new(first, most, SLOW)));
        let (has_no_bulk_get, is_pouchdb) = Default::default();
        Http { client, address, silence, turns, reading, writing, has_no_bulk_get, is_pouchdb }
    }

    /// Another database of the same server.
    #[must_use]
    pub fn beside(&self, name: &str) -> Self {
        Http { address: self.address.beside(name), ..self.clone() }
    }

    /// Its address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Creates the database, with CouchDB's parameters (`q`, `n`). Returns `false` if it exists.
    ///
    /// # Errors
    /// The server's errors.
    pub async fn create(&self, parameters: &[(&str, String)]) -> Result<bool> {
        const EXISTS: u16 = 412;
        let answer = self.send(Method::PUT, &[], parameters, None).await?;
        match answer.status {
            EXISTS => Ok(false),
            _ => answer.into_json().map(|_| true),
        }
    }

    /// Sends a request for a path of the database, and reads the response.
    ///
    /// # Errors
    /// The server's errors. Any unsuccessful response is one.
    pub async fn ask(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<Vec<u8>>,
    ) -> Result<JsonText> {
        self.send(method, path, query, body).await?.into_json()
    }

    /// The same, for any response.
    async fn send(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<Vec<u8>>,
    ) -> Result<Answer> {
        self.send_for_up_to(None, method, path, query, body).await
    }

    /// The same. A response of more than `longest` bytes is an error, [`ErrorKind::TooLarge`], and is not read further.
    async fn send_for_up_to(
        &self,
        longest: Option<usize>,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<Vec<u8>>,
    ) -> Result<Answer> {
        let url = self.url(path, query);
        let mut request = self.request(method, &url);
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        self.answer(request, longest).await
    }

    /// Sends a read, and requests JSON: the answer could have several parts otherwise.
    async fn send_for_json(&self, path: &[&str], query: &[(&str, String)]) -> Result<Answer> {
        let request = self.request(Method::GET, &self.url(path, query)).header(ACCEPT, "application/json");
        self.answer(request, None).await
    }

    /// Sends a body as a stream of known length.
    async fn send_stream(
        &self,
        method: Method,
        url: Url,
        content_type: String,
        length: u64,
        body: Body,
    ) -> Result<Answer> {
        let request = self.request(method, &url).header(CONTENT_TYPE, content_type);
        let request = request.header(reqwest::header::CONTENT_LENGTH, length).body(body);
        self.answer(request, None).await
    }

    /// Sends a request when there is a turn for it, and reads the response.
    async fn answer(&self, request: reqwest::RequestBuilder, longest: Option<usize>) -> Result<Answer> {
        let _turn = self.turn().await;
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        self.read(response, longest).await
    }

    /// A turn for one request, up to the end of its response.
    async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // Nobody closes it.
        self.turns.clone().acquire_owned().await.ok()
    }

    fn url(&self, path: &[&str], query: &[(&str, String)]) -> Url {
        let mut url = self.address.url().clone();
        address::append(&mut url, path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    fn request(&self, method: Method, url: &Url) -> reqwest::RequestBuilder {
        let mut request = self.client.request(method, url.clone());
        if let Some((user, password)) = self.address.user() {
            request = request.basic_auth(user, Some(password));
        }
        for (name, value) in self.address.headers() {
            request = request.header(name, value);
        }
        request
    }

    async fn read(&self, mut response: Response, longest: Option<usize>) -> Result<Answer> {
        let (status, path) = (response.status().as_u16(), response.url().path().to_owned());
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|error| self.unreachable(&error))? {
            body.extend_from_slice(&piece);
            if longest.is_some_and(|longest| body.len() > longest) {
                let sentence = format!("the server's answer to {path} is longer than {} bytes", longest.unwrap_or(0));
                return Err(Error::new(ErrorKind::TooLarge, sentence));
            }
        }
        Ok(Answer { status, path, body })
    }

    /// A failure below HTTP, in one line with its causes. It does not name the URL, which may have credentials.
    fn unreachable(&self, error: &reqwest::Error) -> Error {
        let server = self.address.url().origin().ascii_serialization();
        let mut sentence = format!("no answer from {server}");
        let mut cause = std::error::Error::source(error);
        while let Some(source) = cause {
            if trust::is_disbelief(source) {
                // It stays so until somebody acts, so it is not tried again.
                return Error::refused(format!("the certificate of {server} is not believed: {source}"));
            }
            sentence = format!("{sentence}: {source}");
            cause = source.source();
        }
        Error::new(ErrorKind::Unavailable, sentence)
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Http").field(&self.address.url().as_str()).finish()
    }
}

/// A complete response.
struct Answer {
    status: u16,
    path: String,
    body: Vec<u8>,
}

impl Answer {
    /// The body of a successful response; otherwise the server's error.
    fn into_json(self) -> Result<JsonText> {
        let path = &self.path;
        match JsonText::parse(&self.body) {
            Ok(json) if is_success(self.status) => Ok(json),
            Ok(json) => {
                let problem = problem(json.root()).unwrap_or_default();
                Err(refusal(self.status, format!("the server answered {} to {path}: {problem}", self.status)))
            }
            Err(_) if self.status >= 500 => {
                Err(refusal(self.status, format!("the server answered {} to {path}", self.status)))
            }
            Err(error) => Err(Error::nonsense(format!("the server's answer ({}) to {path} is {error}", self.status))
                .with_status(self.status)),
        }
    }
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// The failure that a status means.
fn refusal(status: u16, sentence: String) -> Error {
    let kind = match status {
        404 => ErrorKind::NoDatabase,
        408 | 425 | 429 | 500 | 502..=599 => ErrorKind::Unavailable,
        409 => ErrorKind::Conflict,
        413 => ErrorKind::TooLarge,
        _ => ErrorKind::Refused,
    };
    Error::new(kind, sentence).with_status(status)
}

/// `error: reason` of a response or a row, if it has them.
pub fn problem(row: JsonRef<'_>) -> Option<String> {
    let error = row.get("error")?.as_str()?;
    let reason = row.get("reason").and_then(JsonRef::as_str).unwrap_or_default();
    Some(format!("{error}: {reason}"))
}
