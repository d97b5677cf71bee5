//! Classes in brackets.

use regex_syntax::hir::ClassUnicode;

use super::{Parser, Problem, Result};
use crate::regex::class::{self as sets, Units};
use crate::regex::syntax::Node;

impl Parser {
    pub(super) fn class(&mut self) -> Result<Node> {
        if self.eat("[:<:]]") || self.eat("[:>:]]") {
            return Err("[[:<:]] and [[:>:]] are not supported".into());
        }
        let is_negated = self.eat("^");
        let mut set = ClassUnicode::empty();
        let start = self.at;
        let mut was_first = true;
        loop {
            if self.is_quoted || matches!((self.peek(), self.chars.get(self.at + 1)), (Some('\\'), Some('Q' | 'E'))) {
                self.skip_marks();
            }
            let ends = !self.is_quoted && self.peek() == Some(']') && !(was_first && self.at == start);
            was_first = false;
            if ends {
                self.at += 1;
                break;
            }
            self.class_item(&mut set)?;
        }
        let Node::Set(mut set) = self.set(set) else { return Ok(Node::Empty) };
        if is_negated {
            sets::negate(&mut set, self.units);
        }
        Ok(Node::Set(set))
    }

    /// Skips `\Q` and `\E`.
    fn skip_marks(&mut self) {
        while if self.is_quoted { self.eat(r"\E") } else { self.eat(r"\Q") || self.eat(r"\E") } {
            self.is_quoted = self.chars[self.at - 1] == 'Q';
        }
    }

    fn class_item(&mut self, set: &mut ClassUnicode) -> Result<()> {
        if !self.is_quoted
            && self.peek() == Some('[')
            && let Some(kind @ (':' | '.' | '=')) = self.chars.get(self.at + 1).copied()
            && let Some(length) = self.chars[self.at + 2..].windows(2).position(|pair| pair == [kind, ']'])
            && self.chars[self.at + 2..self.at + 2 + length].iter().all(|c| *c == '^' || c.is_ascii_alphabetic())
        {
            let name: String = self.chars[self.at + 2..self.at + 2 + length].iter().collect();
            if kind != ':' {
                return Err("POSIX collating elements are not supported".into());
            }
            self.at += length + 4;
            let (negated, name) = name.strip_prefix('^').map_or((false, name.as_str()), |name| (true, name));
            let mut class = sets::posix(name, self.flags.fold, self.units).ok_or("unknown POSIX class name")?;
            if negated {
                sets::negate(&mut class, self.units);
            }
            set.union(&class);
            return Ok(());
        }
        let first = match self.class_unit()? {
            Ok(unit) => unit,
            Err(class) => {
                set.union(&class);
                return Ok(());
            }
        };
        self.skip_marks();
        let is_range =
            !self.is_quoted && self.peek() == Some('-') && !matches!(self.chars.get(self.at + 1), None | Some(']'));
        if !is_range {
            set.union(&sets::one(first));
            return Ok(());
        }
        let before = self.at;
        self.at += 1;
        self.skip_marks();
        if !self.is_quoted && self.peek() == Some(']') {
            self.at = before;
            set.union(&sets::one(first));
            return Ok(());
        }
        let is_class =
            !self.is_quoted && self.peek() == Some('[') && matches!(self.chars.get(self.at + 1), Some(':' | '.' | '='));
        match if is_class { None } else { self.class_unit()?.ok() } {
            Some(last) if last < first => return Err("range out of order in character class".into()),
            Some(last) => set.union(&sets::set(&[(first, last)])),
            // A hyphen before a class is a literal.
            None => {
                self.at = before + 1;
                set.union(&sets::set(&[(first, first), ('-', '-')]));
            }
        }
        Ok(())
    }

    /// One unit of a class, or the class that an escape is.
    fn class_unit(&mut self) -> Result<std::result::Result<char, ClassUnicode>> {
        let c = self.next().map_err(|_| Problem::from("missing terminating ] for character class"))?;
        if c != '\\' || self.is_quoted {
            if self.units == Units::Bytes && !c.is_ascii() {
                return Err(Problem::NeedsCodePoints);
            }
            return Ok(Ok(c));
        }
        let c = self.next()?;
        let code = match c {
            'b' => 8,
            'B' | 'N' | 'R' | 'X' => return Err(format!(r"\{c} is not supported in a class").as_str().into()),
            '1'..='7' => {
                self.at -= 1;
                self.octal(3)
            }
            c => match self.class_escape(c)? {
                Some(class) => return Ok(Err(class)),
                None => self.character(c)?,
            },
        };
        Ok(Ok(self.as_unit(code)?))
    }
}
