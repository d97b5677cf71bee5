//! Runs a replication.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_channel::mpsc::channel;
use futures_util::future::{BoxFuture, Either, join, pending, select};
use futures_util::{FutureExt, Stream, TryStreamExt};
use model::{JsonText, JsonWriter, SystemEnvironment};
use peer::{FeedRequest, Filter, Peer, Result, Retry, Steady, TimedEnvironment};

use crate::checkpoint::{Checkpoint, Common, Session};
use crate::id::{Identity, doc_ids};
use crate::options::Options;
use crate::progress::{Figures, Progress, Report};
use crate::stages::{self, Done};
use crate::transfer::Transfer;

/// Time that a feed without changes is kept open.
const WAIT: Duration = Duration::from_secs(30);
/// The same, if checkpoints are written all the time.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

type OnProgress = Arc<dyn Fn(&Progress) + Send + Sync>;

/// A replication to run.
#[derive(Clone)]
pub struct Replication {
    source: Arc<dyn Peer>,
    target: Arc<dyn Peer>,
    identity: Identity,
    options: Options,
    environment: Arc<dyn TimedEnvironment>,
    on_progress: OnProgress,
}

impl fmt::Debug for Replication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replication")
            .field("source", &self.source)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

/// A replication from `source` to `target`. Sends nothing yet. `identity` identifies its checkpoints.
pub fn replicate(source: Arc<dyn Peer>, target: Arc<dyn Peer>, identity: Identity) -> Replication {
    Replication {
        source,
        target,
        identity,
        options: Options::default(),
        environment: Arc::new(SystemEnvironment),
        on_progress: Arc::new(|_| {}),
    }
}

impl Replication {
    /// Makes it continue with later changes until it is stopped.
    #[must_use]
    pub fn continuous(mut self) -> Self {
        self.options.continuous = true;
        self
    }

    /// Sets the options.
    #[must_use]
    pub fn with_options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets the source of time, randomness and pauses.
    #[must_use]
    pub fn with_environment(mut self, environment: Arc<dyn TimedEnvironment>) -> Self {
        self.environment = environment;
        self
    }

    /// Sets a function that is called when the replication has begun, and after each page of replicated changes.
    #[must_use]
    pub fn on_progress(mut self, on_progress: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        self.on_progress = Arc::new(on_progress);
        self
    }

    /// Runs until everything that existed at some moment after the start is replicated. A continuous replication runs
    /// until it fails. Dropping the future stops it.
    ///
    /// # Errors
    /// Errors of the peers that are not transient. Replicated documents stay, and the next run continues after the last
    /// checkpoint.
    pub fn run(&self) -> BoxFuture<'_, Result<Report>> {
        self.run_until(pending())
    }

    /// Runs until `stop` completes. Then it writes a checkpoint of what was replicated, and ends like a complete run.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_until<'r>(&'r self, stop: impl Future<Output = ()> + Send + 'r) -> BoxFuture<'r, Result<Report>> {
        self.run_all(stop).boxed()
    }

    async fn run_all(&self, stop: impl Future<Output = ()> + Send) -> Result<Report> {
        let steady = |peer: &Arc<dyn Peer>| -> Arc<dyn Peer> {
            Arc::new(Steady::new(peer.clone(), self.environment.clone()).repeating(self.options.retries))
        };
        let (source, target) = (steady(&self.source), steady(&self.target));
        let mut filter = self.options.filter.clone();
        if let Filter::DocIds(ids) = &mut filter {
            *ids = doc_ids(ids);
        }
        source.info().await?;
        let target_info = target.info().await?;
        let lacks_all = (target_info.documents, target_info.deleted) == (0, 0);
        let id = self.identity.find_id(&self.options, &*source).await?;
        let (checkpoint, born) = match self.options.use_checkpoints {
            true => {
                // Asked first: a database that is created again later has another time, or no checkpoint.
                let born = born(&*source, &*target).await?;
                (Some(Checkpoint::read(&id, &*source, &*target).await?), born)
            }
            false => (None, Born::default()),
        };
        let common = checkpoint.as_ref().map(Checkpoint::common).unwrap_or_default();
        let start_seq = match (&common.since, &self.options.since_seq) {
            (Some(since), _) => written(|json| {
                json.str(since);
            }),
            (None, Some(given)) => given.clone(),
            (None, None) => written(|json| {
                json.u64(0);
            }),
        };
        let start = start_seq.root().str_or_text().into_owned();
        let since = (start != "0").then(|| start.clone());
        let of_all_sessions = common.figures();
        let mut session = [0; 16];
        self.environment.random(&mut session);
        let run = Run {
            session: Session {
                id: model::hex(&session),
                began_ms: self.environment.now_ms(),
                ended_ms: 0,
                start_seq,
                end_seq: start.clone(),
                figures: Figures::default(),
                by_doc_ids: matches!(filter, Filter::DocIds(_)),
            },
            source,
            target,
            record: None,
            record_before: checkpoint.as_ref().map(Checkpoint::record),
            saved_ms: self.environment.now_ms(),
            checkpoint,
            born,
            common,
            progress: Progress {
                of_all_sessions,
                through_seq: start.clone(),
                checkpointed_seq: start,
                ..Progress::default()
            },
        };
        let (source, target) = (run.source.clone(), run.target.clone());
        let retry = Retry::new(self.environment.clone()).repeating(self.options.retries);
        let transfer = Transfer::new(source.clone(), target, retry, lacks_all);
        let request = FeedRequest {
            since,
            limit: self.options.batch_size.max(1),
            all_leaves: !self.options.winning_revs_only,
            filter,
            wait: None,
        };
        // Progress must be saved in time, even if nothing changes.
        let wait = self.options.checkpoint_interval.clamp(SHORTEST_WAIT, WAIT);
        let is_continuous = self.options.continuous;
        let workers = self.options.workers.max(1);
        let ((pages_in, pages), (work_in, work)) = (channel(0), channel(workers));
        let reading = stages::feed(&*source, request, is_continuous.then_some(wait), pages_in);
        let asking = stages::ask(&transfer, is_continuous, pages, work_in);
        let ahead = join(reading, asking).map(drop);
        let steps = stages::copy(&transfer, work, workers);
        stages::with(ahead, self.follow(run, steps, stop)).await
    }

    /// Adds up the work, and writes checkpoints.
    async fn follow(
        &self,
        mut run: Run,
        steps: impl Stream<Item = Result<Done>> + Send,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<Report> {
        let (mut steps, mut stop) = (pin!(steps), pin!(stop));
        // Called at the start too: the first change may be far away.
        (self.on_progress)(&run.progress);
        loop {
            let done = match select(steps.try_next(), stop.as_mut()).await {
                Either::Left((done, _)) => done?,
                Either::Right(((), _)) => {
                    run.save(&*self.environment).await?;
                    (self.on_progress)(&run.progress);
                    return Ok(run.report());
                }
            };
            let Some(done) = done else { break };
            let end = match done {
                Done::Step(step) => {
                    run.progress.figures.add(step.figures);
                    run.progress.of_all_sessions.add(step.figures);
                    run.progress.bytes += step.bytes;
                    run.progress.failed.extend(step.failed);
                    continue;
                }
                Done::End(end) => end,
            };
            let moved = end.seq != run.progress.through_seq;
            run.progress.through_seq = end.seq;
            run.progress.pending = end.pending;
            if moved {
                (self.on_progress)(&run.progress);
            }
            run.progress.failed.clear();
            let since_saved = Duration::from_millis(self.environment.now_ms().saturating_sub(run.saved_ms));
            let is_due = since_saved >= self.options.checkpoint_interval;
            if (end.is_last || is_due) && run.save(&*self.environment).await? {
                (self.on_progress)(&run.progress);
            }
            if end.is_last {
                return Ok(run.report());
            }
        }
        Err(peer::Error::new(peer::ErrorKind::Unavailable, "the feed ended early"))
    }
}

/// The JSON that `write` produces.
fn written(write: impl FnOnce(&mut JsonWriter<'_>)) -> JsonText {
    let mut out = Vec::new();
    write(&mut JsonWriter::new(&mut out));
    JsonText::parse(&out).unwrap_or_else(|_| JsonText::empty_object())
}

/// When the databases of the source and the target were created, as the peers report it.
type Born = (String, String);

/// Ensures that both have all writes on disk. A checkpoint is written only while `Born` stays the same: in a database
/// that was created again, the checkpoint would hide all documents before it. CouchDB compares the same in
/// `couch_replicator_scheduler_job`.
async fn born(source: &dyn Peer, target: &dyn Peer) -> Result<Born> {
    let target = target.commit().await?;
    Ok((source.commit().await?, target))
}

/// A running replication.
struct Run {
    source: Arc<dyn Peer>,
    target: Arc<dyn Peer>,
    session: Session,
    checkpoint: Option<Checkpoint>,
    /// The times before the checkpoint was read.
    born: Born,
    common: Common,
    /// The last checkpoint.
    record: Option<JsonText>,
    /// The checkpoint that was found, if checkpoints are used.
    record_before: Option<JsonText>,
    saved_ms: u64,
    progress: Progress,
}

impl Run {
    /// Writes a checkpoint on both sides. Returns whether a record was written. The target has everything up to it.
    async fn save(&mut self, environment: &dyn TimedEnvironment) -> Result<bool> {
        self.saved_ms = environment.now_ms();
        if self.progress.checkpointed_seq == self.progress.through_seq {
            return Ok(false);
        }
        let Some(checkpoint) = &mut self.checkpoint else { return Ok(false) };
        if born(&*self.source, &*self.target).await? != self.born {
            let sentence = "a database was created again after the last checkpoint";
            return Err(peer::Error::new(peer::ErrorKind::Refused, sentence));
        }
        self.session.ended_ms = self.saved_ms;
        self.session.end_seq.clone_from(&self.progress.through_seq);
        self.session.figures = self.progress.of_all_sessions;
        let record = self.session.record(&self.common.history);
        checkpoint.write(&*self.source, &*self.target, record.clone()).await?;
        self.progress.checkpointed_seq.clone_from(&self.progress.through_seq);
        self.record = Some(record);
        Ok(true)
    }

    fn report(self) -> Report {
        let figures = self.progress.figures;
        let Some(record_before) = self.record_before else {
            let record = written(|json| {
                json.begin_object().name("use_checkpoints").bool(false).end_object();
            });
            return Report { figures, no_changes: false, record };
        };
        match self.record {
            Some(record) if figures != Figures::default() => Report { figures, no_changes: false, record },
            // A checkpoint may have been written after changes that did not pass the filter.
            _ => Report { figures, no_changes: true, record: record_before },
        }
    }
}
