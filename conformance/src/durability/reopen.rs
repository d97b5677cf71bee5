//! What must hold when a folder is opened again: versions, and one serial order over all openings.

use std::path::Path;

use kv_api::{ConflictRange, Database, MutationType, Read, Result, Transaction, error};
use tempfile::TempDir;

use super::DiskHarness;
use super::child::commit;
use super::folder::{self, Rows, copy_in_use, rows, temporary};
use crate::random::number;
use crate::scenario::block_on;
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
