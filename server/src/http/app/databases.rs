//! Handles of databases, kept between requests and renewed when stale.

use std::future::Future;

use quick_cache::sync::Cache;

use crate::http::app::stores::{Documents, Stores};
use crate::http::error::Result;

/// Maximum number of cached handles.
const MOST_KNOWN: usize = 1000;

/// The databases of this server.
#[derive(Debug)]
pub(crate) struct Databases {
    /// The server's own store, and the stores to which databases have moved.
    pub(crate) stores: Stores,
    /// Handles of recently used databases.
    known: Cache<String, Documents>,
}

impl Databases {
    pub(crate) fn new(stores: Stores) -> Self {
        Databases { stores, known: Cache::new(MOST_KNOWN) }
    }

    /// A handle of the database, from the cache if possible, which saves a read of the catalog. A stale handle returns
    /// 404 if its database was dropped, even if another one was created under the name since, and 503 if it moved.
    /// [`Databases::with`] handles both.
    pub(crate) async fn known(&self, name: &str) -> Result<Documents> {
        if let Some(known) = self.known.get(name) {
            return Ok(known);
        }
        // Boxed: it is rare, and unboxed its size would be part of every request's future.
        let found = Box::pin(self.stores.database(name)).await?;
        self.known.insert(name.to_owned(), found.clone());
        Ok(found)
    }

    /// Makes sure that the database exists, as far as the cache knows.
    pub(crate) async fn require(&self, name: &str) -> Result<()> {
        if self.known.contains_key(name) {
            return Ok(());
        }
        self.known(name).await.map(drop)
    }

    /// Runs `work` on a database. If the handle turns out to be stale, it is renewed and `work` runs again. Work that
    /// fails with a stale handle must have changed nothing.
    pub(crate) async fn with<T, F>(&self, name: &str, work: impl Fn(Documents) -> F) -> Result<T>
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

    /// Number of open databases.
    pub(crate) fn open(&self) -> usize {
        self.known.len()
    }

    /// The handles of the open databases.
    pub(crate) fn handles(&self) -> Vec<Documents> {
        self.known.iter().map(|(_, database)| database).collect()
    }

    /// Forgets a handle, so that the next request looks the database up.
    pub(crate) fn forget(&self, name: &str) {
        self.known.remove(name);
    }
}
