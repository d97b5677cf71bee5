//! Counts rows after many updates, and reads of documents with many branches.

use std::collections::BTreeMap;

use kv_api::{Bytes, Counted, Counts, Database, RangeRequest, Read, TransactionExt};
use model::{AttachmentEdit, BodyFormat, BulkGet, CreateOptions, Edit, GetOptions, OpenRev, Purge, RevId, WriteMode};

use super::attachments::inline;
use super::damage::{CHANGES, REVISIONS};
use crate::stage::*;

const PURGES: u8 = 15;
const COUNTS: u8 = 17;

/// All rows of databases, uploads and jobs, except the last sequence and the counters, which every edit sets.
async fn all_rows<D: Database>(engine: &D) -> BTreeMap<Bytes, Bytes> {
    let mut rows = BTreeMap::new();
    for subspace in [4, 6, 7, 8] {
        let range = RangeRequest::prefix(&[0x15, subspace]);
        let found = engine.begin().unwrap().get_all(range, Read::Snapshot).await.unwrap();
        rows.extend(found.into_iter().map(|row| (row.key, row.value)));
    }
    rows.retain(|key, _| !matches!(key[..], [0x15, 4, 0x14, 0x15, 2 | 3]));
    rows
}

pub(crate) async fn a_thousand_updates_and_a_delete_leave_two_rows(stage: Stage) {
    let (engine, layer) = (stage.engine(), stage.layer().await);
    let options = CreateOptions { format: Some(BodyFormat::Exploded), ..CreateOptions::default() };
    let documents = layer.create_database("db", options).await.unwrap();
    let design = r#"{"language":"query","views":{
        "n":{"map":{"fields":{"n":"asc"},"partial_filter_selector":{}},"reduce":"_count","options":{"def":{}}},
        "l":{"map":{"fields":{"l.0.x":"asc","n":"asc"},"partial_filter_selector":{}},"reduce":"_count","options":{}}}}"#;
    documents.put(edit("_design/d", design)).await.unwrap();
    documents.build_indexes(|_| ()).await.unwrap();
    assert_eq!(documents.indexes().await.unwrap().len(), 2);
    let before = all_rows(&engine).await;

    let body = |n: usize| format!(r#"{{"n":{n},"l":[{{"x":"{}"}},{n}],"m{n}":{{}}}}"#, "x".repeat(n % 300));
    let mut rev: Option<RevId> = None;
    for n in 0..=1_000 {
        let mut edit = Edit { rev: rev.take(), ..edit("a", &body(n)) };
        // One attachment that stays for a while, and one with new content each time.
        if n % 100 < 50 {
            let kept = inline("kept", "text/plain", format!("the same for a while, {}", n / 100));
            edit.attachments.push(if n % 100 == 0 { kept } else { AttachmentEdit::stub("kept") });
        }
        if n % 37 == 0 {
            edit.attachments.push(inline("new", "x", vec![n as u8; 3_000 + n]));
        }
        rev = Some(documents.put(edit).await.unwrap());
        if n == 500 {
            assert!(all_rows(&engine).await.len() > before.len() + 6, "body, listing, branch, change and indexes");
        }
    }
    let tombstone = Edit { rev, ..edit("a", "{}") }.deleting();
    let tombstone = documents.put(tombstone).await.unwrap();

    let mut left = all_rows(&engine).await;
    left.retain(|key, value| before.get(key) != Some(value));
    let subspaces: Vec<u8> = left.keys().map(|key| key[4]).collect();
    let (counts, subspaces): (Vec<u8>, Vec<u8>) = subspaces.into_iter().partition(|subspace| *subspace == COUNTS);
    assert_eq!(subspaces, [REVISIONS, CHANGES], "the tombstone's own: its branch and its change");
    assert!(counts.len() < 20, "{} of the rows that count a thousand edits", counts.len());
    assert_sound(&documents).await;
    // A purge removes these rows too.
    documents.purge(&[Purge::new("a", vec![tombstone])]).await.unwrap().pop().unwrap().unwrap();
    let mut left = all_rows(&engine).await;
    left.retain(|key, _| !key.get(4).is_some_and(|subspace| [PURGES, COUNTS].contains(subspace)));
    assert_eq!(left, before);
}

pub(crate) async fn an_update_reads_as_much_with_any_number_of_branches(stage: Stage) {
    let counted = Counted::new(stage.engine()).separately(model::is_instance_key);
    let documents = database(counted.clone()).await;
    let taken = || counted.take().iter().map(cost).collect::<Vec<_>>();
    let mut found = Vec::new();
    for branches in [1, 10, 100, 1_000] {
        let id = format!("doc-{branches:04}");
        let path = |n: usize| format!("3-{n:032x} {:032x} {:032x}", 10_000 + n, 20_000 + n);
        let leaves = (0..branches).map(|n| replicated(&id, &path(n), r#"{"n":1}"#));
        for result in documents.write(leaves.collect(), WriteMode::Replicated).await.unwrap() {
            result.unwrap();
        }
        counted.take();
        let winner = get(&documents, &id).await.rev;
        let read = taken();
        let second = documents.put(edit(&id, r#"{"n":2}"#).over(winner)).await.unwrap();
        let updated = taken();
        documents.put(edit(&id, r#"{"n":3}"#).over(second)).await.unwrap();
        let again = taken();
        found.push((read, updated, again));
        if branches > 1 {
            // An edit of a losing branch: two rows and two round trips, however many branches there are.
            counted.take();
            documents.put(edit(&id, "{}").over(rev(&format!("3-{:032x}", 0)))).await.unwrap();
            let counts = counted.take();
            let rows = counts[0].kvs_read - counts[0].kvs_read_separately;
            assert_eq!((counts.len(), rows, counts[0].round_trips), (1, 2, 2), "{branches} branches");
        }
    }
    assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "1, 10, 100 and 1,000 branches: {found:?}");
}

/// As replications ask for it.
pub(crate) async fn a_first_revision_is_read_by_its_body_alone(stage: Stage) {
    let counted = Counted::new(stage.engine()).separately(model::is_instance_key);
    let documents = database(counted.clone()).await;
    let first = documents.put(edit("a", r#"{"n":1}"#)).await.unwrap();
    let options = GetOptions { latest: true, revs: true, ..GetOptions::default() };
    let wanted = BulkGet { id: "a".to_owned(), rev: Some(first.clone()) };
    let read = async || {
        counted.take();
        let mut found = documents.get_some(std::slice::from_ref(&wanted), &options).await.unwrap();
        let leaves = found.pop().unwrap().1.unwrap();
        let counts = counted.take();
        let [OpenRev::Found(leaf)] = &leaves[..] else { panic!("{leaves:?}") };
        (leaf.clone(), counts.len(), counts[0].kvs_read - counts[0].kvs_read_separately, counts[0].round_trips)
    };
    let (leaf, transactions, rows, round_trips) = read().await;
    assert_eq!((leaf.rev, leaf.body.as_str()), (first.clone(), r#"{"n":1}"#));
    assert_eq!(leaf.revisions.unwrap().ids, [first.hash().clone()]);
    assert_eq!((transactions, rows, round_trips), (1, 2, 1), "the two rows of its body");

    // It is not a leaf any more: its branch is read too.
    let second = documents.put(edit("a", r#"{"n":2}"#).over(first.clone())).await.unwrap();
    let (leaf, transactions, rows, round_trips) = read().await;
    assert_eq!((leaf.rev, leaf.revisions.unwrap().ids.len()), (second.clone(), 2));
    assert_eq!((transactions, rows, round_trips), (1, 3, 3));
    let third = documents.put(edit("a", "{}").over(second).deleting()).await.unwrap();
    let (leaf, ..) = read().await;
    assert_eq!((leaf.rev, leaf.deleted), (third, true));

    // The branches of many that are not leaves are read together.
    let mut wanted = Vec::new();
    for n in 0..50 {
        let id = format!("many-{n}");
        let first = documents.put(edit(&id, "{}")).await.unwrap();
        if n > 10 {
            documents.put(edit(&id, r#"{"n":2}"#).over(first.clone())).await.unwrap();
        }
        wanted.push(BulkGet { id, rev: Some(first) });
    }
    counted.take();
    let found = documents.get_some(&wanted, &options).await.unwrap();
    let positions = found.iter().map(|(_, leaves)| match leaves.as_deref() {
        Ok([OpenRev::Found(leaf)]) => leaf.rev.position(),
        other => panic!("{other:?}"),
    });
    assert_eq!(positions.collect::<Vec<_>>(), [vec![1; 11], vec![2; 39]].concat());
    let counts = counted.take();
    assert_eq!((counts.len(), counts[0].round_trips), (1, 3));
}

/// The reads and writes of a transaction, without the bytes.
fn cost(counts: &Counts) -> [u64; 6] {
    let Counts { kvs_read, round_trips, sets, clears, range_clears, atomic_ops, .. } = *counts;
    [kvs_read, round_trips, sets, clears, range_clears, atomic_ops]
}
