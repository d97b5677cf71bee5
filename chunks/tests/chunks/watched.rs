//! A store that calls a hook just before documents are written.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use chunks::store::{Body, Changes, DocumentStore, Edit, Figures, IdRange, Leaf, ListingPage, StoreResult, Written};

/// The hook.
#[async_trait]
pub(crate) trait BeforeWrite: Debug + Send + Sync + 'static {
    async fn before_write(&self, inner: &dyn DocumentStore, edits: &[Edit]) -> StoreResult<()>;
}

/// The store.
#[derive(Debug)]
pub(crate) struct Watched<W> {
    pub(crate) inner: Arc<dyn DocumentStore>,
    pub(crate) watch: W,
}

#[async_trait]
impl<W: BeforeWrite> DocumentStore for Watched<W> {
    async fn leaves(&self, ids: &[String], with_ancestors: bool) -> StoreResult<Vec<Vec<Leaf>>> {
        self.inner.leaves(ids, with_ancestors).await
    }
    async fn local(&self, id: &str) -> StoreResult<Option<Body>> {
        self.inner.local(id).await
    }
    async fn revs(&self, ids: &[String]) -> StoreResult<Vec<Option<String>>> {
        self.inner.revs(ids).await
    }
    async fn write(&self, edits: Vec<Edit>) -> StoreResult<Vec<Written>> {
        self.watch.before_write(&*self.inner, &edits).await?;
        self.inner.write(edits).await
    }
    async fn graft(&self, leaves: Vec<(String, Leaf)>) -> StoreResult<()> {
        self.inner.graft(leaves).await
    }
    async fn list(&self, range: &IdRange) -> StoreResult<ListingPage> {
        self.inner.list(range).await
    }
    async fn changes(&self, since: Option<&str>, limit: usize) -> StoreResult<Changes> {
        self.inner.changes(since, limit).await
    }
    async fn figures(&self) -> StoreResult<Figures> {
        self.inner.figures().await
    }
    async fn takes(&self, bytes: usize) -> StoreResult<bool> {
        self.inner.takes(bytes).await
    }
}
