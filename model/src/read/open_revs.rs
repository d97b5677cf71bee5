//! Reads leaves by their revisions, of one document or of many, with all reads of a batch together.
//!
//! ```text
//!  first round trip, for each requested revision   its body, as a live leaf
//!                                                  its row, as a tombstone     (and as a live leaf: `revs`)
//!                    or for each document          all branches                (`latest`, or all leaves)
//!                    or for a first revision       its body, as a live leaf: its whole branch     (`latest`)
//!  second, if needed                               all branches, where a first revision has no body: it is a tombstone,
//!                                                  was replaced, or is unknown
//!                                                  bodies of tombstones and of the leaves of these branches
//!                                                  in a database that keeps replaced revisions: their rows, of those
//!                                                  that are not leaves; their bodies follow like the others
//! ```
//!
//! A batch ends at a number of requests or of bytes. Requests that do not fit are read in the next transaction. If
//! the leaves of a single document do not fit, the rest of their bodies is read in further transactions.
//!
//! Source: `couch_db:open_doc_revs_int/3` and `couch_key_tree:get_key_leafs/2` of CouchDB.

use std::collections::HashMap;
use std::future::Future;

use bytes::Bytes;
use kv_api::{Database, Read, Transaction};

use crate::documents::Documents;
use crate::error::{Error, Result, alone};
use crate::keys::{DatabaseKey, Leaf};
use crate::read::batch::{BODIES_AT_ONCE, Batch};
use crate::read::document::{Body, BulkGet, Document, GetOptions, OpenRev, OpenRevs};
use crate::read::winner::{TreePart, body_at, body_of, body_or_empty, history};
use crate::replaced::keep_replaced::KeepReplaced;
use crate::rows::branch::Branch;
use crate::rows::revid::RevId;

/// Number of documents read in one transaction of a bulk get.
const DOCUMENTS_AT_ONCE: usize = 200;

/// Number of bodies read in one transaction for each of its documents, for documents with many leaves.
const BODIES_OF_ONE: usize = 10;

/// The reads of one request in the first round trip.
enum First<B, G, T> {
    /// All branches, and the requested revisions; `None` for all leaves.
    Tree { tree: T, revs: Option<Vec<RevId>> },
    /// A first revision as a live leaf, which is then its whole branch.
    Root { rev: RevId, live_body: B },
    /// Each requested revision.
    Ones(Vec<One<B, G>>),
}

struct One<B, G> {
    rev: RevId,
    live_body: B,
    tombstone: G,
    /// Its row as a live leaf, if its ancestors are requested.
    live: Option<G>,
}

/// A leaf that was found.
struct Opened {
    branch: Branch,
    body: Option<Body>,
    /// Whether it is no longer a leaf, but a replaced revision whose body is kept.
    is_replaced: bool,
}

impl Opened {
    /// Number of bytes of the body that are not read yet.
    fn unread(&self) -> usize {
        if self.body.is_some() { 0 } else { usize::try_from(self.branch.size).unwrap_or(usize::MAX) }
    }

    /// The key of its body.
    fn body_key<'a>(&'a self, id: &'a str) -> DatabaseKey<'a> {
        let leaf = &self.branch.leaf;
        if self.is_replaced { DatabaseKey::ReplacedDoc(id, leaf) } else { DatabaseKey::Doc(id, leaf) }
    }
}

/// The ancestors to read, if they are requested.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ancestors {
    /// As many as the database's limit of revisions allows.
    UpToLimit,
    /// All that are stored.
    All,
}

/// Result for one requested revision.
enum Answer {
    Leaf(Opened),
    Missing(RevId),
}

impl Answer {
    /// The leaf, if its body is not completely read.
    fn unread(&mut self) -> Option<&mut Opened> {
        match self {
            Answer::Leaf(opened) if opened.unread() > 0 => Some(opened),
            _ => None,
        }
    }
}

impl<D: Database> Documents<D> {
    /// Leaves of a document, in the requested order; if all leaves are requested, the best first. Only `latest` and
    /// `revs` of `options` count.
    ///
    /// # Errors
    /// 404 if the database is gone. A missing leaf is an answer, not an error.
    pub async fn open_revs(&self, id: &str, which: &OpenRevs, options: &GetOptions) -> Result<Vec<OpenRev>> {
        self.check_id_to_read(id).await?;
        // Without `latest` each revision is a separate request, so their bodies need not fit in one transaction.
        let split: Vec<OpenRevs> = match which {
            OpenRevs::These(revs) if !options.latest => {
                revs.iter().map(|rev| OpenRevs::These(vec![rev.clone()])).collect()
            }
            which => vec![which.clone()],
        };
        let requests: Vec<(&str, &OpenRevs)> = split.iter().map(|which| (id, which)).collect();
        let (mut all, mut rest) = (Vec::with_capacity(requests.len()), &requests[..]);
        while !rest.is_empty() {
            let some = self.open_batch(rest, options, Ancestors::UpToLimit).await?;
            rest = &rest[some.len()..];
            for opened in some {
                all.extend(opened?);
            }
        }
        Ok(all)
    }

    /// Leaves of many documents: for each request its id and the result of [`open_revs`](Self::open_revs). A
    /// request for a damaged document fails alone.
    ///
    /// # Errors
    /// As there. An invalid id counts as missing.
    pub async fn get_many(
        &self,
        requests: Vec<BulkGet>,
        options: &GetOptions,
    ) -> Result<Vec<(String, Result<Vec<OpenRev>>)>> {
        let mut found = Vec::with_capacity(requests.len());
        while found.len() < requests.len() {
            found.extend(self.get_some(&requests[found.len()..], options).await?);
        }
        Ok(found)
    }

    /// The same for the first of these requests: at least one, and as many as fit in a batch of four megabytes. So a
    /// caller that uses them before it requests the rest has few of them in memory.
    ///
    /// # Errors
    /// As there.
    pub async fn get_some(
        &self,
        requests: &[BulkGet],
        options: &GetOptions,
    ) -> Result<Vec<(String, Result<Vec<OpenRev>>)>> {
        self.get_batch(requests, options, Ancestors::UpToLimit).await
    }

    /// The same for all leaves, with all stored ancestors. Those beyond the limit of revisions, which other reads do
    /// not show, count again when the limit is raised, so a backup needs them.
    ///
    /// # Errors
    /// As there.
    pub async fn get_stored(&self, requests: &[BulkGet]) -> Result<Vec<(String, Result<Vec<OpenRev>>)>> {
        let options = GetOptions { revs: true, ..GetOptions::default() };
        self.get_batch(requests, &options, Ancestors::All).await
    }

    async fn get_batch(
        &self,
        requests: &[BulkGet],
        options: &GetOptions,
        ancestors: Ancestors,
    ) -> Result<Vec<(String, Result<Vec<OpenRev>>)>> {
        let requests = &requests[..requests.len().min(DOCUMENTS_AT_ONCE)];
        let which: Vec<OpenRevs> = requests
            .iter()
            .map(|request| match &request.rev {
                Some(rev) => OpenRevs::These(vec![rev.clone()]),
                None => OpenRevs::All,
            })
            .collect();
        let together: Vec<(&str, &OpenRevs)> = requests.iter().map(|request| request.id.as_str()).zip(&which).collect();
        let opened = self.open_batch(&together, options, ancestors).await?;
        Ok(requests.iter().map(|request| request.id.clone()).zip(opened).collect())
    }

    /// Answers the first requests: as many as fit in a batch, and at least one.
    async fn open_batch(
        &self,
        requests: &[(&str, &OpenRevs)],
        options: &GetOptions,
        ancestors: Ancestors,
    ) -> Result<Vec<Result<Vec<OpenRev>>>> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        // For first revisions bodies are read at once, of which fewer fit into a batch.
        let has_roots = requests.iter().any(|(_, which)| is_root(which, options));
        let most = if has_roots { BODIES_AT_ONCE } else { DOCUMENTS_AT_ONCE };
        let some = self.read_batch(most, |transaction, at_once| {
            self.open_some(transaction, &requests[..requests.len().min(at_once)], options, at_once)
        });
        let mut opened = Vec::with_capacity(requests.len());
        let (revs_limit, some) = some.await?;
        for (found, (id, _)) in some.into_iter().zip(requests) {
            let found = match found {
                Ok(mut found) => alone(self.read_unread(id, &mut found).await)?.map(|()| found),
                damaged => damaged,
            };
            let mut answers: Result<Vec<OpenRev>> =
                found.and_then(|found| found.into_iter().map(|answer| answer.open(id, options)).collect());
            for answer in answers.iter_mut().flatten() {
                if let OpenRev::Found(document) = answer
                    && ancestors == Ancestors::UpToLimit
                {
                    document.forget_beyond(revs_limit);
                }
            }
            opened.push(answers.map_err(|damage: Error| damage.of_document(id)));
        }
        Ok(opened)
    }

    /// Answers the first requests: as many as fit in a batch, and at least one. If that one is alone, bodies may
    /// be left unread. Also returns the database's `revs_limit`.
    async fn open_some(
        &self,
        transaction: D::Transaction,
        requests: &[(&str, &OpenRevs)],
        options: &GetOptions,
        at_once: usize,
    ) -> Result<(usize, Vec<Result<Vec<Answer>>>)> {
        let keys = self.keys();
        let instance = self.instance(&transaction, Read::Snapshot);
        let row = |id: &str, leaf: &Leaf| transaction.get(&keys.key(DatabaseKey::Revision(id, leaf)), Read::Snapshot);
        let one = |id: &str, rev: &RevId| {
            let live = Leaf { not_deleted: true, rev: rev.clone() };
            let dead = Leaf { not_deleted: false, rev: rev.clone() };
            One {
                live_body: body_of(&transaction, keys, id, &live),
                tombstone: row(id, &dead),
                live: (options.revs || options.atts_since.is_some()).then(|| row(id, &live)),
                rev: rev.clone(),
            }
        };
        let tree = |id: &str| TreePart::Whole.read(&transaction, keys, id);
        let first: Vec<_> = requests
            .iter()
            .map(|&(id, which)| match which {
                OpenRevs::All => First::Tree { tree: tree(id), revs: None },
                OpenRevs::These(revs) if is_root(which, options) => {
                    let live = Leaf { not_deleted: true, rev: revs[0].clone() };
                    let live_body = body_of(&transaction, keys, id, &live);
                    First::Root { rev: live.rev, live_body }
                }
                OpenRevs::These(revs) if options.latest => First::Tree { tree: tree(id), revs: Some(revs.clone()) },
                OpenRevs::These(revs) => First::Ones(revs.iter().map(|rev| one(id, rev)).collect()),
            })
            .collect();
        let instance = instance.await?;
        let revs_limit = instance.revs_limit as usize;

        let (mut answers, mut batch) = (Vec::with_capacity(requests.len()), Batch::of(requests.len()));
        let mut trees = HashMap::new();
        for (place, first) in first.into_iter().enumerate() {
            if batch.is_full() {
                break;
            }
            let found = match first {
                First::Root { rev, live_body } => match alone(live_body.await)? {
                    Ok(Some(body)) => live_leaf(rev, None, body).map(|leaf| vec![leaf]),
                    Ok(None) => {
                        let tree = trees.remove(&place).unwrap_or_else(|| {
                            // Later ones may have no body either, and these reads go together.
                            let later = (place + 1..requests.len()).filter(|&at| is_root(requests[at].1, options));
                            trees.extend(later.map(|at| (at, tree(requests[at].0))));
                            tree(requests[place].0)
                        });
                        alone(tree.await.and_then(|tree| leaves_of(tree, Some(vec![rev]))))?
                    }
                    Err(damage) => Err(damage),
                },
                First::Tree { tree, revs } => alone(tree.await.and_then(|tree| leaves_of(tree, revs)))?,
                First::Ones(ones) => alone(look_at(ones).await)?,
            };
            let read = |answer: &Answer| match answer {
                Answer::Leaf(Opened { branch, body, .. }) => {
                    branch.row_bytes() + body.as_ref().map_or(0, Body::bytes_read)
                }
                Answer::Missing(_) => 0,
            };
            batch.add(found.iter().flatten().map(read).sum());
            answers.push(found);
        }
        if let (Some(keep), false) = (instance.keep, options.latest) {
            Box::pin(self.add_replaced(&transaction, keep, requests, options, &mut answers)).await?;
        }
        let mut batch = Batch::of(at_once.saturating_mul(BODIES_OF_ONE));
        let mut bodies = Vec::new();
        'requests: for request in 0..answers.len() {
            let Ok(found) = &mut answers[request] else { continue };
            for (place, answer) in found.iter_mut().enumerate() {
                let Some(opened) = answer.unread() else { continue };
                if !batch.take(opened.unread()) {
                    // Its unread bodies are read separately, or a later batch answers the request.
                    answers.truncate(request.max(1));
                    break 'requests;
                }
                bodies.push((request, place, body_at(&transaction, keys.key(opened.body_key(requests[request].0)))));
            }
        }
        for (request, place, body) in bodies {
            if request >= answers.len() {
                break;
            }
            let read = alone(body.await)?;
            let Ok(found) = &mut answers[request] else { continue };
            let Some(Answer::Leaf(opened)) = found.get_mut(place) else { continue };
            match read.and_then(|body| body.ok_or_else(|| no_body(&opened.branch.leaf))) {
                Ok(body) => opened.body = Some(body),
                Err(damage) => answers[request] = Err(damage),
            }
        }
        Ok((revs_limit, answers))
    }

    /// Replaces missing revisions by replaced ones that are kept.
    async fn add_replaced(
        &self,
        transaction: &D::Transaction,
        keep: KeepReplaced,
        requests: &[(&str, &OpenRevs)],
        options: &GetOptions,
        answers: &mut [Result<Vec<Answer>>],
    ) -> Result<()> {
        let with_history = options.revs || options.atts_since.is_some();
        let mut reads = Vec::new();
        for (request, found) in answers.iter().enumerate() {
            for (place, answer) in found.iter().flatten().enumerate() {
                if let Answer::Missing(rev) = answer {
                    let id = requests[request].0;
                    reads.push((request, place, self.find_replaced(transaction, keep, id, rev, with_history)));
                }
            }
        }
        for (request, place, read) in reads {
            let branch = alone(read.await)?;
            let Ok(found) = &mut answers[request] else { continue };
            match branch {
                Ok(Some(branch)) => {
                    found[place] = Answer::Leaf(Opened { branch, body: None, is_replaced: true });
                }
                Ok(None) => {}
                Err(damage) => answers[request] = Err(damage),
            }
        }
        Ok(())
    }

    /// Reads the bodies that did not fit in the transaction of their trees, in further transactions. A leaf that
    /// was replaced since then counts as missing.
    async fn read_unread(&self, id: &str, answers: &mut [Answer]) -> Result<()> {
        loop {
            let keys: Vec<Vec<u8>> = answers
                .iter_mut()
                .filter_map(Answer::unread)
                .map(|opened| self.keys().key(opened.body_key(id)))
                .collect();
            if keys.is_empty() {
                return Ok(());
            }
            let keys = keys.as_slice();
            let read = self
                .read_batch(BODIES_AT_ONCE, |transaction, at_once| async move {
                    let instance = self.instance(&transaction, Read::Snapshot);
                    let some = keys.iter().take(at_once);
                    let bodies: Vec<_> = some.map(|key| body_at(&transaction, key.clone())).collect();
                    instance.await?;
                    let (mut read, mut batch) = (Vec::new(), Batch::of(bodies.len()));
                    for body in bodies {
                        if batch.is_full() {
                            break;
                        }
                        let body = body.await?;
                        batch.add(body.as_ref().map_or(0, Body::bytes_read));
                        read.push(body);
                    }
                    Ok(read)
                })
                .await?;
            let mut read = read.into_iter();
            for answer in answers.iter_mut() {
                let Some(opened) = answer.unread() else { continue };
                match read.next() {
                    Some(Some(body)) => opened.body = Some(body),
                    Some(None) => *answer = Answer::Missing(opened.branch.leaf.rev.clone()),
                    None => break,
                }
            }
        }
    }
}

fn no_body(leaf: &Leaf) -> Error {
    Error::corrupt(format!("there is no body at {}", leaf.rev))
}

/// Whether a single first revision is requested, or the leaves after it if it was replaced.
fn is_root(which: &OpenRevs, options: &GetOptions) -> bool {
    options.latest && matches!(which, OpenRevs::These(revs) if matches!(&revs[..], [rev] if rev.position() == 1))
}

/// The requested leaves of a document with these branches.
fn leaves_of(tree: Vec<Branch>, revs: Option<Vec<RevId>>) -> Result<Vec<Answer>> {
    let leaf = |branch| Answer::Leaf(Opened { branch, body: None, is_replaced: false });
    let Some(revs) = revs else { return Ok(tree.into_iter().map(leaf).collect()) };
    let mut answers = Vec::new();
    let mut given = vec![false; tree.len()];
    for rev in revs {
        let mut known = false;
        for (branch, given) in tree.iter().zip(&mut given) {
            if branch.contains(&rev)? {
                known = true;
                if !std::mem::replace(given, true) {
                    answers.push(leaf(branch.clone()));
                }
            }
        }
        if !known {
            answers.push(Answer::Missing(rev));
        }
    }
    Ok(answers)
}

async fn look_at<B, G>(ones: Vec<One<B, G>>) -> Result<Vec<Answer>>
where
    B: Future<Output = Result<Option<Body>>>,
    G: Future<Output = kv_api::Result<Option<Bytes>>>,
{
    let mut answers = Vec::with_capacity(ones.len());
    for one in ones {
        let (body, tombstone) = (one.live_body.await?, one.tombstone.await?);
        let row = match one.live {
            Some(row) => row.await?,
            None => None,
        };
        answers.push(match (body, tombstone) {
            (Some(body), _) => live_leaf(one.rev, row, body)?,
            (None, Some(row)) => {
                let branch = Branch::read(Leaf { not_deleted: false, rev: one.rev }, &row)?;
                Answer::Leaf(Opened { branch, body: None, is_replaced: false })
            }
            (None, None) => Answer::Missing(one.rev),
        });
    }
    Ok(answers)
}

/// A live leaf with its body, and with its row if its ancestors are requested and it has some.
fn live_leaf(rev: RevId, row: Option<Bytes>, body: Body) -> Result<Answer> {
    let leaf = Leaf { not_deleted: true, rev };
    let branch = match row {
        Some(row) => Branch::read(leaf, &row)?,
        None => Branch::bare(leaf, body.text.len() as u64),
    };
    Ok(Answer::Leaf(Opened { branch, body: Some(body), is_replaced: false }))
}

impl Answer {
    fn open(self, id: &str, options: &GetOptions) -> Result<OpenRev> {
        let Opened { branch, body, .. } = match self {
            Answer::Missing(rev) => return Ok(OpenRev::Missing(rev)),
            Answer::Leaf(opened) => opened,
        };
        if branch.size > 0 && body.is_none() {
            return Err(no_body(&branch.leaf));
        }
        let body = body_or_empty(&branch.leaf, body)?;
        let revisions = options.revs.then(|| history(&branch)).transpose()?;
        let mut document = Document::new(id.to_owned(), branch.leaf.rev.clone(), !branch.leaf.not_deleted, body);
        document.revisions = revisions;
        document.mark_wanted(options, || history(&branch))?;
        Ok(OpenRev::Found(document))
    }
}
