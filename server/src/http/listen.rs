//! Listens, serves connections, and shuts down.
//!
//! ```text
//!   start ── bind ── seat ── accept … ┬─ connection ── (TLS) ── requests, one after the other
//!                                     └─ connection ── (TLS) ── http2: requests side by side
//!   stop  ── no new connections; feeds end with their last sequence; running requests finish,
//!            idle connections close; after a grace period the rest is cut off
//! ```
//!
//! A connection takes a seat and gives it back at its end. While all seats are taken, clients wait in the system's
//! queue. The memory of a connection's buffers is counted for its client.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use budget::{Held, Owner};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use kv_api::{AnyDatabase, BoxFuture};
use model::{Layer, Setting};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_io_timeout::TimeoutStream;

use crate::http::app::statistics::Statistics;
use crate::http::app::{App, Identity, Options};
use crate::http::authn::lockout::network;
use crate::http::authn::setup::SetupToken;
use crate::http::config::settings::ADMINS;
use crate::http::figures;
use crate::http::http2;
use crate::http::journal::Actor;
use crate::http::metrics;
use crate::http::routes;
use crate::http::serve::serve;
use crate::http::tls::{self, HTTP2};
use crate::http::wire::body::CONNECTION_BYTES;
use crate::http::wire::quotes::{BodyLength, Quotes};
use crate::http::work;

/// Maximum bytes of a request line and its headers. Above it hyper answers 431, or 414 for the URL.
const MAX_HEADER_BYTES: usize = 128 * 1024;

const MAX_HEADERS: usize = 200;

/// Time that running requests have to finish when the server stops.
const GRACE: Duration = Duration::from_secs(10);

/// Minimum time between two log lines about a lack of seats.
const FULL_PAUSE: Duration = Duration::from_secs(60);

/// Minimum interval of the timer that wakes Tokio's driver.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// Number of connections that wait in the system's queue until they are accepted. Beyond it the system drops clients'
/// packets, and clients retry after a second, then two, and so on. Rust's default of 128 is too few for a thousand
/// clients that connect at once.
const QUEUE: u32 = 2_048;

/// Pause after a failed `accept`, whose likely cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a server could not start, as a message for a person.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The server has no administrator, and everyone can reach the address: everyone would be the administrator.
    #[error(
        "without an administrator everyone who can connect may read and delete everything, so the server listens on \
         loopback only, and {address} is not loopback; set COUCHDB_USER and COUCHDB_PASSWORD, or listen on 127.0.0.1"
    )]
    OpenToAll {
        /// The requested address.
        address: SocketAddr,
    },
    /// The address cannot be bound.
    #[error("cannot listen on {address}")]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The threads for scans cannot be started.
    #[error("cannot start threads")]
    Threads(#[source] io::Error),
    /// The store failed.
    #[error("the store cannot be used: {0}")]
    Store(#[from] model::Error),
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    app: Arc<App>,
    accepting: JoinHandle<()>,
    working: JoinHandle<()>,
    /// Reads the configuration when it changes.
    following: JoinHandle<((), ())>,
    /// Reads the certificate when it changes.
    renewing: JoinHandle<()>,
    /// The address of the metrics, and the task that serves them.
    metrics: Option<(SocketAddr, JoinHandle<()>)>,
}

impl Server {
    /// Whether a server at this address must find an administrator in its store: without one, everyone who can connect
    /// would be the administrator.
    pub fn needs_administrator(address: SocketAddr, options: &Options) -> bool {
        options.administrator.is_none() && !address.ip().is_loopback()
    }

    /// Binds `address` and starts to serve `layer`.
    ///
    /// # Errors
    /// [`StartError`], whose message is for a person.
    pub async fn start(layer: Layer<AnyDatabase>, address: SocketAddr, options: Options) -> Result<Server, StartError> {
        let needs_administrator = Self::needs_administrator(address, &options);
        let has_administrator = |setting: &Setting| setting.section == ADMINS;
        if needs_administrator && !layer.configuration().await?.0.iter().any(has_administrator) {
            return Err(StartError::OpenToAll { address });
        }
        let identity = Identity::load(&layer).await?;
        let (listener, address) = bind(address)?;
        let metrics = options.metrics_listen.map(bind).transpose()?;
        let (stop, stopping) = watch::channel(false);
        let (opened, stores) = mpsc::unbounded_channel();
        let statistics = Statistics::new(routes::endpoints().map(|(path, methods)| (methods, path)).collect());
        let app = App::new(layer, identity, options, address, stopping.clone(), opened, statistics);
        let app = Arc::new(app.map_err(StartError::Threads)?);
        drop(app.auth.load(&app.layer).await?);
        if app.auth.is_overridden() {
            tracing::warn!(
                "the store has a password for this administrator, so the password in the options has no effect"
            );
        }
        let following = {
            let app = app.clone();
            tokio::spawn(async move { tokio::join!(app.follow_configuration(), figures::follow(&app)) })
        };
        let renewing = {
            let (tls, stopping) = (app.options.tls.clone(), stopping.clone());
            tokio::spawn(tls::follow(tls, stopping))
        };
        let working = work::start(app.clone(), format!("couch-layer@{address}"), stores);
        let accepting = tokio::spawn(accept(listener, app.clone(), stopping));
        let metrics =
            metrics.map(|(listener, address)| (address, tokio::spawn(metrics::answer(listener, app.clone()))));
        Ok(Server { address, stop, app, accepting, working, following, renewing, metrics })
    }

    /// The address it listens on, with the actual port if port 0 was requested.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the metrics, which anybody may read.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|(address, _)| *address)
    }

    /// The start of its URLs.
    pub fn scheme(&self) -> &'static str {
        if self.app.options.tls.is_some() { "https" } else { "http" }
    }

    /// Whether everyone who can connect is an administrator.
    pub fn is_open_admin(&self) -> bool {
        self.app.auth.is_open_admin()
    }

    /// The token that names the first administrator, for whoever started the server; `None` if there is one.
    pub fn setup_token(&self) -> Option<&SetupToken> {
        self.app.auth.setup_token()
    }

    /// Reads the certificate again, reopens the logs, and replaces the file's settings by these. Returns what failed;
    /// the log has the reasons.
    pub async fn reload(&self, settings: Option<Vec<Setting>>) -> Vec<&'static str> {
        let options = &self.app.options;
        let mut failed = Vec::new();
        for (name, log) in [("audit log", &options.audit_log), ("access log", &options.access_log)] {
            failed.extend(log.as_ref().filter(|log| !log.reopen()).map(|_| name));
        }
        if let Some(tls) = options.tls.clone() {
            // Files may be on a slow disk. A panic was logged.
            let is_in_use = tokio::task::spawn_blocking(move || tls.reread()).await;
            failed.extend((!is_in_use.unwrap_or(false)).then_some("certificate"));
        }
        if let Some(settings) = settings {
            self.app.auth.set_file(settings);
            self.app.audit(&Actor::default(), "settings_reloaded", &[]);
            // If this fails, they apply once the store can be read again.
            if let Err(error) = self.app.auth.load(&self.app.layer).await.map(drop) {
                tracing::warn!(%error, "the configuration cannot be read");
                failed.push("configuration");
            }
        }
        failed
    }

    /// Stops: no new connections, feeds end with their last sequence, running requests finish within a grace period.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        // These tasks do not panic. A task that did has stopped too.
        let _ = self.following.await;
        let _ = self.renewing.await;
        let _ = self.working.await;
        let _ = self.accepting.await;
        if let Some((_, metrics)) = self.metrics {
            let _ = metrics.await;
        }
    }
}

/// Listens on an address. Returns it with its port.
fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let bound = listen(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
    bound.map(|(address, listener)| (listener, address)).map_err(|source| StartError::Bind { address, source })
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted server gets its port at once. On Windows, two servers could get the same port.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(QUEUE)
}

async fn accept(listener: TcpListener, app: Arc<App>, stopping: watch::Receiver<bool>) {
    // Every connection holds a sender; when the last one is dropped, all connections have ended.
    let (alive, mut all_ended) = mpsc::channel::<()>(1);
    let (cut_off, cut) = watch::channel(false);
    // Tokio wakes its driver for each timer that is due before all others. Without this interval, the end of every
    // request would set such a timer, for the connection's header timeout: one fifth fewer PUTs by 16 clients.
    let mut earlier = tokio::time::interval((app.options.head_timeout / 2).max(SHORTEST_INTERVAL));
    let mut seats = Seats::new(app.options.max_connections);
    loop {
        let (seat, accepted) = tokio::select! {
            accepted = async { (seats.take().await, listener.accept().await) } => accepted,
            _ = earlier.tick() => continue,
            () = app.stopping() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                // Counted without waiting: a client that holds too much gets a 503.
                let mut memory = app.budget.part(Owner::Address(network(peer.ip()))).nothing();
                memory.count(CONNECTION_BYTES);
                let held = (seat, alive.clone());
                tokio::spawn(connection(app.clone(), stream, peer, stopping.clone(), cut.clone(), memory, held));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop((listener, alive));
    if tokio::time::timeout(GRACE, all_ended.recv()).await.is_err() {
        tracing::warn!("requests that are still running are cut off");
        cut_off.send_replace(true);
        all_ended.recv().await;
    }
}

/// The connections that may be open at a time.
struct Seats {
    free: Arc<Semaphore>,
    most: usize,
    /// When a lack of seats was last logged.
    said: Option<Instant>,
}

impl Seats {
    fn new(most: usize) -> Self {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        Seats { free: Arc::new(Semaphore::new(most)), most, said: None }
    }

    /// Waits for a seat. `None` if the semaphore is closed, which never happens.
    async fn take(&mut self) -> Option<OwnedSemaphorePermit> {
        if self.free.available_permits() == 0 && self.said.is_none_or(|said| said.elapsed() >= FULL_PAUSE) {
            self.said = Some(Instant::now());
            tracing::warn!(
                connections = self.most,
                "no more connections are accepted until one ends: --max-connections"
            );
        }
        self.free.clone().acquire_owned().await.ok()
    }
}

/// `held` is dropped at the end of the connection.
async fn connection(
    app: Arc<App>,
    stream: TcpStream,
    peer: SocketAddr,
    mut stopping: watch::Receiver<bool>,
    cut: watch::Receiver<bool>,
    memory: Held,
    held: (Option<OwnedSemaphorePermit>, mpsc::Sender<()>),
) {
    let _held = (held, app.statistics.connections.enter());
    // Answers are written whole, so waiting to fill a packet would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection without TCP_NODELAY");
    }
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(app.options.write_timeout));
    let stream = Box::pin(stream);
    let Some(tls) = app.options.tls.clone() else {
        let first = tokio::time::timeout(app.options.head_timeout, http2::is_spoken(stream.get_ref()));
        let first = tokio::select! {
            first = first => first,
            () = turned_true(&mut stopping) => return,
        };
        return match first {
            Ok(Ok(false)) => requests(app, stream, peer, stopping, cut, memory).await,
            Ok(Ok(true)) => requests_side_by_side(app, stream, peer, cut, memory).await,
            Ok(Err(error)) => tracing::debug!(peer = %peer.ip(), %error, "a connection broke"),
            Err(_) => tracing::debug!(peer = %peer.ip(), "a client sent nothing"),
        };
    };
    // Boxed: only some connections need it, and unboxed its size would be part of every connection's future.
    let secured = Box::pin(async move {
        let accepted = tokio::time::timeout(app.options.handshake_timeout, tls.accept(stream));
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            () = turned_true(&mut stopping) => return,
        };
        match accepted {
            Ok(Ok(Some(stream))) if stream.get_ref().1.alpn_protocol() == Some(HTTP2) => {
                requests_side_by_side(app, stream, peer, cut, memory).await;
            }
            Ok(Ok(Some(stream))) => requests(app, stream, peer, stopping, cut, memory).await,
            Ok(Ok(None)) => tracing::debug!(peer = %peer.ip(), "a check of the certificate's domain was answered"),
            Ok(Err(error)) => tracing::debug!(peer = %peer.ip(), %error, "a TLS handshake failed"),
            Err(_) => tracing::debug!(peer = %peer.ip(), "a client took too long for its handshake"),
        }
    });
    secured.await;
}

/// Serves the requests of a connection of HTTP/2. Boxed: without TLS few connections speak it.
fn requests_side_by_side<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    app: Arc<App>,
    stream: S,
    peer: SocketAddr,
    cut: watch::Receiver<bool>,
    mut memory: Held,
) -> BoxFuture<()> {
    memory.count(http2::BYTES);
    Box::pin(async move { http2::requests(app, stream, peer, cut, memory.part()).await })
}

/// Serves the requests of a connection of HTTP/1.1, one after the other.
async fn requests<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    app: Arc<App>,
    stream: S,
    peer: SocketAddr,
    mut stopping: watch::Receiver<bool>,
    mut cut: watch::Receiver<bool>,
    memory: Held,
) {
    let seat = Arc::new(Mutex::new(memory));
    let length = BodyLength::default();
    let stream = Quotes::new(stream, length.clone());
    let head_timeout = app.options.head_timeout;
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        length.tell(request.body());
        let (app, seat) = (app.clone(), seat.clone());
        async move { serve(app, request, peer, &seat).await }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head_timeout);
    builder.max_buf_size(MAX_HEADER_BYTES).max_headers(MAX_HEADERS);
    // Most answers are small: copying them behind their heads takes fewer instructions than sending from two places. A
    // connection keeps memory for the largest page of its answers until it ends.
    builder.writev(false);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = turned_true(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = turned_true(&mut cut) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(peer = %peer.ip(), %error, "a connection broke");
    }
}

async fn turned_true(flag: &mut watch::Receiver<bool>) {
    // An error means that the server is gone.
    let _ = flag.wait_for(|flag| *flag).await;
}
