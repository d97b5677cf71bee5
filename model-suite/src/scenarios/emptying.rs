//! The end of the trash: text that every client has passed is removed from it.

use std::sync::atomic::{AtomicU64, Ordering};

use conformance::chaos::{Chaos, Fault};
use conformance::interleave::interleave;
use kv_api::Database;
use model::{Collection, Documents, Emptied, GetOptions, OpenRev, OpenRevs, Passed, Purge, RevId, Seq, WriteMode};

use super::collecting::{ENDED, LONG, NOW, TRASH, TRASH_DOCS, collect, file, ids, of, read, trash};
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
pub(super) async fn empty<D: Database>(
    documents: &Documents<D>,
    chunks: &[&str],
    passed: Seq,
    kept_ms: u64,
) -> Emptied {
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

/// The revisions of these that a client should send.
async fn wanted<D: Database>(documents: &Documents<D>, id: &str, revs: &[&RevId]) -> Vec<RevId> {
    let revs = revs.iter().map(|&rev| rev.clone()).collect();
    let found = documents.revs_diff(vec![(id.to_owned(), revs)]).await.unwrap();
    found.into_iter().flat_map(|diff| diff.missing).collect()
}

/// Sends a first revision, as a client does that never saw the tombstone.
async fn send<D: Database>(documents: &Documents<D>, id: &str, rev: &RevId) {
    let again = vec![replicated(id, &rev.to_string(), TEXT)];
    documents.write(again, WriteMode::Replicated).await.unwrap().remove(0).unwrap();
}

const TEXT: &str = r#"{"data":"text"}"#;

/// Whoever never saw the tombstone has the first revision, which is an ancestor of the tombstone. A text in the trash may
/// end before the file arrives that names it, so it is asked for as one that has ended.
pub(crate) async fn text_that_left_the_trash_is_asked_for_and_written_again(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    for (id, has_left, is_damaged) in
        [("h:ended", true, false), ("h:trashed", false, false), ("h:vain", false, false), ("h:damaged", false, true)]
    {
        let first = documents.put(edit(id, TEXT)).await.unwrap();
        assert_eq!(collect(&documents, &[id]).await, 1);
        let last = last_seq(&documents).await;
        if has_left {
            for ended in [0, 1] {
                assert_eq!(empty(&documents, &[id], last, NOW).await.documents, ended);
            }
        }
        if is_damaged {
            let row = damage::rows(&engine, TRASH, id).await.pop().unwrap();
            damage::put(&engine, &[(&row.key, Some(&row.value[..2]))]).await;
        }
        assert_eq!(wanted(&documents, id, &[&first]).await, std::slice::from_ref(&first), "{id}");
        // A tombstone that is sent again changes nothing.
        let seq = last_seq(&documents).await;
        let deletion = replicated(id, &first.to_string(), "{}").deleting();
        documents.write(vec![deletion], WriteMode::Replicated).await.unwrap().remove(0).unwrap();
        assert_eq!((last_seq(&documents).await, read(&documents, id).await), (seq, None), "{id}");
        if id == "h:vain" {
            // Its file comes with it.
            let edits =
                vec![replicated("f", "1-f", file("f", &[id]).body.as_str()), replicated(id, &first.to_string(), TEXT)];
            for written in documents.write(edits, WriteMode::Replicated).await.unwrap() {
                written.unwrap();
            }
        } else {
            send(&documents, id, &first).await;
        }
        assert_eq!(read(&documents, id).await.as_deref(), Some(TEXT), "{id}");
        // What cannot be read stays.
        assert_eq!(damage::rows(&engine, TRASH, id).await.len(), usize::from(is_damaged), "{id}");
        assert_eq!(damage::rows(&engine, TRASH_DOCS, id).await.is_empty(), !is_damaged, "{id}");
        if is_damaged {
            for subspace in [TRASH, TRASH_DOCS] {
                for row in damage::rows(&engine, subspace, id).await {
                    damage::put(&engine, &[(&row.key, None)]).await;
                }
            }
        }
        let seq = last_seq(&documents).await;
        let again = documents.get(id, &GetOptions::default()).await.unwrap().rev;
        assert_eq!(again.position(), 3, "over the tombstone, so that replicas take it");
        assert_eq!(wanted(&documents, id, &[&first, &again]).await, [], "{id}");
        send(&documents, id, &first).await;
        assert_eq!(last_seq(&documents).await, seq, "it lives");
        a_later_deletion_stays(&documents, id, &first, &again).await;
        assert_sound(&documents).await;
    }
}

/// Somebody else deletes a document that lives again: that is not undone by who has the first revision.
async fn a_later_deletion_stays<D: Database>(documents: &Documents<D>, id: &str, first: &RevId, again: &RevId) {
    documents.put(edit(id, "{}").over(again.clone()).deleting()).await.unwrap();
    let seq = last_seq(documents).await;
    assert_eq!(wanted(documents, id, &[first, again]).await, [], "{id}");
    send(documents, id, first).await;
    assert_eq!((last_seq(documents).await, read(documents, id).await), (seq, None), "{id}");
}

/// A document that lives again, or is written anew after a purge, has no ended text.
pub(crate) async fn a_later_deletion_of_ended_text_is_not_undone(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    for (id, is_purged) in [("h:written", false), ("h:purged", true)] {
        let first = documents.put(edit(id, TEXT)).await.unwrap();
        assert_eq!(collect(&documents, &[id]).await, 1);
        let last = last_seq(&documents).await;
        for ended in [0, 1] {
            assert_eq!(empty(&documents, &[id], last, NOW).await.documents, ended);
        }
        assert_eq!(damage::rows(&engine, ENDED, id).await.len(), 1, "{id}");
        if is_purged {
            let tombstone = documents.open_revs(id, &OpenRevs::All, &GetOptions::default()).await.unwrap();
            let [OpenRev::Found(tombstone)] = &tombstone[..] else { panic!("{tombstone:?}") };
            let purge = Purge::new(id, vec![tombstone.rev.clone()]);
            documents.purge(&[purge]).await.unwrap().remove(0).unwrap();
            assert_eq!(damage::rows(&engine, ENDED, id).await.len(), 0, "{id}");
        }
        // By whoever has the tombstone, or nothing of it.
        let again = documents.put(edit(id, TEXT)).await.unwrap();
        assert_eq!(again.position(), if is_purged { 1 } else { 3 });
        assert_eq!(damage::rows(&engine, ENDED, id).await.len(), 0, "{id}");
        a_later_deletion_stays(&documents, id, &first, &again).await;
    }
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

/// Writes a file that names a chunk, or sends this revision of the chunk again.
async fn name_or_send<D: Database>(documents: &Documents<D>, name: &str, chunk: &str, sent: Option<&RevId>) {
    match sent {
        Some(first) => send(documents, chunk, first).await,
        None => drop(documents.put(file(name, &[chunk])).await.unwrap()),
    }
}

/// The end of a text beside an edit that names it, or one that sends it again, at each of their commits, whichever is
/// held.
pub(crate) async fn an_edit_beside_the_end_of_a_text_is_before_or_after_it(stage: Stage) {
    let engine = stage.engine();
    let documents = stage.documents().await;
    for sends in [false, true] {
        let (mut number, mut held, mut ends) = (0, [false; 2], [false; 2]);
        for is_edit_held in [false, true] {
            for nth in 0..3 {
                number += 1;
                let (chunk, name) = (format!("h:{sends}{number}"), format!("f{sends}{number}"));
                let first = documents.put(edit(&chunk, TEXT)).await.unwrap();
                assert_eq!(collect(&documents, &[&chunk]).await, 1);
                let last = last_seq(&documents).await;
                assert_eq!(empty(&documents, &[&chunk], last, NOW).await.passed, 1);
                let (collection, only) = (documents.begin_collection().await.unwrap(), ids(&[&chunk]));
                let (other, ended) = (engine.clone(), AtomicU64::new(0));
                let sent = sends.then_some(&first);
                let (ended, was_held) = if is_edit_held {
                    let write = async |engine| name_or_send(&of(engine).await, &name, &chunk, sent).await;
                    let meanwhile = async || ended.store(end(other, collection, &only, last).await, Ordering::Relaxed);
                    let was_held = interleave(engine.clone(), nth, write, meanwhile).await.1;
                    (ended.into_inner(), was_held)
                } else {
                    let end = async |engine| end(engine, collection, &only, last).await;
                    let again = of(engine.clone()).await;
                    interleave(engine.clone(), nth, end, async || name_or_send(&again, &name, &chunk, sent).await).await
                };
                held[usize::from(is_edit_held)] |= was_held;
                let is_live = read(&documents, &chunk).await.is_some();
                ends[usize::from(ended == 0)] = true;
                let what = format!("sends: {sends}, edit held: {is_edit_held}, commit {nth}");
                // What is sent is there, before the end and after it.
                let is_sent = sends && (is_edit_held || was_held);
                assert_eq!((is_live, trash(&documents).await), (is_sent || ended == 0, vec![]), "{what}");
            }
        }
        assert_eq!((held, ends), ([true; 2], [true; 2]), "each was held while the other ran, and each was first");
    }
    assert_sound(&documents).await;
}
