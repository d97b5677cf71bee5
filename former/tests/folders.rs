//! Folders that earlier programs left, of each engine, closed and killed: all their rows are read and moved, and
//! damaged folders are refused.
//!
//! Those programs wrote the folders, which cannot be made again. `support::commits` has what was committed.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use disk::folder::{Folder, Mark};
use disk::synced;
use engine_lsm::{LsmDatabase, LsmOptions};
use former::{Rows, Step, move_folder, read};
use futures_executor::block_on;
use kv_api::{Bytes, Database, RangeRequest, Read, Result, Transaction, TransactionExt, error};
use occ::{ManualClock, Random};
use support::packed::{files, unpack};
use support::{Model, commits};

/// The folders. A killed process had acknowledged every commit.
const FOLDERS: [&str; 5] =
    ["redb-4-closed", "redb-4-killed", "fjall-1-closed", "fjall-1-killed", "fjall-1-bulk-killed"];

/// The user's rows end here.
const USERS_END: &[u8] = b"\xff";

fn unpacked(name: &str, folder: &Path) {
    unpack(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/folders/{name}.gz")), folder);
}

fn model(name: &str) -> Model {
    let mut model = Model::new();
    commits(7, 150, name.contains("bulk")).iter().for_each(|commit| commit.apply(&mut model));
    model
}

/// The files in a folder and their bytes, except locked files.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut paths = Vec::new();
    files(folder, &mut paths);
    let inner = |path: &PathBuf| path.strip_prefix(folder).unwrap().to_owned();
    paths.iter().filter(|path| !path.ends_with("LOCK")).map(|path| (inner(path), fs::read(path).unwrap())).collect()
}

fn opened(folder: &Path, scratch: &Path) -> Result<Rows> {
    read(folder, &Mark::read(folder)?.unwrap(), scratch)
}

fn rows_of(folder: &Path, scratch: &Path) -> Result<Model> {
    opened(folder, scratch)?.iter().collect()
}

fn users(rows: &Model) -> Model {
    rows.range(..Bytes::from_static(USERS_END)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[test]
fn every_row_is_read_and_nothing_is_changed() {
    for name in FOLDERS {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data");
        unpacked(name, &folder);
        let before = contents(&folder);
        let rows = opened(&folder, &root.path().join("scratch")).unwrap();
        let found: Vec<(Bytes, Bytes)> = rows.iter().collect::<Result<_>>().unwrap();
        assert!(found.is_sorted_by(|one, other| one.0 < other.0), "{name}: in order");
        let found: Model = found.into_iter().collect();
        assert!(users(&found) == model(name), "{name}");
        assert!(
            found.keys().all(|key| !key.starts_with(b"\xff/fjall/")),
            "{name}: what fjall alone needed is left out"
        );
        let version = &found[&b"\xff/occ/version"[..]];
        assert!(version.ends_with(&rows.version().to_be_bytes()), "{name}");
        assert_eq!(rows.version(), synced::read(&folder.join("synced")).unwrap(), "{name}: all that was acknowledged");
        assert!(contents(&folder) == before, "{name}: reading changed a file");
    }
}

/// The user's rows in a database of `engine-lsm`.
fn users_of(database: &LsmDatabase) -> Model {
    let tx = database.begin().unwrap();
    let rows = block_on(tx.get_all(RangeRequest::keys("", USERS_END), Read::Snapshot)).unwrap();
    rows.into_iter().map(|row| (row.key, row.value)).collect()
}

#[test]
fn a_folder_is_moved_with_every_row_and_versions_go_on() {
    for name in FOLDERS {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data");
        unpacked(name, &folder);
        let before = contents(&folder);
        let version = synced::read(&folder.join("synced")).unwrap();
        let mut steps = Vec::new();
        let moved = move_folder(&folder, |step| steps.push(step)).unwrap();
        assert!(moved.rows.unwrap() > model(name).len() as u64 && steps.contains(&Step::Renaming), "{name}");
        assert!(contents(&moved.former) == before, "{name}: the old files are kept as they were");
        let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["LOCK", "couch-layer.json", "data", "former", "synced"], "{name}");

        // A clock that starts from the beginning.
        let database = LsmDatabase::open(&folder, LsmOptions::new().clock(ManualClock::new())).unwrap();
        assert!(users_of(&database) == model(name), "{name}");
        let tx = database.begin().unwrap();
        assert!(block_on(tx.get_read_version()).unwrap() >= version, "{name}: versions go on");
        tx.set(b"key", b"value");
        block_on(tx.commit()).unwrap();
        assert!(tx.get_committed_version().unwrap() > version, "{name}: versions go on");
        drop((tx, database));
        let refused = move_folder(&folder, |_| ()).unwrap_err();
        assert_eq!(refused.code(), error::UNSUPPORTED_OPERATION, "{name}: there is nothing left to move: {refused}");
        let database = LsmDatabase::open(&folder, LsmOptions::new()).unwrap();
        assert_eq!(users_of(&database).len(), model(name).len() + 1, "{name}");
    }
}

#[test]
fn a_folder_that_is_open_or_half_moved_or_no_former_one_is_left_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("data");
    unpacked("redb-4-killed", &folder);
    let before = contents(&folder);
    let code = || move_folder(&folder, |_| ()).unwrap_err().code();
    let owned = Folder::open(&folder, &Mark::read(&folder).unwrap().unwrap()).unwrap();
    assert_eq!(code(), error::LOCK_FILE_FAILURE);
    drop(owned);
    // A file in the place of the old files.
    fs::create_dir(folder.join("former")).unwrap();
    fs::write(folder.join("former/data.redb"), "older still").unwrap();
    assert_eq!(code(), error::CLIENT_INVALID_OPERATION);
    fs::remove_dir_all(folder.join("former")).unwrap();
    // Files of an earlier attempt do not matter.
    fs::create_dir_all(folder.join("moving/data/tables")).unwrap();
    fs::write(folder.join("moving/data/current"), "half").unwrap();
    for (mark, expected) in
        [(r#"{"engine":"redb","format":5}"#, 2108), (r#"{"engine":"redb","format":1}"#, 2108), ("{", 1522)]
    {
        fs::write(folder.join("couch-layer.json"), mark).unwrap();
        assert_eq!(code(), expected, "{mark}");
    }
    fs::write(folder.join("couch-layer.json"), &before[Path::new("couch-layer.json")]).unwrap();
    assert!(contents(&folder) == before);
    // An error while the rows are written.
    let mut bytes = before[Path::new("data.redb")].clone();
    bytes.truncate(bytes.len() / 3);
    fs::write(folder.join("data.redb"), &bytes).unwrap();
    assert_eq!(code(), error::FILE_CORRUPT);
    fs::write(folder.join("data.redb"), &before[Path::new("data.redb")]).unwrap();
    assert!(contents(&folder) == before);
    let refused = move_folder(&root.path().join("none"), |_| ()).unwrap_err();
    assert_eq!(refused.code(), error::UNSUPPORTED_OPERATION, "{refused}");
    assert!(!root.path().join("none").exists());
    move_folder(&folder, |_| ()).unwrap();
}

/// A folder whose process ended before it created the engine's files.
#[test]
fn a_folder_without_data_is_empty_unless_something_was_acknowledged() {
    for (engine, format) in [("redb", 4), ("redb", 2), ("fjall", 1)] {
        let folder = tempfile::tempdir().unwrap();
        Mark { engine: engine.into(), format }.write(folder.path()).unwrap();
        let once = synced::Synced::open(&folder.path().join("synced")).unwrap().write(7);
        once.unwrap();
        assert_eq!(move_folder(folder.path(), |_| ()).unwrap_err().code(), error::FILE_CORRUPT, "{engine}");
        fs::remove_file(folder.path().join("synced")).unwrap();
        assert_eq!(move_folder(folder.path(), |_| ()).unwrap().rows, Some(0), "{engine}");
        assert!(users_of(&LsmDatabase::open(folder.path(), LsmOptions::new()).unwrap()).is_empty());
    }
}

/// Flipped bits and truncated files must never give other rows.
#[test]
fn damage_is_an_error_or_does_no_harm() {
    for (name, trials) in [("redb-4-closed", 40), ("redb-4-killed", 60), ("fjall-1-killed", 60), ("fjall-1-closed", 40)]
    {
        let root = tempfile::tempdir().unwrap();
        let whole = root.path().join("whole");
        unpacked(name, &whole);
        let expected = users(&rows_of(&whole, &root.path().join("scratch")).unwrap());
        let whole = contents(&whole);
        // Except the mark and the side file: damage of the side file cannot be noticed.
        let is_data = |path: &Path| !path.ends_with("couch-layer.json") && !path.ends_with("synced");
        let files = whole.iter().filter(|(path, bytes)| is_data(path) && !bytes.is_empty());
        let files: Vec<&PathBuf> = files.map(|(path, _)| path).collect();
        let (mut refused, mut harmless) = (0, 0);
        let random = Random::new(11);
        for trial in 0..trials {
            let (folder, scratch) = (root.path().join("damaged"), root.path().join(format!("scratch {trial}")));
            for (path, bytes) in &whole {
                fs::create_dir_all(folder.join(path).parent().unwrap()).unwrap();
                fs::write(folder.join(path), bytes).unwrap();
            }
            let file = files[random.next() as usize % files.len()];
            let mut bytes = whole[file].clone();
            let filled = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1).max(1);
            let at = random.next() as usize % filled;
            match random.next() % 4 {
                0 => bytes.truncate(at),
                _ => bytes[at] ^= 1 << (random.next() % 8),
            }
            fs::write(folder.join(file), &bytes).unwrap();
            let context = format!("{name}, trial {trial}, byte {at} of {}", file.display());
            match rows_of(&folder, &scratch) {
                Ok(found) => {
                    assert!(users(&found) == expected, "{context}: other rows");
                    harmless += 1;
                }
                Err(error) => {
                    assert_eq!(error.code(), error::FILE_CORRUPT, "{context}: {error}");
                    refused += 1;
                }
            }
            fs::remove_dir_all(&folder).unwrap();
        }
        assert!(refused > trials / 8, "{name}: {refused} refused, {harmless} harmless");
    }
}

#[test]
fn a_file_of_fjall_that_is_gone_is_an_error() {
    const PARTS: [&str; 7] = [
        "version",
        "keyspaces",
        "keyspaces/0",
        "keyspaces/1",
        "keyspaces/0/current",
        "keyspaces/1/current",
        "keyspaces/1/tables",
    ];
    for gone in PARTS {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data");
        unpacked("fjall-1-closed", &folder);
        let path = folder.join("data").join(gone);
        if path.is_dir() {
            fs::remove_dir_all(&path).unwrap()
        } else {
            fs::remove_file(&path).unwrap()
        }
        let error = rows_of(&folder, &root.path().join("scratch")).unwrap_err();
        assert_eq!(error.code(), error::FILE_CORRUPT, "{gone}: {error}");
        assert!(!path.exists(), "{gone} was made anew");
    }
}

/// fjall continued with another journal when one was full. A kill leaves a partial batch at the end.
#[test]
fn journals_are_read_one_after_the_other_up_to_a_batch_in_part() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("data");
    unpacked("fjall-1-killed", &folder);
    let (first, second) = (folder.join("data/0.jnl"), folder.join("data/1.jnl"));
    let whole = fs::read(&first).unwrap();
    // Batches end with these bytes.
    let ends: Vec<usize> =
        whole.windows(4).enumerate().filter(|(_, four)| *four == b"FJL\x03").map(|(at, _)| at + 4).collect();
    assert_eq!(ends.len(), 151, "of the making, and one of each commit");
    let mut scratch = (0..).map(|number| root.path().join(format!("scratch {number}")));
    let mut users_after = |first_bytes: &[u8], second_bytes: Option<&[u8]>| {
        fs::write(&first, first_bytes).unwrap();
        match second_bytes {
            Some(bytes) => fs::write(&second, bytes).unwrap(),
            None => drop(fs::remove_file(&second)),
        }
        rows_of(&folder, &scratch.next().unwrap()).map(|rows| users(&rows))
    };
    let all = model("fjall-1-killed");
    let (sealed, active) = whole.split_at(ends[60]);
    assert!(users_after(sealed, Some(active)).unwrap() == all);
    // Unused room at the end, and a batch that was begun.
    let roomy = [&whole[..ends[150]], &[0; 5_000]].concat();
    assert!(users_after(&roomy, None).unwrap() == all);
    let begun = [&whole[..ends[150]], &whole[..ends[0] - 3]].concat();
    assert!(users_after(&begun, None).unwrap() == all);
    // Damage before the last journal, and a journal without its beginning.
    for at in [ends[3] - 30, ends[59] + 1, ends[60] - 1] {
        let mut damaged = sealed.to_vec();
        damaged[at] ^= 0x40;
        assert_eq!(users_after(&damaged, Some(active)).unwrap_err().code(), error::FILE_CORRUPT, "byte {at}");
    }
    for end in [0, 1, ends[1], ends[59], ends[59] + 5] {
        assert_eq!(users_after(&sealed[..end], Some(active)).unwrap_err().code(), error::FILE_CORRUPT, "cut at {end}");
    }
    // The last commit is partial, and it was acknowledged.
    assert_eq!(users_after(&whole[..ends[150] - 1], None).unwrap_err().code(), error::FILE_CORRUPT);
    // If it was not acknowledged, it is ignored.
    let once = synced::Synced::open(&folder.join("synced")).unwrap().write(1);
    once.unwrap();
    let mut before = Model::new();
    commits(7, 149, false).iter().for_each(|commit| commit.apply(&mut before));
    for cut in [ends[150] - 1, ends[149] + 1, ends[149]] {
        assert!(users_after(&whole[..cut], None).unwrap() == before, "cut at {cut}");
    }
    let mut damaged = whole.clone();
    damaged[ends[149] + 60] ^= 1;
    assert!(users_after(&damaged, None).unwrap() == before, "pages that did not reach the disk");
}
