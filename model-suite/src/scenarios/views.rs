//! Views agree with a scan that emits and sorts, whatever happens to the documents.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use conformance::chaos::{Chaos, Rates};
use conformance::random::Random;
use kv_api::{Counted, Database};
use model::{
    AllDocsEntry, AllDocsRequest, CreateOptions, Documents, Edit, Emit, FunctionError, GetOptions, Grouping, JsonText,
    MAX_VIEW_KEY, NotFound, Purge, Reduce, Reduced, Reduction, RustView, View, ViewGroup, ViewOptions, ViewRequest,
    WriteMode,
};

use super::damage::{put as put_rows, rows as rows_at};
use crate::stage::*;

/// Emits what the document says: `{"e": [[key, value], …]}`.
fn emit_all(document: &JsonText, emit: &mut Emit) -> Result<(), FunctionError> {
    for pair in document.get("e").into_iter().flat_map(|list| list.elements()) {
        let mut pair = pair.elements().map(|value| document.slice_ref(value));
        if let (Some(key), Some(value)) = (pair.next(), pair.next()) {
            emit.row(key, value);
        }
    }
    match document.get("fails") {
        Some(_) => Err(FunctionError::new("map_error", "it says so")),
        None => Ok(()),
    }
}

/// The number of an emitted value: itself, or the length of a text.
fn emit_numbers(document: &JsonText, emit: &mut Emit) -> Result<(), FunctionError> {
    let mut all = Emit::default();
    emit_all(document, &mut all)?;
    for row in all.into_rows() {
        let number = row.value.root().as_i64().unwrap_or(row.value.len() as i64);
        emit.row(row.key, json(&number.to_string()));
    }
    Ok(())
}

/// The greatest number.
fn greatest(reduction: Reduction) -> Reduced {
    let values: Vec<JsonText> = match reduction {
        Reduction::Rows(rows) => rows.into_iter().map(|row| row.value).collect(),
        Reduction::Values(values) => values,
    };
    let greatest = values.iter().filter_map(|value| value.root().as_i64()).max();
    Ok(json(&greatest.unwrap_or(i64::MIN).to_string()))
}

fn group(version: u64) -> ViewGroup {
    let views = vec![
        RustView::new("all", emit_all),
        RustView::new("sum", emit_numbers).reduced(Reduce::Sum),
        RustView::new("count", emit_all).reduced(Reduce::Count),
        RustView::new("greatest", emit_numbers).reduced_by(greatest),
    ];
    ViewGroup::of_closures("test", version, views)
}

/// A row of the oracle, in the view's order: bytes of the key, document, number; key and value.
type Row = (Vec<u8>, String, usize, JsonText, JsonText);

fn order(key: &JsonText) -> Vec<u8> {
    let mut out = Vec::new();
    mango::append_key(&mut out, key.root());
    out
}

/// What a scan emits, sorted.
async fn scan<D: Database>(
    documents: &Documents<D>,
    map: impl Fn(&JsonText, &mut Emit) -> Result<(), FunctionError>,
) -> Vec<Row> {
    let all = AllDocsRequest { include_docs: true, ..AllDocsRequest::default() };
    let mut rows = Vec::new();
    for row in list(documents, all).await {
        let AllDocsEntry::Live { doc: Some(doc), .. } = row.entry else { panic!("{row:?}") };
        let mut emit = Emit::default();
        if map(&doc.to_text(), &mut emit).is_ok() {
            let emitted = emit.into_rows().into_iter().enumerate();
            rows.extend(emitted.map(|(n, pair)| (order(&pair.key), row.id.clone(), n, pair.key, pair.value)));
        }
    }
    rows.sort_by(|a, b| (&a.0, &a.1, a.2).cmp(&(&b.0, &b.1, b.2)));
    rows
}

/// The rows of a range, in its order.
fn in_range(rows: &[Row], request: &ViewRequest) -> Vec<Row> {
    let mut rows = rows.to_vec();
    if request.descending {
        rows.reverse();
    }
    let compare = |row: &Row, key: &JsonText, id: Option<&String>| {
        let order = row.0.cmp(&order(key)).then_with(|| id.map_or(Ordering::Equal, |id| row.1.cmp(id)));
        if request.descending { order.reverse() } else { order }
    };
    rows.retain(|row| {
        let starts = request.start.as_ref().is_none_or(|key| compare(row, key, request.start_id.as_ref()).is_ge());
        let ends = request.end.as_ref().is_none_or(|key| match compare(row, key, request.end_id.as_ref()) {
            Ordering::Less => true,
            Ordering::Equal => request.inclusive_end,
            Ordering::Greater => false,
        });
        starts && ends
    });
    rows
}

fn of_keys(rows: &[Row], request: &ViewRequest) -> Vec<Row> {
    let Some(keys) = &request.keys else { return in_range(rows, request) };
    let mut keys = keys.to_vec();
    if request.descending {
        keys.reverse();
    }
    let one = |key: &JsonText| {
        let (start, end) = (Some(key.clone()), Some(key.clone()));
        in_range(rows, &ViewRequest { start, end, descending: request.descending, ..ViewRequest::default() })
    };
    keys.iter().flat_map(one).collect()
}

fn limited<T>(rows: Vec<T>, request: &ViewRequest) -> Vec<T> {
    let limit = request.limit.map_or(usize::MAX, |limit| limit as usize);
    rows.into_iter().skip(request.skip as usize).take(limit).collect()
}

/// The groups that rows make: the key, and the values of each.
fn grouped(rows: Vec<Row>, grouping: Grouping) -> Vec<(JsonText, Vec<JsonText>)> {
    let mut groups: Vec<(JsonText, Vec<JsonText>)> = Vec::new();
    for (_, _, _, key, value) in rows {
        let key = match grouping {
            Grouping::None | Grouping::Level(0) => json("null"),
            Grouping::Level(level) if key.root().is_array() => {
                let some: Vec<&str> = key.root().elements().take(level as usize).map(|one| one.text()).collect();
                json(&format!("[{}]", some.join(",")))
            }
            _ => key,
        };
        match groups.last_mut() {
            Some((last, values)) if order(last) == order(&key) => values.push(value),
            _ => groups.push((key, vec![value])),
        }
    }
    groups
}

fn random_key(random: &mut Random) -> String {
    let long = |tail: u64| format!("{}{tail}", "long ".repeat(MAX_VIEW_KEY / 5));
    match random.below(14) {
        0 => "null".to_owned(),
        1 => format!("\"{}\"", long(random.below(3))),
        2 => format!("[1,\"{}\",{}]", long(random.below(2)), random.below(3)),
        3 => format!("\"{}\"", random.pick(&["a", "A", "b", "é", "", "\\u0000"])),
        4 => format!("{{\"a\":{}}}", random.below(3)),
        5 => "[]".to_owned(),
        6 => format!("[{}]", random.below(3)),
        7 => format!("{}.5", random.below(4)),
        8 => random.below(5).to_string(),
        _ => format!("[{},\"{}\",{}]", random.below(3), random.pick(&["x", "y"]), random.below(9)),
    }
}

fn random_body(random: &mut Random) -> String {
    let count = if random.chance(0.03) { 40 } else { random.below(5) };
    let pairs: Vec<String> = (0..count)
        .map(|_| {
            let value = match random.below(60) {
                0 => format!("\"{}\"", "x".repeat(95_000)),
                1..9 => "null".to_owned(),
                n => n.to_string(),
            };
            format!("[{},{value}]", random_key(random))
        })
        .collect();
    let fails = if random.chance(0.05) { r#","fails":true"# } else { "" };
    format!("{{\"e\":[{}]{fails}}}", pairs.join(","))
}

async fn random_step<D: Database>(documents: &Documents<D>, random: &mut Random) {
    let id = format!("doc-{}", random.below(25));
    let winner = documents.get(&id, &GetOptions::default()).await.ok();
    let text = random_body(random);
    let (edit, mode) = match (random.below(9), winner) {
        (0, _) => {
            let path = *random.pick(&["1-x", "1-y", "2-z x", "3-v z x"]);
            (replicated(&id, path, &text), WriteMode::Replicated)
        }
        (1, Some(doc)) => (edit(&id, "{}").over(doc.rev).deleting(), WriteMode::Interactive),
        (2, Some(doc)) => {
            documents.purge(&[Purge::new(id, vec![doc.rev])]).await.unwrap().remove(0).unwrap();
            return;
        }
        (_, Some(doc)) => (edit(&id, &text).over(doc.rev), WriteMode::Interactive),
        (_, None) => (edit(&id, &text), WriteMode::Interactive),
    };
    for result in documents.write(vec![edit], mode).await.unwrap() {
        if let Err(error) = result {
            assert_eq!(error.status(), 409, "{error}");
        }
    }
}

fn random_request(random: &mut Random, rows: &[Row]) -> ViewRequest {
    let some_key = |random: &mut Random| match rows.is_empty() || random.chance(0.3) {
        true => json(&random_key(random)),
        false => random.pick(rows).3.clone(),
    };
    let mut request = ViewRequest {
        descending: random.chance(0.4),
        skip: if random.chance(0.3) { random.below(12) } else { 0 },
        limit: random.chance(0.4).then(|| random.below(20)),
        inclusive_end: random.chance(0.7),
        ..ViewRequest::default()
    };
    if random.chance(0.2) {
        request.inclusive_end = true;
        request.keys = Some((0..random.below(6)).map(|_| some_key(random)).collect::<Arc<[_]>>());
        return request;
    }
    request.start = random.chance(0.6).then(|| some_key(random));
    request.end = random.chance(0.6).then(|| some_key(random));
    let id = |random: &mut Random| random.chance(0.4).then(|| format!("doc-{}", random.below(25)));
    request.start_id = id(random).filter(|_| request.start.is_some());
    request.end_id = id(random).filter(|_| request.end.is_some());
    request
}

/// Compares random queries with a scan.
async fn assert_agrees<D: Database>(documents: &Documents<D>, group: &ViewGroup, random: &mut Random, what: &str) {
    assert_eq!(documents.check_views(group).await.unwrap(), [""; 0], "{what}");
    assert_sound(documents).await;
    let (all, numbers) = (scan(documents, emit_all).await, scan(documents, emit_numbers).await);
    for n in 0..15 {
        let request = random_request(random, &all);
        let what = format!("{what}, query {n}: {request:?}");
        let (mut found, mut offset, mut next) = (Vec::new(), None, Some(request.clone()));
        while let Some(request) = next {
            let page = documents.view_rows(group, "all", &request).await.unwrap();
            assert_eq!(page.total_rows, all.len() as u64, "{what}");
            offset.get_or_insert(page.offset);
            found.extend(page.rows.into_iter().map(|row| (row.id, row.key, row.value)));
            next = page.next;
        }
        let expected = limited(of_keys(&all, &request), &request);
        if let (Some(first), None) = (expected.first(), &request.keys) {
            let place = all.iter().position(|row| row == first).unwrap();
            let place = if request.descending { all.len() - 1 - place } else { place };
            assert_eq!(offset, Some(place as u64), "{what}");
        }
        let expected: Vec<_> = expected.into_iter().map(|(_, id, _, key, value)| (id, key, value)).collect();
        assert!(found == expected, "{what}\nfound {found:?}\nexpected {expected:?}");

        let grouping = match random.below(5) {
            0 => Grouping::Exact,
            1 if request.keys.is_none() => Grouping::None,
            _ if request.keys.is_some() => Grouping::Exact,
            level => Grouping::Level(level - 1),
        };
        for view in ["sum", "count", "greatest"] {
            let (mut found, mut next) = (Vec::new(), Some(request.clone()));
            while let Some(request) = next {
                let page = documents.view_reductions(group, view, &request, grouping).await.unwrap();
                found.extend(page.rows.into_iter().map(|row| (order(&row.key), row.value.unwrap().to_string())));
                next = page.next;
            }
            let value = |values: &[JsonText]| {
                let numbers = values.iter().filter_map(|value| value.root().as_i64());
                match view {
                    "sum" => numbers.sum::<i64>().to_string(),
                    "count" => values.len().to_string(),
                    _ => numbers.max().unwrap().to_string(),
                }
            };
            let groups = match &request.keys {
                None => grouped(of_keys(&numbers, &request), grouping),
                Some(_) => {
                    let mut keys = request.keys.iter().flat_map(|keys| keys.to_vec()).collect::<Vec<_>>();
                    if request.descending {
                        keys.reverse();
                    }
                    let one = |key: &JsonText| {
                        let keys = Some(Arc::from([key.clone()]));
                        grouped(of_keys(&numbers, &ViewRequest { keys, ..request.clone() }), grouping)
                    };
                    keys.iter().flat_map(one).collect()
                }
            };
            let expected: Vec<_> =
                limited(groups, &request).iter().map(|(key, values)| (order(key), value(values))).collect();
            assert!(found == expected, "{view} {grouping:?}, {what}\nfound {found:?}\nexpected {expected:?}");
        }
    }
}

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
        for _ in 0..2 {
            for _ in 0..25 {
                random_step(&faulty, &mut random).await;
                if random.chance(0.3) {
                    unsteady.update_views_batch(&group, 1 + random.below(9) as usize, None).await.unwrap();
                }
            }
            unsteady.update_views(&group).await.unwrap();
            assert_agrees(&calm, &group, &mut random, &what).await;
        }
    }
}

pub(crate) async fn updates_of_a_group_beside_each_other_and_writers(stage: Stage) {
    let seed = 7;
    let rates = Rates { latency: 0.5, longest: std::time::Duration::from_millis(1), ..Rates::retryable(0.001) };
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

/// Writes documents `d0000` …, each with one row `[n % groups, n]: n`.
async fn fill<D: Database>(documents: &Documents<D>, count: usize, groups: usize) {
    let body = |n: usize| format!("{{\"e\":[[[{},{n}],{n}]]}}", n % groups);
    let edits: Vec<Edit> = (0..count).map(|n| edit(&format!("d{n:04}"), &body(n))).collect();
    for result in documents.write(edits, WriteMode::Interactive).await.unwrap() {
        result.unwrap();
    }
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
                model::Mapped { rows: vec![emit.into_rows()], error: None }
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
    let views = vec![View { name: "all".to_owned(), reduce: None }];
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
    let request = ViewRequest { keys: Some(keys.collect()), ..ViewRequest::default() };
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
        // Not the group's own rows, nor what only says where it stands.
        let row = &all[3 + random.below(all.len() as u64 - 3) as usize];
        put_rows(&engine, &[(&row.key, None)]).await;
        assert!(!documents.check_views(&group).await.unwrap().is_empty(), "without {}", row.key.escape_ascii());
        assert!(!documents.check(|_| ()).await.unwrap().is_sound(), "without {}", row.key.escape_ascii());
        put_rows(&engine, &[(&row.key, Some(&row.value))]).await;
    }
    assert_agrees(&documents, &group, &mut Random::new(1), "after").await;
}
