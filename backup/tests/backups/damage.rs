//! Documents that cannot be read are named, and copied once they can be read again.

use engine_mem::MemDatabase;
use kv_api::{Database, RangeRequest, Read, Transaction, TransactionExt};
use model::{CreateOptions, Edit, Layer, LayerOptions, WriteMode};

use crate::stage::{edit, new_repository, quiet};

const DAMAGED: usize = 310;

/// Cuts the first row of each document in the subspace of revisions, or writes the rows back.
async fn change(engine: &MemDatabase, rows: &[kv_api::KeyValue], cut: bool) {
    let transaction = engine.begin().unwrap();
    for row in rows {
        transaction.set(&row.key, if cut { &row.value[..2] } else { &row.value });
    }
    transaction.commit().await.unwrap();
}

/// More documents are damaged than are read at one version, and others are edited while they are copied.
#[tokio::test]
async fn very_many_damaged_documents_do_not_keep_others_from_being_copied() {
    let engine = MemDatabase::new();
    let options = LayerOptions::default();
    let layer = Layer::open(engine.clone(), options.clone()).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let edits: Vec<Edit> = (0..DAMAGED).map(|n| edit(&format!("bad{n:03}"), "{}")).collect();
    documents.write(edits, WriteMode::Interactive).await.unwrap();
    // The subspace of revisions in the first database.
    let prefix = [&[0x15, 4, 0x14, 0x15, 4, 2][..], b"bad"].concat();
    let rows = engine.begin().unwrap().get_all(RangeRequest::prefix(&prefix), Read::Snapshot).await.unwrap();
    assert_eq!(rows.len(), DAMAGED);
    change(&engine, &rows, true).await;
    documents.write(vec![edit("good", "{}")], WriteMode::Interactive).await.unwrap();

    let folder = tempfile::tempdir().unwrap();
    let repository = new_repository(&folder.path().join("repository")).await;
    let mut number = 0;
    let mut edits = |_: &str, _: u64| {
        number += 1;
        if number < 20 {
            let documents = documents.clone();
            let id = format!("more{number}");
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(documents.write(vec![edit(&id, "{}")], WriteMode::Interactive)).unwrap();
            })
            .join()
            .unwrap();
        }
    };
    let report = repository.back_up(engine.clone(), &options, &[], &mut edits).await.unwrap();
    assert_eq!((&report.failed, report.run.databases[0].damaged.len()), (&Vec::new(), DAMAGED));

    change(&engine, &rows[..100], false).await;
    let report = repository.back_up(engine.clone(), &options, &[], &mut quiet).await.unwrap();
    assert_eq!(report.run.databases[0].damaged.len(), DAMAGED - 100);
}
