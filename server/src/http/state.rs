//! What all requests share.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use kv_api::AnyDatabase;
use model::limits::DEFAULT_MAX_DOCUMENT_SIZE;
use model::{Layer, LayerOptions};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::auth::{Administrator, Auth, SECRET_BYTES};
use super::cors::CorsOptions;
use super::error::{ApiError, Result};
use super::relocate::Relocations;
use super::stores::Stores;
use super::uuids::{RequestIds, Uuids};
use crate::engine::EngineUrl;

/// The documents of one database, over whichever engine.
pub(crate) type Documents = model::Documents<AnyDatabase>;

/// Handles of databases that are kept at a time.
const MOST_KNOWN: usize = 1000;

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The administrator. `None`: everyone who can connect is one.
    pub administrator: Option<Administrator>,
    /// Which web pages may ask.
    pub cors: CorsOptions,
    /// The largest body of a request in bytes, packed and unpacked. Larger ones are answered 413.
    pub max_request_size: usize,
    /// Threads for long scans, which run beside those that serve requests.
    pub scan_threads: usize,
    /// The store that is served, so that databases can be moved from it and back to it.
    pub store: Option<EngineUrl>,
    /// The largest document in the stores that databases are moved to, in bytes of compact JSON.
    pub max_document_size: usize,
    /// Threads that may share the processor's work of one request; in the stores that databases are moved to as well.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            administrator: None,
            cors: CorsOptions::default(),
            max_request_size: 64 << 20,
            scan_threads: std::thread::available_parallelism().map_or(2, usize::from).max(2),
            store: None,
            max_document_size: DEFAULT_MAX_DOCUMENT_SIZE,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// What a store says of the server that serves it: the same after every restart.
#[derive(Clone)]
pub(crate) struct Identity {
    /// In hexadecimal, shown at `/`.
    pub(crate) uuid: String,
    /// Signs cookies.
    pub(crate) secret: [u8; SECRET_BYTES],
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("uuid", &self.uuid).finish_non_exhaustive()
    }
}

/// What all requests share.
#[derive(Debug)]
pub(crate) struct App {
    /// The server's own store, which has the catalog of all databases.
    pub(crate) layer: Layer<AnyDatabase>,
    /// It, and those that databases moved to.
    pub(crate) stores: Stores,
    pub(crate) relocations: Relocations,
    pub(crate) options: Options,
    pub(crate) auth: Auth,
    pub(crate) uuids: Uuids,
    pub(crate) request_ids: RequestIds,
    pub(crate) uuid: String,
    scans: Scans,
    /// Handles of databases that were read lately; see [`App::known`].
    known: Mutex<HashMap<String, Documents>>,
    stopping: watch::Receiver<bool>,
}

impl App {
    /// `stopping` turns true when the server shuts down.
    pub(crate) fn new(
        layer: Layer<AnyDatabase>,
        identity: Identity,
        options: Options,
        stopping: watch::Receiver<bool>,
    ) -> std::io::Result<Self> {
        let auth = Auth::new(options.administrator.clone(), identity.secret);
        let scans = Scans::new(options.scan_threads)?;
        let others = LayerOptions {
            max_document_size: options.max_document_size,
            threads: options.threads,
            ..LayerOptions::default()
        };
        let stores = Stores::new(layer.clone(), options.store.as_ref(), others);
        Ok(App {
            layer,
            stores,
            relocations: Relocations::default(),
            options,
            auth,
            uuids: Uuids::default(),
            request_ids: RequestIds::new(),
            uuid: identity.uuid,
            scans,
            known: Mutex::default(),
            stopping,
        })
    }

    /// A handle of the database, perhaps from before: that spares a read of the catalog. Such a handle
    /// answers 404 once its database is dropped, even where there is another of its name by then, and 503
    /// once it moved; see [`App::with_database`].
    pub(crate) async fn known(&self, name: &str) -> Result<Documents> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let found = self.stores.database(name).await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(name.to_owned(), found.clone());
        Ok(found)
    }

    /// Does some work on a database, and once more on a new handle where the first turns out to be old. Work
    /// that meets an old handle must have done nothing.
    pub(crate) async fn with_database<T, F>(&self, name: &str, work: impl Fn(Documents) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        match work(self.known(name).await?).await {
            Err(error) if error.is_stale_handle() => {
                self.forget(name);
                work(self.known(name).await?).await
            }
            outcome => outcome,
        }
    }

    /// Forgets a handle. One that somebody has renewed meanwhile is looked up again, which harms nothing.
    pub(crate) fn forget(&self, name: &str) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Runs a page of a scan on threads of its own. Embedded engines read where they are called, and
    /// a cold page takes as long as the disk does: heartbeats and small requests do not wait for it.
    pub(crate) async fn scan<T, F>(self: &Arc<Self>, page: F) -> Result<T>
    where
        F: Future<Output = model::Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        match self.scans.spawn(page).await {
            Some(outcome) => outcome.map_err(ApiError::from),
            None => Err(ApiError::internal()),
        }
    }

    /// Runs long work on the threads for scans, whoever asked for it and goes away. `None` when the server
    /// is going away.
    pub(crate) fn spawn_scan(&self, work: impl Future<Output = ()> + Send + 'static) -> Option<JoinHandle<()>> {
        self.scans.0.as_ref().map(|runtime| runtime.spawn(work))
    }

    /// Whether the server shuts down.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Completes when the server shuts down.
    pub(crate) async fn stopping(&self) {
        // An error says that the server is gone altogether.
        let _ = self.stopping.clone().wait_for(|stopping| *stopping).await;
    }
}

/// A runtime for what reads much.
struct Scans(Option<Runtime>);

impl Scans {
    fn new(threads: usize) -> std::io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(threads.max(1)).thread_name("couch-scan").enable_all();
        builder.build().map(|runtime| Scans(Some(runtime)))
    }

    /// `None` when the task panicked or the server is going away.
    async fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Option<T> {
        /// Ends the task when the client that it works for is gone.
        struct Aborting<T>(JoinHandle<T>);
        impl<T> Drop for Aborting<T> {
            fn drop(&mut self) {
                self.0.abort();
            }
        }
        let mut task = Aborting(self.0.as_ref()?.spawn(task));
        (&mut task.0).await.ok()
    }
}

impl Drop for Scans {
    fn drop(&mut self) {
        // A runtime that is dropped waits for its threads, which must not happen on another runtime's.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Scans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scans")
    }
}
