//! Views agree with a scan that emits and sorts, whatever happens to the documents.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use conformance::chaos::{Chaos, Rates};
use conformance::random::Random;
use jobs::{Accepted, JobId, NewJob, Server};
use kv_api::{BoxFuture, Counted, Database, KeyValue};
use model::{
    CheckReport, CreateOptions, Documents, Emit, Emitted, ErrorKind, GetOptions, Grouping, JsonArray, JsonText,
    MAX_VIEW_KEY, Mapped, NotFound, Purge, Reduce, Reduced, Reduction, RustView, View, ViewFunctions, ViewGroup,
    ViewOptions, ViewRequest, WriteMode,
};

use super::damage::{put as put_rows, rows as rows_at};
use super::jobs::{outlive, server};
use super::view_oracle::{assert_agrees, emit_all, fill, group, random_step};
use crate::stage::*;

pub(crate) async fn random_views_agree_with_a_scan(stage: Stage) {
    for seed in [1, 2] {
        let what = format!("seed {seed}");
        let mut random = Random::new(seed);
        let chaos = Chaos::new(stage.engine(), seed, Rates::retryable(0.03));
        let name = format!("db-{seed}");
        let faulty = layer(chaos).await.create_database(&name, CreateOptions::default()).await.unwrap();
        let calm = stage.layer().await.database(&name).await.unwrap();
        // An update has hundreds of reads in one transaction.
        let unsteady = Chaos::new(stage.engine(), seed, Rates::retryable(0.0003));
        let unsteady = layer(unsteady).await.database(&name).await.unwrap();
        let group = group(seed);
        // It has mapped documents ahead that are changed or deleted before their rows are written.
        let mut update = unsteady.view_update(&group);
        for _ in 0..2 {
            for _ in 0..25 {
                random_step(&faulty, &mut random).await;
                let most = 1 + random.below(9) as usize;
                if random.chance(0.2) {
                    unsteady.update_views_batch(&group, most, None).await.unwrap();
                } else if random.chance(0.4) {
                    update.next(most, None, |batch| batch).await.unwrap();
                }
            }
            unsteady.update_views(&group).await.unwrap();
            assert_agrees(&calm, &group, &mut random, &what).await;
        }
    }
}

pub(crate) async fn updates_of_a_group_beside_each_other_and_writers(stage: Stage) {
    let seed = 7;
    let rates = Rates { latency: 0.5, longest: Duration::from_millis(1), ..Rates::retryable(0.001) };
    let calm = stage.documents().await;
    let slow = layer(Chaos::new(stage.engine(), seed, rates)).await.database("db").await.unwrap();
    let group = group(1);
    let update = async || {
        for _ in 0..12 {
            slow.update_views_batch(&group, 5, None).await.unwrap();
        }
        slow.update_views(&group).await.unwrap();
    };
    let writers = (0..3).map(|writer| {
        let (slow, mut random) = (slow.clone(), Random::new(100 * seed + writer));
        async move {
            for _ in 0..20 {
                random_step(&slow, &mut random).await;
            }
        }
    });
    futures_util::future::join3(update(), update(), futures_util::future::join_all(writers)).await;
    calm.update_views(&group).await.unwrap();
    assert_agrees(&calm, &group, &mut Random::new(seed), "beside each other").await;
}

pub(crate) async fn an_update_that_is_taken_over_goes_on_where_the_first_stopped(stage: Stage) {
    let documents = stage.documents().await;
    fill(&documents, 30, 3).await;
    let (group, jobs) = (group(1), documents.jobs());
    let id = JobId::new("views", "db:test");
    jobs.add(&id, &NewJob::default()).await.unwrap();
    let (mut here, mut there) = (server(&jobs, 1), server(&jobs, 2));
    let accept = async |server: &mut Server<_>| match server.accept("views", 10_000).await.unwrap() {
        Accepted::Job(_, hold) => hold,
        Accepted::Nothing { .. } => panic!("there is no job"),
    };
    let first = accept(&mut here).await;
    let mut begun = documents.view_update(&group);
    let before = begun.next(10, Some(&first), |batch| batch).await.unwrap();
    assert_eq!((before.documents, before.more), (10, true));

    // Its server is lost. It has already mapped its next documents; one of them is changed, and one is deleted.
    let mut now = Duration::ZERO;
    outlive(&mut there, &mut now).await;
    let second = accept(&mut there).await;
    let rev = documents.get("d0012", &GetOptions::default()).await.unwrap().rev;
    documents.put(edit("d0012", r#"{"e":[[7,7]]}"#).over(rev)).await.unwrap();
    let rev = documents.get("d0013", &GetOptions::default()).await.unwrap().rev;
    documents.put(edit("d0013", "{}").over(rev).deleting()).await.unwrap();
    let late = begun.next(10, Some(&first), |batch| batch).await.unwrap_err();
    assert_eq!(*late.kind(), ErrorKind::JobLost);
    assert_eq!(documents.view_stats(&group).await.unwrap().seq, before.seq, "the late batch wrote nothing");

    let mut update = documents.view_update(&group);
    let progress = update.next(10, Some(&second), |batch| batch).await.unwrap();
    assert_eq!((progress.documents, progress.more), (10, true));
    assert!(progress.seq > before.seq);
    // The first one is late again, now after the other.
    let late = begun.next(10, Some(&first), |batch| batch).await.unwrap_err();
    assert_eq!(*late.kind(), ErrorKind::JobLost);
    let progress = update.next(100, Some(&second), |batch| batch).await.unwrap();
    let last = documents.last_seq().await.unwrap();
    assert_eq!((progress.documents, progress.seq), (10, last), "each change is processed once");
    jobs.finish_and_remove(&second).await.unwrap();
    assert_eq!(jobs.get(&id).await.unwrap(), None);
    assert_agrees(&documents, &group, &mut Random::new(1), "taken over").await;
    assert!(documents.check_views(&group).await.unwrap().is_empty());
}

/// Every other call of these functions waits until the next one began.
#[derive(Default)]
struct Paired {
    begun: Arc<AtomicUsize>,
    overtaken: Arc<AtomicUsize>,
}

impl ViewFunctions for Paired {
    fn map(&self, documents: Vec<JsonText>) -> BoxFuture<model::Result<Vec<Mapped>>> {
        let (begun, overtaken) = (self.begun.clone(), self.overtaken.clone());
        let own = begun.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            for _ in 0..1_000 {
                if own % 2 == 1 {
                    break;
                }
                if begun.load(Ordering::Relaxed) > own + 1 {
                    overtaken.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                tokio::task::yield_now().await;
            }
            let row = |text: &JsonText| Emitted { key: json("1"), value: text.slice_ref(text.get("_id").unwrap()) };
            Ok(documents.iter().map(|text| Mapped { rows: vec![vec![row(text)]], ..Mapped::default() }).collect())
        })
    }

    fn at_once(&self) -> usize {
        2
    }

    fn reduce(&self, _: usize, _: Vec<Reduction>) -> BoxFuture<model::Result<Vec<Reduced>>> {
        unreachable!("no view reduces")
    }
}

pub(crate) async fn map_functions_run_beside_each_other(stage: Stage) {
    let documents = stage.documents().await;
    fill(&documents, 200, 1).await;
    let functions = Paired::default();
    let overtaken = functions.overtaken.clone();
    let view = View { name: "v".to_owned(), reduce: None, is_raw: false };
    let group = ViewGroup::new("paired", "1", ViewOptions::default(), vec![view], Arc::new(functions));
    documents.update_views(&group).await.unwrap();
    let page = documents.query_view(&group, "v", &ViewRequest::default()).await.unwrap();
    assert_eq!(page.rows.len(), 200);
    assert!(page.rows.iter().all(|row| row.value.as_str() == format!("\"{}\"", row.id)), "rows of their documents");
    assert!(overtaken.load(Ordering::Relaxed) > 0, "the calls follow each other");
}

pub(crate) async fn a_grouped_reduction_reads_nodes_and_not_rows(stage: Stage) {
    let counted = Counted::new(stage.engine());
    let documents = database(counted.clone()).await;
    let costs = async |id: &str| {
        counted.take();
        documents.put(edit(id, r#"{"e":[[1,1]]}"#)).await.unwrap();
        let counts = counted.take();
        counts.iter().map(|counts| (counts.kvs_read, counts.reads, counts.sets, counts.clears)).collect::<Vec<_>>()
    };
    costs("warm").await;
    let before = costs("a").await;
    fill(&documents, 3_000, 3).await;
    let group = group(1);
    documents.update_views(&group).await.unwrap();
    assert_eq!(costs("b").await, before, "an edit does not know of views");
    documents.update_views(&group).await.unwrap();

    let read = async |grouping, request: ViewRequest| {
        counted.take();
        let page = documents.view_reductions(&group, "sum", &request, grouping).await.unwrap();
        assert_eq!(page.next, None);
        let rows: u64 = counted.take().iter().map(|counts| counts.kvs_read).sum();
        (
            page.rows.into_iter().map(|row| (row.key.to_string(), row.value.unwrap().to_string())).collect::<Vec<_>>(),
            rows,
        )
    };
    let sum = |group: u64| (0..1_000).map(|n| 3 * n + group).sum::<u64>().to_string();
    let (rows, cost) = read(Grouping::Level(1), ViewRequest::default()).await;
    let expected = [
        ("[0]".to_owned(), sum(0)),
        ("[1]".to_owned(), sum(1)),
        ("[2]".to_owned(), sum(2)),
        ("1".to_owned(), "3".to_owned()),
    ];
    assert_eq!(rows[1..], expected[..3], "arrays are after numbers");
    assert_eq!(rows[0], expected[3]);
    assert!(cost < 1_200, "{cost} rows of 3,000");
    let (rows, cost) = read(Grouping::None, ViewRequest::default()).await;
    assert_eq!(rows, [("null".to_owned(), (2_999 * 3_000 / 2 + 3).to_string())]);
    assert!(cost < 30, "{cost} rows");
    let start = Some(json("[0,7]"));
    let (_, cost) =
        read(Grouping::None, ViewRequest { start, end: Some(json("[2,2000]")), ..ViewRequest::default() }).await;
    assert!(cost < 600, "{cost} rows");
}

pub(crate) async fn purges_reach_views_also_when_they_are_forgotten(stage: Stage) {
    let documents = stage.documents().await;
    let group = group(1);
    fill(&documents, 30, 2).await;
    documents.update_views(&group).await.unwrap();
    let purge = async |n: usize| {
        let id = format!("d{n:04}");
        let rev = get(&documents, &id).await.rev;
        documents.purge(&[Purge::new(id, vec![rev])]).await.unwrap().remove(0).unwrap();
    };
    let total = async || documents.query_view(&group, "all", &ViewRequest::default()).await.unwrap().total_rows;
    purge(3).await;
    purge(4).await;
    assert_eq!(total().await, 28);
    documents.set_purged_infos_limit(1).await.unwrap();
    for n in 10..15 {
        purge(n).await;
    }
    assert_eq!(total().await, 23, "it is built anew");
    assert_agrees(&documents, &group, &mut Random::new(1), "purged").await;
}

/// The first group's functions, which purge the last document while they run.
struct Purging {
    documents: Documents<kv_api::AnyDatabase>,
    is_done: Arc<std::sync::atomic::AtomicBool>,
}

impl model::ViewFunctions for Purging {
    fn map(&self, mapped: Vec<JsonText>) -> kv_api::BoxFuture<model::Result<Vec<model::Mapped>>> {
        let (documents, is_done) = (self.documents.clone(), self.is_done.clone());
        Box::pin(async move {
            if !is_done.swap(true, std::sync::atomic::Ordering::Relaxed) {
                let rev = get(&documents, "z").await.rev;
                documents.purge(&[Purge::new("z", vec![rev])]).await?.remove(0)?;
            }
            let rows = mapped.iter().map(|document| {
                let mut emit = Emit::default();
                emit_all(document, &mut emit).unwrap();
                model::Mapped { rows: vec![emit.into_rows()], ..model::Mapped::default() }
            });
            Ok(rows.collect())
        })
    }

    fn reduce(&self, _: usize, _: Vec<Reduction>) -> kv_api::BoxFuture<model::Result<Vec<Reduced>>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

pub(crate) async fn a_document_that_is_purged_while_it_is_mapped_has_no_rows(stage: Stage) {
    let documents = stage.documents().await;
    // More than one transaction takes.
    let body = format!("{{\"e\":[[1,\"{}\"]]}}", "x".repeat(80_000));
    for n in 0..20 {
        documents.put(edit(&format!("a{n:02}"), &body)).await.unwrap();
    }
    documents.put(edit("z", r#"{"e":[[2,2]]}"#)).await.unwrap();
    let views = vec![View { name: "all".to_owned(), reduce: None, is_raw: false }];
    let functions = Arc::new(Purging { documents: documents.clone(), is_done: Arc::default() });
    let group = ViewGroup::new("purging", "", ViewOptions::default(), views, functions);
    let page = documents.query_view(&group, "all", &ViewRequest::default()).await.unwrap();
    assert_eq!(page.total_rows, 20);
    assert_eq!(documents.check_views(&group).await.unwrap(), [""; 0]);
}

async fn purge_all<D: Database>(documents: &Documents<D>, ids: &[String]) {
    let mut purges = Vec::new();
    for id in ids {
        purges.push(Purge::new(id, vec![get(documents, id).await.rev]));
    }
    for result in documents.purge(&purges).await.unwrap() {
        result.unwrap();
    }
}

pub(crate) async fn all_purges_reach_views_when_there_are_many(stage: Stage) {
    let documents = stage.documents().await;
    let group = group(1);
    // More than an engine returns at once.
    let ids: Vec<String> = (0..700).map(|n| format!("{n:0500}")).collect();
    let edits = ids.iter().map(|id| edit(id, r#"{"e":[[1,1]]}"#)).collect();
    for result in documents.write(edits, WriteMode::Interactive).await.unwrap() {
        result.unwrap();
    }
    documents.put(edit("stays", r#"{"e":[[1,1]]}"#)).await.unwrap();
    documents.update_views(&group).await.unwrap();
    purge_all(&documents, &ids).await;
    let page = documents.query_view(&group, "all", &ViewRequest::default()).await.unwrap();
    assert_eq!(page.total_rows, 1);
    assert_agrees(&documents, &group, &mut Random::new(1), "purged").await;
}

pub(crate) async fn purges_reach_views_whose_rows_take_several_transactions(stage: Stage) {
    let documents = stage.documents().await;
    let group = ViewGroup::of_closures("long", 1, vec![RustView::new("all", emit_all)]);
    let ids: Vec<String> = (0..10).map(|n| format!("long-{n}")).collect();
    for id in &ids {
        let row = |n: usize| format!("[\"{n:04}{}\",1]", "k".repeat(MAX_VIEW_KEY - 20));
        let body = format!("{{\"e\":[{}]}}", (0..330).map(row).collect::<Vec<_>>().join(","));
        documents.put(edit(id, &body)).await.unwrap();
    }
    documents.update_views(&group).await.unwrap();
    assert_eq!(documents.view_errors(&group, None).await.unwrap(), []);
    purge_all(&documents, &ids).await;
    let page = documents.query_view(&group, "all", &ViewRequest::default()).await.unwrap();
    assert_eq!(page.total_rows, 0);
}

pub(crate) async fn keys_that_do_not_exist_end_a_page(stage: Stage) {
    let documents = stage.documents().await;
    let group = group(1);
    documents.put(edit("a", r#"{"e":[[1,1]]}"#)).await.unwrap();
    documents.update_views(&group).await.unwrap();
    let keys = (0..2_500).map(|n| json(&format!("\"{n}\""))).chain([json("1")]);
    let request = ViewRequest { keys: JsonArray::of(keys), ..ViewRequest::default() };
    let (mut found, mut pages, mut next) = (0, 0, Some(request.clone()));
    while let Some(request) = next {
        let page = documents.view_rows(&group, "all", &request).await.unwrap();
        (found, pages, next) = (found + page.rows.len(), pages + 1, page.next);
    }
    assert!(found == 1 && pages > 1, "{found} rows in {pages} pages");
    let (mut found, mut pages, mut next) = (0, 0, Some(request));
    while let Some(request) = next {
        let page = documents.view_reductions(&group, "sum", &request, Grouping::Exact).await.unwrap();
        (found, pages, next) = (found + page.rows.len(), pages + 1, page.next);
    }
    assert!(found == 1 && pages > 1, "{found} groups in {pages} pages");
}

pub(crate) async fn a_document_that_a_repair_removes_has_no_rows_in_views(stage: Stage) {
    let documents = stage.documents().await;
    let group = group(1);
    fill(&documents, 10, 2).await;
    documents.update_views(&group).await.unwrap();
    let body = rows_at(&stage.engine(), super::damage::DOCS, "d0003").await.remove(0);
    put_rows(&stage.engine(), &[(&body.key, Some(&body.value[..1]))]).await;
    let report = documents.repair(|_| ()).await.unwrap();
    assert!(report.after.is_sound() && is_missing(&documents, "d0003").await);
    let page = documents.query_view(&group, "all", &ViewRequest::default()).await.unwrap();
    assert_eq!(page.total_rows, 9);
    assert_agrees(&documents, &group, &mut Random::new(1), "repaired").await;
}

pub(crate) async fn a_batch_ends_at_the_bytes_that_are_emitted(stage: Stage) {
    let documents = stage.documents().await;
    let long = |_: &JsonText, emit: &mut Emit| {
        emit.row(json("1"), json(&format!("\"{}\"", "x".repeat(100_000))));
        Ok(())
    };
    let group = ViewGroup::of_closures("long", 1, vec![RustView::new("all", long)]);
    fill(&documents, 120, 2).await;
    let progress = documents.update_views_batch(&group, usize::MAX, None).await.unwrap();
    assert!(progress.documents < 120 && progress.more, "{progress:?}");
    let page = documents.query_view(&group, "all", &ViewRequest::default()).await.unwrap();
    assert_eq!(page.total_rows, 120);
}

pub(crate) async fn a_document_whose_nodes_do_not_fit_stops_no_other(stage: Stage) {
    let documents = stage.documents().await;
    let large = |_: Reduction| Ok(json(&format!("\"{}\"", "x".repeat(85_000))));
    let group = ViewGroup::of_closures("large", 1, vec![RustView::new("all", emit_all).reduced_by(large)]);
    let body = |numbers: &mut dyn Iterator<Item = usize>| {
        format!("{{\"e\":[{}]}}", numbers.map(|n| format!("[{n},1]")).collect::<Vec<_>>().join(","))
    };
    for n in 0..25 {
        documents.put(edit(&format!("d{n:02}"), &body(&mut (300 * n..300 * n + 300)))).await.unwrap();
    }
    documents.update_views(&group).await.unwrap();
    // Below about each node of the first level.
    documents.put(edit("wide", &body(&mut (0..7_500).step_by(10)))).await.unwrap();
    documents.put(edit("z", &body(&mut (7_500..7_501)))).await.unwrap();
    let page = documents.query_view(&group, "all", &ViewRequest::default()).await.unwrap();
    assert_eq!(page.total_rows, 7_501);
    let errors = documents.view_errors(&group, None).await.unwrap();
    let names: Vec<_> = errors.iter().map(|one| (one.id.as_str(), one.error.error.as_str())).collect();
    assert_eq!(names, [("wide", "emitted_too_much")]);
    assert_eq!(documents.check_views(&group).await.unwrap(), [""; 0]);
}

pub(crate) async fn documents_that_break_a_map_function_are_noted(stage: Stage) {
    let documents = stage.documents().await;
    let group = group(1);
    assert_eq!(documents.view_errors(&group, None).await.unwrap_err().status(), 404, "it was never built");
    let first = documents.put(edit("bad", r#"{"e":[[1,1]],"fails":true}"#)).await.unwrap();
    documents.put(edit("good", r#"{"e":[[2,2]]}"#)).await.unwrap();
    let much = format!("{{\"e\":[{}]}}", vec![format!("[1,\"{}\"]", "x".repeat(90_000)); 40].join(","));
    documents.put(edit("much", &much)).await.unwrap();
    let page = documents.query_view(&group, "all", &ViewRequest::default()).await.unwrap();
    assert_eq!(page.rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["good"]);
    let errors = documents.view_errors(&group, None).await.unwrap();
    let names: Vec<_> = errors.iter().map(|one| (one.id.as_str(), one.error.error.as_str())).collect();
    assert_eq!(names, [("bad", "map_error"), ("much", "emitted_too_much")]);
    assert_eq!(documents.view_errors(&group, Some("bad")).await.unwrap().len(), 1);
    documents.put(edit("bad", r#"{"e":[[1,1]]}"#).over(first)).await.unwrap();
    assert_eq!(documents.query_view(&group, "all", &ViewRequest::default()).await.unwrap().rows.len(), 2);
    assert_eq!(documents.view_errors(&group, None).await.unwrap().len(), 1);
    assert_eq!(documents.check_views(&group).await.unwrap(), [""; 0]);
    assert_sound(&documents).await;
}

pub(crate) async fn a_view_that_emits_too_much_leaves_the_others_their_rows(stage: Stage) {
    let documents = stage.documents().await;
    // As many rows of 90 KB as a member of the document says.
    let view = |name: &'static str, member: &'static str| {
        RustView::new(name, move |document, emit| {
            let count: usize = document.get(member).map_or(0, |count| count.text().parse().unwrap());
            for number in 0..count {
                emit.row(json(&number.to_string()), json(&format!("\"{}\"", "x".repeat(90_000))));
            }
            Ok(())
        })
    };
    let group = ViewGroup::of_closures("greedy", 1, vec![view("a", "a"), view("b", "b"), view("c", "c")]);
    let first = documents.put(edit("alone", r#"{"a":1,"b":40,"c":2}"#)).await.unwrap();
    // Together they are too large, but each alone is not.
    documents.put(edit("together", r#"{"a":25,"b":15,"c":1}"#)).await.unwrap();
    documents.put(edit("two", r#"{"a":50,"b":34,"c":1}"#)).await.unwrap();
    documents.put(edit("small", r#"{"a":1,"b":1,"c":1}"#)).await.unwrap();
    let progress = documents.update_views_batch(&group, usize::MAX, None).await.unwrap();
    assert!(!progress.more, "{progress:?}");
    assert_eq!(progress.left_out.into_iter().collect::<Vec<_>>(), [(0, 2), (1, 2)]);
    let totals = async || {
        let mut totals = Vec::new();
        for view in ["a", "b", "c"] {
            totals.push(documents.query_view(&group, view, &ViewRequest::default()).await.unwrap().total_rows);
        }
        assert_eq!(documents.check_views(&group).await.unwrap(), [""; 0]);
        totals
    };
    assert_eq!(totals().await, [1 + 1, 15 + 1, 2 + 1 + 1 + 1]);
    for (view, expected) in [("a", vec!["together", "two"]), ("b", vec!["alone", "two"]), ("c", vec![])] {
        let page = documents.query_view(&group, view, &ViewRequest::default()).await.unwrap();
        let left_out: Vec<_> = page.left_out.documents.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(left_out, expected, "{view}");
    }
    let errors = documents.view_errors(&group, None).await.unwrap();
    let errors: Vec<_> = errors.iter().map(|one| (one.id.as_str(), one.error.to_string())).collect();
    let reason = |views: &str| {
        format!(
            "emitted_too_much: The document emits too much, at most about 3000000 bytes fit. It has no rows in: {views}"
        )
    };
    let expected = [("alone", reason(r#""b""#)), ("together", reason(r#""a""#)), ("two", reason(r#""a", "b""#))];
    assert_eq!(errors, expected);
    // The rows come back as soon as they fit.
    documents.put(edit("alone", r#"{"a":1,"b":3,"c":2}"#).over(first)).await.unwrap();
    assert_eq!(totals().await, [1 + 1, 3 + 15 + 1, 2 + 1 + 1 + 1]);
    assert_eq!(documents.view_errors(&group, None).await.unwrap().len(), 2);
    assert_sound(&documents).await;
}

pub(crate) async fn rows_bring_their_documents_or_those_they_name(stage: Stage) {
    let documents = stage.documents().await;
    let group = group(1);
    documents.put(edit("a", r#"{"e":[[1,{"_id":"b"}],[2,{"_id":"none"}],[3,null]]}"#)).await.unwrap();
    documents.put(edit("b", r#"{"b":true}"#)).await.unwrap();
    let request = ViewRequest { include_docs: true, ..ViewRequest::default() };
    let page = documents.query_view(&group, "all", &request).await.unwrap();
    let docs: Vec<_> =
        page.rows.iter().map(|row| row.doc.as_ref().unwrap().as_ref().map(|doc| doc.id.as_str())).collect();
    assert_eq!(docs, [Some("b"), None, Some("a")]);
}

pub(crate) async fn groups_are_removed_and_built_anew(stage: Stage) {
    let documents = stage.documents().await;
    fill(&documents, 10, 2).await;
    let (one, other) = (group(1), group(2));
    let of_design = ViewOptions { is_of_design: true, ..ViewOptions::default() };
    let functions = Arc::new(Nothing);
    let design = ViewGroup::new("_design/x", "x", of_design, Vec::new(), functions);
    for group in [&one, &other, &design] {
        documents.update_views(group).await.unwrap();
    }
    assert_eq!(documents.view_groups().await.unwrap().len(), 3);
    assert_eq!(documents.clean_up_views(&HashSet::from([*design.signature()])).await.unwrap(), 0);
    assert_eq!(documents.clean_up_views(&HashSet::new()).await.unwrap(), 1, "those of programs stay");
    assert!(documents.remove_view_group(one.signature()).await.unwrap());
    assert!(!documents.remove_view_group(one.signature()).await.unwrap());
    let gone = documents.view_rows(&one, "all", &ViewRequest::default()).await.unwrap_err();
    assert_eq!(*gone.kind(), model::ErrorKind::NotFound(NotFound::Index));
    let left: u64 = rows_at(&stage.engine(), 16, "").await.len() as u64;
    documents.query_view(&one, "all", &ViewRequest::default()).await.unwrap();
    assert!(rows_at(&stage.engine(), 16, "").await.len() as u64 > left);
    assert_agrees(&documents, &one, &mut Random::new(1), "again").await;
    assert_agrees(&documents, &other, &mut Random::new(2), "the other").await;
}

/// A group without views.
struct Nothing;

impl model::ViewFunctions for Nothing {
    fn map(&self, documents: Vec<JsonText>) -> kv_api::BoxFuture<model::Result<Vec<model::Mapped>>> {
        Box::pin(async move { Ok(documents.iter().map(|_| model::Mapped::default()).collect()) })
    }

    fn reduce(&self, _: usize, _: Vec<Reduction>) -> kv_api::BoxFuture<model::Result<Vec<Reduced>>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// Each row that is missing or changed is found.
pub(crate) async fn damaged_views_are_found(stage: Stage) {
    let documents = stage.documents().await;
    let group = group(1);
    fill(&documents, 100, 2).await;
    documents.update_views(&group).await.unwrap();
    assert_agrees(&documents, &group, &mut Random::new(1), "before").await;
    let engine = stage.engine();
    let all = rows_at(&engine, 16, "").await;
    let mut random = Random::new(3);
    for _ in 0..20 {
        // Except the group's own rows and those that only record its progress.
        let row = &all[3 + random.below(all.len() as u64 - 3) as usize];
        put_rows(&engine, &[(&row.key, None)]).await;
        assert!(!documents.check_views(&group).await.unwrap().is_empty(), "without {}", row.key.escape_ascii());
        assert!(!documents.check(|_| ()).await.unwrap().is_sound(), "without {}", row.key.escape_ascii());
        put_rows(&engine, &[(&row.key, Some(&row.value))]).await;
    }
    assert_agrees(&documents, &group, &mut Random::new(1), "after").await;
}

/// Rows to set, or to clear.
type Rows<'r> = Vec<(&'r [u8], Option<&'r [u8]>)>;

/// Damage that does not change the numbers of rows is found too, and so are rows without an id row that names them. A
/// repair removes them.
pub(crate) async fn view_rows_that_belong_to_nothing_are_removed(stage: Stage) {
    let documents = stage.documents().await;
    let group = group(1);
    fill(&documents, 10, 2).await;
    documents.put(edit("bad0", r#"{"fails":true}"#)).await.unwrap();
    documents.put(edit("long", &format!("{{\"e\":[[1,\"{}\"]]}}", "x".repeat(200_000)))).await.unwrap();
    documents.update_views(&group).await.unwrap();
    assert_agrees(&documents, &group, &mut Random::new(1), "before").await;
    let engine = stage.engine();
    let all = rows_at(&engine, 16, "").await;
    // The next group's number, the head, and the group's own row, whose key begins those of all its rows.
    let (head, prefix) = (all[1].clone(), &all[2].key);
    let of_kind = |kind: &[u8]| {
        let begin = [prefix, kind].concat();
        all.iter().filter(move |row| row.key.starts_with(&begin)).cloned().collect::<Vec<_>>()
    };
    let find = |kind: &[u8], id: &str| {
        let has_id = |row: &KeyValue| row.key.windows(id.len()).any(|some| some == id.as_bytes());
        of_kind(kind).into_iter().find(has_id).unwrap()
    };
    let (id_row, error) = (find(&[0x14], "bad0"), find(&[0x15, 3], "bad0"));
    let (row, part) = (find(&[0x15, 1], "d0003"), of_kind(&[0x15, 2]).pop().unwrap());
    let renamed = |key: &[u8], from: &[u8], to: &[u8]| {
        let at = key.windows(from.len()).position(|some| some == from).unwrap();
        [&key[..at], to, &key[at + from.len()..]].concat()
    };
    let another_part = [&part.key[..part.key.len() - 1], &[9]].concat();
    let (moved, other_id, other_error) = (
        renamed(&row.key, b"d0003", b"d0993"),
        renamed(&id_row.key, b"bad0", b"bad1"),
        renamed(&error.key, b"bad0", b"bad1"),
    );
    let in_group = |rest: &[u8]| [prefix, rest].concat();
    let (no_view, no_place) = (in_group(&[0x15, 1, 2, b'x', 0]), in_group(&[0x15, 1, 0x14, 0x14, 0x15, 9]));
    let last_view = [prefix, &[0x15, 1, 0x1c][..], &[0xff; 8], &row.key[prefix.len() + 3..]].concat();
    let damages: [(&str, Rows<'_>); 11] = [
        ("a row of what is not a view", vec![(&no_view, Some(&row.value))]),
        ("a row without a place", vec![(&no_place, Some(&row.value))]),
        ("a row of the last view that could be", vec![(&last_view, Some(&row.value))]),
        ("an unreadable id row", vec![(&id_row.key, Some(&id_row.value[..1]))]),
        ("an unreadable row", vec![(&row.key, Some(&[]))]),
        ("a row in another place", vec![(&row.key, None), (&moved, Some(&row.value))]),
        ("a part in another place", vec![(&part.key, None), (&another_part, Some(&part.value))]),
        ("a part more", vec![(&another_part, Some(&part.value))]),
        ("an error in another place", vec![(&error.key, None), (&other_error, Some(&error.value))]),
        ("no document", vec![(&other_id, Some(&id_row.value)), (&other_error, Some(&error.value))]),
        ("no head", vec![(&head.key, None)]),
    ];
    for (what, damage) in damages {
        put_rows(&engine, &damage).await;
        assert!(!documents.check(|_| ()).await.unwrap().is_sound(), "{what}");
        let repaired = documents.repair(|_| ()).await.unwrap();
        assert!(repaired.after.is_sound() && repaired.repaired == 1 && repaired.left == 0, "{what}: {repaired:?}");
        let mut undo: Rows<'_> = damage.iter().map(|(key, _)| (*key, None)).collect();
        undo.extend(all.iter().map(|row| (&*row.key, Some(&*row.value))));
        put_rows(&engine, &undo).await;
        assert_sound(&documents).await;
    }
    // The group of these rows is unknown, so they stay: a later version may have written them.
    let groups = &prefix[..prefix.len() - 1];
    for (what, rest) in [("no number", &[2, b'x', 0][..]), ("a longer number than it must be", &[0x16, 0, 5])] {
        let stray = [groups, rest].concat();
        put_rows(&engine, &[(&stray, Some(&row.value))]).await;
        assert!(!documents.check(|_| ()).await.unwrap().is_sound(), "{what}");
        let repaired = documents.repair(|_| ()).await.unwrap();
        assert!((repaired.repaired, repaired.left) == (0, 1) && !repaired.after.is_sound(), "{what}: {repaired:?}");
        assert_eq!(rows_at(&engine, 16, "").await.len(), all.len() + 1, "{what}: all rows are there");
        put_rows(&engine, &[(&stray, None)]).await;
        assert_sound(&documents).await;
    }
}

/// A repair removes damaged rows only. Rows in an unknown format are not damage.
pub(crate) async fn a_repair_leaves_view_rows_that_a_later_version_wrote(stage: Stage) {
    let documents = stage.documents().await;
    let group = group(1);
    fill(&documents, 10, 2).await;
    documents.update_views(&group).await.unwrap();
    let engine = stage.engine();
    let of_document = |row: &KeyValue| row.key.windows(5).any(|some| some == b"d0003");
    let rows: Vec<KeyValue> = rows_at(&engine, 16, "").await.into_iter().filter(of_document).collect();
    assert!(rows.len() > 2, "an id row, and rows of several views");
    for row in rows {
        // Format 9, and a node with nine rows and a reduction of an unknown kind.
        put_rows(&engine, &[(&row.key, Some(&[0x15, 9, b'z']))]).await;
        let before = rows_at(&engine, 16, "").await;
        let report = documents.repair(|repair| {
            let error = repair.outcome.as_ref().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::UnknownFormat(_)), "{error}");
        });
        let report = report.await.unwrap();
        assert!((report.repaired, report.left) == (0, 1) && !report.after.is_sound(), "{report:?}");
        assert_eq!(rows_at(&engine, 16, "").await, before);
        // A check with the functions reports it too, and does not report that the rows are wrong.
        let mut found = CheckReport::default();
        let error = documents.check_built_views(&group, &mut found, |_| ()).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::UnknownFormat(_)) && found.is_sound(), "{error}: {found:?}");
        put_rows(&engine, &[(&row.key, Some(&row.value))]).await;
    }
    assert_sound(&documents).await;
}

pub(crate) async fn a_view_is_tried_on_the_documents_that_changed_last(stage: Stage) {
    let documents = stage.documents().await;
    for n in 0..300 {
        documents.put(edit(&format!("d{n:03}"), &format!(r#"{{"e":[[{},1]]}}"#, 300 - n))).await.unwrap();
    }
    documents.put(edit("_design/d", "{}")).await.unwrap();
    documents.put(edit("bad", r#"{"e":[["lost",1]],"fails":true}"#)).await.unwrap();
    let rev = documents.get("d299", &GetOptions::default()).await.unwrap().rev;
    documents.put(edit("d299", "{}").over(rev).deleting()).await.unwrap();

    // The sum forgets that it gets its own results again, which shows in halves alone.
    let forgetful = |reduction: Reduction| match reduction {
        Reduction::Rows(rows) => Ok(json(&rows.len().to_string())),
        Reduction::Values(values) => Ok(json(&values.len().to_string())),
    };
    let view = |name: &'static str| RustView::new(name, emit_all);
    let views = vec![view("all"), view("sum").reduced(Reduce::Sum), view("forgetful").reduced_by(forgetful)];
    let group = ViewGroup::of_closures("tried", 1, views);
    let tried = documents.try_view(&group, 0, 30).await.unwrap();
    assert_eq!((tried.documents, tried.rows.len(), tried.has_more), (30, 29, true));
    let ids: Vec<&str> = tried.rows.iter().map(|row| row.id.as_str()).collect();
    let expected: Vec<String> = (270..299).rev().map(|n| format!("d{n}")).collect();
    assert_eq!(ids, expected, "in the order of keys");
    assert_eq!(tried.errors.iter().map(|error| error.id.as_str()).collect::<Vec<_>>(), ["bad"]);
    assert_eq!((tried.reduced, tried.rereduced), (None, None));

    let all = documents.try_view(&group, 1, 1_000).await.unwrap();
    assert_eq!((all.documents, all.rows.len(), all.has_more), (300, 299, false));
    assert_eq!((all.reduced, all.rereduced), (Some(Ok(json("299"))), None));
    let halves = documents.try_view(&group, 2, 1_000).await.unwrap();
    assert_eq!((halves.reduced, halves.rereduced), (Some(Ok(json("299"))), Some(Ok(json("2")))));
    assert!(documents.try_view(&group, 3, 10).await.is_err(), "there is no such view");

    // Large rows end it.
    let long = |_: &JsonText, emit: &mut Emit| {
        emit.row(json("1"), json(&format!("\"{}\"", "x".repeat(90_000))));
        Ok(())
    };
    let group = ViewGroup::of_closures("long", 1, vec![RustView::new("all", long)]);
    let long = documents.try_view(&group, 0, 1_000).await.unwrap();
    assert_eq!((long.documents, long.rows.len(), long.has_more), (45, 44, true));
    assert!(rows_at(&stage.engine(), 16, "").await.is_empty(), "nothing is stored");
}
