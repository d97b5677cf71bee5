//! `serve --follow`: a warm copy of a store that another server ships ([`backup::Follower`]).
//!
//! ```text
//!   FOLDER is missing ── restore ──► follow ──┬─ promoted ────────────► serve it as a store of its own
//!                                     ▲       └─ the log is broken off ─┐
//!                                     └─ serve what was restored anew ──┘
//! ```
//!
//! The server ends and starts again within the process where the arrows lead. So caches, feeds and jobs begin with the
//! store that is there, as after a restart, and a restart at any moment leads to the same.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::backup::{Error, Followed, Follower, Place, Protection, Repository, StandbyFolder};
use disk::StandbyStore;
use kv_api::AnyDatabase;
use model::{Environment, Layer, LayerOptions, SystemEnvironment};
use tokio::sync::{mpsc, oneshot, watch};

use super::adopt::examine;
use super::systemd;
use crate::cmd::{Failure, failure};
use crate::engine::{self, EngineUrl};
use crate::standby_state::{Promotion, StandbyState};

/// Pause between two looks for a segment.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// Pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// Time for a step before a promotion, so that a place that is gone does not keep it waiting.
const LAST_STEP: Duration = Duration::from_secs(30);

/// A restore that took longer than this does not lengthen the pause before the next attempt.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(60);

/// Time for the store to be let go of when the server starts again.
const LET_GO: Duration = Duration::from_secs(30);

/// Interval at which the log says that a restore goes on.
const BETWEEN_SIGNS: Duration = Duration::from_secs(10);

/// What systemd waits for a start, from each sign on.
const STARTS_LONGER: &str = "EXTEND_TIMEOUT_USEC=60000000";

/// A place that is to be followed.
pub(crate) struct Follow {
    from: String,
    place: Arc<dyn Place>,
    protection: Protection,
    /// Number of times that the store was restored.
    restores: AtomicU64,
}

/// Why a standby ends, and its server starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Promoted,
    /// The store was restored anew, and waits beside the folder.
    Restored,
}

/// A standby that follows. It is stopped when the server has stopped.
pub(crate) struct Following {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
    ended: oneshot::Receiver<Ended>,
    pub(crate) state: Arc<StandbyState>,
}

/// Says now and then that a restore goes on.
struct Signs(Instant);

impl Signs {
    fn show(&mut self, file: &str) {
        if self.0.elapsed() >= BETWEEN_SIGNS {
            self.0 = Instant::now();
            tracing::info!(file, "restoring");
            systemd::tell(STARTS_LONGER);
        }
    }
}

/// The folder of a standby.
pub(crate) fn folder_of(url: &EngineUrl) -> Result<&Path, Failure> {
    let sentence = || failure("--follow needs a store in a folder of the engine lsm");
    if engine::can_follow(url) { url.folder().ok_or_else(sentence) } else { Err(sentence()) }
}

impl Follow {
    pub(super) fn new(place: Arc<dyn Place>, from: String, protection: Protection) -> Self {
        Follow { from, place, protection, restores: AtomicU64::new(0) }
    }

    /// Restores the store if there is none yet. Returns whether it follows; it does not once it was promoted.
    pub(crate) async fn prepare(&self, url: &EngineUrl) -> Result<bool, Failure> {
        let folder = folder_of(url)?;
        match ::backup::standby_folder(folder)? {
            StandbyFolder::Follows => return Ok(true),
            StandbyFolder::Promoted => {
                let from = &self.from;
                tracing::warn!(from, "the store was promoted, and follows no more: start it without --follow");
                return Ok(false);
            }
            StandbyFolder::Missing => {}
        }
        let repository = self.open().await.map_err(|error| failure(format!("cannot follow {}: {error}", self.from)))?;
        let mut has_said = false;
        while repository.shipped().await?.is_none() {
            if !std::mem::replace(&mut has_said, true) {
                tracing::info!(from = self.from, "waiting until a store is shipped there");
            }
            systemd::tell(STARTS_LONGER);
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        tracing::info!(from = self.from, "restoring the shipped store");
        let mut signs = Signs(Instant::now());
        let restored = engine::restore_standby(&repository, folder, 0, &mut |file| signs.show(file)).await?;
        engine::replace_standby(folder)?;
        self.restores.fetch_add(1, Ordering::Relaxed);
        tracing::info!(until_ms = restored.ms, "restored");
        Ok(true)
    }

    async fn open(&self) -> Result<Repository, Error> {
        Repository::open(self.place.clone(), &self.protection, Arc::new(SystemEnvironment)).await
    }

    /// Begins to follow with the open store of this folder.
    pub(crate) fn start(
        self: &Arc<Self>,
        (engine, store): engine::Standby,
        folder: &Path,
    ) -> Result<Following, Failure> {
        let (promotions, asked) = mpsc::unbounded_channel();
        let state = Arc::new(StandbyState {
            from: self.from.clone(),
            began_ms: SystemEnvironment.now_ms(),
            restores: self.restores.load(Ordering::Relaxed),
            outcome: Default::default(),
            promotions,
        });
        let (stop, stopped) = watch::channel(false);
        let (end, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (follow, folder) = (self.clone(), folder.to_owned());
        let standby = Standby { follow, engine, folder, state: state.clone(), stopped, asked };
        let work = move || {
            if let Some(why) = runtime.block_on(standby.run(store)) {
                // An error: the server stops anyway.
                let _ = end.send(why);
            }
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("couch-follow".into()).spawn(work)?;
        Ok(Following { stop, thread, ended, state })
    }
}

/// What the thread works with.
struct Standby {
    follow: Arc<Follow>,
    engine: AnyDatabase,
    folder: PathBuf,
    state: Arc<StandbyState>,
    stopped: watch::Receiver<bool>,
    asked: mpsc::UnboundedReceiver<Promotion>,
}

/// What interrupted a pause, or a piece of work.
enum Interrupted {
    Stopped,
    Asked(Promotion),
}

impl Standby {
    /// Follows until the server stops, or starts again.
    async fn run(mut self, store: Arc<dyn StandbyStore>) -> Option<Ended> {
        let mut follower = None;
        loop {
            let step = async {
                let follower = match &mut follower {
                    Some(follower) => follower,
                    empty => {
                        let repository = self.follow.open().await?;
                        let new = Follower::new(repository, store.clone(), &self.folder).await?;
                        tracing::info!(from = self.follow.from, "the standby follows");
                        empty.insert(new)
                    }
                };
                follower.follow().await
            };
            let (mut stopped, asked) = (self.stopped.clone(), &mut self.asked);
            let outcome = tokio::select! {
                outcome = step => Ok(outcome),
                interrupted = interrupted(&mut stopped, asked) => Err(interrupted),
            };
            let next = match outcome {
                Ok(outcome) => {
                    let pause = self.noted(follower.as_ref(), &outcome);
                    match (outcome, &follower) {
                        (Ok(Followed::Broken { from, .. }), Some(follower)) => {
                            match self.restore(follower.repository(), from, pause).await {
                                Ok(()) => return Some(Ended::Restored),
                                Err(interrupted) => interrupted,
                            }
                        }
                        _ => self.pause(pause).await,
                    }
                }
                Err(interrupted) => Some(interrupted),
            };
            match next {
                None => {}
                Some(Interrupted::Stopped) => return None,
                Some(Interrupted::Asked(Promotion { anyway, answer })) => {
                    let last = self.promote(follower.as_mut(), anyway).await;
                    let is_promoted = last.is_ok();
                    // Whoever asked may have left.
                    let _ = answer.send(last);
                    if is_promoted {
                        return Some(Ended::Promoted);
                    }
                }
            }
        }
    }

    /// Keeps the outcome of a step, and logs a failure once, and its end. Returns the pause until the next step.
    fn noted(&self, follower: Option<&Follower>, outcome: &Result<Followed, Error>) -> Duration {
        let failed = match outcome {
            Ok(Followed::Broken { reason, .. }) => Some(reason.clone()),
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        };
        let mut noted = self.state.outcome.lock();
        noted.until_ms = follower.map_or(0, Follower::until_ms);
        noted.segments += u64::from(matches!(outcome, Ok(Followed::Applied)));
        if matches!(outcome, Ok(Followed::UpToDate)) {
            noted.looked_ms = SystemEnvironment.now_ms();
        }
        match &failed {
            Some(reason) if noted.failed.as_ref() != Some(reason) => {
                tracing::error!(from = self.follow.from, reason, "the standby does not follow");
            }
            None if noted.failed.is_some() => tracing::info!(from = self.follow.from, "the standby follows again"),
            _ => {}
        }
        if failed.is_none() {
            noted.not_restored = None;
        }
        noted.failures += u64::from(failed.is_some());
        noted.failed = failed;
        match outcome {
            Ok(Followed::Applied) => Duration::ZERO,
            Ok(Followed::UpToDate) => BETWEEN_LOOKS,
            Ok(Followed::Broken { .. }) | Err(_) => AFTER_FAILURE,
        }
    }

    /// Restores the store anew, beside the one that is served. Fails with what interrupted it, or with nothing if it
    /// must be tried again, after a pause.
    async fn restore(
        &mut self,
        repository: &Repository,
        from: u64,
        pause: Duration,
    ) -> Result<(), Option<Interrupted>> {
        let begun = Instant::now();
        let mut signs = Signs(begun);
        let mut show = |file: &str| signs.show(file);
        let restore = engine::restore_standby(repository, &self.folder, from, &mut show);
        let mut stopped = self.stopped.clone();
        let outcome = tokio::select! {
            outcome = restore => outcome,
            interrupted = interrupted(&mut stopped, &mut self.asked) => return Err(Some(interrupted)),
        };
        match outcome {
            Ok(restored) => {
                self.follow.restores.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    until_ms = restored.ms,
                    "the standby was restored anew, and the server starts again with it"
                );
                Ok(())
            }
            Err(error) => {
                self.note_restore(&error);
                // Not all the time, if an attempt is long.
                Err(self.pause(pause.max(begun.elapsed().min(LONGEST_ATTEMPT) * 10)).await)
            }
        }
    }

    /// Keeps why a restore failed, and logs it once.
    fn note_restore(&self, error: &Error) {
        let reason = format!("the standby cannot be restored anew: {error}");
        let mut noted = self.state.outcome.lock();
        if noted.not_restored.as_ref() != Some(&reason) {
            tracing::warn!(from = self.follow.from, reason);
        }
        noted.not_restored = Some(reason);
    }

    async fn pause(&mut self, pause: Duration) -> Option<Interrupted> {
        let mut stopped = self.stopped.clone();
        tokio::time::timeout(pause, interrupted(&mut stopped, &mut self.asked)).await.ok()
    }

    /// Applies what is in the place still, then notes that the standby is promoted. Fails with a sentence.
    async fn promote(&mut self, follower: Option<&mut Follower>, anyway: bool) -> Result<(), String> {
        let lacks = match follower {
            Some(follower) => self.catch_up(follower).await,
            None => Err(format!("{} was not reached yet", self.follow.from)),
        };
        match lacks {
            Err(reason) if anyway => {
                tracing::warn!(reason, "the standby is promoted, although it may not have everything that was shipped");
            }
            Err(reason) => {
                return Err(format!(
                    "the standby may not have everything that was shipped, and is not promoted: {reason}"
                ));
            }
            Ok(()) => {}
        }
        // It could neither follow nor be served after that.
        let layer =
            Layer::open(self.engine.clone(), LayerOptions::default()).await.map_err(|error| error.to_string())?;
        examine(&layer).await.map_err(|error| error.to_string())?;
        drop(layer);
        ::backup::promote_standby(&self.folder).map_err(|error| error.to_string())?;
        let until_ms = self.state.outcome.lock().until_ms;
        tracing::warn!(until_ms, "the standby is promoted: the server starts again, and takes writes");
        Ok(())
    }

    async fn catch_up(&self, follower: &mut Follower) -> Result<(), String> {
        loop {
            let step = async {
                match follower.follow().await? {
                    Followed::UpToDate if follower.has_everything().await? => Ok(None),
                    followed => Ok::<_, Error>(Some(followed)),
                }
            };
            let step = tokio::time::timeout(LAST_STEP, step).await;
            let step = step.map_err(|_| format!("{} does not answer", self.follow.from))?;
            match step {
                Ok(None) => return Ok(()),
                Ok(Some(Followed::Broken { reason, .. })) => return Err(reason),
                Ok(Some(_)) => self.state.outcome.lock().until_ms = follower.until_ms(),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// Waits until the server stops, or somebody asks for the promotion.
async fn interrupted(
    stopped: &mut watch::Receiver<bool>,
    asked: &mut mpsc::UnboundedReceiver<Promotion>,
) -> Interrupted {
    tokio::select! {
        // An error: nobody can stop it any more.
        _ = stopped.wait_for(|stopped| *stopped) => Interrupted::Stopped,
        promotion = asked.recv() => promotion.map_or(Interrupted::Stopped, Interrupted::Asked),
    }
}

impl Following {
    /// Completes when the server must start again. An error: the thread ended unexpectedly.
    pub(crate) async fn ended(&mut self) -> Result<Ended, Failure> {
        let sentence = "the thread that follows has ended: restart the server, and report what the log says";
        (&mut self.ended).await.map_err(|_| failure(sentence))
    }

    /// Follows no more, and lets go of the store.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(true);
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
    }
}

impl Ended {
    /// Waits until nobody has the store of this folder any more, and puts what was restored in its place.
    pub(crate) async fn finish(self, folder: &Path) -> Result<(), Failure> {
        let begun = Instant::now();
        while let Err(error) = engine::is_free(folder) {
            if begun.elapsed() >= LET_GO {
                return Err(failure(format!("the server cannot start again: {error}")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if self == Ended::Restored {
            engine::replace_standby(folder)?;
        }
        Ok(())
    }
}
