//! Maps documents, and encodes their new rows.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use futures_util::stream;

use super::FunctionError;
use super::group::{Mapped, ViewGroup};
use super::rows::{Pair, Place, RowOrder, cut};
use crate::error::{Error, Result};
use crate::feed::change::{Change, ChangesRequest};
use crate::feed::seq::Seq;

/// Maximum number of documents in a call of the map functions.
const MAPPED_AT_ONCE: usize = 25;

/// Approximate number of bytes of rows at which a batch ends.
const PREPARED_BYTES: usize = 4_000_000;

/// Approximate number of bytes of rows that a transaction writes.
pub(super) const WRITTEN_BYTES: usize = 1_000_000;

/// Maximum number of bytes of rows of one document.
const MAX_EMITTED: usize = 3_000_000;

/// Maximum number of views of a group that note why a document is left out. More do not fit into a transaction.
const MAX_NOTED: usize = 1_000;

/// Maximum number of bytes of the notes of one document. Further ones do not repeat their reasons.
const MAX_NOTES: usize = 1_000_000;

/// Size of a row in a transaction, without its key and value.
pub(super) const ROW_BYTES: usize = 150;

/// The error of a document with views whose rows do not fit into a transaction with those of its other views.
const EMITTED_TOO_MUCH: &str = "emitted_too_much";

/// A document, and its new rows.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) id: String,
    pub(super) seq: Seq,
    pub(super) error: Option<FunctionError>,
    /// The view, the place and the row of each.
    pub(super) rows: Vec<(usize, Place, Pair)>,
    /// The views that leave the document out.
    pub(super) left_out: BTreeMap<usize, FunctionError>,
    bytes: usize,
    /// Bytes of the rows that say which views leave the document out.
    notes: usize,
}

/// Number of documents whose rows fit into a transaction.
pub(super) fn fitting(documents: &[Prepared]) -> usize {
    let mut bytes = 0;
    let fit = documents.iter().take_while(|one| {
        bytes += one.bytes;
        bytes <= WRITTEN_BYTES
    });
    fit.count().max(1)
}

/// The feed of documents as map functions see them: with `_conflicts` and `_deleted_conflicts`, as in CouchDB.
pub(super) fn mapped_documents() -> ChangesRequest {
    ChangesRequest { include_docs: true, conflicts: true, deleted_conflicts: true, ..ChangesRequest::default() }
}

/// Maps the first of these documents: as many as have about [`PREPARED_BYTES`] of rows. Several calls run at the same
/// time, and their results are taken in the order of the feed.
pub(super) async fn prepare_some(group: &ViewGroup, changes: Vec<Change>) -> Result<Vec<Prepared>> {
    let (mut prepared, mut bytes) = (Vec::with_capacity(changes.len()), 0);
    let mut changes = changes.into_iter().peekable();
    let calls = std::iter::from_fn(|| {
        changes.peek()?;
        Some(prepare(group, changes.by_ref().take(MAPPED_AT_ONCE).collect()))
    });
    let mut calls = stream::iter(calls).buffered(group.functions().at_once().max(1));
    while let Some(some) = calls.next().await {
        let some = some?;
        bytes += some.iter().map(|one| one.bytes).sum::<usize>();
        prepared.extend(some);
        // Running calls are abandoned: their documents will be read again.
        if bytes >= PREPARED_BYTES {
            break;
        }
    }
    Ok(prepared)
}

/// Maps documents.
async fn prepare(group: &ViewGroup, changes: Vec<Change>) -> Result<Vec<Prepared>> {
    let (mut prepared, mut texts, mut at) = (Vec::with_capacity(changes.len()), Vec::new(), Vec::new());
    for change in changes {
        let mut error = change.error.map(|error| FunctionError::new(error.error(), error.reason()));
        let is_mapped = group.sees(&change.id);
        match change.doc {
            Some(mut doc) if is_mapped && !change.deleted => {
                error = None;
                doc.local_seq = group.local_seq().then_some(change.seq);
                texts.push(doc.to_text());
                at.push(prepared.len());
            }
            _ if !is_mapped || change.deleted => error = None,
            _ => {}
        }
        let (id, seq) = (change.id, change.seq);
        let damage = error.clone();
        let mut one = Prepared::new(id, seq);
        one.set_error(error);
        if let Some(damage) = damage {
            (0..group.views().len()).for_each(|view| one.leave_out(view, damage.clone()));
        }
        prepared.push(one);
    }
    if texts.is_empty() {
        return Ok(prepared);
    }
    let mapped = group.functions().map(texts).await?;
    if mapped.len() != at.len() {
        return Err(Error::corrupt("map functions without results"));
    }
    for (at, mapped) in at.into_iter().zip(mapped) {
        prepared[at].take(group, mapped);
    }
    Ok(prepared)
}

impl Prepared {
    fn new(id: String, seq: Seq) -> Self {
        Prepared { id, seq, error: None, rows: Vec::new(), left_out: BTreeMap::new(), bytes: ROW_BYTES, notes: 0 }
    }

    fn take(&mut self, group: &ViewGroup, mapped: Mapped) {
        self.set_error(mapped.error.or_else(|| mapped.left_out.values().next().cloned()));
        mapped.left_out.into_iter().for_each(|(view, error)| self.leave_out(view, error));
        for (view, emitted) in mapped.rows.into_iter().enumerate().filter(|(view, _)| !self.left_out.contains_key(view))
        {
            let order = RowOrder::of(group.is_raw(view), group.partition_of(&self.id));
            let mut rows: Vec<_> = emitted.into_iter().map(|row| (cut(order.whole_key(row.key.root())), row)).collect();
            // CouchDB keeps values of equal keys in this order.
            rows.sort_by(|(a, one), (b, other)| {
                a.cmp(b).then_with(|| mango::compare_terms(one.value.root(), other.value.root()))
            });
            for (key, row) in rows {
                let emit = match self.rows.last() {
                    Some((last, place, _)) if *last == view && place.key == key => place.emit + 1,
                    _ => 0,
                };
                let place = Place { key, id: self.id.clone(), emit };
                let pair = Pair::new(&row.key, &row.value);
                self.bytes += bytes_of(&place, &pair);
                self.rows.push((view, place, pair));
            }
        }
        while self.bytes > MAX_EMITTED && !self.rows.is_empty() {
            self.leave_out_most(group);
        }
    }

    /// Notes that a view leaves the document out.
    fn leave_out(&mut self, view: usize, mut error: FunctionError) {
        if self.left_out.len() >= MAX_NOTED {
            return;
        }
        if self.notes > MAX_NOTES {
            error = FunctionError::new("too_many_errors", "The reasons of further views do not fit.");
        }
        let bytes = self.id.len() + error.row().len() + ROW_BYTES;
        self.bytes += bytes;
        self.notes += bytes;
        self.left_out.insert(view, error);
    }

    /// Notes the error of the document, in place of an earlier one.
    fn set_error(&mut self, error: Option<FunctionError>) {
        let bytes = |error: &Option<FunctionError>| error.as_ref().map_or(0, |error| error.row().len() + ROW_BYTES);
        self.bytes = self.bytes + bytes(&error) - bytes(&self.error);
        self.error = error;
    }

    /// Leaves out the rows of the view with the most bytes, so that those of the other views fit.
    pub(super) fn leave_out_most(&mut self, group: &ViewGroup) {
        let mut bytes: BTreeMap<usize, usize> = BTreeMap::new();
        for (view, place, pair) in &self.rows {
            *bytes.entry(*view).or_default() += bytes_of(place, pair);
        }
        let Some((most, bytes)) = bytes.into_iter().max_by_key(|(_, bytes)| *bytes) else { return };
        self.rows.retain(|(view, ..)| *view != most);
        self.bytes -= bytes;
        let reason = format!("The document emits too much, at most about {MAX_EMITTED} bytes fit.");
        self.leave_out(most, FunctionError::new(EMITTED_TOO_MUCH, reason.as_str()));
        let is_too_much = |error: &FunctionError| error.error == EMITTED_TOO_MUCH;
        let views = self.left_out.iter().filter(|(_, error)| is_too_much(error));
        let names: Vec<_> = views.map(|(view, _)| format!("{:?}", group.views()[*view].name)).collect();
        let reason = format!("{reason} It has no rows in: {}", names.join(", "));
        self.set_error(Some(FunctionError::new(EMITTED_TOO_MUCH, reason)));
    }
}

/// Size of a row in a transaction: its key, the keys of its parts or node, the key in the id row, and its value.
fn bytes_of(place: &Place, pair: &Pair) -> usize {
    3 * (place.key.len() + place.id.len()) + pair.len() + ROW_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(id: &str) -> Prepared {
        Prepared::new(id.to_owned(), Seq::ZERO)
    }

    /// An error whose control characters take six bytes each.
    fn long_error() -> FunctionError {
        FunctionError::new("map_error", "\u{1}".repeat(2_000))
    }

    #[test]
    fn what_a_document_is_left_out_of_fits_into_a_transaction() {
        let mut one = document("d");
        (0..MAX_NOTED + 5).for_each(|view| one.leave_out(view, long_error()));
        let rows: usize = one.left_out.values().map(|error| error.row().len()).sum();
        assert!(
            one.left_out.len() == MAX_NOTED && rows < 2 * MAX_NOTES,
            "{} notes of {rows} bytes",
            one.left_out.len()
        );
    }

    #[test]
    fn errors_count_where_documents_are_divided_into_transactions() {
        let mut documents: Vec<_> = (0..1_000).map(|n| document(&n.to_string())).collect();
        assert_eq!(fitting(&documents), documents.len());
        documents.iter_mut().for_each(|one| one.set_error(Some(long_error())));
        let written = fitting(&documents) * long_error().row().len();
        assert!(written <= WRITTEN_BYTES && 2 * written > WRITTEN_BYTES, "{written} bytes");
        documents.iter_mut().for_each(|one| one.set_error(None));
        assert_eq!(fitting(&documents), documents.len());
    }
}
