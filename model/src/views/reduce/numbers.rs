//! `_sum` and `_stats`.
//!
//! Integers are added exactly as long as they fit into 128 bits. All other numbers are added as doubles.

use std::cmp::Ordering;
use std::collections::HashMap;

use json::{JsonKind, JsonRef, JsonText, JsonWriter};

use super::super::MAX_VALUE;
use super::super::errors::FunctionError;
use super::super::group::Reduced;
use super::result::{overflow, text_of};

/// Maximum depth of objects that are summed member by member.
const MAX_DEPTH: usize = 64;

/// Maximum size of a value that an error quotes.
const MAX_QUOTED: usize = 1_000;

const SUM_ERROR: &str = "The _sum function requires that map values be numbers, arrays of numbers, or objects. Objects \
    cannot be mixed with other data structures. Objects can be arbitrarily nested, provided that the values for all \
    fields are themselves numbers, arrays of numbers, or objects.";

/// A number.
#[derive(Clone, Copy, Debug)]
enum Number {
    Integer(i128),
    Float(f64),
}

impl Number {
    fn of(value: JsonRef<'_>) -> Option<Number> {
        match value.kind() {
            JsonKind::Integer | JsonKind::Float => match value.text().parse() {
                Ok(integer) => Some(Number::Integer(integer)),
                Err(_) => value.as_f64().map(Number::Float),
            },
            _ => None,
        }
    }

    fn float(self) -> f64 {
        match self {
            Number::Integer(value) => value as f64,
            Number::Float(value) => value,
        }
    }

    fn combine(
        self,
        other: Number,
        integers: impl Fn(i128, i128) -> Option<i128>,
        floats: impl Fn(f64, f64) -> f64,
    ) -> Number {
        if let (Number::Integer(a), Number::Integer(b)) = (self, other)
            && let Some(result) = integers(a, b)
        {
            return Number::Integer(result);
        }
        // The largest double if the sum is beyond it: JSON has no infinity.
        Number::Float(floats(self.float(), other.float()).clamp(f64::MIN, f64::MAX))
    }

    fn plus(self, other: Number) -> Number {
        self.combine(other, i128::checked_add, |a, b| a + b)
    }

    fn square(self) -> Number {
        self.combine(self, i128::checked_mul, |a, b| a * b)
    }

    fn compare(self, other: Number) -> Ordering {
        match (self, other) {
            (Number::Integer(a), Number::Integer(b)) => a.cmp(&b),
            (a, b) => a.float().total_cmp(&b.float()),
        }
    }

    fn write(self, json: &mut JsonWriter<'_>) {
        match self {
            Number::Integer(value) => match i64::try_from(value) {
                Ok(value) => {
                    json.i64(value);
                }
                Err(_) => {
                    if let Some(text) = JsonText::from_normalised(value.to_string()) {
                        json.text(&text);
                    }
                }
            },
            Number::Float(value) => {
                json.f64(value);
            }
        }
    }
}

/// A sum.
#[derive(Clone, Debug)]
enum Sum {
    Number(Number),
    List(Vec<Number>),
    Object(Members),
}

/// The members of an object: in the order of the value if there is only one, and otherwise, when written, by name.
#[derive(Clone, Debug, Default)]
struct Members {
    sums: Vec<(String, Sum)>,
    places: HashMap<String, usize>,
    is_sum: bool,
}

impl Members {
    fn add(&mut self, name: String, value: Sum) -> Option<()> {
        match self.places.get(&name) {
            Some(at) => {
                let had = &mut self.sums.get_mut(*at)?.1;
                *had = std::mem::replace(had, Sum::List(Vec::new())).plus(value)?;
            }
            None => {
                self.places.insert(name.clone(), self.sums.len());
                self.sums.push((name, value));
            }
        }
        Some(())
    }
}

impl Sum {
    fn of(value: JsonRef<'_>, depth: usize) -> Option<Sum> {
        match value.kind() {
            JsonKind::Integer | JsonKind::Float => Number::of(value).map(Sum::Number),
            JsonKind::Array => value.elements().map(Number::of).collect::<Option<_>>().map(Sum::List),
            JsonKind::Object if depth < MAX_DEPTH => {
                let mut members = Members::default();
                for (name, value) in value.members() {
                    members.add(name.into_owned(), Sum::of(value, depth + 1)?)?;
                }
                Some(Sum::Object(members))
            }
            _ => None,
        }
    }

    fn plus(self, other: Sum) -> Option<Sum> {
        Some(match (self, other) {
            (Sum::Number(a), Sum::Number(b)) => Sum::Number(a.plus(b)),
            (Sum::Number(a), Sum::List(b)) => Sum::List(lists(vec![a], b)),
            (Sum::List(a), Sum::Number(b)) => Sum::List(lists(a, vec![b])),
            (Sum::List(a), Sum::List(b)) => Sum::List(lists(a, b)),
            (Sum::Object(mut a), Sum::Object(b)) => {
                a.is_sum = true;
                for (name, value) in b.sums {
                    a.add(name, value)?;
                }
                Sum::Object(a)
            }
            _ => return None,
        })
    }

    /// The minimum number of bytes that it takes.
    fn len(&self) -> usize {
        match self {
            Sum::Number(_) => 1,
            Sum::List(numbers) => 2 * numbers.len() + 1,
            Sum::Object(members) => {
                1 + members.sums.iter().map(|(name, sum)| name.len() + 4 + sum.len()).sum::<usize>()
            }
        }
    }

    fn write(&self, json: &mut JsonWriter<'_>) {
        match self {
            Sum::Number(number) => number.write(json),
            Sum::List(numbers) => {
                json.begin_array();
                numbers.iter().for_each(|number| number.write(json));
                json.end_array();
            }
            Sum::Object(members) => {
                let mut sums: Vec<_> = members.sums.iter().collect();
                if members.is_sum {
                    sums.sort_by_key(|(name, _)| name);
                }
                json.begin_object();
                for (name, sum) in sums {
                    sum.write(json.name(name));
                }
                json.end_object();
            }
        }
    }
}

/// The sums of two lists, element by element. The rest of the longer one is kept.
fn lists(a: Vec<Number>, b: Vec<Number>) -> Vec<Number> {
    let (mut long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    long.iter_mut().zip(short).for_each(|(sum, number)| *sum = sum.plus(number));
    long
}

/// As in CouchDB, a value that cannot be added turns the sum into an object with the error. A sum that grows beyond the
/// size of a node is an error at once, since each further value would be added to all of it.
pub(super) fn sum(values: Vec<&JsonText>) -> Reduced {
    // An object alone is its own sum, whatever it holds.
    if let [only] = values.as_slice()
        && only.root().is_object()
    {
        return Ok((*only).clone());
    }
    let (count, mut total) = (values.len(), None);
    for value in values {
        if value.get("error").and_then(JsonRef::as_str).as_deref() == Some("builtin_reduce_error") {
            return Ok(value.clone());
        }
        let plus = Sum::of(value.root(), 0).and_then(|value| match total.take() {
            Some(total) => Sum::plus(total, value),
            // A sum starts with 0. An object replaces it; a list has it as its first number.
            None => match value {
                Sum::List(numbers) if numbers.is_empty() => Some(Sum::List(vec![Number::Integer(0)])),
                value => Some(value),
            },
        });
        match plus {
            Some(sum) if count > 1 && sum.len() > MAX_VALUE => return Err(overflow()),
            Some(sum) => total = Some(sum),
            None => {
                return Ok(text_of(|json| {
                    json.begin_object().name("error").str("builtin_reduce_error").name("reason").str(SUM_ERROR);
                    match value.len() <= MAX_QUOTED {
                        true => json.name("caused_by").text(value),
                        false => json.name("caused_by").null(),
                    };
                    json.end_object();
                }));
            }
        }
    }
    Ok(text_of(|json| total.unwrap_or(Sum::Number(Number::Integer(0))).write(json)))
}

/// Statistics of numbers.
#[derive(Clone, Copy, Debug)]
struct Stats {
    sum: Number,
    count: Number,
    min: Number,
    max: Number,
    sumsqr: Number,
}

impl Stats {
    fn of(value: JsonRef<'_>) -> Option<Stats> {
        if let Some(number) = Number::of(value) {
            let (sum, min, max) = (number, number, number);
            return Some(Stats { sum, count: Number::Integer(1), min, max, sumsqr: number.square() });
        }
        let member = |name| value.get(name).and_then(Number::of);
        let (sum, count, sumsqr) = (member("sum")?, member("count")?, member("sumsqr")?);
        Some(Stats { sum, count, min: member("min")?, max: member("max")?, sumsqr })
    }

    fn plus(self, other: Stats) -> Stats {
        let (min, max) = (self.min, self.max);
        Stats {
            sum: self.sum.plus(other.sum),
            count: self.count.plus(other.count),
            min: if other.min.compare(min).is_lt() { other.min } else { min },
            max: if other.max.compare(max).is_gt() { other.max } else { max },
            sumsqr: self.sumsqr.plus(other.sumsqr),
        }
    }

    fn write(self, json: &mut JsonWriter<'_>) {
        json.begin_object();
        let members =
            [("sum", self.sum), ("count", self.count), ("min", self.min), ("max", self.max), ("sumsqr", self.sumsqr)];
        for (name, number) in members {
            number.write(json.name(name));
        }
        json.end_object();
    }
}

pub(super) fn stats(values: Vec<&JsonText>) -> Reduced {
    let mut lists: Option<(bool, Vec<Stats>)> = None;
    for value in values {
        let is_list = value.root().is_array();
        let read = match is_list {
            true => value.root().elements().map(Stats::of).collect::<Option<Vec<Stats>>>(),
            false => Stats::of(value.root()).map(|stats| vec![stats]),
        };
        let plus = read.and_then(|read| match lists.take() {
            None => Some((is_list, read)),
            Some((was_list, total)) if was_list == is_list && total.len() == read.len() => {
                Some((is_list, total.into_iter().zip(read).map(|(a, b)| a.plus(b)).collect()))
            }
            Some(_) => None,
        });
        lists = Some(plus.ok_or_else(|| {
            let quoted = if value.len() <= MAX_QUOTED { value.as_str() } else { "a long value" };
            FunctionError::new("invalid_value", format!("non-numeric _stats input: {quoted}"))
        })?);
    }
    let Some((is_list, total)) = lists else {
        return Err(FunctionError::new("invalid_value", "_stats without values"));
    };
    Ok(text_of(|json| {
        if is_list {
            json.begin_array();
        }
        total.into_iter().for_each(|stats| stats.write(json));
        if is_list {
            json.end_array();
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::super::super::group::{Reduce, Reduction};
    use super::*;

    fn reduced(function: Reduce, values: &[&str]) -> Result<String, String> {
        let values = values.iter().map(|value| JsonText::parse(value.as_bytes()).unwrap()).collect();
        let reduced = super::super::reduce(function, &Reduction::Values(values));
        reduced.map(|value| value.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn sums_are_couchdbs() {
        for (values, expected) in [
            (&["1", "2", "-5"][..], "-2"),
            (&["9007199254740993", "1"], "9007199254740994"),
            (&["170141183460469231731687303715884105727", "1"], "1.7014118346046923e+38"),
            (&["[1,2]", "[3]", "4"], "[8,2]"),
            (&["1", "[1,1]"], "[2,1]"),
            (&[r#"{"a":1,"b":{"c":2}}"#, r#"{"b":{"c":3,"d":[1]},"e":4}"#], r#"{"a":1,"b":{"c":5,"d":[1]},"e":4}"#),
            (&[r#"{"b":1,"a":{"d":1,"c":2}}"#, r#"{"a":{"d":1}}"#], r#"{"a":{"c":2,"d":2},"b":1}"#),
            (&[r#"{"b":1,"a":{"d":1,"c":2}}"#], r#"{"b":1,"a":{"d":1,"c":2}}"#),
            (&[r#"{"a":"x"}"#], r#"{"a":"x"}"#),
            (&["[]"], "[0]"),
            (&["[]", "[]"], "[0]"),
            (&[], "0"),
        ] {
            assert_eq!(reduced(Reduce::Sum, values).unwrap(), expected, "{values:?}");
        }
        assert_eq!(reduced(Reduce::Sum, &["0.5", "1"]).unwrap(), "1.5");
        for bad in [&["1", "null"][..], &["1", r#"{"a":1}"#], &["[1,\"x\"]"], &["true"]] {
            let error = reduced(Reduce::Sum, bad).unwrap();
            assert!(error.starts_with(r#"{"error":"builtin_reduce_error","reason":"The _sum"#), "{error}");
            assert_eq!(reduced(Reduce::Sum, &["1", &error]).unwrap(), error, "reduced again");
        }
        let deep = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
        assert!(reduced(Reduce::Sum, &["1", &deep]).unwrap().ends_with(r#""caused_by":null}"#));
    }

    #[test]
    fn sums_that_no_node_can_hold_are_errors() {
        let wide = |from: usize| {
            let members: Vec<String> = (from..from + 6_000).map(|n| format!("\"{n:05}\":1")).collect();
            format!("{{{}}}", members.join(","))
        };
        let (a, b) = (wide(0), wide(6_000));
        assert_eq!(reduced(Reduce::Sum, &[&a, &a]).unwrap(), a.replace(":1", ":2"));
        assert_eq!(reduced(Reduce::Sum, &[&a, &b]).unwrap_err(), overflow().to_string());
        let list = format!("[{}1]", "1,".repeat(MAX_VALUE));
        assert_eq!(reduced(Reduce::Sum, &[&list]).unwrap(), list, "of one row");
        assert!(reduced(Reduce::Sum, &[&list, "1"]).is_err());
    }

    #[test]
    fn stats_are_couchdbs() {
        let of = |values: &[&str]| reduced(Reduce::Stats, values);
        let all = r#"{"sum":6,"count":3,"min":-1,"max":5,"sumsqr":30}"#;
        assert_eq!(of(&["5", "-1", "2"]).unwrap(), all);
        let part = of(&["-1", "2"]).unwrap();
        assert_eq!(of(&["5", &part]).unwrap(), all, "numbers and earlier results");
        let lists = of(&["[1,2]", "[3,4]"]).unwrap();
        assert!(lists.starts_with(r#"[{"sum":4,"count":2,"min":1,"max":3,"sumsqr":10},"#), "{lists}");
        assert_eq!(of(&["1", "\"x\""]).unwrap_err(), "invalid_value: non-numeric _stats input: \"x\"");
        assert!(of(&["1", "[1]"]).is_err() && of(&["{}"]).is_err());
    }
}
