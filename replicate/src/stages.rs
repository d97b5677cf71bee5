//! The stages of a replication. Bounded channels connect them, so that each works while others wait for their peer:
//!
//! ```text
//!  feed ── pages ──► ask ── work ──► copy, several groups at a time ── in the order of the feed ──► progress
//!  source            target          source and target
//! ```
//!
//! The end of a page comes after all its groups, and results come in the order of the work. So at the end of a page
//! everything before it is written, and a checkpoint there promises nothing that the target lacks. A failure keeps this
//! order too: it comes after the work before it.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use futures_channel::mpsc::{Receiver, Sender};
use futures_util::{FutureExt, Stream, StreamExt};
use peer::{Changes, FeedRequest, Peer, Result};

use crate::transfer::{Missing, Step, Transfer};

/// The work that is left, in the order of the feed.
pub(crate) enum Work {
    /// The figures of asking the target.
    Asked(Step),
    /// Leaves to copy.
    Group(Vec<Missing>),
    End(End),
}

/// The end of a page of the feed.
pub(crate) struct End {
    /// The sequence after the page.
    pub(crate) seq: String,
    /// Number of changes left, if the source reports it.
    pub(crate) pending: Option<u64>,
    /// Whether it is the last page.
    pub(crate) is_last: bool,
}

/// Work that was done.
pub(crate) enum Done {
    Step(Step),
    End(End),
}

/// Reads the feed to its end. With a wait, continues while somebody receives pages, and waits this long for changes.
pub(crate) async fn feed(
    source: &dyn Peer,
    mut request: FeedRequest,
    wait: Option<Duration>,
    mut pages: Sender<Result<Changes>>,
) {
    loop {
        let page = source.changes(&request).await;
        let is_last = match &page {
            Ok(page) => {
                request.since = Some(page.last_seq.clone());
                request.wait = wait.filter(|_| !page.more);
                !page.more && wait.is_none()
            }
            Err(_) => true,
        };
        if !send(&mut pages, page).await || is_last {
            return;
        }
    }
}

/// Asks the target about each page.
pub(crate) async fn ask(
    transfer: &Transfer,
    is_continuous: bool,
    mut pages: Receiver<Result<Changes>>,
    mut work: Sender<Result<Work>>,
) {
    while let Some(page) = pages.next().await {
        let asked = async {
            let page = page?;
            let (step, groups) = transfer.missing(&page.rows, page.more).await?;
            let pending = page.pending.or((!page.more).then_some(0));
            Ok((step, groups, End { seq: page.last_seq, pending, is_last: !page.more && !is_continuous }))
        };
        let found = match asked.await {
            Ok((step, groups, end)) => {
                let groups = groups.into_iter().map(Work::Group);
                [Work::Asked(step)].into_iter().chain(groups).chain([Work::End(end)]).map(Ok).collect()
            }
            Err(error) => vec![Err(error)],
        };
        for one in found {
            if !send(&mut work, one).await {
                return;
            }
        }
    }
}

/// Copies this many groups at a time. Results come in the order of the work.
pub(crate) fn copy(
    transfer: &Transfer,
    work: Receiver<Result<Work>>,
    at_once: usize,
) -> impl Stream<Item = Result<Done>> + Send {
    let each = move |work: Result<Work>| {
        async move {
            Ok(match work? {
                Work::Asked(step) => Done::Step(step),
                Work::Group(group) => Done::Step(transfer.group(group).await?),
                Work::End(end) => Done::End(end),
            })
        }
        .boxed()
    };
    work.map(each).buffered(at_once)
}

/// Sends when there is room. `false` if nobody receives any more.
async fn send<T>(sender: &mut Sender<T>, item: T) -> bool {
    poll_fn(|context| sender.poll_ready(context)).await.is_ok() && sender.start_send(item).is_ok()
}

/// Runs `work`, and `beside` until `work` ends.
pub(crate) async fn with<T>(beside: impl Future<Output = ()> + Send, work: impl Future<Output = T> + Send) -> T {
    use futures_util::future::{Either, select};
    let (beside, work) = (pin!(beside), pin!(work));
    match select(work, beside).await {
        Either::Left((done, _)) => done,
        Either::Right(((), work)) => work.await,
    }
}
