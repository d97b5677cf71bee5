//! Collections of documents that no document names: what is condemned, deleted into the trash, revived and purged.

use std::ops::ControlFlow;

use conformance::interleave::interleave;
use kv_api::{Bytes, Counted, Counts, Database};
use model::{
    AllDocsRequest, BodyFormat, ChangesRequest, Collection, CreateOptions, Documents, Edit, GetOptions, Layer,
    LayerOptions, Patch, RelocateOptions, WriteMode, relocate,
};

use crate::stage::*;

/// No time of grace.
const NOW: u64 = 0;
/// Longer ago than anything.
const LONG: u64 = u64::MAX;

fn file(id: &str, chunks: &[&str]) -> Edit {
    edit(id, &format!(r#"{{"path":"{id}","children":{chunks:?}}}"#))
}

fn ids(ids: &[&str]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

/// The body of a document, if it is live.
async fn read<D: Database>(documents: &Documents<D>, id: &str) -> Option<String> {
    documents.get(id, &GetOptions::default()).await.ok().map(|found| found.body.as_str().to_owned())
}

/// Condemns documents in one collection, and deletes them in the next. Returns how many were deleted.
async fn collect<D: Database>(documents: &Documents<D>, chunks: &[&str]) -> u64 {
    let first = documents.begin_collection().await.unwrap();
    documents.condemn(first, &ids(chunks)).await.unwrap();
    let second = documents.begin_collection().await.unwrap();
    documents.discard_condemned(second, &ids(chunks), NOW).await.unwrap().documents
}

/// What the trash has, and whether it was deleted.
async fn trash<D: Database>(documents: &Documents<D>) -> Vec<(String, bool)> {
    documents.trash(None, 100).await.unwrap().into_iter().map(|one| (one.id, one.deleted)).collect()
}

async fn of<D: Database>(engine: D) -> Documents<D> {
    layer(engine).await.database("db").await.unwrap()
}

pub(crate) async fn what_is_collected_comes_back_on_every_way_of_writing(stage: Stage) {
    for format in [BodyFormat::Exploded, BodyFormat::Packed] {
        let layer = stage.layer().await;
        let options = CreateOptions { format: Some(format), ..CreateOptions::default() };
        let documents = layer.create_database("db", options).await.unwrap();
        let body = r#"{"data":"text","type":"leaf"}"#;
        let base = documents.put(file("patched", &[])).await.unwrap();
        documents.put(edit("h:other", body)).await.unwrap();
        for way in ["put", "bulk", "replicated", "conflict", "transact", "patch"] {
            let chunk = format!("h:{way}");
            let made = documents.put(edit(&chunk, body)).await.unwrap();
            assert_eq!(collect(&documents, &[&chunk]).await, 1, "{way}");
            assert_eq!((read(&documents, &chunk).await, trash(&documents).await), (None, vec![(chunk.clone(), true)]));
            assert_sound(&documents).await;
            let named = [chunk.as_str(), "h:other", "h:never"];
            match way {
                "put" => drop(documents.put(file("put", &named)).await.unwrap()),
                "bulk" => {
                    let edits = vec![file("x", &[]), file("bulk", &named), file("y", &[])];
                    for result in documents.write(edits, WriteMode::Interactive).await.unwrap() {
                        result.unwrap();
                    }
                }
                "replicated" => {
                    // The device sends the chunk too, as it was: that revision is known and changes nothing.
                    let name = file("replicated", &named).body;
                    let edits = vec![
                        replicated(&chunk, &made.to_string(), body),
                        replicated("replicated", "1-a", name.as_str()),
                    ];
                    for result in documents.write(edits, WriteMode::Replicated).await.unwrap() {
                        result.unwrap();
                    }
                }
                "conflict" => {
                    // The leaf that names it loses.
                    merge(&documents, replicated("conflict", "2-b a", file("", &[]).body.as_str())).await;
                    merge(&documents, replicated("conflict", "1-z", file("", &named).body.as_str())).await;
                }
                "transact" => {
                    let edits = |edits: model::Edits<_>| {
                        let put = edits.put(&documents, file("transact", &named));
                        async move { put }
                    };
                    layer.transact(edits).await.unwrap();
                }
                _ => {
                    let patch = json(&format!(r#"{{"children":["{chunk}"]}}"#));
                    documents.patch("patched", Some(&base), &Patch::merge(patch)).await.unwrap();
                }
            }
            let back = get(&documents, &chunk).await;
            assert_eq!((back.body.as_str(), back.rev.position()), (body, made.position() + 2), "{way}");
            assert_eq!(trash(&documents).await, [], "{way}");
            let changes = feed(&documents, ChangesRequest::default()).await;
            assert!(changes.iter().any(|change| change.id == chunk && !change.deleted), "{way}: it replicates");
            assert_sound(&documents).await;
        }
        layer.delete_database("db").await.unwrap();
    }
}

pub(crate) async fn what_is_named_again_must_be_condemned_anew(stage: Stage) {
    let documents = stage.documents().await;
    documents.put(edit("h:a", r#"{"data":"a"}"#)).await.unwrap();
    documents.put(edit("h:b", r#"{"data":"b"}"#)).await.unwrap();
    let both = ids(&["h:a", "h:b"]);
    let first = documents.begin_collection().await.unwrap();
    assert_eq!(documents.condemn(first, &both).await.unwrap(), 2);
    assert_eq!(documents.condemn(first, &both).await.unwrap(), 0, "they keep their time");
    let done = documents.discard_condemned(first, &both, NOW).await.unwrap();
    assert_eq!((done.documents, done.not_condemned.len()), (0, 0), "not by the collection that condemned them");

    // One is named, and then no longer.
    let rev = documents.put(file("f", &["h:a"])).await.unwrap();
    documents.put(file("f", &[]).over(rev)).await.unwrap();
    assert_eq!(trash(&documents).await, [("h:b".to_owned(), false)]);
    let second = documents.begin_collection().await.unwrap();
    assert!(documents.discard_condemned(first, &both, NOW).await.is_err(), "the first may no longer write");
    assert!(documents.condemn(first, &both).await.is_err() && documents.empty_trash(first, &both, NOW).await.is_err());
    let early = documents.discard_condemned(second, &both, LONG).await.unwrap();
    assert_eq!((early.documents, early.not_condemned), (0, ids(&["h:a"])), "not before its time");
    let done = documents.discard_condemned(second, &both, NOW).await.unwrap();
    assert_eq!((done.documents, done.bytes, done.left), (1, 12, Vec::new()));
    assert_eq!(read(&documents, "h:a").await.as_deref(), Some(r#"{"data":"a"}"#));

    // What was condemned and is known to be named.
    documents.condemn(second, &ids(&["h:a"])).await.unwrap();
    documents.acquit(second, &both).await.unwrap();
    assert_eq!(trash(&documents).await, [("h:b".to_owned(), true)], "what is in the trash stays there");

    // Somebody writes it again and nobody names it: it is condemned again. Deleted by others, it stays in the trash.
    documents.put(edit("h:b", r#"{"data":"again"}"#)).await.unwrap();
    assert_eq!(documents.discard_condemned(second, &ids(&["h:b"]), NOW).await.unwrap().not_condemned, ["h:b"]);
    assert_eq!(documents.condemn(second, &ids(&["h:b"])).await.unwrap(), 1);
    assert_eq!(collect(&documents, &["h:b"]).await, 1);
    let third = documents.begin_collection().await.unwrap();
    assert_eq!(documents.condemn(third, &ids(&["h:b"])).await.unwrap(), 0);
    assert_eq!(trash(&documents).await, [("h:b".to_owned(), true)]);
    documents.put(file("g", &["h:b"])).await.unwrap();
    assert_eq!(read(&documents, "h:b").await.as_deref(), Some(r#"{"data":"again"}"#));
    assert_sound(&documents).await;
}

pub(crate) async fn what_cannot_go_as_one_document_stays(stage: Stage) {
    let documents = stage.documents().await;
    merge(&documents, replicated("h:two", "1-a", r#"{"data":"a"}"#)).await;
    merge(&documents, replicated("h:two", "1-b", r#"{"data":"b"}"#)).await;
    let with = super::attachments::with(edit("h:with", "{}"), vec![super::attachments::inline("f", "x/y", "bytes")]);
    documents.put(with).await.unwrap();
    let all = ids(&["h:two", "h:with", "h:never"]);
    let first = documents.begin_collection().await.unwrap();
    documents.condemn(first, &all).await.unwrap();
    let second = documents.begin_collection().await.unwrap();
    let done = documents.discard_condemned(second, &all, NOW).await.unwrap();
    let mut left: Vec<&str> = done.left.iter().map(|(id, _)| id.as_str()).collect();
    left.sort_unstable();
    assert_eq!((done.documents, left), (0, vec!["h:two", "h:with"]));
    assert_eq!(list(&documents, AllDocsRequest::default()).await.len(), 2);
    assert_eq!(trash(&documents).await.len(), 2, "what never was is not condemned");
    assert_sound(&documents).await;
}

/// Each step beside an edit that names the document, at each of its commits, whichever is held.
pub(crate) async fn an_edit_beside_any_step_has_what_it_names(stage: Stage) {
    let engine = stage.engine();
    let documents = stage.documents().await;
    let (mut number, mut held) = (0, [[false; 2]; 3]);
    for step in 0..3 {
        for is_edit_held in [false, true] {
            for nth in 0..3 {
                number += 1;
                let (chunk, name) = (format!("h:{number}"), format!("f{number}"));
                documents.put(edit(&chunk, r#"{"data":"x"}"#)).await.unwrap();
                let only = ids(&[&chunk]);
                let mut collection = documents.begin_collection().await.unwrap();
                if step > 0 {
                    documents.condemn(collection, &only).await.unwrap();
                    collection = documents.begin_collection().await.unwrap();
                }
                if step > 1 {
                    assert_eq!(documents.discard_condemned(collection, &only, NOW).await.unwrap().documents, 1);
                    collection = documents.begin_collection().await.unwrap();
                }
                let was_held = if is_edit_held {
                    let write = async |engine| drop(of(engine).await.put(file(&name, &[&chunk])).await.unwrap());
                    let other = engine.clone();
                    let meanwhile = async || take_from(other, step, collection, &only).await;
                    interleave(engine.clone(), nth, write, meanwhile).await.1
                } else {
                    let again = of(engine.clone()).await;
                    let step = async |engine| take_from(engine, step, collection, &only).await;
                    let write = async || drop(again.put(file(&name, &[&chunk])).await.unwrap());
                    let held = interleave(engine.clone(), nth, step, write).await.1;
                    if !held {
                        documents.put(file(&name, &[&chunk])).await.unwrap();
                    }
                    held
                };
                held[step][usize::from(is_edit_held)] |= was_held;
                let what = format!("step {step}, edit held: {is_edit_held}, commit {nth}");
                // A census that did not see the file may have condemned it. The next one sees it.
                assert!(read(&documents, &chunk).await.is_some(), "{what}");
                assert!(trash(&documents).await.iter().all(|(id, deleted)| *id != chunk || !deleted), "{what}");
            }
        }
    }
    assert_eq!(held[..2], [[true; 2]; 2], "each was held while the other ran");
    assert_sound(&documents).await;
}

async fn take_from<D: Database>(engine: D, step: usize, collection: Collection, only: &[String]) {
    let documents = of(engine).await;
    if step == 1 {
        documents.discard_condemned(collection, only, NOW).await.unwrap();
    } else {
        documents.condemn(collection, only).await.unwrap();
    }
}

pub(crate) async fn a_collection_that_ends_after_any_step_is_gone_on_with(stage: Stage) {
    let documents = stage.documents().await;
    let chunk = ids(&["h:a"]);
    documents.put(edit("h:a", r#"{"data":"a"}"#)).await.unwrap();
    // After each step: what is named can be read, and the next collection goes on from there.
    for steps in 0..5 {
        let mut collection = documents.begin_collection().await.unwrap();
        if steps > 0 {
            documents.condemn(collection, &chunk).await.unwrap();
        }
        if steps > 1 {
            collection = documents.begin_collection().await.unwrap();
        }
        if steps > 2 {
            assert_eq!(documents.discard_condemned(collection, &chunk, NOW).await.unwrap().documents, 1);
        }
        if steps > 3 {
            // Between the two transactions that empty the trash.
            let gone = documents.open_revs("h:a", &model::OpenRevs::All, &GetOptions::default()).await.unwrap();
            let model::OpenRev::Found(gone) = &gone[0] else { panic!("{gone:?}") };
            let purge = model::Purge::new("h:a", vec![gone.rev.clone()]);
            documents.purge_deleted(&[purge]).await.unwrap().remove(0).unwrap();
        }
        assert_sound(&documents).await;
        let rev = documents.put(file(&format!("f{steps}"), &["h:a"])).await.unwrap();
        assert_eq!(read(&documents, "h:a").await.as_deref(), Some(r#"{"data":"a"}"#), "{steps} steps");
        assert_eq!(trash(&documents).await, []);
        documents.put(file(&format!("f{steps}"), &[]).over(rev)).await.unwrap();
        assert_sound(&documents).await;
    }
    assert_eq!(collect(&documents, &["h:a"]).await, 1);
}

pub(crate) async fn an_edit_may_name_more_than_a_transaction_revives(stage: Stage) {
    let documents = stage.documents().await;
    let chunks: Vec<String> = (0..9).map(|number| format!("h:{number}")).collect();
    let named: Vec<&str> = chunks.iter().map(String::as_str).collect();
    for chunk in &chunks {
        let data = chunk.repeat(if chunk == "h:3" { 1_000_000 } else { 200_000 });
        documents.put(edit(chunk, &format!(r#"{{"data":"{data}"}}"#))).await.unwrap();
    }
    assert_eq!(collect(&documents, &named).await, 9);
    // And more names than are looked up one by one.
    let others: Vec<String> = (0..2_500).map(|number| format!("h:other-{number}")).collect();
    let many: Vec<&str> = named.iter().copied().chain(others.iter().map(String::as_str)).collect();
    documents.put(file("f", &many)).await.unwrap();
    assert_eq!(trash(&documents).await, []);
    for chunk in &chunks {
        assert!(read(&documents, chunk).await.is_some_and(|body| body.len() > 200_000 * 3), "{chunk}");
    }
    assert_sound(&documents).await;
}

pub(crate) async fn an_emptied_trash_leaves_nothing(stage: Stage) {
    let documents = stage.documents().await;
    for id in ["h:a", "h:b"] {
        documents.put(edit(id, r#"{"data":"a"}"#)).await.unwrap();
    }
    assert_eq!(collect(&documents, &["h:a", "h:b"]).await, 2);
    let both = ids(&["h:a", "h:b"]);
    let third = documents.begin_collection().await.unwrap();
    assert_eq!(documents.empty_trash(third, &both, LONG).await.unwrap(), 0, "not before its time");
    documents.put(file("f", &["h:b"])).await.unwrap();
    assert_eq!(documents.empty_trash(third, &both, NOW).await.unwrap(), 1);
    assert!(is_missing(&documents, "h:a").await, "not even a tombstone");
    assert!(read(&documents, "h:b").await.is_some());
    assert_eq!(trash(&documents).await, []);
    assert_sound(&documents).await;
}

pub(crate) async fn a_trash_moves_with_its_database(stage: Stage) {
    let at = async |prefix: &'static str| {
        let options = LayerOptions { prefix: Bytes::from_static(prefix.as_bytes()), ..LayerOptions::default() };
        Layer::open(stage.engine(), options).await.unwrap()
    };
    let (from, to) = (at("a").await, at("b").await);
    let documents = from.create_database("db", CreateOptions::default()).await.unwrap();
    documents.put(edit("h:a", r#"{"data":"a"}"#)).await.unwrap();
    assert_eq!(collect(&documents, &["h:a"]).await, 1);
    let options = RelocateOptions { verify: true, ..RelocateOptions::default() };
    let report = relocate(&from, &to, "db", &options, |_| ControlFlow::Continue(())).await.unwrap();
    assert!(report.moved && report.is_same(), "{report:?}");
    let arrived = to.database("db").await.unwrap();
    assert_eq!(trash(&arrived).await, [("h:a".to_owned(), true)]);
    arrived.put(file("f", &["h:a"])).await.unwrap();
    assert_eq!(read(&arrived, "h:a").await.as_deref(), Some(r#"{"data":"a"}"#));
    assert_sound(&arrived).await;
}

pub(crate) async fn only_a_collected_database_pays_for_it(stage: Stage) {
    let counted = Counted::new(stage.engine()).separately(model::is_instance_key);
    let layer = layer(counted.clone()).await;
    let new = async |name| {
        let options = CreateOptions { format: Some(BodyFormat::Packed), ..CreateOptions::default() };
        layer.create_database(name, options).await.unwrap()
    };
    let (off, on) = (new("off").await, new("on").await);
    on.begin_collection().await.unwrap();
    let of = |counts: &Counts| {
        let read = counts.kvs_read - counts.kvs_read_separately;
        [read, counts.round_trips, counts.sets, counts.clears, counts.range_clears].map(|count| count as i64)
    };
    let mut costs = Vec::new();
    for documents in [&off, &on] {
        let rev = documents.put(file("f", &["h:a", "h:b"])).await.unwrap();
        documents.put(edit("h:c", r#"{"data":"c"}"#)).await.unwrap();
        counted.take();
        documents.put(file("f", &["h:a", "h:b", "h:c"]).over(rev)).await.unwrap();
        documents.put(edit("h:d", r#"{"data":"d"}"#)).await.unwrap();
        costs.extend(counted.take().iter().map(of));
    }
    assert_eq!(costs[0], [1, 1, 3, 2, 1], "as any update");
    assert_eq!(costs[1], costs[3], "a document that names none pays nothing");
    // One round trip, in which each name is looked up and no row is found.
    assert_eq!(costs[2], [1, 2, 3, 2, 1]);
}
