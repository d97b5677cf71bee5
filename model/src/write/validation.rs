//! `validate_doc_update`: functions and selectors of design documents that may refuse edits.
//!
//! ```text
//!  edit of a design document ─► the instance row lists those that validate, in the same transaction
//!  any other edit ─► plan ─► does the instance row list any? ─┬─ no: nothing is read, no function runs
//!                                                             └─ yes: is there a verdict about this edit, this parent
//!                                                                     and this list? if not, all functions run
//! ```
//!
//! In a design document of the language `query`, `validate_doc_update` is a Mango selector, as in CouchDB after 3.5. It
//! is matched against `{"newDoc": …, "oldDoc": …}` here. An edit that does not match is [`ErrorKind::Forbidden`].
//!
//! This crate does not run functions. A handle gets a [`Validator`] that does ([`Documents::validated_by`]). A handle
//! without one refuses the edits of a database whose design documents have functions ([`ErrorKind::NotValidated`]),
//! except those of design documents, so that the functions can be removed. [`Documents::unvalidated`] is for programs
//! that decide to write without functions and selectors.
//!
//! As in CouchDB, edits of design documents and of `_local` documents are not validated, and neither are purges.
//!
//! # Who may write
//! Every way of writing documents through a handle with a validator first asks it whether the writer may do so
//! ([`Validator::authorize`]): edits, patches, resolved conflicts, local documents, purges. A program's own rules
//! belong there. They can also complete an edit, for example with the hash of a password. The question comes before the
//! transaction; the edits of [`Edits`](crate::Edits) are asked about in it, at each attempt, so a program whose answer
//! takes long calls [`Documents::authorize`](crate::Documents::authorize) before it starts.
//!
//! # Invariant
//! Every edit that a handle with a validator commits has a verdict. The verdict is about exactly the leaf that the edit
//! replaces, and from exactly the functions that apply at its commit. The transaction reads the leaf, the instance row
//! and the security object with conflict ranges, and a verdict is valid as long as all three are the same. Leaves never
//! change. So a verdict outlives an attempt. Most functions run before the transaction begins; a repeated attempt runs
//! them again only if one of the three has changed.
//!
//! [`Documents::unvalidated`]: crate::Documents::unvalidated
//! [`Documents::validated_by`]: crate::Documents::validated_by
//! [`ErrorKind::Forbidden`]: crate::ErrorKind::Forbidden
//! [`ErrorKind::NotValidated`]: crate::ErrorKind::NotValidated

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use json::{JsonRef, JsonText, JsonWriter};
use mango::Selector;

use crate::error::{ErrorKind, Result};
use crate::write::edit::{Edit, WriteMode};

/// The member of design documents.
pub const VALIDATE: &str = "validate_doc_update";

/// The member of design documents with options of views.
pub const OPTIONS: &str = "options";

/// Maximum number of design documents of a database that validate edits. The instance row lists them.
pub const MAX_VALIDATING: usize = 64;

/// Maximum number of bytes of their ids together. Every write reads the instance row, and FoundationDB takes 100,000
/// bytes at most.
pub const MAX_VALIDATING_BYTES: usize = 32_000;

/// A question to a validator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The whole design document.
    pub design: JsonText,
    /// The new document: `_id`, its members, `_deleted`, stubs of its attachments. A replicated one has its `_rev` and
    /// its `_revisions`. Another one has the `_rev` that it replaces, or no `_rev` if it is new.
    pub new: JsonText,
    /// The document that it replaces, with its newest `_revisions`. `None` for a new document, even if it is created
    /// again after a deletion.
    pub old: Option<JsonText>,
    /// The database's security object.
    pub security: JsonText,
}

/// What a handle is about to write.
#[derive(Debug)]
pub enum Writing<'w> {
    /// An edit of this document, whose content is still to come. A program may ask before it reads the content; writes
    /// never do.
    Announced(&'w str),
    /// This edit. The validator's changes to it are stored.
    Edit(&'w mut Edit, WriteMode),
    /// An edit of this document whose content is computed in the transaction: a patch, a resolved conflict. It is not
    /// shown. A program that copies documents may ask the same.
    Computed(&'w str),
    /// The local document with this id, including its deletion.
    Local(&'w str),
    /// Purges.
    Purge,
}

impl Writing<'_> {
    /// The document, if there is one.
    pub fn id(&self) -> Option<&str> {
        match self {
            Writing::Announced(id) | Writing::Computed(id) | Writing::Local(id) => Some(id),
            Writing::Edit(edit, _) => Some(&edit.id),
            Writing::Purge => None,
        }
    }
}

/// The future of a validator's answer.
pub type Verdict<'v> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'v>>;

/// Runs the design documents' `validate_doc_update` functions. A closure from [`Question`] to a result
/// is a validator.
///
/// It may be asked several times about an edit, and about an edit that is not written afterwards.
pub trait Validator: Send + Sync {
    /// Whether the writer may do this; `None` if that is certain without waiting. An error of a client (4xx) refuses
    /// only this document, unless the database is gone. Any other error ends the whole write.
    fn authorize<'v>(&'v self, _writing: Writing<'v>) -> Option<Verdict<'v>> {
        None
    }

    /// Whether a document may be written. The errors are [`ErrorKind::Forbidden`], [`ErrorKind::Unauthorized`] and
    /// [`ErrorKind::ValidationFailed`], which refuse only this edit. Any other error ends the whole write.
    fn ask(&self, question: Question) -> Verdict<'_>;

    /// Whether a design document may be written. It is not asked about deletions, nor about replicated ones: a
    /// `validate_doc_update` that cannot run then refuses every edit.
    fn admit(&self, _design: JsonText) -> Verdict<'_> {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl<F: Fn(&Question) -> Result<()> + Send + Sync> Validator for F {
    fn ask(&self, question: Question) -> Verdict<'_> {
        Box::pin(std::future::ready(self(&question)))
    }
}

/// The validator of a handle's edits.
#[derive(Clone, Default)]
pub(crate) enum Validating {
    /// There is no validator, so edits that must be validated are refused.
    #[default]
    Impossible,
    By(Arc<dyn Validator>),
    Waived,
}

impl fmt::Debug for Validating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Validating::Impossible => "Impossible",
            Validating::By(_) => "By",
            Validating::Waived => "Waived",
        })
    }
}

/// The design documents that validate edits.
#[derive(Clone, Debug)]
pub(crate) struct Designs {
    pub(crate) generation: u64,
    pub(crate) rules: Arc<[Rule]>,
}

/// The rule of a design document for edits.
#[derive(Clone, Debug)]
pub(crate) enum Rule {
    /// A function of this design document, which only a [`Validator`] can run.
    Function(JsonText),
    /// The id of the design document, and its selector. A replicated selector may be invalid.
    Selector(String, std::result::Result<Selector, mango::Error>),
}

impl Rule {
    /// The rule of a design document that has `validate_doc_update`.
    pub(crate) fn of(id: &str, design: JsonText) -> Self {
        match selector(&design) {
            Some(selector) => Rule::Selector(id.to_owned(), selector),
            None => Rule::Function(design),
        }
    }
}

/// The selector of a design document of the language `query`.
pub(crate) fn selector(design: &JsonText) -> Option<std::result::Result<Selector, mango::Error>> {
    let language = design.get("language").and_then(JsonRef::as_str);
    let selector = design.get(VALIDATE).filter(|_| language.as_deref() == Some("query"))?;
    Some(Selector::parse(&design.slice_ref(selector)))
}

/// The document that selectors are matched against.
pub(crate) fn matched(new: &JsonText, old: Option<&JsonText>) -> JsonText {
    let mut out = Vec::with_capacity(new.len() + old.map_or(0, JsonText::len) + 32);
    let mut writer = JsonWriter::new(&mut out);
    writer.begin_object().name("newDoc").text(new).name("oldDoc");
    match old {
        Some(old) => writer.text(old),
        None => writer.null(),
    };
    writer.end_object();
    JsonText::from_normalised(out).unwrap_or_else(JsonText::empty_object)
}

/// Whether an edit matches the selector of a design document. A selector that cannot be matched refuses it.
pub(crate) fn check(
    id: &str,
    selector: &std::result::Result<Selector, mango::Error>,
    matched: JsonRef<'_>,
) -> Result<()> {
    let matches = selector.as_ref().map_err(Clone::clone).and_then(|selector| selector.matches(matched));
    match matches {
        Ok(true) => Ok(()),
        Ok(false) => Err(ErrorKind::Forbidden("document is not valid".to_owned()).into()),
        Err(error) => {
            let reason = format!("{id}: {}", error.reason());
            Err(ErrorKind::ValidationFailed { status: 500, error: error.error().into(), reason }.into())
        }
    }
}
