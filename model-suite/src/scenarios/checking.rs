//! A check finds every damage, and reports nothing else.

use kv_api::{Database, KeyValue, RangeRequest, Read, Transaction, TransactionExt};
use model::{ChangesRequest, Documents, Edit, ErrorKind, WriteMode};

use super::damage::{ALL_DOCS, CHANGES, DOCS, REVISIONS, put as put_rows, rows};
use crate::stage::*;

/// A database with all kinds of content.
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
    // More branches than a page has rows.
    for n in 0..450 {
        merge(&documents, replicated("many", &format!("2-{n} a"), "{}")).await;
    }
    merge(&documents, replicated("next", "1-a", "{}")).await;
    assert_sound(&documents).await;
}

const LAST: u8 = 2;
const STATS: u8 = 3;

/// A change of the rows that bypasses the layer.
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

/// All kinds of damage to a filled database.
async fn planted(stage: &Stage) -> Vec<(&'static str, Damage)> {
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
    vec![
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
    ]
}

pub(crate) async fn planted_damage_is_found(stage: Stage) {
    let documents = database(stage.engine()).await;
    fill(&documents).await;
    for (what, damage) in planted(&stage).await {
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

/// All rows of the only database.
async fn everything<D: Database>(engine: &D) -> Vec<KeyValue> {
    engine.begin().unwrap().get_all(RangeRequest::prefix(&[0x15, 4, 0x14]), Read::Snapshot).await.unwrap()
}

/// Number of rows that repairs moved.
async fn moved<D: Database>(engine: &D) -> usize {
    let range = RangeRequest::keys(&[0x15, 4, 0x14, 0x15, 24][..], &[0x15, 4, 0x14, 0x15, 28][..]);
    engine.begin().unwrap().get_all(range, Read::Snapshot).await.unwrap().len()
}

pub(crate) async fn planted_damage_is_repaired(stage: Stage) {
    let engine = stage.engine();
    let documents = database(stage.engine()).await;
    fill(&documents).await;
    let report = documents.repair(|repair| panic!("{repair:?}")).await.unwrap();
    assert_eq!((report.repaired, report.left, report.after.is_sound()), (0, 0, true), "nothing is wrong");
    let sound = everything(&engine).await;
    let cut = |row: &KeyValue| Damage::Put(row.key.to_vec(), row.value[..2].to_vec());
    let mut damages = planted(&stage).await;
    damages.extend([
        ("a losing branch cannot be read", cut(&rows(&engine, REVISIONS, "conflicted").await[1])),
        ("a tombstone cannot be read", cut(&rows(&engine, REVISIONS, "deleted").await[0])),
        ("a tombstone's body cannot be read", cut(&rows(&engine, DOCS, "conflicted").await[0])),
        ("a listing cannot be read", cut(&rows(&engine, ALL_DOCS, "doc-007").await[0])),
        ("a change cannot be read", cut(&rows(&engine, CHANGES, "").await[5])),
    ]);
    for (what, damage) in damages {
        apply(&engine, &damage).await;
        let before = everything(&engine).await;
        let report = documents.repair(|repair| assert!(repair.outcome.is_ok(), "{what}: {repair:?}")).await.unwrap();
        // A repair does not decrease the last sequence, even if no edit has it.
        if what != "another last sequence" {
            assert!(report.after.is_sound(), "{what}: {:?}", report.after.problems);
            assert_sound(&documents).await;
        }
        // At most the damaged document is missing, and the moved rows still exist.
        assert!(report.after.documents >= 301, "{what}");
        let after = everything(&engine).await;
        let values = |rows: &[KeyValue]| rows.iter().map(|row| row.value.clone()).collect::<Vec<_>>();
        assert_eq!(moved(&engine).await as u64, report.moved, "{what}");
        if let Damage::Put(key, value) = &damage
            && what.contains("cannot be read")
        {
            assert!(report.moved > 0 && values(&after).contains(&value.clone().into()), "{what}: {key:?}");
            assert_eq!(report.after.documents, 302, "{what}: it can be read otherwise");
        }
        assert!(before.len() <= after.len() + 3, "{what}");
        let again = documents.repair(|repair| panic!("{what}, again: {repair:?}")).await.unwrap();
        assert_eq!((again.repaired, again.left), (0, 0), "{what}");

        let transaction = engine.begin().unwrap();
        transaction.clear_range(&[0x15, 4, 0x14], &[0x15, 4, 0x15]);
        for row in &sound {
            transaction.set(&row.key, &row.value);
        }
        transaction.commit().await.unwrap();
    }
}

pub(crate) async fn a_repair_leaves_what_a_later_version_wrote(stage: Stage) {
    let engine = stage.engine();
    let documents = database(stage.engine()).await;
    fill(&documents).await;
    let revision = rows(&engine, REVISIONS, "doc-007").await.remove(0);
    let body = rows(&engine, DOCS, "doc-008").await.remove(0);
    let change = rows(&engine, CHANGES, "").await.remove(9);
    let later = [0x15, 9, 0xff, 1];
    put_rows(&engine, &[(&revision.key, Some(&later)), (&body.key, Some(&later)), (&change.key, Some(&later))]).await;
    // Another damage, which can be repaired.
    let torn = rows(&engine, REVISIONS, "doc-100").await.remove(0);
    put_rows(&engine, &[(&torn.key, Some(&torn.value[..1]))]).await;
    let before = everything(&engine).await;
    let mut left = Vec::new();
    let report = documents.repair(|repair| match &repair.outcome {
        Ok(_) => assert_eq!(repair.document.as_deref(), Some("doc-100")),
        Err(error) => left.push((repair.document.clone(), error.kind().clone())),
    });
    let report = report.await.unwrap();
    assert!(left.iter().all(|(_, kind)| matches!(kind, ErrorKind::UnknownFormat(_))), "{left:?}");
    assert!(left.len() >= 3 && report.left == left.len() as u64 && !report.after.is_sound(), "{left:?}");
    let after = everything(&engine).await;
    for row in before.iter().filter(|row| row.value[..] == later) {
        assert!(after.contains(row), "{:?}", row.key);
    }
    let other = |rows: Vec<KeyValue>| rows.into_iter().filter(|row| row.key.windows(7).any(|part| part == b"doc-008"));
    assert!(other(before).eq(other(after)), "nothing of such a document is touched");
}

pub(crate) async fn a_document_that_a_repair_leaves_stays_in_the_feed(stage: Stage) {
    let engine = stage.engine();
    let documents = database(stage.engine()).await;
    fill(&documents).await;
    let expected = feed(&documents, ChangesRequest::default()).await;
    let at = expected.iter().position(|row| row.id == "conflicted").unwrap();
    // A losing leaf in a later format: the document is left unchanged. Its change is cut after the id.
    let loser = rows(&engine, REVISIONS, "conflicted").await.remove(1);
    let change = rows(&engine, CHANGES, "").await.remove(at);
    let id = change.value.windows(10).position(|part| part == b"conflicted").unwrap();
    let torn = &change.value[..id + 12];
    put_rows(&engine, &[(&loser.key, Some(&[0x15, 9, 0xff])), (&change.key, Some(torn))]).await;
    let report = documents.repair(|_| ()).await.unwrap();
    assert_eq!((report.repaired, report.left, report.moved), (1, 1, 1));
    assert_eq!(rows(&engine, CHANGES, "").await[at], change, "it is set anew");
    assert_eq!(feed(&documents, ChangesRequest::default()).await, expected);

    // If the change is cut before the id, its document is unknown. It may be the only change of the unrepaired
    // document.
    put_rows(&engine, &[(&change.key, Some(&change.value[..id]))]).await;
    let report = documents.repair(|_| ()).await.unwrap();
    assert_eq!((report.repaired, report.left, report.moved), (0, 2, 0));
    assert_eq!(rows(&engine, CHANGES, "").await[at].value, change.value[..id]);
    put_rows(&engine, &[(&change.key, Some(&change.value)), (&loser.key, Some(&loser.value))]).await;
    assert!(documents.repair(|_| ()).await.unwrap().after.is_sound());
}

pub(crate) async fn what_earlier_repairs_moved_is_kept(stage: Stage) {
    let engine = stage.engine();
    let documents = database(stage.engine()).await;
    let made = documents.put(edit("a", r#"{"n":1}"#)).await.unwrap();
    let key = rows(&engine, DOCS, "a").await.remove(0).key;
    let torn: [&[u8]; 4] = [b"\x15", b"\x16", b"\x15", b""];
    for value in torn {
        put_rows(&engine, &[(&key, Some(value))]).await;
        let report = documents.repair(|_| ()).await.unwrap();
        assert!(report.repaired > 0 && report.left == 0, "{report:?}");
        merge(&documents, replicated("a", &made.to_string(), r#"{"n":1}"#)).await;
    }
    let kept: Vec<_> = everything(&engine).await.into_iter().map(|row| row.value).collect();
    for value in torn {
        assert!(kept.iter().any(|kept| kept[..] == *value), "{value:?}");
    }
}
