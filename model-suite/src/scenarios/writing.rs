//! Interactive edits: winners, conflicts and counters.

use model::{BodyFormat, ChangesRequest, CreateOptions, ErrorKind, GetOptions, NotFound, OpenRev, OpenRevs, WriteMode};

use crate::stage::*;

pub(crate) async fn a_document_is_written_read_changed_and_deleted(stage: Stage) {
    let documents = stage.documents().await;
    let first = documents.put(edit("a", r#"{"key":1}"#)).await.unwrap();
    assert_eq!(first, rev("1-c77eb5d5af83163c996ea42b61a9f0d8"));
    let read = get(&documents, "a").await;
    assert_eq!((read.rev, read.body.as_str()), (first.clone(), r#"{"key":1}"#));

    let second = documents.put(edit("a", r#"{"key":2}"#).over(first.clone())).await.unwrap();
    assert_eq!(second.position(), 2);
    assert_eq!(get(&documents, "a").await.body.as_str(), r#"{"key":2}"#);
    let stale = documents.put(edit("a", "{}").over(first)).await.unwrap_err();
    assert_eq!((stale.status(), stale.error()), (409, "conflict"));

    let third = documents.put(edit("a", "{}").over(second).deleting()).await.unwrap();
    let gone = documents.get("a", &GetOptions::default()).await.unwrap_err();
    assert_eq!(*gone.kind(), ErrorKind::NotFound(NotFound::Deleted));
    let never = documents.get("b", &GetOptions::default()).await.unwrap_err();
    assert_eq!(*never.kind(), ErrorKind::NotFound(NotFound::Missing));

    let changes = documents.changes(&ChangesRequest::default()).await.unwrap();
    assert_eq!(changes.rows.len(), 1);
    assert_eq!((changes.rows[0].deleted, &changes.rows[0].revs), (true, &vec![third]));
    let info = documents.info().await.unwrap();
    assert_eq!((info.doc_count, info.doc_del_count, info.sizes.external), (0, 1, 0));
    assert_eq!(changes.last_seq, info.update_seq.seq);
    assert_sound(&documents).await;
}

pub(crate) async fn revisions_are_those_that_couchdb_makes(stage: Stage) {
    let documents = stage.documents().await;
    assert_eq!(documents.put(edit("empty", "{}")).await.unwrap(), rev("1-967a00dff5e02add41819138abb3284d"));
    let mut last = None;
    for (body, made) in [
        (r#"{"val":"r0"}"#, "1-47f3268e7546965196b57572099f4372"),
        (r#"{"val":"r1"}"#, "2-1d8171ab3a91475cfece749291e6f897"),
        (r#"{"val":"r2"}"#, "3-3fb0a342d2ce092fdcc77856dbe8a2ef"),
    ] {
        let mut edit = edit("a", body);
        edit.rev = last;
        last = Some(documents.put(edit).await.unwrap());
        assert_eq!(last, Some(rev(made)));
    }
    // The same edits elsewhere make the same revisions, so they replicate without a conflict.
    let read = documents.get("a", &GetOptions { revs: true, ..GetOptions::default() }).await.unwrap();
    let elsewhere = edit("b", read.body.as_str()).with_history(read.revisions.unwrap());
    let made = documents.put(edit("b", r#"{"val":"r0"}"#)).await.unwrap();
    documents.put(edit("b", r#"{"val":"r1"}"#).over(made)).await.unwrap();
    merge(&documents, elsewhere).await;
    assert_eq!((get(&documents, "b").await.rev, lost(&documents, "b").await), (read.rev, Vec::new()));
    assert_sound(&documents).await;
}

pub(crate) async fn edits_of_what_is_no_live_leaf_conflict(stage: Stage) {
    let documents = stage.documents().await;
    let conflicts = async |edit: model::Edit| {
        let before = documents.last_seq().await.unwrap();
        let error = documents.put(edit.clone()).await.expect_err(&format!("{edit:?}"));
        assert_eq!(*error.kind(), ErrorKind::Conflict, "{edit:?}");
        assert_eq!(documents.last_seq().await.unwrap(), before, "a conflict writes nothing");
    };
    let unknown = rev("1-967a00dff5e02add41819138abb3284d");
    // No document: the revision is unknown.
    conflicts(edit("a", "{}").over(unknown.clone())).await;
    conflicts(edit("a", "{}").over(unknown.clone()).deleting()).await;

    let first = documents.put(edit("a", r#"{"n":1}"#)).await.unwrap();
    // A live document: no revision, an unknown one, and the right hash at the wrong position.
    conflicts(edit("a", "{}")).await;
    conflicts(edit("a", "{}").deleting()).await;
    conflicts(edit("a", "{}").over(unknown.clone())).await;
    conflicts(edit("a", "{}").over(model::RevId::new(2, first.hash().clone()).unwrap())).await;

    let second = documents.put(edit("a", r#"{"n":2}"#).over(first.clone())).await.unwrap();
    // An ancestor.
    conflicts(edit("a", "{}").over(first.clone())).await;
    conflicts(edit("a", "{}").over(first.clone()).deleting()).await;

    let third = documents.put(edit("a", "{}").over(second.clone()).deleting()).await.unwrap();
    // A tombstone, by its revision (the RFC's only difference from CouchDB 2).
    conflicts(edit("a", "{}").over(third.clone())).await;
    conflicts(edit("a", "{}").over(third).deleting()).await;
    conflicts(edit("a", "{}").over(second)).await;
    conflicts(edit("a", "{}").deleting()).await;

    // A tombstone beside a live branch.
    merge(&documents, replicated("b", "1-live", "{}")).await;
    merge(&documents, replicated("b", "2-dead live0", "{}").deleting()).await;
    conflicts(edit("b", "{}").over(rev("2-dead"))).await;
    conflicts(edit("b", "{}")).await;
    assert_sound(&documents).await;
}

pub(crate) async fn recreating_goes_on_from_the_winning_tombstone(stage: Stage) {
    let documents = stage.documents().await;
    let first = documents.put(edit("a", "{}")).await.unwrap();
    let second = documents.put(edit("a", "{}").over(first.clone()).deleting()).await.unwrap();
    // A second, lower tombstone, which must stay.
    merge(&documents, replicated("a", "1-other", "{}").deleting()).await;
    let third = documents.put(edit("a", "{}")).await.unwrap();
    assert_eq!(third.position(), 3);
    let options = GetOptions { revs: true, deleted_conflicts: true, ..GetOptions::default() };
    let read = documents.get("a", &options).await.unwrap();
    let ids = read.revisions.unwrap().ids;
    assert_eq!(ids, [third.hash().clone(), second.hash().clone(), first.hash().clone()]);
    assert_eq!(read.deleted_conflicts.unwrap(), [rev("1-other")]);
    let info = documents.info().await.unwrap();
    assert_eq!((info.doc_count, info.doc_del_count), (1, 0));
    assert_sound(&documents).await;
}

pub(crate) async fn a_deletion_without_revision_only_of_what_never_was(stage: Stage) {
    let documents = stage.documents().await;
    let made = documents.put(edit("a", r#"{"why":"x"}"#).deleting()).await.unwrap();
    assert_eq!(made.position(), 1);
    let again = documents.put(edit("a", "{}").deleting()).await.unwrap_err();
    assert_eq!(again.status(), 409);
    assert_sound(&documents).await;
}

pub(crate) async fn losing_branches_are_extended_and_may_win(stage: Stage) {
    let documents = stage.documents().await;
    merge(&documents, replicated("a", "2-zz a", r#"{"n":1}"#)).await;
    merge(&documents, replicated("a", "2-bb a", r#"{"n":2}"#)).await;
    assert_eq!(get(&documents, "a").await.rev, rev("2-zz"));
    // The losing branch grows past the winner.
    let grown = documents.put(edit("a", r#"{"n":3}"#).over(rev("2-bb"))).await.unwrap();
    assert_eq!(get(&documents, "a").await.rev, grown);
    assert_eq!(lost(&documents, "a").await, [rev("2-zz")]);
    // A losing branch is deleted: the winner stays, and the sequence changes.
    let before = documents.last_seq().await.unwrap();
    documents.put(edit("a", "{}").over(rev("2-zz")).deleting()).await.unwrap();
    let changes = feed(&documents, ChangesRequest::default()).await;
    assert_eq!((changes.len(), changes[0].deleted, &changes[0].revs[0]), (1, false, &grown));
    assert!(changes[0].seq > before);
    assert_eq!(lost(&documents, "a").await, []);
    assert_sound(&documents).await;
}

pub(crate) async fn deleting_the_winner_lets_the_next_win(stage: Stage) {
    let documents = stage.documents().await;
    for path in ["3-cc b a", "2-bb a", "1-aa"] {
        merge(&documents, replicated("a", path, r#"{"n":1}"#)).await;
    }
    documents.put(edit("a", "{}").over(rev("3-cc")).deleting()).await.unwrap();
    assert_eq!(get(&documents, "a").await.rev, rev("2-bb"));
    let changes = feed(&documents, ChangesRequest::default()).await;
    assert_eq!((changes.len(), changes[0].deleted, &changes[0].revs[0]), (1, false, &rev("2-bb")));
    documents.put(edit("a", "{}").over(rev("2-bb")).deleting()).await.unwrap();
    assert_eq!(get(&documents, "a").await.rev, rev("1-aa"));
    documents.put(edit("a", "{}").over(rev("1-aa")).deleting()).await.unwrap();
    assert_eq!(documents.get("a", &GetOptions::default()).await.unwrap_err().reason(), "deleted");
    // The highest tombstone wins, not the last one written.
    let changes = feed(&documents, ChangesRequest::default()).await;
    assert_eq!((changes.len(), changes[0].deleted, changes[0].revs[0].position()), (1, true, 4));
    let info = documents.info().await.unwrap();
    assert_eq!((info.doc_count, info.doc_del_count), (0, 1));
    assert_sound(&documents).await;
}

pub(crate) async fn a_tombstone_keeps_its_body(stage: Stage) {
    let documents = stage.documents().await;
    let first = documents.put(edit("a", r#"{"n":1}"#)).await.unwrap();
    let dead = documents.put(edit("a", r#"{"why":"old"}"#).over(first).deleting()).await.unwrap();
    let options = GetOptions { rev: Some(dead.clone()), revs: true, ..GetOptions::default() };
    let read = documents.get("a", &options).await.unwrap();
    assert_eq!((read.deleted, read.body.as_str()), (true, r#"{"why":"old"}"#));
    assert_eq!(read.revisions.unwrap().ids.len(), 2);
    assert_eq!(documents.get("a", &GetOptions::default()).await.unwrap_err().reason(), "deleted");
    assert_eq!(documents.info().await.unwrap().sizes.external, 13);
    // Creating the document again removes the tombstone's body.
    documents.put(edit("a", "{}")).await.unwrap();
    assert_eq!(documents.info().await.unwrap().sizes.external, 2);
    assert_sound(&documents).await;
}

pub(crate) async fn branches_are_stemmed_to_the_limit(stage: Stage) {
    let documents = stage.documents().await;
    documents.set_revs_limit(5).await.unwrap();
    let mut last = documents.put(edit("a", "{}")).await.unwrap();
    let mut all = vec![last.clone()];
    for n in 0..10 {
        last = documents.put(edit("a", &format!(r#"{{"n":{n}}}"#)).over(last)).await.unwrap();
        all.push(last.clone());
    }
    let options = GetOptions { revs: true, revs_info: true, ..GetOptions::default() };
    let read = documents.get("a", &options).await.unwrap();
    let expected: Vec<_> = all.iter().rev().take(5).map(|rev| rev.hash().clone()).collect();
    assert_eq!(read.revisions.unwrap().ids, expected);
    assert_eq!(read.revs_info.unwrap().len(), 5);
    // A revision that a branch has forgotten is unknown, and makes a separate branch.
    merge(&documents, replicated("a", &all[2].to_string(), "{}")).await;
    assert_eq!(lost(&documents, "a").await, [all[2].clone()]);
    // A replicated path is stemmed too.
    merge(&documents, replicated("b", "9-i h g f e d c b a", "{}")).await;
    let read = documents.get("b", &options).await.unwrap();
    assert_eq!(read.revisions.unwrap().ids.len(), 5);
    // With a limit of one, branches have no ancestors.
    documents.set_revs_limit(1).await.unwrap();
    documents.put(edit("b", r#"{"x":1}"#).over(rev("9-i"))).await.unwrap();
    assert_eq!(documents.get("b", &options).await.unwrap().revisions.unwrap().ids.len(), 1);
    assert_sound(&documents).await;
}

pub(crate) async fn bad_edits_are_refused_and_write_nothing(stage: Stage) {
    let documents = stage.documents().await;
    let before = documents.info().await.unwrap();
    let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(8_000_000 - 7));
    let long = "x".repeat(2_049);
    for (edit, status, error) in [
        (edit("", "{}"), 400, "illegal_docid"),
        (edit("_x", "{}"), 400, "illegal_docid"),
        (edit("_local/x", "{}"), 400, "illegal_docid"),
        (edit(&long, "{}"), 400, "illegal_docid"),
        (edit("a", &large), 413, "document_too_large"),
        (edit("a", "[]"), 400, "bad_request"),
        (edit("a", "[]").deleting(), 400, "bad_request"),
        (edit("a", r#"{"n":1,"_id":"evil"}"#), 400, "doc_validation"),
        (edit("a", r#"{"_id":"evil","_deleted":true}"#), 400, "doc_validation"),
        (edit("a", r#"{"_x":1}"#).deleting(), 400, "doc_validation"),
    ] {
        let id = edit.id.clone();
        for mode in [WriteMode::Interactive, WriteMode::Replicated] {
            let mut edit = edit.clone();
            edit.rev = (mode == WriteMode::Replicated).then(|| rev("1-a"));
            let refused = documents.write(vec![edit], mode).await.unwrap().pop().unwrap().unwrap_err();
            assert_eq!((refused.status(), refused.error()), (status, error), "{id:.20} {mode:?}: {refused}");
        }
    }
    // Looking up an impossible id is not a store error either.
    let endless = "x".repeat(20_000);
    let bulk = vec![model::BulkGet { id: endless.clone(), rev: Some(rev("1-a")) }];
    let found = documents.get_many(bulk, &GetOptions::default()).await.unwrap();
    assert_eq!(*found[0].1.as_ref().unwrap(), [OpenRev::Missing(rev("1-a"))]);
    assert_eq!(documents.revs_diff(vec![(endless.clone(), vec![rev("1-a")])]).await.unwrap().len(), 1);
    let ids = Some(vec![endless.clone()]);
    let request = ChangesRequest { doc_ids: ids.clone().map(Into::into), ..ChangesRequest::default() };
    assert_eq!(documents.changes(&request).await.unwrap().rows, []);
    let request = model::AllDocsRequest { keys: ids.map(Into::into), ..model::AllDocsRequest::default() };
    assert_eq!(documents.all_docs(&request).await.unwrap().rows[0].entry, model::AllDocsEntry::Missing);
    let request = model::AllDocsRequest { start: Some(endless), ..model::AllDocsRequest::default() };
    assert_eq!(documents.all_docs(&request).await.unwrap().rows, []);

    let fits = format!(r#"{{"a":"{}"}}"#, "x".repeat(8_000_000 - 8));
    assert_eq!(fits.len(), 8_000_000);
    assert_eq!(documents.info().await.unwrap(), before);
    documents.put(edit("a", &fits)).await.unwrap();
    assert_eq!(get(&documents, "a").await.body.as_str(), fits);
    assert_sound(&documents).await;
}

pub(crate) async fn paths_too_long_for_a_key_are_packed(stage: Stage) {
    let documents = stage.documents().await;
    let long = "é".repeat(6_000);
    let deep = format!("{}1{}", r#"{"name":"#.repeat(2_000), "}".repeat(2_000));
    // Rows that cost too much, before the long path or after it.
    let many = vec!["1"; 30_000].join(",");
    for (n, body) in [
        format!(r#"{{"ok":1,"{long}":[2]}}"#),
        format!(r#"{{"{long}":[2],"ok":1}}"#),
        format!(r#"{{"{long}":2,"many":[{many}]}}"#),
        format!(r#"{{"many":[{many}],"{long}":2}}"#),
        deep,
    ]
    .iter()
    .enumerate()
    {
        let id = format!("doc-{n}");
        documents.put(edit(&id, body)).await.unwrap();
        merge(&documents, replicated(&id, "9-z", body)).await;
        let read = get(&documents, &id).await;
        assert_eq!((read.rev, read.body.as_str()), (rev("9-z"), body.as_str()));
    }
    assert_sound(&documents).await;
}

pub(crate) async fn an_edit_may_make_a_revision_that_came_without_its_ancestors(stage: Stage) {
    let documents = stage.documents().await;
    // Find out the revisions of these edits.
    let first = documents.put(edit("model", r#"{"n":1}"#)).await.unwrap();
    let deleted = documents.put(edit("model", "{}").over(first.clone()).deleting()).await.unwrap();
    merge(&documents, replicated("model2", &first.to_string(), r#"{"n":1}"#)).await;
    let changed = documents.put(edit("model2", r#"{"n":2}"#).over(first.clone())).await.unwrap();

    // The tombstone exists already, as a separate branch. The deletion makes the same revision.
    merge(&documents, replicated("a", &deleted.to_string(), "{}").deleting()).await;
    merge(&documents, replicated("a", &first.to_string(), r#"{"n":1}"#)).await;
    documents.put(edit("a", "{}").over(first.clone()).deleting()).await.unwrap();
    let leaves = documents.open_revs("a", &OpenRevs::All, &GetOptions::default()).await.unwrap();
    assert_eq!(leaves.len(), 1);
    assert_sound(&documents).await;

    // The same with a losing live branch, below another winner and as the winner.
    for winner in [Some("9-win"), None] {
        let id = winner.unwrap_or("b");
        merge(&documents, replicated(id, &changed.to_string(), r#"{"n":2}"#)).await;
        merge(&documents, replicated(id, &first.to_string(), r#"{"n":1}"#)).await;
        if let Some(winner) = winner {
            merge(&documents, replicated(id, winner, "{}")).await;
        }
        assert_eq!(documents.put(edit(id, r#"{"n":2}"#).over(first.clone())).await.unwrap(), changed);
        let leaves = documents.open_revs(id, &OpenRevs::All, &GetOptions::default()).await.unwrap();
        assert_eq!(leaves.len(), 1 + usize::from(winner.is_some()), "{leaves:?}");
        assert!(leaves.iter().all(|leaf| matches!(leaf, OpenRev::Found(_))));
        assert_sound(&documents).await;
    }
}

pub(crate) async fn both_formats_read_back_what_was_written(stage: Stage) {
    let layer = stage.layer().await;
    for (name, format) in [("exploded", BodyFormat::Exploded), ("packed", BodyFormat::Packed)] {
        let documents = layer
            .create_database(name, CreateOptions { format: Some(format), ..CreateOptions::default() })
            .await
            .unwrap();
        assert_eq!(documents.info().await.unwrap().format, format);
        let long = format!(r#"{{"long":"{}","after":[1,2.0,null,true,{{}},[]]}}"#, "é".repeat(200_000));
        for body in ["{}", r#"{"z":{"y":[{"x":1},{"w":[]}]},"a":"b\u0000c"}"#, &long] {
            let id = body.len().to_string();
            documents.put(edit(&id, body)).await.unwrap();
            assert_eq!(get(&documents, &id).await.body, json(body), "{name}");
        }
        assert_sound(&documents).await;
    }
}
