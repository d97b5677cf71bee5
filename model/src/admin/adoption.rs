//! A store whose versions went back, and its adoption (RFC 003, "Incarnation").
//!
//! ```text
//!   one cluster     ─── 0·800 ─── 0·900 ─── backup
//!                                              │  restored
//!   another one     ─── at version 50          ▼
//!                        adopted     1·60 ─── 1·70     after 0·900, although 60 < 900
//!                        not adopted 0·60 ─── 0·70     before it: feeds that read 0·900 never see them
//! ```
//!
//! A sequence is an incarnation and a commit version. Versions grow in one store. If rows were restored into a cluster
//! with lower versions, their sequences lie in its future, and new sequences would sort before them. So such a store is
//! refused when it is opened. The check finds the newest version that rows record:
//!
//! * the last [transaction id](crate::write::txids), which every write leaves, and which is never cleared while it
//!   is the last;
//! * the last creation or drop of a database.
//!
//! A server whose store is replaced while it runs notices this when it reads the last sequence of a database.
//!
//! Adopting raises the incarnation of every database. Rows do not change: all old sequences sort before all new ones,
//! so feeds, views, consumers and replications continue where they were. Clients may still have sequences that the lost
//! store gave out after the backup. A feed from such a sequence starts at the beginning.
//!
//! The new incarnation is drawn, at least two above the old one. So it is not the one that the original gets when it
//! moves to another store, and two copies of a store rarely get the same. There are only 255, so they can.
//!
//! Each database takes one transaction, and the versions that the check reads are removed last. So if an adoption ends
//! midway, the store is still refused, and the next adoption does the rest.

use std::sync::OnceLock;

use kv_api::{Database, Read, Runner, Transaction};

use crate::admin::catalog::NameRange;
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, Result};
use crate::feed::events;
use crate::feed::seq::Seq;
use crate::keys::{DatabaseKey, DatabaseKeys, Key};
use crate::layer::{Layer, LayerOptions};
use crate::read::batch::RETRIES;
use crate::rows::catalog_row::CatalogRow;
use crate::rows::instance::{Access, Instance};

/// An incarnation above `current`, but not the next one. `None` if there is none. `drawn` is random. It takes an eighth
/// of those that are left at most, so that many adoptions are possible.
fn later_incarnation(current: u8, drawn: u8) -> Option<u8> {
    let room = u8::MAX - current;
    let skipped = 1 + drawn % (room / 8).max(1);
    current.checked_add(skipped)?.checked_add(1)
}

/// The result of an adoption.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Adopted {
    /// Number of databases whose incarnation was raised.
    pub databases: u64,
    /// Databases whose own row cannot be read, and which therefore cannot be used. They are unchanged.
    pub unreadable: Vec<String>,
}

impl<D: Database> Layer<D> {
    /// Adopts a store whose versions went back ([`ErrorKind::WentBack`]): raises the incarnation of each database, so
    /// that new sequences sort after all earlier ones. No process may have the store open.
    ///
    /// An adoption that failed midway is continued by another one, which raises all incarnations once more: it cannot
    /// know whether the failed adoption raised an incarnation, or whether that happened before the backup.
    ///
    /// # Errors
    /// 400 if there is no store; like [`open`](Layer::open) for other formats; [`ErrorKind::Relocation`] for a database
    /// that already has its last incarnation.
    pub async fn adopt(engine: D, options: LayerOptions) -> Result<Adopted> {
        let layer = Layer::assemble(engine, options);
        layer.admit(false).await?;
        layer.renew_drops().await?;
        let mut adopted = Adopted::default();
        for name in layer.database_names(&NameRange::default()).await? {
            match layer.raise(&name).await {
                Ok(raised) => adopted.databases += u64::from(raised),
                Err(error) if matches!(error.kind(), ErrorKind::Corrupt(_)) => adopted.unreadable.push(name),
                Err(error) => return Err(error),
            }
        }
        layer.forget_versions().await?;
        Ok(adopted)
    }

    /// Raises the incarnation of a database. Returns false if that is not needed.
    async fn raise(&self, name: &str) -> Result<bool> {
        // If an attempt finds a different incarnation than the first attempt, an earlier attempt committed.
        let first = OnceLock::new();
        let first = &first;
        let mut drawn = [0];
        self.guard().environment.random(&mut drawn);
        let [drawn] = drawn;
        let root = &self.guard().root;
        let catalog = Key::Catalog(name).under(root);
        Runner::new(self.engine())
            .option(RETRIES)
            .run(|transaction, _| {
                let place = transaction.get(&catalog, Read::Serializable);
                async move {
                    let Some(place) = place.await? else { return Ok(false) };
                    let place = CatalogRow::read(&place)?;
                    if place.moved_to.is_some() {
                        // It gets no more sequences here. Its creation must not lie ahead either.
                        events::created(&transaction, root, name);
                        return Ok(false);
                    }
                    let keys = DatabaseKeys::new(root, place.number);
                    let (instance_key, last_key) = (keys.key(DatabaseKey::Instance), keys.key(DatabaseKey::Last));
                    let instance = transaction.get(&instance_key, Read::Serializable);
                    let instance = instance.await?.ok_or_else(|| Error::corrupt("a database without an instance"))?;
                    let instance = Instance::read(&instance)?;
                    if *first.get_or_init(|| instance.incarnation) != instance.incarnation {
                        return Ok(true);
                    }
                    let Some(incarnation) = later_incarnation(instance.incarnation, drawn) else {
                        let reason = format!("The database {name} has had its last incarnation: there are 255.");
                        return Err(Error::relocation(reason));
                    };
                    transaction.set(&instance_key[..], Instance { incarnation, ..instance }.write());
                    transaction.set(&last_key[..], Seq::beginning_of(incarnation).as_bytes());
                    events::created(&transaction, root, name);
                    Ok(true)
                }
            })
            .await
    }

    /// Clears the rows that record later versions, and writes a transaction id of the current version. Earlier ids
    /// stay: a write may still look for its own.
    async fn forget_versions(&self) -> Result<()> {
        let root = &self.guard().root;
        let (_, end) = Key::transactions(root);
        let events_key = Key::Events.under(root);
        Runner::new(self.engine())
            .option(RETRIES)
            .run(|transaction, _| {
                let version = transaction.get_read_version();
                let event = transaction.get(&events_key, Read::Serializable);
                let (mut claim, _) = self.guard().claim::<()>();
                let end = &end;
                async move {
                    let version = version.await?;
                    let now = u64::try_from(version).unwrap_or_default();
                    let (_, later) = Key::transactions_before(root, now.saturating_add(1));
                    transaction.clear_range(&later, end);
                    claim.sign(&transaction, version, 1);
                    if event.await?.is_some() {
                        events::note(&transaction, root);
                    }
                    Ok(())
                }
            })
            .await
    }
}

impl<D: Database> Documents<D> {
    /// Fails if the database's last sequence lies ahead of a transaction that reads at `version`.
    pub(crate) fn check_last(&self, instance: &Instance, last: Seq, version: i64) -> Result<()> {
        // A database that is being copied here has the sequences of another store, and one that moved away gets no new
        // ones.
        if self.home.access == Access::Living && last.is_after(instance.incarnation, version) {
            return Err(ErrorKind::WentBack { newest: last.version(), version }.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adopted_incarnation_is_never_the_next_one_and_there_are_many() {
        for current in 0..=u8::MAX {
            for drawn in 0..=u8::MAX {
                let later = later_incarnation(current, drawn);
                assert_eq!(later.is_some(), current <= u8::MAX - 2, "{current}");
                assert!(later.is_none_or(|later| later >= current + 2 && later - current <= 32));
            }
        }
        assert_ne!(later_incarnation(0, 0), later_incarnation(0, 1));
        let adoptions = std::iter::successors(Some(0), |current| later_incarnation(*current, u8::MAX - 1)).count();
        assert!(adoptions > 20, "{adoptions}");
    }
}
