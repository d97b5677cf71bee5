//! Moving a database from one store to another, while it is in use (RFC 001 and RFC 003, "Incarnation").
//!
//! ```text
//!             source                                target
//!   begin     open                                  (6, Name): progress of the copy; hidden
//!   copy      open, being edited      ── rows ──►   arriving; hidden from clients
//!   verify    open, being edited      ◄─ compared ─►  arriving
//!   close     closing: read only
//!   finish    closing                 ── rest ──►   arriving
//!   publish   closing                               open, incarnation + 1, in the catalog
//!   leave     moved to the target; its rows stay    open
//! ```
//!
//! Rows are copied unchanged, under another prefix: no value in a database refers to its place. The copy follows the
//! changes feed, whose sequence is its checkpoint. A document that is edited meanwhile moves beyond the checkpoint and
//! is copied again. Rows without a sequence (local documents, the security object, references to attachments) are
//! compared and corrected as ranges, once before and once after the fence; see [`mirror`]. Contents of attachments are
//! copied like that too, but are read only once; see [`contents`]. The feed does not show purged documents; see
//! [`purges`].
//!
//! # Invariants
//! * The fence is the state in the instance row, which every writer reads with a conflict range. So nothing is written
//!   to the source after it is closed, and nothing to the target before it is published.
//! * Old sequences stay the same. The target's incarnation is one higher. So new sequences sort after the old ones,
//!   whatever their commit versions.
//! * Each step is one transaction in one store, and checks whether it is already done. A run may end anywhere, and
//!   the next one continues. The source is authoritative until the target is published, which happens only while the
//!   source is closed. From then on, the target is.
//! * Every run first writes its id to the target, and every transaction on the target reads it. So of two runs the
//!   later continues and the earlier fails.
//! * Rows of the source are deleted only on request.

mod arrival;
mod contents;
mod copy;
mod departure;
mod mirror;
mod purges;
mod rows;
mod verify;

use std::ops::ControlFlow;

use kv_api::Database;

use crate::documents::Documents;
use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::feed::seq::Seq;
use crate::keys::{DatabaseKey, Subspace};
use crate::layer::Layer;
use crate::rows::instance::DatabaseState;

use arrival::{Arriving, Begun};
use departure::Departing;
use verify::Comparison;

pub use verify::VerifyReport;

/// Options of a relocation, and the names of both stores.
#[derive(Clone, Debug, Default)]
pub struct RelocateOptions {
    /// The source's name. The target stores it during the copy, for errors.
    pub from: String,
    /// The target's name. The source stores it permanently, and returns it to clients that request the database
    /// ([`ErrorKind::Moved`]).
    pub to: String,
    /// Compare all rows on both sides before publishing the target.
    pub verify: bool,
    /// Delete the rows at the source after the move. The marker with the target's name is kept.
    pub delete_source: bool,
}

/// The phase of a relocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RelocatePhase {
    /// Rows are copied. The database is in use.
    Copying,
    /// Both sides are compared. The database is in use.
    Verifying,
    /// The rest is copied. The database can be read but not written.
    Finishing,
    /// The target is published. Only the marker at the source remains to be written.
    Leaving,
}

/// The progress of a relocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelocateProgress {
    /// The phase.
    pub phase: RelocatePhase,
    /// Number of documents copied, or compared, by this run and earlier runs. A document edited meanwhile counts
    /// several times.
    pub documents: u64,
    /// Number of documents in the database when the run began.
    pub expected: u64,
}

/// The result of a relocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelocateReport {
    /// Whether the database is at the target now. It is not if the sides differ.
    pub moved: bool,
    /// Whether it was at the target before this run.
    pub moved_before: bool,
    /// Number of documents that this run copied.
    pub documents: u64,
    /// The database's incarnation now.
    pub incarnation: u8,
    /// The result of the comparison, if one was requested.
    pub verified: Option<VerifyReport>,
}

/// Moves a database from `source` to `target`, or continues a move.
///
/// `progress` is called between transactions and may [stop](ControlFlow::Break) the relocation there. A later run
/// continues at that point. If a relocation fails while the source is closed, it opens the source again, unless the
/// target may have been published.
///
/// # Errors
/// 404; [`ErrorKind::FileExists`] if the target has another database of that name; [`ErrorKind::Relocation`] if another
/// database is being moved there under that name, or this one to another store; [`ErrorKind::Moved`] if it moved to
/// another store before; [`ErrorKind::Stopped`]; errors of either store.
pub async fn relocate<S, T, F>(
    source: &Layer<S>,
    target: &Layer<T>,
    name: &str,
    options: &RelocateOptions,
    progress: F,
) -> Result<RelocateReport>
where
    S: Database,
    T: Database,
    F: FnMut(RelocateProgress) -> ControlFlow<()> + Send,
{
    let departing = Departing::find(source, name).await?;
    if let DatabaseState::Moved { to } = &departing.instance.state {
        let Some(there) = arrival::published(target, name, &departing.instance).await? else {
            return Err(ErrorKind::Moved(to.clone()).into());
        };
        return moved_before(departing, there, options, progress).await;
    }
    if departing.instance.incarnation == u8::MAX {
        return Err(Error::relocation("The database has moved 255 times and cannot move again."));
    }
    if let DatabaseState::Closing { to, .. } = &departing.instance.state
        && *to != options.to
    {
        let reason =
            format!("The database was about to move to {to}: finish that, or abandon it, before it moves elsewhere.");
        return Err(Error::relocation(reason));
    }
    // A replicator that knows the source's server by its identity then knows the target's server too.
    target.identity_or(source.identity().await?).await?;
    let arriving = match Arriving::begin(target, name, &departing.instance, &options.from).await? {
        Begun::UnderWay(arriving) => arriving,
        Begun::Published(there) if matches!(departing.instance.state, DatabaseState::Closing { .. }) => {
            departing.leave(&options.to).await?;
            return moved_before(departing, there, options, progress).await;
        }
        // The source was restored from before the move.
        Begun::Published(_) => return Err(ErrorKind::FileExists.into()),
    };
    // An earlier run may have left the source closed. That run is over.
    departing.open(None).await?;
    let documents = arriving.arrival.documents;
    let in_use = (departing.documents.clone(), arriving.documents.clone());
    let mut run = Run { departing, arriving, in_use, options, progress, expected: 0, documents, copied: 0 };
    let outcome = run.run().await;
    if outcome.is_err() && run.departing.is_gone().await {
        // The database was dropped during the copy, so the copy is useless.
        abandon_relocation(source, target, name).await?;
    }
    outcome
}

/// Abandons a relocation: removes the copy from `target`, and opens the database at `source` again if it was closed.
/// Returns whether there was anything to abandon.
///
/// # Errors
/// [`ErrorKind::Relocation`] if the target was published: then the move can only be finished.
pub async fn abandon_relocation<S: Database, T: Database>(
    source: &Layer<S>,
    target: &Layer<T>,
    name: &str,
) -> Result<bool> {
    let departing = match Departing::find(source, name).await {
        Ok(departing) => Some(departing),
        Err(error) if *error.kind() == ErrorKind::NotFound(NotFound::Database) => None,
        Err(error) => return Err(error),
    };
    if let Some(departing) = &departing
        && arrival::published(target, name, &departing.instance).await?.is_some()
    {
        return Err(Error::relocation("The database has moved already. The move can be finished, but not abandoned."));
    }
    let removed = arrival::remove(target, name, departing.as_ref().map(|departing| &departing.instance)).await?;
    let opened = match departing {
        Some(departing) => departing.open(None).await?,
        None => false,
    };
    Ok(removed || opened)
}

/// The remaining steps if an earlier run published the target.
async fn moved_before<S, T, F>(
    departing: Departing<S>,
    there: Documents<T>,
    options: &RelocateOptions,
    mut progress: F,
) -> Result<RelocateReport>
where
    S: Database,
    T: Database,
    F: FnMut(RelocateProgress) -> ControlFlow<()> + Send,
{
    // The target may have another name now.
    departing.leave(&options.to).await?;
    let incarnation = departing.instance.incarnation + 1;
    let mut report = RelocateReport { moved: true, moved_before: true, incarnation, ..RelocateReport::default() };
    if options.verify {
        let mut comparison = Comparison::new(departing.remains(), there, incarnation);
        let expected = departing.count().await?;
        let mut on =
            |documents| step(&mut progress, RelocateProgress { phase: RelocatePhase::Verifying, documents, expected });
        comparison.documents(None, &mut on).await?;
        comparison.additions(&mut on).await?;
        report.verified = Some(comparison.report);
    }
    if options.delete_source && report.is_same() {
        departing.delete_rows().await?;
    }
    Ok(report)
}

impl RelocateReport {
    /// Whether no difference was found.
    pub fn is_same(&self) -> bool {
        self.verified.as_ref().is_none_or(|verified| verified.difference_count == 0)
    }
}

/// Reports the progress. Fails with [`ErrorKind::Stopped`] if the observer stops the relocation.
fn step(progress: &mut (impl FnMut(RelocateProgress) -> ControlFlow<()> + Send), at: RelocateProgress) -> Result<()> {
    match progress(at) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(ErrorKind::Stopped.into()),
    }
}

/// One run of a relocation.
struct Run<'a, S, T, F> {
    departing: Departing<S>,
    arriving: Arriving<T>,
    /// The two databases, while their handles in `departing` and `arriving` are in the background.
    in_use: (Documents<S>, Documents<T>),
    options: &'a RelocateOptions,
    progress: F,
    expected: u64,
    /// Number of documents copied by all runs.
    documents: u64,
    /// Number of documents copied by this run.
    copied: u64,
}

impl<S, T, F> Run<'_, S, T, F>
where
    S: Database,
    T: Database,
    F: FnMut(RelocateProgress) -> ControlFlow<()> + Send,
{
    fn step(&mut self, phase: RelocatePhase) -> Result<()> {
        let at = RelocateProgress { phase, documents: self.documents, expected: self.expected };
        step(&mut self.progress, at)
    }

    async fn run(&mut self) -> Result<RelocateReport> {
        self.expected = self.departing.count().await?;
        if self.departing.documents.last_seq().await? < self.arriving.arrival.copied {
            // The source was restored from before the copy began.
            self.arriving.start_over().await?;
            self.documents = 0;
        }
        self.step(RelocatePhase::Copying)?;
        self.departing.documents = self.in_use.0.clone().in_background();
        self.arriving.documents = self.in_use.1.clone().in_background();
        self.catch_up().await?;
        self.mirror_settings(RelocatePhase::Copying).await?;
        let mut comparison = self.options.verify.then(|| {
            let (source, target) = (self.departing.documents.clone(), self.arriving.documents.clone());
            Comparison::new(source, target, self.departing.instance.incarnation + 1)
        });
        if let Some(comparison) = &mut comparison {
            self.compare(comparison, RelocatePhase::Verifying).await?;
            let (progress, expected) = (&mut self.progress, self.expected);
            let mut on =
                |documents| step(progress, RelocateProgress { phase: RelocatePhase::Verifying, documents, expected });
            comparison.additions(&mut on).await?;
            comparison.contents(false).await?;
            // Copies what was edited during the comparison.
            self.catch_up().await?;
        }
        let mut publishing = false;
        let run = self.arriving.arrival.run;
        let finished = self.finish(&mut comparison, &mut publishing).await;
        let stopped = matches!(&finished, Err(error) if *error.kind() == ErrorKind::Stopped);
        let failed = finished.is_err() || comparison.as_ref().is_some_and(|comparison| !comparison.is_same());
        if failed && !publishing && !stopped {
            // Opens the source again after any failure. If that fails too, the first error is more useful.
            let opened = self.departing.open(Some(run)).await;
            if finished.is_ok() {
                opened?;
            }
        }
        finished?;
        let verified = comparison.map(|comparison| comparison.report);
        let incarnation = self.departing.instance.incarnation + u8::from(publishing);
        let moved_before = false;
        Ok(RelocateReport { moved: publishing, moved_before, documents: self.copied, incarnation, verified })
    }

    /// Closes the source, copies the rest, and publishes the target unless the sides differ.
    async fn finish(&mut self, comparison: &mut Option<Comparison<S, T>>, publishing: &mut bool) -> Result<()> {
        let phase = RelocatePhase::Finishing;
        if comparison.as_ref().is_some_and(|comparison| !comparison.is_same()) {
            return Ok(());
        }
        self.step(phase)?;
        // Writers wait from here on.
        (self.departing.documents, self.arriving.documents) = self.in_use.clone();
        if let Some(comparison) = comparison {
            comparison.reads_from(self.in_use.clone());
        }
        let instance = self.departing.close(&self.options.to, self.arriving.arrival.run).await?;
        self.step(phase)?;
        while self.copy_page(phase).await? {}
        self.mirror_settings(phase).await?;
        let totals = self.departing.totals().await?;
        self.arriving.set_totals(&totals).await?;
        self.step(phase)?;
        if let Some(comparison) = comparison {
            self.compare(comparison, phase).await?;
            comparison.settings().await?;
            self.step(phase)?;
            if !comparison.is_same() {
                return Ok(());
            }
        }
        *publishing = true;
        self.arriving.publish(&instance).await?;
        self.step(RelocatePhase::Leaving)?;
        self.departing.leave(&self.options.to).await?;
        self.step(RelocatePhase::Leaving)?;
        if self.options.delete_source {
            self.departing.delete_rows().await?;
        }
        Ok(())
    }

    /// Copies page after page until the copy has caught up with the feed. If edits are faster than the copy, it ends
    /// after copying every document twice: the rest is copied after the fence.
    async fn catch_up(&mut self) -> Result<()> {
        /// Number of documents after which the copy of a small database ends, if it does not catch up.
        const AT_LEAST: u64 = 10_000;
        let enough = self.copied + 2 * self.expected + AT_LEAST;
        while self.copy_page(RelocatePhase::Copying).await? && self.copied < enough {}
        Ok(())
    }

    /// Copies a page of the feed. Returns whether there is more.
    async fn copy_page(&mut self, phase: RelocatePhase) -> Result<bool> {
        let page = self.departing.documents.rows_after(self.arriving.arrival.copied).await?;
        let more = page.more && page.reached.is_some();
        self.arriving.note_layout(page.layout.0, page.layout.1).await?;
        for part in copy::parts(page) {
            let documents = part.documents();
            copy::copy(&self.departing.documents, &mut self.arriving, part).await?;
            self.documents += documents;
            self.copied += documents;
            self.step(phase)?;
        }
        let closed = phase == RelocatePhase::Finishing;
        if purges::follow(&self.departing.documents, &mut self.arriving, closed).await? {
            self.documents = 0;
            return Ok(true);
        }
        Ok(more)
    }

    /// Makes the rows without sequences equal on both sides.
    async fn mirror_settings(&mut self, phase: RelocatePhase) -> Result<()> {
        for subspace in Subspace::ALL {
            match subspace {
                // Written when the target is created, settled and published.
                Subspace::Instance | Subspace::Last | Subspace::Stats => {}
                // Copied along the feed.
                Subspace::Revisions | Subspace::Changes | Subspace::Docs | Subspace::AllDocs => {}
                // Purges were followed along the feed. Before the fence nothing else is needed; after it, forgotten
                // ones are removed.
                Subspace::Purges if phase != RelocatePhase::Finishing => {}
                Subspace::Security
                | Subspace::Local
                | Subspace::References
                | Subspace::Indexes
                | Subspace::Purges
                | Subspace::Counts
                | Subspace::Replaced
                | Subspace::ReplacedDocs
                | Subspace::Trash
                | Subspace::TrashDocs
                | Subspace::Ended => {
                    let (source, key) = (&self.departing.documents, DatabaseKey::All(subspace));
                    let ranges = mirror::Ranges::whole(source, &self.arriving.documents, key);
                    let mut cursor = Some(ranges.begin());
                    while let Some(from) = cursor {
                        cursor = mirror::mirror(&self.departing.documents, &self.arriving, &ranges, &from).await?;
                        self.step(phase)?;
                    }
                }
                Subspace::Contents => self.copy_contents(phase).await?,
                // Copied with the contents.
                Subspace::Parts => {}
                // Built again at the target, from the documents and the definitions.
                Subspace::IndexRows | Subspace::Indexed => {}
                // Built again by the first query there: their progress is a sequence, and sequences are new at the
                // target. So clients have passed nothing there.
                Subspace::Views | Subspace::Passed => {}
            }
        }
        Ok(())
    }

    async fn copy_contents(&mut self, phase: RelocatePhase) -> Result<()> {
        let (progress, documents, expected) = (&mut self.progress, self.documents, self.expected);
        let mut on = || step(progress, RelocateProgress { phase, documents, expected });
        let (source, target) = (&self.departing.documents, &self.arriving);
        let mut cursor = contents::copy(source, target, None, &mut on).await?;
        while cursor.is_some() {
            cursor = contents::copy(source, target, cursor, &mut on).await?;
        }
        if phase == RelocatePhase::Finishing {
            contents::tidy(source, target).await?;
        }
        on()
    }

    /// Compares documents that were copied but not compared yet.
    async fn compare(&mut self, comparison: &mut Comparison<S, T>, phase: RelocatePhase) -> Result<()> {
        let upto: Seq = self.arriving.arrival.copied;
        let (progress, expected) = (&mut self.progress, self.expected);
        let mut on = |documents| step(progress, RelocateProgress { phase, documents, expected });
        comparison.documents(Some(upto), &mut on).await
    }
}
