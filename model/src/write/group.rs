//! Divides edits into groups, one transaction each.
//!
//! Invariants: A group of interactive edits has at most one edit of each document. The edits of a document are in
//! groups in their order. The estimated size of a group's rows is well below the 10 MB that a transaction may affect.

use std::collections::HashMap;

use crate::read::batch::{BATCH_BYTES, Batch};
use crate::rows::body::BodyFormat;
use crate::write::edit::{Edit, WriteMode};

/// Maximum number of edits in a group. Their numbers in the transaction are 16 bits of the sequence, and reads in
/// flight take memory.
const GROUP_EDITS: usize = 2_000;

/// Estimated size of an edit without its body: revisions, changes, all_docs, with their conflict ranges.
const EDIT_BYTES: usize = 1_000;

/// Estimated size of a row without its value.
const ROW_BYTES: usize = 150;

/// Estimated size of an attachment without its content: its entry in the list and its reference, with their conflict
/// ranges.
const ATTACHMENT_BYTES: usize = 1_500;

/// Typical size of an ancestor in a row of `revisions`.
const ANCESTOR_BYTES: usize = 18;

/// Divides the edits with the ascending indexes `fit` into groups, in the order in which they are written. Within
/// a group the edits are sorted by id: the store reads and writes that order fastest. `revs_limit` is the probable
/// number of revisions that a branch remembers, and `format` the probable layout of bodies.
pub(super) fn groups(
    edits: &[Edit],
    fit: Vec<usize>,
    mode: WriteMode,
    revs_limit: usize,
    format: BodyFormat,
) -> Vec<Vec<usize>> {
    if fit.len() == 1 {
        return vec![fit];
    }
    let mut by_id = fit.clone();
    sort_by_id(edits, &mut by_id);
    let all_differ = || by_id.windows(2).all(|pair| edits[pair[0]].id != edits[pair[1]].id);
    // Replicated edits of one document are merged together.
    let rounds = if mode == WriteMode::Replicated || all_differ() { vec![fit] } else { rounds(edits, fit) };
    let mut group_of = vec![0; edits.len()];
    let mut groups = Vec::new();
    for round in rounds {
        let (mut group, mut batch) = (Vec::new(), Batch::of(GROUP_EDITS));
        for index in round {
            let estimate = estimate(&edits[index], revs_limit, format);
            if !batch.take(estimate) {
                groups.push(std::mem::take(&mut group));
                batch = Batch::of(GROUP_EDITS);
                batch.add(estimate);
            }
            group_of[index] = groups.len();
            group.push(index);
        }
        if !group.is_empty() {
            groups.push(group);
        }
    }
    if groups.len() == 1 {
        return vec![by_id];
    }
    for group in &mut groups {
        group.clear();
    }
    for index in by_id {
        groups[group_of[index]].push(index);
    }
    groups
}

/// Splits a group that proved too large into its earlier and its later edits.
pub(super) fn halves(edits: &[Edit], mut group: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
    group.sort_unstable();
    let mut later = group.split_off(group.len() / 2);
    sort_by_id(edits, &mut group);
    sort_by_id(edits, &mut later);
    (group, later)
}

/// Sorts by id. Edits of one document stay in their order.
fn sort_by_id(edits: &[Edit], indexes: &mut [usize]) {
    let order = |one: &usize, other: &usize| edits[*one].id.cmp(&edits[*other].id).then(one.cmp(other));
    if !indexes.is_sorted_by(|one, other| order(one, other).is_le()) {
        indexes.sort_unstable_by(order);
    }
}

/// Rounds: the first edit of each document, then the second of each, and so on.
fn rounds(edits: &[Edit], fit: Vec<usize>) -> Vec<Vec<usize>> {
    let mut seen: HashMap<&str, usize> = HashMap::with_capacity(fit.len());
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    for index in fit {
        let times = seen.entry(&edits[index].id).or_insert(0);
        if rounds.len() == *times {
            rounds.push(Vec::new());
        }
        rounds[*times].push(index);
        *times += 1;
    }
    rounds
}

/// Estimates the bytes that an edit affects. In an exploded body every comma of the text may mean a row. The
/// ancestors are moved from the row of the extended branch to the new row, or come with the edit.
pub(super) fn estimate(edit: &Edit, revs_limit: usize, format: BodyFormat) -> usize {
    let text = edit.body.as_bytes();
    let rows = match format {
        BodyFormat::Exploded => memchr::memchr_iter(b',', text).count() + 1,
        BodyFormat::Packed => 1,
    };
    let ancestors = match (&edit.history, &edit.rev) {
        (Some(history), _) => {
            let own = history.ids.iter().take(revs_limit);
            // Other paths of the document may have the ancestors that it lacks.
            let lacked = history.position.min(revs_limit as u64) as usize;
            let lacked = lacked.saturating_sub(own.len()) * ANCESTOR_BYTES;
            lacked + own.skip(1).map(|id| ANCESTOR_BYTES.max(id.as_bytes().len() + 2)).sum::<usize>()
        }
        (None, Some(rev)) => usize::try_from(rev.position()).unwrap_or(usize::MAX).min(revs_limit) * ANCESTOR_BYTES,
        (None, None) => 0,
    };
    let attachments: usize = edit.attachments.iter().map(|one| ATTACHMENT_BYTES + one.bytes_in_memory()).sum();
    EDIT_BYTES + text.len() + ancestors + attachments + (rows * (ROW_BYTES + edit.id.len())).min(BATCH_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::revid::RevHash;
    use crate::write::edit::RevHistory;
    use json::JsonText;

    fn groups(edits: &[Edit], fit: Vec<usize>) -> Vec<Vec<usize>> {
        super::groups(edits, fit, WriteMode::Interactive, 1_000, BodyFormat::Exploded)
    }

    fn edit(id: &str, bytes: usize) -> Edit {
        let body = format!(r#"{{"a":"{}"}}"#, "x".repeat(bytes));
        Edit::new(id, JsonText::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn edits_of_one_document_go_to_later_groups_in_order() {
        let edits: Vec<Edit> = ["b", "a", "b", "c", "b", "a"].iter().map(|id| edit(id, 1)).collect();
        assert_eq!(groups(&edits, (0..6).collect()), [vec![1, 0, 3], vec![5, 2], vec![4]]);
        assert_eq!(groups(&edits, vec![2, 4]), [vec![2], vec![4]]);
        let together = super::groups(&edits, (0..6).collect(), WriteMode::Replicated, 1_000, BodyFormat::Exploded);
        assert_eq!(together, [vec![1, 5, 0, 2, 4, 3]], "replicated edits of a document are merged together");
    }

    #[test]
    fn a_group_is_in_the_order_of_its_ids_and_halved_in_that_of_its_edits() {
        let edits: Vec<Edit> = ["d", "b", "c", "a", "e"].iter().map(|id| edit(id, 1)).collect();
        assert_eq!(groups(&edits, vec![0, 1, 2, 3]), [vec![3, 1, 2, 0]]);
        assert_eq!(halves(&edits, vec![3, 1, 2, 0]), (vec![1, 0], vec![3, 2]));
        assert_eq!(halves(&edits, vec![3, 1, 2]), (vec![1], vec![3, 2]));

        let sizes = [2_500_000, 10, 2_500_000, 10, 2_500_000];
        let large: Vec<Edit> = ["e", "d", "c", "b", "a"].iter().zip(sizes).map(|(id, size)| edit(id, size)).collect();
        assert_eq!(groups(&large, vec![0, 1, 2, 3, 4]), [vec![1, 0], vec![3, 2], vec![4]]);
    }

    /// A body of many members takes many rows only where it is exploded.
    #[test]
    fn packed_bodies_of_many_members_fit_in_one_group() {
        let body = format!("{{{}}}", (0..220).map(|n| format!(r#""m{n}":{n}"#)).collect::<Vec<_>>().join(","));
        let edit = |n| Edit::new(format!("{n:032}"), JsonText::parse(body.as_bytes()).unwrap());
        let edits: Vec<Edit> = (0..500).map(edit).collect();
        let count = |format| super::groups(&edits, (0..500).collect(), WriteMode::Interactive, 1_000, format).len();
        assert_eq!((count(BodyFormat::Packed), count(BodyFormat::Exploded)), (1, 6));
    }

    #[test]
    fn groups_are_bounded_by_bytes_and_edits() {
        let edits: Vec<Edit> = (0..5_000).map(|n| edit(&format!("doc-{n}"), 10)).collect();
        let split = groups(&edits, (0..edits.len()).collect());
        assert_eq!(split.iter().map(Vec::len).collect::<Vec<_>>(), [2_000, 2_000, 1_000]);

        let edits: Vec<Edit> = (0..9).map(|n| edit(&format!("doc-{n}"), 1_500_000)).collect();
        let split = groups(&edits, (0..edits.len()).collect());
        assert_eq!(split.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 2, 2, 1]);

        // Small bodies with long histories, and with short ones that may continue as a known one does.
        let long = |n: usize, replicated: Option<usize>| {
            let edit = edit(&format!("doc-{n}"), 10);
            let ids = vec![RevHash::from([7; 16]); replicated.unwrap_or(1)];
            let history = RevHistory { position: 1_000, ids };
            if replicated.is_some() { edit.with_history(history) } else { edit.over(history.leaf().unwrap()) }
        };
        for replicated in [None, Some(1_000), Some(2)] {
            let edits: Vec<Edit> = (0..1_000).map(|n| long(n, replicated)).collect();
            let split = groups(&edits, (0..edits.len()).collect());
            assert!(split.iter().all(|group| (150..=220).contains(&group.len()) || group == split.last().unwrap()));
            assert_eq!(
                super::groups(&edits, (0..1_000).collect(), WriteMode::Interactive, 1, BodyFormat::Exploded).len(),
                1
            );
        }

        let huge = [edit("a", 8_000_000), edit("b", 1), edit("c", 8_000_000)];
        assert_eq!(groups(&huge, vec![0, 1, 2]), [vec![0], vec![1], vec![2]]);
    }
}
