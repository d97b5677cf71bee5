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

use super::form::{BASES, LOG, TABLES, base_path, log_path};
use super::shipper::Shipper;
use crate::error::Result;
use crate::repository::name_of;

impl Shipper {
    /// Keeps the newest base that is old enough for the whole time, and all later ones.
    pub(super) async fn prune(&self) -> Result<()> {
        let repository = &self.repository;
        let horizon = repository.environment.now_ms().saturating_sub(self.options.keep_ms);
        let listed = repository.list(TABLES).await?;
        if self.notice_fence().await? != Some(false) {
            return Ok(());
        }
        let bases = repository.numbers(BASES).await?;
        let mut needed: HashSet<String> = HashSet::new();
        let mut oldest = None;
        for number in bases.iter().rev() {
            // A base that cannot be read may need any table: then nothing is removed.
            let base = repository.base(*number).await?;
            needed.extend(base.tables.into_iter().map(|table| table.name));
            if base.ms <= horizon {
                oldest = Some(*number);
                break;
            }
        }
        if let Some(oldest) = oldest {
            for number in bases.into_iter().filter(|number| *number < oldest) {
                repository.delete(&base_path(number)).await?;
            }
            for number in repository.numbers(LOG).await?.into_iter().filter(|number| *number < oldest) {
                repository.delete(&log_path(number)).await?;
            }
        }
        for table in listed.iter().filter(|table| !needed.contains(name_of(&table.path))) {
            repository.delete(&table.path).await?;
        }
        let tidied = repository.place.tidy().await;
        crate::repository::io_of("tmp", tidied)
    }
}
