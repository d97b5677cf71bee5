//! Waits for changes of a database, with the [watch](crate::feed::epoch) that all waiters share, and reads them from
//! the [tail](crate::feed::tail) that they share. If the store has no watch left (1032), they look again after a pause,
//! until it has one.

use std::sync::Arc;
use std::time::Duration;

use futures_timer::Delay;
use futures_util::FutureExt;
use kv_api::error::{TOO_MANY_WATCHES, WATCH_CANCELLED};
use kv_api::{BoxFuture, Database, Read, RetryError, Transaction};

use crate::admin::info;
use crate::documents::Documents;
use crate::error::Result;
use crate::feed::change::{ChangesBatch, ChangesRequest};
use crate::feed::epoch::{Armed, Feed};
use crate::feed::seq::Seq;
use crate::feed::tail::Tail;
use crate::keys::DatabaseKey;

/// Pause before looking at the database again, if the store has no watch left.
const POLL: Duration = Duration::from_secs(2);

/// Waits for changes of a database.
#[derive(Clone, Debug)]
pub struct Watcher<D> {
    documents: Documents<D>,
    feed: Arc<Feed>,
    /// The tail that was read last.
    tail: Option<Arc<Tail>>,
    seen: Seq,
}

impl<D: Database> Watcher<D> {
    /// Records that everything up to `seq` has been read: only later changes end the wait.
    pub fn saw(&mut self, seq: Seq) {
        self.seen = self.seen.max(seq);
    }

    /// A batch of the feed, as [`Documents::changes`] reads it. All watchers of the database in this process share the
    /// read if their requests have the same options, wherever they start.
    ///
    /// It may lack changes that were made before the call. If it lacks one that has ended a [wait](Self::changed) of
    /// this watcher, there is [more](ChangesBatch::more).
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn changes(&mut self, request: &ChangesRequest) -> Result<ChangesBatch> {
        match self.shared_changes(request, |reading| reading.map(Result::ok).boxed()).await {
            Some(batch) => Ok(batch),
            None => self.documents.changes(request).await,
        }
    }

    /// The same, if the watchers share these rows; otherwise `None`, and the caller has to read. So it is after an
    /// error. `run` runs the read, if there is to be one, and may give up.
    pub async fn shared_changes(
        &mut self,
        request: &ChangesRequest,
        run: impl FnOnce(BoxFuture<Result<ChangesBatch>>) -> BoxFuture<Option<ChangesBatch>>,
    ) -> Option<ChangesBatch> {
        let (shape, since) = Tail::shape(request)?;
        let tail = match self.tail.take() {
            Some(tail) if tail.has_shape(&shape) => tail,
            _ => self.feed.tail(shape),
        };
        let documents = self.documents.clone();
        let read = |request| run(async move { documents.changes(&request).await }.boxed());
        let now_ms = self.documents.shared.guard.environment.now_ms();
        let tail = self.tail.insert(tail);
        let batch = tail.batch(request, since, now_ms, read).await;
        if Arc::strong_count(&self.feed) == 1 {
            // Nobody else waits for these rows.
            tail.clear();
        }
        let mut batch = batch?;
        if batch.last_seq < self.seen {
            // The rows were read before that change. Without a step forward, this must not be tried again and again.
            (batch.more, batch.pending) = (true, None);
            return (batch.last_seq > since).then_some(batch);
        }
        Some(batch)
    }

    /// Waits until the database's last sequence is beyond the one seen. Returns the sequence, which counts as
    /// seen.
    ///
    /// Cancel-safe: a call that is dropped leaves the watcher as it was.
    ///
    /// # Errors
    /// 404 if the database was dropped, and [`ErrorKind::Moved`](crate::ErrorKind::Moved) if it moved to another store:
    /// both end all waiting; the store's errors.
    pub async fn changed(&mut self) -> Result<Seq> {
        loop {
            let epoch = self.feed.epoch(|| arm(self.documents.clone()).boxed().shared());
            let armed = match epoch.arming.await {
                Ok(armed) => armed,
                Err(error) => {
                    self.feed.end(epoch.number);
                    return Err(error);
                }
            };
            if armed.last > self.seen {
                self.seen = armed.last;
                // The watched value has been seen by now. The watch is left for other waiters.
                return Ok(armed.last);
            }
            let fired = armed.fired.await;
            self.feed.end(epoch.number);
            match fired {
                Err(error) if error.code() != WATCH_CANCELLED && !error.is_retryable() => return Err(error.into()),
                // If the store drops a watch, its waiters read again, as after a change.
                Ok(()) | Err(_) => {}
            }
        }
    }
}

impl<D: Database> Documents<D> {
    /// A watcher that has seen everything up to `seen`. With the last sequence of a [`changes`](Self::changes)
    /// call, no later change is missed.
    pub fn watch_changes(&self, seen: Seq) -> Watcher<D> {
        let mut feeds = self.shared.feeds.lock();
        // By the key prefix: a database that moved away and came back has another one.
        let place = self.keys().prefix();
        let known = feeds.get(place).and_then(std::sync::Weak::upgrade);
        let feed = known.unwrap_or_else(|| {
            feeds.retain(|_, feed| feed.strong_count() > 0);
            let feed = Arc::new(Feed::default());
            feeds.insert(place.clone(), Arc::downgrade(&feed));
            feed
        });
        Watcher { documents: self.clone(), feed, tail: None, seen }
    }
}

/// Arms a watch on the database's last sequence.
async fn arm<D: Database>(documents: Documents<D>) -> Result<Armed> {
    let transaction = documents.engine().begin()?;
    let key = documents.keys().key(DatabaseKey::Last);
    loop {
        let instance = documents.instance(&transaction, Read::Snapshot);
        let last = transaction.get(&key, Read::Snapshot);
        let version = transaction.get_read_version();
        let watch = transaction.watch(&key);
        let armed = async {
            let instance = instance.await?;
            let last = info::read_last(last.await?.as_deref())?;
            documents.check_last(&instance, last, version.await?)?;
            transaction.commit().await?;
            Ok(last)
        };
        match armed.await {
            Ok(last) => return Ok(Armed { last, fired: or_poll(watch).boxed().shared() }),
            Err(failure) => {
                let failure: crate::Error = failure;
                match failure.kv_error().cloned() {
                    Some(error) => transaction.on_error(error).await?,
                    None => return Err(failure),
                }
            }
        }
    }
}

/// Waits for the watch, or for the pause if the store refused it.
async fn or_poll(watch: impl Future<Output = kv_api::Result<()>>) -> kv_api::Result<()> {
    match watch.await {
        Err(error) if error.code() == TOO_MANY_WATCHES => {
            Delay::new(POLL).await;
            Ok(())
        }
        fired => fired,
    }
}
