//! Harmful functions: each ends with an error that names it, and its sandbox stays usable.

use std::time::Duration;

use javascript::{ErrorKind, Limits, Sandbox};

fn limits() -> Limits {
    // The threads of tests have 2 MiB of stack.
    Limits { memory: 16 << 20, time: Duration::from_secs(30), stack: 512 << 10, output: 1 << 20, ..Limits::default() }
}

/// For functions that would never end.
fn short() -> Limits {
    Limits { time: Duration::from_millis(100), ..limits() }
}

/// Runs a map function that must end with one of these errors, and then a harmless one in the same sandbox.
fn ends(map: &str, kinds: &[ErrorKind]) {
    let design = serde_json::json!({"views": {"bad": {"map": map}, "good": {"map": "doc => emit(doc._id)"}}});
    let limits = if kinds.contains(&ErrorKind::Time) { short() } else { limits() };
    let mut sandbox = Sandbox::open(&design.to_string(), limits).unwrap();
    for _ in 0..2 {
        let results = sandbox.map(&["bad", "good"], r#"{"_id":"a"}"#);
        let error = results[0].as_ref().expect_err(map);
        assert!(kinds.contains(&error.kind()), "{map}: {error:?}");
        assert_eq!((error.function(), error.document()), ("views/bad/map", Some("a")), "{map}");
        match &results[1] {
            Ok(rows) => assert_eq!(rows[0].key, r#""a""#, "{map}"),
            // Its heap may still be full. Under a short limit a busy machine may be too slow.
            Err(other) if error.kind() == ErrorKind::Memory || other.kind() == ErrorKind::Time => {}
            Err(other) => panic!("{map}: {other}"),
        }
    }
}

#[test]
fn endless_loops_end() {
    for map in [
        "doc => { for (;;) {} }",
        "doc => { for (;;) { try { for (;;) {} } catch (e) {} } }",
        "doc => { try { for (;;) {} } finally { for (;;) {} } }",
        "doc => { [1, 2].sort(() => { for (;;) {} }) }",
        "doc => { JSON.stringify({toJSON() { for (;;) {} }}) }",
        "doc => emit({toJSON() { for (;;) {} }})",
        "doc => { throw {toString() { for (;;) {} }, toJSON() { for (;;) {} }} }",
        "doc => { var e = new Error(); Object.defineProperty(e, 'message', {get() { for (;;) {} }}); throw e }",
        "doc => { var f = function*() { for (;;) yield 1 }; for (var x of f()) {} }",
        "doc => { new Array(4294967295).forEach(() => 1) }",
        "doc => { new Array(4294967295).indexOf(1) }",
        "doc => { Array.prototype.includes.call({length: 2 ** 53 - 1}, 1) }",
        "doc => { [].concat({length: 2 ** 53 - 1, [Symbol.isConcatSpreadable]: true}) }",
        "doc => { [new Array(4294967295)].flat() }",
        "doc => { [1].flatMap(() => new Array(4294967295)) }",
        "doc => { JSON.stringify({}, new Array(4294967295)) }",
        "doc => { String.raw({raw: {length: 2 ** 53 - 1}}) }",
        "doc => { var a = [], i = a.values(); a.length = 4294967295; i.drop(4e9).next() }",
        "doc => { new RegExp('[^\\\\p{L}\\\\P{L}]'.repeat(20000), 'iu') }",
        "doc => { var a = 'a'.repeat(1e6), b = a + 'b'; new Array(1e5).fill(a).fill(b, 5e4).sort() }",
    ] {
        ends(map, &[ErrorKind::Time, ErrorKind::Thrown]);
    }
}

/// The error that ends a late function needs memory.
#[test]
fn a_full_heap_does_not_keep_a_function_running() {
    let fill = "var a = []; for (var n = 1e6; n >= 1; n = n / 2 | 0) try { for (;;) a.push('x'.repeat(n) + 'y') } catch (e) {}";
    for more in ["try { for (;;) a = [a] } catch (e) {}", "try { for (;;) a = () => a } catch (e) {}"] {
        ends(&format!("doc => {{ {fill} {more} for (;;) try {{ for (;;); }} catch (e) {{}} }}"), &[ErrorKind::Time]);
    }
}

#[test]
fn built_in_functions_ask_about_the_time() {
    for call in ["JSON.stringify(a)", "[...a]", "s.indexOf('y')", "Object.isFrozen(a)", "a.reverse()", "b.fill(1)"] {
        let map = "doc => { globalThis.n = 0; var a = new Array(1e6).fill(7), s = 'x'.repeat(1e7), b = new Uint8Array(1e7); \
                   for (;;) { n++; CALL } }";
        // A fast machine fills ten megabytes 7,500 times a second.
        let limits = Limits { time: Duration::from_millis(200), ..Limits::default() };
        let views = serde_json::json!({"bad": {"map": map.replace("CALL", call)}, "n": {"map": "doc => emit(n)"}});
        let design = serde_json::json!({"views": views}).to_string();
        let mut sandbox = Sandbox::open(&design, limits).unwrap();
        let mut results = sandbox.map(&["bad"], "{}");
        assert_eq!(results.remove(0).unwrap_err().kind(), ErrorKind::Time, "{call}");
        // QuickJS itself checks only after 10,000 loops and calls.
        let turns = sandbox.map(&["n"], "{}").remove(0).unwrap().remove(0).key;
        assert!(turns.parse::<u32>().unwrap() < 3_000, "{call}: {turns}");
    }
}

/// QuickJS loses an object here, and would end the process when its heap is closed.
#[test]
fn a_lost_object_does_not_end_the_process() {
    for limit in ["{ valueOf() { throw 1 } }", "{ valueOf() { for (;;); } }"] {
        let map = format!("doc => {{ Error.stackTraceLimit = {limit}; try {{ null.x }} catch (e) {{}} emit(1) }}");
        let design = serde_json::json!({"views": {"v": {"map": map}}}).to_string();
        drop(Sandbox::open(&design, short()).unwrap().map(&["v"], "{}"));
    }
    let good = r#"{"views":{"v":{"map":"doc => emit(1)"}}}"#;
    assert_eq!(Sandbox::open(good, limits()).unwrap().map(&["v"], "{}")[0].as_ref().unwrap().len(), 1);
}

#[test]
fn nothing_that_a_function_replaced_runs_while_a_document_is_parsed() {
    for change in [
        "Array.prototype.pop = () => { throw 1 }",
        "Array.prototype.pop = Array.prototype.push = () => 1",
        "Object.defineProperty(Array.prototype, 1, {set() { throw 1 }, configurable: true})",
        "Object.defineProperty(Object.prototype, 'rest', {set() { throw 1 }, configurable: true})",
        "Object.isFrozen = () => true",
    ] {
        let map = format!("doc => {{ emit(Object.isFrozen(doc.a[1])); {change} }}");
        let design = serde_json::json!({"views": {"v": {"map": map}, "w": {"map": "doc => emit(1)"}}}).to_string();
        let mut sandbox = Sandbox::open(&design, limits()).unwrap();
        for _ in 0..2 {
            let results = sandbox.map(&["v", "w"], r#"{"a":[1,{"b":2},[3]]}"#);
            assert_eq!(results[0].as_ref().unwrap()[0].key, "true", "{change}");
            assert_eq!(results[1].as_ref().unwrap().len(), 1, "{change}");
        }
    }
}

#[test]
fn built_in_functions_that_are_replaced_give_the_same() {
    for (call, expected) in [
        ("[1, [2, [3, [4]]]].flat()", "[1,2,[3,[4]]]"),
        ("[1, [2, [3, [4]]]].flat(Infinity)", "[1,2,3,4]"),
        ("[1, , [2, , 3]].flat()", "[1,2,3]"),
        ("['a', 'b'].flatMap((x, i) => [x, [i]])", r#"["a",[0],"b",[1]]"#),
        ("[1].concat(2, [3, [4]], {a: 1}, 'x')", r#"[1,2,3,[4],{"a":1},"x"]"#),
        ("[, 1].concat([, 2], {length: 2, 0: 3, [Symbol.isConcatSpreadable]: true})", "[null,1,null,2,3,null]"),
        ("[3, 10, 1, undefined, 'a'].sort()", r#"[1,10,3,"a",null]"#),
        ("[3, 10, 1].toSorted((a, b) => a - b)", "[1,3,10]"),
        ("JSON.stringify({a: 1, b: {a: 2}, 3: 4}, ['a', 'b', 3])", r#""{\"a\":1,\"b\":{\"a\":2},\"3\":4}""#),
        ("JSON.stringify({a: [1]}, null, 1)", r#""{\n \"a\": [\n  1\n ]\n}""#),
        ("JSON.stringify({a: 1}, (k, v) => k ? v + 1 : v)", r#""{\"a\":2}""#),
        ("JSON.stringify(undefined) === undefined", "true"),
        ("JSON.parse('[1,2]', (k, v) => Array.isArray(v) ? v : v * 2)", "[2,4]"),
        ("String.raw`a\\n${1}b${2}`", r#""a\\n1b2""#),
        ("[...[1, 2, 3].values().drop(1)]", "[2,3]"),
        ("[new Uint8Array([3, 1, 2]).sort().join(), Object.isFrozen(Object.freeze({}))]", r#"["1,2,3",true]"#),
        (
            "['b-a'.split(/-/), 'aXb'.search(/X/), 'aa'.match(/a/g), 'abc'.startsWith('ab')]",
            r#"[["b","a"],1,["a","a"],true]"#,
        ),
        (
            "[[].concat.name, [].flat.name, JSON.stringify.name, Array.prototype.flat.call({length: 1, 0: [1]})]",
            r#"["concat","flat","stringify",[1]]"#,
        ),
    ] {
        let design = serde_json::json!({"views": {"v": {"map": format!("doc => emit({call})")}}}).to_string();
        let results = Sandbox::open(&design, limits()).unwrap().map(&["v"], "{}");
        assert_eq!(results[0].as_ref().expect(call)[0].key, expected, "{call}");
    }
}

#[test]
fn catastrophic_regular_expressions_end() {
    ends("doc => /^(a+)+$/.test('a'.repeat(100) + 'b')", &[ErrorKind::Time]);
    ends("doc => 'x'.repeat(1e6).replace(/(.*)*y/g, '')", &[ErrorKind::Time, ErrorKind::Memory, ErrorKind::Thrown]);
    ends("doc => new RegExp('('.repeat(1e6))", &[ErrorKind::Thrown, ErrorKind::Stack]);
}

#[test]
fn deep_recursion_ends() {
    for map in [
        "doc => { var f = () => f(); f() }",
        "doc => { var f = () => [1].map(f); f() }",
        "doc => { var a = []; for (var i = 0; i < 1e5; i++) a = [a]; emit(a) }",
        "doc => { var a = []; for (var i = 0; i < 1e5; i++) a = [a]; a.toString() }",
        "doc => { JSON.parse('['.repeat(1e6)) }",
        "doc => { var a = {get x() { return this.x }}; a.x }",
        "doc => { eval('('.repeat(1e6)) }",
    ] {
        ends(map, &[ErrorKind::Stack, ErrorKind::Thrown]);
    }
}

#[test]
fn memory_is_bounded() {
    for map in [
        "doc => { var a = []; for (;;) a.push({}) }",
        "doc => { var a = 'x'; for (;;) a += a }",
        "doc => { 'x'.repeat(1e9) }",
        "doc => { new Uint8Array(1e9) }",
        "doc => { globalThis.kept = globalThis.kept || []; for (;;) kept.push(new Array(1000).fill(1)) }",
        "doc => { var a = []; for (;;) { try { a.push('x'.repeat(1e6) + a.length) } catch (e) { a.push(a) } } }",
    ] {
        ends(map, &[ErrorKind::Memory, ErrorKind::Time, ErrorKind::Thrown]);
    }
}

#[test]
fn output_is_bounded() {
    ends("doc => { for (;;) emit('x'.repeat(1000)) }", &[ErrorKind::Output]);
    ends("doc => { for (;;) emit() }", &[ErrorKind::Output]);
    ends("doc => { try { for (;;) emit('x'.repeat(1000)) } catch (e) { } }", &[ErrorKind::Output]);
    ends("doc => emit('x'.repeat(2e6))", &[ErrorKind::Output]);
}

#[test]
fn cycles_are_refused() {
    ends("doc => { var a = []; a.push(a); emit(a) }", &[ErrorKind::Thrown]);
    ends("doc => emit(10n)", &[ErrorKind::Thrown]);
}

#[test]
fn built_in_loops_refuse_what_takes_long() {
    for call in [
        "join()",
        "fill(1)",
        "reverse()",
        "slice()",
        "splice(0)",
        "concat([1])",
        "sort()",
        "toString()",
        "flat()",
        "copyWithin(1, 2)",
        "lastIndexOf(1)",
        "shift()",
        "unshift(1)",
    ] {
        ends(
            &format!("doc => {{ var a = []; a.length = 4294967295; a.{call} }}"),
            &[ErrorKind::Thrown, ErrorKind::Time, ErrorKind::Memory],
        );
        let name = call.split('(').next().unwrap();
        ends(
            &format!("doc => {{ Array.prototype.{name}.call({{length: 2 ** 53 - 1}}, 1) ; throw 1 }}"),
            &[ErrorKind::Thrown, ErrorKind::Time],
        );
        ends(
            &format!(
                "doc => {{ var n = 0; Array.prototype.{name}.call({{get length() {{ return n++ ? 2 ** 53 - 1 : 0 }}}}, 1); throw 1 }}"
            ),
            &[ErrorKind::Thrown, ErrorKind::Time],
        );
    }
    ends("doc => { var a = 'a'.repeat(2e6); a.indexOf(a.slice(1e6) + 'b') ; throw 1 }", &[ErrorKind::Thrown]);
    ends("doc => { 'a'.repeat(1e6).normalize(); }", &[ErrorKind::Thrown]);
    ends("doc => { new Set([][Symbol.iterator].call({length: 2 ** 53 - 1})) }", &[ErrorKind::Thrown]);
}

#[test]
fn there_is_nothing_outside() {
    let map = "doc => emit([typeof std, typeof os, typeof process, typeof fetch, typeof setTimeout, typeof Proxy, typeof print, typeof console, typeof load])";
    let design = serde_json::json!({"views": {"v": {"map": map}}}).to_string();
    let results = Sandbox::open(&design, limits()).unwrap().map(&["v"], "{}");
    let key = &results[0].as_ref().unwrap()[0].key;
    assert_eq!(key.replace(r#""undefined""#, "_"), "[_,_,_,_,_,_,_,_,_]");
}

#[test]
fn broken_input_is_an_error() {
    assert_eq!(Sandbox::open("{", limits()).unwrap_err().kind(), ErrorKind::Engine);
    for design in ["[]", "1", "null", r#"{"views":1}"#, r#"{"views":{"v":[]}}"#, r#"{"views":{"v":{"map":1}}}"#] {
        let mut sandbox = Sandbox::open(design, limits()).unwrap();
        assert_eq!(sandbox.map(&["v"], "{}")[0].as_ref().unwrap_err().kind(), ErrorKind::Missing);
    }
    let mut sandbox = Sandbox::open(r#"{"views":{"v":{"map":"doc => 1"}}}"#, limits()).unwrap();
    assert!(sandbox.map(&["v"], "{")[0].is_err());
    assert!(sandbox.map(&["v"], "\"\0\"")[0].is_err());
    let full = Limits { memory: 10_000, ..limits() };
    assert!(Sandbox::open("{}", full).is_err());
}
