//! Responses to refused requests: CouchDB's status, `error` and `reason`.
//!
//! The pairs are those of `error_info` in CouchDB's `chttpd.erl`. Messages of the store or the operating system do
//! not reach clients through here, except where they are the answer (507, 503).

use std::borrow::Cow;

use hyper::header::{ALLOW, CONNECTION, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, StatusCode};
use model::{ErrorKind, JsonText, JsonWriter, NotFound};

/// The result of handling a request.
pub(crate) type Result<T, E = ApiError> = std::result::Result<T, E>;

/// A refusal. It is one pointer in size, since most results contain one.
#[derive(Debug)]
pub(crate) struct ApiError(Box<Parts>);

#[derive(Debug)]
struct Parts {
    status: StatusCode,
    error: Cow<'static, str>,
    reason: Cow<'static, str>,
    /// The reason, if it is not text: a function's.
    json: Option<JsonText>,
    headers: HeaderMap,
    no_database: bool,
    moved: bool,
    /// Whether the store did not answer in time.
    timed_out: bool,
    /// Whether a handle of the database reported it, which may be stale.
    by_handle: bool,
}

impl ApiError {
    pub(crate) fn new(
        status: StatusCode,
        error: impl Into<Cow<'static, str>>,
        reason: impl Into<Cow<'static, str>>,
    ) -> Self {
        let (error, reason) = (error.into(), reason.into());
        let headers = HeaderMap::new();
        ApiError(Box::new(Parts {
            status,
            error,
            reason,
            json: None,
            headers,
            no_database: false,
            moved: false,
            timed_out: false,
            by_handle: false,
        }))
    }

    pub(crate) fn bad_request(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    /// An invalid value of a parameter.
    pub(crate) fn query_parse(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "query_parse_error", reason)
    }

    pub(crate) fn invalid_json() -> Self {
        Self::bad_request("invalid UTF-8 JSON")
    }

    pub(crate) fn not_found(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", reason)
    }

    pub(crate) fn unauthorized(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", reason)
    }

    pub(crate) fn forbidden(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    /// Whether it concerns the sender of the request: 401 or 403.
    pub(crate) fn refuses_client(&self) -> bool {
        matches!(self.0.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
    }

    /// `allowed`: the methods of the resource, as CouchDB lists them (`GET,HEAD`).
    pub(crate) fn method_not_allowed(allowed: &str) -> Self {
        let reason = format!("Only {allowed} allowed");
        let refusal = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", reason);
        match HeaderValue::try_from(allowed) {
            Ok(allowed) => refusal.with_header(ALLOW, allowed),
            Err(_) => refusal,
        }
    }

    pub(crate) fn precondition_failed(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, "precondition_failed", reason)
    }

    /// For something that may be available again in a moment.
    pub(crate) fn unavailable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service unavailable", reason)
    }

    /// For a write to a standby. 503, since 403 is final for clients: PouchDB skips a document that is forbidden, and
    /// 503 is tried again.
    pub(crate) fn standby() -> Self {
        Self::unavailable(
            "This server is a standby: it follows another server, answers reads, and takes no writes until it is promoted.",
        )
    }

    /// For indexes of text, which CouchDB has in programs of their own. Clients of CouchDB expect this where it has
    /// none.
    pub(crate) fn no_search() -> Self {
        Self::unavailable("Search is not available")
    }

    pub(crate) fn bad_content_type(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_content_type", reason)
    }

    /// A body over the limit. The connection ends, so that a client which reads this early stops sending.
    pub(crate) fn too_large() -> Self {
        let reason = "the request entity is too large";
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason)
            .with_header(CONNECTION, HeaderValue::from_static("close"))
    }

    /// A list in a body with more than `most` entries, which the server would have to hold at once.
    pub(crate) fn too_many(which: &str, most: usize, what: &str) -> Self {
        let reason = format!("{which} {most} {what} at most");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason)
    }

    /// The same, for requests that have their own error in CouchDB. The reason is only the number.
    pub(crate) fn bulk_count(error: &'static str, most: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, error, most.to_string())
    }

    /// A feature of CouchDB that this server lacks, by name.
    pub(crate) fn not_implemented(what: &str) -> Self {
        let reason = format!("{what} are not implemented by couch-layer");
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", reason)
    }

    /// A view without a design document. CouchDB has not supported these since 2.0.
    pub(crate) fn no_temporary_views() -> Self {
        Self::new(StatusCode::GONE, "gone", "Temporary views are not supported in CouchDB")
    }

    pub(crate) fn internal() -> Self {
        let reason = "an internal error; the server's log has the details";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", reason)
    }

    #[must_use]
    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.append(name, value);
        self
    }

    /// Whether the database does not exist.
    pub(crate) fn is_no_database(&self) -> bool {
        self.0.no_database
    }

    /// Whether the store did not answer in time.
    pub(crate) fn is_timeout(&self) -> bool {
        self.0.timed_out
    }

    /// Whether the database has moved to another store.
    pub(crate) fn is_moved(&self) -> bool {
        self.0.moved
    }

    /// Whether a stale handle may be the cause.
    pub(crate) fn is_stale_handle(&self) -> bool {
        self.0.by_handle && (self.is_no_database() || self.is_moved())
    }

    /// The same error, found by looking up the database just now.
    pub(crate) fn looked_up(mut self) -> Self {
        self.0.by_handle = false;
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.0.status
    }

    pub(crate) fn error(&self) -> &str {
        &self.0.error
    }

    pub(crate) fn reason(&self) -> &str {
        &self.0.reason
    }

    /// Writes the members `error` and `reason` into the open object.
    pub(crate) fn write_members(&self, json: &mut JsonWriter<'_>) {
        json.name("error").str(self.error()).name("reason");
        match &self.0.json {
            Some(reason) => json.text(reason),
            None => json.str(self.reason()),
        };
    }

    /// The additional headers of the response.
    pub(crate) fn into_headers(self) -> HeaderMap {
        self.0.headers
    }
}

impl From<budget::Full> for ApiError {
    fn from(_: budget::Full) -> Self {
        ApiError::unavailable("The server has no memory for this request at the moment; try again.")
            .with_header(RETRY_AFTER, HeaderValue::from_static("5"))
    }
}

impl From<jobs::Error> for ApiError {
    fn from(error: jobs::Error) -> Self {
        model::Error::from(error).into()
    }
}

impl From<model::Error> for ApiError {
    fn from(error: model::Error) -> Self {
        if error.is_read_only() {
            return ApiError::standby();
        }
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let is_moving = matches!(error.kind(), ErrorKind::Moving | ErrorKind::Moved(_) | ErrorKind::Stopped);
        // The refusal of an edit: by a function, or by a rule that cannot be applied at the moment.
        let is_refusal = matches!(error.kind(), ErrorKind::ValidationFailed { .. });
        if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED && !is_moving && !is_refusal {
            tracing::error!(%error, "the store failed");
        }
        let reason = match error.kind() {
            // Its context has paths and messages of this machine, which belong only in the log.
            ErrorKind::Store(_) if error.status() == 507 => "The server has no room for more data.".to_owned(),
            ErrorKind::Store(store) => model::Error::from(kv_api::Error::new(store.code())).reason().into_owned(),
            // Usually a path on this machine.
            ErrorKind::Moved(_) => "The database has moved to another store.".to_owned(),
            _ => error.reason().into_owned(),
        };
        let mut answer = ApiError::new(status, error.error().to_owned(), reason);
        answer.0.by_handle = true;
        if let ErrorKind::RefusedWith { reason, .. } = error.kind() {
            answer.0.json = Some(reason.clone());
        }
        answer.0.no_database = *error.kind() == ErrorKind::NotFound(NotFound::Database);
        answer.0.moved = matches!(error.kind(), ErrorKind::Moved(_));
        let store = if let ErrorKind::Store(store) = error.kind() { Some(store.code()) } else { None };
        answer.0.timed_out = store == Some(kv_api::error::TRANSACTION_TIMED_OUT);
        if is_moving || (status == StatusCode::SERVICE_UNAVAILABLE && (is_refusal || store.is_some())) {
            answer.0.headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_store_says_of_this_machine_stays_here() {
        let full = kv_api::Error::new(kv_api::error::COMMIT_UNKNOWN_RESULT).with_context("cannot write to /srv/data");
        let answer = ApiError::from(model::Error::from(full));
        assert_eq!(answer.0.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(answer.0.reason.contains("outcome is not known") && answer.0.reason.contains("1021"));
        assert!(!answer.0.reason.contains("/srv"), "{}", answer.0.reason);
        let full = kv_api::Error::new(kv_api::error::STORAGE_QUOTA_EXCEEDED).with_context("cannot write to /srv/data");
        let answer = ApiError::from(model::Error::from(full));
        assert_eq!((answer.0.status, &*answer.0.error), (StatusCode::INSUFFICIENT_STORAGE, "insufficient_storage"));
        assert_eq!(answer.0.reason, "The server has no room for more data.");
    }
}
