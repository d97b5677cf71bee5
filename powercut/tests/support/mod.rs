//! A layer whose commits are recorded, for tests of documents on a disk that loses power.

// Each test file uses a part of it.
#![allow(dead_code)]

use std::fmt::Debug;
use std::path::Path;

use engine_lsm::{LsmDatabase, LsmOptions};
use futures_executor::block_on;
use kv_api::{Database, RangeRequest, Read, Transaction, TransactionExt};
use model::{Edit, JsonText, Layer, LayerOptions, NameRange};
use powercut::harness::History;
use powercut::recorder::Recording;
use powercut::trace::{Event, Kind, Trace};
use powercut::workload::FOLDER;
use powercut::{Engine, Rows};

pub(crate) const PREFIX: &str = "d/";

/// Opens a folder. Its databases are checked, if it has any: a layer writes to an empty store.
pub(crate) fn open(folder: &Path) -> kv_api::Result<LsmDatabase> {
    let database = LsmDatabase::open(folder, LsmOptions::new().cache_bytes(200 << 10))?;
    if has_layer(&database)? {
        block_on(assert_sound(&database));
    }
    Ok(database)
}

/// Whether a layer was opened there.
pub(crate) fn has_layer(database: &LsmDatabase) -> kv_api::Result<bool> {
    let first = RangeRequest::prefix(PREFIX.as_bytes()).limit(1);
    Ok(!block_on(database.begin()?.get_range(&first, Read::Snapshot))?.rows.is_empty())
}

pub(crate) async fn layer<D: Database>(database: &D) -> Layer<D> {
    let options = LayerOptions { prefix: PREFIX.into(), ..LayerOptions::default() };
    Layer::open(database.clone(), options).await.expect("a layer")
}

pub(crate) async fn assert_sound<D: Database>(database: &D) {
    let layer = layer(database).await;
    for name in layer.database_names(&NameRange::default()).await.expect("names") {
        let report = layer.database(&name).await.expect("a database").check(|_| {}).await.expect("a check");
        assert!(report.is_sound(), "{name}: {:?}", report.problems);
    }
}

pub(crate) fn rows<D: Database>(database: &D) -> Rows {
    let transaction = database.begin().expect("a transaction");
    let rows = block_on(transaction.get_all(RangeRequest::keys("", "\u{7f}"), Read::Snapshot)).expect("rows");
    rows.into_iter().map(|row| (row.key, row.value)).collect()
}

/// What clients do, one commit after the other.
pub(crate) struct Workload {
    recording: Recording,
    pub(crate) database: LsmDatabase,
    states: Vec<Rows>,
}

impl Workload {
    /// Notes the states that one commit may leave, and the one that it left.
    pub(crate) fn step<T, E: Debug>(&mut self, work: impl Future<Output = Result<T, E>>) -> T {
        let begun = self.states.len();
        self.recording.note(Event::Begun(begun));
        let done = block_on(work).expect("it is written");
        self.states.push(rows(&self.database));
        self.recording.note(Event::Known(begun));
        done
    }
}

/// Records a workload on a new store.
pub(crate) fn record<E: Engine<Database = LsmDatabase>>(run: impl FnOnce(&mut Workload)) -> History {
    let root = tempfile::tempdir().expect("a folder");
    let recording = Recording::begin(root.path(), Trace::default());
    recording.note(Event::Known(0));
    let database = E::open(&root.path().join(FOLDER)).expect("a database");
    let mut workload = Workload { recording, database, states: vec![Rows::new()] };
    run(&mut workload);
    E::close(&workload.database).expect("closed");
    let Workload { recording, database, states } = workload;
    drop(database);
    History { trace: recording.finish(), states, from: 0 }
}

/// The same history without the syncs of the log.
pub(crate) fn without_log_syncs(history: History) -> History {
    let is_log = |trace: &Trace, at: usize| {
        let event = &trace.events()[at];
        event.kind() == Some(Kind::Sync) && trace.path_of(event).contains("log")
    };
    History { trace: history.trace.without(is_log), ..history }
}

/// The number of cuts.
pub(crate) fn cuts() -> usize {
    std::env::var("POWERCUT_CUTS").map_or(24, |cuts| cuts.parse().expect("a number"))
}

/// The seed.
pub(crate) fn seed(otherwise: u64) -> u64 {
    std::env::var("POWERCUT_SEED").map_or(otherwise, |seed| seed.parse().expect("a number"))
}

pub(crate) fn json(text: &str) -> JsonText {
    JsonText::parse(text.as_bytes()).expect("JSON")
}

pub(crate) fn edit(id: &str, body: &str) -> Edit {
    Edit::new(id, json(body))
}
