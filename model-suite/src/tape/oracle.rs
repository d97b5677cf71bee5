//! The oracle: revision trees as in RFC 001. A document is a set of edit branches, each a path from its leaf to the
//! oldest known ancestor. There is no storage, no index and no counter: every result is computed from the paths. It
//! uses only the types of the layer, and its computation of a revision.
//!
//! ```text
//!  edit without a revision   no branch: the first one; a winning tombstone: extends it; otherwise 409
//!  edit over a live leaf     extends the leaf's branch
//!  edit over anything else   409
//!  stub                      the attachment of the replaced leaf with that name; otherwise 412, without effect
//!  replicated paths          known: no effect; otherwise all paths together form a tree, and its leaves the branches;
//!                            edits of one document in a batch are merged before any of them is stemmed
//!  the same, last write wins the greatest revision, by position and hash, is the only branch
//!  patch                     an edit over the winner or a live leaf, with its body but for two members, and all that is
//!                            attached to it; 404 without a live leaf, 409 if it is another one
//!  transaction               all edits, or none if one is refused
//!  purge                     removes the branches of the named leaves; a document without branches does not exist
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use model::{
    AttachmentDigest, AttachmentEdit, AttachmentSource, ConflictPolicy, Edit, JsonText, RevId, RevisionTerm, WriteMode,
};

use super::attached::Attached;
use super::step::{Batch, Patch};

/// Number of purges that are remembered.
pub(super) const PURGES_KEPT: usize = 5;

/// An edit branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Branch {
    pub(super) live: bool,
    /// The leaf, then its ancestors, parent first.
    pub(super) path: Vec<RevId>,
    pub(super) body: JsonText,
    pub(super) attachments: Vec<Attached>,
}

impl Branch {
    pub(super) fn leaf(&self) -> &RevId {
        &self.path[0]
    }

    /// The greatest rank wins.
    fn rank(&self) -> (bool, u64, &[u8]) {
        (self.live, self.leaf().position(), self.leaf().hash().as_bytes())
    }
}

/// A document. One that was never written has no branches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OracleDocument {
    /// The winner first, then the others in the order in which they would win.
    pub(super) branches: Vec<Branch>,
    /// The step that changed it last.
    pub(super) changed: usize,
    pub(super) policy: ConflictPolicy,
}

impl OracleDocument {
    pub(super) fn winner(&self) -> Option<&Branch> {
        self.branches.first()
    }

    pub(super) fn is_live(&self) -> bool {
        self.winner().is_some_and(|winner| winner.live)
    }

    pub(super) fn leaves(&self) -> Vec<RevId> {
        self.branches.iter().map(|branch| branch.leaf().clone()).collect()
    }

    pub(super) fn knows(&self, rev: &RevId) -> bool {
        self.branches.iter().any(|branch| self.is_on(branch, rev))
    }

    /// Whether a branch makes this revision known: it passes through it or, where the last write wins, its leaf is not
    /// less.
    pub(super) fn is_on(&self, branch: &Branch, rev: &RevId) -> bool {
        match self.policy {
            ConflictPolicy::KeepAll => branch.path.contains(rev),
            ConflictPolicy::LastWriteWins => by_order(branch.leaf()) >= by_order(rev),
        }
    }

    /// Whether a branch continues from this revision.
    pub(super) fn has_child_of(&self, rev: &RevId) -> bool {
        self.branches.iter().any(|branch| branch.path[1..].contains(rev))
    }

    /// The live losing leaves, or the losing tombstones; `None` if there are none, as in a read document.
    pub(super) fn losers(&self, live: bool) -> Option<Vec<RevId>> {
        let losers = self.branches.iter().skip(1).filter(|branch| branch.live == live);
        Some(losers.map(|branch| branch.leaf().clone()).collect::<Vec<_>>()).filter(|losers| !losers.is_empty())
    }

    /// Forms one tree of all paths. Its leaves are the branches. Each keeps its known ancestors, or gets as many as
    /// `limit` allows. The leaves in `new` were not stemmed yet.
    fn join(&mut self, new: &BTreeSet<RevId>, limit: usize) {
        let steps = self.branches.iter().flat_map(|branch| branch.path.windows(2));
        let parents: BTreeMap<RevId, RevId> = steps.map(|step| (step[0].clone(), step[1].clone())).collect();
        let inner: BTreeSet<&RevId> = parents.values().collect();
        self.branches.retain(|branch| !inner.contains(branch.leaf()));
        for branch in &mut self.branches {
            let remembered = if new.contains(branch.leaf()) { 0 } else { branch.path.len() };
            while let Some(parent) = branch.path.last().and_then(|oldest| parents.get(oldest)) {
                branch.path.push(parent.clone());
            }
            branch.path.truncate(remembered.max(limit));
        }
        self.sort();
    }

    fn sort(&mut self) {
        self.branches.sort_by(|a, b| Reverse(a.rank()).cmp(&Reverse(b.rank())));
    }

    fn grow(&mut self, branch: Branch, instead_of: impl Fn(&Branch) -> bool) {
        self.branches.retain(|other| !instead_of(other));
        self.branches.push(branch);
        self.sort();
    }
}

/// Why an interactive edit is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// 409.
    Conflict,
    /// 412.
    MissingStub,
    /// 404.
    Absent,
}

/// The result of an edit.
pub(super) type Answer = Result<RevId, Refused>;

/// A database.
#[derive(Clone, Debug)]
pub(super) struct Oracle {
    pub(super) trees: BTreeMap<String, OracleDocument>,
    pub(super) revs_limit: usize,
    policy: ConflictPolicy,
    /// All purges: the document, the requested revisions, and those that were removed.
    pub(super) purged: Vec<(String, Vec<RevId>, Vec<RevId>)>,
    /// Number of transactions that were carried out.
    pub(super) transactions: u64,
}

impl Oracle {
    pub(super) fn new(revs_limit: usize, policy: ConflictPolicy) -> Self {
        Oracle { trees: BTreeMap::new(), revs_limit, policy, purged: Vec::new(), transactions: 0 }
    }

    /// Carries out the request of a client.
    pub(super) fn act(&mut self, batch: &Batch, step: usize) -> Vec<Answer> {
        if let Some(patch) = &batch.patch {
            return vec![self.patch(patch, step)];
        }
        if batch.together {
            let before = self.trees.clone();
            let mut answers = self.write(&batch.edits, batch.mode, step);
            if answers.iter().any(Result::is_err) {
                self.trees = before;
                answers.retain(Result::is_err);
            } else {
                self.transactions += 1;
            }
            return answers;
        }
        let purged = batch.purges.iter().flat_map(|(id, revs)| self.purge(id, revs, step)).map(Ok).collect::<Vec<_>>();
        purged.into_iter().chain(self.write(&batch.edits, batch.mode, step)).collect()
    }

    /// Removes leaves. Returns those that were removed, in order.
    fn purge(&mut self, id: &str, revs: &[RevId], step: usize) -> Vec<RevId> {
        let sorted: BTreeMap<_, &RevId> = revs.iter().map(|rev| (by_order(rev), rev)).collect();
        let mut tree = self.tree(id);
        let leaves = tree.leaves();
        let named: Vec<RevId> = sorted.into_values().cloned().collect();
        let purged: Vec<RevId> = named.iter().filter(|rev| leaves.contains(rev)).cloned().collect();
        self.purged.push((id.to_owned(), named, purged.clone()));
        tree.branches.retain(|branch| !purged.contains(branch.leaf()));
        if tree.branches.is_empty() {
            self.trees.remove(id);
        } else if !purged.is_empty() {
            tree.changed = step;
            self.trees.insert(id.to_owned(), tree);
        }
        purged
    }

    fn patch(&mut self, patch: &Patch, step: usize) -> Answer {
        let tree = self.tree(&patch.id);
        let mut live = tree.branches.iter().filter(|branch| branch.live);
        let base = match &patch.rev {
            _ if !tree.is_live() => return Err(Refused::Absent),
            Some(rev) => live.find(|branch| branch.leaf() == rev).ok_or(Refused::Conflict)?,
            None => live.next().ok_or(Refused::Absent)?,
        };
        let mut edit = Edit::new(patch.id.clone(), patched(&base.body, patch.n));
        edit.rev = Some(base.leaf().clone());
        edit.attachments = base.attachments.iter().map(|one| AttachmentEdit::stub(one.name.clone())).collect();
        self.edit(&edit, step)
    }

    pub(super) fn tree(&self, id: &str) -> OracleDocument {
        self.trees.get(id).cloned().unwrap_or(OracleDocument { policy: self.policy, ..OracleDocument::default() })
    }

    /// Carries out edits in order.
    pub(super) fn write(&mut self, edits: &[Edit], mode: WriteMode, step: usize) -> Vec<Answer> {
        match mode {
            WriteMode::Interactive => edits.iter().map(|edit| self.edit(edit, step)).collect(),
            WriteMode::Replicated => {
                let ids: BTreeSet<&String> = edits.iter().map(|edit| &edit.id).collect();
                for id in ids {
                    let mut tree = self.tree(id);
                    if replicated(&mut tree, edits.iter().filter(|edit| edit.id == *id), self.revs_limit) {
                        tree.changed = step;
                        self.trees.insert(id.clone(), tree);
                    }
                }
                edits.iter().map(|edit| Ok(path_of(edit)[0].clone())).collect()
            }
        }
    }

    fn edit(&mut self, edit: &Edit, step: usize) -> Answer {
        let mut tree = self.tree(&edit.id);
        let rev = interactive(&mut tree, edit, self.revs_limit)?;
        tree.changed = step;
        self.trees.insert(edit.id.clone(), tree);
        Ok(rev)
    }
}

/// The body with another `n`, and without `a`.
fn patched(body: &JsonText, n: u64) -> JsonText {
    let mut members: Vec<String> = Vec::new();
    for (name, value) in body.root().members().filter(|(name, _)| name != "a") {
        let value = if name == "n" { n.to_string() } else { body.slice_ref(value).as_str().to_owned() };
        members.push(format!("\"{name}\":{value}"));
    }
    if !members.iter().any(|member| member.starts_with("\"n\":")) {
        members.push(format!("\"n\":{n}"));
    }
    JsonText::parse(format!("{{{}}}", members.join(",")).as_bytes()).expect("JSON")
}

fn interactive(tree: &mut OracleDocument, edit: &Edit, limit: usize) -> Answer {
    let parent = match &edit.rev {
        Some(rev) => {
            let named = tree.branches.iter().find(|branch| branch.live && branch.leaf() == rev);
            Some(named.ok_or(Refused::Conflict)?.clone())
        }
        // A tombstone over a tombstone does not count as a recreation.
        None => match tree.winner() {
            Some(winner) if winner.live || edit.deleted => return Err(Refused::Conflict),
            winner => winner.cloned(),
        },
    };
    let named = parent.as_ref().filter(|_| edit.rev.is_some());
    let attachments = attached(edit, named.map_or(&[], |parent| &parent.attachments))?;
    let made = name(edit.deleted, parent.as_ref().map(Branch::leaf), &edit.body, &attachments);
    let mut path = vec![made.clone()];
    path.extend(parent.iter().flat_map(|parent| parent.path.iter().cloned()));
    path.truncate(limit);
    let branch = Branch { live: !edit.deleted, path, body: edit.body.clone(), attachments };
    // The revision may exist already, if it was replicated without ancestors.
    tree.grow(branch, |other| {
        parent.as_ref().is_some_and(|parent| other.leaf() == parent.leaf()) || *other.leaf() == made
    });
    Ok(made)
}

/// Merges edits of one document. Returns whether any of them is new.
fn replicated<'e>(tree: &mut OracleDocument, edits: impl Iterator<Item = &'e Edit>, limit: usize) -> bool {
    if tree.policy == ConflictPolicy::LastWriteWins {
        return edits.filter(|edit| replaced(tree, edit, limit)).count() > 0;
    }
    let (before, mut new) = (tree.clone(), BTreeSet::new());
    for edit in edits {
        let path = path_of(edit);
        if before.knows(&path[0]) {
            continue;
        }
        if !new.insert(path[0].clone()) {
            // If revisions are equal, the first body and the longest history are kept.
            let first = tree.branches.iter_mut().find(|branch| *branch.leaf() == path[0]).expect("it is new");
            if path.len() > first.path.len() {
                first.path = path;
            }
        } else {
            let attachments = brought(edit);
            tree.branches.push(Branch { live: !edit.deleted, path, body: edit.body.clone(), attachments });
        }
    }
    if !new.is_empty() {
        tree.join(&new, limit);
    }
    !new.is_empty()
}

/// Replaces the only branch if this one is greater. Returns whether it did.
fn replaced(tree: &mut OracleDocument, edit: &Edit, limit: usize) -> bool {
    let mut path = path_of(edit);
    if tree.knows(&path[0]) {
        return false;
    }
    path.truncate(limit);
    let attachments = brought(edit);
    tree.branches = vec![Branch { live: !edit.deleted, path, body: edit.body.clone(), attachments }];
    true
}

/// The order of revisions: by position, then by hash.
fn by_order(rev: &RevId) -> (u64, &[u8]) {
    (rev.position(), rev.hash().as_bytes())
}

/// The path of a replicated edit.
fn path_of(edit: &Edit) -> Vec<RevId> {
    match (&edit.history, &edit.rev) {
        (Some(history), _) => {
            let ids = history.ids.iter().zip((1..=history.position).rev());
            ids.map(|(hash, position)| RevId::new(position, hash.clone()).expect("a position")).collect()
        }
        (None, Some(rev)) => vec![rev.clone()],
        (None, None) => panic!("a replicated edit without a revision"),
    }
}

/// The attachments of an interactive edit: its own, and those of the replaced leaf.
fn attached(edit: &Edit, replaced: &[Attached]) -> Result<Vec<Attached>, Refused> {
    let revpos = edit.rev.as_ref().map_or(0, RevId::position) + 1;
    let one = |attachment: &model::AttachmentEdit| match &attachment.source {
        AttachmentSource::Data(data) => Ok(Attached::of(attachment, data, revpos)),
        _ => replaced.iter().find(|other| other.name == attachment.name).cloned().ok_or(Refused::MissingStub),
    };
    edit.attachments.iter().map(one).collect()
}

/// The attachments of a replicated edit, all with data.
fn brought(edit: &Edit) -> Vec<Attached> {
    let one = |attachment: &model::AttachmentEdit| match &attachment.source {
        AttachmentSource::Data(data) => Attached::of(attachment, data, attachment.revpos.unwrap_or(0)),
        other => panic!("a replicated edit with {other:?}"),
    };
    edit.attachments.iter().map(one).collect()
}

/// The revision of an edit.
pub(super) fn name(deleted: bool, parent: Option<&RevId>, body: &JsonText, attachments: &[Attached]) -> RevId {
    let attachments: Vec<AttachmentDigest<'_>> = attachments.iter().map(Attached::digest).collect();
    RevisionTerm { deleted, parent, body, attachments: &attachments }.revision().expect("a position")
}
