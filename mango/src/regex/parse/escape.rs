//! Parses escapes.

use regex_syntax::hir::ClassUnicode;

use super::{Parser, Problem, Result};
use crate::regex::class::{self as sets, Units};
use crate::regex::syntax::{Assertion, Node};

impl Parser {
    /// What follows a backslash outside of a class.
    pub(super) fn escape(&mut self) -> Result<(Node, bool)> {
        let c = self.next()?;
        if let Some(assertion) = match c {
            'A' | 'G' => Some(Assertion::Start),
            'z' => Some(Assertion::End),
            'b' => Some(Assertion::WordBoundary),
            'B' => Some(Assertion::NoWordBoundary),
            _ => None,
        } {
            if matches!(c, 'b' | 'B') && self.units == Units::Bytes {
                self.needs.ascii = true;
            }
            return Ok((Node::Assert(assertion), false));
        }
        let node = match c {
            'Z' => return Ok((self.end_or_last_newline(), false)),
            // It moves the start of a match, but does not decide whether there is one.
            'K' => return Ok((Node::Empty, false)),
            'N' if self.peek() == Some('{') && self.bounds(self.at + 1).is_none() => {
                return Err(r"\N{name} is not supported".into());
            }
            'N' => self.all_but(&['\n']),
            'R' => self.newline(),
            'C' if self.units == Units::Bytes => self.all_but(&[]),
            'C' | 'X' => return Err(format!(r"\{c} is not supported").as_str().into()),
            'g' => self.g_reference()?,
            'k' => {
                let name = match self.next()? {
                    '<' => self.until('>')?,
                    '\'' => self.until('\'')?,
                    '{' => self.until('}')?,
                    _ => return Err(r"\k is not followed by a braced, angle-bracketed, or quoted name".into()),
                };
                self.named(&name)?
            }
            '1'..='9' => {
                self.at -= 1;
                let start = self.at;
                let number = self.number()?.unwrap_or(u32::MAX) as usize;
                if number < 10 || number <= self.groups {
                    self.back_reference(number)?
                } else {
                    self.at = start;
                    if matches!(c, '8' | '9') {
                        return Err("reference to non-existent subpattern".into());
                    }
                    let code = self.octal(3);
                    self.code(code)?
                }
            }
            c => match self.class_escape(c)? {
                Some(set) => Node::Set(set),
                None => {
                    let code = self.character(c)?;
                    self.code(code)?
                }
            },
        };
        Ok((node, true))
    }

    /// `\R` takes `\r\n` together, and never gives the newline back.
    fn newline(&mut self) -> Node {
        let both = Node::Concat(vec![Node::Set(sets::one('\r')), Node::Set(sets::one('\n'))]);
        let one = sets::escape('v', self.units).unwrap_or_else(ClassUnicode::empty);
        self.backtracking(Node::Atomic(Box::new(Node::Alternation(vec![both, Node::Set(one)]))))
    }

    /// `\g1`, `\g{1}`, `\g{-1}`, `\g{name}`
    fn g_reference(&mut self) -> Result<Node> {
        let is_braced = self.eat("{");
        let is_relative = self.eat("-");
        let group = match self.number()? {
            Some(number) if is_relative => {
                (self.groups + 1).checked_sub(number as usize).ok_or("reference to non-existent subpattern")?
            }
            Some(number) => number as usize,
            None if is_braced && !is_relative => {
                let name = self.until('}')?;
                return self.named(&name);
            }
            None => return Err(r"\g is only supported with a number or a name in braces".into()),
        };
        if is_braced && !self.eat("}") {
            return Err(r"\g{ is not closed".into());
        }
        if group == 0 || (is_relative && group > self.groups) {
            return Err("reference to non-existent subpattern".into());
        }
        self.back_reference(group)
    }

    /// The set of `\d`, `\p{L}` and their like; `None` for other escapes.
    pub(super) fn class_escape(&mut self, c: char) -> Result<Option<ClassUnicode>> {
        if matches!(c, 'p' | 'P') {
            if self.units == Units::Bytes {
                return Err(Problem::NeedsCodePoints);
            }
            let name = match self.next()? {
                '{' => self.until('}')?,
                letter => letter.to_string(),
            };
            let (negated, name) = name.strip_prefix('^').map_or((false, name.as_str()), |name| (true, name));
            let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let text = match name {
                "L&" => r"[\p{Lu}\p{Ll}\p{Lt}]".to_owned(),
                name if is_name => format!(r"\p{{{name}}}"),
                _ => String::new(),
            };
            let mut set = sets::unicode(&text).ok_or(r"unknown property name after \P or \p")?;
            if negated != (c == 'P') {
                sets::negate(&mut set, self.units);
            }
            return Ok(Some(set));
        }
        Ok(sets::escape(c, self.units))
    }

    /// The code of an escape that is one character.
    pub(super) fn character(&mut self, c: char) -> Result<u32> {
        Ok(match c {
            'a' => 7,
            'e' => 27,
            'f' => 12,
            'n' => 10,
            'r' => 13,
            't' => 9,
            '0' => {
                self.at -= 1;
                self.octal(3)
            }
            'o' => {
                let digits = if self.eat("{") { self.until('}')? } else { String::new() };
                u32::from_str_radix(&digits, 8).map_err(|_| r"\o is not followed by octal digits in braces")?
            }
            'x' if self.peek() == Some('{') => {
                let before = self.at;
                self.at += 1;
                let digits = self.until('}')?;
                match u32::from_str_radix(&digits, 16) {
                    Ok(code) if !digits.starts_with('+') => code,
                    // PCRE takes `\x` as NUL, and the brace as a literal.
                    _ => {
                        self.at = before;
                        0
                    }
                }
            }
            'x' => {
                let mut code = 0;
                for _ in 0..2 {
                    if let Some(digit) = self.peek().and_then(|c| c.to_digit(16)) {
                        code = code * 16 + digit;
                        self.at += 1;
                    }
                }
                code
            }
            'c' => match self.next()? {
                c if c.is_ascii() => u32::from(c.to_ascii_uppercase()) ^ 0x40,
                _ => return Err(r"\c must be followed by an ASCII character".into()),
            },
            'L' | 'l' | 'U' | 'u' => return Err(r"PCRE does not support \L, \l, \N{name}, \U, or \u".into()),
            c => u32::from(c),
        })
    }

    pub(super) fn octal(&mut self, most: usize) -> u32 {
        let mut code = 0;
        for _ in 0..most {
            if let Some(digit) = self.peek().and_then(|c| c.to_digit(8)) {
                code = code * 8 + digit;
                self.at += 1;
            }
        }
        code
    }

    fn code(&mut self, code: u32) -> Result<Node> {
        let unit = self.as_unit(code)?;
        Ok(self.unit(unit))
    }

    pub(super) fn as_unit(&self, code: u32) -> Result<char> {
        match char::from_u32(code).ok_or("character value in an escape is too large")? {
            c if c > self.units.last() => Err(Problem::NeedsCodePoints),
            c => Ok(c),
        }
    }
}
