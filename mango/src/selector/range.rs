//! For each field, a range that contains the values of all matching documents.
//!
//! Keys of values compare as bytes ([`append_key`]), so a range of values is a range of keys:
//!
//! ```text
//!   $gte v   from key(v)              $lt v    below key(v)
//!   $gt v    from key(v) FF           $lte v   below key(v) FF
//!   $beginsWith p   from prefix(p), below the first bytes after all that begin with prefix(p)
//! ```
//!
//! Source: `mango_idx_view:field_ranges/1`.

use std::collections::BTreeMap;

use json::{JsonText, JsonWriter};

use super::Selector;
use super::node::{Condition, Relation};
use crate::collate::{append_key, append_prefix};

/// After a key, this byte makes it greater than every key that continues there.
pub(crate) const ABOVE: u8 = 0xff;

/// A range of the values of one field.
#[derive(Clone, Debug, Default)]
pub(crate) struct FieldRange {
    pub(crate) low: Option<Bound>,
    pub(crate) high: Option<Bound>,
}

/// One end of a range.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    /// The key of a value. For [`Kind::Prefix`], the position itself.
    pub(crate) key: Vec<u8>,
    pub(crate) kind: Kind,
    /// The value that `_explain` shows.
    pub(crate) shown: JsonText,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The value is in the range.
    Inclusive,
    /// The value is not.
    Exclusive,
    /// An end of the texts that begin with a prefix.
    Prefix,
}

impl Selector {
    /// The ranges of all fields with conditions that an index can serve, by path.
    pub(crate) fn field_ranges(&self) -> BTreeMap<&[String], FieldRange> {
        let mut ranges: BTreeMap<&[String], FieldRange> = BTreeMap::new();
        self.each_required(&mut |path, condition| {
            if condition.is_indexable() {
                ranges.entry(&**path).or_default().narrow(condition);
            }
        });
        ranges
    }
}

impl FieldRange {
    /// Whether the range is empty.
    pub(crate) fn is_empty(&self) -> bool {
        matches!((&self.low, &self.high), (Some(low), Some(high)) if low.begin() >= high.end())
    }

    fn narrow(&mut self, condition: &Condition) {
        match condition {
            Condition::Compare { relation, value, .. } => {
                let bound = |kind| {
                    let mut key = Vec::new();
                    append_key(&mut key, value.root());
                    Bound { key, kind, shown: value.clone() }
                };
                match relation {
                    Relation::Lt => self.lower(bound(Kind::Exclusive)),
                    Relation::Lte => {
                        self.lower(bound(Kind::Inclusive));
                        self.close(&bound(Kind::Inclusive));
                    }
                    Relation::Eq => {
                        self.raise(bound(Kind::Inclusive));
                        self.lower(bound(Kind::Inclusive));
                        self.close(&bound(Kind::Inclusive));
                    }
                    Relation::Gte => {
                        if self.raise(bound(Kind::Inclusive)) {
                            self.close(&bound(Kind::Inclusive));
                        }
                    }
                    Relation::Gt => {
                        self.raise(bound(Kind::Exclusive));
                    }
                    Relation::Ne => {}
                }
            }
            Condition::BeginsWith(prefix) => {
                let mut key = Vec::new();
                append_prefix(&mut key, prefix);
                let mut beyond = key.clone();
                while beyond.last() == Some(&ABOVE) {
                    beyond.pop();
                }
                // The first byte is a type code below FF, so at least one byte is left.
                if let Some(last) = beyond.last_mut() {
                    *last += 1;
                }
                // CouchDB's own bound: U+FFFF sorts after all characters.
                let highest = format!("{prefix}\u{ffff}");
                self.raise(Bound { key, kind: Kind::Prefix, shown: as_json(prefix) });
                self.lower(Bound { key: beyond, kind: Kind::Prefix, shown: as_json(&highest) });
            }
            _ => {}
        }
    }

    /// Returns whether the bound narrows the range.
    fn raise(&mut self, bound: Bound) -> bool {
        let narrows = self.low.as_ref().is_none_or(|low| bound.begin() > low.begin());
        if narrows {
            self.low = Some(bound);
        }
        narrows
    }

    fn lower(&mut self, bound: Bound) {
        if self.high.as_ref().is_none_or(|high| bound.end() < high.end()) {
            self.high = Some(bound);
        }
    }

    /// If only values equal to the bound's are left, CouchDB shows its value for both ends: `1.0` may replace `1`.
    fn close(&mut self, bound: &Bound) {
        if let (Some(low), Some(high)) = (&mut self.low, &mut self.high)
            && low.begin() == bound.begin()
            && high.end() == bound.end()
        {
            low.shown = bound.shown.clone();
            high.shown = bound.shown.clone();
        }
    }
}

impl Bound {
    /// The position where a range with this low end begins: the key, and whether [`ABOVE`] comes after it.
    ///
    /// No key is a prefix of another, or has [`ABOVE`] where another one ends. So the pairs compare like the positions.
    fn begin(&self) -> (&[u8], bool) {
        (&self.key, self.kind == Kind::Exclusive)
    }

    /// The position at which a range ends with this high end.
    fn end(&self) -> (&[u8], bool) {
        (&self.key, self.kind == Kind::Inclusive)
    }
}

fn as_json(text: &str) -> JsonText {
    let mut json = Vec::new();
    JsonWriter::new(&mut json).str(text);
    JsonText::from_normalised(json).expect("a string that was just written")
}
