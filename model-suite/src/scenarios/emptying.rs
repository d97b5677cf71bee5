//! The end of the trash: text that every client has passed is removed from it.

use std::sync::atomic::{AtomicU64, Ordering};

use conformance::chaos::{Chaos, Fault};
use conformance::interleave::interleave;
use kv_api::Database;
use model::{Collection, Documents, Emptied, GetOptions, Passed, RevId, Seq, WriteMode};

use super::collecting::{LONG, NOW, TRASH, TRASH_DOCS, collect, file, ids, of, read, trash};
use super::damage;
use crate::stage::*;

/// Removes the text of one document. Returns how many ended.
async fn end<D: Database>(engine: D, collection: Collection, only: &[String], passed: Seq) -> u64 {
    let mut emptied = Emptied::default();
    of(engine).await.empty_trash(collection, only, Some(passed), passed, &mut emptied).await.unwrap();
    emptied.documents
}

/// A list of clients which have passed this sequence.
fn all_passed(seq: Seq) -> Option<Passed> {
    Some(Passed { seq, clients: 1 })
}

/// A run that empties the trash of what all clients have passed.
async fn empty<D: Database>(documents: &Documents<D>, chunks: &[&str], passed: Seq, kept_ms: u64) -> Emptied {
    let mut emptied = Emptied::default();
    let collection = documents.begin_collection().await.unwrap();
    let due = documents.note_passed(collection, all_passed(passed), kept_ms).await.unwrap();
    assert!(!due.clock_jumped);
    documents.empty_trash(collection, &ids(chunks), due.upto, passed, &mut emptied).await.unwrap();
    emptied
}

async fn last_seq<D: Database>(documents: &Documents<D>) -> Seq {
    documents.info().await.unwrap().update_seq.seq
}

pub(crate) async fn what_every_client_has_passed_leaves_the_trash(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    let before = last_seq(&documents).await;
    let all = ["h:a", "h:b", "h:c", "h:never"];
    for chunk in &all[..3] {
        documents.put(edit(chunk, r#"{"data":"text"}"#)).await.unwrap();
    }
    assert_eq!(collect(&documents, &["h:a", "h:b"]).await, 2);
    let between = last_seq(&documents).await;
    assert_eq!(collect(&documents, &["h:c"]).await, 1);
    let waiting = |waiting| Emptied { waiting, ..Emptied::default() };
    assert_eq!(empty(&documents, &all, before, NOW).await, waiting(3));
    assert_eq!(empty(&documents, &all, between, NOW).await, Emptied { passed: 2, ..waiting(1) });
    assert_sound(&documents).await;
    // Not before the time is over, and then only what was passed before.
    assert_eq!(empty(&documents, &all, between, LONG).await, Emptied { passed: 2, ..waiting(1) });
    // It comes back as before.
    documents.put(file("f", &["h:b"])).await.unwrap();
    assert!(read(&documents, "h:b").await.is_some());
    // A new tombstone, which the clients have not passed.
    let live = documents.put(edit("h:a", r#"{"data":"text"}"#)).await.unwrap();
    assert_eq!(empty(&documents, &all, between, NOW).await, waiting(1), "one that lives is left alone");
    documents.put(edit("h:a", "{}").over(live).deleting()).await.unwrap();
    assert_eq!(empty(&documents, &all, between, NOW).await, waiting(2));

    let last = last_seq(&documents).await;
    assert_eq!(empty(&documents, &all, last, LONG).await, Emptied { passed: 2, ..Emptied::default() });
    let gone = Emptied { documents: 1, bytes: 15, ..Emptied::default() };
    assert_eq!(empty(&documents, &["h:c"], last, NOW).await, gone);
    assert_eq!(trash(&documents).await, [("h:a".to_owned(), true)]);
    assert_eq!(
        damage::rows(&engine, TRASH, "h:c").await.len() + damage::rows(&engine, TRASH_DOCS, "h:c").await.len(),
        0
    );
    assert_sound(&documents).await;
    // The tombstone is there still, so the document is written over it. An edit that names it goes on without it.
    documents.put(file("g", &["h:c"])).await.unwrap();
    assert_eq!(read(&documents, "h:c").await, None);
    assert_eq!(documents.put(edit("h:c", r#"{"data":"text"}"#)).await.unwrap().position(), 3);
    // Another run has begun.
    let collection = documents.begin_collection().await.unwrap();
    documents.begin_collection().await.unwrap();
    let refused = documents.empty_trash(collection, &ids(&all), Some(last), last, &mut Emptied::default()).await;
    assert_eq!(refused.unwrap_err().status(), 400);
    assert_eq!(documents.note_passed(collection, None, NOW).await.unwrap_err().status(), 400);
    assert_eq!(trash(&documents).await, [("h:a".to_owned(), true)]);
}

/// The period begins anew with another list of clients, when nobody can tell what they have passed, and where the notes
/// cannot be read.
pub(crate) async fn a_period_begins_anew_with_what_it_rests_on(stage: Stage) {
    const PASSED: u8 = 22;
    let (engine, documents) = (stage.engine(), stage.documents().await);
    documents.put(edit("h:a", r#"{"data":"text"}"#)).await.unwrap();
    assert_eq!(collect(&documents, &["h:a"]).await, 1);
    let last = last_seq(&documents).await;
    let collection = documents.begin_collection().await.unwrap();
    let run = async |passed| documents.note_passed(collection, passed, NOW).await.unwrap().upto;
    let damage = async || {
        let row = damage::rows(&engine, PASSED, "").await.pop().unwrap();
        damage::put(&engine, &[(&row.key, Some(&row.value[..2]))]).await;
    };
    assert_eq!((run(all_passed(last)).await, run(all_passed(last)).await), (None, Some(last)));
    let other = Some(Passed { seq: last, clients: 2 });
    assert_eq!((run(other).await, run(other).await), (None, Some(last)));
    assert_eq!((run(None).await, run(other).await, run(other).await), (None, None, Some(last)));
    damage().await;
    assert_eq!((run(other).await, run(other).await), (None, Some(last)));
    damage().await;
    assert_eq!((run(None).await, run(None).await, run(other).await), (None, None, None));
    assert_eq!(trash(&documents).await, [("h:a".to_owned(), true)]);
}

/// A full disk is what the end of the trash is for.
pub(crate) async fn a_full_store_still_gives_back_what_is_due(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    for chunk in ["h:a", "h:b"] {
        documents.put(edit(chunk, r#"{"data":"text"}"#)).await.unwrap();
    }
    assert_eq!(collect(&documents, &["h:a"]).await, 1);
    let condemning = documents.begin_collection().await.unwrap();
    documents.condemn(condemning, &ids(&["h:b"])).await.unwrap();
    let last = last_seq(&documents).await;
    assert_eq!(empty(&documents, &["h:a"], last, NOW).await.passed, 1);
    let full = of(Chaos::scripted(engine, [Some(Fault::Full); 8])).await;
    assert_eq!(full.put(edit("f", "{}")).await.unwrap_err().status(), 507);
    assert_eq!(empty(&full, &["h:a"], last, NOW).await.documents, 1);
    let collection = full.begin_collection().await.unwrap();
    full.acquit(collection, &ids(&["h:b"])).await.unwrap();
    assert_eq!(trash(&documents).await, []);
}

/// Whoever never saw the tombstone has the first revision, which is an ancestor of the tombstone.
pub(crate) async fn text_that_left_the_trash_is_asked_for_and_written_again(stage: Stage) {
    let documents = stage.documents().await;
    let body = r#"{"data":"text"}"#;
    let first = documents.put(edit("h:a", body)).await.unwrap();
    assert_eq!(collect(&documents, &["h:a"]).await, 1);
    let wanted = async |rev: &RevId| {
        let found = documents.revs_diff(vec![("h:a".to_owned(), vec![rev.clone()])]).await.unwrap();
        found.into_iter().flat_map(|diff| diff.missing).collect::<Vec<RevId>>()
    };
    let send = async || {
        let again = vec![replicated("h:a", &first.to_string(), body)];
        documents.write(again, WriteMode::Replicated).await.unwrap().remove(0).unwrap();
    };
    // While the text is in the trash, who names it revives it.
    assert!(wanted(&first).await.is_empty());
    send().await;
    assert_eq!((read(&documents, "h:a").await, trash(&documents).await.len()), (None, 1));
    let last = last_seq(&documents).await;
    for ended in [0, 1] {
        assert_eq!(empty(&documents, &["h:a"], last, NOW).await.documents, ended);
    }
    assert_eq!(wanted(&first).await, std::slice::from_ref(&first));
    // A tombstone that is sent again changes nothing.
    let seq = last_seq(&documents).await;
    let deletion = replicated("h:a", &first.to_string(), "{}").deleting();
    documents.write(vec![deletion], WriteMode::Replicated).await.unwrap().remove(0).unwrap();
    assert_eq!((last_seq(&documents).await, read(&documents, "h:a").await), (seq, None));
    send().await;
    assert_eq!(read(&documents, "h:a").await.as_deref(), Some(body));
    let seq = last_seq(&documents).await;
    let found = documents.get("h:a", &GetOptions::default()).await.unwrap();
    assert_eq!(found.rev.position(), 3, "over the tombstone, so that replicas take it");
    assert!(wanted(&first).await.is_empty() && wanted(&found.rev).await.is_empty());
    send().await;
    assert_eq!(last_seq(&documents).await, seq, "it lives");
    assert_sound(&documents).await;
}

/// What nobody knows the tombstone of, and what is needed and could not be brought back, stays.
pub(crate) async fn what_may_be_needed_stays_in_the_trash(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    let all = ["h:branch", "h:gone", "h:named", "h:row"];
    for chunk in all {
        documents.put(edit(chunk, r#"{"data":"text"}"#)).await.unwrap();
    }
    assert_eq!(collect(&documents, &all).await, 4);
    let last = last_seq(&documents).await;
    assert_eq!(empty(&documents, &["h:named"], last, LONG).await.passed, 1);
    for (subspace, id) in [(TRASH_DOCS, "h:named"), (damage::REVISIONS, "h:branch"), (TRASH, "h:row")] {
        let row = damage::rows(&engine, subspace, id).await.pop().unwrap();
        damage::put(&engine, &[(&row.key, Some(&row.value[..2]))]).await;
    }
    for row in damage::rows(&engine, damage::REVISIONS, "h:gone").await {
        damage::put(&engine, &[(&row.key, None)]).await;
    }
    documents.put(file("f", &["h:named"])).await.unwrap();
    for _ in 0..2 {
        assert_eq!(empty(&documents, &all, Seq::from_bytes([0xff; Seq::LEN]), NOW).await, Emptied::default());
    }
    assert_eq!(trash(&documents).await, ["h:branch", "h:gone", "h:named"].map(|id| (id.to_owned(), true)));
    assert_eq!(damage::rows(&engine, TRASH, "h:row").await.len(), 1);
    for id in ["h:branch", "h:gone", "h:row"] {
        assert!(!damage::rows(&engine, TRASH_DOCS, id).await.is_empty(), "{id}");
    }
}

/// The end of a text beside an edit that names it, at each of its commits, whichever is held.
pub(crate) async fn an_edit_beside_the_end_of_a_text_is_before_or_after_it(stage: Stage) {
    let engine = stage.engine();
    let documents = stage.documents().await;
    let (mut number, mut held, mut ends) = (0, [false; 2], [false; 2]);
    for is_edit_held in [false, true] {
        for nth in 0..3 {
            number += 1;
            let (chunk, name) = (format!("h:{number}"), format!("f{number}"));
            documents.put(edit(&chunk, r#"{"data":"x"}"#)).await.unwrap();
            assert_eq!(collect(&documents, &[&chunk]).await, 1);
            let last = last_seq(&documents).await;
            assert_eq!(empty(&documents, &[&chunk], last, NOW).await.passed, 1);
            let (collection, only) = (documents.begin_collection().await.unwrap(), ids(&[&chunk]));
            let (ended, was_held) = if is_edit_held {
                let (other, ended) = (engine.clone(), AtomicU64::new(0));
                let write = async |engine| drop(of(engine).await.put(file(&name, &[&chunk])).await.unwrap());
                let meanwhile = async || ended.store(end(other, collection, &only, last).await, Ordering::Relaxed);
                let was_held = interleave(engine.clone(), nth, write, meanwhile).await.1;
                (ended.into_inner(), was_held)
            } else {
                let end = async |engine| end(engine, collection, &only, last).await;
                let again = of(engine.clone()).await;
                let write = async || drop(again.put(file(&name, &[&chunk])).await.unwrap());
                interleave(engine.clone(), nth, end, write).await
            };
            held[usize::from(is_edit_held)] |= was_held;
            let is_live = read(&documents, &chunk).await.is_some();
            ends[usize::from(is_live)] = true;
            let what = format!("edit held: {is_edit_held}, commit {nth}");
            assert_eq!((ended, trash(&documents).await), (u64::from(!is_live), vec![]), "{what}");
        }
    }
    assert_eq!((held, ends), ([true; 2], [true; 2]), "each was held while the other ran, and each was first");
    assert_sound(&documents).await;
}
