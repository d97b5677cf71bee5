//! A separate listener for Prometheus (`--metrics-listen`). It requires no password and serves only metrics, so its
//! address must be reachable only for monitoring.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;

use crate::http::app::App;
use crate::http::authn::setup::is_local_host;
use crate::http::figures;
use crate::http::wire::exposition;

/// Maximum number of connections. Further ones wait.
const MOST: usize = 16;

/// Time for a request's head, and for a client to read.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Time for which an answer is reused, however many ask.
const FRESH: Duration = Duration::from_secs(1);

/// Answers requests for metrics.
struct Exporter {
    app: Arc<App>,
    /// Whether only this machine reaches the address. A web page in its browser reaches it too, by a host name of its
    /// own that points to it. The browser then sends that name as `Host`.
    is_loopback: bool,
    newest: Mutex<Option<(Instant, Bytes)>>,
}

/// Serves until the server stops.
pub(crate) async fn answer(listener: TcpListener, app: Arc<App>) {
    let is_loopback = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let exporter = Arc::new(Exporter { app: app.clone(), is_loopback, newest: Mutex::default() });
    let permits = Arc::new(Semaphore::new(MOST));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async { (permits.clone().acquire_owned().await, listener.accept().await) };
        let (permit, accepted) = tokio::select! {
            accepted = accepted => accepted,
            Some(_) = connections.join_next() => continue,
            () = app.stopping() => return connections.shutdown().await,
        };
        let Ok((stream, _)) = accepted else {
            // The likely cause is a lack of file descriptors.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let exporter = exporter.clone();
        connections.spawn(async move {
            let _permit = permit;
            let mut stream = TimeoutStream::new(stream);
            stream.set_write_timeout(Some(TIMEOUT));
            let service = service_fn(move |request| {
                let exporter = exporter.clone();
                async move { Ok::<_, Infallible>(exporter.respond(&request).await) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(TIMEOUT);
            let connection = builder.serve_connection(TokioIo::new(Box::pin(stream)), service);
            // An error is the client's.
            let _ = connection.await;
        });
    }
}

impl Exporter {
    async fn respond(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let is_known = matches!(request.uri().path(), "/metrics" | "/_node/_local/_prometheus");
        let (status, text) = match *request.method() {
            _ if self.is_loopback && !is_local_host(request.headers()) => {
                (StatusCode::FORBIDDEN, "This listener answers to localhost and addresses only.\n".into())
            }
            Method::GET | Method::HEAD if is_known => (StatusCode::OK, self.text().await),
            _ => (StatusCode::NOT_FOUND, "This listener serves metrics only, at /metrics.\n".into()),
        };
        let answer = Response::builder().status(status).header(CONTENT_TYPE, exposition::CONTENT_TYPE);
        answer.body(Full::new(text)).unwrap_or_default()
    }

    async fn text(&self) -> Bytes {
        let mut newest = self.newest.lock().await;
        match &*newest {
            Some((written, text)) if written.elapsed() < FRESH => text.clone(),
            _ => {
                let text = Bytes::from(exposition::text(&figures::all(&self.app).await));
                newest.insert((Instant::now(), text)).1.clone()
            }
        }
    }
}
