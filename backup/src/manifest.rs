//! The description of a run. It is written last, as `runs/ID`.

use model::{ConflictPolicy, CreateOptions, DatabaseInfo};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::pack::ObjectId;

pub(crate) const FORMAT: u32 = 1;

/// A run of a backup: the state of databases.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    /// When it began, in milliseconds since 1970.
    pub(crate) began_ms: u64,
    pub(crate) ended_ms: u64,
    /// The databases, by name.
    pub(crate) databases: Vec<Database>,
    /// The servers' configuration.
    pub(crate) configuration: Vec<Setting>,
    /// The store's identity, in hexadecimal digits.
    pub(crate) identity: String,
    /// The packs with everything that the run needs.
    pub(crate) packs: Vec<Pack>,
}

/// A setting of the servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) section: String,
    pub(crate) name: String,
    pub(crate) value: String,
}

/// A database as it was at a sequence.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Database {
    pub(crate) name: String,
    /// The instance of the database.
    pub(crate) instance: String,
    pub(crate) incarnation: u8,
    /// The sequence up to which it is complete.
    pub(crate) seq: String,
    pub(crate) purge_seq: u64,
    /// Number of documents, deleted ones included.
    pub(crate) documents: u64,
    /// Names of segments. A later one's documents replace those of earlier ones.
    pub(crate) segments: Vec<ObjectId>,
    /// Blocks of local documents.
    pub(crate) locals: Vec<ObjectId>,
    /// Lists of [`model::PurgeInfo`].
    pub(crate) purges: Vec<ObjectId>,
    /// The security object, as JSON.
    pub(crate) security: String,
    pub(crate) settings: Settings,
    /// Documents that could not be read. Earlier runs may have them.
    pub(crate) damaged: Vec<String>,
    /// The last changes up to the sequence, oldest first: a later run recognises the database by them.
    pub(crate) recent: Vec<Recent>,
    /// The UUID of the last purge, if the database remembers it.
    pub(crate) last_purge: Option<String>,
    /// Why this run could not copy it. Then its state is that of an earlier run.
    pub(crate) not_renewed: Option<String>,
}

/// A document's last change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recent {
    pub(crate) seq: String,
    pub(crate) id: String,
    /// Its winner.
    pub(crate) rev: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    body_format: String,
    last_write_wins: bool,
    partitioned: bool,
    keep_replaced: Option<String>,
    pub(crate) revs_limit: u32,
    pub(crate) purged_infos_limit: u64,
    pub(crate) deleted_document_ttl: Option<String>,
}

impl Settings {
    pub(crate) fn of(info: &DatabaseInfo, purged_infos_limit: u64, deleted_document_ttl: Option<String>) -> Self {
        Settings {
            body_format: info.format.name().to_owned(),
            last_write_wins: info.conflicts == ConflictPolicy::LastWriteWins,
            partitioned: info.partitioned,
            keep_replaced: info.keep_replaced.map(|keep| keep.to_string()),
            revs_limit: info.revs_limit,
            purged_infos_limit,
            deleted_document_ttl,
        }
    }

    pub(crate) fn options(&self) -> Result<CreateOptions> {
        Ok(CreateOptions {
            format: Some(self.body_format.parse().map_err(|_| unknown("layout of bodies", &self.body_format))?),
            conflicts: match self.last_write_wins {
                true => ConflictPolicy::LastWriteWins,
                false => ConflictPolicy::KeepAll,
            },
            keep_replaced: match &self.keep_replaced {
                Some(keep) => Some(keep.parse().map_err(|_| unknown("time to keep replaced revisions", keep))?),
                None => None,
            },
            partitioned: self.partitioned,
        })
    }
}

fn unknown(what: &str, value: &str) -> Error {
    Error::refused(format!("the backup has a {what} that this version does not know: {value}"))
}

/// A pack. Its file is in the folder of the run that wrote it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Pack {
    pub(crate) run: String,
    pub(crate) name: ObjectId,
    pub(crate) bytes: u64,
}

impl Pack {
    pub(crate) fn path(&self) -> String {
        format!("packs/{}/{}", self.run, self.name)
    }
}

/// Documents of a database, each once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Segment {
    pub(crate) documents: u64,
    /// Objects with records of documents.
    pub(crate) blocks: Vec<ObjectId>,
    /// The contents of attachments that its documents name, each once.
    pub(crate) contents: Vec<ObjectId>,
}

/// A remembered purge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PurgeRecord {
    pub(crate) seq: u64,
    pub(crate) uuid: String,
    pub(crate) id: String,
    pub(crate) revs: Vec<String>,
    pub(crate) purged: Vec<String>,
}
