//! The instance row, which every transaction on a database reads first.
//!
//! ```text
//!  (Format, InstanceId, Incarnation, BodyFormat, RevsLimit, CreatedMs,
//!   Policy,                                               0, or 1 if the last write wins; 2 more if partitioned
//!   NextIndex, Count, (Index, Active) …,
//!   Generation, Count, (DesignId, Position, Hash) …,      design documents that validate edits
//!   [Unit, Number],                                       in formats 2 and 4: bodies of replaced revisions that are kept
//!   [Collections],                                        in formats 3 and 4: number of the last collection
//!   State …)                                                      open 0; closing 1, To, Run; moved 2, To; arriving 3
//! ```
//!
//! Transactions that write read the row with a conflict range, and dropping the database clears it. So a late writer
//! never writes keys of a dropped database. The row has everything that a write must know about the database, so no
//! other read is needed.
//!
//! The row is also the fence of a relocation ([`relocate`](mod@crate::admin::relocate)). A write gets the state with
//! the same read. So closing a database costs its writers nothing, and no write is missed.

use kv_api::Read;

use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::replaced::keep_replaced::KeepReplaced;
use crate::rows::body::BodyFormat;
use crate::rows::revid::{RevHash, RevId};
use crate::rows::row::Reader;
use crate::rows::tuple;
use crate::write::policy::ConflictPolicy;

const FORMAT: u64 = 1;

/// The format of a database that keeps bodies of replaced revisions, or still has some: the row then has the setting.
const FORMAT_KEEPING: u64 = 2;

/// Added to the format of a database in which a collection began: the row then has the number of collections.
const COLLECTED: u64 = 2;

/// The units of the setting for replaced revisions.
const KEPT_REVISIONS: u64 = 0;
const KEPT_MILLISECONDS: u64 = 1;

/// CouchDB's conflict policy.
const KEEP_ALL: u64 = 0;

/// The conflict policy by which the last write wins.
const LAST_WRITE_WINS: u64 = 1;

/// Added to the policy in a partitioned database.
const PARTITIONED: u64 = 2;

const OPEN: u64 = 0;
const CLOSING: u64 = 1;
const MOVED: u64 = 2;
const ARRIVING: u64 = 3;

/// The state of a database with respect to relocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DatabaseState {
    /// It is in this store.
    Open,
    /// It is about to move. It can be read, but no longer written.
    Closing {
        /// The store it will move to, as the marker will name it.
        to: String,
        /// The run of the relocation that closed it.
        run: [u8; 16],
    },
    /// It is in another store. Its rows here are those at the time of the move.
    Moved {
        /// The store it moved to.
        to: String,
    },
    /// It is being copied to this store, or restored in it, and clients cannot see it yet.
    Arriving,
}

/// The purpose of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Working with an open database.
    Living,
    /// Reading the remains of a database that moved away.
    Remains,
    /// Comparing a database that is being copied to this store.
    Arriving,
    /// Filling a database from a [backup](crate::Layer::begin_restore).
    Restoring,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    /// The id that distinguishes the database from earlier and later ones with its name.
    pub(crate) id: [u8; 16],
    /// Number of times that the database moved to another store (RFC 001, "Terminology"), or that its store was
    /// [adopted](crate::admin::adoption).
    pub(crate) incarnation: u8,
    /// The layout of new bodies.
    pub(crate) format: BodyFormat,
    /// Whether bodies in another layout may be left to rewrite.
    pub(crate) rewrites: bool,
    /// Maximum number of revisions that a branch remembers.
    pub(crate) revs_limit: u32,
    /// Time of its creation, in milliseconds since 1970.
    pub(crate) created_ms: u64,
    /// Its conflict policy.
    pub(crate) policy: ConflictPolicy,
    /// Whether the id of each document starts with the name of a partition.
    pub(crate) partitioned: bool,
    /// Its indexes.
    pub(crate) indexes: Indexes,
    /// Its design documents that validate edits.
    pub(crate) validation: Validation,
    /// The replaced revisions whose bodies it keeps; `None` if it has none. Zero revisions while some are left.
    pub(crate) keep: Option<KeepReplaced>,
    /// Number of the last collection of documents that no document names; see [`collect`](crate::write::collect). It is
    /// even, or one more if an edit ended that collection. The last one alone may write. Zero if there was none, so that
    /// nothing is condemned or in the trash.
    pub(crate) collections: u64,
    pub(crate) state: DatabaseState,
}

/// The design documents that validate the edits of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Validation {
    /// Number of times that they changed. It never falls, so equal numbers mean equal documents.
    pub(crate) generation: u64,
    /// The documents at their winners, in the order of their ids.
    pub(crate) designs: Vec<(String, RevId)>,
}

/// The indexes that edits of a database maintain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Indexes {
    /// The number of the next index. Numbers are never reused, so rows of a dropped index cannot be taken for rows of
    /// another one.
    pub(crate) next: u64,
    /// The indexes, in the order of their numbers.
    pub(crate) kept: Vec<Kept>,
}

/// An index that edits maintain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) number: u64,
    /// Whether it has the rows of all documents.
    pub(crate) active: bool,
}

impl Indexes {
    /// Whether any index is not active.
    pub(crate) fn are_to_build(&self) -> bool {
        self.kept.iter().any(|one| !one.active)
    }

    /// Whether an index must be built that did not exist before or was active.
    pub(crate) fn adds_work_to(&self, before: &Indexes) -> bool {
        self.kept.iter().any(|one| !one.active && !before.kept.contains(one))
    }

    /// The same indexes, all marked as not built.
    pub(crate) fn to_build(&self) -> Indexes {
        Indexes { next: self.next, kept: self.kept.iter().map(|one| Kept { active: false, ..*one }).collect() }
    }

    fn write(&self, out: &mut Vec<u8>) {
        tuple::append_u64(out, self.next);
        tuple::append_u64(out, self.kept.len() as u64);
        for one in &self.kept {
            tuple::append_u64(out, one.number);
            tuple::append_bool(out, one.active);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Indexes> {
        let (next, count) = (reader.int()?, reader.int()?);
        let kept = (0..count).map(|_| Ok(Kept { number: reader.int()?, active: reader.bool()? }));
        Ok(Indexes { next, kept: kept.collect::<Result<_>>()? })
    }
}

impl Validation {
    /// Sets whether a design document validates: `rev` is its winner if it does.
    pub(crate) fn set(&mut self, design_id: &str, rev: Option<&RevId>) {
        let known = self.designs.iter().find(|(id, _)| id == design_id).map(|(_, rev)| rev);
        if known == rev {
            return;
        }
        self.generation += 1;
        self.designs.retain(|(id, _)| id != design_id);
        if let Some(rev) = rev {
            self.designs.push((design_id.to_owned(), rev.clone()));
            self.designs.sort();
        }
    }

    /// Whether this design document validates.
    pub(crate) fn has(&self, design_id: &str) -> bool {
        self.designs.iter().any(|(id, _)| id == design_id)
    }

    fn write(&self, out: &mut Vec<u8>) {
        tuple::append_u64(out, self.generation);
        tuple::append_u64(out, self.designs.len() as u64);
        for (id, rev) in &self.designs {
            tuple::append_str(out, id);
            tuple::append_u64(out, rev.position());
            tuple::append_bytes(out, rev.hash().as_bytes());
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Validation> {
        let (generation, count) = (reader.int()?, reader.int()?);
        let designs = (0..count).map(|_| {
            let (id, position, hash) = (reader.str()?.into_owned(), reader.int()?, reader.bytes()?);
            let rev = RevHash::from_bytes(&hash).and_then(|hash| RevId::new(position, hash));
            Ok((id, rev.map_err(|_| Error::corrupt("an impossible revision of a design document"))?))
        });
        Ok(Validation { generation, designs: designs.collect::<Result<_>>()? })
    }
}

impl Instance {
    /// The instance, if it belongs to this database and its state allows this access. A serializable read means that
    /// the transaction writes.
    pub(crate) fn admit(self, id: [u8; 16], access: Access, read: Read) -> Result<Instance> {
        let writes = read == Read::Serializable;
        match (access, &self.state) {
            _ if self.id != id => {}
            (Access::Living, DatabaseState::Open) | (Access::Restoring, DatabaseState::Arriving) => return Ok(self),
            (Access::Living, DatabaseState::Closing { .. }) if writes => return Err(ErrorKind::Moving.into()),
            (Access::Living, DatabaseState::Closing { .. }) => return Ok(self),
            (Access::Living, DatabaseState::Moved { to }) => return Err(ErrorKind::Moved(to.clone()).into()),
            (Access::Remains, DatabaseState::Moved { .. }) | (Access::Arriving, DatabaseState::Arriving) if !writes => {
                return Ok(self);
            }
            _ => {}
        }
        Err(Error::not_found(NotFound::Database))
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48);
        let format = if self.keep.is_some() { FORMAT_KEEPING } else { FORMAT };
        tuple::append_u64(&mut out, format + if self.collections > 0 { COLLECTED } else { 0 });
        tuple::append_bytes(&mut out, &self.id);
        tuple::append_u64(&mut out, u64::from(self.incarnation));
        tuple::append_u64(
            &mut out,
            match (self.format, self.rewrites) {
                (BodyFormat::Exploded, false) => 1,
                (BodyFormat::Packed, false) => 2,
                (BodyFormat::Exploded, true) => 3,
                (BodyFormat::Packed, true) => 4,
            },
        );
        tuple::append_u64(&mut out, u64::from(self.revs_limit));
        tuple::append_u64(&mut out, self.created_ms);
        let policy = match self.policy {
            ConflictPolicy::KeepAll => KEEP_ALL,
            ConflictPolicy::LastWriteWins => LAST_WRITE_WINS,
        };
        tuple::append_u64(&mut out, policy + if self.partitioned { PARTITIONED } else { 0 });
        self.indexes.write(&mut out);
        self.validation.write(&mut out);
        if let Some(keep) = self.keep {
            let (unit, number) = match keep {
                KeepReplaced::Revisions(number) => (KEPT_REVISIONS, u64::from(number)),
                KeepReplaced::Milliseconds(number) => (KEPT_MILLISECONDS, number),
            };
            tuple::append_u64(&mut out, unit);
            tuple::append_u64(&mut out, number);
        }
        if self.collections > 0 {
            tuple::append_u64(&mut out, self.collections);
        }
        match &self.state {
            DatabaseState::Open => tuple::append_u64(&mut out, OPEN),
            DatabaseState::Closing { to, run } => {
                tuple::append_u64(&mut out, CLOSING);
                tuple::append_str(&mut out, to);
                tuple::append_bytes(&mut out, run);
            }
            DatabaseState::Moved { to } => {
                tuple::append_u64(&mut out, MOVED);
                tuple::append_str(&mut out, to);
            }
            DatabaseState::Arriving => tuple::append_u64(&mut out, ARRIVING),
        }
        out
    }

    pub(crate) fn read(value: &[u8]) -> Result<Instance> {
        let mut reader = Reader::new(value);
        let written = reader.int()?;
        let collected = written > COLLECTED;
        let keeps = match if collected { written - COLLECTED } else { written } {
            FORMAT => false,
            FORMAT_KEEPING => true,
            _ => return Err(Error::unknown_format(format!("a database in format {written}"))),
        };
        let (id, incarnation) = (reader.bytes()?, reader.int()?);
        let (format, rewrites) = match reader.int()? {
            1 => (BodyFormat::Exploded, false),
            2 => (BodyFormat::Packed, false),
            3 => (BodyFormat::Exploded, true),
            4 => (BodyFormat::Packed, true),
            other => return Err(Error::unknown_format(format!("bodies in format {other}"))),
        };
        let id = sixteen(&id)?;
        let incarnation = u8::try_from(incarnation).map_err(|_| Error::corrupt("an incarnation over 255"))?;
        let revs_limit =
            u32::try_from(reader.int()?).map_err(|_| Error::corrupt("an impossible limit on revisions"))?;
        let created_ms = reader.int()?;
        let (policy, partitioned) = read_policy(&mut reader)?;
        let indexes = Indexes::read(&mut reader)?;
        let validation = Validation::read(&mut reader)?;
        let keep = if keeps { Some(read_keep(&mut reader)?) } else { None };
        let collections = if collected { reader.int()? } else { 0 };
        let state = read_state(&mut reader)?;
        reader.end()?;
        Ok(Instance {
            id,
            incarnation,
            format,
            rewrites,
            revs_limit,
            created_ms,
            policy,
            partitioned,
            indexes,
            validation,
            keep,
            collections,
            state,
        })
    }
}

/// Reads an instance id, or another id of sixteen bytes.
pub(crate) fn read_id(reader: &mut Reader<'_>) -> Result<[u8; 16]> {
    sixteen(&reader.bytes()?)
}

fn sixteen(bytes: &[u8]) -> Result<[u8; 16]> {
    bytes.try_into().map_err(|_| Error::corrupt("an instance id of wrong length"))
}

/// The policy, and whether the database is partitioned.
fn read_policy(reader: &mut Reader<'_>) -> Result<(ConflictPolicy, bool)> {
    let written = reader.int()?;
    let (policy, partitioned) = match written.checked_sub(PARTITIONED) {
        Some(policy) => (policy, true),
        None => (written, false),
    };
    match policy {
        KEEP_ALL => Ok((ConflictPolicy::KeepAll, partitioned)),
        LAST_WRITE_WINS => Ok((ConflictPolicy::LastWriteWins, partitioned)),
        _ => Err(Error::unknown_format(format!("conflicts by policy {written}"))),
    }
}

fn read_keep(reader: &mut Reader<'_>) -> Result<KeepReplaced> {
    match (reader.int()?, reader.int()?) {
        (KEPT_REVISIONS, number) => {
            let number = u32::try_from(number).map_err(|_| Error::corrupt("an impossible number of revisions"))?;
            Ok(KeepReplaced::Revisions(number))
        }
        (KEPT_MILLISECONDS, number) => Ok(KeepReplaced::Milliseconds(number)),
        (other, _) => Err(Error::unknown_format(format!("replaced revisions kept in unit {other}"))),
    }
}

fn read_state(reader: &mut Reader<'_>) -> Result<DatabaseState> {
    match reader.int()? {
        OPEN => Ok(DatabaseState::Open),
        CLOSING => Ok(DatabaseState::Closing { to: reader.str()?.into_owned(), run: read_id(reader)? }),
        MOVED => Ok(DatabaseState::Moved { to: reader.str()?.into_owned() }),
        ARRIVING => Ok(DatabaseState::Arriving),
        other => Err(Error::corrupt(format!("a database in unknown state {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An open database.
    fn open() -> Instance {
        Instance {
            id: [1; 16],
            incarnation: 0,
            format: BodyFormat::Exploded,
            rewrites: false,
            revs_limit: 1,
            created_ms: 0,
            policy: ConflictPolicy::KeepAll,
            partitioned: false,
            indexes: Indexes::default(),
            validation: Validation::default(),
            keep: None,
            collections: 0,
            state: DatabaseState::Open,
        }
    }

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        let states = [
            (BodyFormat::Exploded, DatabaseState::Open),
            (BodyFormat::Packed, DatabaseState::Open),
            (BodyFormat::Packed, DatabaseState::Closing { to: "a:b\0".to_owned(), run: [7; 16] }),
            (BodyFormat::Packed, DatabaseState::Moved { to: String::new() }),
            (BodyFormat::Exploded, DatabaseState::Arriving),
        ];
        let policies = [ConflictPolicy::KeepAll, ConflictPolicy::LastWriteWins];
        for ((format, state), policy) in states.iter().flat_map(|state| policies.map(|policy| (state.clone(), policy)))
        {
            let base = Instance { incarnation: 255, format, revs_limit: 4_000, created_ms: 1 << 41, policy, ..open() };
            let kept = vec![Kept { number: 1, active: false }, Kept { number: 299, active: true }];
            let designs = vec![("_design/a".to_owned(), "2-ab".parse().unwrap())];
            let validations = [
                Validation::default(),
                Validation { generation: 3, designs: Vec::new() },
                Validation { generation: 1 << 40, designs },
            ];
            let all_indexes = [Indexes::default(), Indexes { next: 3, kept: Vec::new() }, Indexes { next: 300, kept }];
            let cases = all_indexes.iter().flat_map(|indexes| validations.iter().map(move |one| (indexes, one)));
            for (indexes, validation) in cases {
                let (indexes, validation, rewrites) = (indexes.clone(), validation.clone(), indexes.next == 3);
                let keep = match validation.generation {
                    0 => None,
                    3 => Some(KeepReplaced::Revisions(0)),
                    _ => Some(KeepReplaced::Milliseconds(1 << 40)),
                };
                let collections = u64::from(validation.generation == 3) + 300 * u64::from(format == BodyFormat::Packed);
                let instance =
                    Instance { indexes, validation, rewrites, keep, collections, state: state.clone(), ..base.clone() };
                let row = instance.write();
                assert_eq!(Instance::read(&row).unwrap(), instance);
                for cut in 0..row.len() {
                    assert!(Instance::read(&row[..cut]).is_err(), "cut at {cut}");
                }
            }
        }
    }

    #[test]
    fn an_unknown_body_format_is_named_whatever_the_other_fields() {
        let mut row = Vec::new();
        tuple::append_u64(&mut row, FORMAT);
        tuple::append_bytes(&mut row, b"of another length");
        tuple::append_u64(&mut row, 70_000);
        tuple::append_u64(&mut row, 5);
        tuple::append_str(&mut row, "what comes then");
        let error = Instance::read(&row).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::UnknownFormat("bodies in format 5".to_owned()));
    }

    #[test]
    fn an_unknown_policy_is_refused() {
        let row = Instance { policy: ConflictPolicy::LastWriteWins, ..open() }.write();
        // Behind it: next index, number of indexes, generation, number of design documents, state.
        let at = row.len() - 7;
        assert_eq!(row[at..], [0x15, 1, 0x14, 0x14, 0x14, 0x14, 0x14]);
        let other = [&row[..at], &[0x15, 4], &row[at + 2..]].concat();
        let error = Instance::read(&other).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::UnknownFormat("conflicts by policy 4".to_owned()));
    }

    #[test]
    fn a_state_admits_what_it_may() {
        use Access::{Arriving, Living, Remains, Restoring};
        use Read::{Serializable, Snapshot};
        let (id, to) = ([1; 16], "there".to_owned());
        let closing = DatabaseState::Closing { to: to.clone(), run: [0; 16] };
        let moved = DatabaseState::Moved { to: to.clone() };
        let gone = ErrorKind::NotFound(NotFound::Database);
        for (state, access, read, expected) in [
            (DatabaseState::Open, Living, Serializable, Ok(())),
            (DatabaseState::Open, Remains, Snapshot, Err(gone.clone())),
            (closing.clone(), Living, Snapshot, Ok(())),
            (closing, Living, Serializable, Err(ErrorKind::Moving)),
            (moved.clone(), Living, Snapshot, Err(ErrorKind::Moved(to.clone()))),
            (moved.clone(), Remains, Snapshot, Ok(())),
            (moved, Remains, Serializable, Err(gone.clone())),
            (DatabaseState::Arriving, Living, Snapshot, Err(gone.clone())),
            (DatabaseState::Arriving, Arriving, Snapshot, Ok(())),
            (DatabaseState::Arriving, Restoring, Serializable, Ok(())),
            (DatabaseState::Open, Restoring, Snapshot, Err(gone.clone())),
            (DatabaseState::Arriving, Living, Serializable, Err(gone.clone())),
        ] {
            let what = format!("{state:?}, {access:?}, {read:?}");
            let instance = Instance { id, state, ..open() };
            let admitted = instance.clone().admit(id, access, read).map(drop).map_err(|error| error.kind().clone());
            assert_eq!(admitted, expected, "{what}");
            assert!(instance.admit([2; 16], access, read).is_err(), "another database, {what}");
        }
    }
}
