//! Compares a database with its copy: numbers of documents, and the leaves of each document.
//!
//! Each side is asked which leaves of the other it does not know. If neither misses any, both have the same leaves: a
//! leaf of one that is an ancestor in the other would have a descendant there which the first one does not know. No
//! body is read: two bodies under the same revision id are not told apart.
//!
//! Leaves that are missing here are copied once more by the ids of their documents. The replication's checkpoint passes
//! documents that were refused once, so no later replication would copy them.

use model::limits::DESIGN_PREFIX;
use model::{RevId, RevsDiff};
use peer::{FeedRequest, Peer, Result};

/// Number of documents that are compared at a time.
const ROWS: usize = 1_000;

/// Number of differences of a database that are named. All are counted.
const MOST_NAMED: usize = 100;

/// Number of documents of a database that are copied once more in a run. Those beyond it are differences.
const MOST_AGAIN: usize = 10_000;

const HERE: &str = "here";

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

/// Compares all documents, except those that are `left` out. `again` copies documents of which leaves are missing here.
/// `progress` is called with the number of documents so far.
pub(super) async fn compare(
    old: &dyn Peer,
    here: &dyn Peer,
    is_left: impl Fn(&str) -> bool,
    again: impl AsyncFn(Vec<String>) -> Result<()>,
    differences: &mut Differences,
    mut progress: impl FnMut(u64),
) -> Result<()> {
    let (mut compared, mut copied_again) = (0, 0);
    for (from, to, where_missing) in [(old, here, HERE), (here, old, "on the old server")] {
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
            let mut lacking = to.revs_diff(wanted).await?;
            if where_missing == HERE && !lacking.is_empty() && copied_again < MOST_AGAIN {
                copied_again += lacking.len();
                again(lacking.iter().map(|lacking| lacking.id.clone()).collect()).await?;
                let still = lacking.into_iter().map(|lacking| (lacking.id, lacking.missing)).collect();
                lacking = to.revs_diff(still).await?;
            }
            for RevsDiff { id, missing, .. } in lacking {
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
