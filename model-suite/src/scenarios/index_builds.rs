//! The rows that a build of an index reads, and when it reads them.

use std::time::Duration;

use conformance::chaos::{Chaos, Rates};
use conformance::random::Random;
use jobs::Accepted;
use kv_api::{Counted, Database};
use model::{BUILD_JOBS, BodyFormat, CreateOptions, Documents, Edit, ErrorKind, WriteMode};

use super::attachments::inline;
use super::index_oracle::{VIEWS, assert_agrees, design};
use super::jobs::server;
use crate::stage::*;

/// An index's name, its fields, and its partial filter.
type DesignView = (&'static str, &'static str, &'static str);

const NESTED: [DesignView; 6] = [
    ("o", r#"{"o":"asc"}"#, "{}"),
    ("o.m", r#"{"o.m":"asc"}"#, "{}"),
    ("o.m.0", r#"{"o.m.0":"asc","a":"asc"}"#, "{}"),
    ("no o.m", r#"{"a":"asc"}"#, r#"{"o.m":{"$exists":false}}"#),
    ("not o.m", r#"{"b":"asc"}"#, r#"{"o.m":{"$not":{"$eq":1}}}"#),
    ("empty", "{}", r#"{"$or":[{"a":1},{"o.n":{"$gt":null}}]}"#),
];

/// Number of rows that a build of an index of `view` over `count` documents reads.
async fn rows_read(stage: &Stage, format: BodyFormat, view: DesignView, count: usize, body: &str) -> u64 {
    let counted = Counted::new(stage.engine()).separately(model::is_instance_key);
    let layer = layer(counted.clone()).await;
    let options = CreateOptions { format: Some(format), ..CreateOptions::default() };
    let documents = layer.create_database("db", options).await.unwrap();
    let edits: Vec<Edit> = (0..count).map(|n| edit(&format!("doc-{n:03}"), body)).collect();
    for written in documents.write(edits, WriteMode::Interactive).await.unwrap() {
        written.unwrap();
    }
    documents.put(edit("_design/x", &design(&[view]))).await.unwrap();
    counted.take();
    documents.build_indexes(|_| ()).await.unwrap();
    let read = counted.take().iter().map(|counts| counts.kvs_read - counts.kvs_read_separately).sum();
    assert_sound(&documents).await;
    layer.delete_database("db").await.unwrap();
    read
}

pub(crate) async fn a_build_reads_the_rows_of_its_fields(stage: Stage) {
    // Twenty leaves, in another order than their keys.
    let body = r#"{"z":1,"b":2,"a":3,"o":{"n":4,"m":5,"x":{"y":6}},"c":[7,8,9],"l":["x","y",{"z":[1,2,3]}],
        "s1":"t","s2":"t","s3":"t","s4":"t","s5":"t","s6":"t"}"#;
    for (view, fields) in [
        (("a", r#"{"a":"asc"}"#, "{}"), 1),
        (("a, b", r#"{"a":"asc","b":"desc"}"#, "{}"), 2),
        (("some a", r#"{"a":"asc"}"#, r#"{"b":{"$gt":1}}"#), 2),
        (("no a", r#"{"a":"asc"}"#, r#"{"b":{"$gt":2}}"#), 2),
        (("nested", r#"{"o.m":"asc","o.x.y":"asc"}"#, "{}"), 2),
        (("nested filter", r#"{"a":"asc"}"#, r#"{"o.x.y":6}"#), 2),
        (("_id", r#"{"_id":"asc","a":"asc"}"#, "{}"), 1),
        // Besides the field, the metadata are read: they tell whether it is missing, and the order of its elements.
        (("missing", r#"{"nowhere":"asc"}"#, "{}"), 1),
        (("array", r#"{"c":"asc"}"#, "{}"), 3 + 1),
        (("element", r#"{"c.1":"asc"}"#, "{}"), 3 + 1),
    ] {
        let few = rows_read(&stage, BodyFormat::Exploded, view, 50, body).await;
        let many = rows_read(&stage, BodyFormat::Exploded, view, 150, body).await;
        assert_eq!(many - few, 100 * (1 + fields), "a row of the listing and {fields} for each document: {view:?}");
    }
    // A packed body is one row.
    let packed = async |count| rows_read(&stage, BodyFormat::Packed, ("a", r#"{"a":"asc"}"#, "{}"), count, body).await;
    assert_eq!(packed(150).await - packed(50).await, 100 * 2);
}

fn random_value(random: &mut Random, depth: usize) -> String {
    match random.below(if depth == 0 { 5 } else { 9 }) {
        0 => "null".to_owned(),
        1 => random.below(4).to_string(),
        2 => r#""é""#.to_owned(),
        3 => ["{}", "[]"][random.below(2) as usize].to_owned(),
        4 => "1.5".to_owned(),
        5 | 6 => format!("[{},{}]", random_value(random, depth - 1), random_value(random, depth - 1)),
        _ => {
            let names = [["m", "n"], ["n", "m"], ["0", "m"]][random.below(3) as usize];
            let mut value = || random_value(random, depth - 1);
            format!(r#"{{"{}":{},"{}":{}}}"#, names[0], value(), names[1], value())
        }
    }
}

fn random_body(random: &mut Random) -> String {
    let mut members = Vec::new();
    for name in ["z", "a", "o", "c", "b"] {
        if random.chance(0.8) {
            let value = match name {
                // Longer than a value of the store.
                "o" if random.chance(0.03) => format!(r#"{{"m":"{}"}}"#, "long ".repeat(21_000)),
                "o" => random_value(random, 3),
                _ => random_value(random, 1),
            };
            members.push(format!(r#""{name}":{value}"#));
        }
    }
    if random.chance(0.05) {
        // No key has room for this path, so the body is packed.
        members.push(format!(r#""{}":1"#, "deep".repeat(3_000)));
    }
    format!("{{{}}}", members.join(","))
}

pub(crate) async fn a_build_reads_bodies_of_every_layout(stage: Stage) {
    for (seed, format, later) in [
        (1, BodyFormat::Exploded, BodyFormat::Exploded),
        (2, BodyFormat::Packed, BodyFormat::Packed),
        (3, BodyFormat::Exploded, BodyFormat::Packed),
        (4, BodyFormat::Packed, BodyFormat::Exploded),
    ] {
        let what = format!("seed {seed}, {format:?}, {later:?}");
        let mut random = Random::new(seed);
        let name = format!("db-{seed}");
        let layer = stage.layer().await;
        let options = CreateOptions { format: Some(format), ..CreateOptions::default() };
        let documents = layer.create_database(&name, options).await.unwrap();
        for half in 0..2 {
            let mut edits: Vec<Edit> = Vec::new();
            for n in 0..70 {
                let id = format!("{half}-{}", random.below(90));
                let leaf = format!("1-{n:03}");
                let mut edit = replicated(&id, &leaf, &random_body(&mut random));
                if random.chance(0.1) {
                    edit.attachments = vec![inline("f", "text/plain", "x".repeat(n))];
                }
                edits.push(if random.chance(0.15) { edit.deleting() } else { edit });
            }
            // Many losing leaves, between two winners.
            edits.extend((0..40).map(|n| replicated(&format!("{half}-5"), &format!("1-0{n:02}"), r#"{"a":1}"#)));
            for written in documents.write(edits, WriteMode::Replicated).await.unwrap() {
                written.unwrap();
            }
            if format != later {
                documents.set_body_format(later).await.unwrap();
            }
        }
        // Each of the nested ones is built alone, so that it reads nothing for another one. The last one needs whole
        // bodies.
        documents.put(edit("_design/x", &design(&VIEWS[..6]))).await.unwrap();
        documents.build_indexes(|_| ()).await.unwrap();
        for (at, view) in NESTED.into_iter().chain([VIEWS[6]]).enumerate() {
            documents.put(edit(&format!("_design/{at}"), &design(&[view]))).await.unwrap();
            documents.build_indexes(|_| ()).await.unwrap();
        }
        assert_agrees(&documents, &what).await;
    }
}

/// Writes documents `00`, `01` …, and an index of their member `a`, which is not built.
async fn fill<D: Database>(documents: &Documents<D>, count: usize) -> model::RevId {
    let edits = (0..count).map(|n| edit(&format!("{n:02}"), &format!(r#"{{"a":{n},"b":1}}"#))).collect();
    for written in documents.write(edits, WriteMode::Interactive).await.unwrap() {
        written.unwrap();
    }
    documents.put(edit("_design/x", &design(&VIEWS[..1]))).await.unwrap()
}

pub(crate) async fn a_build_reads_the_next_batch_while_one_is_written(stage: Stage) {
    let counted = Counted::new(stage.engine());
    let documents = database(counted.clone()).await;
    fill(&documents, 38).await;
    counted.take();
    let (mut build, mut ahead, mut seen) = (documents.index_build(), 0, Vec::new());
    loop {
        let count = |batch| {
            ahead += 1;
            batch
        };
        match build.next(5, None, count).await.unwrap() {
            Some(progress) => seen.push((progress.documents, progress.done)),
            None => break,
        }
    }
    let mut expected: Vec<_> = (1..=7).map(|batch| (5 * batch, false)).collect();
    expected.push((39, true));
    assert_eq!(seen, expected, "38 documents and the design document");
    assert_eq!(ahead, 6, "all but the first two are read ahead");
    let commits: u64 = counted.take().iter().filter(|counts| counts.sets > 0).map(|counts| counts.commits).sum();
    assert_eq!(commits, 8, "and none in vain");
    assert_agrees(&documents, "built").await;
}

pub(crate) async fn what_was_read_ahead_is_dropped_where_the_ground_has_moved(stage: Stage) {
    let documents = stage.documents().await;
    let first = fill(&documents, 60).await;
    let mut build = documents.index_build();
    let next = async |build: &mut model::IndexBuild<_>, hold| build.next(5, hold, |batch| batch).await;
    // Afterwards documents 10 to 14 are read ahead.
    for documents in [5, 10] {
        assert_eq!(next(&mut build, None).await.unwrap().unwrap().documents, documents);
    }
    for (id, body) in [("10", r#"{"a":"new"}"#), ("11", r#"{"b":1}"#)] {
        let rev = get(&documents, id).await.rev;
        documents.put(edit(id, body).over(rev)).await.unwrap();
    }
    let rev = get(&documents, "12").await.rev;
    documents.put(edit("12", "{}").over(rev).deleting()).await.unwrap();
    documents.put(edit("105", r#"{"a":"between"}"#)).await.unwrap();
    let progress = next(&mut build, None).await.unwrap().unwrap();
    assert!((10..=15).contains(&progress.documents), "{progress:?}");
    assert_sound(&documents).await;

    // Another build goes further. Then the first one continues without knowing that.
    next(&mut build, None).await.unwrap();
    documents.build_indexes_batch(20, None).await.unwrap();
    next(&mut build, None).await.unwrap();
    assert_sound(&documents).await;

    // Its index is deleted while a batch is read ahead, and another one is added: no row of the first is left.
    next(&mut build, None).await.unwrap();
    documents.put(edit("_design/x", &design(&VIEWS[1..2])).over(first)).await.unwrap();
    assert_eq!(next(&mut build, None).await.unwrap().unwrap().indexes, [1], "from the beginning");
    assert_sound(&documents).await;
    next(&mut build, None).await.unwrap();
    next(&mut build, None).await.unwrap();
    // Another index is added while a batch is read ahead: it is built up to the same place first.
    documents.put(edit("_design/y", &design(&VIEWS[3..4]))).await.unwrap();
    assert_eq!(next(&mut build, None).await.unwrap().unwrap().indexes, [2]);
    assert_sound(&documents).await;
    while next(&mut build, None).await.unwrap().is_some() {}
    assert_eq!(assert_agrees(&documents, "built").await.len(), 2);

    // Another server takes over.
    documents.put(edit("_design/z", &design(&VIEWS[2..3]))).await.unwrap();
    let jobs = documents.jobs();
    let (mut here, mut there) = (server(&jobs, 1), server(&jobs, 2));
    let Accepted::Job(_, hold) = here.accept(BUILD_JOBS, 0).await.unwrap() else { panic!("there is a job") };
    for _ in 0..2 {
        next(&mut build, Some(&hold)).await.unwrap().unwrap();
    }
    here.close().await.unwrap();
    let Accepted::Job(_, later) = there.accept(BUILD_JOBS, 0).await.unwrap() else { panic!("there is a job") };
    let late = next(&mut build, Some(&hold)).await.unwrap_err();
    assert_eq!(*late.kind(), ErrorKind::JobLost);
    let progress = documents.build_indexes_batch(5, Some(&later)).await.unwrap().unwrap();
    assert_eq!(progress.documents, 15, "the late batch wrote nothing");
    // The database is dropped.
    let mut build = documents.index_build();
    for _ in 0..2 {
        next(&mut build, Some(&later)).await.unwrap().unwrap();
    }
    stage.layer().await.delete_database("db").await.unwrap();
    assert_eq!(next(&mut build, Some(&later)).await.unwrap_err().status(), 404);
}

pub(crate) async fn builds_that_read_ahead_agree_beside_writers_and_each_other(stage: Stage) {
    for seed in [6, 7] {
        let what = format!("seed {seed}");
        let mut random = Random::new(seed);
        let rates = Rates { latency: 0.5, longest: Duration::from_millis(1), ..Rates::retryable(0.01) };
        let name = format!("db-{seed}");
        let calm = stage.layer().await.create_database(&name, CreateOptions::default()).await.unwrap();
        let edits = (0..60).map(|n| edit(&format!("doc-{n}"), &random_body(&mut random))).collect();
        calm.write(edits, WriteMode::Interactive).await.unwrap();
        calm.put(edit("_design/x", &design(&VIEWS[1..3]))).await.unwrap();
        let slow = layer(Chaos::new(stage.engine(), seed, rates)).await.database(&name).await.unwrap();
        let build = async |most| {
            let mut build = slow.index_build();
            while build.next(most, None, |batch| batch).await.unwrap().is_some() {}
        };
        let plain = async || while slow.build_indexes_batch(7, None).await.unwrap().is_some() {};
        let writers = (0..3).map(|writer| {
            let (slow, mut random) = (slow.clone(), Random::new(100 * seed + writer));
            async move {
                for n in 0..20 {
                    let id = format!("doc-{}", random.below(70));
                    let rev = slow.get(&id, &model::GetOptions::default()).await.ok().map(|found| found.rev);
                    let edit = Edit { rev, ..edit(&id, &random_body(&mut random)) };
                    // Conflicts with other writers are results.
                    drop(slow.put(if random.chance(0.2) { edit.deleting() } else { edit }).await);
                    if writer == 0 && n == 8 {
                        let more = Edit::new("_design/y", json(&design(&VIEWS[3..5])));
                        slow.put(more).await.unwrap();
                    }
                }
            }
        });
        let builds = futures_util::future::join3(build(4), build(9), plain());
        futures_util::future::join(builds, futures_util::future::join_all(writers)).await;
        assert_agrees(&calm, &what).await;
    }
}
