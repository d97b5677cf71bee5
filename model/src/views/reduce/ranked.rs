//! `_top_N` and `_bottom_N`, the greatest and least values, and `_first` and `_last`, the values of the outermost rows.
//!
//! As in CouchDB, values that collate equal count once; the first of them is kept.

use std::collections::BTreeMap;

use json::{JsonRef, JsonText};

use super::super::errors::FunctionError;
use super::super::group::{ReduceRow, Reduced, Reduction};
use super::result::{elements, text_of};

/// The greatest of these values, greatest first, or the least, least first.
pub(super) fn most(values: impl Iterator<Item = JsonText>, count: u8, is_top: bool) -> JsonText {
    let mut kept: BTreeMap<Vec<u8>, JsonText> = BTreeMap::new();
    for value in values {
        kept.entry(order(value.root())).or_insert(value);
        if kept.len() > usize::from(count) {
            match is_top {
                true => kept.pop_first(),
                false => kept.pop_last(),
            };
        }
    }
    let mut values: Vec<JsonText> = kept.into_values().collect();
    if is_top {
        values.reverse();
    }
    text_of(|json| {
        json.begin_array();
        for value in &values {
            json.text(value);
        }
        json.end_array();
    })
}

/// The first or the last row by key and document, as `[key, id, value]`. Nodes may have rows with cut keys in another
/// order.
pub(super) fn outermost(reduction: &Reduction, is_first: bool) -> Reduced {
    let rows: Vec<ReduceRow> = match reduction {
        Reduction::Rows(rows) => rows.clone(),
        Reduction::Values(values) => values.iter().filter_map(read).collect(),
    };
    let place = |row: &ReduceRow| (order(row.key.root()), row.id.clone());
    // Among equal ones, the first or the last.
    let row = match is_first {
        true => rows.into_iter().min_by_key(place),
        false => rows.into_iter().max_by_key(place),
    };
    let row = row.ok_or_else(|| FunctionError::new("invalid_value", "not a result of _first or _last"))?;
    Ok(text_of(|json| {
        json.begin_array().text(&row.key).str(&row.id).text(&row.value).end_array();
    }))
}

fn read(value: &JsonText) -> Option<ReduceRow> {
    let mut parts = elements(value);
    let (key, id, value) = (parts.next()?, parts.next()?, parts.next()?);
    Some(ReduceRow { key, id: id.root().as_str()?.into_owned(), value })
}

fn order(value: JsonRef<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    mango::append_key(&mut out, value);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> JsonText {
        JsonText::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_greatest_and_the_least_values_collate_and_count_once() {
        let values = ["3", "null", "\"a\"", "3.0", "[1]", "1", "{}", "1"].map(json);
        assert_eq!(most(values.iter().cloned(), 3, true).as_str(), "[{},[1],\"a\"]");
        assert_eq!(most(values.iter().cloned(), 3, false).as_str(), "[null,1,3]");
        assert_eq!(most(values.into_iter(), 100, false).as_str(), "[null,1,3,\"a\",[1],{}]");
    }

    #[test]
    fn the_outermost_rows_are_those_by_key_document_and_order() {
        let row =
            |key: &str, id: &str, value: &str| ReduceRow { key: json(key), id: id.to_owned(), value: json(value) };
        let rows = |rows: &[ReduceRow]| Reduction::Rows(rows.to_vec());
        let some = [row("2", "a", "1"), row("1", "b", "2"), row("1", "b", "3"), row("2", "a", "4"), row("1", "c", "5")];
        assert_eq!(outermost(&rows(&some), true).unwrap().as_str(), r#"[1,"b",2]"#);
        assert_eq!(outermost(&rows(&some), false).unwrap().as_str(), r#"[2,"a",4]"#);
        for cut in 1..some.len() {
            for is_first in [true, false] {
                let parts = [&some[..cut], &some[cut..]].map(|part| outermost(&rows(part), is_first).unwrap());
                let together = outermost(&Reduction::Values(parts.to_vec()), is_first);
                assert_eq!(together, outermost(&rows(&some), is_first), "{cut}");
            }
        }
        assert!(outermost(&Reduction::Values(vec![json("1")]), true).is_err());
    }
}
