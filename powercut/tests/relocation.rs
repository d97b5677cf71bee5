//! A database moves between two stores on a disk that loses power. Each store has a folder of its own, and one trace
//! covers both.
//!
//! ```text
//!   one      filled, edited ── moves ──►  moved      ◄── moves back ──  open
//!   other                      arriving   open, edited                  moved
//! ```
//!
//! After a loss of power one of the stores has the whole database, with every acknowledged edit. Only that store takes
//! writes; in the last step of a move neither does. Then the move continues or begins, as in a server, and brings the
//! same contents to the other store.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

#[path = "support/mod.rs"]
mod support;

use std::ops::ControlFlow;
use std::path::Path;
use std::thread;

use engine_lsm::{LsmDatabase, LsmOptions};
use futures_executor::block_on;
use kv_api::Bytes;
use model::{
    AllDocsRequest, AttachmentEdit, AttachmentSource, ChangesRequest, CreateOptions, Documents, Edit, ErrorKind,
    GetOptions, Layer, NotFound, OpenRevs, RelocateOptions, Style, abandon_relocation, relocate,
};
use powercut::Rows;
use powercut::dice::Dice;
use powercut::harness::{Counts, Finding, History, class, cut_by};
use powercut::recorder::Recording;
use powercut::trace::{Event, Kind, Trace};
use powercut::workload::{FOLDER, SECOND_FOLDER, differences};
use support::{cuts, edit, json, layer};

const FOLDERS: [&str; 2] = [FOLDER, SECOND_FOLDER];

/// Names of the stores, for their markers.
const NAMES: [&str; 2] = ["one", "other"];

type Store = Layer<LsmDatabase>;

fn open(root: &Path) -> [(LsmDatabase, Store); 2] {
    FOLDERS.map(|folder| {
        let options = LsmOptions::new().cache_bytes(200 << 10);
        let database = LsmDatabase::open(root.join(folder), options).expect("a store that can be opened");
        let layer = block_on(layer(&database));
        (database, layer)
    })
}

fn options(from: usize, delete_source: bool) -> RelocateOptions {
    RelocateOptions { from: NAMES[from].into(), to: NAMES[1 - from].into(), verify: true, delete_source }
}

/// Everything that clients can read, and the store that has it.
async fn contents(documents: &Documents<LsmDatabase>, place: usize) -> Rows {
    let mut rows = vec![("place".to_owned(), NAMES[place].to_owned())];
    let request = ChangesRequest { style: Style::AllDocs, ..ChangesRequest::default() };
    for change in documents.changes(&request).await.expect("changes").rows {
        let which = GetOptions { revs: true, ..GetOptions::default() };
        let leaves = documents.open_revs(&change.id, &OpenRevs::All, &which).await.expect("leaves");
        rows.push((format!("document {}", change.id), format!("{change:?} {leaves:?}")));
    }
    let request = AllDocsRequest { include_docs: true, ..AllDocsRequest::default() };
    for local in documents.local_docs(&request).await.expect("local documents").rows {
        rows.push((format!("local {local:?}"), String::new()));
    }
    rows.push(("security".to_owned(), documents.security().await.expect("an object").as_str().to_owned()));
    rows.into_iter().map(|(key, value)| (Bytes::from(key), Bytes::from(value))).collect()
}

/// What clients do while the database moves.
struct Clients<'a> {
    recording: &'a Recording,
    stores: [(LsmDatabase, Store); 2],
    states: Vec<Rows>,
    edits: usize,
}

impl Clients<'_> {
    /// One write to the database in this store. `moving`: afterwards it may be at the other store.
    fn write(&mut self, place: usize, moving: bool) -> bool {
        let documents = block_on(self.stores[place].1.database("db")).expect("the database");
        let begun = self.states.len();
        self.recording.note(Event::Begun(begun));
        self.edits += 1;
        let body = json(&format!(r#"{{"n":{},"text":"{}"}}"#, self.edits, "x".repeat(30 * self.edits)));
        let written = match self.edits % 4 {
            0 => block_on(documents.put_local("_local/checkpoint", None, body)).map(drop),
            1 => block_on(documents.set_security(json(&format!(r#"{{"members":{{"roles":["r{begun}"]}}}}"#)))),
            _ => block_on(documents.put(Edit::new(format!("d{}", self.edits), body))).map(drop),
        };
        match written {
            Ok(()) => {
                self.know(&documents, place, moving);
                true
            }
            Err(error) => {
                assert!(moving && *error.kind() == ErrorKind::Moving, "{error}");
                // Nothing was written.
                self.states.extend(self.states.last().cloned());
                false
            }
        }
    }

    /// Notes that clients know the contents.
    fn know(&mut self, documents: &Documents<LsmDatabase>, place: usize, moving: bool) {
        self.states.push(block_on(contents(documents, place)));
        self.recording.note(Event::Known(self.states.len() - 1));
        if moving {
            self.states.push(elsewhere(&self.states[self.states.len() - 1], 1 - place));
            self.recording.note(Event::Begun(self.states.len() - 1));
        }
    }

    /// Moves the database away from this store, and writes to it meanwhile. Returns the number of writes that were
    /// taken.
    fn relocate(&mut self, from: usize, delete_source: bool) -> usize {
        let [source, target] = [from, 1 - from].map(|place| self.stores[place].1.clone());
        let documents = block_on(source.database("db")).expect("the database");
        self.know(&documents, from, true);
        let (mut calls, mut taken) = (0, 0);
        let report = block_on(relocate(&source, &target, "db", &options(from, delete_source), |_| {
            calls += 1;
            if calls % 3 == 0 && block_on_elsewhere(|| block_on(source.database("db")).is_ok()) {
                taken += usize::from(block_on_elsewhere(|| self.write(from, true)));
            }
            ControlFlow::Continue(())
        }));
        assert!(report.expect("it moves").moved);
        let there = block_on(target.database("db")).expect("the database");
        self.know(&there, 1 - from, false);
        taken
    }
}

/// On a thread of its own: a callback runs inside an executor and cannot wait.
fn block_on_elsewhere<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join().expect("no panic"))
}

fn elsewhere(state: &Rows, place: usize) -> Rows {
    let mut state = state.clone();
    state.insert("place".into(), NAMES[place].into());
    state
}

fn is_at(state: &Rows, place: usize) -> bool {
    state.get(&b"place"[..]).is_some_and(|known| *known == NAMES[place])
}

fn record() -> History {
    let root = tempfile::tempdir().expect("a folder");
    let recording = Recording::begin(root.path(), Trace::default());
    recording.note(Event::Known(0));
    let stores = open(root.path());
    let mut clients = Clients { recording: &recording, stores, states: vec![Rows::new()], edits: 0 };
    clients.recording.note(Event::Begun(1));
    let documents = block_on(clients.stores[0].1.create_database("db", CreateOptions::default())).expect("a database");
    clients.know(&documents, 0, false);
    let begun = clients.states.len();
    clients.recording.note(Event::Begun(begun));
    let source =
        AttachmentSource::Data((0..150_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect::<Vec<_>>().into());
    let attachment = AttachmentEdit { name: "f".into(), content_type: "image/x".into(), revpos: None, source };
    block_on(documents.put(Edit { attachments: vec![attachment], ..edit("attached", "{}") })).expect("it is written");
    clients.know(&documents, 0, false);
    for _ in 0..4 {
        clients.write(0, false);
    }
    let taken = clients.relocate(0, false);
    assert!(taken > 2, "only {taken} writes while it moved");
    for _ in 0..3 {
        clients.write(1, false);
    }
    clients.relocate(1, true);
    clients.write(0, false);
    let Clients { stores, states, .. } = clients;
    stores.iter().for_each(|(database, _)| database.close().expect("closed"));
    drop(stores);
    History { trace: recording.finish(), states, from: 0 }
}

/// Whether the database takes an edit in this store.
fn takes_an_edit(documents: &Documents<LsmDatabase>) -> bool {
    match block_on(documents.put(edit("probe", "{}"))) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(*error.kind(), ErrorKind::Moving, "{error}");
            false
        }
    }
}

/// Opens both stores. The database must be whole in one of them, in a state that is allowed; and must move to the
/// other.
fn check(root: &Path, states: &[Rows], allowed: &[usize], dice: &mut Dice) -> Result<(), String> {
    let stores = open(root);
    let here = [0, 1].map(|place| match block_on(stores[place].1.database("db")) {
        Ok(documents) => Some(documents),
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::NotFound(NotFound::Database) | ErrorKind::Moved(_)), "{error}");
            None
        }
    });
    // Before the edits that show which store takes writes.
    let before = [0, 1].map(|place| here[place].as_ref().map(|documents| block_on(contents(documents, place))));
    let (from, place, whole) = match &here {
        [None, None] if allowed.iter().any(|state| states[*state].is_empty()) => return Ok(()),
        [None, None] => return Err("is in neither store".into()),
        // The last step of a move: the source is closed, and the target is published.
        [Some(one), Some(other)] => match (takes_an_edit(one), takes_an_edit(other)) {
            (true, false) => (1, 0, one),
            (false, true) => (0, 1, other),
            both => return Err(format!("is in both stores, and they take edits: {both:?}")),
        },
        [Some(one), None] => (0, 0, one),
        [None, Some(other)] => (1, 1, other),
    };
    let found = before[place].clone().unwrap_or_default();
    if !allowed.iter().any(|state| states[*state] == found) {
        return Err(differences(&found, states, allowed));
    }
    if before[from] != Some(elsewhere(&found, from)) {
        return Err("shows something else in the store that it leaves".into());
    }
    let [source, target] = [from, 1 - from].map(|place| &stores[place].1);
    let is_closed = from == place && !takes_an_edit(whole);
    if is_closed && dice.below(2) == 0 {
        block_on(abandon_relocation(source, target, "db")).map_err(|error| format!("cannot stay: {error}"))?;
        if !takes_an_edit(whole) {
            return Err("takes no edits after its move was abandoned".into());
        }
    }
    let expected = elsewhere(&block_on(contents(whole, place)), 1 - from);
    let moved = block_on(relocate(source, target, "db", &options(from, false), |_| ControlFlow::Continue(())));
    let report = moved.map_err(|error| format!("does not move: {error}"))?;
    if !report.moved || !report.is_same() {
        return Err(format!("does not move: {report:?}"));
    }
    let there = block_on(target.database("db")).map_err(|error| format!("did not arrive: {error}"))?;
    let arrived = block_on(contents(&there, 1 - from));
    if arrived != expected {
        return Err(format!("arrives as something else: {}", differences(&arrived, &[expected], &[0])));
    }
    let remains = block_on(source.remains("db")).map_err(|error| error.to_string())?.ok_or("no remains")?;
    for documents in [&there, &remains] {
        let report = block_on(documents.check(|_| {})).map_err(|error| format!("cannot be checked: {error}"))?;
        if !report.is_sound() {
            return Err(format!("is unsound: {:?}", report.problems));
        }
    }
    Ok(())
}

fn cut_all(history: &History, cuts: usize, seed: u64) -> Result<Counts, Finding> {
    let dice = &mut Dice::new(seed);
    cut_by("relocation on lsm", history, cuts, &Counts::default(), dice, |root, allowed, dice| {
        check(root, &history.states, allowed, dice)
    })
}

#[test]
fn a_database_that_moves_is_whole_in_one_place_after_a_loss_of_power() {
    let history = record();
    let seed = support::seed(1);
    let counts = cut_all(&history, cuts(), seed).unwrap_or_else(|found| found.report(seed));
    println!("seed {seed}: {} cuts\n{counts}", counts.total());

    // Without the syncs of either store's log during the move, the cuts find that the database is not whole in one
    // place.
    let events = history.trace.events();
    let first =
        events.iter().position(|event| matches!(event, Event::Begun(state) if is_at(&history.states[*state], 1)));
    let first = first.expect("a move");
    for folder in FOLDERS {
        let is_left_out = |trace: &Trace, at: usize| {
            let path = trace.path_of(&trace.events()[at]);
            let is_sync = trace.events()[at].kind() == Some(Kind::Sync);
            at > first && is_sync && class(&path) == "the log" && path.starts_with(folder)
        };
        let trace = history.trace.without(is_left_out);
        let faulty = History { trace, states: history.states.clone(), from: first };
        let mut cuts = 0;
        let wrong = (seed..seed + 40).find_map(|seed| {
            cuts += 50;
            cut_all(&faulty, 50, seed).err().map(|found| found.wrong)
        });
        let wrong = wrong.expect("a missing sync is found");
        println!(
            "without syncs of the log in {folder}: within {cuts} cuts: {}",
            wrong.lines().next().unwrap_or_default()
        );
    }
}
