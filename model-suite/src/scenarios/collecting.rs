//! Collections of documents that no document names: what is condemned, deleted into the trash, and revived.

use std::ops::ControlFlow;

use conformance::chaos::{Chaos, Fault};
use conformance::interleave::interleave;
use kv_api::{Bytes, Counted, Counts, Database};
use model::{
    AllDocsRequest, BodyFormat, ChangesRequest, Collection, CreateOptions, Discarded, Document, Documents, Edit,
    GetOptions, KeepReplaced, Layer, LayerOptions, OpenRev, OpenRevs, Patch, Purge, RelocateOptions, WriteMode,
    relocate,
};

use super::damage;
use super::index_oracle::design;
use crate::stage::*;

/// Subspaces of the trash, and of its bodies.
pub(super) const TRASH: u8 = 20;
pub(super) const TRASH_DOCS: u8 = 21;
/// Subspace of documents whose text has ended.
pub(super) const ENDED: u8 = 23;

/// No time of grace.
pub(super) const NOW: u64 = 0;
/// Longer ago than anything.
pub(super) const LONG: u64 = u64::MAX;

pub(super) fn file(id: &str, chunks: &[&str]) -> Edit {
    edit(id, &format!(r#"{{"path":"{id}","children":{chunks:?}}}"#))
}

pub(super) fn ids(ids: &[&str]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

/// The body of a document, if it is live.
pub(super) async fn read<D: Database>(documents: &Documents<D>, id: &str) -> Option<String> {
    documents.get(id, &GetOptions::default()).await.ok().map(|found| found.body.as_str().to_owned())
}

/// Condemns documents in one collection, and deletes them in the next. Returns how many were deleted.
pub(super) async fn collect<D: Database>(documents: &Documents<D>, chunks: &[&str]) -> u64 {
    let first = documents.begin_collection().await.unwrap();
    documents.condemn(first, &ids(chunks)).await.unwrap();
    let second = documents.begin_collection().await.unwrap();
    documents.discard_condemned(second, &ids(chunks), NOW).await.unwrap().documents
}

/// What the trash has, and whether it was deleted.
pub(super) async fn trash<D: Database>(documents: &Documents<D>) -> Vec<(String, bool)> {
    documents.trash(None, 100).await.unwrap().documents.into_iter().map(|one| (one.id, one.trashed.is_some())).collect()
}

pub(super) async fn of<D: Database>(engine: D) -> Documents<D> {
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
    assert_eq!(documents.condemn(first, &both).await.unwrap().documents, 2);
    assert_eq!(documents.condemn(first, &both).await.unwrap().documents, 0, "they keep their time");
    let done = documents.discard_condemned(first, &both, NOW).await.unwrap();
    assert_eq!((done.documents, done.not_condemned.len()), (0, 0), "not by the collection that condemned them");

    // One is named, and then no longer.
    let rev = documents.put(file("f", &["h:a"])).await.unwrap();
    documents.put(file("f", &[]).over(rev)).await.unwrap();
    assert_eq!(trash(&documents).await, [("h:b".to_owned(), false)]);
    let second = documents.begin_collection().await.unwrap();
    assert!(documents.discard_condemned(first, &both, NOW).await.is_err(), "the first may no longer write");
    assert!(documents.condemn(first, &both).await.is_err() && documents.acquit(first, &both).await.is_err());
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
    assert_eq!(documents.condemn(second, &ids(&["h:b"])).await.unwrap().documents, 1);
    assert_eq!(collect(&documents, &["h:b"]).await, 1);
    let third = documents.begin_collection().await.unwrap();
    assert_eq!(documents.condemn(third, &ids(&["h:b"])).await.unwrap().documents, 0);
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
            // A purge of old tombstones leaves those of documents in the trash.
            let gone = documents.open_revs("h:a", &model::OpenRevs::All, &GetOptions::default()).await.unwrap();
            let model::OpenRev::Found(gone) = &gone[0] else { panic!("{gone:?}") };
            let purge = Purge::new("h:a", vec![gone.rev.clone()]);
            assert_eq!(documents.purge_deleted(&[purge]).await.unwrap().remove(0).unwrap(), []);
            assert_eq!(trash(&documents).await, [("h:a".to_owned(), true)]);
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

/// A tombstone, as a device has it.
fn tombstone(id: &str, path: &str) -> Edit {
    replicated(id, path, "{}").deleting()
}

/// All leaves of a document, with their histories.
async fn leaves<D: Database>(documents: &Documents<D>, id: &str) -> Vec<Document> {
    let options = GetOptions { revs: true, ..GetOptions::default() };
    let found = documents.open_revs(id, &OpenRevs::All, &options).await.unwrap();
    found.into_iter().map(|leaf| if let OpenRev::Found(leaf) = leaf { leaf } else { panic!("{leaf:?}") }).collect()
}

/// What a device does with a leaf of this database.
async fn pull<D: Database>(device: &Documents<D>, leaf: &Document) {
    let history = leaf.revisions.clone().unwrap();
    let edit = edit(&leaf.id, leaf.body.as_str()).with_history(history);
    merge(device, if leaf.deleted { edit.deleting() } else { edit }).await;
}

pub(crate) async fn what_is_revived_is_new_to_whoever_has_its_tombstone(stage: Stage) {
    let layer = stage.layer().await;
    let new = async |name| layer.create_database(name, CreateOptions::default()).await.unwrap();
    let (documents, device) = (new("db").await, new("device").await);
    let made = documents.put(edit("h:a", r#"{"data":"a"}"#)).await.unwrap();
    assert_eq!(collect(&documents, &["h:a"]).await, 1);
    let gone = leaves(&documents, "h:a").await.remove(0);
    assert!(gone.deleted);
    pull(&device, &gone).await;

    // Another tombstone is left here, whose child would be the revision that the lost tombstone replaced.
    let path = format!("{} {}", rev("2-w"), "b".repeat(32));
    merge(&documents, tombstone("h:a", &path)).await;
    documents.purge(&[Purge::new("h:a", vec![gone.rev.clone()])]).await.unwrap().remove(0).unwrap();
    assert_eq!(leaves(&documents, "h:a").await.len(), 1);
    documents.put(file("f", &["h:a"])).await.unwrap();
    assert_eq!(trash(&documents).await, []);

    let back = leaves(&documents, "h:a").await.into_iter().find(|leaf| !leaf.deleted).unwrap();
    let history = back.revisions.clone().unwrap();
    assert_eq!((history.position, &history.ids[1]), (gone.rev.position() + 1, gone.rev.hash()));
    assert_ne!(back.rev, made);
    pull(&device, &back).await;
    assert_eq!(read(&device, "h:a").await.as_deref(), Some(r#"{"data":"a"}"#));
    assert_eq!(leaves(&device, "h:a").await.len(), 1, "a child of the tombstone");
    assert_sound(&documents).await;
}

pub(crate) async fn what_follows_a_tombstone_is_followed(stage: Stage) {
    let documents = stage.documents().await;
    documents.put(edit("h:a", r#"{"data":"a"}"#)).await.unwrap();
    assert_eq!(collect(&documents, &["h:a"]).await, 1);
    // A device revived and deleted it; and there is a greater tombstone that has nothing to do with it.
    let gone = leaves(&documents, "h:a").await.remove(0);
    let path = format!("4-d {} {}", "c".repeat(32), gone.rev.hash());
    merge(&documents, tombstone("h:a", &path)).await;
    merge(&documents, tombstone("h:a", "7-z")).await;
    documents.put(file("f", &["h:a"])).await.unwrap();
    let back = get(&documents, "h:a").await;
    assert_eq!((back.rev.position(), leaves(&documents, "h:a").await.len()), (5, 2));
    assert_sound(&documents).await;
}

pub(crate) async fn who_purges_a_document_purges_it_from_the_trash(stage: Stage) {
    let documents = stage.documents().await;
    for id in ["h:a", "h:b"] {
        documents.put(edit(id, r#"{"data":"secret"}"#)).await.unwrap();
    }
    assert_eq!(collect(&documents, &["h:a", "h:b"]).await, 2);
    let gone = leaves(&documents, "h:a").await.remove(0);
    let purge = Purge::new("h:a", vec![gone.rev.clone()]);
    assert_eq!(
        documents.purge_deleted(std::slice::from_ref(&purge)).await.unwrap(),
        [Ok(Vec::new())],
        "nobody named it"
    );
    assert_eq!(trash(&documents).await.len(), 2);
    assert_eq!(documents.purge(&[purge]).await.unwrap(), [Ok(vec![gone.rev])]);
    assert_eq!(trash(&documents).await, [("h:b".to_owned(), true)]);
    assert_eq!(damage::rows(&stage.engine(), TRASH_DOCS, "h:a").await, [], "not even its body");
    documents.put(file("f", &["h:a", "h:b"])).await.unwrap();
    assert!(is_missing(&documents, "h:a").await && read(&documents, "h:b").await.is_some());
    assert_sound(&documents).await;
}

pub(crate) async fn a_document_is_taken_once_whatever_else_is_left_of_it(stage: Stage) {
    let documents = stage.documents().await;
    documents.put(edit("h:a", r#"{"data":"a"}"#)).await.unwrap();
    documents.put(edit("h:b", r#"{"data":"b"}"#)).await.unwrap();
    // Beside the live leaf of one is a tombstone.
    merge(&documents, tombstone("h:b", "4-z")).await;
    assert_eq!(leaves(&documents, "h:b").await.len(), 2);
    let twice = ids(&["h:b", "h:a", "h:b", "h:a"]);
    let first = documents.begin_collection().await.unwrap();
    assert_eq!(documents.condemn(first, &twice).await.unwrap().documents, 2);
    let second = documents.begin_collection().await.unwrap();
    let done = documents.discard_condemned(second, &twice, NOW).await.unwrap();
    assert_eq!((done.documents, done.left, done.not_condemned), (2, Vec::new(), Vec::new()));
    for id in ["_design/a", "_local/a"] {
        let ids = ids(&["h:a", id]);
        assert_eq!(documents.condemn(second, &ids).await.unwrap_err().status(), 400);
        assert_eq!(documents.acquit(second, &ids).await.unwrap_err().status(), 400);
        assert_eq!(documents.discard_condemned(second, &ids, NOW).await.unwrap_err().status(), 400);
    }
    documents.put(file("f", &["h:a", "h:b", "h:a"])).await.unwrap();
    assert!(read(&documents, "h:a").await.is_some() && read(&documents, "h:b").await.is_some());
    assert_sound(&documents).await;
}

pub(crate) async fn large_documents_are_collected_one_by_one(stage: Stage) {
    let documents = stage.documents().await;
    documents.set_keep_replaced(Some(KeepReplaced::Revisions(10))).await.unwrap();
    let chunks = ["h:0", "h:1", "h:2", "h:3"];
    for (number, chunk) in chunks.iter().enumerate() {
        let data = "x".repeat(if number % 2 == 0 { 1_900_000 } else { 7_000_000 });
        documents.put(edit(chunk, &format!(r#"{{"data":"{data}"}}"#))).await.unwrap();
    }
    let first = documents.begin_collection().await.unwrap();
    documents.condemn(first, &ids(&chunks)).await.unwrap();
    let second = documents.begin_collection().await.unwrap();
    let done = documents.discard_condemned(second, &ids(&chunks), NOW).await.unwrap();
    assert_eq!(done.documents as usize + done.left.len(), 4, "{:?}", done.left);
    for (id, why) in &done.left {
        assert!(["h:1", "h:3"].contains(&id.as_str()) && why.contains("does not fit"), "{id} {why}");
    }
    documents.put(file("f", &chunks)).await.unwrap();
    for chunk in chunks {
        assert!(read(&documents, chunk).await.is_some_and(|body| body.len() > 1_900_000), "{chunk}");
    }
    assert_sound(&documents).await;
}

pub(crate) async fn an_edit_may_name_thousands_in_the_trash(stage: Stage) {
    let documents = stage.documents().await;
    // Long ids: together they have more rows than fit into a transaction.
    let chunk = |number: usize| format!("h:{}{number:04}", "x".repeat(300));
    let all: Vec<String> = (0..8_000).map(chunk).collect();
    let edits = all.iter().map(|id| edit(id, r#"{"data":"text"}"#)).collect();
    for written in documents.write(edits, WriteMode::Interactive).await.unwrap() {
        written.unwrap();
    }
    let first = documents.begin_collection().await.unwrap();
    documents.condemn(first, &all).await.unwrap();
    let second = documents.begin_collection().await.unwrap();
    // Every fourth is only condemned.
    let dead: Vec<String> = (0..8_000).filter(|number| number % 4 > 0).map(chunk).collect();
    assert_eq!(documents.discard_condemned(second, &dead, NOW).await.unwrap().documents, 6_000);
    let named: Vec<&str> = all.iter().map(String::as_str).chain(["h:never"]).collect();
    documents.put(file("f", &named)).await.unwrap();
    assert_eq!(trash(&documents).await, []);
    assert_eq!(list(&documents, AllDocsRequest::default()).await.len(), 8_001);
}

pub(crate) async fn small_documents_with_many_rows_are_revived_in_several_transactions(stage: Stage) {
    let options = CreateOptions { format: Some(BodyFormat::Exploded), ..CreateOptions::default() };
    let documents = stage.layer().await.create_database("db", options).await.unwrap();
    let members: Vec<String> = (0..5_000).map(|number| format!(r#""{number}":1"#)).collect();
    let body = format!("{{{}}}", members.join(","));
    let chunks: Vec<String> = (0..40).map(|number| format!("h:{number:02}")).collect();
    let all: Vec<&str> = chunks.iter().map(String::as_str).collect();
    for chunk in &all {
        documents.put(edit(chunk, &body)).await.unwrap();
    }
    assert_eq!(collect(&documents, &all).await, 40);
    documents.put(file("f", &all)).await.unwrap();
    assert_eq!(trash(&documents).await, []);
    for chunk in all {
        assert_eq!(read(&documents, chunk).await.map(|body| body.len()), Some(body.len()), "{chunk}");
    }
    assert_sound(&documents).await;
}

pub(crate) async fn what_cannot_be_revived_is_told_and_stops_no_edit(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    let all = ["h:body", "h:branch", "h:good", "h:large", "h:none", "h:row"];
    for chunk in all {
        let data = chunk.repeat(if chunk == "h:large" { 500_000 } else { 1 });
        documents.put(edit(chunk, &format!(r#"{{"data":"{data}"}}"#))).await.unwrap();
    }
    assert_eq!(collect(&documents, &all).await, 6);
    let part = damage::rows(&engine, TRASH_DOCS, "h:body").await.pop().unwrap();
    let branch = damage::rows(&engine, damage::REVISIONS, "h:branch").await.pop().unwrap();
    let large = damage::rows(&engine, damage::REVISIONS, "h:large").await.pop().unwrap();
    let none = damage::rows(&engine, TRASH_DOCS, "h:none").await;
    let row = damage::rows(&engine, TRASH, "h:row").await.pop().unwrap();
    for row in [&part, &branch, &large, &row] {
        damage::put(&engine, &[(&row.key, Some(&row.value[..2]))]).await;
    }
    for row in &none {
        damage::put(&engine, &[(&row.key, None)]).await;
    }
    for file_name in ["f", "g"] {
        documents.put(file(file_name, &all)).await.unwrap();
        assert!(read(&documents, "h:good").await.is_some());
        let page = documents.trash(None, 100).await.unwrap();
        let left: Vec<(&str, bool, bool)> =
            page.documents.iter().map(|one| (one.id.as_str(), one.trashed.is_some(), one.in_vain)).collect();
        let expected = ["h:body", "h:branch", "h:large", "h:none"].map(|id| (id, true, true));
        assert_eq!((left, page.unreadable), (expected.to_vec(), 1));
    }
    let report = documents.check(|_| {}).await.unwrap();
    let named = report.problems.iter().filter(|problem| format!("{problem:?}").contains("could not be brought back"));
    assert_eq!(named.count(), 4, "{:?}", report.problems);
    // A page that begins with an unreadable row is not the end.
    let mut pages = Vec::new();
    let mut next = Some(None);
    while let Some(from) = next {
        let page = documents.trash(from, 1).await.unwrap();
        next = page.next.map(Some);
        pages.push(page.documents.len() + page.unreadable as usize);
    }
    assert_eq!(pages.iter().sum::<usize>(), 5);

    // Once the rows are mended, any edit that names them brings them back.
    for row in [&part, &branch, &large, &row].into_iter().chain(&none) {
        damage::put(&engine, &[(&row.key, Some(&row.value))]).await;
    }
    documents.put(file("i", &all)).await.unwrap();
    for chunk in all {
        assert!(read(&documents, chunk).await.is_some(), "{chunk}");
    }
    assert_eq!(trash(&documents).await, []);
    assert_sound(&documents).await;
}

pub(crate) async fn a_page_of_unreadable_rows_is_not_the_end_of_the_trash(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    let all = ["h:a", "h:b", "h:c"];
    let first = documents.begin_collection().await.unwrap();
    documents.condemn(first, &ids(&all)).await.unwrap();
    for id in &all[..2] {
        let row = damage::rows(&engine, TRASH, id).await.remove(0);
        damage::put(&engine, &[(&row.key, Some(&row.value[..2]))]).await;
    }
    let page = documents.trash(None, 2).await.unwrap();
    assert_eq!((page.documents.len(), page.unreadable), (0, 2));
    let page = documents.trash(page.next, 2).await.unwrap();
    assert_eq!((page.documents.len(), page.unreadable, page.next), (1, 0, None));
}

pub(crate) async fn a_damaged_document_ends_no_collection(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    let all = ["h:a", "h:bad", "h:body", "h:c", "h:row"];
    for chunk in all {
        documents.put(edit(chunk, r#"{"data":"text"}"#)).await.unwrap();
    }
    assert_eq!(collect(&documents, &["h:bad"]).await, 1);
    let damaged = async |subspace, id: &str| {
        let row = damage::rows(&engine, subspace, id).await.remove(0);
        damage::put(&engine, &[(&row.key, Some(&row.value[..2]))]).await;
    };
    damaged(damage::REVISIONS, "h:bad").await;
    damaged(damage::DOCS, "h:body").await;
    let first = documents.begin_collection().await.unwrap();
    let done = documents.condemn(first, &ids(&all)).await.unwrap();
    assert_eq!((done.documents, done.left.len(), done.left[0].0.as_str()), (4, 1, "h:bad"), "{done:?}");
    damaged(TRASH, "h:row").await;
    let second = documents.begin_collection().await.unwrap();
    let done = documents.discard_condemned(second, &ids(&all), NOW).await.unwrap();
    let left: Vec<&str> = done.left.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!((done.documents, left, done.not_condemned), (2, vec!["h:body", "h:row"], ids(&["h:bad"])));
    let done = documents.condemn(second, &ids(&["h:bad", "h:row", "h:a"])).await.unwrap();
    assert_eq!((done.documents, done.left.len()), (0, 2), "{done:?}");
}

pub(crate) async fn a_list_that_cannot_be_read_ends_the_collection_that_runs(stage: Stage) {
    let documents = stage.documents().await;
    documents.put(edit("h:a", r#"{"data":"a"}"#)).await.unwrap();
    let (chunk, mut number) = (ids(&["h:a"]), 0);
    let first = documents.begin_collection().await.unwrap();
    documents.condemn(first, &chunk).await.unwrap();
    for (id, body) in [
        ("a.md", r#"{"path":"a.md","children":"h:a","type":"plain"}"#),
        ("a.md", r#"{"path":"a.md","children":["h:b",7]}"#),
        ("a.md", r#"{"path":"a.md","type":"newnote"}"#),
        ("f:ab", r#"{"path":"/\\:%=x","children":[],"type":"plain"}"#),
        ("i:f:ab", r#"{"path":"%$later","children":[],"type":"plain"}"#),
    ] {
        let collection = documents.begin_collection().await.unwrap();
        number += 1;
        merge(&documents, replicated(id, &format!("{number}-{number}"), body)).await;
        let error = documents.discard_condemned(collection, &chunk, NOW).await.unwrap_err();
        assert!(error.status() == 400 && error.reason().contains("cannot be read"), "{body}: {error:?}");
        assert!(documents.condemn(collection, &chunk).await.is_err(), "{body}");
        // One is enough: further ones need not change the row that every edit reads.
        let last = documents.last_collection().await.unwrap();
        merge(&documents, replicated("again", &format!("{number}-{number}"), body)).await;
        assert_eq!(documents.last_collection().await.unwrap(), last, "{body}");
    }
    for body in [r#"{"path":"a.md","children":["h:b"],"type":"plain"}"#, r#"{"data":"x","type":"leaf"}"#] {
        let collection = documents.begin_collection().await.unwrap();
        number += 1;
        merge(&documents, replicated("a.md", &format!("{number}-{number}"), body)).await;
        assert_eq!(documents.discard_condemned(collection, &ids(&["h:never"]), NOW).await.unwrap().documents, 0);
    }
    let last = documents.begin_collection().await.unwrap();
    assert_eq!(documents.discard_condemned(last, &chunk, NOW).await.unwrap().documents, 1);
    assert_sound(&documents).await;
}

/// The trash takes the room that a deletion frees, so a collection leaves the room that is kept for deletions.
pub(crate) async fn a_full_store_ends_a_collection_which_says_what_it_did(stage: Stage) {
    let documents = stage.documents().await;
    // One more than a transaction takes.
    let chunks: Vec<String> = (0..101).map(|number| format!("h:{number:03}")).collect();
    let edits = chunks.iter().map(|chunk| edit(chunk, r#"{"data":"a"}"#)).collect();
    documents.write(edits, WriteMode::Interactive).await.unwrap().into_iter().for_each(|made| drop(made.unwrap()));
    let first = documents.begin_collection().await.unwrap();
    documents.condemn(first, &chunks).await.unwrap();
    let second = documents.begin_collection().await.unwrap();
    let full = of(Chaos::scripted(stage.engine(), [None, Some(Fault::Full)])).await;
    let mut done = Discarded::default();
    let refused = full.discard_condemned_into(second, &chunks, NOW, &mut done).await.unwrap_err();
    assert_eq!((refused.status(), done.documents), (507, 100));
    assert!(read(&documents, "h:100").await.is_some());
    assert_eq!(documents.trash(None, 200).await.unwrap().documents.len(), 101);
    assert_eq!(documents.discard_condemned(second, &chunks, NOW).await.unwrap().documents, 1);
    documents.put(file("f", &["h:000", "h:100"])).await.unwrap();
    assert!(read(&documents, "h:000").await.is_some() && read(&documents, "h:100").await.is_some());
    assert_sound(&documents).await;
}

/// A document in the trash lives again, and is deleted by somebody while it is condemned: the trash has all that is left.
pub(crate) async fn what_is_deleted_beside_its_condemnation_stays_in_the_trash(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    documents.put(edit("h:a", r#"{"data":"a"}"#)).await.unwrap();
    assert_eq!(collect(&documents, &["h:a"]).await, 1);
    let again = documents.put(edit("h:a", r#"{"data":"again"}"#)).await.unwrap();
    let collection = documents.begin_collection().await.unwrap();
    let condemn = async |engine| of(engine).await.condemn(collection, &ids(&["h:a"])).await.unwrap().documents;
    let delete = async || drop(documents.put(edit("h:a", "{}").over(again.clone()).deleting()).await.unwrap());
    let (condemned, was_held) = interleave(engine, 0, condemn, delete).await;
    assert!(was_held);
    assert_eq!((condemned, trash(&documents).await), (0, vec![("h:a".to_owned(), true)]));
    documents.put(file("f", &["h:a"])).await.unwrap();
    assert_eq!(read(&documents, "h:a").await.as_deref(), Some(r#"{"data":"a"}"#));
    assert_sound(&documents).await;
}

/// A document in the trash lives again. An edit of it is refused, in one batch with a file that names it.
pub(crate) async fn an_edit_that_is_refused_takes_nothing_out_of_the_trash(stage: Stage) {
    const INDEXED: u8 = 14;
    let (engine, documents) = (stage.engine(), stage.documents().await);
    documents.put(edit("_design/x", &design(&[("data", r#"{"data":"asc"}"#, "{}")]))).await.unwrap();
    documents.put(edit("h:a", r#"{"data":"a"}"#)).await.unwrap();
    assert_eq!(collect(&documents, &["h:a"]).await, 1);
    let again = documents.put(edit("h:a", r#"{"data":"again"}"#)).await.unwrap();
    let row = damage::rows(&engine, INDEXED, "h:a").await.remove(0);
    damage::put(&engine, &[(&row.key, Some(&row.value[..1]))]).await;
    let edits = || vec![edit("h:a", r#"{"data":"more"}"#).over(again.clone()), file("f", &["h:a"])];
    let written = documents.write(edits(), WriteMode::Interactive).await.unwrap();
    assert!(written[0].is_err() && written[1].is_ok(), "{written:?}");
    assert_eq!(trash(&documents).await, [("h:a".to_owned(), true)]);
    assert!(!damage::rows(&engine, TRASH_DOCS, "h:a").await.is_empty(), "with its body");
    damage::put(&engine, &[(&row.key, Some(&row.value))]).await;
    let mut edits = edits();
    edits[1].id = "g".into();
    for written in documents.write(edits, WriteMode::Interactive).await.unwrap() {
        written.unwrap();
    }
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
    let ended = documents.put(edit("h:ended", r#"{"data":"ended"}"#)).await.unwrap();
    assert_eq!(collect(&documents, &["h:a", "h:ended"]).await, 2);
    let last = documents.info().await.unwrap().update_seq.seq;
    for gone in [0, 1] {
        assert_eq!(super::emptying::empty(&documents, &["h:ended"], last, NOW).await.documents, gone);
    }
    let options = RelocateOptions { verify: true, ..RelocateOptions::default() };
    let report = relocate(&from, &to, "db", &options, |_| ControlFlow::Continue(())).await.unwrap();
    assert!(report.moved && report.is_same(), "{report:?}");
    let arrived = to.database("db").await.unwrap();
    assert_eq!(trash(&arrived).await, [("h:a".to_owned(), true)]);
    arrived.put(file("f", &["h:a"])).await.unwrap();
    assert_eq!(read(&arrived, "h:a").await.as_deref(), Some(r#"{"data":"a"}"#));
    // A text that ended is asked for there too.
    let wanted = arrived.revs_diff(vec![("h:ended".to_owned(), vec![ended.clone()])]).await.unwrap();
    assert_eq!(wanted.into_iter().map(|diff| diff.missing).collect::<Vec<_>>(), [[ended]]);
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
