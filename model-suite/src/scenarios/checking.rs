//! The checker finds what is wrong, and nothing else.

use kv_api::{Database, Direction, KeyValue, RangeRequest, Read, Transaction, TransactionExt};
use model::{Documents, Edit, WriteMode};

use crate::stage::*;

/// A database of about everything.
async fn fill<D: Database>(documents: &Documents<D>) {
    let edits: Vec<Edit> = (0..300).map(|n| edit(&format!("doc-{n:03}"), r#"{"n":1,"l":[1,2]}"#)).collect();
    documents.write(edits, WriteMode::Interactive).await.unwrap();
    for path in ["2-b a", "2-c a", "3-d c a"] {
        merge(documents, replicated("conflicted", path, r#"{"x":1}"#)).await;
    }
    merge(documents, replicated("conflicted", "2-dead a", r#"{"why":1}"#).deleting()).await;
    let first = documents.put(edit("deleted", "{}")).await.unwrap();
    documents.put(edit("deleted", "{}").over(first).deleting()).await.unwrap();
}

pub(crate) async fn sound_databases_pass(stage: Stage) {
    let documents = stage.documents().await;
    assert_sound(&documents).await;
    fill(&documents).await;
    let mut pages = 0;
    let report = documents.check(|progress| {
        pages += 1;
        assert_eq!(progress.expected, 302);
    });
    let report = report.await.unwrap();
    assert_eq!((report.documents, report.revisions, report.changes), (302, 304, 302));
    assert!(report.is_sound() && pages > 2, "{:?}", report.problems);
    // More branches than a page.
    for n in 0..450 {
        merge(&documents, replicated("many", &format!("2-{n} a"), "{}")).await;
    }
    merge(&documents, replicated("next", "1-a", "{}")).await;
    assert_sound(&documents).await;
}

/// The rows of a subspace of the only database, which has number 0.
async fn rows<D: Database>(engine: &D, subspace: u8, id: &str) -> Vec<KeyValue> {
    let mut prefix = vec![0x15, 4, 0x14, 0x15, subspace];
    if !id.is_empty() {
        prefix.push(2);
        prefix.extend_from_slice(id.as_bytes());
        prefix.push(0);
    }
    let mut request = RangeRequest::prefix(&prefix);
    request.direction = Direction::Forward;
    engine.begin().unwrap().get_all(request, Read::Snapshot).await.unwrap()
}

const LAST: u8 = 2;
const STATS: u8 = 3;
const REVISIONS: u8 = 4;
const CHANGES: u8 = 5;
const DOCS: u8 = 6;
const ALL_DOCS: u8 = 7;

/// A change behind the layer's back.
enum Damage {
    Remove(KeyValue),
    Put(Vec<u8>, Vec<u8>),
}

async fn apply<D: Database>(engine: &D, damage: &Damage) {
    let transaction = engine.begin().unwrap();
    match damage {
        Damage::Remove(row) => transaction.clear(&row.key),
        Damage::Put(key, value) => transaction.set(key, value),
    }
    transaction.commit().await.unwrap();
}

pub(crate) async fn planted_damage_is_found(stage: Stage) {
    let documents = database(stage.engine()).await;
    fill(&documents).await;
    let one = async |subspace: u8, id: &str, at: usize| rows(&stage.engine(), subspace, id).await.remove(at);
    let put = |row: &KeyValue, edit: &dyn Fn(&mut Vec<u8>)| {
        let mut value = row.value.to_vec();
        edit(&mut value);
        Damage::Put(row.key.to_vec(), value)
    };
    let under = |row: &KeyValue, id: &str| {
        let at = row.key.windows(7).position(|part| part == b"doc-007").expect("the id in the key");
        let mut key = row.key.to_vec();
        key.splice(at..at + 7, id.bytes());
        Damage::Put(key, row.value.to_vec())
    };
    let revision = one(REVISIONS, "doc-007", 0).await;
    let body = one(DOCS, "doc-007", 1).await;
    let listed = one(ALL_DOCS, "doc-007", 0).await;
    let change = one(CHANGES, "", 5).await;
    let winner = one(REVISIONS, "conflicted", 2).await;
    let loser = one(REVISIONS, "conflicted", 1).await;
    let deleted = one(ALL_DOCS, "doc-008", 0).await;
    let mut copied = change.key.to_vec();
    *copied.last_mut().unwrap() ^= 0x80;
    let planted = [
        ("a revision is gone", Damage::Remove(revision.clone())),
        ("a losing branch is gone", Damage::Remove(loser.clone())),
        ("the winner is gone", Damage::Remove(winner.clone())),
        ("a change is gone", Damage::Remove(change.clone())),
        ("a change stands twice", Damage::Put(copied, change.value.to_vec())),
        ("a change has another flag", put(&change, &|value| *value.last_mut().unwrap() ^= 1)),
        ("a row of a body is gone", Damage::Remove(body.clone())),
        ("a row of a body was changed", put(&body, &|value| *value.last_mut().unwrap() ^= 1)),
        ("a body's metadata are gone", Damage::Remove(one(DOCS, "doc-007", 0).await)),
        ("a body of nothing, at the front", under(&body, "aaa")),
        ("a body of nothing, in the middle", under(&body, "doc-007a")),
        ("a body of nothing, at the end", under(&body, "zzz")),
        ("a document is not listed", Damage::Remove(listed.clone())),
        ("nothing is listed", under(&listed, "zzz")),
        ("another revision is listed", put(&listed, &|value| *value.get_mut(5).unwrap() ^= 1)),
        ("a deleted document is listed", {
            let at = deleted.key.len() - 8;
            let mut key = deleted.key.to_vec();
            key.splice(at..at + 7, *b"deleted");
            Damage::Put(key, deleted.value.to_vec())
        }),
        ("two winners", Damage::Put(loser.key.to_vec(), winner.value.to_vec())),
        ("no winner", Damage::Put(winner.key.to_vec(), loser.value.to_vec())),
        ("a revision that cannot be read", put(&revision, &|value| value.truncate(9))),
        ("another count", put(&one(STATS, "", 0).await, &|value| value[0] ^= 1)),
        ("another last sequence", put(&one(LAST, "", 0).await, &|value| value[8] ^= 1)),
    ];
    for (what, damage) in planted {
        let key = match &damage {
            Damage::Remove(row) => row.key.to_vec(),
            Damage::Put(key, _) => key.clone(),
        };
        let before = stage.engine().begin().unwrap().get(&key, Read::Snapshot).await.unwrap();
        apply(&stage.engine(), &damage).await;
        let report = documents.check(|_| {}).await.unwrap();
        assert!(!report.is_sound() || report.changed_meanwhile, "{what}: not found");
        assert!(!report.problems.is_empty(), "{what}: not named");
        let mend = match before {
            Some(value) => Damage::Put(key, value.to_vec()),
            None => Damage::Remove(KeyValue { key: key.into(), value: Default::default() }),
        };
        apply(&stage.engine(), &mend).await;
        assert_sound(&documents).await;
    }
}
