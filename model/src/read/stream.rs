//! The feed as a stream of rows.
//!
//! Rows are read in batches, each in a transaction of its own, as they are taken. At the end, the live streams of a
//! database share the [watch](crate::feed::epoch) with which they wait, and the [reads](crate::feed::tail) of what comes
//! then. A filter is a closure. It sees rows that were already read, so it saves the work after the read, not the read
//! itself.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use futures_util::stream::{self, Stream};
use kv_api::Database;

use crate::documents::Documents;
use crate::error::Result;
use crate::feed::change::{Change, ChangesBatch, ChangesRequest, Since};
use crate::feed::watcher::Watcher;
use crate::rows::id_set::IdSet;

type Filter = Arc<dyn Fn(&Change) -> bool + Send + Sync>;

/// A part of a database's feed to read, from [`Documents::feed`]. It is read by a [stream](Self::stream), or by a
/// [consumer](Self::consumer), which keeps its place in the store.
#[derive(Clone)]
pub struct Feed<D> {
    pub(crate) documents: Documents<D>,
    pub(crate) request: ChangesRequest,
    pub(crate) live: bool,
    filter: Option<Filter>,
}

impl<D> fmt::Debug for Feed<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Feed { documents, request, live, filter } = self;
        let mut debug = f.debug_struct("Feed");
        debug.field("documents", documents).field("request", request).field("live", live);
        debug.field("filter", &filter.is_some()).finish()
    }
}

impl<D: Database> Documents<D> {
    /// The feed from its start to its end: one row for each document, in the order of their last changes.
    pub fn feed(&self) -> Feed<D> {
        Feed { documents: self.clone(), request: ChangesRequest::default(), live: false, filter: None }
    }
}

impl<D: Database> Feed<D> {
    /// Only changes after `seq`, or from now on. A consumer starts there if its name has no place yet.
    #[must_use]
    pub fn since(mut self, since: impl Into<Since>) -> Self {
        self.request.since = since.into();
        self
    }

    /// With the documents at their winners, including deleted ones.
    #[must_use]
    pub fn with_documents(mut self) -> Self {
        self.request.include_docs = true;
        self
    }

    /// Only these documents.
    #[must_use]
    pub fn of_documents(mut self, ids: impl Into<IdSet>) -> Self {
        self.request.doc_ids = Some(ids.into());
        self
    }

    /// Only rows for which all filters return true. A row of a document that cannot be read has an
    /// [error](Change::error), and no document.
    #[must_use]
    pub fn filter(mut self, filter: impl Fn(&Change) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Some(match self.filter {
            None => Arc::new(filter),
            Some(first) => Arc::new(move |row| first(row) && filter(row)),
        });
        self
    }

    /// Continues at the end: waits for changes, and does not end by itself.
    #[must_use]
    pub fn live(mut self) -> Self {
        self.live = true;
        self
    }

    /// The rows. The stream ends after an error; the rows before it are valid, so a new stream continues after the
    /// last.
    pub fn stream(self) -> impl Stream<Item = Result<Change>> + Send {
        let state = Reading { feed: self, rows: VecDeque::new(), at_end: false, watcher: None };
        stream::try_unfold(state, |mut state| async move {
            let row = state.next().await?;
            Ok(row.map(|row| (row, state)))
        })
    }

    /// Reads a batch, without the rows that are filtered out, and their number. A watcher shares the read with others.
    pub(crate) async fn batch(
        &self,
        request: &ChangesRequest,
        watcher: Option<&mut Watcher<D>>,
    ) -> Result<(ChangesBatch, usize)> {
        let mut batch = match watcher {
            Some(watcher) => watcher.changes(request).await?,
            None => self.documents.changes(request).await?,
        };
        let read = batch.rows.len();
        if let Some(filter) = &self.filter {
            batch.rows.retain(|row| filter(row));
        }
        let filtered = read - batch.rows.len();
        Ok((batch, filtered))
    }
}

/// A running stream.
struct Reading<D> {
    /// Its request starts after the rows that were read.
    feed: Feed<D>,
    /// Rows that were read but not taken.
    rows: VecDeque<Change>,
    /// Whether everything has been read.
    at_end: bool,
    watcher: Option<Watcher<D>>,
}

impl<D: Database> Reading<D> {
    async fn next(&mut self) -> Result<Option<Change>> {
        loop {
            if let Some(row) = self.rows.pop_front() {
                return Ok(Some(row));
            }
            if self.at_end {
                if !self.feed.live {
                    return Ok(None);
                }
                if let Some(watcher) = &mut self.watcher {
                    watcher.changed().await?;
                }
            }
            let (batch, _) = self.feed.batch(&self.feed.request, self.watcher.as_mut()).await?;
            self.feed.request.since = Since::Seq(batch.last_seq);
            self.at_end = !batch.more;
            self.rows = batch.rows.into();
            if self.feed.live && self.at_end {
                let documents = &self.feed.documents;
                let watcher = self.watcher.get_or_insert_with(|| documents.watch_changes(batch.last_seq));
                watcher.saw(batch.last_seq);
            }
        }
    }
}
