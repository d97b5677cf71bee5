//! State that all requests share.

pub(crate) mod databases;
pub(crate) mod hour;
pub(crate) mod outage;
pub(crate) mod process;
pub(crate) mod relocations;
pub(crate) mod repeats;
mod scans;
pub(crate) mod statistics;
pub(crate) mod stores;
pub(crate) mod views;

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use budget::{Budget, Owner};
use kv_api::{AnyDatabase, BoxFuture};
use model::{ChangesBatch, ChangesRequest, IDENTITY_BYTES, Layer, LayerOptions, Setting};
use peer::{Clients, Trust};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::level_filters::LevelFilter;

use crate::backup_state::BackupState;
use crate::engine::EngineUrl;
use crate::http::app::databases::Databases;
use crate::http::app::hour::Hour;
use crate::http::app::outage::Outage;
use crate::http::app::relocations::Gates;
use crate::http::app::repeats::Repeats;
use crate::http::app::scans::Scans;
use crate::http::app::statistics::{Samples, Statistics};
use crate::http::app::stores::{Store, Stores, Watcher};
use crate::http::app::views::ViewTurns;
use crate::http::authn::auth::{Administrator, Auth, SECRET_BYTES};
use crate::http::authn::setup::SetupToken;
use crate::http::authn::users;
use crate::http::authz::security::Securities;
use crate::http::config::cors::CorsOptions;
use crate::http::config::settings::Flags;
use crate::http::error::{ApiError, Result};
use crate::http::functions::Functions;
use crate::http::ids::{RequestIds, Uuids};
use crate::http::journal::{self, Actor, LogFile};
use crate::http::tls::Tls;
use crate::http::wire::body::WAIT;
use crate::memory::Memory;
use crate::ship_state::ShipState;
use crate::standby_state::StandbyState;

/// Pause before the configuration is read again when the store could not be read.
const PAUSE: Duration = Duration::from_secs(1);

/// Options of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// An administrator in addition to those in the store. Without any, everyone who can connect is one.
    pub administrator: Option<Administrator>,
    /// The token that names the first administrator, and without which a server that has none changes no setting.
    /// `None`: whoever may do everything may do that too. `serve` always has one.
    pub setup_token: Option<SetupToken>,
    /// Web pages that may use the server.
    pub cors: CorsOptions,
    /// The largest body of a request in bytes, packed and unpacked. Larger ones are answered 413.
    pub max_request_size: usize,
    /// The memory that the server may use, and its parts.
    pub memory: Memory,
    /// Settings that apply where the store has none, as in CouchDB's own files. They do not include administrators.
    pub settings: Vec<Setting>,
    /// Number of threads for long scans, beside those that serve requests.
    pub scan_threads: usize,
    /// The URL of the served store, which relocations from it and back to it need.
    pub store: Option<EngineUrl>,
    /// Time for which a connection may be idle, and in which a client must send the head of a request.
    pub head_timeout: Duration,
    /// Time that a client may pause within a body. A body may also take this much longer than it would at 1,024 bytes a
    /// second.
    pub body_timeout: Duration,
    /// Time after which a client that does not read its answer is cut off.
    pub write_timeout: Duration,
    /// The certificate for TLS. Without one, the listener does not speak TLS.
    pub tls: Option<Tls>,
    /// Time after which a client that has not ended its TLS handshake is cut off.
    pub handshake_timeout: Duration,
    /// Proxies whose `X-Forwarded-For` is trusted to name the client's address.
    pub proxies: Vec<IpAddr>,
    /// Maximum number of connections. Further ones wait until one ends.
    pub max_connections: usize,
    /// The server's uuid instead of the store's own. It is part of the names of checkpoints.
    pub uuid: Option<String>,
    /// The trusted certificates for replications with servers behind `https://`.
    pub trust: Trust,
    /// Number of threads that may share the processor work of one request, also in stores to which databases moved.
    pub threads: usize,
    /// Whether this server runs no jobs. They can still be listed, changed and removed.
    pub pause_jobs: bool,
    /// Who changed what, and whom the server refused.
    pub audit_log: Option<LogFile>,
    /// A line for each request.
    pub access_log: Option<LogFile>,
    /// Requests whose response head takes longer than this are logged.
    pub slow_request: Option<Duration>,
    /// An address on which anybody may read the metrics.
    pub metrics_listen: Option<SocketAddr>,
    /// A folder with the pages that are served at `/_utils` instead of the console in the binary.
    pub utils: Option<PathBuf>,
    /// The ship of the store, if it is shipped.
    pub ship: Option<Arc<ShipState>>,
    /// The state of the standby, if the store follows another one: then nothing is written to it.
    pub standby: Option<Arc<StandbyState>>,
    /// Time after which other servers of the store take over the jobs of a server that does not renew its lease.
    pub lease: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            administrator: None,
            setup_token: None,
            cors: CorsOptions::default(),
            max_request_size: 64 << 20,
            memory: Memory::default(),
            settings: Vec::new(),
            scan_threads: std::thread::available_parallelism().map_or(2, usize::from).max(2),
            store: None,
            head_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(300),
            tls: None,
            handshake_timeout: Duration::from_secs(20),
            proxies: Vec::new(),
            max_connections: 2048,
            uuid: None,
            trust: Trust::default(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            pause_jobs: false,
            audit_log: None,
            access_log: None,
            slow_request: None,
            metrics_listen: None,
            utils: None,
            ship: None,
            standby: None,
            lease: Duration::from_secs(10),
        }
    }
}

/// The server's identity. It is random, and stored, so that sessions survive a restart.
#[derive(Clone)]
pub(crate) struct Identity {
    /// In hexadecimal, shown at `/`.
    pub(crate) uuid: String,
    /// The key that signs cookies.
    pub(crate) secret: [u8; SECRET_BYTES],
}

impl Identity {
    /// Reads the store's identity, which is created at the first call.
    pub(crate) async fn load(layer: &Layer<AnyDatabase>) -> model::Result<Self> {
        let bytes = layer.identity().await?;
        let (uuid, rest) = bytes.split_at(IDENTITY_BYTES - SECRET_BYTES);
        let mut secret = [0; SECRET_BYTES];
        secret.copy_from_slice(rest);
        Ok(Identity { uuid: model::hex(uuid), secret })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("uuid", &self.uuid).finish_non_exhaustive()
    }
}

/// State that all requests share.
#[derive(Debug)]
pub(crate) struct App {
    /// The server's own store, which has the catalog of all databases.
    pub(crate) layer: Layer<AnyDatabase>,
    pub(crate) databases: Databases,
    pub(crate) securities: Securities,
    pub(crate) gates: Gates,
    pub(crate) view_turns: ViewTurns,
    pub(crate) options: Options,
    pub(crate) auth: Auth,
    uuids: Uuids,
    pub(crate) request_ids: RequestIds,
    pub(crate) uuid: String,
    pub(crate) statistics: Statistics,
    /// Samples of what the stores hold.
    pub(crate) samples: Samples,
    /// The figures of the last hour.
    pub(crate) hour: Hour,
    /// Counts repeated log lines.
    pub(crate) repeats: Repeats,
    /// Whether the store answers.
    pub(crate) outage: Arc<Outage>,
    /// The clients of all replications.
    pub(crate) clients: Clients,
    scans: Scans,
    /// The backup that this server makes, and the verification of one.
    pub(crate) backup: BackupState,
    /// The memory for what comes from outside, and for answers.
    pub(crate) budget: Budget,
    /// Functions of design documents.
    pub(crate) functions: Arc<Functions>,
    stopping: watch::Receiver<bool>,
}

impl App {
    /// `address`: where the server listens. `stopping` turns true when the server shuts down. `opened` gets the
    /// other stores that are opened later. `statistics` are empty.
    pub(crate) fn new(
        layer: Layer<AnyDatabase>,
        identity: Identity,
        options: Options,
        address: SocketAddr,
        stopping: watch::Receiver<bool>,
        opened: mpsc::UnboundedSender<Store>,
        statistics: Statistics,
    ) -> std::io::Result<Self> {
        let uuid = options.uuid.clone().unwrap_or(identity.uuid);
        let flags = Flags {
            started: started(&layer, &uuid, &options, address),
            speaks_tls: options.tls.is_some(),
            settings: options.settings.clone(),
        };
        let is_local = address.ip().is_loopback();
        let mut auth = Auth::new(options.administrator.clone(), identity.secret, is_local, flags);
        auth.setup.clone_from(&options.setup_token);
        auth.proxies.clone_from(&options.proxies);
        let scans = Scans::new(options.memory.scan_threads(options.scan_threads))?;
        let functions = Arc::new(Functions::within(options.threads.max(2), &options.memory));
        let budget = Budget::new(options.memory.budget);
        let others = LayerOptions { threads: options.threads, ..crate::layer_options() };
        let stores = Stores::new(layer.clone(), options.store.as_ref(), others, opened);
        let clients = Clients::within(options.trust.clone(), budget.part(Owner::Work("replications")));
        Ok(App {
            layer,
            databases: Databases::new(stores),
            gates: Gates::default(),
            view_turns: ViewTurns::default(),
            options,
            auth,
            uuids: Uuids::default(),
            request_ids: RequestIds::new(),
            uuid,
            statistics,
            samples: Samples::default(),
            hour: Hour::default(),
            securities: Securities::default(),
            repeats: Repeats::default(),
            outage: Arc::default(),
            clients,
            scans,
            backup: BackupState::default(),
            budget,
            functions,
            stopping,
        })
    }

    /// Reads the configuration again whenever it changes in the store, also through another server. Ends with the
    /// server.
    pub(crate) async fn follow_configuration(&self) {
        let following = async {
            loop {
                let watched = match self.auth.load(&self.layer).await {
                    Ok(changed) => changed.await.map_err(model::Error::from),
                    Err(error) => Err(error),
                };
                if let Err(error) = watched {
                    tracing::debug!(%error, "cannot watch the configuration");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        tokio::select! {
            () = self.stopping() => {}
            () = following => {}
        }
    }

    /// Runs a page of a scan on the threads for scans. Embedded engines read on the calling thread, and a page that is
    /// not in the cache takes as long as the disk: heartbeats and small requests must not wait for it.
    ///
    /// The page is boxed at once: the future of the request, which is copied before it runs, would otherwise contain
    /// it.
    pub(crate) fn scan<T, F>(self: &Arc<Self>, page: F) -> impl Future<Output = Result<T>> + Send
    where
        F: Future<Output = model::Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        let page = Box::pin(page);
        let budget = self.budget.clone();
        // How much memory a page takes is known only once it is read. So it is read while some memory is free, and on
        // few threads.
        let read = async move {
            budget.room(WAIT).await?;
            page.await.map_err(ApiError::from)
        };
        async move { self.off_thread(read).await? }
    }

    /// The changes that a feed shares with others that wait for its database. `None` if it must read for itself, with
    /// [`scan`](Self::scan); also after an error.
    pub(crate) async fn shared_changes(
        self: &Arc<Self>,
        watcher: &mut Watcher,
        request: &ChangesRequest,
    ) -> Option<ChangesBatch> {
        // One read serves many feeds, but each makes its own page. Without memory the feed reads for itself, and that
        // read waits for memory. Feeds that waited for one read continue together, so they look again after it.
        let has_room = || self.budget.used() < self.budget.total();
        if !has_room() {
            return None;
        }
        let app = self.clone();
        let run = |reading| -> BoxFuture<_> { Box::pin(async move { app.scan(reading).await.ok() }) };
        watcher.shared_changes(request, run).await.filter(|_| has_room())
    }

    /// Runs work that reads much on the threads for scans. It is aborted when the caller stops waiting.
    pub(crate) async fn off_thread<T, F>(&self, work: F) -> Result<T>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.scans.run(work).await.ok_or_else(ApiError::internal)
    }

    /// Starts long work on the threads for scans. It continues when its client disconnects. `None` if the server is
    /// shutting down.
    pub(crate) fn spawn_scan<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        self.scans.spawn(work)
    }

    /// Starts reading what is needed next, on the threads for scans: embedded engines read on the thread that asks.
    pub(crate) fn ahead<T: Send + 'static>(&self, reading: BoxFuture<Option<T>>) -> BoxFuture<Option<T>> {
        let reading = self.spawn_scan(reading);
        Box::pin(async move { reading?.await.ok()? })
    }

    /// Starts reading what is needed at the same time, if there is a processor for it.
    pub(crate) fn in_parallel<T: Send + 'static>(&self, reading: BoxFuture<Option<T>>) -> BoxFuture<Option<T>> {
        let reading = self.scans.in_parallel(reading);
        Box::pin(async move { reading?.await.ok()? })
    }

    /// New document ids.
    pub(crate) fn fresh_ids(&self, count: usize) -> Result<Vec<String>> {
        self.uuids.next(count, &self.auth.settings().ids).map_err(|error| {
            tracing::error!(%error, "the system's random number generator failed");
            ApiError::internal()
        })
    }

    /// Writes an event to the audit log.
    pub(crate) fn audit(&self, actor: &Actor<'_>, event: &str, members: &[(&str, &str)]) {
        journal::audit(self.options.audit_log.as_ref(), actor, event, members, None);
    }

    /// Refuses a request that would wait for a job, if this server runs none.
    pub(crate) fn require_jobs(&self) -> Result<()> {
        if self.options.standby.is_some() {
            return Err(ApiError::standby());
        }
        match self.options.pause_jobs {
            true => Err(ApiError::unavailable("Jobs are paused: the server was started with --pause-jobs.")),
            false => Ok(()),
        }
    }

    /// Whether the server is shutting down.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Completes when the server starts to shut down.
    pub(crate) async fn stopping(&self) {
        // An error means that the server is gone.
        let _ = self.stopping.clone().wait_for(|stopping| *stopping).await;
    }

    /// Does this work until it is done or the server stops.
    pub(crate) async fn until_stopping(&self, work: impl Future<Output = ()>) {
        tokio::select! {
            () = self.stopping() => {}
            () = work => {}
        }
    }
}

/// The options that the server was started with, as settings with CouchDB's names. Some have no effect when a client
/// sets them (address, port, log), since they are read at the start only.
fn started(layer: &Layer<AnyDatabase>, uuid: &str, options: &Options, address: SocketAddr) -> Vec<Setting> {
    let attachment = match layer.max_attachment_size() {
        u64::MAX => "infinity".to_owned(),
        bytes => bytes.to_string(),
    };
    let level = match LevelFilter::current() {
        LevelFilter::OFF => "none",
        LevelFilter::ERROR => "error",
        LevelFilter::WARN => "warning",
        LevelFilter::INFO => "info",
        _ => "debug",
    };
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let settings = [
        ("chttpd", "bind_address", host.clone()),
        ("chttpd", "enable_cors", (!options.cors.origins.is_empty()).to_string()),
        ("chttpd", "max_http_request_size", options.max_request_size.to_string()),
        ("chttpd", "port", port.clone()),
        ("couch_httpd_auth", "authentication_db", users::DATABASE.to_owned()),
        ("cors", "credentials", options.cors.credentials.to_string()),
        ("cors", "origins", options.cors.origins.join(", ")),
        ("couchdb", "max_attachment_size", attachment),
        ("couchdb", "max_document_size", layer.max_document_size().to_string()),
        ("couchdb", "uuid", uuid.to_owned()),
        ("httpd", "bind_address", host),
        ("httpd", "port", port),
        ("log", "level", level.to_owned()),
        ("log", "writer", "stderr".to_owned()),
    ];
    let settings = settings.into_iter().filter(|(_, _, value)| !value.is_empty());
    let setting = |(section, name, value): (&str, &str, String)| {
        let (section, name) = (section.to_owned(), name.to_owned());
        Setting { section, name, value }
    };
    settings.map(setting).collect()
}
