//! Sets of units: PCRE's classes with Latin-1's tables for bytes, and Unicode's for code points.

use std::fmt::Write as _;

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

/// What a pattern is matched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Units {
    Bytes,
    CodePoints,
}

impl Units {
    /// The greatest unit.
    pub(super) fn last(self) -> char {
        if self == Units::Bytes { '\u{ff}' } else { char::MAX }
    }
}

type Ranges = &'static [(char, char)];

const DIGIT: Ranges = &[('0', '9')];
const SPACE: Ranges = &[('\t', '\r'), (' ', ' ')];
const WORD: Ranges = &[
    ('0', '9'),
    ('A', 'Z'),
    ('_', '_'),
    ('a', 'z'),
    ('ª', 'ª'),
    ('µ', 'µ'),
    ('º', 'º'),
    ('À', 'Ö'),
    ('Ø', 'ö'),
    ('ø', 'ÿ'),
];
const UPPER: Ranges = &[('A', 'Z'), ('À', 'Ö'), ('Ø', 'Þ')];
const LOWER: Ranges = &[('a', 'z'), ('ª', 'ª'), ('µ', 'µ'), ('º', 'º'), ('ß', 'ö'), ('ø', 'ÿ')];
const PRINT: Ranges = &[(' ', '~'), ('\u{a0}', 'ÿ')];
const GRAPH: Ranges = &[('!', '~'), ('\u{a0}', 'ÿ')];
const CONTROL: Ranges = &[('\0', '\u{1f}'), ('\u{7f}', '\u{9f}')];
const HORIZONTAL: Ranges = &[
    ('\t', '\t'),
    (' ', ' '),
    ('\u{a0}', '\u{a0}'),
    ('\u{1680}', '\u{1680}'),
    ('\u{180e}', '\u{180e}'),
    ('\u{2000}', '\u{200a}'),
    ('\u{202f}', '\u{202f}'),
    ('\u{205f}', '\u{205f}'),
    ('\u{3000}', '\u{3000}'),
];
const VERTICAL: Ranges = &[('\n', '\r'), ('\u{85}', '\u{85}'), ('\u{2028}', '\u{2029}')];

pub(super) fn set(ranges: &[(char, char)]) -> ClassUnicode {
    ClassUnicode::new(ranges.iter().map(|&(first, last)| ClassUnicodeRange::new(first, last)))
}

pub(super) fn one(unit: char) -> ClassUnicode {
    set(&[(unit, unit)])
}

/// A class in the syntax of the crate `regex`.
pub(super) fn unicode(text: &str) -> Option<ClassUnicode> {
    match regex_syntax::parse(text).ok()?.into_kind() {
        HirKind::Class(Class::Unicode(class)) => Some(class),
        HirKind::Literal(literal) => {
            let mut chars = std::str::from_utf8(&literal.0).ok()?.chars();
            Some(one(chars.next()?)).filter(|_| chars.next().is_none())
        }
        _ => None,
    }
}

/// The set of an escape: `d`, `h`, `s`, `v`, `w`, or its complement in capitals.
pub(super) fn escape(letter: char, units: Units) -> Option<ClassUnicode> {
    let is_bytes = units == Units::Bytes;
    let mut class = match letter.to_ascii_lowercase() {
        'd' if is_bytes => set(DIGIT),
        's' if is_bytes => set(SPACE),
        'w' if is_bytes => set(WORD),
        'h' => set(HORIZONTAL),
        'v' => set(VERTICAL),
        'd' | 's' | 'w' => unicode(&format!(r"\{}", letter.to_ascii_lowercase()))?,
        _ => return None,
    };
    if letter.is_ascii_uppercase() {
        negate(&mut class, units);
    }
    limit(&mut class, units);
    Some(class)
}

/// The set of `[:name:]`. As in PCRE, `upper` and `lower` match both cases if case does not count.
pub(super) fn posix(name: &str, fold: bool, units: Units) -> Option<ClassUnicode> {
    let is_bytes = units == Units::Bytes;
    let name = if fold && matches!(name, "lower" | "upper") { "alpha" } else { name };
    let bytes = |ranges| Some(set(ranges));
    let without = |all: Ranges, less: Ranges| {
        let mut class = set(all);
        class.difference(&set(less));
        Some(class)
    };
    match name {
        "digit" => escape('d', units),
        "space" => escape('s', units),
        "word" => escape('w', units),
        "xdigit" => bytes(&[('0', '9'), ('A', 'F'), ('a', 'f')]),
        "ascii" => bytes(&[('\0', '\u{7f}')]),
        "blank" if is_bytes => bytes(&[('\t', '\t'), (' ', ' ')]),
        "blank" => escape('h', units),
        "cntrl" => bytes(CONTROL),
        "alpha" if is_bytes => without(WORD, &[('0', '9'), ('_', '_')]),
        "alnum" if is_bytes => without(WORD, &[('_', '_')]),
        "lower" if is_bytes => bytes(LOWER),
        "upper" if is_bytes => bytes(UPPER),
        "punct" if is_bytes => {
            let mut class = set(GRAPH);
            class.difference(&posix("alnum", false, units)?);
            Some(class)
        }
        "print" if is_bytes => bytes(PRINT),
        "graph" if is_bytes => bytes(GRAPH),
        "alpha" => unicode(r"\p{L}"),
        "alnum" => unicode(r"[\p{L}\p{N}]"),
        "lower" => unicode(r"\p{Ll}"),
        "upper" => unicode(r"\p{Lu}"),
        "punct" => unicode(r"[\p{P}$+<=>^`|~]"),
        "print" => unicode(r"[^\p{C}]"),
        "graph" => unicode(r"[^\p{C}\p{Z}]"),
        _ => None,
    }
}

/// Adds the letters' other cases.
pub(super) fn fold(class: &mut ClassUnicode, units: Units) {
    // It fails only without tables of case, which the build has.
    let _ = class.try_case_fold_simple();
    limit(class, units);
}

pub(super) fn negate(class: &mut ClassUnicode, units: Units) {
    class.negate();
    limit(class, units);
}

fn limit(class: &mut ClassUnicode, units: Units) {
    class.intersect(&set(&[('\0', units.last())]));
}

/// Writes a set in the syntax of the crate `regex`.
pub(super) fn write(class: &ClassUnicode, units: Units, out: &mut String) {
    if class.ranges().is_empty() {
        out.push_str(r"[a&&b]");
        return;
    }
    out.push('[');
    for range in class.ranges() {
        let (first, last) = (u32::from(range.start()), u32::from(range.end()));
        // Writing to a string cannot fail.
        let _ = match units {
            Units::Bytes => write!(out, r"\x{first:02X}-\x{last:02X}"),
            Units::CodePoints => write!(out, r"\x{{{first:X}}}-\x{{{last:X}}}"),
        };
    }
    out.push(']');
}
