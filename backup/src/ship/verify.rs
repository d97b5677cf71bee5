//! Checks a shipped store: every bit of every file, that the tables of each base are there, and that no segment is
//! missing.

use std::collections::HashSet;

use super::form::{BASES, LOG, STORE, TABLES, base_path, log_path, table_path};
use crate::error::{Error, Result};
use crate::repository::{Repository, name_of};
use crate::verify::Verified;

/// Segments that are tried for one that can be read.
const MOST_TRIED: usize = 8;

/// What a restore of a shipped store can reach.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShippedSpan {
    /// Name of the store, as that of its runs.
    pub store: String,
    /// Number of bases.
    pub bases: usize,
    /// Time of the oldest state, in milliseconds since 1970.
    pub from_ms: u64,
    /// Time of the newest state.
    pub until_ms: u64,
    /// Files that were looked at and are damaged, and why. `verify` looks at all.
    pub damaged: Vec<(String, String)>,
}

impl Repository {
    /// What can be restored. `None` if no base was shipped here.
    ///
    /// # Errors
    /// Those of the place; [`Error::Damaged`] names a file.
    pub async fn shipped(&self) -> Result<Option<ShippedSpan>> {
        let bases = self.numbers(BASES).await?;
        let segments = self.numbers(LOG).await?;
        let mut damaged = Vec::new();
        let mut first = None;
        for number in &bases {
            match self.base(*number).await {
                Ok(base) => {
                    first = Some(base);
                    break;
                }
                Err(Error::Damaged { file, reason }) => damaged.push((file, reason)),
                Err(error) => return Err(error),
            }
        }
        let Some(first) = first else {
            return match damaged.into_iter().next() {
                Some((file, reason)) => Err(Error::Damaged { file, reason }),
                None => Ok(None),
            };
        };
        let last = self.last_sound(&segments).await?;
        if let Some(number) = segments.last().filter(|number| Some(**number) != last.map(|(number, _)| number)) {
            damaged.push((log_path(*number), "it cannot be read".to_owned()));
        }
        let store = match self.opened(STORE).await {
            Ok(name) => String::from_utf8_lossy(&name).into_owned(),
            Err(Error::Damaged { file, reason }) => {
                damaged.push((file, reason));
                "?".to_owned()
            }
            Err(error) => return Err(error),
        };
        let until_ms = last.map_or(first.ms, |(_, ms)| ms);
        Ok(Some(ShippedSpan { store, bases: bases.len(), from_ms: first.ms, until_ms, damaged }))
    }

    /// The newest of these segments that can be read, and its time. A few are tried.
    pub(super) async fn last_sound(&self, numbers: &[u64]) -> Result<Option<(u64, u64)>> {
        for number in numbers.iter().rev().take(MOST_TRIED) {
            match self.segment(*number).await {
                Ok(segment) => return Ok(Some((*number, segment.head.ms))),
                Err(Error::Damaged { file, reason }) => {
                    tracing::warn!(file, reason, "a segment of the ship is damaged")
                }
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Bases are listed first and tables last: a shipper writes them in the other order, so nothing that is listed needs
    /// a file that came later. What it removes meanwhile is not missing: its base is gone too.
    pub(crate) async fn verify_ship(
        &self,
        verified: &mut Verified,
        progress: &mut (dyn FnMut(&str) + Send),
    ) -> Result<()> {
        let bases = self.list(BASES).await?;
        let segments = self.list(LOG).await?;
        let tables = self.list(TABLES).await?;
        let mut sound = HashSet::new();
        for file in &tables {
            progress(&file.path);
            match self.opened(&file.path).await {
                Ok(_) => drop(sound.insert(name_of(&file.path))),
                Err(error) => problem(verified, error)?,
            }
            verified.count(file.bytes);
        }
        if !segments.is_empty() {
            verified.count(0);
            if let Err(error) = self.opened(STORE).await {
                problem(verified, error)?;
            }
        }
        segments.iter().for_each(|file| verified.count(file.bytes));
        let numbers: Vec<u64> = segments.iter().filter_map(|file| name_of(&file.path).parse().ok()).collect();
        let mut last: Option<(u64, Option<i64>)> = None;
        for number in &numbers {
            let path = log_path(*number);
            progress(&path);
            let segment = match self.segment(*number).await {
                Ok(segment) => Some(segment),
                Err(error) => {
                    problem(verified, error)?;
                    None
                }
            };
            if let Some((before, version)) = last {
                let continues = || Some(segment.as_ref()?.head.begins || segment.as_ref()?.continues(version?));
                if before + 1 != *number {
                    if self.numbers(LOG).await?.first().is_some_and(|first| *first <= before + 1) {
                        verified.problem(&log_path(before + 1), "it is missing");
                    }
                } else if continues() == Some(false) {
                    verified.problem(&path, "it does not continue the segment before it");
                }
            }
            last = Some((*number, segment.map(|segment| segment.head.version)));
        }
        let there: HashSet<u64> = numbers.into_iter().collect();
        for file in bases {
            progress(&file.path);
            verified.count(file.bytes);
            let Ok(number) = name_of(&file.path).parse() else { continue };
            let base = match self.base(number).await {
                Ok(base) => base,
                Err(error) => {
                    problem(verified, error)?;
                    continue;
                }
            };
            let missing = base.tables.iter().find(|table| !sound.contains(table.name.as_str()));
            let (path, reason) = match missing {
                Some(table) => (table_path(&table.name), "it is damaged or missing"),
                None if !there.contains(&number) => (log_path(number), "it is missing"),
                None => {
                    verified.bases += 1;
                    continue;
                }
            };
            match self.opened(&file.path).await {
                Err(error) if error.is_missing() => {}
                _ => verified.problem(&path, &format!("{reason}, and {} needs it", base_path(number))),
            }
        }
        Ok(())
    }
}

/// Adds damage to the result. Files that were removed meanwhile are none.
fn problem(verified: &mut Verified, error: Error) -> Result<()> {
    match error {
        Error::Damaged { file, reason } => verified.problem(&file, &reason),
        error if error.is_missing() => {}
        error => return Err(error),
    }
    Ok(())
}
