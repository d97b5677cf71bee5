//! Purges: they remove leaves as if those had never existed.
//!
//! ```text
//!  (15)           = (Limit, Ttl)                                         settings: number of purges remembered, 1,000
//!                                                                        without the row; when to purge tombstones
//!  (15, Uuid)     = (PurgeSeq)                                           the sequence of the purge with this UUID
//!  (15, PurgeSeq) = (Format = 1, Uuid, DocID, [Rev, …], [Purged, …])     revisions requested, and those removed
//! ```
//!
//! Unlike a deletion, a purge does not add a tombstone. It removes leaves: their rows in `revisions` and `docs`, and
//! contents of attachments that no other leaf refers to. If other leaves remain, the document gets a new sequence.
//! Otherwise all its rows are removed, and the feed does not show the removal. A purge is a plan like that of an edit,
//! so code that follows edits also follows purges. The only trace of a purge is its row here. New rows replace the
//! oldest ones.
//!
//! `PurgeSeq` counts the documents that purges named, including those that did not exist. The last row is always kept:
//! its sequence is the database's purge sequence. A purge reads it with a conflict range, so purges are serialised.
//!
//! A purge whose UUID is remembered is not repeated: it returns the first result. So after an unknown result a client
//! can repeat a purge without removing newer leaves. Another purge with a remembered UUID, of another document or of
//! other revisions, is refused.
//!
//! A large purge takes several rows. The first row has the purge's UUID. The UUIDs of the others are hashes of it and
//! of the part's number. So they are the same when the purge is repeated, and differ from those of other purges.

use kv_api::{Database, KeyValue, RangeRequest, Read, RetryError, Transaction};
use sha2::{Digest, Sha256};

use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::keys::{self, DatabaseKey, DatabaseKeys};
use crate::limits::MAX_ID_BYTES;
use crate::rows::revid::RevId;
use crate::rows::row::{NESTED, Reader};
use crate::rows::tuple;
use crate::write::txids::Outcome;
use crate::write::validation::Writing;

/// Default number of remembered purges.
pub const DEFAULT_PURGED_INFOS_LIMIT: u64 = 1_000;

const FORMAT: u64 = 1;

/// Approximate maximum size of the revisions in a row. A larger purge takes several rows.
const ROW_BYTES: usize = 40_000;

/// Maximum number of purges in a transaction, and of the bytes of their revisions.
const GROUP: usize = 100;
const GROUP_BYTES: usize = 100_000;

/// Maximum size of the text of the time for which tombstones are kept.
const MAX_TTL_BYTES: usize = 100;

/// Number of purge rows read at a time.
const PAGE: usize = 200;

/// A purge of leaves of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purge {
    /// The document.
    pub id: String,
    /// The leaves to remove. Other revisions are ignored.
    pub revs: Vec<RevId>,
    /// The purge's UUID; `None` for a random one. A purge whose UUID is remembered is not repeated. A UUID belongs to
    /// one document and its revisions: another purge with it is refused.
    pub uuid: Option<[u8; 16]>,
}

impl Purge {
    /// A purge with a random UUID.
    pub fn new(id: impl Into<String>, revs: Vec<RevId>) -> Self {
        Purge { id: id.into(), revs, uuid: None }
    }
}

/// A remembered purge.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PurgeInfo {
    /// Its place among the database's purges.
    pub seq: u64,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// The document.
    pub id: String,
    /// The requested revisions.
    pub revs: Vec<RevId>,
    /// Those of them that were leaves and were removed.
    pub purged: Vec<RevId>,
}

impl PurgeInfo {
    /// A purge that another database remembers, with its sequence there.
    pub fn new(seq: u64, uuid: [u8; 16], id: impl Into<String>, revs: Vec<RevId>, purged: Vec<RevId>) -> Self {
        PurgeInfo { seq, uuid, id: id.into(), revs, purged }
    }

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

/// Reads the row of a purge's UUID.
pub(crate) fn read_seq(value: &[u8]) -> Result<u64> {
    let mut reader = Reader::new(value);
    let seq = reader.int()?;
    reader.end()?;
    Ok(seq)
}

/// The settings of a database's purges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PurgeSettings {
    /// Number of remembered purges.
    pub(crate) kept: u64,
    /// See [`Documents::deleted_document_ttl`].
    ttl: Option<String>,
}

impl Default for PurgeSettings {
    fn default() -> Self {
        PurgeSettings { kept: DEFAULT_PURGED_INFOS_LIMIT, ttl: None }
    }
}

impl PurgeSettings {
    /// Reads the row of the settings. A database without such a row has the defaults.
    pub(crate) fn read(value: Option<&[u8]>) -> Result<Self> {
        let Some(value) = value else { return Ok(PurgeSettings::default()) };
        let mut reader = Reader::new(value);
        let kept = reader.int()?;
        let ttl = if reader.rest().is_empty() { None } else { Some(reader.str()?.into_owned()) };
        reader.end()?;
        Ok(PurgeSettings { kept, ttl })
    }

    fn write(&self) -> Vec<u8> {
        let mut row = Vec::new();
        tuple::append_u64(&mut row, self.kept);
        if let Some(ttl) = &self.ttl {
            tuple::append_str(&mut row, ttl);
        }
        row
    }
}

/// The request for the last purge.
pub(crate) fn newest(keys: &DatabaseKeys) -> RangeRequest {
    keys.purges_from(0).reverse().limit(1)
}

/// The sequence of the last purge; 0 if nothing was purged.
pub(crate) fn seq_of(keys: &DatabaseKeys, newest: &[KeyValue]) -> Result<u64> {
    newest.first().map_or(Ok(0), |row| keys.read_purge(&row.key))
}

/// A purge, or a part of a large one: the contents of one row.
pub(crate) struct Unit<'p> {
    pub(crate) id: &'p str,
    /// Sorted, without duplicates.
    pub(crate) revs: Vec<RevId>,
    pub(crate) uuid: [u8; 16],
    /// Whether it is skipped if the document has a live leaf.
    pub(crate) of_deleted: bool,
    /// Index of its purge in the request.
    turn: usize,
}

impl Unit<'_> {
    fn bytes(&self) -> usize {
        self.revs.iter().map(rev_bytes).sum()
    }
}

/// The UUID of a part of a purge. The first part has the purge's own.
fn part_uuid(uuid: [u8; 16], part: u64) -> [u8; 16] {
    if part == 0 {
        return uuid;
    }
    let hash: [u8; 32] = Sha256::new().chain_update(uuid).chain_update(part.to_be_bytes()).finalize().into();
    std::array::from_fn(|at| hash[at])
}

/// Approximate size of a revision in a row. Each byte of a hash may be zero, which takes two bytes.
fn rev_bytes(rev: &RevId) -> usize {
    2 * rev.hash().as_bytes().len() + 12
}

/// Groups units into transactions, the last group first. Units with the same document or the same UUID go to different
/// groups.
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
    /// Removes leaves with all their data. Returns the removed leaves for each purge. Other revisions are ignored. If
    /// leaves remain, the document gets a new sequence. Otherwise it is gone as if it had never existed, until a
    /// replica that has it brings it back; the trash of a [collection](Self::discard_condemned) has nothing of it.
    ///
    /// Many purges take several transactions. Leaves that one of them removed stay removed if a later one fails. A
    /// document whose rows cannot be read stays unchanged, and its purge returns the error. A purge fails alone too
    /// (400) if its UUID is remembered for another one.
    ///
    /// # Errors
    /// 404 if the database is gone; the store's errors if nothing was removed.
    pub async fn purge(&self, purges: &[Purge]) -> Result<Vec<Result<Vec<RevId>>>> {
        self.purge_units(purges, self.units(purges, false)).await
    }

    /// The same, for documents that are deleted. A document with a live leaf is not changed, whatever its tombstones
    /// are; nor is one whose body is in the trash of a [collection](Self::discard_condemned).
    ///
    /// # Errors
    /// As [`purge`](Self::purge).
    pub async fn purge_deleted(&self, purges: &[Purge]) -> Result<Vec<Result<Vec<RevId>>>> {
        self.purge_units(purges, self.units(purges, true)).await
    }

    async fn purge_units(&self, purges: &[Purge], units: Vec<Unit<'_>>) -> Result<Vec<Result<Vec<RevId>>>> {
        self.authorize(Writing::Purge).await?;
        let mut results: Vec<Result<Vec<RevId>>> = purges.iter().map(|_| Ok(Vec::new())).collect();
        let mut groups = groups(units);
        let mut began = false;
        while let Some(mut group) = groups.pop() {
            // A purge whose first part failed ends there.
            group.retain(|unit| results[unit.turn].is_ok());
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

    fn units<'p>(&self, purges: &'p [Purge], of_deleted: bool) -> Vec<Unit<'p>> {
        let mut units = Vec::with_capacity(purges.len());
        for (turn, Purge { id, revs, uuid }) in purges.iter().enumerate() {
            // Documents cannot have such an id, so the purge is not remembered.
            if id.len() > MAX_ID_BYTES {
                continue;
            }
            let mut revs = revs.clone();
            revs.sort();
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
            let parts = (0..).zip(parts);
            units.extend(parts.map(|(part, revs)| Unit { id, revs, uuid: part_uuid(first, part), of_deleted, turn }));
        }
        units
    }

    /// The remembered purges after this sequence, in order. Returns at most one page of them; empty at the end.
    ///
    /// # Errors
    /// 404 if the database is gone; an error for a damaged row.
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

    /// The sequence of the last purge; 0 if nothing was purged.
    ///
    /// # Errors
    /// 404 if the database is gone.
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

    /// Number of remembered purges.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn purged_infos_limit(&self) -> Result<u64> {
        Ok(self.purge_settings().await?.kept)
    }

    /// Sets the number of remembered purges, at least one. Later purges remove the surplus rows.
    ///
    /// # Errors
    /// 400 for 0; 404 if the database is gone.
    pub async fn set_purged_infos_limit(&self, limit: u64) -> Result<()> {
        if limit == 0 {
            return Err(Error::bad_request("`purged_infos_limit` must be positive integer"));
        }
        self.change_purge_settings(|settings| settings.kept = limit).await
    }

    /// How long the tombstones of deleted documents are kept before a server purges them, as the text that was set;
    /// `None` if it was not set. This crate stores it, and does not purge.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn deleted_document_ttl(&self) -> Result<Option<String>> {
        Ok(self.purge_settings().await?.ttl)
    }

    /// Sets or removes it.
    ///
    /// # Errors
    /// 400 for a text of more than 100 bytes; 404 if the database is gone.
    pub async fn set_deleted_document_ttl(&self, ttl: Option<&str>) -> Result<()> {
        if ttl.is_some_and(|ttl| ttl.len() > MAX_TTL_BYTES) {
            return Err(Error::bad_request("deleted_document_ttl must be a valid string"));
        }
        self.change_purge_settings(|settings| settings.ttl = ttl.map(str::to_owned)).await
    }

    async fn purge_settings(&self) -> Result<PurgeSettings> {
        let key = self.keys().key(DatabaseKey::PurgeSettings);
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let row = transaction.get(&key, Read::Snapshot);
            async move {
                instance.await?;
                PurgeSettings::read(row.await?.as_deref())
            }
        })
        .await
    }

    async fn change_purge_settings(&self, change: impl Fn(&mut PurgeSettings) + Send + Sync) -> Result<()> {
        let (key, change) = (&self.keys().key(DatabaseKey::PurgeSettings), &change);
        self.shared
            .guard
            .run(|transaction| {
                let instance = self.instance(&transaction, Read::Serializable);
                let row = transaction.get(key, Read::Serializable);
                async move {
                    instance.await?;
                    let mut settings = PurgeSettings::read(row.await?.as_deref())?;
                    change(&mut settings);
                    transaction.set(key, settings.write());
                    Ok(Outcome::Write(()))
                }
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::revid::RevHash;

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
    fn settings_round_trip_and_torn_ones_are_errors() {
        for ttl in [None, Some("3_mon".to_owned())] {
            let settings = PurgeSettings { kept: 7_000, ttl };
            assert_eq!(PurgeSettings::read(Some(&settings.write())).unwrap(), settings);
        }
        let row = PurgeSettings { kept: 7_000, ttl: Some("3_mon".to_owned()) }.write();
        for cut in (0..row.len()).filter(|cut| *cut != 3) {
            assert!(PurgeSettings::read(Some(&row[..cut])).is_err(), "cut at {cut}");
        }
        assert_eq!(PurgeSettings::read(None).unwrap().kept, DEFAULT_PURGED_INFOS_LIMIT);
    }

    #[test]
    fn units_of_a_document_or_of_a_name_follow_each_other() {
        let unit = |id, name: u8, revs| Unit { id, revs, uuid: [name; 16], of_deleted: false, turn: 0 };
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
