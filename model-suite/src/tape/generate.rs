//! Generates the tape: random requests of clients, from a seed.
//!
//! A step depends on no other step. So a tape without some of its steps is a tape too, and a failing one can be shrunk.
//! The generator has its own oracle, to choose existing leaves, ancestors and tombstones. It also has an offline copy:
//! a store of revisions with their complete histories. That takes over leaves, extends any of them, and sends any of
//! them at any time.

use std::collections::BTreeMap;

use conformance::random::Random;
use model::{AttachmentEdit, AttachmentSource, ConflictPolicy, Edit, JsonText, RevHash, RevHistory, RevId, WriteMode};

use super::attached::{Attached, CONTENTS};
use super::oracle::{Oracle, name};
use super::queries;
use super::step::{Batch, CLIENTS, Patch, Step};

/// There are few documents, so each gets many edits. One id is a prefix of another.
const IDS: [&str; 5] = ["a", "a\0", "ab", "b", "é"];

/// Number of revisions that a branch remembers at first.
pub(super) const FIRST_LIMIT: u32 = 6;

/// A revision in the offline copy, with its path to the root.
#[derive(Clone)]
struct Offline {
    path: Vec<RevId>,
    deleted: bool,
    body: JsonText,
    attachments: Vec<Attached>,
}

struct Generator {
    random: Random,
    /// Chooses patches and transactions. A separate generator, so that pinned tapes keep their edits.
    ways: Random,
    /// Chooses steps of indexes and views. Separate for the same reason.
    queries: Random,
    oracle: Oracle,
    offline: BTreeMap<String, Vec<Offline>>,
}

/// The tape for a seed, for a database with this policy.
pub(super) fn generate(seed: u64, steps: usize, policy: ConflictPolicy) -> Vec<Step> {
    let oracle = Oracle::new(FIRST_LIMIT as usize, policy);
    let (random, ways, queries) = (Random::new(seed), Random::new(!seed), Random::new(seed ^ 0x7175_6572));
    let mut generator = Generator { random, ways, queries, oracle, offline: BTreeMap::new() };
    let mut tape = Vec::with_capacity(2 * steps);
    for _ in 0..steps {
        tape.extend(generator.query_step());
        tape.push(generator.step());
    }
    tape
}

impl Generator {
    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    fn step(&mut self) -> Step {
        match self.below(20) {
            0 => {
                let limit = *self.random.pick(&[1, 2, 3, 4, 6, 1_000]);
                self.oracle.revs_limit = limit as usize;
                Step::RevsLimit(limit)
            }
            1..=3 => {
                let parties = 2 + self.below(CLIENTS - 1);
                Step::Race((0..parties).map(|client| self.distinct(client)).collect())
            }
            4..=6 => {
                let count = 2 + self.below(8);
                Step::Write(self.batch(count))
            }
            7..=8 => {
                let (client, documents) = (self.below(CLIENTS), 1 + self.below(3));
                Step::Write(self.purge(client, documents))
            }
            _ => Step::Write(self.batch(1)),
        }
    }

    /// Sometimes a step of indexes or views, before another one.
    fn query_step(&mut self) -> Option<Step> {
        let random = &mut self.queries;
        let (client, most) = (random.below(CLIENTS as u64) as usize, 1 + random.below(3) as usize);
        match random.below(8) {
            0 => {
                let edits = vec![queries::edit(random, &self.oracle)];
                let mode = WriteMode::Interactive;
                let batch = Batch { client, mode, edits, purges: Vec::new(), patch: None, together: false };
                self.oracle.act(&batch, 0);
                Some(Step::Write(batch))
            }
            1 | 2 => Some(Step::BuildIndexes(client, most)),
            3 => Some(Step::UpdateViews(client, most)),
            _ => None,
        }
    }

    fn batch(&mut self, count: usize) -> Batch {
        let (client, mode) = (self.below(CLIENTS), self.mode());
        let edits = (0..count).map(|_| self.edit(mode, count == 1)).collect();
        self.vary(Batch { client, mode, edits, purges: Vec::new(), patch: None, together: false })
    }

    /// Turns some batches of interactive edits into a patch or a transaction. The generator's oracle keeps the original
    /// edits, which does not matter.
    fn vary(&mut self, mut batch: Batch) -> Batch {
        if batch.mode == WriteMode::Replicated {
            return batch;
        }
        match (self.ways.below(5), batch.edits.as_slice()) {
            (0 | 1, [edit]) => {
                let rev = edit.rev.clone().filter(|_| self.ways.chance(0.5));
                batch.patch = Some(Patch { id: edit.id.clone(), rev, n: self.ways.below(3) });
                batch.edits.clear();
            }
            (2, _) => {
                let mut edits: Vec<Edit> = Vec::new();
                for mut edit in batch.edits {
                    // A transaction has each document once, and no data of attachments.
                    edit.attachments.retain(|one| matches!(one.source, AttachmentSource::Stub));
                    if edits.iter().all(|other| other.id != edit.id) {
                        edits.push(edit);
                    }
                }
                (batch.edits, batch.together) = (edits, true);
            }
            _ => {}
        }
        batch
    }

    /// A batch of purges: usually of leaves, sometimes of other revisions.
    fn purge(&mut self, client: usize, documents: usize) -> Batch {
        let mut purges: Vec<(String, Vec<RevId>)> = Vec::new();
        for _ in 0..documents {
            let id = (*self.random.pick(&IDS)).to_owned();
            let branches = self.oracle.tree(&id).branches;
            let leaves = branches.iter().map(|branch| branch.leaf().clone());
            let all = self.random.chance(0.3);
            let mut revs: Vec<RevId> = leaves.filter(|_| all || self.random.chance(0.4)).collect();
            let known: Vec<RevId> = branches.iter().flat_map(|branch| branch.path.iter().cloned()).collect();
            if !known.is_empty() && self.random.chance(0.3) {
                revs.push(self.random.pick(&known).clone());
            }
            if self.random.chance(0.1) {
                revs.push("7-nobodys".parse().expect("a revision"));
            }
            purges.push((id, revs));
        }
        let mode = WriteMode::Interactive;
        let batch = Batch { client, mode, edits: Vec::new(), purges, patch: None, together: false };
        self.oracle.act(&batch, 0);
        batch
    }

    fn distinct(&mut self, client: usize) -> Batch {
        if self.random.chance(0.1) {
            return self.purge(client, 1);
        }
        let mode = self.mode();
        let mut edits: Vec<Edit> = Vec::new();
        for _ in 0..1 + self.below(2) {
            // The random choices are the same whether the edit is used or not. Its effect on the generator's oracle
            // does not matter.
            let edit = self.edit(mode, false);
            if edits.iter().all(|other| other.id != edit.id) {
                edits.push(edit);
            }
        }
        self.vary(Batch { client, mode, edits, purges: Vec::new(), patch: None, together: false })
    }

    fn mode(&mut self) -> WriteMode {
        if self.random.chance(0.5) { WriteMode::Interactive } else { WriteMode::Replicated }
    }

    /// An edit, which is also applied to the generator's oracle. Only a single edit (`alone`) may have stubs: one bad
    /// stub fails all edits of its batch.
    fn edit(&mut self, mode: WriteMode, alone: bool) -> Edit {
        let id = *self.random.pick(&IDS);
        let edit = match mode {
            WriteMode::Interactive => self.interactive(id, alone),
            WriteMode::Replicated => self.replicated(id),
        };
        let answer = self.oracle.write(std::slice::from_ref(&edit), mode, 0);
        if mode == WriteMode::Interactive
            && let [Ok(rev)] = answer.as_slice()
            && self.random.chance(0.5)
        {
            self.take_over(id, rev);
        }
        edit
    }

    fn interactive(&mut self, id: &str, alone: bool) -> Edit {
        let body = self.body();
        let mut edit = Edit::new(id, body);
        edit.deleted = self.random.chance(0.3);
        if edit.deleted && self.random.chance(0.5) {
            edit.body = JsonText::empty_object();
        }
        let branches = self.oracle.tree(id).branches;
        let revs: Vec<RevId> = match self.below(10) {
            // A live leaf, winning or losing.
            0..=4 => branches.iter().filter(|branch| branch.live).map(|branch| branch.leaf().clone()).collect(),
            // Any leaf, including tombstones.
            5 => branches.iter().map(|branch| branch.leaf().clone()).collect(),
            // Any known revision.
            6 => branches.iter().flat_map(|branch| branch.path.iter().cloned()).collect(),
            // Any revision of the offline copy.
            7 => self.offline.get(id).into_iter().flatten().map(|known| known.path[0].clone()).collect(),
            // A leaf's hash at another position.
            8 if self.random.chance(0.3) => {
                let beyond = branches.iter().map(|branch| (branch.leaf().position() + 1, branch.leaf().hash()));
                beyond.map(|(position, hash)| RevId::new(position, hash.clone()).expect("a position")).collect()
            }
            _ => Vec::new(),
        };
        edit.rev = (!revs.is_empty()).then(|| self.random.pick(&revs).clone());
        edit.attachments = self.attachments(0).iter().map(Attached::inline).collect();
        if alone {
            let replaced = branches.iter().find(|branch| Some(branch.leaf()) == edit.rev.as_ref());
            let mut stubs: Vec<&str> =
                replaced.iter().flat_map(|leaf| &leaf.attachments).map(|one| &*one.name).collect();
            if self.random.chance(0.05) {
                stubs.push("nobody's");
            }
            for name in stubs {
                if edit.attachments.iter().all(|other| other.name != name) && self.random.chance(0.7) {
                    edit.attachments.push(AttachmentEdit::stub(name));
                }
            }
        }
        edit
    }

    /// Usually no attachments, otherwise one or two.
    fn attachments(&mut self, revpos: u64) -> Vec<Attached> {
        let mut attachments = Vec::new();
        for name in ["f", "g\0"] {
            if self.random.chance(0.2) {
                attachments.push(Attached { name: name.to_owned(), revpos, content: self.below(CONTENTS) });
            }
        }
        attachments
    }

    /// There are few bodies, so the same edit is made several times.
    fn body(&mut self) -> JsonText {
        let text = *self.random.pick(&[
            "{}",
            r#"{"n":1}"#,
            r#"{"n":2}"#,
            r#"{"z":[1,{"y":null},[]],"a":{"b":{"c":"d"},"e":2.5}}"#,
        ]);
        JsonText::parse(text.as_bytes()).expect("JSON")
    }

    /// Adds a leaf to the offline copy: with its complete history if the copy knows the parent, otherwise with the
    /// history in the database.
    fn take_over(&mut self, id: &str, rev: &RevId) {
        let tree = self.oracle.tree(id);
        let Some(branch) = tree.branches.iter().find(|branch| branch.leaf() == rev) else { return };
        let known = self.offline.entry(id.to_owned()).or_default();
        if known.iter().any(|known| known.path[0] == *rev) {
            return;
        }
        let parent = branch.path.get(1).and_then(|parent| known.iter().find(|known| known.path[0] == *parent));
        let path = match parent {
            Some(parent) => std::iter::once(rev.clone()).chain(parent.path.iter().cloned()).collect(),
            None => branch.path.clone(),
        };
        let (body, attachments) = (branch.body.clone(), branch.attachments.clone());
        known.push(Offline { path, deleted: !branch.live, body, attachments });
    }

    /// Extends a revision of the offline copy, or creates one without a parent.
    fn work_offline(&mut self, id: &str) {
        let body = self.body();
        let deleted = self.random.chance(0.3);
        let known = self.offline.entry(id.to_owned()).or_default();
        let parents: Vec<Vec<RevId>> = known.iter().map(|known| known.path.clone()).collect();
        let parent = if parents.is_empty() || self.random.chance(0.1) {
            Vec::new()
        } else if self.random.chance(0.5) {
            parents[parents.len() - 1].clone()
        } else {
            self.random.pick(&parents).clone()
        };
        let attachments = self.attachments(parent.len() as u64 + 1);
        let mut made = name(deleted, parent.first(), &body, &attachments);
        if self.random.chance(0.1) {
            // A hash that is not an MD5, like those of other programs. The same edit gets the same hash.
            let short = RevHash::from_bytes(&made.hash().as_bytes()[..3]).expect("a hash");
            made = RevId::new(made.position(), short).expect("a revision");
        }
        let path: Vec<RevId> = std::iter::once(made).chain(parent).collect();
        let known = self.offline.entry(id.to_owned()).or_default();
        if known.iter().all(|known| known.path[0] != path[0]) {
            known.push(Offline { path, deleted, body, attachments });
        }
    }

    /// Sends a revision of the offline copy, with a random part of its history.
    fn replicated(&mut self, id: &str) -> Edit {
        let leaves = self.oracle.tree(id).leaves();
        if !leaves.is_empty() && self.random.chance(0.3) {
            let leaf = self.random.pick(&leaves).clone();
            self.take_over(id, &leaf);
        }
        while self.random.chance(0.5) || self.offline.get(id).is_none_or(Vec::is_empty) {
            self.work_offline(id);
        }
        let known = self.offline[id].clone();
        let sent =
            if self.random.chance(0.5) { known[known.len() - 1].clone() } else { self.random.pick(&known).clone() };
        let mut edit = Edit::new(id, sent.body);
        edit.deleted = sent.deleted;
        edit.attachments = sent.attachments.iter().map(Attached::inline).collect();
        let length = if self.random.chance(0.6) { sent.path.len() } else { 1 + self.below(sent.path.len()) };
        edit.rev = Some(sent.path[0].clone());
        if length > 1 || self.random.chance(0.5) {
            let ids = sent.path[..length].iter().map(|rev| rev.hash().clone()).collect();
            edit = edit.with_history(RevHistory { position: sent.path[0].position(), ids });
        }
        edit
    }
}
