//! Compares values in the order of Erlang's terms, in which CouchDB sorts the values of equal keys in a view:
//!
//! ```text
//!   numbers < false < null < true < objects < arrays < strings
//! ```
//!
//! Strings and names are compared by their bytes. Arrays and objects are compared one element or member after the
//! other, and a shorter prefix comes first.

use std::cmp::Ordering;

use json::{Event, JsonRef};

use super::number;

/// Compares two values as Erlang's terms. Does not recurse, so values may have any depth.
pub fn compare_terms(a: JsonRef<'_>, b: JsonRef<'_>) -> Ordering {
    // While everything so far is equal, both are at the same place.
    for (a, b) in a.events().zip(b.events()) {
        let order = rank(&a).cmp(&rank(&b)).then_with(|| match (a, b) {
            (Event::Name(a) | Event::Str(a), Event::Name(b) | Event::Str(b)) => a.to_cow().cmp(&b.to_cow()),
            (Event::Int(a), Event::Int(b)) => number::compare_integers(a, b),
            (Event::Int(a), Event::Float(b)) => number::compare_integer_with_float(a, b),
            (Event::Float(a), Event::Int(b)) => number::compare_integer_with_float(b, a).reverse(),
            (Event::Float(a), Event::Float(b)) => number::compare_floats(a, b),
            _ => Ordering::Equal,
        });
        if order.is_ne() {
            return order;
        }
    }
    Ordering::Equal
}

fn rank(event: &Event<'_>) -> u8 {
    match event {
        Event::EndObject | Event::EndArray => 0,
        Event::Int(_) | Event::Float(_) => 1,
        Event::Bool(false) => 2,
        Event::Null => 3,
        Event::Bool(true) => 4,
        Event::BeginObject => 5,
        Event::BeginArray => 6,
        Event::Name(_) | Event::Str(_) => 7,
    }
}
