//! Reading leaves by their revisions, of one document or of many, all reads of a batch together.
//!
//! ```text
//!  first round trip, for each revision asked for   its body, as a live leaf
//!                                                  its row, as a tombstone     (and as a live leaf: `revs`)
//!                    for each document             all branches                (`latest`, or all leaves)
//!  second, where needed                            bodies of tombstones and of newer leaves
//! ```
//!
//! Source: `couch_db:open_doc_revs_int/3` and `couch_key_tree:get_key_leafs/2` of CouchDB.

use std::future::Future;

use bytes::Bytes;
use kv_api::{Database, Read, Transaction};

use crate::branch::Branch;
use crate::document::{BulkGet, Document, GetOptions, OpenRev, OpenRevs};
use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::json::JsonText;
use crate::keys::{DatabaseKey, Leaf};
use crate::limits::check_document_id;
use crate::read::{Tree, body_of, body_or_empty, history};
use crate::revid::RevId;

/// Documents read in one transaction of a bulk get.
const DOCUMENTS_AT_ONCE: usize = 200;

/// The reads of one document's first round trip.
struct First<B, G, T> {
    /// All branches, where they are needed.
    tree: Option<T>,
    /// Each revision asked for.
    ones: Vec<One<B, G>>,
}

struct One<B, G> {
    rev: RevId,
    live_body: B,
    tombstone: G,
    /// Its row as a live leaf, where its ancestors are asked for.
    live: Option<G>,
}

/// A leaf that was found.
struct Opened {
    branch: Branch,
    body: Option<JsonText>,
}

/// What became of one revision asked for.
enum Answer {
    Leaf(Opened),
    Missing(RevId),
}

impl<D: Database> Documents<D> {
    /// Leaves of a document, in the order asked for; all of them are given best first. Of `options`,
    /// `latest` and `revs` are heeded.
    ///
    /// # Errors
    /// 404 where the database is gone. A leaf that is not there is an answer, no error.
    pub async fn open_revs(&self, id: &str, which: &OpenRevs, options: &GetOptions) -> Result<Vec<OpenRev>> {
        check_document_id(id)?;
        let requests = [(id, which)];
        let mut opened = self.read(|transaction| self.open(transaction, &requests, options)).await?;
        Ok(opened.pop().unwrap_or_default())
    }

    /// Leaves of many documents: for each request its id and what [`open_revs`](Self::open_revs) gives.
    ///
    /// # Errors
    /// As there; an id that no document may have is one that is not there.
    pub async fn get_many(&self, requests: Vec<BulkGet>, options: &GetOptions) -> Result<Vec<(String, Vec<OpenRev>)>> {
        let mut answers = Vec::with_capacity(requests.len());
        for some in requests.chunks(DOCUMENTS_AT_ONCE) {
            let which: Vec<OpenRevs> = some
                .iter()
                .map(|request| match &request.rev {
                    Some(rev) => OpenRevs::These(vec![rev.clone()]),
                    None => OpenRevs::All,
                })
                .collect();
            let together: Vec<(&str, &OpenRevs)> = some.iter().map(|request| request.id.as_str()).zip(&which).collect();
            let opened = self.read(|transaction| self.open(transaction, &together, options)).await?;
            answers.extend(some.iter().map(|request| request.id.clone()).zip(opened));
        }
        Ok(answers)
    }

    async fn open(
        &self,
        transaction: D::Transaction,
        requests: &[(&str, &OpenRevs)],
        options: &GetOptions,
    ) -> Result<Vec<Vec<OpenRev>>> {
        let keys = self.keys();
        let instance = self.instance(&transaction, Read::Snapshot);
        let row = |id: &str, leaf: &Leaf| transaction.get(&keys.key(DatabaseKey::Revision(id, leaf)), Read::Snapshot);
        let first: Vec<_> = requests
            .iter()
            .map(|(id, which)| {
                let revs = match which {
                    OpenRevs::All => &[][..],
                    OpenRevs::These(revs) => revs,
                };
                let whole = options.latest || matches!(which, OpenRevs::All);
                First {
                    tree: whole.then(|| Tree::Whole.read(&transaction, keys, id)),
                    ones: revs
                        .iter()
                        .map(|rev| {
                            let live = Leaf { not_deleted: true, rev: rev.clone() };
                            let dead = Leaf { not_deleted: false, rev: rev.clone() };
                            One {
                                live_body: body_of(&transaction, keys, id, &live),
                                tombstone: row(id, &dead),
                                live: (options.revs && !whole).then(|| row(id, &live)),
                                rev: rev.clone(),
                            }
                        })
                        .collect(),
                }
            })
            .collect();
        instance.await?;

        let mut answers = Vec::with_capacity(requests.len());
        for first in first {
            answers.push(look(first).await?);
        }
        let mut bodies = Vec::new();
        for (request, found) in answers.iter().enumerate() {
            for (place, answer) in found.iter().enumerate() {
                if let Answer::Leaf(Opened { branch, body: None }) = answer
                    && branch.size > 0
                {
                    let body = body_of(&transaction, keys, requests[request].0, &branch.leaf);
                    bodies.push((request, place, body));
                }
            }
        }
        for (request, place, body) in bodies {
            let read = body.await?;
            if let Answer::Leaf(opened) = &mut answers[request][place] {
                opened.body = read;
            }
        }
        let answers = answers.into_iter().zip(requests);
        answers.map(|(found, (id, _))| found.into_iter().map(|answer| answer.open(id, options)).collect()).collect()
    }
}

async fn look<B, G, T>(first: First<B, G, T>) -> Result<Vec<Answer>>
where
    B: Future<Output = Result<Option<JsonText>>>,
    G: Future<Output = kv_api::Result<Option<Bytes>>>,
    T: Future<Output = Result<Vec<Branch>>>,
{
    let Some(tree) = first.tree else {
        let mut answers = Vec::with_capacity(first.ones.len());
        for one in first.ones {
            answers.push(look_at(one).await?);
        }
        return Ok(answers);
    };
    let tree = tree.await?;
    if first.ones.is_empty() {
        return Ok(tree.into_iter().map(|branch| Answer::Leaf(Opened { branch, body: None })).collect());
    }
    let mut answers: Vec<Answer> = Vec::new();
    let mut given = vec![false; tree.len()];
    for one in first.ones {
        let mut known = false;
        let mut body = one.live_body.await?;
        for (branch, given) in tree.iter().zip(&mut given) {
            if !branch.contains(&one.rev)? {
                continue;
            }
            known = true;
            if !*given {
                *given = true;
                let own = branch.leaf.not_deleted && branch.leaf.rev == one.rev;
                let body = if own { body.take() } else { None };
                answers.push(Answer::Leaf(Opened { branch: branch.clone(), body }));
            }
        }
        if !known {
            answers.push(Answer::Missing(one.rev));
        }
    }
    Ok(answers)
}

async fn look_at<B, G>(one: One<B, G>) -> Result<Answer>
where
    B: Future<Output = Result<Option<JsonText>>>,
    G: Future<Output = kv_api::Result<Option<Bytes>>>,
{
    let (body, tombstone) = (one.live_body.await?, one.tombstone.await?);
    let row = match one.live {
        Some(row) => row.await?,
        None => None,
    };
    if let Some(body) = body {
        let leaf = Leaf { not_deleted: true, rev: one.rev };
        let branch = match row {
            Some(row) => Branch::read(leaf, &row)?,
            None => Branch::bare(leaf, body.len() as u64),
        };
        return Ok(Answer::Leaf(Opened { branch, body: Some(body) }));
    }
    let Some(row) = tombstone else { return Ok(Answer::Missing(one.rev)) };
    let branch = Branch::read(Leaf { not_deleted: false, rev: one.rev }, &row)?;
    Ok(Answer::Leaf(Opened { branch, body: None }))
}

impl Answer {
    fn open(self, id: &str, options: &GetOptions) -> Result<OpenRev> {
        let Opened { branch, body } = match self {
            Answer::Missing(rev) => return Ok(OpenRev::Missing(rev)),
            Answer::Leaf(opened) => opened,
        };
        if branch.size > 0 && body.is_none() {
            return Err(Error::corrupt(format!("{id:?} has no body at {}", branch.leaf.rev)));
        }
        let body = body_or_empty(id, &branch.leaf, body)?;
        let revisions = options.revs.then(|| history(&branch)).transpose()?;
        let mut document = Document::new(id.to_owned(), branch.leaf.rev, !branch.leaf.not_deleted, body);
        document.revisions = revisions;
        Ok(OpenRev::Found(document))
    }
}
