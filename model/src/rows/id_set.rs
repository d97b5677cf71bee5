//! Sets of ids.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// A set of ids of documents, in little more memory than their text. Clones share it.
///
/// A client may name millions of short ids, and a set of strings would take twenty times as much.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct IdSet(Arc<Sorted>);

#[derive(Default, PartialEq, Eq)]
struct Sorted {
    /// The ids one after the other, sorted.
    text: String,
    /// The end of each id.
    ends: Vec<usize>,
}

impl Sorted {
    fn push(&mut self, id: &str) {
        self.text.push_str(id);
        self.ends.push(self.text.len());
    }

    fn get(&self, number: usize) -> &str {
        let start = number.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(number).and_then(|end| self.text.get(start..*end)).unwrap_or_default()
    }
}

impl IdSet {
    /// Number of ids.
    pub fn len(&self) -> usize {
        self.0.ends.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.ends.is_empty()
    }

    /// Whether this id is in the set.
    pub fn contains(&self, id: &str) -> bool {
        let mut range = 0..self.len();
        while !range.is_empty() {
            let middle = range.start + range.len() / 2;
            match id.cmp(self.0.get(middle)) {
                Ordering::Equal => return true,
                Ordering::Less => range.end = middle,
                Ordering::Greater => range.start = middle + 1,
            }
        }
        false
    }

    /// The ids, sorted.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|number| self.0.get(number))
    }
}

impl<S: AsRef<str>> FromIterator<S> for IdSet {
    fn from_iter<I: IntoIterator<Item = S>>(ids: I) -> Self {
        let mut given = Sorted::default();
        ids.into_iter().for_each(|id| given.push(id.as_ref()));
        let mut order: Vec<usize> = (0..given.ends.len()).collect();
        order.sort_unstable_by(|a, b| given.get(*a).cmp(given.get(*b)));
        order.dedup_by(|a, b| given.get(*a) == given.get(*b));
        let mut sorted = Sorted { text: String::new(), ends: Vec::with_capacity(order.len()) };
        order.into_iter().for_each(|number| sorted.push(given.get(number)));
        IdSet(Arc::new(sorted))
    }
}

impl From<Vec<String>> for IdSet {
    fn from(ids: Vec<String>) -> Self {
        ids.into_iter().collect()
    }
}

impl fmt::Debug for IdSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_each_id_once_and_no_other() {
        let set: IdSet = ["b", "", "é", "ab", "b", "a", "", "\0"].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), ["", "\0", "a", "ab", "b", "é"]);
        assert!(["", "\0", "a", "ab", "b", "é"].into_iter().all(|id| set.contains(id)));
        assert!(!["abc", "aa", "c", "bé", "\0\0"].into_iter().any(|id| set.contains(id)));
        assert_eq!((set.len(), set.is_empty()), (6, false));
        let none = IdSet::from(Vec::new());
        assert!(none.is_empty() && !none.contains(""));
        assert_eq!(none, IdSet::default());
    }
}
