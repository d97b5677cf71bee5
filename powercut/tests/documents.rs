//! Documents on a disk that loses power: attachments, patches, purges, transactions with rows of the caller's own,
//! databases in which the last write wins, and bodies whose layout changes.
//!
//! The harness compares the rows with those that clients were told of. Also, each opening checks all databases.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

#[path = "support/mod.rs"]
mod support;

use std::path::Path;

use engine_lsm::LsmDatabase;
use futures_executor::block_on;
use kv_api::{Result, Transaction};
use model::{
    AttachmentEdit, AttachmentSource, BodyFormat, ConflictPolicy, CreateOptions, Edit, Edits, Patch, Purge, RevHistory,
    Rewriting, UploadAs, WriteMode,
};
use powercut::Engine;
use powercut::dice::Dice;
use powercut::harness::cut;
use support::{Workload, cuts, edit, json, layer, record, without_log_syncs};

struct Store;

impl Engine for Store {
    type Database = LsmDatabase;
    const NAME: &'static str = "documents on lsm";

    fn open(folder: &Path) -> Result<LsmDatabase> {
        support::open(folder)
    }

    fn close(database: &LsmDatabase) -> Result<()> {
        database.close()
    }
}

fn run(workload: &mut Workload) {
    let database = workload.database.clone();
    let layer = workload.step(async { Ok::<_, model::Error>(layer(&database).await) });
    let last = CreateOptions { conflicts: ConflictPolicy::LastWriteWins, ..CreateOptions::default() };
    let documents = workload.step(layer.create_database("documents", CreateOptions::default()));
    let wins = workload.step(layer.create_database("wins", last));
    for round in 0..4u8 {
        let id = format!("doc-{round}");
        let attachment = inline("f", vec![round; 150_000]);
        let rev = workload.step(documents.put(Edit { attachments: vec![attachment], ..edit(&id, r#"{"n":0}"#) }));
        let patch = Patch::merge(json(&format!(r#"{{"n":{round},"m":{{"o":[1,null]}}}}"#)));
        let patched = workload.step(documents.patch(&id, Some(&rev), &patch));

        let mut upload = documents.upload("g", UploadAs::Plain { content_type: "x" });
        workload.step(upload.write(&vec![round + 100; 2_500_000]));
        let content = workload.step(upload.finish());
        workload.step(documents.put_attachment(&id, Some(&patched), "g", "x", content));

        let together = |edits: Edits<LsmDatabase>| {
            let (documents, wins) = (&documents, &wins);
            async move {
                edits.transaction().set(format!("own/{round}").into_bytes(), b"row");
                edits.put(documents, edit(&format!("both-{round}"), "{}"))?;
                edits.put(wins, edit(&format!("both-{round}"), "{}"))?;
                Ok::<_, model::Error>(())
            }
        };
        let revs = workload.step(layer.transact(together)).1;
        if round % 2 == 0 {
            let purges = [Purge::new(format!("both-{round}"), vec![revs[0].clone()])];
            workload.step(documents.purge(&purges));
        }
        for path in ["2-b a", "3-a c b", "2-z a"] {
            workload.step(wins.write(vec![replicated("one", path, round)], WriteMode::Replicated));
        }
        workload.step(documents.purge(&[Purge::new(format!("doc-{}", round.saturating_sub(2)), Vec::new())]));
    }
    workload.step(documents.set_body_format(BodyFormat::Packed));
    let mut at = Rewriting::default();
    while let Some(next) = workload.step(documents.rewrite_bodies_batch(&at, 2, None)) {
        at = next;
    }
    let gone = block_on(documents.get("doc-0", &Default::default())).expect("a document").rev;
    workload.step(documents.purge(&[Purge::new("doc-0", vec![gone])]));
    workload.step(async { layer.delete_database("wins").await });
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

#[test]
fn documents_outlive_a_loss_of_power() {
    let history = record::<Store>(run);
    let seed = support::seed(3);
    cut::<Store>(&history, cuts(), &mut Dice::new(seed)).unwrap_or_else(|found| found.report(seed));

    // Without the log's syncs, the same cuts find that acknowledged edits are gone.
    cut::<Store>(&without_log_syncs(history), 2_000, &mut Dice::new(seed)).expect_err("a missing sync");
}
