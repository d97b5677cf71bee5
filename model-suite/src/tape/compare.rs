//! Compares everything that can be read from a database with the oracle.

use std::fmt::{self, Debug};

use conformance::random::Random;
use kv_api::Database;
use model::{
    AllDocsEntry, AllDocsRequest, AllDocsRow, Change, ChangesRequest, Document, Documents, ErrorKind, GetOptions,
    NotFound, OpenRev, OpenRevs, RevHistory, RevId, RevInfo, RevStatus, RevsDiff, Seq, Since, Style,
};

use super::attached::Attached;
use super::oracle::{Branch, Oracle, OracleDocument, PURGES_KEPT};
use crate::stage::all_members;

/// A difference that was found.
#[derive(Debug)]
pub(super) struct Failure(pub(super) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<model::Error> for Failure {
    fn from(error: model::Error) -> Self {
        Failure(error.to_string())
    }
}

pub(super) fn ensure<T: Debug + PartialEq>(what: &str, found: &T, expected: &T) -> Result<(), Failure> {
    if found == expected {
        return Ok(());
    }
    Err(Failure(format!("{what}:\n   found    {found:?}\n   expected {expected:?}")))
}

/// Reads everything and compares it.
pub(super) async fn compare<D: Database>(documents: &Documents<D>, oracle: &Oracle, seed: u64) -> Result<(), Failure> {
    let mut random = Random::new(seed);
    let changes = feed(documents, oracle, &mut random).await?;
    info(documents, oracle, &changes).await?;
    purges(documents, oracle).await?;
    listing(documents, oracle, &mut random).await?;
    revs_diff(documents, oracle, &mut random).await?;
    for (id, tree) in &oracle.trees {
        let seq = changes.iter().find(|change| change.id == *id).map(|change| change.seq);
        document(documents, id, (tree, oracle.revs_limit), seq).await?;
        leaves(documents, id, (tree, oracle.revs_limit), &mut random).await?;
    }
    Ok(())
}

async fn info<D: Database>(documents: &Documents<D>, oracle: &Oracle, changes: &[Change]) -> Result<(), Failure> {
    let info = documents.info().await?;
    let live = oracle.trees.values().filter(|tree| tree.is_live()).count() as u64;
    let bodies = oracle.trees.values().flat_map(|tree| &tree.branches);
    // A tombstone without members and attachments stores no body.
    let has_body = |branch: &&Branch| branch.live || branch.body.len() > 2 || !branch.attachments.is_empty();
    let bodies = bodies.filter(has_body);
    let external: usize = bodies.map(|branch| branch.body.len()).sum();
    let found = (info.doc_count, info.doc_del_count, info.sizes.external, info.revs_limit as usize);
    let expected = (live, oracle.trees.len() as u64 - live, external as u64, oracle.revs_limit);
    ensure("info", &found, &expected)?;
    let last = changes.last().map_or(Seq::ZERO, |change| change.seq);
    ensure("the purge sequence", &info.purge_seq, &(oracle.purged.len() as u64))?;
    if oracle.purged.is_empty() {
        return ensure("the last sequence", &info.update_seq.seq, &last);
    }
    // The document that changed last may have been purged.
    ensure("whether the last sequence is behind a change", &(info.update_seq.seq < last), &false)
}

/// Compares the purges that are remembered.
async fn purges<D: Database>(documents: &Documents<D>, oracle: &Oracle) -> Result<(), Failure> {
    let first = oracle.purged.len().saturating_sub(PURGES_KEPT);
    let infos = documents.purged_infos(0).await?;
    let found: Vec<_> = infos.into_iter().map(|info| (info.seq, info.id, info.revs, info.purged)).collect();
    let expected = (1..).zip(oracle.purged.iter().cloned()).skip(first);
    let expected: Vec<_> = expected.map(|(seq, (id, revs, purged))| (seq, id, revs, purged)).collect();
    ensure("purges", &found, &expected)
}

/// Compares the feed: each document once, in the order of their last changes. Documents that one step changed may be in
/// any order.
async fn feed<D: Database>(
    documents: &Documents<D>,
    oracle: &Oracle,
    random: &mut Random,
) -> Result<Vec<Change>, Failure> {
    let all = ChangesRequest { style: Style::AllDocs, ..ChangesRequest::default() };
    let changes = pages(documents, all.clone()).await?;
    let steps: Vec<usize> = changes.iter().map(|change| oracle.tree(&change.id).changed).collect();
    if !steps.is_sorted() || !changes.is_sorted_by(|one, next| one.seq < next.seq) {
        return Err(Failure(format!("the feed is out of order: {changes:?}, changed in steps {steps:?}")));
    }
    let mut rows: Vec<_> =
        changes.iter().map(|change| (change.id.clone(), change.deleted, change.revs.clone())).collect();
    rows.sort();
    let expected: Vec<_> = oracle.trees.iter().map(|(id, tree)| (id.clone(), !tree.is_live(), tree.leaves())).collect();
    ensure("the feed", &rows, &expected)?;

    // The feed read in another way must have the same rows.
    let limit = Some(1 + random.below(4) as usize);
    match random.below(4) {
        0 => ensure("a feed in pages", &pages(documents, ChangesRequest { limit, ..all }).await?, &changes)?,
        1 => {
            let mut back = pages(documents, ChangesRequest { descending: true, limit, ..all }).await?;
            back.reverse();
            ensure("a descending feed", &back, &changes)?;
        }
        2 => {
            let with = ChangesRequest { include_docs: true, conflicts: true, ..ChangesRequest::default() };
            let expected: Vec<Change> = changes
                .iter()
                .map(|change| {
                    let tree = oracle.tree(&change.id);
                    let mut doc = tree.winner().map(|winner| read_as(&change.id, winner));
                    if let Some(doc) = &mut doc {
                        doc.conflicts = tree.losers(true);
                    }
                    Change { revs: change.revs[..1].to_vec(), doc: doc.map(Box::new), ..change.clone() }
                })
                .collect();
            ensure("a feed with documents", &pages(documents, with).await?, &expected)?;
        }
        _ => {
            let ids = oracle.trees.keys().filter(|_| random.chance(0.5)).cloned().collect::<Vec<_>>();
            let expected: Vec<Change> = changes.iter().filter(|change| ids.contains(&change.id)).cloned().collect();
            let some = ChangesRequest { doc_ids: Some(ids.into()), ..all };
            ensure("a feed of some documents", &pages(documents, some).await?, &expected)?;
        }
    }
    Ok(changes)
}

async fn pages<D: Database>(documents: &Documents<D>, mut request: ChangesRequest) -> Result<Vec<Change>, Failure> {
    let mut rows = Vec::new();
    loop {
        let mut batch = documents.changes(&request).await?;
        batch.rows.iter_mut().filter_map(|row| row.doc.as_mut()).for_each(|doc| doc.attachments.clear());
        rows.extend(batch.rows);
        if !batch.more {
            return Ok(rows);
        }
        request.since = Since::Seq(batch.last_seq);
        request.before = Some(batch.last_seq);
    }
}

async fn listing<D: Database>(documents: &Documents<D>, oracle: &Oracle, random: &mut Random) -> Result<(), Failure> {
    let include_docs = random.chance(0.5);
    let entry = |id: &str| {
        let tree = oracle.tree(id);
        let Some(winner) = tree.winner() else { return AllDocsEntry::Missing };
        let rev = winner.leaf().clone();
        if !winner.live {
            return AllDocsEntry::Deleted { rev };
        }
        let doc = Document { conflicts: tree.losers(true), ..read_as(id, winner) };
        AllDocsEntry::Live { rev, doc: include_docs.then(|| Box::new(doc)) }
    };
    let request = AllDocsRequest { include_docs, conflicts: true, ..AllDocsRequest::default() };
    let counted = documents.all_docs(&request).await?.total_rows;
    let listed = listed(documents, request.clone()).await?;
    let live = oracle.trees.iter().filter(|(_, tree)| tree.is_live());
    let expected: Vec<_> = live.map(|(id, _)| AllDocsRow { id: id.clone(), entry: entry(id) }).collect();
    ensure("all_docs", &listed, &expected)?;
    ensure("all_docs, counted", &counted, &(expected.len() as u64))?;

    let ids: Vec<String> = oracle.trees.keys().cloned().chain(["never".to_owned()]).rev().collect();
    let expected: Vec<_> = ids.iter().map(|id| AllDocsRow { id: id.clone(), entry: entry(id) }).collect();
    let listed = self::listed(documents, AllDocsRequest { keys: Some(ids.into()), ..request }).await?;
    ensure("all_docs by id", &listed, &expected)
}

/// A complete listing. A fault may end a batch early.
async fn listed<D: Database>(documents: &Documents<D>, request: AllDocsRequest) -> Result<Vec<AllDocsRow>, Failure> {
    let (mut rows, mut next) = (Vec::new(), Some(request));
    while let Some(request) = next {
        let mut batch = documents.all_docs(&request).await?;
        for row in &mut batch.rows {
            if let AllDocsEntry::Live { doc: Some(doc), .. } = &mut row.entry {
                doc.attachments.clear();
            }
        }
        rows.extend(batch.rows);
        next = batch.next;
    }
    Ok(rows)
}

/// Revisions that a document knows, that another document has, or that do not exist; some of them twice.
fn some_revs(oracle: &Oracle, random: &mut Random) -> Vec<RevId> {
    let known = oracle.trees.values().flat_map(|tree| &tree.branches).flat_map(|branch| &branch.path);
    let known: Vec<RevId> = known.cloned().collect();
    let mut revs = vec!["2-967a00dff5e02add41819138abb3284d".parse().expect("a revision")];
    for _ in 0..if known.is_empty() { 0 } else { random.below(6) } {
        revs.push(random.pick(&known).clone());
    }
    if random.chance(0.5) {
        revs.remove(0);
    }
    revs
}

async fn revs_diff<D: Database>(documents: &Documents<D>, oracle: &Oracle, random: &mut Random) -> Result<(), Failure> {
    let ids = oracle.trees.keys().cloned().chain(["never".to_owned()]);
    let wanted: Vec<(String, Vec<RevId>)> = ids.map(|id| (id, some_revs(oracle, random))).collect();
    let mut expected = Vec::new();
    for (id, revs) in &wanted {
        let tree = oracle.tree(id);
        let mut missing: Vec<RevId> = Vec::new();
        for rev in revs {
            if !tree.knows(rev) && !missing.contains(rev) {
                missing.push(rev.clone());
            }
        }
        let highest = missing.iter().map(RevId::position).max().unwrap_or(0);
        let mut possible_ancestors = tree.leaves();
        possible_ancestors.retain(|leaf| leaf.position() < highest);
        possible_ancestors.sort_by_key(|rev| (rev.position(), rev.hash().as_bytes().to_vec()));
        if !missing.is_empty() {
            expected.push(RevsDiff { id: id.clone(), missing, possible_ancestors });
        }
    }
    ensure("revs_diff", &documents.revs_diff(wanted).await?, &expected)
}

/// Compares the winner, with all optional members.
async fn document<D: Database>(
    documents: &Documents<D>,
    id: &str,
    (tree, revs_limit): (&OracleDocument, usize),
    seq: Option<Seq>,
) -> Result<(), Failure> {
    let expected = match tree.winner() {
        None => Err(ErrorKind::NotFound(NotFound::Missing)),
        Some(winner) if !winner.live => Err(ErrorKind::NotFound(NotFound::Deleted)),
        Some(winner) => {
            let status = |at| if at == 0 { RevStatus::Available } else { RevStatus::Missing };
            let infos = winner.path.iter().take(revs_limit).enumerate();
            let infos = infos.map(|(at, rev)| RevInfo { rev: rev.clone(), status: status(at) }).collect();
            Ok(Document {
                revisions: Some(history(winner, revs_limit)),
                revs_info: Some(infos),
                conflicts: tree.losers(true),
                deleted_conflicts: tree.losers(false),
                local_seq: seq,
                ..read_as(id, winner)
            })
        }
    };
    let found = documents.get(id, &all_members()).await.map_err(|error| error.kind().clone());
    let found = match found {
        Ok(mut found) => {
            let expected = tree.winner().map_or(&[][..], |winner| &winner.attachments);
            attachments(documents, &found, expected, seq.is_some()).await?;
            found.attachments.clear();
            Ok(found)
        }
        error => error,
    };
    ensure(&format!("{id:?}"), &found, &expected)
}

/// Compares all leaves, and some that are requested by revision.
async fn leaves<D: Database>(
    documents: &Documents<D>,
    id: &str,
    (tree, revs_limit): (&OracleDocument, usize),
    random: &mut Random,
) -> Result<(), Failure> {
    let open = |branch: &Branch| {
        let revisions = Some(history(branch, revs_limit));
        OpenRev::Found(Document { revisions, ..read_as(id, branch) })
    };
    let options = GetOptions { revs: true, ..GetOptions::default() };
    let expected: Vec<OpenRev> = tree.branches.iter().map(open).collect();
    let what = format!("all leaves of {id:?}");
    let found = documents.open_revs(id, &OpenRevs::All, &options).await?;
    for (found, branch) in found.iter().zip(&tree.branches) {
        if let OpenRev::Found(document) = found {
            attachments(documents, document, &branch.attachments, random.chance(0.3)).await?;
        }
    }
    ensure(&what, &bare(found), &expected)?;

    let known: Vec<RevId> = tree.branches.iter().flat_map(|branch| branch.path.clone()).collect();
    let mut revs: Vec<RevId> = (0..3).filter(|_| !known.is_empty()).map(|_| random.pick(&known).clone()).collect();
    revs.push("1-nobodys".parse().expect("a revision"));
    let these = OpenRevs::These(revs.clone());
    let one = |rev: &RevId| tree.branches.iter().find(|branch| branch.leaf() == rev);
    let expected: Vec<OpenRev> =
        revs.iter().map(|rev| one(rev).map_or_else(|| OpenRev::Missing(rev.clone()), open)).collect();
    ensure(&format!("{revs:?} of {id:?}"), &bare(documents.open_revs(id, &these, &options).await?), &expected)?;

    let mut given = Vec::new();
    let mut expected = Vec::new();
    for rev in &revs {
        if !tree.knows(rev) {
            expected.push(OpenRev::Missing(rev.clone()));
        }
        for branch in tree.branches.iter().filter(|branch| tree.is_on(branch, rev)) {
            if !given.contains(branch.leaf()) {
                given.push(branch.leaf().clone());
                expected.push(open(branch));
            }
        }
    }
    let latest = documents.open_revs(id, &these, &GetOptions { latest: true, ..options }).await?;
    ensure(&format!("the latest of {revs:?} of {id:?}"), &bare(latest), &expected)
}

/// Leaves without their attachments, which are compared separately.
fn bare(mut found: Vec<OpenRev>) -> Vec<OpenRev> {
    for found in &mut found {
        if let OpenRev::Found(document) = found {
            document.attachments.clear();
        }
    }
    found
}

/// Compares a leaf's attachments and, if requested, their bytes.
async fn attachments<D: Database>(
    documents: &Documents<D>,
    document: &Document,
    expected: &[Attached],
    read: bool,
) -> Result<(), Failure> {
    let (id, found) = (&document.id, &document.attachments);
    if found.len() != expected.len() || !expected.iter().zip(found).all(|(expected, found)| expected.is(found)) {
        let rev = &document.rev;
        return Err(Failure(format!(
            "attachments of {id:?} at {rev}:\n   found    {found:?}\n   expected {expected:?}"
        )));
    }
    for (expected, found) in expected.iter().zip(found).filter(|_| read) {
        let (mut reader, mut bytes) = (documents.attachment_reader(found), Vec::new());
        while let Some(piece) = reader.next().await? {
            bytes.extend_from_slice(&piece);
        }
        if !expected.is_content(&bytes) {
            return Err(Failure(format!("the content of {found:?} of {id:?} is another")));
        }
    }
    Ok(())
}

/// A leaf as it is read, with only its body.
fn read_as(id: &str, branch: &Branch) -> Document {
    Document {
        id: id.to_owned(),
        rev: branch.leaf().clone(),
        deleted: !branch.live,
        body: branch.body.clone(),
        revisions: None,
        revs_info: None,
        conflicts: None,
        deleted_conflicts: None,
        local_seq: None,
        attachments: Vec::new(),
        att_encoding_info: false,
    }
}

/// The history that is shown: after the limit was lowered, the branch remembers more.
fn history(branch: &Branch, revs_limit: usize) -> RevHistory {
    let ids = branch.path.iter().take(revs_limit).map(|rev| rev.hash().clone()).collect();
    RevHistory { position: branch.leaf().position(), ids }
}
