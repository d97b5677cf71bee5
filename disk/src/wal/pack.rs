//! A run as the log has it: each key without the beginning that it shares with the key before.
//!
//! ```text
//!   length │ counts and clears of the run │ row: shared, rest, value │ rest of the key │ value │ row …
//!   4 bytes                                 └ 7 bits a byte, least significant first; the eighth: more follow
//! ```
//!
//! `shared` is how much of the key before begins this key, `rest` the length of what follows. `value` is the length of
//! the value and one, or zero: the key is removed. Rows of a document share most of their keys, so a packed exploded
//! document takes some two fifths of the bytes, and no other memory.
//!
//! A few bytes can stand for a long key again and again. So a packed run has at least 1/[`MOST_PARTS`] of the run's
//! length, and reading refuses a shorter one before it allocates: a log takes at most `MOST_PARTS` times its length.

use bytes::Bytes;

use super::row::{ABSENT, ROW_HEAD};

/// A packed run is at least this part of the run.
const MOST_PARTS: usize = 16;

/// Packs a run. It begins after `head` bytes, and its rows begin at `rows`. The packed form begins after `head` zeros.
/// `None` if it is not shorter, or too short.
pub(super) fn packed(bytes: &[u8], head: usize, rows: &[u32]) -> Option<Vec<u8>> {
    let number = |at: usize| bytes[at..].first_chunk::<4>().map_or(0, |four| u32::from_be_bytes(*four));
    let first = rows.first().map_or(bytes.len(), |first| *first as usize);
    let mut packed = Vec::with_capacity(bytes.len());
    packed.resize(head, 0);
    packed.extend_from_slice(&((first - head) as u32).to_be_bytes());
    packed.extend_from_slice(&bytes[head..first]);
    let mut last: &[u8] = &[];
    for at in rows.iter().map(|at| *at as usize) {
        let (key, value) = (number(at) as usize, number(at + 4));
        let value = if value == ABSENT { None } else { Some(value as usize) };
        let (key, rest) = bytes[at + ROW_HEAD..].split_at(key);
        let shared = shared(last, key);
        let lengths = [shared, key.len() - shared, value.map_or(0, |value| value + 1)];
        lengths.into_iter().for_each(|length| push_length(&mut packed, length));
        packed.extend_from_slice(&key[shared..]);
        packed.extend_from_slice(&rest[..value.unwrap_or(0)]);
        last = key;
    }
    let (length, plain) = (packed.len() - head, bytes.len() - head);
    (length < plain && plain / MOST_PARTS <= length).then_some(packed)
}

/// The run of this length that was packed.
pub(super) fn unpacked(packed: &[u8], length: usize) -> Option<Bytes> {
    if length / MOST_PARTS > packed.len() {
        return None;
    }
    let (first, rest) = packed.split_first_chunk::<4>()?;
    let (first, mut rest) = rest.split_at_checked(u32::from_be_bytes(*first) as usize)?;
    let mut run = Vec::with_capacity(length);
    run.extend_from_slice(first);
    // The place of the previous key in the run.
    let (mut last, mut last_length) = (run.len(), 0);
    while !rest.is_empty() {
        let (shared, more, value) = (length_of(&mut rest)?, length_of(&mut rest)?, length_of(&mut rest)?);
        let (key, after) = rest.split_at_checked(more)?;
        let (value, after) = match value.checked_sub(1) {
            Some(value) => after.split_at_checked(value).map(|(value, after)| (Some(value), after))?,
            None => (None, after),
        };
        let key_length = shared.checked_add(key.len()).filter(|_| shared <= last_length)?;
        let ends_at = run.len() + ROW_HEAD + key_length + value.map_or(0, <[u8]>::len);
        if ends_at > length {
            return None;
        }
        run.extend_from_slice(&u32::try_from(key_length).ok()?.to_be_bytes());
        let value_length = value.map_or(Ok(ABSENT), |value| u32::try_from(value.len())).ok()?;
        run.extend_from_slice(&value_length.to_be_bytes());
        let start = run.len();
        run.extend_from_within(last..last + shared);
        run.extend_from_slice(key);
        run.extend_from_slice(value.unwrap_or_default());
        (last, last_length, rest) = (start, key_length, after);
    }
    (run.len() == length).then(|| run.into())
}

/// Length of the common beginning of two keys.
fn shared(one: &[u8], other: &[u8]) -> usize {
    let most = one.len().min(other.len());
    let mut shared = 0;
    // Eight bytes at once: keys share most of their bytes.
    while shared + 8 <= most && one[shared..shared + 8] == other[shared..shared + 8] {
        shared += 8;
    }
    shared + one[shared..].iter().zip(&other[shared..]).take_while(|(one, other)| one == other).count()
}

fn push_length(packed: &mut Vec<u8>, mut length: usize) {
    while length >= 0x80 {
        packed.push(length as u8 | 0x80);
        length >>= 7;
    }
    packed.push(length as u8);
}

/// Takes a length off the front: five bytes at most.
fn length_of(rest: &mut &[u8]) -> Option<usize> {
    let mut length: u64 = 0;
    for place in 0..5 {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        length |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return usize::try_from(length).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use occ::store::Batch;
    use occ::{KeyRange, Random};

    use super::super::run::{Run, RunBuilder};
    use super::*;

    /// A packed run, and the run itself.
    fn both(batch: &Batch) -> (Option<Vec<u8>>, Bytes) {
        let builder = RunBuilder::of(batch, 3).unwrap();
        (builder.packed().map(|packed| packed[3..].to_vec()), Bytes::from(builder.bytes).slice(3..))
    }

    fn batch(random: &Random) -> Batch {
        let below = |bound: u64| random.next() % bound;
        let mut batch = Batch::new(1);
        for _ in 0..below(30) {
            let key = [vec![b'k'; below(200) as usize], below(40).to_string().into_bytes()].concat();
            match below(8) {
                0 => batch.clear_range(KeyRange { begin: Bytes::from_static(b"a"), end: Bytes::from(key) }),
                1 => batch.clear(key.into()),
                _ => batch.set(key.into(), vec![below(256) as u8; below(300) as usize].into()),
            }
        }
        batch
    }

    #[test]
    fn a_packed_run_is_shorter_and_the_same() {
        let mut packed_runs = 0;
        for seed in 0..400 {
            let (packed, run) = both(&batch(&Random::new(seed)));
            let Some(packed) = packed else { continue };
            packed_runs += 1;
            assert!(packed.len() < run.len(), "seed {seed}");
            assert_eq!(unpacked(&packed, run.len()).unwrap(), run, "seed {seed}");
            Run::decode(run).unwrap();
        }
        assert!(packed_runs > 300, "{packed_runs}");
    }

    /// Rows that share a long key would make a long run of a short log.
    #[test]
    fn a_log_takes_no_more_memory_than_so_many_times_its_length() {
        let mut batch = Batch::new(1);
        for n in 0..1_000 {
            batch.set([vec![b'k'; 5_000], format!("{n:04}").into_bytes()].concat().into(), Bytes::new());
        }
        let (packed, run) = both(&batch);
        assert!(packed.is_none());
        // Nothing here writes such a run: one key, and rows that repeat it.
        let mut bomb = [8_u32.to_be_bytes(), 0_u32.to_be_bytes(), 1_001_u32.to_be_bytes()].concat();
        [0, 5_000, 1].into_iter().for_each(|length| push_length(&mut bomb, length));
        bomb.extend_from_slice(&[b'k'; 5_000]);
        for n in 0..1_000_u16 {
            [5_000, 2, 1].into_iter().for_each(|length| push_length(&mut bomb, length));
            bomb.extend_from_slice(&n.to_be_bytes());
        }
        assert!(bomb.len() * MOST_PARTS < run.len());
        for length in [run.len(), 1_001 * 5_010, u32::MAX as usize, usize::MAX] {
            assert!(unpacked(&bomb, length).is_none(), "{length}");
        }
        assert!(unpacked(&bomb, bomb.len() * MOST_PARTS).is_none(), "it does not grow past what was stated");
    }

    #[test]
    fn what_is_no_packed_run_is_none() {
        let mut batch = Batch::new(1);
        batch.clear_range(KeyRange::copied(b"key a", b"key c"));
        batch.set(Bytes::from_static(b"key number one"), Bytes::from_static(b"value"));
        batch.clear(Bytes::from_static(b"key number two"));
        batch.set(Bytes::from_static(b"key number twofold"), Bytes::from(vec![7; 200]));
        let (packed, run) = both(&batch);
        let packed = packed.unwrap();
        for length in 0..packed.len() {
            assert!(unpacked(&packed[..length], run.len()).is_none(), "cut at {length}");
        }
        for length in 0..2 * run.len() {
            assert_eq!(unpacked(&packed, length).is_some(), length == run.len());
        }
        for at in 0..packed.len() {
            for bit in 0..8 {
                let mut other = packed.clone();
                other[at] ^= 1 << bit;
                // It gives another run or fails. It never panics.
                if let Some(run) = unpacked(&other, run.len()) {
                    drop(Run::decode(run));
                }
            }
        }
    }
}
