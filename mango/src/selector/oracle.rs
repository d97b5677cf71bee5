//! An oracle: CouchDB's three passes over a selector and its matching over trees, slow and like `mango_selector.erl`.
//! Random selectors and documents are given to both.

use json::JsonText;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::Selector;
use crate::collate::Order;

#[derive(Clone, Debug)]
enum Tree {
    /// `$and`, `$or` and `$nor`.
    Many(&'static str, Vec<Tree>),
    Not(Box<Tree>),
    /// `$elemMatch` and similar operators.
    Inner(String, Box<Tree>),
    Term(String, Value),
    Field(Vec<String>, Box<Tree>),
}

use Tree::{Field, Inner, Many, Not, Term};

fn combination(name: &str) -> Option<&'static str> {
    ["$and", "$or", "$nor"].into_iter().find(|known| *known == name)
}

fn norm_ops(value: &Value) -> Tree {
    let Some(members) = value.as_object().filter(|members| !members.is_empty()) else {
        return Term("$eq".into(), value.clone());
    };
    if members.len() > 1 {
        return Many("$and", members.iter().map(|(name, value)| norm_ops(&json!({ name: value }))).collect());
    }
    let (name, value) = members.iter().next().unwrap();
    match (name.as_str(), combination(name)) {
        (_, Some(name)) => Many(name, value.as_array().unwrap().iter().map(norm_ops).collect()),
        ("$not", _) => Not(Box::new(norm_ops(value))),
        ("$elemMatch" | "$allMatch" | "$keyMapMatch", _) => Inner(name.clone(), Box::new(norm_ops(value))),
        (operator, _) if operator.starts_with('$') => Term(name.clone(), value.clone()),
        (field, _) => Field(field.split('.').map(str::to_owned).collect(), Box::new(norm_ops(value))),
    }
}

fn norm_fields(tree: Tree, path: &[String]) -> Tree {
    let at = |condition| Field(path.to_vec(), Box::new(condition));
    match tree {
        Many(name, parts) => Many(name, parts.into_iter().map(|part| norm_fields(part, path)).collect()),
        Not(part) => Not(Box::new(norm_fields(*part, path))),
        Inner(name, part) => at(Inner(name, Box::new(norm_fields(*part, &[])))),
        Term(..) => at(tree),
        Field(names, part) => norm_fields(*part, &[path, &names[..]].concat()),
    }
}

fn norm_negations(tree: Tree) -> Tree {
    match tree {
        Not(part) => negate(*part),
        Many("$nor", parts) => Many("$and", parts.into_iter().map(negate).collect()),
        Many(name, parts) => Many(name, parts.into_iter().map(norm_negations).collect()),
        other => other,
    }
}

fn negate(tree: Tree) -> Tree {
    match tree {
        Not(part) => norm_negations(*part),
        Many("$nor", parts) => Many("$or", parts.into_iter().map(norm_negations).collect()),
        Many("$and", parts) => Many("$or", parts.into_iter().map(negate).collect()),
        Many(_, parts) => Many("$and", parts.into_iter().map(negate).collect()),
        Term(name, value) => {
            let opposite = match name.as_str() {
                "$lt" => "$gte",
                "$lte" => "$gt",
                "$eq" => "$ne",
                "$ne" => "$eq",
                "$gte" => "$lt",
                "$gt" => "$lte",
                "$in" => "$nin",
                "$nin" => "$in",
                "$exists" => return Term(name, json!(!value.as_bool().unwrap())),
                _ => return Not(Box::new(Term(name, value))),
            };
            Term(opposite.into(), value)
        }
        Inner(..) => Not(Box::new(tree)),
        Field(names, part) => Field(names, Box::new(negate(*part))),
    }
}

fn compare(order: Order, a: &Value, b: &Value) -> i32 {
    order.compare(text(a).root(), text(b).root()) as i32
}

fn is_match(tree: &Tree, value: &Value, order: Order) -> bool {
    match tree {
        Many(_, parts) if parts.is_empty() => true,
        Many("$and", parts) => parts.iter().all(|part| is_match(part, value, order)),
        Many(_, parts) => parts.iter().any(|part| is_match(part, value, order)),
        Not(part) => !is_match(part, value, order),
        Inner(name, part) => match (name.as_str(), value) {
            ("$elemMatch", Value::Array(values)) => values.iter().any(|value| is_match(part, value, order)),
            ("$allMatch", Value::Array(values)) => {
                !values.is_empty() && values.iter().all(|value| is_match(part, value, order))
            }
            ("$keyMapMatch", Value::Object(members)) => members.keys().any(|key| is_match(part, &json!(key), order)),
            _ => false,
        },
        Field(path, condition) => {
            let mut found = value;
            for name in path {
                let next = match found {
                    Value::Object(members) => members.get(name).ok_or(true),
                    Value::Array(values) => name.parse::<usize>().ok().and_then(|at| values.get(at)).ok_or(false),
                    _ => Err(false),
                };
                match next {
                    Ok(next) => found = next,
                    // A missing member, or a step that is impossible.
                    Err(is_absent) => {
                        let wants_none =
                            matches!(&**condition, Term(name, value) if name == "$exists" && *value == json!(false));
                        return is_absent && wants_none;
                    }
                }
            }
            is_match(condition, found, if path == &["_id"] { Order::Raw } else { order })
        }
        Term(name, argument) => {
            let is = |value: &Value, argument: &Value| compare(order, value, argument) == 0;
            let is_in = || {
                let arguments = argument.as_array().unwrap();
                match value {
                    Value::Array(values) => arguments.iter().any(|one| values.iter().any(|value| is(value, one))),
                    value => arguments.iter().any(|one| is(value, one)),
                }
            };
            match name.as_str() {
                "$lt" => compare(order, value, argument) < 0,
                "$lte" => compare(order, value, argument) <= 0,
                "$eq" => compare(order, value, argument) == 0,
                "$ne" => compare(order, value, argument) != 0,
                "$gte" => compare(order, value, argument) >= 0,
                "$gt" => compare(order, value, argument) > 0,
                "$exists" => argument.as_bool().unwrap(),
                "$in" => is_in(),
                "$nin" => !is_in(),
                "$size" => value.as_array().is_some_and(|values| json!(values.len()) == *argument),
                "$type" => {
                    let kind = match value {
                        Value::Null => "null",
                        Value::Bool(_) => "boolean",
                        Value::Number(_) => "number",
                        Value::String(_) => "string",
                        Value::Array(_) => "array",
                        Value::Object(_) => "object",
                    };
                    argument == kind
                }
                "$all" => match (argument.as_array().unwrap().as_slice(), value) {
                    ([], _) => false,
                    (arguments, Value::Array(values)) => {
                        // Trees of maps compare without the order of members, texts with it.
                        let has = |one: &Value| values.iter().any(|value| text(value) == text(one));
                        let is_all = matches!(arguments, [list @ Value::Array(_)] if equal(list, value));
                        arguments.iter().all(has) || is_all
                    }
                    _ => false,
                },
                "$mod" => match value.as_i64() {
                    Some(value) => value % argument[0].as_i64().unwrap() == argument[1].as_i64().unwrap(),
                    None => false,
                },
                other => panic!("{other} is not made here"),
            }
        }
    }
}

/// Erlang's `==`: numbers by value, the rest by text.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((one, a), (other, b))| one == other && equal(a, b))
        }
        _ => a == b,
    }
}

fn text(value: &Value) -> JsonText {
    JsonText::parse(value.to_string().as_bytes()).unwrap()
}

fn value(random: &mut StdRng, depth: usize) -> Value {
    let scalars = [
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(1.0),
        json!(-4),
        json!(2.5),
        json!(""),
        json!("a"),
        json!("A"),
        json!("b"),
        json!("\u{e9}"),
        json!("e\u{301}"),
        json!([]),
        json!({}),
    ];
    match random.random_range(0..if depth == 0 { 6 } else { 10 }) {
        0..6 => scalars[random.random_range(0..scalars.len())].clone(),
        6 | 7 => (0..random.random_range(0..3)).map(|_| value(random, depth - 1)).collect(),
        _ => {
            let members = (0..random.random_range(0..3)).map(|_| (name(random).to_owned(), value(random, depth - 1)));
            Value::Object(members.collect())
        }
    }
}

fn name(random: &mut StdRng) -> &'static str {
    ["a", "b", "_id", "0", "1"][random.random_range(0..5)]
}

/// A random selector. `inside` tells whether it is in `$elemMatch` or a similar operator, where CouchDB fails at
/// `$nor`.
fn selector(random: &mut StdRng, depth: usize, inside: bool) -> Value {
    let list = |random: &mut StdRng| {
        (0..random.random_range(0..3)).map(|_| selector(random, depth - 1, inside)).collect::<Value>()
    };
    let values = |random: &mut StdRng| (0..random.random_range(0..3)).map(|_| value(random, 1)).collect::<Value>();
    if depth == 0 || random.random_range(0..3) == 0 {
        let operators = [
            "$lt", "$lte", "$eq", "$ne", "$gte", "$gt", "$exists", "$type", "$in", "$nin", "$all", "$size", "$mod", "",
        ];
        let operator = operators[random.random_range(0..operators.len())];
        let argument = match operator {
            "" => return value(random, 0),
            "$exists" => json!(random.random::<bool>()),
            "$type" => json!(["null", "boolean", "number", "string", "array", "object"][random.random_range(0..6)]),
            "$in" | "$nin" | "$all" => values(random),
            "$size" => json!(random.random_range(0..3)),
            "$mod" => {
                let divisor = [2, 3, -3][random.random_range(0..3)];
                json!([divisor, random.random_range(-1..2)])
            }
            _ => value(random, 1),
        };
        return json!({ operator: argument });
    }
    match random.random_range(0..10) {
        0 => json!({"$and": list(random)}),
        1 => json!({"$or": list(random)}),
        2 if !inside => json!({"$nor": list(random)}),
        3 => match selector(random, depth - 1, inside) {
            part @ Value::Object(_) => json!({ "$not": part }),
            part => json!({"a": part}),
        },
        4 => {
            let operator = ["$elemMatch", "$allMatch", "$keyMapMatch"][random.random_range(0..3)];
            match selector(random, depth - 1, true) {
                part @ Value::Object(_) => json!({ operator: part }),
                part => json!({ operator: { "$eq": part } }),
            }
        }
        5 => json!({name(random): selector(random, depth - 1, inside), "b.a": selector(random, depth - 1, inside)}),
        6 => json!({format!("{}.{}", name(random), name(random)): selector(random, depth - 1, inside)}),
        _ => json!({name(random): selector(random, depth - 1, inside)}),
    }
}

#[test]
fn selectors_match_what_couchdbs_passes_match() {
    let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let seed: u64 = std::env::var("SEED").ok().map_or(since_1970.as_nanos() as u64, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let random = &mut StdRng::seed_from_u64(seed);
    let documents: Vec<Value> = (0..40)
        .map(|_| json!({"_id": "e\u{301}", "a": value(random, 2), "b": value(random, 2), "0": value(random, 1)}))
        .chain([json!({}), json!({"_id": "a"})])
        .collect();
    let (mut matched, mut shown) = (0, 0);
    for _ in 0..1_000 {
        let given = json!({name(random): selector(random, 4, false), "b": selector(random, 3, false)});
        // A nested empty object is a value and, as in CouchDB, not a selector.
        let Ok(ours) = Selector::parse(&text(&given)) else { panic!("SEED={seed}: {given}") };
        let theirs = norm_negations(norm_fields(norm_ops(&given), &[]));
        let json = ours.to_json();
        // The JSON that `_explain` shows can be parsed again.
        let again = Selector::parse(&json).ok();
        shown += usize::from(again.is_some());
        // So can that of definitions, which has no empty names for elements. Both mean the same.
        let bare = Selector::parse(&ours.to_bare_json()).ok();
        let normal = |selector: &Option<Selector>| selector.as_ref().map(|selector| selector.to_json().to_string());
        assert_eq!(normal(&bare), normal(&again), "SEED={seed}: {given} as {json}");
        for document in &documents {
            let found = ours.matches(text(document).root()).unwrap();
            assert_eq!(found, is_match(&theirs, document, Order::Collated), "SEED={seed}: {given} over {document}");
            if let Some(again) = &again {
                assert_eq!(
                    again.matches(text(document).root()).unwrap(),
                    found,
                    "SEED={seed}: {given} as {json} over {document}"
                );
            }
            matched += usize::from(found);
        }
    }
    println!("{matched} matched, {shown} shown again");
    assert!(matched > 500 && shown > 300, "SEED={seed}: {matched} matched, {shown} shown");
}
