//! Opens a cluster.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use foundationdb::options::DatabaseOption;
use foundationdb::{Database as Native, FdbError};
use kv_api::{Database, Durability, Error, Figure, Limits, Result, Transaction, TransactionOption, error};

use crate::convert;
use crate::network::start_network;
use crate::transaction::{Background, FdbTransaction};

/// Options of a cluster's connection.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The cluster file; `None` for the one in `FDB_CLUSTER_FILE`, or the client's default.
    pub cluster_file: Option<PathBuf>,
    /// How long to wait for the cluster's first answer; zero does not wait.
    pub first_answer: Duration,
    /// Default timeout of transactions, from their start over all retries: then they fail with 1031. `None`, the
    /// client's default, waits while the cluster is unreachable.
    pub transaction_timeout: Option<Duration>,
    /// Maximum number of watches of this handle at a time, from 1 to [`MOST_WATCHES`]: 1032 above it. The client's
    /// default is 10,000.
    pub watches: usize,
    /// Whether transactions get the [tags](TransactionOption::Tag) that are set on them. Off by default: the client asks
    /// for the read versions of many transactions at once, and by default a cluster of 7.3 throttles such a request by
    /// one of its tags.
    pub tags: bool,
}

/// Maximum number of watches that the client allows (`ABSOLUTE_MAX_WATCHES`).
pub const MOST_WATCHES: usize = 1_000_000;

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            cluster_file: None,
            first_answer: Duration::from_secs(5),
            transaction_timeout: None,
            watches: Limits::default().watches,
            tags: false,
        }
    }
}

/// A FoundationDB cluster. A cheap handle.
#[derive(Clone)]
pub struct FdbDatabase {
    native: Arc<Native>,
    cluster_file: Arc<Path>,
    watches: usize,
    /// The default timeout of transactions.
    timeout: Option<Duration>,
    tags: bool,
    /// Whether transactions have batch priority.
    in_background: bool,
}

/// Shortest default timeout of transactions in the background. A cluster at its limit gives them no read version for a
/// while, and the work that they belong to should not fail at once.
const SHORTEST_IN_BACKGROUND: Duration = Duration::from_secs(60);

impl FdbDatabase {
    /// Opens the cluster named by a cluster file, or the default one: [`OpenOptions::default`] with
    /// that file.
    pub async fn open(cluster_file: Option<&Path>) -> Result<Self> {
        let cluster_file = cluster_file.map(Path::to_owned);
        Self::open_with(OpenOptions { cluster_file, ..OpenOptions::default() }).await
    }

    /// Opens a cluster.
    ///
    /// # Errors
    ///
    /// 1515 when the cluster file does not exist, 1513 when it cannot be read, 2104 when it does not name a cluster,
    /// 1031 when no answer came in time. Each error says what was tried and how to check it.
    pub async fn open_with(options: OpenOptions) -> Result<Self> {
        let path = options.cluster_file.unwrap_or_else(default_cluster_file);
        check_cluster_file(&path)?;
        start_network()?;
        let text = path.to_str().ok_or_else(|| {
            Error::new(error::FILE_NOT_READABLE)
                .with_context(format!("the cluster file's path is not UTF-8: {}", path.display()))
        })?;
        let native = Native::from_path(text).map_err(|failure| refused(failure.code(), &path))?;
        if let Some(timeout) = options.transaction_timeout {
            let timeout = DatabaseOption::TransactionTimeout(convert::milliseconds(timeout).max(1));
            native.set_option(timeout).map_err(convert::kv_error)?;
        }
        let watches = options.watches.clamp(1, MOST_WATCHES);
        let most = DatabaseOption::MaxWatches(i32::try_from(watches).unwrap_or(i32::MAX));
        native.set_option(most).map_err(convert::kv_error)?;
        let database = FdbDatabase {
            native: Arc::new(native),
            cluster_file: path.into(),
            watches,
            timeout: options.transaction_timeout,
            tags: options.tags,
            in_background: false,
        };
        if !options.first_answer.is_zero() {
            database.wait_for_answer(options.first_answer).await?;
        }
        Ok(database)
    }

    /// The cluster file in use.
    pub fn cluster_file(&self) -> &Path {
        &self.cluster_file
    }

    /// The crate's own database, for operations outside the trait.
    pub fn native(&self) -> &Native {
        &self.native
    }

    /// Waits until the cluster gives a read version.
    ///
    /// The first answer may be an error that a retry solves: the multi-version client returns 1039 when it first learns
    /// the cluster's version. The timeout covers all retries.
    async fn wait_for_answer(&self, within: Duration) -> Result<()> {
        let probe = self.begin()?;
        probe.set_option(TransactionOption::Timeout(within));
        let failure = loop {
            let Err(failure) = probe.get_read_version().await else { return Ok(()) };
            if let Err(last) = probe.on_error(failure).await {
                break last;
            }
        };
        Err(match failure.code() {
            error::TRANSACTION_TIMED_OUT => Error::new(error::TRANSACTION_TIMED_OUT).with_context(format!(
                "no answer within {} s from the FoundationDB cluster of {path}; check that its servers run and \
                 that this machine reaches them: fdbcli -C {path} --exec status",
                within.as_secs_f32(),
                path = self.cluster_file.display(),
            )),
            // The client reads the file only when it first needs it.
            code => refused(code, &self.cluster_file),
        })
    }
}

/// The client's default cluster file (`administration.rst`, "Specifying the cluster file"): from the environment,
/// then the working directory, then the system's default path.
fn default_cluster_file() -> PathBuf {
    if let Some(path) = std::env::var_os("FDB_CLUSTER_FILE").filter(|path| !path.is_empty()) {
        return path.into();
    }
    let here = PathBuf::from("fdb.cluster");
    if here.exists() { here } else { foundationdb::default_config_path().into() }
}

/// The error for a cluster file that the client refuses.
fn refused(code: i32, path: &Path) -> Error {
    let path = path.display();
    let sentence = match code {
        error::CONNECTION_STRING_INVALID => {
            format!("the cluster file {path} names no cluster; it holds one line, DESCRIPTION:ID@ADDRESS:PORT,...")
        }
        _ => {
            let message = FdbError::from_code(code).message();
            format!("the FoundationDB cluster of {path} cannot be used: {message} ({code})")
        }
    };
    Error::new(code).with_context(sentence)
}

fn check_cluster_file(path: &Path) -> Result<()> {
    // Reads it: opening alone would succeed for a folder.
    match std::fs::read(path) {
        Ok(_) => Ok(()),
        Err(failure) if failure.kind() == std::io::ErrorKind::NotFound => Err(Error::new(error::NO_CLUSTER_FILE_FOUND)
            .with_context(format!(
                "there is no cluster file at {}; name one in the engine's URL or in FDB_CLUSTER_FILE",
                path.display()
            ))),
        Err(failure) => Err(Error::new(error::FILE_NOT_READABLE)
            .with_context(format!("the cluster file {} cannot be read: {failure}", path.display()))),
    }
}

#[deny(clippy::missing_trait_methods)]
impl Database for FdbDatabase {
    type Transaction = FdbTransaction;

    fn begin(&self) -> Result<FdbTransaction> {
        let background = self.in_background.then(|| Background {
            timeout: self.timeout.map_or(Duration::ZERO, |timeout| timeout.max(SHORTEST_IN_BACKGROUND)),
        });
        FdbTransaction::begin(self.native.clone(), background, self.tags)
    }

    /// The transactions have batch priority, and a timeout of at least a minute if there is a default timeout.
    fn in_background(&self) -> Self {
        FdbDatabase { in_background: true, ..self.clone() }
    }

    fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        limits.watches = self.watches;
        limits
    }

    fn durability(&self) -> Durability {
        Durability::Cluster
    }

    /// The cluster compacts by itself.
    fn compact(&self, _: &[u8], _: &[u8]) {}

    fn is_compacting(&self, _: &[u8], _: &[u8]) -> bool {
        false
    }

    fn disk_bytes(&self, _: &[u8], _: &[u8]) -> Option<u64> {
        None
    }

    /// The cluster has its own figures.
    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }

    /// The cluster has backups.
    fn snapshot(&self, folder: &Path) -> Result<()> {
        Err(kv_api::no_snapshot(folder))
    }
}

impl fmt::Debug for FdbDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FdbDatabase").field("cluster_file", &self.cluster_file).finish_non_exhaustive()
    }
}
