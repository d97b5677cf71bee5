use std::cmp::Ordering;

use json::JsonText;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

fn text(json: &str) -> JsonText {
    JsonText::parse(json.as_bytes()).unwrap()
}

fn key(value: &JsonText) -> Vec<u8> {
    let mut key = Vec::new();
    append_key(&mut key, value.root());
    key
}

/// The list in CouchDB's manual ("View Collation"). Each value is greater than the one before.
const RISING: &[&str] = &[
    "null",
    "false",
    "true",
    "1",
    "2",
    "3.0",
    "4",
    r#""a""#,
    r#""A""#,
    r#""aa""#,
    r#""b""#,
    r#""B""#,
    r#""ba""#,
    r#""bb""#,
    r#""Ö""#,
    r#""z""#,
    r#"["a"]"#,
    r#"["b"]"#,
    r#"["b","c"]"#,
    r#"["b","c","a"]"#,
    r#"["b","d"]"#,
    r#"["b","d","e"]"#,
    r#"{"a":1}"#,
    r#"{"a":2}"#,
    r#"{"b":1}"#,
    r#"{"b":2}"#,
    r#"{"b":2,"a":1}"#,
    r#"{"b":2,"c":2}"#,
];

/// Numbers of all sizes and precisions. Each is greater than the one before.
const RISING_NUMBERS: &[&str] = &[
    "-1.7976931348623157e308",
    "-123456789012345678901234567891",
    "-123456789012345678901234567890",
    "-9007199254740993",
    "-9007199254740992",
    "-9007199254740991",
    "-2",
    "-1.5",
    "-5e-324",
    "0",
    "5e-324",
    "0.1",
    "0.30000000000000004",
    "1",
    "1.0000000000000002",
    "10",
    "9007199254740991",
    "9007199254740992.0",
    "9007199254740993",
    "9007199254740994.0",
    "100000000000000000000",
    "100000000000000000001",
    "123456789012345678901234567890",
    "1e300",
    "1.7976931348623157e308",
];

#[test]
fn values_stand_in_the_order_couchdb_documents_by_comparison_and_by_key() {
    for rising in [RISING, RISING_NUMBERS] {
        let values: Vec<JsonText> = rising.iter().map(|json| text(json)).collect();
        for (i, a) in values.iter().enumerate() {
            for (j, b) in values.iter().enumerate() {
                assert_eq!(compare(a.root(), b.root()), i.cmp(&j), "{a} against {b}");
                assert_eq!(key(a).cmp(&key(b)), i.cmp(&j), "the keys of {a} and {b}");
            }
        }
    }
}

fn term_key(value: &JsonText) -> Vec<u8> {
    let mut key = Vec::new();
    append_term_key(&mut key, value.root());
    key
}

/// As CouchDB 3.5 lists the values that a document emits with one key.
#[test]
fn terms_stand_in_erlangs_order() {
    let others = [
        "false",
        "null",
        "true",
        "{}",
        r#"{"":1}"#,
        r#"{"a":1}"#,
        r#"{"a":1,"b":0}"#,
        r#"{"a":2}"#,
        r#"{"a":null}"#,
        r#"{"a":{}}"#,
        r#"{"a":[]}"#,
        r#"{"a":"x"}"#,
        r#"{"b":0,"a":1}"#,
        r#"{"b":1}"#,
        r#"{"c":null}"#,
        "[]",
        "[1]",
        "[1,2]",
        "[2]",
        "[null]",
        "[{}]",
        "[[]]",
        "[[1]]",
        r#"["a"]"#,
        r#"["aa"]"#,
        r#""""#,
        r#""A""#,
        r#""a""#,
        r#""aa""#,
        r#""b""#,
        r#""e\u0301""#,
        r#""é""#,
    ];
    let rising: Vec<JsonText> = RISING_NUMBERS.iter().chain(&others).map(|json| text(json)).collect();
    for (i, a) in rising.iter().enumerate() {
        for (j, b) in rising.iter().enumerate() {
            assert_eq!(compare_terms(a.root(), b.root()), i.cmp(&j), "{a} against {b}");
            assert_eq!(term_key(a).cmp(&term_key(b)), i.cmp(&j), "the keys of {a} and {b}");
        }
    }
    // Strings mark their end, whatever bytes they have.
    let strings =
        [r#""""#, r#""\u0000""#, r#""\u0000\u0000""#, r#""\u0000\u0001""#, r#""\u0001""#, r#""\u0002""#].map(text);
    for two in strings.windows(2) {
        let pair = |one: &JsonText| text(&format!("[{one},0]"));
        assert!(
            term_key(&two[0]) < term_key(&two[1]) && term_key(&pair(&two[0])) < term_key(&pair(&two[1])),
            "{two:?}"
        );
    }
    for (a, b) in [("1", "1.0"), ("0", "-0.0"), ("9007199254740992", "9007199254740992.0"), ("[1]", "[1.0]")] {
        assert_eq!(term_key(&text(a)), term_key(&text(b)), "{a} and {b}");
    }
    let deep = |end: &str| text(&format!("{}{end}{}", "[".repeat(100_000), "]".repeat(100_000)));
    assert_eq!(compare_terms(deep("1").root(), deep("1.0").root()), Ordering::Equal);
    assert_eq!(compare_terms(deep("1").root(), deep("null").root()), Ordering::Less);
}

#[test]
fn what_is_equal_has_equal_keys() {
    for (a, b) in [
        ("1", "1.0"),
        ("0", "-0.0"),
        ("-0", "0.0"),
        ("100", "1e2"),
        ("9007199254740992", "9007199254740992.0"),
        ("-10000000000000000000000", "-1e22"),
        (r#""\u00e9""#, r#""e\u0301""#),
        (r#""a\u0000b""#, r#""ab""#),
        (r#""\u0000""#, r#""""#),
        (r#"{"é":[1]}"#, r#"{"e\u0301":[1.0]}"#),
    ] {
        let (a, b) = (text(a), text(b));
        assert_eq!(compare(a.root(), b.root()), Ordering::Equal, "{a} against {b}");
        assert_eq!(key(&a), key(&b), "{a} and {b}");
    }
    // The order of members matters.
    let (a, b) = (text(r#"{"a":1,"b":2}"#), text(r#"{"b":2,"a":1}"#));
    assert_ne!(key(&a), key(&b));
}

#[test]
fn ids_compare_by_their_bytes() {
    for (a, b, expected) in [
        (r#""a""#, r#""A""#, Ordering::Greater),
        (r#""é""#, r#""e\u0301""#, Ordering::Greater),
        (r#""a""#, "null", Ordering::Greater),
        (r#""a""#, "{}", Ordering::Greater),
        ("1", r#""""#, Ordering::Less),
        ("1", "1.0", Ordering::Equal),
    ] {
        assert_eq!(Order::Raw.compare(text(a).root(), text(b).root()), expected, "{a} against {b}");
    }
}

/// Writes a random value to `out`. The choice is small, so that many values are equal or almost equal.
fn random_value(random: &mut StdRng, depth: usize, out: &mut String) {
    const STRINGS: &[&str] = &[
        "",
        "a",
        "A",
        "aa",
        "ab",
        "b",
        "é",
        "e\u{301}",
        "e",
        "ee",
        "ß",
        "ss",
        "ﬁ",
        "fi",
        "日",
        "本",
        "😀",
        "co-op",
        "coop",
        "co op",
        "a\\u0000b",
        "\\u0001",
        "\u{ffff}",
        "\u{fffe}",
        "ö",
        "z",
        "Ⅷ",
        "ʼn",
        "का",
        "각",
        "\u{e000}",
        "10",
        "9",
    ];
    match random.random_range(0..if depth == 0 { 6 } else { 8 }) {
        0 => out.push_str(["null", "true", "false"][random.random_range(0..3)]),
        1 => out.push_str(&random.random_range(-3_i64..4).to_string()),
        2 => {
            let near: f64 = random.random_range(-4.0..4.0);
            let float = match random.random_range(0..4) {
                0 => (near * 2.0).round() / 2.0,
                1 => near * 9_007_199_254_740_992.0,
                2 => f64::from_bits(random.random()),
                _ => near,
            };
            out.push_str(&if float.is_finite() { format!("{float:e}") } else { "0.0".to_owned() });
        }
        3 => {
            let nines = "9".repeat(random.random_range(1..40));
            let head = random.random_range(1..30);
            out.push_str(if random.random() { "-" } else { "" });
            out.push_str(&head.to_string());
            out.push_str(if random.random() { &nines } else { &nines[1..] });
            out.push_str(["", "0", "000"][random.random_range(0..3)]);
        }
        4 | 5 => {
            out.push('"');
            for _ in 0..random.random_range(0..4) {
                if random.random_range(0..8) == 0 {
                    let any = char::from_u32(random.random_range(0x20..0x3_0000)).unwrap_or('x');
                    out.extend(Some(any).filter(|any| !matches!(any, '"' | '\\')));
                } else {
                    out.push_str(STRINGS[random.random_range(0..STRINGS.len())]);
                }
            }
            out.push('"');
        }
        kind => {
            out.push_str(if kind == 6 { "[" } else { "{" });
            for member in 0..random.random_range(0..4) {
                out.push_str(if member > 0 { "," } else { "" });
                if kind == 7 {
                    out.push_str(&format!(r#""{}{member}":"#, ["a", "A", "é", "e\u{301}"][random.random_range(0..4)]));
                }
                random_value(random, depth - 1, out);
            }
            out.push_str(if kind == 6 { "]" } else { "}" });
        }
    }
}

#[test]
fn keys_compare_as_their_values_do() {
    let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let seed: u64 = std::env::var("SEED").ok().map_or(since_1970.as_nanos() as u64, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let random = &mut StdRng::seed_from_u64(seed);
    let values: Vec<JsonText> = (0..400)
        .map(|_| {
            let mut json = String::new();
            random_value(random, 3, &mut json);
            text(&json)
        })
        .collect();
    let keys: Vec<Vec<u8>> = values.iter().map(key).collect();
    let mut equal = 0;
    for (a, a_key) in values.iter().zip(&keys) {
        for (b, b_key) in values.iter().zip(&keys) {
            let expected = compare(a.root(), b.root());
            assert_eq!(a_key.cmp(b_key), expected, "SEED={seed}: the keys of {a} and {b}");
            equal += usize::from(expected.is_eq());
            assert!(expected.is_eq() || !a_key.starts_with(b_key), "SEED={seed}: {b} is a prefix of {a}");
        }
    }
    assert!(equal > values.len(), "SEED={seed}: no two values are equal");
}

#[test]
fn long_and_deep_values_have_keys() {
    let deep = text(&format!("{}1{}", r#"{"a":["#.repeat(100_000), "]}".repeat(100_000)));
    assert!(key(&deep).len() > 500_000);
    let digits = text(&format!("-1{}7", "0".repeat(1_000_000)));
    assert!(key(&digits) < key(&text("-1")));
}

/// Every character has the key that it had when [`COLLATION_VERSION`] was set. If this fails, the collation's data has
/// changed: set a new version, so that existing indexes are built again.
#[test]
fn the_version_names_the_order_of_all_characters() {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut key = Vec::new();
    // Higher planes have only tags, variation selectors and private-use characters.
    for character in char::MIN..='\u{2ffff}' {
        key.clear();
        let Ok(()) = ROOT.write_sort_key_to(character.encode_utf8(&mut [0; 4]), &mut key);
        assert!(!key.contains(&0), "{character:?}");
        // FNV-1a.
        for &byte in key.iter().chain(&[0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    assert_eq!((COLLATION_VERSION, hash), ("1-icu4x-2.4", 3_217_001_651_991_965_284));
}

/// Every character followed by some others: the key of the text begins with the key of the prefix.
#[test]
fn keys_of_what_begins_alike_begin_alike() {
    let rests = ["a", "·", "ก", "ກ", "\u{0}", "א", "ー"];
    let mut checked = 0;
    for character in char::MIN..='\u{2ffff}' {
        let prefix = character.to_string();
        let mut prefix_key = Vec::new();
        append_prefix(&mut prefix_key, &prefix);
        for rest in rests {
            let whole = format!("{prefix}{rest}");
            let is_boundary = unicode_segmentation::GraphemeCursor::new(prefix.len(), whole.len(), true);
            if !{ is_boundary }.is_boundary(&whole, 0).unwrap() {
                continue;
            }
            checked += 1;
            let mut key = vec![prefix_key[0]];
            let Ok(()) = ROOT.write_sort_key_to(&whole, &mut key);
            assert!(key.starts_with(&prefix_key), "{whole:?} begins with {prefix:?}: {key:x?} {prefix_key:x?}");
        }
    }
    assert!(checked > 1_000_000, "{checked}");
}
