//! Purges: leaves are removed as if they had never existed, and the purge is remembered.

use std::ops::ControlFlow;

use bytes::Bytes;
use conformance::chaos::{Chaos, Fault, Rates};
use kv_api::{Database, KeyValue, RangeRequest, Read, TransactionExt};
use model::{
    AllDocsRequest, AttachmentEdit, ChangesRequest, Documents, Edit, ErrorKind, GetOptions, Layer, LayerOptions, Purge,
    RelocateOptions, RevId, WriteMode, relocate,
};

use super::attachments::inline;
use super::costs::{cost_of_a_life, counted};
use super::damage::{self, DOCS, REVISIONS};
use crate::stage::*;

const PURGES: u8 = 15;

fn purge(id: &str, revs: &[&str]) -> Purge {
    Purge::new(id, revs.iter().map(|text| rev(text)).collect())
}

/// The leaves that one purge removes.
async fn purged<D: Database>(documents: &Documents<D>, purge: Purge) -> Vec<RevId> {
    documents.purge(&[purge]).await.unwrap().pop().unwrap().unwrap()
}

/// All rows of documents and attachments in the only database, and the counters.
async fn rows_of_documents<D: Database>(engine: &D) -> Vec<KeyValue> {
    let range = RangeRequest::keys(
        Bytes::from_static(&[0x15, 4, 0x14, 0x15, REVISIONS]),
        Bytes::from_static(&[0x15, 4, 0x14, 0x15, PURGES]),
    );
    engine.begin().unwrap().get_all(range, Read::Snapshot).await.unwrap()
}

pub(crate) async fn purged_leaves_go_and_the_others_stay(stage: Stage) {
    let documents = stage.documents().await;
    for path in ["3-d b a", "3-c b a", "1-z"] {
        merge(&documents, replicated("a", path, r#"{"n":1}"#)).await;
    }
    merge(&documents, replicated("a", "2-dead a", "{}").deleting()).await;
    let other = documents.put(edit("b", "{}")).await.unwrap();
    let since = documents.last_seq().await.unwrap();

    // The winner, an ancestor, an unknown revision, and a repetition.
    let asked = purge("a", &["3-d", "2-b", "9-q", "3-d"]);
    let answer = documents.purge(&[asked, purge("nobody", &["1-x"]), purge("b", &[])]).await.unwrap();
    let answer: Vec<Vec<RevId>> = answer.into_iter().map(Result::unwrap).collect();
    assert_eq!(answer, [vec![rev("3-d")], vec![], vec![]]);
    assert_eq!((get(&documents, "a").await.rev, lost(&documents, "a").await), (rev("3-c"), vec![rev("1-z")]));
    let after = feed(&documents, ChangesRequest { since: model::Since::Seq(since), ..Default::default() }).await;
    assert_eq!(after.len(), 1, "what is left has a new sequence, and nobody else has: {after:?}");
    assert_eq!((after[0].id.as_str(), &after[0].revs[0]), ("a", &rev("3-c")));
    let diff = documents.revs_diff(vec![("a".into(), vec![rev("3-d"), rev("2-b")])]).await.unwrap();
    assert_eq!(diff[0].missing, [rev("3-d")], "an ancestor that another leaf has is known");

    // A loser: the winner stays, with a new sequence. Then the rest together, in the order of revisions.
    assert_eq!(purged(&documents, purge("a", &["1-z"])).await, [rev("1-z")]);
    assert_eq!((get(&documents, "a").await.rev, lost(&documents, "a").await), (rev("3-c"), vec![]));
    assert_sound(&documents).await;
    assert_eq!(purged(&documents, purge("a", &["3-c", "2-dead"])).await, [rev("2-dead"), rev("3-c")]);
    assert!(is_missing(&documents, "a").await);
    let rows = feed(&documents, ChangesRequest::default()).await;
    assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(list(&documents, AllDocsRequest::default()).await.len(), 1);
    let info = documents.info().await.unwrap();
    assert_eq!((info.doc_count, info.doc_del_count, info.purge_seq), (1, 0, 5), "each document named counts");
    assert_sound(&documents).await;

    // The document can be created again, and a replica restores it.
    assert_eq!(documents.put(edit("a", r#"{"n":2}"#)).await.unwrap().position(), 1);
    merge(&documents, replicated("a", "3-d b a", r#"{"n":1}"#)).await;
    assert_eq!(get(&documents, "a").await.rev, rev("3-d"));
    assert_eq!(get(&documents, "b").await.rev, other);
    let infos = documents.purged_infos(0).await.unwrap();
    let seen: Vec<_> =
        infos.iter().map(|info| (info.seq, info.id.as_str(), info.revs.len(), info.purged.len())).collect();
    assert_eq!(seen, [(1, "a", 3, 1), (2, "nobody", 1, 0), (3, "b", 0, 0), (4, "a", 1, 1), (5, "a", 2, 2)]);
    assert_eq!(documents.purged_infos(4).await.unwrap(), infos[4..]);
    assert_sound(&documents).await;
}

pub(crate) async fn a_purge_of_deleted_documents_leaves_what_is_alive(stage: Stage) {
    let documents = stage.documents().await;
    for id in ["gone", "back", "both"] {
        merge(&documents, replicated(id, "2-b a", "{}").deleting()).await;
    }
    // After the tombstones were listed, one document was written again, and another one got a live leaf.
    documents.put(edit("back", "{}")).await.unwrap();
    merge(&documents, replicated("both", "1-x", "{}")).await;
    let purges: Vec<Purge> = ["gone", "back", "both", "never"].map(|id| purge(id, &["2-b"])).into();
    let results = documents.purge_deleted(&purges).await.unwrap();
    let purged: Vec<usize> = results.into_iter().map(|revs| revs.unwrap().len()).collect();
    assert_eq!(purged, [1, 0, 0, 0]);
    assert!(is_missing(&documents, "gone").await);
    let all = GetOptions { deleted_conflicts: true, ..GetOptions::default() };
    let both = documents.get("both", &all).await.unwrap();
    assert_eq!((both.rev, both.deleted_conflicts), (rev("1-x"), Some(vec![rev("2-b")])));
    assert_eq!(documents.purge(&purges[2..3]).await.unwrap()[0].as_ref().unwrap().len(), 1, "a purge as such takes it");
    assert_eq!(documents.deleted_document_ttl().await.unwrap(), None);
    documents.set_deleted_document_ttl(Some("3_mon")).await.unwrap();
    documents.set_purged_infos_limit(7).await.unwrap();
    assert_eq!(documents.deleted_document_ttl().await.unwrap().as_deref(), Some("3_mon"));
    assert_eq!(documents.purged_infos_limit().await.unwrap(), 7);
    assert_sound(&documents).await;
}

pub(crate) async fn what_is_purged_leaves_nothing_but_its_purge(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    let shared = || inline("shared", "x", vec![7; 3_000]);
    documents.put(Edit { attachments: vec![shared()], ..edit("stays", r#"{"n":1}"#) }).await.unwrap();
    let (before, info_before) = (rows_of_documents(&engine).await, documents.info().await.unwrap());

    let own = || vec![shared(), inline("own", "text/plain", "of this document alone")];
    let mut last = documents.put(Edit { attachments: own(), ..edit("a", r#"{"a":{"b":[1,2]}}"#) }).await.unwrap();
    for n in 0..20 {
        let attachments = vec![AttachmentEdit::stub("own"), AttachmentEdit::stub("shared")];
        last = documents.put(Edit { attachments, ..edit("a", &format!(r#"{{"n":{n}}}"#)).over(last) }).await.unwrap();
    }
    merge(&documents, Edit { attachments: own(), ..replicated("a", "2-c", r#"{"x":1}"#) }).await;
    let dead = documents.put(edit("dead", "{}")).await.unwrap();
    let dead = documents.put(edit("dead", r#"{"why":"old"}"#).over(dead).deleting()).await.unwrap();

    let all = [Purge::new("a", vec![last, rev("2-c")]), Purge::new("dead", vec![dead])];
    for (purge, went) in all.iter().zip(documents.purge(&all).await.unwrap()) {
        assert_eq!(went.unwrap().len(), purge.revs.len());
    }
    assert_eq!(rows_of_documents(&engine).await, before, "no row of them is left");
    let info = documents.info().await.unwrap();
    let counts = |info: &model::DatabaseInfo| (info.doc_count, info.doc_del_count, info.sizes.external);
    assert_eq!(counts(&info), counts(&info_before));
    assert_eq!(damage::rows(&engine, PURGES, "").await.len(), 4, "each purge has a row and a name");
    assert_sound(&documents).await;
}

pub(crate) async fn a_purge_of_unknown_result_is_done_once(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    for (n, fault) in [Fault::UnknownCommitted, Fault::UnknownNotCommitted].into_iter().enumerate() {
        merge(&documents, replicated("a", "1-x", "{}")).await;
        merge(&documents, replicated("a", "1-y", "{}")).await;
        let faults = [fault, fault, Fault::NotCommitted, fault];
        let chaos = Chaos::scripted(engine.clone(), faults.into_iter().map(Some));
        let faulty = layer(chaos).await.database("db").await.unwrap();
        assert_eq!(purged(&faulty, purge("a", &["1-x"])).await, [rev("1-x")], "{fault:?}");
        assert_eq!(documents.purge_seq().await.unwrap(), n as u64 + 1, "{fault:?}");
        assert_sound(&documents).await;
    }

    // After an unknown result a client repeats the purge with its UUID, whatever was restored meanwhile.
    let named = Purge { uuid: Some([7; 16]), ..purge("a", &["1-y"]) };
    assert_eq!(purged(&documents, named.clone()).await, [rev("1-y")]);
    assert!(is_missing(&documents, "a").await);
    merge(&documents, replicated("a", "1-y", "{}")).await;
    let seq = documents.last_seq().await.unwrap();
    assert_eq!(purged(&documents, named.clone()).await, [rev("1-y")], "as it was answered then");
    let both =
        documents.purge(&[named.clone(), Purge { uuid: Some([8; 16]), ..purge("b", &[]) }, named]).await.unwrap();
    assert_eq!(both.into_iter().map(|one| one.unwrap().len()).collect::<Vec<_>>(), [1, 0, 1]);
    assert_eq!((get(&documents, "a").await.rev, documents.last_seq().await.unwrap()), (rev("1-y"), seq));
    assert_eq!(documents.purge_seq().await.unwrap(), 4);
    assert_sound(&documents).await;
}

pub(crate) async fn a_uuid_belongs_to_one_purge(stage: Stage) {
    let documents = stage.documents().await;
    for id in ["a", "b"] {
        for path in ["1-x", "1-y"] {
            merge(&documents, replicated(id, path, "{}")).await;
        }
    }
    let named = |id, revs: &[&str]| Purge { uuid: Some([7; 16]), ..purge(id, revs) };
    assert_eq!(purged(&documents, named("a", &["1-y"])).await, [rev("1-y")]);
    // Purges with this UUID of another document or other revisions are refused individually, in the same request or
    // later.
    let other = || [named("b", &["1-y"]), purge("a", &["1-q"]), named("a", &["1-x"]), named("a", &["1-y"])];
    for round in 0..2 {
        let answers = documents.purge(&other()).await.unwrap();
        let statuses: Vec<u16> = answers
            .iter()
            .map(|answer| answer.as_ref().map_or_else(model::Error::status, |revs| revs.len() as u16))
            .collect();
        assert_eq!(statuses, [400, 0, 400, 1], "round {round}");
        let reason = answers[0].as_ref().unwrap_err().to_string();
        assert!(reason.contains("Duplicate purge info UUID: 0707070707"), "{reason}");
    }
    let both = [rev("1-x"), rev("1-y")];
    assert_eq!(get(&documents, "b").await.rev, both[1]);
    assert_eq!(lost(&documents, "b").await, both[..1]);
    assert_eq!(get(&documents, "a").await.rev, both[0]);
    assert_eq!(documents.purge_seq().await.unwrap(), 3, "refused purges are not remembered");

    // The parts of a large purge do not take UUIDs near its own.
    let zeros = "\0".repeat(200);
    let many: Vec<RevId> = (0..300).map(|n| rev(&format!("1-{zeros}{n:04}"))).collect();
    let near: Vec<[u8; 16]> = (0..4).map(|n| (u128::from_be_bytes([9; 16]) ^ n).to_be_bytes()).collect();
    merge(&documents, replicated("wide", &format!("1-{zeros}0299"), "{}")).await;
    let wide = Purge { uuid: Some(near[0]), ..Purge::new("wide", many) };
    assert_eq!(purged(&documents, wide.clone()).await, [rev(&format!("1-{zeros}0299"))]);
    let rows = documents.purge_seq().await.unwrap();
    assert!(rows > 4, "several rows: {rows}");
    for (uuid, id) in near.iter().skip(1).zip(["c", "d", "e"]) {
        merge(&documents, replicated(id, "1-x", "{}")).await;
        let next = Purge { uuid: Some(*uuid), ..purge(id, &["1-x"]) };
        assert_eq!(purged(&documents, next).await, [rev("1-x")]);
        assert!(is_missing(&documents, id).await);
    }
    // Repeated, every part of it is known.
    merge(&documents, replicated("wide", &format!("1-{zeros}0299"), "{}")).await;
    assert_eq!(purged(&documents, wide.clone()).await, [rev(&format!("1-{zeros}0299"))]);
    assert_eq!(documents.purge_seq().await.unwrap(), rows + 3);
    assert!(!is_missing(&documents, "wide").await, "it came back after the purge");
    // A part of a refused purge does nothing.
    let more = Purge { id: "f".to_owned(), ..wide };
    merge(&documents, replicated("f", &format!("1-{zeros}0299"), "{}")).await;
    assert_eq!(documents.purge(&[more]).await.unwrap().pop().unwrap().unwrap_err().status(), 400);
    assert!(!is_missing(&documents, "f").await);
    assert_sound(&documents).await;
}

pub(crate) async fn the_oldest_purges_are_forgotten(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    assert_eq!(documents.purged_infos_limit().await.unwrap(), 1_000);
    assert_eq!(documents.set_purged_infos_limit(0).await.unwrap_err().status(), 400);
    let some = |from: usize, to: usize| (from..to).map(|n| purge(&format!("doc-{n}"), &["1-x"])).collect::<Vec<_>>();
    documents.purge(&some(0, 250)).await.unwrap();
    documents.set_purged_infos_limit(7).await.unwrap();
    assert_eq!(documents.purged_infos_limit().await.unwrap(), 7);
    // One transaction with more purges than are kept. The older ones are removed too.
    documents.purge(&some(250, 260)).await.unwrap();
    let infos = documents.purged_infos(0).await.unwrap();
    assert_eq!(infos.iter().map(|info| info.seq).collect::<Vec<_>>(), (254..=260).collect::<Vec<_>>());
    assert_eq!(damage::rows(&engine, PURGES, "").await.len(), 1 + 2 * 7, "their names go with them");
    documents.set_purged_infos_limit(1).await.unwrap();
    documents.purge(&some(0, 1)).await.unwrap();
    assert_eq!(documents.purged_infos(0).await.unwrap().iter().map(|info| info.seq).collect::<Vec<_>>(), [261]);
    assert_eq!(documents.info().await.unwrap().purge_seq, 261);
    assert_sound(&documents).await;
}

pub(crate) async fn large_purges_take_several_transactions(stage: Stage) {
    let documents = stage.documents().await;
    // Leaves whose hashes have zeros, which take twice the bytes.
    let zeros = "\0".repeat(200);
    let names: Vec<String> = (0..300).map(|n| format!("1-{zeros}{n:04}")).collect();
    let leaves: Vec<Edit> = names.iter().map(|name| replicated("wide", name, r#"{"n":1}"#)).collect();
    let revs: Vec<RevId> = names.iter().map(|name| rev(name)).collect();
    for result in documents.write(leaves, WriteMode::Replicated).await.unwrap() {
        result.unwrap();
    }
    let edits: Vec<Edit> = (0..450).map(|n| edit(&format!("doc-{n}"), "{}")).collect();
    let made = documents.write(edits.clone(), WriteMode::Interactive).await.unwrap();
    let mut purges: Vec<Purge> =
        edits.iter().zip(made).map(|(edit, made)| Purge::new(edit.id.clone(), vec![made.unwrap()])).collect();
    purges.push(Purge::new("wide", revs.clone()));
    purges.push(Purge::new("doc-7", vec![rev("1-x")]));
    let mut went = documents.purge(&purges).await.unwrap();
    assert_eq!(went.pop().unwrap().unwrap(), []);
    assert_eq!(went.pop().unwrap().unwrap(), revs);
    assert!(went.into_iter().all(|went| went.unwrap().len() == 1));
    let info = documents.info().await.unwrap();
    assert_eq!((info.doc_count, info.sizes.external), (0, 0));
    assert!(info.purge_seq > 452, "the many revisions take several rows: {}", info.purge_seq);
    assert_sound(&documents).await;
}

pub(crate) async fn of_a_purge_and_an_edit_at_the_same_time_one_comes_first(stage: Stage) {
    let rates = Rates { latency: 1.0, longest: std::time::Duration::from_millis(2), ..Rates::default() };
    let documents = database(Chaos::new(stage.engine(), 3, rates)).await;
    for n in 0..10 {
        let id = format!("doc-{n}");
        let first = documents.put(edit(&id, "{}")).await.unwrap();
        let over = documents.put(edit(&id, r#"{"n":1}"#).over(first.clone()));
        let purge = [Purge::new(id.clone(), vec![first.clone()])];
        let (edited, went) = futures_util::future::join(over, documents.purge(&purge)).await;
        match (edited, went.unwrap().pop().unwrap().unwrap().as_slice()) {
            (Ok(second), []) => assert_eq!(get(&documents, &id).await.rev, second),
            (Err(error), [gone]) => {
                assert_eq!((error.status(), gone), (409, &first));
                assert!(is_missing(&documents, &id).await);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_sound(&stage.layer().await.database("db").await.unwrap()).await;
}

pub(crate) async fn a_purge_of_damaged_rows_leaves_them(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    for id in ["a", "b", "c"] {
        merge(&documents, replicated(id, "1-x", r#"{"n":1}"#)).await;
    }
    let with = Edit { attachments: vec![inline("f", "x", "content")], ..replicated("att", "1-x", "{}") };
    merge(&documents, with).await;
    let branch = damage::rows(&engine, REVISIONS, "b").await.remove(0);
    let attached = damage::rows(&engine, DOCS, "att").await.pop().unwrap();
    for row in [&branch, &attached] {
        damage::put(&engine, &[(&row.key, Some(&row.value[..row.value.len() - 3]))]).await;
    }
    let before = (damage::rows(&engine, REVISIONS, "b").await, damage::rows(&engine, DOCS, "att").await);
    let all = ["a", "b", "att", "c"].map(|id| purge(id, &["1-x"]));
    let statuses: Vec<u16> = documents
        .purge(&all)
        .await
        .unwrap()
        .into_iter()
        .map(|went| went.map_or_else(|error| error.status(), |went| went.len() as u16))
        .collect();
    assert_eq!(statuses, [1, 500, 500, 1]);
    assert_eq!((damage::rows(&engine, REVISIONS, "b").await, damage::rows(&engine, DOCS, "att").await), before);
    assert_eq!(documents.purge_seq().await.unwrap(), 2, "what was not done is not remembered");
    for row in [&branch, &attached] {
        damage::put(&engine, &[(&row.key, Some(&row.value))]).await;
    }
    assert_sound(&documents).await;

    // An unreadable remembered purge fails only its own repetition.
    let rows = damage::rows(&engine, PURGES, "").await;
    assert_eq!(rows.len(), 4);
    let [of_a, _] = &documents.purged_infos(0).await.unwrap()[..] else { panic!("two are remembered") };
    let again = Purge { uuid: Some(of_a.uuid), ..purge("a", &["1-x"]) };
    let [_, _, row_of_a, _] = &rows[..] else { unreachable!() };
    let row_of_uuid = rows.iter().find(|row| row_of_a.key.ends_with(&row.value)).unwrap();
    for (number, row) in [row_of_a, row_of_uuid].into_iter().enumerate() {
        damage::put(&engine, &[(&row.key, Some(&row.value[..1]))]).await;
        merge(&documents, replicated("new", "1-x", "{}")).await;
        let went = documents.purge(&[again.clone(), purge("new", &["1-x"])]).await.unwrap();
        assert_eq!(went[0].as_ref().map_err(model::Error::status), Err(500), "{number}");
        assert_eq!(went[1].as_deref().unwrap(), [rev("1-x")], "{number}");
        damage::put(&engine, &[(&row.key, Some(&row.value))]).await;
    }
    assert_eq!(purged(&documents, again).await, [rev("1-x")]);
    assert_sound(&documents).await;

    // Damage to the rows of purges is found.
    let rows = damage::rows(&engine, PURGES, "").await;
    assert_eq!(rows.len(), 8);
    for row in &rows {
        for value in [None, Some(&row.value[..1])] {
            damage::put(&engine, &[(&row.key, value)]).await;
            assert!(!documents.check(|_| ()).await.unwrap().is_sound(), "{row:?} as {value:?}");
        }
        damage::put(&engine, &[(&row.key, Some(&row.value))]).await;
    }
    assert_sound(&documents).await;
}

pub(crate) async fn documents_purged_while_they_are_copied_do_not_arrive(stage: Stage) {
    let at = async |prefix: &'static str| {
        let options = LayerOptions { prefix: Bytes::from_static(prefix.as_bytes()), ..LayerOptions::default() };
        Layer::open(stage.engine(), options).await.unwrap()
    };
    // With purges that are all remembered, and with some that were forgotten before they were copied.
    for (kept, prefixes) in [(1_000, ["a", "b"]), (2, ["c", "d"])] {
        let (from, to) = (at(prefixes[0]).await, at(prefixes[1]).await);
        let documents = from.create_database("db", Default::default()).await.unwrap();
        documents.set_purged_infos_limit(kept).await.unwrap();
        let contents = || vec![inline("f", "x", vec![3; 2_000])];
        let edits = (0..450).map(|n| replicated(&format!("doc-{n:03}"), "1-x", r#"{"n":1}"#));
        let edits = edits.enumerate().map(|(n, edit)| match n % 100 {
            0 => Edit { attachments: contents(), ..edit },
            _ => edit,
        });
        for result in documents.write(edits.collect(), WriteMode::Replicated).await.unwrap() {
            result.unwrap();
        }
        // A document of several transactions, whose copy may be interrupted in between.
        let long = format!(r#"{{"l":["{}"]}}"#, vec!["x".repeat(900); 900].join("\",\""));
        merge(&documents, replicated("large", "1-x", &long)).await;
        documents.purge(&[purge("doc-449", &["1-x"])]).await.unwrap();
        let options = RelocateOptions { verify: true, ..RelocateOptions::default() };
        let mut gone = vec!["doc-449".to_owned()];
        // Interrupted later each time, with purges in between.
        for calls in 1..6 {
            let mut left = calls;
            let broken = relocate(&from, &to, "db", &options, |_| {
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert_eq!(*broken.await.unwrap_err().kind(), ErrorKind::Stopped);
            let some: Vec<String> = (0..5).map(|n| format!("doc-{:03}", calls * 50 + n)).collect();
            let some = if calls == 5 { vec!["large".to_owned()] } else { some };
            let purges: Vec<Purge> = some.iter().map(|id| purge(id, &["1-x"])).collect();
            for went in documents.purge(&purges).await.unwrap() {
                assert_eq!(went.unwrap().len(), 1);
            }
            gone.extend(some);
        }
        // One document is restored, and one keeps a leaf.
        merge(&documents, replicated(&gone[1], "2-y", "{}")).await;
        gone.remove(1);
        merge(&documents, replicated("doc-300", "1-a", "{}")).await;
        documents.purge(&[purge("doc-300", &["1-x"])]).await.unwrap();
        let report = relocate(&from, &to, "db", &options, |_| ControlFlow::Continue(())).await.unwrap();
        assert!(report.moved && report.is_same(), "{report:?}");
        let arrived = to.database("db").await.unwrap();
        for id in &gone {
            assert!(is_missing(&arrived, id).await, "{id}");
        }
        assert_eq!(get(&arrived, "doc-300").await.rev, rev("1-a"));
        let info = arrived.info().await.unwrap();
        assert_eq!((info.doc_count, info.purge_seq), (451 - gone.len() as u64, 23));
        assert_eq!(arrived.purged_infos(0).await.unwrap().len() as u64, 23.min(kept));
        assert_sound(&arrived).await;
        // A purge at the target after the move does not count as a difference.
        purged(&arrived, purge("doc-001", &["1-x"])).await;
        let again = relocate(&from, &to, "db", &options, |_| ControlFlow::Continue(())).await.unwrap();
        assert!(again.moved_before && again.is_same(), "{again:?}");
        assert_eq!(again.verified.unwrap().edited_since, 1);
    }
}

pub(crate) async fn databases_without_purges_pay_nothing_for_them(stage: Stage) {
    let (counted, documents) = counted(stage.engine()).await;
    let before = cost_of_a_life(&counted, &documents, "a").await;
    assert_eq!(damage::rows(&counted, PURGES, "").await.len(), 0);
    for id in ["a", "nobody"] {
        purged(&documents, purge(id, &["1-x"])).await;
    }
    let mut after = cost_of_a_life(&counted, &documents, "b").await;
    // Information about the database reads the last purge.
    let (last, info) = (after.last_mut().unwrap(), before.last().unwrap());
    assert_eq!((last.kvs_read, last.round_trips), (info.kvs_read + 1, info.round_trips));
    *last = *info;
    assert_eq!(after, before);

    merge(&documents, replicated("a", "2-c b", r#"{"n":1}"#)).await;
    counted.take();
    purged(&documents, purge("a", &["2-c"])).await;
    let counts = counted.take();
    assert_eq!(counts.len(), 1);
    let rows = counts[0].kvs_read - counts[0].kvs_read_separately;
    assert!(rows <= 4 && counts[0].round_trips <= 2, "its branches and the last purge: {:?}", counts[0]);
}
