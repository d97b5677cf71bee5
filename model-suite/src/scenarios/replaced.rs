//! Bodies of replaced revisions, in databases that keep them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use conformance::interleave::interleave;
use conformance::random::Random;
use kv_api::{Bytes, Counted, Counts, Database, RangeRequest, Read, TransactionExt};
use model::{
    AttachmentEdit, BodyFormat, BulkGet, ConflictPolicy, CreateOptions, Documents, Edit, GetOptions, KeepReplaced,
    Layer, LayerOptions, OpenRev, OpenRevs, Purge, RelocateOptions, RevId, RevStatus, WriteMode, relocate,
};

use super::attachments::{inline, rows, with};
use crate::stage::*;

const DAY_MS: u64 = 86_400_000;

fn keeping(keep: KeepReplaced, format: BodyFormat) -> CreateOptions {
    CreateOptions { format: Some(format), keep_replaced: Some(keep), ..CreateOptions::default() }
}

fn at(rev: &RevId) -> GetOptions {
    GetOptions { rev: Some(rev.clone()), revs: true, ..GetOptions::default() }
}

/// Whether a revision can be read by its name.
async fn is_there<D: Database>(documents: &Documents<D>, id: &str, rev: &RevId) -> bool {
    match documents.get(id, &at(rev)).await {
        Ok(document) => {
            assert_eq!(document.rev, *rev);
            true
        }
        Err(error) => {
            assert_eq!(error.status(), 404, "{error}");
            false
        }
    }
}

/// The text of an attachment of a revision.
async fn attached<D: Database>(documents: &Documents<D>, id: &str, rev: &RevId, name: &str) -> Vec<u8> {
    let (found, mut reader) = documents.attachment(id, Some(rev), name).await.unwrap();
    assert_eq!(found, *rev);
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next().await.unwrap() {
        bytes.extend_from_slice(&piece);
    }
    bytes
}

/// Number of rows of replaced revisions, and of their bodies.
async fn kept_rows<D: Database>(engine: &D) -> [usize; 2] {
    let transaction = engine.begin().unwrap();
    let all = RangeRequest::keys(Bytes::new(), Bytes::from_static(b"\xff"));
    let mut counts = [0; 2];
    for row in transaction.get_all(all, Read::Snapshot).await.unwrap() {
        if let [0x15, 4, 0x14, 0x15, subspace @ 18..=19, ..] = row.key.as_ref() {
            counts[usize::from(*subspace) - 18] += 1;
        }
    }
    counts
}

async fn compact<D: Database>(documents: &Documents<D>) {
    let mut stemming = documents.stemming().unwrap();
    while stemming.next().await.unwrap() {}
}

fn statuses(document: &model::Document) -> Vec<RevStatus> {
    document.revs_info.iter().flatten().map(|info| info.status).collect()
}

pub(crate) async fn replaced_revisions_are_read_if_they_are_kept(stage: Stage) {
    use RevStatus::{Available, Deleted, Missing};
    let (engine, layer) = (stage.engine(), stage.layer().await);
    for format in [BodyFormat::Exploded, BodyFormat::Packed] {
        let documents = layer.create_database("db", keeping(KeepReplaced::Revisions(3), format)).await.unwrap();
        assert_eq!(documents.info().await.unwrap().keep_replaced, Some(KeepReplaced::Revisions(3)));
        let files = vec![inline("f", "text/plain", "the first"), inline("g", "x/y", vec![7; 200_000])];
        let first = documents.put(with(edit("a", r#"{"n":1,"l":[{},[]]}"#), files)).await.unwrap();
        let stubs = vec![AttachmentEdit::stub("g")];
        let second = documents.put(with(edit("a", r#"{"n":2}"#).over(first.clone()), stubs)).await.unwrap();
        let dead = documents.put(edit("a", r#"{"why":1}"#).over(second.clone()).deleting()).await.unwrap();
        let fourth = documents.put(edit("a", r#"{"n":4}"#)).await.unwrap();

        let found = documents.get("a", &at(&first)).await.unwrap();
        assert_eq!((found.body.as_str(), found.deleted), (r#"{"n":1,"l":[{},[]]}"#, false));
        assert_eq!(found.revisions.unwrap().ids, [first.hash().clone()]);
        assert_eq!(attached(&documents, "a", &first, "f").await, b"the first");
        assert_eq!(attached(&documents, "a", &second, "g").await, vec![7; 200_000]);
        let found = documents.get("a", &at(&dead)).await.unwrap();
        assert_eq!((found.body.as_str(), found.deleted), (r#"{"why":1}"#, true));
        let ids = [&dead, &second, &first].map(|rev| rev.hash().clone());
        assert_eq!(found.revisions.unwrap().ids, ids);
        let winner = documents.get("a", &all_members()).await.unwrap();
        assert_eq!((&winner.rev, statuses(&winner)), (&fourth, vec![Available, Deleted, Available, Available]));
        let named = [&fourth, &second, &rev("2-ab"), &first].map(Clone::clone).to_vec();
        let opened = documents.open_revs("a", &OpenRevs::These(named), &GetOptions::default()).await.unwrap();
        let revs: Vec<Option<&RevId>> = opened
            .iter()
            .map(|one| if let OpenRev::Found(document) = one { Some(&document.rev) } else { None })
            .collect();
        assert_eq!(revs, [Some(&fourth), Some(&second), None, Some(&first)]);
        let requests = vec![BulkGet { id: "a".to_owned(), rev: Some(second.clone()) }];
        let many = documents.get_many(requests, &GetOptions::default()).await.unwrap();
        let [OpenRev::Found(document)] = &many[0].1.as_deref().unwrap() else { panic!("{many:?}") };
        assert_eq!((document.body.as_str(), document.attachments.len()), (r#"{"n":2}"#, 1));
        let latest = GetOptions { latest: true, ..at(&first) };
        assert_eq!(documents.get("a", &latest).await.unwrap().rev, fourth, "the leaf, not the replaced one");
        let all = documents.open_revs("a", &OpenRevs::All, &GetOptions::default()).await.unwrap();
        assert_eq!(all.len(), 1, "leaves only");

        // Edits of a replaced revision still conflict.
        let stale = with(edit("a", "{}").over(second.clone()), vec![AttachmentEdit::stub("g")]);
        assert_eq!(documents.put(stale).await.unwrap_err().status(), 409);
        assert_eq!(documents.delete_attachment("a", Some(&second), "g").await.unwrap_err().status(), 409);

        // The next edit removes the oldest, with its attachment.
        assert_sound(&documents).await;
        let fifth = documents.put(edit("a", "{}").over(fourth.clone())).await.unwrap();
        assert!(!is_there(&documents, "a", &first).await && is_there(&documents, "a", &second).await);
        assert_eq!(attached(&documents, "a", &second, "g").await, vec![7; 200_000]);
        let winner = documents.get("a", &all_members()).await.unwrap();
        assert_eq!(statuses(&winner), [Available, Available, Deleted, Available, Missing]);
        assert_sound(&documents).await;

        // A lowered number takes effect with the next edit, and a compaction removes all excess.
        documents.set_keep_replaced(Some(KeepReplaced::Revisions(1))).await.unwrap();
        let sixth = documents.put(edit("a", r#"{"n":6}"#).over(fifth.clone())).await.unwrap();
        assert!(is_there(&documents, "a", &fifth).await && !is_there(&documents, "a", &fourth).await);
        assert_eq!(rows(&engine).await, [0, 0, 0, 0], "the attachments went with their last revision");
        compact(&documents).await;
        assert!(!is_there(&documents, "a", &fifth).await && is_there(&documents, "a", &sixth).await);
        assert_eq!((kept_rows(&engine).await, documents.keep_replaced().await.unwrap().is_some()), ([0, 0], true));
        assert_sound(&documents).await;
        layer.delete_database("db").await.unwrap();
        assert!(documents.jobs().list(model::FORGET_JOBS).await.unwrap().is_empty());
        return_to_first_number(&engine).await;
    }
}

/// Lets the next database have the first number again, whose keys the helpers know.
async fn return_to_first_number<D: Database>(engine: &D) {
    use kv_api::Transaction;
    let transaction = engine.begin().unwrap();
    transaction.clear(&[0x15, 2]);
    transaction.commit().await.unwrap();
}

pub(crate) async fn replaced_revisions_end_with_the_setting(stage: Stage) {
    let (engine, layer) = (stage.engine(), stage.layer().await);
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let first = documents.put(edit("a", r#"{"n":1}"#)).await.unwrap();
    let second = documents.put(edit("a", r#"{"n":2}"#).over(first.clone())).await.unwrap();
    for wrong in [KeepReplaced::Revisions(0), KeepReplaced::Revisions(4_001), KeepReplaced::Milliseconds(0)] {
        assert_eq!(documents.set_keep_replaced(Some(wrong)).await.unwrap_err().status(), 400);
    }
    documents.set_keep_replaced(None).await.unwrap();
    documents.set_keep_replaced(Some(KeepReplaced::Milliseconds(DAY_MS))).await.unwrap();
    let data = vec![inline("f", "x/y", vec![1; 300_000])];
    let third = documents.put(with(edit("a", r#"{"n":3}"#).over(second.clone()), data)).await.unwrap();
    let fourth = documents.put(edit("a", r#"{"n":4}"#).over(third.clone())).await.unwrap();
    assert!(!is_there(&documents, "a", &first).await, "it was replaced before");
    assert!(is_there(&documents, "a", &second).await && is_there(&documents, "a", &third).await);
    assert_eq!(documents.jobs().list(model::FORGET_JOBS).await.unwrap().len(), 1);

    documents.set_keep_replaced(None).await.unwrap();
    assert_eq!(documents.keep_replaced().await.unwrap(), None);
    assert!(!is_there(&documents, "a", &second).await && !is_there(&documents, "a", &third).await);
    let winner = documents.get("a", &all_members()).await.unwrap();
    assert_eq!(statuses(&winner)[1..], [RevStatus::Missing; 3]);
    // Edits no longer keep revisions.
    assert_eq!(kept_rows(&engine).await, [4, 5]);
    documents.put(edit("a", "{}").over(fourth.clone())).await.unwrap();
    assert_sound(&documents).await;
    assert_eq!(documents.forget_replaced().await.unwrap(), None);
    assert_eq!((kept_rows(&engine).await, rows(&engine).await), ([0, 0], [0, 0, 0, 0]));
    assert_sound(&documents).await;
    assert!(!is_there(&documents, "a", &fourth).await);
}

pub(crate) async fn what_is_too_old_cannot_be_read_and_is_removed(stage: Stage) {
    let (engine, clock) = (stage.engine(), Clock::default());
    let layer = Layer::open(engine.clone(), clock.options()).await.unwrap();
    let options = keeping(KeepReplaced::Milliseconds(DAY_MS), BodyFormat::Packed);
    let documents = layer.create_database("db", options).await.unwrap();
    let first = documents.put(with(edit("a", "{}"), vec![inline("f", "x/y", "bytes")])).await.unwrap();
    let second = documents.put(edit("a", r#"{"n":2}"#).over(first.clone())).await.unwrap();
    clock.pass(DAY_MS - 1);
    documents.put(edit("a", r#"{"n":3}"#).over(second.clone())).await.unwrap();
    assert!(documents.forget_replaced().await.unwrap().is_some(), "there will be work again");
    assert!(is_there(&documents, "a", &first).await && is_there(&documents, "a", &second).await);
    clock.pass(1);
    assert!(!is_there(&documents, "a", &first).await && is_there(&documents, "a", &second).await);
    assert_eq!((kept_rows(&engine).await, rows(&engine).await), ([4, 3], [1, 1, 1, 0]), "it waits for the job");
    documents.forget_replaced().await.unwrap();
    assert_eq!((kept_rows(&engine).await, rows(&engine).await), ([2, 1], [0, 0, 0, 0]));
    assert!(is_there(&documents, "a", &second).await);
    // A longer time does not bring it back, and a shorter one takes effect at once.
    documents.set_keep_replaced(Some(KeepReplaced::Milliseconds(7 * DAY_MS))).await.unwrap();
    assert!(!is_there(&documents, "a", &first).await);
    clock.pass(2 * DAY_MS);
    assert!(is_there(&documents, "a", &second).await);
    documents.set_keep_replaced(Some(KeepReplaced::Milliseconds(DAY_MS))).await.unwrap();
    assert!(!is_there(&documents, "a", &second).await);
    assert_sound(&documents).await;
    documents.forget_replaced().await.unwrap();
    assert_eq!(kept_rows(&engine).await, [0, 0]);
}

pub(crate) async fn a_purge_takes_replaced_revisions_with_it(stage: Stage) {
    let engine = stage.engine();
    let documents = stage
        .layer()
        .await
        .create_database("db", keeping(KeepReplaced::Revisions(10), BodyFormat::Exploded))
        .await
        .unwrap();
    let first = documents.put(with(edit("a", "{}"), vec![inline("f", "x/y", "secret")])).await.unwrap();
    let second = documents.put(edit("a", r#"{"n":2}"#).over(first.clone())).await.unwrap();
    merge(&documents, replicated("a", "1-x", "{}")).await;
    let other = documents.put(edit("b", "{}")).await.unwrap();
    documents.put(edit("b", r#"{"n":2}"#).over(other.clone())).await.unwrap();
    let purge = async |rev: &RevId| {
        documents.purge(&[Purge::new("a", vec![rev.clone()])]).await.unwrap().pop().unwrap().unwrap()
    };
    // No leaf: nothing happens.
    assert!(purge(&first).await.is_empty());
    assert!(is_there(&documents, "a", &first).await);
    assert_eq!(purge(&second).await, std::slice::from_ref(&second));
    assert!(!is_there(&documents, "a", &first).await && !is_there(&documents, "a", &second).await);
    assert_eq!((kept_rows(&engine).await, rows(&engine).await), ([2, 1], [0, 0, 0, 0]), "only the other document's");
    assert!(is_there(&documents, "b", &other).await);
    assert_sound(&documents).await;
}

/// The costs of a document that is created, updated twice, read and deleted.
async fn cost_of_edits<D: Database>(counted: &Counted<D>, documents: &Documents<Counted<D>>) -> Vec<Counts> {
    counted.take();
    let first = documents.put(edit("a", r#"{"n":1}"#)).await.unwrap();
    let second = documents.put(edit("a", r#"{"n":2}"#).over(first)).await.unwrap();
    let third = documents.put(edit("a", r#"{"n":3}"#).over(second)).await.unwrap();
    get(documents, "a").await;
    documents.put(edit("a", "{}").over(third).deleting()).await.unwrap();
    counted.take().into_iter().map(|counts| Counts { bytes_written: 0, bytes_read: 0, ..counts }).collect()
}

pub(crate) async fn only_a_database_that_keeps_revisions_pays_for_it(stage: Stage) {
    let counted = Counted::new(stage.engine()).separately(model::is_instance_key);
    let layer = layer(counted.clone()).await;
    let format = Some(BodyFormat::Packed);
    let off = CreateOptions { format, ..CreateOptions::default() };
    let off = layer.create_database("off", off).await.unwrap();
    let on = keeping(KeepReplaced::Revisions(1), BodyFormat::Packed);
    let on = layer.create_database("on", on).await.unwrap();
    let ended = layer.create_database("ended", keeping(KeepReplaced::Revisions(1), BodyFormat::Packed)).await.unwrap();
    ended.set_keep_replaced(None).await.unwrap();
    ended.forget_replaced().await.unwrap();
    let [off, on, ended] = [
        cost_of_edits(&counted, &off).await,
        cost_of_edits(&counted, &on).await,
        cost_of_edits(&counted, &ended).await,
    ];
    assert_eq!(off, ended, "as if it had never kept any");
    // Rows read, round trips, rows set, rows and ranges cleared.
    let of = |counts: &Counts| {
        let read = counts.kvs_read - counts.kvs_read_separately;
        [read, counts.round_trips, counts.sets, counts.clears, counts.range_clears].map(|count| count as i64)
    };
    assert_eq!(of(&off[1]), [1, 1, 3, 2, 1], "an update without the setting");
    let more = |(on, off): (&Counts, &Counts)| {
        let (on, off) = (of(on), of(off));
        std::array::from_fn(|at| on[at] - off[at])
    };
    let more: Vec<[i64; 5]> = on.iter().zip(&off).map(more).collect();
    // A creation also looks for replaced revisions: a repair may have left some of a document without leaves. The old
    // body moves: it is read, and set with two rows. From the second on, the oldest one is read and cleared.
    assert_eq!(more, [[0, 1, 0, 0, 0], [1, 1, 3, 0, 0], [2, 1, 3, 2, 1], [0; 5], [2, 1, 3, 2, 1]]);
}

pub(crate) async fn replaced_revisions_move_with_their_database(stage: Stage) {
    let at = async |prefix: &'static str| {
        let options = LayerOptions { prefix: Bytes::from_static(prefix.as_bytes()), ..LayerOptions::default() };
        Layer::open(stage.engine(), options).await.unwrap()
    };
    let (from, to) = (at("a").await, at("b").await);
    let options = keeping(KeepReplaced::Milliseconds(DAY_MS), BodyFormat::Exploded);
    let documents = from.create_database("db", options).await.unwrap();
    let first = documents.put(with(edit("a", r#"{"n":1}"#), vec![inline("f", "x/y", "bytes")])).await.unwrap();
    documents.put(edit("a", r#"{"n":2}"#).over(first.clone())).await.unwrap();
    let options = RelocateOptions { verify: true, ..RelocateOptions::default() };
    let report = relocate(&from, &to, "db", &options, |_| ControlFlow::Continue(())).await.unwrap();
    assert!(report.moved && report.is_same(), "{report:?}");
    let arrived = to.database("db").await.unwrap();
    assert_eq!(arrived.keep_replaced().await.unwrap(), Some(KeepReplaced::Milliseconds(DAY_MS)));
    assert_eq!(arrived.get("a", &self::at(&first)).await.unwrap().body.as_str(), r#"{"n":1}"#);
    assert_eq!(attached(&arrived, "a", &first, "f").await, b"bytes");
    assert_sound(&arrived).await;
    assert!(from.jobs().list(model::FORGET_JOBS).await.unwrap().is_empty());
    assert_eq!(to.jobs().list(model::FORGET_JOBS).await.unwrap().len(), 1);
}

async fn of<D: Database>(engine: D) -> Documents<D> {
    layer(engine).await.database("db").await.unwrap()
}

/// A replaced revision becomes a leaf again while a sweep is about to remove it.
pub(crate) async fn a_sweep_never_takes_what_an_edit_makes_a_leaf(stage: Stage) {
    let engine = stage.engine();
    let layer = stage.layer().await;
    let options =
        CreateOptions { conflicts: ConflictPolicy::KeepAll, ..keeping(KeepReplaced::Revisions(9), BodyFormat::Packed) };
    let documents = layer.create_database("db", options).await.unwrap();
    documents.set_revs_limit(1).await.unwrap();
    let mut was_ever_held = [false; 2];
    for is_edit_held in [false, true] {
        for nth in 0..4 {
            let id = format!("{is_edit_held}-{nth}");
            let first = with(replicated(&id, "1-a", r#"{"n":1}"#), vec![inline("f", "x/y", format!("bytes of {id}"))]);
            merge(&documents, first.clone()).await;
            documents.put(edit(&id, "{}").over(rev("1-a"))).await.unwrap();
            assert!(is_there(&documents, &id, &rev("1-a")).await);
            // Its branch does not remember it, so it comes as a leaf.
            let was_held = if is_edit_held {
                let documents = documents.clone();
                let edit = async |engine| merge(&of(engine).await, first.clone()).await;
                interleave(engine.clone(), nth, edit, async || compact(&documents).await).await.1
            } else {
                let again = of(engine.clone()).await;
                let sweep = async |engine| compact(&of(engine).await).await;
                interleave(engine.clone(), nth, sweep, async || merge(&again, first.clone()).await).await.1
            };
            if !was_held && !is_edit_held {
                merge(&documents, first.clone()).await;
            }
            was_ever_held[usize::from(is_edit_held)] |= was_held;
            let found = documents.get(&id, &at(&rev("1-a"))).await.unwrap();
            assert_eq!(found.body.as_str(), r#"{"n":1}"#, "{id}");
            assert_eq!(attached(&documents, &id, &rev("1-a"), "f").await, format!("bytes of {id}").as_bytes());
            let all = documents.open_revs(&id, &OpenRevs::All, &GetOptions::default()).await.unwrap();
            assert_eq!(all.len(), 2, "{id}: it is a leaf");
            assert_sound(&documents).await;
        }
    }
    assert_eq!(was_ever_held, [true, true]);
}

/// The oracle's knowledge of a revision.
#[derive(Clone)]
struct Known {
    body: String,
    deleted: bool,
    attachment: Option<String>,
}

/// Random edits, purges and compactions beside an oracle.
pub(crate) async fn every_kept_revision_is_read_and_no_other(stage: Stage) {
    let (engine, clock) = (stage.engine(), Clock::default());
    let layer = Layer::open(engine.clone(), clock.options()).await.unwrap();
    for seed in 0..4_u64 {
        let format = if seed % 2 == 0 { BodyFormat::Exploded } else { BodyFormat::Packed };
        let keep = if seed < 2 { KeepReplaced::Revisions(2) } else { KeepReplaced::Milliseconds(50) };
        let name = format!("db-{seed}");
        let documents = layer.create_database(&name, keeping(keep, format)).await.unwrap();
        play(&documents, &clock, keep, seed).await;
        assert_sound(&documents).await;
        compact(&documents).await;
        assert_sound(&documents).await;
    }
}

async fn play<D: Database>(documents: &Documents<D>, clock: &Clock, keep: KeepReplaced, seed: u64) {
    let mut random = Random::new(seed);
    let mut known: BTreeMap<(String, RevId), Known> = BTreeMap::new();
    // By document: its replaced revisions, with the time when each was replaced.
    let mut kept: BTreeMap<String, Vec<(u64, RevId)>> = BTreeMap::new();
    let mut now = 0;
    for step in 0..120 {
        let id = format!("doc-{}", random.below(3));
        let leaves = leaves(documents, &id).await;
        let kept = kept.entry(id.clone()).or_default();
        let spent = random.below(20);
        clock.pass(spent);
        now += spent;
        let body = format!(r#"{{"n":{step},"l":["{}",{{}}]}}"#, "x".repeat(random.below(50) as usize));
        let choice = random.below(20);
        if choice == 0 {
            let named = random.pick(&[leaves.first().cloned(), None]).clone().unwrap_or_else(|| rev("1-none"));
            let purge = Purge::new(id.clone(), vec![named.clone()]);
            documents.purge(&[purge]).await.unwrap().pop().unwrap().unwrap();
            if leaves.contains(&named) {
                kept.clear();
                known.remove(&(id.clone(), named));
            }
        } else if choice == 1 {
            documents.forget_replaced().await.unwrap();
        } else {
            let live: Vec<RevId> =
                leaves.iter().filter(|rev| !known[&(id.clone(), (*rev).clone())].deleted).cloned().collect();
            let attachment = random.chance(0.3).then(|| format!("content {}", random.below(4)));
            let attach = |edit: Edit| match &attachment {
                Some(text) => with(edit, vec![inline("f", "x/y", text.clone())]),
                None => edit,
            };
            let (deleted, made) = if choice < 6 && !leaves.is_empty() {
                // A replicated edit: of a leaf, beside all of them, or of a revision that was replaced.
                let parents: Vec<&RevId> = leaves.iter().chain(kept.iter().map(|(_, rev)| rev)).collect();
                let parent = random.pick(&parents);
                let path = format!("{}-{:032x} {}", parent.position() + 1, 1_000 + step, parent.hash());
                merge(documents, attach(replicated(&id, &path, &body))).await;
                (false, rev(path.split(' ').next().unwrap()))
            } else if live.is_empty() {
                (false, documents.put(attach(edit(&id, &body))).await.unwrap())
            } else {
                let over = edit(&id, &body).over(random.pick(&live).clone());
                let deleted = random.chance(0.2);
                let edit = attach(if deleted { over.deleting() } else { over });
                (deleted, documents.put(edit).await.unwrap())
            };
            known.insert((id.clone(), made), Known { body, deleted, attachment });
            let after = self::leaves(documents, &id).await;
            kept.retain(|(_, rev)| !after.contains(rev));
            kept.extend(leaves.iter().filter(|rev| !after.contains(rev)).map(|rev| (now, rev.clone())));
            if let KeepReplaced::Revisions(number) = keep {
                kept.sort();
                let surplus = kept.len().saturating_sub(number as usize);
                kept.drain(..surplus);
            }
        }
        if let KeepReplaced::Milliseconds(number) = keep {
            kept.retain(|(since, _)| since + number > now);
        }
        let leaves = self::leaves(documents, &id).await;
        for ((_, rev), expected) in known.iter().filter(|((of, _), _)| *of == id) {
            let what = format!("seed {seed}, step {step}, {id} {rev}");
            let is_readable = leaves.contains(rev) || kept.iter().any(|(_, kept)| kept == rev);
            assert_eq!(is_there(documents, &id, rev).await, is_readable, "{what}");
            if is_readable {
                let found = documents.get(&id, &at(rev)).await.unwrap();
                assert_eq!((found.body.as_str(), found.deleted), (expected.body.as_str(), expected.deleted), "{what}");
                match &expected.attachment {
                    Some(text) => assert_eq!(attached(documents, &id, rev, "f").await, text.as_bytes(), "{what}"),
                    None => assert!(found.attachments.is_empty(), "{what}"),
                }
            }
        }
        if step % 40 == 39 {
            assert_sound(documents).await;
        }
    }
}

/// The revisions of all leaves.
async fn leaves<D: Database>(documents: &Documents<D>, id: &str) -> Vec<RevId> {
    let opened = documents.open_revs(id, &OpenRevs::All, &GetOptions::default()).await.unwrap();
    let revs =
        opened.into_iter().filter_map(|one| if let OpenRev::Found(found) = one { Some(found.rev) } else { None });
    revs.collect()
}

/// A batch whose copies do not fit into one transaction is written in several. A body too large for any transaction is
/// not kept.
pub(crate) async fn what_does_not_fit_is_written_in_several_transactions_or_not_kept(stage: Stage) {
    let layer = stage.layer().await;
    let documents = layer.create_database("db", keeping(KeepReplaced::Revisions(2), BodyFormat::Packed)).await.unwrap();
    let long = |n: usize, bytes: usize| format!(r#"{{"n":{n},"long":"{}"}}"#, "x".repeat(bytes));
    let write = async |edits: Vec<Edit>| -> Vec<RevId> {
        let results = documents.write(edits, WriteMode::Interactive).await.unwrap();
        results.into_iter().map(Result::unwrap).collect()
    };
    let first = write((0..4).map(|n| edit(&format!("d{n}"), &long(n, 2_000_000))).collect()).await;
    let again = first.iter().enumerate().map(|(n, rev)| edit(&format!("d{n}"), &long(9, 2_000_000)).over(rev.clone()));
    write(again.collect()).await;
    for (n, rev) in first.iter().enumerate() {
        let found = documents.get(&format!("d{n}"), &at(rev)).await.unwrap();
        assert_eq!(found.body.as_str(), long(n, 2_000_000));
    }
    let first = documents.put(edit("large", &long(1, 6_000_000))).await.unwrap();
    let second = documents.put(edit("large", &long(2, 6_000_000)).over(first.clone())).await.unwrap();
    assert!(!is_there(&documents, "large", &first).await, "its edit is not refused");
    documents.put(edit("large", "{}").over(second.clone())).await.unwrap();
    assert!(is_there(&documents, "large", &second).await);
    let winner = documents.get("large", &all_members()).await.unwrap();
    assert_eq!(statuses(&winner), [RevStatus::Available, RevStatus::Available, RevStatus::Missing]);
    assert_sound(&documents).await;
}
