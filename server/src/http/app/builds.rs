//! Building indexes: the state is in the store, and here only who is at it in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::BuildProgress;

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::Result;

/// The indexes of these databases are being built by this process.
#[derive(Debug, Default)]
pub(crate) struct Builds(Mutex<HashMap<String, Arc<Turn>>>);

/// Who holds its lock builds. Nobody else of this process does then: two would only be in each other's way.
#[derive(Debug, Default)]
struct Turn {
    lock: Arc<tokio::sync::Mutex<()>>,
    /// What the last batch said, while a build is on its way.
    progress: Mutex<Option<BuildProgress>>,
}

impl Turn {
    fn set(&self, progress: Option<BuildProgress>) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Builds to the end. The lock is held.
    async fn build(&self, database: &Documents) -> model::Result<()> {
        let built = database.build_indexes(|progress| self.set(Some(progress.clone()))).await;
        self.set(None);
        built
    }
}

impl Builds {
    fn turn(&self, name: &str) -> Arc<Turn> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(name.to_owned()).or_default().clone()
    }

    /// Builds a database's indexes to the end, or waits until it is done.
    pub(crate) async fn build(&self, name: &str, database: &Documents) -> Result<()> {
        let turn = self.turn(name);
        let _lock = turn.lock.lock().await;
        Ok(turn.build(database).await?)
    }

    /// Sees to it that a database's indexes are being built, in the background.
    pub(crate) fn begin(&self, app: &Arc<App>, name: &str, database: &Documents) {
        let turn = self.turn(name);
        let Ok(lock) = turn.lock.clone().try_lock_owned() else { return };
        let (name, database, stopping) = (name.to_owned(), database.clone(), app.clone());
        app.spawn_scan(async move {
            let _lock = lock;
            tokio::select! {
                built = turn.build(&database) => match built {
                    Ok(()) => tracing::debug!(database = name, "indexes are built"),
                    // Whoever needs them next tries again.
                    Err(error) => tracing::warn!(database = name, %error, "indexes are not built yet"),
                },
                () = stopping.stopping() => {}
            }
        });
    }

    /// The same, and waits a little: the indexes of a small database are there when their client has its answer.
    pub(crate) async fn begin_and_wait(&self, app: &Arc<App>, name: &str, database: &Documents, wait: Duration) {
        self.begin(app, name, database);
        let turn = self.turn(name);
        // Longer ones go on.
        let _ = tokio::time::timeout(wait, turn.lock.lock()).await;
    }

    /// The databases whose indexes are being built, and how far that is, in the order of their names.
    pub(crate) fn running(&self) -> Vec<(String, BuildProgress)> {
        let turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let progress = |turn: &Turn| turn.progress.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // One that was given up left its progress behind, and not its lock.
        let at_it = turns.iter().filter(|(_, turn)| turn.lock.try_lock().is_err());
        let mut running: Vec<_> = at_it.filter_map(|(name, turn)| Some((name.clone(), progress(turn)?))).collect();
        running.sort_by(|(a, _), (b, _)| a.cmp(b));
        running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_listed_while_somebody_is_at_them() {
        let builds = Builds::default();
        let progress = BuildProgress { indexes: vec![1], documents: 20, expected: 30, done: false };
        let turns: Vec<_> = ["b", "a", "given up"].iter().map(|name| builds.turn(name)).collect();
        turns.iter().for_each(|turn| turn.set(Some(progress.clone())));
        let (b, a) = (turns[0].lock.try_lock().unwrap(), turns[1].lock.try_lock().unwrap());
        let names = || builds.running().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(), ["a", "b"]);
        drop(b);
        assert_eq!(builds.running(), [("a".to_owned(), progress)]);
        turns[1].set(None);
        assert!(names().is_empty());
        drop(a);
    }
}
