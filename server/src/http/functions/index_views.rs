//! Mango's indexes as views. CouchDB keeps the rows of an index as a view, so `_view` and `_info` work for it:
//! exporters and consoles ask for the `_info` of every design document.
//!
//! Here an index has rows of another form, which answer queries. Its rows as a view are built when somebody asks for
//! the view, as for any view.

use std::future::ready;
use std::sync::Arc;

use kv_api::BoxFuture;
use mango::Index;
use model::{Emitted, JsonText, Mapped, Reduced, Reduction, ViewFunctions};

/// The indexes of a design document.
pub(super) struct OfIndexes(pub(super) Arc<[Index]>);

impl ViewFunctions for OfIndexes {
    fn map(&self, documents: Vec<JsonText>) -> BoxFuture<model::Result<Vec<Mapped>>> {
        let null = JsonText::null();
        let rows = |document: &JsonText, index: &Index| -> Vec<Emitted> {
            let key = index.view_key(document.root());
            key.map(|key| Emitted { key, value: null.clone() }).into_iter().collect()
        };
        let mapped = |document: &JsonText| {
            let rows = self.0.iter().map(|index| rows(document, index)).collect();
            Mapped { rows, ..Mapped::default() }
        };
        Box::pin(ready(Ok(documents.iter().map(mapped).collect())))
    }

    /// Not called: an index has no reduce function of its own.
    fn reduce(&self, _: usize, calls: Vec<Reduction>) -> BoxFuture<model::Result<Vec<Reduced>>> {
        Box::pin(ready(Ok(calls.iter().map(|_| Ok(JsonText::null())).collect())))
    }
}
