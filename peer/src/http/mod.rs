//! A database on a server that speaks CouchDB's protocol: the one HTTP client.

mod address;
mod answer;
mod answers;
mod bulk_get;
mod ceilings;
mod clients;
mod documents;
mod exchange;
mod in_json;
mod inline;
mod peer;
mod related;
mod sent;
mod trust;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use model::JsonText;
use reqwest::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use reqwest::{Body, Request};

pub use address::{Address, AddressError, Given, is_loopback};
pub use answer::{Held, problem};
pub use clients::{Clients, Connecting};

pub use reqwest::{Method, Url};
pub use trust::{Trust, TrustError};

use crate::error::{Error, Result};
use crate::pace::Pace;
use answer::Answer;
use ceilings::{COMMAND, SMALL};
use exchange::Line;

/// Number of documents requested, and sent, in one request: first and maximum.
const READ_AT_ONCE: (usize, usize) = (200, 1_000);
const SENT_AT_ONCE: (usize, usize) = (200, 2_000);
/// A request that takes longer was too large. Servers and proxies give up after a minute.
const SLOW: Duration = Duration::from_secs(5);

/// A database on a server.
#[derive(Clone)]
pub struct Http {
    line: Line,
    address: Address,
    reading: Arc<Pace>,
    writing: Arc<Pace>,
    /// Whether the server has said that it does not know `_bulk_get`.
    has_no_bulk_get: Arc<AtomicBool>,
    /// Whether the database has described itself as one of pouchdb-server.
    is_pouchdb: Arc<AtomicBool>,
}

impl Http {
    fn through(line: Line, address: Address) -> Self {
        let [reading, writing] =
            [READ_AT_ONCE, SENT_AT_ONCE].map(|(first, most)| Arc::new(Pace::new(first, most, SLOW)));
        let (has_no_bulk_get, is_pouchdb) = Default::default();
        Http { line, address, reading, writing, has_no_bulk_get, is_pouchdb }
    }

    /// Another database of the same server.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`](crate::ErrorKind::Refused) if a URL cannot have the name.
    pub fn sibling(&self, name: &str) -> Result<Self> {
        Ok(Http { address: self.address.sibling(name).map_err(no_name)?, ..self.clone() })
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
        let answer = self.send(SMALL, Method::PUT, &[], parameters, None).await?;
        match answer.status {
            EXISTS => Ok(false),
            _ => answer.into_json().map(|_| true),
        }
    }

    /// Sends a request for a path of the database, and reads the response, of four mebibytes at most.
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
        self.send(COMMAND, method, path, query, body).await?.into_json()
    }

    /// Reads a path whose response is a text, of four mebibytes at most.
    ///
    /// # Errors
    /// The server's errors.
    pub async fn text(&self, path: &[&str]) -> Result<String> {
        self.send(COMMAND, Method::GET, path, &[], None).await?.into_text()
    }

    /// The same, for any response of up to `ceiling` bytes.
    async fn send(
        &self,
        ceiling: usize,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<Vec<u8>>,
    ) -> Result<Answer> {
        let request = self.request(method, path, query, body)?;
        self.line.send(&self.address, request).await?.whole(ceiling).await
    }

    /// Sends a read, and requests JSON: the answer could have several parts otherwise.
    async fn send_for_json(&self, ceiling: usize, path: &[&str], query: &[(&str, String)]) -> Result<Answer> {
        let mut request = self.request(Method::GET, path, query, None)?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        self.line.send(&self.address, request).await?.whole(ceiling).await
    }

    /// Sends a body as a stream of known length.
    async fn send_stream(
        &self,
        ceiling: usize,
        method: Method,
        url: Url,
        content_type: &str,
        length: u64,
        body: Body,
    ) -> Result<Answer> {
        let mut request = Request::new(method, url);
        for (name, value) in [(CONTENT_TYPE, content_type), (CONTENT_LENGTH, &length.to_string())] {
            request.headers_mut().insert(name, header(value)?);
        }
        *request.body_mut() = Some(body);
        self.line.send(&self.address, request).await?.whole(ceiling).await
    }

    fn url(&self, path: &[&str], query: &[(&str, String)]) -> Result<Url> {
        let mut url = address::below(self.address.url(), path).map_err(no_name)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    fn request(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<Vec<u8>>,
    ) -> Result<Request> {
        let mut request = Request::new(method, self.url(path, query)?);
        if let Some(body) = body {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            *request.body_mut() = Some(body.into());
        }
        Ok(request)
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Http").field(&self.address.url().as_str()).finish()
    }
}

fn no_name(error: AddressError) -> Error {
    Error::refused(error.to_string())
}

fn header(value: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(value).map_err(|_| Error::refused("a header cannot be sent"))
}
