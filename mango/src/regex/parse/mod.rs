//! Parses the syntax of PCRE 8.
//!
//! Source: `pcrepattern(3)`. `docs/api.md` lists what is refused and what differs.

mod class;
mod escape;

use regex_syntax::hir::ClassUnicode;

use super::class::{self as sets, Units};
use super::syntax::{Assertion, Needs, Node, Parsed};

/// Maximum depth of groups. It limits the recursion of everything that walks a pattern.
const MAX_DEPTH: usize = 60;

/// PCRE's greatest number in a quantifier.
const MAX_REPEAT: u32 = 65_535;

enum Problem {
    /// On bytes, a part of a character would be matched alone.
    NeedsCodePoints,
    Says(String),
}

impl From<&str> for Problem {
    fn from(text: &str) -> Self {
        Problem::Says(text.to_owned())
    }
}

type Result<T> = std::result::Result<T, Problem>;

pub(super) fn parse(pattern: &str) -> std::result::Result<Parsed, String> {
    let mut rest = pattern;
    let mut units = Units::Bytes;
    while let Some(after) = ["(*UTF8)", "(*UTF)", "(*UCP)"].iter().find_map(|verb| rest.strip_prefix(verb)) {
        (rest, units) = (after, Units::CodePoints);
    }
    match Parser::new(rest, units).pattern() {
        Err(Problem::NeedsCodePoints) => match Parser::new(rest, Units::CodePoints).pattern() {
            Err(Problem::NeedsCodePoints) => Err("a character of this pattern cannot be matched".into()),
            Err(Problem::Says(problem)) => Err(problem),
            Ok(parsed) => Ok(parsed),
        },
        Err(Problem::Says(problem)) => Err(problem),
        Ok(parsed) => Ok(parsed),
    }
}

/// The options that a pattern may switch: `(?imsxU)`.
#[derive(Clone, Copy, Default)]
struct Flags {
    fold: bool,
    lines: bool,
    dot_all: bool,
    extended: bool,
    lazy: bool,
}

/// The digits of a quantifier in braces, and the place behind it.
struct Bounds<'a> {
    min: &'a [char],
    max: Option<&'a [char]>,
    behind: usize,
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    units: Units,
    flags: Flags,
    groups: usize,
    names: Vec<(String, usize)>,
    greatest_reference: usize,
    /// The capturing groups around this place, and whether a back-reference inside is to them.
    open: Vec<(usize, bool)>,
    depth: usize,
    needs: Needs,
    /// Between `\Q` and `\E`.
    is_quoted: bool,
}

impl Parser {
    fn new(pattern: &str, units: Units) -> Self {
        Parser {
            chars: pattern.chars().collect(),
            at: 0,
            units,
            flags: Flags::default(),
            groups: 0,
            names: Vec::new(),
            greatest_reference: 0,
            open: Vec::new(),
            depth: 0,
            needs: Needs::default(),
            is_quoted: false,
        }
    }

    fn pattern(mut self) -> Result<Parsed> {
        let node = self.alternation()?;
        if self.peek().is_some() {
            return Err("unmatched parentheses".into());
        }
        if self.greatest_reference > self.groups {
            return Err("reference to non-existent subpattern".into());
        }
        Ok(Parsed { node, units: self.units, groups: self.groups, needs: self.needs })
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = text.chars().enumerate().all(|(n, c)| self.chars.get(self.at + n) == Some(&c));
        if found {
            self.at += text.chars().count();
        }
        found
    }

    fn next(&mut self) -> Result<char> {
        let next = self.peek().ok_or("the pattern ends too early")?;
        self.at += 1;
        Ok(next)
    }

    /// Returns the text up to `end`, and skips `end`.
    fn until(&mut self, end: char) -> Result<String> {
        let length = self.chars[self.at..].iter().position(|c| *c == end).ok_or("a bracket is not closed")?;
        let text = self.chars[self.at..self.at + length].iter().collect();
        self.at += length + 1;
        Ok(text)
    }

    /// A decimal number; `None` if there is no digit.
    fn number(&mut self) -> Result<Option<u32>> {
        let start = self.at;
        let mut number = 0u32;
        while let Some(digit) = self.peek().and_then(|c| c.to_digit(10)) {
            number = number.checked_mul(10).and_then(|n| n.checked_add(digit)).ok_or("number is too big")?;
            self.at += 1;
        }
        Ok((self.at > start).then_some(number))
    }

    fn alternation(&mut self) -> Result<Node> {
        if self.depth == MAX_DEPTH {
            return Err("parentheses are too deeply nested".into());
        }
        self.depth += 1;
        let mut branches = vec![self.branch()?];
        while self.eat("|") {
            branches.push(self.branch()?);
        }
        self.depth -= 1;
        let only = (branches.len() == 1).then(|| branches.pop()).flatten();
        Ok(only.unwrap_or(Node::Alternation(branches)))
    }

    fn branch(&mut self) -> Result<Node> {
        let mut parts = Vec::new();
        loop {
            self.skip_ignored()?;
            if !self.is_quoted && matches!(self.peek(), None | Some('|' | ')')) {
                break;
            }
            if self.peek().is_none() {
                break;
            }
            let (node, can_repeat) = self.item()?;
            self.skip_ignored()?;
            parts.push(self.quantified(node, can_repeat)?);
        }
        Ok(if parts.is_empty() { Node::Empty } else { Node::Concat(parts) })
    }

    /// Skips comments, the marks of quotations, and white space where it does not count.
    fn skip_ignored(&mut self) -> Result<()> {
        loop {
            if self.is_quoted {
                if !self.eat(r"\E") {
                    return Ok(());
                }
                self.is_quoted = false;
            } else if self.eat(r"\Q") {
                self.is_quoted = true;
            } else if self.eat("(?#") {
                self.until(')')?;
            } else if !self.skip_space() && !self.eat(r"\E") {
                return Ok(());
            }
        }
    }

    /// Skips a space or a comment up to the end of its line where patterns are extended.
    fn skip_space(&mut self) -> bool {
        match self.peek() {
            Some('\t'..='\r' | ' ') if self.flags.extended => self.at += 1,
            Some('#') if self.flags.extended => {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.at += 1;
                }
            }
            _ => return false,
        }
        true
    }

    /// One item, and whether a quantifier may follow.
    fn item(&mut self) -> Result<(Node, bool)> {
        let c = self.next()?;
        if self.is_quoted {
            return Ok((self.literal(c)?, true));
        }
        Ok(match c {
            '^' if self.flags.lines => {
                self.needs.no_last_newline = true;
                (Node::Assert(Assertion::LineStart), false)
            }
            '^' => (Node::Assert(Assertion::Start), false),
            '$' if self.flags.lines => (Node::Assert(Assertion::LineEnd), false),
            '$' => (self.end_or_last_newline(), false),
            '.' if self.flags.dot_all => (self.all_but(&[]), true),
            '.' => (self.all_but(&['\n']), true),
            '[' => (self.class()?, true),
            '(' => return self.group(),
            '\\' => return self.escape(),
            '*' | '+' | '?' => return Err("nothing to repeat".into()),
            '{' if self.bounds(self.at).is_some() => return Err("nothing to repeat".into()),
            c => (self.literal(c)?, true),
        })
    }

    fn end_or_last_newline(&mut self) -> Node {
        self.needs.no_last_newline = true;
        Node::Assert(Assertion::EndOrLastNewline)
    }

    fn all_but(&self, some: &[char]) -> Node {
        let ranges: Vec<_> = some.iter().map(|c| (*c, *c)).collect();
        let mut set = sets::set(&ranges);
        sets::negate(&mut set, self.units);
        Node::Set(set)
    }

    fn literal(&mut self, c: char) -> Result<Node> {
        if self.units == Units::Bytes && !c.is_ascii() {
            self.skip_ignored()?;
            // PCRE would repeat the last byte.
            if self.is_at_quantifier() {
                return Err(Problem::NeedsCodePoints);
            }
            let bytes = c.encode_utf8(&mut [0; 4]).bytes().map(char::from).collect::<Vec<_>>();
            return Ok(Node::Concat(bytes.into_iter().map(|byte| self.unit(byte)).collect()));
        }
        Ok(self.unit(c))
    }

    fn unit(&self, c: char) -> Node {
        self.set(sets::one(c))
    }

    fn set(&self, mut set: ClassUnicode) -> Node {
        if self.flags.fold {
            sets::fold(&mut set, self.units);
        }
        Node::Set(set)
    }

    fn is_at_quantifier(&self) -> bool {
        !self.is_quoted
            && match self.peek() {
                Some('*' | '+' | '?') => true,
                Some('{') => self.bounds(self.at + 1).is_some(),
                _ => false,
            }
    }

    /// `{n}`, `{n,}` and `{n,m}` after the brace: the bounds, and the place behind. Anything else is a literal brace.
    fn bounds(&self, start: usize) -> Option<Bounds<'_>> {
        let length = self.chars[start..].iter().position(|c| *c == '}')?;
        let inside = &self.chars[start..start + length];
        let is_number = |part: &[char]| !part.is_empty() && part.iter().all(char::is_ascii_digit);
        let behind = start + length + 1;
        match inside.iter().position(|c| *c == ',') {
            None if is_number(inside) => Some(Bounds { min: inside, max: Some(inside), behind }),
            Some(comma) if is_number(&inside[..comma]) => match &inside[comma + 1..] {
                [] => Some(Bounds { min: &inside[..comma], max: None, behind }),
                max if is_number(max) => Some(Bounds { min: &inside[..comma], max: Some(max), behind }),
                _ => None,
            },
            _ => None,
        }
    }

    fn quantified(&mut self, node: Node, can_repeat: bool) -> Result<Node> {
        if !self.is_at_quantifier() {
            return Ok(node);
        }
        if !can_repeat {
            return Err("nothing to repeat".into());
        }
        let (mut min, mut max) = match self.next()? {
            '*' => (0, None),
            '+' => (1, None),
            '?' => (0, Some(1)),
            _ => {
                let number = |digits: &[char]| {
                    let number = digits.iter().collect::<String>().parse().ok();
                    number.filter(|number| *number <= MAX_REPEAT).ok_or("number too big in {} quantifier")
                };
                let Bounds { min, max, behind } = self.bounds(self.at).ok_or("nothing to repeat")?;
                let (min, max) = (number(min)?, max.map(number).transpose()?);
                self.at = behind;
                if max.is_some_and(|max| max < min) {
                    return Err("numbers out of order in {} quantifier".into());
                }
                (min, max)
            }
        };
        // A repeated look-around is the same as one.
        if matches!(node, Node::Look { .. }) {
            (min, max) = (min.min(1), Some(max.map_or(1, |max| max.min(1))));
        }
        // Between a quantifier and its `+` or `?`, PCRE skips spaces, then comments.
        while self.skip_space() {}
        while self.eat("(?#") {
            self.until(')')?;
        }
        let is_possessive = self.eat("+");
        let is_lazy = !is_possessive && self.eat("?");
        let greedy = is_possessive || is_lazy == self.flags.lazy;
        let node = Node::Repeat { node: Box::new(node), min, max, greedy };
        self.skip_ignored()?;
        if self.is_at_quantifier() {
            return Err("nothing to repeat".into());
        }
        Ok(if is_possessive { self.backtracking(Node::Atomic(Box::new(node))) } else { node })
    }

    fn backtracking(&mut self, node: Node) -> Node {
        self.needs.backtracking = true;
        node
    }

    /// Parses a group, after its parenthesis.
    fn group(&mut self) -> Result<(Node, bool)> {
        let flags = self.flags;
        if self.eat("*") {
            return Err("(*VERB) is not supported here".into());
        }
        let look = |behind, negated| Some((behind, negated));
        if !self.eat("?") {
            return Ok((self.capture(None, flags)?, true));
        }
        let looks =
            [("=", look(false, false)), ("!", look(false, true)), ("<=", look(true, false)), ("<!", look(true, true))];
        if self.eat("!)") {
            // PCRE takes this as its verb `(*FAIL)`, which nothing repeats, unless a quantifier follows at once.
            let node = Node::Look { behind: false, negated: true, node: Box::new(Node::Empty) };
            return Ok((self.backtracking(node), self.is_at_quantifier()));
        }
        if let Some((behind, negated)) = looks.into_iter().find_map(|(mark, look)| look.filter(|_| self.eat(mark))) {
            let node = Box::new(self.inside(flags)?);
            let alternatives = match &*node {
                Node::Alternation(parts) => parts.as_slice(),
                node => std::slice::from_ref(node),
            };
            if behind && alternatives.iter().any(|part| part.length().is_none()) {
                return Err("lookbehind assertion is not fixed length".into());
            }
            return Ok((self.backtracking(Node::Look { behind, negated, node }), true));
        }
        if self.eat(">") {
            let node = Box::new(self.inside(flags)?);
            return Ok((self.backtracking(Node::Atomic(node)), true));
        }
        if self.eat("P<") || self.eat("<") {
            let name = self.until('>')?;
            return Ok((self.capture(Some(name), flags)?, true));
        }
        if self.eat("'") {
            let name = self.until('\'')?;
            return Ok((self.capture(Some(name), flags)?, true));
        }
        if self.eat("P=") {
            let name = self.until(')')?;
            return Ok((self.named(&name)?, true));
        }
        if self.eat("(") {
            return Ok((self.condition(flags)?, true));
        }
        self.options(flags)
    }

    fn capture(&mut self, name: Option<String>, flags: Flags) -> Result<Node> {
        self.groups += 1;
        let group = self.groups;
        if let Some(name) = name {
            let is_name = !name.is_empty()
                && name.len() <= 32
                && name
                    .chars()
                    .enumerate()
                    .all(|(n, c)| c == '_' || c.is_ascii_alphabetic() || (n > 0 && c.is_ascii_digit()));
            if !is_name {
                return Err("a subpattern's name has up to 32 letters, digits and _, and no digit first".into());
            }
            if self.names.iter().any(|(known, _)| *known == name) {
                return Err("two named subpatterns have the same name".into());
            }
            self.names.push((name, group));
        }
        self.open.push((group, false));
        let node = Node::Capture(group, Box::new(self.inside(flags)?));
        // PCRE makes a group that refers to itself atomic.
        let refers_to_itself = self.open.pop().is_some_and(|(_, refers)| refers);
        Ok(if refers_to_itself { Node::Atomic(Box::new(node)) } else { node })
    }

    /// The inside of a group, up to its end. The options before it count again after it.
    fn inside(&mut self, flags: Flags) -> Result<Node> {
        let node = self.alternation()?;
        if !self.eat(")") {
            return Err("missing )".into());
        }
        self.flags = flags;
        Ok(node)
    }

    /// `(?i)`, `(?i-s:...)`
    fn options(&mut self, flags: Flags) -> Result<(Node, bool)> {
        let mut on = true;
        loop {
            match self.next()? {
                ')' => return Ok((Node::Empty, false)),
                ':' => return Ok((self.inside(flags)?, true)),
                '-' if on => on = false,
                'i' => self.flags.fold = on,
                'm' => self.flags.lines = on,
                's' => self.flags.dot_all = on,
                'x' => self.flags.extended = on,
                'U' => self.flags.lazy = on,
                'R' | '0'..='9' | '&' | '+' | 'P' | '-' => return Err("recursion is not supported".into()),
                '|' => return Err("(?| is not supported".into()),
                'C' => return Err("callouts are not supported".into()),
                _ => return Err("unrecognized character after (? or (?-".into()),
            }
        }
    }

    /// `(?(1)yes|no)` and `(?(<name>)yes|no)`
    fn condition(&mut self, flags: Flags) -> Result<Node> {
        let unknown = "only a number or <name> of a group is supported as a condition";
        let group = match self.number()? {
            Some(group) if self.eat(")") => group as usize,
            None if self.eat("<") => {
                let name = self.until('>')?;
                if !self.eat(")") {
                    return Err(unknown.into());
                }
                self.group_of(&name)?
            }
            _ => return Err(unknown.into()),
        };
        self.refer(group)?;
        self.depth += 1;
        let yes = self.branch()?;
        let no = if self.eat("|") { self.branch()? } else { Node::Empty };
        self.depth -= 1;
        if self.peek() == Some('|') {
            return Err("conditional group contains more than two branches".into());
        }
        if !self.eat(")") {
            return Err("missing )".into());
        }
        self.flags = flags;
        Ok(self.backtracking(Node::IfSet { group, yes: Box::new(yes), no: Box::new(no) }))
    }

    fn refer(&mut self, group: usize) -> Result<()> {
        if group == 0 {
            return Err("recursion is not supported".into());
        }
        self.greatest_reference = self.greatest_reference.max(group);
        Ok(())
    }

    fn group_of(&self, name: &str) -> Result<usize> {
        let found = self.names.iter().find(|(known, _)| known == name);
        // PCRE also knows names of later groups.
        found.map(|(_, group)| *group).ok_or("reference to a name that no earlier group has".into())
    }

    fn back_reference(&mut self, group: usize) -> Result<Node> {
        self.refer(group)?;
        self.open.iter_mut().filter(|(open, _)| *open == group).for_each(|(_, refers)| *refers = true);
        let fold = self.flags.fold;
        Ok(self.backtracking(Node::BackReference { group, fold }))
    }

    fn named(&mut self, name: &str) -> Result<Node> {
        let group = self.group_of(name)?;
        self.back_reference(group)
    }
}
