//! Databases in which the last write wins.

use conformance::random::Random;
use kv_api::{Bytes, Counted, Counts, Database};
use model::{
    ChangesRequest, ConflictPolicy, CreateOptions, Documents, Edit, ErrorKind, GetOptions, Layer, LayerOptions,
    NotFound, OpenRev, OpenRevs, RelocateOptions, RevHistory, RevId, RevsDiff, Style, WriteMode, relocate,
};

use super::attachments::inline;
use super::damage::{self, REVISIONS};
use crate::stage::*;

const LAST_WRITE_WINS: CreateOptions =
    CreateOptions { format: None, conflicts: ConflictPolicy::LastWriteWins, keep_replaced: None, partitioned: false };

async fn last_write_wins<D: Database>(engine: D) -> Documents<D> {
    layer(engine).await.create_database("db", LAST_WRITE_WINS).await.expect("a database")
}

/// The only leaf of a document, with its history.
async fn leaf<D: Database>(documents: &Documents<D>, id: &str) -> model::Document {
    let options = GetOptions { revs: true, ..GetOptions::default() };
    let mut leaves = documents.open_revs(id, &OpenRevs::All, &options).await.unwrap();
    match (leaves.pop(), leaves.is_empty()) {
        (Some(OpenRev::Found(document)), true) => document,
        other => panic!("{other:?}"),
    }
}

/// A replicated revision.
#[derive(Clone, Debug)]
struct Sent {
    history: RevHistory,
    deleted: bool,
    attached: bool,
}

impl Sent {
    fn rev(&self) -> RevId {
        self.history.leaf().expect("a leaf")
    }

    fn rank(&self) -> (u64, Vec<u8>) {
        (self.history.position, self.rev().hash().as_bytes().to_vec())
    }

    fn body(&self) -> String {
        if self.deleted { "{}".to_owned() } else { format!(r#"{{"rev":"{}"}}"#, self.rev()) }
    }

    fn edit(&self, id: &str) -> Edit {
        let edit = edit(id, &self.body()).with_history(self.history.clone());
        let attachments = if self.attached { vec![inline("f", "x", self.rev().to_string())] } else { Vec::new() };
        let edit = Edit { attachments, ..edit };
        if self.deleted { edit.deleting() } else { edit }
    }
}

/// Random revisions. Some extend others, some have no common ancestor. Histories are complete or stemmed.
fn some_revisions(random: &mut Random) -> Vec<Sent> {
    let mut sent: Vec<Sent> = Vec::new();
    while sent.len() < 5 {
        let parent = if sent.is_empty() || random.chance(0.3) { None } else { Some(random.pick(&sent).clone()) };
        let (position, mut ids) = parent.map_or((0, Vec::new()), |one| (one.history.position, one.history.ids));
        // Few hashes, so that sometimes the position decides and sometimes the hash. Bytes are compared as unsigned.
        ids.insert(0, random.pick(&["00", "7f", "80", "ff", "ff00", "~"]).parse().expect("a hash"));
        if random.chance(0.3) {
            ids.truncate(1 + random.below(ids.len() as u64) as usize);
        }
        let history = RevHistory { position: position + 1, ids };
        let one = Sent { history, deleted: random.chance(0.4), attached: random.chance(0.3) };
        if sent.iter().all(|other| other.rev() != one.rev()) {
            sent.push(one);
        }
    }
    sent
}

/// The greatest of some revisions: the oracle.
fn greatest<'s>(sent: impl Iterator<Item = &'s Sent>) -> Option<&'s Sent> {
    sent.max_by_key(|one| one.rank())
}

/// All orders of five revisions.
fn orders() -> Vec<Vec<usize>> {
    (0..5).fold(vec![Vec::new()], |shorter, next| {
        let longer = |order: Vec<usize>| {
            (0..=order.len()).map(move |place| [&order[..place], &[next], &order[place..]].concat())
        };
        shorter.into_iter().flat_map(longer).collect()
    })
}

pub(crate) async fn the_greatest_revision_is_left_in_every_order(stage: Stage) {
    let layer = stage.layer().await;
    let orders = orders();
    assert_eq!(orders.len(), 120);
    for seed in 1..=4 {
        let sent = some_revisions(&mut Random::new(seed));
        let what = format!("seed {seed}, {sent:?}");
        let documents = layer.create_database(&format!("seed-{seed}"), LAST_WRITE_WINS).await.unwrap();
        let id_of = |order: &[usize]| order.iter().map(|n| n.to_string()).collect::<String>();
        for step in 0..5 {
            // The question of a replicator before it sends.
            let all: Vec<RevId> = sent.iter().map(Sent::rev).collect();
            let wanted = orders.iter().map(|order| (id_of(order), all.clone())).collect();
            let expected = orders.iter().filter_map(|order| {
                let there = greatest(order[..step].iter().map(|&n| &sent[n]));
                let is_missing = |one: &&Sent| there.is_none_or(|there| one.rank() > there.rank());
                let missing: Vec<RevId> = sent.iter().filter(is_missing).map(Sent::rev).collect();
                let highest = missing.iter().map(RevId::position).max()?;
                let possible_ancestors =
                    there.map(Sent::rev).filter(|there| there.position() < highest).into_iter().collect();
                Some(RevsDiff { id: id_of(order), missing, possible_ancestors })
            });
            assert_eq!(documents.revs_diff(wanted).await.unwrap(), expected.collect::<Vec<_>>(), "{what}");
            let edits = orders.iter().map(|order| sent[order[step]].edit(&id_of(order))).collect();
            for result in documents.write(edits, WriteMode::Replicated).await.unwrap() {
                result.unwrap();
            }
        }
        // All in one request too, in some orders.
        let together = |order: &Vec<usize>| format!("together-{}", id_of(order));
        for order in orders.iter().step_by(29) {
            let edits = order.iter().map(|&n| sent[n].edit(&together(order))).collect();
            for result in documents.write(edits, WriteMode::Replicated).await.unwrap() {
                result.unwrap();
            }
        }
        let best = greatest(sent.iter()).unwrap();
        let ids = orders.iter().map(|order| id_of(order)).chain(orders.iter().step_by(29).map(together));
        for id in ids.clone() {
            let found = leaf(&documents, &id).await;
            assert_eq!((&found.rev, found.deleted), (&best.rev(), best.deleted), "{id} of {what}");
            assert_eq!(found.revisions.as_ref(), Some(&best.history), "{id} of {what}");
            assert_eq!((found.body.as_str(), found.attachments.len()), (&*best.body(), usize::from(best.attached)));
        }
        let changes = feed(&documents, ChangesRequest { style: Style::AllDocs, ..ChangesRequest::default() }).await;
        let count = ids.count();
        assert_eq!(changes.len(), count);
        assert!(changes.iter().all(|change| change.revs == [best.rev()] && change.deleted == best.deleted), "{what}");
        let info = documents.info().await.unwrap();
        let (live, dead) = if best.deleted { (0, count) } else { (count, 0) };
        assert_eq!((info.doc_count, info.doc_del_count), (live as u64, dead as u64), "{what}");
        assert_eq!(info.conflicts, ConflictPolicy::LastWriteWins);
        let report = documents.check(|_| {}).await.unwrap();
        assert!(report.is_sound(), "{:?}: {what}", report.problems);
        assert_eq!((report.revisions, report.contents), (count as u64, u64::from(best.attached)), "{what}");
    }
}

pub(crate) async fn edits_extend_the_only_leaf_and_a_tombstone_stays(stage: Stage) {
    let (engine, documents) = (stage.engine(), last_write_wins(stage.engine()).await);
    let first = documents.put(edit("a", r#"{"n":1}"#)).await.unwrap();
    merge(&documents, replicated("a", "3-x w", r#"{"from":"elsewhere"}"#)).await;
    let conflict = documents.put(edit("a", "{}").over(first.clone())).await.unwrap_err();
    assert_eq!(*conflict.kind(), ErrorKind::Conflict);
    let fourth = documents.put(edit("a", r#"{"n":4}"#).over(rev("3-x"))).await.unwrap();
    assert_eq!(fourth.position(), 4);
    let fifth = documents.put(edit("a", "{}").over(fourth.clone()).deleting()).await.unwrap();

    // Revisions below the tombstone are known, live or not.
    let seq = documents.last_seq().await.unwrap();
    for path in ["1-z", "3-zz", "4-~ x w"] {
        merge(&documents, replicated("a", path, r#"{"late":true}"#)).await;
    }
    assert_eq!(documents.last_seq().await.unwrap(), seq);
    let deleted = documents.get("a", &GetOptions::default()).await.unwrap_err();
    assert_eq!(*deleted.kind(), ErrorKind::NotFound(NotFound::Deleted));
    // A stub without a content is not an error if its revision is known.
    let stub = Edit { attachments: vec![model::AttachmentEdit::stub("f")], ..replicated("a", "2-stub", "{}") };
    merge(&documents, stub).await;

    // With `latest`, the leaf replaces all known revisions.
    let these = OpenRevs::These(vec![first, rev("4-~"), rev("9-x")]);
    let latest = GetOptions { latest: true, ..GetOptions::default() };
    match documents.open_revs("a", &these, &latest).await.unwrap().as_slice() {
        [OpenRev::Found(leaf), OpenRev::Missing(unknown)] => {
            assert_eq!((&leaf.rev, unknown), (&fifth, &rev("9-x")));
        }
        other => panic!("{other:?}"),
    }

    let sixth = documents.put(edit("a", r#"{"back":1}"#)).await.unwrap();
    assert_eq!((sixth.position(), leaf(&documents, "a").await.rev), (6, sixth.clone()));
    merge(&documents, replicated("a", "7-dead", "{}").deleting()).await;
    merge(&documents, replicated("a", "8-live", "{}")).await;
    assert_eq!(get(&documents, "a").await.rev, rev("8-live"));
    let attached = Edit { attachments: vec![inline("f", "x", "bytes")], ..edit("b", "{}") };
    documents.put(attached).await.unwrap();
    let formats = damage::rows(&engine, REVISIONS, "").await.into_iter().map(|row| row.value[..2].to_vec());
    assert_eq!(formats.collect::<Vec<_>>(), [[0x15, 5], [0x15, 7]], "RevFormat");
    assert_sound(&documents).await;
}

pub(crate) async fn a_policy_costs_edits_nothing(stage: Stage) {
    let counted = Counted::new(stage.engine()).separately(model::is_instance_key);
    let layer = layer(counted.clone()).await;
    let mut counts: Vec<Vec<Counts>> = Vec::new();
    for (name, conflicts) in [("one", ConflictPolicy::KeepAll), ("two", ConflictPolicy::LastWriteWins)] {
        let options = CreateOptions { conflicts, ..CreateOptions::default() };
        let documents = layer.create_database(name, options).await.unwrap();
        // The first transaction of a process clears expired ids.
        documents.put(edit("other", "{}")).await.unwrap();
        counted.take();
        let first = documents.put(edit("a", r#"{"n":1}"#)).await.unwrap();
        let second = documents.put(edit("a", r#"{"n":2}"#).over(first)).await.unwrap();
        get(&documents, "a").await;
        documents.put(edit("a", "{}").over(second).deleting()).await.unwrap();
        documents.put(edit("a", r#"{"n":4}"#)).await.unwrap();
        merge(&documents, replicated("b", "2-b a", "{}")).await;
        merge(&documents, replicated("b", "3-c b a", "{}")).await;
        documents.revs_diff(vec![("b".to_owned(), vec![rev("3-c"), rev("4-d")])]).await.unwrap();
        let taken = counted.take().into_iter();
        // Bytes differ because of the instance's row and the ids of transactions.
        counts.push(taken.map(|counts| Counts { bytes_read: 0, bytes_written: 0, ..counts }).collect());
    }
    assert_eq!(counts[0], counts[1]);
}

pub(crate) async fn rows_of_another_policy_are_found_and_put_right(stage: Stage) {
    let (engine, documents) = (stage.engine(), last_write_wins(stage.engine()).await);
    for id in ["a", "b"] {
        merge(&documents, replicated(id, "2-x w", r#"{"n":1}"#)).await;
    }
    let sound = damage::rows(&engine, REVISIONS, "a").await.remove(0);
    let mut other = sound.value.to_vec();
    other[1] = 1;
    damage::put(&engine, &[(&sound.key, Some(&other))]).await;
    let report = documents.check(|_| {}).await.unwrap();
    assert_eq!(report.problem_count, 1, "{:?}", report.problems);
    assert!(documents.repair(|_| ()).await.unwrap().after.is_sound());
    assert_eq!(get(&documents, "a").await.body.as_str(), r#"{"n":1}"#);

    // A tombstone beside the leaf, which no edit can write, stays until a greater revision replaces both.
    let mut key = damage::rows(&engine, REVISIONS, "b").await.remove(0).key.to_vec();
    let [.., not_deleted, 0x15, 2, 1, b'x', 0] = key.as_mut_slice() else { panic!("{key:?}") };
    *not_deleted = 0x26;
    damage::put(&engine, &[(&key, Some(&[0x15, 5, 0x14, 5, 0]))]).await;
    let report = documents.repair(|_| ()).await.unwrap();
    assert_eq!((report.left, report.after.is_sound()), (1, false));
    assert_eq!(get(&documents, "b").await.rev, rev("2-x"));
}

pub(crate) async fn a_policy_moves_with_its_database(stage: Stage) {
    let at = async |prefix: &'static str| {
        let options = LayerOptions { prefix: Bytes::from_static(prefix.as_bytes()), ..LayerOptions::default() };
        Layer::open(stage.engine(), options).await.unwrap()
    };
    let (from, to) = (at("a").await, at("b").await);
    let documents = from.create_database("db", LAST_WRITE_WINS).await.unwrap();
    for path in ["2-b a", "2-c a", "5-e"] {
        merge(&documents, replicated("a", path, r#"{"n":1}"#)).await;
    }
    let options = RelocateOptions { verify: true, ..RelocateOptions::default() };
    let report = relocate(&from, &to, "db", &options, |_| std::ops::ControlFlow::Continue(())).await.unwrap();
    assert!(report.moved && report.is_same(), "{report:?}");
    let arrived = to.database("db").await.unwrap();
    assert_eq!(arrived.info().await.unwrap().conflicts, ConflictPolicy::LastWriteWins);
    merge(&arrived, replicated("a", "4-z", "{}")).await;
    merge(&arrived, replicated("a", "5-f", "{}")).await;
    assert_eq!(leaf(&arrived, "a").await.rev, rev("5-f"));
    assert_sound(&arrived).await;
}
