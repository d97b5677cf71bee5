//! Removes what is older than the time that is kept. The shipper does it after each base, so it never removes what a base
//! of its own will need.
//!
//! ```text
//!   list tables │ is another shipper there? │ bases │ remove older bases │ segments before │ tables of no base
//! ```
//!
//! Another shipper writes its first segment before its first table. So tables that were listed before it was looked for
//! are not tables of its first base, except those of the newest base, which are kept.

use std::collections::HashSet;

use super::form::{BASES, Base, LOG, TABLES, base_path, log_path};
use super::shipper::Shipper;
use crate::error::{Error, Result};
use crate::repository::name_of;

impl Shipper {
    /// Removes the oldest bases whose successors are old enough too, and what only they need. It stops at the first
    /// later one: after a clock that was too low, older bases have later times, and are still needed.
    pub(super) async fn prune(&self) -> Result<()> {
        let repository = &self.repository;
        let horizon = repository.environment.now_ms().saturating_sub(self.options.keep_ms);
        let listed = repository.list(TABLES).await?;
        let segments = repository.numbers(LOG).await?;
        if self.notice_fence(segments.last().copied()).await? != Some(false) {
            return Ok(());
        }
        let (mut bases, mut damaged) = (Vec::new(), Vec::new());
        let numbers = repository.numbers(BASES).await?;
        for number in &numbers {
            match repository.base(*number).await {
                Ok(base) => bases.push((*number, base)),
                Err(Error::Damaged { file, reason }) => {
                    tracing::warn!(file, reason, "a base of the ship is damaged");
                    damaged.push(*number);
                }
                Err(error) => return Err(error),
            }
        }
        let is_old = |(_, base): &(u64, Base)| base.ms <= horizon;
        let old = bases.windows(2).take_while(|pair| pair.iter().all(is_old)).count();
        let Some(first) = bases.get(old) else { return Ok(()) };
        // A damaged base before the first sound one has an unknown time.
        let oldest = if is_old(first) { first.0 } else { 0 };
        for number in numbers.iter().filter(|number| **number < oldest) {
            repository.delete(&base_path(*number)).await?;
        }
        for number in segments.into_iter().filter(|number| *number < oldest) {
            repository.delete(&log_path(number)).await?;
        }
        // A base that cannot be read may need any table.
        if damaged.iter().all(|number| *number < oldest) {
            let kept = bases[old..].iter().flat_map(|(_, base)| &base.tables);
            let needed: HashSet<&str> = kept.map(|table| table.name.as_str()).collect();
            for table in listed.iter().filter(|table| !needed.contains(name_of(&table.path))) {
                repository.delete(&table.path).await?;
            }
        }
        let tidied = repository.place.tidy().await;
        crate::repository::io_of("tmp", tidied)
    }
}
