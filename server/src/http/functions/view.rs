//! Map and reduce functions.

use std::sync::Arc;

use javascript::{Design, ErrorKind, Pool, Sandbox};
use kv_api::BoxFuture;
use model::{
    Emitted, Error, FunctionError, JsonText, JsonWriter, Mapped, Reduce, Reduced, Reduction, View, ViewFunctions,
};
use parking_lot::Mutex;

/// The functions of a design document's views.
pub(super) struct OfViews {
    pub(super) pool: Pool,
    pub(super) design: Design,
    pub(super) views: Arc<[View]>,
}

impl OfViews {
    /// Compiles the functions and calls them with each input; once more if `call` returns `None`.
    fn run<I: Send + Sync + 'static, O: Send + 'static>(
        &self,
        inputs: Vec<I>,
        call: impl Fn(&mut Sandbox, &[View], &I) -> Option<O> + Send + Sync + 'static,
    ) -> BoxFuture<model::Result<Vec<O>>> {
        let (pool, design) = (self.pool.clone(), self.design.clone());
        let (views, compiled) = (self.views.clone(), self.views.clone());
        let begin = move |sandbox: &mut Sandbox| {
            let reduces = |view: &View| view.reduce == Some(Reduce::Custom);
            sandbox.compile_views(compiled.iter().map(|view| (view.name.as_str(), reduces(view))))
        };
        let call = move |sandbox: &mut Sandbox, input: &I| Ok(call(sandbox, &views, input));
        Box::pin(async move { pool.run_in_turns(&design, inputs, begin, call).await.map_err(failed) })
    }
}

/// The error of a design document whose functions cannot be called.
fn failed(error: javascript::Error) -> Error {
    let name = if error.kind() == ErrorKind::Engine { "os_process_error" } else { "compilation_error" };
    model::ErrorKind::Functions(FunctionError::new(name, error.to_string()).to_string()).into()
}

impl ViewFunctions for OfViews {
    fn map(&self, documents: Vec<JsonText>) -> BoxFuture<model::Result<Vec<Mapped>>> {
        // The result so far for a document whose views are not all done.
        let part = Mutex::new(Mapped::default());
        self.run(documents, move |sandbox, views, document| {
            let mut mapped = part.lock();
            let names: Vec<&str> = views[mapped.rows.len()..].iter().map(|view| view.name.as_str()).collect();
            for rows in sandbox.map(&names, document.as_str()) {
                match rows {
                    Ok(rows) => mapped.rows.push(rows.into_iter().filter_map(emitted).collect()),
                    Err(error) => {
                        let failed = FunctionError::new("map_error", error.to_string());
                        if error.kind().is_limit() {
                            let view = mapped.rows.len();
                            mapped.left_out.insert(view, failed.clone());
                        }
                        mapped.rows.push(Vec::new());
                        mapped.error.get_or_insert(failed);
                    }
                }
            }
            (mapped.rows.len() == views.len()).then(|| std::mem::take(&mut *mapped))
        })
    }

    fn at_once(&self) -> usize {
        self.pool.threads()
    }

    fn reduce(&self, view: usize, calls: Vec<Reduction>) -> BoxFuture<model::Result<Vec<Reduced>>> {
        self.run(calls, move |sandbox, views, call| {
            let name = views.get(view).map_or("", |view| view.name.as_str());
            let result = match call {
                Reduction::Rows(rows) => {
                    let keys = list(rows, |json, row| {
                        json.begin_array().text(&row.key).str(&row.id).end_array();
                    });
                    let values = list(rows, |json, row| {
                        json.text(&row.value);
                    });
                    sandbox.reduce(name, &keys, &values)
                }
                Reduction::Values(values) => {
                    let values = list(values, |json, value| {
                        json.text(value);
                    });
                    sandbox.rereduce(name, &values)
                }
            };
            Some(match result {
                Ok(text) => Ok(parse(&text)),
                Err(error) if error.kind() == ErrorKind::Overflow => {
                    Err(FunctionError::new("reduce_overflow_error", error.reason()))
                }
                // As in CouchDB.
                Err(_) => Ok(parse("null")),
            })
        })
    }
}

fn emitted(row: javascript::EmittedRow) -> Option<Emitted> {
    let text = |text: String| JsonText::parse(text.as_bytes()).ok();
    Some(Emitted { key: text(row.key)?, value: text(row.value)? })
}

fn parse(text: &str) -> JsonText {
    JsonText::parse(text.as_bytes()).unwrap_or_else(|_| JsonText::empty_object())
}

fn list<I>(items: &[I], write: impl Fn(&mut JsonWriter<'_>, &I)) -> String {
    let mut out = Vec::new();
    let mut json = JsonWriter::new(&mut out);
    json.begin_array();
    items.iter().for_each(|item| write(&mut json, item));
    json.end_array();
    String::from_utf8(out).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use javascript::Limits;

    use super::*;

    fn of(design: String) -> Design {
        Design { database: [0; 16], text: design.into() }
    }

    fn of_views(map: &str, reduce: Option<&str>) -> OfViews {
        let design = serde_json::json!({"views": {"v": {"map": map, "reduce": reduce}}}).to_string();
        let view = View { name: "v".to_owned(), reduce: reduce.map(|_| Reduce::Custom), is_raw: false };
        let pool = Pool::new(1, Limits { memory: 8 << 20, ..Limits::default() });
        OfViews { pool, design: of(design), views: Arc::new([view]) }
    }

    #[tokio::test]
    async fn after_a_full_heap_the_rest_has_a_new_one() {
        let map = "doc => { while (doc.fill) (globalThis.kept = globalThis.kept || []).push('x' + kept.length);
            globalThis.calls = (globalThis.calls || 0) + 1; emit(calls) }";
        let documents = ["{}", "{}", r#"{"fill":true}"#, "{}"].map(|text| JsonText::parse(text.as_bytes()).unwrap());
        let mapped = of_views(map, None).map(documents.to_vec()).await.unwrap();
        let key = |one: &Mapped| one.rows[0].first().map(|row| row.key.to_string());
        let keys: Vec<_> = mapped.iter().map(|one| key(one).ok_or(one.error.is_some())).collect();
        assert_eq!(keys, [Ok("1".to_owned()), Ok("2".to_owned()), Err(true), Ok("1".to_owned())]);
    }

    #[tokio::test]
    async fn views_of_a_document_that_are_mapped_in_several_turns_stay_together() {
        let views: serde_json::Map<_, _> =
            [("a", "doc => emit(1, doc.n)"), ("b", "doc => { if (doc.n < 2) emit(2, doc.n); else fail }")]
                .map(|(name, map)| (name.to_owned(), serde_json::json!({ "map": map })))
                .into_iter()
                .collect();
        let pool = Pool::new(2, Limits { turn: std::time::Duration::ZERO, ..Limits::default() });
        let design = of(serde_json::json!({ "views": views }).to_string());
        let views = ["a", "b"].map(|name| View { name: name.to_owned(), reduce: None, is_raw: false }).into();
        let documents = (0..4).map(|n| JsonText::parse(format!("{{\"n\":{n}}}").as_bytes()).unwrap()).collect();
        let mapped = OfViews { pool, design, views }.map(documents).await.unwrap();
        let shown = |row: &Emitted| format!("{}:{}", row.key, row.value);
        let shown =
            |one: &Mapped| (one.rows.iter().flatten().map(shown).collect::<Vec<_>>().join(" "), one.error.is_some());
        let shown: Vec<_> = mapped.iter().map(shown).collect();
        let row = |rows: &str, failed| (rows.to_owned(), failed);
        assert_eq!(shown, [row("1:0 2:0", false), row("1:1 2:1", false), row("1:2", true), row("1:3", true)]);
        assert!(mapped.iter().all(|one| one.rows.len() == 2));
    }

    #[tokio::test]
    async fn all_functions_are_compiled_before_one_is_called() {
        let document = JsonText::empty_object();
        let error = of_views("doc => emit(1)", Some("nothing at all")).map(vec![document]).await.unwrap_err();
        assert!(error.reason().starts_with("compilation_error: "), "{error}");
    }
}
