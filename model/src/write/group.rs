//! Which edits share a transaction.
//!
//! Invariants: a group has at most one edit of a document; edits of one document are in groups in their
//! order; a group's rows are estimated at well under the 10 MB a transaction may affect.

use std::collections::HashMap;

use crate::edit::Edit;

/// The estimated bytes at which a group is full.
const GROUP_BYTES: usize = 4_000_000;

/// The edits at which it is: their places in the transaction are 16 bits of the sequence, and reads
/// under way are memory.
const GROUP_EDITS: usize = 2_000;

/// What an edit takes beside its body: revisions, changes, all_docs, with their conflict ranges.
const EDIT_BYTES: usize = 1_000;

/// What a row takes beside its value.
const ROW_BYTES: usize = 150;

/// The indexes `fit` of `edits`, which ascend, in groups, in the order in which these are to be written. Within a
/// group they are in the order of their ids, in which the store is read and written fastest.
pub(super) fn groups(edits: &[Edit], fit: Vec<usize>) -> Vec<Vec<usize>> {
    if fit.len() == 1 {
        return vec![fit];
    }
    let mut by_id = fit.clone();
    sort_by_id(edits, &mut by_id);
    let all_differ = by_id.windows(2).all(|pair| edits[pair[0]].id != edits[pair[1]].id);
    let rounds = if all_differ { vec![fit] } else { rounds(edits, fit) };
    let mut group_of = vec![0; edits.len()];
    let mut groups = Vec::new();
    for round in rounds {
        let (mut group, mut bytes) = (Vec::new(), 0);
        for index in round {
            let estimate = estimate(&edits[index]);
            if !group.is_empty() && (bytes + estimate > GROUP_BYTES || group.len() == GROUP_EDITS) {
                groups.push(std::mem::take(&mut group));
                bytes = 0;
            }
            bytes += estimate;
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

/// A group that turned out too large, in two: its earlier and its later edits.
pub(super) fn halves(edits: &[Edit], mut group: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
    group.sort_unstable();
    let mut later = group.split_off(group.len() / 2);
    sort_by_id(edits, &mut group);
    sort_by_id(edits, &mut later);
    (group, later)
}

/// Edits of one document stay in their order.
fn sort_by_id(edits: &[Edit], indexes: &mut [usize]) {
    let order = |one: &usize, other: &usize| edits[*one].id.cmp(&edits[*other].id).then(one.cmp(other));
    if !indexes.is_sorted_by(|one, other| order(one, other).is_le()) {
        indexes.sort_unstable_by(order);
    }
}

/// Each document's first edit, each one's second, and so on.
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

/// About what an edit affects, exploded: every comma of its text may stand for a row.
fn estimate(edit: &Edit) -> usize {
    let text = edit.body.as_bytes();
    let rows = memchr::memchr_iter(b',', text).count() + 1;
    EDIT_BYTES + text.len() + (rows * (ROW_BYTES + edit.id.len())).min(GROUP_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::JsonText;

    fn edit(id: &str, bytes: usize) -> Edit {
        let body = format!(r#"{{"a":"{}"}}"#, "x".repeat(bytes));
        Edit::new(id, JsonText::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn edits_of_one_document_go_to_later_groups_in_order() {
        let edits: Vec<Edit> = ["b", "a", "b", "c", "b", "a"].iter().map(|id| edit(id, 1)).collect();
        assert_eq!(groups(&edits, (0..6).collect()), [vec![1, 0, 3], vec![5, 2], vec![4]]);
        assert_eq!(groups(&edits, vec![2, 4]), [vec![2], vec![4]]);
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

    #[test]
    fn groups_are_bounded_by_bytes_and_edits() {
        let edits: Vec<Edit> = (0..5_000).map(|n| edit(&format!("doc-{n}"), 10)).collect();
        let split = groups(&edits, (0..edits.len()).collect());
        assert_eq!(split.iter().map(Vec::len).collect::<Vec<_>>(), [2_000, 2_000, 1_000]);

        let edits: Vec<Edit> = (0..9).map(|n| edit(&format!("doc-{n}"), 1_500_000)).collect();
        let split = groups(&edits, (0..edits.len()).collect());
        assert_eq!(split.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 2, 2, 1]);

        let huge = [edit("a", 8_000_000), edit("b", 1), edit("c", 8_000_000)];
        assert_eq!(groups(&huge, vec![0, 1, 2]), [vec![0], vec![1], vec![2]]);
    }
}
