//! Leaves out one class of syncs at a time. The harness must notice each.

use crate::dice::Dice;
use crate::engine::Engine;
use crate::harness::{History, class, cut, record};
use crate::trace::{Event, Trace};

/// A class of syncs that are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Syncs of the log's bytes.
    Log,
    /// Syncs of the names in the folder, except the mark's.
    Names,
    /// Syncs of the mark's bytes.
    Mark,
    /// Syncs of the mark's name.
    MarkName,
    /// Syncs of the parent folders.
    Parents,
    /// Syncs of the store's own files and folders.
    Store,
}

impl Missing {
    /// All classes.
    pub const ALL: [Missing; 6] =
        [Missing::Log, Missing::Names, Missing::Mark, Missing::MarkName, Missing::Parents, Missing::Store];

    /// Whether the event at index `at` is a sync of this class.
    fn is(self, trace: &Trace, at: usize) -> bool {
        let Event::Sync { ino } = trace.events()[at] else { return false };
        // The first sync of the folder after the mark got its name.
        let of_mark = || {
            let before = trace.events()[..at].iter().rev();
            let mut before = before.filter(|event| matches!(event, Event::Rename { .. } | Event::Sync { .. }));
            before.next().is_some_and(|event| class(&trace.path_of(event)) == "the mark")
        };
        match (self, class(trace.path(ino))) {
            (Missing::Log, "the log")
            | (Missing::Mark, "the mark")
            | (Missing::Parents, "a folder above")
            | (Missing::Store, "the store") => true,
            (Missing::Names, "the folder") => !of_mark(),
            (Missing::MarkName, "the folder") => of_mark(),
            _ => false,
        }
    }

    /// Cuts histories without these syncs until a cut shows an error. Returns the number of cuts and the error;
    /// `None` after `most` cuts without one.
    pub fn found<E: Engine>(self, seed: u64, most: usize) -> Option<(usize, String)> {
        const EACH: usize = 100;
        let mut cuts = 0;
        while cuts < most {
            let seed = seed + cuts as u64;
            let history = record::<E>(seed);
            let trace = history.trace.without(|trace, at| self.is(trace, at));
            let history = History { trace, ..history };
            if let Err(found) = cut::<E>(&history, EACH, &mut Dice::new(seed)) {
                return Some((cuts + found.cuts, found.wrong));
            }
            cuts += EACH;
        }
        None
    }
}
