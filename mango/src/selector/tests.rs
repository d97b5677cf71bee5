//! What selectors match, including the cases of CouchDB's own tests (`mango_selector.erl`).

use json::JsonText;
use serde_json::{Value, json};

use super::{MAX_CONDITIONS, MAX_DEPTH, MAX_REGEXES, Selector};
use crate::error::Error;

fn text(value: &Value) -> JsonText {
    JsonText::parse(value.to_string().as_bytes()).unwrap()
}

fn parse(selector: Value) -> Result<Selector, Error> {
    Selector::parse(&text(&selector))
}

#[track_caller]
fn matches(selector: Value, document: Value) -> bool {
    parse(selector).unwrap().matches(text(&document).root()).unwrap()
}

/// Checks a condition on the field `x`, and that its negation has the opposite result.
#[track_caller]
fn check(condition: Value, results: &[(bool, Value)]) {
    for (expected, value) in results {
        let document = json!({"x": value});
        assert_eq!(matches(json!({"x": condition}), document.clone()), *expected, "{condition} over {value}");
        assert_eq!(matches(json!({"x": {"$not": condition}}), document), !*expected, "not {condition} over {value}");
    }
}

#[test]
fn comparisons_are_in_couchdbs_order() {
    let expected: &[(&str, [bool; 3])] = &[
        ("$lt", [true, false, false]),
        ("$lte", [true, true, false]),
        ("$eq", [false, true, false]),
        ("$ne", [true, false, true]),
        ("$gte", [false, true, true]),
        ("$gt", [false, false, true]),
    ];
    // A value below, equal to, and above the argument.
    let rows = [
        (json!(5), [json!(4), json!(5.0), json!(6)]),
        (json!("hello"), [json!("held"), json!("hello"), json!("help")]),
        (json!("m"), [json!("B"), json!("m"), json!("M")]),
        (json!([1, 2, 3]), [json!([1, 2]), json!([1, 2, 3]), json!([1, 3])]),
        (json!([1, [2, 3, 4], 5]), [json!([1, [2, 3, 4]]), json!([1, [2, 3, 4], 5]), json!([1, [2, 7, 4], 5])]),
        (json!({"a": 1}), [json!([1]), json!({"a": 1}), json!({"a": 1, "b": 1})]),
        (json!(true), [json!(false), json!(true), json!(0)]),
        (json!(0), [json!(true), json!(-0.0), json!("")]),
    ];
    for (argument, values) in rows {
        for (operator, answers) in expected {
            for (value, answer) in values.iter().zip(answers) {
                check(json!({*operator: argument}), &[(*answer, value.clone())]);
            }
        }
    }
    // Nothing is less than null.
    check(json!({"$lt": null}), &[(false, json!(null)), (false, json!(false))]);
    check(json!({"$gt": null}), &[(false, json!(null)), (true, json!(false)), (true, json!("x"))]);
}

#[test]
fn a_bare_value_is_equality_and_members_are_an_and() {
    let document = json!({"_id": "foo", "_rev": "bar", "user_id": 11});
    assert!(matches(json!({}), document.clone()));
    assert!(matches(json!({"user_id": 11}), document.clone()));
    assert!(matches(json!({"_id": "foo", "_rev": "bar"}), document.clone()));
    assert!(!matches(json!({"user_id": "11"}), document.clone()));
    assert!(!matches(json!({"_id": "foo", "_rev": "quux"}), document));
}

#[test]
fn objects_in_a_selector_are_fields_below_and_the_empty_one_is_a_value() {
    let documents =
        [json!({}), json!({"x": {}}), json!({"x": {"a": 1}}), json!({"x": {"a": 1, "b": 2}}), json!({"x": []})];
    for (selector, expected) in [
        (json!({}), [true, true, true, true, true]),
        (json!({"x": {}}), [false, true, false, false, false]),
        (json!({"$not": {"x": {}}}), [false, false, true, true, true]),
        (json!({"x": {"a": 1}}), [false, false, true, true, false]),
        (json!({"x": {"a": 1, "b": 2}}), [false, false, false, true, false]),
        (json!({"x.b": 2}), [false, false, false, true, false]),
        (json!({"x": {"$eq": {"a": 1}}}), [false, false, true, false, false]),
    ] {
        for (document, expected) in documents.iter().zip(expected) {
            assert_eq!(matches(selector.clone(), document.clone()), expected, "{selector} over {document}");
        }
    }
}

#[test]
fn a_missing_field_matches_nothing_but_its_absence() {
    for condition in [
        json!(5),
        json!({"$ne": 5}),
        json!({"$nin": [5]}),
        json!({"$lt": 5}),
        json!({"$not": {"$eq": 5}}),
        json!({"$not": {"$type": "string"}}),
        json!({"$exists": true}),
        json!({"$not": {"$exists": false}}),
    ] {
        assert!(!matches(json!({"x": condition}), json!({"y": 5})), "{condition}");
        assert!(!matches(json!({"x.y": condition}), json!({"x": 5})), "{condition} below a scalar");
    }
    assert!(!matches(json!({"$not": {"x": 5}}), json!({})));
    assert!(matches(json!({"x": {"$exists": false}}), json!({"y": 5})));
    assert!(matches(json!({"x": {"$not": {"$exists": true}}}), json!({})));
    // Not (exists and equals 0): it matches if one of the two is false.
    let both = json!({"x": {"$not": {"$exists": true, "$eq": 0}}});
    assert!(matches(both.clone(), json!({"x": 1})));
    assert!(!matches(both.clone(), json!({"x": 0})));
    assert!(matches(both, json!({})));
}

#[test]
fn paths_go_through_arrays_by_index() {
    let document = json!({"a": [{"b": 1}, {"b": 2}], "a.b": 3, "$c": 4});
    assert!(matches(json!({"a.1.b": 2}), document.clone()));
    assert!(!matches(json!({"a.2.b": 2}), document.clone()));
    assert!(!matches(json!({"a.b": 2}), document.clone()));
    assert!(!matches(json!({"a.2": {"$exists": false}}), document.clone()));
    assert!(matches(json!({"a\\.b": 3}), document.clone()));
    assert!(matches(json!({"\\$c": 4}), document));
}

#[test]
fn in_looks_at_the_elements_of_an_array() {
    let values = json!([42, false, "bar", [["nested"], "list"], {"b": 2}]);
    let rows = [
        (true, json!(42)),
        (true, json!(42.0)),
        (true, json!(false)),
        (true, json!("bar")),
        (true, json!({"b": 2})),
        (false, json!(43)),
        (false, json!(true)),
        (false, json!("bars")),
        (false, json!({"b": 2, "c": 3})),
        (true, json!([0, 42])),
        (true, json!([0, {"b": 2}])),
        (false, json!([["nested"], "list"])),
        (true, json!([0, [["nested"], "list"]])),
        (false, json!([])),
    ];
    check(json!({"$in": values}), &rows);
    check(json!({"$nin": values}), &rows.map(|(expected, value)| (!expected, value)));
    check(json!({"$in": []}), &[(false, json!(0)), (false, json!([]))]);
    check(json!({"$nin": []}), &[(true, json!(0)), (true, json!([]))]);
}

#[test]
fn all_wants_every_element_or_the_very_list() {
    check(json!({"$all": []}), &[(false, json!([])), (false, json!([42])), (false, json!({})), (false, json!("foo"))]);
    check(
        json!({"$all": [1, 2, 3, 4]}),
        &[
            (true, json!([3, 2, 4, 1])),
            (true, json!([0, 4, 3, 5, 2, 1, 6])),
            (false, json!([3, 2, 4])),
            (false, json!([])),
        ],
    );
    check(
        json!({"$all": [[1, 2, 3, 4]]}),
        &[
            (true, json!([1, 2, 3, 4])),
            (false, json!([4, 3, 2, 1])),
            (false, json!([])),
            (true, json!([5, [1, 2, 3, 4], 6])),
            (false, json!([5, [1, 3, 4], 6])),
        ],
    );
    check(json!({"$all": ["hello"]}), &[(false, json!("hello")), (true, json!([0, "hello", 1])), (false, json!([]))]);
    check(json!({"$all": [{"a": 1}]}), &[(true, json!([{"a": 1}])), (false, json!([{"a": 1, "b": 2}]))]);
}

#[test]
fn type_names_are_jsons() {
    for (name, value) in [
        ("null", json!(null)),
        ("boolean", json!(true)),
        ("boolean", json!(false)),
        ("number", json!(0)),
        ("number", json!(3.25)),
        ("string", json!("")),
        ("array", json!([])),
        ("object", json!({})),
    ] {
        for asked in ["null", "boolean", "number", "string", "array", "object", "integer"] {
            check(json!({"$type": asked}), &[(asked == name, value.clone())]);
        }
    }
}

#[test]
fn strings_match_expressions_and_prefixes() {
    check(
        json!({"$regex": "^[0-9a-f]+$"}),
        &[(false, json!("")), (true, json!("3a0df5e")), (false, json!("3a0gf5e")), (false, json!(42))],
    );
    // On bytes, as in CouchDB; on code points if the pattern needs them.
    check(json!({"$regex": "^..$"}), &[(true, json!("é")), (true, json!("ab")), (false, json!("e"))]);
    check(json!({"$regex": "(?i)äPFEL"}), &[(true, json!("zwei äpfel")), (false, json!("Äpfel"))]);
    check(json!({"$regex": "^[äö]pfel$"}), &[(true, json!("äpfel")), (false, json!("pfel"))]);
    check(
        json!({"$beginsWith": "foo"}),
        &[
            (true, json!("foo")),
            (true, json!("fool me")),
            (false, json!("more food")),
            (false, json!("fo")),
            (false, json!(42)),
        ],
    );
    check(json!({"$beginsWith": "e"}), &[(true, json!("e")), (false, json!("é")), (false, json!("e\u{301}"))]);
    check(json!({"$beginsWith": "e\u{301}"}), &[(true, json!("e\u{301}f")), (false, json!("éf"))]);
    check(json!({"$beginsWith": "a\"b"}), &[(true, json!("a\"b\"c")), (false, json!("a"))]);
}

#[test]
fn mod_and_size() {
    check(
        json!({"$mod": [28, 1]}),
        &[
            (true, json!(1)),
            (true, json!(29)),
            (true, json!(57)),
            (false, json!(58)),
            (false, json!("57")),
            (false, json!(1.0)),
        ],
    );
    check(json!({"$mod": [-3, -1]}), &[(true, json!(-4)), (false, json!(4))]);
    check(
        json!({"$size": 3}),
        &[
            (false, json!(3)),
            (false, json!("fun")),
            (true, json!([0, [], {}])),
            (false, json!([0, 0])),
            (false, json!([])),
        ],
    );
}

#[test]
fn elements_and_keys_match_selectors_of_their_own() {
    check(
        json!({"$elemMatch": {"$eq": 0}}),
        &[(false, json!([])), (true, json!([0])), (false, json!([1])), (true, json!([0, 1]))],
    );
    check(json!({"$elemMatch": {"$ne": 0}}), &[(false, json!([])), (false, json!([0])), (true, json!([0, 1]))]);
    check(json!({"$elemMatch": {"$gte": 80, "$lt": 85}}), &[(true, json!([1, 82])), (false, json!([79, 86]))]);
    check(json!({"$elemMatch": {"a.b": 1}}), &[(true, json!([{"a": {"b": 1}}])), (false, json!({"a": {"b": 1}}))]);
    check(
        json!({"$allMatch": {"$eq": 0}}),
        &[(false, json!([])), (true, json!([0])), (false, json!([1])), (false, json!([0, 1])), (false, json!(0))],
    );
    check(
        json!({"$keyMapMatch": {"$regex": "^[a-z]+$"}}),
        &[
            (true, json!({"hello": 0})),
            (true, json!({"a": 1, "b4": 2})),
            (false, json!({"b4": 2})),
            (false, json!({})),
            (false, json!("a")),
        ],
    );
    check(json!({"$keyMapMatch": {"$eq": "a\"\n"}}), &[(true, json!({"a\"\n": 1}))]);
    // Negations stay in their place, so a missing field matches here.
    check(json!({"$elemMatch": {"$not": {"a": 1}}}), &[(true, json!([{}])), (false, json!([{"a": 1}]))]);
    check(
        json!({"$elemMatch": {"$nor": [{"a": 1}, {"a": 2}]}}),
        &[(true, json!([{"a": 3}])), (false, json!([{"a": 1}, {"a": 2}]))],
    );
}

#[test]
fn combinations_follow_de_morgan_and_the_empty_ones_match_everything() {
    for operator in ["$and", "$or", "$nor"] {
        for document in [json!({"x": 0}), json!({})] {
            assert!(matches(json!({"x": {operator: []}}), document.clone()), "{operator}");
            if operator != "$nor" {
                assert!(matches(json!({"x": {"$not": {operator: []}}}), document), "not {operator}");
            }
        }
    }
    let inside = json!([{"$gt": 3}, {"$lt": 7}]);
    let outside = json!([{"$lt": 3}, {"$gt": 7}]);
    for (value, is_inside, is_outside) in
        [(json!({"x": 6}), true, false), (json!({"x": 2}), false, true), (json!({"x": 9}), false, true)]
    {
        assert_eq!(matches(json!({"x": {"$and": inside}}), value.clone()), is_inside);
        assert_eq!(matches(json!({"x": {"$not": {"$and": inside}}}), value.clone()), !is_inside);
        assert_eq!(matches(json!({"x": {"$or": outside}}), value.clone()), is_outside);
        assert_eq!(matches(json!({"x": {"$not": {"$or": outside}}}), value.clone()), !is_outside);
        assert_eq!(matches(json!({"x": {"$nor": outside}}), value.clone()), !is_outside);
        assert_eq!(matches(json!({"x": {"$not": {"$nor": outside}}}), value), is_outside);
    }
    for operator in ["$and", "$or", "$nor"] {
        assert!(!matches(json!({"x": {operator: [{"$gt": 3}]}}), json!({})), "{operator} over a missing field");
    }
    assert!(matches(json!({"year": {"$gte": 1900, "$lte": 1903}, "$not": {"year": 1901}}), json!({"year": 1902})));
}

#[test]
fn what_cannot_be_used_is_refused_with_couchdbs_words() {
    for (selector, error, reason) in [
        (json!(1), "bad_request", "Selector error: expected a JSON object"),
        (json!({"$gt": 5}), "invalid_selector", "One or more conditions is missing a field name."),
        (json!({"$not": {}}), "invalid_selector", "One or more conditions is missing a field name."),
        (json!({"$elemMatch": {"a": 1}}), "invalid_selector", "One or more conditions is missing a field name."),
        (json!({"$and": 1}), "bad_arg", "Bad argument for operator $and: 1"),
        (json!({"$or": {"a": 1}}), "bad_arg", r#"Bad argument for operator $or: {"a":1}"#),
        (json!({"$nor": null}), "bad_arg", "Bad argument for operator $nor: null"),
        (json!({"a": {"$not": 5}}), "bad_arg", "Bad argument for operator $not: 5"),
        (json!({"a": {"$in": 5}}), "bad_arg", "Bad argument for operator $in: 5"),
        (json!({"a": {"$nin": "x"}}), "bad_arg", r#"Bad argument for operator $nin: "x""#),
        (json!({"a": {"$exists": 1}}), "bad_arg", "Bad argument for operator $exists: 1"),
        (json!({"a": {"$type": 1}}), "bad_arg", "Bad argument for operator $type: 1"),
        (json!({"a": {"$size": -1}}), "bad_arg", "Bad argument for operator $size: -1"),
        (json!({"a": {"$size": 1.5}}), "bad_arg", "Bad argument for operator $size: 1.5"),
        (json!({"a": {"$mod": [0, 1]}}), "bad_arg", "Bad argument for operator $mod: [0,1]"),
        (json!({"a": {"$mod": [1, 2, 3]}}), "bad_arg", "Bad argument for operator $mod: [1,2,3]"),
        (json!({"a": {"$mod": [1.5, 2]}}), "bad_arg", "Bad argument for operator $mod: [1.5,2]"),
        (json!({"a": {"$all": 1}}), "bad_arg", "Bad argument for operator $all: 1"),
        (json!({"a": {"$elemMatch": []}}), "bad_arg", "Bad argument for operator $elemMatch: []"),
        (json!({"a": {"$allMatch": 1}}), "bad_arg", "Bad argument for operator $allMatch: 1"),
        (json!({"a": {"$keyMapMatch": 1}}), "bad_arg", "Bad argument for operator $keyMapMatch: 1"),
        (json!({"a": {"$regex": 1}}), "invalid_operator", "Invalid operator: $regex"),
        (json!({"a": {"$beginsWith": 1}}), "invalid_operator", "Invalid operator: $beginsWith"),
        (json!({"a": {"$near": 1}}), "not_supported", "Unsupported operator: $near"),
        (json!({"$text": "x"}), "not_supported", "Unsupported operator: $text"),
        (json!({"a": {"$bogus": 1}}), "invalid_operator", "Invalid operator: $bogus"),
        (json!({"$default": {"$text": "x"}}), "invalid_operator", "Invalid operator: $default"),
        (json!({"a..b": 1}), "invalid_field_name", "Invalid field name: a..b"),
        (json!({"": 7}), "invalid_selector", "One or more conditions is missing a field name."),
    ] {
        let refused = parse(selector.clone()).expect_err("refused");
        assert_eq!((refused.error(), refused.reason()), (error, reason), "{selector}");
        assert_eq!(refused.status(), 400);
    }
    for pattern in ["(", r"\1", "(?R)", "((a{1000}){1000}){1000}"] {
        let refused = parse(json!({"a": {"$regex": pattern}})).unwrap_err();
        assert_eq!(refused.error(), "bad_arg", "{pattern}");
        assert!(refused.reason().starts_with("Bad argument for operator $regex: "), "{refused}");
        assert!(!refused.reason().contains('\n'), "{refused}");
    }
    let long = "ä".repeat(100_000);
    assert!(parse(json!({ "$x": { "y": 1 }, format!("${long}"): 1 })).unwrap_err().reason().len() < 300);
    assert!(parse(json!({"a": {"$in": long}})).unwrap_err().reason().len() < 300);
}

#[test]
fn depth_is_bounded_in_selectors_and_free_in_documents() {
    let nest = |depth: usize, open: &str, close: &str, inner: &str| {
        let text = format!("{}{inner}{}", open.repeat(depth), close.repeat(depth));
        JsonText::parse(text.as_bytes()).unwrap()
    };
    assert!(Selector::parse(&nest(MAX_DEPTH - 1, r#"{"$not":"#, "}", r#"{"a":1}"#)).is_ok());
    for too_deep in [
        nest(MAX_DEPTH, r#"{"$not":"#, "}", r#"{"a":1}"#),
        nest(100_000, r#"{"a":"#, "}", "1"),
        nest(100_000, r#"{"a":["#, "]}", "1"),
    ] {
        assert_eq!(Selector::parse(&too_deep).unwrap_err().error(), "invalid_selector");
    }
    let deep = nest(100_000, r#"{"a":["#, "]}", "1");
    for (selector, expected) in [
        (json!({"a": {"$gt": [{"a": [1]}]}}), true),
        (json!({"a": {"$eq": [{"a": [1]}]}}), false),
        (json!({"a": {"$elemMatch": {"a": {"$size": 1}}}}), true),
        (json!({"a.0.a.0.a": {"$type": "array"}}), true),
        (json!({"a": {"$all": [1]}}), false),
    ] {
        assert_eq!(parse(selector.clone()).unwrap().matches(deep.root()).unwrap(), expected, "{selector}");
    }
}

#[test]
fn ids_compare_by_their_bytes_and_other_strings_do_not() {
    let document = json!({"_id": "\u{e9}", "x": "\u{e9}", "y": [{"_id": "b"}]});
    for (selector, expected) in [
        (json!({"_id": "\u{e9}"}), true),
        (json!({"_id": "e\u{301}"}), false),
        (json!({"x": "e\u{301}"}), true),
        (json!({"_id": {"$in": ["a", "e\u{301}"]}}), false),
        (json!({"_id": {"$nin": ["a", "e\u{301}"]}}), true),
        (json!({"_id": {"$in": ["z", "\u{e9}", "a", null]}}), true),
        (json!({"x": {"$in": ["z", "e\u{301}", "a", null]}}), true),
        (json!({"_id": {"$gt": "z"}}), true),
        (json!({"x": {"$gt": "z"}}), false),
        (json!({"_id": {"$gt": null}}), true),
        (json!({"_id": {"$gt": {}}}), true),
        (json!({"x": {"$gt": {}}}), false),
        (json!({"y": {"$elemMatch": {"_id": {"$gt": "B"}}}}), true),
        (json!({"$not": {"_id": "e\u{301}"}}), true),
    ] {
        assert_eq!(matches(selector.clone(), document.clone()), expected, "{selector}");
    }
}

#[test]
fn lists_of_values_hold_what_couchdb_fails_at() {
    check(
        json!({"$in": [null, [1], {"a": 1, "b": 2}]}),
        &[
            (true, json!(null)),
            (true, json!([[1]])),
            (true, json!({"a": 1, "b": 2})),
            (false, json!({"b": 2, "a": 1})),
            (false, json!(0)),
        ],
    );
    check(json!({"$all": [[2]]}), &[(true, json!([2])), (true, json!([[2], 1])), (false, json!([3]))]);
    check(json!({"$all": [1]}), &[(true, json!([1])), (false, json!([1.0]))]);
    check(json!({"$all": [[602]]}), &[(true, json!([602.0])), (true, json!([[602]])), (false, json!([[602.0]]))]);
    check(json!({"$eq": {"a": 1, "b": 2}}), &[(true, json!({"a": 1.0, "b": 2})), (false, json!({"b": 2, "a": 1}))]);
    check(
        json!({"$eq": 9007199254740993_i64}),
        &[(false, json!(9007199254740992_i64)), (false, json!(9007199254740992.0))],
    );
    check(json!({"$eq": "ab"}), &[(true, json!("a\u{0}b"))]);
}

#[test]
fn an_empty_combination_is_told_from_everything() {
    for (selector, expected) in [
        (json!({}), false),
        (json!({"$and": []}), true),
        (json!({"$or": []}), true),
        (json!({"$nor": []}), true),
        (json!({"a": 1, "$or": []}), false),
        (json!({"a": {"$in": []}}), false),
    ] {
        assert_eq!(parse(selector.clone()).unwrap().is_empty_combination(), expected, "{selector}");
    }
}

#[test]
fn conditions_and_expressions_are_counted() {
    let conditions = |count: usize| json!({"$or": vec![json!({"a": 1}); count]});
    assert!(parse(conditions(MAX_CONDITIONS)).unwrap().matches(text(&json!({"a": 1})).root()).unwrap());
    let refused = parse(conditions(MAX_CONDITIONS + 1)).unwrap_err();
    assert_eq!(refused.error(), "invalid_selector");
    assert_eq!(refused.reason(), "The selector has more than 10000 conditions.");
    let inside = |count: usize| json!({"a": {"$elemMatch": {"$or": vec![json!({"$regex": "x"}); count]}}});
    assert!(parse(inside(MAX_REGEXES)).is_ok());
    let refused = parse(inside(MAX_REGEXES + 1)).unwrap_err();
    assert_eq!(refused.reason(), "The selector has more than 100 regular expressions.");
    // Patterns that other engines take exponential time for take one pass over the text here.
    let long = json!({"a": "a".repeat(200_000) + "!"});
    for pattern in ["^(a+)+$", "(a|aa)+$", "(.*a){10}b", "a{50}(?:a?){50}$"] {
        assert!(!matches(json!({"a": {"$regex": pattern}}), long.clone()), "{pattern}");
    }
    // Patterns that need backtracking have a limit of steps, also in negations and lists.
    for selector in [
        json!({"a": {"$regex": "^(?=a)(a+)+$"}}),
        json!({"a": {"$not": {"$regex": "^(?=a)(a+)+$"}}}),
        json!({"$or": [{"b": 1}, {"a": {"$regex": r"(a|aa)+\1$"}}]}),
    ] {
        let refused = parse(selector.clone()).unwrap().matches(text(&long).root()).unwrap_err();
        assert_eq!((refused.status(), refused.error()), (400, "bad_arg"), "{selector}");
    }
    // All texts and names of a document and all expressions share the steps. Each text has more for its length.
    let texts = json!({"a": vec!["aaaaaaaaaaaaaa!"; 1_000]});
    let names: serde_json::Map<_, _> = (0..1_000).map(|n| (format!("aaaaaaaaaaaaaa{n}!"), json!(1))).collect();
    let one = json!({"$regex": "^(?=a)(a+)+$"});
    for (selector, document) in [
        (json!({"a": {"$allMatch": {"$not": one}}}), texts.clone()),
        (json!({"a": {"$elemMatch": one}}), texts.clone()),
        (json!({"a": {"$keyMapMatch": one}}), json!({"a": names})),
        (json!({"$or": vec![json!({"a": one}); 100]}), json!({"a": "aaaaaaaaaaaaaa!"})),
    ] {
        let refused = parse(selector.clone()).unwrap().matches(text(&document).root());
        assert_eq!(refused.unwrap_err().error(), "bad_arg", "{selector}");
    }
    assert!(matches(
        json!({"a": {"$allMatch": {"$regex": "^(?=a).{14}!"}}}),
        json!({"a": vec!["aaaaaaaaaaaaaa!"; 100_000]})
    ));
    // An earlier part that decides is enough.
    let either = json!({"$or": [{"a": {"$gt": null}}, {"a": {"$regex": "^(?=a)(a+)+$"}}]});
    assert!(matches(either, long.clone()));
    // Combinations without conditions are counted too, and chains of them.
    let empties = |part: &str, count: usize| text_of(&format!(r#"{{"$or":[{}]}}"#, vec![part; count].join(",")));
    let chain = format!("{}{}", r#"{"$and":["#.repeat(9), "]}".repeat(9));
    for (part, nodes) in [(r#"{"$and":[]}"#, 1), (chain.as_str(), 9)] {
        assert!(Selector::parse(&empties(part, 50_000 / nodes)).is_ok());
        assert_eq!(Selector::parse(&empties(part, 100_000 / nodes + 1)).unwrap_err().error(), "invalid_selector");
    }
    // Arguments do not count as conditions.
    let many: Vec<u32> = (0..100_000).collect();
    assert!(parse(json!({"a": {"$in": many}})).unwrap().matches(text(&json!({"a": many})).root()).unwrap());
}

fn text_of(json: &str) -> JsonText {
    JsonText::parse(json.as_bytes()).unwrap()
}

#[test]
fn long_names_are_counted_for_each_condition() {
    let selector = |name: usize, conditions: usize| {
        let list = vec![r#"{"$gt":1}"#; conditions].join(",");
        let text = format!(r#"{{"{}":{{"$or":[{list}]}}}}"#, "n".repeat(name));
        Selector::parse(&JsonText::parse(text.as_bytes()).unwrap())
    };
    assert!(selector(100, 9_000).is_ok());
    assert_eq!(selector(1_000, 1_001).unwrap_err().error(), "invalid_selector");
}
