//! A view group: its views, and the functions behind them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use json::JsonText;
use kv_api::BoxFuture;
use md5::{Digest, Md5};

use crate::error::{Error, Result};
use crate::limits::DESIGN_PREFIX;

use super::errors::FunctionError;
use super::request::ViewRequest;

/// A row that a map function emits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// The key.
    pub key: JsonText,
    /// The value.
    pub value: JsonText,
}

/// The result of a group's map functions for one document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// The rows that each view emits, in the order of the views. A view whose function failed has no rows.
    pub rows: Vec<Vec<Emitted>>,
    /// The error of the first function that failed.
    pub error: Option<FunctionError>,
    /// The views whose functions failed because of a limit, so the document's rows there are unknown. Queries report
    /// that it is left out. They do not report functions that fail by themselves.
    pub left_out: BTreeMap<usize, FunctionError>,
}

/// The result of a reduce function.
pub type Reduced = Result<JsonText, FunctionError>;

/// A row that is passed to a reduce function.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReduceRow {
    /// The emitted key.
    pub key: JsonText,
    /// The document.
    pub id: String,
    /// The emitted value.
    pub value: JsonText,
}

/// A call of a reduce function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Reduces rows.
    Rows(Vec<ReduceRow>),
    /// Reduces earlier results ("rereduce").
    Values(Vec<JsonText>),
}

/// The functions of a view group. Calls may run anywhere, for example on their own threads.
///
/// A function must return the same result for the same arguments. The result of a reduce function must not depend on
/// how the rows are divided.
pub trait ViewFunctions: Send + Sync + 'static {
    /// Calls all map functions with each document. A document is the text that a plain read returns. An error of a
    /// function is noted for the document, which has no rows in that view. An error of the whole call ends the update.
    fn map(&self, documents: Vec<JsonText>) -> BoxFuture<Result<Vec<Mapped>>>;

    /// How many calls of [`map`](Self::map) an update makes at the same time, with different documents. More than one
    /// helps if the calls run on several threads.
    fn at_once(&self) -> usize {
        1
    }

    /// Calls the reduce function of a view, given by its place among the views. Called for [`Reduce::Custom`] only.
    fn reduce(&self, view: usize, calls: Vec<Reduction>) -> BoxFuture<Result<Vec<Reduced>>>;
}

/// How a view's rows are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// `_count`: the number of rows.
    Count,
    /// `_sum`: the sum of the values, which are numbers, or lists or objects of them.
    Sum,
    /// `_stats`: sum, count, minimum, maximum and sum of squares.
    Stats,
    /// A function of the group.
    Custom,
    /// `_approx_count_distinct`: the approximate number of different keys.
    ApproxCountDistinct,
    /// `_top_N`: the greatest values, from the greatest one. Values that collate equal count once.
    Top(u8),
    /// `_bottom_N`: the least values, from the least one.
    Bottom(u8),
    /// `_first`: the value of the first row, whatever the direction of the query.
    First,
    /// `_last`: the value of the last row.
    Last,
}

impl Reduce {
    /// The largest `N` of `_top_N` and `_bottom_N` in CouchDB.
    pub const MAX_RANK: u8 = 100;

    /// CouchDB's built-in function of this name; `None` if there is none.
    ///
    /// # Errors
    /// CouchDB's reason if `N` is not a number from 1 to [`MAX_RANK`](Self::MAX_RANK).
    pub fn named(name: &str) -> Result<Option<Reduce>, &'static str> {
        let rank = |digits: &str| match digits.parse::<i128>().map(u8::try_from) {
            Ok(Ok(rank)) if (1..=Reduce::MAX_RANK).contains(&rank) => Ok(rank),
            Ok(_) => Err("rank value must be between 1 and 100"),
            Err(_) => Err("invalid rank reducer"),
        };
        // Names are compared by their starts, as in CouchDB: some design documents have a line break after the name.
        let known = [
            ("_sum", Reduce::Sum),
            ("_count", Reduce::Count),
            ("_stats", Reduce::Stats),
            ("_approx_count_distinct", Reduce::ApproxCountDistinct),
            ("_first", Reduce::First),
            ("_last", Reduce::Last),
        ];
        if let Some((_, reduce)) = known.into_iter().find(|(known, _)| name.starts_with(known)) {
            return Ok(Some(reduce));
        }
        Ok(match (name.strip_prefix("_top_"), name.strip_prefix("_bottom_")) {
            (Some(digits), _) => Some(Reduce::Top(rank(digits)?)),
            (_, Some(digits)) => Some(Reduce::Bottom(rank(digits)?)),
            _ => None,
        })
    }

    /// The bytes that the function adds to a signature.
    fn code(self) -> Vec<u8> {
        match self {
            Reduce::Count => vec![1],
            Reduce::Sum => vec![2],
            Reduce::Stats => vec![3],
            Reduce::Custom => vec![4],
            Reduce::ApproxCountDistinct => vec![5],
            Reduce::Top(rank) => vec![6, rank],
            Reduce::Bottom(rank) => vec![7, rank],
            Reduce::First => vec![8],
            Reduce::Last => vec![9],
        }
    }
}

/// A view of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Its name.
    pub name: String,
    /// How its rows are reduced, if they are.
    pub reduce: Option<Reduce>,
    /// Whether its rows are in CouchDB's raw collation: the order of Erlang's terms, where strings are compared by
    /// their bytes and come after all other values.
    pub is_raw: bool,
}

/// A view group. Cheap to clone.
#[derive(Clone)]
pub struct ViewGroup(Arc<Inner>);

struct Inner {
    name: String,
    is_of_design: bool,
    signature: [u8; 16],
    views: Vec<View>,
    include_design: bool,
    local_seq: bool,
    is_partitioned: bool,
    functions: Arc<dyn ViewFunctions>,
}

impl fmt::Debug for ViewGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ViewGroup").field("name", &self.0.name).field("views", &self.0.views).finish_non_exhaustive()
    }
}

/// Options of a view group, which are part of its signature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViewOptions {
    /// Whether the group belongs to a design document. A cleanup removes such a group when no design document has its
    /// signature.
    pub is_of_design: bool,
    /// Whether design documents are mapped too.
    pub include_design: bool,
    /// Whether documents have `_local_seq`.
    pub local_seq: bool,
    /// Whether each partition has its own rows. A query must then name one. Only for partitioned databases. Documents
    /// without a partition, which are the design documents, then have no rows.
    pub is_partitioned: bool,
}

impl ViewGroup {
    /// A group. `sources` is the text of all functions, or any other text that changes when they change.
    pub fn new(
        name: impl Into<String>,
        sources: &str,
        options: ViewOptions,
        views: Vec<View>,
        functions: Arc<dyn ViewFunctions>,
    ) -> Self {
        let signature = signature(mango::COLLATION_VERSION, sources, options, &views);
        let ViewOptions { is_of_design, include_design, local_seq, is_partitioned } = options;
        ViewGroup(Arc::new(Inner {
            name: name.into(),
            is_of_design,
            signature,
            views,
            include_design,
            local_seq,
            is_partitioned,
            functions,
        }))
    }

    /// Its name, for messages.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The hash that distinguishes it from other groups.
    pub fn signature(&self) -> &[u8; 16] {
        &self.0.signature
    }

    /// Its views.
    pub fn views(&self) -> &[View] {
        &self.0.views
    }

    /// The place of the view with this name.
    pub fn view(&self, name: &str) -> Option<usize> {
        self.0.views.iter().position(|view| view.name == name)
    }

    /// Whether the view at this place is in raw collation.
    pub(super) fn is_raw(&self, view: usize) -> bool {
        self.0.views.get(view).is_some_and(|view| view.is_raw)
    }

    /// Whether each partition has its own rows.
    pub fn is_partitioned(&self) -> bool {
        self.0.is_partitioned
    }

    /// Refuses a query without a partition if one is needed, and a query with a partition if the group has none.
    pub(super) fn check(&self, request: &ViewRequest) -> Result<()> {
        match (self.0.is_partitioned, &request.partition) {
            (true, None) => Err(Error::bad_request("`partition` parameter is mandatory for queries to this view.")),
            (false, Some(_)) => Err(Error::bad_request("`partition` parameter is not supported in this design doc")),
            _ => Ok(()),
        }
    }

    /// The partition whose rows a document has, if the group is partitioned.
    pub(super) fn partition_of<'i>(&self, id: &'i str) -> Option<&'i str> {
        let is_in = self.0.is_partitioned && !id.starts_with(DESIGN_PREFIX);
        mango::partition_of(id).filter(|_| is_in)
    }

    /// Whether the map functions see the document of this id, if it is not deleted.
    pub(super) fn sees(&self, id: &str) -> bool {
        match self.is_partitioned() {
            true => self.partition_of(id).is_some(),
            false => self.include_design() || !id.starts_with(DESIGN_PREFIX),
        }
    }

    pub(super) fn is_of_design(&self) -> bool {
        self.0.is_of_design
    }

    pub(super) fn include_design(&self) -> bool {
        self.0.include_design
    }

    pub(super) fn local_seq(&self) -> bool {
        self.0.local_seq
    }

    pub(super) fn functions(&self) -> &dyn ViewFunctions {
        self.0.functions.as_ref()
    }
}

/// The hash that distinguishes groups. Keys are ordered by the collation's data, so other collation data needs another
/// group.
fn signature(collation: &str, sources: &str, options: ViewOptions, views: &[View]) -> [u8; 16] {
    let ViewOptions { is_of_design, include_design, local_seq, is_partitioned } = options;
    let mut hash = Md5::new();
    let flags = [is_of_design, include_design, local_seq, is_partitioned].map(u8::from);
    for part in [collation.as_bytes(), &flags, sources.as_bytes()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    for view in views {
        hash.update((view.name.len() as u64).to_be_bytes());
        hash.update(&view.name);
        hash.update([u8::from(view.is_raw)]);
        hash.update(view.reduce.map_or_else(|| vec![0], Reduce::code));
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_collation_makes_another_group() {
        let of = |collation| {
            let views = [View { name: "v".to_owned(), reduce: None, is_raw: false }];
            signature(collation, "sources", ViewOptions::default(), &views)
        };
        let group = ViewGroup::of_closures("g", 1, vec![crate::RustView::new("v", |_, _| Ok(()))]);
        let now = signature(mango::COLLATION_VERSION, "rust 1 g", ViewOptions::default(), group.views());
        assert_eq!(of("2"), of("2"));
        assert_ne!(of("2"), of("1"));
        assert_eq!(group.signature(), &now);
        let options = ViewOptions { is_partitioned: true, ..ViewOptions::default() };
        assert_ne!(signature(mango::COLLATION_VERSION, "rust 1 g", options, group.views()), now);
    }

    #[test]
    fn functions_have_couchdbs_names() {
        assert_eq!(Reduce::named("_top_100"), Ok(Some(Reduce::Top(100))));
        assert_eq!(Reduce::named("_bottom_1"), Ok(Some(Reduce::Bottom(1))));
        assert_eq!(Reduce::named("_approx_count_distinct"), Ok(Some(Reduce::ApproxCountDistinct)));
        assert_eq!(Reduce::named("_first"), Ok(Some(Reduce::First)));
        assert_eq!(Reduce::named("_sum\n"), Ok(Some(Reduce::Sum)));
        for name in ["_none", "_top", "_SUM", " _sum"] {
            assert_eq!(Reduce::named(name), Ok(None), "{name}");
        }
        for name in ["_top_0", "_top_101", "_bottom_256", "_bottom_-1"] {
            assert_eq!(Reduce::named(name), Err("rank value must be between 1 and 100"), "{name}");
        }
        for name in ["_top_", "_top_x", "_top_3 "] {
            assert_eq!(Reduce::named(name), Err("invalid rank reducer"), "{name}");
        }
    }
}
