//! Requirements for opening a folder again: versions, clears, and one serial order over all openings.

use std::path::Path;

use kv_api::{ConflictRange, Database, MutationType, RangeRequest, Read, Result, Transaction, TransactionExt, error};
use tempfile::TempDir;

use super::folder::{self, Rows, commit, copy_in_use, rows, temporary};
use super::harness::DiskHarness;
use crate::random::number;
use crate::runtime::block_on;
use crate::serializability::{Recorder, Workload, fresh_seed, must_be_serial, times};

const LISTS: &[u8] = b"lists/";

fn must<T>(what: &str, outcome: Result<T>) -> T {
    outcome.unwrap_or_else(|error| panic!("{what}: {error}"))
}

fn open<H: DiskHarness>(harness: &H, folder: &Path) -> H::Database {
    must("it opens", folder::open(harness, folder))
}

/// A read version from before a reopen is too old for reads, and for commits that depend on such reads: the record
/// of later writes is gone. The same holds after a recovery of FoundationDB.
pub fn versions_over_a_reopen<H: DiskHarness>(harness: &H) {
    let folder = temporary();
    let before = {
        let database = open(harness, folder.path());
        must("a commit", commit(&database, |tx| tx.set(b"a", b"1")));
        let before = must("a read version", database.begin().and_then(|tx| block_on(tx.get_read_version())));
        must("a commit", commit(&database, |tx| tx.set(b"a", b"2")));
        before
    };
    let database = open(harness, folder.path());
    let begin = || {
        let transaction = must("it begins", database.begin());
        transaction.set_read_version(before);
        transaction
    };
    let code = |outcome: Result<()>| outcome.map_or_else(|error| error.code(), |()| 0);
    assert_eq!(code(block_on(begin().get(b"a", Read::Serializable)).map(drop)), error::TRANSACTION_TOO_OLD);
    let by_hand = begin();
    by_hand.add_conflict_range(b"a", b"b", ConflictRange::Read);
    by_hand.set(b"b", b"");
    assert_eq!(code(block_on(by_hand.commit())), error::TRANSACTION_TOO_OLD);
    let blind = begin();
    blind.set(b"b", b"");
    assert_eq!(code(block_on(blind.commit())), 0, "it has read nothing");
}

/// Many rows are cleared at once. A transaction from before the clear sees all of them. Later ones see none, even after
/// the folder is opened again. Rows that are set after the clear stay.
pub fn a_large_clear<H: DiskHarness>(harness: &H) {
    const ROWS: usize = 12_000;
    let folder = temporary();
    let database = open(harness, folder.path());
    for first in (0..ROWS).step_by(1_000) {
        let fill = |tx: &<H::Database as Database>::Transaction| {
            (first..first + 1_000).for_each(|at| tx.set(format!("m/{at:06}").into_bytes(), b"row"));
        };
        must("a commit", commit(&database, fill));
    }
    let around = |tx: &<H::Database as Database>::Transaction| {
        ["a", "z"].iter().for_each(|key| tx.set(key.as_bytes(), b"around"))
    };
    must("a commit", commit(&database, around));
    let earlier = must("it begins", database.begin());
    must("a read version", block_on(earlier.get_read_version()));
    let clear = |tx: &<H::Database as Database>::Transaction| {
        tx.set(b"m/000005", b"cleared with the others");
        tx.clear_range(b"m/", b"m0");
        tx.set(b"m/000007", b"new");
    };
    must("a commit", commit(&database, clear));
    let all = RangeRequest::keys("", "\u{7f}");
    let keys = |database: &H::Database, request: RangeRequest| {
        let tx = must("it begins", database.begin());
        let rows = must("a read", block_on(tx.get_all(request, Read::Snapshot)));
        rows.iter().map(|row| String::from_utf8_lossy(&row.key).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&database, all.clone()), ["a", "m/000007", "z"]);
    assert_eq!(keys(&database, all.clone().reverse()), ["z", "m/000007", "a"]);
    let cleared = must("it begins", database.begin());
    assert_eq!(must("a read", block_on(cleared.get(b"m/000005", Read::Snapshot))), None);
    assert_eq!(must("a read", block_on(earlier.get_all(all.clone(), Read::Snapshot))).len(), ROWS + 2);
    drop((earlier, cleared));

    must("a commit", commit(&database, |tx| tx.set(b"m/003000", b"new too")));
    must("a commit", commit(&database, |tx| tx.clear(b"m/000007")));
    drop(database);
    let database = open(harness, folder.path());
    assert_eq!(keys(&database, all.clone()), ["a", "m/003000", "z"]);
    must("a commit", commit(&database, |tx| tx.set(b"m/009000", b"and this")));
    assert_eq!(keys(&database, all), ["a", "m/003000", "m/009000", "z"]);
}

/// Threads append to lists and read them. The database is closed, opened again, and used further.
pub fn histories_over_a_reopen<H: DiskHarness>(harness: &H) {
    let (folder, recorder) = (temporary(), Recorder::default());
    let workload = Workload { seed: fresh_seed(), transactions: 40 * times(), ..Workload::default() };
    for _ in 0..3 {
        must("a workload", recorder.run(&open(harness, folder.path()), LISTS, workload));
    }
    let database = open(harness, folder.path());
    must_be_serial(&must("the lists", block_on(recorder.finish(&database, LISTS))), workload);
}

/// Very many small commits, more than any log of the durability tests holds between two flushes. Concurrent reads
/// must have a serial order, and a copy of the folder, as a kill leaves it, must have all commits.
pub fn a_log_of_many_records<H: DiskHarness>(harness: &H) {
    /// Number of rows, which are overwritten again and again.
    const ROWS: u64 = 500;
    // In memory where possible: only the number of records matters here.
    let (folder, commits) = tempfile::tempdir_in("/dev/shm").map_or_else(|_| (temporary(), 2_000), |it| (it, 20_000));
    let commits = number("CONFORMANCE_RECORDS", commits);
    let (recorder, workload) = (Recorder::default(), Workload { seed: fresh_seed(), ..Workload::default() });
    let data = folder.path().join("data");
    let database = must("it opens", harness.open_as_shipped(&data));
    for n in 0..commits {
        let write = |tx: &<H::Database as Database>::Transaction| {
            tx.set(format!("rows/{:03}", n % ROWS).as_bytes(), &n.to_be_bytes());
            tx.atomic_op(MutationType::Add, b"commits", &1_u64.to_le_bytes());
        };
        must("a commit", commit(&database, write));
    }
    let workload = Workload { transactions: 60 * times(), ..workload };
    must("a workload", recorder.run(&database, LISTS, workload));
    let copy = folder.path().join("copy");
    copy_in_use(&data, &copy);
    let whole = must("the rows", rows(&database));
    drop(database);

    let survivor = must("it opens", harness.open_as_shipped(&copy));
    let found: Rows = must("the rows", rows(&survivor));
    assert_eq!(found.get(b"commits".as_slice()).map(|count| count.to_vec()), Some(commits.to_le_bytes().to_vec()));
    assert!(found == whole, "the copy has {} rows of {}", found.len(), whole.len());
    must_be_serial(&must("the lists", block_on(recorder.finish(&survivor, LISTS))), workload);
    drop::<(H::Database, TempDir)>((survivor, folder));
}
