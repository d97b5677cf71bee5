//! Map and reduce functions in Rust, for programs that embed this crate.

use std::sync::Arc;

use json::JsonText;
use kv_api::BoxFuture;

use super::errors::FunctionError;
use super::group::{Emitted, Mapped, Reduce, Reduced, Reduction, View, ViewFunctions, ViewGroup, ViewOptions};
use crate::error::Result;

/// Collects what a map function emits for one document.
#[derive(Debug, Default)]
pub struct Emit(Vec<Emitted>);

impl Emit {
    /// Emits a row.
    pub fn row(&mut self, key: JsonText, value: JsonText) {
        self.0.push(Emitted { key, value });
    }

    /// The emitted rows, in order.
    pub fn into_rows(self) -> Vec<Emitted> {
        self.0
    }
}

type MapFunction = dyn Fn(&JsonText, &mut Emit) -> Result<(), FunctionError> + Send + Sync;
type ReduceFunction = dyn Fn(Reduction) -> Reduced + Send + Sync;

/// A view whose functions are closures.
pub struct RustView {
    name: String,
    map: Box<MapFunction>,
    reduce: Option<Reduce>,
    custom: Option<Box<ReduceFunction>>,
}

impl RustView {
    /// A view that emits what `map` emits. An error of `map` is noted for the document.
    pub fn new(
        name: impl Into<String>,
        map: impl Fn(&JsonText, &mut Emit) -> Result<(), FunctionError> + Send + Sync + 'static,
    ) -> Self {
        RustView { name: name.into(), map: Box::new(map), reduce: None, custom: None }
    }

    /// Reduces by a built-in function.
    #[must_use]
    pub fn reduced(mut self, reduce: Reduce) -> Self {
        self.reduce = Some(reduce);
        self
    }

    /// Reduces by a function.
    #[must_use]
    pub fn reduced_by(mut self, reduce: impl Fn(Reduction) -> Reduced + Send + Sync + 'static) -> Self {
        self.reduce = Some(Reduce::Custom);
        self.custom = Some(Box::new(reduce));
        self
    }
}

struct Closures(Arc<Vec<RustView>>);

impl ViewGroup {
    /// A group of closures. `version` identifies the functions: another version makes another group, and the rows of
    /// the earlier one are kept until [`Documents::remove_view_group`](crate::Documents::remove_view_group).
    pub fn of_closures(name: &str, version: u64, views: Vec<RustView>) -> Self {
        ViewGroup::of_closures_with(name, version, ViewOptions::default(), views)
    }

    /// The same for a partitioned database: each partition has its own rows, and a query names one.
    pub fn of_closures_in_partitions(name: &str, version: u64, views: Vec<RustView>) -> Self {
        let options = ViewOptions { is_partitioned: true, ..ViewOptions::default() };
        ViewGroup::of_closures_with(name, version, options, views)
    }

    fn of_closures_with(name: &str, version: u64, options: ViewOptions, views: Vec<RustView>) -> Self {
        let described =
            views.iter().map(|view| View { name: view.name.clone(), reduce: view.reduce, is_raw: false }).collect();
        let sources = format!("rust {version} {name}");
        ViewGroup::new(name, &sources, options, described, Arc::new(Closures(Arc::new(views))))
    }
}

impl ViewFunctions for Closures {
    fn map(&self, documents: Vec<JsonText>) -> BoxFuture<Result<Vec<Mapped>>> {
        let views = self.0.clone();
        let of_document = move |document: JsonText| {
            let mut mapped = Mapped::default();
            for view in views.iter() {
                let mut emit = Emit::default();
                let outcome = (view.map)(&document, &mut emit);
                mapped.rows.push(if outcome.is_ok() { emit.0 } else { Vec::new() });
                mapped.error = mapped.error.or(outcome.err());
            }
            mapped
        };
        Box::pin(async move { Ok(documents.into_iter().map(of_document).collect()) })
    }

    fn reduce(&self, view: usize, calls: Vec<Reduction>) -> BoxFuture<Result<Vec<Reduced>>> {
        let views = self.0.clone();
        Box::pin(async move {
            let custom = views.get(view).and_then(|view| view.custom.as_ref());
            let call = |call| match custom {
                Some(reduce) => reduce(call),
                None => Err(FunctionError::new("not_found", "The view has no reduce function.")),
            };
            Ok(calls.into_iter().map(call).collect())
        })
    }
}
