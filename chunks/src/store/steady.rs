//! A store that retries failed operations of another one.
//!
//! Reads and merges of existing leaves are simply repeated. A failed write may have happened, so each document is
//! read first:
//!
//! ```text
//!  found                                        then
//!  the leaf that the edit replaces              it was not written: retry
//!  a leaf with the edit's content on top of it  it was written
//!  other leaves directly on top of it           another writer was faster: a conflict
//!  anything else                                unknown, for the caller to decide
//! ```
//!
//! A retry is safe because an edit names the leaf that it replaces: if the first attempt arrives late, one of the two
//! finds the leaf gone. An edit that creates a document names no leaf. It is repeated only while there is no trace of
//! the document, not even a tombstone. Otherwise a document that was written and deleted since could come back.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use peer::Retry;

use super::{Body, Changes, DocumentStore, Edit, Figures, IdRange, Leaf, ListingPage, Refusal, StoreResult, Written};
use crate::environment::TimedEnvironment;
use crate::error::{StoreError, StoreErrorKind};

/// A store with retries.
#[derive(Clone)]
pub(crate) struct Steady {
    inner: Arc<dyn DocumentStore>,
    retry: Retry,
}

/// State of a failed edit.
enum Inferred {
    Outcome(Written),
    Again,
}

impl Steady {
    pub(crate) fn new(inner: Arc<dyn DocumentStore>, environment: Arc<dyn TimedEnvironment>) -> Self {
        Steady { inner, retry: Retry::new(environment) }
    }
}

impl fmt::Debug for Steady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Steady").field(&self.inner).finish()
    }
}

#[async_trait]
impl DocumentStore for Steady {
    async fn leaves(&self, ids: &[String], with_ancestors: bool) -> StoreResult<Vec<Vec<Leaf>>> {
        self.retry.ask(|| self.inner.leaves(ids, with_ancestors)).await
    }

    async fn leaves_within(&self, ids: &[String], most_bytes: usize) -> StoreResult<Vec<Vec<Leaf>>> {
        self.retry.ask(|| self.inner.leaves_within(ids, most_bytes)).await
    }

    async fn revisions(&self, wanted: &[(String, String)]) -> StoreResult<Vec<Option<Body>>> {
        self.retry.ask(|| self.inner.revisions(wanted)).await
    }

    async fn had(&self, sequence: &str) -> StoreResult<bool> {
        self.retry.ask(|| self.inner.had(sequence)).await
    }

    async fn local(&self, id: &str) -> StoreResult<Option<Body>> {
        self.retry.ask(|| self.inner.local(id)).await
    }

    async fn revs(&self, ids: &[String]) -> StoreResult<Vec<Option<String>>> {
        self.retry.ask(|| self.inner.revs(ids)).await
    }

    async fn write(&self, edits: Vec<Edit>) -> StoreResult<Vec<Written>> {
        let mut outcomes: Vec<Option<Written>> = vec![None; edits.len()];
        let mut open: Vec<usize> = (0..edits.len()).collect();
        let mut effort = self.retry.effort();
        while !open.is_empty() {
            let some: Vec<Edit> = open.iter().filter_map(|&place| edits.get(place).cloned()).collect();
            let (unknown, failure) = match self.inner.write(some).await {
                Ok(written) => {
                    self.retry.answered();
                    let (mut unknown, mut failure) = (Vec::new(), None);
                    for (place, written) in open.drain(..).zip(written) {
                        match written {
                            Err(Refusal::Unknown(reason)) => {
                                failure = Some(reason);
                                unknown.push(place);
                            }
                            written => outcomes[place] = Some(written),
                        }
                    }
                    let Some(reason) = failure else { break };
                    (unknown, StoreError::new(StoreErrorKind::Unavailable, reason))
                }
                Err(failure) if failure.is_transient() => (std::mem::take(&mut open), failure),
                Err(failure) => return Err(failure),
            };
            let reason = failure.to_string();
            self.retry.pause(&mut effort, failure).await?;
            let ids: Vec<String> = unknown.iter().map(|&place| edits[place].id.clone()).collect();
            for (place, leaves) in unknown.into_iter().zip(self.leaves(&ids, true).await?) {
                match infer_outcome(&edits[place], &leaves, &reason) {
                    Inferred::Outcome(written) => outcomes[place] = Some(written),
                    Inferred::Again => open.push(place),
                }
            }
        }
        let unsaid = || Err(Refusal::Unknown("the store gave no result for it".into()));
        Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unsaid)).collect())
    }

    async fn graft(&self, leaves: Vec<(String, Leaf)>) -> StoreResult<()> {
        self.retry.ask(|| self.inner.graft(leaves.clone())).await
    }

    async fn list(&self, range: &IdRange) -> StoreResult<ListingPage> {
        self.retry.ask(|| self.inner.list(range)).await
    }

    async fn changes(&self, since: Option<&str>, limit: usize) -> StoreResult<Changes> {
        self.retry.ask(|| self.inner.changes(since, limit)).await
    }

    async fn figures(&self) -> StoreResult<Figures> {
        self.retry.ask(|| self.inner.figures()).await
    }

    async fn takes(&self, bytes: usize) -> StoreResult<bool> {
        self.retry.ask(|| self.inner.takes(bytes)).await
    }
}

/// The result of an edit, from the leaves that are there after it.
fn infer_outcome(edit: &Edit, leaves: &[Leaf], reason: &str) -> Inferred {
    let unknown = || Inferred::Outcome(Err(Refusal::Unknown(format!("it may have been written or not: {reason}"))));
    let is_it = |leaf: &&Leaf| leaf.deleted == edit.deleted && leaf.body == edit.body;
    let Some(rev) = &edit.rev else {
        let live = || leaves.iter().filter(|leaf| !leaf.deleted);
        return match live().find(is_it) {
            // The leaf has the edit's content, no matter who wrote it.
            Some(leaf) => Inferred::Outcome(Ok(leaf.rev.clone())),
            None if leaves.is_empty() => Inferred::Again,
            None if live().next().is_some() && leaves.iter().all(|leaf| leaf.ancestors.is_empty()) => {
                Inferred::Outcome(Err(Refusal::Conflict))
            }
            None => unknown(),
        };
    };
    if leaves.iter().any(|leaf| leaf.rev == *rev) {
        // Nobody can replace a tombstone.
        let is_live = leaves.iter().any(|leaf| leaf.rev == *rev && !leaf.deleted);
        return if is_live { Inferred::Again } else { Inferred::Outcome(Err(Refusal::Conflict)) };
    }
    let mut on_top = leaves.iter().filter(|leaf| leaf.ancestors.contains(rev)).peekable();
    if on_top.peek().is_none() {
        return unknown();
    }
    let is_direct = |leaf: &&Leaf| leaf.ancestors.first() == Some(rev);
    match leaves.iter().filter(is_direct).find(is_it) {
        Some(leaf) => Inferred::Outcome(Ok(leaf.rev.clone())),
        None if on_top.all(|leaf| is_direct(&leaf)) => Inferred::Outcome(Err(Refusal::Conflict)),
        None => unknown(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::Body;

    fn body(number: u64) -> Body {
        json!({"n": number}).as_object().cloned().unwrap_or_default()
    }

    fn leaf(rev: &str, number: u64, ancestors: &[&str]) -> Leaf {
        let ancestors = ancestors.iter().map(|&rev| rev.to_owned()).collect();
        Leaf { rev: rev.into(), deleted: false, body: body(number), ancestors }
    }

    fn tombstone(rev: &str, ancestors: &[&str]) -> Leaf {
        Leaf { deleted: true, body: Body::new(), ..leaf(rev, 0, ancestors) }
    }

    #[track_caller]
    fn check(edit: &Edit, leaves: &[Leaf], wanted: &str) {
        let found = match infer_outcome(edit, leaves, "silence") {
            Inferred::Again => "again".to_owned(),
            Inferred::Outcome(Ok(rev)) => rev,
            Inferred::Outcome(Err(Refusal::Unknown(_))) => "unknown".to_owned(),
            Inferred::Outcome(Err(refusal)) => refusal.to_string(),
        };
        assert_eq!(found, wanted, "{edit:?} over {leaves:?}");
    }

    #[test]
    fn an_edit_is_settled_by_what_is_there() {
        let edit = Edit { id: "x".into(), rev: Some("2-b".into()), deleted: false, body: body(7) };
        check(&edit, &[leaf("2-b", 1, &["1-a"])], "again");
        check(&edit, &[leaf("3-c", 7, &["2-b", "1-a"])], "3-c");
        check(&edit, &[leaf("3-d", 8, &["2-b", "1-a"])], "conflict");
        check(&edit, &[leaf("3-d", 8, &["2-b", "1-a"]), leaf("3-c", 7, &["2-b", "1-a"])], "3-c");
        // Another client continued from one of them, and it is unknown whose it was.
        check(&edit, &[leaf("4-e", 9, &["3-c", "2-b", "1-a"])], "unknown");
        check(&edit, &[leaf("2-x", 1, &["1-a"])], "unknown");
        check(&edit, &[leaf("2-x", 1, &["1-a"]), leaf("2-b", 1, &["1-a"])], "again");
        check(&edit, &[tombstone("2-b", &["1-a"])], "conflict");
        check(&edit, &[], "unknown");
    }

    #[test]
    fn a_deletion_is_settled_by_its_tombstone() {
        let edit = Edit::delete("x", "2-b");
        check(&edit, &[leaf("2-b", 1, &["1-a"])], "again");
        check(&edit, &[tombstone("3-c", &["2-b", "1-a"])], "3-c");
        check(&edit, &[leaf("3-c", 1, &["2-b", "1-a"])], "conflict");
    }

    #[test]
    fn a_new_document_is_written_again_only_where_there_is_no_trace_of_it() {
        let edit = Edit { id: "x".into(), rev: None, deleted: false, body: body(7) };
        check(&edit, &[], "again");
        check(&edit, &[leaf("1-a", 7, &[])], "1-a");
        check(&edit, &[leaf("1-a", 8, &[])], "conflict");
        check(&edit, &[leaf("2-b", 8, &["1-a"])], "unknown");
        // It may have been written, and deleted since.
        check(&edit, &[tombstone("2-b", &["1-a"])], "unknown");
        check(&edit, &[leaf("3-c", 7, &["2-b", "1-a"])], "3-c");
    }
}
