//! Concurrency tests under schedules that a checker chooses.
//!
//! In unit tests the locks, atomics and threads of this crate are shuttle's (`sync`). One thread runs at a time, and at
//! each of them a scheduler decides which thread goes on. A scenario runs under many schedules. Half are chosen step by
//! step at random, half by PCT (Burckhardt et al., ASPLOS 2010: random priorities, changed at a few random steps),
//! which finds bugs that need few, rare preemptions. A schedule in which a thread waits forever is a deadlock, and
//! fails.
//!
//! ```text
//!   store       a disk that knows what it has applied and what it has synced
//!   history     what transactions read and wrote, and the one order that must explain it
//!   commits, failures, readers, watching, promise        the scenarios
//!   planted     faults that they must find
//! ```
//!
//! A failure prints its order. `OCC_SCHEDULE=random:7 cargo test -p couch-layer-occ --lib NAME` runs that order alone;
//! a line in the test's `pinned` keeps it. `OCC_SCHEDULES=100` makes a run a hundred times as long.
//!
//! Not covered: shuttle's atomics are sequentially consistent, so an `Ordering` that is too weak is not found.
//! Everything that needs an order is under a lock, except the count of watched keys, which has its argument
//! where it is used.

mod commits;
mod failures;
mod history;
mod planted;
mod promise;
mod readers;
mod store;
mod watching;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

use crate::OccDatabase;

type Db = OccDatabase<store::Disk>;

/// Number of schedules of one order.
const RUN: usize = 60;

/// Number of orders of each kind that a test tries.
const ORDERS: u64 = 4;

/// How some schedules are chosen: from a seed, so that they can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Random(u64),
    /// PCT, with 1 to 4 changes of priority.
    Pct(u64),
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Random(seed) => write!(f, "random:{seed}"),
            Order::Pct(seed) => write!(f, "pct:{seed}"),
        }
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, seed) = text.split_once(':').ok_or("an order is KIND:SEED")?;
        let seed = seed.parse().map_err(|_| format!("{seed} is not a seed"))?;
        match kind {
            "random" => Ok(Order::Random(seed)),
            "pct" => Ok(Order::Pct(seed)),
            _ => Err(format!("unknown order {kind}: use random or pct")),
        }
    }
}

impl Order {
    fn run(self, scenario: impl Fn() + Send + Sync + 'static) {
        let mut config = Config::new();
        config.stack_size = 256 * 1024;
        config.silence_warnings = true;
        match self {
            Order::Random(seed) => Runner::new(RandomScheduler::new_from_seed(seed, RUN), config).run(scenario),
            Order::Pct(seed) => {
                let depth = 2 + (seed % 4) as usize;
                Runner::new(PctScheduler::new_from_seed(seed, depth, RUN), config).run(scenario)
            }
        };
    }
}

/// Runs a scenario under many schedules. The pinned orders, which failed once, come first.
fn explore(pinned: &[Order], scenario: impl Fn() + Send + Sync + Copy + 'static) {
    let given = std::env::var("OCC_SCHEDULE").ok().map(|order| order.parse().expect("OCC_SCHEDULE"));
    let orders: Vec<Order> = match given {
        Some(order) => vec![order],
        None => pinned.iter().copied().chain(orders()).collect(),
    };
    for order in orders {
        if let Err(failure) = catch_unwind(AssertUnwindSafe(|| order.run(scenario))) {
            eprintln!("found by OCC_SCHEDULE={order}");
            resume_unwind(failure);
        }
    }
}

fn orders() -> impl Iterator<Item = Order> {
    let times = std::env::var("OCC_SCHEDULES").map_or(1, |times| times.parse().expect("OCC_SCHEDULES"));
    (0..times * ORDERS).flat_map(|seed| [Order::Random(seed), Order::Pct(seed)])
}

/// The first failure of a scenario: its order, the number of schedules until then, and the message.
fn search(scenario: impl Fn() + Send + Sync + Copy + 'static) -> Option<(Order, usize, String)> {
    static SCHEDULES: AtomicUsize = AtomicUsize::new(0);
    SCHEDULES.store(0, Ordering::Relaxed);
    orders().find_map(|order| {
        let counted = move || {
            SCHEDULES.fetch_add(1, Ordering::Relaxed);
            scenario();
        };
        let failure = catch_unwind(AssertUnwindSafe(|| order.run(counted))).err()?;
        let words = failure.downcast_ref::<String>().cloned();
        let words = words.or_else(|| failure.downcast_ref::<&str>().map(|&words| words.to_owned()));
        Some((order, SCHEDULES.load(Ordering::Relaxed), words.unwrap_or_default()))
    })
}

#[test]
fn an_order_can_be_told_again() {
    for order in [Order::Random(7), Order::Pct(0)] {
        assert_eq!(order.to_string().parse(), Ok(order));
    }
    assert!("dfs:1".parse::<Order>().is_err() && "random".parse::<Order>().is_err());
}
