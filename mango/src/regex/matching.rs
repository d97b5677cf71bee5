//! The backtracking engine. It keeps its choices in a list, so that texts cannot exhaust the stack of a thread.

use std::cell::Cell;
use std::fmt;

use regex_syntax::hir::ClassUnicode;

use super::class::Units;
use super::program::{Operation, Program};
use super::syntax::Assertion;

/// A match took more steps or memory than one may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySteps;

impl fmt::Display for TooManySteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "The regular expression takes too many steps on a document. Write it with fewer alternatives to try.",
        )
    }
}

impl std::error::Error for TooManySteps {}

/// Maximum number of steps on all texts of a document, besides [`STEPS_PER_BYTE`]: about ten milliseconds.
const MAX_STEPS: usize = 2_000_000;

/// Steps that each match may take for each byte of its text.
const STEPS_PER_BYTE: usize = 8;

/// The steps that are left for the texts of a document.
pub(crate) struct Steps(Cell<usize>);

impl Default for Steps {
    fn default() -> Self {
        Steps(Cell::new(MAX_STEPS))
    }
}

/// Maximum number of choices and places that one match keeps: a few megabytes.
const MAX_FRAMES: usize = 200_000;

const UNSET: usize = usize::MAX;

/// What is undone or tried when the match goes back.
#[derive(Clone, Copy)]
enum Frame {
    Try {
        at: usize,
        place: usize,
    },
    Restore {
        slot: usize,
        place: usize,
    },
    /// Units after `low` may be given back.
    GiveBack {
        at: usize,
        low: usize,
        place: usize,
    },
}

struct Match<'a> {
    program: &'a Program,
    text: &'a str,
    slots: Vec<usize>,
    frames: Vec<Frame>,
    steps: usize,
}

impl Program {
    pub(super) fn is_match(&self, text: &str, left: &Steps) -> Result<bool, TooManySteps> {
        let steps = left.0.get().saturating_add(text.len().saturating_mul(STEPS_PER_BYTE));
        let mut run = Match { program: self, text, slots: vec![UNSET; self.slots], frames: Vec::new(), steps };
        let found = run.find();
        // The text's own steps are used first.
        left.0.set(left.0.get().min(run.steps));
        found
    }
}

impl Match<'_> {
    /// Whether there is a match that begins at any place.
    fn find(&mut self) -> Result<bool, TooManySteps> {
        let mut start = Some(0);
        while let Some(place) = start {
            if self.run(0, place)?.is_some() {
                return Ok(true);
            }
            start = self.unit(place).map(|(_, next)| next);
        }
        Ok(false)
    }

    /// The unit at a place, and the place behind it.
    fn unit(&self, place: usize) -> Option<(char, usize)> {
        match self.program.units {
            Units::Bytes => self.text.as_bytes().get(place).map(|byte| (char::from(*byte), place + 1)),
            Units::CodePoints => self.text.get(place..)?.chars().next().map(|unit| (unit, place + unit.len_utf8())),
        }
    }

    /// The unit before a place, and its place.
    fn unit_before(&self, place: usize) -> Option<(char, usize)> {
        match self.program.units {
            Units::Bytes => place.checked_sub(1).map(|before| (char::from(self.text.as_bytes()[before]), before)),
            Units::CodePoints => {
                self.text.get(..place)?.chars().next_back().map(|unit| (unit, place - unit.len_utf8()))
            }
        }
    }

    fn step(&mut self) -> Result<(), TooManySteps> {
        self.steps = self.steps.checked_sub(1).ok_or(TooManySteps)?;
        Ok(())
    }

    fn push(&mut self, frame: Frame) -> Result<(), TooManySteps> {
        if self.frames.len() == MAX_FRAMES {
            return Err(TooManySteps);
        }
        self.frames.push(frame);
        Ok(())
    }

    fn save(&mut self, slot: usize, place: usize) -> Result<(), TooManySteps> {
        self.push(Frame::Restore { slot, place: self.slots[slot] })?;
        self.slots[slot] = place;
        Ok(())
    }

    /// Runs the operations from `at` to their `Accept`; returns the place that was reached. Their remembered places
    /// stay on the list, to be undone; their other choices do not.
    fn run(&mut self, mut at: usize, mut place: usize) -> Result<Option<usize>, TooManySteps> {
        let base = self.frames.len();
        loop {
            self.step()?;
            let mut next = Some((at + 1, place));
            match self.program.operations[at] {
                Operation::Set(set) => {
                    let found = self.unit(place).filter(|(unit, _)| has(&self.program.sets[set], *unit));
                    next = found.map(|(_, behind)| (at + 1, behind));
                }
                Operation::Run { set, max } => {
                    let (low, mut end, mut count) = (place, place, 0);
                    while count < max
                        && let Some((unit, behind)) = self.unit(end)
                        && has(&self.program.sets[set], unit)
                    {
                        self.step()?;
                        (end, count) = (behind, count + 1);
                    }
                    if end > low {
                        self.push(Frame::GiveBack { at: at + 1, low, place: end })?;
                    }
                    next = Some((at + 1, end));
                }
                Operation::Split(first, second) => {
                    self.push(Frame::Try { at: second, place })?;
                    next = Some((first, place));
                }
                Operation::Jump(to) => next = Some((to, place)),
                Operation::Save(slot) => self.save(slot, place)?,
                Operation::LeaveIfAt { slot, to } if self.slots[slot] == place => next = Some((to, place)),
                Operation::LeaveIfAt { .. } => {}
                Operation::Capture { group, start } => {
                    self.save(2 * group, self.slots[start])?;
                    self.save(2 * group + 1, place)?;
                }
                Operation::Assert(assertion) => next = next.filter(|_| self.holds(assertion, place)),
                Operation::BackReference { group, fold } => {
                    next = self.behind_again(group, fold, place)?.map(|behind| (at + 1, behind));
                }
                Operation::UnlessSet { group, to } if self.slots[2 * group + 1] == UNSET => next = Some((to, place)),
                Operation::UnlessSet { .. } => {}
                Operation::Look { negated, end } => {
                    let before = self.frames.len();
                    let found = self.run(at + 1, place)?.is_some();
                    if found && negated {
                        self.undo_to(before);
                    }
                    next = (found != negated).then_some((end, place));
                }
                Operation::Atomic { end } => next = self.run(at + 1, place)?.map(|behind| (end, behind)),
                Operation::Back(count) => {
                    let mut start = Some(place);
                    for _ in 0..count {
                        self.step()?;
                        start = start.and_then(|place| self.unit_before(place)).map(|(_, before)| before);
                    }
                    next = start.map(|start| (at + 1, start));
                }
                Operation::Accept => {
                    let mut kept = base;
                    for n in base..self.frames.len() {
                        if matches!(self.frames[n], Frame::Restore { .. }) {
                            self.frames[kept] = self.frames[n];
                            kept += 1;
                        }
                    }
                    self.frames.truncate(kept);
                    return Ok(Some(place));
                }
            }
            match next.or_else(|| self.back(base)) {
                Some(next) => (at, place) = next,
                None => return Ok(None),
            }
        }
    }

    /// Goes back to the latest choice above `base` that has an alternative, and returns the alternative.
    fn back(&mut self, base: usize) -> Option<(usize, usize)> {
        while self.frames.len() > base {
            match self.frames.pop()? {
                Frame::Restore { slot, place } => self.slots[slot] = place,
                Frame::Try { at, place } => return Some((at, place)),
                Frame::GiveBack { at, low, place } => {
                    let (_, place) = self.unit_before(place)?;
                    if place > low {
                        self.frames.push(Frame::GiveBack { at, low, place });
                    }
                    return Some((at, place));
                }
            }
        }
        None
    }

    fn undo_to(&mut self, base: usize) {
        while self.frames.len() > base {
            if let Some(Frame::Restore { slot, place }) = self.frames.pop() {
                self.slots[slot] = place;
            }
        }
    }

    fn holds(&self, assertion: Assertion, place: usize) -> bool {
        let bytes = self.text.as_bytes();
        let is_end = place == bytes.len();
        let is_newline = bytes.get(place) == Some(&b'\n');
        match assertion {
            Assertion::Start => place == 0,
            Assertion::End => is_end,
            Assertion::EndOrLastNewline => is_end || (is_newline && place + 1 == bytes.len()),
            Assertion::LineStart => place == 0 || (!is_end && bytes[place - 1] == b'\n'),
            Assertion::LineEnd => is_end || is_newline,
            Assertion::WordBoundary => self.is_boundary(place),
            Assertion::NoWordBoundary => !self.is_boundary(place),
        }
    }

    fn is_boundary(&self, place: usize) -> bool {
        let is_word = |unit: Option<(char, usize)>| unit.is_some_and(|(unit, _)| has(&self.program.word, unit));
        is_word(self.unit(place)) != is_word(self.unit_before(place))
    }

    /// If the text at `place` repeats a group's match: the place behind it.
    fn behind_again(&mut self, group: usize, fold: bool, mut place: usize) -> Result<Option<usize>, TooManySteps> {
        let (mut from, end) = (self.slots[2 * group], self.slots[2 * group + 1]);
        if end == UNSET {
            return Ok(None);
        }
        while from < end {
            self.step()?;
            let (Some((left, next)), Some((right, behind))) = (self.unit(from), self.unit(place)) else {
                return Ok(None);
            };
            if left != right && !(fold && left.to_lowercase().eq(right.to_lowercase())) {
                return Ok(None);
            }
            (from, place) = (next, behind);
        }
        Ok(Some(place))
    }
}

fn has(set: &ClassUnicode, unit: char) -> bool {
    let ranges = set.ranges();
    let above = ranges.partition_point(|range| range.start() <= unit);
    above.checked_sub(1).is_some_and(|n| ranges[n].end() >= unit)
}
