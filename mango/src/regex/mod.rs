//! Regular expressions as CouchDB's `$regex` has them: PCRE's syntax and meaning, over bytes.
//!
//! CouchDB calls Erlang's `re`, which is PCRE 8 with Latin-1's tables. Two engines serve the same parsed pattern:
//!
//! ```text
//!   pattern ── parse ──► Node ──┬─ to_linear ──► the crate regex   time linear in the text
//!                               └─ Program ────► backtracking      at most MAX_STEPS steps
//! ```
//! The first is used wherever it gives PCRE's answer. Look-around, back-references, atomic groups, possessive quantifiers
//! and conditions need the second. So do some texts: `$` and `(?m)^` heed a newline at the text's end, and `\b` on
//! bytes heeds Latin-1's letters.
//!
//! A pattern in which a byte beyond ASCII would stand alone (`[ä]`, `ä+`), and one with `\p`, `\x{100}` or `(*UTF8)`, is
//! matched on code points, with Unicode's classes: on bytes it would mean nothing useful.

mod class;
mod matching;
mod parse;
mod program;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use regex::bytes::RegexBuilder;
use regex_syntax::hir::ClassUnicode;

use program::Program;

/// Maximum size of a compiled expression of the linear engine, in bytes.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// Maximum memory of a thread that matches one, in bytes.
const MAX_REGEX_CACHE: usize = 1 << 18;

/// A compiled pattern. Clones share it.
#[derive(Clone, Debug)]
pub struct Regex(Arc<Engines>);

#[derive(Debug)]
struct Engines {
    linear: Option<regex::bytes::Regex>,
    /// There is one unless the linear engine is right for every text.
    program: Option<Program>,
    needs: Needs,
}

/// What in a pattern the linear engine has not, or not for every text.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    /// Look-around, back-references and their like.
    backtracking: bool,
    /// It differs where the text ends in a newline.
    no_last_newline: bool,
    /// It differs where the text is not ASCII.
    ascii: bool,
}

/// A match took more steps or memory than one may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySteps;

impl fmt::Display for TooManySteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("The regular expression takes too many steps on a text. Write it with fewer alternatives to try.")
    }
}

impl std::error::Error for TooManySteps {}

impl Regex {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it, what is not supported, or that it is too large.
    pub fn new(pattern: &str) -> Result<Self, String> {
        let parsed = parse::parse(pattern)?;
        let needs = parsed.needs;
        let linear = if needs.backtracking {
            None
        } else {
            let mut text = String::new();
            parsed.node.to_linear(parsed.units, &mut text);
            let mut builder = RegexBuilder::new(&text);
            builder.unicode(parsed.units == Units::CodePoints);
            builder.size_limit(MAX_REGEX_BYTES).dfa_size_limit(MAX_REGEX_CACHE);
            Some(builder.build().map_err(|_| "regular expression is too large".to_owned())?)
        };
        let is_enough = linear.is_some() && !needs.no_last_newline && !needs.ascii;
        let program = if is_enough { None } else { Some(Program::new(&parsed)?) };
        Ok(Regex(Arc::new(Engines { linear, program, needs })))
    }

    /// Whether the pattern matches anywhere in `text`.
    ///
    /// # Errors
    /// [`TooManySteps`] if this cannot be told with the steps that one match may take.
    pub fn is_match(&self, text: &str) -> Result<bool, TooManySteps> {
        let Engines { linear, program, needs } = &*self.0;
        let differs = (needs.no_last_newline && text.ends_with('\n')) || (needs.ascii && !text.is_ascii());
        match (linear, program) {
            (Some(linear), _) if !differs => Ok(linear.is_match(text.as_bytes())),
            (_, Some(program)) => program.is_match(text),
            // One of the two always exists.
            (_, None) => Err(TooManySteps),
        }
    }
}

/// What a pattern is matched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Units {
    Bytes,
    CodePoints,
}

impl Units {
    /// The greatest unit.
    fn last(self) -> char {
        if self == Units::Bytes { '\u{ff}' } else { char::MAX }
    }
}

/// A parsed pattern.
struct Parsed {
    node: Node,
    units: Units,
    /// Number of capturing groups.
    groups: usize,
    needs: Needs,
}

#[derive(Debug)]
enum Node {
    Empty,
    /// One unit of a set. A byte is the character with its number.
    Set(ClassUnicode),
    Assert(Assertion),
    Concat(Vec<Node>),
    Alternation(Vec<Node>),
    Capture(usize, Box<Node>),
    /// A group whose first match is final.
    Atomic(Box<Node>),
    Look {
        behind: bool,
        negated: bool,
        node: Box<Node>,
    },
    Repeat {
        node: Box<Node>,
        min: u32,
        max: Option<u32>,
        greedy: bool,
    },
    /// What a group matched, `fold` without regard to case.
    BackReference {
        group: usize,
        fold: bool,
    },
    /// `(?(1)yes|no)`
    IfSet {
        group: usize,
        yes: Box<Node>,
        no: Box<Node>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Assertion {
    /// `\A`
    Start,
    /// `\z`
    End,
    /// `$` and `\Z`: the end, or before a newline there.
    EndOrLastNewline,
    /// `(?m)^`: the start, or after a newline that is not the last unit.
    LineStart,
    /// `(?m)$`
    LineEnd,
    WordBoundary,
    NoWordBoundary,
}

impl Node {
    /// Writes the pattern in the syntax of the crate `regex`. Only for patterns that do not need backtracking.
    fn to_linear(&self, units: Units, out: &mut String) {
        match self {
            Node::Empty => out.push_str("(?:)"),
            Node::Set(set) => class::write(set, units, out),
            Node::Assert(assertion) => out.push_str(match assertion {
                Assertion::Start => r"\A",
                // Where the text does not end in a newline.
                Assertion::End | Assertion::EndOrLastNewline => r"\z",
                Assertion::LineStart => "(?m:^)",
                Assertion::LineEnd => "(?m:$)",
                Assertion::WordBoundary => r"\b",
                Assertion::NoWordBoundary => r"\B",
            }),
            Node::Concat(parts) => {
                out.push_str("(?:");
                parts.iter().for_each(|part| part.to_linear(units, out));
                out.push(')');
            }
            Node::Alternation(parts) => {
                out.push_str("(?:");
                for (n, part) in parts.iter().enumerate() {
                    if n > 0 {
                        out.push('|');
                    }
                    part.to_linear(units, out);
                }
                out.push(')');
            }
            Node::Capture(_, node) => node.to_linear(units, out),
            Node::Repeat { node, min, max, .. } => {
                out.push_str("(?:");
                node.to_linear(units, out);
                let max = max.map_or(String::new(), |max| max.to_string());
                out.push_str(&format!("){{{min},{max}}}"));
            }
            // These need backtracking.
            Node::Atomic(_) | Node::Look { .. } | Node::BackReference { .. } | Node::IfSet { .. } => {}
        }
    }

    /// The number of units of every match; `None` if matches differ in it.
    fn length(&self) -> Option<u32> {
        match self {
            Node::Empty | Node::Assert(_) | Node::Look { .. } => Some(0),
            Node::Set(_) => Some(1),
            Node::Concat(parts) => parts.iter().try_fold(0u32, |sum, part| sum.checked_add(part.length()?)),
            Node::Alternation(parts) => {
                let mut lengths = parts.iter().map(Node::length);
                let first = lengths.next()??;
                lengths.all(|length| length == Some(first)).then_some(first)
            }
            Node::Capture(_, node) | Node::Atomic(node) => node.length(),
            Node::Repeat { node, min, max, .. } if Some(*min) == *max => node.length()?.checked_mul(*min),
            Node::Repeat { .. } | Node::BackReference { .. } => None,
            Node::IfSet { yes, no, .. } => yes.length().filter(|length| no.length() == Some(*length)),
        }
    }
}
