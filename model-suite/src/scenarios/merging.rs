//! Replicated edits, in every order of arrival, against an oracle.

use std::collections::BTreeMap;

use conformance::chaos::{Chaos, Rates};
use conformance::random::Random;
use kv_api::Database;
use model::{
    ChangesRequest, CreateOptions, Documents, Edit, GetOptions, OpenRev, OpenRevs, RevHistory, RevId, WriteMode,
};

use super::trees::RevTree;
use crate::stage::*;

/// All leaves, the winner first, each with its history.
async fn leaves<D: Database>(documents: &Documents<D>, id: &str) -> Vec<(bool, Vec<RevId>)> {
    let options = GetOptions { revs: true, ..GetOptions::default() };
    let opened = documents.open_revs(id, &OpenRevs::All, &options).await.unwrap();
    let path = |leaf: OpenRev| match leaf {
        OpenRev::Missing(rev) => panic!("{rev} is missing"),
        OpenRev::Found(document) => {
            let history = document.revisions.unwrap();
            let revs = history.ids.into_iter().enumerate();
            let revs = revs.map(|(back, hash)| RevId::new(history.position - back as u64, hash).unwrap());
            (!document.deleted, revs.collect())
        }
    };
    opened.into_iter().map(path).collect()
}

fn expected(tree: &RevTree) -> Vec<(bool, Vec<RevId>)> {
    tree.leaves().into_iter().map(|(live, rev)| (live, tree.path(&rev))).collect()
}

fn bring(id: &str, path: &[RevId], deleted: bool) -> Edit {
    let ids = path.iter().map(|rev| rev.hash().clone()).collect();
    let edit = edit(id, &format!(r#"{{"rev":"{}"}}"#, path[0]));
    let edit = edit.with_history(RevHistory { position: path[0].position(), ids });
    if deleted { edit.deleting() } else { edit }
}

/// A child that depends on `parent`, as a revision depends on its history.
fn child(parent: Option<&RevId>, choice: usize) -> RevId {
    let text = format!("{parent:?} {choice}");
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, fold);
    rev(&format!("{}-{hash:016x}", parent.map_or(1, |parent| parent.position() + 1)))
}

/// The row in `changes` agrees with the oracle's winner.
async fn assert_agrees<D: Database>(documents: &Documents<D>, trees: &BTreeMap<String, RevTree>, seed: u64) {
    let changes = feed(documents, ChangesRequest::default()).await;
    assert_eq!(changes.len(), trees.len(), "seed {seed}");
    for change in changes {
        let tree = &trees[&change.id];
        let (live, winner) = &tree.leaves()[0];
        assert_eq!((change.deleted, &change.revs[0]), (!live, winner), "{} of seed {seed}", change.id);
    }
    for (id, tree) in trees {
        assert_eq!(leaves(documents, id).await, expected(tree), "{id} of seed {seed}");
    }
    let info = documents.info().await.unwrap();
    let live = trees.values().filter(|tree| tree.leaves()[0].0).count() as u64;
    assert_eq!((info.doc_count, info.doc_del_count), (live, trees.len() as u64 - live), "seed {seed}");
}

pub(crate) async fn known_revisions_change_nothing(stage: Stage) {
    let documents = stage.documents().await;
    merge(&documents, replicated("a", "3-c b a", "{}")).await;
    let before = documents.last_seq().await.unwrap();
    for path in ["3-c b a", "3-c", "2-b a", "1-a", "2-b"] {
        merge(&documents, replicated("a", path, "{}")).await;
        assert_eq!(documents.last_seq().await.unwrap(), before, "{path}");
    }
    merge(&documents, replicated("a", "2-a", "{}")).await;
    assert!(documents.last_seq().await.unwrap() > before, "the hash of another position is not known");
    assert_sound(&documents).await;
}

pub(crate) async fn any_order_of_arrival_gives_the_same_tree(stage: Stage) {
    let documents = stage.documents().await;
    // A fork at the root and one after it, a tombstone on each side, and a separate tree.
    let paths = [("2-b a", false), ("3-c b a", true), ("3-d b a", false), ("2-e a", true), ("1-z", false)];
    let paths = paths.map(|(path, deleted)| {
        let edit = replicated("", path, "{}");
        let history = edit.history.unwrap();
        let revs = history.ids.iter().enumerate();
        let revs = revs.map(|(back, hash)| RevId::new(history.position - back as u64, hash.clone()).unwrap());
        (revs.collect::<Vec<_>>(), deleted)
    });
    let mut trees = BTreeMap::new();
    let mut orders = vec![vec![]];
    for _ in 0..paths.len() {
        orders = orders
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                let rest: Vec<usize> = (0..paths.len()).filter(|next| !order.contains(next)).collect();
                rest.into_iter().map(move |next| [order.clone(), vec![next]].concat())
            })
            .collect();
    }
    assert_eq!(orders.len(), 120);
    // All orders are tried together: each has its own document, and each transaction one edit of each document.
    for step in 0..paths.len() {
        let mut edits = Vec::new();
        for order in &orders {
            let id = format!("{order:?}");
            let (path, deleted) = &paths[order[step]];
            edits.push(bring(&id, path, *deleted));
            trees.entry(id).or_insert_with(RevTree::default).merge(path, *deleted);
        }
        for result in documents.write(edits, WriteMode::Replicated).await.unwrap() {
            result.unwrap();
        }
        assert_agrees(&documents, &trees, step as u64).await;
        assert_sound(&documents).await;
    }
    let mut shapes: Vec<_> = trees.values().map(expected).collect();
    shapes.dedup();
    assert_eq!(shapes.len(), 1, "all orders end in one tree");
}

pub(crate) async fn random_edits_agree_with_the_oracle(stage: Stage) {
    let documents = stage.documents().await;
    let seed = 20_260_611;
    let mut random = Random::new(seed);
    let below = |random: &mut Random, bound: usize| random.below(bound as u64) as usize;
    let mut trees: BTreeMap<String, RevTree> = BTreeMap::new();
    for step in 0..400 {
        let id = format!("doc-{}", below(&mut random, 6));
        let tree = trees.entry(id.clone()).or_default();
        let known = tree.leaves();
        let deleted = below(&mut random, 3) == 0;
        let body = format!(r#"{{"step":{step}}}"#);
        // An interactive edit of a leaf, or a replicated revision on any revision.
        if below(&mut random, 2) == 0 {
            let parent = match known.len() {
                0 => None,
                leaves => Some(known[below(&mut random, leaves)].clone()),
            };
            let mut edit = edit(&id, &body);
            edit.deleted = deleted;
            edit.rev = parent.as_ref().map(|(_, rev)| rev.clone());
            let made = documents.put(edit).await;
            match parent {
                Some((false, rev)) => {
                    assert_eq!(made.unwrap_err().status(), 409, "{rev} is a tombstone; seed {seed}, step {step}");
                }
                parent => {
                    let made = made.unwrap_or_else(|error| panic!("{error}; seed {seed}, step {step}"));
                    let mut path = vec![made];
                    path.extend(parent.into_iter().flat_map(|(_, rev)| tree.path(&rev)));
                    tree.merge(&path, deleted);
                }
            }
        } else {
            let mut path = match known.len() {
                0 => Vec::new(),
                leaves => {
                    let path = tree.path(&known[below(&mut random, leaves)].1);
                    let from = below(&mut random, path.len() + 1);
                    path[from..].to_vec()
                }
            };
            for _ in 0..below(&mut random, 3) + usize::from(path.is_empty()) {
                path.insert(0, child(path.first(), below(&mut random, 4)));
            }
            let result = documents.write(vec![bring(&id, &path, deleted)], WriteMode::Replicated).await.unwrap();
            result.into_iter().for_each(|result| drop(result.unwrap()));
            tree.merge(&path, deleted);
        }
        if tree.leaves().is_empty() {
            trees.remove(&id);
        }
        if step % 20 == 0 {
            assert_agrees(&documents, &trees, seed).await;
            assert_sound(&documents).await;
        }
    }
    assert_agrees(&documents, &trees, seed).await;
    assert_sound(&documents).await;
}

pub(crate) async fn a_replicated_deletion_of_the_winner_uncovers_its_sibling(stage: Stage) {
    let documents = stage.documents().await;
    merge(&documents, replicated("a", "2-zz a", r#"{"n":1}"#)).await;
    merge(&documents, replicated("a", "2-bb a", r#"{"n":2}"#)).await;
    let before = documents.last_seq().await.unwrap();
    merge(&documents, replicated("a", "3-dead zz a", "{}").deleting()).await;
    assert_eq!(get(&documents, "a").await.rev, rev("2-bb"));
    let changes = feed(&documents, ChangesRequest::default()).await;
    assert_eq!((changes.len(), changes[0].deleted, &changes[0].revs), (1, false, &vec![rev("2-bb")]));
    assert!(changes[0].seq > before);
    let info = documents.info().await.unwrap();
    assert_eq!((info.doc_count, info.doc_del_count), (1, 0));
    merge(&documents, replicated("a", "3-gone bb a", "{}").deleting()).await;
    let changes = feed(&documents, ChangesRequest::default()).await;
    assert_eq!((changes.len(), changes[0].deleted, &changes[0].revs), (1, true, &vec![rev("3-gone")]));
    assert_sound(&documents).await;
}

pub(crate) async fn short_and_long_histories_join(stage: Stage) {
    let documents = stage.documents().await;
    let history = async |id| leaves(&documents, id).await.remove(0).1.len();
    // A short path to a leaf with a long history, and to an ancestor of it.
    merge(&documents, replicated("a", "3-c b a", "{}")).await;
    merge(&documents, replicated("a", "5-e d c", "{}")).await;
    assert_eq!((history("a").await, lost(&documents, "a").await.len()), (5, 0));
    merge(&documents, replicated("a", "6-x d", "{}")).await;
    assert_eq!(history("a").await, 2, "6-x names 5-d, which is another revision than 4-d");
    merge(&documents, replicated("a", "5-y d", "{}")).await;
    let leaves = leaves(&documents, "a").await;
    let five_y = leaves.iter().find(|(_, path)| path[0] == rev("5-y")).unwrap();
    assert_eq!(five_y.1.len(), 5, "the fork remembers what its sibling does");
    // A long path to a leaf with a short history.
    merge(&documents, replicated("b", "3-c", "{}")).await;
    merge(&documents, replicated("b", "4-d c b a", "{}")).await;
    assert_eq!((history("b").await, lost(&documents, "b").await.len()), (4, 0));
    // One path over two leaves whose connection was unknown.
    merge(&documents, replicated("c", "2-b a", "{}")).await;
    merge(&documents, replicated("c", "4-d", "{}")).await;
    merge(&documents, replicated("c", "5-e d c b a", "{}")).await;
    assert_eq!((history("c").await, lost(&documents, "c").await.len()), (5, 0));
    assert_sound(&documents).await;
}

pub(crate) async fn a_longer_history_that_comes_later_reaches_the_branches_it_belongs_to(stage: Stage) {
    let documents = stage.documents().await;
    let paths = async |id| leaves(&documents, id).await.into_iter().map(|(_, path)| path).collect::<Vec<_>>();
    let path = |text: &str| text.split(' ').map(rev).collect::<Vec<_>>();
    // The winner, a loser and a tombstone, each stemmed. The new revision wins or loses.
    for (id, last, winner) in [("a", "5-z d c b a", "5-z 4-d 3-c 2-b 1-a"), ("b", "2-q a", "5-y 4-d 3-c 2-b 1-a")] {
        merge(&documents, replicated(id, "5-y d c", "{}")).await;
        merge(&documents, replicated(id, "4-x c b", r#"{"n":1}"#)).await;
        merge(&documents, replicated(id, "3-w b", "{}").deleting()).await;
        let limit = documents.revs_limit().await.unwrap();
        merge(&documents, replicated(id, "3-v b a", "{}")).await;
        merge(&documents, replicated(id, last, "{}")).await;
        let found = paths(id).await;
        assert_eq!(found[0], path(winner));
        for expected in ["5-y 4-d 3-c 2-b 1-a", "4-x 3-c 2-b 1-a", "3-w 2-b 1-a", "3-v 2-b 1-a"] {
            assert!(found.contains(&path(expected)), "{expected} in {found:?}");
        }
        assert_eq!((found.len(), limit), (5, 1_000));
        assert_sound(&documents).await;
    }
    // At most as many as a branch may remember.
    documents.set_revs_limit(3).await.unwrap();
    merge(&documents, replicated("c", "5-y d", "{}")).await;
    merge(&documents, replicated("c", "5-x d c b a", "{}")).await;
    assert_eq!(paths("c").await, [path("5-y 4-d 3-c"), path("5-x 4-d 3-c")]);
    assert_sound(&documents).await;
}

pub(crate) async fn a_lowered_limit_is_shown_at_once_and_rows_are_stemmed(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    let long = |first: u64| {
        let ids: Vec<String> = (0..3_000_u64).map(|n| format!("{:032x}", first + n)).collect();
        replicated(&format!("long-{first}"), &format!("3000-{}", ids.join(" ")), "{}")
    };
    documents.set_revs_limit(4_000).await.unwrap();
    for edit in [
        replicated("a", "5-e d c b a", r#"{"n":1}"#),
        replicated("a", "5-y d c b a", "{}"),
        replicated("a", "4-x c b a", "{}").deleting(),
        replicated("short", "2-b a", "{}"),
    ] {
        merge(&documents, edit).await;
    }
    // Several batches.
    for first in 1..=20 {
        merge(&documents, long(first)).await;
    }
    let size = async || {
        let rows = super::damage::rows(&engine, 4, "").await;
        (rows.len(), rows.iter().map(|row| row.value.len()).sum::<usize>())
    };
    let (before, seq) = (size().await, documents.last_seq().await.unwrap());
    documents.set_revs_limit(3).await.unwrap();
    let shown = async || {
        let mut shown = Vec::new();
        for id in ["a", "short", "long-1"] {
            let options = GetOptions { revs: true, revs_info: true, ..GetOptions::default() };
            let document = documents.get(id, &options).await.unwrap();
            shown.push((document.revisions.unwrap().ids.len(), document.revs_info.unwrap().len()));
            shown.extend(leaves(&documents, id).await.into_iter().map(|(_, path)| (path.len(), 0)));
        }
        shown
    };
    let limited = [(3, 3), (3, 0), (3, 0), (3, 0), (2, 2), (2, 0), (3, 3), (3, 0)];
    assert_eq!(shown().await, limited);
    assert_eq!(size().await, before, "rows are as they were");

    let mut stemming = documents.stemming().unwrap();
    assert!(documents.stemming().is_none(), "one at a time");
    assert!(documents.info().await.unwrap().is_compacting);
    let mut batches = 1;
    while stemming.next().await.unwrap() {
        batches += 1;
    }
    drop(stemming);
    assert!(!documents.info().await.unwrap().is_compacting);
    let after = size().await;
    assert!(batches > 1 && after.0 == before.0 && after.1 < 24 * 150, "{batches} batches, {before:?} {after:?}");
    assert_eq!((shown().await, documents.last_seq().await.unwrap()), (limited.to_vec(), seq));
    assert_sound(&documents).await;
    // They are edited like other documents, and nothing comes back when the limit is raised again.
    documents.set_revs_limit(1_000).await.unwrap();
    documents.put(edit("a", "{}").over(rev("5-y"))).await.unwrap();
    merge(&documents, replicated("a", "6-f e", "{}")).await;
    // A merge joins the remaining history of all branches: the tombstone has 2-b.
    assert_eq!(leaves(&documents, "a").await.iter().map(|(_, path)| path.len()).collect::<Vec<_>>(), [5, 5, 3]);
    assert_sound(&documents).await;
}

/// Edits of documents whose branches are stemmed at the same time.
pub(crate) async fn stemming_loses_no_edit(stage: Stage) {
    let chaos = Chaos::new(stage.engine(), 7, Rates::retryable(0.05));
    let documents = layer(chaos).await.create_database("chaos", CreateOptions::default()).await.unwrap();
    for id in 0..10 {
        merge(&documents, replicated(&id.to_string(), "5-e d c b a", r#"{"n":0}"#)).await;
    }
    documents.set_revs_limit(2).await.unwrap();
    let edits = (0..10).map(|id| {
        let documents = &documents;
        async move {
            let mut last = rev("5-e");
            for n in 1..=5 {
                last = documents.put(edit(&id.to_string(), &format!(r#"{{"n":{n}}}"#)).over(last)).await.unwrap();
            }
        }
    });
    let stem = async {
        for _ in 0..20 {
            let mut stemming = documents.stemming().unwrap();
            while stemming.next().await.unwrap() {}
        }
    };
    futures_util::future::join(futures_util::future::join_all(edits), stem).await;
    let documents = layer(stage.engine()).await.database("chaos").await.unwrap();
    for id in 0..10 {
        assert_eq!(get(&documents, &id.to_string()).await.body.to_string(), r#"{"n":5}"#, "seed 7");
        assert_eq!(leaves(&documents, &id.to_string()).await[0].1.len(), 2);
    }
    assert_sound(&documents).await;
}

pub(crate) async fn a_leaf_that_turns_out_to_be_an_ancestor_is_joined(stage: Stage) {
    let documents = stage.documents().await;
    // The revision of this edit.
    merge(&documents, replicated("model", "3-c", r#"{"n":1}"#)).await;
    let made = documents.put(edit("model", r#"{"n":2}"#).over(rev("3-c"))).await.unwrap();
    for deleted in [false, true] {
        // A branch was replicated without the edit's parent. The parent is replicated later, and the same edit is made
        // here.
        let id = if deleted { "deleted" } else { "live" };
        let child = replicated(id, &format!("5-e {}", made.hash()), r#"{"n":3}"#);
        merge(&documents, if deleted { child.deleting() } else { child }).await;
        merge(&documents, replicated(id, "3-c b a", r#"{"n":1}"#)).await;
        assert_eq!(documents.put(edit(id, r#"{"n":2}"#).over(rev("3-c"))).await.unwrap(), made);
        let report = documents.check(|_| {}).await.unwrap();
        assert_eq!((report.is_sound(), report.unjoined), (true, 1), "an edit cannot see it: {:?}", report.problems);
        // The next merge joins them, whatever it adds.
        merge(&documents, replicated(id, "1-z", "{}").deleting()).await;
        let found = leaves(&documents, id).await;
        let joined = vec![rev("5-e"), made.clone(), rev("3-c"), rev("2-b"), rev("1-a")];
        assert_eq!(found, [(!deleted, joined), (false, vec![rev("1-z")])]);
        let report = documents.check(|_| {}).await.unwrap();
        assert_eq!((report.is_sound(), report.unjoined), (true, 0));
    }
    assert_sound(&documents).await;
}

pub(crate) async fn revisions_need_not_be_hashes(stage: Stage) {
    let documents = stage.documents().await;
    let long = "x".repeat(255);
    // The encoded history exceeds the limit on values. As much of it is kept as fits in a row.
    let ids: Vec<String> = (0..1_000).map(|n| format!("{n:04}{}", "y".repeat(251))).collect();
    for path in ["1-a".to_owned(), format!("2-{long} b"), format!("1000-{}", ids.join(" "))] {
        let id = path.len().to_string();
        merge(&documents, replicated(&id, &path, "{}")).await;
        let leaf = rev(path.split(' ').next().unwrap());
        assert_eq!(get(&documents, &id).await.rev, leaf);
        documents.put(edit(&id, r#"{"next":1}"#).over(leaf)).await.unwrap();
    }
    assert_sound(&documents).await;
}

pub(crate) async fn histories_join_within_a_batch_in_any_order(stage: Stage) {
    let documents = stage.documents().await;
    let batches: [&[&str]; 6] = [
        &["5-e d", "4-d c b a"],
        &["4-d c b a", "5-e d"],
        &["5-e d", "5-e d c b a"],
        &["5-e", "5-e d", "3-c b a", "4-d c"],
        &["3-c b a", "4-d c", "5-e d", "5-e"],
        &["5-e d c", "3-c", "4-d c b a", "3-c b"],
    ];
    for (n, batch) in batches.iter().enumerate() {
        let id = format!("doc-{n}");
        let edits = batch.iter().enumerate().map(|(at, path)| replicated(&id, path, &format!(r#"{{"at":{at}}}"#)));
        for result in documents.write(edits.collect(), WriteMode::Replicated).await.unwrap() {
            result.unwrap();
        }
        let whole = ["5-e", "4-d", "3-c", "2-b", "1-a"].map(rev).to_vec();
        assert_eq!(leaves(&documents, &id).await, [(true, whole)], "{batch:?}");
        let first = batch.iter().position(|path| path.starts_with("5-e")).unwrap();
        assert_eq!(get(&documents, &id).await.body.to_string(), format!(r#"{{"at":{first}}}"#), "{batch:?}");
    }
    // Their ancestors are known from then on.
    let before = documents.last_seq().await.unwrap();
    merge(&documents, replicated("doc-0", "3-c", "{}")).await;
    assert_eq!(documents.last_seq().await.unwrap(), before);
    assert_sound(&documents).await;
}
