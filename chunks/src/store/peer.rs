//! Any [`Peer`] as a store of documents. Bodies are maps.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use kv_api::Database;
use model::{BulkGet, Documents, JsonText, RevHash, RevHistory, RevId, Seq, WriteMode};
use peer::{Address, Docs, FeedRequest, Http, Local, Peer, ReadOptions, Revision};
use serde_json::Value;

use super::{
    Body, Change, Changes, DocumentStore, Edit, Figures, IdRange, Leaf, ListedDocument, ListingPage, Refusal,
    StoreResult, Written, sort,
};
use crate::error::{StoreError, StoreErrorKind};

/// Deeper documents are refused: `serde_json` walks its trees by recursion.
const MAX_DEPTH: usize = 128;

/// A database of this process, or one behind a server.
#[derive(Clone)]
pub struct PeerStore(Arc<dyn Peer>);

impl PeerStore {
    /// The database behind this peer.
    pub fn new(peer: Arc<dyn Peer>) -> Self {
        PeerStore(peer)
    }

    /// A database of this process, over any engine.
    pub fn local<D: Database>(documents: Documents<D>) -> Self {
        PeerStore(Arc::new(Local::new(documents)))
    }

    async fn read(&self, ids: &[String], options: ReadOptions) -> StoreResult<Vec<Vec<Leaf>>> {
        let wanted: Vec<BulkGet> = ids.iter().map(|id| BulkGet { id: id.clone(), rev: None }).collect();
        let mut all = Vec::with_capacity(ids.len());
        for found in self.0.read(&wanted, options).await? {
            // An unreadable document must not count as absent.
            let mut leaves = found?.into_iter().map(leaf).collect::<StoreResult<Vec<Leaf>>>()?;
            sort(&mut leaves);
            all.push(leaves);
        }
        Ok(all)
    }

    /// The database at this address (`http://HOST:PORT/NAME`), as `user` (name and password) if there is
    /// one. Nothing is sent yet.
    ///
    /// # Errors
    /// [`StoreErrorKind::Refused`] if the address cannot be used.
    pub fn http(database: &str, user: Option<(String, String)>) -> StoreResult<Self> {
        let address: Result<Address, _> = database.parse();
        let address = address.map_err(|error| refused(format!("{database}: {error}")))?;
        Ok(PeerStore(Arc::new(Http::new(address.with_user(user))?)))
    }
}

impl fmt::Debug for PeerStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl DocumentStore for PeerStore {
    async fn leaves(&self, ids: &[String], with_ancestors: bool) -> StoreResult<Vec<Vec<Leaf>>> {
        self.read(ids, ReadOptions { ancestors: with_ancestors, ..ReadOptions::default() }).await
    }

    async fn leaves_within(&self, ids: &[String], most_bytes: usize) -> StoreResult<Vec<Vec<Leaf>>> {
        let options = ReadOptions { ancestors: true, most_bytes: Some(most_bytes), ..ReadOptions::default() };
        self.read(ids, options).await
    }

    async fn revisions(&self, wanted: &[(String, String)]) -> StoreResult<Vec<Option<Body>>> {
        let mut named = Vec::with_capacity(wanted.len());
        for (id, rev) in wanted {
            let rev = RevId::parse(rev).map_err(|error| refused(format!("{rev}: {error}")))?;
            named.push(BulkGet { id: id.clone(), rev: Some(rev) });
        }
        // Some servers answer for all revisions of a document at once.
        let mut found = HashMap::new();
        for revisions in self.0.read(&named, ReadOptions::default()).await? {
            for revision in revisions? {
                found.insert((revision.id, revision.rev.to_string()), body(&revision.body)?);
            }
        }
        Ok(wanted.iter().map(|named| found.remove(named)).collect())
    }

    async fn local(&self, id: &str) -> StoreResult<Option<Body>> {
        self.0.get_local(id).await?.map(|found| body(&found.body)).transpose()
    }

    async fn revs(&self, ids: &[String]) -> StoreResult<Vec<Option<String>>> {
        let winners = self.0.winners(ids).await?;
        Ok(winners.into_iter().map(|rev| rev.map(|rev| rev.to_string())).collect())
    }

    async fn write(&self, edits: Vec<Edit>) -> StoreResult<Vec<Written>> {
        let mut outcomes: Vec<Written> = vec![Err(Refusal::Unknown("no outcome".into())); edits.len()];
        let (mut places, mut fit) = (Vec::new(), Vec::new());
        for (place, edit) in edits.into_iter().enumerate() {
            // No leaf has an invalid revision.
            let rev = edit.rev.map(|rev| RevId::parse(&rev));
            if let Some(Err(_)) = rev {
                outcomes[place] = Err(Refusal::Conflict);
                continue;
            }
            let made = model::Edit::new(edit.id, text(edit.body)?);
            let made = if edit.deleted { made.deleting() } else { made };
            places.push(place);
            fit.push(match rev {
                Some(Ok(rev)) => made.over(rev),
                _ => made,
            });
        }
        let results = self.0.write(fit, WriteMode::Interactive).await?;
        for (place, result) in places.into_iter().zip(results) {
            outcomes[place] = result.map(|rev| rev.to_string()).map_err(|error| refusal(&error));
        }
        Ok(outcomes)
    }

    async fn graft(&self, leaves: Vec<(String, Leaf)>) -> StoreResult<()> {
        let mut edits = Vec::with_capacity(leaves.len());
        for (id, leaf) in leaves {
            let edit = model::Edit::new(id, text(leaf.body)?).with_history(history(&leaf.rev, &leaf.ancestors)?);
            edits.push(if leaf.deleted { edit.deleting() } else { edit });
        }
        let results = self.0.write(edits, WriteMode::Replicated).await?;
        results.into_iter().try_for_each(|result| result.map(drop))
    }

    async fn list(&self, range: &IdRange) -> StoreResult<ListingPage> {
        let asked = peer::IdRange {
            start: range.start.clone(),
            end: Some(range.end.clone()),
            limit: range.limit,
            docs: if range.bodies { Docs::Bodies } else { Docs::Revs },
            skips_damaged: false,
        };
        let page = self.0.list(&asked).await?;
        let row = |row: peer::ListedDocument| {
            let body = row.doc.as_ref().map(body).transpose()?;
            Ok(ListedDocument { id: row.id, rev: row.rev.to_string(), body })
        };
        let rows = page.rows.into_iter().map(row).collect::<StoreResult<Vec<ListedDocument>>>()?;
        Ok(ListingPage { rows, rest: page.rest.map(|rest| IdRange { start: rest.start, ..range.clone() }) })
    }

    async fn changes(&self, since: Option<&str>, limit: usize) -> StoreResult<Changes> {
        let request = FeedRequest { since: since.map(str::to_owned), limit, ..FeedRequest::default() };
        let page = self.0.changes(&request).await?;
        let rows = page.rows.into_iter().map(|row| Change { id: row.id, deleted: row.deleted }).collect();
        Ok(Changes { rows, last_seq: page.last_seq, more: page.more })
    }

    async fn had(&self, sequence: &str) -> StoreResult<bool> {
        let last = self.0.info().await?.update_seq;
        match (sequence.parse::<Seq>(), last.parse::<Seq>()) {
            (Ok(sequence), Ok(last)) if sequence.incarnation() == last.incarnation() && sequence <= last => {
                // Sequences grow with time in every database, so an older one may be of a database that was copied.
                return Ok(self.changes(None, 1).await?.last_seq.parse::<Seq>().is_ok_and(|first| first <= sequence));
            }
            (Ok(_), Ok(_)) => return Ok(false),
            (Ok(_), Err(_)) | (Err(_), Ok(_)) => return Ok(false),
            (Err(_), Err(_)) => {}
        }
        if !is_up_to(sequence, &last) {
            return Ok(false);
        }
        // CouchDB refuses what it cannot decode.
        match self.changes(Some(sequence), 1).await {
            Err(error) if error.kind() == StoreErrorKind::Refused => Ok(false),
            changes => changes.map(|_| true),
        }
    }

    async fn figures(&self) -> StoreResult<Figures> {
        let info = self.0.info().await?;
        let unsaid = || StoreError::new(StoreErrorKind::Nonsense, "the database does not say its size");
        Ok(Figures {
            documents: info.documents,
            deleted: info.deleted,
            document_bytes: info.external_bytes.ok_or_else(unsaid)?,
            file_bytes: info.file_bytes,
        })
    }

    async fn takes(&self, bytes: usize) -> StoreResult<bool> {
        // A database checks the size before it looks for the revision, which does not exist.
        const FRAME: usize = r#"{"pad":""}"#.len();
        let mut body = Body::new();
        body.insert("pad".into(), "x".repeat(bytes.saturating_sub(FRAME)).into());
        let rev = Some("1-00000000000000000000000000000000".to_owned());
        let probe = Edit { id: "chunks:probe".into(), rev, deleted: false, body };
        match self.write(vec![probe]).await?.pop() {
            Some(Err(Refusal::Conflict)) => Ok(true),
            Some(Err(Refusal::TooLarge)) => Ok(false),
            outcome => {
                let sentence = format!("the database answered {outcome:?} to an edit that replaces nothing");
                Err(StoreError::new(StoreErrorKind::Nonsense, sentence))
            }
        }
    }
}

/// Whether a sequence of CouchDB is not ahead of another one, judged by its number. The rest is opaque.
fn is_up_to(sequence: &str, last: &str) -> bool {
    let number = |sequence: &str| sequence.split_once('-').and_then(|(number, _)| number.parse::<u64>().ok());
    number(sequence).zip(number(last)).is_some_and(|(number, last)| number <= last)
}

fn leaf(revision: Revision) -> StoreResult<Leaf> {
    let ancestors = revision.history.into_iter().flat_map(|history| {
        let position = history.position;
        let known = history.ids.into_iter().enumerate().skip(1);
        known.map(move |(back, hash)| format!("{}-{hash}", position.saturating_sub(back as u64)))
    });
    let (rev, ancestors) = (revision.rev.to_string(), ancestors.collect());
    Ok(Leaf { rev, deleted: revision.deleted, body: body(&revision.body)?, ancestors })
}

/// A document's members without the special ones.
fn body(text: &JsonText) -> StoreResult<Body> {
    let nonsense = |sentence: String| StoreError::new(StoreErrorKind::Nonsense, sentence);
    match text.to_serde(MAX_DEPTH) {
        Ok(Value::Object(mut members)) => {
            members.retain(|name, _| !name.starts_with('_'));
            Ok(members)
        }
        Ok(_) => Err(nonsense("a document is not an object".into())),
        Err(error) => Err(nonsense(error.to_string())),
    }
}

fn text(body: Body) -> StoreResult<JsonText> {
    JsonText::from_serde(&Value::Object(body)).map_err(|error| refused(error.to_string()))
}

fn history(rev: &str, ancestors: &[String]) -> StoreResult<RevHistory> {
    let parse = |rev: &str| RevId::parse(rev).map_err(|error| refused(format!("{rev}: {error}")));
    let leaf = parse(rev)?;
    let position = leaf.position();
    let mut ids: Vec<RevHash> = vec![leaf.into_hash()];
    for ancestor in ancestors {
        ids.push(parse(ancestor)?.into_hash());
    }
    Ok(RevHistory { position, ids })
}

fn refused(sentence: String) -> StoreError {
    StoreError::new(StoreErrorKind::Refused, sentence)
}

fn refusal(error: &StoreError) -> Refusal {
    match error.kind() {
        StoreErrorKind::Conflict => Refusal::Conflict,
        StoreErrorKind::TooLarge => Refusal::TooLarge,
        StoreErrorKind::Unavailable => Refusal::Unknown(error.to_string()),
        _ => Refusal::Other(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_of_couchdb_is_compared_by_its_number() {
        for (sequence, wanted) in [("6-g1AAAACb", true), ("7-g1AAAACb", true), ("8-g1AAAACb", false)] {
            assert_eq!(is_up_to(sequence, "7-g1AAAADD"), wanted, "{sequence}");
        }
        for sequence in ["undefined", "", "7", "x-g1AAAACb", "-7-g1AAAACb"] {
            assert!(!is_up_to(sequence, "7-g1AAAADD"), "{sequence}");
        }
        assert!(!is_up_to("0-g1AAAACb", ""), "the database says no sequence");
    }
}
