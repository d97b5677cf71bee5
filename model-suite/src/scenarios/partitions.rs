//! Partitioned databases: what they cost, and that views, indexes and relocations keep partitions apart.

use conformance::random::Random;
use kv_api::{Counted, Database};
use model::{
    AllDocsRequest, CreateOptions, Documents, Edit, GetOptions, Grouping, JsonText, PartitionInfo, ReducedRow,
    ViewGroup, ViewRequest, ViewRow, WriteMode,
};

use super::relocating::{at, go_on, options, run};
use super::view_oracle::views;
use crate::stage::*;

const PARTITIONED: CreateOptions =
    CreateOptions { format: None, conflicts: model::ConflictPolicy::KeepAll, keep_replaced: None, partitioned: true };

fn refused(error: &model::Error) -> (u16, String, String) {
    (error.status(), error.error().to_owned(), error.reason().into_owned())
}

pub(crate) async fn ids_are_checked_wherever_they_are_written(stage: Stage) {
    let layer = stage.layer().await;
    let documents = layer.create_database("db", PARTITIONED).await.unwrap();
    let form = (400, "illegal_docid".to_owned(), "Doc id must be of form partition:id".to_owned());
    assert_eq!(refused(&documents.put(edit("x", "{}")).await.unwrap_err()), form);
    let edits = vec![replicated("x", "1-a", "{}"), replicated("a:x", "1-a", "{}")];
    let results = documents.write(edits, WriteMode::Replicated).await.unwrap();
    assert_eq!((refused(results[0].as_ref().unwrap_err()), results[1].is_ok()), (form.clone(), true));
    assert_eq!(refused(&documents.get("x", &GetOptions::default()).await.unwrap_err()), form);
    assert_eq!(refused(&documents.resolve("x", |_| Ok(json("{}"))).await.unwrap_err()), form);
    documents.put(edit("_design/x", "{}")).await.unwrap();
    documents.put_local("_local/x", None, json("{}")).await.unwrap();
    assert!(layer.database("db").await.unwrap().is_partitioned());
    assert!(documents.info().await.unwrap().partitioned);
    // A handle of a dropped database does not check the ids of its successor.
    layer.delete_database("db").await.unwrap();
    layer.create_database("db", CreateOptions::default()).await.unwrap();
    assert_eq!(documents.put(edit("x", "{}")).await.unwrap_err().status(), 404);
    assert_eq!(documents.check_ids(&["x"]).await.unwrap_err().status(), 404);
    assert_eq!(documents.get("x", &GetOptions::default()).await.unwrap_err().status(), 404);
}

/// Rows read, round trips and rows set by each step.
async fn costs<D: Database>(documents: &Documents<Counted<D>>, counted: &Counted<D>) -> Vec<Vec<(u64, u64, u64)>> {
    let mut costs = Vec::new();
    counted.take();
    let note = || counted.take().iter().map(|one| (one.kvs_read, one.round_trips, one.sets)).collect();
    let first = documents.put(edit("p:a", r#"{"a":1}"#)).await.unwrap();
    costs.push(note());
    let second = documents.put(edit("p:a", r#"{"a":2}"#).over(first)).await.unwrap();
    costs.push(note());
    get(documents, "p:a").await;
    costs.push(note());
    documents.all_docs(&AllDocsRequest::default()).await.unwrap();
    costs.push(note());
    merge(documents, replicated("p:b", "2-b a", r#"{"a":2}"#)).await;
    costs.push(note());
    documents.put(edit("p:a", "{}").over(second).deleting()).await.unwrap();
    costs.push(note());
    costs
}

pub(crate) async fn partitions_cost_edits_nothing_and_questions_their_rows(stage: Stage) {
    let counted = Counted::new(stage.engine());
    let layer = layer(counted.clone()).await;
    let plain = layer.create_database("plain", CreateOptions::default()).await.unwrap();
    let documents = layer.create_database("db", PARTITIONED).await.unwrap();
    assert_eq!(costs(&documents, &counted).await, costs(&plain, &counted).await);

    let edits = ["a", "b", "c"]
        .into_iter()
        .flat_map(|partition| (0..40).map(move |n| edit(&format!("{partition}:{n:02}"), r#"{"n":1}"#)));
    documents.write(edits.collect(), WriteMode::Interactive).await.unwrap();
    counted.take();
    let info = documents.partition_info("b").await.unwrap();
    let reads = counted.take();
    assert_eq!((info.doc_count, info.doc_del_count, info.external), (40, 0, 40 * 7));
    assert_eq!(reads.iter().map(|one| one.kvs_read).sum::<u64>(), 41, "the instance, and a row of each document");
    assert_eq!(documents.partition_info("bb").await.unwrap(), PartitionInfo::default());
    assert_eq!(plain.partition_info("b").await.unwrap_err().status(), 400);

    documents.index().fields(["n"]).create().await.unwrap();
    let found = documents.find(json(r#"{"n":1}"#)).in_partition("b").limit(100);
    counted.take();
    let found = found.all().await.unwrap();
    let read: u64 = counted.take().iter().map(|one| one.kvs_read).sum();
    assert!(found.len() == 40 && found.iter().all(|document| document.id.starts_with("b:")));
    assert!(read < 40 * 4, "{read} rows were read");
    let all = documents.find(json(r#"{"n":1}"#)).all().await.unwrap();
    assert_eq!(all.len(), 120);
    assert!(documents.find(json(r#"{"n":1}"#)).sort(["n"]).all().await.is_err(), "no index of all partitions");
    documents.index().fields(["n"]).name("global").global().create().await.unwrap();
    assert_eq!(documents.find(json(r#"{"n":1}"#)).sort(["n"]).all().await.unwrap().len(), 120);
    assert!(plain.find(json("{}")).in_partition("b").all().await.is_err());
    assert_sound(&documents).await;
}

/// Keys of all kinds, some longer than a row's key holds, and ids in a few partitions.
fn random_edit(random: &mut Random) -> Edit {
    let long = "x".repeat(2_100);
    let keys = ["null", "1", "2.5", "\"a\"", "\"b\"", "[]", "[1]", "[1,2]", "[1,\"b\"]", "{}"];
    let key = |random: &mut Random| match random.below(12) {
        10 => format!("\"{long}1\""),
        11 => format!("[\"{long}\",{}]", random.below(2)),
        at => keys[at as usize].to_owned(),
    };
    let rows: Vec<String> = (0..random.below(4)).map(|_| format!("[{},{}]", key(random), random.below(9))).collect();
    let partition = ["a", "a\u{1}", "b", "ba"][random.below(4) as usize];
    edit(&format!("{partition}:{}", random.below(30)), &format!(r#"{{"e":[{}]}}"#, rows.join(",")))
}

async fn all_rows<D: Database>(documents: &Documents<D>, group: &ViewGroup, request: ViewRequest) -> Vec<ViewRow> {
    let (mut rows, mut next) = (Vec::new(), Some(ViewRequest { at_once: Some(7), ..request }));
    while let Some(request) = next {
        let page = documents.view_rows(group, "all", &request).await.unwrap();
        rows.extend(page.rows);
        next = page.next;
    }
    rows
}

async fn all_groups<D: Database>(
    documents: &Documents<D>,
    group: &ViewGroup,
    request: ViewRequest,
    grouping: Grouping,
) -> Vec<ReducedRow> {
    let (mut rows, mut next) = (Vec::new(), Some(ViewRequest { at_once: Some(3), ..request }));
    while let Some(request) = next {
        let page = documents.view_reductions(group, "sum", &request, grouping).await.unwrap();
        rows.extend(page.rows);
        next = page.next;
    }
    rows
}

/// A view in a partition has the rows that a database with only this partition would have.
pub(crate) async fn views_of_a_partition_are_those_of_a_database_of_its_own(stage: Stage) {
    let layer = stage.layer().await;
    let documents = layer.create_database("db", PARTITIONED).await.unwrap();
    let split = ViewGroup::of_closures_in_partitions("split", 1, views());
    let whole = ViewGroup::of_closures("whole", 1, views());
    assert_eq!(documents.query_view(&split, "all", &ViewRequest::default()).await.unwrap_err().status(), 400);
    let partitions = ["a", "a\u{1}", "b", "ba"];
    let mut alone = Vec::new();
    for at in 0..partitions.len() {
        alone.push(layer.create_database(&format!("alone{at}"), CreateOptions::default()).await.unwrap());
    }
    let mut random = Random::new(5);
    for round in 0..2 {
        for _ in 0..40 {
            let edit = random_edit(&mut random);
            let partition = edit.id.split(':').next().unwrap().to_owned();
            let at = partitions.iter().position(|one| *one == partition).unwrap();
            for documents in [&documents, &alone[at]] {
                let known = documents.get(&edit.id, &GetOptions::default()).await.ok();
                documents.put(Edit { rev: known.map(|known| known.rev), ..edit.clone() }).await.unwrap();
            }
        }
        documents.update_views(&split).await.unwrap();
        for (partition, alone) in partitions.into_iter().zip(&alone) {
            alone.update_views(&whole).await.unwrap();
            for _ in 0..5 {
                let bound = |random: &mut Random| -> Option<JsonText> {
                    let bounds = ["null", "2", "\"a\"", "[1]", "[1,2]", "{}"];
                    random.chance(0.5).then(|| json(bounds[random.below(6) as usize]))
                };
                let (start, end) = (bound(&mut random), bound(&mut random));
                let descending = random.chance(0.5);
                let (skip, inclusive_end) = (random.below(3), random.chance(0.5));
                let plain = ViewRequest { start, end, descending, skip, inclusive_end, ..ViewRequest::default() };
                let asked = ViewRequest { partition: Some(partition.to_owned()), ..plain.clone() };
                let what = format!("round {round}, {partition:?}, {asked:?}");
                let rows = all_rows(&documents, &split, asked.clone()).await;
                assert_eq!(rows, all_rows(alone, &whole, plain.clone()).await, "{what}");
                let (one, other) = (
                    documents.view_rows(&split, "all", &asked).await.unwrap(),
                    alone.view_rows(&whole, "all", &plain).await.unwrap(),
                );
                assert_eq!((one.total_rows, one.offset), (other.total_rows, other.offset), "{what}");
                for grouping in [Grouping::None, Grouping::Level(1), Grouping::Exact] {
                    let groups = all_groups(&documents, &split, asked.clone(), grouping).await;
                    assert_eq!(
                        groups,
                        all_groups(alone, &whole, plain.clone(), grouping).await,
                        "{what}, {grouping:?}"
                    );
                }
            }
        }
        let mut report = model::CheckReport::default();
        assert!(documents.check_built_views(&split, &mut report, |_| ()).await.unwrap());
        assert!(report.is_sound(), "{report:?}");
    }
}

pub(crate) async fn a_partitioned_database_moves_as_one(stage: Stage) {
    let engine = stage.engine();
    let (source, target) = (at(&engine, "a").await, at(&engine, "b").await);
    let documents = source.create_database("db", PARTITIONED).await.unwrap();
    for (id, n) in [("a:1", 2), ("a:2", 1), ("b:1", 1)] {
        documents.put(edit(id, &format!(r#"{{"n":{n}}}"#))).await.unwrap();
    }
    documents.index().fields(["n"]).create().await.unwrap();
    let before = documents.partition_info("a").await.unwrap();
    run(&source, &target, options(true), go_on).await.unwrap();
    let moved = target.database("db").await.unwrap();
    assert!(moved.is_partitioned() && moved.info().await.unwrap().partitioned);
    assert_eq!(moved.partition_info("a").await.unwrap().doc_count, before.doc_count);
    assert_eq!(moved.put(edit("x", "{}")).await.unwrap_err().error(), "illegal_docid");
    moved.build_indexes(|_| ()).await.unwrap();
    let sorted = moved.find(json(r#"{"n":{"$gt":0}}"#)).in_partition("a").sort(["n"]).all().await.unwrap();
    assert_eq!(sorted.iter().map(|document| document.id.as_str()).collect::<Vec<_>>(), ["a:2", "a:1"]);
    assert_sound(&moved).await;
    assert!(source.remains("db").await.unwrap().is_some_and(|remains| remains.is_partitioned()));
}
