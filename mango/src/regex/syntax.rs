//! A parsed pattern.

use regex_syntax::hir::ClassUnicode;

use super::class::{self, Units};

/// Parts of a pattern that the linear engine lacks, or matches differently on some texts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needs {
    /// Look-around, back-references and their like.
    pub(super) backtracking: bool,
    /// It differs where the text ends in a newline.
    pub(super) no_last_newline: bool,
    /// It differs where the text is not ASCII.
    pub(super) ascii: bool,
}

/// A parsed pattern.
pub(super) struct Parsed {
    pub(super) node: Node,
    pub(super) units: Units,
    /// Number of capturing groups.
    pub(super) groups: usize,
    pub(super) needs: Needs,
}

#[derive(Debug)]
pub(super) enum Node {
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
    /// A group's match again; with `fold`, in any case.
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
pub(super) enum Assertion {
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
    pub(super) fn to_linear(&self, units: Units, out: &mut String) {
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

    /// The number of units of every match; `None` if it varies.
    pub(super) fn length(&self) -> Option<u32> {
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
