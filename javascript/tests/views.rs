//! Map and reduce functions.

use std::time::Duration;

use javascript::{ErrorKind, Limits, Sandbox};

fn sandbox(views: &str) -> Sandbox {
    let design = format!(r#"{{"_id":"_design/test","views":{views}}}"#);
    Sandbox::open(&design, Limits::default()).unwrap()
}

/// The rows of one map function on one document, as `key=value`.
fn rows(map: &str, document: &str) -> Result<Vec<String>, javascript::Error> {
    let views = serde_json::json!({"v": {"map": map}}).to_string();
    let mut results = sandbox(&views).map(&["v"], document);
    let rows = results.remove(0)?;
    Ok(rows.into_iter().map(|row| format!("{}={}", row.key, row.value)).collect())
}

fn rows_of(map: &str, document: &str) -> Vec<String> {
    rows(map, document).unwrap()
}

#[test]
fn a_map_function_emits_keys_and_values() {
    let document = r#"{"_id":"a","tags":["x","y"],"n":1.5}"#;
    assert_eq!(
        rows_of("function(doc) { doc.tags.forEach(function(tag) { emit([tag, doc.n], {id: doc._id}); }); }", document),
        [r#"["x",1.5]={"id":"a"}"#, r#"["y",1.5]={"id":"a"}"#]
    );
    assert_eq!(rows_of("doc => emit(doc._id)", document), [r#""a"=null"#]);
    assert_eq!(rows_of("// why\nfunction(doc) { emit(); };\n", document), ["null=null"]);
    assert_eq!(rows_of("var one = 1; (function(doc) { emit(one) })", document), ["1=null"]);
}

#[test]
fn what_has_no_json_is_null() {
    let map = "function(doc) { emit(undefined, function() {}); emit(NaN, -1/0); emit([undefined, Symbol()], {a: undefined}); }";
    assert_eq!(rows_of(map, "{}"), ["null=null", "null=null", "[null,null]={}"]);
    assert_eq!(
        rows_of("doc => emit(new Date(0), new RangeError('x'))", "{}"),
        [r#""1970-01-01T00:00:00.000Z"={"error":"RangeError","message":"x"}"#]
    );
}

#[test]
fn numbers_are_doubles() {
    let document = r#"{"a":12345678901234567890,"b":9007199254740993,"c":1.0,"d":1e21,"e":0.1,"f":1e400}"#;
    assert_eq!(
        rows_of("doc => emit([doc.a, doc.b, doc.c], [doc.d, doc.e, doc.f])", document),
        ["[12345678901234567000,9007199254740992,1]=[1e+21,0.1,null]"]
    );
}

#[test]
fn strings_survive() {
    let document = r#"{"a":"é\u0000\ud83d\ude00\"\\","__proto__":{"x":1},"":2}"#;
    assert_eq!(
        rows_of("doc => emit(doc.a, doc)", document),
        ["\"é\\u0000😀\\\"\\\\\"={\"a\":\"é\\u0000😀\\\"\\\\\",\"__proto__\":{\"x\":1},\"\":2}"]
    );
    assert_eq!(rows_of(r#"doc => emit("\\ud800", "\ud83d\ude00x\udfff")"#, "{}"), [r#""\\ud800"="😀x\ufffd""#]);
    // Half of a surrogate pair cannot be UTF-8.
    assert_eq!(rows_of(r#"doc => emit("\ud800")"#, "{}"), [r#""\ufffd"=null"#]);
}

#[test]
fn helpers_are_couchdbs() {
    let map = "function(doc) { log('x'); log({a: 1}); emit(sum([1, 2.5]), [isArray([]), isArray({length: 0}), toJSON({a: [1]})]); }";
    assert_eq!(rows_of(map, "{}"), [r#"3.5=[true,false,"{\"a\":[1]}"]"#]);
}

#[test]
fn modules_are_in_views_lib() {
    let views = r#"{
        "lib": {
            "one": "exports.value = 1; exports.name = module.id;",
            "deep": {"two": "exports.value = require('../one').value + require('./three').value + 1;", "three": "exports.value = 1"},
            "circle": "exports.first = 1; exports.other = require('views/lib/circle').first;",
            "whole": "module.exports = function() { return 'whole'; }",
            "broken": "exports.x = ;"
        },
        "v": {"map": "doc => emit(require('views/lib/one'), [require('views/lib/deep/two').value, require('views/lib/circle').other, require('views/lib/whole')()])"},
        "none": {"map": "doc => emit(require('views/lib/none'))"},
        "out": {"map": "doc => emit(require('../x'))"},
        "broken": {"map": "doc => emit(require('views/lib/broken'))"}
    }"#;
    let mut sandbox = sandbox(views);
    let results = sandbox.map(&["v", "none", "out", "broken"], r#"{"_id":"a"}"#);
    let row = &results[0].as_ref().unwrap()[0];
    assert_eq!((row.key.as_str(), row.value.as_str()), (r#"{"value":1,"name":"views/lib/one"}"#, r#"[3,1,"whole"]"#));
    for (result, name) in results[1..].iter().zip(["invalid_require_path", "invalid_require_path", "compilation_error"])
    {
        assert_eq!(result.as_ref().unwrap_err().name(), Some(name));
    }
}

#[test]
fn modules_that_failed_leave_nothing_half_loaded() {
    let views = r#"{
        "lib": {
            "slow": "exports.begun = 1; if (globalThis.slow) for (;;); exports.done = 1;",
            "throws": "exports.begun = 1; if (globalThis.throws) throw 'on purpose'; exports.done = 1;",
            "fills": "exports.begun = 1; if (globalThis.fills) for (var all = [];;) all.push('x' + all.length); exports.done = 1;",
            "deep": "exports.begun = 1; var f = function() { f() }; if (globalThis.deep) f(); exports.done = 1;",
            "outer": "exports.begun = 1; exports.inner = require('views/lib/inner'); if (globalThis.outer) throw 1; exports.done = 1;",
            "inner": "exports.outer = require('views/lib/outer');"
        },
        "set": {"map": "doc => { for (var name in doc) globalThis[name] = doc[name] }"},
        "slow": {"map": "doc => emit(require('views/lib/slow'))"},
        "throws": {"map": "doc => emit(require('views/lib/throws'))"},
        "fills": {"map": "doc => emit(require('views/lib/fills'))"},
        "deep": {"map": "doc => emit(require('views/lib/deep'))"},
        "both": {"map": "doc => { for (var i = 0; i < 2; i++) try { emit(require('views/lib/throws')) } catch (e) { emit(e.name) } }"},
        "outer": {"map": "doc => { require('views/lib/outer'); emit(require('views/lib/inner').outer.done) }"}
    }"#;
    let limits = Limits { time: Duration::from_millis(400), memory: 16 << 20, stack: 512 << 10, ..Limits::default() };
    let design = format!(r#"{{"_id":"_design/test","views":{views}}}"#);
    for (module, kinds) in [
        ("slow", &[ErrorKind::Time][..]),
        ("throws", &[ErrorKind::Thrown]),
        ("fills", &[ErrorKind::Memory, ErrorKind::Thrown, ErrorKind::Time]),
        ("deep", &[ErrorKind::Stack, ErrorKind::Thrown]),
    ] {
        let mut sandbox = Sandbox::open(&design, limits).unwrap();
        sandbox.map(&["set"], &format!(r#"{{"{module}":true}}"#)).remove(0).unwrap();
        for _ in 0..2 {
            let error = sandbox.map(&[module], "{}").remove(0).unwrap_err();
            assert!(kinds.contains(&error.kind()), "{module}: {error:?}");
        }
        // The obstacle is gone: the module is loaded again, completely.
        sandbox.map(&["set"], &format!(r#"{{"{module}":false}}"#)).remove(0).unwrap();
        let rows = sandbox.map(&[module], "{}").remove(0).unwrap();
        assert_eq!(rows[0].key, r#"{"begun":1,"done":1}"#, "{module}");
    }
    let mut sandbox = Sandbox::open(&design, Limits::default()).unwrap();
    sandbox.map(&["set"], r#"{"throws":true,"outer":true}"#).remove(0).unwrap();
    let rows = sandbox.map(&["both"], "{}").remove(0).unwrap();
    assert!(rows.iter().all(|row| row.key == r#""compilation_error""#), "{rows:?}");
    // A valid module required the one that failed.
    sandbox.map(&["outer"], "{}").remove(0).unwrap_err();
    sandbox.map(&["set"], r#"{"outer":false}"#).remove(0).unwrap();
    assert_eq!(sandbox.map(&["outer"], "{}").remove(0).unwrap()[0].key, "1");
}

#[test]
fn what_is_no_function_does_not_compile() {
    for source in ["function f(doc) {}", "1", "function(doc) { emit( }", "", "return 1", "throw 1", "while(", "})({"] {
        let error = rows(source, "{}").unwrap_err();
        assert_eq!((error.kind(), error.function()), (ErrorKind::Compilation, "views/v/map"), "{source}: {error}");
    }
    let mut sandbox =
        sandbox(r#"{"v":{"map":"doc => 1","reduce":"_sum"},"w":{"map":"doc => 1","reduce":"nothing at all"}}"#);
    sandbox.compile_views([("v", false)]).unwrap();
    let error = sandbox.compile_views([("w", true)]).unwrap_err();
    assert_eq!((error.kind(), error.function()), (ErrorKind::Compilation, "views/w/reduce"));
    assert_eq!(sandbox.compile(&["views", "x", "map"]).unwrap_err().kind(), ErrorKind::Missing);
    assert_eq!(sandbox.compile(&["views", "constructor", "map"]).unwrap_err().kind(), ErrorKind::Missing);
    assert_eq!(sandbox.compile(&["views", "v"]).unwrap_err().kind(), ErrorKind::Missing);
}

#[test]
fn a_reduce_function_gets_keys_and_values() {
    let mut sandbox = sandbox(
        r#"{"v":{"map":"doc => 1","reduce":"function(keys, values, rereduce) { return [keys, sum(values), rereduce]; }"},
            "none":{"map":"doc => 1","reduce":"function() {}"},
            "broken":{"map":"doc => 1","reduce":"function(keys, values) { return values.x.y; }"},
            "long":{"map":"doc => 1","reduce":"function(keys, values) { return 'x'.repeat(5000) + values; }"}}"#,
    );
    let reduced = sandbox.reduce("v", r#"[["a","id1"],["b","id2"]]"#, "[1,2]").unwrap();
    assert_eq!(reduced, r#"[[["a","id1"],["b","id2"]],3,false]"#);
    assert_eq!(sandbox.rereduce("v", "[3,4]").unwrap(), "[null,7,true]");
    assert_eq!(sandbox.reduce("none", "[]", "[]").unwrap(), "null");
    let error = sandbox.reduce("broken", "[]", "[]").unwrap_err();
    assert_eq!(
        (error.kind(), error.function(), error.name()),
        (ErrorKind::Thrown, "views/broken/reduce", Some("TypeError"))
    );
    let error = sandbox.reduce("long", "[[1,\"a\"]]", "[1]").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overflow);
    assert_eq!(error.reason(), "Reduce output must shrink more rapidly: input size: 12 output size: 5003");
}

#[test]
fn documents_are_frozen() {
    let views = r#"{
        "first": {"map": "function(doc) { doc._id = 'b'; delete doc.a; doc.list[0] = 2; emit(doc._id, doc.list) }"},
        "second": {"map": "function(doc) { emit(doc._id, doc) }"},
        "strict": {"map": "function(doc) { 'use strict'; doc._id = 'b' }"}
    }"#;
    let results = sandbox(views).map(&["first", "second", "strict"], r#"{"_id":"a","a":{"b":1},"list":[1]}"#);
    assert_eq!(results[0].as_ref().unwrap()[0].value, "[1]");
    assert_eq!(results[1].as_ref().unwrap()[0].value, r#"{"_id":"a","a":{"b":1},"list":[1]}"#);
    let error = results[2].as_ref().unwrap_err();
    assert_eq!((error.document(), error.name()), (Some("a"), Some("TypeError")));
}

#[test]
fn a_view_knows_no_time_and_chance_depends_on_the_document() {
    for map in ["doc => emit(Date.now())", "doc => emit(new Date())", "doc => emit(Date())"] {
        let error = rows(map, r#"{"_id":"a"}"#).unwrap_err();
        assert!(error.reason().contains("current time"), "{error}");
    }
    assert_eq!(
        rows_of("doc => emit(new Date('2026-01-02T03:04:05Z').getTime(), Date.UTC(1970, 0, 2))", "{}"),
        ["1767323045000=86400000"]
    );
    assert_eq!(
        rows_of("doc => emit(new Date(2020, 1, 2) instanceof Date, Date.parse('1970-01-01'))", "{}"),
        ["true=0"]
    );
    let chance = |document| rows_of("doc => emit(Math.random(), Math.random())", document);
    assert_eq!(chance(r#"{"_id":"a"}"#), chance(r#"{"_id":"a"}"#));
    assert_ne!(chance(r#"{"_id":"a"}"#), chance(r#"{"_id":"b"}"#));
    let number: f64 = chance("{}")[0].split('=').next().unwrap().parse().unwrap();
    assert!((0.0..1.0).contains(&number));
}

#[test]
fn an_error_names_function_and_document() {
    let error = rows("doc => doc.x.y", r#"{"_id":"a"}"#).unwrap_err();
    assert_eq!((error.kind(), error.function(), error.document()), (ErrorKind::Thrown, "views/v/map", Some("a")));
    assert_eq!(error.to_string(), "views/v/map: TypeError: cannot read property 'y' of undefined (document \"a\")");
    for (thrown, reason) in
        [("'plain'", "plain"), ("{a: 1}", r#"{"a":1}"#), ("undefined", "something that has no JSON was thrown")]
    {
        let error = rows(&format!("doc => {{ throw {thrown} }}"), "{}").unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Thrown, reason));
    }
}

#[test]
fn design_documents_do_not_reach_each_other() {
    let mut first = sandbox(
        r#"{"v":{"map":"doc => { Array.prototype.forEach = null; JSON.stringify = null; Object.prototype.x = 1; emit(1) }"}}"#,
    );
    assert_eq!(first.map(&["v"], "{}")[0].as_ref().unwrap().len(), 1);
    // Its own rows are still written.
    assert_eq!(first.map(&["v"], "{}")[0].as_ref().unwrap().len(), 1);
    let map = "doc => { emit(({}).x, typeof [].forEach + typeof JSON.stringify) }";
    assert_eq!(rows_of(map, "{}"), [r#"null="functionfunction""#]);
}
