//! The stores behind a server: its own, and those to which databases moved from there.
//!
//! A database that moved leaves a marker behind, which names its store ([`model::ErrorKind::Moved`]). The server
//! follows the marker, opens that store at first use, and keeps it open. A folder has one owner at a time, so the
//! server of the old place serves the new one too.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use kv_api::AnyDatabase;
use model::{ErrorKind, Layer, LayerOptions, NotFound, Question, Validator, Verdict, Writing};
use tokio::sync::{Mutex, mpsc};

use crate::engine::{self, EngineError, EngineUrl, IfMissing};
use crate::http::error::{ApiError, Result};

/// The documents of one database, over any engine.
pub(crate) type Documents = model::Documents<AnyDatabase>;

/// Waits for changes of one database, over any engine.
pub(crate) type Watcher = model::Watcher<AnyDatabase>;

/// The validator of a handle that does not name a writer: it refuses every document. A write gets a handle that says
/// [on whose behalf](crate::http::authz::writer) it writes, or the server's own handle.
struct NoWriter;

impl Validator for NoWriter {
    fn authorize<'v>(&'v self, writing: Writing<'v>) -> Option<Verdict<'v>> {
        tracing::error!(id = writing.id(), "a write on behalf of nobody");
        Some(self.ask_nobody())
    }

    fn ask(&self, _: Question) -> Verdict<'_> {
        self.ask_nobody()
    }
}

impl NoWriter {
    fn ask_nobody(&self) -> Verdict<'_> {
        Box::pin(std::future::ready(Err(ErrorKind::NotValidated.into())))
    }
}

/// A handle that reads only.
pub(crate) fn read_only(database: Documents) -> Documents {
    static NO_WRITER: LazyLock<Arc<dyn Validator>> = LazyLock::new(|| Arc::new(NoWriter));
    database.validated_by(NO_WRITER.clone())
}

/// Maximum number of markers followed for one database. Moving back replaces a marker, so there are no
/// circles.
const MOST_MOVES: usize = 16;

/// A store that is open.
#[derive(Clone)]
pub(crate) struct Store {
    /// Its absolute URL; `None` for the server's own store if the options do not name it.
    pub(crate) url: Option<EngineUrl>,
    pub(crate) layer: Layer<AnyDatabase>,
}

/// The stores behind a server.
pub(crate) struct Stores {
    own: Store,
    /// The other stores, by their absolute URLs.
    opened: Mutex<HashMap<String, Store>>,
    options: LayerOptions,
    /// Sends newly opened stores to the runner of their jobs.
    newly_opened: mpsc::UnboundedSender<Store>,
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores").field("own", &self.own.url).finish_non_exhaustive()
    }
}

/// Why a store cannot be used, as a message for an administrator.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("{0}")]
    Engine(#[from] EngineError),
    #[error("{0}")]
    Layer(#[from] model::Error),
    #[error("opening it was interrupted")]
    BrokenOff,
}

impl Stores {
    /// `options` are for stores that are opened later. `newly_opened` receives these stores.
    pub(crate) fn new(
        own: Layer<AnyDatabase>,
        url: Option<&EngineUrl>,
        options: LayerOptions,
        newly_opened: mpsc::UnboundedSender<Store>,
    ) -> Self {
        let url = url.and_then(|url| url.absolute().ok());
        Stores { own: Store { url, layer: own }, opened: Mutex::default(), options, newly_opened }
    }

    /// The server's own store.
    pub(crate) fn own(&self) -> Store {
        self.own.clone()
    }

    /// All that are open, the server's own first.
    pub(crate) async fn all(&self) -> Vec<Store> {
        let opened = self.opened.lock().await;
        std::iter::once(&self.own).chain(opened.values()).cloned().collect()
    }

    /// The store with this URL. It is opened at the first call.
    pub(crate) async fn open(&self, url: &EngineUrl, if_missing: IfMissing) -> Result<Store, StoreError> {
        let mut opened = self.opened.lock().await;
        let wanted = url.clone();
        // Opening waits for a disk or for a cluster.
        let known =
            tokio::task::spawn_blocking(move || wanted.absolute()).await.map_err(|_| StoreError::BrokenOff)??;
        if self.own.url.as_ref() == Some(&known) {
            return Ok(self.own.clone());
        }
        if let Some(store) = opened.get(&known.to_string()) {
            return Ok(store.clone());
        }
        let wanted = known.clone();
        let opening = tokio::task::spawn_blocking(move || {
            let engine = engine::open(&wanted, if_missing)?;
            // A new folder may get another absolute name than its parent suggested.
            Ok::<_, EngineError>((engine, wanted.absolute()?))
        });
        let (engine, url) = opening.await.map_err(|_| StoreError::BrokenOff)??;
        let store =
            Store { layer: self.own.layer.open_sibling(engine, self.options.clone()).await?, url: Some(url.clone()) };
        opened.insert(url.to_string(), store.clone());
        // An error says that the server is shutting down.
        let _ = self.newly_opened.send(store.clone());
        Ok(store)
    }

    /// The store that a marker names.
    async fn follow(&self, name: &str, to: &str) -> Result<Store> {
        let opened = match to.parse() {
            Ok(url) => self.open(&url, IfMissing::Fail).await,
            Err(error) => Err(StoreError::from(error)),
        };
        opened.map_err(|error| {
            tracing::error!(%error, database = name, store = to, "the store that a database moved to cannot be opened");
            let reason = "The database is in another store, which cannot be opened; the server's log has the reason.";
            ApiError::unavailable(reason)
        })
    }

    /// The stores from the server's own to the one with the database, and the database. `None` if the last store has no
    /// such database: it was dropped, or never existed.
    async fn trace(&self, name: &str) -> Result<(Vec<Store>, Option<Documents>)> {
        let mut stores = vec![self.own.clone()];
        while let Some(last) = stores.last() {
            match last.layer.database(name).await {
                Ok(documents) => return Ok((stores, Some(read_only(documents)))),
                Err(error) => match error.kind() {
                    ErrorKind::Moved(to) if stores.len() <= MOST_MOVES => {
                        let next = self.follow(name, to).await?;
                        stores.push(next);
                    }
                    ErrorKind::NotFound(NotFound::Database) => break,
                    _ => return Err(error.into()),
                },
            }
        }
        Ok((stores, None))
    }

    /// The database, in whichever store it is.
    pub(crate) async fn database(&self, name: &str) -> Result<Documents> {
        let (_, found) = self.trace(name).await?;
        found.ok_or_else(no_database)
    }

    /// The store with the database.
    pub(crate) async fn home(&self, name: &str) -> Result<Store> {
        match self.trace(name).await? {
            (mut stores, Some(_)) => stores.pop().ok_or_else(no_database),
            (_, None) => Err(no_database()),
        }
    }

    /// The database, and the store where it lives.
    pub(crate) async fn located(&self, name: &str) -> Result<(Store, Documents)> {
        let (mut stores, found) = self.trace(name).await?;
        stores.pop().zip(found).ok_or_else(no_database)
    }

    /// Drops the database, and every marker that leads to it.
    pub(crate) async fn drop_database(&self, name: &str) -> Result<()> {
        let (mut stores, found) = self.trace(name).await?;
        if found.is_none() {
            // The last store has neither the database nor a marker.
            stores.pop();
        }
        if stores.is_empty() {
            return Err(no_database());
        }
        // From the end, so that after a failure no marker leads to a database that is still there.
        for store in stores.into_iter().rev() {
            store.layer.delete_database(name).await?;
        }
        Ok(())
    }
}

fn no_database() -> ApiError {
    ApiError::from(model::Error::new(ErrorKind::NotFound(NotFound::Database))).looked_up()
}
