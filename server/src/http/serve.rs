//! Serves one request, from its head to its answer.
//!
//! ```text
//!   serve ─── request id, log line; catches panics
//!      │
//!   answer ── preflight, host, authentication, authorisation
//!      │
//!   routes ── path and method to a handler
//! ```

use std::borrow::Cow;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use budget::{Held, Owner, Use};
use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::header::{
    AUTHORIZATION, CONNECTION, HeaderMap, HeaderName, HeaderValue, ORIGIN, SERVER, SET_COOKIE, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode, Uri};
use kv_api::SPANS;
use parking_lot::Mutex;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::http::app::App;
use crate::http::app::statistics::METHODS;
use crate::http::authn::auth::claimed_name;
use crate::http::authn::lockout::network;
use crate::http::authn::principal::{ANONYMOUS, Principal, Proof};
use crate::http::authz::admission::{refuse_borrowed, refuse_pages, security};
use crate::http::authz::rights::{not_database_admin, not_member, not_server_admin, standing};
use crate::http::config::sandbox::Foreign;
use crate::http::config::settings::{Required, Settings};
use crate::http::error::{ApiError, Result};
use crate::http::handlers::console;
use crate::http::journal::{Access, Counted, cut};
use crate::http::request::Request;
use crate::http::routes::{self, Resource, Who};
use crate::http::wire::body::RequestBody;
use crate::http::wire::headers::text;
use crate::http::wire::params::{self, Params};
use crate::http::wire::response::{self, Body, Response};

/// The role of clients that may read metrics.
const METRICS: &str = "_metrics";

/// Clients look for CouchDB's name and version here, LiveSync's check for example.
const SERVER_NAME: HeaderValue =
    HeaderValue::from_static(concat!("CouchDB/3.5.2 (couch-layer/", env!("CARGO_PKG_VERSION"), ")"));

/// The header with the milliseconds for which the server waited for the body of a request.
static BODY_TIME: HeaderName = HeaderName::from_static("x-couchdb-body-time");

/// The addresses of a client and of its proxies, each added by the next proxy.
static FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The header with the id of a request, which is also in the log.
static REQUEST_ID: HeaderName = HeaderName::from_static("x-couch-request-id");

/// Number of bytes that a connection reserves after a request or an answer that was not small. It keeps its buffers
/// until it ends.
const USED_CONNECTION_BYTES: usize = 256 << 10;

/// Serves a request. It always answers. `seat` is the connection's reservation.
pub(crate) async fn serve(
    app: Arc<App>,
    request: hyper::Request<Incoming>,
    peer: SocketAddr,
    seat: &Mutex<Held>,
) -> Result<hyper::Response<Counted>, Infallible> {
    let started = Instant::now();
    let (Parts { method, uri, headers, .. }, incoming) = request.into_parts();
    let id = request_id(&app, &headers);
    let origin = headers.get(ORIGIN).cloned();

    let settings = app.auth.settings();
    let counted = app.clone();
    let named = settings.forwarded.address(&headers);
    let address = named.unwrap_or_else(|| client_address(peer.ip(), &headers, &app.options.proxies));
    let body_timeout = app.options.body_timeout;
    let part = seat.lock().part().clone();
    let request = Request {
        app,
        method: effective_method(method.clone(), &headers),
        headers,
        params: Params::default(),
        principal: Cow::Borrowed(&ANONYMOUS),
        is_database_admin: false,
        address,
        peer: peer.ip(),
        id: id.clone(),
        refused_login: None,
        body: RequestBody::new(incoming, settings.max_request_size, body_timeout, &part),
    };
    let is_small_body = request.body.is_small();
    let mut seen = Seen::default();
    let span = request_span(&request);
    let answer = answer(request, &settings, &method, &uri, &mut seen).instrument(span.clone());
    let answer = AssertUnwindSafe(answer).catch_unwind().await;
    let mut response = answer.unwrap_or_else(|_| {
        tracing::error!(%method, path = uri.path(), "a request ended in a panic");
        let error = ApiError::internal().with_header(CONNECTION, HeaderValue::from_static("close"));
        response::refusal(error)
    });
    if method == Method::HEAD && matches!(response.body(), Body::Streamed(..)) {
        // Dropping the stream stops its writer.
        *response.body_mut() = Body::Untold;
    }
    if !is_small_body || !response.body().is_small() {
        let mut seat = seat.lock();
        if let Some(more) = seat.part().try_take(USED_CONNECTION_BYTES.saturating_sub(seat.bytes()), Use::Quick) {
            seat.add(more);
        } else {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
    let took = started.elapsed();
    counted.statistics.answered(&method, response.status(), seen.route, took);
    seen.record(&span, &id, &method, response.status(), started, took);
    if counted.options.slow_request.is_some_and(|slow| took >= slow) {
        seen.log_slow(&id, &method, &uri, response.status(), started, took);
    }
    let foreign = response.extensions().get::<Foreign>().copied();
    let headers = response.headers_mut();
    headers.insert(SERVER, SERVER_NAME);
    headers.insert(&REQUEST_ID, id.clone());
    // Browsers then never treat an answer as a page or a script unless it says so.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(foreign) = foreign {
        settings.policies.apply(foreign, headers);
    }
    settings.cors.apply(origin.as_ref(), headers);
    // The time is read only if the line is logged.
    let took_ms = || started.elapsed().as_secs_f64() * 1000.0;
    tracing::debug!(peer = %address, "{method} {} {} {:.1} ms", uri.path(), response.status().as_u16(), took_ms());
    let access = counted.options.access_log.as_ref().map(|file| {
        Box::new(Access {
            file: file.clone(),
            user: seen.user,
            address,
            id: text(&id).into_owned(),
            method,
            path: uri.path().to_owned(),
            status: response.status().as_u16(),
            started,
        })
    });
    let sent = counted.statistics.sent.clone();
    Ok(response.map(|body| Counted::new(body, sent, access)))
}

/// The span of a request, until its answer begins. Its commits have spans below it.
fn request_span(request: &Request) -> Span {
    let span = tracing::trace_span!(
        target: SPANS,
        "request",
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = Empty,
        http.route = Empty,
        http.response.status_code = Empty,
        couch.request_id = Empty,
        couch.admission_ms = Empty,
        couch.body_ms = Empty,
    );
    #[cfg(feature = "otlp")]
    if !span.is_disabled() {
        crate::traces::continue_trace(&span, &request.headers);
    }
    let _ = request;
    span
}

/// The address of the client. Behind a trusted proxy it is the last address in `X-Forwarded-For` that is not a trusted
/// proxy's. A client may have forged the addresses before it.
fn client_address(peer: IpAddr, headers: &HeaderMap, proxies: &[IpAddr]) -> IpAddr {
    let is_proxy = |address: &IpAddr| proxies.contains(&address.to_canonical());
    if !is_proxy(&peer) {
        return peer;
    }
    let lines = headers.get_all(&FORWARDED_FOR).iter().rev().map(|line| line.to_str().unwrap_or_default());
    let forwarded = lines.flat_map(|line| line.rsplit(',')).map(|text| text.trim().parse::<IpAddr>());
    // Text that is not an address ends the search.
    let mut client = peer;
    for address in forwarded.map_while(Result::ok) {
        client = address;
        if !is_proxy(&address) {
            break;
        }
    }
    client
}

/// The client's own request id if it is safe in a header and a log, otherwise a new one.
fn request_id(app: &App, headers: &HeaderMap) -> HeaderValue {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    match headers.get(&REQUEST_ID) {
        Some(id) if !id.is_empty() && id.len() <= 36 && id.as_bytes().iter().all(is_plain) => id.clone(),
        _ => {
            HeaderValue::from_bytes(&app.request_ids.next()).unwrap_or_else(|_| HeaderValue::from_static("0000000000"))
        }
    }
}

/// What is known about a request when it is answered.
#[derive(Debug, Default)]
struct Seen {
    /// The number of its row in the table of endpoints.
    route: Option<usize>,
    /// The client's name, if there is an access log.
    user: Option<String>,
    /// When the client was admitted.
    admitted: Option<Instant>,
    /// Time that the server waited for the body.
    waited: Duration,
}

impl Seen {
    /// Time until the client was admitted, of a request that took so long.
    fn admission(&self, started: Instant, took: Duration) -> Duration {
        self.admitted.map_or(took, |admitted| admitted.duration_since(started))
    }

    /// Writes what is known about a request into its span, if somebody records it. No text of the client's: a path has
    /// names of documents.
    fn record(
        &self,
        span: &Span,
        id: &HeaderValue,
        method: &Method,
        status: StatusCode,
        started: Instant,
        took: Duration,
    ) {
        if span.is_disabled() {
            return;
        }
        // The names of all other methods are the client's.
        let method = METHODS.into_iter().find(|known| *known == method.as_str()).unwrap_or("_OTHER");
        let route = self.route.and_then(|number| routes::endpoints().nth(number)).map(|(path, _)| path);
        #[cfg(feature = "otlp")]
        crate::traces::rename(span, route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}")));
        span.record("http.request.method", method);
        span.record("http.route", route);
        span.record("http.response.status_code", i64::from(status.as_u16()));
        span.record("couch.request_id", &*text(id));
        span.record("couch.admission_ms", self.admission(started, took).as_secs_f64() * 1000.0);
        span.record("couch.body_ms", self.waited.as_secs_f64() * 1000.0);
        if status.is_server_error() {
            span.record("otel.status_code", "ERROR");
        }
    }

    /// Logs a request that took long, and where its time went.
    fn log_slow(
        &self,
        id: &HeaderValue,
        method: &Method,
        uri: &Uri,
        status: StatusCode,
        started: Instant,
        took: Duration,
    ) {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let admission = self.admission(started, took);
        tracing::warn!(
            request = &*text(id),
            %method,
            path = cut(uri.path()),
            status = status.as_u16(),
            ms = ms(took),
            admission_ms = ms(admission),
            body_ms = ms(self.waited),
            work_ms = ms(took.saturating_sub(admission).saturating_sub(self.waited)),
            "a slow request"
        );
    }
}

/// `method` and `uri` are those of the client.
async fn answer(mut request: Request, settings: &Settings, method: &Method, uri: &Uri, seen: &mut Seen) -> Response {
    if let Some(preflight) = settings.cors.preflight(method, &request.headers) {
        return preflight;
    }
    let mut renewal = None;
    let outcome = admit_and_route(&mut request, settings, uri, &mut renewal, seen).await;
    if outcome.as_ref().is_err_and(ApiError::is_timeout) {
        request.app.outage.suspect(&request.app.layer);
    }
    request.body.discard(&request.headers);
    let mut response = outcome.unwrap_or_else(response::refusal);
    audit_refusal(&request, method, uri, response.status());
    if request.app.options.access_log.is_some() {
        seen.user.clone_from(&request.principal.name);
    }
    seen.waited = request.body.waited();
    let waited = seen.waited.as_millis();
    response.headers_mut().insert(&BODY_TIME, u64::try_from(waited).unwrap_or(u64::MAX).into());
    response.body_mut().hold(request.body.into_held());
    if response.status() == StatusCode::UNAUTHORIZED {
        let challenge = request.headers.get("x-couchdb-www-authenticate").or(settings.challenge.as_ref());
        if let Some(challenge) = challenge {
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge.clone());
        }
    }
    if let Some(cookie) = renewal
        && !response.headers().contains_key(SET_COOKIE)
    {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

/// Writes to the audit log that a login or a client was refused.
fn audit_refusal(request: &Request, method: &Method, uri: &Uri, status: StatusCode) {
    let login = request.refused_login.as_deref();
    if login.is_none() && !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return;
    }
    let what = [("method", method.as_str()), ("path", uri.path())];
    match login {
        Some(name) => request.audit_refusal("login_refused", &[&[("name", name)], &what[..]].concat(), status),
        None => request.audit_refusal("refused", &what, status),
    }
}

/// The method to route by: `GET` for `HEAD`, and the overriding method of a `POST` by a client that knows only `GET`
/// and `POST`.
fn effective_method(method: Method, headers: &HeaderMap) -> Method {
    let overriding = if method == Method::POST { overriding_method(headers) } else { None };
    let method = overriding.unwrap_or(method);
    if method == Method::HEAD { Method::GET } else { method }
}

fn overriding_method(headers: &HeaderMap) -> Option<Method> {
    let meant = headers.get("x-http-method-override")?.to_str().ok()?;
    match meant {
        "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "COPY" | "PATCH" => Method::from_bytes(meant.as_bytes()).ok(),
        _ => None,
    }
}

async fn admit_and_route(
    request: &mut Request,
    settings: &Settings,
    uri: &Uri,
    renewal: &mut Option<HeaderValue>,
    seen: &mut Seen,
) -> Result<Response> {
    if request.app.auth.is_open_admin() {
        refuse_from_elsewhere(request, uri)?;
    }
    let (segments, has_no_name) = params::segments(uri.path(), settings.has_plus_as_space)?;
    if request.method == Method::GET && segments.len() > 2 && segments[1].starts_with("_design/") {
        return Ok(redirect_to_design(request, uri, &segments));
    }
    if uri.path() == "/_utils" && request.method == Method::GET {
        return Ok(console::redirect());
    }
    // The figures of the process, and the console, are most wanted during an outage. So is `GET /`, unless it has a
    // login: the store would have to know the user.
    let is_of_process = match segments.first().map(AsRef::as_ref) {
        None => !request.headers.contains_key(AUTHORIZATION),
        first => matches!(first, Some("_node" | "_utils")),
    };
    if !is_of_process {
        request.app.outage.check()?;
    }
    let segments = routes::join_ids(segments);
    if let Some(first) = segments.first() {
        refuse_pages(request, first)?;
    }
    if has_no_name && request.method != Method::GET {
        return Err(if segments.len() > 2 {
            ApiError::bad_request("Attachment name is not UTF-8 encoded")
        } else {
            params::not_utf8()
        });
    }
    request.params = Params::parse(uri.query().unwrap_or(""))?;
    let is_login = request.method == Method::POST && segments.first().is_some_and(|first| first == "_session");
    if !is_login {
        let app = &request.app;
        match app.auth.without_credentials(&request.headers, request.peer) {
            Some(principal) => request.principal = Cow::Borrowed(principal),
            None => {
                // Boxed: only some requests need it, and unboxed its size would be part of every request's future.
                let (headers, address, peer) = (&request.headers, request.address, request.peer);
                let found = Box::pin(app.auth.authenticate(&app.databases, headers, address, peer)).await;
                let found = match found {
                    Err(error) if error.refuses_client() => {
                        request.refused_login = Some(claimed_name(&request.headers).unwrap_or_default());
                        return Err(error);
                    }
                    found => found?,
                };
                request.principal = Cow::Owned(found.principal);
                *renewal = found.renewal;
            }
        }
        require_user(&request.principal, settings.required, &segments)?;
    }
    refuse_borrowed(request, is_login)?;
    request.body.admit(&request.app.budget.part(owner(request))).await?;
    let resource = routes::find(&segments, &request.method)?;
    if let Some(operation) = resource.operation() {
        request.params.limit_to(operation);
    }
    seen.route = resource.number();
    request.is_database_admin = request.principal.is_server_admin() || Box::pin(authorize(request, &resource)).await?;
    if request.app.options.standby.is_some() && resource.is_write(&request.method) {
        return Err(ApiError::standby());
    }
    seen.admitted = Some(Instant::now());
    // In the last step of a relocation, writes to the database would fail, so they wait here.
    let _admitted = match resource.database() {
        Some(db) if resource.waits_for_moves() => request.app.gates.admit(db).await,
        _ => None,
    };
    resource.answer(request, has_no_name).await
}

/// Who holds the memory of a request.
fn owner(request: &Request) -> Owner {
    match &request.principal.name {
        Some(name) => Owner::User(name.as_str().into()),
        None => Owner::Address(network(request.address)),
    }
}

/// 301 from a path below `_design%2Fx` to the same path below `_design/x`, as in CouchDB.
fn redirect_to_design(request: &Request, uri: &Uri, segments: &[Cow<'_, str>]) -> Response {
    let names = segments.iter().enumerate().flat_map(|(place, name)| match (place, name.split_once('/')) {
        (1, Some((design, name))) => vec![design, name],
        _ => vec![name.as_ref()],
    });
    let mut location = request.absolute(&names.collect::<Vec<_>>());
    if let Some(query) = uri.query() {
        location.push('?');
        location.push_str(query);
    }
    let mut response = response::empty(StatusCode::MOVED_PERMANENTLY);
    response::set_location(&mut response, location);
    response
}

/// Refuses clients of a server without an administrator that do not come from its machine: requests through a proxy that
/// says so, and DNS rebinding. Without an administrator everyone is one, and a web page could become one by pointing its
/// own host name at loopback. The browser then sends that name as `Host`.
///
/// What is needed to name the first administrator is admitted: the console, and whoever shows the token.
fn refuse_from_elsewhere(request: &Request, uri: &Uri) -> Result<()> {
    let is_first_step = request.method == Method::GET
        && (matches!(uri.path(), "/" | "/_session" | "/_up" | "/_utils") || uri.path().starts_with("/_utils/"));
    let (auth, headers) = (&request.app.auth, &request.headers);
    if is_first_step || auth.is_of_this_machine(headers, request.peer) || auth.shows_setup_token(headers) {
        return Ok(());
    }
    Err(ApiError::forbidden(
        "without an administrator this server answers to localhost only; set COUCHDB_USER and COUCHDB_PASSWORD, or \
         name an administrator at /_utils/ with the token that the server printed when it started",
    ))
}

/// Refuses anonymous requests if the configuration requires a user (`chttpd/require_valid_user`).
fn require_user(principal: &Principal, required: Required, segments: &[Cow<'_, str>]) -> Result<()> {
    let is_free = match required {
        Required::Nobody => true,
        Required::Everybody => false,
        Required::ExceptForUp => matches!(segments, [up] if up == "_up"),
    };
    if is_free || principal.proof != Proof::Nothing {
        return Ok(());
    }
    Err(ApiError::unauthorized("Authentication required."))
}

/// Admits or refuses a client that is not a server administrator. Returns whether it is an administrator of the
/// database in the path.
async fn authorize(request: &Request, resource: &Resource<'_>) -> Result<bool> {
    let who = resource.who();
    match (who, resource.database()) {
        (Who::Public, _) => Ok(false),
        (Who::Metrics, _) if request.principal.roles.iter().any(|role| role == METRICS) => Ok(false),
        (Who::Metrics, _) => Err(ApiError::unauthorized("You are not a server admin or read-only metrics user")),
        (Who::Reader | Who::Writer | Who::DatabaseAdmin, Some(db)) => {
            let security = security(request, db).await?;
            let is_admin = standing(db, &security, &request.principal)?;
            match who {
                Who::DatabaseAdmin if is_admin => Ok(true),
                Who::DatabaseAdmin if resource.is_upkeep() => {
                    Err(ApiError::unauthorized("You are not a server or db admin."))
                }
                Who::DatabaseAdmin => Err(not_database_admin(&request.principal)),
                _ => Ok(is_admin),
            }
        }
        (_, None) if resource.lists_databases() && !request.app.auth.settings().admin_only_all_dbs => Ok(false),
        (_, Some(_)) if resource.is_closed_to_members() => Err(not_member(&request.principal)),
        _ => Err(not_server_admin()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_that_is_named_tells_the_address_of_its_client() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let proxies = [address("10.0.0.1"), address("10.0.0.2")];
        let seen = |peer: &str, lines: &[&str]| {
            let headers = lines.iter().map(|line| (FORWARDED_FOR.clone(), HeaderValue::from_str(line).unwrap()));
            let mut map = HeaderMap::new();
            headers.for_each(|(name, value)| {
                map.append(name, value);
            });
            client_address(address(peer), &map, &proxies).to_string()
        };
        assert_eq!(seen("10.0.0.9", &["1.2.3.4"]), "10.0.0.9", "nobody else is trusted");
        assert_eq!(seen("10.0.0.1", &["1.2.3.4"]), "1.2.3.4");
        assert_eq!(seen("::ffff:10.0.0.1", &["1.2.3.4"]), "1.2.3.4");
        assert_eq!(seen("10.0.0.1", &["6.6.6.6, 1.2.3.4"]), "1.2.3.4", "a client may invent others before it");
        assert_eq!(seen("10.0.0.1", &["6.6.6.6", "1.2.3.4, 10.0.0.2"]), "1.2.3.4");
        assert_eq!(seen("10.0.0.1", &["2001:db8::1"]), "2001:db8::1");
        for none in [&[][..], &["unknown"], &["1.2.3.4, unknown"]] {
            assert_eq!(seen("10.0.0.1", none), "10.0.0.1", "{none:?}");
        }
    }
}
