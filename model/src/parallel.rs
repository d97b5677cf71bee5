//! Work of the processor alone, shared out to the cores of the machine.
//!
//! A bulk of documents is parsed, hashed and laid out by one request, on one core, while the others have
//! nothing to do where there is but one client. Where several clients keep the cores busy, sharing would only
//! cost: so all who do such work at a time have a number of threads between them.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Items that a thread takes at a time.
const PIECE: usize = 32;

/// Items that are worth a thread. Starting one takes some 50 µs, a small document about 5.
const SHARE: usize = 200;

/// Threads that are at such work.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// `work` done for each of `items`, in their order. Where they are many it is shared out to several threads, the
/// caller's among them: to so many that no more than `threads` in the process are at such work. Each thread begins
/// with a `memory` of its own, buffers to use again, say.
///
/// # Panics
/// Where `work` does.
pub fn map<T: Sync, M, R: Send>(
    threads: usize,
    items: &[T],
    memory: impl Fn() -> M + Sync,
    work: impl Fn(&mut M, &T) -> R + Sync,
) -> Vec<R> {
    // Others may begin between the two steps: a thread too many for once harms nobody.
    let free = threads.saturating_sub(BUSY.load(Ordering::Relaxed));
    let threads = free.min(items.len() / SHARE).max(1);
    let _busy = Busy::these(threads);
    map_on(threads, items, memory, work)
}

/// Counts threads as busy while it lives.
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
    // Pieces are taken rather than dealt out, so that a thread that is started late delays nobody.
    let take = || {
        let (mut done, mut memory) = (Vec::new(), memory());
        loop {
            let begin = taken.fetch_add(PIECE, Ordering::Relaxed);
            let Some(rest) = items.get(begin..).filter(|rest| !rest.is_empty()) else { return done };
            done.push((begin, rest.iter().take(PIECE).map(|item| work(&mut memory, item)).collect::<Vec<R>>()));
        }
    };
    let mut done = thread::scope(|scope| {
        // Where a thread cannot be had, its share is done by the others.
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
