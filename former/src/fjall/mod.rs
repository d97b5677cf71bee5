//! Reads a fjall database: tables of `lsm-tree`, and journals with the rows that are in no table yet.
//!
//! ```text
//!   data/
//!     N.jnl           journals                                       (`journals`)
//!     keyspaces/0/    names and options of the keyspaces
//!     keyspaces/1/    the rows: `current` names the manifest, which names the tables
//! ```
//!
//! The journals have every batch since the oldest that is not in a table. So the last value of a key in the journals is
//! its newest, whatever the tables have.
//!
//! `lsm-tree` removes files that the manifest does not list, and does not check the manifest's checksum. So this module
//! checks it, and opens the tree in a separate folder with links to the tables.
//!
//! A clear of very many rows was stored as an interval, and the rows were removed later. Such rows are left out.

mod journals;

use std::fs;
use std::io;
use std::path::Path;

use bytes::Bytes;
use disk::clears::decode;
use disk::folder::io_error;
use disk::panics::{Panicked, caught, silently};
use disk::wal::WalView;
use engine_lsm::{keys, manifest};
use kv_api::{Direction, Result};
use lsm_tree::{AbstractTree, AnyTree, Config, Guard, SeqNo, SequenceNumberCounter};
use occ::RangeSet;
use occ::store::{Batch, View};

use crate::error::{corrupt, table_error};

/// Prefix of the keys of the engine's own rows.
pub(crate) const SYSTEM: &[u8] = b"\xff/fjall/";

/// The row of the cleared intervals.
const CLEARS_KEY: &[u8] = b"\xff/fjall/clears";

/// The rows in tables.
#[derive(Clone)]
pub(crate) struct FjallView(Option<AnyTree>);

/// The rows of a folder, and the cleared ranges. `scratch` is a folder to create, for links to the tables.
pub(crate) fn open(folder: &Path, scratch: &Path) -> Result<(WalView<FjallView>, RangeSet)> {
    let data = folder.join("data");
    let is_there = data.try_exists().map_err(|cause| io_error(format!("cannot read {}", data.display()), &cause))?;
    let (tables, journaled) = match is_there {
        true => (FjallView(Some(open_tables(&data, scratch)?)), journals::read(&data)?),
        // The process that created the folder ended before it created the data.
        false => (FjallView(None), Batch::default()),
    };
    let view = disk::wal::with_batch(tables, &journaled)?;
    let cleared = view.get(CLEARS_KEY)?.map_or_else(|| Ok(RangeSet::default()), |record| decode(&record))?;
    Ok((view, cleared))
}

fn open_tables(data: &Path, scratch: &Path) -> Result<AnyTree> {
    let version = data.join("version");
    if !version.exists() {
        return Err(corrupt(&format!("{} is gone", version.display())));
    }
    // The names of the keyspaces. They are not needed, but a complete folder has them.
    manifest::check(&data.join("keyspaces/0"))?;
    let rows = data.join("keyspaces/1");
    let version = manifest::check(&rows)?;
    link(&rows, scratch, version).map_err(|cause| io_error(format!("cannot link to {}", rows.display()), &cause))?;
    // A panic is reported as an error.
    let opened = silently("", || {
        let (numbers, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
        Config::new(scratch, numbers, visible).open()
    });
    match opened {
        Ok(tree) => tree.map_err(table_error),
        Err(Panicked) => Err(corrupt(&format!("cannot open {}: the data is damaged", rows.display()))),
    }
}

/// Creates a folder with the manifest of this version and links to all tables.
fn link(tree: &Path, scratch: &Path, version: u64) -> io::Result<()> {
    fs::create_dir_all(scratch.join("tables"))?;
    for file in ["current".to_owned(), format!("v{version}")] {
        fs::copy(tree.join(&file), scratch.join(&file))?;
    }
    // A backup without tables may lack their folder. If the manifest lists any, the tree cannot be opened.
    let tables = match fs::read_dir(tree.join("tables")) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        tables => tables?,
    };
    for table in tables {
        let table = table?;
        let link = scratch.join("tables").join(table.file_name());
        // Some file systems have no links.
        fs::hard_link(table.path(), &link).or_else(|_| fs::copy(table.path(), &link).map(drop))?;
    }
    Ok(())
}

impl View for FjallView {
    type Range<'a> = Box<dyn Iterator<Item = Result<(Bytes, Bytes)>> + 'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let Some(tree) = &self.0 else { return Ok(None) };
        caught("a table", || {
            let value = tree.get(keys::stored(key), SeqNo::MAX).map_err(table_error)?;
            Ok(value.map(|value| Bytes::copy_from_slice(&value)))
        })
    }

    fn range<'a>(&'a self, begin: &[u8], end: &[u8], direction: Direction) -> Self::Range<'a> {
        let Some(tree) = &self.0 else { return Box::new(std::iter::empty()) };
        let mut rows = tree.range(keys::stored(begin)..keys::stored(end), SeqNo::MAX, None);
        Box::new(std::iter::from_fn(move || {
            let next = caught("a table", || {
                let row = match direction {
                    Direction::Forward => rows.next(),
                    Direction::Reverse => rows.next_back(),
                };
                row.map(Guard::into_inner).transpose().map_err(table_error)
            });
            let row = |(key, value): (lsm_tree::UserKey, lsm_tree::UserValue)| {
                (Bytes::copy_from_slice(keys::ours(&key)), Bytes::copy_from_slice(&value))
            };
            next.map(|next| next.map(row)).transpose()
        }))
    }
}
