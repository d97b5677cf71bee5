//! Tests of the suite: every faulty engine is caught each time, by a known check.
//!
//! Some faults are planted in `occ` (its feature `faults`), others are in a store that breaks its contract.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use conformance::serializability::{Workload, check, record};
use conformance::tape::{self, Run};
use conformance::{Fixture, Harness};
use kv_api::{Bytes, Database, DatabaseExt, Direction, Durability, Error, Read, Result, Transaction};
use occ::store::{ApplyError, Batch, MapSnapshot, Snapshot, Store};
use occ::{Fault, OccBuilder, OccDatabase, Point, ShiftedClock};
use parking_lot::Mutex;

type Rows = std::collections::BTreeMap<Bytes, Bytes>;

/// Fault of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// Snapshots see later writes: the before-images are lost.
    Snapshots,
    /// The last of several changes in a batch is not applied.
    Batches,
}

/// A sorted map with a copy of its synced state, which a crash leaves.
#[derive(Clone, Debug)]
struct Fragile {
    broken: Broken,
    head: Arc<Mutex<Arc<Rows>>>,
    synced: Arc<Mutex<Arc<Rows>>>,
}

impl Fragile {
    fn new(broken: Broken) -> Self {
        Fragile { broken, head: Arc::default(), synced: Arc::default() }
    }

    /// A power loss: everything since the last sync is gone.
    fn crash(&self) -> Self {
        let survived = self.synced.lock().clone();
        Fragile {
            broken: self.broken,
            head: Arc::new(Mutex::new(survived.clone())),
            synced: Arc::new(Mutex::new(survived)),
        }
    }
}

impl Store for Fragile {
    type Snapshot = FragileSnapshot;

    fn snapshot(&self) -> Result<FragileSnapshot> {
        let rows = MapSnapshot(self.head.lock().clone());
        let live = (self.broken == Broken::Snapshots).then(|| self.head.clone());
        Ok(FragileSnapshot { rows, live })
    }

    fn apply(&self, mut batch: Batch) -> Result<(), ApplyError> {
        if self.broken == Broken::Batches && batch.row_count() > 2 {
            let (version, kept) = (batch.version(), batch.row_count() - 2);
            let (clears, rows) = batch.into_parts();
            batch = Batch::of_parts(version, clears, rows.take(kept));
        }
        let mut head = self.head.lock();
        let mut rows = Rows::clone(&head);
        batch.apply_to(&mut rows);
        *head = Arc::new(rows);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        *self.synced.lock() = self.head.lock().clone();
        Ok(())
    }

    fn durability(&self) -> Durability {
        Durability::Disk
    }
}

#[derive(Clone, Debug)]
struct FragileSnapshot {
    rows: MapSnapshot,
    live: Option<Arc<Mutex<Arc<Rows>>>>,
}

impl FragileSnapshot {
    fn rows(&self) -> MapSnapshot {
        self.live.as_ref().map_or_else(|| self.rows.clone(), |live| MapSnapshot(live.lock().clone()))
    }
}

impl Snapshot for FragileSnapshot {
    type Range<'a> = std::vec::IntoIter<Result<(Bytes, Bytes)>>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.rows().get(key)
    }

    fn range<'a>(&'a self, begin: &[u8], end: &[u8], direction: Direction) -> Self::Range<'a> {
        self.rows().range(begin, end, direction).collect::<Vec<_>>().into_iter()
    }
}

/// An engine with one fault or none.
#[derive(Clone, Copy)]
struct Faulty {
    store: Broken,
    occ: Option<Fault>,
}

impl Faulty {
    fn database(&self, store: Fragile, clock: ShiftedClock) -> OccDatabase<Fragile> {
        let mut builder = OccBuilder::new().clock(clock);
        if let Some(fault) = self.occ {
            builder = builder.fault(fault);
        }
        builder.open(store).expect("a map opens")
    }
}

impl Harness for Faulty {
    type Database = OccDatabase<Fragile>;

    fn engine(&self) -> String {
        format!("an engine with {:?} and {:?}", self.store, self.occ)
    }

    fn open(&self, _scenario: &str) -> Fixture<Self::Database> {
        let clock = ShiftedClock::new();
        Fixture::new(self.database(Fragile::new(self.store), clock.clone())).clock(move |by| clock.advance(by))
    }
}

/// The name of the first check that finds a fault.
fn first_to_notice(engine: Faulty) -> Option<String> {
    for scenario in conformance::scenarios() {
        if catch_unwind(AssertUnwindSafe(|| conformance::run(&engine, scenario.name))).is_err() {
            return Some(format!("scenario {}", scenario.name));
        }
    }
    let run = Run { seed: 1, tapes: 200, instructions: 150 };
    if catch_unwind(AssertUnwindSafe(|| tape::run(&engine, run))).is_err() {
        return Some("the tape".into());
    }
    let database = engine.database(Fragile::new(engine.store), ShiftedClock::new());
    let history = record(&database, b"lists/", Workload::default()).expect("a history");
    check(&history).err().map(|anomaly| format!("the checker of histories: {anomaly}"))
}

/// Whether an acknowledged write is gone after a crash.
fn forgets_after_a_crash(engine: Faulty) -> bool {
    let store = Fragile::new(engine.store);
    let database = engine.database(store.clone(), ShiftedClock::new());
    let write = |tx: <OccDatabase<Fragile> as Database>::Transaction, _| {
        tx.set(b"key", b"value");
        std::future::ready(Ok::<_, Error>(()))
    };
    futures_executor::block_on(database.run(write)).expect("a blind write commits");
    let after = engine.database(store.crash(), ShiftedClock::new());
    let transaction = after.begin().expect("it is open");
    futures_executor::block_on(transaction.get(b"key", Read::Snapshot)).expect("it can be read").is_none()
}

#[test]
fn planted_faults_are_caught() {
    // Panics are expected here, so their thousands of messages are suppressed.
    std::panic::set_hook(Box::new(|_| {}));
    let faults = [
        Faulty { store: Broken::Nothing, occ: Some(Fault::ConflictRangesDropped) },
        Faulty { store: Broken::Nothing, occ: Some(Fault::RangeConflictOffByOne) },
        Faulty { store: Broken::Nothing, occ: Some(Fault::VersionstampReused) },
        Faulty { store: Broken::Snapshots, occ: None },
        Faulty { store: Broken::Batches, occ: None },
    ];
    let caught = faults.map(|engine| {
        let begun = Instant::now();
        let noticed = first_to_notice(engine);
        (engine.engine(), noticed, begun.elapsed())
    });
    let sound = first_to_notice(Faulty { store: Broken::Nothing, occ: None });
    drop(std::panic::take_hook());
    for (engine, noticed, took) in &caught {
        println!("{engine}: {} after {} ms", noticed.as_deref().unwrap_or("nobody"), took.as_millis());
    }
    assert!(caught.iter().all(|(_, noticed, _)| noticed.is_some()), "a fault went unnoticed");
    assert_eq!(sound, None, "the same engine without a fault passes");
}

#[test]
fn the_tape_alone_catches_what_conflicts_hide() {
    std::panic::set_hook(Box::new(|_| {}));
    let run = Run { seed: 1, tapes: 400, instructions: 150 };
    let caught = [Fault::ConflictRangesDropped, Fault::RangeConflictOffByOne].map(|fault| {
        let begun = Instant::now();
        let engine = Faulty { store: Broken::Nothing, occ: Some(fault) };
        (fault, catch_unwind(AssertUnwindSafe(|| tape::run(&engine, run))).is_err(), begun.elapsed())
    });
    drop(std::panic::take_hook());
    for (fault, caught, took) in caught {
        println!("{fault:?} by the tape alone: {} ms", took.as_millis());
        assert!(caught, "{fault:?}");
    }
}

#[test]
fn a_missing_sync_loses_what_was_acknowledged() {
    assert!(forgets_after_a_crash(Faulty { store: Broken::Nothing, occ: Some(Fault::MissingSync) }));
    assert!(!forgets_after_a_crash(Faulty { store: Broken::Nothing, occ: None }));
}

/// Checks what a crash at each point of a commit leaves.
#[test]
fn points_are_reached_in_order_and_say_what_a_crash_leaves() {
    let store = Fragile::new(Broken::Nothing);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (at_point, log) = (store.clone(), seen.clone());
    let look = move |point| {
        let has = |rows: &Arc<Rows>| rows.contains_key(b"key".as_slice());
        log.lock().push((point, has(&at_point.head.lock()), has(&at_point.synced.lock())));
    };
    let database = OccBuilder::new().at_points(look).open(store).expect("a map opens");
    let write = |tx: <OccDatabase<Fragile> as Database>::Transaction, _| {
        tx.set(b"key", b"value");
        std::future::ready(Ok::<_, Error>(()))
    };
    futures_executor::block_on(database.run(write)).expect("a blind write commits");
    let expected =
        [(Point::BeforeApply, false, false), (Point::AfterApply, true, false), (Point::AfterSync, true, true)];
    assert_eq!(*seen.lock(), expected);
}

#[test]
fn a_long_run_ends_with_the_shortest_tape_that_fails() {
    let run = Run { seed: 1, tapes: 400, instructions: 150 };
    let engine = |occ| Faulty { store: Broken::Nothing, occ };
    let mut played = 0;
    let failure =
        tape::run_long(&engine(Some(Fault::ConflictRangesDropped)), run, 20, |instructions| played += instructions)
            .expect_err("the fault is noticed")
            .to_string();
    assert!(played < 400 * 150, "at the first difference the run ends");
    assert!(failure.contains("engine: Ok(())\n  oracle: Err"), "{failure}");
    let steps = failure.lines().skip_while(|line| *line != "after:").count();
    assert!(steps < 12, "it is not short:\n{failure}");

    played = 0;
    let run = Run { tapes: 7, ..run };
    tape::run_long(&engine(None), run, 3, |instructions| played += instructions).expect("there is no fault");
    assert_eq!(played, 7 * 150);
}
