//! The range of rows that a query reads.

use std::cmp::Ordering;

use json::JsonText;

use super::request::{Position, ViewRequest};
use super::rows::{Place, RowOrder, at_id, at_key, at_prefix, cut, is_cut};
use crate::keys::end_of;

/// A bound of a range.
#[derive(Clone, Debug)]
struct Bound {
    key: Vec<u8>,
    id: Option<String>,
}

impl Bound {
    fn new(key: &JsonText, id: Option<&String>, order: &RowOrder) -> Bound {
        Bound { key: order.whole_key(key.root()), id: id.cloned() }
    }

    /// The start of the rows at the bound. All rows with the same cut key are there.
    fn place(&self) -> Vec<u8> {
        match &self.id {
            Some(id) if !is_cut(&self.key) => at_id(&self.key, id),
            _ => at_key(&cut(self.key.clone())),
        }
    }

    /// How a row compares with the bound.
    fn compare(&self, position: &Position) -> Ordering {
        position.key.cmp(&self.key).then_with(|| match &self.id {
            Some(id) => position.id.as_str().cmp(id.as_str()),
            None => Ordering::Equal,
        })
    }
}

/// A range of rows.
#[derive(Clone, Debug)]
pub(super) struct Window {
    start: Option<Bound>,
    end: Option<Bound>,
    /// The start of all whole keys.
    prefix: Vec<u8>,
    inclusive_end: bool,
    pub(super) descending: bool,
    /// The places of the range. At either end, there may be rows with cut keys that do not belong to the range.
    pub(super) low: Vec<u8>,
    pub(super) high: Vec<u8>,
}

impl Window {
    /// The range of a request, or of one of its keys.
    pub(super) fn of(request: &ViewRequest, key: Option<&JsonText>, order: &RowOrder) -> Window {
        let bound = |all: &Option<JsonText>, id: &Option<String>| {
            key.or(all.as_ref()).map(|key| Bound::new(key, id.as_ref(), order))
        };
        let start = bound(&request.start, &request.start_id);
        let end = bound(&request.end, &request.end_id);
        let (descending, inclusive_end) = (request.descending, request.inclusive_end);
        let prefix = order.prefix.clone();
        let (mut low, mut high) = (Vec::new(), vec![0xff]);
        if !prefix.is_empty() {
            low = at_prefix(&cut(prefix.clone()));
            high = end_of(&low);
        }
        for (bound, is_start) in [(&start, true), (&end, false)] {
            let Some(bound) = bound else { continue };
            let place = bound.place();
            let is_inside = is_start || inclusive_end || is_cut(&bound.key);
            if is_start != descending {
                low = if is_inside { place } else { end_of(&place) };
            } else {
                high = if is_inside { end_of(&place) } else { place };
            }
        }
        Window { start, end, prefix, inclusive_end, descending, low, high }
    }

    /// Whether a row is in the range.
    pub(super) fn has(&self, position: &Position) -> bool {
        let ahead = |order: Ordering| if self.descending { order.reverse() } else { order };
        let after_start = self.start.as_ref().is_none_or(|start| ahead(start.compare(position)).is_ge());
        let before_end = self.end.as_ref().is_none_or(|end| match ahead(end.compare(position)) {
            Ordering::Less => true,
            Ordering::Equal => self.inclusive_end,
            Ordering::Greater => false,
        });
        after_start && before_end && position.key.starts_with(&self.prefix)
    }

    /// The cut keys at its ends, whose rows may not all belong to it.
    pub(super) fn cut_ends(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        // Several partitions may start with the same bytes, if their names are longer than keys.
        let ends = [&self.start, &self.end].into_iter().flatten().map(|bound| &bound.key).chain([&self.prefix]);
        ends.filter(|key| is_cut(key)).map(|key| cut(key.clone()))
    }

    /// The rest of the range after a row.
    pub(super) fn go_on_after(&mut self, after: &Position) {
        let place = match (is_cut(&after.key), self.descending) {
            // All rows with this cut key are read again.
            (true, _) => at_key(&cut(after.key.clone())),
            // All rows of this document with this key are read again.
            (false, true) => at_id(&after.key, &after.id),
            (false, false) => {
                let mut place = Place { key: after.key.clone(), id: after.id.clone(), emit: after.emit }.write();
                place.push(0);
                place
            }
        };
        match self.descending {
            true => self.high = self.high.clone().min(end_of(&place)),
            false => self.low = self.low.clone().max(place),
        }
    }

    /// The rest of the range from a place on.
    pub(super) fn beginning_at(mut self, place: &[u8]) -> Window {
        match self.descending {
            true => self.high = end_of(place),
            false => self.low = place.to_vec(),
        }
        self
    }

    /// Whether it cannot contain any row.
    pub(super) fn is_empty(&self) -> bool {
        self.low >= self.high
    }
}
