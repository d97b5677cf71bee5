//! Moving a database from one store to another, while it is in use (RFC 001 and RFC 003, "Incarnation").
//!
//! ```text
//!             source                                target
//!   begin     open                                  (6, Name): how far the copy has come; hidden
//!   copy      open, being edited      ── rows ──►   arriving; nobody sees it
//!   verify    open, being edited      ◄─ compared ─►  arriving
//!   close     closing: read only
//!   finish    closing                 ── rest ──►   arriving
//!   publish   closing                               open, incarnation + 1, in the catalog
//!   leave     moved to the target; its rows stay    open
//! ```
//!
//! Rows are copied as they stand, with another prefix: no value of a database's says where it is. The copy
//! follows the changes feed, whose sequence is its checkpoint: a document that is edited meanwhile moves
//! behind the checkpoint and is copied again. What has no sequence (local documents, the security object, who
//! refers to which attachment) is compared and mended as a range, once before and once behind the fence; see
//! [`mirror`]. Contents of attachments are copied the same way, without being read twice; see [`contents`]. Of documents
//! that are purged the feed says nothing; see [`purges`].
//!
//! # Invariants
//! * The fence is the state in the instance, which every writer reads with a conflict range: nothing is
//!   written to the source once it is closed, and nothing to the target before it is published.
//! * Old sequences stay as they are. The target's incarnation is one higher, so whatever is written there
//!   sorts behind them, whatever its commit versions.
//! * Each step is one transaction in one store and finds out for itself whether it was done. A run that ends
//!   anywhere leaves a state from which the next one goes on: the source is authoritative until the target is
//!   published, which it is only while the source is closed, and the target from then on.
//! * Every run writes its id into the target before it does anything, and every transaction on the target
//!   reads it. Of two runs the later goes on and the earlier ends.
//! * Nothing is deleted at the source unless asked for.

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

use crate::catalog::Layer;
use crate::check::Problem;
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::instance::State;
use crate::keys::{DatabaseKey, Subspace};
use crate::seq::Seq;

use arrival::{Arriving, Begun};
use departure::Departing;
use verify::Comparison;

/// What is to be done beside moving the database, and how the stores are called.
#[derive(Clone, Debug, Default)]
pub struct RelocateOptions {
    /// The source's name. The target keeps it while the copy is under way, for whoever asks what that is.
    pub from: String,
    /// The target's name, which the source keeps for good: whoever asks for the database there is told it
    /// ([`ErrorKind::Moved`]).
    pub to: String,
    /// Compare every row on both sides before the target is published.
    pub verify: bool,
    /// Once the database has moved, delete the rows that are left at the source. What says where it went
    /// stays.
    pub delete_source: bool,
}

/// What a relocation is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RelocatePhase {
    /// Rows are copied; the database is in use.
    Copying,
    /// Both sides are compared; the database is in use.
    Verifying,
    /// The rest is copied; the database is read and not written.
    Finishing,
    /// The target is published; what is left is to say so at the source.
    Leaving,
}

/// How far a relocation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelocateProgress {
    /// What it is doing.
    pub phase: RelocatePhase,
    /// Documents copied, or compared, by this run and those before it. A document counts as often as it
    /// was edited meanwhile.
    pub documents: u64,
    /// Documents that the database counted when the run began.
    pub expected: u64,
}

/// What a comparison of both sides found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Documents that are the same on both sides: every leaf, its ancestors, its body, its sequence.
    pub documents: u64,
    /// Documents that were edited at the target after the move, and could not be compared.
    pub edited_since: u64,
    /// The first of what differs.
    pub differences: Vec<Problem>,
    /// How much differs.
    pub difference_count: u64,
}

/// What a relocation came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelocateReport {
    /// Whether the database lives at the target now. Not so where both sides differ.
    pub moved: bool,
    /// Whether it did before this run.
    pub moved_before: bool,
    /// Documents that this run copied.
    pub documents: u64,
    /// The database's incarnation from now on.
    pub incarnation: u8,
    /// What the comparison found, if one was asked for.
    pub verified: Option<VerifyReport>,
}

/// Moves a database from `source` to `target`, or goes on with that.
///
/// `progress` is called between any two transactions, and may [break](ControlFlow::Break) the relocation
/// off there: the same one begun again goes on from that place. A relocation that fails with the source
/// closed opens it again, unless the target may have been published by then.
///
/// # Errors
/// 404; [`ErrorKind::FileExists`] where the target has another database of that name;
/// [`ErrorKind::Relocation`] where another database is on its way there under it, or this one to another
/// store; [`ErrorKind::Moved`] where it moved to another store before; [`ErrorKind::Stopped`]; either
/// store's errors.
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
    if let State::Moved { to } = &departing.instance.state {
        let Some(there) = arrival::published(target, name, &departing.instance).await? else {
            return Err(ErrorKind::Moved(to.clone()).into());
        };
        return moved_before(departing, there, options, progress).await;
    }
    if departing.instance.incarnation == u8::MAX {
        return Err(Error::relocation("The database has moved 255 times, which is as often as one can."));
    }
    if let State::Closing { to, .. } = &departing.instance.state
        && *to != options.to
    {
        let reason =
            format!("The database was about to move to {to}: finish that, or abandon it, before it moves elsewhere.");
        return Err(Error::relocation(reason));
    }
    // So that a replicator which knew the database behind a server on the source knows it behind one on
    // the target.
    target.identity_or(source.identity().await?).await?;
    let arriving = match Arriving::begin(target, name, &departing.instance, &options.from).await? {
        Begun::UnderWay(arriving) => arriving,
        Begun::Published(there) if matches!(departing.instance.state, State::Closing { .. }) => {
            departing.leave(&options.to).await?;
            return moved_before(departing, there, options, progress).await;
        }
        // The source was put back to what it was before the move.
        Begun::Published(_) => return Err(ErrorKind::FileExists.into()),
    };
    // Left closed by a run that is over: the one before has no say any more.
    departing.open(None).await?;
    let documents = arriving.arrival.documents;
    let mut run = Run { departing, arriving, options, progress, expected: 0, documents, copied: 0 };
    let outcome = run.run().await;
    if outcome.is_err() && run.departing.is_gone().await {
        // The database was dropped under the copy, which is good for nothing any more.
        abandon_relocation(source, target, name).await?;
    }
    outcome
}

/// Gives a relocation up: removes the copy from `target`, and opens the database at `source` again where it
/// was closed. Whether there was anything to give up.
///
/// # Errors
/// [`ErrorKind::Relocation`] where the target was published: the move can only be finished then.
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
        return Err(Error::relocation("The database has moved already: its last step can be done, not undone."));
    }
    let removed = arrival::remove(target, name, departing.as_ref().map(|departing| &departing.instance)).await?;
    let opened = match departing {
        Some(departing) => departing.open(None).await?,
        None => false,
    };
    Ok(removed || opened)
}

/// What is left to do where the target was published by an earlier run.
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
    // It may be called otherwise by now.
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
    /// Whether nothing was found to differ.
    pub fn is_same(&self) -> bool {
        self.verified.as_ref().is_none_or(|verified| verified.difference_count == 0)
    }
}

/// Tells whoever watches; [`ErrorKind::Stopped`] where they have had enough.
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
    options: &'a RelocateOptions,
    progress: F,
    expected: u64,
    /// Documents copied by all runs.
    documents: u64,
    /// Documents copied by this run.
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
            // The source was put back to what it was before the copy began.
            self.arriving.start_over().await?;
            self.documents = 0;
        }
        self.step(RelocatePhase::Copying)?;
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
            // What was edited while both sides were compared.
            self.catch_up().await?;
        }
        let mut publishing = false;
        let run = self.arriving.arrival.run;
        let finished = self.finish(&mut comparison, &mut publishing).await;
        let stopped = matches!(&finished, Err(error) if *error.kind() == ErrorKind::Stopped);
        let failed = finished.is_err() || comparison.as_ref().is_some_and(|comparison| !comparison.is_same());
        if failed && !publishing && !stopped {
            // Whatever stands in the way, the database goes on where it is. Where it cannot be opened either,
            // the first error says more.
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

    /// Closes the source, copies what is left, and publishes the target, unless the two differ.
    async fn finish(&mut self, comparison: &mut Option<Comparison<S, T>>, publishing: &mut bool) -> Result<()> {
        let phase = RelocatePhase::Finishing;
        if comparison.as_ref().is_some_and(|comparison| !comparison.is_same()) {
            return Ok(());
        }
        self.step(phase)?;
        let instance = self.departing.close(&self.options.to, self.arriving.arrival.run).await?;
        self.step(phase)?;
        while self.copy_page(phase).await? {}
        self.mirror_settings(phase).await?;
        let totals = self.departing.totals().await?;
        self.arriving.settle(&totals).await?;
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

    /// Copies page after page until the copy has caught up with the feed. Where it never does, since more is
    /// edited than it can copy, it ends when everything has been copied twice: the fence does the rest.
    async fn catch_up(&mut self) -> Result<()> {
        /// Documents beyond which a copy that does not catch up ends, for small databases.
        const AT_LEAST: u64 = 10_000;
        let enough = self.copied + 2 * self.expected + AT_LEAST;
        while self.copy_page(RelocatePhase::Copying).await? && self.copied < enough {}
        Ok(())
    }

    /// Copies a page of the feed; whether there is more.
    async fn copy_page(&mut self, phase: RelocatePhase) -> Result<bool> {
        let page = self.departing.documents.rows_after(self.arriving.arrival.copied).await?;
        let more = page.more && page.reached.is_some();
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

    /// Makes what has no sequence the same on both sides.
    async fn mirror_settings(&mut self, phase: RelocatePhase) -> Result<()> {
        for subspace in Subspace::ALL {
            match subspace {
                // Written when the target is made, settled and published.
                Subspace::Instance | Subspace::Last | Subspace::Stats => {}
                // They follow the feed.
                Subspace::Revisions | Subspace::Changes | Subspace::Docs | Subspace::AllDocs => {}
                // Those of purges have been followed by now; what is left is what was purged and forgotten meanwhile.
                Subspace::Purges if phase != RelocatePhase::Finishing => {}
                Subspace::Security | Subspace::Local | Subspace::References | Subspace::Indexes | Subspace::Purges => {
                    let (source, key) = (&self.departing.documents, DatabaseKey::All(subspace));
                    let ranges = mirror::Ranges::whole(source, &self.arriving.documents, key);
                    let mut cursor = Some(ranges.begin());
                    while let Some(from) = cursor {
                        cursor = mirror::mirror(&self.departing.documents, &self.arriving, &ranges, &from).await?;
                        self.step(phase)?;
                    }
                }
                Subspace::Contents => self.copy_contents(phase).await?,
                // They come with the contents.
                Subspace::Chunks => {}
                // Made anew at the target, from the documents and the definitions.
                Subspace::IndexRows | Subspace::Indexed => {}
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

    /// Compares what has been copied and not been compared yet.
    async fn compare(&mut self, comparison: &mut Comparison<S, T>, phase: RelocatePhase) -> Result<()> {
        let upto: Seq = self.arriving.arrival.copied;
        let (progress, expected) = (&mut self.progress, self.expected);
        let mut on = |documents| step(progress, RelocateProgress { phase, documents, expected });
        comparison.documents(Some(upto), &mut on).await
    }
}
