//! Results of reductions, as JSON text.

use json::{JsonText, JsonWriter};

use super::super::errors::FunctionError;

/// The reduction of `_count`.
pub(crate) fn count(rows: u64) -> JsonText {
    text_of(|json| {
        json.u64(rows);
    })
}

/// The error of a result that a node cannot hold.
pub(crate) fn overflow() -> FunctionError {
    FunctionError::new("reduce_overflow_error", "Reduce output must shrink more rapidly.")
}

/// The elements of a list.
pub(super) fn elements(list: &JsonText) -> impl Iterator<Item = JsonText> + '_ {
    list.root().elements().map(|element| list.slice_ref(element))
}

/// JSON text that is written here.
pub(super) fn text_of(write: impl FnOnce(&mut JsonWriter<'_>)) -> JsonText {
    let mut out = Vec::new();
    write(&mut JsonWriter::new(&mut out));
    // The writer's output is normalised.
    JsonText::from_normalised(out).unwrap_or_else(JsonText::empty_object)
}
