//! Searches of embedding programs: random ones agree with a scan, and see all earlier writes.

use std::collections::BTreeSet;

use conformance::chaos::{Chaos, Fault, Rates};
use conformance::random::Random;
use kv_api::{Database, Transaction};
use mango::Selector;
use model::{
    AllDocsEntry, AllDocsRequest, Document, Documents, Edit, Edits, Error, ErrorKind, GetOptions, JsonText, Layer,
    WriteMode,
};

use crate::stage::*;

/// A number from the environment, for long runs: `MODEL_QUERIES_DOCUMENTS=2000 MODEL_QUERIES_SEED=1 cargo test -p
/// couch-layer-engine-mem --test model random_searches`.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(format!("MODEL_QUERIES_{name}")).map_or(default, |value| value.parse().expect("a number"))
}

/// Fields, and their paths.
const FIELDS: [(&str, &[&str]); 5] =
    [("kind", &["kind"]), ("n", &["n"]), ("name", &["name"]), ("geo.x", &["geo", "x"]), ("_id", &["_id"])];

fn text(random: &mut Random) -> String {
    let long = "long ".repeat(300);
    match random.below(8) {
        0 => format!("\"{long}{}\"", random.below(3)),
        _ => format!("\"{}\"", random.pick(&["a", "A", "b", "ab", "é", "", "z"])),
    }
}

fn value(random: &mut Random) -> String {
    match random.below(10) {
        0 => random.pick(&["null", "true", "[]", "[1,\"a\"]", "{\"x\":1}"]).to_string(),
        1..4 => text(random),
        4 => format!("{}.5", random.below(9)),
        _ => random.below(12).to_string(),
    }
}

fn body(random: &mut Random) -> String {
    let mut members = Vec::new();
    for name in ["kind", "n", "name", "geo"] {
        if random.chance(0.15) {
            continue;
        }
        members.push(match name {
            "kind" => format!(r#""kind":"k{}""#, random.below(4)),
            "n" => format!(r#""n":{}"#, value(random)),
            "name" => format!(r#""name":{}"#, text(random)),
            _ => format!(r#""geo":{{"x":{},"y":1}}"#, value(random)),
        });
    }
    format!("{{{}}}", members.join(","))
}

fn condition(random: &mut Random, value: fn(&mut Random) -> String) -> String {
    let argument = match random.below(3) {
        0 => format!("\"k{}\"", random.below(4)),
        _ => value(random),
    };
    match random.below(12) {
        0 => r#"{"$exists":true}"#.to_owned(),
        1 => r#"{"$exists":false}"#.to_owned(),
        2 => format!(r#"{{"$in":[{argument},{}]}}"#, value(random)),
        3 => format!(r#"{{"$ne":{argument}}}"#),
        4 => r#"{"$gt":null}"#.to_owned(),
        5 => format!(r#"{{"$gte":{argument},"$lt":{}}}"#, value(random)),
        6 => r#"{"$type":"number"}"#.to_owned(),
        n => format!(r#"{{"{}":{argument}}}"#, ["$gt", "$gte", "$lt", "$lte", "$eq"][n as usize - 7]),
    }
}

fn selector(random: &mut Random) -> String {
    let one = |random: &mut Random| {
        let field = random.pick(&FIELDS).0;
        // Ids are compared by their bytes, where all other JSON sorts before texts, and read by an index in its order,
        // where some sorts behind. So a search by `_id` and anything but a text depends on the index, as in CouchDB.
        // The order of these texts and ids is the same in both.
        let condition = condition(random, if field == "_id" { text } else { value });
        format!(r#""{field}":{condition}"#)
    };
    let mut members: Vec<String> = (0..random.below(4)).map(|_| one(random)).collect();
    if random.chance(0.15) {
        members.push(format!(r#""$or":[{{{}}},{{{}}}]"#, one(random), one(random)));
    }
    if random.chance(0.1) {
        members.push(format!(r#""$nor":[{{{}}}]"#, one(random)));
    }
    format!("{{{}}}", members.join(","))
}

/// Names of some fields.
fn fields(random: &mut Random, most: u64) -> Vec<&'static str> {
    let mut names: Vec<&str> = (0..1 + random.below(most)).map(|_| random.pick(&FIELDS).0).collect();
    let mut known = BTreeSet::new();
    names.retain(|name| known.insert(*name));
    names
}

/// The keys of a document's values of these fields; `None` if it lacks one.
fn sort_key(document: &Document, fields: &[&str]) -> Option<Vec<u8>> {
    let text = document.to_text();
    let mut key = Vec::new();
    for field in fields {
        let path = FIELDS.iter().find(|(name, _)| name == field).expect("a field").1;
        let value = path.iter().try_fold(text.root(), |value, name| value.get(name))?;
        mango::append_key(&mut key, value);
    }
    Some(key)
}

/// Writes documents of random ids. Conflicts are allowed.
async fn write<D: Database>(documents: &Documents<D>, random: &mut Random, ids: u64, count: u64) {
    let mut edits: Vec<Edit> = Vec::new();
    for _ in 0..count {
        let id = format!("d{}", random.below(ids));
        if edits.iter().any(|edit| edit.id == id) {
            continue;
        }
        let text = body(random);
        let known = documents.get(&id, &GetOptions::default()).await.ok().filter(|_| random.chance(0.9));
        edits.push(match known {
            Some(doc) if random.chance(0.2) => edit(&id, "{}").over(doc.rev).deleting(),
            Some(doc) => edit(&id, &text).over(doc.rev),
            None => edit(&id, &text),
        });
    }
    for written in documents.write(edits, WriteMode::Interactive).await.expect("a write") {
        written.err().into_iter().for_each(|error| assert_eq!(error.status(), 409, "{error}"));
    }
    if random.chance(0.5) {
        let path = *random.pick(&["1-x", "1-y", "2-z x", "3-v z x"]);
        merge(documents, replicated(&format!("d{}", random.below(ids)), path, &body(random))).await;
    }
}

/// Counts of a run's actions, to notice a run that tests nothing.
#[derive(Debug, Default)]
struct Tally {
    sorted: u64,
    found: u64,
    refused: u64,
}

/// Compares a random search with a scan of all documents.
async fn search<D: Database>(documents: &Documents<D>, all: &[Document], random: &mut Random, tally: &mut Tally) {
    let (given, sort) = (selector(random), if random.chance(0.5) { fields(random, 2) } else { Vec::new() });
    let (descending, skip) = (random.chance(0.4), if random.chance(0.3) { random.below(9) } else { 0 });
    let limit = random.chance(0.4).then(|| random.below(30));
    let what = format!("{given} sorted by {sort:?}, descending {descending}, skip {skip}, limit {limit:?}");

    let mut find = documents.find(json(&given)).sort(sort.clone()).skip(skip);
    if descending {
        find = find.descending();
    }
    if let Some(limit) = limit {
        find = find.limit(limit);
    }
    let found = match find.all().await {
        Ok(found) => found,
        Err(error) => {
            // Only a sort order that no index has is refused.
            assert!(matches!(error.kind(), ErrorKind::BadRequest(_)) && !sort.is_empty(), "{what}: {error}");
            tally.refused += 1;
            return;
        }
    };
    let selector = Selector::parse(&json(&given)).expect("a selector");
    let matches = |document: &&Document| {
        selector.matches(document.to_text().root()).unwrap() && sort_key(document, &sort).is_some()
    };
    let expected: Vec<&Document> = all.iter().filter(matches).collect();
    let ids: BTreeSet<&str> = found.iter().map(|document| document.id.as_str()).collect();
    assert_eq!(ids.len(), found.len(), "each once: {what}");
    for document in &found {
        assert!(expected.contains(&document), "{:?} is not a match, or another revision: {what}", document.id);
    }
    let mut order: Vec<Vec<u8>> = expected.iter().filter_map(|document| sort_key(document, &sort)).collect();
    order.sort();
    if descending {
        order.reverse();
    }
    let limit = limit.map_or(usize::MAX, |limit| limit as usize);
    let order: Vec<_> = order.into_iter().skip(skip as usize).take(limit).collect();
    let found_order: Vec<_> = found.iter().filter_map(|document| sort_key(document, &sort)).collect();
    assert!(found_order == order, "found {}, a scan {}: {what}", found.len(), order.len());
    tally.found += found.len() as u64;
    tally.sorted += u64::from(!sort.is_empty());
}

async fn all_documents<D: Database>(documents: &Documents<D>) -> Vec<Document> {
    let request = AllDocsRequest { include_docs: true, ..AllDocsRequest::default() };
    let rows = list(documents, request).await.into_iter().filter(|row| !row.id.starts_with("_design/"));
    rows.map(|row| match row.entry {
        AllDocsEntry::Live { doc: Some(doc), .. } => *doc,
        other => panic!("{}: {other:?}", row.id),
    })
    .collect()
}

pub(crate) async fn random_searches_agree_with_a_scan(stage: Stage) {
    let (count, seed) = (setting("DOCUMENTS", 60), setting("SEED", 7));
    println!("MODEL_QUERIES_DOCUMENTS={count} MODEL_QUERIES_SEED={seed}");
    let observer = stage.documents().await;
    let mut random = Random::new(seed);
    let (mut tally, rounds) = (Tally::default(), 4 + count / 100);
    // A search has several reads per document, and a transaction fails if each attempt meets a fault.
    let reads = 0.2 / (count as f64).max(20.0);
    let rates = Rates { too_old: reads, future_version: reads, ..Rates::retryable(0.01) };
    for round in 0..rounds {
        // Each round is another server without knowledge of the earlier ones, on a store with faults.
        let chaos = Chaos::new(stage.engine(), seed.wrapping_add(round), rates);
        let documents = layer(chaos).await.database("db").await.expect("the database");
        for _ in 0..count.div_ceil(rounds * 10) {
            write(&documents, &mut random, count, 12).await;
        }
        let (name, fields) = (format!("i{}", random.below(4)), fields(&mut random, 3));
        if random.chance(0.2) && round > 1 {
            // An index goes.
            if let Ok(design) = observer.get(&format!("_design/{name}"), &GetOptions::default()).await {
                observer.put(edit(&design.id, "{}").over(design.rev).deleting()).await.expect("deleted");
            }
        } else {
            // One comes, or is replaced: it is complete when this returns.
            let design = observer.get(&format!("_design/{name}"), &GetOptions::default()).await;
            if let Ok(design) = design {
                observer.put(edit(&design.id, "{}").over(design.rev).deleting()).await.expect("deleted");
            }
            assert!(documents.index().fields(fields.clone()).name(name).create().await.expect("an index"));
        }
        write(&documents, &mut random, count, 12).await;
        let all = all_documents(&observer).await;
        for n in 0..30 {
            println!("round {round}, search {n}");
            search(&documents, &all, &mut random, &mut tally).await;
        }
        assert_sound(&observer).await;
    }
    println!("{tally:?}");
    assert!(tally.sorted > 0 && tally.found > 0, "{tally:?}");
}

async fn ids<D: Database>(documents: &Documents<D>, selector: &str) -> Vec<String> {
    let found = documents.find(json(selector)).sort(["kind", "n"]).all().await.expect("documents");
    found.into_iter().map(|document| document.id).collect()
}

/// Writes two songs and a row of the program's own, or fails.
async fn write_together<D: Database>(layer: &Layer<D>, round: u64, fails: bool) -> model::Result<()> {
    let songs = layer.database("db").await?;
    let body = |n: u64| -> JsonText { json(&format!(r#"{{"kind":"song","n":{n}}}"#)) };
    let done = layer.transact(async |edits: Edits<D>| {
        edits.put(&songs, Edit::new(format!("a{round}"), body(2 * round + 1)))?;
        edits.put(&songs, Edit::new(format!("b{round}"), body(2 * round)))?;
        edits.transaction().set(b"own", b"row");
        if fails { Err(Error::from(kv_api::Error::new(2_000))) } else { Ok(()) }
    });
    done.await.map(drop)
}

/// The edits of a caller's transaction write their index rows: all or none, and once.
pub(crate) async fn a_callers_transaction_maintains_indexes(stage: Stage) {
    let documents = stage.documents().await;
    assert!(documents.index().fields(["kind", "n"]).create().await.expect("an index"));
    assert!(!documents.index().fields(["kind", "n"]).create().await.expect("it is there"));
    write_together(&stage.layer().await, 0, false).await.expect("written");
    assert_eq!(ids(&documents, r#"{"kind":"song"}"#).await, ["b0", "a0"]);

    write_together(&stage.layer().await, 1, true).await.expect_err("it fails");
    assert_eq!(ids(&documents, r#"{"kind":"song"}"#).await, ["b0", "a0"], "nothing of it");
    for (round, fault) in [(2, Fault::UnknownCommitted), (3, Fault::UnknownNotCommitted)] {
        let faulty = layer(Chaos::scripted(stage.engine(), [Some(fault)])).await;
        write_together(&faulty, round, false).await.expect("written once");
    }
    assert_eq!(ids(&documents, r#"{"kind":"song"}"#).await, ["b0", "a0", "b2", "a2", "b3", "a3"]);
    assert_sound(&documents).await;
}
