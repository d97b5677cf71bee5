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

mod merge;
mod node;
mod operations;

use std::fmt;

use crate::JsonText;
use node::Node;
use operations::Operation;

/// Maximum number of steps in a path, and of levels in a merge patch.
const MAX_STEPS: usize = 1_000;

/// Approximate maximum number of bytes that the operations of a patch may touch together.
const MAX_WORK: usize = 500_000_000;

/// Approximate cost in bytes of looking at or moving a member or element.
const CHILD_BYTES: usize = 32;

/// Weight of a byte that is written or compared as text: the copy is kept.
const TEXT_WEIGHT: usize = 8;

/// The reason why a patch cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatchError {
    /// It is no valid patch, for any value.
    Malformed(String),
    /// The value does not fit the patch: a path does not exist, or a test fails.
    Failed(String),
    /// It takes too much work.
    TooMuch,
}

impl fmt::Display for PatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PatchError::Malformed(why) | PatchError::Failed(why) => f.write_str(why),
            PatchError::TooMuch => f.write_str("the patch takes too much work"),
        }
    }
}

impl std::error::Error for PatchError {}

type Result<T, E = PatchError> = std::result::Result<T, E>;

fn malformed<T>(why: impl Into<String>) -> Result<T> {
    Err(PatchError::Malformed(why.into()))
}

fn failed<T>(why: impl Into<String>) -> Result<T> {
    Err(PatchError::Failed(why.into()))
}

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
        let mut work = Work(MAX_WORK);
        match &self.0 {
            Kind::Merge(patch) => merge::apply(&mut root, patch, patch.root(), 0, &mut work)?,
            Kind::Operations(operations) => {
                operations.iter().try_for_each(|operation| operation.apply(&mut root, &mut work))?;
            }
        }
        root.text(&mut work)
    }
}

/// The work that is left.
struct Work(usize);

impl Work {
    fn spend(&mut self, bytes: usize) -> Result<()> {
        self.0 = self.0.checked_sub(bytes).ok_or(PatchError::TooMuch)?;
        Ok(())
    }
}
