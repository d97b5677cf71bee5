//! The tape's Mango indexes and its view group. They are added, changed and deleted between other steps, and built a
//! few documents at a time. They must agree with the oracle's documents.

use std::collections::BTreeSet;

use conformance::random::Random;
use kv_api::Database;
use mango::Index;
use model::{Documents, Edit, Emit, FunctionError, IndexRequest, JsonText, Reduce, RustView, ViewGroup, ViewRequest};

use super::compare::{Failure, ensure};
use super::oracle::Oracle;

/// The design document that has the indexes.
pub(super) const DESIGN: &str = "_design/q";

/// Definitions of indexes: name, fields, partial filter.
const INDEXES: [(&str, &str, &str); 5] = [
    ("n", r#"{"n":"asc"}"#, "{}"),
    ("n", r#"{"n":"asc"}"#, r#"{"n":{"$gt":1}}"#),
    ("deep", r#"{"a.b.c":"asc"}"#, "{}"),
    ("z", r#"{"z":"desc","a.e":"desc"}"#, "{}"),
    ("id", r#"{"_id":"asc"}"#, "{}"),
];

/// The body of the design document: some of the indexes.
pub(super) fn design(random: &mut Random) -> JsonText {
    let some = INDEXES.iter().filter(|_| random.chance(0.4));
    let views: Vec<String> = some
        .map(|(name, fields, filter)| {
            let map = format!(r#"{{"fields":{fields},"partial_filter_selector":{filter}}}"#);
            format!(r#""{name}":{{"map":{map},"reduce":"_count","options":{{"def":{{}}}}}}"#)
        })
        .collect();
    json(&format!(r#"{{"language":"query","views":{{{}}}}}"#, views.join(",")))
}

/// An edit of the design document: over a leaf if there is one.
pub(super) fn edit(random: &mut Random, oracle: &Oracle) -> Edit {
    let mut edit = Edit::new(DESIGN, design(random));
    edit.rev = oracle.tree(DESIGN).winner().filter(|winner| winner.live).map(|winner| winner.leaf().clone());
    edit.deleted = edit.rev.is_some() && random.chance(0.2);
    edit
}

/// Emits all members with their number.
fn map(document: &JsonText, emit: &mut Emit) -> Result<(), FunctionError> {
    let members = document.root().members().filter(|(name, _)| !name.starts_with('_'));
    for (at, (_, value)) in members.enumerate() {
        emit.row(document.slice_ref(value), json(&at.to_string()));
    }
    Ok(())
}

pub(super) fn group() -> ViewGroup {
    let views = vec![RustView::new("all", map), RustView::new("sum", map).reduced(Reduce::Sum)];
    ViewGroup::of_closures("tape", 1, views)
}

/// Compares the definitions of indexes, and the rows of those that are built, with the oracle's documents.
pub(super) async fn compare_indexes<D: Database>(documents: &Documents<D>, oracle: &Oracle) -> Result<(), Failure> {
    let named = |index: &Index| (index.design_id().to_owned(), index.name().to_owned(), index.definition().to_string());
    let mut expected = BTreeSet::new();
    for (id, body) in live(oracle).filter(|(id, _)| id.starts_with("_design/")) {
        expected.extend(Index::all_in(id, body.root(), false).iter().map(named));
    }
    let indexes = documents.indexes().await?;
    let found: BTreeSet<_> = indexes.iter().map(|info| named(&info.index)).collect();
    ensure("indexes", &found, &expected)?;
    for info in indexes.iter().filter(|info| info.active) {
        let mut expected: Vec<(Vec<u8>, String)> = live(oracle)
            .filter(|(id, _)| !id.starts_with("_design/"))
            .filter_map(|(id, body)| Some((info.index.row(with_id(id, body).root())?.key, id.to_owned())))
            .collect();
        expected.sort();
        let request = IndexRequest { number: info.number, end: vec![0xff], ..IndexRequest::default() };
        let (mut found, mut next) = (Vec::new(), Some(request));
        while let Some(request) = next {
            let page = documents.index_rows(&request).await?;
            found.extend(page.rows.into_iter().map(|row| (row.key, row.id)));
            next = page.next;
        }
        ensure(&format!("rows of {:?}", info.index.name()), &found, &expected)?;
    }
    Ok(())
}

/// Completes all builds, and compares.
pub(super) async fn finish<D: Database>(documents: &Documents<D>, oracle: &Oracle) -> Result<(), Failure> {
    documents.build_indexes(|_| ()).await?;
    ensure("all are built", &documents.indexes().await?.iter().all(|info| info.active), &true)?;
    compare_indexes(documents, oracle).await?;
    let group = group();
    ensure("views", &documents.check_views(&group).await?, &Vec::new())?;
    let mut expected: Vec<(Vec<u8>, String, String)> = Vec::new();
    for (id, body) in live(oracle).filter(|(id, _)| !id.starts_with("_design/")) {
        let mut emit = Emit::default();
        map(body, &mut emit).map_err(|error| Failure(error.to_string()))?;
        let rows = emit.into_rows().into_iter();
        expected.extend(rows.map(|row| (order(&row.key), id.to_owned(), row.value.to_string())));
    }
    expected.sort();
    let page = documents.view_rows(&group, "all", &ViewRequest::default()).await?;
    let found: Vec<_> = page.rows.into_iter().map(|row| (order(&row.key), row.id, row.value.to_string())).collect();
    ensure("rows of the view", &found, &expected)
}

fn order(key: &JsonText) -> Vec<u8> {
    let mut out = Vec::new();
    mango::append_key(&mut out, key.root());
    out
}

/// The live documents.
fn live(oracle: &Oracle) -> impl Iterator<Item = (&str, &JsonText)> {
    let winners = oracle.trees.iter().filter_map(|(id, tree)| Some((id.as_str(), tree.winner()?)));
    winners.filter(|(_, winner)| winner.live).map(|(id, winner)| (id, &winner.body))
}

fn with_id(id: &str, body: &JsonText) -> JsonText {
    let mut out = Vec::new();
    let mut json = model::JsonWriter::new(&mut out);
    json.begin_object().name("_id").str(id);
    for (name, value) in body.root().members() {
        json.name(&name).value(value);
    }
    json.end_object();
    JsonText::parse(&out).expect("JSON")
}

fn json(text: &str) -> JsonText {
    JsonText::parse(text.as_bytes()).expect("JSON")
}
