//! The plan of a query.
//!
//! `mango` chooses among the indexes of the database. An index that is being built is not used, unless the query names
//! it, or nothing else can answer the query; then the query waits for it, as in CouchDB.

use std::sync::Arc;

use mango::{Bookmark, Choice, Direction, IdRange, Purpose, Query, Scan};
use model::{AllDocsRequest, IndexInfo, IndexRequest, choose_index};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::jobs::index_build;

/// A query and its plan.
pub(crate) struct PlannedQuery {
    pub(crate) query: Query,
    /// The chosen index and its range, or the documents by id.
    pub(crate) chosen: mango::QueryPlan,
    /// The end of the previous answer.
    pub(crate) bookmark: Option<Bookmark>,
    /// The number of the chosen index.
    number: u64,
    /// The range of ids that has all matches.
    ids: IdRange,
}

impl PlannedQuery {
    /// # Errors
    /// Those of the query's bookmark, and `no_usable_index` and `invalid_index` as [`mango::QueryPlan::of`] has them.
    pub(crate) async fn of(query: Query, purpose: Purpose, app: &App, database: &Documents) -> Result<PlannedQuery> {
        let word = query.bookmark.as_deref().filter(|_| purpose == Purpose::Find);
        let bookmark = word.map(Bookmark::decode).transpose()?;
        let mut known = database.indexes().await?;
        let chosen = loop {
            let chosen = choose(&query, bookmark.as_ref(), &known, purpose);
            if known.iter().all(|index| index.active) {
                break chosen;
            }
            let is_ready = match chosen.as_ref().map(|(plan, _)| &plan.choice) {
                Ok(Choice::Scan(scan)) => known.iter().any(|info| info.active && Arc::ptr_eq(&info.index, &scan.index)),
                Ok(Choice::AllDocs | Choice::Nothing) => true,
                Err(_) => false,
            };
            if is_ready || purpose == Purpose::Explain {
                // A query that reads all documents until the index is built is worse for a busy cluster than the build.
                let is_all = matches!(&chosen, Ok((plan, _)) if matches!(plan.choice, Choice::AllDocs));
                let asked = match purpose {
                    Purpose::Find if is_all => database.request_build_soon().await,
                    _ => database.request_build().await,
                };
                // The answer does not need it, and a standby or a full disk takes no writes.
                if let Err(error) = asked {
                    tracing::debug!(database = database.name(), ?error, "the build of an index is not asked for");
                }
                break chosen;
            }
            index_build::wait(app, database).await?;
            known = database.indexes().await?;
        };
        let (chosen, number) = chosen?;
        let ids = query.id_range();
        Ok(PlannedQuery { query, chosen, bookmark, number, ids })
    }

    /// The range of the chosen index.
    pub(crate) fn scan(&self) -> Option<&Scan> {
        match &self.chosen.choice {
            Choice::Scan(scan) => Some(scan),
            Choice::AllDocs | Choice::Nothing => None,
        }
    }

    /// Whether there is nothing to search. CouchDB then answers without a bookmark.
    pub(crate) fn finds_nothing(&self) -> bool {
        match self.scan() {
            Some(scan) => scan.is_empty,
            // Ids that are excluded only by collation are searched, since ids are matched by bytes.
            None => self.chosen.id_bounds.is_empty && self.ids.is_empty || self.query.selector.is_empty_combination(),
        }
    }

    /// Whether no id is within the range to search.
    pub(crate) fn has_no_ids(&self) -> bool {
        self.scan().is_none() && self.ids.is_empty
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
        let mut request = AllDocsRequest::of_ids(self.ids.clone(), descending);
        request.conflicts = self.query.conflicts;
        if let (Some(id), Some(ids)) = (after, &request.keys) {
            let is_left = |one: &&String| if descending { one.as_str() < id } else { one.as_str() > id };
            request.keys = Some(ids.iter().filter(is_left).cloned().collect());
            return request;
        }
        if let Some(id) = after {
            // A bookmark of another query may be before the range.
            let start = request.start.as_deref();
            if start.is_none_or(|start| if descending { id <= start } else { id >= start }) {
                (request.start, request.inclusive_start) = (Some(id.to_owned()), false);
            }
        }
        request
    }
}

/// Chooses among the built indexes and those that the query names. Also returns the number of the chosen one. A search
/// with a bookmark stays with its index, since the bookmark is meaningless in any other.
fn choose(
    query: &Query,
    bookmark: Option<&Bookmark>,
    known: &[IndexInfo],
    purpose: Purpose,
) -> std::result::Result<(mango::QueryPlan, u64), mango::Error> {
    let began = |info: &&IndexInfo| match bookmark {
        None => true,
        Some(bookmark) => bookmark.row.as_ref().is_some_and(|(number, _)| *number == info.number),
    };
    let can_be_used = |info: &&IndexInfo| info.active || info.index.is_named(&query.use_index);
    let known: Vec<&IndexInfo> = known.iter().filter(can_be_used).filter(began).collect();
    // Without `use_index`, `allow_fallback` refuses a search without a usable index. The first page had one.
    let goes_on = bookmark.is_some() && query.use_index.is_empty() && !query.allow_fallback;
    let choosing = if goes_on { &Query { allow_fallback: true, ..query.clone() } } else { query };
    let (plan, number) = choose_index(choosing, &known, purpose)?;
    let has_index = matches!(plan.choice, Choice::Scan(_));
    if bookmark.is_some_and(|bookmark| bookmark.row.is_some() != has_index) {
        return Err(mango::Error::invalid_bookmark(query.bookmark.as_deref().unwrap_or_default()));
    }
    Ok((plan, number))
}
