//! Compares both sides row by row.
//!
//! ```text
//!  documents   source's feed ──► each document's rows are the same bytes on both sides: its leaves, their
//!                                ancestors, its bodies, its change, its listing
//!  additions   target's feed ──► the source has each document too, at the same sequence or a later one
//!  settings    ranges without sequences, and the totals
//! ```
//!
//! Rows do not depend on their store, so equal documents have equal rows, except for bodies that were rewritten in
//! another layout on one side, and branches that were stemmed on one side. If rows differ, the bodies are decoded and
//! compared, and ancestors as far as both sides have them. Rows without a document are not found here, but by a check.
//! Documents that were edited at the target after the move are counted but not compared: their sequences have its
//! incarnation.

use std::collections::HashSet;

use kv_api::{Database, KeyValue, Read, TransactionExt};

use crate::admin::check::{PROBLEMS_LISTED, Problem};
use crate::attachments::StoreId;
use crate::documents::Documents;
use crate::error::Result;
use crate::feed::change::{ChangesRequest, Since};
use crate::feed::seq::Seq;
use crate::keys::{DatabaseKey, DatabaseKeys, Leaf, Subspace};
use crate::read::document::Body;
use crate::read::winner::{TreePart, body_of, decode};
use crate::rows::branch::is_stem;

use super::mirror::{self, Difference, Ranges, under};
use super::rows::DocumentRows;

/// Number of documents looked up at a time.
const AT_ONCE: usize = 200;

/// The result of comparing both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Number of documents that are equal on both sides: every leaf, its ancestors, its body, its sequence.
    pub documents: u64,
    /// Number of documents that were edited at the target after the move, and so were not compared.
    pub edited_since: u64,
    /// The first differences.
    pub differences: Vec<Problem>,
    /// Number of differences.
    pub difference_count: u64,
}

/// A comparison in progress.
pub(super) struct Comparison<S, T> {
    source: Documents<S>,
    target: Documents<T>,
    /// The target's incarnation when it is published.
    incarnation: u8,
    /// Documents up to this sequence of the source are compared.
    compared: Seq,
    /// Stores of parts that are equal on both sides. Parts never change.
    same_parts: HashSet<StoreId>,
    pub(super) report: VerifyReport,
}

impl<S: Database, T: Database> Comparison<S, T> {
    pub(super) fn new(source: Documents<S>, target: Documents<T>, incarnation: u8) -> Self {
        Comparison {
            source,
            target,
            incarnation,
            compared: Seq::ZERO,
            same_parts: HashSet::new(),
            report: VerifyReport::default(),
        }
    }

    /// Continues with other handles of the two databases.
    pub(super) fn reads_from(&mut self, (source, target): (Documents<S>, Documents<T>)) {
        (self.source, self.target) = (source, target);
    }

    /// Whether no difference was found so far.
    pub(super) fn is_same(&self) -> bool {
        self.report.difference_count == 0
    }

    fn differs(&mut self, document: Option<&str>, what: impl Into<String>) {
        self.report.difference_count += 1;
        if self.report.differences.len() < PROBLEMS_LISTED {
            self.report.differences.push(Problem { document: document.map(str::to_owned), what: what.into() });
        }
    }

    /// Compares documents of the source that are not compared yet, up to `upto` if given: the target need not have
    /// later ones. `on` gets the number of documents compared.
    pub(super) async fn documents(
        &mut self,
        upto: Option<Seq>,
        on: &mut (impl FnMut(u64) -> Result<()> + Send),
    ) -> Result<()> {
        loop {
            let mut page = self.source.rows_after(self.compared).await?;
            let expected = page.documents.len();
            page.documents.retain(|document| upto.is_none_or(|upto| document.seq <= upto));
            let ids: Vec<&str> = page.documents.iter().map(|document| document.id.as_str()).collect();
            let found = self.target.rows_of(&ids).await?;
            for (document, found) in page.documents.iter().zip(found) {
                self.document(document, found).await?;
                self.compared = document.seq;
            }
            on(self.report.documents)?;
            if !page.more || page.documents.len() < expected || expected == 0 {
                return Ok(());
            }
        }
    }

    async fn document(&mut self, source: &DocumentRows, target: Option<DocumentRows>) -> Result<()> {
        let id = source.id.as_str();
        let Some(target) = target else {
            if self.target.purge_seq().await? > self.source.purge_seq().await? {
                // The document may have been purged at the target after the move.
                self.report.edited_since += 1;
                return Ok(());
            }
            self.differs(Some(id), "the target does not have it");
            return Ok(());
        };
        if target.seq.incarnation() >= self.incarnation {
            self.report.edited_since += 1;
            return Ok(());
        }
        let before = self.report.difference_count;
        if target.seq != source.seq {
            self.differs(Some(id), format!("changed last at {} here, and at {} there", source.seq, target.seq));
        }
        match (&source.rows, &target.rows) {
            (Some(ours), Some(theirs)) if ours == theirs || self.are_one_in_two_layouts(ours, theirs) => {}
            (Some(ours), Some(theirs)) => {
                let (ours, theirs) = (ours.len(), theirs.len());
                self.differs(Some(id), format!("its rows differ, {ours} here and {theirs} there"));
            }
            _ => self.large(id, source.seq).await?,
        }
        self.report.documents += u64::from(self.report.difference_count == before);
        Ok(())
    }

    /// Compares a document that is read in steps. If it is edited meanwhile, it is compared again later.
    async fn large(&mut self, id: &str, seq: Seq) -> Result<()> {
        let mut found = None;
        for key in [DatabaseKey::RevisionsOf(id), DatabaseKey::Change(seq), DatabaseKey::AllDoc(id)] {
            let is_of_branches = matches!(key, DatabaseKey::RevisionsOf(_));
            match self.first_difference(key).await? {
                Some(_) if is_of_branches && self.has_same_branches(id).await? => {}
                difference => found = found.or(difference),
            }
        }
        if found.is_none() {
            found = self.first_difference(DatabaseKey::DocsOf(id)).await?;
            if found.is_some() && self.has_same_bodies(id).await? {
                found = None;
            }
        }
        if let Some(what) = found
            && self.seq_of(id).await? == Some(seq)
        {
            self.differs(Some(id), what);
        }
        Ok(())
    }

    /// Whether these rows of a document differ only in the layouts of its bodies.
    fn are_one_in_two_layouts(&self, ours: &[KeyValue], theirs: &[KeyValue]) -> bool {
        let keys = self.source.keys();
        let (docs, end) = keys.bounds(DatabaseKey::Docs);
        let split = |rows: &[KeyValue]| {
            let rows = rows.iter().map(|row| KeyValue { key: under(keys, &row.key), value: row.value.clone() });
            let (bodies, others): (Vec<_>, Vec<_>) =
                rows.partition(|row| docs[..] <= row.key[..] && row.key[..] < end[..]);
            let bodies = bodies.chunk_by(|one, next| match keys.read_doc(&one.key) {
                Ok((_, _, prefix)) => next.key.starts_with(&one.key[..prefix]),
                Err(_) => false,
            });
            let decoded = bodies.map(|rows| {
                let (_, leaf, prefix) = keys.read_doc(&rows[0].key).ok()?;
                Some((leaf, decode(&rows[0].key[..prefix], rows).ok()?))
            });
            decoded.collect::<Option<Vec<_>>>().map(|bodies| (others, bodies))
        };
        let (Some(ours), Some(theirs)) = (split(ours), split(theirs)) else { return false };
        ours.1 == theirs.1 && self.are_same_or_stemmed(&ours.0, &theirs.0)
    }

    /// Whether rows, with keys of the source, are equal except for forgotten ancestors.
    fn are_same_or_stemmed(&self, ours: &[KeyValue], theirs: &[KeyValue]) -> bool {
        let keys = self.source.keys();
        let is_same = |(ours, theirs): (&KeyValue, &KeyValue)| {
            let leaf = |row: &KeyValue| keys.read_revision(&row.key).map(|(_, leaf)| leaf);
            let is_stem = || leaf(ours).is_ok_and(|leaf| is_stem(&leaf, &ours.value, &theirs.value));
            ours.key == theirs.key && (ours.value == theirs.value || is_stem())
        };
        ours.len() == theirs.len() && ours.iter().zip(theirs).all(is_same)
    }

    /// Whether a document has the same branches on both sides, except for forgotten ancestors.
    async fn has_same_branches(&self, id: &str) -> Result<bool> {
        let keys = self.source.keys();
        let (ours, theirs) =
            (read_branches(&self.source, id, keys).await?, read_branches(&self.target, id, keys).await?);
        Ok(self.are_same_or_stemmed(&ours, &theirs))
    }

    /// Whether the leaves of a document have equal bodies on both sides.
    async fn has_same_bodies(&self, id: &str) -> Result<bool> {
        let leaves = read_leaves(&self.source, id).await?;
        for leaf in &leaves {
            if read_body(&self.source, id, leaf).await? != read_body(&self.target, id, leaf).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The sequence of a document at the source.
    async fn seq_of(&self, id: &str) -> Result<Option<Seq>> {
        let keys = self.source.keys();
        let winner = self.source.read(|transaction| {
            let instance = self.source.instance(&transaction, Read::Snapshot);
            let winner = TreePart::Winner.read(&transaction, keys, id);
            async move {
                instance.await?;
                Ok(winner.await?.into_iter().next())
            }
        });
        Ok(winner.await?.and_then(|winner| winner.winner_info).map(|winner_info| winner_info.seq))
    }

    async fn first_difference(&self, key: DatabaseKey<'_>) -> Result<Option<String>> {
        let ranges = Ranges::whole(&self.source, &self.target, key);
        let mut cursor = Some(ranges.begin());
        while let Some(from) = cursor {
            let (differences, next) = mirror::compare(&self.source, &self.target, &ranges, &from).await?;
            if let Some(difference) = differences.first() {
                let key = difference.key().escape_ascii();
                return Ok(Some(match difference {
                    Difference::Missing(_) => format!("the target lacks the row {key}"),
                    Difference::Other(_) => format!("the target has another row {key}"),
                    Difference::Added(_) => format!("the target has the additional row {key}"),
                }));
            }
            cursor = next;
        }
        Ok(None)
    }

    /// Compares the rows without sequences. They are equal while the source is closed and the target is not published.
    pub(super) async fn settings(&mut self) -> Result<()> {
        for subspace in Subspace::ALL {
            match subspace {
                // The target's row is written when it is published.
                Subspace::Instance => {}
                // Compared document by document.
                Subspace::Revisions | Subspace::Changes | Subspace::Docs | Subspace::AllDocs => {}
                Subspace::Security
                | Subspace::Last
                | Subspace::Stats
                | Subspace::Local
                | Subspace::Contents
                | Subspace::References
                | Subspace::Indexes
                | Subspace::Purges
                | Subspace::Counts
                | Subspace::Replaced
                | Subspace::ReplacedDocs
                | Subspace::Trash
                | Subspace::TrashDocs
                | Subspace::Ended => {
                    if let Some(what) = self.first_difference(DatabaseKey::All(subspace)).await? {
                        self.differs(None, what);
                    }
                }
                Subspace::Parts => self.contents(true).await?,
                // The target builds its own rows.
                Subspace::IndexRows | Subspace::Indexed | Subspace::Views | Subspace::Passed => {}
            }
        }
        Ok(())
    }

    /// Compares the parts of contents that were not found equal yet. Differences count only after the fence.
    pub(super) async fn contents(&mut self, is_last: bool) -> Result<()> {
        for row in self.source.content_rows().await? {
            if self.same_parts.contains(&row.store) {
                continue;
            }
            match self.first_difference(DatabaseKey::PartsOf(&row.store)).await? {
                None => {
                    self.same_parts.insert(row.store);
                }
                Some(what) if is_last => self.differs(None, what),
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Looks for documents that only the target has.
    pub(super) async fn additions(&mut self, on: &mut (impl FnMut(u64) -> Result<()> + Send)) -> Result<()> {
        let mut request = ChangesRequest { limit: Some(AT_ONCE), ..ChangesRequest::default() };
        loop {
            let batch = self.target.changes(&request).await?;
            if let Some(error) = batch.rows.iter().find_map(|change| change.error.clone()) {
                return Err(error);
            }
            let old: Vec<(Seq, String)> = batch
                .rows
                .into_iter()
                .filter(|change| change.seq.incarnation() < self.incarnation)
                .map(|change| (change.seq, change.id))
                .collect();
            for (id, seq, theirs) in self.look_up(&old).await? {
                // The source may have edited the document since the copy, or purged it.
                let purged = theirs.is_none() && self.source.purge_seq().await? != self.target.purge_seq().await?;
                if !purged && theirs.is_none_or(|theirs| theirs < seq) {
                    let what = format!("is at the target with the sequence {seq}, but not at the source");
                    self.differs(Some(&id), what);
                }
            }
            on(self.report.documents)?;
            if !batch.more {
                return Ok(());
            }
            request.since = Since::Seq(batch.last_seq);
        }
    }

    /// The documents with their sequences here and at the source.
    async fn look_up(&self, rows: &[(Seq, String)]) -> Result<Vec<(String, Seq, Option<Seq>)>> {
        let keys = self.source.keys();
        self.source
            .read(|transaction| async move {
                let instance = self.source.instance(&transaction, Read::Snapshot);
                let winners: Vec<_> =
                    rows.iter().map(|(_, id)| TreePart::Winner.read(&transaction, keys, id)).collect();
                instance.await?;
                let mut found = Vec::with_capacity(rows.len());
                for ((seq, id), winner) in rows.iter().zip(winners) {
                    let winner_info = winner.await?.into_iter().next().and_then(|winner| winner.winner_info);
                    found.push((id.clone(), *seq, winner_info.map(|winner_info| winner_info.seq)));
                }
                Ok(found)
            })
            .await
    }
}

/// The rows of a document's branches, under the prefix of these keys.
async fn read_branches<D: Database>(documents: &Documents<D>, id: &str, keys: &DatabaseKeys) -> Result<Vec<KeyValue>> {
    let branches = documents.keys().range(DatabaseKey::RevisionsOf(id));
    let rows = documents.read(|transaction| {
        let rows = transaction.get_all(branches.clone(), Read::Snapshot);
        async move { Ok(rows.await?) }
    });
    let own = documents.keys().prefix().len();
    let moved = |row: KeyValue| KeyValue { key: under(keys, &row.key[own..]), value: row.value };
    Ok(rows.await?.into_iter().map(moved).collect())
}

async fn read_leaves<D: Database>(documents: &Documents<D>, id: &str) -> Result<Vec<Leaf>> {
    let tree = documents.read(|transaction| TreePart::Whole.read(&transaction, documents.keys(), id)).await?;
    Ok(tree.into_iter().map(|branch| branch.leaf).collect())
}

async fn read_body<D: Database>(documents: &Documents<D>, id: &str, leaf: &Leaf) -> Result<Option<Body>> {
    documents.read(|transaction| body_of(&transaction, documents.keys(), id, leaf)).await
}
