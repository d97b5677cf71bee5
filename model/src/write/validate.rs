//! Asks the validator about the edits of a transaction; see [`validation`](crate::write::validation).

use std::sync::Arc;

use futures_util::future::join_all;
use json::JsonText;
use kv_api::{Database, Read, TransactionExt};

use super::attempt::{Attempt, Decisions};
use super::draft::Draft;
use super::merge::branches_on;
use super::plan::{Decided, NewLeaf, Plan};
use super::verdicts::{Context, Subject, Verdicts};
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, Result, alone};
use crate::keys::{DatabaseKey, Leaf};
use crate::limits::DESIGN_PREFIX;
use crate::read::document::{Body, Document};
use crate::read::winner::{body_of, body_or_empty};
use crate::rows::blob;
use crate::rows::branch::Branch;
use crate::rows::instance::Instance;
use crate::rows::settings::default_security;
use crate::write::edit::{RevHistory, WriteMode};
use crate::write::policy::ConflictPolicy;
use crate::write::validation::{Designs, Question, Rule, VALIDATE, Validating, Validator, check, matched, selector};

/// Maximum number of edits that are validated at the same time.
const ASKED_AT_ONCE: usize = 16;

/// Number of revisions in the `_revisions` of the replaced document, as in CouchDB.
const OLD_REVISIONS: usize = 20;

/// An edit to ask about.
struct Ask<'a> {
    /// Its document, among those of the transaction.
    place: usize,
    id: &'a str,
    draft: &'a Draft<'a>,
    subject: Subject,
    parent: Option<&'a Branch>,
}

impl<D: Database> Documents<D> {
    /// Asks about edits before the transaction that writes them, so that the transaction is short. Errors are ignored
    /// here: they occur again in the transaction if they still apply.
    pub(super) async fn ask_early(&self, drafts: &[Draft<'_>], mode: WriteMode, verdicts: &Verdicts) {
        let ask = |transaction: D::Transaction| async move {
            let attempt = self.attempt(&transaction, drafts, mode, verdicts);
            let mut decisions = attempt.decide().await?;
            attempt.validate(&mut decisions).await
        };
        drop(self.read(ask).await);
    }

    async fn validation_context(&self, transaction: &D::Transaction, instance: &Instance) -> Result<Context> {
        let security_key = self.keys().key(DatabaseKey::Security);
        let security = transaction.get_all(blob::range(&security_key), Read::Serializable);
        let designs = self.validating_designs(transaction, instance).await?;
        let security = blob::read(&security.await?)?.map_or_else(default_security, |(_, text)| text);
        Ok(Context { designs, security })
    }

    /// The design documents that the instance row lists. They change only with the row, so they are read once.
    async fn validating_designs(&self, transaction: &D::Transaction, instance: &Instance) -> Result<Designs> {
        let generation = instance.validation.generation;
        let known = self.home.designs.lock().clone().filter(|known| known.generation == generation);
        if let Some(known) = known {
            return Ok(known);
        }
        let reads: Vec<_> = instance
            .validation
            .designs
            .iter()
            .map(|(id, rev)| {
                let leaf = Leaf { not_deleted: true, rev: rev.clone() };
                (id, rev, body_of(transaction, self.keys(), id, &leaf))
            })
            .collect();
        let mut rules = Vec::with_capacity(reads.len());
        for (id, rev, body) in reads {
            let body = body.await.map_err(|error| error.of_document(id))?;
            let body =
                body.ok_or_else(|| Error::corrupt("a design document that validates is gone").of_document(id))?;
            rules.push(Rule::of(id, Document::new(id.clone(), rev.clone(), false, body).to_text()));
        }
        let designs = Designs { generation, rules: rules.into() };
        *self.home.designs.lock() = Some(designs.clone());
        Ok(designs)
    }
}

impl<D: Database> Attempt<'_, '_, D> {
    /// Refuses the edits that a validator refuses.
    pub(super) async fn validate(&self, decisions: &mut Decisions<'_>) -> Result<()> {
        let is_design = |decided: &Decided<'_>| decided.id.starts_with(DESIGN_PREFIX);
        if decisions.instance.validation.designs.is_empty() && !decisions.documents.iter().any(is_design) {
            return Ok(());
        }
        Box::pin(self.ask(decisions)).await
    }

    async fn ask(&self, decisions: &mut Decisions<'_>) -> Result<()> {
        let Decisions { instance, documents: decided } = decisions;
        let validator = match &self.documents.validating {
            Validating::Waived => return Ok(()),
            Validating::By(validator) => Some(validator),
            Validating::Impossible => None,
        };
        self.admit_designs(decided, validator).await?;
        if instance.validation.designs.is_empty() {
            return Ok(());
        }
        let mut refused = Vec::new();
        let mut asks = Vec::new();
        for (place, one) in decided.iter().enumerate().filter(|(_, one)| !one.id.starts_with(DESIGN_PREFIX)) {
            let Ok(Some(plan)) = &one.plan else { continue };
            for new in &plan.added {
                let draft = &self.drafts[one.drafts.clone()][new.edit];
                let parent = parent(instance, plan, new, draft)?;
                let subject = Subject {
                    turn: draft.turn,
                    new: new.leaf.clone(),
                    parent: parent.map(|parent| parent.leaf.clone()),
                };
                asks.push(Ask { place, id: one.id, draft, subject, parent });
            }
        }
        if asks.is_empty() {
            return Ok(());
        }
        match alone(self.documents.validation_context(self.transaction, instance).await)? {
            Ok(context) => {
                self.verdicts.begin(&context);
                for some in asks.chunks(ASKED_AT_ONCE) {
                    self.ask_some(some, &context, validator, &mut refused).await?;
                }
            }
            // The rules are unknown, so no edit passes.
            Err(damage) => refused.extend(asks.iter().map(|ask| (ask.place, damage.clone()))),
        }
        for (place, error) in refused {
            decided[place].plan = Err(error);
        }
        Ok(())
    }

    /// Asks about some edits, all at once, and notes refused ones.
    async fn ask_some(
        &self,
        asks: &[Ask<'_>],
        context: &Context,
        validator: Option<&Arc<dyn Validator>>,
        refused: &mut Vec<(usize, Error)>,
    ) -> Result<()> {
        let mut open = Vec::with_capacity(asks.len());
        for ask in asks {
            match self.verdicts.get(&ask.subject) {
                Some(Ok(())) => {}
                Some(Err(error)) => refused.push((ask.place, error)),
                None => {
                    let old =
                        ask.parent.map(|parent| body_of(self.transaction, self.documents.keys(), ask.id, &parent.leaf));
                    open.push((ask, old));
                }
            }
        }
        let mut questions = Vec::with_capacity(open.len());
        for (ask, old) in open {
            let old = match (ask.parent, old) {
                (Some(parent), Some(body)) => {
                    let body = body.await.and_then(|body| body_or_empty(&parent.leaf, body));
                    match alone(body.and_then(|body| old_document(ask.id, parent, body)))? {
                        Ok(old) => Some(old),
                        Err(damage) => {
                            refused.push((ask.place, damage.of_document(ask.id)));
                            continue;
                        }
                    }
                }
                _ => None,
            };
            match new_document(ask) {
                Ok(new) => questions.push((ask, new, old)),
                // For example a missing attachment.
                Err(error) => refused.push((ask.place, error)),
            }
        }
        let answers = join_all(questions.iter().map(|(_, new, old)| ask_all(validator, context, new, old.as_ref())));
        for ((ask, _, _), answer) in questions.iter().zip(answers.await) {
            match answer {
                Err(error) if !error.is_refusal() => return Err(error),
                answer => {
                    self.verdicts.set(ask.subject.clone(), answer.clone());
                    refused.extend(answer.err().map(|error| (ask.place, error)));
                }
            }
        }
        Ok(())
    }

    /// Asks whether interactive edits of design documents contain functions and selectors that can run, and fields of
    /// the right types.
    async fn admit_designs(&self, decided: &mut [Decided<'_>], validator: Option<&Arc<dyn Validator>>) -> Result<()> {
        for one in decided.iter_mut().filter(|one| one.id.starts_with(DESIGN_PREFIX)) {
            let Ok(Some(plan)) = &one.plan else { continue };
            let [draft] = &self.drafts[one.drafts.clone()] else { continue };
            let [new] = plan.added.as_slice() else { continue };
            if !new.leaf.not_deleted || draft.mode() == WriteMode::Replicated {
                continue;
            }
            let subject = Subject { turn: draft.turn, new: new.leaf.clone(), parent: None };
            let body = Body { text: draft.edit.body.clone(), attachments: Vec::new() };
            let design = Document::new(one.id.to_owned(), new.leaf.rev.clone(), false, body);
            let verdict = match self.verdicts.get(&subject) {
                Some(verdict) => verdict,
                None => admit(validator, design.to_text()).await,
            };
            self.verdicts.set(subject, verdict.clone());
            match verdict {
                Ok(()) => {}
                Err(error) if error.is_refusal() => one.plan = Err(error),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Asks all design documents, until one refuses the edit.
async fn ask_all(
    validator: Option<&Arc<dyn Validator>>,
    context: &Context,
    new: &JsonText,
    old: Option<&JsonText>,
) -> Result<()> {
    let mut both = None;
    for rule in context.designs.rules.iter() {
        match (rule, validator) {
            (Rule::Selector(id, selector), _) => {
                check(id, selector, both.get_or_insert_with(|| matched(new, old)).root())?;
            }
            (Rule::Function(design), Some(validator)) => {
                let question = Question {
                    design: design.clone(),
                    new: new.clone(),
                    old: old.cloned(),
                    security: context.security.clone(),
                };
                validator.ask(question).await?;
            }
            (Rule::Function(_), None) => return Err(ErrorKind::NotValidated.into()),
        }
    }
    Ok(())
}

async fn admit(validator: Option<&Arc<dyn Validator>>, design: JsonText) -> Result<()> {
    if let Some(Err(error)) = selector(&design) {
        let reason = format!("`{VALIDATE}`: {}", error.reason());
        return Err(ErrorKind::BadDesign { error: "invalid_design_doc", reason }.into());
    }
    match validator {
        Some(validator) => validator.admit(design).await,
        None => Ok(()),
    }
}

/// The stored leaf that a new one replaces. For a replicated edit it is the nearest ancestor, if that is a leaf: other
/// ancestors have no stored body.
fn parent<'p>(instance: &Instance, plan: &'p Plan, new: &NewLeaf, draft: &Draft<'_>) -> Result<Option<&'p Branch>> {
    if draft.mode() == WriteMode::Interactive {
        // A tombstone is not given to the function, as in CouchDB.
        let mut replaced = plan.removed.iter().filter(|branch| branch.leaf.not_deleted);
        return Ok(replaced.find(|branch| Some(&branch.leaf.rev) == draft.edit.rev.as_ref()));
    }
    if instance.policy == ConflictPolicy::LastWriteWins {
        // The edit replaces the existing leaf, whatever its history.
        return Ok(plan.removed.iter().max_by(|one, other| one.leaf.cmp(&other.leaf)));
    }
    // The edit's history may be longer than the stored one, and the stored one may be joined from several.
    let mut joined = RevHistory { position: new.leaf.rev.position(), ids: vec![new.leaf.rev.hash().clone()] };
    joined.ids.extend(new.ancestors.to_vec()?);
    let own = draft.edit.incoming()?;
    let on_path = branches_on(&plan.removed, &joined).chain(branches_on(&plan.removed, &own));
    Ok(on_path.max_by_key(|branch| branch.leaf.rev.position()))
}

/// The replaced document, as functions see it.
fn old_document(id: &str, parent: &Branch, body: Body) -> Result<JsonText> {
    let leaf = &parent.leaf;
    let mut old = Document::new(id.to_owned(), leaf.rev.clone(), !leaf.not_deleted, body);
    let mut ids = parent.path()?;
    ids.truncate(OLD_REVISIONS);
    old.revisions = Some(RevHistory { position: leaf.rev.position(), ids });
    Ok(old.to_text())
}

/// The new document, as functions see it. An interactive edit has no revision yet.
fn new_document(ask: &Ask<'_>) -> Result<JsonText> {
    let edit = ask.draft.edit;
    let attachments = if edit.attachments.is_empty() { Vec::new() } else { ask.draft.attachments()?.to_vec() };
    let body = Body { text: edit.body.clone(), attachments };
    let rev = match ask.draft.mode() {
        WriteMode::Replicated => Some(&ask.subject.new.rev),
        WriteMode::Interactive => edit.rev.as_ref(),
    };
    let known = rev.unwrap_or(&ask.subject.new.rev);
    let mut new = Document::new(ask.id.to_owned(), known.clone(), edit.deleted, body);
    let Some(rev) = rev else { return Ok(new.to_text_without_rev()) };
    new.revisions = Some(match ask.draft.mode() {
        WriteMode::Replicated => edit.incoming()?.into_owned(),
        WriteMode::Interactive => RevHistory { position: rev.position(), ids: vec![rev.hash().clone()] },
    });
    Ok(new.to_text())
}
