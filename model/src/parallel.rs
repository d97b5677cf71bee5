//! CPU-bound work, divided among threads.
//!
//! One request parses, hashes and lays out a whole bulk of documents. With a single client, the other cores are idle
//! meanwhile, so a large bulk is divided among the threads of one pool. The pool has a thread for each core, so several
//! clients together do not start more.

use std::sync::OnceLock;

use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Number of items that a thread takes at a time.
const PIECE: usize = 32;

/// Minimum number of items that are worth a thread. A small document takes about 5 µs.
const SHARE: usize = 200;

/// The threads of this process, started when they are first needed. `None`: the system provides none.
fn pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let start = || ThreadPoolBuilder::new().thread_name(|number| format!("bulk-{number}")).build().ok();
    POOL.get_or_init(start).as_ref()
}

/// Applies `work` to each item and returns the results in the order of the items. Many items are divided among at most
/// `threads` threads. Each piece of work has its own `memory`, for example buffers that it uses again.
///
/// # Panics
/// Panics if `work` does.
pub fn map<T: Sync, M, R: Send>(
    threads: usize,
    items: &[T],
    memory: impl Fn() -> M + Sync + Send,
    work: impl Fn(&mut M, &T) -> R + Sync + Send,
) -> Vec<R> {
    let threads = threads.min(items.len() / SHARE);
    match if threads < 2 { None } else { pool() } {
        Some(pool) => {
            let least = if threads < pool.current_num_threads() { items.len().div_ceil(threads) } else { PIECE };
            pool.install(|| items.par_iter().with_min_len(least).map_init(memory, work).collect())
        }
        None => {
            let mut memory = memory();
            items.iter().map(|item| work(&mut memory, item)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Mutex;
    use std::thread;

    use super::*;

    #[test]
    fn results_stand_in_the_order_of_the_items_however_many_threads_there_are() {
        for threads in 0..6 {
            for count in [0, 1, 31, 399, 400, 1_000, 5_000] {
                let items: Vec<usize> = (0..count).collect();
                let doubled: Vec<usize> = items.iter().map(|item| item * 2).collect();
                assert_eq!(
                    map(threads, &items, || (), |(), item| item * 2),
                    doubled,
                    "{count} items, {threads} threads"
                );
            }
        }
    }

    #[test]
    fn few_items_and_one_thread_stay_with_the_caller_and_many_leave_it() {
        let threads = |threads: usize, count: usize| {
            let seen = Mutex::new(HashSet::new());
            map(
                threads,
                &vec![(); count],
                || (),
                |(), ()| {
                    seen.lock().unwrap().insert(thread::current().id());
                },
            );
            seen.into_inner().unwrap()
        };
        let own = HashSet::from([thread::current().id()]);
        assert_eq!(threads(1, 10_000), own);
        assert_eq!(threads(8, 2 * SHARE - 1), own);
        assert!(threads(2, 10_000).is_disjoint(&own));
    }

    #[test]
    #[should_panic(expected = "item 700")]
    fn a_panic_of_any_thread_is_the_callers() {
        let items: Vec<usize> = (0..1_000).collect();
        map(2, &items, || (), |(), &item| assert_ne!(item, 700, "item 700"));
    }
}
