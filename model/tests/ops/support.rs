//! What scenarios share.

use kv_api::Database;
use model::{CreateOptions, Document, Documents, Edit, GetOptions, JsonText, Layer, LayerOptions, RevId};

pub(crate) fn json(text: &str) -> JsonText {
    JsonText::parse(text.as_bytes()).expect("JSON")
}

pub(crate) fn rev(text: &str) -> RevId {
    text.parse().expect("a revision")
}

pub(crate) fn edit(id: &str, body: &str) -> Edit {
    Edit::new(id, json(body))
}

pub(crate) async fn layer<D: Database>(engine: D) -> Layer<D> {
    Layer::open(engine, LayerOptions::default()).await.expect("a layer")
}

pub(crate) async fn database<D: Database>(engine: D) -> Documents<D> {
    layer(engine).await.create_database("db", CreateOptions::default()).await.expect("a database")
}

pub(crate) async fn get<D: Database>(documents: &Documents<D>, id: &str) -> Document {
    documents.get(id, &GetOptions::default()).await.expect("a document")
}

/// Proves the database's rows.
pub(crate) async fn assert_sound<D: Database>(documents: &Documents<D>) {
    let report = documents.check(|_| {}).await.expect("a check");
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    assert!(report.is_sound(), "{problems:#?}");
    assert!(!report.changed_meanwhile);
}
