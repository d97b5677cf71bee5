//! An oracle for views: a scan that emits and sorts.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashSet};

use conformance::random::Random;
use kv_api::Database;
use model::{
    AllDocsEntry, AllDocsRequest, Documents, Edit, Emit, FunctionError, GetOptions, Grouping, JsonArray, JsonText,
    MAX_VIEW_KEY, Purge, Reduce, Reduced, ReducedRow, Reduction, RustView, ViewGroup, ViewRequest, ViewResume,
    WriteMode,
};

use crate::stage::*;

/// Emits the rows that the document lists: `{"e": [[key, value], …]}`.
pub(super) fn emit_all(document: &JsonText, emit: &mut Emit) -> Result<(), FunctionError> {
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

pub(super) fn group(version: u64) -> ViewGroup {
    ViewGroup::of_closures("test", version, views())
}

pub(super) fn views() -> Vec<RustView> {
    vec![
        RustView::new("all", emit_all),
        RustView::new("sum", emit_numbers).reduced(Reduce::Sum),
        RustView::new("count", emit_all).reduced(Reduce::Count),
        RustView::new("greatest", emit_numbers).reduced_by(greatest),
        RustView::new("distinct", emit_numbers).reduced(Reduce::ApproxCountDistinct),
        RustView::new("top", emit_numbers).reduced(Reduce::Top(3)),
        RustView::new("bottom", emit_numbers).reduced(Reduce::Bottom(2)),
        RustView::new("first", emit_numbers).reduced(Reduce::First),
        RustView::new("last", emit_numbers).reduced(Reduce::Last),
    ]
}

/// A row of the oracle, in the view's order: bytes of the key, document, number in that order; key and value.
type ViewRow = (Vec<u8>, String, usize, JsonText, JsonText);

fn order(key: &JsonText) -> Vec<u8> {
    let mut out = Vec::new();
    mango::append_key(&mut out, key.root());
    out
}

/// The rows that a scan emits, sorted.
async fn scan<D: Database>(
    documents: &Documents<D>,
    map: impl Fn(&JsonText, &mut Emit) -> Result<(), FunctionError>,
) -> Vec<ViewRow> {
    let all = AllDocsRequest { include_docs: true, ..AllDocsRequest::default() };
    let mut rows = Vec::new();
    for row in list(documents, all).await {
        let AllDocsEntry::Live { doc: Some(doc), .. } = row.entry else { panic!("{row:?}") };
        let mut emit = Emit::default();
        if map(&doc.to_text(), &mut emit).is_ok() {
            let emitted = emit.into_rows().into_iter();
            rows.extend(emitted.map(|pair| (order(&pair.key), row.id.clone(), 0, pair.key, pair.value)));
        }
    }
    let by_value = |a: &ViewRow, b: &ViewRow| mango::compare_terms(a.4.root(), b.4.root());
    rows.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)).then_with(|| by_value(a, b)));
    rows.iter_mut().enumerate().for_each(|(n, row)| row.2 = n);
    rows
}

/// The rows of a range, in its order.
fn in_range(rows: &[ViewRow], request: &ViewRequest) -> Vec<ViewRow> {
    let mut rows = rows.to_vec();
    if request.descending {
        // Rows of one document with one key stay in their order.
        rows.sort_by(|a, b| (&b.0, &b.1, a.2).cmp(&(&a.0, &a.1, b.2)));
    }
    let compare = |row: &ViewRow, key: &JsonText, id: Option<&String>| {
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

fn of_keys(rows: &[ViewRow], request: &ViewRequest) -> Vec<ViewRow> {
    let Some(keys) = &request.keys else { return in_range(rows, request) };
    let mut keys: Vec<JsonText> = (0..keys.len()).filter_map(|number| keys.get_text(number)).collect();
    if request.descending {
        keys.reverse();
    }
    let one = |key: &JsonText| {
        let (start, end) = (Some(key.clone()), Some(key.clone()));
        in_range(rows, &ViewRequest { start, end, ..request.clone() })
    };
    keys.iter().flat_map(one).collect()
}

fn limited<T>(rows: Vec<T>, request: &ViewRequest) -> Vec<T> {
    let limit = request.limit.map_or(usize::MAX, |limit| limit as usize);
    rows.into_iter().skip(request.skip as usize).take(limit).collect()
}

/// A group's key, and its rows.
type Group = (JsonText, Vec<ViewRow>);

/// The groups that rows make.
fn grouped(rows: Vec<ViewRow>, grouping: Grouping) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for row in rows {
        let key = row.3.clone();
        let key = match grouping {
            Grouping::None | Grouping::Level(0) => json("null"),
            Grouping::Level(level) if key.root().is_array() => {
                let some: Vec<&str> = key.root().elements().take(level as usize).map(|one| one.text()).collect();
                json(&format!("[{}]", some.join(",")))
            }
            _ => key,
        };
        match groups.last_mut() {
            Some((last, rows)) if order(last) == order(&key) => rows.push(row),
            _ => groups.push((key, vec![row])),
        }
    }
    groups
}

/// The reduction of a group of rows by the view of this name.
fn reduction(view: &str, rows: &[ViewRow]) -> String {
    let numbers = || rows.iter().filter_map(|row| row.4.root().as_i64());
    let different: BTreeSet<i64> = numbers().collect();
    let keys: HashSet<&str> = rows.iter().map(|row| row.3.as_str()).collect();
    let place = |row: &&ViewRow| (row.0.clone(), row.1.clone(), row.2);
    match view {
        "sum" => numbers().sum::<i64>().to_string(),
        "count" => rows.len().to_string(),
        "greatest" => numbers().max().unwrap().to_string(),
        "distinct" => keys.len().to_string(),
        "top" => format!("{:?}", different.iter().rev().take(3).collect::<Vec<_>>()).replace(' ', ""),
        "bottom" => format!("{:?}", different.iter().take(2).collect::<Vec<_>>()).replace(' ', ""),
        "first" => rows.iter().min_by_key(place).unwrap().4.to_string(),
        _ => rows.iter().max_by_key(place).unwrap().4.to_string(),
    }
}

/// Whether a reduction is right. `distinct` may be some percent off.
fn is_reduction(view: &str, found: &str, rows: &[ViewRow]) -> bool {
    let expected = reduction(view, rows);
    match (view, found.parse::<f64>(), expected.parse::<f64>()) {
        ("distinct", Ok(found), Ok(expected)) => (found - expected).abs() <= 1.0 + expected * 0.1,
        _ => found == expected,
    }
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
        9 => "\"same\"".to_owned(),
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

pub(super) async fn random_step<D: Database>(documents: &Documents<D>, random: &mut Random) {
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

fn random_request(random: &mut Random, rows: &[ViewRow]) -> ViewRequest {
    let some_key = |random: &mut Random| match rows.is_empty() || random.chance(0.3) {
        true => json(&random_key(random)),
        false => random.pick(rows).3.clone(),
    };
    let mut request = ViewRequest {
        descending: random.chance(0.4),
        skip: if random.chance(0.3) { random.below(12) } else { 0 },
        limit: random.chance(0.4).then(|| random.below(20)),
        at_once: random.chance(0.4).then(|| 1 + random.below(6) as usize),
        inclusive_end: random.chance(0.7),
        ..ViewRequest::default()
    };
    let id = |random: &mut Random| random.chance(0.4).then(|| format!("doc-{}", random.below(25)));
    if random.chance(0.2) {
        (request.start_id, request.end_id) = (id(random), id(random));
        request.keys = JsonArray::of((0..random.below(6)).map(|_| some_key(random)));
        return request;
    }
    request.start = random.chance(0.6).then(|| some_key(random));
    request.end = random.chance(0.6).then(|| some_key(random));
    request.start_id = id(random).filter(|_| request.start.is_some());
    request.end_id = id(random).filter(|_| request.end.is_some());
    request
}

/// A request that a client sent back.
fn reread(mut request: ViewRequest) -> ViewRequest {
    request.resume = request.resume.map(|resume| ViewResume::read(resume.write().root()).unwrap());
    request
}

/// Compares random queries with a scan.
pub(super) async fn assert_agrees<D: Database>(
    documents: &Documents<D>,
    group: &ViewGroup,
    random: &mut Random,
    what: &str,
) {
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
            assert!(request.at_once.is_none_or(|most| page.rows.len() <= most), "{what}");
            found.extend(page.rows.into_iter().map(|row| (row.id, row.key, row.value)));
            next = page.next.map(reread);
        }
        let wanted = of_keys(&all, &request);
        if let Some(first) = wanted.first() {
            let whole = in_range(&all, &ViewRequest { descending: request.descending, ..ViewRequest::default() });
            let place = whole.iter().position(|row| row == first).unwrap();
            assert_eq!(offset, Some((place as u64 + request.skip).min(all.len() as u64)), "{what}");
        }
        let expected = limited(wanted, &request);
        let expected: Vec<_> = expected.into_iter().map(|(_, id, _, key, value)| (id, key, value)).collect();
        assert!(found == expected, "{what}\nfound {found:?}\nexpected {expected:?}");

        let grouping = match random.below(5) {
            0 => Grouping::Exact,
            1 if request.keys.is_none() => Grouping::None,
            _ if request.keys.is_some() => Grouping::Exact,
            level => Grouping::Level(level - 1),
        };
        let others = [*random.pick(&["distinct", "top", "bottom"]), *random.pick(&["first", "last"])];
        for view in ["sum", "count", "greatest"].into_iter().chain(others) {
            let (mut found, mut next) = (Vec::new(), Some(request.clone()));
            while let Some(request) = next {
                let page = documents.view_reductions(group, view, &request, grouping).await.unwrap();
                // Rows whose keys are cut are read together, also into several groups of a level.
                if matches!(grouping, Grouping::Exact) {
                    let is_short = |row: &ReducedRow| order(&row.key).len() < MAX_VIEW_KEY;
                    let short = page.rows.iter().filter(|row| is_short(row)).count();
                    assert!(request.at_once.is_none_or(|most| short <= most), "{what}");
                }
                found.extend(page.rows.into_iter().map(|row| (order(&row.key), row.value.unwrap().to_string())));
                next = page.next.map(reread);
            }
            let groups = match &request.keys {
                None => grouped(of_keys(&numbers, &request), grouping),
                Some(keys) => {
                    let one = |key: JsonText| {
                        let keys = JsonArray::of([key]);
                        grouped(of_keys(&numbers, &ViewRequest { keys, ..request.clone() }), grouping)
                    };
                    (0..keys.len()).filter_map(|number| keys.get_text(number)).flat_map(one).collect()
                }
            };
            let groups = limited(groups, &request);
            let is_equal = |(found, group): (&(Vec<u8>, String), &Group)| {
                found.0 == order(&group.0) && is_reduction(view, &found.1, &group.1)
            };
            assert!(
                found.len() == groups.len() && found.iter().zip(&groups).all(is_equal),
                "{view} {grouping:?}, {what}\nfound {found:?}\nexpected {groups:?}"
            );
        }
    }
}

/// Writes documents `d0000` …, each with one row `[n % groups, n]: n`.
pub(super) async fn fill<D: Database>(documents: &Documents<D>, count: usize, groups: usize) {
    let body = |n: usize| format!("{{\"e\":[[[{},{n}],{n}]]}}", n % groups);
    let edits: Vec<Edit> = (0..count).map(|n| edit(&format!("d{n:04}"), &body(n))).collect();
    for result in documents.write(edits, WriteMode::Interactive).await.unwrap() {
        result.unwrap();
    }
}
