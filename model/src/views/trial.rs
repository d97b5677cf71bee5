//! Tries a view on some documents before its functions are stored.
//!
//! Nothing is written, and no row of a group is read: the functions are called with the documents that changed last.

use json::JsonText;
use kv_api::Database;

use super::errors::{FunctionError, ViewError};
use super::group::{Reduce, ReduceRow, Reduced, Reduction, ViewGroup};
use super::prepare::mapped_documents;
use super::reduce;
use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::feed::change::{Change, ChangesRequest};

/// Number of bytes of documents at which a trial ends.
const READ_BYTES: usize = 4_000_000;

/// Number of bytes of rows at which a trial ends, with their ids and [`ROW_BYTES`] of each.
const EMITTED_BYTES: usize = 4_000_000;

/// Number of rows at which a trial ends.
const MOST_ROWS: usize = 10_000;

/// Memory of a row without its key, value and id: rows may be many and empty.
const ROW_BYTES: usize = 200;

/// Number of changes for each wanted document that a trial looks at: deleted documents and others without rows are not
/// tried.
const CHANGES_FOR_ONE: usize = 20;

/// What a view would have for some documents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trial {
    /// Number of documents that the view was tried on.
    pub documents: usize,
    /// The rows in the order of the view.
    pub rows: Vec<ReduceRow>,
    /// The documents that the map function failed on, or that cannot be read.
    pub errors: Vec<ViewError>,
    /// The reduction of all rows; `None` if the view has none, or no rows.
    pub reduced: Option<Reduced>,
    /// The same, of two halves that are reduced first. A function whose result depends on how rows are divided is
    /// wrong. `None` for built-in functions and for less than two rows.
    pub rereduced: Option<Reduced>,
    /// Whether there may be documents that the view was not tried on, or rows that were left out.
    pub has_more: bool,
}

impl<D: Database> Documents<D> {
    /// Tries the view at this place of a group on those of at most `most` documents that changed last. The group need
    /// not be stored.
    ///
    /// A trial ends when it has read 4 MB of documents, or has 4 MB of rows or 10,000 of them; further rows are left
    /// out. It needs memory for the documents, three times the rows, and what the function emits for one document.
    ///
    /// # Errors
    /// 404 if the database is gone; those of functions that do not compile.
    pub async fn try_view(&self, group: &ViewGroup, view: usize, most: usize) -> Result<Trial> {
        let how = group.views().get(view).ok_or_else(|| Error::bad_request("The group has no such view."))?;
        let mut trial = Trial::default();
        let (mut read, mut emitted, mut left) = (0, 0, most.saturating_mul(CHANGES_FOR_ONE));
        let mut request = ChangesRequest { descending: true, ..mapped_documents() };
        loop {
            request.limit = Some(left);
            let batch = self.changes(&request).await?;
            left = left.saturating_sub(batch.rows.len());
            let mut found = Vec::new();
            for change in batch.rows {
                match tried(group, change) {
                    Some(Ok(document)) => found.push(document),
                    Some(Err(error)) => trial.errors.push(error),
                    None => {}
                }
            }
            let mut found = found.into_iter().peekable();
            let mut is_full = trial.documents == most;
            // One at a time: what functions emit for several documents may be large.
            while !is_full && let Some((id, text)) = found.next() {
                read += text.len();
                trial.documents += 1;
                let mapped = group.functions().map(vec![text]).await?.pop().unwrap_or_default();
                let (mut left_out, rows) = (mapped.left_out, mapped.rows);
                let error = left_out.remove(&view).or(mapped.error);
                trial.errors.extend(error.map(|error| ViewError { id: id.clone(), error }));
                for row in rows.into_iter().nth(view).unwrap_or_default() {
                    let bytes = row.key.len() + row.value.len() + id.len() + ROW_BYTES;
                    if emitted + bytes > EMITTED_BYTES || trial.rows.len() == MOST_ROWS {
                        trial.has_more = true;
                        is_full = true;
                        break;
                    }
                    emitted += bytes;
                    trial.rows.push(ReduceRow { key: row.key, id: id.clone(), value: row.value });
                }
                is_full |= trial.documents == most || read >= READ_BYTES;
            }
            let has_more = found.peek().is_some() || batch.more;
            if is_full || left == 0 || !has_more {
                trial.has_more |= has_more;
                break;
            }
            request.before = Some(batch.last_seq);
        }
        let is_raw = how.is_raw;
        let mut placed: Vec<_> = trial.rows.into_iter().map(|row| (place(&row, is_raw), row)).collect();
        placed.sort_by(|(a, one), (b, other)| a.cmp(b).then_with(|| one.id.cmp(&other.id)));
        trial.rows = placed.into_iter().map(|(_, row)| row).collect();
        if let (Some(reduce), false) = (how.reduce, trial.rows.is_empty()) {
            trial.reduced = Some(of_rows(group, view, reduce, trial.rows.clone()).await?);
            if reduce == Reduce::Custom && trial.rows.len() > 1 {
                let (first, second) = trial.rows.split_at(trial.rows.len() / 2);
                let halves = vec![Reduction::Rows(first.to_vec()), Reduction::Rows(second.to_vec())];
                let halves: std::result::Result<Vec<_>, FunctionError> =
                    group.functions().reduce(view, halves).await?.into_iter().collect();
                trial.rereduced = Some(match halves {
                    Ok(values) => one(group.functions().reduce(view, vec![Reduction::Values(values)]).await?),
                    Err(error) => Err(error),
                });
            }
        }
        Ok(trial)
    }
}

/// The reduction of rows, as a client gets it.
async fn of_rows(group: &ViewGroup, view: usize, how: Reduce, rows: Vec<ReduceRow>) -> Result<Reduced> {
    let rows = Reduction::Rows(rows);
    Ok(match how {
        Reduce::Custom => one(group.functions().reduce(view, vec![rows]).await?),
        _ => reduce::finished(how, reduce::reduce(how, &rows)),
    })
}

fn one(reduced: Vec<Reduced>) -> Reduced {
    let missing = || Err(FunctionError::new("not_found", "The function has no result."));
    reduced.into_iter().next().unwrap_or_else(missing)
}

/// The bytes that order a row.
fn place(row: &ReduceRow, is_raw: bool) -> Vec<u8> {
    super::rows::RowOrder::of(is_raw, None).whole_key(row.key.root())
}

/// The document of a change as the map functions see it. `None` if they do not see it.
fn tried(group: &ViewGroup, change: Change) -> Option<std::result::Result<(String, JsonText), ViewError>> {
    if change.deleted || !group.sees(&change.id) {
        return None;
    }
    match (change.doc, change.error) {
        (Some(mut doc), _) => {
            doc.local_seq = group.local_seq().then_some(change.seq);
            Some(Ok((change.id, doc.to_text())))
        }
        (None, Some(error)) => {
            let error = FunctionError::new(error.error(), error.reason());
            Some(Err(ViewError { id: change.id, error }))
        }
        (None, None) => None,
    }
}
