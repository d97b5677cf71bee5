use std::sync::Arc;

use json::{JsonText, JsonWriter};

use super::*;
use crate::query::Query;

pub(super) fn text(json: &str) -> JsonText {
    JsonText::parse(json.as_bytes()).unwrap()
}

fn query(body: &str) -> Query {
    Query::parse(&text(body)).unwrap()
}

/// The index that a body of `_index` defines, by way of its design document.
fn index(design: &str, name: &str, def: &str) -> Arc<Index> {
    let new = NewIndex::parse(&text(&format!(r#"{{"index":{def}}}"#))).unwrap();
    let design_id = format!("_design/{design}");
    let body = new.add_to(&design_id, name, None).unwrap().unwrap();
    let mut all = Index::all_in(&design_id, body.root(), false);
    assert_eq!(all.len(), 1);
    Arc::new(all.remove(0))
}

fn def(index: &Index) -> String {
    let mut out = Vec::new();
    index.write_def(&mut JsonWriter::new(&mut out));
    String::from_utf8(out).unwrap()
}

#[test]
fn an_index_becomes_the_design_document_that_couchdb_writes() {
    let new = NewIndex::parse(&text(
        r#"{"index": {"fields": ["foo", {"a.b": "asc"}]}, "ddoc": "d", "name": "foo-index", "type": "json"}"#,
    ))
    .unwrap();
    assert_eq!((new.ddoc.as_deref(), new.name.as_deref()), (Some("d"), Some("foo-index")));
    let design = new.add_to("_design/d", "foo-index", None).unwrap().unwrap();
    assert_eq!(
        design.as_str(),
        r#"{"language":"query","views":{"foo-index":{"map":{"fields":{"foo":"asc","a.b":"asc"},"partial_filter_selector":{}},"reduce":"_count","options":{"def":{"fields":["foo",{"a.b":"asc"}]}}}}}"#
    );
    // Adding the same index again changes nothing.
    assert_eq!(new.add_to("_design/d", "foo-index", Some(&design)).unwrap(), None);
    let read = Index::all_in("_design/d", design.root(), false);
    assert_eq!(def(&read[0]), r#"{"fields":[{"foo":"asc"},{"a.b":"asc"}]}"#);
    // A second index is added, and then the first one is redefined.
    let other = NewIndex::parse(&text(
        r#"{"index": {"fields": [{"x": "desc"}], "partial_filter_selector": {"y": 1}}, "ddoc": "_design/d"}"#,
    ))
    .unwrap();
    let both = other.add_to("_design/d", "second", Some(&design)).unwrap().unwrap();
    let names: Vec<String> = Index::all_in("_design/d", both.root(), false)
        .iter()
        .map(|index| format!("{} {}", index.name(), def(index)))
        .collect();
    assert_eq!(
        names,
        [
            r#"foo-index {"fields":[{"foo":"asc"},{"a.b":"asc"}]}"#,
            r#"second {"fields":[{"x":"desc"}],"partial_filter_selector":{"y":{"$eq":1}}}"#,
        ]
    );
    let replaced = other.add_to("_design/d", "foo-index", Some(&both)).unwrap().unwrap();
    assert_eq!(
        def(&Index::all_in("_design/d", replaced.root(), false)[0]),
        def(&Index::all_in("_design/d", both.root(), false)[1])
    );
    // The indexes are removed one by one, and finally the document.
    let left = NewIndex::remove_from("foo-index", &both).unwrap().unwrap();
    assert_eq!(Index::all_in("_design/d", left.root(), false).len(), 1);
    assert_eq!(NewIndex::remove_from("second", &left).unwrap(), None);
    assert_eq!(NewIndex::remove_from("third", &left).unwrap_err().error(), "invalid_index");
    // The document's other members stay.
    let with_more = text(r#"{"language":"query","note":1,"views":{"v":{}}}"#);
    assert_eq!(NewIndex::remove_from("v", &with_more).unwrap().unwrap().as_str(), r#"{"language":"query","note":1}"#);
}

#[test]
fn of_a_repeated_field_the_last_one_counts() {
    let fields = def(&index("d", "n", r#"{"fields": ["a", "b", "c", "a", "b"]}"#));
    assert_eq!(fields, r#"{"fields":[{"c":"asc"},{"a":"asc"},{"b":"asc"}]}"#);
}

/// The normal form of a filter has an empty name for an element itself.
#[test]
fn a_filter_of_elements_is_read_back() {
    let new = r#"{"fields": ["a"], "partial_filter_selector": {"l": {"$elemMatch": {"$gt": 1, "$ne": 3}}}}"#;
    let index = index("d", "n", new);
    let shown = r#"{"l":{"$elemMatch":{"$and":[{"":{"$gt":1}},{"":{"$ne":3}}]}}}"#;
    assert_eq!(def(&index), format!(r#"{{"fields":[{{"a":"asc"}}],"partial_filter_selector":{shown}}}"#));
    assert!(index.row(text(r#"{"a": 1, "l": [1, 2]}"#).root()).is_some());
    assert!(index.row(text(r#"{"a": 1, "l": [1, 3]}"#).root()).is_none());
}

/// A filter that is written with empty names, as CouchDB shows it, is the filter without them.
#[test]
fn a_definition_has_no_empty_names() {
    let of = |filter: &str| {
        let view = format!(r#"{{"map":{{"fields":{{"a":"asc"}},"partial_filter_selector":{filter}}},"options":{{}}}}"#);
        Index::parse("_design/d", "n", &text(&view), false).unwrap()
    };
    for (given, kept, shown) in [
        (
            r#"{"l":{"$elemMatch":{"$and":[{"":{"$gt":1}},{"$not":{"":{"$allMatch":{"":{"$ne":3}}}}}]}}}"#,
            r#"{"l":{"$elemMatch":{"$and":[{"$gt":1},{"$not":{"$allMatch":{"$ne":3}}}]}}}"#,
            r#"{"l":{"$elemMatch":{"$and":[{"":{"$gt":1}},{"$not":{"":{"$allMatch":{"":{"$ne":3}}}}}]}}}"#,
        ),
        // As a person writes it: not in the normal form.
        (
            r#"{"l":{"$elemMatch":{"":3}}}"#,
            r#"{"l":{"$elemMatch":{"$eq":3}}}"#,
            r#"{"l":{"$elemMatch":{"":{"$eq":3}}}}"#,
        ),
        (
            r#"{"b":1,"l":{"$elemMatch":{"$gt":1}}}"#,
            r#"{"b":1,"l":{"$elemMatch":{"$gt":1}}}"#,
            r#"{"b":1,"l":{"$elemMatch":{"$gt":1}}}"#,
        ),
        (r#"{"l":{"$eq":{"":1}}}"#, r#"{"l":{"$eq":{"":1}}}"#, r#"{"l":{"$eq":{"":1}}}"#),
    ] {
        let index = of(given);
        assert_eq!(index.definition().get("map").unwrap().get(FILTER).unwrap().text(), kept, "{given}");
        assert_eq!(def(&index), format!(r#"{{"fields":[{{"a":"asc"}}],"partial_filter_selector":{shown}}}"#));
        // The kept definition is the same index, and is shown as before.
        let again = Index::parse("_design/d", "n", index.definition(), false).unwrap();
        assert_eq!((again.definition(), def(&again)), (index.definition(), def(&index)), "{given}");
    }
}

#[test]
fn bad_definitions_are_refused_in_couchdbs_words() {
    for (body, status, error, reason) in [
        (r#"{}"#, 400, "missing_required_key", "Missing required key: index"),
        (r#"{"index": {}}"#, 400, "missing_required_key", "Missing required key: fields"),
        (r#"{"index": 1}"#, 400, "invalid_index", "JSON indexes must be an object, not: 1"),
        (r#"{"index": {"fields": "a"}}"#, 400, "invalid_sort_json", "Sort must be an array of sort specs, not: \"a\""),
        (r#"{"index": {"fields": [1]}}"#, 400, "invalid_sort_field", "Invalid sort field: 1"),
        (r#"{"index": {"fields": ["a..b"]}}"#, 400, "invalid_field_name", "Invalid field name: a..b"),
        (
            r#"{"index": {"fields": [{"a": "asc"}, {"b": "desc"}]}}"#,
            400,
            "unsupported_mixed_sort",
            "Sorts currently only support a single direction for all fields.",
        ),
        (r#"{"index": {"fields": [], "x": 1}}"#, 400, "invalid_key", "Invalid key x for this request."),
        (
            r#"{"index": {"fields": [], "partial_filter_selector": 1}}"#,
            400,
            "invalid_selector_json",
            "Selector must be a JSON object, not: 1",
        ),
        (
            r#"{"index": {"fields": [], "partial_filter_selector": {"a": {"$x": 1}}}}"#,
            400,
            "invalid_operator",
            "Invalid operator: $x",
        ),
        (r#"{"index": {"fields": []}, "x": 1}"#, 400, "invalid_key", "Invalid key x for this request."),
        (
            r#"{"index": {"fields": []}, "name": ""}"#,
            400,
            "invalid_empty_string",
            "Index name or ddoc cannot be empty string",
        ),
        (r#"{"index": {"fields": []}, "ddoc": 1}"#, 400, "invalid_string", "Invalid string: 1"),
        (r#"{"index": {"fields": []}, "w": 0}"#, 400, "invalid_pos_integer", "0 is not an integer greater than zero"),
        (r#"{"index": {"fields": []}, "type": "x"}"#, 400, "invalid_index", "Invalid type for index: x"),
        (r#"{"index": {"fields": []}, "type": "text"}"#, 503, "required index service unavailable", "text"),
        (
            r#"{"index": {"fields": []}, "partitioned": 1}"#,
            400,
            "invalid_partitioned_value",
            "Invalid value for partitioned: 1",
        ),
    ] {
        let refused = NewIndex::parse(&text(body)).unwrap_err();
        assert_eq!((refused.status(), refused.error(), refused.reason()), (status, error, reason), "{body}");
    }
    let new = NewIndex::parse(&text(r#"{"index": {"fields": []}}"#)).unwrap();
    let script = text(r#"{"language":"javascript","views":{}}"#);
    assert_eq!(new.add_to("_design/d", "n", Some(&script)).unwrap_err().error(), "invalid_ddoc_lang");
    let long = format!(r#"{{"index": {{"fields": ["{}"]}}}}"#, "x".repeat(MAX_DEFINITION));
    assert_eq!(NewIndex::parse(&text(&long)).unwrap_err().error(), "invalid_index");
    let many = format!(r#"{{"index": {{"fields": [{}"x"]}}}}"#, "\"y\",".repeat(MAX_COLUMNS));
    assert_eq!(NewIndex::parse(&text(&many)).unwrap_err().error(), "invalid_index");
}

#[test]
fn what_is_to_be_deleted_is_a_list_of_names() {
    assert_eq!(parse_bulk_delete(&text(r#"{"docids": ["a", "_design/b"], "w": 3}"#)).unwrap(), ["a", "_design/b"]);
    for (body, error) in [
        ("{}", "missing_required_key"),
        (r#"{"docids": "a"}"#, "invalid_bulk_docs"),
        (r#"{"docids": [null]}"#, "invalid_bulk_docs"),
        (r#"{"docids": [1]}"#, "invalid_index_name"),
        (r#"{"docids": ["a/b/c"]}"#, "invalid_index_name"),
        (r#"{"docids": [], "w": -1}"#, "invalid_pos_integer"),
        (r#"{"docids": [], "x": 1}"#, "invalid_key"),
    ] {
        assert_eq!(parse_bulk_delete(&text(body)).unwrap_err().error(), error, "{body}");
    }
}

#[test]
fn a_partitioned_index_has_its_own_design_document() {
    let new =
        |partitioned: &str| NewIndex::parse(&text(&format!(r#"{{"index": {{"fields": []}}{partitioned}}}"#))).unwrap();
    let global = new(r#", "partitioned": false"#);
    let design = global.add_to("_design/d", "n", None).unwrap().unwrap();
    assert_eq!(design.get("options").unwrap().text(), r#"{"partitioned":false}"#);
    assert_eq!(global.add_to("_design/d", "n", Some(&design)).unwrap(), None);
    assert_eq!(new("").add_to("_design/d", "n", Some(&design)).unwrap_err().error(), "invalid_partitioned_option");
}

#[test]
fn views_that_define_no_index_are_left_out() {
    let view = |view: &str| format!(r#"{{"language":"query","views":{{"v":{view}}}}}"#);
    let good = r#"{"map":{"fields":{"a":"asc"}},"options":{}}"#;
    assert_eq!(Index::all_in("_design/d", text(&view(good)).root(), false).len(), 1);
    for bad in [
        "1",
        "{}",
        r#"{"map":"function(doc) {}","options":{}}"#,
        r#"{"map":{"fields":{"a":"asc"}}}"#,
        r#"{"map":{"fields":["a"]},"options":{}}"#,
        r#"{"map":{"fields":{"a..b":"asc"}},"options":{}}"#,
        r#"{"map":{"fields":{"a":"asc"},"partial_filter_selector":1},"options":{}}"#,
        r#"{"map":{"fields":{"a":"asc"},"partial_filter_selector":{"b":{"$x":1}}},"options":{}}"#,
    ] {
        assert!(Index::all_in("_design/d", text(&view(bad)).root(), false).is_empty(), "{bad}");
    }
    for other in ["{}", "1", r#"{"views":{}}"#, r#"{"language":"query"}"#, r#"{"language":"query","views":[1]}"#] {
        assert!(Index::all_in("_design/d", text(other).root(), false).is_empty(), "{other}");
    }
    let script = view(good).replace("\"query\"", "\"javascript\"");
    assert!(Index::all_in("_design/d", text(&script).root(), false).is_empty());
}

#[test]
fn what_was_kept_of_an_index_is_read_back_and_its_signature_tells_definitions_apart() {
    let first = index("d", "n", r#"{"fields":["a"]}"#);
    let again = Index::parse("_design/d", "n", first.definition(), false).unwrap();
    assert_eq!((again.design_id(), again.name(), def(&again)), ("_design/d", "n", def(&first)));
    assert_eq!(again.signature(), first.signature());
    assert_eq!(index("other", "name", r#"{"fields":["a"]}"#).signature(), first.signature());
    assert_ne!(index("d", "n", r#"{"fields":["b"]}"#).signature(), first.signature());
    let partial = index("d", "n", r#"{"fields":["a"],"partial_filter_selector":{"x":1}}"#);
    assert_ne!(partial.signature(), first.signature());
}

/// If this fails, the collation has changed: raise the number of the stored format, which is in `kv-api`, too.
#[test]
fn the_version_rises_with_the_collations() {
    assert_eq!(COLLATION_VERSION, "1-icu4x-2.4");
    // A row with values of all kinds, as it was when the version was set.
    let all = index("d", "n", r#"{"fields":["_id","a"]}"#);
    let row = all.row(text(r#"{"_id":"x\u0001","a":[null,true,1,"b",{"c":-1e30}]}"#).root()).unwrap();
    let hex: String = row.key.iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = "4059010501050050102131bff0000000000000402d010501050060402f0105010500\
                    30ffffffe0f4fefefefefefefefd9caac0ced8bdc2ff0000";
    assert_eq!(hex, expected);
}

#[test]
fn documents_have_the_rows_that_couchdb_gives_them() {
    let both = index("d", "n", r#"{"fields":["a","b.c"]}"#);
    let row = both.row(text(r#"{"_id":"x","a":1,"b":{"c":null}}"#).root()).unwrap();
    assert_eq!(row.values.unwrap().as_str(), "[1,null]");
    for document in [r#"{"_id":"x"}"#, r#"{"_id":"x","a":1}"#, r#"{"_id":"x","a":1,"b":1}"#, r#"{"a":1,"b":[{"c":1}]}"#]
    {
        assert_eq!(both.row(text(document).root()), None, "{document}");
    }
    let partial = index("d", "n", r#"{"fields":["_id"],"partial_filter_selector":{"a":{"$gt":1}}}"#);
    assert!(partial.row(text(r#"{"_id":"x","a":2}"#).root()).is_some());
    assert!(partial.row(text(r#"{"_id":"x","a":1}"#).root()).is_none());
    // Without fields, every document has a row.
    assert_eq!(index("d", "n", r#"{"fields":[]}"#).row(text("{}").root()).unwrap().key, b"");
}

/// CouchDB sorts ids in an index by collation, reads the range of a selector in that order, and then compares by bytes.
#[test]
fn ids_in_an_index_are_collated_and_matched_by_their_bytes() {
    let indexes = [index("d", "n", r#"{"fields":["t","_id"]}"#)];
    let mut ids = ["Z", "z", "B", "b", "aB", "ab", r"a\u0000b", r"a\u0301", "á", "A", "a", "2", "10", "~"];
    let document = |id: &str| text(&format!(r#"{{"_id":"{id}","t":1}}"#));
    let key = |id: &str| indexes[0].row(document(id).root()).unwrap().key;
    ids.sort_by_key(|id| (key(id), document(id).get("_id").unwrap().as_str().unwrap().into_owned()));
    let found = |condition: &str| {
        let query = query(&format!(r#"{{"selector":{{"t":1,"_id":{condition}}}}}"#));
        let Choice::Scan(scan) = QueryPlan::of(&query, &indexes, Purpose::Find).unwrap().choice else {
            panic!("no index")
        };
        let is_read = |id: &str| (&scan.range.start..&scan.range.end).contains(&&key(id));
        let found = ids.iter().filter(|id| is_read(id) && query.selector.matches(document(id).root()).unwrap());
        found.copied().collect::<Vec<_>>().join(" ")
    };
    for (condition, expected) in [
        (r#"{"$gt":null}"#, r"~ 10 2 a A a\u0301 á a\u0000b ab aB b B z Z"),
        (r#"{"$gt":"a"}"#, r"a\u0301 á a\u0000b ab aB b z"),
        (r#"{"$gt":"B"}"#, "z Z"),
        (r#"{"$gte":"A","$lt":"b"}"#, r"A a\u0301 a\u0000b ab aB"),
        (r#"{"$lt":"a"}"#, "10 2"),
        (r#"{"$beginsWith":"a"}"#, r"a a\u0000b ab aB"),
        (r#"{"$eq":"a"}"#, "a"),
        // Equal by collation, and greater or less by bytes.
        (r#"{"$gt":"a\u0301"}"#, "á b z"),
        // No value is between these by collation, so no range is read for any field.
        (r#"{"$gte":"a\u0301","$lt":"á"}"#, r"~ a\u0301 b z"),
        (r#"{"$lt":7}"#, ""),
    ] {
        assert_eq!(found(condition), expected, "{condition}");
    }
}

#[test]
fn long_keys_are_cut_and_long_values_left_out() {
    let long = index("d", "n", r#"{"fields":["a","b"]}"#);
    let row = |a: usize, b: &str| {
        let document = text(&format!(r#"{{"_id":"x","a":"{}","b":{b}}}"#, "x".repeat(a)));
        (long.row(document.root()).unwrap(), long.whole_key(document.root()).unwrap())
    };
    for length in [0, 10, 480, 485, 490, 500, 900, 1_000, 5_000, 100_000] {
        let (row, whole) = row(length, "1");
        assert_eq!(row.key, whole[..whole.len().min(MAX_KEY)], "{length}");
        let values = format!("[\"{}\",1]", "x".repeat(length));
        assert_eq!(
            row.values.map(|values| values.as_str().to_owned()),
            Some(values).filter(|it| it.len() <= MAX_VALUES)
        );
    }
    let (one, _) = row(100_000, "1");
    let (other, _) = row(100_000, "2");
    assert_eq!((one.key.len(), &one.key), (MAX_KEY, &other.key));
}

#[test]
fn a_row_tells_of_its_document() {
    let nested = index("d", "n", r#"{"fields":["a.b","c","a.d.0","_id"]}"#);
    let row = nested.row(text(r#"{"_id":"x","a":{"b":1,"d":[2]},"c":[3]}"#).root()).unwrap();
    let document = nested.document("x", &row.values.unwrap()).unwrap();
    assert_eq!(document.as_str(), r#"{"_id":"x","a":{"b":1,"d":{"0":2}},"c":[3]}"#);
}

/// Rows and what is made of them are not parsed, so they must be normalised as they are written.
#[test]
fn what_a_row_tells_is_normalised() {
    let nested = index("d", "n", r#"{"fields":["a.b","a","c\\.\"d","_id","c"]}"#);
    for id in ["x", "\"\\/", "\u{0}\n\u{7f}", "ä😀\u{2028}"] {
        let mut document = Vec::new();
        let mut json = JsonWriter::new(&mut document);
        json.begin_object().name("_id").str(id);
        json.name("a").value(text(r#"{"b":[-0,1e2,0.10,"\/\u00e4"]}"#).root());
        json.name("c").value(text(r#"{"b":{},"b":18446744073709551616}"#).root());
        json.name("c.\"d").null().end_object();
        let row = nested.row(text(std::str::from_utf8(&document).unwrap()).root()).unwrap();
        let values = row.values.unwrap();
        assert_eq!(JsonText::parse(values.as_bytes()).unwrap(), values);
        let derived = nested.document(id, &values).unwrap();
        assert_eq!(JsonText::parse(derived.as_bytes()).unwrap(), derived);
        assert_eq!(derived.get("_id").and_then(|id| id.as_str()).as_deref(), Some(id));
        assert_eq!(derived.get("a").unwrap().text(), r#"{"b":[0,100.0,0.1,"/ä"]}"#);
    }
}

/// The names of the indexes in a plan's choice and candidates.
fn explain(body: &str, indexes: &[Arc<Index>]) -> (String, Vec<String>) {
    let plan = QueryPlan::of(&query(body), indexes, Purpose::Explain).unwrap();
    let choice = match &plan.choice {
        Choice::Nothing => "nothing".to_owned(),
        Choice::AllDocs => "_all_docs".to_owned(),
        Choice::Scan(scan) => scan.index.name().to_owned(),
    };
    let name = |candidate: &Candidate| {
        let name = candidate.index.as_ref().map_or("_all_docs", |index| index.name());
        format!("{name} {} {} {}", candidate.is_usable, candidate.reason, candidate.ranking)
    };
    (choice, plan.candidates.iter().map(name).collect())
}

#[test]
fn the_planner_chooses_as_couchdb_does_and_says_why() {
    let indexes = [
        index("1", "a", r#"{"fields":["a"]}"#),
        index("2", "ab", r#"{"fields":["a","b"]}"#),
        index("3", "abc", r#"{"fields":["a","b","c"]}"#),
        index("4", "b", r#"{"fields":["b"]}"#),
        index("5", "partial", r#"{"fields":["a"],"partial_filter_selector":{"z":1}}"#),
    ];
    for (body, choice, candidates) in [
        (
            r#"{"selector":{"a":1}}"#,
            "a",
            &[
                "partial false is_partial 3",
                "b false field_mismatch 2",
                "abc false field_mismatch 2",
                "ab false field_mismatch 2",
                "_all_docs true unfavored_type 1",
            ][..],
        ),
        (
            r#"{"selector":{"a":1,"b":2}}"#,
            "ab",
            &[
                "partial false is_partial 5",
                "b true less_overlap 2",
                "abc false field_mismatch 4",
                "a true less_overlap 1",
                "_all_docs true unfavored_type 3",
            ],
        ),
        (
            r#"{"selector":{"a":1,"b":2},"use_index":"1"}"#,
            "a",
            &[
                "partial false is_partial 3",
                "b true excluded_by_user 1",
                "abc false field_mismatch 2",
                "ab true excluded_by_user 1",
                "_all_docs true excluded_by_user 1",
            ],
        ),
        (
            r#"{"selector":{"a":1},"use_index":["5","partial"]}"#,
            "partial",
            &[
                "b false field_mismatch 2",
                "abc false field_mismatch 2",
                "ab false field_mismatch 2",
                "a true excluded_by_user 1",
                "_all_docs true excluded_by_user 1",
            ],
        ),
        (
            r#"{"selector":{"x":1}}"#,
            "_all_docs",
            &[
                "partial false is_partial 2",
                "b false field_mismatch 1",
                "abc false field_mismatch 1",
                "ab false field_mismatch 1",
                "a false field_mismatch 1",
            ],
        ),
        (
            r#"{"selector":{"x":1},"sort":["y"]}"#,
            "nothing",
            &[
                "partial false is_partial 2",
                "b false field_mismatch 1",
                "abc false field_mismatch 1",
                "ab false field_mismatch 1",
                "a false field_mismatch 1",
                "_all_docs false field_mismatch 1",
            ],
        ),
    ] {
        let (chosen, listed) = explain(body, &indexes);
        assert_eq!(chosen, choice, "{body}");
        let listed: Vec<&str> = listed.iter().map(String::as_str).collect();
        assert_eq!(listed, candidates, "{body}");
    }
    for (body, choice) in [
        // The sort field need not be in the selector.
        (r#"{"selector":{},"sort":["a"]}"#, "a"),
        (r#"{"selector":{},"sort":[{"b":"desc"}]}"#, "b"),
        (r#"{"selector":{},"sort":["a","b"]}"#, "ab"),
        // A field with the same value in all results does not count.
        (r#"{"selector":{"a":1},"sort":["b"]}"#, "ab"),
        (r#"{"selector":{"a":{"$gt":1}},"sort":["b"]}"#, "b"),
        (r#"{"selector":{"a":1,"b":1,"c":{"$exists":true}}}"#, "abc"),
        (r#"{"selector":{"a":{"$exists":false}}}"#, "_all_docs"),
        (r#"{"selector":{"$or":[{"a":1},{"a":2}]}}"#, "a"),
        (r#"{"selector":{"$or":[{"a":1},{"b":2}]}}"#, "_all_docs"),
        (r#"{"selector":{"$and":[{"$or":[]},{"x":1}]}}"#, "_all_docs"),
        (r#"{"selector":{"a":{"$ne":1}}}"#, "a"),
        (r#"{"selector":{"_id":"x"},"sort":["_id"]}"#, "_all_docs"),
    ] {
        assert_eq!(explain(body, &indexes).0, choice, "{body}");
    }
    // Equal candidates are sorted by the document's id, then by name.
    let twins = [
        index("b", "x", r#"{"fields":["a"]}"#),
        index("a", "z", r#"{"fields":["a"]}"#),
        index("a", "y", r#"{"fields":["a"]}"#),
    ];
    let (choice, candidates) = explain(r#"{"selector":{"a":1}}"#, &twins);
    assert_eq!(choice, "y");
    assert_eq!(
        candidates,
        [
            "x true alphabetically_comes_after 2",
            "z true alphabetically_comes_after 1",
            "_all_docs true unfavored_type 3"
        ]
    );
}

#[test]
fn an_index_of_conflicts_is_not_used() {
    let indexes = [
        index("a", "n", r#"{"fields": ["_conflicts"]}"#),
        index("b", "n", r#"{"fields": ["x"], "partial_filter_selector": {"_conflicts.0": "1-a"}}"#),
    ];
    for body in [r#"{"selector": {"_conflicts": {"$exists": true}}}"#, r#"{"selector": {"x": 1}, "use_index": "b"}"#] {
        let plan = QueryPlan::of(&query(body), &indexes, Purpose::Find).unwrap();
        assert!(matches!(plan.choice, Choice::AllDocs), "{body}");
    }
}

#[test]
fn an_index_that_is_asked_for_and_cannot_be_used_is_said() {
    let indexes = [index("d", "a", r#"{"fields":["a"]}"#)];
    let plan = |body: &str, purpose| QueryPlan::of(&query(body), &indexes, purpose);
    let warnings = |body: &str| plan(body, Purpose::Find).unwrap().warnings.join("\n");
    assert_eq!(warnings(r#"{"selector":{"a":1}}"#), "");
    assert_eq!(warnings(r#"{"selector":{"b":1}}"#), "No matching index found, create an index to optimize query time.");
    assert_eq!(
        warnings(r#"{"selector":{"a":1},"use_index":"e"}"#),
        "_design/e was not used because it does not contain a valid index for this query."
    );
    assert_eq!(
        warnings(r#"{"selector":{"a":1},"use_index":["_design/d","b"]}"#),
        "_design/d, b was not used because it is not a valid index for this query."
    );
    for (body, purpose, error, reason) in [
        (
            r#"{"selector":{},"sort":["b"]}"#,
            Purpose::Find,
            "no_usable_index",
            "No index exists for this sort, try indexing by the sort fields.",
        ),
        (
            r#"{"selector":{"b":1},"allow_fallback":false}"#,
            Purpose::Find,
            "invalid_index",
            "You must specify an index with the `use_index` parameter.",
        ),
        (
            r#"{"selector":{"a":1},"use_index":"e","allow_fallback":false}"#,
            Purpose::Explain,
            "invalid_index",
            "_design/e specified by `use_index` could not be found or it is not suitable.",
        ),
        (
            r#"{"selector":{"a":1},"use_index":["e","f"],"allow_fallback":false}"#,
            Purpose::Explain,
            "invalid_index",
            "_design/e, f specified by `use_index` could not be found or it is not suitable.",
        ),
    ] {
        let refused = plan(body, purpose).unwrap_err();
        assert_eq!((refused.error(), refused.reason()), (error, reason), "{body}");
    }
    // With a usable index, no fallback is needed.
    assert!(plan(r#"{"selector":{"a":1},"allow_fallback":false}"#, Purpose::Find).is_ok());
}

/// The documents that a query reads. `documents` are given by their values of `a` and `b`.
fn reads(selector: &str, fields: &str, documents: &[&str]) -> Vec<usize> {
    let indexes = [index("d", "n", r#"{"fields":["a","b"]}"#)];
    let plan =
        QueryPlan::of(&query(&format!(r#"{{"selector":{selector}{fields}}}"#)), &indexes, Purpose::Find).unwrap();
    let Choice::Scan(scan) = plan.choice else { panic!("{selector}") };
    let key = |document: &str| indexes[0].row(text(document).root()).unwrap().key;
    let within = |document: &str| key(document) >= scan.range.start && key(document) < scan.range.end;
    (0..documents.len()).filter(|&at| within(documents[at])).collect()
}

#[test]
fn no_more_is_read_than_the_first_fields_allow() {
    let documents = [
        r#"{"a":1,"b":1}"#,
        r#"{"a":1,"b":2}"#,
        r#"{"a":2,"b":1}"#,
        r#"{"a":"ab","b":1}"#,
        r#"{"a":"abc","b":1}"#,
        r#"{"a":"b","b":1}"#,
    ];
    for (selector, expected) in [
        (r#"{"a":1,"b":{"$gt":1}}"#, &[1][..]),
        (r#"{"a":1,"b":{"$lt":2}}"#, &[0]),
        (r#"{"a":1,"b":{"$lte":2}}"#, &[0, 1]),
        (r#"{"a":{"$gt":1},"b":{"$gt":null}}"#, &[2, 3, 4, 5]),
        (r#"{"a":{"$lt":2},"b":{"$gt":null}}"#, &[0, 1]),
        (r#"{"a":{"$lte":2},"b":{"$lt":1}}"#, &[0, 1]),
        (r#"{"a":{"$beginsWith":"ab"},"b":1}"#, &[3, 4]),
        (r#"{"a":{"$gte":1,"$lte":1},"b":2}"#, &[1]),
        (r#"{"a":{"$gt":1,"$lt":"b"},"b":1}"#, &[2, 3, 4]),
        (r#"{"a":{"$exists":true},"b":2}"#, &[0, 1, 2, 3, 4, 5]),
        (r#"{"a":{"$gt":2,"$lt":2},"b":2}"#, &[]),
    ] {
        assert_eq!(reads(selector, "", &documents), expected, "{selector}");
    }
}

#[test]
fn ranges_are_shown_as_couchdb_shows_them() {
    let indexes = [index("d", "n", r#"{"fields":["a","b"]}"#)];
    for (selector, low, high, is_empty) in [
        (r#"{"a":1,"b":2}"#, "[1, 2]", "[1, 2]", false),
        (r#"{"a":{"$gt":1},"b":{"$lt":5}}"#, "[1]", "[]", false),
        (r#"{"a":{"$gt":1,"$lte":9},"b":{"$gte":5}}"#, "[1, 5]", "[9]", false),
        (r#"{"a":{"$exists":true},"b":{"$exists":true}}"#, "[]", "[]", false),
        (r#"{"a":{"$beginsWith":"x"},"b":1}"#, r#"["x", 1]"#, "[\"x\u{ffff}\", 1]", false),
        (r#"{"a":{"$gt":1,"$lt":1},"b":1}"#, "[1]", "[1]", true),
        // Among equal values, the one that closed the range is shown.
        (r#"{"a":{"$gte":1,"$lte":1.0},"b":2}"#, "[1.0, 2]", "[1.0, 2]", false),
        (r#"{"a":{"$lte":1,"$gte":1.0},"b":2}"#, "[1.0, 2]", "[1.0, 2]", false),
        (r#"{"a":{"$eq":1,"$gte":1.0},"b":2}"#, "[1, 2]", "[1, 2]", false),
    ] {
        let query = query(&format!(r#"{{"selector":{selector}}}"#));
        let Choice::Scan(scan) = QueryPlan::of(&query, &indexes, Purpose::Find).unwrap().choice else {
            panic!("{selector}")
        };
        let list =
            |values: &[JsonText]| format!("[{}]", values.iter().map(JsonText::as_str).collect::<Vec<_>>().join(", "));
        assert_eq!(
            (list(&scan.low), list(&scan.high), scan.is_empty),
            (low.into(), high.into(), is_empty),
            "{selector}"
        );
    }
}

#[test]
fn an_index_covers_what_it_has() {
    let indexes = [index("d", "n", r#"{"fields":["a","b.c"]}"#)];
    for (body, expected) in [
        (r#"{"selector":{"a":1,"b.c":1}}"#, false),
        (r#"{"selector":{"a":1,"b":{"c":1}},"fields":["_id","b.c"]}"#, true),
        (r#"{"selector":{"a":1,"b.c":1},"fields":["b"]}"#, false),
        (r#"{"selector":{"a":1,"b.c":1,"d":1},"fields":["a"]}"#, false),
        (r#"{"selector":{"a":{"$elemMatch":{"x":1}},"b.c":1},"fields":["a"]}"#, true),
    ] {
        let Choice::Scan(scan) = QueryPlan::of(&query(body), &indexes, Purpose::Find).unwrap().choice else {
            panic!("{body}")
        };
        assert_eq!(scan.is_covering, expected, "{body}");
    }
}

#[test]
fn a_row_depends_on_the_fields_and_on_those_of_the_filter() {
    let parts = |defs: &[&str]| {
        let indexes: Vec<_> = defs.iter().map(|def| index("d", "i", def)).collect();
        let parts = Index::parts(indexes.iter().map(|index| &**index))?;
        Some(parts.iter().map(|path| path.join("/")).collect::<Vec<_>>())
    };
    let of = |defs: &[&str]| parts(defs).unwrap();
    assert_eq!(of(&[r#"{"fields":["b","a","_id","_rev"]}"#]), ["a", "b"]);
    assert_eq!(of(&[r#"{"fields":["a.b.c","a.bc","ab"]}"#]), ["a/b/c", "a/bc", "ab"]);
    assert_eq!(of(&[r#"{"fields":["a.b.c"]}"#, r#"{"fields":["a.b"]}"#]), ["a/b"], "one is below the other");
    assert_eq!(of(&[r#"{"fields":["a.b.0.c","0.x.+1"]}"#]), ["0/x", "a/b"], "arrays are read whole");
    let filtered = |filter: &str| of(&[&format!(r#"{{"fields":["a"],"partial_filter_selector":{filter}}}"#)]);
    assert_eq!(filtered(r#"{"b.c":{"$gt":1},"$or":[{"d":1},{"e":{"$elemMatch":{"f":1}}}]}"#), ["a", "b/c", "d", "e"]);
    assert_eq!(filtered(r#"{"b.c":{"$exists":false}}"#), ["a", "b"], "b may be a scalar");
    assert_eq!(filtered(r#"{"$nor":[{"b.c":{"$exists":true}}]}"#), ["a", "b"]);
    assert_eq!(parts(&[r#"{"fields":["a"]}"#, r#"{"fields":["_attachments.f.length"]}"#]), None);
    assert_eq!(parts(&[r#"{"fields":["a"],"partial_filter_selector":{"_attachments":{"$exists":true}}}"#]), None);
}

#[test]
fn rows_of_a_partition_are_one_range() {
    let new = NewIndex::parse(&text(r#"{"index":{"fields":["a"]}}"#)).unwrap();
    let design = new.add_to("_design/d", "n", None).unwrap().unwrap();
    let [split] = Index::all_in("_design/d", design.root(), true).try_into().unwrap();
    let [whole] = Index::all_in("_design/d", design.root(), false).try_into().unwrap();
    assert!(split.is_partitioned() && !whole.is_partitioned() && !split.is_same(&whole));
    assert_ne!(split.signature(), whole.signature());
    let global = text(r#"{"language":"query","options":{"partitioned":false},"views":{}}"#);
    assert!(!super::has_partitions(global.root(), true));

    let indexes = [Arc::new(split), Arc::new(whole)];
    let scan = |body: &str| match QueryPlan::of(&query(body), &indexes, Purpose::Find).unwrap().choice {
        Choice::Scan(scan) => scan,
        other => panic!("{other:?}"),
    };
    let of_all = scan(r#"{"selector":{"a":{"$gt":1}}}"#);
    let of_p = scan(r#"{"selector":{"a":{"$gt":1}},"partition":"p"}"#);
    assert!(!of_all.index.is_partitioned() && of_p.index.is_partitioned());
    let is_read = |id: &str, a: &str| {
        let row = of_p.index.row(text(&format!(r#"{{"_id":"{id}","_rev":"1-a","a":{a}}}"#)).root()).unwrap();
        of_p.range.start <= row.key && row.key < of_p.range.end
    };
    assert!(is_read("p:1", "2") && is_read("p:x:y", "[]") && is_read("p:1", r#""\uffff""#) && !is_read("p:1", "1"));
    assert!(!is_read("o:1", "2") && !is_read("pp:1", "2") && !is_read("q:1", "0"));
    assert!(of_p.index.row(text(r#"{"_id":"p","_rev":"1-a","a":1}"#).root()).is_none(), "it has no partition");

    let found = query(r#"{"selector":{"_id":{"$gte":"a","$lt":"p:z"}},"partition":"p"}"#);
    let ids = found.id_range();
    assert_eq!((ids.low, ids.high), (Some(("p:".to_owned(), true)), Some(("p:z".to_owned(), false))));
    assert!(found.matches(text(r#"{"_id":"p:1"}"#).root()).unwrap());
    assert!(!found.matches(text(r#"{"_id":"o:1"}"#).root()).unwrap());
    for other in [r#""p;""#, r#"{"$lt":"p"}"#, r#"{"$in":["a","q:1"]}"#] {
        let query = query(&format!(r#"{{"selector":{{"_id":{other}}},"partition":"p"}}"#));
        assert!(query.id_range().is_empty, "{other}");
    }
}
