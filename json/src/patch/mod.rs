//! Patches of values: JSON Merge Patch (RFC 7396) and JSON Patch (RFC 6902).
//!
//! ```text
//!  text ─► opened along the paths of the patch; the rest stays text ─► text
//!
//!  {"a": {"b": 1, "c": […]}, "d": …}   with  /a/b   ─►  { a: { b: "1", c: "[…]" }, d: "…" }
//! ```
//!
//! Members keep their places, and new ones are appended. Copied and moved values become text again, so values are never
//! opened deeper than the longest path, whose length is limited. The work of one patch is limited too, since each
//! operation may touch the whole value.

mod limits;
mod merge;
mod node;
mod operations;

use crate::JsonText;
pub use limits::PatchError;
use limits::{Result, Work};
use node::Node;
use operations::Operation;

/// A parsed patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Merge(JsonText),
    Operations(Vec<Operation>),
}

impl Patch {
    /// A JSON Merge Patch: members replace those of the same name, `null` removes them.
    pub fn merge(patch: JsonText) -> Patch {
        Patch(Kind::Merge(patch))
    }

    /// A JSON Patch: an array of operations, applied in order.
    ///
    /// # Errors
    /// [`PatchError::Malformed`].
    pub fn operations(patch: &JsonText) -> Result<Patch> {
        Ok(Patch(Kind::Operations(operations::read(patch)?)))
    }

    /// The value with the patch applied.
    ///
    /// # Errors
    /// [`PatchError`]. `value` itself never changes.
    pub fn apply(&self, value: &JsonText) -> Result<JsonText> {
        let mut root = Node::Text(value.clone());
        let mut work = Work::new();
        match &self.0 {
            Kind::Merge(patch) => merge::apply(&mut root, patch, patch.root(), 0, &mut work)?,
            Kind::Operations(operations) => {
                operations.iter().try_for_each(|operation| operation.apply(&mut root, &mut work))?;
            }
        }
        root.text(&mut work)
    }
}
