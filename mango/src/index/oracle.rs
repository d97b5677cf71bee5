//! Random documents, indexes and queries: an index must give the same answer as a search through all documents, sorted
//! as in CouchDB. Ids that bytes and collation order differently may be missing, as in CouchDB. Planted faults prove
//! that the comparison would find them.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use json::{JsonText, JsonWriter};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::tests::text;
use super::{Choice, Index, IndexRow, MAX_KEY, NewIndex, Purpose, QueryPlan, Scan};
use crate::collate;
use crate::path::{self, AtPath, look_up};
use crate::projection::{put, write_members};
use crate::query::Query;
use crate::selector::{FieldRange, Kind};

/// A fault that is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The range excludes its lowest key.
    BeginsLate,
    /// The range excludes its highest key.
    EndsEarly,
    /// Bounds are not truncated like keys.
    UncutBounds,
    /// Rows with the same truncated key stay in the order of their ids.
    CutKeysUnsorted,
    /// Documents that lack a field have a row, as if the field were `null`.
    MissingIsNull,
    /// All documents have rows in a partial index.
    NoFilter,
    /// Rows are not checked against the selector.
    NoSelector,
    /// The direction is ignored.
    Forwards,
    /// A row is used for fields whose values it does not have.
    CoversEverything,
}

const FAULTS: [Fault; 9] = [
    Fault::BeginsLate,
    Fault::EndsEarly,
    Fault::UncutBounds,
    Fault::CutKeysUnsorted,
    Fault::MissingIsNull,
    Fault::NoFilter,
    Fault::NoSelector,
    Fault::Forwards,
    Fault::CoversEverything,
];

/// Counts of what was tested, to notice a run that tests nothing.
#[derive(Debug, Default)]
struct Tally {
    by_index: usize,
    sorted: usize,
    covered: usize,
    cut: usize,
    found: usize,
    rows_read: usize,
}

const FIELDS: &[&str] = &["a", "b", "c", "_id", "a.b", r"a\\.b", "c.0", "b.a"];

fn pick<'v>(random: &mut StdRng, of: &[&'v str]) -> &'v str {
    of[random.random_range(0..of.len())]
}

fn string(random: &mut StdRng) -> String {
    let some =
        ["", "a", "A", "b", "ab", "é", "e\u{301}", "l", "l·", "เ", "เก", "ก", "\\u0000", "日本", "\u{ffff}", "aa"];
    match random.random_range(0..8) {
        // Their sort keys are longer than a row's key, and begin the same.
        0 => format!("{}{}", "x".repeat(1_200), pick(random, &some)),
        1 => format!("{}{}", "x".repeat(random.random_range(960..1_000)), pick(random, &some)),
        2 => format!("{}{}", pick(random, &some), pick(random, &some)),
        _ => pick(random, &some).to_owned(),
    }
}

fn value(random: &mut StdRng, depth: usize) -> String {
    match random.random_range(0..if depth == 0 { 8 } else { 11 }) {
        0 => pick(random, &["null", "true", "false"]).to_owned(),
        1..4 => pick(random, &["0", "1", "1.0", "2", "-3", "2.5", "12345678901234567890", "-1e300"]).to_owned(),
        4..8 => format!("\"{}\"", string(random)),
        8 => format!("[{},{}]", value(random, depth - 1), value(random, depth - 1)),
        _ => format!(r#"{{"{}":{}}}"#, pick(random, &["a", "b"]), value(random, depth - 1)),
    }
}

fn document(random: &mut StdRng, id: usize) -> (String, JsonText) {
    let id = format!("{}{id}", pick(random, &["", "a", "A", "é"]));
    let mut json = format!(r#"{{"_id":"{id}","_rev":"1-x""#);
    for field in ["a", "b", "c", "a.b"] {
        if random.random_range(0..5) > 0 {
            json.push_str(&format!(r#","{field}":{}"#, value(random, 2)));
        }
    }
    json.push('}');
    (id, text(&json))
}

fn condition(random: &mut StdRng) -> String {
    let operator = pick(random, &["$eq", "$eq", "$gt", "$gte", "$lt", "$lte", "$ne", "$exists", "$beginsWith", "$in"]);
    let argument = match operator {
        "$exists" => pick(random, &["true", "true", "false"]).to_owned(),
        "$beginsWith" => format!("\"{}\"", string(random)),
        "$in" => format!("[{},{}]", value(random, 1), value(random, 1)),
        _ => value(random, 1),
    };
    match random.random_range(0..12) {
        0 => format!(r#"{{"$not":{{"{operator}":{argument}}}}}"#),
        1 => format!(r#"{{"{operator}":{argument},"$gte":{}}}"#, value(random, 1)),
        2 => format!(r#"{{"$gte":{},"$lt":{}}}"#, value(random, 1), value(random, 1)),
        3 => r#"{"$gt":null}"#.to_owned(),
        _ => format!(r#"{{"{operator}":{argument}}}"#),
    }
}

fn selector(random: &mut StdRng) -> String {
    let mut members = Vec::new();
    for _ in 0..random.random_range(0..4) {
        let field = pick(random, FIELDS);
        members.push(match random.random_range(0..8) {
            0 => format!(r#""$or":[{{"{field}":{}}},{{"{field}":{}}}]"#, condition(random), condition(random)),
            1 => format!(r#""$and":[{{"{field}":{}}}]"#, condition(random)),
            _ => format!(r#""{field}":{}"#, condition(random)),
        });
    }
    format!("{{{}}}", members.join(","))
}

fn list(random: &mut StdRng, most: usize) -> String {
    let fields: Vec<String> =
        (0..random.random_range(1..=most)).map(|_| format!("\"{}\"", pick(random, FIELDS))).collect();
    format!("[{}]", fields.join(","))
}

/// An index, made by way of the request's body and the design document.
fn index(random: &mut StdRng, at: usize) -> Arc<Index> {
    let filter = match random.random_range(0..4) {
        0 => format!(r#","partial_filter_selector":{}"#, selector(random)),
        _ => String::new(),
    };
    let body = text(&format!(r#"{{"index":{{"fields":{}{filter}}}}}"#, list(random, 3)));
    let new = NewIndex::parse(&body).unwrap();
    let design = new.add_to("_design/d", &format!("i{at}"), None).unwrap().unwrap();
    Arc::new(Index::all_in("_design/d", design.root(), false).pop().unwrap())
}

type IndexRows = BTreeMap<(Vec<u8>, String), IndexRow>;

fn rows(index: &Index, documents: &BTreeMap<String, JsonText>, fault: Fault) -> IndexRows {
    let mut rows = IndexRows::new();
    for (id, document) in documents {
        let row = match fault {
            Fault::NoFilter => Index { filter: None, ..index.clone() }.row(document.root()),
            Fault::MissingIsNull => index.row(document.root()).or_else(|| {
                let mut key = Vec::new();
                index.columns.iter().for_each(|_| crate::append_key(&mut key, text("null").root()));
                Some(IndexRow { key, values: None })
            }),
            _ => index.row(document.root()),
        };
        if let Some(row) = row {
            rows.insert((row.key.clone(), id.clone()), row);
        }
    }
    rows
}

/// Reads the rows of a plan as the server does.
fn by_index(
    plan: &QueryPlan,
    scan: &Scan,
    query: &Query,
    rows: &IndexRows,
    documents: &BTreeMap<String, JsonText>,
    fault: Fault,
    tally: &mut Tally,
) -> Vec<(String, String)> {
    let mut range = scan.range.clone();
    match fault {
        Fault::BeginsLate if !range.start.is_empty() => range.start.push(0xff),
        Fault::EndsEarly if range.end.len() > 1 && range.end.last() == Some(&0xff) => drop(range.end.pop()),
        Fault::UncutBounds if range.start.len() == MAX_KEY => range.start.push(0),
        _ => {}
    }
    let within = rows.iter().filter(|((key, _), _)| *key >= range.start && *key < range.end);
    let mut read: Vec<_> = within.collect();
    tally.rows_read += read.len();
    if !query.sort.is_empty() && fault != Fault::CutKeysUnsorted {
        // Rows with the same truncated key are sorted by their whole keys.
        read.sort_by_cached_key(|((key, id), _)| {
            let is_cut = key.len() == MAX_KEY;
            let whole = is_cut.then(|| scan.index.whole_key(documents[id].root()));
            tally.cut += usize::from(is_cut);
            (key.clone(), whole, id.clone())
        });
    }
    if plan.is_descending && fault != Fault::Forwards {
        read.reverse();
    }
    let mut found = Vec::new();
    for ((_, id), row) in read {
        let is_covered = scan.is_covering || fault == Fault::CoversEverything;
        let document = match row.values.as_ref().filter(|_| is_covered) {
            Some(values) => {
                tally.covered += 1;
                scan.index.document(id, values).unwrap()
            }
            None => documents[id].clone(),
        };
        if fault == Fault::NoSelector || query.selector.matches(document.root()).unwrap() {
            let mut out = Vec::new();
            query.fields.write(document.root(), &mut out);
            found.push((id.clone(), String::from_utf8(out).unwrap()));
        }
    }
    found
}

/// Checks every document, and sorts by comparing values.
fn by_scan(
    plan: &QueryPlan,
    scan: &Scan,
    query: &Query,
    documents: &BTreeMap<String, JsonText>,
) -> Vec<(String, String)> {
    let path_of = |field: &str| {
        let mut path = Vec::new();
        path::parse(field, &mut path).unwrap();
        path
    };
    let sort: Vec<Vec<String>> = query.sort.iter().map(|(field, _)| path_of(field)).collect();
    let has = |document: &JsonText, path: &[String]| matches!(look_up(document.root(), path), AtPath::Value(_));
    let compare = |paths: &[Vec<String>], a: &JsonText, b: &JsonText| {
        paths.iter().fold(Ordering::Equal, |order, path| {
            order.then_with(|| match (look_up(a.root(), path), look_up(b.root(), path)) {
                (AtPath::Value(a), AtPath::Value(b)) => collate::compare(a, b),
                _ => Ordering::Equal,
            })
        })
    };
    let matching = documents.iter().filter(|(_, document)| {
        query.selector.matches(document.root()).unwrap()
            && sort.iter().all(|path| has(document, path))
            && scan.index.filter.as_ref().is_none_or(|filter| filter.matches(document.root()).unwrap())
    });
    let mut found: Vec<_> = matching.collect();
    // The requested order, then the other fields of the index, then ids.
    found.sort_by(|(a_id, a), (b_id, b)| {
        compare(&sort, a, b).then_with(|| compare(&scan.index.columns, a, b)).then_with(|| a_id.cmp(b_id))
    });
    if plan.is_descending {
        found.reverse();
    }
    let write = |(id, document): (&String, &JsonText)| {
        let mut out = Vec::new();
        query.fields.write(document.root(), &mut out);
        (id.clone(), String::from_utf8(out).unwrap())
    };
    found.into_iter().map(write).collect()
}

/// Whether an id is outside of the index range that is read for this query.
fn is_collated_apart(id: &str, query: &Query) -> bool {
    let mut key = Vec::new();
    collate::append_key(&mut key, text(&format!("\"{id}\"")).root());
    let ranges = query.selector.field_ranges();
    let range = ranges.get(&["_id".to_owned()][..]);
    let is_below = range.and_then(|range| range.low.as_ref()).is_some_and(|low| key < low.key);
    let is_above = range.and_then(|range| range.high.as_ref()).is_some_and(|high| match high.kind {
        Kind::Prefix => key >= high.key,
        Kind::Inclusive | Kind::Exclusive => key > high.key,
    });
    is_below || is_above || range.is_some_and(FieldRange::is_empty)
}

/// Runs queries over one set of documents and indexes.
fn run(seed: u64, fault: Fault, queries: usize, tally: &mut Tally) -> Result<(), String> {
    let random = &mut StdRng::seed_from_u64(seed);
    let documents: BTreeMap<String, JsonText> = (0..60).map(|id| document(random, id)).collect();
    let indexes: Vec<Arc<Index>> = (0..6).map(|at| index(random, at)).collect();
    let all_rows: Vec<IndexRows> = indexes.iter().map(|index| rows(index, &documents, fault)).collect();
    for _ in 0..queries {
        let mut members = vec![format!(r#""selector":{}"#, selector(random))];
        if random.random() {
            let direction = pick(random, &["asc", "desc"]);
            let fields = list(random, 2).replace("\",", &format!("\":\"{direction}\"}},{{"));
            let fields = fields.replace("\"]", &format!("\":\"{direction}\"}}]")).replace('[', "[{");
            members.push(format!(r#""sort":{fields}"#));
        }
        if random.random() {
            members.push(format!(r#""fields":{}"#, list(random, 3)));
        }
        if random.random() {
            members.push(format!(r#""use_index":["d","i{}"]"#, random.random_range(0..indexes.len())));
        }
        let body = format!("{{{}}}", members.join(","));
        let query = Query::parse(&text(&body)).unwrap();
        let Ok(plan) = QueryPlan::of(&query, &indexes, Purpose::Find) else { continue };
        let Choice::Scan(scan) = &plan.choice else { continue };
        let at = indexes.iter().position(|index| Arc::ptr_eq(index, &scan.index)).unwrap();
        let mut found = by_index(&plan, scan, &query, &all_rows[at], &documents, fault, tally);
        let mut expected = by_scan(&plan, scan, &query, &documents);
        expected.retain(|one| found.contains(one) || !is_collated_apart(&one.0, &query));
        if query.sort.is_empty() {
            // No order was requested.
            found.sort();
            expected.sort();
        }
        tally.by_index += 1;
        tally.sorted += usize::from(!query.sort.is_empty() && found.len() > 1);
        tally.found += found.len();
        if found != expected || (scan.is_empty && !expected.is_empty() && !query.selector.is_empty_combination()) {
            let definition = scan.index.definition();
            return Err(format!(
                "SEED={seed} {fault:?}: {body} over {definition}\nindex: {found:?}\nscan: {expected:?}"
            ));
        }
    }
    Ok(())
}

fn seed() -> u64 {
    let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let seed = std::env::var("SEED").ok().map_or(since_1970.as_nanos() as u64, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    seed
}

#[test]
fn an_index_answers_what_a_search_through_all_documents_answers() {
    let seed = seed();
    let mut tally = Tally::default();
    for world in 0..20 {
        run(seed.wrapping_add(world), Fault::None, 100, &mut tally).unwrap_or_else(|problem| panic!("{problem}"));
    }
    println!("{tally:?}");
}

/// From a fixed seed: how often a random world has each case is a matter of luck.
#[test]
fn the_worlds_have_every_case() {
    let mut tally = Tally::default();
    for world in 1..21 {
        run(world, Fault::None, 100, &mut tally).unwrap_or_else(|problem| panic!("{problem}"));
    }
    let Tally { by_index, sorted, covered, cut, found, .. } = tally;
    assert!(by_index > 100 && sorted > 5 && covered > 20 && cut > 20 && found > 500, "{tally:?}");
}

#[test]
fn planted_faults_are_found() {
    // A fixed seed: finding the faults must not depend on luck.
    let seed: u64 = 1;
    for fault in FAULTS {
        let found = (0..400).any(|world| run(seed.wrapping_add(world), fault, 100, &mut Tally::default()).is_err());
        assert!(found, "SEED={seed}: {fault:?} was not found");
    }
}

#[test]
fn the_parts_of_a_document_make_its_rows() {
    let random = &mut StdRng::seed_from_u64(3);
    let mut with_rows = 0;
    for at in 0..3_000 {
        let indexes: Vec<Arc<Index>> = (0..2).map(|at| index(random, at)).collect();
        let (id, document) = document(random, at);
        let Some(parts) = Index::parts(indexes.iter().map(|index| &**index)) else { continue };
        let id = text(&format!("\"{id}\""));
        let rev = text("\"1-x\"");
        let special = [("_id", &id), ("_rev", &rev)].map(|(name, value)| ([name.to_owned()], value));
        let mut members = Vec::new();
        for (path, value) in &special {
            put(&mut members, path, value.root());
        }
        for path in &parts {
            if let AtPath::Value(value) = look_up(document.root(), path) {
                put(&mut members, path, value);
            }
        }
        let mut out = Vec::new();
        write_members(&members, &mut JsonWriter::new(&mut out));
        let pruned = JsonText::parse(&out).unwrap();
        for index in &indexes {
            let row = index.row(document.root());
            assert_eq!(index.row(pruned.root()), row, "{} of {} in {}", pruned, document, index.definition());
            with_rows += usize::from(row.is_some());
        }
    }
    assert!(with_rows > 500, "{with_rows}");
}
