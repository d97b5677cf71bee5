//! Checks the rows of one document against each other.

use std::collections::HashSet;

use kv_api::KeyValue;

use super::report::{CheckReport, Sums};
use crate::keys::Leaf;
use crate::read::all_docs::read_winner;
use crate::read::winner::decode;
use crate::rows::branch::Branch;
use crate::rows::change_row::ChangeRow;
use crate::rows::revid::RevId;
use crate::write::policy::ConflictPolicy;

/// The rows of one body.
pub(super) struct Body {
    pub(super) leaf: Leaf,
    /// Length of the keys' common prefix.
    pub(super) prefix: usize,
    pub(super) rows: Vec<KeyValue>,
}

/// All rows of one document.
#[derive(Default)]
pub(super) struct Document {
    pub(super) branches: Vec<Branch>,
    pub(super) broken: Vec<String>,
    pub(super) bodies: Vec<Body>,
    pub(super) listed: Option<kv_api::Bytes>,
}

impl Document {
    /// Reports inconsistencies, and adds the document to the totals.
    pub(super) fn check(
        self,
        id: &str,
        policy: ConflictPolicy,
        change: Option<&[u8]>,
        report: &mut CheckReport,
        sums: &mut Sums,
    ) {
        for what in &self.broken {
            report.add(Some(id), what.clone());
        }
        report.revisions += (self.branches.len() + self.broken.len()) as u64;
        let Some((winner, losers)) = self.branches.split_last() else {
            if self.broken.is_empty() {
                report.add(Some(id), "has rows, but no revisions");
            }
            return;
        };
        report.documents += 1;
        for branch in losers.iter().filter(|branch| branch.winner_info.is_some()) {
            report.add(Some(id), format!("{} has a sequence and is not the winner", branch.leaf.rev));
        }
        for branch in self.branches.iter().filter(|branch| branch.policy != policy) {
            report.add(Some(id), format!("{} is written for another conflict policy", branch.leaf.rev));
        }
        if policy == ConflictPolicy::LastWriteWins && !losers.is_empty() {
            report.add(Some(id), format!("has {} leaves, though the last write wins", losers.len() + 1));
        }
        self.check_tree(id, report);
        self.check_bodies(id, report);
        self.check_listing(id, winner, report);
        let external: u64 = self.branches.iter().map(|branch| branch.size).sum();
        sums.stats.external += external as i64;
        if winner.leaf.not_deleted {
            sums.stats.doc_count += 1;
        } else {
            sums.stats.doc_del_count += 1;
        }
        let Some(winner_info) = winner.winner_info else {
            report.add(Some(id), format!("its winner {} has no sequence", winner.leaf.rev));
            return;
        };
        sums.last = sums.last.max(winner_info.seq);
        if winner_info.branches != self.branches.len() as u64 {
            let found = self.branches.len();
            report.add(Some(id), format!("its winner counts {} branches, but there are {found}", winner_info.branches));
        }
        let expected = ChangeRow { id: id.to_owned(), winner: winner.leaf.clone(), branches: winner_info.branches };
        match change.map(ChangeRow::read) {
            None => report.add(Some(id), format!("has no change at its sequence {}", winner_info.seq)),
            Some(Err(error)) => report.add(Some(id), format!("its change cannot be read: {}", error.reason())),
            Some(Ok(found)) if found != expected => {
                report.add(Some(id), format!("its change says {found:?}, its winner {expected:?}"));
            }
            Some(Ok(_)) => {}
        }
    }

    /// Leaves must not have more ancestors than their positions allow. They usually have no known children.
    fn check_tree(&self, id: &str, report: &mut CheckReport) {
        let mut inner: HashSet<RevId> = HashSet::new();
        for branch in &self.branches {
            let leaf = &branch.leaf.rev;
            match branch.ancestors.to_vec() {
                Err(error) => report.add(Some(id), format!("{leaf}: {}", error.reason())),
                Ok(ancestors) if ancestors.len() as u64 >= leaf.position() => {
                    report.add(Some(id), format!("{leaf} has {} ancestors", ancestors.len()));
                }
                // A document's only leaf has no children, whatever its ancestors.
                Ok(_) if self.branches.len() == 1 => {}
                Ok(ancestors) => {
                    let positions = (1..leaf.position()).rev();
                    inner.extend(positions.zip(ancestors).filter_map(|(at, hash)| RevId::new(at, hash).ok()));
                }
            }
        }
        report.unjoined += self.branches.iter().filter(|branch| inner.contains(&branch.leaf.rev)).count() as u64;
    }

    fn check_bodies(&self, id: &str, report: &mut CheckReport) {
        for branch in &self.branches {
            let rev = &branch.leaf.rev;
            if branch.leaf.not_deleted && branch.size < 2 {
                report.add(Some(id), format!("the live leaf {rev} has no body, according to its branch"));
            }
            let body = self.bodies.iter().find(|body| body.leaf == branch.leaf);
            match body {
                None if branch.size > 0 => report.add(Some(id), format!("has no body at {rev}")),
                None => {}
                Some(_) if branch.size == 0 => {
                    report.add(Some(id), format!("has a body at {rev}, but none according to its branch"))
                }
                Some(body) => match body.rows.first().map(|row| decode(&row.key[..body.prefix], &body.rows)) {
                    Some(Ok(found)) if found.attachments.is_empty() == branch.attachments => {
                        let said = if branch.attachments { "has no attachments" } else { "has attachments" };
                        report.add(Some(id), format!("{rev} {said}, but its branch says otherwise"));
                    }
                    Some(Ok(found)) if found.text.len() as u64 == branch.size => {}
                    Some(Ok(found)) => {
                        let (found, size) = (found.text.len(), branch.size);
                        report
                            .add(Some(id), format!("its body at {rev} has {found} bytes, but its branch says {size}"));
                    }
                    Some(Err(error)) => report.add(Some(id), format!("its body at {rev}: {}", error.reason())),
                    None => {}
                },
            }
        }
        for body in &self.bodies {
            if self.branches.iter().all(|branch| branch.leaf != body.leaf) && self.broken.is_empty() {
                report.add(Some(id), format!("has a body at {}, which is not a leaf", body.leaf.rev));
            }
        }
    }

    fn check_listing(&self, id: &str, winner: &Branch, report: &mut CheckReport) {
        match (&self.listed, winner.leaf.not_deleted) {
            (None, true) => report.add(Some(id), "is not listed in all_docs"),
            (Some(_), false) => report.add(Some(id), "is deleted and listed in all_docs"),
            (Some(row), true) => match read_winner(row) {
                Ok(rev) if rev == winner.leaf.rev => {}
                Ok(rev) => report.add(Some(id), format!("is listed at {rev}, its winner is {}", winner.leaf.rev)),
                Err(error) => report.add(Some(id), format!("its row in all_docs: {}", error.reason())),
            },
            (None, false) => {}
        }
    }
}
