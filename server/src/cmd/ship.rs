//! `serve --ship-to`: ships the served store to another place ([`backup::Shipper`]), in a thread of its own.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ::backup::{Error, Place, Protection, Repository, ShipOptions, Shipper, place, place_is_folder};
use clap::Args;
use disk::FollowedStore;
use model::SystemEnvironment;
use tokio::sync::{oneshot, watch};

use super::standby::Follow;
use crate::cmd::{Failure, failure};
use crate::passphrase;
use crate::ship_state::ShipState;

/// Pause between two segments.
const BETWEEN_SEGMENTS: Duration = Duration::from_millis(500);

/// Pause between two looks at the tables.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Pause between two looks until the first base is complete: nothing that is shipped can be restored before.
const BETWEEN_FIRST_LOOKS: Duration = Duration::from_millis(50);

/// Pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// Time for the last segment when the server stops.
const LAST_SEGMENT: Duration = Duration::from_secs(10);

/// Time for the first answer of the place when the server starts.
const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// The shortest time for which seconds are kept.
const LEAST_KEEP_MS: u64 = 3_600_000;

#[derive(Args)]
pub(crate) struct ShipArgs {
    /// A place to which the store's tables and log are shipped while it is served, a second behind at most, so that `restore
    /// --at TIME` brings back any second: a folder, or s3://BUCKET/PREFIX. Only for a store in a folder of the engine lsm
    #[arg(long, value_name = "PLACE", env = "COUCH_LAYER_SHIP_TO")]
    ship_to: Option<String>,

    /// A place to which another server ships its store: this one keeps a warm copy in the folder of --engine, seconds
    /// behind, answers reads, and refuses writes until it is promoted (`couch-layer promote`). The passphrase is that
    /// of --ship-to
    #[arg(long, value_name = "PLACE", env = "COUCH_LAYER_FOLLOW")]
    follow: Option<String>,

    /// A file with the passphrase of that place, or with any bytes as the key; a line break at its end is ignored
    #[arg(long, value_name = "FILE", env = "COUCH_LAYER_SHIP_PASSPHRASE_FILE")]
    ship_passphrase_file: Option<PathBuf>,

    /// Do not encrypt: anyone who can read that place gets every document, the password hashes, and the secret that signs
    /// sessions
    #[arg(long, env = "COUCH_LAYER_SHIP_NO_ENCRYPTION", conflicts_with = "ship_passphrase_file")]
    ship_no_encryption: bool,

    /// How long each second can be restored from that place, at least 1h. What is older is removed
    #[arg(long, value_name = "TIME", env = "COUCH_LAYER_SHIP_KEEP", default_value = "7d", value_parser = keep)]
    ship_keep: u64,
}

/// A ship that was asked for.
pub(crate) struct Ship {
    to: String,
    place: Arc<dyn Place>,
    protection: Protection,
    options: ShipOptions,
}

impl ShipArgs {
    /// The ship, if one is asked for.
    pub(crate) fn read(&self) -> Result<Option<Ship>, Failure> {
        let Some(to) = self.ship_to.clone() else { return Ok(None) };
        let options = ShipOptions { keep_ms: self.ship_keep, ..ShipOptions::default() };
        Ok(Some(Ship { place: place(&to)?, to, protection: self.protection()?, options }))
    }

    /// The place to follow, if one is named.
    pub(crate) fn follow(&self) -> Result<Option<Arc<Follow>>, Failure> {
        let Some(from) = self.follow.clone() else { return Ok(None) };
        Ok(Some(Arc::new(Follow::new(place(&from)?, from, self.protection()?))))
    }

    fn protection(&self) -> Result<Protection, Failure> {
        match &self.ship_passphrase_file {
            Some(file) => Ok(Protection::Passphrase(passphrase::read(file).map_err(failure)?)),
            None if self.ship_no_encryption => Ok(Protection::None),
            None => {
                let sentence =
                    "--ship-passphrase-file must name the file with the passphrase; or say --ship-no-encryption";
                Err(failure(sentence))
            }
        }
    }

    /// Refuses a folder in the store's, where the store may remove it, and one that the store's is in.
    pub(crate) fn check_apart(&self, store: &Path) -> Result<(), Failure> {
        for (option, place) in [("--ship-to", &self.ship_to), ("--follow", &self.follow)] {
            let Some(place) = place.as_ref().filter(|place| place_is_folder(place)) else { continue };
            let (place, store) = (whole(Path::new(place))?, whole(store)?);
            if place.starts_with(&store) || store.starts_with(&place) {
                let (place, store) = (place.display(), store.display());
                return Err(failure(format!("{option} needs a folder apart from the store's: {place}, {store}")));
            }
        }
        Ok(())
    }
}

/// Dropped when the thread ends. Nothing ships any more then, and whoever asks for the state must see it.
struct Ended {
    state: Arc<ShipState>,
    stopped: watch::Receiver<bool>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        if !*self.stopped.borrow() && !self.state.outcome.lock().is_fenced {
            let sentence = "the ship's thread has ended: restart the server, and report what the log says";
            note(&self.state, &self.state.to, 0, Some(sentence.to_owned()));
        }
    }
}

/// A ship that runs. It is ended when the server has stopped.
pub(crate) struct Shipping {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
    pub(crate) state: Arc<ShipState>,
}

impl Ship {
    /// Begins to ship the store of a [name](backup::store_name).
    ///
    /// # Errors
    /// A sentence if the place has something else or another passphrase. A place that does not answer is none: it is tried
    /// again.
    pub(crate) async fn start(self, store: Arc<dyn FollowedStore>, name: String) -> Result<Shipping, Failure> {
        let state = Arc::new(ShipState::new(&self.to));
        let (stop, stopped) = watch::channel(false);
        let (first, opened) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (kept, to) = (state.clone(), self.to.clone());
        let work = move || {
            let _ended = Ended { state: kept.clone(), stopped: stopped.clone() };
            runtime.block_on(self.run(first, store, &name, &kept, stopped));
            // What a folder still does is as safe as if the server was killed.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("couch-ship".into()).spawn(work)?;
        let shipping = Shipping { stop, thread, state };
        match tokio::time::timeout(FIRST_ANSWER, opened).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error @ Error::Io { .. }))) => {
                tracing::warn!(%error, to, "the place of the ship does not answer, and is tried again");
            }
            Ok(Ok(Err(error))) => {
                shipping.stop().await;
                return Err(failure(format!("cannot ship to {to}: {error}")));
            }
            Ok(Err(_)) | Err(_) => tracing::warn!(to, "the place of the ship has not answered yet"),
        }
        Ok(shipping)
    }

    async fn open(&self) -> Result<Repository, Error> {
        Repository::open_or_create(self.place.clone(), &self.protection, Arc::new(SystemEnvironment)).await
    }

    /// `first` gets the outcome of the first attempt to open the place.
    async fn run(
        self,
        first: oneshot::Sender<Result<(), Error>>,
        store: Arc<dyn FollowedStore>,
        name: &str,
        state: &ShipState,
        mut stopped: watch::Receiver<bool>,
    ) {
        let mut first = Some(first);
        let repository = loop {
            let opened = tokio::select! {
                opened = self.open() => opened,
                _ = stopped.wait_for(|stopped| *stopped) => return,
            };
            note(state, &self.to, 0, opened.as_ref().err().map(ToString::to_string));
            let (outcome, repository) = match opened {
                Ok(repository) => (Ok(()), Some(repository)),
                Err(error) => (Err(error), None),
            };
            // Nobody waits any more: it was too slow.
            let _ = first.take().map(|first| first.send(outcome));
            if let Some(repository) = repository {
                break repository;
            }
            if is_stopped(&mut stopped, AFTER_FAILURE).await {
                return;
            }
        };
        let shipper = Shipper::new(repository, store, name, self.options);
        tracing::info!(to = self.to, "the store is shipped");
        let segments = async {
            let (mut stopped, mut ends) = (stopped.clone(), stopped.clone());
            while !shipper.is_fenced() {
                let pause = tokio::select! {
                    outcome = shipper.ship_log() => self.noted(state, &shipper, 0, outcome, BETWEEN_SEGMENTS),
                    // A segment that is being written is written by the next call.
                    _ = ends.wait_for(|stopped| *stopped) => Duration::ZERO,
                };
                if is_stopped(&mut stopped, pause).await {
                    // What was acknowledged last.
                    if let Ok(outcome) = tokio::time::timeout(LAST_SEGMENT, shipper.ship_log()).await {
                        self.noted(state, &shipper, 0, outcome, BETWEEN_SEGMENTS);
                    }
                    break;
                }
            }
        };
        let tables = async {
            let (mut stopped, mut ends) = (stopped.clone(), stopped.clone());
            while !shipper.is_fenced() {
                let outcome = tokio::select! {
                    outcome = shipper.ship_tables() => outcome.map(drop),
                    _ = ends.wait_for(|stopped| *stopped) => break,
                };
                let pause = match shipper.shipped().until_ms {
                    0 => BETWEEN_FIRST_LOOKS,
                    _ => BETWEEN_LOOKS,
                };
                let pause = self.noted(state, &shipper, 1, outcome, pause);
                if is_stopped(&mut stopped, pause).await {
                    break;
                }
            }
        };
        futures_util::future::join(segments, tables).await;
    }

    /// Keeps the outcome of a step. Returns the pause until the next.
    fn noted(
        &self,
        state: &ShipState,
        shipper: &Shipper,
        step: usize,
        outcome: Result<(), Error>,
        pause: Duration,
    ) -> Duration {
        let pause = if outcome.is_ok() { pause } else { AFTER_FAILURE };
        {
            let mut noted = state.outcome.lock();
            (noted.shipped, noted.is_fenced) = (shipper.shipped(), shipper.is_fenced());
        }
        note(state, &self.to, step, outcome.err().map(|error| error.to_string()));
        pause
    }
}

/// Logs a failure once, and its end.
fn note(state: &ShipState, to: &str, step: usize, failed: Option<String>) {
    let mut noted = state.outcome.lock();
    match &failed {
        Some(reason) if noted.failed[step].as_ref() != Some(reason) => {
            tracing::error!(to, reason, "the store is not shipped");
        }
        None if noted.failed[step].is_some() => tracing::info!(to, "the store is shipped again"),
        _ => {}
    }
    noted.failures += u64::from(failed.is_some());
    noted.failed[step] = failed;
}

/// Waits. Whether the server has stopped meanwhile.
async fn is_stopped(stopped: &mut watch::Receiver<bool>, pause: Duration) -> bool {
    // An error: nobody can stop it any more.
    tokio::time::timeout(pause, stopped.wait_for(|stopped| *stopped)).await.is_ok()
}

impl Shipping {
    /// Ships what was acknowledged last, and lets go of the store.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(true);
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
    }
}

fn keep(text: &str) -> Result<u64, String> {
    let time = model::parse_time(text).filter(|ms| *ms >= LEAST_KEEP_MS);
    time.ok_or_else(|| "a time such as 7d or 12h, at least 1h".to_owned())
}

/// The whole path of a folder that need not exist, without links.
fn whole(path: &Path) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let there = path.ancestors().find(|folder| folder.exists()).unwrap_or(&path);
    let mut whole = there.canonicalize()?;
    for part in path.strip_prefix(there).unwrap_or(Path::new("")).components() {
        match part {
            Component::ParentDir => drop(whole.pop()),
            part => whole.push(part),
        }
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_ended_is_failing_unless_it_was_stopped() {
        for is_stopped in [false, true] {
            let state = Arc::new(ShipState::new("there"));
            let (stop, stopped) = watch::channel(false);
            let ended = Ended { state: state.clone(), stopped };
            stop.send(is_stopped).expect("a receiver");
            let thread = std::thread::spawn(move || {
                let _ended = ended;
                if !is_stopped {
                    std::panic::resume_unwind(Box::new("planted"));
                }
            });
            assert_eq!(thread.join().is_err(), !is_stopped);
            assert_eq!(state.outcome.lock().failed[0].is_some(), !is_stopped);
        }
    }
}
