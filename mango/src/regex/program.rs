//! Programs of the backtracking engine.
//!
//! Each node becomes a range of operations. `(?:ab)*` becomes
//! ```text
//!   0 Split 1 6 ── 1 Save ── 2 Set a ── 3 Set b ── 4 LeaveIfAt 6 ── 5 Jump 0      6 ...
//! ```

use regex_syntax::hir::ClassUnicode;

use super::class::Units;
use super::syntax::{Assertion, Node, Parsed};

/// Maximum number of operations of a program. Counted repetitions are copies.
const MAX_OPERATIONS: usize = 20_000;

#[derive(Debug)]
pub(super) struct Program {
    pub(super) operations: Vec<Operation>,
    pub(super) sets: Vec<ClassUnicode>,
    pub(super) units: Units,
    /// Number of places that a match remembers: two for each group, then those of loops.
    pub(super) slots: usize,
    /// The units that `\b` takes for parts of words.
    pub(super) word: ClassUnicode,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Set(usize),
    /// Takes as many units of a set as it can, and gives them back one by one.
    Run {
        set: usize,
        max: u32,
    },
    /// Continues at the first, and at the second if that fails.
    Split(usize, usize),
    Jump(usize),
    /// Remembers the place.
    Save(usize),
    /// Leaves a loop for another operation if the place is still the remembered one.
    LeaveIfAt {
        slot: usize,
        to: usize,
    },
    /// A group has matched, from a remembered place to here.
    Capture {
        group: usize,
        start: usize,
    },
    Assert(Assertion),
    BackReference {
        group: usize,
        fold: bool,
    },
    /// Continues at an operation if a group has not matched.
    UnlessSet {
        group: usize,
        to: usize,
    },
    /// Runs the next operations up to their `Accept` as a separate match, and continues at `end`.
    Look {
        negated: bool,
        end: usize,
    },
    Atomic {
        end: usize,
    },
    /// Goes back by some units.
    Back(u32),
    Accept,
}

impl Program {
    pub(super) fn new(parsed: &Parsed) -> Result<Program, String> {
        let word = super::class::escape('w', parsed.units).ok_or("classes of words are missing")?;
        let mut program = Program {
            operations: Vec::new(),
            sets: Vec::new(),
            units: parsed.units,
            slots: 2 * parsed.groups + 2,
            word,
        };
        program.add(&parsed.node)?;
        program.push(Operation::Accept)?;
        Ok(program)
    }

    fn push(&mut self, operation: Operation) -> Result<usize, String> {
        if self.operations.len() == MAX_OPERATIONS {
            return Err("regular expression is too large".into());
        }
        self.operations.push(operation);
        Ok(self.operations.len() - 1)
    }

    fn here(&self) -> usize {
        self.operations.len()
    }

    fn set(&mut self, set: &ClassUnicode) -> usize {
        // Copies of a counted repetition are close to each other.
        let recent = self.sets.iter().rev().take(8).position(|known| known == set);
        if recent.is_none() {
            self.sets.push(set.clone());
        }
        self.sets.len() - 1 - recent.unwrap_or(0)
    }

    fn add(&mut self, node: &Node) -> Result<(), String> {
        match node {
            Node::Empty => {}
            Node::Set(set) => {
                let set = self.set(set);
                self.push(Operation::Set(set))?;
            }
            Node::Assert(assertion) => {
                self.push(Operation::Assert(*assertion))?;
            }
            Node::Concat(parts) => {
                for part in parts {
                    self.add(part)?;
                }
            }
            Node::Alternation(parts) => self.alternation(parts, Self::add)?,
            Node::Capture(group, node) => {
                // The start counts only after the group has matched: until then a back-reference means its previous
                // match.
                let slot = self.slots;
                self.slots += 1;
                self.push(Operation::Save(slot))?;
                self.add(node)?;
                self.push(Operation::Capture { group: *group, start: slot })?;
            }
            Node::Atomic(node) => {
                let at = self.push(Operation::Atomic { end: 0 })?;
                self.add(node)?;
                self.push(Operation::Accept)?;
                self.operations[at] = Operation::Atomic { end: self.here() };
            }
            Node::Look { behind, negated, node } => {
                let at = self.push(Operation::Look { negated: *negated, end: 0 })?;
                match (behind, &**node) {
                    (true, Node::Alternation(parts)) => self.alternation(parts, Self::add_behind)?,
                    (true, node) => self.add_behind(node)?,
                    (false, node) => self.add(node)?,
                }
                self.push(Operation::Accept)?;
                self.operations[at] = Operation::Look { negated: *negated, end: self.here() };
            }
            Node::Repeat { node, min, max, greedy } => self.repeat(node, *min, *max, *greedy)?,
            Node::BackReference { group, fold } => {
                self.push(Operation::BackReference { group: *group, fold: *fold })?;
            }
            Node::IfSet { group, yes, no } => {
                let at = self.push(Operation::UnlessSet { group: *group, to: 0 })?;
                self.add(yes)?;
                let jump = self.push(Operation::Jump(0))?;
                self.operations[at] = Operation::UnlessSet { group: *group, to: self.here() };
                self.add(no)?;
                self.operations[jump] = Operation::Jump(self.here());
            }
        }
        Ok(())
    }

    fn alternation(&mut self, parts: &[Node], add: fn(&mut Self, &Node) -> Result<(), String>) -> Result<(), String> {
        let mut jumps = Vec::new();
        for (n, part) in parts.iter().enumerate() {
            if n + 1 == parts.len() {
                add(self, part)?;
                break;
            }
            let split = self.push(Operation::Split(0, 0))?;
            add(self, part)?;
            jumps.push(self.push(Operation::Jump(0))?);
            self.operations[split] = Operation::Split(split + 1, self.here());
        }
        for jump in jumps {
            self.operations[jump] = Operation::Jump(self.here());
        }
        Ok(())
    }

    /// One alternative of a look-behind.
    fn add_behind(&mut self, node: &Node) -> Result<(), String> {
        let length = node.length().ok_or("lookbehind assertion is not fixed length")?;
        self.push(Operation::Back(length))?;
        self.add(node)
    }

    fn repeat(&mut self, node: &Node, min: u32, max: Option<u32>, greedy: bool) -> Result<(), String> {
        for _ in 0..min {
            let before = self.here();
            self.add(node)?;
            if self.here() == before {
                return Ok(());
            }
        }
        let more = max.map_or(u32::MAX, |max| max - min);
        if more == 0 {
            return Ok(());
        }
        if let (Node::Set(set), true) = (node, greedy) {
            let set = self.set(set);
            self.push(Operation::Run { set, max: more })?;
            return Ok(());
        }
        let split = |next, exit| if greedy { Operation::Split(next, exit) } else { Operation::Split(exit, next) };
        if max.is_some() {
            let mut splits = Vec::new();
            for _ in 0..more {
                splits.push(self.push(Operation::Split(0, 0))?);
                self.add(node)?;
            }
            for at in splits {
                self.operations[at] = split(at + 1, self.here());
            }
            return Ok(());
        }
        let slot = self.slots;
        self.slots += 1;
        let start = self.push(Operation::Split(0, 0))?;
        self.push(Operation::Save(slot))?;
        self.add(node)?;
        let leave = self.push(Operation::LeaveIfAt { slot, to: 0 })?;
        self.push(Operation::Jump(start))?;
        self.operations[leave] = Operation::LeaveIfAt { slot, to: self.here() };
        self.operations[start] = split(start + 1, self.here());
        Ok(())
    }
}
