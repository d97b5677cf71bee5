//! The end of a database's feed, read once for all feeds of a process that wait there.
//!
//! ```text
//!              after                                   last
//!  kept rows     ├── row ──── row ─── row ─── row ──────┤
//!  feed A  ── since: behind `after`. It reads for itself.
//!  feed B            ── since: takes the rows after it.
//!  feed C                                            ── since: `last`, or beyond. It waits for a read of the rows
//!                                                       after `last`. One read serves all that wait for it and are
//!                                                       not beyond its end.
//! ```
//!
//! The kept rows are those that the feed had between `after` and `last` when `last` was read: if a document changed
//! again, its earlier row is removed. So a feed gets from memory what one read would have returned.
//!
//! A row is kept for a second at most, and the rows of a tail are few. A feed whose client is slower reads for itself,
//! and so does every feed after a read that failed: it gets its own error.
//!
//! A read is a shared future, like an [epoch](crate::feed::epoch): any waiter drives it, and nothing is spawned.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_timer::Delay;
use futures_util::FutureExt;
use futures_util::future::{Either, Shared, select};
use kv_api::BoxFuture;
use parking_lot::Mutex;

use crate::attachments::Attachment;
use crate::feed::change::{Change, ChangesBatch, ChangesRequest, Since};
use crate::feed::seq::Seq;
use crate::read::document::Document;
use crate::rows::revid::RevId;

/// Maximum number of rows in one read, and of those that are kept.
const MOST_ROWS: usize = 500;

/// Maximum number of bytes of the rows that are kept. They are kept only while a client waits, whose connection takes
/// memory too.
const BYTES_KEPT: usize = 128 << 10;

/// Maximum age of rows that are kept, in milliseconds. A feed gets no row of a document that was purged, or of a
/// database that was dropped, a longer time ago.
const KEPT_MS: u64 = 1_000;

/// Time after which a waiter looks at a shared read again.
const LOOK: Duration = Duration::from_secs(1);

/// The tail for requests of one shape.
pub(crate) struct Tail {
    /// The request without its place.
    shape: ChangesRequest,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kept: Span,
    /// The read of the rows after them, and when it began, in milliseconds since 1970.
    reading: Option<(u64, Reading)>,
}

type Reading = Shared<BoxFuture<Option<Arc<Span>>>>;

/// The rows of a part of the feed: those after `after`, up to `last`.
#[derive(Default)]
struct Span {
    after: Seq,
    last: Seq,
    /// The [number](crate::NumberedSeq) of `last`, if requested.
    last_number: Option<u64>,
    /// Whether there was more to read after `last`.
    more: bool,
    rows: VecDeque<Row>,
    /// Number of bytes of the rows.
    bytes: usize,
}

#[derive(Clone)]
struct Row {
    change: Arc<Change>,
    bytes: usize,
    /// When its read began, in milliseconds since 1970.
    begun_ms: u64,
}

impl fmt::Debug for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tail").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl Tail {
    /// The shape of the tail that has the rows for a request, and the sequence after which they are asked for. `None`
    /// if no tail has them.
    pub(crate) fn shape(request: &ChangesRequest) -> Option<(ChangesRequest, Seq)> {
        let Since::Seq(since) = request.since else { return None };
        // Looking up some documents may cost less than reading all that change.
        let is_lookup = request.doc_ids.is_some() && request.include_docs;
        if request.descending || request.limit == Some(0) || is_lookup {
            return None;
        }
        let shape = ChangesRequest { since: Since::default(), before: None, limit: None, doc_ids: None, ..*request };
        Some((shape, since))
    }

    pub(crate) fn new(shape: ChangesRequest) -> Self {
        Tail { shape, state: Mutex::default() }
    }

    pub(crate) fn has_shape(&self, shape: &ChangesRequest) -> bool {
        self.shape == *shape
    }

    /// The rows for a request after `since`, at this time. `read` reads a batch if it is needed. `None` if the caller
    /// must read for itself.
    pub(crate) async fn batch(
        self: &Arc<Self>,
        request: &ChangesRequest,
        since: Seq,
        now_ms: u64,
        read: impl FnOnce(ChangesRequest) -> BoxFuture<Option<ChangesBatch>>,
    ) -> Option<ChangesBatch> {
        let reading = {
            let mut state = self.state.lock();
            let State { kept, reading } = &mut *state;
            kept.forget_old(now_ms);
            if since < kept.after {
                return None;
            }
            if since < kept.last {
                return Some(kept.batch(request, since));
            }
            match reading {
                Some((begun_ms, reading)) if !is_old(*begun_ms, now_ms) => reading.clone(),
                // If there is one, nobody has driven it for a while, or it is slow.
                _ => {
                    if kept.rows.is_empty() {
                        // It has nothing for anybody, and may be far behind.
                        *kept = Span { after: since, last: since, ..Span::default() };
                    }
                    let after = kept.last;
                    let shape = self.shape.clone();
                    let batch = read(ChangesRequest { since: after.into(), limit: Some(MOST_ROWS), ..shape });
                    // Not strong: the tail has the future.
                    let tail = Arc::downgrade(self);
                    let span = async move {
                        let span = batch.await.and_then(|batch| Span::read(after, batch, now_ms)).map(Arc::new);
                        if let Some(tail) = tail.upgrade() {
                            tail.end(now_ms, span.as_deref());
                        }
                        span
                    };
                    reading.insert((now_ms, span.boxed().shared())).1.clone()
                }
            }
        };
        let span = driven(reading).await?;
        // It may have begun before `since` was reached, and know nothing of what comes after it.
        (since < span.last || (since == span.last && !span.more)).then(|| span.batch(request, since))
    }

    /// Forgets all rows that are kept.
    pub(crate) fn clear(&self) {
        self.state.lock().kept.forget(|_, _| true);
    }

    /// Ends the read that began then, which has these rows.
    fn end(&self, begun_ms: u64, span: Option<&Span>) {
        let mut state = self.state.lock();
        if state.reading.as_ref().is_some_and(|(other, _)| *other == begun_ms) {
            state.reading = None;
        }
        if let Some(span) = span.filter(|span| span.after == state.kept.last) {
            state.kept.append(span);
        }
    }
}

impl Span {
    /// A batch that was read after `after`, by a read that began then. `None` if it begins elsewhere, since `after` lies
    /// ahead in this store.
    fn read(after: Seq, batch: ChangesBatch, begun_ms: u64) -> Option<Span> {
        let mut last = after;
        let mut span = Span {
            after,
            last: batch.last_seq,
            last_number: batch.last_number,
            more: batch.more,
            rows: VecDeque::with_capacity(batch.rows.len()),
            bytes: 0,
        };
        for change in batch.rows {
            if change.seq <= last {
                return None;
            }
            last = change.seq;
            let row = Row { bytes: bytes_of(&change), change: Arc::new(change), begun_ms };
            span.bytes += row.bytes;
            span.rows.push_back(row);
        }
        (span.last >= last).then_some(span)
    }

    /// The rows for a request after `since`, which is not before `after` and not beyond `last`.
    fn batch(&self, request: &ChangesRequest, since: Seq) -> ChangesBatch {
        let begin = self.rows.partition_point(|row| row.change.seq <= since);
        let is_asked_for = |id: &str| request.doc_ids.as_ref().is_none_or(|ids| ids.contains(id));
        let mut asked_for = self.rows.range(begin..).map(|row| &row.change).filter(|change| is_asked_for(&change.id));
        let rows: Vec<Change> =
            asked_for.by_ref().take(request.limit.unwrap_or(usize::MAX)).map(|change| Change::clone(change)).collect();
        let is_cut = asked_for.next().is_some();
        let (last_seq, last_number) = match rows.last().filter(|_| is_cut) {
            Some(last) => (last.seq, last.number),
            None => (self.last, self.last_number),
        };
        let more = is_cut || self.more;
        ChangesBatch { rows, last_seq, last_number, more, pending: (!more).then_some(0) }
    }

    /// Appends the rows that were read after `last`.
    fn append(&mut self, span: &Span) {
        let changed: HashSet<&str> = span.rows.iter().map(|row| row.change.id.as_str()).collect();
        self.rows.retain(|row| !changed.contains(row.change.id.as_str()));
        self.rows.extend(span.rows.iter().cloned());
        self.bytes = self.rows.iter().map(|row| row.bytes).sum();
        (self.last, self.last_number, self.more) = (span.last, span.last_number, span.more);
        self.forget(|kept, _| kept.rows.len() > MOST_ROWS || kept.bytes > BYTES_KEPT);
    }

    fn forget_old(&mut self, now_ms: u64) {
        self.forget(|_, oldest| is_old(oldest.begun_ms, now_ms));
    }

    /// Forgets the first row as long as it is to go.
    fn forget(&mut self, goes: impl Fn(&Span, &Row) -> bool) {
        while self.rows.front().is_some_and(|first| goes(self, first))
            && let Some(first) = self.rows.pop_front()
        {
            self.bytes -= first.bytes;
            self.after = first.change.seq;
        }
    }
}

/// Waits for a read. All that wait look again by themselves now and then: `Shared` may wake only a waiter that does not
/// poll it any more (rust-lang/futures-rs#2706).
async fn driven(mut reading: Reading) -> Option<Arc<Span>> {
    loop {
        match select(&mut reading, Delay::new(LOOK)).await {
            Either::Left((span, _)) => return span,
            Either::Right(_) => {}
        }
    }
}

/// Whether what was read at a time is too old to be handed out. If the clock was set back, its age is unknown.
fn is_old(begun_ms: u64, now_ms: u64) -> bool {
    now_ms.abs_diff(begun_ms) > KEPT_MS
}

/// Approximate number of bytes of a row in memory.
fn bytes_of(change: &Change) -> usize {
    let revs = change.revs.len();
    let conflicts = |of: &Option<Vec<RevId>>| of.as_ref().map_or(0, Vec::len);
    let attachment = |one: &Attachment| size_of::<Attachment>() + one.name.len() + one.content_type.len();
    let (revs, document) = change.doc.as_ref().map_or((revs, 0), |document| {
        let attachments: usize = document.attachments.iter().map(attachment).sum();
        let revs = revs + conflicts(&document.conflicts) + conflicts(&document.deleted_conflicts);
        (revs, size_of::<Document>() + document.id.len() + document.body.len() + attachments)
    });
    size_of::<Change>() + change.id.len() + revs * size_of::<RevId>() + document
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::row::STAMP_LEN;

    fn seq(n: usize) -> Seq {
        let mut stamp = [0; STAMP_LEN];
        stamp[..8].copy_from_slice(&(n as u64).to_be_bytes());
        Seq::new(0, &stamp)
    }

    fn change(n: usize, id: &str) -> Change {
        let rev = format!("1-{n:032x}").parse().unwrap();
        Change {
            seq: seq(n),
            number: Some(n as u64),
            id: id.into(),
            revs: vec![rev],
            deleted: false,
            doc: None,
            error: None,
        }
    }

    fn batch(rows: Vec<Change>, last: usize) -> ChangesBatch {
        ChangesBatch { rows, last_seq: seq(last), last_number: Some(last as u64), more: false, pending: Some(0) }
    }

    fn kept(span: &Span) -> Vec<(usize, &str)> {
        let kept = span.rows.iter().map(|row| (row.change.seq.version() as usize, row.change.id.as_str()));
        assert_eq!(span.bytes, span.rows.iter().map(|row| row.bytes).sum::<usize>());
        kept.collect()
    }

    #[test]
    fn a_row_goes_when_its_document_changes_again_when_it_is_old_and_when_there_are_many() {
        let at = |ms: u64| 50_000 + ms;
        let mut span = Span::default();
        span.append(&Span::read(seq(0), batch(vec![change(1, "a"), change(2, "b")], 2), at(0)).unwrap());
        span.append(&Span::read(seq(2), batch(vec![change(4, "a")], 5), at(900)).unwrap());
        assert_eq!((kept(&span), span.after, span.last), (vec![(2, "b"), (4, "a")], seq(0), seq(5)));
        span.forget_old(at(1_000));
        assert_eq!(kept(&span).len(), 2);
        span.forget_old(at(1_001));
        assert_eq!((kept(&span), span.after), (vec![(4, "a")], seq(2)), "what lies before is asked for elsewhere");
        span.forget_old(at(0) - 200);
        assert_eq!((kept(&span), span.after, span.last), (vec![], seq(4), seq(5)), "the clock was set back");

        let rows = |from: usize| (from + 1..=from + MOST_ROWS).map(|n| change(n, &n.to_string())).collect::<Vec<_>>();
        span.append(&Span::read(seq(5), batch(rows(5), 5 + MOST_ROWS), at(3_000)).unwrap());
        assert!(span.rows.len() > 200 && span.bytes <= BYTES_KEPT);
        let last = 5 + MOST_ROWS;
        span.append(&Span::read(seq(last), batch(vec![change(last + 1, "x")], last + 1), at(3_000)).unwrap());
        assert!(span.bytes <= BYTES_KEPT);
        assert_eq!(span.rows.front().unwrap().change.seq.version(), span.after.version() + 1);

        // One row that is too large is handed out, and is not kept.
        let large = change(last + 2, &"x".repeat(BYTES_KEPT));
        span.append(&Span::read(seq(last + 1), batch(vec![large], last + 2), at(3_000)).unwrap());
        assert_eq!((kept(&span), span.after), (vec![], seq(last + 2)));
    }

    #[test]
    fn a_batch_is_cut_after_its_last_row() {
        let rows = vec![change(1, "a"), change(2, "b"), change(3, "a2"), change(4, "b2")];
        let span = Span::read(seq(0), batch(rows, 6), 0).unwrap();
        let found = |request: ChangesRequest, since| {
            let batch = span.batch(&request, seq(since));
            let rows: Vec<u64> = batch.rows.iter().map(|row| row.seq.version()).collect();
            assert_eq!(batch.pending, (!batch.more).then_some(0));
            (rows, batch.last_seq.version(), batch.last_number, batch.more)
        };
        let limited = |limit| ChangesRequest { limit: Some(limit), ..ChangesRequest::default() };
        let only = ChangesRequest { doc_ids: Some(["b", "b2"].into_iter().collect()), ..limited(1) };
        assert_eq!(found(ChangesRequest::default(), 1), (vec![2, 3, 4], 6, Some(6), false));
        assert_eq!(found(limited(2), 1), (vec![2, 3], 3, Some(3), true));
        assert_eq!(found(limited(3), 1), (vec![2, 3, 4], 6, Some(6), false));
        assert_eq!(found(only.clone(), 0), (vec![2], 2, Some(2), true));
        assert_eq!(found(only, 2), (vec![4], 6, Some(6), false));
        assert_eq!(found(limited(1), 4), (vec![], 6, Some(6), false));
    }

    #[test]
    fn rows_from_before_the_place_are_not_kept() {
        let read = |rows, last| Span::read(seq(5), batch(rows, last), 0);
        assert!(read(vec![change(6, "a")], 6).is_some());
        // A store whose versions went back starts at its beginning.
        assert!(read(vec![change(1, "a"), change(6, "b")], 6).is_none());
        assert!(read(vec![], 4).is_none());
    }

    #[test]
    fn a_read_from_before_its_place_is_no_answer_for_a_feed() {
        let (tail, request) = (Arc::new(Tail::new(ChangesRequest::default())), ChangesRequest::default());
        let read = |_| async { Some(batch(vec![change(1, "a")], 3)) }.boxed();
        // It begins after 0, since rows are kept up to there, for a feed that is at 5 already.
        tail.state.lock().kept.rows.push_back(Row { change: Arc::new(change(0, "z")), bytes: 0, begun_ms: 0 });
        assert!(tail.batch(&request, seq(5), 0, read).now_or_never().unwrap().is_none());
        let found = tail.batch(&request, seq(0), 0, |_| unreachable!("it is kept")).now_or_never().flatten().unwrap();
        assert_eq!((found.rows.len(), found.last_seq, found.more), (1, seq(3), false));
    }

    #[test]
    fn a_read_that_nobody_drives_is_left_after_a_while() {
        let (tail, request) = (Arc::new(Tail::new(ChangesRequest::default())), ChangesRequest::default());
        let begin_ms = 50_000;
        let (go_on, gone_on) = futures_util::future::abortable(std::future::pending::<()>());
        // It has rows as soon as it is driven again after `gone_on`.
        let mut first = Box::pin(tail.batch(&request, seq(0), begin_ms, |_| {
            async move {
                let _ = go_on.await;
                Some(batch(vec![change(1, "a")], 1))
            }
            .boxed()
        }));
        assert!(first.as_mut().now_or_never().is_none());
        let joined = |at| tail.batch(&request, seq(0), begin_ms + at, |_| unreachable!("another read"));
        assert!(joined(KEPT_MS).now_or_never().is_none());

        let late = begin_ms + KEPT_MS + 1;
        let second = |request: ChangesRequest| {
            assert_eq!((request.since, request.limit), (Since::Seq(seq(0)), Some(MOST_ROWS)));
            async { Some(batch(vec![change(1, "a"), change(2, "b")], 2)) }.boxed()
        };
        let found = tail.batch(&request, seq(0), late, second).now_or_never().flatten().unwrap();
        assert_eq!(found.last_seq, seq(2));
        // The first one ends nothing but itself.
        gone_on.abort();
        assert_eq!(first.now_or_never().flatten().unwrap().last_seq, seq(1));
        assert_eq!(kept(&tail.state.lock().kept), [(1, "a"), (2, "b")]);
    }
}
