//! Compares indexes with a scan of all documents.

use std::collections::BTreeSet;

use kv_api::Database;
use mango::Index;
use model::{AllDocsEntry, AllDocsRequest, Documents, IndexInfo, IndexRequest};

use crate::stage::*;

/// Views of design documents: an index's name, its fields, and its partial filter.
pub(super) const VIEWS: [(&str, &str, &str); 7] = [
    ("a", r#"{"a":"asc"}"#, "{}"),
    ("a", r#"{"a":"desc","b":"desc"}"#, "{}"),
    ("ba", r#"{"b":"asc","a":"asc"}"#, "{}"),
    ("c.0", r#"{"c.0":"asc"}"#, "{}"),
    ("some", r#"{"a":"asc"}"#, r#"{"b":{"$gt":3}}"#),
    ("id", r#"{"_id":"asc","b":"asc"}"#, "{}"),
    ("f", r#"{"_attachments.f.length":"asc"}"#, "{}"),
];

pub(super) fn design(views: &[(&str, &str, &str)]) -> String {
    let views: Vec<String> = views
        .iter()
        .map(|(name, fields, filter)| {
            let map = format!(r#"{{"fields":{fields},"partial_filter_selector":{filter}}}"#);
            format!(r#""{name}":{{"map":{map},"reduce":"_count","options":{{"def":{{}}}}}}"#)
        })
        .collect();
    format!(r#"{{"language":"query","views":{{{}}}}}"#, views.join(","))
}

/// A complete index, in batches of this number of rows.
async fn whole<D: Database>(
    documents: &Documents<D>,
    number: u64,
    descending: bool,
    limit: usize,
) -> Vec<(Vec<u8>, String, Option<String>)> {
    let all = IndexRequest {
        number,
        end: vec![0xff],
        descending,
        include_docs: limit.is_multiple_of(2),
        ..IndexRequest::default()
    };
    let (mut found, mut next) = (Vec::new(), Some(all));
    while let Some(mut request) = next {
        request.limit = Some(limit);
        let page = documents.index_rows(&request).await.unwrap();
        assert!(page.rows.len() <= limit);
        // The limit applies to a batch, not to the whole index.
        next = page.rows.last().filter(|_| page.rows.len() == limit).map(|row| {
            let after = Some((row.key.clone(), row.id.clone()));
            IndexRequest { after, ..request.clone() }
        });
        for row in page.rows {
            if request.include_docs {
                let Some(AllDocsEntry::Live { doc: Some(doc), .. }) = &row.entry else { panic!("{row:?}") };
                assert_eq!(doc.id, row.id);
            }
            found.push((row.key, row.id, row.values.map(|values| values.to_string())));
        }
    }
    found
}

/// Compares the indexes with a scan of all documents.
pub(super) async fn assert_agrees<D: Database>(documents: &Documents<D>, what: &str) -> Vec<IndexInfo> {
    documents.build_indexes(|_| ()).await.unwrap();
    assert_eq!(documents.jobs().get(&documents.build_job()).await, Ok(None), "{what}");
    let all = AllDocsRequest { include_docs: true, ..AllDocsRequest::default() };
    let all = list(documents, all).await.into_iter().map(|row| match row.entry {
        AllDocsEntry::Live { doc: Some(doc), .. } => (row.id, doc.to_text()),
        other => panic!("{}: {other:?}, {what}", row.id),
    });
    let (designs, plain): (Vec<_>, Vec<_>) = all.partition(|(id, _)| id.starts_with("_design/"));
    let mut expected: BTreeSet<(String, String, String)> = BTreeSet::new();
    let named = |index: &Index| (index.design_id().to_owned(), index.name().to_owned(), index.definition().to_string());
    for (id, text) in &designs {
        expected.extend(Index::all_in(id, text.root(), false).iter().map(named));
    }
    let indexes = documents.indexes().await.unwrap();
    assert_eq!(indexes.iter().map(|info| named(&info.index)).collect::<BTreeSet<_>>(), expected, "{what}");
    assert_eq!(indexes.len(), expected.len(), "each once, {what}");
    for info in &indexes {
        assert!(info.active, "{what}");
        let mut rows: Vec<_> = plain
            .iter()
            .filter_map(|(id, text)| {
                let row = info.index.row(text.root())?;
                Some((row.key, id.clone(), row.values.map(|values| values.to_string())))
            })
            .collect();
        rows.sort();
        assert_eq!(whole(documents, info.number, false, 7).await, rows, "{:?}, {what}", info.index);
        rows.reverse();
        assert_eq!(whole(documents, info.number, true, 64).await, rows, "{:?} backwards, {what}", info.index);
    }
    assert_sound(documents).await;
    indexes
}
