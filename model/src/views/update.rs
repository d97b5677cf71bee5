//! Brings a view group up to date from the changes feed.
//!
//! ```text
//!  read      changes after the group's sequence, with their documents      one read version
//!  map       the documents, outside of any transaction
//!  write     the group's row is still the one that was read ─┬─ no: another update was first; start again
//!            id rows ──► old rows out, new rows in ─► nodes  └─ then the group's row names the new sequence
//! ```
//!
//! Map functions run on several threads, each with some documents ([`prepare_some`]). An [update](ViewUpdate) of
//! several batches reads and maps the next documents while it writes. Rows are written by one transaction after the
//! other, in the order of the feed.
//!
//! A document that changes after it was read has a later sequence, so a later batch has it again. Several updates of
//! one group conflict at the group's row: one of them wins, and the others continue after its batch. An update with an
//! unknown result finds the group's row changed, and does the same. So any server may continue an update at any time.
//!
//! A purge has no row in the feed. Each transaction first handles the next purges, and removes the rows of documents
//! that no longer exist. If it handled any, all documents that were already read, including those of the next batch,
//! are read again: one of them may be gone. If purges were forgotten meanwhile, the group is rebuilt.
//!
//! A transaction that is too large or becomes too old is tried again with half as many documents. A document that does
//! not fit even alone gets an error. It has no rows in the view where it emits the most bytes, then in the next such
//! view, until the rest fits.

use std::collections::BTreeMap;

use futures_util::future::join;
use jobs::Hold;
use kv_api::{Database, Read, RetryError, Runner, Transaction};

use super::group::ViewGroup;
use super::prepare::{Prepared, mapped_documents, prepare_some};
use super::step::{Rest, Step, Written};
use super::{BuiltGroup, GroupRow, Upto};
use crate::admin::catalog::allocate;
use crate::admin::purge;
use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::feed::change::{ChangesRequest, Since};
use crate::feed::seq::Seq;
use crate::keys::DatabaseKey;
use crate::read::batch::RETRIES;
use crate::write::is_too_much;

/// Maximum number of documents in a batch.
const DOCUMENTS_AT_ONCE: usize = 1_000;

/// Maximum number of halvings of a transaction's share. After that the share is one document or one purge at most.
const HALVINGS: u32 = 10;

/// The progress of an update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ViewProgress {
    /// The sequence up to which the group is built.
    pub seq: Seq,
    /// Number of documents that this call processed.
    pub documents: u64,
    /// Whether there were more changes.
    pub more: bool,
    /// The number of these documents left out of each view, by its place: they cannot be read, or their functions
    /// exceed a limit.
    pub left_out: BTreeMap<usize, u64>,
}

/// Brings a group up to date, batch by batch, and reads and maps the next batch while one is written.
#[derive(Debug)]
pub struct ViewUpdate<D> {
    documents: Documents<D>,
    group: ViewGroup,
    ahead: Option<Batch>,
}

impl<D: Database> ViewUpdate<D> {
    /// Writes the next batch, of at most `most` documents. With `hold`, only a run that has the job can write.
    ///
    /// # Errors
    /// Like [`Documents::update_views`], and [`ErrorKind::JobLost`](crate::ErrorKind::JobLost).
    pub async fn next(&mut self, most: usize, hold: Option<&Hold>) -> Result<ViewProgress> {
        let update = Update { documents: &self.documents, group: &self.group, hold };
        let state = update.state().await?;
        let batch = match self.ahead.take().filter(|ahead| ahead.after.place() == state.upto.place()) {
            Some(ahead) => ahead,
            None => update.batch(state.upto, most).await?,
        };
        // Purges handled meanwhile invalidate these rows, so the state records their number.
        let next = Upto { seq: batch.last_seq, ..state.upto };
        let more = batch.more;
        let ahead = async {
            // An error will occur again when the batch is read in its turn.
            if more { update.batch(next, most).await.ok() } else { None }
        };
        let (progress, ahead) = join(update.write(state, batch), ahead).await;
        self.ahead = ahead;
        progress
    }
}

/// Documents that were read and mapped.
#[derive(Debug)]
struct Batch {
    /// The group's progress before this batch.
    after: Upto,
    documents: Vec<Prepared>,
    /// The sequence up to which the feed was read.
    last_seq: Seq,
    /// Whether there is more in the feed.
    more: bool,
}

impl<D: Database> Documents<D> {
    /// Brings a group up to the last sequence at the time of the call.
    ///
    /// # Errors
    /// 404 if the database is gone; errors of the functions; the store's errors.
    pub async fn update_views(&self, group: &ViewGroup) -> Result<()> {
        let wanted = self.last_seq().await?;
        let mut update = self.view_update(group);
        loop {
            let progress = update.next(usize::MAX, None).await?;
            if progress.seq >= wanted || !progress.more {
                return Ok(());
            }
        }
    }

    /// An update of many batches.
    pub fn view_update(&self, group: &ViewGroup) -> ViewUpdate<D> {
        ViewUpdate { documents: self.clone(), group: group.clone(), ahead: None }
    }

    /// Processes the next changes, of at most `most` documents. With `hold`, only a run that has the job can write.
    ///
    /// # Errors
    /// Like [`update_views`](Self::update_views), and [`ErrorKind::JobLost`](crate::ErrorKind::JobLost).
    pub async fn update_views_batch(
        &self,
        group: &ViewGroup,
        most: usize,
        hold: Option<&Hold>,
    ) -> Result<ViewProgress> {
        let update = Update { documents: self, group, hold };
        let state = update.state().await?;
        let batch = update.batch(state.upto, most).await?;
        update.write(state, batch).await
    }
}

/// A group being updated. With a hold, only a run that has the job can write.
struct Update<'u, D> {
    documents: &'u Documents<D>,
    group: &'u ViewGroup,
    hold: Option<&'u Hold>,
}

impl<D: Database> Update<'_, D> {
    /// Reads and maps the next documents.
    async fn batch(&self, after: Upto, most: usize) -> Result<Batch> {
        let request = ChangesRequest {
            since: Since::Seq(after.seq),
            limit: Some(most.clamp(1, DOCUMENTS_AT_ONCE)),
            ..mapped_documents()
        };
        let read = self.documents.changes(&request).await?;
        let (count, mut last_seq, mut more) = (read.rows.len(), read.last_seq, read.more);
        let documents = prepare_some(self.group, read.rows).await?;
        if let Some(last) = documents.last().filter(|_| documents.len() < count) {
            (last_seq, more) = (last.seq, true);
        }
        Ok(Batch { after, documents, last_seq, more })
    }

    /// Writes a batch, in as many transactions as needed.
    async fn write(&self, mut state: BuiltGroup, batch: Batch) -> Result<ViewProgress> {
        let Batch { documents: mut prepared, last_seq, more, .. } = batch;
        let mut progress = ViewProgress { seq: state.upto.seq, ..ViewProgress::default() };
        if last_seq <= state.upto.seq {
            return Ok(progress);
        }
        let (mut at, mut halvings) = (0, 0);
        loop {
            let written = match self.step(&state, Rest { documents: &prepared[at..], last_seq }, halvings).await {
                Err(error) if error.kv_error().is_some_and(is_too_much) => {
                    match prepared.get_mut(at) {
                        _ if halvings < HALVINGS => halvings += 1,
                        // Even this document alone does not fit (or a purge does not, and it is never written).
                        Some(one) if !one.rows.is_empty() => one.leave_out_most(self.group),
                        // Its old rows cannot be removed either; rebuilding the group drops them.
                        _ => {
                            self.rebuild(&state).await?;
                            return Ok(ViewProgress { more: true, ..progress });
                        }
                    }
                    continue;
                }
                written => written?,
            };
            let Some(Written { upto, documents: taken }) = written else {
                // Another update continued the group. There may be more.
                return Ok(ViewProgress { more: true, ..progress });
            };
            progress.seq = upto.seq;
            progress.documents += taken as u64;
            for view in prepared[at..at + taken].iter().flat_map(|one| one.left_out.keys()) {
                *progress.left_out.entry(*view).or_default() += 1;
            }
            if upto.seq == last_seq {
                return Ok(ViewProgress { more, ..progress });
            }
            if upto.purge_seq != state.upto.purge_seq {
                // A document of this batch may be gone, and the purge will not be seen again: the rest is read again.
                return Ok(ViewProgress { more: true, ..progress });
            }
            state.upto = upto;
            at += taken;
            halvings = u32::saturating_sub(halvings, 1);
        }
    }

    /// The group as stored. A new group is added.
    async fn state(&self) -> Result<BuiltGroup> {
        let (documents, group) = (self.documents, self.group);
        let found = documents
            .read(|tx| async move {
                let instance = documents.instance(&tx, Read::Snapshot);
                let head = documents.view_head(&tx, group.signature(), Read::Snapshot);
                instance.await?;
                let Some(head) = head.await? else { return Ok(None) };
                let upto = documents.view_upto(&tx, head.number, Read::Snapshot).await?;
                Ok(Some(BuiltGroup { head, upto }))
            })
            .await?;
        match found {
            Some(state) => Ok(state),
            None => documents.add_view_group(group).await,
        }
    }

    /// Writes the first documents of `rest`. `None` if the group is no longer at `state`.
    async fn step(&self, state: &BuiltGroup, rest: Rest<'_>, halvings: u32) -> Result<Option<Written>> {
        let Update { documents, group, hold } = *self;
        Runner::new(documents.engine())
            .option(RETRIES)
            .run(|tx, _| async move {
                let step = Step { documents, tx: &tx, group, state, hold };
                step.write(rest, halvings).await.map_err(OrTooMuch)
            })
            .await
            .map_err(|OrTooMuch(error)| error)
    }

    /// Starts to rebuild the group, if it is still at `state`.
    async fn rebuild(&self, state: &BuiltGroup) -> Result<()> {
        let Update { documents, group, hold } = *self;
        Runner::new(documents.engine())
            .option(RETRIES)
            .run(|tx, _| async move {
                if (Step { documents, tx: &tx, group, state, hold }).is_current().await? {
                    documents.rebuild_views(&tx, state.head.number).await?;
                }
                Ok(())
            })
            .await
    }
}

impl<D: Database> Documents<D> {
    async fn add_view_group(&self, group: &ViewGroup) -> Result<BuiltGroup> {
        let keys = self.keys();
        let mut secret = [0; 16];
        self.shared.guard.environment.random(&mut secret);
        // Adding it twice has the effect of adding it once.
        Runner::new(self.engine())
            .option(RETRIES)
            .run(|tx, _| async move {
                let instance = self.instance(&tx, Read::Serializable);
                let head = self.view_head(&tx, group.signature(), Read::Serializable);
                let allocator = keys.key(DatabaseKey::NextViewGroup);
                let next = tx.get(&allocator, Read::Serializable);
                let purged = tx.get_range(&purge::newest(keys), Read::Snapshot);
                instance.await?;
                if let Some(head) = head.await? {
                    let upto = self.view_upto(&tx, head.number, Read::Snapshot).await?;
                    return Ok(BuiltGroup { head, upto });
                }
                let number = allocate(&tx, &allocator, next.await?.as_deref())?;
                let (is_of_design, name) = (group.is_of_design(), group.name().to_owned());
                let head = GroupRow { number, secret, is_of_design, name };
                let upto = Upto { purge_seq: purge::seq_of(keys, &purged.await?.rows)?, ..Upto::default() };
                tx.set(keys.key(DatabaseKey::ViewGroup(group.signature())), head.write());
                tx.set(keys.key(DatabaseKey::ViewRows(number)), upto.write());
                Ok(BuiltGroup { head, upto })
            })
            .await
    }
}

/// An error that is returned at once if a smaller transaction may succeed, and otherwise retried as usual.
struct OrTooMuch(Error);

impl From<kv_api::Error> for OrTooMuch {
    fn from(error: kv_api::Error) -> Self {
        OrTooMuch(error.into())
    }
}

impl RetryError for OrTooMuch {
    fn kv_error(&self) -> Option<&kv_api::Error> {
        self.0.kv_error().filter(|error| !is_too_much(error))
    }
}
