//! Random hostile functions. Each call must end, and another design document must not be affected.
//!
//! `SEED` and `COUNT` choose others: `COUNT=100000 cargo test --release -p couch-layer-javascript --test fuzz`.

use std::time::Duration;

use javascript::{Edit, Limits, Sandbox};

struct Random(fastrand::Rng);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0.usize(..bound)
    }

    fn pick<'c>(&mut self, choices: &[&'c str]) -> &'c str {
        choices[self.below(choices.len())]
    }
}

const VALUES: &[&str] = &[
    "0",
    "-1",
    "4294967295",
    "2 ** 53",
    "NaN",
    "1e308",
    "10n ** 500n",
    "null",
    "undefined",
    "'x'",
    "'\\ud800'",
    "'ab'.repeat(1e6)",
    "[]",
    "new Array(4294967295)",
    "new Array(1e6).fill(7)",
    "{}",
    "{length: 2 ** 53 - 1}",
    "doc",
    "doc.list",
    "Object.prototype",
    "Array.prototype",
    "Function.prototype",
    "globalThis",
    "emit",
    "require",
    "Symbol()",
    "new Date(NaN)",
    "new Map([[1, 2]])",
    "new Uint8Array(1e5)",
    "/(a+)+$/",
    "new Error('x')",
    "Promise.resolve(1)",
    "(function*() { for (;;) yield 1 })()",
    "(function f() { return f })",
    "Reflect",
    "JSON",
    "Math",
    "{length: 2 ** 53 - 1, [Symbol.isConcatSpreadable]: true}",
    "[new Array(4294967295)]",
    "'x'.repeat(3e6)",
];

const OPERATIONS: &[&str] = &[
    "emit(A, B)",
    "A = [A, B]",
    "A = {a: A, b: B}",
    "A[B] = A",
    "A = A + B",
    "A = B.toString()",
    "A.length = B",
    "A = A.concat(B)",
    "A = Array.prototype.slice.call(B, C)",
    "A.push(B)",
    "A = Array.prototype.join.call(A, B)",
    "A = Array.from(B)",
    "A = JSON.stringify(B)",
    "A = JSON.parse(JSON.stringify(B))",
    "A = new RegExp(B).exec(C)",
    "A = String(B).replace(C, A)",
    "A = String(A).split(B)",
    "A = String(A).normalize()",
    "Object.defineProperty(A, 'length', {get() { return B }})",
    "Object.defineProperty(Array.prototype, 0, {set() { emit(1) }, configurable: true})",
    "Object.setPrototypeOf(A, B)",
    "A.__proto__ = B",
    "A.toJSON = function() { return B }",
    "A.toString = A.valueOf = function() { return B }",
    "for (;;) { A = [A] }",
    "for (;;) {}",
    "for (var k in B) A = k",
    "for (var v of B) A = v",
    "try { A = B(C) } catch (e) { A = e }",
    "while (true) try { A = B } finally { continue }",
    "A = new A(B)",
    "A = A.apply(B, C)",
    "A = A.bind(B)",
    "A = eval('A')",
    "A = Function('return this')()",
    "throw A",
    "throw {forbidden: A}",
    "return A",
    "A = sum(B)",
    "A = toJSON(B)",
    "log(A)",
    "A = require(B)",
    "A = Object.keys(B)",
    "A = Object.assign(A, B)",
    "A = Object.freeze(B)",
    "A = new Set(B)",
    "A = new Map(B)",
    "A = A.sort(function() { return B })",
    "A = A.flat(B)",
    "A = A.flatMap(() => B)",
    "A = String.raw(A, B)",
    "A = JSON.stringify(A, B)",
    "Error.stackTraceLimit = A",
    "Error.prepareStackTrace = A",
    "Error.stackTraceLimit = {valueOf() { return A.b.c }}",
    "for (;;) try { A = [A, 'x'.repeat(1e5) + B] } catch (e) { for (;;) try { for (;;); } catch (f) {} }",
    "Array.prototype.pop = B",
    "Object.defineProperty(Object.prototype, 'rest', {set() { emit(2) }, configurable: true})",
    "A = A.map(function(x) { return [x, B] })",
    "A = BigInt(B) ** BigInt(C)",
    "A = (function f(n) { return f(n + 1) })(0)",
    "A = structuredClone(B)",
    "A = `${B}${C}`",
    "delete A.length",
    "A = B.constructor",
    "JSON.stringify = B",
    "Array.prototype.push = B",
    "Object.prototype.toJSON = B",
    "emit = B",
    "Date = B",
    "A = new Date(B)",
    "A = async function() { await B }",
    "(async function() { for (;;) await B })()",
    "A = [...B]",
    "var {a = B} = A",
];

/// A function of a few statements.
fn function(random: &mut Random) -> String {
    let mut body = String::new();
    for name in ["a", "b", "c"] {
        body.push_str(&format!("var {name} = {};\n", random.pick(VALUES)));
    }
    for _ in 0..1 + random.below(6) {
        let statement = random.pick(OPERATIONS);
        let names = [random.pick(&["a", "b", "c"]), random.pick(&["a", "b", "c"]), random.pick(&["a", "b", "c"])];
        // Only names of one letter are placeholders.
        for word in split(statement) {
            body.push_str(match word {
                "A" => names[0],
                "B" => names[1],
                "C" => names[2],
                word => word,
            });
        }
        body.push_str(random.pick(&[";\n", ";\n", ";\n", "\n", ";}\n", "("]));
    }
    format!("function(doc, req) {{ {body} }}")
}

/// Words and the text between them.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut begin = 0;
    let is_word = |byte: u8| byte.is_ascii_alphanumeric();
    let bytes = text.as_bytes();
    for at in 1..=bytes.len() {
        if at == bytes.len() || is_word(bytes[at]) != is_word(bytes[at - 1]) {
            parts.push(&text[begin..at]);
            begin = at;
        }
    }
    parts
}

#[test]
fn no_function_harms_another_design_document() {
    let number = |name: &str, default: u64| std::env::var(name).ok().map_or(default, |text| text.parse().unwrap());
    let (seed, count) = (number("SEED", 20_261_123), number("COUNT", 120));
    println!("SEED={seed} COUNT={count}");
    let limits = Limits {
        memory: 8 << 20,
        time: Duration::from_millis(30),
        stack: 512 << 10,
        output: 1 << 18,
        ..Limits::default()
    };
    let good = r#"{"views":{"v":{"map":"doc => [3, 1, 2].sort().forEach(n => emit(n, JSON.stringify(doc)))"}}}"#;
    let mut good = Sandbox::open(good, Limits { time: Duration::from_secs(60), ..limits }).unwrap();
    let document = r#"{"_id":"d","list":[1,{"a":"b"}],"text":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"}"#;
    let expected = good.map(&["v"], document);
    let mut random = Random(fastrand::Rng::with_seed(seed));
    let mut succeeded = 0;
    for turn in 0..count {
        let source = function(&mut random);
        if std::env::var_os("SHOW").is_some() {
            println!("turn {turn}:\n{source}");
        }
        let design = serde_json::json!({
            "views": {"lib": {"x": source}, "v": {"map": source, "reduce": source}},
            "filters": {"f": source}, "updates": {"u": source}, "validate_doc_update": source,
        });
        let mut sandbox = Sandbox::open(&design.to_string(), limits).unwrap();
        for _ in 0..2 {
            let rows = sandbox.map(&["v"], document).remove(0);
            succeeded += usize::from(rows.is_ok());
            for row in rows.into_iter().flatten() {
                for text in [&row.key, &row.value] {
                    assert!(json::JsonText::parse(text.as_bytes()).is_ok(), "turn {turn}: {text}\n{source}");
                }
            }
            let outcomes = [
                sandbox.filter("f", document, "{}").err(),
                sandbox.filter_by_view("v", document).err(),
                sandbox.reduce("v", r#"[["a","d"]]"#, "[1]").err(),
                sandbox.update("u", document, "{}").err(),
            ];
            for error in outcomes.into_iter().flatten() {
                assert!(error.to_string().len() < 10_000, "turn {turn}: {error}");
            }
            drop(sandbox.validate(Edit { new: document, old: "null", user: "{}", security: "{}" }));
        }
        drop(sandbox);
        assert_eq!(good.map(&["v"], document), expected, "turn {turn}:\n{source}");
    }
    assert!(succeeded > 0 || count < 100, "no function did anything");
}
