//! Indexes agree with a scan of the documents, whatever happens to the documents.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use conformance::chaos::{Chaos, Rates};
use conformance::random::Random;
use kv_api::{Counted, Database};
use model::{
    CreateOptions, Documents, Edit, ErrorKind, GetOptions, IndexRequest, NotFound, ParallelRead, Purge, WriteMode,
};

use super::attachments::inline;
use super::damage::{put as put_rows, rows};
use super::index_oracle::{VIEWS, assert_agrees, design};
use crate::stage::*;

const DEFINITIONS: u8 = 12;
const ROWS: u8 = 13;
const INDEXED: u8 = 14;

/// The new value of a row.
type Changed = Option<Vec<u8>>;

fn body(random: &mut Random) -> String {
    let value = |random: &mut Random| match random.below(12) {
        0 => "null".to_owned(),
        1 => "true".to_owned(),
        2 => format!("{}.5", random.below(6)),
        3 => format!(r#"{{"x":{}}}"#, random.below(3)),
        4 => format!("[{},\"é\"]", random.below(3)),
        5 => format!(r#""{}{}""#, "long ".repeat(300), random.below(3)),
        6 => format!(r#""{}""#, "\\u0000".repeat(random.below(700) as usize)),
        7 => format!(r#""{}""#, random.pick(&["a", "A", "b", "é", "z"])),
        _ => random.below(9).to_string(),
    };
    let members = ["a", "b", "c"].map(|name| (random.below(4) > 0).then(|| format!(r#""{name}":{}"#, value(random))));
    format!("{{{}}}", members.into_iter().flatten().collect::<Vec<_>>().join(","))
}

/// An edit of one of a few documents. It may be refused.
async fn random_edit<D: Database>(documents: &Documents<D>, random: &mut Random, id: &str) -> (Edit, WriteMode) {
    let text = body(random);
    let winner = documents.get(id, &GetOptions { conflicts: true, ..GetOptions::default() }).await.ok();
    match (random.below(8), winner) {
        (0 | 1, _) => {
            // A separate branch, or one that continues it.
            let path = ["1-x", "1-y", "2-z x", "2-w y", "3-v z x", "2-q", "4-p v z x"];
            let mut edit = replicated(id, path[random.below(path.len() as u64) as usize], &text);
            edit.deleted = random.chance(0.4);
            (edit, WriteMode::Replicated)
        }
        (2 | 3, Some(doc)) => (edit(id, "{}").over(doc.rev).deleting(), WriteMode::Interactive),
        (4, Some(doc)) => {
            let lost = doc.conflicts.unwrap_or_default();
            let over = lost.into_iter().next().unwrap_or(doc.rev);
            (edit(id, &text).over(over), WriteMode::Interactive)
        }
        (_, Some(doc)) => (edit(id, &text).over(doc.rev), WriteMode::Interactive),
        (_, None) => (edit(id, &text), WriteMode::Interactive),
    }
}

async fn random_design<D: Database>(documents: &Documents<D>, random: &mut Random) -> (Edit, WriteMode) {
    let id = *random.pick(&["_design/x", "_design/y"]);
    let views: Vec<_> = VIEWS.into_iter().filter(|_| random.chance(0.4)).collect();
    // If two views have the same name, the last one counts, as always in JSON.
    let (mut edit, mode) = random_edit(documents, random, id).await;
    edit.body = json(&if random.chance(0.1) { "{}".to_owned() } else { design(&views) });
    if edit.deleted && mode == WriteMode::Interactive {
        edit.body = json("{}");
    }
    (edit, mode)
}

/// Writes edits. Conflicts are allowed.
async fn write<D: Database>(documents: &Documents<D>, edits: Vec<Edit>, mode: WriteMode, what: &str) {
    for result in documents.write(edits, mode).await.unwrap_or_else(|error| panic!("{error}, {what}")) {
        if let Err(error) = result {
            assert_eq!(error.status(), 409, "{error}, {what}");
        }
    }
}

async fn random_steps<D: Database>(documents: &Documents<D>, random: &mut Random, steps: usize, what: &str) {
    for _ in 0..steps {
        match random.below(12) {
            0 => {
                let (edit, mode) = random_design(documents, random).await;
                write(documents, vec![edit], mode, what).await;
            }
            1 => {
                // A design document between others.
                let mut edits = Vec::new();
                for n in 0..4 {
                    let one = if n == 2 {
                        random_design(documents, random).await
                    } else {
                        let id = format!("doc-{}", 3 * n + random.below(3));
                        random_edit(documents, random, &id).await
                    };
                    edits.push(one);
                }
                for mode in [WriteMode::Replicated, WriteMode::Interactive] {
                    let some = edits.iter().filter(|(_, own)| *own == mode).map(|(edit, _)| edit.clone()).collect();
                    write(documents, some, mode, what).await;
                }
            }
            2 => drop(documents.build_indexes_batch(1 + random.below(4) as usize, None).await.unwrap()),
            3 => {
                let id = match random.below(6) {
                    0 => "_design/x".to_owned(),
                    _ => format!("doc-{}", random.below(12)),
                };
                let options = GetOptions { conflicts: true, ..GetOptions::default() };
                if let Ok(doc) = documents.get(&id, &options).await {
                    let mut revs = vec![doc.rev];
                    revs.extend(doc.conflicts.into_iter().flatten().filter(|_| random.chance(0.5)));
                    documents.purge(&[Purge::new(id, revs)]).await.unwrap().remove(0).unwrap();
                }
            }
            _ => {
                let id = format!("doc-{}", random.below(12));
                let (mut edit, mode) = random_edit(documents, random, &id).await;
                if !edit.deleted && random.chance(0.2) {
                    edit.attachments = vec![inline("f", "text/plain", "x".repeat(random.below(50) as usize))];
                }
                write(documents, vec![edit], mode, what).await;
            }
        }
    }
}

pub(crate) async fn random_edits_and_indexes_agree_with_a_scan(stage: Stage) {
    for seed in [1, 2, 3] {
        let what = format!("seed {seed}");
        let mut random = Random::new(seed);
        let chaos = Chaos::new(stage.engine(), seed, Rates::retryable(0.03));
        let name = format!("db-{seed}");
        let faulty = layer(chaos).await.create_database(&name, CreateOptions::default()).await.unwrap();
        let calm = stage.layer().await.database(&name).await.unwrap();
        for _ in 0..8 {
            random_steps(&faulty, &mut random, 30, &what).await;
            assert_sound(&calm).await;
            random_steps(&faulty, &mut random, 5, &what).await;
            assert_agrees(&calm, &what).await;
        }
    }
}

pub(crate) async fn an_index_is_built_beside_writers(stage: Stage) {
    for seed in [4, 5] {
        let what = format!("seed {seed}");
        let mut random = Random::new(seed);
        let longest = Duration::from_millis(1);
        let rates = Rates { latency: 0.5, longest, ..Rates::retryable(0.01) };
        let name = format!("db-{seed}");
        let calm = stage.layer().await.create_database(&name, CreateOptions::default()).await.unwrap();
        let edits = (0..60).map(|n| edit(&format!("doc-{n}"), &body(&mut random))).collect();
        write(&calm, edits, WriteMode::Interactive, &what).await;
        calm.put(edit("_design/x", &design(&VIEWS[1..4]))).await.unwrap();
        assert!(calm.indexes().await.unwrap().iter().all(|info| !info.active), "{what}");

        let slow = layer(Chaos::new(stage.engine(), seed, rates)).await.database(&name).await.unwrap();
        let build = async || while slow.build_indexes_batch(7, None).await.unwrap().is_some() {};
        let writers = (0..4).map(|writer| {
            let (slow, mut random, what) = (slow.clone(), Random::new(100 * seed + writer), what.clone());
            async move {
                for _ in 0..25 {
                    let id = format!("doc-{}", random.below(70));
                    let (edit, mode) = random_edit(&slow, &mut random, &id).await;
                    write(&slow, vec![edit], mode, &what).await;
                }
            }
        });
        // Two concurrent builds have the same result as one.
        futures_util::future::join3(build(), build(), futures_util::future::join_all(writers)).await;
        assert!(calm.indexes().await.unwrap().iter().all(|info| info.active), "{what}");
        assert_agrees(&calm, &what).await;
    }
}

pub(crate) async fn an_edit_of_a_design_document_makes_and_removes_indexes(stage: Stage) {
    let documents = stage.documents().await;
    write(&documents, (0..5).map(|n| edit(&format!("{n}"), r#"{"a":1,"b":2}"#)).collect(), WriteMode::Interactive, "")
        .await;
    let first = documents.put(edit("_design/x", &design(&VIEWS[1..3]))).await.unwrap();
    let made = documents.indexes().await.unwrap();
    assert_eq!(made.iter().map(|info| (info.number, info.active)).collect::<Vec<_>>(), [(0, false), (1, false)]);
    let request = IndexRequest { number: 0, end: vec![0xff], ..IndexRequest::default() };
    let early = documents.index_rows(&request).await.unwrap_err();
    assert_eq!(*early.kind(), ErrorKind::NotFound(NotFound::Index), "it is not built");
    let mut seen = Vec::new();
    documents.build_indexes(|progress| seen.push(progress.clone())).await.unwrap();
    let last = seen.last().unwrap();
    assert_eq!((last.indexes.as_slice(), last.documents, last.expected, last.done), (&[0, 1][..], 6, 6, true));
    assert_agrees(&documents, "built").await;

    // The index that stays keeps its rows. The other one is removed with all its rows.
    let second = documents.put(edit("_design/x", &design(&VIEWS[2..4])).over(first)).await.unwrap();
    let kept: Vec<_> = documents.indexes().await.unwrap().iter().map(|info| (info.number, info.active)).collect();
    assert_eq!(kept, [(1, true), (2, false)]);
    assert_eq!(documents.index_rows(&request).await.unwrap_err().status(), 404);
    assert_agrees(&documents, "changed").await;

    // Replicated design documents, also in conflict: the winner counts.
    merge(&documents, replicated("_design/y", "1-a", &design(&VIEWS[..1]))).await;
    merge(&documents, replicated("_design/y", "1-b", &design(&VIEWS[3..5]))).await;
    assert_eq!(assert_agrees(&documents, "a conflict").await.len(), 4);
    documents.put(edit("_design/y", "{}").over(rev("1-b")).deleting()).await.unwrap();
    assert_eq!(assert_agrees(&documents, "the other branch").await.len(), 3);
    documents.put(edit("_design/y", "{}").over(rev("1-a")).deleting()).await.unwrap();
    documents.put(edit("_design/x", "{}").over(second).deleting()).await.unwrap();
    assert!(assert_agrees(&documents, "none").await.is_empty());
    for subspace in [DEFINITIONS, ROWS, INDEXED] {
        assert!(rows(&stage.engine(), subspace, "").await.is_empty(), "nothing is left in {subspace}");
    }
    // Numbers are never reused.
    documents.put(edit("_design/z", &design(&VIEWS[..1]))).await.unwrap();
    assert_eq!(assert_agrees(&documents, "again").await[0].number, 7);
}

pub(crate) async fn a_database_keeps_so_many_indexes_and_no_more(stage: Stage) {
    let documents = stage.documents().await;
    documents.put(edit("doc", &format!(r#"{{"a":"{}"}}"#, "\\u0001".repeat(300)))).await.unwrap();
    let names: Vec<String> = (0..model::MAX_INDEXES + 3).map(|n| format!("i{n}")).collect();
    let views: Vec<_> = names.iter().map(|name| (name.as_str(), r#"{"a":"asc"}"#, "{}")).collect();
    documents.put(edit("_design/x", &design(&views))).await.unwrap();
    documents.build_indexes(|_| ()).await.unwrap();
    assert_eq!(documents.indexes().await.unwrap().len(), model::MAX_INDEXES);
    let long = "ö".repeat(1_024);
    documents.put(edit(&long, &format!(r#"{{"a":"{}"}}"#, "x".repeat(1_500)))).await.unwrap();
    assert_sound(&documents).await;
}

pub(crate) async fn an_index_in_an_unknown_format_refuses_writes(stage: Stage) {
    let engine = stage.engine();
    let documents = stage.documents().await;
    documents.put(edit("_design/x", &design(&VIEWS[..1]))).await.unwrap();
    let first = documents.put(edit("doc", r#"{"a":1}"#)).await.unwrap();
    documents.build_indexes(|_| ()).await.unwrap();
    let row = rows(&engine, DEFINITIONS, "").await.remove(0);
    assert_eq!(row.value[..2], [0x15, 1], "its format");
    put_rows(&engine, &[(&row.key, Some(&[&[0x15, 99], &row.value[2..]].concat()))]).await;
    // A new process.
    let later = stage.layer().await.database("db").await.unwrap();
    let refused = later.put(edit("doc", "{}").over(first.clone())).await.unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::UnknownFormat(_)), "{refused}");
    assert_eq!(get(&later, "doc").await.rev, first, "it can be read");
}

pub(crate) async fn faults_of_indexes_are_found_and_mended(stage: Stage) {
    let engine = stage.engine();
    let documents = stage.documents().await;
    documents.put(edit("_design/x", &design(&VIEWS[1..3]))).await.unwrap();
    let edits = (0..9).map(|n| edit(&format!("doc-{n}"), &format!(r#"{{"a":{n},"b":"x"}}"#))).collect();
    write(&documents, edits, WriteMode::Interactive, "").await;
    assert_agrees(&documents, "filled").await;
    let of = async |subspace: u8, id: &str, at: usize| rows(&engine, subspace, id).await.remove(at);
    let (row, other) = (of(ROWS, "", 3).await, of(ROWS, "", 12).await);
    let indexed = of(INDEXED, "doc-4", 0).await;
    let definition = of(DEFINITIONS, "", 0).await;
    let mut of_none = row.key.to_vec();
    // The index's number follows the subspace. No index has the number 9.
    of_none.splice(5..6, [0x15, 9]);
    let mut of_another = other.key.to_vec();
    let at = of_another.windows(4).position(|part| part == b"doc-").unwrap();
    of_another[at + 4] = b'Z';
    let stray = [&definition.key[..5], &[0x15, 8]].concat();
    let design_id = [&indexed.key[..5], &[2][..], &b"gone"[..], &[0]].concat();
    let faults: Vec<(&str, Vec<u8>, Changed)> = vec![
        ("a row is gone", row.key.to_vec(), None),
        ("a row has other values", row.key.to_vec(), Some(b"[7]".to_vec())),
        ("a row of no index", of_none, Some(Vec::new())),
        ("a row of no document", of_another, Some(Vec::new())),
        ("an index is active and says how far it is", row.key[..6].to_vec(), Some(vec![0x15, 1, 2, 0, 0x14])),
        ("which rows a document has is not said", indexed.key.to_vec(), None),
        ("what says it is cut", indexed.key.to_vec(), Some(indexed.value[..indexed.value.len() - 1].to_vec())),
        ("it says less", indexed.key.to_vec(), Some(vec![0x15, 1])),
        ("a document that is not there has rows", design_id, Some(indexed.value.to_vec())),
        ("a definition is gone", definition.key.to_vec(), None),
        ("a definition is cut", definition.key.to_vec(), Some(definition.value[..9].to_vec())),
        ("a definition without an existing index", stray, Some(definition.value.to_vec())),
    ];
    for (what, key, value) in faults {
        put_rows(&engine, &[(&key, value.as_deref())]).await;
        // A new process, which has not read the definitions.
        let documents = stage.layer().await.database("db").await.unwrap();
        let report = documents.check(|_| ()).await.unwrap();
        assert!(!report.is_sound(), "{what}");
        let repaired = documents.repair(|_| ()).await.unwrap();
        assert!(repaired.left == 0, "{what}: {repaired:?}");
        assert_eq!(assert_agrees(&documents, what).await.len(), 2, "{what}");
    }
    // The row as such is valid, but it belongs to another body of the document.
    let before = of(INDEXED, "doc-4", 0).await;
    documents.put(edit("doc-4", r#"{"a":77,"b":1}"#).over(get(&documents, "doc-4").await.rev)).await.unwrap();
    put_rows(&engine, &[(&before.key, Some(&before.value))]).await;
    assert!(!documents.check(|_| ()).await.unwrap().is_sound());
    documents.repair(|_| ()).await.unwrap();
    assert_agrees(&documents, "of another body").await;
}

pub(crate) async fn a_repair_of_a_document_mends_its_rows(stage: Stage) {
    let engine = stage.engine();
    let documents = stage.documents().await;
    documents.put(edit("_design/x", &design(&VIEWS[..1]))).await.unwrap();
    documents.put(edit("doc", r#"{"a":1}"#)).await.unwrap();
    merge(&documents, replicated("doc", "2-zz a", r#"{"a":2}"#)).await;
    assert_agrees(&documents, "before").await;
    // The winner's body is cut, so the other branch wins.
    let bodies = rows(&engine, super::damage::DOCS, "doc").await;
    let last = bodies.last().unwrap();
    put_rows(&engine, &[(&last.key, None)]).await;
    let documents = stage.layer().await.database("db").await.unwrap();
    let repaired = documents.repair(|_| ()).await.unwrap();
    assert!(repaired.after.is_sound(), "{repaired:?}");
    assert_agrees(&documents, "after").await;
    assert_eq!(get(&documents, "doc").await.rev.position(), 1);
}

pub(crate) async fn indexes_cost_what_they_keep_and_nothing_elsewhere(stage: Stage) {
    let counted = Counted::new(stage.engine()).separately(model::is_instance_key);
    let documents = database(counted.clone()).await;
    let costs = async |id: &str| {
        let mut costs = Vec::new();
        counted.take();
        let note = || {
            let counts = counted.take();
            assert_eq!(counts.len(), 1, "{counts:?}");
            (counts[0].kvs_read - counts[0].kvs_read_separately, counts[0].round_trips, counts[0].sets)
        };
        let first = documents.put(edit(id, r#"{"a":1,"b":2}"#)).await.unwrap();
        costs.push(note());
        let second = documents.put(edit(id, r#"{"a":2,"b":3}"#).over(first)).await.unwrap();
        costs.push(note());
        documents.put(edit(id, "{}").over(second).deleting()).await.unwrap();
        costs.push(note());
        costs
    };
    let before = costs("a").await;
    let first = documents.put(edit("_design/x", &design(&VIEWS[1..3]))).await.unwrap();
    documents.build_indexes(|_| ()).await.unwrap();
    costs("warm").await;
    let with = costs("b").await;
    let less = |(with, without): (&(u64, u64, u64), &(u64, u64, u64))| {
        (with.0 - without.0, with.1 - without.1, with.2 - without.2)
    };
    let more: Vec<_> = with.iter().zip(&before).map(less).collect();
    assert_eq!(more, [(0, 0, 3), (1, 1, 3), (1, 1, 0)], "rows read, round trips, rows set: {with:?}, {before:?}");
    documents.put(edit("_design/x", "{}").over(first).deleting()).await.unwrap();
    assert_eq!(costs("c").await, before, "when the last index is gone");
}

pub(crate) async fn index_pages_keep_to_ranges_and_limits(stage: Stage) {
    let documents = stage.documents().await;
    documents.put(edit("_design/x", &design(&VIEWS[..1]))).await.unwrap();
    let edits: Vec<Edit> =
        (0..1_150).map(|n| edit(&format!("doc-{n:04}"), &format!(r#"{{"a":{}}}"#, n % 50))).collect();
    write(&documents, edits, WriteMode::Interactive, "").await;
    documents.build_indexes(|_| ()).await.unwrap();
    assert_sound(&documents).await;
    let info = documents.indexes().await.unwrap().remove(0);
    let key = |n: usize| {
        let text = json(&format!(r#"{{"a":{n}}}"#));
        info.index.row(text.root()).unwrap().key
    };
    let all = IndexRequest { number: info.number, start: key(3), end: key(5), ..IndexRequest::default() };
    let read = async |mut request: IndexRequest| {
        let (mut ids, mut pages) = (Vec::new(), 0);
        loop {
            let page = documents.index_rows(&request).await.unwrap();
            ids.extend(page.rows.into_iter().map(|row| row.id));
            pages += 1;
            match page.next {
                Some(next) => request = next,
                None => return (ids, pages),
            }
        }
    };
    let expected: Vec<String> =
        [3, 4].iter().flat_map(|a| (0..23).map(move |n| format!("doc-{:04}", n * 50 + a))).collect();
    assert_eq!(read(all.clone()).await.0, expected);
    let mut backwards = expected.clone();
    backwards.reverse();
    assert_eq!(read(IndexRequest { descending: true, ..all.clone() }).await.0, backwards);
    assert_eq!(read(IndexRequest { limit: Some(30), ..all.clone() }).await.0, expected[..30]);
    assert_eq!(read(IndexRequest { limit: Some(0), ..all.clone() }).await.0, [""; 0]);
    assert_eq!(read(IndexRequest { start: key(5), end: key(3), ..all.clone() }).await.0, [""; 0]);
    for (descending, list) in [(false, &expected), (true, &backwards)] {
        let after = Some((key(if descending { 4 } else { 3 }), list[9].clone()));
        assert_eq!(read(IndexRequest { after, descending, ..all.clone() }).await.0, list[10..]);
        // After a row beyond the range nothing is left; after a row before it, the range begins.
        let (low, high) = (Some((key(0), "x".to_owned())), Some((key(9), "x".to_owned())));
        let (before, behind) = if descending { (high, low) } else { (low, high) };
        assert_eq!(read(IndexRequest { after: before, descending, ..all.clone() }).await.0, *list);
        assert_eq!(read(IndexRequest { after: behind, descending, ..all.clone() }).await.0, [""; 0]);
    }
    let with_docs = IndexRequest { start: Vec::new(), end: vec![0xff], include_docs: true, ..all };
    let (ids, pages) = read(with_docs).await;
    assert!(ids.len() == 1_150 && pages > 2, "{pages}");
}

pub(crate) async fn documents_read_beside_others_are_of_the_same_moment(stage: Stage) {
    let documents = stage.documents().await;
    documents.put(edit("_design/x", &design(&VIEWS[..1]))).await.unwrap();
    let edits = (0..60).map(|n| edit(&format!("doc-{n:02}"), &format!(r#"{{"a":{n}}}"#))).collect();
    write(&documents, edits, WriteMode::Interactive, "").await;
    documents.build_indexes(|_| ()).await.unwrap();
    let number = documents.indexes().await.unwrap()[0].number;
    let all = IndexRequest { number, end: vec![0xff], include_docs: true, ..IndexRequest::default() };
    let before = documents.index_rows(&all).await.unwrap();
    assert_eq!(before.rows.len(), 60);
    let halves = Mutex::new(0);
    let beside = async |request: &IndexRequest, spawn: &(dyn Fn(ParallelRead) -> ParallelRead + Sync)| {
        let counted = |reading| {
            *halves.lock().unwrap() += 1;
            spawn(reading)
        };
        documents.index_rows_in_parallel(request, counted).await.unwrap()
    };
    assert_eq!(beside(&all, &|reading| reading).await, before);
    assert_eq!(beside(&all, &|_| Box::pin(std::future::ready(None))).await, before, "nobody reads them");
    assert_eq!(*halves.lock().unwrap(), 2);
    for (limit, include_docs) in [(30, true), (60, false)] {
        let request = IndexRequest { limit: Some(limit), include_docs, ..all.clone() };
        assert_eq!(beside(&request, &|reading| reading).await, documents.index_rows(&request).await.unwrap());
    }
    assert_eq!(*halves.lock().unwrap(), 2, "few documents, or none, are read at once");
    // Edits after the rows were read, and before the documents.
    let edited = |reading: ParallelRead| -> ParallelRead {
        let documents = documents.clone();
        Box::pin(async move {
            for id in ["doc-00", "doc-59"] {
                let old = documents.get(id, &GetOptions::default()).await.unwrap();
                documents.put(edit(id, r#"{"a":100}"#).over(old.rev)).await.unwrap();
            }
            reading.await
        })
    };
    assert_eq!(beside(&all, &edited).await, before);
    assert_ne!(documents.index_rows(&all).await.unwrap(), before);
}

/// Copies of a definition share one index.
pub(crate) async fn definitions_are_read_once(stage: Stage) {
    let documents = stage.documents().await;
    documents.put(edit("_design/x", &design(&VIEWS[..1]))).await.unwrap();
    let (one, other) = (documents.indexes().await.unwrap(), documents.indexes().await.unwrap());
    assert!(Arc::ptr_eq(&one[0].index, &other[0].index));
}
