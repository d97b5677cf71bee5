//! Conflicts found and ended, and documents as values of a type.

use conformance::chaos::{Chaos, Fault};
use kv_api::{Counted, Database};
use model::{
    CreateOptions, Document, Documents, Edit, Error, ErrorKind, GetOptions, JsonText, OpenRev, OpenRevs, RevId, Seq,
    WriteMode,
};
use serde::{Deserialize, Serialize};

use super::attachments::inline;
use crate::stage::*;

/// The documents with conflicts, in batches of this size.
async fn conflicted<D: Database>(documents: &Documents<D>, limit: Option<usize>) -> Vec<(String, Vec<String>)> {
    let (mut found, mut since, mut more) = (Vec::new(), Seq::ZERO, true);
    while more {
        let batch = documents.conflicts(since, limit).await.unwrap();
        found.extend(batch.rows.into_iter().map(|row| (row.id, row.revs.iter().map(ToString::to_string).collect())));
        (since, more) = (batch.last_seq, batch.more);
    }
    found
}

/// Ten documents: one with three live leaves, one with two and a tombstone, others without conflicts.
async fn quarrel<D: Database>(documents: &Documents<D>) {
    let leaves = [
        replicated("three", "2-ab aa", r#"{"n":1}"#),
        replicated("three", "2-ac aa", r#"{"n":2}"#),
        replicated("three", "1-bb", r#"{"n":3}"#),
        replicated("two", "1-ca", "{}"),
        replicated("two", "1-cb", "{}"),
        replicated("two", "3-cc cd", "{}").deleting(),
        replicated("one", "1-da", "{}"),
        replicated("one", "2-db", "{}").deleting(),
        replicated("gone", "1-ea", "{}").deleting(),
        replicated("gone", "1-eb", "{}").deleting(),
        replicated("plain", "1-fa", "{}"),
    ];
    for result in documents.write(leaves.to_vec(), WriteMode::Replicated).await.unwrap() {
        result.unwrap();
    }
}

pub(crate) async fn documents_with_conflicts_are_listed(stage: Stage) {
    let counted = Counted::new(stage.engine());
    let documents = database(counted.clone()).await;
    quarrel(&documents).await;
    let revs = |revs: &[&str]| revs.iter().map(|rev| (*rev).to_owned()).collect::<Vec<_>>();
    let expected = [("three".to_owned(), revs(&["2-ac", "2-ab", "1-bb"])), ("two".to_owned(), revs(&["1-cb", "1-ca"]))];
    for limit in [None, Some(1), Some(2)] {
        assert_eq!(conflicted(&documents, limit).await, expected, "{limit:?}");
    }
    // A document without branches costs its row of the feed.
    let read = async || {
        counted.take();
        conflicted(&documents, None).await;
        counted.take().iter().map(|counts| counts.kvs_read).sum::<u64>()
    };
    let before = read().await;
    let plain: Vec<Edit> = (0..50).map(|n| edit(&format!("doc-{n}"), "{}")).collect();
    documents.write(plain, WriteMode::Interactive).await.unwrap();
    // A document with only tombstones costs the same.
    let gone = vec![replicated("late", "1-a", "{}").deleting(), replicated("late", "1-b", "{}").deleting()];
    documents.write(gone, WriteMode::Replicated).await.unwrap();
    assert_eq!(read().await, before + 51);
}

/// The live leaves and the tombstones of a document, sorted.
async fn leaves<D: Database>(documents: &Documents<D>, id: &str) -> (Vec<Document>, Vec<Document>) {
    let leaves = documents.open_revs(id, &OpenRevs::All, &GetOptions::default()).await.unwrap();
    let found = leaves.into_iter().map(|leaf| match leaf {
        OpenRev::Found(document) => document,
        OpenRev::Missing(rev) => panic!("{rev} is missing"),
    });
    let (mut live, mut dead): (Vec<_>, Vec<_>) = found.partition(|document| !document.deleted);
    live.sort_by(|one, other| one.rev.cmp(&other.rev));
    dead.sort_by(|one, other| one.rev.cmp(&other.rev));
    (live, dead)
}

pub(crate) async fn conflicts_are_ended_in_one_transaction(stage: Stage) {
    let sum = |leaves: &[Document]| -> Result<JsonText, Error> {
        let n: i64 =
            leaves.iter().map(|leaf| leaf.body.root().get("n").and_then(model::JsonRef::as_i64).unwrap()).sum();
        Ok(json(&format!(r#"{{"n":{n}}}"#)))
    };
    let sound = stage.layer().await;
    let mut made = Vec::new();
    for (name, fault) in [("a", None), ("b", Some(Fault::UnknownCommitted)), ("c", Some(Fault::UnknownNotCommitted))] {
        let calm = sound.create_database(name, CreateOptions::default()).await.unwrap();
        quarrel(&calm).await;
        let picture =
            Edit { attachments: vec![inline("p", "text/plain", "picture")], ..edit("pictured", r#"{"n":1}"#) };
        let picture = calm.put(picture).await.unwrap();
        merge(&calm, replicated("pictured", "1-00", r#"{"n":5}"#)).await;
        let faulty = layer(Chaos::scripted(stage.engine(), [fault, fault])).await.database(name).await.unwrap();
        let seq = calm.info().await.unwrap().update_seq.seq;
        let rev = faulty.resolve("three", sum).await.unwrap();
        assert!(calm.info().await.unwrap().update_seq.seq > seq);
        let (live, dead) = leaves(&calm, "three").await;
        assert_eq!((live.len(), &live[0].rev, live[0].body.as_str()), (1, &rev, r#"{"n":6}"#));
        assert_eq!(dead.iter().map(|leaf| leaf.rev.position()).collect::<Vec<_>>(), [2, 3]);
        // The revisions are those of the same edits one by one.
        let other = sound.create_database(&format!("{name}2"), CreateOptions::default()).await.unwrap();
        quarrel(&other).await;
        assert_eq!(other.put(edit("three", r#"{"n":6}"#).over(self::rev("2-ac"))).await.unwrap(), rev);
        for loser in ["2-ab", "1-bb"] {
            other.put(edit("three", "{}").over(self::rev(loser)).deleting()).await.unwrap();
        }
        assert_eq!(leaves(&other, "three").await, (live, dead));

        // A winner whose body stays keeps its revision, and its attachments.
        let first = |leaves: &[Document]| Ok(leaves[0].body.clone());
        let kept = calm.resolve("two", first).await.unwrap();
        assert_eq!((kept, conflicted(&calm, None).await.len()), (self::rev("1-cb"), 1));
        let pictured = calm.resolve("pictured", sum).await.unwrap();
        assert_eq!(pictured.position(), 2);
        let after = get(&calm, "pictured").await;
        assert_eq!((after.body, after.attachments.len()), (json(r#"{"n":6}"#), 1));
        assert_eq!(lost(&calm, "pictured").await, []);
        let _ = picture;
        // Nothing to do writes nothing.
        let seq = calm.info().await.unwrap().update_seq.seq;
        assert_eq!(calm.resolve("plain", |_| panic!("no conflict")).await.unwrap(), self::rev("1-fa"));
        assert_eq!(calm.resolve("gone", first).await.unwrap_err().status(), 404);
        assert_eq!(calm.resolve("ghost", first).await.unwrap_err().status(), 404);
        assert_eq!(calm.info().await.unwrap().update_seq.seq, seq);
        assert_sound(&calm).await;
        made.push(rev);
    }
    assert!(made.windows(2).all(|pair| pair[0] == pair[1]), "replicas that resolve alike agree");

    // If the caller refuses, or a body is bad, nothing is written.
    let calm = sound.create_database("d", CreateOptions::default()).await.unwrap();
    quarrel(&calm).await;
    let own = calm.resolve("three", |_| Err(ErrorKind::Conflict.into())).await.unwrap_err();
    let bad = calm.resolve("three", |_| Ok(json(r#"{"_id":"x"}"#))).await.unwrap_err();
    assert_eq!((own.status(), bad.status(), conflicted(&calm, None).await.len()), (409, 400, 2));
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Counter {
    n: u64,
    #[serde(default)]
    names: Vec<String>,
}

/// A value does not name attachments, so an edit made from a value keeps them.
pub(crate) async fn values_keep_the_attachments_of_their_documents(stage: Stage) {
    let documents = stage.documents().await;
    let counters = documents.of::<Counter>();
    let value = |n| Counter { n, names: Vec::new() };
    let names = async || {
        let attachments = get(&documents, "a").await.attachments;
        attachments.into_iter().map(|attachment| attachment.name).collect::<Vec<_>>()
    };
    let pictures = vec![inline("p", "text/plain", "x"), inline("q", "x", vec![7; 2_000])];
    let first = documents.put(Edit { attachments: pictures, ..edit("a", r#"{"n":1}"#) }).await.unwrap();
    let put = counters.put("a", Some(first.clone()), &value(2)).await.unwrap();
    assert_eq!((names().await, get(&documents, "a").await.rev), (vec!["p".to_owned(), "q".to_owned()], put.clone()));
    // A named attachment replaces one or is added.
    let attachments = vec![inline("q", "x", "new"), inline("r", "x", "")];
    let edit_of = |n, rev: &RevId| Edit::of_value("a", &value(n)).unwrap().over(rev.clone());
    let named = documents.put(Edit { attachments, ..edit_of(3, &put) }).await.unwrap();
    assert_eq!(names().await, ["q", "r", "p"]);
    let (_, mut q) = documents.attachment("a", None, "q").await.unwrap();
    assert_eq!(q.next().await.unwrap().unwrap(), "new");
    // In a transaction, and in a batch.
    let collect = |edits: model::Edits<_>| {
        let collected = edits.put(&documents, edit_of(4, &named));
        async move { collected }
    };
    let ((), revs) = documents.layer().transact(collect).await.unwrap();
    assert_eq!(names().await, ["q", "r", "p"]);
    let batch = vec![Edit::of_value("b", &value(1)).unwrap(), edit_of(5, &revs[0])];
    let written = documents.write(batch, WriteMode::Interactive).await.unwrap();
    assert_eq!(names().await, ["q", "r", "p"]);
    let last = written[1].clone().unwrap();
    // Nothing can be kept from a leaf that is gone.
    assert_eq!(counters.put("a", Some(first), &value(6)).await.unwrap_err().status(), 409);
    documents.put(edit_of(7, &last).deleting()).await.unwrap();
    counters.put("a", None, &value(8)).await.unwrap();
    assert!(names().await.is_empty());
    assert_sound(&documents).await;
}

pub(crate) async fn documents_are_values_of_a_type(stage: Stage) {
    let documents = stage.documents().await;
    let counters = documents.of::<Counter>();
    let first = Counter { n: 1, names: vec!["é\u{0}".to_owned()] };
    let rev = counters.put("a", None, &first).await.unwrap();
    let read = counters.get("a").await.unwrap();
    assert_eq!((read.rev, read.value), (rev.clone(), first.clone()));
    assert_eq!(counters.put("a", None, &first).await.unwrap_err().status(), 409);
    let second = counters.put("a", Some(rev), &Counter { n: 2, ..first }).await.unwrap();
    assert_eq!(get(&documents, "a").await.body, json(r#"{"n":2,"names":["é\u0000"]}"#));

    let pictured = Edit { attachments: vec![inline("p", "text/plain", "x")], ..edit("b", r#"{"n":1}"#) };
    documents.put(pictured).await.unwrap();
    let updated = counters.update("b", |counter| counter.n += 1).await.unwrap();
    let after = get(&documents, "b").await;
    assert_eq!((updated.rev, updated.value.n, after.attachments.len()), (after.rev, 2, 1));
    assert_eq!(counters.update("c", |_| {}).await.unwrap_err().status(), 404);
    for n in 1..=2 {
        assert_eq!(counters.upsert("c", |counter| counter.n += 1).await.unwrap().value.n, n);
    }
    let gone = get(&documents, "c").await.rev;
    documents.put(edit("c", "{}").over(gone).deleting()).await.unwrap();
    let again = counters.upsert("c", |counter| counter.n += 1).await.unwrap();
    assert_eq!((again.value.n, again.rev.position()), (1, 4));

    documents.put(edit("text", r#"{"n":"one"}"#)).await.unwrap();
    for error in [counters.get("text").await.unwrap_err(), counters.update("text", |_| {}).await.unwrap_err()] {
        assert_eq!((error.status(), error.error()), (400, "doc_validation"));
    }
    assert_eq!(documents.of::<u64>().put("number", None, &1).await.unwrap_err().status(), 400);

    // Many at once, through faults: no update is lost, and none conflicts.
    let chaos = Chaos::new(stage.engine(), 5, conformance::chaos::Rates::retryable(0.05));
    let counters = layer(chaos).await.database("db").await.unwrap().of::<Counter>();
    let writers = (0..6).map(|_| counters.update("a", |counter| counter.n += 1));
    for updated in futures_util::future::join_all(writers).await {
        updated.unwrap();
    }
    let a = counters.get("a").await.unwrap();
    assert_eq!((a.value.n, a.rev.position()), (8, second.position() + 6), "seed 5");
    assert_sound(&documents).await;
}
