//! A peer that repeats failed requests to another peer.
//!
//! Reads are repeated. So are writes of revisions that were made elsewhere, since an existing revision is not written
//! again. A local document is read before it is written again. Edits that make new revisions are sent once: after a
//! failure it is unknown whether they were written.

use std::sync::Arc;

use async_trait::async_trait;
use model::{BulkGet, Edit, JsonText, Purge, RevId, RevsDiff, WriteMode};

use crate::environment::TimedEnvironment;
use crate::error::{Error, ErrorKind, Result};
use crate::retry::Retry;
use crate::types::{
    Attachment, Changes, FeedRequest, IdRange, Info, ListingPage, LocalDocument, ReadOptions, Revision,
};
use crate::{ByteStream, Peer};

/// A peer that repeats failed requests.
#[derive(Clone, Debug)]
pub struct Steady {
    inner: Arc<dyn Peer>,
    retry: Retry,
}

impl Steady {
    /// Repeats requests to `inner` where that is safe.
    pub fn new(inner: Arc<dyn Peer>, environment: Arc<dyn TimedEnvironment>) -> Self {
        Steady { inner, retry: Retry::new(environment) }
    }

    /// Repeats a failed request this many times; `None` means the default.
    #[must_use]
    pub fn repeating(mut self, times: Option<u32>) -> Self {
        self.retry = self.retry.repeating(times);
        self
    }
}

#[async_trait]
impl Peer for Steady {
    async fn info(&self) -> Result<Info> {
        self.retry.ask(|| self.inner.info()).await
    }

    async fn changes(&self, request: &FeedRequest) -> Result<Changes> {
        self.retry.ask(|| self.inner.changes(request)).await
    }

    async fn list(&self, range: &IdRange) -> Result<ListingPage> {
        self.retry.ask(|| self.inner.list(range)).await
    }

    async fn winners(&self, ids: &[String]) -> Result<Vec<Option<RevId>>> {
        self.retry.ask(|| self.inner.winners(ids)).await
    }

    async fn read(&self, wanted: &[BulkGet], options: ReadOptions) -> Result<Vec<Result<Vec<Revision>>>> {
        self.retry.ask(|| self.inner.read(wanted, options)).await
    }

    /// Not repeated: a caller that forwards the bytes must start again with the whole request.
    fn attachment(&self, id: &str, rev: &RevId, attachment: &Attachment) -> ByteStream {
        self.inner.attachment(id, rev, attachment)
    }

    async fn revs_diff(&self, wanted: Vec<(String, Vec<RevId>)>) -> Result<Vec<RevsDiff>> {
        self.retry.ask(|| self.inner.revs_diff(wanted.clone())).await
    }

    async fn write(&self, edits: Vec<Edit>, mode: WriteMode) -> Result<Vec<Result<RevId>>> {
        if mode == WriteMode::Interactive {
            return self.inner.write(edits, mode).await;
        }
        let mut outcomes: Vec<Option<Result<RevId>>> = vec![None; edits.len()];
        let mut open: Vec<usize> = (0..edits.len()).collect();
        let mut effort = self.retry.effort();
        while !open.is_empty() {
            let some = open.iter().map(|&place| edits[place].clone()).collect();
            let mut is_of_rows = false;
            let failure = match self.inner.write(some, mode).await {
                Ok(written) => {
                    is_of_rows = true;
                    self.retry.answered();
                    let tried = open.len();
                    let mut failure = None;
                    let mut left = Vec::new();
                    for (place, outcome) in open.drain(..).zip(written) {
                        match outcome {
                            Err(error) if error.is_transient() => {
                                failure = Some(error);
                                left.push(place);
                            }
                            outcome => outcomes[place] = Some(outcome),
                        }
                    }
                    open = left;
                    if open.len() < tried {
                        effort.progressed();
                    }
                    failure
                }
                Err(error) if error.is_transient() => Some(error),
                Err(error) => return Err(error),
            };
            match failure {
                Some(failure) => match self.retry.pause(&mut effort, failure).await {
                    Ok(()) => {}
                    // The peer answers, and always fails with these edits: the failure belongs to the edits.
                    Err(given_up) if is_of_rows => {
                        open.drain(..).for_each(|place| outcomes[place] = Some(Err(given_up.clone())));
                    }
                    Err(given_up) => return Err(given_up),
                },
                None => break,
            }
        }
        let no_result = || Err(Error::new(ErrorKind::Unavailable, "the peer returned no result for it"));
        Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(no_result)).collect())
    }

    /// Not repeated: the streams cannot be read twice.
    async fn put(&self, revision: &Revision, contents: Vec<Option<ByteStream>>) -> Result<()> {
        self.inner.put(revision, contents).await
    }

    /// A purge may be repeated. Its answer then lacks revisions removed by an attempt whose answer was lost.
    async fn purge(&self, purges: &[Purge]) -> Result<Vec<Result<Vec<RevId>>>> {
        self.retry.ask(|| self.inner.purge(purges)).await
    }

    async fn get_local(&self, id: &str) -> Result<Option<LocalDocument>> {
        self.retry.ask(|| self.inner.get_local(id)).await
    }

    async fn put_local(&self, id: &str, rev: Option<&str>, body: &JsonText) -> Result<String> {
        let mut effort = self.retry.effort();
        loop {
            match self.inner.put_local(id, rev, body).await {
                Err(failure) if failure.is_transient() => self.retry.pause(&mut effort, failure).await?,
                Err(failure) if failure.kind() == ErrorKind::Conflict => {
                    // This may be our own write, whose response was lost.
                    return match self.get_local(id).await? {
                        Some(found) if found.body == *body => Ok(found.rev),
                        _ => Err(failure),
                    };
                }
                outcome => return outcome,
            }
        }
    }

    async fn commit(&self) -> Result<String> {
        self.retry.ask(|| self.inner.commit()).await
    }
}
