//! The plan of a query.
//!
//! `mango` chooses among the indexes of the database. An index that is being built is not used, unless nothing else can
//! answer the query; then the query waits for it, as in CouchDB.

use std::sync::Arc;

use mango::{Bookmark, Choice, Direction, IdRange, Purpose, Query, Scan};
use model::{AllDocsRequest, IndexInfo, IndexRequest};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::find::build;

/// A query and its plan.
pub(crate) struct Plan {
    pub(crate) query: Query,
    /// The chosen index and its range, or the documents by id.
    pub(crate) chosen: mango::Plan,
    /// The end of the previous answer.
    pub(crate) bookmark: Option<Bookmark>,
    /// The number of the chosen index.
    number: u64,
    /// The range of ids that has all matches.
    ids: IdRange,
}

impl Plan {
    /// # Errors
    /// Those of the query's bookmark, and `no_usable_index` and `invalid_index` as [`mango::Plan::of`] has them.
    pub(crate) async fn of(query: Query, purpose: Purpose, app: &App, database: &Documents) -> Result<Plan> {
        let word = query.bookmark.as_deref().filter(|_| purpose == Purpose::Find);
        let bookmark = word.map(Bookmark::decode).transpose()?;
        let mut known = database.indexes().await?;
        let mut chosen = choose(&query, bookmark.as_ref(), &known, purpose);
        if known.iter().any(|index| !index.active) {
            if chosen.is_err() && purpose == Purpose::Find {
                build::wait(app, database).await?;
                known = database.indexes().await?;
                chosen = choose(&query, bookmark.as_ref(), &known, purpose);
            } else {
                database.request_build().await?;
            }
        }
        let (chosen, number) = chosen?;
        let ids = query.selector.id_range();
        Ok(Plan { query, chosen, bookmark, number, ids })
    }

    /// The range of the chosen index.
    pub(crate) fn scan(&self) -> Option<&Scan> {
        match &self.chosen.choice {
            Choice::Scan(scan) => Some(scan),
            Choice::AllDocs | Choice::Nothing => None,
        }
    }

    /// Whether there is nothing to search: CouchDB then answers without a bookmark.
    pub(crate) fn finds_nothing(&self) -> bool {
        match self.scan() {
            Some(scan) => scan.is_empty,
            None => self.ids.is_empty || self.query.selector.is_empty_combination(),
        }
    }

    pub(crate) fn is_descending(&self) -> bool {
        self.query.sort.first().is_some_and(|(_, direction)| *direction == Direction::Descending)
    }

    /// The request for the rows to search, from the beginning.
    pub(crate) fn rows(&self, scan: &Scan) -> IndexRequest {
        IndexRequest {
            number: self.number,
            start: scan.range.start.clone(),
            end: scan.range.end.clone(),
            after: None,
            descending: self.is_descending(),
            limit: None,
            include_docs: !scan.is_covering,
            conflicts: self.query.conflicts,
        }
    }

    /// The request for the documents to search, after an id if there is one.
    pub(crate) fn listing(&self, after: Option<&str>) -> AllDocsRequest {
        let descending = self.is_descending();
        let (from, to) = if descending { (&self.ids.high, &self.ids.low) } else { (&self.ids.low, &self.ids.high) };
        let part = |bound: &Option<(String, bool)>| match bound {
            Some((id, inclusive)) => (Some(id.clone()), *inclusive),
            None => (None, true),
        };
        let (mut start, mut inclusive_start) = part(from);
        let (end, inclusive_end) = part(to);
        if let Some(id) = after {
            // A bookmark of another query may be before the range.
            let is_within = start.as_deref().is_none_or(|start| if descending { id <= start } else { id >= start });
            if is_within {
                (start, inclusive_start) = (Some(id.to_owned()), false);
            }
        }
        let (include_docs, conflicts) = (true, self.query.conflicts);
        AllDocsRequest {
            start,
            inclusive_start,
            end,
            inclusive_end,
            descending,
            include_docs,
            conflicts,
            ..AllDocsRequest::default()
        }
    }
}

/// Chooses among the built indexes. Also returns the number of the chosen one. A search with a bookmark stays with its
/// index, since the bookmark is meaningless in any other.
fn choose(
    query: &Query,
    bookmark: Option<&Bookmark>,
    known: &[IndexInfo],
    purpose: Purpose,
) -> std::result::Result<(mango::Plan, u64), mango::Error> {
    let began = |info: &&IndexInfo| match bookmark {
        None => true,
        Some(bookmark) => bookmark.row.as_ref().is_some_and(|(number, _)| *number == info.number),
    };
    let known: Vec<&IndexInfo> = known.iter().filter(|info| info.active).filter(began).collect();
    let indexes: Vec<_> = known.iter().map(|info| info.index.clone()).collect();
    let plan = mango::Plan::of(query, &indexes, purpose)?;
    let chosen = match &plan.choice {
        Choice::Scan(scan) => known.iter().find(|info| Arc::ptr_eq(&info.index, &scan.index)),
        Choice::AllDocs | Choice::Nothing => None,
    };
    if bookmark.is_some_and(|bookmark| bookmark.row.is_some() != chosen.is_some()) {
        return Err(mango::Error::invalid_bookmark(query.bookmark.as_deref().unwrap_or_default()));
    }
    let number = chosen.map_or(0, |info| info.number);
    Ok((plan, number))
}
