//! The runs that wait for a thread.
//!
//! Databases take turns, not runs: the next run belongs to the database that was served longest ago, however many runs
//! others have waiting. Only a limited number of runs of one database run at a time, so they never take all threads.

use std::collections::{HashMap, VecDeque};

/// Identifies a database.
pub(crate) type Id = [u8; 16];

/// Waiting runs, by database.
pub(crate) struct Turns<J> {
    /// Maximum number of runs of one database at the same time.
    share: usize,
    /// Maximum number of waiting runs.
    most: usize,
    waiting: usize,
    /// The databases with waiting runs. The next one is in front.
    order: VecDeque<Id>,
    /// The databases with waiting or running runs.
    databases: HashMap<Id, Runs<J>>,
}

struct Runs<J> {
    waiting: VecDeque<J>,
    /// Number of running ones.
    running: usize,
}

impl<J> Turns<J> {
    pub(crate) fn new(share: usize, most: usize) -> Turns<J> {
        Turns { share, most, waiting: 0, order: VecDeque::new(), databases: HashMap::new() }
    }

    /// Number of runs that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether another run of this database could begin as soon as there is a thread.
    pub(crate) fn may_run(&self, database: &Id) -> bool {
        self.databases.get(database).is_none_or(|runs| runs.running + runs.waiting.len() < self.share)
    }

    /// Adds a run. If too many wait, returns the one that is refused: the last run of the database with the most
    /// waiting runs.
    pub(crate) fn push(&mut self, database: Id, run: J) -> Option<J> {
        let runs = self.databases.entry(database).or_insert_with(|| Runs { waiting: VecDeque::new(), running: 0 });
        if runs.waiting.is_empty() {
            self.order.push_back(database);
        }
        runs.waiting.push_back(run);
        self.waiting += 1;
        if self.waiting <= self.most {
            return None;
        }
        let most = self.databases.iter().max_by_key(|(_, runs)| runs.waiting.len()).map(|(database, _)| *database);
        most.and_then(|database| {
            let runs = self.databases.get_mut(&database)?;
            let refused = runs.waiting.pop_back()?;
            self.waiting -= 1;
            if runs.waiting.is_empty() {
                self.order.retain(|other| *other != database);
                self.forget(&database);
            }
            Some(refused)
        })
    }

    /// The next run, and its database, whose turn is then over.
    pub(crate) fn next(&mut self) -> Option<(Id, J)> {
        let may_run = |database: &Id| self.databases.get(database).is_some_and(|runs| runs.running < self.share);
        let place = self.order.iter().position(may_run)?;
        let database = self.order.remove(place)?;
        let runs = self.databases.get_mut(&database)?;
        let run = runs.waiting.pop_front()?;
        runs.running += 1;
        self.waiting -= 1;
        if !runs.waiting.is_empty() {
            self.order.push_back(database);
        }
        Some((database, run))
    }

    /// A run of this database has ended.
    pub(crate) fn ended(&mut self, database: &Id) {
        if let Some(runs) = self.databases.get_mut(database) {
            runs.running = runs.running.saturating_sub(1);
            self.forget(database);
        }
    }

    fn forget(&mut self, database: &Id) {
        if self.databases.get(database).is_some_and(|runs| runs.running == 0 && runs.waiting.is_empty()) {
            self.databases.remove(database);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Id = [1; 16];
    const B: Id = [2; 16];
    const C: Id = [3; 16];

    /// The runs in their order, each ended before the next one begins.
    fn in_order(turns: &mut Turns<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| {
            let (database, run) = turns.next()?;
            turns.ended(&database);
            Some(run)
        })
        .collect()
    }

    #[test]
    fn databases_have_their_turn_and_not_runs() {
        let mut turns = Turns::new(1, 100);
        for (database, run) in [(A, "a1"), (A, "a2"), (A, "a3"), (A, "a4"), (B, "b1"), (C, "c1"), (B, "b2")] {
            assert_eq!(turns.push(database, run), None);
        }
        assert_eq!(in_order(&mut turns), ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]);
        assert!(turns.databases.is_empty() && turns.order.is_empty() && turns.waiting == 0, "nothing is kept");
    }

    #[test]
    fn a_database_that_comes_again_is_behind_those_that_wait() {
        let mut turns = Turns::new(1, 100);
        turns.push(A, "a1");
        turns.push(B, "b1");
        assert_eq!(turns.next(), Some((A, "a1")));
        turns.push(A, "a2");
        turns.push(C, "c1");
        turns.ended(&A);
        assert_eq!(in_order(&mut turns), ["b1", "a2", "c1"]);
    }

    #[test]
    fn a_database_has_its_share_at_the_same_time_and_no_more() {
        let mut turns = Turns::new(2, 100);
        for run in ["a1", "a2", "a3"] {
            assert_eq!(turns.may_run(&A), run != "a3");
            turns.push(A, run);
        }
        assert_eq!((turns.next(), turns.next(), turns.next()), (Some((A, "a1")), Some((A, "a2")), None));
        turns.push(B, "b1");
        assert_eq!((turns.next(), turns.next()), (Some((B, "b1")), None));
        turns.ended(&A);
        assert_eq!((turns.next(), turns.next()), (Some((A, "a3")), None));
    }

    #[test]
    fn of_too_many_runs_one_is_refused_of_the_database_with_the_most() {
        let mut turns = Turns::new(1, 3);
        for run in ["a1", "a2", "a3"] {
            assert_eq!(turns.push(A, run), None);
        }
        assert_eq!(turns.push(A, "a4"), Some("a4"));
        assert_eq!(turns.push(B, "b1"), Some("a3"));
        assert_eq!(in_order(&mut turns), ["a1", "b1", "a2"]);
        let mut none = Turns::new(1, 0);
        assert_eq!((none.push(A, "a1"), none.next()), (Some("a1"), None));
        assert!(none.databases.is_empty() && none.order.is_empty());
    }
}
