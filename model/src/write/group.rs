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

/// The indexes `fit` of `edits` in groups, in the order in which they are to be written.
pub(super) fn groups(edits: &[Edit], fit: Vec<usize>) -> Vec<Vec<usize>> {
    if fit.len() == 1 {
        return vec![fit];
    }
    let rounds = if all_differ(edits, &fit) { vec![fit] } else { rounds(edits, fit) };
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
            group.push(index);
        }
        if !group.is_empty() {
            groups.push(group);
        }
    }
    groups
}

/// Whether no two of these edits are of one document.
fn all_differ(edits: &[Edit], fit: &[usize]) -> bool {
    let mut ids: Vec<&str> = fit.iter().map(|&index| edits[index].id.as_str()).collect();
    if !ids.is_sorted() {
        ids.sort_unstable();
    }
    ids.windows(2).all(|pair| pair[0] != pair[1])
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
        let edits: Vec<Edit> = ["a", "b", "a", "c", "a", "b"].iter().map(|id| edit(id, 1)).collect();
        assert_eq!(groups(&edits, (0..6).collect()), [vec![0, 1, 3], vec![2, 5], vec![4]]);
        assert_eq!(groups(&edits, vec![2, 4]), [vec![2], vec![4]]);
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
