//! Checks a shipped store: every bit of every file, that the tables of each base are there, and that no segment is
//! missing.

use std::collections::HashSet;

use super::form::{BASES, LOG, STORE, TABLES, base_path, log_path, table_path};
use crate::error::{Error, Result};
use crate::repository::{Repository, name_of};
use crate::verify::Verified;

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
}

impl Repository {
    /// What can be restored. `None` if no base was shipped here.
    ///
    /// # Errors
    /// Those of the place; [`Error::Damaged`] names a file.
    pub async fn shipped(&self) -> Result<Option<ShippedSpan>> {
        let bases = self.numbers(BASES).await?;
        let last = self.numbers(LOG).await?.last().copied();
        let (Some(first), Some(last)) = (bases.first(), last) else { return Ok(None) };
        Ok(Some(ShippedSpan {
            store: String::from_utf8_lossy(&self.opened(STORE).await?).into_owned(),
            bases: bases.len(),
            from_ms: self.base(*first).await?.ms,
            until_ms: self.segment(last).await?.head.ms,
        }))
    }

    pub(crate) async fn verify_ship(
        &self,
        verified: &mut Verified,
        progress: &mut (dyn FnMut(&str) + Send),
    ) -> Result<()> {
        let mut sound = HashSet::new();
        let tables = self.list(TABLES).await?;
        for file in &tables {
            progress(&file.path);
            match self.opened(&file.path).await {
                Ok(_) => drop(sound.insert(name_of(&file.path))),
                Err(error) => problem(verified, error)?,
            }
            verified.count(file.bytes);
        }
        let segments = self.list(LOG).await?;
        let numbers: Vec<u64> = self.numbers(LOG).await?;
        if !segments.is_empty() {
            verified.count(0);
            if let Err(error) = self.opened(STORE).await {
                problem(verified, error)?;
            }
        }
        segments.iter().for_each(|file| verified.count(file.bytes));
        let mut last: Option<(u64, i64)> = None;
        for number in &numbers {
            let path = log_path(*number);
            progress(&path);
            let segment = match self.segment(*number).await {
                Ok(segment) => segment,
                Err(error) => {
                    last = None;
                    problem(verified, error)?;
                    continue;
                }
            };
            if let Some((before, version)) = last
                && !segment.head.begins
            {
                if before + 1 != *number {
                    verified.problem(&log_path(before + 1), "it is missing");
                } else if !segment.continues(version) {
                    verified.problem(&path, "it does not continue the segment before it");
                }
            }
            last = Some((*number, segment.head.version));
        }
        let there: HashSet<u64> = numbers.into_iter().collect();
        for file in self.list(BASES).await? {
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
            if let Some(table) = missing {
                let reason = format!("it is damaged or missing, and {} needs it", base_path(number));
                verified.problem(&table_path(&table.name), &reason);
            } else if !there.contains(&number) {
                verified.problem(&log_path(number), &format!("it is missing, and {} needs it", base_path(number)));
            } else {
                verified.bases += 1;
            }
        }
        Ok(())
    }
}

/// Adds damage to the result. Files that were removed meanwhile are none.
fn problem(verified: &mut Verified, error: Error) -> Result<()> {
    match error {
        Error::Damaged { file, reason } => verified.problem(&file, &reason),
        Error::Io { cause, .. } if cause.kind() == std::io::ErrorKind::NotFound => {}
        error => return Err(error),
    }
    Ok(())
}
