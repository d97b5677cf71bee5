//! Rows of `revisions`: one for each edit branch of a document (RFC 001, "Detailed Description").
//!
//! ```text
//!  winner  (RevFormat, (Incarnation, Versionstamp), BranchCount, Size, [ParentRev, GrandparentRev, …])
//!  other   (RevFormat,                                           Size, [ParentRev, GrandparentRev, …])
//! ```
//!
//! Only the winner has the sequence, so that every edit of a document writes the winner's row, and two concurrent
//! edits conflict. `Size` is not in the RFC: the bytes of the leaf's body, which the counters need without reading
//! the body. Zero means that a tombstone has no body.
//!
//! The [ancestors](crate::rows::ancestors) are last, so that an edit moves them from row to row without decoding them.
//!
//! Formats 3 and 4 are 1 and 2 for a leaf with attachments. So an edit that removes a leaf knows whether to look
//! for attachments. Formats 5 to 8 are 1 to 4 in a database in which the [last write wins](crate::write::policy).

use std::collections::HashSet;

use bytes::Bytes;
use kv_api::KeyValue;

use crate::error::{Error, Result};
use crate::feed::seq::Seq;
use crate::keys::{self, DatabaseKey, DatabaseKeys, Leaf};
use crate::rows::ancestors::Ancestors;
use crate::rows::revid::{RevHash, RevId};
use crate::rows::row::{NESTED, Reader, append_stamp};
use crate::rows::tuple;
use crate::write::policy::ConflictPolicy;

/// Added to the format of a leaf with attachments.
const WITH_ATTACHMENTS: u64 = 2;
/// Added to the format where the last write wins.
const LAST_WRITE_WINS: u64 = 4;

/// Elements of the winner's row only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WinnerInfo {
    /// The sequence of the document's last change.
    pub(crate) seq: Seq,
    /// Number of the document's branches.
    pub(crate) branches: u64,
}

/// The data of the winner's row that a transaction writes, before its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingWinner {
    pub(crate) incarnation: u8,
    /// Order of the edit in its transaction.
    pub(crate) edit: u16,
    pub(crate) branches: u64,
}

/// One edit branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    pub(crate) leaf: Leaf,
    /// Bytes of the leaf's body; zero for a tombstone without one.
    pub(crate) size: u64,
    pub(crate) ancestors: Ancestors,
    /// Whether the leaf has attachments.
    pub(crate) attachments: bool,
    /// The conflict policy of its database, from the row.
    pub(crate) policy: ConflictPolicy,
    /// Present in the winner.
    pub(crate) winner_info: Option<WinnerInfo>,
}

impl Branch {
    /// A leaf of which only the body is known.
    pub(crate) fn bare(leaf: Leaf, size: u64) -> Branch {
        let policy = ConflictPolicy::default();
        Branch { leaf, size, ancestors: Ancestors::EMPTY, attachments: false, policy, winner_info: None }
    }

    /// Parses the branch in a row.
    pub(crate) fn read(leaf: Leaf, value: &Bytes) -> Result<Branch> {
        let mut reader = Reader::new(value);
        let written = reader.int()?;
        let (policy, format) = match written.checked_sub(LAST_WRITE_WINS) {
            Some(format) if format > 0 => (ConflictPolicy::LastWriteWins, format),
            _ => (ConflictPolicy::KeepAll, written),
        };
        let attachments = format > WITH_ATTACHMENTS;
        let format = if attachments { format - WITH_ATTACHMENTS } else { format };
        if !Ancestors::is_format(format) {
            // Checked first: the rest of the row may have any meaning.
            return Err(Error::unknown_format(format!("a revision in format {written}")));
        }
        let winner_info = if reader.peek() == Some(NESTED) {
            reader.expect(NESTED)?;
            let seq = keys::read_seq(&mut reader)?;
            reader.expect(0)?;
            Some(WinnerInfo { seq, branches: reader.int()? })
        } else {
            None
        };
        let size = reader.int()?;
        let ancestors = Ancestors::read(format, value, &mut reader)?;
        Ok(Branch { leaf, size, ancestors, attachments, policy, winner_info })
    }

    /// The winner's additional elements, in the row of a branch that must be the winner.
    pub(crate) fn winner_info(&self) -> Result<WinnerInfo> {
        self.winner_info.ok_or_else(|| Error::corrupt(format!("the winner {} has no sequence", self.leaf.rev)))
    }

    /// Appends the row of a branch to `out`.
    pub(crate) fn append(
        out: &mut Vec<u8>,
        policy: ConflictPolicy,
        size: u64,
        ancestors: &Ancestors,
        attachments: bool,
    ) {
        tuple::append_u64(out, row_format(ancestors, policy, attachments));
        Self::append_rest(out, size, ancestors);
    }

    /// Appends the row of the winner to `out`, as the operand of `SET_VERSIONSTAMPED_VALUE`.
    pub(crate) fn append_winner(
        out: &mut Vec<u8>,
        policy: ConflictPolicy,
        winner_info: PendingWinner,
        size: u64,
        ancestors: &Ancestors,
        attachments: bool,
    ) {
        let begin = out.len();
        tuple::append_u64(out, row_format(ancestors, policy, attachments));
        out.push(NESTED);
        tuple::append_u64(out, u64::from(winner_info.incarnation));
        let stamp_at = (out.len() - begin) as u32 + 1;
        append_stamp(out, &keys::pending_stamp(winner_info.edit));
        out.push(0);
        tuple::append_u64(out, winner_info.branches);
        Self::append_rest(out, size, ancestors);
        out.extend_from_slice(&stamp_at.to_le_bytes());
    }

    fn append_rest(out: &mut Vec<u8>, size: u64, ancestors: &Ancestors) {
        tuple::append_u64(out, size);
        ancestors.append(out);
    }

    /// The row of the branch stemmed to `limit` revisions, made from its row `value`; `None` if it is short enough.
    /// Everything before the ancestors is kept.
    pub(crate) fn stemmed_row(&self, value: &[u8], limit: usize) -> Result<Option<Vec<u8>>> {
        let Some(stemmed) = self.ancestors.stemmed(limit.saturating_sub(1))? else { return Ok(None) };
        let mut old = Vec::with_capacity(self.ancestors.len() + 2);
        self.ancestors.append(&mut old);
        let mut out = value[..value.len().saturating_sub(old.len())].to_vec();
        stemmed.append(&mut out);
        Ok(Some(out))
    }

    /// Approximate size of its row in bytes.
    pub(crate) fn row_bytes(&self) -> usize {
        const OTHER_BYTES: usize = 100;
        OTHER_BYTES + self.ancestors.len()
    }

    /// The branch as a path, the leaf first.
    pub(crate) fn path(&self) -> Result<Vec<RevHash>> {
        let mut path = vec![self.leaf.rev.hash().clone()];
        for ancestor in self.ancestors.iter() {
            path.push(ancestor?);
        }
        Ok(path)
    }

    /// Whether the revision is this branch's leaf or a known ancestor of it. If the last write wins, the leaf stands
    /// for all revisions that are not greater.
    pub(crate) fn contains(&self, rev: &RevId) -> Result<bool> {
        if self.policy == ConflictPolicy::LastWriteWins {
            return Ok(self.leaf.rev >= *rev);
        }
        let leaf = self.leaf.rev.position();
        match leaf.checked_sub(rev.position()) {
            None => Ok(false),
            Some(0) => Ok(self.leaf.rev == *rev),
            Some(back) => match self.ancestors.iter().nth(usize::try_from(back - 1).unwrap_or(usize::MAX)) {
                Some(hash) => Ok(hash? == *rev.hash()),
                None => Ok(false),
            },
        }
    }
}

/// Whether two rows of a leaf are the same, except for ancestors that one of them has forgotten.
pub(crate) fn is_stem(leaf: &Leaf, one: &Bytes, other: &Bytes) -> bool {
    let same = || {
        let (a, b) = (Branch::read(leaf.clone(), one)?, Branch::read(leaf.clone(), other)?);
        let limit = 1 + a.ancestors.iter().count().min(b.ancestors.iter().count());
        let (a, b) = (a.stemmed_row(one, limit)?, b.stemmed_row(other, limit)?);
        Ok::<bool, Error>(a.as_deref().unwrap_or(one) == b.as_deref().unwrap_or(other))
    };
    one == other || same().unwrap_or(false)
}

/// The format of a row.
fn row_format(ancestors: &Ancestors, policy: ConflictPolicy, attachments: bool) -> u64 {
    let of_policy = match policy {
        ConflictPolicy::KeepAll => 0,
        ConflictPolicy::LastWriteWins => LAST_WRITE_WINS,
    };
    ancestors.format() + of_policy + if attachments { WITH_ATTACHMENTS } else { 0 }
}

/// The branches in rows of one document.
pub(crate) fn branches(keys: &DatabaseKeys, id: &str, rows: &[KeyValue]) -> Result<Vec<Branch>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let document = keys.key(DatabaseKey::RevisionsOf(id)).len();
    let read = |row: &KeyValue| Branch::read(DatabaseKeys::read_leaf(&row.key, document)?, &row.value);
    rows.iter().map(read).collect::<Result<_>>().map_err(|error| error.of_document(id))
}

/// Those of `wanted` that are leaves of these branches or known ancestors. Takes time in proportion to the
/// branches and `wanted` together.
///
/// If the last write wins, all revisions that are not greater than the leaf are known.
pub(crate) fn known<'r>(
    branches: &[Branch],
    wanted: impl IntoIterator<Item = &'r RevId>,
) -> Result<HashSet<&'r RevId>> {
    let wanted: HashSet<&RevId> = wanted.into_iter().collect();
    let mut known = HashSet::new();
    let Some(lowest) = wanted.iter().map(|rev| rev.position()).min() else { return Ok(known) };
    for branch in branches {
        if branch.policy == ConflictPolicy::LastWriteWins {
            known.extend(wanted.iter().filter(|rev| branch.leaf.rev >= ***rev));
            continue;
        }
        known.extend(wanted.get(&branch.leaf.rev));
        // Ancestors older than the oldest wanted revision are skipped.
        let positions = (lowest..branch.leaf.rev.position()).rev();
        for (position, hash) in positions.zip(branch.ancestors.iter()) {
            if let Ok(rev) = RevId::new(position, hash?) {
                known.extend(wanted.get(&rev));
            }
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use foundationdb_tuple::{Bytes as TupleBytes, Versionstamp, pack};

    use super::*;
    use crate::error::ErrorKind;

    const KEEP: ConflictPolicy = ConflictPolicy::KeepAll;

    fn hash(n: u32) -> RevHash {
        let mut bytes = [0; 16];
        bytes[12..].copy_from_slice(&n.to_be_bytes());
        RevHash::from(bytes)
    }

    fn leaf(position: u64, n: u32) -> Leaf {
        Leaf { not_deleted: true, rev: RevId::new(position, hash(n)).unwrap() }
    }

    #[test]
    fn rows_are_the_tuples_of_the_rfc() {
        let ancestors = Ancestors::from_hashes(&[hash(2), hash(1)]);
        let (two, one) = (hash(2), hash(1));
        let list = (TupleBytes::from(two.as_bytes()), TupleBytes::from(one.as_bytes()));
        let mut out = Vec::new();
        Branch::append(&mut out, KEEP, 7, &ancestors, false);
        assert_eq!(out, pack(&(1, 7, &list)));

        let winner_info = PendingWinner { incarnation: 3, edit: 258, branches: 2 };
        out.clear();
        Branch::append_winner(&mut out, KEEP, winner_info, 7, &ancestors, false);
        let expected = (1, (3, Versionstamp::incomplete(258)), 2, 7, &list);
        assert_eq!(out, foundationdb_tuple::pack_with_versionstamp(&expected));
    }

    #[test]
    fn rows_round_trip() {
        let nuls = RevHash::from_bytes(&[0; 40]).unwrap();
        let of_hashes = [vec![], vec![hash(1)], vec![nuls.clone(), hash(0), hash(256)], vec![nuls; 3_000]];
        let policies = [KEEP, ConflictPolicy::LastWriteWins];
        for (hashes, policy) in of_hashes.iter().flat_map(|hashes| policies.map(|policy| (hashes, policy))) {
            let ancestors = Ancestors::from_hashes(hashes);
            let mut out = Vec::new();
            Branch::append(&mut out, policy, 300, &ancestors, true);
            assert!(out.len() <= 100_000);
            let branch = Branch::read(leaf(4_000, 9), &out.clone().into()).unwrap();
            assert_eq!((branch.size, branch.attachments, branch.policy, branch.winner_info), (300, true, policy, None));
            let read = branch.ancestors.to_vec().unwrap();
            for limit in [1, 2, read.len().max(1), read.len() + 1] {
                let kept = read[..read.len().min(limit - 1)].to_vec();
                let row = branch.stemmed_row(&out, limit).unwrap();
                assert_eq!(row.is_some(), kept.len() < read.len());
                let short = row.as_ref().unwrap_or(&out);
                assert!(is_stem(&branch.leaf, &out.clone().into(), &short.clone().into()));
                let again =
                    Branch::read(branch.leaf.clone(), &row.map_or_else(|| out.clone().into(), Bytes::from)).unwrap();
                assert_eq!(
                    (again.ancestors.to_vec().unwrap(), again.size, again.winner_info),
                    (kept, 300, branch.winner_info)
                );
            }
            assert_eq!(read[..], hashes[..read.len()]);
            assert_eq!(read.len(), hashes.len().min(2_437));

            // Encoded after another row, since a document's rows share one buffer: the stamp's offset must be relative
            // to its own row.
            let begin = out.len();
            let winner_info = PendingWinner { incarnation: 1, edit: 5, branches: 9 };
            Branch::append_winner(&mut out, policy, winner_info, 300, &ancestors, true);
            let (row, stamp_at) = out[begin..].split_last_chunk::<4>().unwrap();
            let stamp = &keys::pending_stamp(5)[..10];
            assert_eq!(row[u32::from_le_bytes(*stamp_at) as usize..][..10], *stamp);
            let branch = Branch::read(leaf(4_000, 9), &Bytes::copy_from_slice(row)).unwrap();
            let winner_info = branch.winner_info().unwrap();
            assert_eq!(branch.policy, policy);
            assert_eq!((winner_info.branches, winner_info.seq), (9, Seq::new(1, &keys::pending_stamp(5))));
            assert_eq!(branch.ancestors.to_vec().unwrap(), read);
        }
    }

    #[test]
    fn a_child_keeps_the_newest() {
        let mut parent = Branch::bare(leaf(1, 1), 0);
        for n in 2..=50 {
            let ancestors = parent.ancestors.of_child(parent.leaf.rev.hash(), 10).unwrap();
            parent = Branch { ancestors, ..Branch::bare(leaf(u64::from(n), n), 0) };
        }
        let expected: Vec<RevHash> = (40..50).rev().map(hash).collect();
        assert_eq!(parent.ancestors.to_vec().unwrap(), expected);
        assert_eq!(parent.ancestors.of_child(&hash(50), 0).unwrap(), Ancestors::EMPTY);
        for n in 38..=51u32 {
            let rev = RevId::new(u64::from(n), hash(n)).unwrap();
            assert_eq!(parent.contains(&rev).unwrap(), (40..=50).contains(&n), "{n}");
        }
        assert!(!parent.contains(&RevId::new(45, hash(44)).unwrap()).unwrap());
    }

    #[test]
    fn an_unknown_format_is_named_whatever_follows_it() {
        for rest in [&b""[..], b"garbage", &[NESTED], &[0x15, 2, NESTED, 0]] {
            for (format, name) in [(&[0x14][..], "format 0"), (&[0x15, 9], "format 9")] {
                let row = [format, rest].concat();
                let error = Branch::read(leaf(2, 2), &row.into()).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::UnknownFormat(what) if what.contains(name)), "{error}");
            }
        }
    }

    #[test]
    fn revisions_are_looked_for_together() {
        let path = |leaf: Leaf, hashes: &[RevHash]| Branch {
            ancestors: Ancestors::from_hashes(hashes),
            ..Branch::bare(leaf, 2)
        };
        let branches = [path(leaf(3, 3), &[hash(2), hash(1)]), path(leaf(2, 9), &[])];
        let revs: Vec<RevId> = [(3, 3), (2, 2), (1, 1), (2, 9), (1, 9), (3, 2), (4, 3)]
            .map(|(position, n)| RevId::new(position, hash(n)).unwrap())
            .to_vec();
        let found = known(&branches, &revs).unwrap();
        assert_eq!(
            revs.iter().map(|rev| found.contains(rev)).collect::<Vec<_>>(),
            [1, 1, 1, 1, 0, 0, 0].map(|n| n == 1)
        );
        assert_eq!(known(&branches, &[]).unwrap().len(), 0);
        let [last, _] = branches.map(|branch| Branch { policy: ConflictPolicy::LastWriteWins, ..branch });
        let found = known(std::slice::from_ref(&last), &revs).unwrap();
        assert!(revs.iter().all(|rev| found.contains(rev) == last.contains(rev).unwrap()));
        assert_eq!(
            revs.iter().map(|rev| found.contains(rev)).collect::<Vec<_>>(),
            [1, 1, 1, 1, 1, 1, 0].map(|n| n == 1)
        );
    }

    #[test]
    fn damaged_rows_are_errors() {
        let mut out = Vec::new();
        Branch::append(&mut out, KEEP, 300, &Ancestors::from_hashes(&[hash(1)]), false);
        for cut in 0..out.len() {
            let read = Branch::read(leaf(2, 2), &Bytes::copy_from_slice(&out[..cut]));
            assert!(read.is_err() || read.unwrap().ancestors.to_vec().is_err(), "cut at {cut}");
        }
    }
}
