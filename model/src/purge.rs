//! Purges: leaves that go as if they had never been.
//!
//! ```text
//!  (15)           = (Limit)                                              how many purges are remembered; 1,000 without it
//!  (15, Uuid)     = (PurgeSeq)                                           where the purge of this name is
//!  (15, PurgeSeq) = (Format = 1, Uuid, DocID, [Rev, …], [Purged, …])     what was asked for, and what went
//! ```
//!
//! A purge removes leaves, whatever their descent: their rows in `revisions` and `docs`, and contents of attachments that
//! nobody else has. What is left of the document gets a new sequence; of a document without leaves nothing is left, and
//! the feed never tells. All of it is a plan like that of an edit, so that whatever follows edits follows purges too.
//! What is left of a purge is its row here. The oldest rows go as new ones come.
//!
//! `PurgeSeq` counts documents that were named in purges, also those of which nothing was there. The last row stays
//! always, and is the database's purge sequence. It is read with a conflict range: purges follow each other.
//!
//! A purge whose name is there already is not done again, and is answered as it was then. So a caller who does not know
//! what became of a purge may ask again without removing what has come since.

use kv_api::{Bytes, Database, KeyValue, RangeRequest, Read, RetryError, Transaction};

use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::keys::{self, DatabaseKey, DatabaseKeys};
use crate::limits::MAX_ID_BYTES;
use crate::revid::RevId;
use crate::row::{NESTED, Reader};
use crate::tuple;
use crate::txids::Outcome;

/// How many purges are remembered where nothing else was said.
pub const DEFAULT_PURGED_INFOS_LIMIT: u64 = 1_000;

const FORMAT: u64 = 1;

/// About how many bytes of revisions a row holds; a purge of more takes several rows.
const ROW_BYTES: usize = 40_000;

/// Purges that a transaction does, and the bytes of their revisions.
const GROUP: usize = 100;
const GROUP_BYTES: usize = 100_000;

/// Rows of purges that are read at a time.
const PAGE: usize = 200;

/// A purge of leaves of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purge {
    /// The document.
    pub id: String,
    /// The leaves. Others are passed over.
    pub revs: Vec<RevId>,
    /// The purge's name; one is drawn where there is none. A purge whose name is remembered is not done again.
    pub uuid: Option<[u8; 16]>,
}

impl Purge {
    /// A purge without a name of its own.
    pub fn new(id: impl Into<String>, revs: Vec<RevId>) -> Self {
        Purge { id: id.into(), revs, uuid: None }
    }
}

/// What is remembered of a purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurgeInfo {
    /// Its place among the database's purges.
    pub seq: u64,
    /// Its name.
    pub uuid: [u8; 16],
    /// The document.
    pub id: String,
    /// The revisions that were to be purged.
    pub revs: Vec<RevId>,
    /// Those of them that were leaves, and went.
    pub purged: Vec<RevId>,
}

impl PurgeInfo {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.id.len() + 22 * (self.revs.len() + self.purged.len()));
        tuple::append_u64(&mut out, FORMAT);
        tuple::append_bytes(&mut out, &self.uuid);
        tuple::append_str(&mut out, &self.id);
        for revs in [&self.revs, &self.purged] {
            out.push(NESTED);
            for rev in revs {
                tuple::append_u64(&mut out, rev.position());
                tuple::append_bytes(&mut out, rev.hash().as_bytes());
            }
            out.push(0);
        }
        out
    }

    pub(crate) fn read(seq: u64, value: &[u8]) -> Result<PurgeInfo> {
        let mut reader = Reader::new(value);
        match reader.int()? {
            FORMAT => {}
            other => return Err(Error::unknown_format(format!("a purge in format {other}"))),
        }
        let uuid = reader.bytes()?.as_ref().try_into().map_err(|_| Error::corrupt("a purge's name of wrong length"))?;
        let id = reader.str()?.into_owned();
        let (revs, purged) = (read_revs(&mut reader)?, read_revs(&mut reader)?);
        reader.end()?;
        Ok(PurgeInfo { seq, uuid, id, revs, purged })
    }
}

fn read_revs(reader: &mut Reader<'_>) -> Result<Vec<RevId>> {
    let mut revs = Vec::new();
    reader.expect(NESTED)?;
    while reader.peek() != Some(0) {
        revs.push(keys::read_rev(reader)?);
    }
    reader.expect(0)?;
    Ok(revs)
}

/// The sequence in the row of a purge's name.
pub(crate) fn read_seq(value: &[u8]) -> Result<u64> {
    let mut reader = Reader::new(value);
    let seq = reader.int()?;
    reader.end()?;
    Ok(seq)
}

/// How many purges are remembered, as the row says.
pub(crate) fn read_kept(value: Option<&[u8]>) -> Result<u64> {
    value.map_or(Ok(DEFAULT_PURGED_INFOS_LIMIT), read_seq)
}

/// The last purge.
pub(crate) fn newest(keys: &DatabaseKeys) -> RangeRequest {
    keys.purges_from(0).reverse().limit(1)
}

/// The sequence in the last purge's row; 0 where nothing was purged.
pub(crate) fn seq_of(keys: &DatabaseKeys, newest: &[KeyValue]) -> Result<u64> {
    newest.first().map_or(Ok(0), |row| keys.read_purge(&row.key))
}

/// A part of a purge that is remembered in one row.
pub(crate) struct Unit<'p> {
    pub(crate) id: &'p str,
    /// In their order, each once.
    pub(crate) revs: Vec<RevId>,
    pub(crate) uuid: [u8; 16],
    /// The place of its purge among those it came with.
    turn: usize,
}

impl Unit<'_> {
    fn bytes(&self) -> usize {
        self.revs.iter().map(rev_bytes).sum()
    }
}

/// About how many bytes a revision takes: each of its own may be a zero, which takes two.
fn rev_bytes(rev: &RevId) -> usize {
    2 * rev.hash().as_bytes().len() + 12
}

/// Units of a transaction each, the last ones first. Those of one document, or of one name, go to different ones.
fn groups(units: Vec<Unit<'_>>) -> Vec<Vec<Unit<'_>>> {
    let mut groups: Vec<Vec<Unit<'_>>> = Vec::new();
    let mut bytes = 0;
    for unit in units {
        let own = unit.bytes();
        match groups.last_mut() {
            Some(group)
                if group.len() < GROUP
                    && bytes + own <= GROUP_BYTES
                    && group.iter().all(|other| other.id != unit.id && other.uuid != unit.uuid) =>
            {
                bytes += own;
                group.push(unit);
            }
            _ => {
                bytes = own;
                groups.push(vec![unit]);
            }
        }
    }
    groups.reverse();
    groups
}

impl<D: Database> Documents<D> {
    /// Removes leaves with all that is stored of them; for each purge those that went, in their order. A revision that
    /// is not there, or no leaf, is passed over. The rest of the document goes on with a new sequence; a document
    /// without leaves is gone, as if it had never been. A replica that has it brings it back.
    ///
    /// Many purges take several transactions: what one of them removed stays so when a later one fails. A document whose
    /// rows cannot be read is left as it is, and is its purge's error.
    ///
    /// # Errors
    /// 404 where the database is gone; the store's where nothing was done.
    pub async fn purge(&self, purges: &[Purge]) -> Result<Vec<Result<Vec<RevId>>>> {
        let mut results: Vec<Result<Vec<RevId>>> = purges.iter().map(|_| Ok(Vec::new())).collect();
        let mut groups = groups(self.units(purges));
        let mut began = false;
        while let Some(mut group) = groups.pop() {
            match self.purge_group(&group).await {
                Ok(purged) => {
                    began = true;
                    for (unit, purged) in group.iter().zip(purged) {
                        match (&mut results[unit.turn], purged) {
                            (Ok(all), Ok(purged)) => all.extend(purged),
                            (result, Err(error)) => *result = Err(error),
                            (Err(_), Ok(_)) => {}
                        }
                    }
                }
                Err(error) if group.len() > 1 && error.kv_error().is_some_and(crate::write::is_too_much) => {
                    let later = group.split_off(group.len() / 2);
                    groups.extend([later, group]);
                }
                Err(error) if !began => return Err(error),
                Err(error) => {
                    for unit in group.iter().chain(groups.drain(..).flatten().collect::<Vec<_>>().iter()) {
                        results[unit.turn] = Err(error.clone());
                    }
                }
            }
        }
        Ok(results)
    }

    fn units<'p>(&self, purges: &'p [Purge]) -> Vec<Unit<'p>> {
        let mut units = Vec::with_capacity(purges.len());
        for (turn, Purge { id, revs, uuid }) in purges.iter().enumerate() {
            // No document has such an id, and none is remembered.
            if id.len() > MAX_ID_BYTES {
                continue;
            }
            let mut revs = revs.clone();
            revs.sort_by(|one, other| {
                one.position().cmp(&other.position()).then_with(|| one.hash().as_bytes().cmp(other.hash().as_bytes()))
            });
            revs.dedup();
            let first = uuid.unwrap_or_else(|| {
                let mut drawn = [0; 16];
                self.shared.guard.environment.random(&mut drawn);
                drawn
            });
            let mut parts = vec![Vec::new()];
            let mut bytes = 0;
            for rev in revs {
                bytes += rev_bytes(&rev);
                if bytes > ROW_BYTES {
                    bytes = rev_bytes(&rev);
                    parts.push(Vec::new());
                }
                if let Some(part) = parts.last_mut() {
                    part.push(rev);
                }
            }
            units.extend((0u128..).zip(parts).map(|(part, revs)| {
                // Each part has a name of its own, which is the same whenever the purge is asked for again.
                let uuid = (u128::from_be_bytes(first) ^ part).to_be_bytes();
                Unit { id, revs, uuid, turn }
            }));
        }
        units
    }

    /// The purges that are remembered and come after this sequence, in their order: some of them, none at the end.
    ///
    /// # Errors
    /// 404 where the database is gone; damage.
    pub async fn purged_infos(&self, after: u64) -> Result<Vec<PurgeInfo>> {
        let request = self.keys().purges_from(after.saturating_add(1)).limit(PAGE);
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let rows = transaction.get_range(&request, Read::Snapshot);
            async move {
                instance.await?;
                let read = |row: &KeyValue| PurgeInfo::read(self.keys().read_purge(&row.key)?, &row.value);
                rows.await?.rows.iter().map(read).collect()
            }
        })
        .await
    }

    /// The sequence of the last purge; 0 where nothing was purged.
    ///
    /// # Errors
    /// 404 where the database is gone.
    pub async fn purge_seq(&self) -> Result<u64> {
        let request = newest(self.keys());
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let rows = transaction.get_range(&request, Read::Snapshot);
            async move {
                instance.await?;
                seq_of(self.keys(), &rows.await?.rows)
            }
        })
        .await
    }

    /// How many purges are remembered.
    ///
    /// # Errors
    /// 404 where the database is gone.
    pub async fn purged_infos_limit(&self) -> Result<u64> {
        let key = self.keys().key(DatabaseKey::PurgesKept);
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let row = transaction.get(&key, Read::Snapshot);
            async move {
                instance.await?;
                read_kept(row.await?.as_deref())
            }
        })
        .await
    }

    /// Sets how many purges are remembered, at least one. The next purges let those go that are too many.
    ///
    /// # Errors
    /// 400 for 0.
    pub async fn set_purged_infos_limit(&self, limit: u64) -> Result<()> {
        if limit == 0 {
            return Err(Error::bad_request("`purged_infos_limit` must be positive integer"));
        }
        let key = self.keys().key(DatabaseKey::PurgesKept);
        let mut row = Vec::new();
        tuple::append_u64(&mut row, limit);
        let (key, row) = (&key, Bytes::from(row));
        self.shared
            .guard
            .run(|transaction| {
                let instance = self.instance(&transaction, Read::Serializable);
                let row = row.clone();
                async move {
                    instance.await?;
                    transaction.set(key, row);
                    Ok(Outcome::Write(()))
                }
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revid::RevHash;

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        let revs: Vec<RevId> = ["1-a", "2-00000000000000000000000000000000"].map(|rev| rev.parse().unwrap()).into();
        for (revs, purged) in [(revs.clone(), revs[..1].to_vec()), (Vec::new(), Vec::new())] {
            let info = PurgeInfo { seq: 7, uuid: [0; 16], id: "a\0é".to_owned(), revs, purged };
            let row = info.write();
            assert_eq!(PurgeInfo::read(7, &row).unwrap(), info);
            for cut in 0..row.len() {
                assert!(PurgeInfo::read(7, &row[..cut]).is_err(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn units_of_a_document_or_of_a_name_follow_each_other() {
        let unit = |id, name: u8, revs| Unit { id, revs, uuid: [name; 16], turn: 0 };
        let long: Vec<RevId> =
            (1..200).map(|at| RevId::new(at, RevHash::from_bytes(&[0; 255]).unwrap()).unwrap()).collect();
        let units = vec![
            unit("a", 1, Vec::new()),
            unit("b", 2, Vec::new()),
            unit("a", 3, Vec::new()),
            unit("c", 3, Vec::new()),
            unit("d", 4, long),
            unit("e", 5, Vec::new()),
        ];
        let groups: Vec<Vec<&str>> =
            groups(units).iter().map(|group| group.iter().map(|unit| unit.id).collect()).collect();
        assert_eq!(groups, [vec!["e"], vec!["d"], vec!["c"], vec!["a"], vec!["a", "b"]]);
    }
}
