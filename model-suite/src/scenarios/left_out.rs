//! Queries name the documents that a view leaves out.

use kv_api::BoxFuture;
use model::{
    CreateOptions, Documents, Emitted, FunctionError, Grouping, JsonText, LeftOut, Mapped, Purge, Reduce, Reduced,
    Reduction, View, ViewFunctions, ViewGroup, ViewOptions, ViewRequest,
};

use super::damage::{DOCS, put as put_rows, rows as rows_at};
use crate::stage::*;

/// Two views that exceed a limit or throw as the document says: `{"limit": [VIEW], "fails": [VIEW]}`.
struct Limited;

impl ViewFunctions for Limited {
    fn map(&self, documents: Vec<JsonText>) -> BoxFuture<model::Result<Vec<Mapped>>> {
        let of_document = |document: JsonText| {
            let mut mapped = Mapped::default();
            for view in 0..2 {
                let has = |name| {
                    let views = document.get(name);
                    views.into_iter().flat_map(|views| views.elements()).any(|one| one.as_u64() == Some(view as u64))
                };
                let row = Emitted { key: json(&view.to_string()), value: json("1") };
                mapped.rows.push(if has("limit") || has("fails") { Vec::new() } else { vec![row] });
                if has("limit") {
                    mapped.left_out.insert(view, FunctionError::new("map_error", format!("view {view} is too deep")));
                }
                if has("fails") {
                    mapped.error.get_or_insert_with(|| FunctionError::new("map_error", "it says so"));
                }
            }
            mapped
        };
        Box::pin(async move { Ok(documents.into_iter().map(of_document).collect()) })
    }

    fn reduce(&self, _: usize, _: Vec<Reduction>) -> BoxFuture<model::Result<Vec<Reduced>>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

fn limited(is_partitioned: bool) -> ViewGroup {
    let view = |name: &str| View { name: name.to_owned(), reduce: Some(Reduce::Count), is_raw: false };
    let options = ViewOptions { is_partitioned, ..ViewOptions::default() };
    ViewGroup::new("limited", "limited", options, vec![view("a"), view("b")], std::sync::Arc::new(Limited))
}

/// The documents that both kinds of queries name, and whether there are more.
async fn named<D: kv_api::Database>(
    documents: &Documents<D>,
    group: &ViewGroup,
    view: &str,
    partition: Option<&str>,
) -> (Vec<String>, bool) {
    let request = ViewRequest { partition: partition.map(str::to_owned), ..ViewRequest::default() };
    let LeftOut { documents: named, more } = documents.query_view(group, view, &request).await.unwrap().left_out;
    let reduced = documents.reduce_view(group, view, &request, Grouping::None).await.unwrap().left_out;
    assert_eq!((&reduced.documents, reduced.more), (&named, more));
    assert_eq!(documents.check_views(group).await.unwrap(), [""; 0]);
    let at = group.view(view).unwrap();
    for one in &named {
        let reason = &one.error.reason;
        assert!(*reason == format!("view {at} is too deep") || reason.contains("damaged"), "{}: {reason}", one.id);
    }
    (named.into_iter().map(|one| one.id).collect(), more)
}

fn some(ids: &[&str]) -> (Vec<String>, bool) {
    (ids.iter().map(|id| (*id).to_owned()).collect(), false)
}

pub(crate) async fn queries_name_the_documents_that_a_view_leaves_out(stage: Stage) {
    let (documents, group) = (stage.documents().await, limited(false));
    documents.put(edit("good", "{}")).await.unwrap();
    let fails = documents.put(edit("fails", r#"{"fails":[0,1]}"#)).await.unwrap();
    assert_eq!(
        named(&documents, &group, "a", None).await,
        some(&[]),
        "a function that throws has said that all is well"
    );
    let both = documents.put(edit("both", r#"{"limit":[0,1]}"#)).await.unwrap();
    let one = documents.put(edit("one", r#"{"limit":[1],"fails":[0]}"#)).await.unwrap();
    let progress = documents.update_views_batch(&group, usize::MAX, None).await.unwrap();
    assert_eq!(progress.left_out.into_iter().collect::<Vec<_>>(), [(0, 1), (1, 2)]);
    assert_eq!(named(&documents, &group, "a", None).await, some(&["both"]));
    assert_eq!(named(&documents, &group, "b", None).await, some(&["both", "one"]));

    // They come and go with their documents.
    documents.put(edit("one", "{}").over(one)).await.unwrap();
    documents.put(edit("fails", r#"{"limit":[0]}"#).over(fails)).await.unwrap();
    assert_eq!(named(&documents, &group, "a", None).await, some(&["both", "fails"]));
    assert_eq!(named(&documents, &group, "b", None).await, some(&["both"]));
    documents.purge(&[Purge::new("both", vec![both])]).await.unwrap().remove(0).unwrap();
    let rev = documents.get("fails", &model::GetOptions::default()).await.unwrap().rev;
    documents.put(edit("fails", "{}").over(rev).deleting()).await.unwrap();
    assert_eq!(named(&documents, &group, "a", None).await, some(&[]));
    assert_eq!(named(&documents, &group, "b", None).await, some(&[]));

    let ids: Vec<String> = (0..11).map(|n| format!("n{n:02}")).collect();
    for (at, id) in ids.iter().enumerate() {
        let views = if at == 0 { "[1]" } else { "[0,1]" };
        documents.put(edit(id, &format!("{{\"limit\":{views}}}"))).await.unwrap();
    }
    assert_eq!(named(&documents, &group, "a", None).await, (ids[1..].to_vec(), false));
    assert_eq!(named(&documents, &group, "b", None).await, (ids[..10].to_vec(), true));
    assert_sound(&documents).await;
    documents.remove_view_group(group.signature()).await.unwrap();
    assert_eq!(named(&documents, &group, "a", None).await, (ids[1..].to_vec(), false), "built anew");
}

pub(crate) async fn a_query_of_a_partition_names_the_documents_there(stage: Stage) {
    let options = CreateOptions { partitioned: true, ..CreateOptions::default() };
    let documents = stage.layer().await.create_database("db", options).await.unwrap();
    let group = limited(true);
    for id in ["p:1", "p:2", "pa:1", "o:1"] {
        documents.put(edit(id, r#"{"limit":[0]}"#)).await.unwrap();
    }
    assert_eq!(named(&documents, &group, "a", Some("p")).await, some(&["p:1", "p:2"]));
    assert_eq!(named(&documents, &group, "a", Some("q")).await, some(&[]));
    assert_eq!(named(&documents, &group, "b", Some("p")).await, some(&[]));
}

pub(crate) async fn a_document_that_cannot_be_read_is_left_out_of_all_views(stage: Stage) {
    let (documents, group) = (stage.documents().await, limited(false));
    documents.put(edit("good", "{}")).await.unwrap();
    documents.put(edit("torn", r#"{"a":1}"#)).await.unwrap();
    let body = rows_at(&stage.engine(), DOCS, "torn").await.remove(0);
    put_rows(&stage.engine(), &[(&body.key, Some(&body.value[..1]))]).await;
    documents.update_views(&group).await.unwrap();
    for view in ["a", "b"] {
        let page = documents.query_view(&group, view, &ViewRequest::default()).await.unwrap();
        let left_out: Vec<_> = page.left_out.documents.iter().map(|one| one.id.as_str()).collect();
        assert_eq!((page.total_rows, left_out), (1, vec!["torn"]), "{view}");
    }
}

/// Each row that leaves a document out is named by its id row, and counted.
pub(crate) async fn damage_to_rows_of_left_out_documents_is_found(stage: Stage) {
    let (documents, group) = (stage.documents().await, limited(false));
    documents.put(edit("deep", r#"{"limit":[0,1]}"#)).await.unwrap();
    documents.update_views(&group).await.unwrap();
    let engine = stage.engine();
    let all = rows_at(&engine, 16, "").await;
    let rows: Vec<_> = all.iter().filter(|row| row.key.windows(4).any(|some| some == b"deep")).collect();
    let group_row = &all[2];
    // The id row, the error, and a row of each view.
    assert_eq!(rows.len(), 4);
    let mut miscounted = group_row.value.to_vec();
    assert_eq!(miscounted.pop(), Some(2));
    miscounted.push(3);
    for row in rows.iter().map(|row| (&row.key[..], None)).chain([(&group_row.key[..], Some(&miscounted[..]))]) {
        put_rows(&engine, &[row]).await;
        assert!(!documents.check(|_| ()).await.unwrap().is_sound(), "{}", row.0.escape_ascii());
        for row in rows.iter().copied().chain([group_row]) {
            put_rows(&engine, &[(&row.key, Some(&row.value))]).await;
        }
        assert_sound(&documents).await;
    }
}
