//! Random hostile queries. Each is refused, or matches the same after it is written and read again.
//!
//! `SEED` and `COUNT` choose others: `COUNT=1000000 cargo test --release -p couch-layer-mango --test hostile`.

use json::JsonText;
use mango::{Query, Selector};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const OPERATORS: &[&str] = &[
    "$lt",
    "$lte",
    "$eq",
    "$ne",
    "$gte",
    "$gt",
    "$exists",
    "$type",
    "$in",
    "$nin",
    "$all",
    "$size",
    "$mod",
    "$regex",
    "$beginsWith",
    "$elemMatch",
    "$allMatch",
    "$keyMapMatch",
    "$and",
    "$or",
    "$nor",
    "$not",
    "$text",
    "$",
    "$eq.a",
];

const NAMES: &[&str] =
    &["a", "a.b", "list.0", "_id", "\\\\.", "a\\\\.b", ".", "..", "", "list.18446744073709551616", "\\u0000"];

const SCALARS: &[&str] = &[
    "null",
    "true",
    "0",
    "-0.0",
    "1e400",
    "-1e-400",
    "123456789012345678901234567890",
    "9007199254740993",
    "\"\"",
    "\"a\"",
    "\"\\ud800\"",
    "\"\\u0000\"",
    "\"e\\u0301\"",
    "[]",
    "{}",
];

const REGEXES: &[&str] = &[
    "(a+)+$",
    "(a|a)*b",
    "((a{1,100}){1,100}){1,100}",
    "a{1000000}",
    "[^\\\\p{L}]",
    "(?i)[\\\\w\\\\W]*x",
    "(",
    "(?=a)",
    "\\\\1",
    ".*.*.*.*=.*",
    "(?x) a # b",
    "\\\\b\\\\B",
];

/// A value as JSON text.
fn value(random: &mut StdRng, depth: usize) -> String {
    let some = |random: &mut StdRng| random.random_range(0..4);
    match random.random_range(0..if depth == 0 { 8 } else { 12 }) {
        0..6 => pick(random, SCALARS).to_owned(),
        6 => format!("\"{}\"", pick(random, REGEXES)),
        7 => format!("\"{}\"", "a".repeat(random.random_range(0..30_000))),
        8 | 9 => {
            let values: Vec<String> = (0..some(random)).map(|_| value(random, depth - 1)).collect();
            format!("[{}]", values.join(","))
        }
        _ => selector(random, depth - 1),
    }
}

fn pick<'c>(random: &mut StdRng, choices: &[&'c str]) -> &'c str {
    choices[random.random_range(0..choices.len())]
}

fn list(random: &mut StdRng, count: usize, depth: usize) -> String {
    let parts: Vec<String> = (0..count).map(|_| selector(random, depth)).collect();
    format!("[{}]", parts.join(","))
}

fn selector(random: &mut StdRng, depth: usize) -> String {
    let count = if random.random_range(0..4) == 0 { 2 } else { 1 };
    let members: Vec<String> = (0..count)
        .map(|_| {
            let name = if random.random::<bool>() { pick(random, OPERATORS) } else { pick(random, NAMES) };
            let argument = match (name, random.random_range(0..200)) {
                // A few are wide, long or deep at the top only: deeper ones would never end.
                ("$and" | "$or" | "$nor", 0) if depth > 0 => format!("[{}{{}}]", "{\"a\":1},".repeat(12_000)),
                (_, 1) => format!("{}{{}}{}", "{\"$not\":".repeat(2_000), "}".repeat(2_000)),
                (_, 2) => format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)),
                ("$in" | "$nin" | "$all", 3) => format!("[{}0]", "\"a\",".repeat(20_000)),
                ("$regex", 4..150) => format!("\"{}\"", pick(random, REGEXES)),
                ("$and" | "$or" | "$nor", 4..150) if depth > 0 => {
                    let count = random.random_range(0..4);
                    list(random, count, depth - 1)
                }
                (_, 4..150) if depth > 0 => selector(random, depth - 1),
                _ => value(random, depth),
            };
            format!("\"{name}\":{argument}")
        })
        .collect();
    format!("{{{}}}", members.join(","))
}

/// Changes a few bytes.
fn spoil(random: &mut StdRng, text: String) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    if random.random_range(0..10) == 0 {
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..bytes.len());
            bytes[at] =
                if random.random::<bool>() { random.random() } else { b"{}[]\",:\\$.0a"[random.random_range(0..12)] };
        }
    }
    bytes
}

fn documents() -> Vec<JsonText> {
    let long = format!(r#"{{"_id":"b","a":"{}b","list":[{}0]}}"#, "a".repeat(5_000), "1,".repeat(2_000));
    let deep = format!(r#"{{"_id":"c","a":{}1{}}}"#, r#"{"a":["#.repeat(3_000), "]}".repeat(3_000));
    let plain = r#"{"_id":"a","a":{"b":[1,"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac",{"a":null}]},"list":["a",2.5]}"#;
    ["{}", plain, &long, &deep].map(|text| JsonText::parse(text.as_bytes()).unwrap()).to_vec()
}

#[test]
fn no_query_does_harm() {
    let number = |name: &str, default: u64| std::env::var(name).ok().map_or(default, |text| text.parse().unwrap());
    let (seed, count) = (number("SEED", 20_261_123), number("COUNT", 1_500));
    println!("SEED={seed} COUNT={count}");
    let documents = documents();
    let (mut parsed, mut matched) = (0, 0);
    for turn in 0..count {
        // Each turn has its own seed, so that one can be repeated.
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(turn));
        let depth = random.random_range(0..6);
        let text = selector(&mut random, depth);
        let text = spoil(&mut random, text);
        if std::env::var_os("SHOW").is_some() {
            println!("turn {turn}: {}", String::from_utf8_lossy(&text));
        }
        let Ok(given) = JsonText::parse(&text) else { continue };
        let query = [br#"{"selector":"#, given.as_bytes(), br#","sort":["#, given.as_bytes(), b"]}"].concat();
        if let Err(error) = JsonText::parse(&query).map(|query| Query::parse(&query)).unwrap() {
            assert!(error.to_string().len() < 100_000 + given.len(), "SEED={} {error}", seed + turn);
        }
        let Ok(selector) = Selector::parse(&given) else { continue };
        parsed += 1;
        let again = Selector::parse(&selector.to_json());
        for document in &documents {
            let found = selector.matches(document.root()).unwrap();
            matched += u64::from(found);
            if let Ok(again) = &again {
                assert_eq!(again.matches(document.root()).unwrap(), found, "SEED={} {given}", seed + turn);
            }
        }
    }
    println!("{parsed} of {count} can be used, {matched} matches");
    assert!(parsed * 20 > count && matched > 0 || count < 100, "{parsed} can be used, {matched} matches");
}
