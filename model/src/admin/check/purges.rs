//! Checks the rows of purges and of their UUIDs: each must have the other.

use kv_api::{Bytes, Database, KeySelector, KeyValue, RangeRequest, Read, Transaction};

use super::report::{CheckReport, PAGE_ROWS};
use crate::admin::purge::{PurgeInfo, PurgeSettings, read_seq};
use crate::documents::Documents;
use crate::error::Result;
use crate::keys::{DatabaseKey, Subspace};

/// A row of the subspace, and the row that belongs to it.
struct Pair {
    row: KeyValue,
    what: Result<What>,
    other: Option<Bytes>,
}

/// The content of a row.
enum What {
    /// Purge settings.
    Settings,
    /// A purge. The other row is that of its UUID.
    Info(PurgeInfo),
    /// A UUID and the sequence of its purge, which is in the other row.
    Name([u8; 16], u64),
}

impl<D: Database> Documents<D> {
    /// Checks all purges and their UUIDs.
    pub(super) async fn check_purges(&self, report: &mut CheckReport) -> Result<()> {
        let mut reached = None;
        loop {
            let (pairs, more) = self.purges_page(reached.as_ref()).await?;
            reached = pairs.last().map(|pair| pair.row.key.clone());
            for Pair { row, what, other } in pairs {
                let key = row.key.escape_ascii();
                match what {
                    Err(error) => report.add(None, format!("the row {key} of purges: {}", error.reason())),
                    Ok(What::Settings) => {}
                    Ok(What::Info(info)) => {
                        report.purges += 1;
                        if other.is_none_or(|name| read_seq(&name).ok() != Some(info.seq)) {
                            report.add(Some(&info.id), format!("its purge {} has no row for its UUID", info.seq));
                        }
                    }
                    Ok(What::Name(name, seq)) => {
                        let named = other.and_then(|info| PurgeInfo::read(seq, &info).ok());
                        if named.is_none_or(|info| info.uuid != name) {
                            report.add(None, format!("the row {key} names the purge {seq}, which has another UUID"));
                        }
                    }
                }
            }
            if !more || reached.is_none() {
                return Ok(());
            }
        }
    }

    async fn purges_page(&self, reached: Option<&Bytes>) -> Result<(Vec<Pair>, bool)> {
        let keys = self.keys();
        let (first, beyond) = keys.bounds(DatabaseKey::All(Subspace::Purges));
        let begin = match reached {
            Some(key) => KeySelector::first_greater_than(key.clone()),
            None => KeySelector::first_greater_or_equal(first),
        };
        let request = RangeRequest::selectors(begin, KeySelector::first_greater_or_equal(beyond)).limit(PAGE_ROWS);
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let rows = transaction.get_range(&request, Read::Snapshot);
            async move {
                instance.await?;
                let batch = rows.await?;
                let mut reads = Vec::with_capacity(batch.rows.len());
                for row in batch.rows {
                    let what = self.what(&row);
                    let other = match &what {
                        Ok(What::Info(info)) => Some(keys.key(DatabaseKey::PurgeOf(&info.uuid))),
                        Ok(What::Name(_, seq)) => Some(keys.key(DatabaseKey::Purge(*seq))),
                        Ok(What::Settings) | Err(_) => None,
                    };
                    let other = other.map(|key| transaction.get(&key, Read::Snapshot));
                    reads.push((row, what, other));
                }
                let mut pairs = Vec::with_capacity(reads.len());
                for (row, what, other) in reads {
                    let other = match other {
                        Some(other) => other.await?,
                        None => None,
                    };
                    pairs.push(Pair { row, what, other });
                }
                Ok((pairs, batch.more))
            }
        })
        .await
    }

    fn what(&self, row: &KeyValue) -> Result<What> {
        let keys = self.keys();
        if row.key == keys.key(DatabaseKey::PurgeSettings) {
            return PurgeSettings::read(Some(&row.value)).map(|_| What::Settings);
        }
        match keys.read_purge(&row.key) {
            Ok(seq) => Ok(What::Info(PurgeInfo::read(seq, &row.value)?)),
            Err(_) => Ok(What::Name(keys.read_purge_of(&row.key)?, read_seq(&row.value)?)),
        }
    }
}
