//! Bodies as rows and back: text for text, in either layout.

use model::{BodyError, BodyFormat, BodyLimits, JsonText, StoredBody, decode_rows};

const PREFIX: &[u8] = b"\x15\x02prefix";

/// What a store would answer: the rows in the order of their keys.
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

fn round_trip(input: &str) {
    let body = JsonText::parse(input.as_bytes()).unwrap();
    for format in [BodyFormat::Exploded, BodyFormat::Packed] {
        for max_value_bytes in [BodyLimits::MIN_VALUE_BYTES, 100_000] {
            let limits = BodyLimits { max_value_bytes, ..BodyLimits::default() };
            let stored = encode(&body, format, &limits);
            assert_eq!(stored.format(), format);
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
fn deep_nesting_is_packed_or_named() {
    let depth = 100_000;
    let text = format!("{{\"a\":{}1{}}}", "[".repeat(depth), "]".repeat(depth));
    let body = JsonText::parse(text.as_bytes()).unwrap();
    let limits = BodyLimits::default();
    let stored = encode(&body, BodyFormat::Packed, &limits);
    assert_eq!(decode(&sorted_rows(&stored)), Ok(body.clone()));
    match StoredBody::encode(&body, PREFIX, BodyFormat::Exploded, &limits) {
        Err(BodyError::PathTooLong { path, bytes, limit: 10_000 }) => {
            assert!(path.starts_with("/a/0/0/0/"), "{path}");
            assert_eq!(bytes, PREFIX.len() + 3 + depth);
        }
        other => panic!("{other:?}"),
    }
}
