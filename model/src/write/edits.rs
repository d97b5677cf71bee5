//! Edits of several documents, of several databases, in the caller's own transaction.
//!
//! ```text
//!  token ─► attempt 1   edits ── get, put … ─► finish ── caller's rows ─► commit ── 1021 ──┐
//!           attempt 2   edits: did attempt 1 commit? ─┬─ yes: its revisions are the answer
//!                                                     └─ no: continue like attempt 1
//!  finish   the edits of all databases, drafted, decided and prepared as in a bulk write
//!           one of them refused ─► nothing is written, and all refused edits are named
//!           none refused        ─► the rows of each database, and the token's
//! ```
//!
//! Why edits are collected, and written once:
//! * Two writers in one transaction would give their changes the same versionstamp and the same numbers. Here one
//!   writer for each database numbers all of them, in the order of the calls.
//! * A just-written winner cannot be read back, since its row waits for the versionstamp (1036). So a second
//!   edit of a document is refused, and so are two collections of edits of one database.
//!
//! Why there is a token: a loop may repeat a transaction with an unknown result (1021) that did commit. Without a token
//! it would take its own edits for another writer's. The token is a [transaction id](crate::write::txids).

use std::fmt;
use std::sync::Arc;

use futures_util::future::try_join_all;
use kv_api::error::{ACCESSED_UNREADABLE, TRANSACTION_TOO_LARGE};
use kv_api::{Database, Read, RetryError, Transaction};
use parking_lot::Mutex;

use super::attempt::{Attempt, MissingStub};
use super::draft::{Draft, Turn};
use super::interactive::last;
use super::verdicts::Verdicts;
use crate::attachments::AttachmentSource;
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, Refused, Result, alone};
use crate::keys::DatabaseKey;
use crate::layer::Layer;
use crate::read::document::{Document, GetOptions};
use crate::rows::revid::RevId;
use crate::write::edit::{Edit, WriteMode};
use crate::write::txids::{Claim, Outcome};

/// Changes are numbered by sixteen bits.
const MOST_EDITS: usize = 65_535;

/// Makes a caller's own transaction repeatable. [`Layer::token`] makes it before the loop, for one transaction. Its
/// clones are the same token.
#[derive(Clone)]
pub struct Token(Arc<Claimed>);

struct Claimed {
    claim: Mutex<Claim<Vec<RevId>>>,
    /// Whether the transaction clears ids that have expired.
    clears: bool,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("began", &self.0.claim.lock().began).finish_non_exhaustive()
    }
}

/// The result of [`Layer::edits`], at the start of an attempt.
#[derive(Debug)]
pub enum Begun<D: Database> {
    /// No earlier attempt committed: collect the edits.
    Edits(Edits<D>),
    /// An earlier attempt committed: the revisions that it made. Nothing is left to do.
    Landed(Vec<RevId>),
}

/// Edits collected for one attempt of a transaction. A cheap handle; its clones are the same collection.
#[derive(Clone)]
pub struct Edits<D: Database>(Arc<Collection<D>>);

struct Collection<D: Database> {
    layer: Layer<D>,
    transaction: D::Transaction,
    /// The token, and the number of the attempt. `None` if the layer runs the loop.
    signature: Option<(Token, u64)>,
    state: Mutex<State<D>>,
}

enum State<D> {
    Collecting(Vec<(Documents<D>, Edit)>),
    Written(Vec<RevId>),
    Failed,
}

impl<D: Database> fmt::Debug for Edits<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Edits").field("layer", &self.0.layer).finish_non_exhaustive()
    }
}

impl<D: Database> Layer<D> {
    /// Runs a transaction with edits and all other writes of `body`, until it commits or fails for good. Returns the
    /// answer of `body`, and the revisions that the edits made, in their order. All of it happens once, or not at all.
    ///
    /// `body` may run any number of times and must have no effects outside its transaction. Its own errors end the run,
    /// and nothing is written. The caller's rows are read and written through [`Edits::transaction`], outside the
    /// layer's prefix.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if edits are refused, 413 if the transaction is too large; those of `body` and of
    /// the store.
    pub async fn transact<T, E, F, Fut>(&self, mut body: F) -> Result<(T, Vec<RevId>), E>
    where
        E: RetryError + From<Error>,
        F: FnMut(Edits<D>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let run = |transaction| {
            let edits = Edits::new(self, transaction, None);
            let body = body(edits.clone());
            async move {
                let answer = body.await?;
                let revs = edits.finish().await?;
                Ok(Outcome::Write((answer, revs)))
            }
        };
        let outcome = self.guard().run_unless(|_| false, run).await;
        outcome.map_err(|error: E| match error.kv_error() {
            Some(store) if store.code() == TRANSACTION_TOO_LARGE => Error::new(ErrorKind::TransactionTooLarge).into(),
            _ => error,
        })
    }

    /// A token for one transaction in the caller's own loop.
    pub fn token(&self) -> Token {
        let (claim, clears) = self.guard().claim();
        Token(Arc::new(Claimed { claim: Mutex::new(claim), clears }))
    }

    /// Starts an attempt of a transaction: asks whether an earlier attempt with this token committed, and collects
    /// edits if none did.
    ///
    /// A loop calls this first, [finishes](Edits::finish) them last, and then commits. Everything that it
    /// writes is part of the same transaction, and happens once. A token is valid for a minute: later it cannot be
    /// known whether an earlier attempt committed.
    ///
    /// # Errors
    /// [`ErrorKind::OutcomeUnknown`] after that minute, if an earlier attempt may have committed: it ends the loop. The
    /// store's errors are the loop's.
    pub async fn edits(&self, transaction: &D::Transaction, token: &Token) -> Result<Begun<D>> {
        let (guard, Claimed { claim, clears }) = (self.guard(), &*token.0);
        let (asked, attempt, began) = {
            let mut claim = claim.lock();
            let asked = claim.may_have_committed().then(|| claim.ask(transaction));
            let attempt = claim.attempt;
            claim.attempt += 1;
            (asked, attempt, claim.began)
        };
        if let Some(asked) = asked {
            let asked = asked.await?;
            let mut claim = claim.lock();
            let is_late = guard.is_late(began);
            if asked.is_in_vain(is_late) {
                // Not 1021, which would make loops repeat.
                return Err(ErrorKind::OutcomeUnknown.into());
            }
            if let Some((attempt, revs)) = claim.answer(&asked, is_late)? {
                claim.keep(attempt, revs.clone());
                return Ok(Begun::Landed(revs));
            }
        } else if *clears {
            guard.sweep(began).await;
        }
        Ok(Begun::Edits(Edits::new(self, transaction.clone(), Some((token.clone(), attempt)))))
    }
}

impl<D: Database> Edits<D> {
    fn new(layer: &Layer<D>, transaction: D::Transaction, signature: Option<(Token, u64)>) -> Self {
        let state = Mutex::new(State::Collecting(Vec::new()));
        Edits(Arc::new(Collection { layer: layer.clone(), transaction, signature, state }))
    }

    /// The transaction.
    pub fn transaction(&self) -> &D::Transaction {
        &self.0.transaction
    }

    /// Reads a document's winner. If another writer edits the document before the commit, the attempt fails and is
    /// repeated, even if the transaction does not edit it. Collected edits are not seen.
    ///
    /// # Errors
    /// 404: `missing` or `deleted`; the store's.
    pub async fn get(&self, database: &Documents<D>, id: &str) -> Result<Document> {
        database.check_id_to_read(id).await?;
        self.0.admit(database)?;
        if !matches!(*self.0.state.lock(), State::Collecting(_)) {
            return Err(finished());
        }
        let transaction = &self.0.transaction;
        // Every edit writes the winner's row.
        let winner = transaction.get_range(&last(database.keys(), id), Read::Serializable);
        let options = GetOptions::default();
        let document = database.winner(transaction.clone(), id, &options).await;
        winner.await?;
        document.map_err(|error| error.of_document(id))
    }

    /// Adds an interactive edit of a document that the transaction does not edit otherwise. It is written by
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// Errors of the edit itself: a bad id; 413 for a body that is too large; 400 for a database of another layer, and
    /// for data of attachments, which must be [uploaded](Documents::upload_data) first.
    pub fn put(&self, database: &Documents<D>, edit: Edit) -> Result<()> {
        self.0.admit(database)?;
        database.check_edit(&edit)?;
        let is_data =
            |source: &AttachmentSource| matches!(source, AttachmentSource::Data(_) | AttachmentSource::Follows(_));
        if edit.attachments.iter().any(|attachment| is_data(&attachment.source)) {
            return Err(Error::bad_request("Upload the data of attachments before the transaction."));
        }
        let mut state = self.0.state.lock();
        let State::Collecting(edits) = &mut *state else { return Err(finished()) };
        if edits.len() >= MOST_EDITS {
            return Err(ErrorKind::TransactionTooLarge.into());
        }
        edits.push((database.clone(), edit));
        Ok(())
    }

    /// Writes the edits to the transaction, all or nothing. Returns the revisions that they make, in order. The caller
    /// then commits. The documents can no longer be read in this transaction.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] names the edits that were refused. The transaction is then cancelled, with everything
    /// that the caller wrote to it. Every other error cancels it too, except for those errors of the store that a loop
    /// retries.
    pub async fn finish(&self) -> Result<Vec<RevId>> {
        let collected = {
            let mut state = self.0.state.lock();
            match std::mem::replace(&mut *state, State::Failed) {
                State::Collecting(collected) => collected,
                State::Written(revs) => {
                    *state = State::Written(revs.clone());
                    return Ok(revs);
                }
                State::Failed => return Err(finished()),
            }
        };
        let mut whole = Whole(Some(&self.0.transaction));
        let revs = match self.0.write(collected).await {
            Err(error) if error.is_retryable() => {
                // The caller's loop starts the transaction again.
                whole.0 = None;
                return Err(error);
            }
            written => written?,
        };
        whole.0 = None;
        if let Some((token, attempt)) = &self.0.signature {
            let guard = self.0.layer.guard();
            let version = self.0.transaction.get_read_version().await?;
            if let Err(error) = guard.format.check(&self.0.transaction, &guard.root, version).await {
                if !error.is_retryable() {
                    self.0.transaction.cancel();
                }
                return Err(error);
            }
            if token.0.clears {
                guard.clear_expired(&self.0.transaction, version).await?;
            }
            let mut claim = token.0.claim.lock();
            claim.sign(&self.0.transaction, version, *attempt);
            claim.keep(*attempt, revs.clone());
        }
        *self.0.state.lock() = State::Written(revs.clone());
        Ok(revs)
    }
}

/// Cancels its transaction when dropped. The transaction may have rows of some edits, or the job that builds an index.
/// These must not be committed alone, neither after an error nor after the future of [`finish`](Edits::finish) was
/// dropped.
struct Whole<'a, T: Transaction>(Option<&'a T>);

impl<T: Transaction> Drop for Whole<'_, T> {
    fn drop(&mut self) {
        if let Some(transaction) = self.0 {
            transaction.cancel();
        }
    }
}

impl<D: Database> Collection<D> {
    fn admit(&self, database: &Documents<D>) -> Result<()> {
        if database.is_of(&self.layer) {
            Ok(())
        } else {
            Err(Error::bad_request("A transaction can only edit documents of one store."))
        }
    }

    /// Writes edits. Returns the revisions that they make.
    async fn write(&self, mut edits: Vec<(Documents<D>, Edit)>) -> Result<Vec<RevId>> {
        let transaction = &self.transaction;
        for turn in 0..edits.len() {
            let (database, edit) = &mut edits[turn];
            // Asked first: an edit that is refused has read nothing yet, and one that takes long to complete costs the
            // transaction no time if the caller has read nothing either.
            if let Err(error) = database.admit(edit, WriteMode::Interactive).await? {
                refuse(vec![refusal(&edits, turn, error)])?;
            }
            let (database, edit) = &mut edits[turn];
            let Some(rev) = edit.kept_of() else { continue };
            let list = alone(database.kept(transaction, &edit.id, &rev).await)?;
            if let Err(error) = list.and_then(|list| edit.keep(list)) {
                refuse(vec![refusal(&edits, turn, error)])?;
            }
        }
        let edits = edits.as_slice();
        let mut order: Vec<usize> = (0..edits.len()).collect();
        let place = |turn: usize| (edits[turn].0.keys().number(), &edits[turn].1.id);
        order.sort_by_key(|&turn| place(turn));
        let twice = order.windows(2).filter(|pair| place(pair[0]) == place(pair[1])).map(|pair| {
            let error = Error::bad_request("The transaction already edits the document.");
            refusal(edits, pair[1], error)
        });
        refuse(twice.collect())?;
        let databases: Vec<(&Documents<D>, Vec<Draft<'_>>)> = order
            .chunk_by(|one, next| place(*one).0 == place(*next).0)
            .map(|turns| {
                let database = &edits[turns[0]].0;
                let turns: Vec<Turn<'_>> = turns.iter().map(|&turn| Turn { turn, edit: &edits[turn].1 }).collect();
                (database, database.drafts(&turns, WriteMode::Interactive))
            })
            .collect();

        let last = |database: &Documents<D>| transaction.get(&database.keys().key(DatabaseKey::Last), Read::Snapshot);
        let written: Vec<_> = databases.iter().map(|(database, _)| last(database)).collect();
        for last in written {
            last.await.map_err(|error| match error.code() {
                ACCESSED_UNREADABLE => Error::bad_request("The transaction already has edits of this database."),
                _ => error.into(),
            })?;
        }
        // A verdict is about a turn, so all databases share the verdicts.
        let verdicts = Verdicts::default();
        let attempts = databases.iter().map(|(database, drafts)| {
            let attempt = database.attempt(transaction, drafts, WriteMode::Interactive, &verdicts);
            Attempt { missing_stub: MissingStub::FailsItsEdit, ..attempt }
        });
        let attempts: Vec<Attempt<'_, '_, D>> = attempts.collect();
        let decisions = try_join_all(attempts.iter().map(Attempt::decide)).await?;
        let mut prepared = Vec::with_capacity(databases.len());
        let mut refused = Vec::new();
        for (attempt, mut decisions) in attempts.iter().zip(decisions) {
            attempt.validate(&mut decisions).await?;
            let one = attempt.prepare(decisions).await?;
            for decided in &one.decisions.documents {
                if let Err(error) = &decided.plan {
                    let turns = attempt.drafts[decided.drafts.clone()].iter().map(|draft| draft.turn);
                    refused.extend(turns.map(|turn| refusal(edits, turn, error.clone())));
                }
            }
            prepared.push(one);
        }
        refuse(refused)?;

        let mut revs: Vec<Option<RevId>> = vec![None; edits.len()];
        for (attempt, prepared) in attempts.iter().zip(prepared) {
            attempt.apply(prepared).await?;
            for draft in attempt.drafts {
                revs[draft.turn] = Some(draft.leaf()?.rev);
            }
        }
        let revs: Option<Vec<RevId>> = revs.into_iter().collect();
        revs.ok_or_else(Error::without_result)
    }
}

/// The refusal of an edit.
fn refusal<D: Database>(edits: &[(Documents<D>, Edit)], turn: usize, error: Error) -> Refused {
    let (database, edit) = &edits[turn];
    Refused { turn, database: database.name().to_owned(), id: edit.id.clone(), error }
}

/// Fails if edits are refused.
fn refuse(mut refused: Vec<Refused>) -> Result<()> {
    if refused.is_empty() {
        return Ok(());
    }
    refused.sort_by_key(|refused| refused.turn);
    Err(ErrorKind::Refused(refused).into())
}

fn finished() -> Error {
    Error::bad_request("The edits of this transaction are finished.")
}
