//! Parsing, normalising and traversing JSON.

mod common;

use common::Random;
use json::JsonErrorKind::*;
use json::{Event, JsonErrorKind, JsonKind, JsonText, JsonWriter, ParseOptions};
use serde_json::Value;

fn normalised(input: &str) -> String {
    JsonText::parse(input.as_bytes()).unwrap_or_else(|error| panic!("{input:.200}: {error}")).to_string()
}

#[test]
fn text_is_normalised() {
    let long = "9".repeat(1000);
    for (input, expected) in [
        (" \t\r\n1 \n", "1"),
        ("\"\"", "\"\""),
        ("{ \"a\" : [ 1 , { } , [ ] ] }", r#"{"a":[1,{},[]]}"#),
        // Numbers
        ("-0", "0"),
        ("[-0,0,-1]", "[0,0,-1]"),
        (long.as_str(), long.as_str()),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("1.0", "1.0"),
        ("-0.0", "-0.0"),
        ("-0e5", "-0.0"),
        ("1e2", "100.0"),
        ("1E+2", "100.0"),
        ("10e-1", "1.0"),
        ("1.10", "1.1"),
        ("0.1", "0.1"),
        ("0.30000000000000004", "0.30000000000000004"),
        ("1e-400", "0.0"),
        ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("123456789012345678901234567890.0", "1.2345678901234568e+29"),
        // Strings
        (r#""\/\b\f\n\r\t\"\\""#, r#""/\b\f\n\r\t\"\\""#),
        (r#""\u0008\u000c\u000A\u000d\u0009\u0022\u005C\u002f""#, r#""\b\f\n\r\t\"\\/""#),
        (r#""\u0000\u001F\u007f\u2028""#, "\"\\u0000\\u001f\u{7f}\u{2028}\""),
        (r#""\ud83d\ude00\u00e9\uFFFF""#, "\"😀é\u{ffff}\""),
        (r#"{"\u0061\/b":1}"#, r#"{"a/b":1}"#),
        // If names are equal, the last one stays, in its place
        (r#"{"a":1,"b":2,"a":3}"#, r#"{"b":2,"a":3}"#),
        (r#"{"a":1,"\u0061":2}"#, r#"{"a":2}"#),
        (r#"{"":1,"":2,"x":{"y":1,"y":{"z":1,"z":[]}},"":3}"#, r#"{"x":{"y":{"z":[]}},"":3}"#),
        (r#"{"a":{"b":1,"b":2},"a":{"b":3,"b":4}}"#, r#"{"a":{"b":4}}"#),
        (r#"[{"a": 1, "a": 2} ,{"a":1,"a" :2}]"#, r#"[{"a":2},{"a":2}]"#),
        (r#"{"a":1,"a":1,"a":1,"a":1}"#, r#"{"a":1}"#),
    ] {
        assert_eq!(normalised(input), expected, "{input:.200}");
        assert_eq!(normalised(expected), expected, "normalising again changes nothing");
    }
}

#[test]
fn many_equal_names_leave_the_last() {
    let members = |names: &mut dyn Iterator<Item = usize>| {
        let members: Vec<String> = names.map(|name| format!("\"name number {}\":{name}", name % 100)).collect();
        format!("{{{}}}", members.join(","))
    };
    assert_eq!(normalised(&members(&mut (0..1000))), members(&mut (900..1000)));
    // Names that differ in one byte.
    let close: Vec<String> = (0..1000).map(|n| format!("\"{}{n:04}{}\":0", "x".repeat(20), "x".repeat(20))).collect();
    let text = format!("{{{}}}", close.join(","));
    assert_eq!(normalised(&text), text);
}

#[test]
fn equal_names_nested_in_equal_names_take_one_pass() {
    // Cutting out the duplicates one by one would move some 10^11 bytes.
    let depth = 500_000;
    let text = format!("{}1{}", "{\"a\":1,\"a\":".repeat(depth), "}".repeat(depth));
    let expected = format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    assert!(normalised(&text) == expected);
}

#[test]
fn what_is_no_json_is_refused_where_it_stops_being_it() {
    let deep_end = "[".repeat(100_000);
    for (input, offset, kind) in [
        ("", 0, UnexpectedEnd),
        (" ", 1, UnexpectedEnd),
        ("[", 1, UnexpectedEnd),
        ("{", 1, UnexpectedEnd),
        ("[1", 2, UnexpectedEnd),
        ("[1,", 3, UnexpectedEnd),
        ("{\"a\"", 4, UnexpectedEnd),
        ("{\"a\":", 5, UnexpectedEnd),
        ("{\"a\":1", 6, UnexpectedEnd),
        ("{\"a\":1,", 7, UnexpectedEnd),
        ("\"abc", 4, UnexpectedEnd),
        ("\"abc\\", 4, UnexpectedEnd),
        ("\"\\u12", 1, UnexpectedEnd),
        ("tru", 3, UnexpectedEnd),
        ("-", 1, UnexpectedEnd),
        ("1.", 2, UnexpectedEnd),
        ("1e", 2, UnexpectedEnd),
        ("1e+", 3, UnexpectedEnd),
        (deep_end.as_str(), 100_000, UnexpectedEnd),
        ("]", 0, ExpectedValue),
        ("[,1]", 1, ExpectedValue),
        ("[1,]", 3, ExpectedValue),
        ("[1,,2]", 3, ExpectedValue),
        ("{\"a\":}", 5, ExpectedValue),
        ("'a'", 0, ExpectedValue),
        ("+1", 0, ExpectedValue),
        (".5", 0, ExpectedValue),
        ("NaN", 0, ExpectedValue),
        ("Infinity", 0, ExpectedValue),
        ("nul1", 0, ExpectedValue),
        ("\u{feff}1", 0, ExpectedValue),
        ("\u{a0}1", 0, ExpectedValue),
        ("// comment\n1", 0, ExpectedValue),
        ("undefined", 0, ExpectedValue),
        ("{1:2}", 1, ExpectedName),
        ("{a:2}", 1, ExpectedName),
        ("{,}", 1, ExpectedName),
        ("{\"a\":1,}", 7, ExpectedName),
        ("{[]:1}", 1, ExpectedName),
        ("{\"a\" 1}", 5, ExpectedColon),
        ("{\"a\"}", 4, ExpectedColon),
        ("{\"a\":1 \"b\":2}", 7, ExpectedCommaOrBrace),
        ("{\"a\":1]", 6, ExpectedCommaOrBrace),
        ("{\"a\":1:2}", 6, ExpectedCommaOrBrace),
        ("[1 2]", 3, ExpectedCommaOrBracket),
        ("[1}", 2, ExpectedCommaOrBracket),
        ("[1:2]", 2, ExpectedCommaOrBracket),
        ("1 2", 2, TrailingCharacters),
        ("1]", 1, TrailingCharacters),
        ("{}}", 2, TrailingCharacters),
        ("truefalse", 4, TrailingCharacters),
        ("1\0", 1, TrailingCharacters),
        ("0x10", 1, TrailingCharacters),
        ("01", 2, InvalidNumber),
        ("-01", 3, InvalidNumber),
        ("-a", 1, InvalidNumber),
        ("[1.]", 3, InvalidNumber),
        ("[1.e5]", 3, InvalidNumber),
        ("[1e]", 3, InvalidNumber),
        ("[1e+]", 4, InvalidNumber),
        ("--1", 1, InvalidNumber),
        ("1e400", 5, NumberOutOfRange),
        ("[-1e309]", 7, NumberOutOfRange),
        ("\"\u{1}\"", 1, ControlCharacter),
        ("\"a\nb\"", 2, ControlCharacter),
        ("{\"\t\":1}", 2, ControlCharacter),
        ("\"12345678\0\"", 9, ControlCharacter),
        ("\"\\x\"", 1, InvalidEscape),
        ("\"\\'\"", 1, InvalidEscape),
        ("\"\\U0041\"", 1, InvalidEscape),
        ("\"\\u00g0\"", 1, InvalidEscape),
        ("\"\\u-123\"", 1, InvalidEscape),
        ("\"\\u+123\"", 1, InvalidEscape),
        ("\"\\ud83d\"", 1, LoneSurrogate),
        ("\"\\ud83d\\n\"", 1, LoneSurrogate),
        ("\"\\ud83d\\u0041\"", 1, LoneSurrogate),
        ("\"\\ud83d\\ud83d\\ude00\"", 1, LoneSurrogate),
        ("\"\\ude00\"", 1, LoneSurrogate),
        ("\"\\udfff\\ud83d\"", 1, LoneSurrogate),
    ] {
        let error = JsonText::parse(input.as_bytes()).expect_err(input);
        assert_eq!((error.offset, error.kind), (offset, kind), "{input:.200}");
    }
}

#[test]
fn bytes_that_are_no_utf8_are_refused() {
    for (input, offset) in [
        (&b"\"\xff\""[..], 1),
        (b"\"\xc3\"", 1),
        (b"\"a\xed\xa0\x80\"", 2), // a surrogate in UTF-8's manner
        (b"\"\xc0\x80\"", 1),      // NUL in two bytes
        (b"\"\xf4\x90\x80\x80\"", 1),
        (b"{\"\x80\":1}", 2),
        (b"\xff\xfe1\0", 0),
    ] {
        let error = JsonText::parse(input).unwrap_err();
        assert_eq!((error.offset, error.kind), (offset, Utf8), "{input:?}");
    }
}

#[test]
fn limits_are_exact() {
    let parse = |text: &str, max_depth, max_integer_digits| {
        JsonText::parse_with(text.as_bytes(), ParseOptions { max_depth, max_integer_digits })
            .map_err(|error| (error.offset, error.kind))
    };
    assert!(parse("[[]]", 2, 9).is_ok());
    assert!(parse(r#"{"a":[]}"#, 2, 9).is_ok());
    assert_eq!(parse("[[[]]]", 2, 9), Err((2, TooDeep)));
    assert_eq!(parse(r#"{"a":[1,{}]}"#, 2, 9), Err((8, TooDeep)));
    assert!(parse("-123456789", 2, 9).is_ok());
    assert_eq!(parse("[1234567890]", 2, 9), Err((1, IntegerTooLong)));
    assert!(parse("1234567890.0", 2, 9).is_ok(), "a float is not an integer");
}

#[test]
fn depth_costs_no_stack() {
    let depth = 1_000_000;
    for (open, close) in [("[", "]"), ("{\"\":", "}"), ("[{\"a\":", "}]")] {
        let depth = if open.len() > 5 { depth / 2 } else { depth };
        let text = format!("{}0{}", open.repeat(depth), close.repeat(depth));
        let json = JsonText::parse(text.as_bytes()).unwrap();
        assert_eq!(json.as_str(), text);
        assert!(json.events().count() >= 2 * depth);
        assert_eq!(json.root().members().count() + json.root().elements().count(), 1);
        assert!(json.to_serde(128).is_err());
        drop(json);
    }
}

#[test]
fn views_tell_values_apart() {
    let json = JsonText::parse(
        r#"{"s":"a\"\u0000é","i":-5,"u":18446744073709551615,"big":1e3,"huge":123456789012345678901,
            "t":true,"f":false,"n":null,"o":{"x":{"y":[]}},"a":[1,"]",{"}":2},[3]],"\"q\"":1,"one":1.0}"#
            .as_bytes(),
    )
    .unwrap();
    let get = |name: &str| json.get(name).unwrap();
    assert_eq!(get("s").as_str().unwrap(), "a\"\0é");
    assert_eq!((get("i").as_i64(), get("i").as_u64(), get("i").as_f64()), (Some(-5), None, Some(-5.0)));
    assert_eq!((get("u").as_i64(), get("u").as_u64()), (None, Some(u64::MAX)));
    assert_eq!((get("big").kind(), get("big").as_i64(), get("big").as_f64()), (JsonKind::Float, None, Some(1000.0)));
    assert_eq!((get("huge").kind(), get("huge").as_u64()), (JsonKind::Integer, None));
    assert_eq!((get("one").kind(), get("one").as_i64()), (JsonKind::Float, None));
    assert_eq!((get("t").as_bool(), get("f").as_bool(), get("n").as_bool()), (Some(true), Some(false), None));
    assert!(get("n").is_null() && !get("f").is_null() && get("s").as_f64().is_none() && get("i").as_str().is_none());
    assert_eq!(get("o").get("x").unwrap().text(), r#"{"y":[]}"#);
    let elements: Vec<&str> = get("a").elements().map(|element| element.text()).collect();
    assert_eq!(elements, ["1", "\"]\"", "{\"}\":2}", "[3]"]);
    assert_eq!(get("\"q\"").text(), "1");
    assert!(json.get("").is_none() && json.get("x").is_none() && get("a").get("0").is_none());
    assert_eq!(json.root().members().count(), 12);
    assert_eq!(get("a").members().count() + get("o").elements().count() + get("s").elements().count(), 0);
    assert_eq!(json.slice_ref(get("o")), JsonText::parse(br#"{"x":{"y":[]}}"#).unwrap());
}

#[test]
fn events_follow_the_text() {
    let json = JsonText::parse(br#"{"a":["x\n",1,2.5,true,null,{}],"b":"c"}"#).unwrap();
    let steps: Vec<String> = json
        .events()
        .map(|event| match event {
            Event::Name(text) => format!("name {}", text.to_cow()),
            Event::Str(text) => format!("str {:?}", text.to_cow()),
            Event::Int(digits) => format!("int {digits}"),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(
        steps,
        [
            "BeginObject",
            "name a",
            "BeginArray",
            "str \"x\\n\"",
            "int 1",
            "Float(2.5)",
            "Bool(true)",
            "Null",
            "BeginObject",
            "EndObject",
            "EndArray",
            "name b",
            "str \"c\"",
            "EndObject"
        ]
    );
}

#[test]
fn the_top_splits_and_joins() {
    for (input, special, rest) in [
        ("{}", vec![], "{}"),
        (r#"{"_id":"a"}"#, vec![("_id", "\"a\"")], "{}"),
        (r#"{"a":1}"#, vec![], r#"{"a":1}"#),
        (
            r#"{"_id":"a","b":1,"_rev":"1-x","c":[{"_d":1}],"_e":{}}"#,
            vec![("_id", "\"a\""), ("_rev", "\"1-x\""), ("_e", "{}")],
            r#"{"b":1,"c":[{"_d":1}]}"#,
        ),
        (r#"{"b":1,"\u005fx":2,"c":3,"d":4}"#, vec![("_x", "2")], r#"{"b":1,"c":3,"d":4}"#),
        (r#"{"_a":1,"b":2}"#, vec![("_a", "1")], r#"{"b":2}"#),
        (r#"{"b":2,"_a":1}"#, vec![("_a", "1")], r#"{"b":2}"#),
    ] {
        let json = JsonText::parse(input.as_bytes()).unwrap();
        let split = json.split_top(|name| name.starts_with('_')).unwrap();
        let found: Vec<(&str, &str)> =
            split.special.iter().map(|(name, value)| (name.as_ref(), value.text())).collect();
        assert_eq!(found, special, "{input}");
        assert_eq!(split.rest.as_str(), rest, "{input}");

        let mut joined = Vec::new();
        let mut writer = JsonWriter::new(&mut joined);
        writer.begin_object();
        for (name, value) in &split.special {
            writer.name(name).value(*value);
        }
        writer.members_of(&split.rest).name("last").bool(true).end_object();
        let again = JsonText::parse(&joined).unwrap();
        assert_eq!(again.as_bytes(), joined, "what is written is normalised");
        assert_eq!(again.root().members().count(), json.root().members().count() + 1);
    }
    assert!(JsonText::parse(b"[]").unwrap().split_top(|_| true).is_none());
}

#[test]
fn the_writer_writes_normalised_text() {
    let mut out = Vec::new();
    let mut json = JsonWriter::new(&mut out);
    json.begin_array().begin_object().end_object().begin_array().end_array();
    json.i64(i64::MIN).u64(u64::MAX).u64(0).i64(-1).f64(1.0).f64(f64::NAN).null().bool(false);
    json.str("a\"\\\u{0}\u{1f}/é😀\n").display(format_args!("{}-\"{}\"", 1, 'x'));
    json.begin_object().name("n\n").begin_array().u64(1).u64(2).end_array().name("").str("").end_object();
    json.end_array();
    let expected = concat!(
        r#"[{},[],-9223372036854775808,18446744073709551615,0,-1,1.0,null,null,false,"#,
        r#""a\"\\\u0000\u001f/é😀\n","1-\"x\"",{"n\n":[1,2],"":""}]"#
    );
    assert_eq!(String::from_utf8(out).unwrap(), expected);
    assert_eq!(normalised(expected), expected);
}

/// Whether two trees are equal. The sign of an integer zero, which `serde_json` keeps, is ignored.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => a == b || (a.as_f64() == Some(0.0) && b.as_f64() == Some(0.0)),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        _ => left == right,
    }
}

#[test]
fn random_json_reads_as_serde_json_reads_it() {
    let mut random = Random::for_test("random_json_reads_as_serde_json_reads_it");
    let mut compared = 0;
    for _ in 0..3_000 {
        let input = random.value(4);
        let json = JsonText::parse(input.as_bytes()).unwrap_or_else(|error| panic!("{input}: {error}"));
        assert_eq!(normalised(json.as_str()), json.as_str(), "{input}");
        let theirs: Value = match serde_json::from_str(&input) {
            Ok(theirs) => theirs,
            // `serde_json` does not read integers beyond all doubles.
            Err(error) if error.to_string().contains("out of range") => continue,
            Err(error) => panic!("{input}: {error}"),
        };
        compared += 1;
        let ours: Value = serde_json::from_str(json.as_str()).unwrap();
        assert!(same(&ours, &theirs), "{input}");
        let tree = json.to_serde(128).unwrap();
        assert!(same(&tree, &theirs), "{input}");
        let from_tree = JsonText::from_serde(&tree).unwrap();
        assert_eq!(from_tree.to_serde(128).unwrap(), tree);
    }
    assert!(compared > 2_000, "{compared}");
}

#[test]
fn damaged_json_is_refused_or_read_as_serde_json_reads_it() {
    let mut random = Random::for_test("damaged_json_is_refused_or_read_as_serde_json_reads_it");
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut input = random.value(2).into_bytes();
        for _ in 0..=random.below(2) {
            let at = random.below(input.len());
            match random.below(3) {
                0 => input[at] = random.one_of(b"{}[]\",:\\u0e.-+ \n\x00\x80\xff"),
                1 => input.insert(at, random.one_of(b"{}[]\",:\\u0e.-+ \n\x00\x80\xff")),
                _ => {
                    input.remove(at);
                }
            }
            if input.is_empty() {
                break;
            }
        }
        let ours = JsonText::parse(&input);
        let theirs: Result<Value, _> = serde_json::from_slice(&input);
        let shown = String::from_utf8_lossy(&input);
        match (&ours, &theirs) {
            (Ok(json), Ok(value)) => {
                assert!(same(&serde_json::from_str(json.as_str()).unwrap(), value), "{shown}");
            }
            (Err(error), Err(_)) => {
                assert!(error.offset <= input.len(), "{shown}");
                refused += 1;
            }
            (Err(error), Ok(_)) => panic!("{shown}: {error}"),
            // For `serde_json`, integers beyond all doubles are out of range; here they are exact.
            (Ok(_), Err(error)) => assert!(error.to_string().contains("out of range"), "{shown}: {error}"),
        }
    }
    assert!(refused > 5_000, "the damage must be damage: {refused}");
}

#[test]
fn an_error_says_what_and_where() {
    let error = JsonText::parse(b"[1,}").unwrap_err();
    assert_eq!(error.to_string(), "invalid JSON at byte 3: expected a value");
    assert_eq!(JsonErrorKind::ExpectedCommaOrBrace.to_string(), "expected ',' or '}'");
}
