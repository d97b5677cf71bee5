//! Runs one operation between the reads of another and its commit.
//!
//! ```text
//!   operation    reads ─────────── the commit waits ──────────── commit: a conflict, or not ── the rest
//!   meanwhile                       reads ── commit …
//! ```
//!
//! A scenario does this for every commit of the operation. If the operation decides by something that it read without a
//! conflict range, one of these histories shows the fault. Nothing depends on time.

use std::pin::pin;
use std::sync::Arc;

use kv_api::Database;

use crate::chaos::Chaos;
use crate::hold::Hold;

/// Runs `operation` on `inner`. Its commit number `nth`, from 0, waits while `meanwhile` runs. Commits of transactions
/// that write nothing do not count. Returns the operation's result, and whether it reached that commit. Otherwise
/// `meanwhile` did not run.
///
/// The two must share no layer or other state of the process: the operation makes no progress meanwhile.
pub async fn interleave<D: Database, T>(
    inner: D,
    nth: usize,
    operation: impl AsyncFnOnce(Chaos<D>) -> T,
    meanwhile: impl AsyncFnOnce(),
) -> (T, bool) {
    let hold = Arc::new(Hold::new(nth));
    let mut operation = pin!(operation(Chaos::holding(inner, hold.clone())));
    tokio::select! {
        biased;
        outcome = &mut operation => return (outcome, false),
        () = hold.reached.notified() => {}
    }
    meanwhile().await;
    hold.released.notify_one();
    (operation.await, true)
}
