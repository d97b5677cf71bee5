//! The tests of each engine.
//!
//! `POWERCUT_SEED` sets the first seed, `POWERCUT_CUTS` the number of cuts (default: some tens). Every
//! `POWERCUT_STEP`th call fails in turn (default: every sixtieth), and every one while the database is created. Long
//! runs:
//!
//! ```text
//! POWERCUT_CUTS=100000 cargo test --release -p couch-layer-powercut --test lsm outlives -- --nocapture
//! POWERCUT_STEP=1 cargo test --release -p couch-layer-powercut --test lsm go_on -- --nocapture
//! ```

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use crate::Engine;
    use crate::dice::Dice;
    use crate::disk::Keep;
    use crate::faults::Missing;
    use crate::harness::{
        Counts, History, class, cut, explore, record, record_failure, record_failures, record_recovery,
    };
    use crate::trace::{Event, Failure, Kind, Verdict};

    fn number(name: &str, otherwise: usize) -> usize {
        match std::env::var(name) {
            Err(_) => otherwise,
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        }
    }

    fn seed() -> u64 {
        number("POWERCUT_SEED", 1) as u64
    }

    /// Kills a process after it has renamed the mark and before it syncs the name; then opens the folder, and cuts the
    /// recovery.
    fn half_made<E: Engine>(seed: u64) -> Counts {
        let dice = &mut Dice::new(seed);
        let history = record::<E>(seed);
        let is_mark =
            |event: &Event| matches!(event, Event::Rename { to: (_, name), .. } if name == "couch-layer.json");
        let mark = history.trace.events().iter().position(is_mark).expect("each folder has a mark");
        let recovery = record_recovery::<E>(&history, mark + 1, Keep::Everything, dice);
        let next = History { trace: recovery.trace.prefix(mark + 12), ..recovery };
        cut::<E>(&next, 60, dice).unwrap_or_else(|found| found.report(seed))
    }

    /// Cuts workloads, recoveries from kills and recoveries from losses of power, at every kind of call.
    ///
    /// # Panics
    ///
    /// When the engine contradicts what its clients were told, or cannot be opened.
    pub fn power_loss<E: Engine>() {
        let (seed, cuts) = (seed(), number("POWERCUT_CUTS", 30));
        let mut counts = half_made::<E>(seed);
        counts.add(&explore::<E>(seed, cuts));
        println!("{}, from seed {seed}: {} cuts\n{counts}", E::NAME, counts.total());
    }

    /// Seeds that once showed errors: a commit was lost when the log was not applied again after a crash, and a
    /// manifest was lost when its file was written again after a failed sync of its name.
    const FAILED_BEFORE: [u64; 2] = [10, 19];

    /// Makes a sync of the log, the store or the folder fail, opens the database again from the page cache, commits
    /// further, and cuts the recording.
    ///
    /// # Panics
    ///
    /// As [`power_loss`] does.
    pub fn failed_syncs<E: Engine>() {
        let (first, rounds) = (seed(), number("POWERCUT_CUTS", 80) / 40);
        let mut counts = Counts::default();
        for seed in FAILED_BEFORE.into_iter().chain(first..first + rounds as u64) {
            let dice = &mut Dice::new(seed);
            let (of, after) = match dice.below(3) {
                0 => ("the store", dice.below(20)),
                // The first of them create the database.
                1 => ("the folder", 3 + dice.below(7)),
                _ => ("the log", dice.below(50)),
            };
            let after = after as usize;
            let failure = Failure::once(after, Verdict::Fail(libc::EIO), move |kind, path| {
                kind == Kind::Sync && class(path) == of
            });
            let history = record_failure::<E>(seed, failure);
            let failed = history.trace.events().iter().any(|event| matches!(event, Event::SyncFailed { .. }));
            if failed {
                counts.add(&cut::<E>(&history, 40, dice).unwrap_or_else(|found| found.report(seed)));
            }
        }
        println!("{}, from seed {first}, after syncs that failed: {} cuts\n{counts}", E::NAME, counts.total());
    }

    /// Fault of a call.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Fault {
        /// EIO, once.
        Error,
        /// ENOSPC, for this call and all later ones that need room, until room is made.
        NoRoom,
        /// A short write, once: half of the bytes.
        Half,
    }

    impl Fault {
        fn meets(self, kind: Kind) -> bool {
            match self {
                Fault::Error => true,
                Fault::NoRoom => matches!(kind, Kind::Write | Kind::Length | Kind::Create),
                Fault::Half => kind == Kind::Write,
            }
        }
    }

    /// A message that is printed when the test fails.
    struct Told(String);

    impl Drop for Told {
        fn drop(&mut self) {
            if std::thread::panicking() {
                println!("{}", self.0);
            }
        }
    }

    /// Makes each call of a workload fail in turn, in each way, and continues without opening the database again.
    /// Then cuts the recording.
    ///
    /// # Panics
    ///
    /// When reads fail or are wrong, when commits fail after the fault is over, when an error does not name the
    /// cause, or as [`power_loss`] does.
    pub fn failures<E: Engine>() {
        /// Number of cuts of each recording.
        const CUTS: usize = 2;
        /// Number of calls that create the database. Each of them fails in turn, since defects were found here.
        const OPENING: usize = 30;
        /// Number of calls beyond the workload's end that are tried.
        const MISSED: usize = 10;
        let (seed, step) = (seed(), number("POWERCUT_STEP", 60));
        let mut cuts = Counts::default();
        let mut calls: BTreeMap<(&str, Kind, &str), usize> = BTreeMap::new();
        let faults = [
            ("EIO", Fault::Error, Verdict::Fail(libc::EIO), 1, "os error 5"),
            ("ENOSPC", Fault::NoRoom, Verdict::Fail(libc::ENOSPC), usize::MAX, "os error 28"),
            ("short write", Fault::Half, Verdict::Short, 1, "no error"),
        ];
        for (name, fault, how, times, cause) in faults {
            let dice = &mut Dice::new(seed);
            let mut missed = 0;
            let first = dice.below(step as u64) as usize;
            let is_tried = |call: &usize| call % step == first || (fault == Fault::Error && *call < OPENING);
            for after in (0..).filter(is_tried) {
                let met = Arc::new(Mutex::new(None));
                let (meets, mut passed) = (met.clone(), 0);
                let of = move |kind: Kind, path: &str| {
                    let class = class(path);
                    if !fault.meets(kind) {
                        return false;
                    }
                    passed += 1;
                    if passed > after {
                        meets.lock().get_or_insert((name, kind, class));
                    }
                    passed > after
                };
                let failure = Failure { of: Box::new(of), after: 0, times, how, count: 0 };
                let _told = Told(format!("{name}, once call {after} is made"));
                let (history, failed) = record_failures::<E>(seed, failure, cause);
                if failed == 0 {
                    // The workload makes no more calls. Their number varies a little, since threads take part.
                    missed += 1;
                    if missed * step > MISSED {
                        break;
                    }
                    continue;
                }
                if let Some(met) = *met.lock() {
                    *calls.entry(met).or_default() += 1;
                }
                cuts.add(&cut::<E>(&history, CUTS, dice).unwrap_or_else(|found| found.report(seed)));
            }
        }
        let total: usize = calls.values().sum();
        println!("{}, seed {seed}, each call of {step}: {total} failed, {} cuts", E::NAME, cuts.total());
        for ((name, kind, class), count) in calls {
            println!("{count:>8}  {name}: {kind:?} of {class}");
        }
    }

    /// Leaves out each class of syncs in turn.
    ///
    /// # Panics
    ///
    /// When the harness does not notice one.
    pub fn missing_syncs<E: Engine>() {
        for missing in Missing::ALL {
            let found = missing.found::<E>(seed(), 10_000);
            let Some((cuts, wrong)) = found else { panic!("{}: {missing:?} was not missed", E::NAME) };
            let wrong = wrong.lines().next().unwrap_or_default();
            println!("without {missing:?}: cut {cuts}: {wrong}");
        }
    }
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
mod tests {
    use crate::Engine;

    fn skipped<E: Engine>() {
        println!("skipped on {}: calls are recorded only on Linux", E::NAME);
    }

    /// Skipped.
    pub fn power_loss<E: Engine>() {
        skipped::<E>();
    }

    /// Skipped.
    pub fn failed_syncs<E: Engine>() {
        skipped::<E>();
    }

    /// Skipped.
    pub fn failures<E: Engine>() {
        skipped::<E>();
    }

    /// Skipped.
    pub fn missing_syncs<E: Engine>() {
        skipped::<E>();
    }
}

pub use tests::{failed_syncs, failures, missing_syncs, power_loss};
