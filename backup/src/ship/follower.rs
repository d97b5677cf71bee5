//! Who follows what is shipped: applies segments to an open store as they appear.
//!
//! ```text
//!   log     │ 5 │ 6 │ 7 │ 8 begins │ 9          9 is missing, and nothing is behind it: up to date
//!   store    ───────────▲
//! ```
//!
//! A segment is applied only if it goes on from the version of the store. If one is missing, damaged, or goes on from
//! another version, the store stays as it is, and is restored anew ([`Repository::restore_standby`]) once there is a
//! base behind that place.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::StandbyStore;

use super::form::{BASES, LOG, base_path, log_path};
use super::standby::Note;
use crate::error::{Error, Result};
use crate::repository::{Repository, io_of};

/// Number of looks without anything new between two looks behind the next segment.
const IDLE_LOOKS: u32 = 20;

/// What a look at the place came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// The next segment was applied. There may be more.
    Applied,
    /// There is no newer one.
    UpToDate,
    /// The log does not go on from the store's version.
    Broken {
        /// The segment from which on the store must be restored.
        from: u64,
        /// The file, and what is wrong.
        reason: String,
    },
}

/// Follows a shipped store.
pub struct Follower {
    repository: Repository,
    store: Arc<dyn StandbyStore>,
    folder: PathBuf,
    note: Note,
    idle: u32,
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower")
            .field("repository", &self.repository)
            .field("note", &self.note)
            .finish_non_exhaustive()
    }
}

impl Follower {
    /// Goes on with the store of this folder, which is open.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is no standby, was promoted, or follows another store than the one that is shipped
    /// there.
    pub async fn new(repository: Repository, store: Arc<dyn StandbyStore>, folder: &Path) -> Result<Self> {
        let none = || Error::refused(format!("the folder {} is not that of a standby", folder.display()));
        let note = Note::read(folder)?.filter(|note| !note.promoted).ok_or_else(none)?;
        let shipped = repository.shipped_store().await?;
        if shipped != note.store {
            let sentence = format!("the place has the store {shipped}, and this standby follows {}", note.store);
            return Err(Error::refused(sentence));
        }
        Ok(Follower { repository, store, folder: folder.to_owned(), note, idle: 0 })
    }

    /// What it follows.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// The time of the last segment that was applied, in milliseconds since 1970: the store has all that was
    /// acknowledged until then.
    pub fn until_ms(&self) -> u64 {
        self.note.ms
    }

    /// Applies the next segment, if it is there. Call it twice a second, and at once after [`Followed::Applied`].
    ///
    /// # Errors
    /// Those of the place and of the store: the next call tries again.
    pub async fn follow(&mut self) -> Result<Followed> {
        let number = self.note.segment + 1;
        let path = log_path(number);
        let segment = match self.repository.segment(number).await {
            Err(error) if error.is_missing() => return self.look_behind(number).await,
            Err(error @ Error::Damaged { .. }) => {
                return Ok(Followed::Broken { from: number + 1, reason: error.to_string() });
            }
            segment => segment?,
        };
        self.idle = 0;
        let version = self.store.version()?;
        // A kill between the last segment and its note leaves a store that has a part of this one, or all.
        if !segment.follows(version) {
            let reason = format!("{path} does not go on from version {version}, which the standby has");
            return Ok(Followed::Broken { from: number, reason });
        }
        self.store.replay(&segment.records)?;
        self.note = Note { segment: number, ms: segment.head.ms, ..self.note.clone() };
        self.note.write(&self.folder)?;
        Ok(Followed::Applied)
    }

    /// There is no next segment. Looks now and then whether later ones are there.
    async fn look_behind(&mut self, number: u64) -> Result<Followed> {
        self.idle += 1;
        if self.idle % IDLE_LOOKS != 1 {
            return Ok(Followed::UpToDate);
        }
        // Whatever was removed because it was old, there is a newer base.
        let newest = self.repository.numbers(BASES).await?.last().copied();
        let later = match newest {
            // The newest base is never removed.
            None => return Err(is_gone()),
            Some(newest) if newest >= number => Some(base_path(newest)),
            Some(_) if self.repository.has(&log_path(number + 1)).await? => Some(log_path(number + 1)),
            // The newest segment is never removed.
            Some(_) if !self.repository.has(&log_path(self.note.segment)).await? => return Err(is_gone()),
            Some(_) => None,
        };
        // It may have come meanwhile.
        match later {
            Some(later) if !self.repository.has(&log_path(number)).await? => {
                let reason = format!("{} is missing, and {later} is there", log_path(number));
                Ok(Followed::Broken { from: number + 1, reason })
            }
            _ => Ok(Followed::UpToDate),
        }
    }

    /// Whether nothing newer is in the place, by the list of all that is there.
    ///
    /// # Errors
    /// Those of the place; [`Error::Refused`] if it has lost what it had.
    pub async fn has_everything(&self) -> Result<bool> {
        // The newest segment is never removed.
        match self.repository.numbers(LOG).await?.last() {
            Some(last) if *last >= self.note.segment => Ok(*last == self.note.segment),
            _ => Err(is_gone()),
        }
    }
}

fn is_gone() -> Error {
    Error::refused("the place has nothing of what was shipped there any more; is it mounted?")
}

impl Repository {
    async fn has(&self, path: &str) -> Result<bool> {
        // No file of a place is empty.
        match io_of(path, self.place.read_part(path, 0, 1).await) {
            Err(error) if error.is_missing() => Ok(false),
            found => found.map(|_| true),
        }
    }
}
