//! Keeps LiveSync's clients away from a vault that they cannot read.
//!
//! A client that finds a vault with aggregated chunks would fetch the tombstones of all its chunks, and fail at
//! each file. Before it replicates, a client reads one document, and stops if the version there is later than its
//! own, with a message that the database is newer. A client in the middle of a replication stops when the document
//! reaches it.
//!
//! ```json
//! {"_id":"obsydian_livesync_version","type":"versioninfo","version":12}         as LiveSync has it
//! {"_id":"obsydian_livesync_version","type":"versioninfo","version":1000012}    while chunks are aggregated
//! ```
//!
//! Clients also check the lock in `_local/obsydian_livesync_milestone`. It admits clients that were accepted before,
//! and offers other clients a button to unlock it.

use serde_json::{Value, json};

use crate::ChunkStore;
use crate::database::refused;
use crate::environment::pause;
use crate::error::{Error, Result};
use crate::store::{Body, Edit};

const VERSION_ID: &str = "obsydian_livesync_version";
/// Added to the version. LiveSync's versions stay far below it.
const STOPPED: u64 = 1_000_000;

impl ChunkStore {
    /// Makes LiveSync's clients stop at this database.
    ///
    /// # Errors
    /// [`Error::Contended`]; the store's failures.
    pub(crate) async fn stop_clients(&self) -> Result<()> {
        self.edit_version(|version| match version {
            // No client has used this database yet. A new one would write its own version.
            None => Some(Some(STOPPED)),
            Some(version) if version < STOPPED => Some(Some(version + STOPPED)),
            Some(_) => None,
        })
        .await
    }

    /// Lets clients in again.
    ///
    /// # Errors
    /// [`Error::Contended`]; the store's failures.
    pub(crate) async fn let_clients_in(&self) -> Result<()> {
        self.edit_version(|version| match version {
            Some(STOPPED) => Some(None),
            Some(version) if version > STOPPED => Some(Some(version - STOPPED)),
            _ => None,
        })
        .await
    }

    /// Whether LiveSync's clients have used this database and are not stopped.
    pub(crate) async fn has_clients(&self) -> Result<bool> {
        let leaves = self.store.leaves(&[VERSION_ID.to_owned()], false).await?.pop().unwrap_or_default();
        let winner = leaves.first().filter(|leaf| !leaf.deleted);
        Ok(winner.and_then(|leaf| version_of(&leaf.body)).is_some_and(|version| version < STOPPED))
    }

    /// Changes the version by `change`, which gets the present one and may leave it. An inner `None` means no document.
    async fn edit_version(&self, change: impl Fn(Option<u64>) -> Option<Option<u64>>) -> Result<()> {
        let mut failure = None;
        for attempt in 0..self.attempts {
            let leaves = self.store.leaves(&[VERSION_ID.to_owned()], false).await?.pop().unwrap_or_default();
            let winner = leaves.into_iter().next().filter(|leaf| !leaf.deleted);
            let version = match &winner {
                // A client also stops at a damaged one.
                Some(leaf) => match version_of(&leaf.body) {
                    None => return Ok(()),
                    version => version,
                },
                None => None,
            };
            let rev = winner.as_ref().map(|leaf| leaf.rev.clone());
            let edit = match (change(version), rev) {
                (None, _) | (Some(None), None) => return Ok(()),
                (Some(None), Some(rev)) => Edit::delete(VERSION_ID, rev),
                (Some(Some(version)), rev) => {
                    let mut body = winner.map(|leaf| leaf.body).unwrap_or_default();
                    body.insert("version".into(), version.into());
                    body.entry("type").or_insert_with(|| json!("versioninfo"));
                    Edit { id: VERSION_ID.into(), rev, deleted: false, body }
                }
            };
            match self.store.write(vec![edit]).await?.pop() {
                Some(written) if !refused(VERSION_ID, &written, &mut failure)? => return Ok(()),
                _ => pause(&*self.environment, attempt).await,
            }
        }
        Err(failure.map_or_else(
            || Error::Contended { what: format!("\"{VERSION_ID}\""), attempts: self.attempts },
            Error::Store,
        ))
    }
}

fn version_of(body: &Body) -> Option<u64> {
    let is_version = body.get("type").and_then(Value::as_str) == Some("versioninfo");
    body.get("version").and_then(Value::as_u64).filter(|_| is_version)
}
