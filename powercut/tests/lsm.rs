//! The log-structured merge tree behind the write-ahead log.

use std::path::Path;

use engine_lsm::{LsmDatabase, LsmOptions};
use kv_api::Result;

struct Lsm;

impl powercut::Engine for Lsm {
    type Database = LsmDatabase;
    const NAME: &'static str = "lsm";

    fn open(folder: &Path) -> Result<LsmDatabase> {
        LsmDatabase::open(folder, LsmOptions::new().cache_bytes(200 << 10))
    }

    fn close(database: &LsmDatabase) -> Result<()> {
        database.close()
    }
}

powercut::power_loss!(Lsm);
powercut::log_before_store!(Lsm);

/// A process is killed after it has renamed the manifest and before it syncs the name. The next opening deletes
/// the tables that the newer manifest does not list, and a loss of power may still bring back the older one.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn a_manifest_that_a_kill_left_unsynced_outlives_a_loss_of_power() {
    use powercut::dice::Dice;
    use powercut::disk::Keep;
    use powercut::harness::{cut, record, record_recovery};
    use powercut::trace::Event;

    let seed = 1;
    let dice = &mut Dice::new(seed);
    let history = record::<Lsm>(seed);
    let events = history.trace.events();
    let is_manifest = |event: &Event| matches!(event, Event::Rename { to: (_, name), .. } if name == "current");
    // A compaction deletes tables soon afterwards.
    let deletes =
        |event: &Event| matches!(event, Event::Unlink { .. }) && history.trace.path_of(event).contains("tables/");
    let is_compaction = |at: &usize| is_manifest(&events[*at]) && events[*at..].iter().take(12).any(deletes);
    for at in (0..events.len()).filter(is_compaction).take(2) {
        let recovery = record_recovery::<Lsm>(&history, at + 1, Keep::Everything, dice);
        cut::<Lsm>(&recovery, 100, dice).unwrap_or_else(|found| found.report(seed));
    }
}
