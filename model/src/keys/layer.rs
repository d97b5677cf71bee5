//! The keys of the layer itself, outside of its databases.

use super::elements::{cut, end_of, misplaced};
use crate::attachments::StoreId;
use crate::error::Result;
use crate::limits::MAX_DATABASE_NAME_BYTES;
use crate::rows::row::{self, Reader, STAMP_LEN};
use crate::rows::tuple;

/// A key of the layer, before it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key<'a> {
    /// The layer's format version.
    Format,
    /// The prefix of the database with this name.
    Catalog(&'a str),
    /// The next database's number.
    Allocator,
    /// The id of a transaction that read at this version.
    Transaction { version: u64, nonce: [u8; 16] },
    /// The prefix of the database with this number.
    Database(u64),
    /// The store's identity.
    Identity,
    /// The progress of copying the database with this name to this store.
    Arrival(&'a str),
    /// An upload to the database with this number. It is kept until the deadline unless an edit names it.
    Staging { deadline_ms: u64, database: u64, store: &'a StoreId },
    /// The prefix of the jobs' registry.
    Jobs,
    /// The last change of the servers' configuration.
    Configuration,
    /// A setting of a section.
    Setting(&'a str, &'a str),
    /// The last time that a database was created or dropped.
    Events,
    /// When the database with this name was created.
    Created(&'a str),
    /// A drop of the database with this name, at this versionstamp.
    Dropped(&'a [u8; STAMP_LEN], &'a str),
    /// The versionstamp of the last drop that was forgotten.
    ForgottenDrops,
}

impl Key<'_> {
    const FORMAT: u64 = 0;
    const CATALOG: u64 = 1;
    const ALLOCATOR: u64 = 2;
    const TRANSACTION: u64 = 3;
    pub(super) const DATABASE: u64 = 4;
    const IDENTITY: u64 = 5;
    const ARRIVAL: u64 = 6;
    const STAGING: u64 = 7;
    const JOBS: u64 = 8;
    const CONFIGURATION: u64 = 9;
    const EVENTS: u64 = 10;
    const CREATED: u64 = 0;
    const DROPPED: u64 = 1;
    const FORGOTTEN: u64 = 2;

    /// The encoded key under `root`.
    pub(crate) fn under(self, root: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(root.len() + 32);
        out.extend_from_slice(root);
        match self {
            Key::Format => tuple::append_u64(&mut out, Self::FORMAT),
            Key::Catalog(name) => {
                tuple::append_u64(&mut out, Self::CATALOG);
                tuple::append_str(&mut out, cut(name, MAX_DATABASE_NAME_BYTES));
            }
            Key::Allocator => tuple::append_u64(&mut out, Self::ALLOCATOR),
            Key::Transaction { version, nonce } => {
                tuple::append_u64(&mut out, Self::TRANSACTION);
                tuple::append_u64(&mut out, version);
                tuple::append_bytes(&mut out, &nonce);
            }
            Key::Database(number) => {
                tuple::append_u64(&mut out, Self::DATABASE);
                tuple::append_u64(&mut out, number);
            }
            Key::Identity => tuple::append_u64(&mut out, Self::IDENTITY),
            Key::Arrival(name) => {
                tuple::append_u64(&mut out, Self::ARRIVAL);
                tuple::append_str(&mut out, cut(name, MAX_DATABASE_NAME_BYTES));
            }
            Key::Staging { deadline_ms, database, store } => {
                tuple::append_u64(&mut out, Self::STAGING);
                tuple::append_u64(&mut out, deadline_ms);
                tuple::append_u64(&mut out, database);
                tuple::append_bytes(&mut out, store);
            }
            Key::Jobs => tuple::append_u64(&mut out, Self::JOBS),
            Key::Configuration => tuple::append_u64(&mut out, Self::CONFIGURATION),
            Key::Setting(section, name) => {
                tuple::append_u64(&mut out, Self::CONFIGURATION);
                tuple::append_str(&mut out, section);
                tuple::append_str(&mut out, name);
            }
            Key::Events => tuple::append_u64(&mut out, Self::EVENTS),
            Key::Created(name) => {
                tuple::append_u64(&mut out, Self::EVENTS);
                tuple::append_u64(&mut out, Self::CREATED);
                tuple::append_str(&mut out, cut(name, MAX_DATABASE_NAME_BYTES));
            }
            Key::Dropped(stamp, name) => {
                out = Self::drops(root, stamp).0;
                tuple::append_str(&mut out, cut(name, MAX_DATABASE_NAME_BYTES));
            }
            Key::ForgottenDrops => {
                tuple::append_u64(&mut out, Self::EVENTS);
                tuple::append_u64(&mut out, Self::FORGOTTEN);
            }
        }
        out
    }

    /// The range of all drops from this versionstamp on.
    pub(crate) fn drops(root: &[u8], from: &[u8; STAMP_LEN]) -> (Vec<u8>, Vec<u8>) {
        let mut begin = Key::Events.under(root);
        tuple::append_u64(&mut begin, Self::DROPPED);
        let end = end_of(&begin);
        row::append_stamp(&mut begin, from);
        (begin, end)
    }

    /// The versionstamp and the name in the key of a drop.
    pub(crate) fn read_drop(root: &[u8], key: &[u8]) -> Result<([u8; STAMP_LEN], String)> {
        let mut reader = Reader::new(key.strip_prefix(root).ok_or_else(|| misplaced(key))?);
        if (reader.int()?, reader.int()?) != (Self::EVENTS, Self::DROPPED) {
            return Err(misplaced(key));
        }
        let (stamp, name) = (reader.stamp()?, reader.str()?.into_owned());
        reader.end()?;
        Ok((stamp, name))
    }

    /// The range of all catalog rows.
    pub(crate) fn catalog_range(root: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut begin = root.to_vec();
        tuple::append_u64(&mut begin, Self::CATALOG);
        let end = end_of(&begin);
        (begin, end)
    }

    /// The name in a catalog key.
    pub(crate) fn catalog_name(root: &[u8], key: &[u8]) -> Result<String> {
        let mut reader = Reader::new(key.strip_prefix(root).ok_or_else(|| misplaced(key))?);
        reader.int()?;
        let name = reader.str()?.into_owned();
        reader.end()?;
        Ok(name)
    }

    /// The range of all transaction ids.
    pub(crate) fn transactions(root: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut begin = root.to_vec();
        tuple::append_u64(&mut begin, Self::TRANSACTION);
        let end = end_of(&begin);
        (begin, end)
    }

    /// The version in the key of a transaction id.
    pub(crate) fn transaction_version(root: &[u8], key: &[u8]) -> Result<u64> {
        let mut reader = Reader::new(key.strip_prefix(root).ok_or_else(|| misplaced(key))?);
        let (_, version) = (reader.int()?, reader.int()?);
        Ok(version)
    }

    /// The range of all transaction ids before `version`.
    pub(crate) fn transactions_before(root: &[u8], version: u64) -> (Vec<u8>, Vec<u8>) {
        let (begin, mut end) = Self::transactions(root);
        end.truncate(begin.len());
        tuple::append_u64(&mut end, version);
        (begin, end)
    }

    /// The range of all uploads, or of those whose deadline is before `before_ms`.
    pub(crate) fn stagings(root: &[u8], before_ms: Option<u64>) -> (Vec<u8>, Vec<u8>) {
        let mut begin = root.to_vec();
        tuple::append_u64(&mut begin, Self::STAGING);
        let mut end = end_of(&begin);
        if let Some(time_ms) = before_ms {
            end.pop();
            tuple::append_u64(&mut end, time_ms);
        }
        (begin, end)
    }

    /// The range of all settings.
    pub(crate) fn settings(root: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut begin = Key::Configuration.under(root);
        let end = end_of(&begin);
        // Skips the row of the last change, whose key is the prefix itself.
        begin.push(0);
        (begin, end)
    }

    /// The range of the settings of a section.
    pub(crate) fn section(root: &[u8], section: &str) -> (Vec<u8>, Vec<u8>) {
        // Up to the type of the name. The section `a\0b` begins with the bytes of `a` too, but has no name there.
        let mut begin = Key::Setting(section, "").under(root);
        begin.pop();
        let end = end_of(&begin);
        (begin, end)
    }

    /// The section and the name in the key of a setting.
    pub(crate) fn read_setting(root: &[u8], key: &[u8]) -> Result<(String, String)> {
        let mut reader = Reader::new(key.strip_prefix(root).ok_or_else(|| misplaced(key))?);
        reader.int()?;
        let (section, name) = (reader.str()?.into_owned(), reader.str()?.into_owned());
        reader.end()?;
        Ok((section, name))
    }

    /// The database's number and the upload's store in the key of an upload.
    pub(crate) fn read_staging(root: &[u8], key: &[u8]) -> Result<(u64, StoreId)> {
        let mut reader = Reader::new(key.strip_prefix(root).ok_or_else(|| misplaced(key))?);
        let (_, _deadline) = (reader.int()?, reader.int()?);
        let database = reader.int()?;
        let store = StoreId::try_from(reader.bytes()?.as_ref()).map_err(|_| misplaced(key))?;
        reader.end()?;
        Ok((database, store))
    }
}
