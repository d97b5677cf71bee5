//! Tests of the durability tests: a small engine in one file passes, and three faulty versions of it are caught.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Arc;

use conformance::durability::{self, DiskHarness, Point, Reached};
use disk::folder::io_error;
use disk::synced::Synced;
use disk::{DiskOptions, DiskStore, OnDisk};
use kv_api::{Bytes, Durability, Error, Result, error};
use occ::store::{ApplyError, Batch, MapSnapshot, Store};
use occ::{KeyRange, OccDatabase};
use parking_lot::Mutex;

type Rows = BTreeMap<Bytes, Bytes>;

/// Number of the fault of a log: no fault.
const SOUND: u8 = 0;
/// A batch is written when the next one comes, so a sync misses it.
const LATE: u8 = 1;
/// A batch whose end is missing counts as a shorter batch.
const TORN: u8 = 2;
/// Batches are not checked when they are read.
const UNCHECKED: u8 = 3;

/// A log of batches, and the rows that result from them. One batch in the file:
///
/// ```text
///   length, 4 │ CRC-32, 4 │ changes: kind, 1 │ two strings, each with its length before it
/// ```
#[derive(Debug)]
struct Log<const WRONG: u8> {
    head: Mutex<Arc<Rows>>,
    file: Mutex<(File, Vec<u8>)>,
}

fn encode(batch: &Batch) -> Vec<u8> {
    let mut changes = Vec::new();
    let mut change = |kind: u8, texts: [&[u8]; 2]| {
        changes.push(kind);
        for text in texts {
            changes.extend_from_slice(&(text.len() as u32).to_be_bytes());
            changes.extend_from_slice(text);
        }
    };
    batch.clears().iter().for_each(|(begin, end)| change(2, [begin, end]));
    for (key, value) in batch.rows() {
        change(u8::from(value.is_none()), [key, value.map_or(b"", |value| value)]);
    }
    [&(changes.len() as u32).to_be_bytes(), &crc32fast::hash(&changes).to_be_bytes(), changes.as_slice()].concat()
}

/// The changes of a batch, up to the first incomplete one.
fn decode(mut changes: &[u8]) -> Batch {
    fn text(changes: &mut &[u8]) -> Option<Bytes> {
        let (length, rest) = changes.split_first_chunk::<4>()?;
        let (text, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        *changes = rest;
        Some(Bytes::copy_from_slice(text))
    }
    let mut batch = Batch::new(0);
    while let Some((kind, rest)) = changes.split_first() {
        changes = rest;
        let (Some(one), Some(two)) = (text(&mut changes), text(&mut changes)) else { break };
        match kind {
            0 => batch.set(one, two),
            1 => batch.clear(one),
            _ if one < two => batch.clear_range(KeyRange { begin: one, end: two }),
            _ => {}
        }
    }
    batch
}

impl<const WRONG: u8> Log<WRONG> {
    /// Reads batches up to the first incomplete one: a kill may cut off the last batch.
    fn read(mut log: &[u8]) -> Rows {
        let mut rows = Rows::new();
        while let Some((head, rest)) = log.split_first_chunk::<8>() {
            let (length, check) = (u32::from_be_bytes([head[0], head[1], head[2], head[3]]), &head[4..]);
            let whole = rest.split_at_checked(length as usize);
            let Some((changes, rest)) = whole.or((WRONG == TORN).then_some((rest, &[]))) else { break };
            if WRONG < TORN && check != crc32fast::hash(changes).to_be_bytes() {
                break;
            }
            decode(changes).apply_to(&mut rows);
            log = rest;
        }
        rows
    }
}

impl<const WRONG: u8> DiskStore for Log<WRONG> {
    const ENGINE: &'static str = "log";
    const DURABILITIES: &'static [Durability] = &[Durability::Disk];

    fn open(folder: &Path, _: u64, _: Durability) -> Result<Self> {
        let failed = |cause| io_error(format!("cannot read the log in {}", folder.display()), &cause);
        let (path, new) = (folder.join("log"), folder.join("log.new"));
        let log = fs::read(&path).or_else(|cause| match cause.kind() {
            ErrorKind::NotFound => Ok(Vec::new()),
            _ => Err(cause),
        });
        let rows = Self::read(&log.map_err(failed)?);
        // A new file beside the old one, so that no batch follows a broken one.
        let mut file = File::create(&new).map_err(failed)?;
        file.write_all(&encode(&Batch::of_rows(0, rows.clone()))).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        fs::rename(&new, &path).map_err(failed)?;
        Ok(Log { head: Mutex::new(Arc::new(rows)), file: Mutex::new((file, Vec::new())) })
    }
}

impl<const WRONG: u8> Store for Log<WRONG> {
    type Snapshot = MapSnapshot;

    fn snapshot(&self) -> Result<MapSnapshot> {
        Ok(MapSnapshot(self.head.lock().clone()))
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        let mut file = self.file.lock();
        let (file, waiting) = &mut *file;
        let mut now = encode(&batch);
        if WRONG == LATE {
            std::mem::swap(&mut now, waiting);
        }
        file.write_all(&now).map_err(|cause| ApplyError::Unknown(io_error("cannot write", &cause)))?;
        let mut head = self.head.lock();
        let mut rows = Rows::clone(&head);
        batch.apply_to(&mut rows);
        *head = Arc::new(rows);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.file.lock().0.sync_data().map_err(|cause| io_error("cannot sync", &cause))
    }

    fn durability(&self) -> Durability {
        Durability::Disk
    }
}

struct LogDisk<const WRONG: u8>;

impl<const WRONG: u8> DiskHarness for LogDisk<WRONG> {
    type Database = OccDatabase<OnDisk<Log<WRONG>>>;

    fn engine(&self) -> String {
        format!("a log with fault {WRONG}")
    }

    fn open(&self, folder: &Path) -> Result<Self::Database> {
        OccDatabase::open(folder, DiskOptions::new())
    }

    fn open_with(&self, folder: &Path, reached: Reached) -> Option<Result<Self::Database>> {
        let options = DiskOptions::new().at_points(move |point| reached(Point::ALL[point as usize]));
        Some(OccDatabase::open(folder, options))
    }

    fn data(&self) -> &'static str {
        "log"
    }

    fn remembered(&self, folder: &Path) -> Option<i64> {
        Synced::open(&folder.join("synced")).and_then(|mut synced| synced.read()).ok()
    }
}

fn is_caught(test: impl FnOnce() + std::panic::UnwindSafe) -> bool {
    catch_unwind(test).is_err()
}

mod sound {
    conformance::durability!(super::LogDisk::<{ super::SOUND }>);
}

mod late {
    use super::*;

    #[test]
    fn child() {
        durability::child(&LogDisk::<LATE>);
    }

    #[test]
    fn a_sync_that_syncs_nothing_is_caught() {
        assert!(is_caught(|| durability::kills_at_random(&LogDisk::<LATE>, module_path!())));
        assert!(is_caught(|| durability::kills_at_points(&LogDisk::<LATE>, module_path!())));
    }
}

mod torn {
    use super::*;

    #[test]
    fn child() {
        durability::child(&LogDisk::<TORN>);
    }

    #[test]
    fn a_batch_that_is_read_in_part_is_caught() {
        assert!(is_caught(|| durability::damaged_files(&LogDisk::<TORN>, module_path!())));
    }
}

mod unchecked {
    use super::*;

    #[test]
    fn child() {
        durability::child(&LogDisk::<UNCHECKED>);
    }

    #[test]
    fn damage_that_is_not_looked_for_is_caught() {
        assert!(is_caught(|| durability::damaged_files(&LogDisk::<UNCHECKED>, module_path!())));
    }
}

/// The rest of such a folder's behaviour comes from `disk`.
#[test]
fn a_durability_that_the_engine_does_not_have_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = DiskOptions::new().durability(Durability::OperatingSystem);
    let refused: Result<OccDatabase<OnDisk<Log<SOUND>>>> = OccDatabase::open(folder.path(), options);
    let error: Error = refused.expect_err("it has only the disk");
    assert_eq!(error.code(), error::INVALID_OPTION_VALUE, "{error}");
    assert!(error.to_string().contains("Disk"), "{error}");
}
