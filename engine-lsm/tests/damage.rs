//! Bad blocks under documents: no answer is silently short, and a repair keeps the rest.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use engine_lsm::{LsmDatabase, LsmOptions, give_up};
use futures_executor::block_on;
use model::{
    AllDocsEntry, AllDocsRequest, ChangesRequest, CreateOptions, Documents, Edit, JsonText, Layer, LayerOptions,
    Result, Since, WriteMode,
};

const DOCUMENTS: u64 = 400;

/// Maximum number of rows in one block of a table, which are lost together: a block has 4 KiB, and rows of the index of
/// ids take some thirty bytes.
const MOST_IN_A_BLOCK: u64 = 200;

fn open(folder: &Path) -> Result<Documents<LsmDatabase>> {
    let engine = LsmDatabase::open(folder, LsmOptions::new())?;
    block_on(async { Layer::open(engine, LayerOptions::default()).await?.database("db").await })
}

fn id(n: u64) -> String {
    format!("doc{n:04}")
}

fn filled(folder: &Path) {
    let engine = LsmDatabase::open(folder, LsmOptions::new()).unwrap();
    block_on(async {
        let layer = Layer::open(engine.clone(), LayerOptions::default()).await.unwrap();
        let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        let edits: Vec<Edit> = (0..DOCUMENTS)
            .map(|n| {
                let noise: String = (0..60).map(|_| format!("{:08x}", random.u32(..))).collect();
                let text = JsonText::parse(format!(r#"{{"noise":"{noise}"}}"#).as_bytes()).unwrap();
                Edit::from_json(Some(&id(n)), &text, WriteMode::Interactive).unwrap()
            })
            .collect();
        for written in documents.write(edits, WriteMode::Interactive).await.unwrap() {
            written.unwrap();
        }
    });
    engine.close().unwrap();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &target) } else { fs::copy(path, target).map(|_| ()).unwrap() }
    }
}

/// Lists all documents. Proves that each missing one is in a gap or is damaged itself, and returns their number.
async fn missing(
    documents: &Documents<LsmDatabase>,
    descending: bool,
    include_docs: bool,
    context: &str,
) -> Result<usize> {
    let mut next = Some(AllDocsRequest { descending, include_docs, ..AllDocsRequest::default() });
    let mut rows = Vec::new();
    while let Some(request) = next {
        let batch = documents.all_docs(&request).await?;
        rows.extend(batch.rows.into_iter().map(|row| (row.id, matches!(row.entry, AllDocsEntry::Live { .. }))));
        assert!(rows.len() < 2 * DOCUMENTS as usize, "{context}: the listing ends");
        next = batch.next;
    }
    if descending {
        rows.reverse();
    }
    assert!(rows.is_sorted_by(|one, other| one.0 < other.0), "{context}: {rows:?}");
    let not_there = (0..DOCUMENTS).map(id).filter(|id| {
        let before = rows.iter().take_while(|row| row.0 <= *id).last();
        let (found, is_live) = before.unwrap_or_else(|| panic!("{context}: {id} is not there: {rows:?}"));
        assert!(!is_live || found == id, "{context}: {id} is left out silently, after {found:?}");
        !is_live
    });
    Ok(not_there.count())
}

/// The ids in the feed.
async fn feed(documents: &Documents<LsmDatabase>) -> Result<BTreeSet<String>> {
    let mut request = ChangesRequest::default();
    let mut ids = BTreeSet::new();
    loop {
        let batch = documents.changes(&request).await?;
        ids.extend(batch.rows.into_iter().map(|row| row.id));
        if !batch.more {
            return Ok(ids);
        }
        request.since = Since::Seq(batch.last_seq);
    }
}

/// A byte is changed in many places of the tables, one at a time.
#[test]
fn a_bad_block_is_named_and_the_rest_is_read_and_kept() {
    let root = tempfile::tempdir().unwrap();
    let whole = root.path().join("whole");
    filled(&whole);
    let tables = fs::read_dir(whole.join("data/tables")).unwrap().map(|entry| entry.unwrap().path());
    let table = tables.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let (bytes, mut random) = (fs::read(&table).unwrap(), fastrand::Rng::with_seed(5));
    let (mut refused, mut short, mut stopped, mut repaired) = (0, 0, 0, 0);
    for trial in 0..15 {
        let folder = root.path().join(format!("{trial}"));
        copy(&whole, &folder);
        let at = random.usize(..bytes.len());
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (trial % 8);
        fs::write(folder.join("data/tables").join(table.file_name().unwrap()), damaged).unwrap();
        let context = format!("trial {trial}, byte {at} of {}", bytes.len());
        // The table itself, or the row of the database.
        let Ok(documents) = open(&folder) else {
            refused += 1;
            continue;
        };
        let listed = block_on(async {
            let mut lost = 0;
            for (descending, include_docs) in [(false, false), (true, false), (false, true), (true, true)] {
                lost = lost.max(missing(&documents, descending, include_docs, &context).await?);
            }
            Ok::<_, model::Error>(lost)
        });
        match block_on(feed(&documents)) {
            Ok(ids) => assert_eq!(ids.len() as u64, DOCUMENTS, "{context}"),
            Err(_) => stopped += 1,
        }
        let Ok(report) = block_on(documents.check(|_| {})) else {
            refused += 1;
            continue;
        };
        let lost = listed.unwrap_or(1);
        short += usize::from(lost > 0);
        assert!(lost == 0 || report.problem_count > 0, "{context}");
        assert!((lost as u64) < MOST_IN_A_BLOCK, "{context}: {lost} documents are lost");
        let (begin, end) = documents.key_range();
        drop(documents);
        if report.unreadable > 0 {
            assert!(!give_up(&folder, &begin, &end).unwrap().is_empty(), "{context}");
            let documents = open(&folder).unwrap();
            let after = block_on(documents.repair_after_loss(|_| {})).unwrap();
            assert!(after.after.is_sound() && after.left == 0, "{context}: {after:?}");
            assert!(after.after.documents + MOST_IN_A_BLOCK > DOCUMENTS, "{context}");
            repaired += 1;
        }
    }
    println!("{refused} refused, {short} short, {stopped} feeds stopped, {repaired} repaired");
    assert!(short > 5 && repaired > 5 && refused < 5);
}
