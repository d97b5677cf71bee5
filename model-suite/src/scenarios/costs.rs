//! The RFC's performance tables, asserted: rows read and round trips of all kinds of edits.
//!
//! The instance row, which every transaction reads, is counted separately.

use kv_api::{Counted, Counts, Database};
use model::{
    AllDocsRequest, AttachmentEdit, ChangesRequest, Documents, Edit, GetOptions, Purge, Seq, Style, WriteMode,
};

use super::attachments::inline;
use super::relocating;
use crate::stage::*;

pub(crate) async fn counted<D: Database>(engine: D) -> (Counted<D>, Documents<Counted<D>>) {
    let counted = Counted::new(engine).separately(model::is_instance_key);
    let documents = database(counted.clone()).await;
    (counted, documents)
}

/// The counts of the single transaction of the work before.
fn of_one(counted: &Counted<impl Database>) -> Counts {
    let counts = counted.take();
    assert_eq!(counts.len(), 1, "one transaction: {counts:?}");
    assert_eq!(counts[0].kvs_read_separately, 1, "the instance is read once");
    counts[0]
}

/// Number of rows read without the instance, and of round trips.
fn reads(counts: Counts) -> (u64, u64) {
    (counts.kvs_read - counts.kvs_read_separately, counts.round_trips)
}

async fn cost<D: Database>(counted: &Counted<D>, documents: &Documents<Counted<D>>, edit: Edit) -> (u64, u64) {
    counted.take();
    documents.put(edit).await.unwrap();
    reads(of_one(counted))
}

/// The costs of creating, reading, deleting and recreating a document, and of the database's information.
pub(crate) async fn cost_of_a_life<D: Database>(
    counted: &Counted<D>,
    documents: &Documents<Counted<D>>,
    id: &str,
) -> Vec<Counts> {
    counted.take();
    let first = documents.put(edit(id, r#"{"n":1}"#)).await.unwrap();
    get(documents, id).await;
    documents.put(edit(id, "{}").over(first).deleting()).await.unwrap();
    merge(documents, replicated(id, "1-x", "{}")).await;
    documents.info().await.unwrap();
    // Bytes differ: transaction ids are random, and their zeros take two bytes.
    counted.take().into_iter().map(|counts| Counts { bytes_written: 0, ..counts }).collect()
}

pub(crate) async fn edits_read_what_the_rfc_allows(stage: Stage) {
    let (counted, documents) = counted(stage.engine()).await;
    // Other documents, which must not be read.
    for id in ["`", "a ", "b"] {
        documents.put(edit(id, r#"{"x":1}"#)).await.unwrap();
    }
    counted.take();
    let first = documents.put(edit("a", r#"{"n":1,"m":[1,2,3]}"#)).await.unwrap();
    let counts = of_one(&counted);
    assert_eq!(reads(counts), (0, 1), "create: nothing is there to be read");
    assert_eq!((counts.clears, counts.range_clears), (0, 0), "an insert clears nothing");

    let second = documents.put(edit("a", r#"{"n":2}"#).over(first)).await.unwrap();
    let counts = of_one(&counted);
    assert_eq!(reads(counts), (1, 1), "extend the winner");
    assert_eq!((counts.clears, counts.range_clears), (2, 1), "its revision and its change; its body");

    let third = documents.put(edit("a", "{}").over(second).deleting()).await.unwrap();
    assert_eq!(reads(of_one(&counted)), (1, 1), "delete the only branch");
    assert_eq!(cost(&counted, &documents, edit("a", "{}")).await, (1, 1), "recreate over a tombstone");
    assert_eq!(third.position(), 3);

    for path in ["5-e d", "5-d d", "5-c d"] {
        merge(&documents, replicated("c", path, r#"{"n":1}"#)).await;
    }
    let cost_of = async |edit| cost(&counted, &documents, edit).await;
    assert_eq!(cost_of(edit("c", "{}").over(rev("5-c"))).await, (2, 2), "extend a losing branch");
    assert_eq!(cost_of(edit("c", "{}").over(rev("5-d"))).await, (2, 2), "and another");
    let winner = get(&documents, "c").await.rev;
    assert_eq!(cost_of(edit("c", "{}").over(winner).deleting()).await, (2, 1), "delete the winner");

    counted.take();
    merge(&documents, replicated("c", "7-x", "{}")).await;
    let counts = of_one(&counted);
    assert_eq!(reads(counts), (3, 1), "a replicated edit reads all branches");
    merge(&documents, replicated("c", "7-x", "{}")).await;
    let counts = of_one(&counted);
    assert_eq!((reads(counts), counts.commits), ((4, 1), 0), "a known one writes nothing");
}

pub(crate) async fn documents_without_attachments_pay_nothing_for_those_of_others(stage: Stage) {
    let (counted, documents) = counted(stage.engine()).await;
    let before = cost_of_a_life(&counted, &documents, "a").await;
    let have = |id: &str| Edit { attachments: vec![inline("f", "x", "some bytes")], ..edit(id, "{}") };
    let first = documents.put(have("with")).await.unwrap();
    documents.put(have("other")).await.unwrap();
    let after = cost_of_a_life(&counted, &documents, "b").await;
    assert_eq!(after, before, "with attachments in the database, and without");

    // In addition to its own row: the row of the content it keeps, the list it replaces twice, and no parts.
    counted.take();
    let kept = Edit { attachments: vec![AttachmentEdit::stub("f")], ..edit("with", "{}").over(first) };
    documents.put(kept).await.unwrap();
    let (rows, trips) = reads(of_one(&counted));
    assert!(rows <= 5 && trips <= 3, "{rows} rows in {trips} round trips");
    counted.take();
    get(&documents, "with").await;
    assert_eq!(reads(of_one(&counted)), (2, 2), "its body and its list");
}

pub(crate) async fn a_thousand_branches_cost_no_more(stage: Stage) {
    let (counted, documents) = counted(stage.engine()).await;
    for n in 0..1_000 {
        merge(&documents, replicated("a", &format!("2-{n:04} a"), r#"{"n":1}"#)).await;
    }
    counted.take();
    let cost_of = async |edit| cost(&counted, &documents, edit).await;
    assert_eq!(cost_of(edit("a", "{}").over(rev("2-0999"))).await, (1, 1), "extend the winner");
    assert_eq!(cost_of(edit("a", "{}").over(rev("2-0500"))).await, (2, 2), "extend a losing branch");
    let winner = get(&documents, "a").await.rev;
    assert_eq!(cost_of(edit("a", "{}").over(winner).deleting()).await, (2, 1), "delete the winner");
    counted.take();
    merge(&documents, replicated("a", "2-zzzz a", "{}")).await;
    let (rows, trips) = reads(of_one(&counted));
    // FoundationDB ends a batch at 80 kB; this is more.
    assert!(rows == 1_000 && trips <= 2, "a replicated edit reads all branches at once: {rows} in {trips}");
    let options = GetOptions { conflicts: true, ..GetOptions::default() };
    assert_eq!(documents.get("a", &options).await.unwrap().conflicts.unwrap().len(), 999);
    assert_sound(&documents).await;
}

pub(crate) async fn reading_a_document_reads_its_rows(stage: Stage) {
    let (counted, documents) = counted(stage.engine()).await;
    let mut last = documents.put(edit("a", r#"{"a":1,"b":2}"#)).await.unwrap();
    for n in 0..20 {
        last = documents.put(edit("a", &format!(r#"{{"a":1,"b":{n}}}"#)).over(last)).await.unwrap();
    }
    counted.take();
    get(&documents, "a").await;
    assert_eq!(reads(of_one(&counted)), (3, 2), "metadata and two leaves, no revisions");
    let options = GetOptions { revs: true, ..GetOptions::default() };
    documents.get("a", &options).await.unwrap();
    assert_eq!(reads(of_one(&counted)), (4, 2), "and the winner's row");
    let options = GetOptions { rev: Some(last), ..GetOptions::default() };
    documents.get("a", &options).await.unwrap();
    assert_eq!(reads(of_one(&counted)), (3, 1), "by revision");
    documents.get("b", &GetOptions::default()).await.unwrap_err();
    assert_eq!(reads(of_one(&counted)), (0, 2), "only what is not there is looked for twice");

    let edits: Vec<Edit> = (0..50).map(|n| edit(&format!("doc-{n}"), "{}")).collect();
    documents.write(edits, WriteMode::Interactive).await.unwrap();
    assert_eq!(
        reads(of_one(&counted)),
        (1, 2),
        "a batch reads together, and then the counters, for the row that counts edits"
    );
}

pub(crate) async fn reading_a_conflicted_document_reads_no_other_branch(stage: Stage) {
    let (counted, documents) = counted(stage.engine()).await;
    let edits = (0..1_000).map(|n| replicated("a", &format!("1-{n:04}"), r#"{"n":1}"#)).collect();
    documents.write(edits, WriteMode::Replicated).await.unwrap();
    counted.take();
    assert_eq!(get(&documents, "a").await.rev, rev("1-0999"));
    assert_eq!(reads(of_one(&counted)), (2, 2), "metadata and a leaf");
    merge(&documents, replicated("a", "1-zzzz", "{}")).await;
    counted.take();
    get(&documents, "a").await;
    assert_eq!(reads(of_one(&counted)), (1, 1), "a body of one row");
}

pub(crate) async fn listing_local_documents_reads_no_bodies(stage: Stage) {
    let (counted, documents) = counted(stage.engine()).await;
    let body = json(&format!(r#"{{"a":"{}"}}"#, "x".repeat(200_000)));
    let ids: Vec<String> = (0..250).map(|n| format!("_local/{n:03}")).collect();
    for id in &ids {
        let body = if id.ends_with('7') { body.clone() } else { json("{}") };
        documents.put_local(id, None, body).await.unwrap();
    }
    for (descending, include_docs, most) in [(false, false, 50_000), (true, false, 50_000), (false, true, 7_000_000)] {
        counted.take();
        let request = AllDocsRequest { descending, include_docs, ..AllDocsRequest::default() };
        let (mut found, mut next) = (Vec::new(), Some(request));
        while let Some(request) = next {
            let batch = documents.local_docs(&request).await.unwrap();
            found.extend(batch.rows);
            next = batch.next;
        }
        assert!(found.iter().all(|row| row.rev == Some(1) && row.body.is_some() == include_docs));
        let mut found: Vec<String> = found.into_iter().map(|row| row.id).collect();
        if descending {
            found.reverse();
        }
        assert_eq!(found, ids);
        let read: u64 = counted.take().iter().map(|counts| counts.bytes_read).sum();
        assert!(read < most, "{read} bytes for {include_docs}");
    }
}

pub(crate) async fn a_feed_reads_its_rows_and_revisions_only_where_there_are_several(stage: Stage) {
    let (counted, documents) = counted(stage.engine()).await;
    let edits: Vec<Edit> = (0..50).map(|n| edit(&format!("doc-{n}"), r#"{"n":1}"#)).collect();
    documents.write(edits, WriteMode::Interactive).await.unwrap();
    let costs = async |request: &ChangesRequest| {
        counted.take();
        let rows = documents.changes(request).await.unwrap().rows.len();
        (rows, reads(of_one(&counted)))
    };
    // In addition to the feed's own rows: the last sequence and, from the beginning, the counters.
    let main = ChangesRequest::default();
    assert_eq!(costs(&main).await, (50, (50 + 2, 1)));
    let leaves = ChangesRequest { style: Style::AllDocs, ..ChangesRequest::default() };
    assert_eq!(costs(&leaves).await, (50, (50 + 2, 1)), "all have one branch, and their rows say so");
    for path in ["1-b", "1-c"] {
        merge(&documents, replicated("doc-7", path, "{}")).await;
    }
    assert_eq!(costs(&main).await, (50, (50 + 2, 1)));
    assert_eq!(costs(&leaves).await, (50, (50 + 2 + 3, 2)), "the three branches of one document");
    let bodies = ChangesRequest { include_docs: true, ..ChangesRequest::default() };
    assert_eq!(costs(&bodies).await, (50, (50 + 2 + 50 * 2, 2)), "two rows of each winner's body");
}

pub(crate) async fn what_is_pending_costs_no_multiple_of_the_answer(stage: Stage) {
    let (counted, documents) = counted(stage.engine()).await;
    let edits: Vec<Edit> = (0..1_500).map(|n| edit(&format!("doc-{n:04}"), "{}")).collect();
    documents.write(edits, WriteMode::Interactive).await.unwrap();
    let from = AllDocsRequest::default();
    for (exact, most) in [(1, 101), (100, 101), (300, 301), (5_000, 1_001)] {
        counted.take();
        let pending = documents.pending(Seq::ZERO, false, exact).await.unwrap();
        assert!(reads(of_one(&counted)).0 <= most, "{exact}");
        let before = documents.count_docs(&from, exact).await.unwrap();
        assert!(reads(of_one(&counted)).0 <= most, "{exact}");
        assert!(pending > most - 1 && pending <= 1_500 && before > most - 1 && before <= 1_500, "{pending}, {before}");
    }
    let last = documents.last_seq().await.unwrap();
    assert_eq!(documents.pending(last, false, 1).await.unwrap(), 0);
}

pub(crate) async fn every_transaction_of_a_database_has_its_tag(stage: Stage) {
    let (counted, documents) = counted(stage.engine()).await;
    let index = r#"{"language":"query","views":{"n":{"map":{"fields":{"n":"asc"},"partial_filter_selector":{}},
        "reduce":"_count","options":{"def":{"fields":["n"]}}}}}"#;
    let mut untagged = Vec::new();
    let mut check = |what: &str| {
        let counts = counted.take();
        let of_database = counts.iter().filter(|counts| counts.kvs_read_separately > 0);
        untagged.extend(of_database.filter(|counts| !counts.tagged).map(|counts| format!("{what}: {counts:?}")));
        assert!(!counts.is_empty(), "{what}");
    };
    relocating::fill(&documents, 30).await;
    check("writes");
    get(&documents, "attached").await;
    documents.all_docs(&AllDocsRequest::default()).await.unwrap();
    documents.changes(&ChangesRequest::default()).await.unwrap();
    check("reads");
    documents.put(edit("_design/x", index)).await.unwrap();
    documents.build_indexes(|_| ()).await.unwrap();
    check("indexes");
    let rev = get(&documents, "attached").await.rev;
    documents.purge(&[Purge::new("attached", vec![rev])]).await.unwrap();
    check("purges");
    documents.repair(|_| ()).await.unwrap();
    check("a repair");
    documents.rewrite_bodies(|_| ()).await.unwrap();
    check("other bodies");
    let mut stemming = documents.stemming().unwrap();
    while stemming.next().await.unwrap() {}
    check("a compaction");
    let source = documents.layer();
    let target = relocating::at(&counted, "b/").await;
    relocating::run(&source, &target, relocating::options(true), relocating::go_on).await.unwrap();
    assert_eq!(untagged, [""; 0]);
    // A few transactions of a move change only the instance row, or read only whether it is there.
    let copies = counted.take();
    let copies: Vec<_> = copies.iter().filter(|counts| counts.kvs_read_separately > 0 && counts.kvs_read > 2).collect();
    assert!(copies.len() > 20 && copies.iter().all(|counts| counts.tagged), "{copies:?}");
}
