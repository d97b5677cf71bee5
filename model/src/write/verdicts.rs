//! The verdicts of a validator about the edits of one write. An attempt asks only what earlier attempts have not asked.

use std::collections::HashMap;

use json::JsonText;
use parking_lot::Mutex;

use crate::error::Result;
use crate::keys::Leaf;
use crate::write::validation::Designs;

/// The verdicts about the edits of one write, for all its attempts.
#[derive(Default)]
pub(super) struct Verdicts(Mutex<Known>);

#[derive(Default)]
struct Known {
    context: Option<Context>,
    given: HashMap<Subject, Result<()>>,
}

/// The state on which all verdicts of a transaction depend.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) designs: Designs,
    pub(super) security: JsonText,
}

/// The subject of a verdict.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    pub(super) turn: usize,
    pub(super) new: Leaf,
    pub(super) parent: Option<Leaf>,
}

impl Verdicts {
    /// Forgets the verdicts of another context.
    pub(super) fn begin(&self, context: &Context) {
        let mut known = self.0.lock();
        let same = |known: &Context| {
            known.designs.generation == context.designs.generation && known.security == context.security
        };
        if !known.context.as_ref().is_some_and(same) {
            known.given.clear();
            known.context = Some(context.clone());
        }
    }

    pub(super) fn get(&self, subject: &Subject) -> Option<Result<()>> {
        self.0.lock().given.get(subject).cloned()
    }

    pub(super) fn set(&self, subject: Subject, verdict: Result<()>) {
        self.0.lock().given.insert(subject, verdict);
    }
}
