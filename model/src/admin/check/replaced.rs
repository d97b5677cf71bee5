//! Checks the rows of replaced revisions whose bodies are kept.
//!
//! ```text
//!  heads    each is not a leaf, and has the row of its time, a readable body, and its attachments
//!  times    each has its head
//!  bodies   each has its head
//! ```
//!
//! A repair does not change these rows: documents do not depend on them.

use kv_api::keys::key_after;
use kv_api::{Bytes, Database, RangeRequest, Read, Transaction};

use super::report::CheckReport;
use crate::documents::Documents;
use crate::error::{Result, alone};
use crate::keys::{DatabaseKey, Leaf, Subspace};
use crate::read::winner::body_at;
use crate::replaced::Replaced;

/// Number of rows that are read at a time. Each may have a body.
const AT_ONCE: usize = 50;

/// Problems, each with its document where that is known.
type Problems = Vec<(Option<String>, String)>;

impl<D: Database> Documents<D> {
    pub(super) async fn check_replaced(&self, report: &mut CheckReport) -> Result<()> {
        let keys = self.keys();
        let (first, beyond) = keys.bounds(DatabaseKey::All(Subspace::Replaced));
        let times = keys.key(DatabaseKey::ReplacedFrom(0));
        let mut next = Some(Bytes::from(first));
        while let Some(from) = next {
            let range = RangeRequest::keys(from, times.clone());
            let heads = self.read_batch(AT_ONCE, |transaction, rows| self.heads(transaction, range.clone(), rows));
            next = report_page(report, heads.await?);
        }
        let (bodies, end) = keys.bounds(DatabaseKey::All(Subspace::ReplacedDocs));
        for (from, end, of_times) in [(times, beyond, true), (bodies, end, false)] {
            let mut next = Some(Bytes::from(from));
            while let Some(from) = next {
                let range = RangeRequest::keys(from, end.clone());
                let page = self.read_batch(AT_ONCE, |transaction, rows| {
                    self.without_heads(transaction, range.clone().limit(rows), of_times)
                });
                next = report_page(report, page.await?);
            }
        }
        Ok(())
    }

    /// The problems of the first heads, and the key at which to continue.
    async fn heads(
        &self,
        transaction: D::Transaction,
        range: RangeRequest,
        rows: usize,
    ) -> Result<(Problems, Option<Bytes>)> {
        let keys = self.keys();
        let instance = self.instance(&transaction, Read::Snapshot);
        let batch = transaction.get_range(&range.limit(rows), Read::Snapshot).await?;
        instance.await?;
        let mut problems = Problems::new();
        let mut reads = Vec::with_capacity(batch.rows.len());
        for row in &batch.rows {
            let (id, leaf) = match keys.read_replaced(&row.key) {
                Ok(read) => read,
                Err(error) => {
                    problems.push((None, format!("a key of a replaced revision cannot be read: {}", error.reason())));
                    continue;
                }
            };
            let replaced = match Replaced::read(leaf.clone(), &row.value) {
                Ok(replaced) => replaced,
                Err(error) => {
                    problems.push((Some(id), format!("the replaced {} cannot be read: {}", leaf.rev, error.reason())));
                    continue;
                }
            };
            let get = |key| transaction.get(&keys.key(key), Read::Snapshot);
            let as_leaf = get(DatabaseKey::Revision(&id, &leaf));
            let time = get(DatabaseKey::ReplacedSince(replaced.since_ms, &id, &leaf));
            let body = body_at(&transaction, keys.key(DatabaseKey::ReplacedDoc(&id, &leaf)));
            reads.push((id, replaced, as_leaf, time, body));
        }
        for (id, replaced, as_leaf, time, body) in reads {
            let mut add =
                |what: &str| problems.push((Some(id.clone()), format!("the replaced {} {what}", replaced.leaf.rev)));
            if as_leaf.await?.is_some() {
                add("is a leaf");
            }
            if time.await?.is_none() {
                add("has no row of its time");
            }
            let attachments = match alone(body.await)? {
                Ok(Some(body)) => body.attachments,
                Ok(None) if replaced.size == 0 => Vec::new(),
                Ok(None) => {
                    add("has no body");
                    continue;
                }
                Err(error) => {
                    add(&format!("has a body that cannot be read: {}", error.reason()));
                    continue;
                }
            };
            for attachment in attachments {
                let content = &attachment.content;
                let reference = DatabaseKey::Reference(content, &id, &replaced.leaf);
                let rows = [DatabaseKey::Content(content), reference]
                    .map(|key| transaction.get(&keys.key(key), Read::Snapshot));
                for (row, what) in rows.into_iter().zip(["no content", "no reference to its content"]) {
                    if row.await?.is_none() {
                        add(&format!("has an attachment {:?} with {what}", attachment.name));
                    }
                }
            }
        }
        let next = batch.rows.last().filter(|_| batch.more).map(|row| key_after(&row.key));
        Ok((problems, next))
    }

    /// The first times or bodies without a head, and the key at which to continue.
    async fn without_heads(
        &self,
        transaction: D::Transaction,
        range: RangeRequest,
        of_times: bool,
    ) -> Result<(Problems, Option<Bytes>)> {
        let keys = self.keys();
        let instance = self.instance(&transaction, Read::Snapshot);
        let batch = transaction.get_range(&range, Read::Snapshot).await?;
        instance.await?;
        let mut problems = Problems::new();
        let mut reads: Vec<(String, Leaf, Option<u64>, _)> = Vec::new();
        for row in &batch.rows {
            let read = if of_times {
                keys.read_replaced_since(&row.key).map(|(since_ms, id, leaf)| (id, leaf, Some(since_ms)))
            } else {
                keys.read_replaced_doc(&row.key).map(|(id, leaf)| (id, leaf, None))
            };
            let (id, leaf, since_ms) = match read {
                Ok(read) => read,
                Err(error) => {
                    problems.push((None, format!("a key of a replaced revision cannot be read: {}", error.reason())));
                    continue;
                }
            };
            if reads.last().is_some_and(|(last, of, since, _)| (last, of, *since) == (&id, &leaf, since_ms)) {
                continue;
            }
            let head = transaction.get(&keys.key(DatabaseKey::Replaced(&id, &leaf)), Read::Snapshot);
            reads.push((id, leaf, since_ms, head));
        }
        for (id, leaf, since_ms, head) in reads {
            let head = head.await?.map(|head| Replaced::read(leaf.clone(), &head));
            let is_there = match head {
                Some(Ok(head)) => since_ms.is_none_or(|since_ms| since_ms == head.since_ms),
                // The head itself is reported.
                Some(Err(_)) => true,
                None => false,
            };
            if !is_there {
                let what = if of_times { "a time" } else { "a body" };
                problems.push((Some(id), format!("there is {what} of the replaced {} without its row", leaf.rev)));
            }
        }
        let next = batch.rows.last().filter(|_| batch.more).map(|row| key_after(&row.key));
        Ok((problems, next))
    }
}

fn report_page(report: &mut CheckReport, (problems, next): (Problems, Option<Bytes>)) -> Option<Bytes> {
    for (id, what) in problems {
        report.add(id.as_deref(), what);
    }
    next
}
