//! Bodies encoded as rows and decoded, byte for byte, in both layouts.

use std::collections::BTreeSet;

use fastrand::Rng;
use foundationdb_tuple::pack;
use model::{BodyError, BodyFormat, BodyLimits, JsonText, RevisionMetadata, StoredBody, decode_rows, row_cost};

const PREFIX: &[u8] = b"\x15\x02prefix";

/// The rows in key order, as a store returns them.
fn sorted_rows(stored: &StoredBody) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut rows: Vec<_> = stored.rows().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    rows.sort();
    rows
}

fn encode(body: &JsonText, format: BodyFormat, limits: &BodyLimits) -> StoredBody {
    let stored = StoredBody::encode(body, PREFIX, format, limits).unwrap();
    for (key, value) in stored.rows() {
        assert!(key.len() <= limits.max_key_bytes && value.len() <= limits.max_value_bytes);
    }
    stored
}

fn decode(rows: &[(Vec<u8>, Vec<u8>)]) -> Result<JsonText, model::CorruptDocument> {
    decode_rows(PREFIX.len(), rows.iter().map(|(key, value)| (key.as_slice(), value.as_slice())))
}

/// The generator of one test. Prints its seed, which is shown if the test fails; `SEED=… cargo test` repeats a run.
fn random_of(test: &str) -> Rng {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_251_121);
    println!("{test}: SEED={seed}");
    Rng::with_seed(seed)
}

fn one_of<T: Copy>(random: &mut Rng, choices: &[T]) -> T {
    choices[random.usize(..choices.len())]
}

fn string(random: &mut Rng) -> String {
    let pieces = [
        "a",
        "Z",
        "_",
        "/",
        "~",
        " ",
        "\\\"",
        "\\\\",
        "\\n",
        "\\u0000",
        "é",
        "\\ud83d\\ude00",
        "\u{2028}",
        "0123456789abcdef",
    ];
    let length = one_of(random, &[0, 1, 1, 1, 2, 3, 8, 30]);
    let text: String = (0..length).map(|_| one_of(random, &pieces)).collect();
    format!("\"{text}\"")
}

fn number(random: &mut Rng) -> String {
    match random.u8(..6) {
        0 => one_of(random, &["0", "-0", "0.0", "-0.0", "1.0", "1e2", "5e-324", "1e22"]).to_owned(),
        1 => random.i64(..).to_string(),
        2 => random.u64(..).to_string(),
        3 => f64::from_bits(random.u64(..)).to_string().replace("NaN", "1").replace("inf", "2"),
        4 => {
            let digits = one_of(random, &[19, 20, 21, 300, 614, 615, 616, 1000]);
            let rest: String = (1..digits).map(|_| random.digit(10)).collect();
            format!("{}{}{rest}", one_of(random, &["", "-"]), random.u8(1..10))
        }
        _ => random.i64(-300..300).to_string(),
    }
}

/// A random object as JSON.
fn object(random: &mut Rng, depth: usize) -> String {
    let members = one_of(random, &[0, 1, 2, 3, 5, 40]);
    let depth = if members > 5 { depth.min(1) } else { depth };
    let members: Vec<String> = (0..members).map(|_| format!("{}:{}", string(random), value(random, depth))).collect();
    format!("{{{}}}", members.join(","))
}

fn value(random: &mut Rng, depth: usize) -> String {
    match random.u8(..if depth == 0 { 5 } else { 9 }) {
        0 | 1 => string(random),
        2 | 3 => number(random),
        4 => one_of(random, &["true", "false", "null", "{}", "[]"]).to_owned(),
        5 | 6 => object(random, depth - 1),
        _ => {
            let elements = one_of(random, &[0, 1, 2, 12]);
            let elements: Vec<String> = (0..elements).map(|_| value(random, depth - 1)).collect();
            format!("[{}]", elements.join(","))
        }
    }
}

fn round_trip(input: &str) {
    let body = JsonText::parse(input.as_bytes()).unwrap();
    for format in [BodyFormat::Exploded, BodyFormat::Packed] {
        for max_value_bytes in [BodyLimits::MIN_VALUE_BYTES, 100_000] {
            let limits = BodyLimits { max_value_bytes, ..BodyLimits::default() };
            let stored = encode(&body, format, &limits);
            // Small values may have no room for the order.
            assert!(stored.format() == format || max_value_bytes == BodyLimits::MIN_VALUE_BYTES);
            assert_eq!(decode(&sorted_rows(&stored)), Ok(body.clone()), "{format:?}, {input:.100}");
        }
    }
}

#[test]
fn every_shape_round_trips() {
    for input in [
        "{}",
        r#"{"a":1}"#,
        r#"{"foo":{"bar":{"baz":123}}}"#,
        r#"{"states":["MA","OH","TX","NM","PA"]}"#,
        r#"{"z":1,"a":{"y":2,"b":3},"m":[{"q":1,"c":2},[],{},[[]],[{}]]}"#,
        r#"{"0":1}"#,
        r#"{"a":[1]}"#,
        r#"{"a":{"0":1}}"#,
        r#"{"":"","a":{"":{"":1}}}"#,
        r#"{"a\u0000":1,"a":2,"a\u0000b":{"\u0000":3,"":4},"\u0000":5}"#,
        r#"{"i":1,"f":1.0,"z":0,"m":-0.0,"n":-1,"b":18446744073709551615,"c":-18446744073709551615}"#,
        r#"{"b":18446744073709551616,"c":-18446744073709551616,"d":-9223372036854775808,"e":1e300,"g":5e-324}"#,
        r#"{"t":true,"f":false,"n":null,"s":"\u0000\u001f\"\\\n😀"}"#,
    ] {
        round_trip(input);
    }
}

#[test]
fn deep_nesting_is_packed() {
    let depth = 100_000;
    let text = format!("{{\"a\":{}1{}}}", "[".repeat(depth), "]".repeat(depth));
    let body = JsonText::parse(text.as_bytes()).unwrap();
    let limits = BodyLimits::default();
    let stored = encode(&body, BodyFormat::Packed, &limits);
    assert_eq!(decode(&sorted_rows(&stored)), Ok(body.clone()));
    assert_eq!(encode(&body, BodyFormat::Exploded, &limits).format(), BodyFormat::Packed);
}

#[test]
fn the_rows_are_those_of_the_rfc() {
    use foundationdb_tuple::{Bytes, pack};

    let text = r#"{"foo":{"bar":{"baz":123}},"states":["MA","OH"],"x":{},"y":[],"f":1.0,"b":[true,false,null]}"#;
    let body = JsonText::parse(text.as_bytes()).unwrap();
    let stored = encode(&body, BodyFormat::Exploded, &BodyLimits::default());
    let key = |suffix: Vec<u8>| [PREFIX, &suffix].concat();
    let expected = [
        (key(pack(&("b", 0))), pack(&(true,))),
        (key(pack(&("b", 1))), pack(&(false,))),
        (key(pack(&("b", 2))), pack(&(None::<i64>,))),
        (key(pack(&("f",))), pack(&(1.0f64,))),
        (key(pack(&("foo", "bar", "baz"))), pack(&(123,))),
        (key(pack(&("states", 0))), pack(&("MA",))),
        (key(pack(&("states", 1))), pack(&("OH",))),
        (key(pack(&("x",))), pack(&(Bytes::from(&b"{}"[..]),))),
        (key(pack(&("y",))), pack(&(Bytes::from(&b"[]"[..]),))),
    ];
    let rows: Vec<_> = stored.rows().skip(1).map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    assert_eq!(rows, expected);
    let (key, metadata) = stored.rows().next().unwrap();
    assert_eq!(key, PREFIX);
    let metadata = RevisionMetadata::read(metadata).unwrap();
    assert_eq!((metadata.format(), metadata.leaves()), (BodyFormat::Exploded, 9));
    assert_eq!(metadata.text_bytes(), text.len() as u64);
}

#[test]
fn empty_and_sorted_bodies_cost_no_order() {
    let metadata = |text: &str| {
        let body = JsonText::parse(text.as_bytes()).unwrap();
        let stored = encode(&body, BodyFormat::Exploded, &BodyLimits::default());
        (stored.row_count(), stored.rows().next().unwrap().1.len())
    };
    assert_eq!(metadata("{}").0, 1);
    let (rows, sorted) = metadata(r#"{"a":1,"b":[1,2,3,4,5,6,7,8,9,10,11,12],"c":{"x":1,"y":2}}"#);
    assert_eq!(rows, 16);
    let (_, unsorted) = metadata(r#"{"b":1,"a":[1,2,3,4,5,6,7,8,9,10,11,12],"c":{"x":1,"y":2}}"#);
    assert!(sorted <= 12 && unsorted <= sorted + 8, "{sorted}, {unsorted}");
}

#[test]
fn alike_is_not_equal() {
    let mut seen = BTreeSet::new();
    for text in [
        r#"{"a":1}"#,
        r#"{"a":1.0}"#,
        r#"{"a":[1]}"#,
        r#"{"a":{"0":1}}"#,
        r#"{"a":"1"}"#,
        r#"{"a":[]}"#,
        r#"{"a":{}}"#,
        r#"{"a":"[]"}"#,
        r#"{"a":"{}"}"#,
        r#"{"a":[{}]}"#,
        r#"{"a":[[]]}"#,
        r#"{"a":0}"#,
        r#"{"a":0.0}"#,
        r#"{"a":-0.0}"#,
        r#"{"a":null}"#,
        r#"{"a":""}"#,
        r#"{"a":false}"#,
        "{}",
    ] {
        let body = JsonText::parse(text.as_bytes()).unwrap();
        let stored = encode(&body, BodyFormat::Exploded, &BodyLimits::default());
        assert!(seen.insert(sorted_rows(&stored)), "{text}");
        round_trip(text);
    }
}

#[test]
fn integers_of_any_length_round_trip() {
    // 614 digits always fit 255 bytes, 616 never do.
    for digits in [1, 18, 19, 20, 21, 38, 300, 613, 614, 615, 616, 617, 1000, 99_998, 99_999, 250_000] {
        for sign in ["", "-"] {
            for digit in ["1", "9"] {
                round_trip(&format!("{{\"a\":{sign}{},\"b\":[{sign}{}]}}", digit.repeat(digits), "8".repeat(digits)));
            }
        }
    }
    let limit = num_text_of_power(255);
    round_trip(&format!("{{\"fits\":{},\"passes\":{limit},\"n\":-{limit}}}", decrement(&limit)));
}

/// `256^exponent` in decimal.
fn num_text_of_power(exponent: usize) -> String {
    let mut digits = vec![1u32];
    for _ in 0..exponent {
        let mut carry = 0;
        for digit in &mut digits {
            let value = *digit * 256 + carry;
            *digit = value % 10;
            carry = value / 10;
        }
        while carry > 0 {
            digits.push(carry % 10);
            carry /= 10;
        }
    }
    digits.iter().rev().filter_map(|digit| char::from_digit(*digit, 10)).collect()
}

/// The number minus one. `text` must not end in 0.
fn decrement(text: &str) -> String {
    let (rest, last) = text.split_at(text.len() - 1);
    format!("{rest}{}", last.parse::<u8>().unwrap() - 1)
}

#[test]
fn long_strings_go_over_several_rows() {
    for piece in ["x", "é", "€", "😀", "a😀", "\\u0000", "\\u0000é", "\\n"] {
        // Around the limit and far above it, with the cut at every byte of a character.
        for length in [99_996, 99_998, 250_000] {
            let repeated = piece.repeat(length / piece.len());
            for shift in 0..4 {
                round_trip(&format!("{{\"s\":\"{}{repeated}\",\"t\":\"after\"}}", "y".repeat(shift)));
            }
        }
    }
    let text = format!("{{\"s\":\"{}\"}}", "x".repeat(250_000));
    let body = JsonText::parse(text.as_bytes()).unwrap();
    let stored = encode(&body, BodyFormat::Exploded, &BodyLimits::default());
    assert_eq!(stored.row_count(), 1 + 3);
    let stored = encode(&body, BodyFormat::Packed, &BodyLimits::default());
    assert_eq!(stored.row_count(), 3, "as few rows as fit, the metadata's among them");
    // Neighbours of a string in parts, whose names start with its name.
    let long = "x".repeat(100_001);
    round_trip(&format!(
        r#"{{"s\u0000":1,"s":"{long}","s\u0001":2,"s\u0000b":{{"c":"{long}"}},"a":["{long}","{long}",1]}}"#
    ));
}

#[test]
fn what_costs_too_much_is_packed() {
    let numbers = |count: usize| format!("{{\"a\":[{}]}}", vec!["1"; count].join(","));
    let limits = BodyLimits::default();
    for (count, expected) in [(10_000, BodyFormat::Exploded), (60_000, BodyFormat::Packed)] {
        let body = JsonText::parse(numbers(count).as_bytes()).unwrap();
        let stored = encode(&body, BodyFormat::Exploded, &limits);
        assert_eq!(stored.format(), expected, "{count}");
        let cost: usize = stored.rows().map(|(key, value)| row_cost(key.len(), value.len())).sum();
        assert_eq!(stored.cost(), cost);
        assert!(cost <= limits.max_exploded_cost);
        assert_eq!(decode(&sorted_rows(&stored)), Ok(body));
    }
    // The limit is exact.
    let body = JsonText::parse(numbers(100).as_bytes()).unwrap();
    let cost = encode(&body, BodyFormat::Exploded, &limits).cost();
    for (max_exploded_cost, expected) in [(cost, BodyFormat::Exploded), (cost - 1, BodyFormat::Packed)] {
        let limits = BodyLimits { max_exploded_cost, ..limits };
        assert_eq!(encode(&body, BodyFormat::Exploded, &limits).format(), expected);
    }
}

#[test]
fn an_order_that_does_not_fit_is_packed() {
    let members: Vec<String> = (0..400).map(|n| format!("\"{:03}\":{n}", n * 7919 % 1000)).collect();
    let body = JsonText::parse(format!("{{{}}}", members.join(",")).as_bytes()).unwrap();
    for (max_value_bytes, expected) in [(100_000, BodyFormat::Exploded), (512, BodyFormat::Packed)] {
        let limits = BodyLimits { max_value_bytes, ..BodyLimits::default() };
        let stored = encode(&body, BodyFormat::Exploded, &limits);
        assert_eq!(stored.format(), expected);
        assert_eq!(decode(&sorted_rows(&stored)), Ok(body.clone()));
    }
}

#[test]
fn the_longest_order_fits() {
    // As many leaves as the cost allows, in the worst order.
    let mut random = random_of("the_longest_order_fits");
    let members: Vec<String> = (0..18_000).map(|n| format!("\"{:016x}{n}\":0", random.u64(..))).collect();
    let body = JsonText::parse(format!("{{{}}}", members.join(",")).as_bytes()).unwrap();
    let limits = BodyLimits { max_exploded_cost: usize::MAX, ..BodyLimits::default() };
    let stored = encode(&body, BodyFormat::Exploded, &limits);
    assert_eq!(stored.format(), BodyFormat::Exploded);
    assert_eq!(decode(&sorted_rows(&stored)), Ok(body));
}

#[test]
fn a_path_that_is_too_long_is_packed() {
    let limits = BodyLimits::default();
    let room = limits.max_key_bytes - PREFIX.len() - 2;
    for (length, fits) in [(room, true), (room + 1, false)] {
        let name = "n".repeat(length);
        let body = JsonText::parse(format!("{{\"{name}\":1}}").as_bytes()).unwrap();
        let stored = encode(&body, BodyFormat::Exploded, &limits);
        assert_eq!(stored.format() == BodyFormat::Exploded, fits, "{length}");
    }
    let text = format!(r#"{{"ok":1,"a/b":[0,{{"c~d":{{"{}":1}}}}]}}"#, "é".repeat(6000));
    let body = JsonText::parse(text.as_bytes()).unwrap();
    let stored = encode(&body, BodyFormat::Exploded, &limits);
    assert_eq!((stored.format(), decode(&sorted_rows(&stored))), (BodyFormat::Packed, Ok(body)));
    let prefix = vec![1; 10_001];
    for format in [BodyFormat::Exploded, BodyFormat::Packed] {
        let stored = StoredBody::encode(&JsonText::empty_object(), &prefix, format, &limits);
        assert!(matches!(stored, Err(BodyError::KeyTooLong { bytes: 10_001, .. })), "{stored:?}");
    }
    for text in ["[]", "1", "\"{}\"", "null"] {
        let body = JsonText::parse(text.as_bytes()).unwrap();
        let stored = StoredBody::encode(&body, PREFIX, BodyFormat::Exploded, &limits);
        assert!(matches!(stored, Err(BodyError::NotAnObject)));
    }
}

#[test]
fn random_bodies_round_trip() {
    let mut random = random_of("random_bodies_round_trip");
    for _ in 0..1_500 {
        round_trip(&object(&mut random, 5));
    }
}

#[test]
fn a_torn_document_is_corrupt() {
    let mut random = random_of("a_torn_document_is_corrupt");
    let limits = BodyLimits { max_value_bytes: 512, ..BodyLimits::default() };
    for _ in 0..150 {
        let body = JsonText::parse(object(&mut random, 3).as_bytes()).unwrap();
        for format in [BodyFormat::Exploded, BodyFormat::Packed] {
            let rows = sorted_rows(&encode(&body, format, &limits));
            for lost in 0..rows.len() {
                let mut rows = rows.clone();
                rows.remove(lost);
                assert!(decode(&rows).is_err(), "{body} without row {lost}");
            }
            let mut doubled = rows.clone();
            doubled.push(rows[rows.len() - 1].clone());
            assert!(decode(&doubled).is_err(), "{body} with its last row twice");
        }
    }
    assert!(decode(&[]).is_err());
}

/// The length and the checksum of the text are right.
#[test]
fn a_document_that_is_no_utf_8_is_corrupt() {
    let texts: [&[u8]; 2] = [b"{\"a\":\"\xff\"}", b"{\"\xff\":\"x\"}"];
    let leaves: [(&[u8], &[u8]); 2] = [(b"\x02a\0", b"\x02\xff\0"), (b"\x02\xff\0", b"\x02x\0")];
    for (text, (path, leaf)) in texts.into_iter().zip(leaves) {
        let metadata = pack(&(1, 1, text.len() as u64, u64::from(crc32fast::hash(text))));
        let rows = [(PREFIX.to_vec(), metadata), ([PREFIX, path].concat(), leaf.to_vec())];
        assert_eq!(decode(&rows).unwrap_err().reason, "it is not UTF-8");
    }
}

#[test]
fn damaged_rows_never_panic_and_never_lie() {
    let mut random = random_of("damaged_rows_never_panic_and_never_lie");
    let limits = BodyLimits { max_value_bytes: 512, ..BodyLimits::default() };
    let mut survived = 0;
    for round in 0..20_000 {
        let text = if round % 50 == 0 { format!("{{\"a\":\"{}\"}}", "é".repeat(900)) } else { object(&mut random, 2) };
        let body = JsonText::parse(text.as_bytes()).unwrap();
        let format = one_of(&mut random, &[BodyFormat::Exploded, BodyFormat::Packed]);
        let mut rows = sorted_rows(&encode(&body, format, &limits));
        for _ in 0..=random.usize(..2) {
            let row = random.usize(..rows.len());
            let (key, value) = &mut rows[row];
            let bytes = if random.usize(..2) == 0 { key } else { value };
            let at = random.usize(..bytes.len() + 1);
            match random.usize(..3) {
                0 => bytes.insert(at, random.u8(..)),
                1 => bytes.truncate(at),
                _ => {
                    if let Some(byte) = bytes.get_mut(at) {
                        let any = random.u8(..);
                        *byte = one_of(&mut random, &[0, 1, 2, 0x0b, 0x14, 0x15, 0x1d, 0x21, 0x26, 0xff, any]);
                    }
                }
            }
        }
        if let Ok(read) = decode(&rows) {
            assert_eq!(read, body);
            survived += 1;
        }
    }
    assert!(survived < 8_000, "the damage must be damage: {survived}");
}
