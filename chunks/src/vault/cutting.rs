//! Cuts files at places that depend on their content (FastCDC, 2020), so that the cuts around a change stay where
//! they are.
//!
//! ```text
//!  the quick brown fox jumps over the lazy dog         … a cut depends on the 64 bytes before it
//!  ├─ piece ─┼─── piece ───┼── piece ──┤
//!  Xthe quick brown fox jumps over the lazy dog        … and is found again after an insertion
//!  ├─ piece' ─┼─── piece ───┼── piece ──┤
//! ```
//!
//! | bytes of the file | text: least, average, most | other |
//! |---|---|---|
//! | below 48 KiB | 128, 256, 1,024 | 64, 128, 512 Ki |
//! | below 768 KiB | 512, 1 Ki, 4 Ki | the same |
//! | below 12 MiB | 2 Ki, 4 Ki, 16 Ki | the same |
//! | below 192 MiB | 8 Ki, 16 Ki, 64 Ki | the same |
//! | below 3 GiB | 32 Ki, 64 Ki, 256 Ki | the same |
//! | more | 128, 256, 640 Ki | 128, 256, 640 Ki |
//!
//! Small pieces make new versions cheap, and cost an index entry each. So a note is cut as LiveSync cuts it, and larger
//! files into some thousands of pieces. A file that grows beyond a limit is stored again as a whole. The limits are a
//! factor of sixteen apart, so a growing file is stored about twice in total. The limits are not round numbers, because
//! files often have round sizes. The largest piece fits in base64 into a data document of the default size limit.
//!
//! Text is cut between characters: a cut inside a character moves in front of it.

use std::io::{self, Read};

use fastcdc::v2020::{MASKS, cut};

/// Name of this way of cutting, as in a database's settings. All clients must cut alike, or they would share no
/// chunks. A change of the table needs a new name.
pub const CUTTING: &str = "fastcdc-2020-a";

/// Kind of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// UTF-8 text: LiveSync's `plain`. Its pieces are text.
    Text,
    /// Anything else: LiveSync's `newnote`. Its pieces are bytes in base64.
    Binary,
}

/// Lengths of pieces, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Minimum of all pieces except a file's last one. Before a multi-byte character, up to three bytes less.
    pub(crate) least: usize,
    /// Most pieces are near this length, a power of two.
    pub(crate) average: usize,
    /// Maximum.
    pub(crate) most: usize,
}

const KI: usize = 1 << 10;
const NOTES_BELOW: u64 = 48 << 10;
/// Factor between two limits.
const STEP: u64 = 16;

impl Sizes {
    /// The sizes for a file of this length.
    pub(crate) fn of(kind: Kind, bytes: u64) -> Sizes {
        let around = |average: usize| Sizes { least: average / 2, average, most: average * 4 };
        let largest = Sizes { least: 128 * KI, average: 256 * KI, most: 640 * KI };
        let mut limit = NOTES_BELOW;
        for average in [256, KI, 4 * KI, 16 * KI, 64 * KI] {
            if bytes < limit {
                return around(if kind == Kind::Text { average } else { 128 * KI });
            }
            limit *= STEP;
        }
        largest
    }
}

/// Reads a file in pieces. Memory: a few pieces.
#[derive(Debug)]
pub(crate) struct Pieces<R> {
    source: R,
    sizes: Sizes,
    /// Whether to cut between characters only.
    text: bool,
    buffer: Vec<u8>,
    /// Start of the unread part of the buffer.
    start: usize,
    end: usize,
    is_over: bool,
}

impl<R: Read> Pieces<R> {
    /// The pieces of `source`, which should have this number of bytes. With a wrong number, the cuts differ from the
    /// usual ones.
    pub(crate) fn new(source: R, kind: Kind, bytes: u64) -> Self {
        Pieces::with_sizes(source, kind, Sizes::of(kind, bytes), bytes)
    }

    fn with_sizes(source: R, kind: Kind, sizes: Sizes, bytes: u64) -> Self {
        // With this number of bytes a cut and the end of a character can be found.
        let needed = sizes.most + 4;
        // One more byte shows whether the source has more than it should.
        let whole = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(1);
        let buffer = vec![0; whole.min((4 * needed).max(64 * KI))];
        Pieces { source, sizes, text: kind == Kind::Text, buffer, start: 0, end: 0, is_over: false }
    }

    /// The next piece; `None` at the end. Pieces of text are valid text if the whole is.
    ///
    /// # Errors
    /// The errors of the source.
    pub(crate) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        if !self.is_over && self.end - self.start < self.sizes.most + 4 {
            self.fill()?;
        }
        let rest = self.buffer.get(self.start..self.end).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        let length = self.length(rest);
        let start = self.start;
        self.start += length;
        Ok(self.buffer.get(start..self.start))
    }

    fn length(&self, rest: &[u8]) -> usize {
        let Sizes { least, average, most } = self.sizes;
        // FastCDC's normalization, level one: one bit more before the average, one less after it.
        let bits = average.ilog2() as usize;
        let mask = |bits: usize| MASKS.get(bits).copied().unwrap_or(0);
        let (strict, loose) = (mask(bits + 1), mask(bits - 1));
        let (_, length) = cut(rest, least, average, most, strict, loose, strict << 1, loose << 1);
        if !self.text {
            return length;
        }
        let is_inside = |at: usize| rest.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
        let before = (length.saturating_sub(3)..=length).rev().find(|&at| at > 0 && !is_inside(at));
        // Not UTF-8. The caller will notice.
        before.unwrap_or(length)
    }

    fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while let Some(free) = self.buffer.get_mut(self.end..).filter(|free| !free.is_empty()) {
            match self.source.read(free) {
                Ok(0) => {
                    self.is_over = true;
                    break;
                }
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Determines whether `source` is UTF-8 text. Reads up to the first byte that is not.
///
/// # Errors
/// The errors of the source.
pub(crate) fn kind_of(mut source: impl Read) -> io::Result<Kind> {
    let mut buffer = vec![0; 64 * KI];
    let mut held = 0;
    loop {
        let free = buffer.get_mut(held..).unwrap_or_default();
        let read = match source.read(free) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if read == 0 {
            return Ok(if held == 0 { Kind::Text } else { Kind::Binary });
        }
        let known = held + read;
        let valid = match std::str::from_utf8(buffer.get(..known).unwrap_or_default()) {
            Ok(text) => text.len(),
            Err(error) if error.error_len().is_some() => return Ok(Kind::Binary),
            Err(error) => error.valid_up_to(),
        };
        // The beginning of an incomplete character.
        buffer.copy_within(valid..known, 0);
        held = known - valid;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::rngs::StdRng;
    use rand::{Rng, RngExt, SeedableRng};

    use super::*;

    /// A source that returns random portions.
    struct Portions<'b>(&'b [u8], StdRng);

    impl Read for Portions<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let most = buffer.len().min(self.0.len());
            let some = if most == 0 { 0 } else { self.1.random_range(1..=most) };
            buffer[..some].copy_from_slice(&self.0[..some]);
            self.0 = &self.0[some..];
            Ok(some)
        }
    }

    fn pieces(content: &[u8], kind: Kind, sizes: Sizes, seed: u64) -> Vec<Vec<u8>> {
        let source = Portions(content, StdRng::seed_from_u64(seed));
        let mut pieces = Pieces::with_sizes(source, kind, sizes, content.len() as u64);
        let mut all = Vec::new();
        while let Some(piece) = pieces.next().unwrap() {
            all.push(piece.to_vec());
        }
        all
    }

    fn text(dice: &mut StdRng, bytes: usize) -> String {
        let mut text = String::new();
        while text.len() < bytes {
            let word = dice.random_range(1..12);
            for _ in 0..word {
                text.push(match dice.random_range(0..40) {
                    0 => '\u{fc}',
                    1 => '\u{20ac}',
                    2 => '\u{1f600}',
                    _ => char::from(dice.random_range(b'a'..=b'z')),
                });
            }
            text.push(if dice.random_ratio(1, 12) { '\n' } else { ' ' });
        }
        text
    }

    fn bytes(dice: &mut StdRng, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        dice.fill_bytes(&mut bytes);
        bytes
    }

    #[test]
    fn pieces_make_up_the_file_and_cuts_do_not_hang_on_how_it_is_read() {
        for seed in 0..60 {
            let mut dice = StdRng::seed_from_u64(seed);
            let length = dice.random_range(0..60_000);
            let text = text(&mut dice, length);
            let sizes = Sizes::of(Kind::Text, dice.random_range(0..1 << 20));
            let all = pieces(text.as_bytes(), Kind::Text, sizes, seed);
            assert_eq!(all.concat(), text.as_bytes(), "seed {seed}");
            assert_eq!(all, pieces(text.as_bytes(), Kind::Text, sizes, seed + 1_000), "seed {seed}");
            let (last, others) = all.split_last().unwrap();
            assert!(others.iter().all(|piece| piece.len() + 3 >= sizes.least), "seed {seed}");
            assert!(last.len() <= sizes.most && others.iter().all(|piece| piece.len() <= sizes.most), "seed {seed}");
            assert!(all.iter().all(|piece| std::str::from_utf8(piece).is_ok()), "seed {seed}");
        }
        for seed in 0..10 {
            let mut dice = StdRng::seed_from_u64(seed);
            let length = dice.random_range(0..800_000);
            let content = bytes(&mut dice, length);
            let all = pieces(&content, Kind::Binary, Sizes::of(Kind::Binary, length as u64), seed);
            assert_eq!(all.concat(), content, "seed {seed}");
        }
    }

    #[test]
    fn there_are_no_pieces_of_nothing() {
        for kind in [Kind::Text, Kind::Binary] {
            assert!(pieces(b"", kind, Sizes::of(kind, 0), 1).is_empty());
            assert_eq!(pieces(b"x", kind, Sizes::of(kind, 1), 1), [b"x".to_vec()]);
        }
        // Equal bytes have no place to cut. Bytes that are not text are returned too.
        for content in [vec![b'a'; 10_000], vec![0x80; 10_000]] {
            let all = pieces(&content, Kind::Text, Sizes::of(Kind::Text, 10_000), 1);
            assert_eq!(all.concat(), content);
        }
    }

    #[test]
    fn a_file_that_grew_comes_whole() {
        let mut dice = StdRng::seed_from_u64(9);
        let content = bytes(&mut dice, 300_000);
        for said in [0, 1, 1_000, 299_999] {
            let mut pieces = Pieces::new(&content[..], Kind::Binary, said);
            let mut all = Vec::new();
            while let Some(piece) = pieces.next().unwrap() {
                all.extend_from_slice(piece);
            }
            assert_eq!(all, content, "said to be {said}");
        }
    }

    #[test]
    fn pieces_are_about_as_long_as_they_should_be() {
        let mut dice = StdRng::seed_from_u64(1);
        let (note, large) = (text(&mut dice, 40_000), bytes(&mut dice, 6_000_000));
        let average = |content: &[u8], kind| {
            let sizes = Sizes::of(kind, content.len() as u64);
            let all = pieces(content, kind, sizes, 1);
            content.len() as f64 / all.len() as f64 / sizes.average as f64
        };
        assert!((0.7..1.5).contains(&average(note.as_bytes(), Kind::Text)));
        assert!((0.7..1.5).contains(&average(&large, Kind::Binary)));
    }

    #[test]
    fn a_character_at_the_front_changes_few_pieces() {
        for (kind, seed) in [(Kind::Text, 1), (Kind::Binary, 2)] {
            let mut dice = StdRng::seed_from_u64(seed);
            let content = match kind {
                Kind::Text => text(&mut dice, 4 << 20).into_bytes(),
                Kind::Binary => bytes(&mut dice, 8 << 20),
            };
            let cut = |content: &[u8]| pieces(content, kind, Sizes::of(kind, content.len() as u64), 1);
            let before: HashSet<Vec<u8>> = cut(&content).into_iter().collect();
            let changed = [b"x".to_vec(), content].concat();
            let after = cut(&changed);
            let kept = after.iter().filter(|piece| before.contains(*piece)).count();
            assert!(kept * 100 >= after.len() * 95, "seed {seed}: {kept} of {}", after.len());
        }
    }

    #[test]
    fn sizes_fit_where_they_must() {
        for bytes in [0, 1, NOTES_BELOW, 1 << 20, 64 << 20, 1 << 30, 1 << 40] {
            for kind in [Kind::Text, Kind::Binary] {
                let sizes = Sizes::of(kind, bytes);
                assert!(sizes.average.is_power_of_two() && sizes.least < sizes.average && sizes.average < sizes.most);
                let in_base64 = sizes.most.div_ceil(3) * 4;
                assert!(in_base64 + 100 < crate::settings::DEFAULT_DATA_LIMIT, "{sizes:?}");
                assert!(bytes / sizes.average as u64 <= 50_000 || bytes == 1 << 40);
            }
        }
        assert_eq!(Sizes::of(Kind::Text, 64 << 20), Sizes::of(Kind::Text, (64 << 20) + 1));
        assert_eq!(Sizes::of(Kind::Text, 100), Sizes { least: 128, average: 256, most: 1_024 });
    }

    #[test]
    fn text_is_told_from_the_rest() {
        let mut dice = StdRng::seed_from_u64(7);
        let text = text(&mut dice, 200_000);
        let mut broken = text.clone().into_bytes();
        broken.push(0xe2);
        for (content, kind) in
            [(text.into_bytes(), Kind::Text), (broken, Kind::Binary), (b"\xff\0".to_vec(), Kind::Binary)]
        {
            assert_eq!(kind_of(Portions(&content, StdRng::seed_from_u64(8))).unwrap(), kind);
        }
        assert_eq!(kind_of(&b""[..]).unwrap(), Kind::Text);
    }
}
