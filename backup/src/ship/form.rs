//! The files of a shipped store. Each is sealed as a whole ([`crate::key`]).
//!
//! ```text
//!   segment   │ head: JSON, one line │ the log's records, LZ4 │
//!   base      │ JSON │
//!   table     │ as in the store │
//! ```

use bytes::Bytes;
use disk::wal::follow::{Cut, records};
use disk::wal::{FORM, LogRecord};
use kv_api::STORED_FORMAT;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::repository::Repository;

pub(super) const STORE: &str = "ship/store";
pub(super) const LOG: &str = "ship/log";
pub(super) const BASES: &str = "ship/base";
pub(super) const TABLES: &str = "ship/tables";

/// The form of these files.
const SHIP_FORMAT: u32 = 1;

/// LZ4 shortens to this part at most: a file that claims more is refused before memory is taken.
const MOST_PARTS: usize = 256;

/// The most bytes of records in a segment. One that begins has the store's whole log.
const MOST_BYTES: usize = 1 << 30;

pub(super) fn log_path(number: u64) -> String {
    format!("{LOG}/{number:012}")
}

pub(super) fn base_path(number: u64) -> String {
    format!("{BASES}/{number:012}")
}

pub(super) fn table_path(name: &str) -> String {
    format!("{TABLES}/{name}")
}

/// The first line of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    format: u32,
    /// The form of the records.
    form: String,
    /// The time of the cut, in milliseconds since 1970.
    pub(super) ms: u64,
    /// Version of the newest batch at the cut.
    pub(super) version: i64,
    /// Whether it does not continue the segment before it.
    pub(super) begins: bool,
}

/// A segment.
pub(super) struct Segment {
    pub(super) head: Head,
    pub(super) records: Vec<LogRecord>,
}

impl Segment {
    pub(super) fn write(cut: &Cut, begins: bool) -> Result<Vec<u8>> {
        let head = Head { format: SHIP_FORMAT, form: FORM.to_owned(), ms: cut.ms, version: cut.version, begins };
        let mut file = json(&head)?;
        file.push(b'\n');
        let records: Vec<&[u8]> = cut.records.iter().map(|record| record.bytes().as_ref()).collect();
        let records = records.concat();
        if records.len() > MOST_BYTES {
            return Err(Error::refused(format!("the store's log has {} bytes, too many for a segment", records.len())));
        }
        file.extend(lz4_flex::compress_prepend_size(&records));
        Ok(file)
    }

    fn read(path: &str, plain: &[u8]) -> Result<Self> {
        let damaged = |reason: &str| Error::damaged(path, reason);
        let at = plain.iter().position(|byte| *byte == b'\n').ok_or_else(|| damaged("it has no head"))?;
        let head: Head = read_json(path, &plain[..at])?;
        if (head.format, head.form.as_str()) != (SHIP_FORMAT, FORM) {
            return Err(Error::refused(format!(
                "{path} has the form {}/{}, of another version: use the version that shipped it",
                head.format, head.form
            )));
        }
        let packed = &plain[at + 1..];
        let length = packed.first_chunk::<4>().map_or(0, |four| u32::from_le_bytes(*four) as usize);
        if length > MOST_BYTES || length / MOST_PARTS > packed.len() {
            return Err(damaged("its length is wrong"));
        }
        let bytes = lz4_flex::decompress_size_prepended(packed).map_err(|error| damaged(&error.to_string()))?;
        let records = records(&Bytes::from(bytes)).map_err(|error| damaged(&error.to_string()))?;
        let follow = records.windows(2).all(|pair| pair[0].version() == pair[1].previous());
        let last = records.last().map_or(head.version, LogRecord::version);
        if !follow || last != head.version {
            return Err(damaged("its records do not follow each other"));
        }
        Ok(Segment { head, records })
    }

    /// Whether it continues a store or a segment that ends at a version.
    pub(super) fn continues(&self, version: i64) -> bool {
        self.records.first().map_or(self.head.version, LogRecord::previous) == version
    }

    /// Whether it has all that came after a version, besides what is older.
    pub(super) fn follows(&self, version: i64) -> bool {
        self.head.version == version || self.records.iter().any(|record| record.previous() == version)
    }
}

/// A table of a base.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BaseTable {
    /// Its path in the store's folder.
    pub(super) path: String,
    /// Its name in the place.
    pub(super) name: String,
}

/// A base.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Base {
    format: u32,
    /// The engine, and the format of what it stores.
    pub(super) engine: String,
    pub(super) stored_format: u32,
    /// The time of the segment that completes it.
    pub(super) ms: u64,
    /// Version of the tables' newest batch.
    pub(super) version: i64,
    /// The folders within the store's.
    pub(super) folders: Vec<String>,
    /// The small files: the path of each in the store's folder, and its bytes in hexadecimal digits.
    pub(super) files: Vec<(String, String)>,
    pub(super) tables: Vec<BaseTable>,
}

impl Base {
    pub(super) fn new(engine: &str, ms: u64, version: i64) -> Self {
        let (folders, files, tables) = Default::default();
        Base {
            format: SHIP_FORMAT,
            engine: engine.to_owned(),
            stored_format: STORED_FORMAT,
            ms,
            version,
            folders,
            files,
            tables,
        }
    }
}

pub(super) fn json<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::refused(error.to_string()))
}

fn read_json<'a, T: Deserialize<'a>>(path: &str, text: &'a [u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| Error::damaged(path, error.to_string()))
}

impl Repository {
    pub(super) fn sealed(&self, path: &str, plain: &[u8]) -> Result<Bytes> {
        Ok(self.key.seal(path, plain, self.environment.as_ref())?.into())
    }

    /// A small file, or a table.
    pub(super) async fn opened(&self, path: &str) -> Result<Vec<u8>> {
        self.key.open(path, &self.read(path).await?)
    }

    pub(super) async fn segment(&self, number: u64) -> Result<Segment> {
        let path = log_path(number);
        Segment::read(&path, &self.opened(&path).await?)
    }

    pub(super) async fn base(&self, number: u64) -> Result<Base> {
        let path = base_path(number);
        let base: Base = read_json(&path, &self.opened(&path).await?)?;
        if base.format != SHIP_FORMAT {
            return Err(Error::refused(format!("{path} has format {}, of another version", base.format)));
        }
        Ok(base)
    }

    /// The numbers of the segments or bases, in their order.
    pub(super) async fn numbers(&self, folder: &str) -> Result<Vec<u64>> {
        let number = |path: String| path.rsplit('/').next().and_then(|name| name.parse().ok());
        Ok(self.list(folder).await?.into_iter().filter_map(|file| number(file.path)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_claims_too_many_bytes_is_refused_before_memory_is_taken() {
        let head = Head { format: SHIP_FORMAT, form: FORM.to_owned(), ms: 1, version: 1, begins: false };
        for (claimed, packed) in [(MOST_BYTES + 1, 5 << 20), (10 * MOST_PARTS, 8)] {
            let mut file = json(&head).unwrap();
            file.push(b'\n');
            file.extend(u32::try_from(claimed).unwrap().to_le_bytes());
            file.resize(file.len() + packed - 4, 0);
            let refused = Segment::read("a segment", &file).err().unwrap().to_string();
            assert!(refused.contains("its length is wrong"), "{claimed}: {refused}");
        }
    }
}
