//! A consumer of a feed that stores its place under a name.
//!
//! ```text
//!  place ─► a batch of the feed after it
//!  one transaction   is the place still the same?     read with a conflict range
//!                    the caller's effects             edits, and the caller's rows
//!                    the new place                    _local/consumer/NAME of the database
//! ```
//!
//! So the effects of a batch happen exactly once: after a crash, after an unknown result, and beside another consumer
//! of the same name, on any server. A document that changes again after its row was read has a later row, which comes
//! in a later batch.
//!
//! The place is a local document. It moves with its database, and is dropped with it. A handle of a dropped database
//! returns 404, and never reaches the place in another database of that name. If the local document is removed, the
//! consumer starts again.

use json::JsonText;
use kv_api::{Database, RetryError};

use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::feed::change::{Change, ChangesRequest, Since};
use crate::feed::seq::Seq;
use crate::limits::LOCAL_PREFIX;
use crate::read::local::LocalDocument;
use crate::read::stream::Feed;
use crate::write::Edits;

/// Number of rows without effect after which the place is stored anyway.
const MOST_SKIPPED: usize = 2_000;

/// A consumer of a feed, from [`Feed::consumer`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Consumer<D> {
    feed: Feed<D>,
    /// The id of the local document with its place.
    id: String,
}

impl<D: Database> Feed<D> {
    /// A consumer of this feed that keeps its place in the store, under a name.
    pub fn consumer(self, name: &str) -> Consumer<D> {
        Consumer { feed: self, id: format!("{LOCAL_PREFIX}consumer/{name}") }
    }
}

impl<D: Database> Consumer<D> {
    /// The sequence up to which everything is consumed; `None` before anything is stored under the name.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn place(&self) -> Result<Option<Seq>> {
        match self.feed.documents.get_local(&self.id).await {
            Ok(place) => read(&place).map(Some),
            Err(error) if *error.kind() == ErrorKind::NotFound(NotFound::Missing) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Consumes the next rows of the feed, at most `limit` of them. Returns their number: 0 at the end of the feed,
    /// unless the feed is [live](Feed::live), which waits for a change.
    ///
    /// `effect` gets the rows, and the edits of the transaction in which the new place is stored. It may write
    /// documents of any database of the layer, and rows of the caller's own. They are written exactly once for each
    /// row. `effect` may run any number of times, so it must have no other effects. It is not called without rows.
    ///
    /// Cancel-safe: if a call is dropped, the place shows whether its transaction committed.
    ///
    /// # Errors
    /// 404 if the database is gone; errors of `effect`, of refused edits and of
    /// [`Layer::transact`](crate::Layer::transact). The place is then unchanged, unless the result is unknown (1021):
    /// the next call finds out.
    pub async fn consume<E, F, Fut>(&self, limit: usize, mut effect: F) -> Result<usize, E>
    where
        E: RetryError + From<Error>,
        F: FnMut(Edits<D>, Vec<Change>) -> Fut,
        Fut: Future<Output = Result<(), E>>,
    {
        'place: loop {
            let place = self.place().await?;
            let since = place.map_or(self.feed.request.since, Since::Seq);
            let mut request = ChangesRequest { since, limit: Some(limit.max(1)), ..self.feed.request.clone() };
            let mut skipped = 0;
            loop {
                let (batch, filtered) = self.feed.batch(&request, None).await?;
                let (count, next, at_end) = (batch.rows.len(), batch.last_seq, !batch.more);
                skipped += filtered;
                let ends = at_end && !self.feed.live;
                // A place without effects is worth a transaction if it saves reading, or if it cannot be found again.
                let is_due =
                    count > 0 || skipped >= MOST_SKIPPED || (ends && skipped > 0) || request.since == Since::Now;
                if is_due && place != Some(next) {
                    if !self.advance(place, next, &batch.rows, &mut effect).await? {
                        // Another consumer of this name was first.
                        continue 'place;
                    }
                    if count > 0 || ends {
                        return Ok(count);
                    }
                    continue 'place;
                }
                if ends {
                    return Ok(0);
                }
                request.since = Since::Seq(next);
                if at_end {
                    self.feed.documents.watch_changes(next).changed().await?;
                }
            }
        }
    }

    /// Writes the effects of these rows and the new place in one transaction. Returns false, and writes nothing, if the
    /// place is no longer `place`.
    async fn advance<E, F, Fut>(
        &self,
        place: Option<Seq>,
        next: Seq,
        rows: &[Change],
        effect: &mut F,
    ) -> Result<bool, E>
    where
        E: RetryError + From<Error>,
        F: FnMut(Edits<D>, Vec<Change>) -> Fut,
        Fut: Future<Output = Result<(), E>>,
    {
        let body = JsonText::parse(format!(r#"{{"seq":"{next}"}}"#).as_bytes());
        let body = &body.map_err(|_| Error::corrupt("a sequence that is not JSON"))?;
        let documents = &self.feed.documents;
        let once = |edits: Edits<D>| {
            let effect = (!rows.is_empty()).then(|| effect(edits.clone(), rows.to_vec()));
            async move {
                let now = documents.local_within(edits.transaction(), &self.id).await?;
                if now.as_ref().map(read).transpose()? != place {
                    return Ok(false);
                }
                if let Some(effect) = effect {
                    effect.await?;
                }
                documents.put_local_within(edits.transaction(), &self.id, now.map(|now| now.rev), body).await?;
                Ok::<_, E>(true)
            }
        };
        Ok(documents.layer().transact(once).await?.0)
    }
}

fn read(place: &LocalDocument) -> Result<Seq> {
    let seq = place.body.root().get("seq").and_then(|seq| seq.as_str()?.parse().ok());
    seq.ok_or_else(|| Error::corrupt(format!("{} has no sequence", place.id)))
}
