//! Chooses the next compaction.
//!
//! ```text
//!   level 0   flushes, which overlap
//!   level 1   │ table │ table │  │ table │ table │     runs of four flushes, which overlap
//!   level 4   │ table │ table │ table │                the base: the first level below with tables, up to 128 MB
//!   level 5   │ table │ table │ table │ …              ten times as much
//!   level 6   │ table │ table │ table │ …              the last one
//! ```
//!
//! Levels fill from the last one up: when all are full, the level above the base becomes the base. There are two
//! reasons to compact:
//!
//! * **Size.** Four flushes become a run of level 1, which writes each of their rows once. Merging them into the base would
//!   write all of the base again, since ids are usually random. So they wait in level 1 until there is about as much as
//!   in a full base, with what they hide; then all of them are merged into it. One table of a level that is too large is merged into the
//!   next level: the one that overlaps least there. A table that overlaps nothing is only moved.
//! * **Space.** A tombstone hides a row below it, which takes space until both are merged. Each table knows about how many bytes
//!   it [hides]: while it is written, a mean row of the lowest table around each tombstone is added. A compaction for space
//!   pays if it frees about as much as it writes. When nothing is flushed for a while, it pays as long as more than a
//!   twentieth of all bytes is hidden.
//!
//! The idea of the levels is RocksDB's `level_compaction_dynamic_level_bytes`; that of the tombstones its
//! `CompactOnDeletionCollector`, which counts them too.
//!
//! [hides]: Member::hides

use std::cell::Cell;
use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::maker::Place;
use crate::tables::{LAST, Member, Run, Tables, YOUNG, overlapping};

/// Number of flushed tables that are merged.
const FLUSHES: usize = 4;

/// From this number of flushed runs on, they are merged before anything else.
const MANY_FLUSHES: usize = 8;

/// Number of runs of level 1. The flushes that would make another one are merged into the base, with all of level 1.
const WAITING: usize = 3;

/// The base has up to the size of this many tables, and so has level 1.
const BASE_TABLES: u64 = 8;

/// Each level below the base has this many times the size of the one above.
const RATIO: u64 = 10;

/// A table ends where it overlaps this much of the next level, so that its compaction is short.
pub(crate) const fn most_below(table_bytes: u64) -> u64 {
    RATIO * table_bytes
}

/// No compaction is larger. The upper tables of a larger one are first cut into smaller tables, which overlap less.
pub(crate) const fn most_step(table_bytes: u64) -> u64 {
    2 * most_below(table_bytes)
}

/// Part of all bytes that may be hidden when nothing is flushed.
const HIDDEN_PART: u64 = 20;

/// How much a compaction may cost for the space that it frees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Others are writing: a compaction must free about as much as it writes.
    Usual,
    /// Nothing is flushed: until little is hidden.
    Quiet,
    /// A range is to be freed, from the first key up to, not including, the last one: all rows that are hidden by
    /// tombstones from before this flush.
    Full { first: Box<[u8]>, last: Box<[u8]>, before: u64 },
}

/// A compaction: tables of one level, or of both young ones, with those of a lower level that they overlap.
pub(crate) struct Step {
    /// Where the result goes.
    pub(crate) to: Place,
    pub(crate) upper: Vec<Run>,
    pub(crate) lower: Vec<Run>,
    /// Whether the upper tables only move to the other level, without a merge.
    pub(crate) is_move: bool,
}

impl Step {
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.upper.iter().chain(&self.lower).flatten()
    }
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Of a table.
    pub(crate) table: u64,
    /// Of the disk's room for the result of a compaction.
    pub(crate) room: u64,
}

/// What is to be done next.
pub(crate) enum Picked {
    Step(Step),
    /// A compaction would pay, and the disk has no room for its result.
    NoRoom,
    Nothing,
}

#[cfg(test)]
impl Picked {
    pub(crate) fn step(self) -> Option<Step> {
        if let Picked::Step(step) = self { Some(step) } else { None }
    }
}

/// The next compaction, if one pays. With [`Effort::Full`] it is one for space, unless flushes wait. `damaged` has the
/// numbers of tables that could not be read: they are not compacted for space, or each try would fail at the same
/// place.
pub(crate) fn pick(tables: &Tables, sizes: Sizes, effort: &Effort, damaged: &HashSet<u64>) -> Picked {
    let picker = Picker::of(tables, sizes);
    let many = if tables.flushes() >= MANY_FLUSHES { picker.young() } else { None };
    let step = many.or_else(|| picker.for_space(effort, damaged));
    let step = if matches!(effort, Effort::Full { .. }) { step } else { step.or_else(|| picker.for_size()) };
    match step {
        Some(step) => Picked::Step(step),
        None if picker.lacks_room.get() => Picked::NoRoom,
        None => Picked::Nothing,
    }
}

/// The compaction of the first table of a level, as if the level were too large.
#[cfg(test)]
pub(crate) fn pick_from(tables: &Tables, sizes: Sizes, level: usize) -> Option<Step> {
    let (picker, first) = (Picker::of(tables, sizes), tables.level(level).next()?);
    Some(picker.sized(level, picker.with_overlapping(level, first)))
}

struct Picker<'a> {
    tables: &'a Tables,
    sizes: Sizes,
    base: usize,
    /// Whether a compaction was left out because the disk has no room for it.
    lacks_room: Cell<bool>,
}

/// Bytes of tables.
fn bytes<'a>(tables: impl IntoIterator<Item = &'a Arc<Member>>) -> u64 {
    tables.into_iter().map(|member| member.bytes()).sum()
}

/// Tables that may be merged for space.
struct Candidate {
    level: usize,
    upper: Run,
    /// Bytes that their tombstones hide, roughly.
    hidden: u64,
    /// Bytes that are read.
    cost: u64,
}

impl<'a> Picker<'a> {
    fn of(tables: &'a Tables, sizes: Sizes) -> Self {
        let mut picker = Picker { tables, sizes, base: LAST, lacks_room: Cell::new(false) };
        picker.base = (YOUNG + 1..=LAST).find(|level| tables.level(*level).next().is_some()).unwrap_or(LAST);
        let is_full = |level: usize| picker.bytes_of(level) == 0 || picker.bytes_of(level) > picker.target(level);
        // Above it there must be a level for tables that are only cut.
        if picker.base > YOUNG + 2 && picker.bytes_of(picker.base) > 0 && (picker.base..=LAST).all(is_full) {
            picker.base -= 1;
        }
        picker
    }

    fn bytes_of(&self, level: usize) -> u64 {
        bytes(self.tables.level(level))
    }

    /// The size of a full level.
    fn target(&self, level: usize) -> u64 {
        BASE_TABLES * self.sizes.table * RATIO.pow(level.saturating_sub(self.base) as u32)
    }

    /// A compaction of what is too large.
    fn for_size(&self) -> Option<Step> {
        let flushed = self.tables.level(0).count();
        let mut scores = vec![(flushed as f64 / FLUSHES as f64, 0)];
        scores.extend((self.base..LAST).map(|level| (self.bytes_of(level) as f64 / self.target(level) as f64, level)));
        // A level of flushes is merged when it is full, other levels when they are more than full.
        scores.retain(|(score, level)| *score > 1.0 || (*score == 1.0 && *level == 0));
        scores.sort_by(|one, other| other.0.total_cmp(&one.0));
        scores.into_iter().find_map(|(_, level)| self.sized_from(level))
    }

    /// A compaction of a level that is too large.
    fn sized_from(&self, level: usize) -> Option<Step> {
        if level == 0 {
            return self.young();
        }
        // The part of each table that is written again, in thousandths.
        let cost = |member: &Arc<Member>| {
            let below = bytes(self.overlapping(level + 1, std::slice::from_ref(member)).iter().flatten());
            below.saturating_mul(1_000) / member.bytes().max(1)
        };
        let mut members: Vec<_> = self.tables.level(level).map(|member| (cost(member), member)).collect();
        members.sort_by_key(|(cost, _)| *cost);
        let steps = members.into_iter().map(|(_, member)| self.sized(level, self.with_overlapping(level, member)));
        self.first_that_fits(steps)
    }

    /// A compaction of flushes: into a run of level 1 or, with all that waits there, into the base. If the disk has no
    /// room for all of them, of as many of the oldest as it has room for.
    fn young(&self) -> Option<Step> {
        let all: Run = sources(YOUNG).flat_map(|level| self.tables.level(level)).cloned().collect();
        // What they hide takes space as long as they wait.
        let size = all.iter().map(|member| member.bytes() + member.hides).sum::<u64>();
        let is_little = self.tables.levels()[YOUNG].len() < WAITING && size < self.target(self.base);
        match is_little && self.first_overlapping(YOUNG, &all).is_some() {
            true => self.first_that_fits(self.oldest(0..=0).map(|upper| self.step(0, upper, YOUNG))),
            false => self.first_that_fits(self.oldest(sources(YOUNG)).map(|upper| self.sized(YOUNG, upper))),
        }
    }

    /// All runs of some levels, all but the newest, and so on: the newer ones may stay above those that are merged.
    fn oldest(&self, levels: RangeInclusive<usize>) -> impl Iterator<Item = Run> {
        let runs: Vec<&Run> = self.tables.levels()[levels].iter().flatten().collect();
        (0..runs.len()).map(move |newer| runs[newer..].iter().copied().flatten().cloned().collect())
    }

    /// The first compaction whose result fits on the disk.
    fn first_that_fits(&self, mut steps: impl Iterator<Item = Step>) -> Option<Step> {
        let room = self.sizes.room;
        steps.find(|step| {
            let fits = step.is_move || bytes(step.inputs()) <= room;
            self.lacks_room.set(self.lacks_room.get() || !fits);
            fits
        })
    }

    /// Takes tables to the next level, or further down where they overlap nothing.
    fn sized(&self, level: usize, upper: Run) -> Step {
        let next = if level == YOUNG { self.base } else { level + 1 };
        match self.first_overlapping(level, &upper) {
            Some(found) if found <= next => self.merged_or_cut(level, upper, found),
            Some(found) => self.step(level, upper, found - 1),
            None => self.step(level, upper, LAST),
        }
    }

    /// Merges tables with those of the first level that they overlap. If that is too much, they are only cut into
    /// tables that overlap less: in their own level or, for young ones, in the level above the overlapped one.
    fn merged_or_cut(&self, level: usize, upper: Run, found: usize) -> Step {
        let lower: Run = self.overlapping(found, &upper).into_iter().flatten().collect();
        // A cut that leaves one table would be repeated again and again.
        let most = most_below(self.sizes.table);
        let can_be_cut = lower.split_last().is_some_and(|(_, rest)| bytes(rest) > most);
        if can_be_cut && bytes(&upper) + bytes(&lower) > most_step(self.sizes.table) {
            let to = if level == YOUNG { (found - 1).max(YOUNG + 1) } else { level };
            return self.step(level, upper, to);
        }
        self.step(level, upper, found)
    }

    /// A compaction of tombstones with what they hide.
    fn for_space(&self, effort: &Effort, damaged: &HashSet<u64>) -> Option<Step> {
        let all = (YOUNG..LAST).flat_map(|level| self.candidates(level)).filter(|candidate| {
            let below = self.first_overlapping(candidate.level, &candidate.upper);
            let lower = below.map(|found| self.overlapping(found, &candidate.upper)).unwrap_or_default();
            !candidate.upper.iter().chain(lower.iter().flatten()).any(|member| damaged.contains(&member.number()))
        });
        let mut candidates: Vec<Candidate> = match effort {
            Effort::Full { first, last, before } => {
                let is_asked = |run: &Run| run.iter().any(|one| *one.first() < **last && *one.last() >= **first);
                // Each flush brings new tombstones, so tombstones of later flushes are not waited for.
                let is_new = |run: &Run| {
                    run.iter().filter(|one| one.tombstones() > 0).all(|one| one.table.global_seqno() >= *before)
                };
                all.filter(|one| is_asked(&one.upper) && !(one.level == YOUNG && is_new(&one.upper))).collect()
            }
            _ => all.collect(),
        };
        let hidden: u64 = candidates.iter().map(|candidate| candidate.hidden).sum();
        // Whether a compaction must free about as much as it writes.
        let must_pay = match effort {
            Effort::Usual => true,
            Effort::Quiet => hidden < bytes(self.tables.iter()) / HIDDEN_PART,
            Effort::Full { .. } => false,
        };
        if must_pay {
            candidates.retain(|candidate| candidate.hidden >= candidate.cost / 2);
        }
        let pays = |candidate: &Candidate| candidate.hidden.saturating_mul(1_000) / candidate.cost.max(1);
        candidates.sort_by_key(|candidate| std::cmp::Reverse(pays(candidate)));
        candidates.into_iter().find_map(|candidate| self.for_space_of(candidate))
    }

    /// The compaction of a candidate, if the disk has room for its result.
    fn for_space_of(&self, candidate: Candidate) -> Option<Step> {
        let Candidate { level, upper, .. } = candidate;
        let step = |upper: Run| match self.first_overlapping(level, &upper) {
            Some(found) => self.merged_or_cut(level, upper, found),
            None => self.sized(level, upper),
        };
        match level {
            YOUNG => self.first_that_fits(self.oldest(sources(YOUNG)).map(step)),
            _ => self.first_that_fits(std::iter::once(step(upper))),
        }
    }

    /// Tables of a level that may be merged for space. Young ones are merged together.
    fn candidates(&self, level: usize) -> Vec<Candidate> {
        let uppers: Vec<Run> = match level {
            YOUNG => vec![sources(YOUNG).flat_map(|level| self.tables.level(level)).cloned().collect()],
            _ => {
                let with_tombstones = self.tables.level(level).filter(|member| member.tombstones() > 0);
                with_tombstones.map(|member| self.with_overlapping(level, member)).collect()
            }
        };
        uppers.into_iter().filter_map(|upper| self.candidate(level, upper)).collect()
    }

    fn candidate(&self, level: usize, upper: Run) -> Option<Candidate> {
        let has_tombstones = upper.iter().any(|member| member.tombstones() > 0);
        let found = self.first_overlapping(level, &upper).filter(|_| has_tombstones)?;
        let below: Run = (found..=LAST).flat_map(|lower| self.overlapping(lower, &upper)).flatten().collect();
        // Young tables hide rows of one another too.
        let most = bytes(&below) + if level == YOUNG { bytes(&upper) } else { 0 };
        let hidden = upper.iter().map(|member| member.hides).sum::<u64>().min(most);
        let cost = bytes(&upper) + bytes(self.overlapping(found, &upper).iter().flatten());
        Some(Candidate { level, upper, hidden, cost })
    }

    /// The first level below with keys between those of `upper`.
    fn first_overlapping(&self, level: usize, upper: &Run) -> Option<usize> {
        (level + 1..=LAST).find(|lower| !self.overlapping(*lower, upper).is_empty())
    }

    /// The tables of a level with keys between those of `upper`.
    fn overlapping(&self, level: usize, upper: &[Arc<Member>]) -> Vec<Run> {
        let Some((first, last)) = ends(upper) else { return Vec::new() };
        let runs = self.tables.levels()[level].iter().map(|run| overlapping(run, first, last).to_vec());
        runs.filter(|run| !run.is_empty()).collect()
    }

    /// A table with those of its level that overlap it.
    fn with_overlapping(&self, level: usize, member: &Arc<Member>) -> Run {
        let mut tables = vec![member.clone()];
        loop {
            let wider: Run = self.overlapping(level, &tables).into_iter().flatten().collect();
            if wider.len() <= tables.len() {
                return tables;
            }
            tables = wider;
        }
    }

    /// Takes tables to a level. The tables of a compaction stay in the order of their runs. What is taken to level 1
    /// becomes a run above the others there.
    fn step(&self, from: usize, upper: Run, to: usize) -> Step {
        let lower = if to == from || to == YOUNG { Vec::new() } else { self.overlapping(to, &upper) };
        let is_upper = |member: &Arc<Member>| upper.iter().any(|other| other.number() == member.number());
        let runs = self.tables.levels()[sources(from)].iter().flatten();
        let runs = runs.map(|run| run.iter().filter(|member| is_upper(member)).cloned().collect());
        let runs: Vec<Run> = runs.filter(|run: &Run| !run.is_empty()).collect();
        // Tombstones with nothing below them end in a merge.
        let is_moot = |member: &Arc<Member>| member.tombstones() > member.rows();
        let is_needed = !lower.is_empty() || runs.len() > 1 || from == to;
        let is_move = !is_needed && !upper.iter().any(is_moot);
        Step { to: Place { level: to, base: self.base.min(to) }, upper: runs, lower, is_move }
    }
}

/// The levels whose tables are compacted together: both young ones, or one below.
fn sources(level: usize) -> RangeInclusive<usize> {
    if level <= YOUNG { 0..=YOUNG } else { level..=level }
}

/// The first and the last key of tables.
pub(crate) fn ends(tables: &[Arc<Member>]) -> Option<(&[u8], &[u8])> {
    let first = tables.iter().map(|member| member.first()).min()?;
    Some((first, tables.iter().map(|member| member.last()).max()?))
}
