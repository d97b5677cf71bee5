//! Yielding to other tasks.

use std::future::poll_fn;
use std::task::Poll;

/// Resolves once the executor has polled its other ready tasks. Works with any executor.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
