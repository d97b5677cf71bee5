//! CPU-bound work, divided among threads.
//!
//! One request parses, hashes and lays out a whole bulk of documents. With a single client, the other cores are idle
//! meanwhile, so a large bulk is divided among threads. With several clients the cores are busy already and threads
//! would only cost, so the process has a limit on the threads that do such work at the same time.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Number of items that a thread takes at a time.
const PIECE: usize = 32;

/// Minimum number of items that are worth a thread. Starting a thread takes about 50 µs, a small document about 5.
const SHARE: usize = 200;

/// Number of threads at work in this process.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// Applies `work` to each item and returns the results in the order of the items. Many items are divided among several
/// threads, one of which is the caller's; no more than `threads` in the process work at a time. Each thread has its own
/// `memory`, for example buffers that it uses again.
///
/// # Panics
/// Panics if `work` does.
pub fn map<T: Sync, M, R: Send>(
    threads: usize,
    items: &[T],
    memory: impl Fn() -> M + Sync,
    work: impl Fn(&mut M, &T) -> R + Sync,
) -> Vec<R> {
    // Another request may start between these two lines. One thread too many does no harm.
    let free = threads.saturating_sub(BUSY.load(Ordering::Relaxed));
    let threads = free.min(items.len() / SHARE).max(1);
    let _busy = Busy::these(threads);
    map_on(threads, items, memory, work)
}

/// Counts threads as busy until it is dropped.
struct Busy(usize);

impl Busy {
    fn these(threads: usize) -> Self {
        BUSY.fetch_add(threads, Ordering::Relaxed);
        Busy(threads)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.fetch_sub(self.0, Ordering::Relaxed);
    }
}

fn map_on<T: Sync, M, R: Send>(
    threads: usize,
    items: &[T],
    memory: impl Fn() -> M + Sync,
    work: impl Fn(&mut M, &T) -> R + Sync,
) -> Vec<R> {
    if threads < 2 {
        let mut memory = memory();
        return items.iter().map(|item| work(&mut memory, item)).collect();
    }
    let taken = AtomicUsize::new(0);
    // Threads take pieces when they are ready, so one that starts late does not delay the others.
    let take = || {
        let (mut done, mut memory) = (Vec::new(), memory());
        loop {
            let begin = taken.fetch_add(PIECE, Ordering::Relaxed);
            let Some(rest) = items.get(begin..).filter(|rest| !rest.is_empty()) else { return done };
            done.push((begin, rest.iter().take(PIECE).map(|item| work(&mut memory, item)).collect::<Vec<R>>()));
        }
    };
    let mut done = thread::scope(|scope| {
        // If a thread cannot be started, the others do its share.
        let others: Vec<_> =
            (1..threads).filter_map(|_| thread::Builder::new().spawn_scoped(scope, take).ok()).collect();
        let mut done = take();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(begin, _)| *begin);
    done.into_iter().flat_map(|(_, results)| results).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stand_in_the_order_of_the_items_however_many_threads_there_are() {
        for threads in 1..6 {
            for count in [0, 1, 31, 32, 33, 1_000] {
                let items: Vec<usize> = (0..count).collect();
                let doubled: Vec<usize> = items.iter().map(|item| item * 2).collect();
                assert_eq!(
                    map_on(threads, &items, || (), |(), item| item * 2),
                    doubled,
                    "{count} items, {threads} threads"
                );
                assert_eq!(map(threads, &items, || (), |(), item| item * 2), doubled);
            }
        }
    }

    #[test]
    fn several_threads_work_at_once() {
        let (first, second) = (std::sync::Barrier::new(2), AtomicUsize::new(0));
        map_on(
            2,
            &[(); 2 * PIECE],
            || (),
            |(), ()| {
                // Each thread waits in its first piece for the other to come.
                if second.fetch_add(1, Ordering::SeqCst) < 2 {
                    first.wait();
                }
            },
        );
        assert_eq!(second.into_inner(), 2 * PIECE);
    }

    #[test]
    #[should_panic(expected = "item 700")]
    fn a_panic_of_any_thread_is_the_callers() {
        let items: Vec<usize> = (0..1_000).collect();
        map_on(2, &items, || (), |(), &item| assert_ne!(item, 700, "item 700"));
    }
}
