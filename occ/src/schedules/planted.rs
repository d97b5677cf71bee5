//! Each planted fault is found, and the number of schedules until then is printed. Without faults the same
//! scenarios pass, in their own files.

use super::{commits, readers, search, watching};
use crate::faults::Fault;

type Scenario = fn(Option<Fault>);

const FOUND_BY: [(Fault, Scenario, &str); 5] = [
    (Fault::PublishedBeforeSync, readers::reading, "a read version at risk"),
    (Fault::HandOffUnheard, |fault| drop(commits::crowd(fault)), "deadlock"),
    (Fault::WatchArmedTooLate, |fault| assert!(watching::waiting(fault) < 4), "deadlock"),
    (Fault::MissingSync, commits::rivals, "acknowledged before it was synced"),
    (Fault::ConflictRangesDropped, commits::rivals, "out of order"),
];

#[test]
fn planted_faults_are_found() {
    for (fault, scenario, expected) in FOUND_BY {
        let found = search(move || scenario(Some(fault)));
        let (order, schedules, words) = found.unwrap_or_else(|| panic!("{fault:?} was not found"));
        println!("{fault:?}: OCC_SCHEDULE={order}, {schedules} schedules: {words}");
        assert!(words.contains(expected), "{fault:?} shows as {words}");
    }
}
