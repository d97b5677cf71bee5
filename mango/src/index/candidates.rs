//! The indexes that were not chosen, with reasons, as `_explain` lists them.
//!
//! Source: `mango_cursor:extract_candidate_indexes/1`.

use std::sync::Arc;

use super::Index;
use super::known::Known;
use crate::query::Query;

/// An index that was not chosen.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The index; `None` for the documents by id.
    pub index: Option<Arc<Index>>,
    /// Whether it could have been used.
    pub is_usable: bool,
    /// The reason, in CouchDB's words.
    pub reason: &'static str,
    /// How close it came: 1 is the next best.
    pub ranking: usize,
    /// Whether its rows have all requested fields; `None` for the documents by id.
    pub is_covering: Option<bool>,
}

/// The steps of the choice. Each has a part of the indexes of the step before, by position in `known`.
pub(super) struct Stages<'i> {
    pub(super) known: &'i [Known<'i>],
    pub(super) usable: Vec<usize>,
    /// The indexes that the client allows.
    pub(super) filtered: Vec<usize>,
    /// The indexes of the chosen kind, best first.
    pub(super) ranked: Vec<usize>,
    pub(super) winner: Option<usize>,
}

impl Stages<'_> {
    pub(super) fn candidates(
        &self,
        query: &Query,
        reasons: &[Vec<&'static str>],
        is_eligible: impl Fn(usize) -> bool,
        unused: impl Fn(usize) -> usize,
    ) -> Vec<Candidate> {
        let is_partial = |at: usize| self.known[at].is_partial();
        let is_out_of_scope = |at: usize| !is_partial(at) && !self.known[at].is_for(query);
        let is_unusable = |at: usize| is_eligible(at) && !self.usable.contains(&at);
        let is_excluded = |at: usize| self.usable.contains(&at) && !self.filtered.contains(&at);
        let is_unfavored = |at: usize| self.filtered.contains(&at) && !self.ranked.contains(&at);
        let any = |of: &dyn Fn(usize) -> bool| usize::from((0..self.known.len()).any(of));
        // Each kind ranks after the kind before it, if that has any index.
        let unfavored = self.ranked.len().max(1);
        let excluded = unfavored + any(&is_unfavored);
        let unusable = excluded + any(&is_excluded);
        let out_of_scope = unusable + any(&is_unusable);
        let partial = out_of_scope + any(&is_out_of_scope);

        let width = self.winner.map_or(0, |winner| self.known[winner].width());
        let candidate = |at: usize| {
            let index = self.known[at].index;
            // CouchDB reports the first reason, and the sum of the ranks for a partial index that the client named.
            let mut found = Vec::new();
            if is_partial(at) {
                found.push((false, "is_partial", partial));
            }
            if is_out_of_scope(at) {
                found.push((false, "scope_mismatch", out_of_scope));
            }
            if is_unusable(at) {
                found.push((false, reasons[at].first().copied().unwrap_or_default(), unusable));
            }
            if is_excluded(at) {
                found.push((true, "excluded_by_user", excluded));
            }
            if is_unfavored(at) {
                found.push((true, "unfavored_type", unfavored));
            }
            if let Some(rank) = self.ranked.iter().position(|&ranked| ranked == at) {
                let reason = if unused(at) > 0 {
                    "less_overlap"
                } else if self.known[at].width() > width {
                    "too_many_fields"
                } else {
                    "alphabetically_comes_after"
                };
                found.push((true, reason, rank));
            }
            Candidate {
                index: index.cloned(),
                is_usable: found.iter().all(|(is_usable, ..)| *is_usable),
                reason: found.first().map_or("", |(_, reason, _)| reason),
                ranking: found.iter().map(|(_, _, rank)| rank).sum(),
                is_covering: index
                    .map(|index| !query.fields.is_everything() && query.fields.paths().all(|path| index.covers(path))),
            }
        };
        let mut order: Vec<usize> = (0..self.known.len()).filter(|&at| Some(at) != self.winner).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(self.known[at].names()));
        order.into_iter().map(candidate).collect()
    }
}
