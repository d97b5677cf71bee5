//! Compares a database with its copy: numbers of documents, and the leaves of each document.
//!
//! Each side is asked which leaves of the other it does not know. If neither misses any, both have the same leaves: a
//! leaf of one that is an ancestor in the other would have a descendant there which the first one does not know. No body
//! is read; a revision's id is the hash of its body and its ancestors.

use model::limits::DESIGN_PREFIX;
use model::{RevId, RevsDiff};
use peer::{FeedRequest, Peer, Result};

/// Number of documents that are compared at a time.
const ROWS: usize = 1_000;

/// Number of differences of a database that are named. All are counted.
const MOST_NAMED: usize = 100;

/// What differs.
#[derive(Debug, Default)]
pub(super) struct Differences {
    pub(super) count: u64,
    /// The first ones, each as a sentence.
    pub(super) named: Vec<String>,
}

impl Differences {
    pub(super) fn add(&mut self, sentence: String) {
        self.count += 1;
        if self.named.len() < MOST_NAMED {
            self.named.push(sentence);
        }
    }
}

/// Compares all documents, except those that are `left` out. `progress` is called with the number of documents so far.
pub(super) async fn compare(
    old: &dyn Peer,
    here: &dyn Peer,
    is_left: impl Fn(&str) -> bool,
    differences: &mut Differences,
    mut progress: impl FnMut(u64),
) -> Result<()> {
    let mut compared = 0;
    for (from, to, where_missing) in [(old, here, "here"), (here, old, "on the old server")] {
        let mut since = None;
        loop {
            let request = FeedRequest { since, limit: ROWS, all_leaves: true, ..FeedRequest::default() };
            let page = from.changes(&request).await?;
            compared += page.rows.len() as u64;
            let mut wanted = Vec::with_capacity(page.rows.len());
            for row in page.rows.into_iter().filter(|row| !is_left(&row.id)) {
                if let Some((error, reason)) = row.error {
                    differences.add(format!("{:?} cannot be read: {error}: {reason}", row.id));
                }
                match row.revs.iter().map(|rev| RevId::parse(rev)).collect::<Result<Vec<_>, _>>() {
                    Ok(revs) => wanted.push((row.id, revs)),
                    Err(_) => differences.add(format!("{:?} has a revision that is none: {:?}", row.id, row.revs)),
                }
            }
            for RevsDiff { id, missing, .. } in to.revs_diff(wanted).await? {
                for rev in missing {
                    differences.add(format!("{id:?}: {rev} is missing {where_missing}"));
                }
            }
            progress(compared);
            if !page.more {
                break;
            }
            since = Some(page.last_seq);
        }
    }
    Ok(())
}

/// Compares the numbers of live documents.
pub(super) async fn compare_counts(old: &dyn Peer, here: &dyn Peer, differences: &mut Differences) -> Result<()> {
    let (there, here) = (old.info().await?.documents, here.info().await?.documents);
    if there != here {
        differences.add(format!("the old server counts {there} documents, and here are {here}"));
    }
    Ok(())
}

/// Design documents, of which each server has its own in databases of the system.
pub(super) fn is_design(id: &str) -> bool {
    id.starts_with(DESIGN_PREFIX)
}
