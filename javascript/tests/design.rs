//! Filters, validation and updates.

use javascript::{Edit, ErrorKind, Limits, Refusal, Sandbox};

fn sandbox(members: serde_json::Value) -> Sandbox {
    Sandbox::open(&members.to_string(), Limits::default()).unwrap()
}

#[test]
fn any_true_value_passes_a_filter() {
    for (result, passes) in [
        ("true", true),
        ("1", true),
        ("-0.5", true),
        ("'x'", true),
        ("[]", true),
        ("({})", true),
        ("function() {}", true),
        ("Symbol()", true),
        ("1n", true),
        ("false", false),
        ("0", false),
        ("-0", false),
        ("NaN", false),
        ("''", false),
        ("null", false),
        ("undefined", false),
    ] {
        let mut sandbox =
            sandbox(serde_json::json!({"filters": {"f": format!("function(doc, req) {{ return {result} }}")}}));
        assert_eq!(sandbox.filter("f", "{}", "{}"), Ok(passes), "{result}");
    }
}

#[test]
fn a_filter_gets_the_document_the_request_and_the_design_document() {
    let mut sandbox = sandbox(serde_json::json!({
        "lib": {"kinds": "exports.wanted = function(kind, req) { return kind === req.query.kind }"},
        "wanted": "w",
        "filters": {
            "kind": "function(doc, req) { return require('lib/kinds').wanted(doc.kind, req) && this.wanted === 'w' }",
            "broken": "function(doc) { return doc.x.y }",
        },
        "views": {"v": {"map": "function(doc) { if (doc.kind) emit(null) }"}},
    }));
    let request = r#"{"query":{"kind":"a"}}"#;
    assert_eq!(sandbox.filter("kind", r#"{"kind":"a"}"#, request), Ok(true));
    assert_eq!(sandbox.filter("kind", r#"{"kind":"b"}"#, request), Ok(false));
    let error = sandbox.filter("broken", r#"{"_id":"x"}"#, request).unwrap_err();
    assert_eq!((error.kind(), error.function(), error.document()), (ErrorKind::Thrown, "filters/broken", Some("x")));
    assert_eq!(sandbox.filter("none", "{}", request).unwrap_err().kind(), ErrorKind::Missing);
    assert_eq!(sandbox.filter_by_view("v", r#"{"kind":"a"}"#), Ok(true));
    assert_eq!(sandbox.filter_by_view("v", "{}"), Ok(false));
}

#[test]
fn validation_refuses_by_what_it_throws() {
    let function = "function(newDoc, oldDoc, user, security) {
        if (newDoc.who === 'nobody') throw({unauthorized: 'Who are you?'});
        if (newDoc.odd) throw({forbidden: {a: [1]}});
        if (newDoc.plain) throw('plain');
        if (newDoc.none) throw(null);
        if (newDoc.other) throw({other: 1});
        if (newDoc.broken) newDoc.x.y;
        if (oldDoc && oldDoc.kind !== newDoc.kind) throw({forbidden: 'A ' + oldDoc.kind + ' stays one.'});
        if (user.roles.indexOf('_admin') < 0 && security.admins.names[0] !== user.name) throw({forbidden: 'no'});
    }";
    let mut sandbox = sandbox(serde_json::json!({"validate_doc_update": function}));
    let security = r#"{"admins":{"names":["bob"]}}"#;
    let mut ask = |new: &str, old: &str, user: &str| sandbox.validate(Edit { new, old, user, security });
    let (bob, eve) = (r#"{"name":"bob","roles":[]}"#, r#"{"name":"eve","roles":[]}"#);
    assert_eq!(ask(r#"{"kind":"a"}"#, "null", bob), Ok(()));
    assert_eq!(ask("{}", "null", eve), Err(Refusal::Forbidden(r#""no""#.to_owned())));
    assert_eq!(
        ask(r#"{"kind":"a"}"#, r#"{"kind":"b"}"#, bob),
        Err(Refusal::Forbidden(r#""A b stays one.""#.to_owned()))
    );
    assert_eq!(ask(r#"{"who":"nobody"}"#, "null", bob), Err(Refusal::Unauthorized(r#""Who are you?""#.to_owned())));
    assert_eq!(ask(r#"{"odd":1}"#, "null", bob), Err(Refusal::Forbidden(r#"{"a":[1]}"#.to_owned())));
    for (document, reason) in [
        ("plain", "plain"),
        ("none", "null"),
        ("other", r#"{"other":1}"#),
        ("broken", "TypeError: cannot read property 'y' of undefined"),
    ] {
        let refusal = ask(&format!(r#"{{"_id":"d","{document}":1}}"#), "null", bob).unwrap_err();
        let Refusal::Failed(error) = refusal else { panic!("{refusal:?}") };
        assert_eq!((error.function(), error.document(), error.reason()), ("validate_doc_update", Some("d"), reason));
        assert_eq!(error.kind(), ErrorKind::Thrown);
    }
}

#[test]
fn an_update_returns_a_document_and_a_response() {
    let mut sandbox = sandbox(serde_json::json!({"updates": {
        "u": "function(doc, req) { if (!doc) doc = {_id: req.id}; doc.at = new Date().getTime() > 1.7e12 && Date.now() > 1.7e12; return [doc, req.method] }",
        "none": "function() {}",
    }, "filters": {"f": "function(doc) { return Date.now() }"}}));
    assert_eq!(
        sandbox.update("u", "null", r#"{"id":"x","method":"POST"}"#).unwrap(),
        r#"[{"_id":"x","at":true},"POST"]"#
    );
    // A document to update may be changed.
    assert_eq!(
        sandbox.update("u", r#"{"_id":"y","n":1}"#, r#"{"method":"PUT"}"#).unwrap(),
        r#"[{"_id":"y","n":1,"at":true},"PUT"]"#
    );
    assert_eq!(sandbox.update("none", "null", "{}").unwrap(), "null");
    assert_eq!(sandbox.update("missing", "null", "{}").unwrap_err().kind(), ErrorKind::Missing);
}

#[test]
fn all_but_functions_of_views_have_the_time_and_chance() {
    let clock = "if (!(Date.now() > 1.7e12 && new Date().getTime() > 1.7e12 && Date().length > 20)) throw 1;";
    let mut sandbox = sandbox(serde_json::json!({
        "filters": {"time": format!("doc => {{ {clock} return true }}"), "chance": "doc => { throw 'chance ' + Math.random() }"},
        "updates": {"chance": "() => [null, String(Math.random())]", "when": format!("(() => {{ {clock} return () => [null, 'x'] }})()")},
        "validate_doc_update": format!("(doc) => {{ {clock} throw({{forbidden: Math.random()}}) }}"),
        "views": {
            "v": {"map": "doc => emit(Date.now())", "reduce": "() => Date.now()"},
            "when": {"map": "(() => { new Date(); return doc => emit(1) })()"},
        },
    }));
    assert_eq!(sandbox.filter("time", "{}", "{}"), Ok(true));
    assert_eq!(sandbox.update("when", "null", "{}").unwrap(), r#"[null,"x"]"#);
    let edit = Edit { new: "{}", old: "null", user: "{}", security: "{}" };
    let mut chance = || {
        let Err(Refusal::Forbidden(number)) = sandbox.validate(edit) else { panic!("it throws a number") };
        let filtered = sandbox.filter("chance", "{}", "{}").unwrap_err();
        (number, filtered.reason().to_owned(), sandbox.update("chance", "null", "{}").unwrap())
    };
    let (one, other) = (chance(), chance());
    assert!(one.0 != other.0 && one.1 != other.1 && one.2 != other.2, "{one:?} {other:?}");
    let failed = [
        sandbox.filter_by_view("v", "{}").unwrap_err(),
        sandbox.reduce("v", "[]", "[]").unwrap_err(),
        sandbox.rereduce("v", "[]").unwrap_err(),
        sandbox.compile(&["views", "when", "map"]).unwrap_err(),
    ];
    for error in failed {
        assert!(error.reason().contains("There is no current time in map and reduce functions"), "{error}");
    }
    assert!(sandbox.map(&["v"], "{}").remove(0).is_err(), "a validation before it changes nothing");
}

#[test]
fn arguments_without_room_are_errors_of_their_own() {
    let design = r#"{"validate_doc_update":"doc => { var a = []; while (doc.fill) a.push({}) }","updates":{"u":"() => [null,'x']"}}"#;
    let limits = Limits { memory: 8 << 20, stack: 256 << 10, ..Limits::default() };
    let mut sandbox = Sandbox::open(design, limits).unwrap();
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(900_000), "]".repeat(900_000));
    let deep_objects = format!("{}1{}", "{\"a\":".repeat(900_000), "}".repeat(900_000));
    let wide = format!("{{\"a\":[{}]}}", vec!["{}"; 1_000_000].join(","));
    let edit = |new, old| Edit { new, old, user: "{}", security: "{}" };
    for document in [&deep, &deep_objects, &wide] {
        for edit in [edit(document, "null"), edit("{}", document)] {
            let Err(Refusal::Failed(error)) = sandbox.validate(edit) else { panic!("it has no room") };
            assert_eq!(error.kind(), ErrorKind::Input, "{error}");
        }
        assert_eq!(sandbox.update("u", document, "{}").unwrap_err().kind(), ErrorKind::Input);
        assert_eq!(sandbox.validate(edit("{}", "null")), Ok(()));
    }
    assert!(sandbox.is_full(), "a pool replaces it");
    let Err(Refusal::Failed(error)) = sandbox.validate(edit(r#"{"fill":1}"#, "null")) else {
        panic!("it fills the heap")
    };
    assert_eq!(error.kind(), ErrorKind::Memory);
}
