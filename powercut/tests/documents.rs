//! Documents on a disk that loses its power: attachments, patches, purges, transactions with rows of the caller's own,
//! databases in which the last write wins, and bodies whose layout changes.
//!
//! The harness compares the rows with those that clients were told of. Beyond that, each opening checks all databases.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

use std::path::Path;

use engine_lsm::{LsmDatabase, LsmOptions};
use futures_executor::block_on;
use kv_api::{Database, RangeRequest, Read, Result, Transaction, TransactionExt};
use model::{
    AttachmentEdit, AttachmentSource, BodyFormat, ConflictPolicy, CreateOptions, Edit, Edits, JsonText, Layer,
    LayerOptions, NameRange, Patch, Purge, RevHistory, Rewriting, UploadAs, WriteMode,
};
use powercut::dice::Dice;
use powercut::harness::{History, cut};
use powercut::recorder::Recording;
use powercut::trace::{Event, Kind, Trace};
use powercut::workload::FOLDER;
use powercut::{Engine, Rows};

const PREFIX: &str = "d/";

struct Store;

impl Engine for Store {
    type Database = LsmDatabase;
    const NAME: &'static str = "documents on lsm";

    fn open(folder: &Path) -> Result<LsmDatabase> {
        let database = LsmDatabase::open(folder, LsmOptions::new().cache_bytes(200 << 10))?;
        let first = RangeRequest::prefix(PREFIX.as_bytes()).limit(1);
        // A layer writes to an empty store.
        if !block_on(database.begin()?.get_range(&first, Read::Snapshot))?.rows.is_empty() {
            block_on(assert_sound(&database));
        }
        Ok(database)
    }

    fn close(database: &LsmDatabase) -> Result<()> {
        database.close()
    }
}

async fn layer(database: &LsmDatabase) -> Layer<LsmDatabase> {
    let options = LayerOptions { prefix: PREFIX.into(), ..LayerOptions::default() };
    Layer::open(database.clone(), options).await.expect("a layer")
}

async fn assert_sound(database: &LsmDatabase) {
    let layer = layer(database).await;
    for name in layer.database_names(&NameRange::default()).await.expect("names") {
        let report = layer.database(&name).await.expect("a database").check(|_| {}).await.expect("a check");
        assert!(report.is_sound(), "{name}: {:?}", report.problems);
    }
}

fn rows(database: &LsmDatabase) -> Rows {
    let transaction = database.begin().expect("a transaction");
    let rows = block_on(transaction.get_all(RangeRequest::keys("", "\u{7f}"), Read::Snapshot)).expect("rows");
    rows.into_iter().map(|row| (row.key, row.value)).collect()
}

/// What clients do, one commit after the other.
struct Workload {
    recording: Recording,
    database: LsmDatabase,
    states: Vec<Rows>,
}

impl Workload {
    /// Notes what one commit may leave, and what it left.
    fn step<T>(&mut self, work: impl Future<Output = model::Result<T>>) -> T {
        let begun = self.states.len();
        self.recording.note(Event::Begun(begun));
        let done = block_on(work).expect("it is written");
        self.states.push(rows(&self.database));
        self.recording.note(Event::Known(begun));
        done
    }

    fn run(&mut self) {
        let database = self.database.clone();
        let layer = self.step(async { Ok(layer(&database).await) });
        let last = CreateOptions { conflicts: ConflictPolicy::LastWriteWins, ..CreateOptions::default() };
        let documents = self.step(layer.create_database("documents", CreateOptions::default()));
        let wins = self.step(layer.create_database("wins", last));
        for round in 0..4u8 {
            let id = format!("doc-{round}");
            let attachment = inline("f", vec![round; 150_000]);
            let rev = self.step(documents.put(Edit { attachments: vec![attachment], ..edit(&id, r#"{"n":0}"#) }));
            let patch = Patch::merge(json(&format!(r#"{{"n":{round},"m":{{"o":[1,null]}}}}"#)));
            let patched = self.step(documents.patch(&id, Some(&rev), &patch));

            let mut upload = documents.upload("g", UploadAs::Plain { content_type: "x" });
            self.step(upload.write(&vec![round + 100; 2_500_000]));
            let content = self.step(upload.finish());
            self.step(documents.put_attachment(&id, Some(&patched), "g", "x", content));

            let together = |edits: Edits<LsmDatabase>| {
                let (documents, wins) = (&documents, &wins);
                async move {
                    edits.transaction().set(format!("own/{round}").into_bytes(), b"row");
                    edits.put(documents, edit(&format!("both-{round}"), "{}"))?;
                    edits.put(wins, edit(&format!("both-{round}"), "{}"))?;
                    Ok::<_, model::Error>(())
                }
            };
            let revs = self.step(layer.transact(together)).1;
            if round % 2 == 0 {
                let purges = [Purge::new(format!("both-{round}"), vec![revs[0].clone()])];
                self.step(documents.purge(&purges));
            }
            for path in ["2-b a", "3-a c b", "2-z a"] {
                self.step(wins.write(vec![replicated("one", path, round)], WriteMode::Replicated));
            }
            self.step(documents.purge(&[Purge::new(format!("doc-{}", round.saturating_sub(2)), Vec::new())]));
        }
        self.step(documents.set_body_format(BodyFormat::Packed));
        let mut at = Rewriting::default();
        while let Some(next) = self.step(documents.rewrite_bodies_batch(&at, 2, None)) {
            at = next;
        }
        let gone = block_on(documents.get("doc-0", &Default::default())).expect("a document").rev;
        self.step(documents.purge(&[Purge::new("doc-0", vec![gone])]));
        self.step(async { layer.delete_database("wins").await });
    }
}

fn json(text: &str) -> JsonText {
    JsonText::parse(text.as_bytes()).expect("JSON")
}

fn edit(id: &str, body: &str) -> Edit {
    Edit::new(id, json(body))
}

fn inline(name: &str, data: Vec<u8>) -> AttachmentEdit {
    let source = AttachmentSource::Data(data.into());
    AttachmentEdit { name: name.to_owned(), content_type: "image/x".to_owned(), revpos: None, source }
}

fn replicated(id: &str, path: &str, round: u8) -> Edit {
    let (position, ids) = path.split_once('-').expect("a revision");
    let ids = ids.split(' ').map(|hash| format!("{round}{hash}").parse().expect("a hash")).collect();
    let position = position.parse::<u64>().expect("a position") + u64::from(round);
    edit(id, &format!(r#"{{"round":{round}}}"#)).with_history(RevHistory { position, ids })
}

fn record() -> History {
    let root = tempfile::tempdir().expect("a folder");
    let recording = Recording::begin(root.path(), Trace::default());
    recording.note(Event::Known(0));
    let database = Store::open(&root.path().join(FOLDER)).expect("a database");
    let mut workload = Workload { recording, database, states: vec![Rows::new()] };
    workload.run();
    Store::close(&workload.database).expect("closed");
    let Workload { recording, database, states } = workload;
    drop(database);
    History { trace: recording.finish(), states, from: 0 }
}

fn cuts() -> usize {
    std::env::var("POWERCUT_CUTS").map_or(24, |cuts| cuts.parse().expect("a number"))
}

#[test]
fn documents_outlive_a_loss_of_power() {
    let history = record();
    let seed = 3;
    cut::<Store>(&history, cuts(), &mut Dice::new(seed)).unwrap_or_else(|found| found.report(seed));

    // Without the log's syncs, the same cuts find that acknowledged edits are gone.
    let is_log = |trace: &Trace, at: usize| {
        let event = &trace.events()[at];
        event.kind() == Some(Kind::Sync) && trace.path_of(event).contains("log")
    };
    let unsynced = History { trace: history.trace.without(is_log), ..history };
    cut::<Store>(&unsynced, 2_000, &mut Dice::new(seed)).expect_err("a missing sync");
}
