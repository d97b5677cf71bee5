//! Building indexes: the state is in the store, and here only who is at it in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::Result;

/// The indexes of these databases are being built by this process.
#[derive(Debug, Default)]
pub(crate) struct Builds(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Builds {
    /// Who holds it builds. Nobody else of this process does then, since two would only be in each other's way.
    fn turn(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(name.to_owned()).or_default().clone()
    }

    /// Builds a database's indexes to the end, or waits until it is done.
    pub(crate) async fn build(&self, name: &str, database: &Documents) -> Result<()> {
        let turn = self.turn(name);
        let _turn = turn.lock().await;
        Ok(database.build_indexes(|_| ()).await?)
    }

    /// Sees to it that a database's indexes are being built, in the background.
    pub(crate) fn begin(&self, app: &Arc<App>, name: &str, database: &Documents) {
        let Ok(turn) = self.turn(name).try_lock_owned() else { return };
        let (name, database, stopping) = (name.to_owned(), database.clone(), app.clone());
        app.spawn_scan(async move {
            let _turn = turn;
            tokio::select! {
                built = database.build_indexes(|_| ()) => match built {
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
        let _ = tokio::time::timeout(wait, turn.lock()).await;
    }
}
