//! A parsed request.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use hyper::header::{HOST, HeaderMap, HeaderValue, IF_MATCH};
use hyper::{Method, StatusCode};
use model::{JsonText, RevId};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::authn::principal::Principal;
use crate::http::authz::writer::on_behalf;
use crate::http::error::{ApiError, Result};
use crate::http::journal::{self, Actor};
use crate::http::operation::Param;
use crate::http::wire::body::RequestBody;
use crate::http::wire::headers::text;
use crate::http::wire::params::{self, Params};

/// The parameter and the header that [`Request::named_rev`] reads.
pub(crate) const REV: &[Param] = &[Param::text("rev", "The revision of the document.")];
pub(crate) const IF_MATCH_HEADER: Param = Param::text("If-Match", "As `rev`.");

/// A parsed request. `HEAD` appears as `GET`: `serve` leaves out the body of the response.
pub(crate) struct Request {
    pub(crate) app: Arc<App>,
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) params: Params,
    pub(crate) principal: Cow<'static, Principal>,
    /// Whether the client is an administrator of the database in the path.
    pub(crate) is_database_admin: bool,
    /// The address of the client.
    pub(crate) address: IpAddr,
    /// The address of the connection's other end: the client, or a proxy.
    pub(crate) peer: IpAddr,
    /// The id of the request.
    pub(crate) id: HeaderValue,
    /// The name in a refused login; empty if it has no name.
    pub(crate) refused_login: Option<String>,
    pub(crate) body: RequestBody,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers, parameters and body may hold passwords.
        f.debug_struct("Request").field("method", &self.method).finish_non_exhaustive()
    }
}

impl Request {
    /// Writes what the client did to the audit log.
    pub(crate) fn audit(&self, event: &str, members: &[(&str, &str)]) {
        self.app.audit(&self.actor(), event, members);
    }

    /// Writes a refusal of the client to the audit log.
    pub(crate) fn audit_refusal(&self, event: &str, members: &[(&str, &str)], status: StatusCode) {
        let file = self.app.options.audit_log.as_ref();
        journal::audit(file, &self.actor(), event, members, Some(status));
    }

    /// The client, for the audit log.
    pub(crate) fn actor(&self) -> Actor<'_> {
        Actor { user: self.principal.name.as_deref(), address: Some(self.address), request: self.id.to_str().ok() }
    }

    /// Whether the client uses TLS, with this server or a proxy before it.
    pub(crate) fn is_secure(&self) -> bool {
        self.app.auth.is_secure(&self.headers)
    }

    /// Runs `work` on a database. If the handle turns out to be stale, it is renewed and `work` runs again. Work that
    /// fails with a stale handle must have changed nothing.
    pub(crate) fn with_database<T, F>(
        &self,
        name: &str,
        work: impl Fn(Documents) -> F,
    ) -> impl Future<Output = Result<T>>
    where
        F: Future<Output = Result<T>>,
    {
        self.app.databases.with(name, move |database| work(self.writable(database)))
    }

    /// The same database, with this client's rights to edit and the quota. Reads need not pay for that.
    pub(crate) fn writable(&self, database: Documents) -> Documents {
        if self.method == Method::GET {
            return database;
        }
        let quota = self.app.auth.settings().quotas.of(database.name());
        on_behalf(&self.app, &self.principal, Some(self.address), database).limited_to(quota)
    }

    /// The database, looked up just now, for work that would not notice a stale handle.
    pub(crate) async fn fresh_database(&self, name: &str) -> Result<Documents> {
        Ok(self.writable(self.app.databases.stores.database(name).await?))
    }

    /// The body as a JSON object. The client must declare it as JSON.
    pub(crate) async fn json_object(&mut self) -> Result<JsonText> {
        self.body.json_object(&self.headers).await
    }

    /// The body as JSON.
    pub(crate) async fn json(&mut self) -> Result<JsonText> {
        self.body.json(&self.headers).await
    }

    /// A header as text.
    pub(crate) fn header(&self, name: impl hyper::header::AsHeaderName) -> Option<&str> {
        std::str::from_utf8(self.headers.get(name)?.as_bytes()).ok()
    }

    /// The revision that an edit names in its query (`rev`), in `If-Match`, or equally in both.
    pub(crate) fn named_rev(&self) -> Result<Option<RevId>> {
        let explicit = self.params.rev("rev")?;
        let matched = match self.headers.get(IF_MATCH) {
            None => None,
            Some(value) => {
                let value = text(value);
                let value = value.trim();
                Some(params::parse_rev(value.strip_prefix("W/").unwrap_or(value).trim_matches('"'))?)
            }
        };
        match (explicit, matched) {
            (Some(explicit), Some(matched)) if explicit != matched => {
                Err(ApiError::bad_request("Document rev and etag have different values"))
            }
            (explicit, matched) => Ok(explicit.or(matched)),
        }
    }

    /// The error for a revision in the query or in `If-Match` that differs from the one in the document.
    pub(crate) fn differs_from_body(&self) -> ApiError {
        ApiError::bad_request(match self.params.get("rev") {
            Some(_) => "Document rev from request body and query string have different values",
            None => "Document rev and etag have different values",
        })
    }

    /// The URL of a path on this server, with the host that the client uses.
    pub(crate) fn absolute(&self, segments: &[&str]) -> String {
        let scheme = if self.is_secure() { "https://" } else { "http://" };
        let forwarded = &self.app.auth.settings().forwarded;
        let host = forwarded.host(&self.headers).or_else(|| self.header(HOST)).unwrap_or("localhost");
        let mut url = String::with_capacity(128);
        url.push_str(scheme);
        url.push_str(host);
        for segment in segments {
            url.push('/');
            url.extend(params::encode(segment));
        }
        url
    }
}
