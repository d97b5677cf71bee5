//! `couch-layer serve`: the CouchDB-compatible server.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use kv_api::error::SHUTDOWN_IN_PROGRESS;
use kv_api::{Database, Durability, SPANS};
use model::{Layer, LayerOptions, Setting};
use peer::Url;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::adopt::adopt_snapshot;
use super::ship::ShipArgs;
use super::standby::{self, Follow};
use super::tls_args::{TlsArgs, TrustArgs};
use crate::cmd::{Failure, descriptors, reload, stop_signal, systemd};
use crate::engine::{self, EngineUrl, IfMissing};
use crate::http::{Administrator, CorsOptions, KeepLines, LogFile, Options, Server, SetupToken, StartError};
use crate::memory::{Asked, Memory};
#[cfg(feature = "otlp")]
use crate::traces::Traces;
use crate::units;

/// Nothing sends spans.
#[cfg(not(feature = "otlp"))]
enum Traces {}

/// Serve databases over HTTP
#[derive(Args)]
pub struct Serve {
    /// The store: a folder, which names its engine itself (a new one gets lsm), lsm:FOLDER, sled:FOLDER, mem:,
    /// fdb:CLUSTER_FILE, or fdb: for the default cluster file. ?prefix=TEXT after fdb: keeps all keys under that prefix
    #[arg(long, value_name = "URL", env = "COUCH_LAYER_ENGINE", default_value = "./couch-data")]
    engine: EngineUrl,

    /// The address to listen on. Port 0 takes any free port
    #[arg(long, value_name = "HOST:PORT", env = "COUCH_LAYER_LISTEN", default_value = "127.0.0.1:5984")]
    listen: String,

    /// An address on which Prometheus reads metrics at /metrics, without a password: let nobody else reach that
    /// address. Elsewhere the metrics are at /_node/_local/_prometheus, for administrators and the role _metrics
    #[arg(long, value_name = "HOST:PORT", env = "COUCH_LAYER_METRICS_LISTEN")]
    metrics_listen: Option<String>,

    /// A folder whose files are served at /_utils instead of the console in this binary, for example Fauxton's
    #[arg(long, value_name = "FOLDER", env = "COUCH_LAYER_UTILS")]
    utils: Option<PathBuf>,

    #[command(flatten)]
    ship: ShipArgs,

    #[command(flatten)]
    tls: TlsArgs,

    #[command(flatten)]
    trust: TrustArgs,

    /// The administrator's name. Without an administrator the server listens on loopback only
    #[arg(long, value_name = "NAME", env = "COUCHDB_USER")]
    user: Option<String>,

    /// The administrator's password. Use the environment variable: other users can see the command line
    #[arg(long, value_name = "PASSWORD", env = "COUCHDB_PASSWORD", hide_env_values = true)]
    password: Option<String>,

    /// Origins of web pages that may use the server, separated by commas; * for all
    #[arg(long, value_name = "ORIGIN", env = "COUCH_LAYER_CORS_ORIGINS", value_delimiter = ',')]
    cors_origins: Vec<String>,

    /// Let those pages send cookies and passwords
    #[arg(long, env = "COUCH_LAYER_CORS_CREDENTIALS")]
    cors_credentials: bool,

    /// The largest document, in bytes of compact JSON; at most 8000000
    #[arg(long, value_name = "BYTES", env = "COUCH_LAYER_MAX_DOCUMENT_SIZE", default_value_t = 8_000_000,
          value_parser = units::bytes_in(1..=8_000_000))]
    max_document_size: u64,

    /// The memory that the server may use, in bytes [default: a quarter of the machine's, or of its control group's
    /// limit]
    #[arg(long, value_name = "BYTES", env = "COUCH_LAYER_MEMORY", value_parser = units::bytes)]
    memory: Option<u64>,

    /// The largest request, in bytes, before and after gzip is unpacked. It is held in memory while it is served,
    /// together with the data parsed from it. Attachments that are sent by themselves, or after their document, do not
    /// count [default: 67108864, less where --memory leaves no room for that]
    #[arg(long, value_name = "BYTES", env = "COUCH_LAYER_MAX_REQUEST_SIZE",
          value_parser = units::bytes_in(1_024..=u32::MAX.into()))]
    max_request_size: Option<u64>,

    /// The largest attachment, in bytes as sent [default: no limit]
    #[arg(long, value_name = "BYTES", env = "COUCH_LAYER_MAX_ATTACHMENT_SIZE", value_parser = units::bytes)]
    max_attachment_size: Option<u64>,

    /// Maximum number of connections; fewer if the limit of open files or --memory does not allow them. Further clients
    /// wait until one ends
    #[arg(long, value_name = "COUNT", env = "COUCH_LAYER_MAX_CONNECTIONS", default_value_t = 2048,
          value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,

    /// Addresses of trusted proxies, separated by commas. Their X-Forwarded-For gives the client's address, for its
    /// share of the memory and for its failed logins
    #[arg(long, value_name = "ADDRESS", env = "COUCH_LAYER_PROXIES", value_delimiter = ',')]
    proxies: Vec<IpAddr>,

    /// The server's uuid instead of the store's own, for example that of a CouchDB whose replications continue here: it
    /// is part of the names of their checkpoints
    #[arg(long, value_name = "UUID", env = "COUCH_LAYER_UUID", value_parser = read_uuid)]
    uuid: Option<String>,

    /// The cache of a store in a folder, in bytes; the store takes up to three times as much of --memory [default: 96
    /// MiB, less where --memory is small]
    #[arg(long, value_name = "BYTES", env = "COUCH_LAYER_CACHE_SIZE",
          value_parser = units::bytes_in(1 << 20..=u64::MAX))]
    cache_size: Option<u64>,

    /// Run no jobs, such as replications and builds of views, so that harmful ones can be found and removed
    #[arg(long, env = "COUCH_LAYER_PAUSE_JOBS")]
    pause_jobs: bool,

    /// How long to wait for the first answer of a FoundationDB cluster, for example while its servers recover
    #[arg(long, value_name = "TIME", env = "COUCH_LAYER_WAIT_FOR_STORE", default_value = "1min",
          value_parser = humantime::parse_duration)]
    wait_for_store: Duration,

    /// How long a request waits for a FoundationDB cluster that does not answer, before its 503
    #[arg(long, value_name = "TIME", env = "COUCH_LAYER_STORE_TIMEOUT", default_value = "10s",
          value_parser = units::time_from(LEAST_WAIT))]
    store_timeout: Duration,

    /// How long after a server's end the others on its cluster take over its jobs
    #[arg(long, value_name = "TIME", env = "COUCH_LAYER_JOB_LEASE", default_value = "10s",
          value_parser = units::time_from(LEAST_WAIT))]
    job_lease: Duration,

    /// A file with these options and CouchDB's settings, in TOML. The environment and flags override it
    #[arg(long, value_name = "FILE", env = "COUCH_LAYER_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// The file's settings for CouchDB's configuration.
    #[arg(skip)]
    pub(crate) settings: Vec<Setting>,

    /// A file to which one JSON object is added for each change of administrators, settings, _security and databases,
    /// each purge, each refused login and each refused request; - for the standard output
    #[arg(long, value_name = "FILE", env = "COUCH_LAYER_AUDIT_LOG")]
    audit_log: Option<PathBuf>,

    /// A file to which one JSON object is added for each request; - for the standard output
    #[arg(long, value_name = "FILE", env = "COUCH_LAYER_ACCESS_LOG")]
    access_log: Option<PathBuf>,

    /// The log level: error, warn, info, debug (a line for each request), trace, or TARGET=LEVEL
    /// pairs separated by commas
    #[arg(long, value_name = "LEVEL", env = "COUCH_LAYER_LOG", default_value = "info")]
    log: String,

    /// The form of the log: text, or json with an object in each line
    #[arg(long, value_name = "FORM", env = "COUCH_LAYER_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,

    /// Log requests whose response headers take longer than this, and where the time went: 1s, 500ms
    #[arg(long, value_name = "TIME", env = "COUCH_LAYER_SLOW_REQUEST", value_parser = humantime::parse_duration)]
    slow_request: Option<Duration>,

    /// Send spans of requests to this collector of OpenTelemetry, by OTLP over HTTP: http://127.0.0.1:4318
    #[arg(long, value_name = "URL", env = "COUCH_LAYER_OTLP_ENDPOINT", value_parser = read_endpoint)]
    otlp_endpoint: Option<Url>,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

impl fmt::Debug for Serve {
    /// Shows no password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serve")
            .field("engine", &self.engine)
            .field("listen", &self.listen)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error("\"{0}\" is not an address to listen on; write HOST:PORT, for example 127.0.0.1:5984")]
    Address(String),
    #[error("\"{0}\" is not a log level; write error, warn, info, debug or trace")]
    Log(String),
    #[error("COUCHDB_USER is set and COUCHDB_PASSWORD is not, or is empty; set both, or neither")]
    NoPassword,
    #[error("COUCHDB_PASSWORD is set and COUCHDB_USER is not, or is empty; set both, or neither")]
    NoUser,
    #[error("an administrator's name must not contain a colon")]
    ColonInUser,
    #[error("--{flag} and {section}/{name} in the file's table config say the same thing; leave one of them out")]
    Twice { flag: &'static str, section: &'static str, name: &'static str },
    #[error("--utils {} has no index.html; name the folder of a console", .0.display())]
    Utils(PathBuf),
    #[error("--ship-to needs a store in a folder of the engine lsm; back up other stores by `couch-layer backup`")]
    NotShipped,
    #[cfg(not(feature = "otlp"))]
    #[error(
        "this couch-layer was built without the feature otlp, which --otlp-endpoint needs: build it with `cargo build \
         --release -p couch-layer-server --features otlp`"
    )]
    NoOtlp,
    #[error("the log {} cannot be opened", .0.display())]
    LogFile(PathBuf, #[source] io::Error),
}

/// The store of a server failed, and is closed. Another process can open it.
#[derive(Debug, thiserror::Error)]
#[error("{0}; the server ends, so that its supervisor starts it again")]
pub struct StoreFailed(kv_api::Error);

impl StoreFailed {
    /// The exit code: `EX_IOERR` of `sysexits.h`.
    pub const EXIT_CODE: u8 = 74;
}

/// Ends when the process is told to stop, once its handlers are there.
type StopSignal = Option<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// The least time for which a cluster, or another server, may be waited for.
const LEAST_WAIT: Duration = Duration::from_secs(1);

/// Time between two checks whether the store has failed.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Completes when a store failed, for example because the disk reported an error when a commit was synced. This process
/// cannot know what such a disk has stored, so it ends. The next process reads what is there.
async fn failure_of(engine: impl Database) -> StoreFailed {
    loop {
        match engine.begin() {
            Err(error) if error.code() != SHUTDOWN_IN_PROGRESS => return StoreFailed(error),
            _ => tokio::time::sleep(BETWEEN_LOOKS).await,
        }
    }
}

/// Time for a server to stop. Requests and jobs get ten seconds each of it, and the store the rest. Nothing is lost if
/// this is too short, as nothing is lost by a kill.
const STOPPING: Duration = Duration::from_secs(40);

/// Ends the process after this time, if it has not ended by itself. sled, when it closes after a full disk, waits
/// forever to write the rest.
fn end_within(time: Duration, code: u8) {
    std::thread::spawn(move || {
        std::thread::sleep(time);
        tracing::error!("the server does not stop by itself: the process ends without closing its store");
        std::process::exit(code.into());
    });
}

/// The folder of a console, if it is one.
fn console_in(folder: PathBuf) -> Result<PathBuf, ServeError> {
    if folder.join("index.html").is_file() { Ok(folder) } else { Err(ServeError::Utils(folder)) }
}

impl Serve {
    /// Serves until the process is told to stop.
    pub(crate) fn run(self) -> Result<(), Failure> {
        // On an embedded engine, the task that leads a round of commits blocks its thread while the disk syncs. So
        // there is one more thread than cores. More threads would only take turns.
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let threads = cores + 1;
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(threads).thread_name("couch").enable_all().build()?;
        // Dropped after the server has ended, which sends the last spans, and before the runtime, which sends them.
        let _traces = self.start_logging(runtime.handle())?;
        silence_panics();
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> Result<(), Failure> {
        // First, so that a signal that arrives while the store opens does not end the process.
        let mut hangups = reload::Hangups::new()?;
        let mut stop: StopSignal = None;
        let mut address = resolve(&self.listen)?;
        self.check_twice(&self.settings)?;
        let Some(follow) = self.ship.follow()? else {
            return self.serve_store(&mut hangups, &mut stop, &mut address, None).await.map(drop);
        };
        let folder = standby::folder_of(&self.engine)?;
        self.ship.check_apart(folder)?;
        // A restore takes long.
        let stopping = stop.insert(Box::pin(stop_signal()?));
        let mut follows = tokio::select! {
            prepared = follow.prepare(&self.engine) => prepared?,
            () = stopping => return Ok(()),
        };
        loop {
            let following = follows.then_some(&follow);
            match self.serve_store(&mut hangups, &mut stop, &mut address, following).await? {
                None => return Ok(()),
                Some(ended) => ended.finish(folder).await?,
            }
            follows = follow.prepare(&self.engine).await?;
        }
    }

    /// Serves the store until the process is told to stop. A store that follows another one may end earlier.
    async fn serve_store(
        &self,
        hangups: &mut reload::Hangups,
        stop: &mut StopSignal,
        address: &mut SocketAddr,
        follow: Option<&Arc<Follow>>,
    ) -> Result<Option<standby::Ended>, Failure> {
        let threads = Options::default().threads;
        let asked = Asked {
            cache: self.cache_size,
            request: self.max_request_size.map(usize::try_from).transpose()?,
            threads,
            in_folder: matches!(self.engine, EngineUrl::Folder { .. }),
        };
        let memory = Memory::of(self.memory, &asked)?;
        // A standby ships once it is promoted.
        let ship = if follow.is_some() { None } else { self.ship.read()? };
        if let EngineUrl::Folder { path, .. } = &self.engine {
            self.ship.check_apart(path)?;
        }
        let mut options = Options {
            administrator: self.administrator()?,
            setup_token: Some(SetupToken::random()?),
            cors: CorsOptions { origins: self.cors_origins.clone(), credentials: self.cors_credentials },
            max_request_size: memory.request,
            memory,
            threads,
            settings: self.settings.clone(),
            store: Some(self.engine.clone()),
            trust: self.trust.read()?,
            max_connections: usize::try_from(descriptors::connections(self.max_connections).min(memory.connections()))?,
            proxies: self.proxies.clone(),
            uuid: self.uuid.clone(),
            pause_jobs: self.pause_jobs,
            audit_log: open_log(self.audit_log.as_deref())?,
            access_log: open_log(self.access_log.as_deref())?,
            slow_request: self.slow_request,
            lease: self.job_lease,
            utils: self.utils.clone().map(console_in).transpose()?,
            metrics_listen: self.metrics_listen.as_deref().map(resolve).transpose()?,
            ..Options::default()
        };
        // A new store has no administrator, so none is created for a server that would not start.
        let needs_administrator = Server::needs_administrator(*address, &options);
        let is_new = match &self.engine {
            EngineUrl::Memory => true,
            EngineUrl::Folder { path, .. } => matches!(disk::folder::Mark::read(path), Ok(None)),
            EngineUrl::Cluster { .. } => false,
        };
        if needs_administrator && is_new {
            return Err(StartError::OpenToAll { address: *address }.into());
        }
        // Not earlier, since it may make files.
        options.tls = self.tls.read(&self.listen, *address, &self.engine, &self.trust)?;
        if follow.is_none()
            && let Some(adopted) = adopt_snapshot(&self.engine).await?
        {
            let (databases, unreadable) = (adopted.databases, adopted.unreadable);
            tracing::info!(
                databases,
                ?unreadable,
                "the folder is a snapshot, which is taken into use: new incarnations"
            );
        }
        let opening = engine::OpenOptions {
            cache_bytes: Some(memory.cache),
            wait: self.wait_for_store,
            timeout: self.store_timeout,
        };
        let mut following = None;
        let (engine, shipped) = match (ship, follow) {
            (_, Some(follow)) => {
                let folder = standby::folder_of(&self.engine)?;
                let (engine, store) = engine::open_standby(folder, opening)?;
                let started = follow.start((engine.clone(), store), folder)?;
                options.standby = Some(started.state.clone());
                following = Some(started);
                (engine, None)
            }
            (None, None) => (engine::open_with(&self.engine, IfMissing::Create, opening)?, None),
            (Some(ship), None) => {
                let opened = engine::open_followed(&self.engine, IfMissing::Create, opening)?;
                let (engine, store) = opened.ok_or(ServeError::NotShipped)?;
                (engine, Some((ship, store)))
            }
        };
        let durability = engine.durability();
        let layer_options = LayerOptions {
            max_document_size: usize::try_from(self.max_document_size)?,
            max_attachment_size: self.max_attachment_size.unwrap_or(u64::MAX),
            threads: options.threads,
            ..crate::layer_options()
        };
        let failed = failure_of(engine.clone());
        let layer = Layer::open(engine, layer_options).await?;
        let mut shipping = None;
        if let Some((ship, store)) = shipped {
            let name = backup::store_name(&layer).await?;
            let started = ship.start(store, name).await?;
            options.ship = Some(started.state.clone());
            shipping = Some(started);
        }
        let server = Server::start(layer, *address, options).await?;
        // The same port, if it starts again.
        *address = server.address();
        // Before anybody hears that the server may be stopped.
        let stopping = match stop {
            Some(stopping) => stopping,
            None => stop.insert(Box::pin(stop_signal()?)),
        };
        if let Err(error) = announce(&server, &self.engine, durability, self.tls.is_passing(), self.utils.is_none()) {
            // A script may have read the first line and closed the pipe.
            tracing::debug!(%error, "cannot write to the standard output");
        }
        systemd::tell("READY=1");
        let ended = async {
            match &mut following {
                Some(following) => following.ended().await,
                None => std::future::pending().await,
            }
        };
        let failed = tokio::select! {
            () = stopping => None,
            failed = failed => Some(failed),
            ended = ended => {
                let ended = ended?;
                server.stop().await;
                if let Some(following) = following {
                    following.stop().await;
                }
                return Ok(Some(ended));
            }
            never = hangups.reload(&server, self) => match never {},
        };
        systemd::tell("STOPPING=1");
        match &failed {
            Some(failed) => tracing::error!("{failed}"),
            None => tracing::info!("stopping"),
        }
        end_within(STOPPING, if failed.is_some() { StoreFailed::EXIT_CODE } else { 1 });
        server.stop().await;
        if let Some(shipping) = shipping {
            shipping.stop().await;
        }
        if let Some(following) = following {
            following.stop().await;
        }
        failed.map_or(Ok(None), |failed| Err(failed.into()))
    }

    /// Refuses settings of a file that would silently replace a flag, its environment variable or the file's own
    /// option.
    pub(crate) fn check_twice(&self, settings: &[Setting]) -> Result<(), ServeError> {
        let flags = [
            ("cors-origins", !self.cors_origins.is_empty(), "cors", "origins"),
            ("cors-credentials", self.cors_credentials, "cors", "credentials"),
            ("max-request-size", self.max_request_size.is_some(), "chttpd", "max_http_request_size"),
            ("max-attachment-size", self.max_attachment_size.is_some(), "couchdb", "max_attachment_size"),
        ];
        let is_set = |section, name| settings.iter().any(|one| one.section == section && one.name == name);
        match flags.into_iter().find(|(_, is_given, section, name)| *is_given && is_set(*section, *name)) {
            Some((flag, _, section, name)) => Err(ServeError::Twice { flag, section, name }),
            None => Ok(()),
        }
    }

    fn administrator(&self) -> Result<Option<Administrator>, ServeError> {
        let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        match (filled(&self.user), filled(&self.password)) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(ServeError::NoPassword),
            (None, Some(_)) => Err(ServeError::NoUser),
            (Some(name), Some(_)) if name.contains(':') => Err(ServeError::ColonInUser),
            (Some(name), Some(password)) => Ok(Some(Administrator { name, password })),
        }
    }

    /// Starts the log, and the sending of spans, which goes on while the returned value lives.
    fn start_logging(&self, runtime: &tokio::runtime::Handle) -> Result<Option<Traces>, Failure> {
        // A bare level is for this program's crates. Others log warnings and errors.
        let directives = if self.log.contains(['=', ',']) {
            self.log.clone()
        } else {
            let level: tracing::Level = self.log.parse().map_err(|_| ServeError::Log(self.log.clone()))?;
            format!("warn,server={level},model={level}")
        };
        let targets: Targets = directives.parse().map_err(|_| ServeError::Log(self.log.clone()))?;
        // Spans would be a part of each line.
        let targets = targets.with_target(SPANS, LevelFilter::OFF);
        // A person reads a terminal; a file or a journal would keep the colours as control characters.
        let has_colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
        // A closed log pipe must not end the server: reporting the failed write would panic on the same pipe.
        let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).log_internal_errors(false);
        let lines: Box<dyn tracing_subscriber::Layer<_> + Send + Sync> = match self.log_format {
            LogFormat::Text => Box::new(lines.with_target(false).with_ansi(has_colours)),
            LogFormat::Json => Box::new(lines.json().flatten_event(true)),
        };
        // Initialising fails harmlessly in tests that run several servers in one process.
        let Some(endpoint) = &self.otlp_endpoint else {
            let _ = tracing_subscriber::registry().with(lines).with(KeepLines).with(targets).try_init();
            return Ok(None);
        };
        #[cfg(feature = "otlp")]
        {
            use tracing_subscriber::Layer as _;
            let traces = Traces::start(endpoint, &self.trust.read()?, runtime.clone())?;
            let lines = lines.with_filter(targets.clone());
            let lines = tracing_subscriber::registry().with(lines).with(KeepLines.with_filter(targets));
            let _ = lines.with(traces.layer()).try_init();
            Ok(Some(traces))
        }
        #[cfg(not(feature = "otlp"))]
        {
            let _ = (endpoint, runtime);
            Err(ServeError::NoOtlp.into())
        }
    }
}

fn open_log(path: Option<&Path>) -> Result<Option<LogFile>, ServeError> {
    let open = |path: &Path| LogFile::open(path).map_err(|error| ServeError::LogFile(path.to_owned(), error));
    path.map(open).transpose()
}

/// The address of a collector.
fn read_endpoint(text: &str) -> Result<Url, String> {
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(url),
        _ => Err("a collector has a URL that begins with http:// or https://".to_owned()),
    }
}

/// A uuid as in CouchDB's configuration: letters, digits and hyphens.
fn read_uuid(text: &str) -> Result<String, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    match is_plain && (1..=64).contains(&text.len()) {
        true => Ok(text.to_owned()),
        false => Err("a uuid has 1 to 64 letters, digits and hyphens".to_owned()),
    }
}

/// The address that `listen` names; the first if the name has several.
fn resolve(listen: &str) -> Result<SocketAddr, ServeError> {
    let resolved = listen.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    resolved.ok_or_else(|| ServeError::Address(listen.to_owned()))
}

/// Logs a panic as a bug: one line with its place, and no backtrace on the terminal. Its request gets a 500.
fn silence_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("no message");
        tracing::error!("a bug, please report it: {message} ({place})");
    }));
}

/// Prints that the server is ready, and its address. Scripts wait for the first line.
fn announce(
    server: &Server,
    store: &EngineUrl,
    durability: Durability,
    is_passing: bool,
    has_own_console: bool,
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "couch-layer listens on {}://{}/", server.scheme(), server.address())?;
    if let Some(address) = server.metrics_address() {
        writeln!(out, "Metrics for Prometheus are at http://{address}/metrics, for everyone who can connect.")?;
    }
    match store {
        EngineUrl::Memory => writeln!(out, "The data is in memory and is gone when the server stops.")?,
        EngineUrl::Folder { path, .. } => {
            let folder = path.canonicalize().unwrap_or_else(|_| path.clone());
            let promise = match durability {
                Durability::Disk => "; a write is on disk before it is acknowledged",
                _ => "",
            };
            writeln!(out, "The data is in {}{promise}.", folder.display())?;
        }
        EngineUrl::Cluster { .. } => {
            writeln!(out, "The data is in the FoundationDB cluster of {store}.")?;
        }
    }
    if is_passing {
        writeln!(out, "Its certificate is self-signed, and new at each start: clients must be told not to check it.")?;
    }
    if server.is_open_admin() {
        writeln!(out, "There is no administrator: everyone on this machine may read and write everything.")?;
    }
    if let Some(token) = server.setup_token() {
        let (scheme, address, token) = (server.scheme(), server.address(), token.as_str());
        match has_own_console {
            true => {
                writeln!(
                    out,
                    "Name one, with a token that works once: {scheme}://{address}/_utils/#/signin?token={token}"
                )?;
            }
            // Another console would keep it in the address.
            false => writeln!(out, "Name one, with a header that works once: X-Couch-Layer-Setup-Token: {token}")?,
        }
    }
    out.flush()
}

#[cfg(all(test, feature = "mem"))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI32, Ordering};

    use kv_api::error::IO_ERROR;
    use kv_api::{AnyDatabase, AnyTransaction, Limits, Result};

    use super::*;

    /// A database that fails with a code, unless it is 0.
    #[derive(Clone)]
    struct Failing(AnyDatabase, Arc<AtomicI32>);

    impl Database for Failing {
        type Transaction = AnyTransaction;

        fn begin(&self) -> Result<AnyTransaction> {
            match self.1.load(Ordering::Relaxed) {
                0 => self.0.begin(),
                code => Err(kv_api::Error::new(code).with_context("the disk is ill")),
            }
        }

        fn limits(&self) -> Limits {
            self.0.limits()
        }

        fn durability(&self) -> Durability {
            self.0.durability()
        }
    }

    #[tokio::test]
    async fn a_store_that_failed_ends_the_server_and_a_closed_one_does_not() {
        let inner = engine::open(&EngineUrl::Memory, IfMissing::Create).unwrap();
        let code = Arc::new(AtomicI32::new(0));
        let failed = tokio::spawn(failure_of(Failing(inner, code.clone())));
        code.store(SHUTDOWN_IN_PROGRESS, Ordering::Relaxed);
        tokio::time::sleep(2 * BETWEEN_LOOKS).await;
        assert!(!failed.is_finished());
        code.store(IO_ERROR, Ordering::Relaxed);
        let said = failed.await.unwrap().to_string();
        assert!(said.contains("the disk is ill") && said.contains("starts it again"), "{said}");
    }
}
