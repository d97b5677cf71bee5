//! Journals that are damaged, cut and torn.

use disk::DiskStore;
use disk::synced::Synced;
use kv_api::{Durability, error};
use occ::store::{Batch as Changes, Store};

use super::*;
use crate::FjallStore;

const BATCHES: usize = 20;

fn open(folder: &Path) -> Result<FjallStore> {
    FjallStore::open(folder, 8 << 20, Durability::Disk)
}

/// `occ`'s mark of a version, in the format of its store.
fn mark(version: i64) -> Bytes {
    [1u16.to_be_bytes().as_slice(), &version.to_be_bytes()].concat().into()
}

fn changes(version: i64) -> Changes {
    Changes::of_rows(
        version,
        [
            (format!("{version:03}").into(), vec![version as u8; 900].into()),
            ("latest".into(), version.to_string().into()),
            (Bytes::from_static(b"\xff/occ/version"), mark(version)),
        ],
    )
}

/// A folder whose store has some batches, and where each of them ends in the journal.
fn written(folder: &Path) -> Vec<u64> {
    let store = open(folder).unwrap();
    (1..=BATCHES as i64).for_each(|version| store.apply(changes(version)).unwrap());
    drop(store);
    let mut source = Source::open(&journal(folder, 0)).unwrap();
    let mut ends = Vec::new();
    while source.batch(&mut Marks::default()).unwrap().is_some() {
        ends.push(source.at);
    }
    // The first is of the making.
    assert_eq!(ends.len(), BATCHES + 1);
    ends
}

fn journal(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("data/{number}.jnl"))
}

/// Divides the journal in two, as if it had been sealed at `end`.
fn seal(folder: &Path, end: u64) {
    let bytes = fs::read(journal(folder, 0)).unwrap();
    let (sealed, active) = bytes.split_at(end as usize);
    fs::write(journal(folder, 0), sealed).unwrap();
    fs::write(journal(folder, 1), active).unwrap();
}

/// The newest batch that is there.
fn latest(folder: &Path) -> Result<usize> {
    let store = open(folder)?;
    let view = store.view()?;
    let latest = view.get(b"latest")?.map_or(0, |latest| String::from_utf8_lossy(&latest).parse().unwrap());
    for version in 1..=BATCHES {
        assert_eq!(view.get(format!("{version:03}").as_bytes())?.is_some(), version <= latest, "{version}");
    }
    Ok(latest)
}

fn is_refused_untouched(folder: &Path, context: &str) {
    let before = [0, 1].map(|number| fs::read(journal(folder, number)).ok());
    let error = latest(folder).unwrap_err();
    assert_eq!(error.code(), error::FILE_CORRUPT, "{context}: {error}");
    assert_eq!(before, [0, 1].map(|number| fs::read(journal(folder, number)).ok()), "{context}: it was touched");
}

#[test]
fn two_journals_are_read_one_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let ends = written(folder.path());
    seal(folder.path(), ends[8]);
    assert_eq!(latest(folder.path()).unwrap(), BATCHES);
    // And again, now that the first has become a table.
    assert_eq!(latest(folder.path()).unwrap(), BATCHES);
}

/// The batches behind the damage are there, in the next journal: fjall would go on with those.
#[test]
fn damage_in_a_journal_before_the_last_is_refused_and_nothing_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    let ends = written(folder.path());
    seal(folder.path(), ends[8]);
    let whole = fs::read(journal(folder.path(), 0)).unwrap();
    let places = (0..ends[8] as usize).step_by(97).chain(ends[..8].iter().map(|&end| end as usize));
    for at in places {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        fs::write(journal(folder.path(), 0), &bytes).unwrap();
        is_refused_untouched(folder.path(), &format!("byte {at} of {ends:?}"));
    }
    for end in [0, 1, ends[1], ends[7], ends[7] + 5] {
        fs::write(journal(folder.path(), 0), &whole[..end as usize]).unwrap();
        is_refused_untouched(folder.path(), &format!("cut at {end}"));
    }
    fs::write(journal(folder.path(), 0), &whole).unwrap();
    assert_eq!(latest(folder.path()).unwrap(), BATCHES);
}

#[test]
fn a_batch_that_was_left_in_part_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let ends = written(folder.path());
    let whole = fs::read(journal(folder.path(), 0)).unwrap();
    let (from, to) = (ends[BATCHES - 1] as usize, ends[BATCHES] as usize);
    // To its end but for a piece in its middle, as pages may reach the disk; with room behind it; and cut.
    let mut torn = Vec::new();
    for at in (from..to - 64).step_by(170) {
        let mut bytes = whole.clone();
        bytes[at..at + 64].fill(0);
        torn.push(bytes.clone());
        bytes.resize(to + 5_000, 0);
        torn.push(bytes);
        torn.push(whole[..at].to_vec());
    }
    for (trial, bytes) in torn.into_iter().enumerate() {
        fs::write(journal(folder.path(), 0), bytes).unwrap();
        assert_eq!(latest(folder.path()).unwrap(), BATCHES - 1, "trial {trial}");
        // It is gone for good, and writing goes on.
        let store = open(folder.path()).unwrap();
        store.apply(changes(BATCHES as i64)).unwrap();
        drop(store);
        assert_eq!(latest(folder.path()).unwrap(), BATCHES, "trial {trial}");
    }
}

#[test]
fn a_batch_in_part_that_was_acknowledged_is_refused_and_nothing_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    let ends = written(folder.path());
    Synced::open(&folder.path().join("synced")).unwrap().write(BATCHES as i64).unwrap();
    let whole = fs::read(journal(folder.path(), 0)).unwrap();
    for at in (ends[3] as usize..ends[BATCHES] as usize - 1).step_by(83) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(journal(folder.path(), 0), bytes).unwrap();
        is_refused_untouched(folder.path(), &format!("byte {at} of {ends:?}"));
    }
    fs::write(journal(folder.path(), 0), &whole).unwrap();
    assert_eq!(latest(folder.path()).unwrap(), BATCHES);
}
