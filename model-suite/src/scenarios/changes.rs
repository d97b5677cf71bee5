//! The changes feed.

use conformance::chaos::{Chaos, Rates};
use model::{ChangesRequest, Edit, RevId, Seq, Since, Style, WriteMode};

use super::damage::{CHANGES, rows};
use crate::stage::*;

/// The value of a row of the feed: format, id, winner, number of branches.
fn row_of(id: &str, winner: &RevId, branches: u8, not_deleted: bool) -> Vec<u8> {
    let position = u8::try_from(winner.position()).unwrap();
    let hash = winner.hash().as_bytes().iter();
    let hash: Vec<u8> = hash.flat_map(|&byte| if byte == 0 { vec![0, 0xff] } else { vec![byte] }).collect();
    let live = if not_deleted { 0x27 } else { 0x26 };
    [&[0x15, 1, 2], id.as_bytes(), &[0, 0x15, position, 1], &hash, &[0, 0x15, branches, live]].concat()
}

pub(crate) async fn rows_of_the_feed_are_those_of_the_rfc(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    let is = async |winner: &RevId, branches: u8, not_deleted: bool| {
        let rows = rows(&engine, CHANGES, "").await;
        let seq = documents.last_seq().await.unwrap();
        // The incarnation 0 and the versionstamp.
        let key = [&[0x15, 4, 0x14, 0x15, CHANGES, 0x14, 0x33], &seq.as_bytes()[1..]].concat();
        let value = row_of("a", winner, branches, not_deleted);
        assert_eq!(rows.len(), 1, "one row, whatever is edited");
        assert_eq!((&rows[0].key[..], &rows[0].value[..], seq.incarnation()), (&key[..], &value[..], 0));
    };
    let first = documents.put(edit("a", "{}")).await.unwrap();
    is(&first, 1, true).await;
    let [low, high] = ["1", "f"].map(|digit| format!("2-{}", digit.repeat(32)));
    for leaf in [&low, &high] {
        let path = format!("{leaf} {}", &first.to_string()[2..]);
        merge(&documents, replicated("a", &path, "{}")).await;
    }
    is(&rev(&high), 2, true).await;
    // A branch that lost grows past the winner.
    let grown = documents.put(edit("a", r#"{"n":1}"#).over(rev(&low))).await.unwrap();
    is(&grown, 2, true).await;
    // The other is deleted: a change of the document, whose winner stays.
    let one = documents.put(edit("a", "{}").over(rev(&high)).deleting()).await.unwrap();
    is(&grown, 2, true).await;
    let other = documents.put(edit("a", "{}").over(grown).deleting()).await.unwrap();
    is(&one.max(other), 2, false).await;
}

pub(crate) async fn a_feed_has_each_document_once_in_order(stage: Stage) {
    let documents = stage.documents().await;
    let empty = documents.changes(&ChangesRequest::default()).await.unwrap();
    assert_eq!((empty.rows.len(), empty.last_seq, empty.more, empty.pending), (0, Seq::ZERO, false, Some(0)));

    let edits: Vec<Edit> = (0..10).map(|n| edit(&format!("doc-{n}"), "{}")).collect();
    let made = documents.write(edits, WriteMode::Interactive).await.unwrap();
    let made = made[3].clone().unwrap();
    documents.put(edit("doc-3", r#"{"x":1}"#).over(made)).await.unwrap();
    let rows = feed(&documents, ChangesRequest::default()).await;
    let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids, ["doc-0", "doc-1", "doc-2", "doc-4", "doc-5", "doc-6", "doc-7", "doc-8", "doc-9", "doc-3"]);
    assert!(rows.is_sorted_by(|a, b| a.seq < b.seq));
    assert_eq!(rows, feed(&documents, ChangesRequest::default()).await, "a quiet database says the same again");
    // Sequences of one transaction differ in their last two bytes.
    assert_eq!(rows[0].seq.as_bytes()[..11], rows[8].seq.as_bytes()[..11]);

    let mut backwards = feed(&documents, ChangesRequest { descending: true, ..Default::default() }).await;
    backwards.reverse();
    assert_eq!(backwards, rows);
    let since = ChangesRequest { since: Since::Seq(rows[4].seq), ..Default::default() };
    assert_eq!(feed(&documents, since).await, rows[5..], "since is exclusive");
    let now = documents.changes(&ChangesRequest { since: Since::Now, ..Default::default() }).await.unwrap();
    assert_eq!((now.rows.len(), now.last_seq), (0, rows[9].seq));
    let beyond = Seq::from_bytes([0xfe; 13]);
    let all = documents.changes(&ChangesRequest { since: Since::Seq(beyond), ..Default::default() }).await.unwrap();
    assert_eq!(
        (all.rows, all.last_seq),
        (rows.clone(), rows[9].seq),
        "a sequence that lies ahead is not of this store"
    );
}

pub(crate) async fn feeds_go_on_where_they_stopped(stage: Stage) {
    let documents = stage.documents().await;
    let edits: Vec<Edit> = (0..4_500).map(|n| edit(&format!("doc-{n:04}"), "{}")).collect();
    documents.write(edits, WriteMode::Interactive).await.unwrap();
    let first = documents.changes(&ChangesRequest::default()).await.unwrap();
    assert!(first.more && first.rows.len() < 4_500, "a batch is bounded");
    assert_eq!(first.pending, Some(4_500 - first.rows.len() as u64));
    for descending in [false, true] {
        let rows = feed(&documents, ChangesRequest { descending, ..Default::default() }).await;
        assert_eq!(rows.len(), 4_500);
        assert!(rows.is_sorted_by(|a, b| (a.seq < b.seq) != descending && a.seq != b.seq));
    }
    // A document that changes after the reader has passed it is read again; one that changes before is read once.
    let mut request = ChangesRequest { limit: Some(100), ..Default::default() };
    let batch = documents.changes(&request).await.unwrap();
    assert_eq!((batch.rows.len(), batch.more), (100, true));
    request.since = Since::Seq(batch.last_seq);
    for id in ["doc-0000", "doc-4000"] {
        let last = get(&documents, id).await.rev;
        documents.put(edit(id, r#"{"x":1}"#).over(last)).await.unwrap();
    }
    request.limit = None;
    let rest = feed(&documents, request).await;
    assert_eq!(rest.len(), 4_401);
    let again: Vec<&str> = rest[4_399..].iter().map(|row| row.id.as_str()).collect();
    assert_eq!(again, ["doc-0000", "doc-4000"]);
    // Bodies limit a batch too.
    let body = format!(r#"{{"a":"{}"}}"#, "x".repeat(90_000));
    let edits: Vec<Edit> = (0..250).map(|n| edit(&format!("large-{n:03}"), &body)).collect();
    documents.write(edits, WriteMode::Interactive).await.unwrap();
    let since = Since::Seq(rest[4_400].seq);
    let request = ChangesRequest { since, include_docs: true, ..Default::default() };
    let batch = documents.changes(&request).await.unwrap();
    assert!(batch.more && batch.rows.len() < 250, "{}", batch.rows.len());
    assert_eq!(batch.last_seq, batch.rows.last().unwrap().seq);
    let rows = feed(&documents, request).await;
    assert_eq!(rows.len(), 250);
    assert!(rows.iter().all(|row| row.doc.as_ref().is_some_and(|doc| doc.body.len() == body.len())));
    assert_sound(&documents).await;
}

/// A limit of zero ends every feed at once.
async fn assert_that_nothing_is_all_there_is<D: kv_api::Database>(documents: &model::Documents<D>, since: Seq) {
    for doc_ids in [None, Some(["plain"].into_iter().collect())] {
        for (descending, last_seq) in [(false, since), (true, documents.last_seq().await.unwrap())] {
            let request = ChangesRequest {
                since: Since::Seq(since),
                limit: Some(0),
                doc_ids: doc_ids.clone(),
                descending,
                ..ChangesRequest::default()
            };
            let batch = documents.changes(&request).await.unwrap();
            assert_eq!((batch.rows, batch.more, batch.last_seq), (vec![], false, last_seq), "{request:?}");
        }
    }
}

pub(crate) async fn feeds_have_styles_documents_and_filters(stage: Stage) {
    let documents = stage.documents().await;
    for path in ["2-b a", "2-c a", "2-d a"] {
        merge(&documents, replicated("conflicted", path, &format!(r#"{{"at":"{path}"}}"#))).await;
    }
    let first = documents.put(edit("deleted", "{}")).await.unwrap();
    let dead = documents.put(edit("deleted", r#"{"why":1}"#).over(first).deleting()).await.unwrap();
    documents.put(edit("plain", r#"{"n":1}"#)).await.unwrap();

    let request = ChangesRequest { style: Style::AllDocs, include_docs: true, conflicts: true, ..Default::default() };
    let rows = feed(&documents, request.clone()).await;
    assert_eq!(rows[0].revs, [rev("2-d"), rev("2-c"), rev("2-b")]);
    let doc = rows[0].doc.as_ref().unwrap();
    assert_eq!((&doc.rev, doc.body.as_str()), (&rev("2-d"), r#"{"at":"2-d a"}"#));
    assert_eq!(doc.conflicts.as_ref().unwrap(), &[rev("2-c"), rev("2-b")]);
    let doc = rows[1].doc.as_ref().unwrap();
    assert_eq!((rows[1].deleted, &doc.rev, doc.body.as_str()), (true, &dead, r#"{"why":1}"#));
    let main = feed(&documents, ChangesRequest::default()).await;
    assert_eq!(main[0].revs, [rev("2-d")]);
    assert_that_nothing_is_all_there_is(&documents, rows[1].seq).await;

    // Filters by id: few ids are looked up; for many, the feed is filtered.
    for others in [0, 200] {
        let mut ids: Vec<String> = ["plain", "conflicted", "ghost", "plain"].map(str::to_owned).to_vec();
        ids.extend((0..others).map(|n| format!("none-{n}")));
        let filtered = ChangesRequest { doc_ids: Some(ids.into()), ..request.clone() };
        let found = feed(&documents, filtered.clone()).await;
        assert_eq!(found, [rows[0].clone(), rows[2].clone()], "{others}");
        let after = ChangesRequest { since: Since::Seq(rows[0].seq), ..filtered.clone() };
        assert_eq!(feed(&documents, after).await, [rows[2].clone()], "{others}");
        let one = documents.changes(&ChangesRequest { limit: Some(1), ..filtered.clone() }).await.unwrap();
        assert_eq!(one.rows, [rows[0].clone()], "{others}");
        let backwards = feed(&documents, ChangesRequest { descending: true, ..filtered.clone() }).await;
        assert_eq!(backwards, [rows[2].clone(), rows[0].clone()], "{others}");
        let all = documents.changes(&filtered).await.unwrap();
        assert_eq!(all.last_seq, rows[2].seq, "{others}");
    }
}

pub(crate) async fn a_long_feed_goes_on_past_old_read_versions(stage: Stage) {
    let documents = stage.documents().await;
    let edits: Vec<Edit> = (0..4_500).map(|n| edit(&format!("doc-{n:04}"), r#"{"n":1}"#)).collect();
    documents.write(edits, WriteMode::Interactive).await.unwrap();
    let everything = ChangesRequest { include_docs: true, ..ChangesRequest::default() };
    let calm = feed(&documents, everything.clone()).await;
    assert_eq!(calm.len(), 4_500);

    // A reader that takes longer for each batch than a read version lives.
    let (mut rows, mut request) = (Vec::new(), ChangesRequest { limit: Some(2_000), ..everything.clone() });
    loop {
        let batch = documents.changes(&request).await.unwrap();
        rows.extend(batch.rows);
        if !batch.more {
            break;
        }
        request.since = Since::Seq(batch.last_seq);
        stage.outlive_read_versions().await;
    }
    assert_eq!(rows, calm);

    // The version becomes too old in the middle of a batch: the rows read until then are returned.
    let rates = Rates { too_old: 0.002, ..Rates::default() };
    let restless = layer(Chaos::new(stage.engine(), 3, rates)).await.database("db").await.unwrap();
    let (mut rows, mut request, mut cut_short) = (Vec::new(), everything, 0);
    loop {
        let batch = restless.changes(&request).await.unwrap();
        assert!(!batch.rows.is_empty() || !batch.more, "each batch goes on");
        cut_short += usize::from(batch.more && batch.rows.len() < 2_000);
        rows.extend(batch.rows);
        if !batch.more {
            break;
        }
        request.since = Since::Seq(batch.last_seq);
    }
    assert!(cut_short > 0, "no fault came in the middle of a batch");
    assert_eq!(rows, calm, "no row is lost, none comes twice");
}
