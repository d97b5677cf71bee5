//! Reads fjall's journals.
//!
//! ```text
//!   journal   ├─ batch ─┬─ batch ─┬ … ┬─ batch ─┬─ zeros, or a batch in part ─┤
//!   batch     ├ 1 ┬ items, 4 ┬ sequence number, 8 ┬─ item ─┬ … ┬─ item ─┬ 3 ┬ XXH3-64 of the items, 8 ┬ FJL 3 ┤
//!   item      ├ 2 ┬ kind, 1 ┬ compression, 1 ┬ keyspace, 8 ┬ lengths: key, 2, value, 4, on disk, 4 ┬ key ┬ value ┤
//! ```
//!
//! Each batch of this program has a number, in its row [`NUMBER_KEY`]. It is one more than that of the batch before,
//! across all journals. fjall's numbers are little-endian, this program's big-endian.
//!
//! A killed process may leave a partial batch at the end of a journal. It is ignored. If it was acknowledged, the
//! folder's last version is older than its side file says, and the folder is refused.
//!
//! Two kinds of damage are not noticed: missing whole journals at the front, and a wrong sequence number of the first
//! batch in the first journal, which no checksum covers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use disk::folder::io_error;
use engine_lsm::keys;
use kv_api::Result;
use occ::store::Batch;
use twox_hash::xxhash3_64;

use crate::error::corrupt;

/// The row of a batch's number.
const NUMBER_KEY: &[u8] = b"\xff/fjall/batch";

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const MAGIC: [u8; 4] = *b"FJL\x03";

/// The keyspace of the rows.
const ROWS: u64 = 1;

/// Kinds of items. The third kind, another removal, was not used.
const VALUE: u8 = 0;
const REMOVAL: u8 = 1;

/// Compressions of values.
const PLAIN: u8 = 0;
const LZ4: u8 = 1;

/// Tables take sequence numbers too: a few between two batches.
const MOST_SKIPPED: u64 = 1 << 20;

/// The writes of all journals in `data`, as one batch. 1522 if a batch in the middle is damaged or missing.
pub(super) fn read(data: &Path) -> Result<Batch> {
    let mut all = Batch::default();
    let mut last: Option<BatchPosition> = None;
    let mut empty: Option<PathBuf> = None;
    for path in journals(data)? {
        let cannot = |cause: io::Error| io_error(format!("cannot read {}", path.display()), &cause);
        let mut source = Source::open(&path).map_err(cannot)?;
        let mut found = false;
        loop {
            let begin = source.at;
            let Some((place, rows)) = source.batch().map_err(cannot)? else { break };
            if !last.is_none_or(|last| place.follows(&last)) {
                return Err(corrupt(&format!(
                    "{}, or the journal before it, is damaged at byte {begin}",
                    path.display()
                )));
            }
            for (key, value) in rows {
                match value {
                    Some(value) => all.set(key, value),
                    None => all.clear(key),
                }
            }
            (last, found) = (Some(place), true);
        }
        match empty {
            Some(empty) if found => {
                return Err(corrupt(&format!("{} is damaged at its beginning", empty.display())));
            }
            Some(_) => {}
            None => empty = (!found).then_some(path),
        }
    }
    Ok(all)
}

/// The journals, oldest first.
fn journals(data: &Path) -> Result<Vec<PathBuf>> {
    let cannot = |cause: io::Error| io_error(format!("cannot read the folder {}", data.display()), &cause);
    let mut journals = BTreeMap::new();
    for entry in fs::read_dir(data).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if path.extension().is_some_and(|extension| extension == "jnl") {
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
            let number = number.ok_or_else(|| corrupt(&format!("{} is not a journal's name", path.display())))?;
            journals.insert(number, path);
        }
    }
    Ok(journals.into_values().collect())
}

/// The position of a batch among all batches.
#[derive(Clone, Copy, Debug)]
struct BatchPosition {
    number: u64,
    sequence: u64,
}

impl BatchPosition {
    fn follows(&self, last: &BatchPosition) -> bool {
        let skipped = self.sequence.checked_sub(last.sequence);
        self.number == last.number + 1 && skipped.is_some_and(|skipped| (1..MOST_SKIPPED).contains(&skipped))
    }
}

/// Keys and their new values; `None` for a removal.
type Points = Vec<(Bytes, Option<Bytes>)>;

/// A reader of a journal. Its methods return `None` for what is incomplete.
struct Source {
    input: BufReader<File>,
    at: u64,
    length: u64,
    buffer: Vec<u8>,
}

impl Source {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok(Source { input: BufReader::with_capacity(1 << 16, file), at: 0, length, buffer: Vec::new() })
    }

    /// Reads this number of bytes and appends them to the buffer.
    fn read(&mut self, count: u64) -> io::Result<Option<()>> {
        if self.length - self.at < count {
            return Ok(None);
        }
        let before = self.buffer.len();
        self.buffer.resize(before + count as usize, 0);
        self.input.read_exact(&mut self.buffer[before..])?;
        self.at += count;
        Ok(Some(()))
    }

    fn array<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        self.buffer.clear();
        Ok(self.read(N as u64)?.and_then(|()| self.buffer.first_chunk().copied()))
    }

    /// The next batch.
    fn batch(&mut self) -> io::Result<Option<(BatchPosition, Points)>> {
        let Some([START, i0, i1, i2, i3, sequence @ ..]) = self.array::<13>()? else { return Ok(None) };
        let mut hasher = xxhash3_64::Hasher::new();
        let mut number = None;
        let mut rows = Points::new();
        for _ in 0..u32::from_le_bytes([i0, i1, i2, i3]) {
            let Some(item) = self.item()? else { return Ok(None) };
            hasher.write(&self.buffer);
            let (key, value) = self.buffer[ITEM_HEAD..].split_at(item.key_length);
            let Some(value) = item.value(value) else { return Ok(None) };
            if key == NUMBER_KEY {
                number = value.and_then(|value| value.as_ref().try_into().ok().map(u64::from_be_bytes));
            } else {
                rows.push((Bytes::copy_from_slice(keys::ours(key)), value));
            }
        }
        let Some([END, end @ ..]) = self.array::<13>()? else { return Ok(None) };
        let is_whole = end[..8] == hasher.finish().to_le_bytes() && end[8..] == MAGIC;
        let Some(number) = number.filter(|_| is_whole) else { return Ok(None) };
        Ok(Some((BatchPosition { number, sequence: u64::from_le_bytes(sequence) }, rows)))
    }

    /// Reads an item into the buffer.
    fn item(&mut self) -> io::Result<Option<Item>> {
        let Some(head) = self.array::<ITEM_HEAD>()? else { return Ok(None) };
        let [ITEM, kind, compression, rest @ ..] = head else { return Ok(None) };
        let number = |from: usize, count: usize| -> u64 {
            rest[from..from + count].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let (keyspace, key_length, length, on_disk) = (number(0, 8), number(8, 2), number(10, 4), number(14, 4));
        if keyspace != ROWS || !matches!(kind, VALUE | REMOVAL) || !matches!(compression, PLAIN | LZ4) {
            return Ok(None);
        }
        let item =
            Item { key_length: key_length as usize, length: length as usize, kind, is_compressed: compression == LZ4 };
        Ok(self.read(key_length + on_disk)?.map(|()| item))
    }
}

/// Length of an item before its key.
const ITEM_HEAD: usize = 21;

struct Item {
    key_length: usize,
    /// Length of the value before compression.
    length: usize,
    kind: u8,
    is_compressed: bool,
}

impl Item {
    /// The value of an item, from its bytes on the disk. The inner `None` is a removal; the outer one means damage.
    fn value(&self, on_disk: &[u8]) -> Option<Option<Bytes>> {
        if self.kind == REMOVAL {
            return Some(None);
        }
        if !self.is_compressed {
            return (on_disk.len() == self.length).then(|| Some(Bytes::copy_from_slice(on_disk)));
        }
        // LZ4 expands a byte to at most 255, so a damaged length cannot allocate too much memory.
        let is_possible = self.length / 255 <= on_disk.len();
        let value =
            is_possible.then(|| lz4_flex::block::decompress(on_disk, self.length)).and_then(std::result::Result::ok);
        value.filter(|value| value.len() == self.length).map(|value| Some(value.into()))
    }
}
