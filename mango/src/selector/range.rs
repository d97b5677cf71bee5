//! The values of each field among which those of all matches are.
//!
//! Keys of values compare as bytes ([`Order::append_key`]), so that a range of values is one of keys:
//!
//! ```text
//!   $gte v   from key(v)              $lt v    below key(v)
//!   $gt v    from key(v) FF           $lte v   below key(v) FF
//!   $beginsWith p   from prefix(p), below the first bytes behind all that begin with prefix(p)
//! ```
//!
//! Source: `mango_idx_view:field_ranges/1`.

use std::collections::BTreeMap;

use json::{JsonText, JsonWriter};

use super::{Condition, Relation, Selector};
use crate::collate::Order;

/// Behind a key: above every key that goes on there.
pub(crate) const ABOVE: u8 = 0xff;

/// The values of one field.
#[derive(Clone, Debug, Default)]
pub(crate) struct FieldRange {
    pub(crate) low: Option<Bound>,
    pub(crate) high: Option<Bound>,
}

/// One end of a range.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    /// The key of a value, or for [`Kind::Prefix`] the place itself.
    pub(crate) key: Vec<u8>,
    pub(crate) kind: Kind,
    /// As `_explain` shows it.
    pub(crate) shown: JsonText,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The value is in the range.
    Inclusive,
    /// The value is not.
    Exclusive,
    /// An end of what begins with some text.
    Prefix,
}

impl Selector {
    /// The ranges of all fields whose conditions an index can serve, by path.
    pub(crate) fn field_ranges(&self) -> BTreeMap<&[String], FieldRange> {
        let mut ranges: BTreeMap<&[String], FieldRange> = BTreeMap::new();
        self.each_required(&mut |path, condition| {
            if condition.is_indexable() {
                ranges.entry(path).or_default().narrow(condition, Order::of(path));
            }
        });
        ranges
    }
}

impl FieldRange {
    /// Whether no value is in it.
    pub(crate) fn is_empty(&self) -> bool {
        matches!((&self.low, &self.high), (Some(low), Some(high)) if low.begin() >= high.end())
    }

    fn narrow(&mut self, condition: &Condition, order: Order) {
        match condition {
            Condition::Compare { relation, value, .. } => {
                let bound = |kind| {
                    let mut key = Vec::new();
                    order.append_key(&mut key, value.root());
                    Bound { key, kind, shown: value.clone() }
                };
                match relation {
                    Relation::Lt => self.lower(bound(Kind::Exclusive)),
                    Relation::Lte => self.lower(bound(Kind::Inclusive)),
                    Relation::Eq => {
                        self.raise(bound(Kind::Inclusive));
                        self.lower(bound(Kind::Inclusive));
                    }
                    Relation::Gte => self.raise(bound(Kind::Inclusive)),
                    Relation::Gt => self.raise(bound(Kind::Exclusive)),
                    Relation::Ne => {}
                }
            }
            Condition::BeginsWith(prefix) => {
                let mut key = Vec::new();
                order.append_prefix(&mut key, prefix);
                let mut beyond = key.clone();
                while beyond.last() == Some(&ABOVE) {
                    beyond.pop();
                }
                // The first byte of all is the string's own.
                if let Some(last) = beyond.last_mut() {
                    *last += 1;
                }
                // CouchDB's own bound: U+FFFF is behind all characters.
                let highest = format!("{prefix}\u{ffff}");
                self.raise(Bound { key, kind: Kind::Prefix, shown: as_json(prefix) });
                self.lower(Bound { key: beyond, kind: Kind::Prefix, shown: as_json(&highest) });
            }
            _ => {}
        }
    }

    fn raise(&mut self, bound: Bound) {
        if self.low.as_ref().is_none_or(|low| bound.begin() > low.begin()) {
            self.low = Some(bound);
        }
    }

    fn lower(&mut self, bound: Bound) {
        if self.high.as_ref().is_none_or(|high| bound.end() < high.end()) {
            self.high = Some(bound);
        }
    }
}

impl Bound {
    /// Where a range begins of which this is the low end: the key, and whether it goes on with [`ABOVE`].
    ///
    /// No key is a prefix of another, and none has [`ABOVE`] where another ends; so the pairs compare as the places do.
    fn begin(&self) -> (&[u8], bool) {
        (&self.key, self.kind == Kind::Exclusive)
    }

    /// Where a range ends of which this is the high end.
    fn end(&self) -> (&[u8], bool) {
        (&self.key, self.kind == Kind::Inclusive)
    }
}

fn as_json(text: &str) -> JsonText {
    let mut json = Vec::new();
    JsonWriter::new(&mut json).str(text);
    JsonText::parse(&json).expect("a string that was just written")
}
