//! Random patterns on random texts, beside PCRE as CouchDB calls it: Erlang's `re`. Without `erl` it is skipped.
//!
//! `SEED` and `COUNT` choose others: `COUNT=100000 cargo test -p couch-layer-mango --test pcre`.

use std::fmt::Write as _;
use std::process::Command;

use mango::Regex;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

const UNITS: &[&str] = &["a", "b", "A", "c", "1", "-", " ", "\n", "_", "é", "{", "}", "]", "<"];

const ATOMS: &[&str] = &[
    "a",
    "b",
    "A",
    "c",
    "1",
    "-",
    " ",
    "\n",
    ".",
    "^",
    "$",
    r"\A",
    r"\Z",
    r"\z",
    r"\b",
    r"\B",
    r"\d",
    r"\D",
    r"\w",
    r"\W",
    r"\s",
    r"\S",
    r"\h",
    r"\H",
    r"\v",
    r"\V",
    r"\N",
    r"\R",
    r"\<",
    r"\>",
    r"\n",
    r"\x61",
    r"\x{62}",
    r"\141",
    r"\1",
    r"\2",
    r"\g{1}",
    r"\g{-1}",
    r"\Qa.\E",
    r"\Q*",
    r"\E",
    "(?#x)",
    "{",
    "}",
    "]",
    "{,2}",
    "{1",
    "[ab]",
    "[^a]",
    r"[\w-]",
    r"[^\W_]",
    "[]a]",
    "[^]a]",
    "[a-c]",
    r"[\d-a]",
    r"[a\]b]",
    "[[:alpha:]]",
    "[[:^alpha:]1]",
    r"[\Qa]\E]",
    "[a&&b]",
    "[[a]",
    "éa",
    r"\K",
    r"\G",
    "(?i)",
    "(?-i)",
    "(?m)",
    "(?s)",
    "(?x)",
    "(?U)",
    r"\e",
    r"\ca",
    "#",
    "&",
    r"\y",
];

const QUANTIFIERS: &[&str] =
    &["*", "+", "?", "*?", "+?", "??", "*+", "++", "?+", "{2}", "{0,2}", "{1,}", "{2,1}", "{1,2}?", "{0}", "{1,2}+"];

const GROUPS: &[&str] = &[
    "(", "(", "(", "(?:", "(?:", "(?>", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "(?-i:", "(?m:", "(?s:", "(?x:",
    "(?i-s:", "(?<n>", "(?(1)", "(?U:",
];

// `é` is never repeated: on bytes only its last byte would be, and such a pattern is matched on code points.
fn pattern(random: &mut StdRng, depth: usize, out: &mut String) {
    for _ in 0..random.random_range(0..4) {
        if depth > 0 && random.random_bool(0.35) {
            out.push_str(GROUPS.choose(random).unwrap());
            pattern(random, depth - 1, out);
            if random.random_bool(0.4) {
                out.push('|');
                pattern(random, depth - 1, out);
            }
            out.push(')');
        } else {
            out.push_str(ATOMS.choose(random).unwrap());
        }
        if random.random_bool(0.3) {
            out.push_str(QUANTIFIERS.choose(random).unwrap());
        }
    }
}

/// A text as Erlang writes it.
fn binary(text: &str) -> String {
    let bytes: Vec<String> = text.bytes().map(|byte| byte.to_string()).collect();
    format!("<<{}>>", bytes.join(","))
}

#[test]
fn random_patterns_match_as_in_erlang() {
    if Command::new("erl").arg("-version").output().is_err() {
        eprintln!("skipped: erl is not installed");
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed: u64 = number("SEED").unwrap_or(0);
    let count = number("COUNT").unwrap_or(2_000);
    println!("SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let cases: Vec<(String, Vec<String>)> = (0..count)
        .map(|_| {
            let mut out = String::new();
            pattern(&mut random, 3, &mut out);
            let text = |_| (0..random.random_range(0..7)).map(|_| *UNITS.choose(&mut random).unwrap()).collect();
            (out, (0..12).map(text).collect())
        })
        .collect();

    let mut terms = String::new();
    for (pattern, texts) in &cases {
        let texts: Vec<String> = texts.iter().map(|text| binary(text)).collect();
        writeln!(terms, "{{{},[{}]}}.", binary(pattern), texts.join(",")).unwrap();
    }
    let file = std::env::temp_dir().join(format!("pcre-{}-{seed}", std::process::id()));
    std::fs::write(&file, terms).unwrap();
    let program = r#"
        [File] = init:get_plain_arguments(),
        {ok, Cases} = file:consult(File),
        Run = fun(Regex, Text) ->
            case re:run(Text, Regex, [{capture, none}, report_errors]) of match -> $1; nomatch -> $0; _ -> $? end
        end,
        [io:put_chars([case re:compile(Pattern) of
            {ok, Regex} -> [Run(Regex, Text) || Text <- Texts];
            {error, {Why, _}} -> ["!", Why]
        end, "\n"]) || {Pattern, Texts} <- Cases],
        halt()."#;
    let output = Command::new("erl").args(["-noshell", "-eval", program, "-extra"]).arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    let answers = String::from_utf8(output.stdout).unwrap();
    assert_eq!(answers.lines().count(), cases.len(), "{}", String::from_utf8_lossy(&output.stderr));

    let (mut compared, mut refused, mut differences) = (0, 0, Vec::new());
    for ((pattern, texts), theirs) in cases.iter().zip(answers.lines()) {
        match (Regex::new(pattern), theirs.strip_prefix('!')) {
            (Err(_), Some(_)) => {}
            // They differ in which parts have a fixed length: `a{0}` and conditions.
            (Ok(_), Some(why)) if why.starts_with("lookbehind") => refused += 1,
            (Err(problem), None) if problem.starts_with("lookbehind") => refused += 1,
            (Ok(_), Some(why)) => differences.push(format!("{pattern:?} is compiled; Erlang: {why}")),
            (Err(problem), None) if problem.ends_with("is not supported") => refused += 1,
            (Err(problem), None) => differences.push(format!("{pattern:?} is refused: {problem}")),
            (Ok(regex), None) => {
                for (text, theirs) in texts.iter().zip(theirs.chars()) {
                    let ours = regex.is_match(text).map_or('?', |matches| if matches { '1' } else { '0' });
                    compared += 1;
                    // PCRE 8 makes a repeated `\R` possessive before `\s`, as if a line break were no white space.
                    // It forgets that `(?:.|a)?+` is possessive where the first branch is a class such as `.` or `\W`.
                    let is_theirs = match (ours, theirs) {
                        ('1', '0') => pattern.contains(r"\R") && pattern.contains(r"\s"),
                        ('0', '1') => pattern.contains("(?") && pattern.contains(")?+"),
                        _ => false,
                    };
                    if ours != theirs && theirs != '?' && !is_theirs {
                        differences.push(format!("{pattern:?} on {text:?}: {ours}, Erlang {theirs}"));
                    }
                }
            }
        }
    }
    println!("{compared} answers compared, {refused} patterns that only one supports");
    assert!(compared > count, "too few patterns are valid");
    let shown = differences.iter().take(30).map(String::as_str).collect::<Vec<_>>();
    assert!(differences.is_empty(), "SEED={seed}, {} differences:\n{}", differences.len(), shown.join("\n"));
}
