//! What is tested of each engine.
//!
//! `POWERCUT_SEED` is the first seed, and `POWERCUT_CUTS` the number of cuts: some tens unless it is set. A long run:
//!
//! ```text
//! POWERCUT_CUTS=100000 cargo test --release -p powercut --test redb outlives -- --nocapture
//! ```

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex, PoisonError};

    use crate::Engine;
    use crate::dice::Dice;
    use crate::faults::{Missing, class};
    use crate::harness::{Counts, cut, explore, record_failure, record_failures};
    use crate::trace::{Event, Failure, Kind, Verdict};

    fn number(name: &str, otherwise: usize) -> usize {
        match std::env::var(name) {
            Err(_) => otherwise,
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        }
    }

    fn seed() -> u64 {
        number("POWERCUT_SEED", 1) as u64
    }

    /// Cuts workloads, recoveries from kills, and recoveries from losses of power, at every kind of call.
    ///
    /// # Panics
    ///
    /// When the engine shows anything else than its clients were told, or cannot be opened.
    pub fn power_loss<E: Engine>() {
        let (seed, cuts) = (seed(), number("POWERCUT_CUTS", 30));
        let counts = explore::<E>(seed, cuts);
        println!("{}, from seed {seed}: {} cuts\n{counts}", E::NAME, counts.total());
    }

    /// Seeds that showed a lost commit when the log was not applied again after a crash, and a lost manifest when
    /// its file was written again after a sync of its name had failed.
    const FAILED_BEFORE: [u64; 2] = [10, 19];

    /// Lets a sync of the log, the store or the folder fail, opens the database again, as the page cache has it, goes
    /// on, and cuts what follows.
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
                0 if E::DISTRUSTS_FAILED_SYNCS => ("the store", dice.below(20)),
                // The first ones make the database.
                1 if E::DISTRUSTS_FAILED_SYNCS => ("the folder", 3 + dice.below(7)),
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

    /// Lets calls fail, without opening the database again: one with an error of the disk, one that writes only a
    /// half, or all that need room, for a while. Then cuts what was recorded.
    ///
    /// # Panics
    ///
    /// When a read fails or shows something else, or commits do not go on; or as [`power_loss`] does.
    pub fn failures<E: Engine>() {
        let (first, rounds) = (seed(), number("POWERCUT_CUTS", 60) / 10);
        let mut counts = Counts::default();
        let mut failed: BTreeMap<(&str, Kind, &str), usize> = BTreeMap::new();
        for seed in first..first + rounds as u64 {
            let dice = &mut Dice::new(seed);
            let (name, how, times) = match dice.below(4) {
                0 => ("half", Verdict::Short, 1),
                1 => ("no room", Verdict::Fail(libc::ENOSPC), usize::MAX),
                _ => ("error", Verdict::Fail(libc::EIO), 1),
            };
            let met = Arc::new(Mutex::new(None));
            let meets = met.clone();
            let mut after = dice.below(120);
            let of = move |kind: Kind, path: &str| {
                let class = class(path);
                let fails = match how {
                    Verdict::Short => kind == Kind::Write,
                    _ if times > 1 => matches!(kind, Kind::Write | Kind::Length | Kind::Create),
                    _ => true,
                };
                if !fails || !(E::DISTRUSTS_FAILED_SYNCS || class == "the log") {
                    return false;
                }
                after = after.saturating_sub(1);
                if after == 0 {
                    meets.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((name, kind, class));
                }
                after == 0
            };
            let failure = Failure { of: Box::new(of), after: 0, times, how, count: 0 };
            let history = record_failures::<E>(seed, failure);
            if let Some(met) = *met.lock().unwrap_or_else(PoisonError::into_inner) {
                *failed.entry(met).or_default() += 1;
            }
            counts.add(&cut::<E>(&history, 10, dice).unwrap_or_else(|found| found.report(seed)));
        }
        println!("{}, from seed {first}: {} cuts, after\n{failed:?}", E::NAME, counts.total());
    }

    /// Leaves out each sync in turn, and finds that it is missing.
    ///
    /// # Panics
    ///
    /// When one is not missed.
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
        println!("skipped on {}: calls are recorded on Linux alone", E::NAME);
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
