//! Kills processes, and checks the data that they leave on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kv_api::Database;

use super::child::{AFTER, FILLS, ROWS, value};
use super::folder::{self, Rows, commit, rows, temporary};
use super::harness::{DiskHarness, Point};
use super::process::{ChildTask, Process, Said};
use crate::random::{Random, number};

/// When a child is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// While it opens the folder.
    Opening,
    /// When this many of its commits have been acknowledged.
    After(usize),
}

/// Messages from the children of a test.
#[derive(Debug, Default)]
struct Heard {
    acknowledged: BTreeSet<String>,
    newest: i64,
    /// Commits that the last child began and that were not acknowledged.
    open: BTreeSet<String>,
}

impl Heard {
    fn note(&mut self, said: Said) {
        match said {
            Said::Begun(name) => drop(self.open.insert(name)),
            Said::Acknowledged(name, version) => {
                self.open.remove(&name);
                self.acknowledged.insert(name);
                self.newest = self.newest.max(version);
            }
            Said::Opening | Said::Opened | Said::Note(_) => {}
        }
    }

    /// Lets a child run until `moment`, kills it, and reads the rest of its messages.
    fn until(&mut self, moment: Moment, mut process: Process) {
        self.open.clear();
        let mut left = match moment {
            Moment::Opening => 0,
            Moment::After(commits) => commits,
        };
        let enough = |said: &Said, left: &mut usize| match said {
            Said::Opening => matches!(moment, Moment::Opening),
            Said::Opened => *left == 0,
            Said::Acknowledged(..) => {
                *left -= 1;
                *left == 0
            }
            Said::Begun(_) | Said::Note(_) => false,
        };
        loop {
            let Some(said) = process.next() else { panic!("a child ended before it was killed ({moment:?})") };
            let enough = enough(&said, &mut left);
            self.note(said);
            if enough {
                break;
            }
        }
        process.kill();
        process.by_ref().for_each(|said| self.note(said));
        process.ended();
    }
}

fn open<H: DiskHarness>(harness: &H, folder: &Path) -> H::Database {
    match folder::open(harness, folder) {
        Ok(database) => database,
        Err(error) => panic!("{} does not open after a kill: {error}", harness.engine()),
    }
}

fn all<D: Database>(database: &D) -> Rows {
    rows(database).unwrap_or_else(|error| panic!("cannot read after a kill: {error}"))
}

/// Random choices from a seed, which is printed.
fn choices(seed: u64) -> Random {
    let seed = number("CONFORMANCE_SEED", seed);
    println!("seed {seed}");
    Random::new(seed)
}

/// The names under a prefix.
fn names(rows: &Rows, prefix: &str) -> BTreeSet<String> {
    let keys = rows.keys().map(|key| String::from_utf8_lossy(key));
    keys.filter_map(|key| key.strip_prefix(prefix).map(str::to_owned)).collect()
}

/// Checks what children of [`ChildTask::Write`] and [`ChildTask::Stop`] may leave. Returns the commits that are there.
fn check_writes(found: &Rows, heard: &Heard) -> BTreeSet<String> {
    let commits = names(found, "a/");
    assert_eq!(commits, names(found, "b/"), "a commit is there in part");
    let lost: Vec<_> = heard.acknowledged.difference(&commits).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    let never: Vec<_> =
        commits.iter().filter(|name| !heard.acknowledged.contains(*name) && !heard.open.contains(*name)).collect();
    // A commit of an earlier child that was found without acknowledgement has counted as acknowledged since.
    assert!(never.is_empty(), "never begun and there: {never:?}");
    let total = found.get(b"total".as_slice()).map_or(0, |total| {
        u64::from_le_bytes(total.as_ref().try_into().unwrap_or_else(|_| panic!("a total of {} bytes", total.len())))
    });
    assert_eq!(total, commits.len() as u64, "the total of commits");
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in &commits {
        let Some((writer, count)) = name.rsplit_once('/') else { panic!("a key that nobody wrote: {name}") };
        let next = counts.entry(writer).or_default();
        assert_eq!(count, format!("{next:06}"), "a gap in the commits of {writer}");
        assert_eq!(found[format!("a/{name}").as_bytes()], value(*next), "the value of {name}");
        *next += 1;
    }
    let last = counts.iter().map(|(writer, count)| format!("{writer}/{:06}", count - 1)).collect();
    assert_eq!(names(found, "last/"), last, "a commit's clear and its write belong together");
    commits
}

/// Checks after a kill that the side file is not older than the newest acknowledged commit.
fn check_remembered<H: DiskHarness>(harness: &H, folder: &Path, heard: &Heard) -> Option<i64> {
    let remembered = harness.remembered(folder)?;
    assert!(remembered >= heard.newest, "remembered {remembered}, acknowledged {}", heard.newest);
    Some(remembered)
}

/// Commits again, and checks that versions rise.
fn check_that_it_goes_on<D: Database>(database: &D, heard: &mut Heard) {
    match commit(database, |tx| kv_api::Transaction::set(tx, b"on", b"and on")) {
        Ok(version) => {
            assert!(version > heard.newest, "version {version} after {}", heard.newest);
            heard.newest = version;
        }
        Err(error) => panic!("cannot write after a kill: {error}"),
    }
}

/// Kills processes with four writers: while the folder is opened, and at random moments later.
///
/// # Panics
///
/// When something acknowledged is lost, or a commit is there in part. Tests call this function.
pub fn kills_at_random<H: DiskHarness>(harness: &H, module: &str) {
    let folder = temporary();
    let path = folder.path().join("db");
    let mut random = choices(1);
    let mut heard = Heard::default();
    for run in 0..8 {
        let moment = if run % 4 == 0 { Moment::Opening } else { Moment::After(random.below(150) as usize) };
        heard.until(moment, Process::start(module, ChildTask::Write { run, writers: 4 }, &path));
        // A folder that does not exist yet has no side file either.
        if heard.newest > 0 {
            check_remembered(harness, &path, &heard);
        }
        let database = open(harness, &path);
        heard.acknowledged = check_writes(&all(&database), &heard);
        check_that_it_goes_on(&database, &mut heard);
    }
    println!("{}: {} commits survived 8 kills", harness.engine(), heard.acknowledged.len());
}

/// Ends a process before its batch is applied, after it is applied, and after it is synced: at its first commit and at
/// later ones.
///
/// # Panics
///
/// When something acknowledged is lost, when a commit is there in part, when a commit is there that was never
/// applied, or when a synced one is not.
pub fn kills_at_points<H: DiskHarness>(harness: &H, module: &str) {
    let mut random = choices(2);
    let (mut kept, mut gone) = (0, 0);
    for point in Point::ALL {
        let folder = temporary();
        let path = folder.path().join("db");
        let mut heard = Heard::default();
        // The last runs have several writers, who share batches.
        for (run, writers) in [1, 1, 1, 1, 4, 4].into_iter().enumerate() {
            let nth = if run == 0 { 1 } else { 1 + random.below(12) as usize };
            heard.open.clear();
            let mut process = Process::start(module, ChildTask::Stop { run, writers, point, nth }, &path);
            let mut said_anything = false;
            for said in process.by_ref() {
                said_anything |= matches!(said, Said::Opened);
                heard.note(said);
            }
            let status = process.ended();
            if !said_anything && status.success() {
                return skip(harness, "has no points to stop at");
            }
            // 101 is the exit status after a panic.
            assert!(!status.success() && status.code() != Some(101), "{point:?}: the child ended by itself: {status}");
            let context = format!("{point:?}, commit {nth} of run {run}");
            let remembered = check_remembered(harness, &path, &heard);
            let database = open(harness, &path);
            let found = check_writes(&all(&database), &heard);
            let survived = heard.open.intersection(&found).count();
            kept += survived;
            gone += heard.open.len() - survived;
            if writers == 1 {
                assert_eq!(heard.open.len(), 1, "{context}: one commit was under way");
                // A synced commit must be there, an unapplied one must not. An applied one may be either.
                match point {
                    Point::BeforeApply => assert_eq!(survived, 0, "{context}: it was not applied, and is there"),
                    Point::AfterApply => {}
                    Point::AfterSync => assert_eq!(survived, 1, "{context}: it was synced, and is lost"),
                }
                if let Some(remembered) = remembered {
                    let synced = point == Point::AfterSync;
                    assert_eq!(remembered > heard.newest, synced, "{context}: remembered {remembered}");
                }
            }
            heard.acknowledged = found;
            check_that_it_goes_on(&database, &mut heard);
        }
    }
    println!("{}: of the commits under way {kept} were kept, {gone} were not", harness.engine());
}

/// Reports, past the test runner's capture, that something was not tested.
pub(super) fn skip<H: DiskHarness>(harness: &H, why: &str) {
    use std::io::Write;
    // An error here cannot be reported.
    let _ = writeln!(std::io::stderr(), "*** skipped: {} {why}", harness.engine());
}

/// The rows that result from the commits in `done`.
fn expected_rows(done: &BTreeSet<String>) -> BTreeSet<String> {
    let mut rows = BTreeSet::new();
    let generations: BTreeSet<&str> = done.iter().map(|name| &name[..7]).collect();
    for of in generations {
        if !done.contains(&format!("{of}/gone")) {
            let fills = (0..FILLS).filter(|fill| done.contains(&format!("{of}/fill/{fill:03}")));
            rows.extend(fills.flat_map(|fill| (0..ROWS).map(move |row| format!("{of}/{fill:03}/{row:04}"))));
            continue;
        }
        rows.insert(format!("{of}/{:03}/{:04}", FILLS / 2, 0));
        let then = (0..AFTER).filter(|after| done.contains(&format!("{of}/then/{after:03}")));
        rows.extend(then.map(|after| format!("{of}/{:03}/{:04}", after % FILLS, after * 40 + 1)));
    }
    rows
}

/// Kills a process that writes many rows and clears them at once: between the writes, and after the clear, when
/// the store may still be removing rows.
///
/// # Panics
///
/// When a clear is there in part, when a cleared row comes back, or when a row written since is gone.
pub fn kills_amid_clears<H: DiskHarness>(harness: &H, module: &str) {
    let folder = temporary();
    let path = folder.path().join("db");
    let mut random = choices(3);
    let mut heard = Heard::default();
    for run in 0..6 {
        // The first run is killed between the writes, the others soon after the clear.
        let commits = match run {
            2 => 1 + random.below(FILLS as u64),
            _ => FILLS as u64 + 1 + random.below(AFTER as u64 / 2),
        };
        let moment = Moment::After(commits as usize);
        heard.until(moment, Process::start(module, ChildTask::Clear { run }, &path));
        check_remembered(harness, &path, &heard);
        let check = |found: Rows, heard: &Heard, when: &str| {
            let done = names(&found, "done/");
            let lost: Vec<_> = heard.acknowledged.difference(&done).collect();
            assert!(lost.is_empty(), "{when}: acknowledged and lost: {lost:?}");
            let (rows, expected) = (names(&found, "rows/"), expected_rows(&done));
            let (back, lost) = (rows.difference(&expected).count(), expected.difference(&rows).count());
            assert!(rows == expected, "{when}: {back} rows are there that should not be, {lost} are not that should");
            done
        };
        let database = open(harness, &path);
        heard.acknowledged = check(all(&database), &heard, "after a kill");
        check_that_it_goes_on(&database, &mut heard);
        check(all(&database), &heard, "later");
        drop(database);
        check(all(&open(harness, &path)), &heard, "opened once more");
    }
}
