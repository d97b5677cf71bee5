//! fjall's journals, looked through before fjall opens them.
//!
//! A process that is killed leaves a batch in part at the end of a journal, and fjall cuts it off. It cuts as
//! readily in the middle of a damaged one, and goes on with the next: what is lost between two journals would
//! never be noticed. And a batch that reached the disk in part but for its end, as pages may in a power
//! failure, it takes for damage. So they are read here first, and changed only once it is known that
//! nothing acknowledged is lost.
//!
//! ```text
//!   journal   ├─ batch ─┬─ batch ─┬ … ┬─ batch ─┬─ zeros, or a batch in part ─┤
//!   batch     ├ 1 ┬ items, 4 ┬ sequence number, 8 ┬─ item ─┬ … ┬─ item ─┬ 3 ┬ XXH3-64 of the items, 8 ┬ FJL 3 ┤
//!   item      ├ 2 ┬ kind, 1 ┬ compression, 1 ┬ keyspace, 8 ┬ lengths: key, 2, value, 4, on disk, 4 ┬ key ┬ value ┤
//! ```
//!
//! Every batch of ours counts: its row [`NUMBER_KEY`] is one more than that of the batch before, over
//! all journals. All numbers of fjall's are little-endian, ours big-endian.
//!
//! Not noticed: a journal that is gone as a whole, from the front; and the sequence number of the first batch
//! of the first journal, which no checksum covers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use disk::folder::io_error;
use kv_api::{Direction, Result};
use occ::store::View;
use twox_hash::xxhash3_64;

use crate::error::corrupt;

/// Where each batch has its number. A system key, out of the user's reach.
pub(crate) const NUMBER_KEY: &[u8] = b"\xff/fjall/batch";

/// Where `occ` keeps what it remembers of the store.
const MARKS: &[u8] = b"\xff/occ/";

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const MAGIC: [u8; 4] = *b"FJL\x03";

/// Tables take sequence numbers too, a few between two batches.
const MOST_SKIPPED: u64 = 1 << 20;

/// Looks through the journals in `data`, a part of `folder`, and cuts off what a kill has left at the end of one. `synced` is
/// the version that was once synced.
///
/// 1522, and nothing touched, when a batch is missing or what is left is older than `synced`.
pub(crate) fn check(folder: &Path, data: &Path, synced: i64) -> Result<()> {
    let mut marks = Marks::default();
    let mut last: Option<Batch> = None;
    let mut empty: Option<PathBuf> = None;
    let mut torn = Vec::new();
    for path in journals(data)? {
        let cannot = |cause: io::Error| io_error(format!("cannot read {}", path.display()), &cause);
        let mut source = Source::open(&path).map_err(cannot)?;
        let mut found = false;
        loop {
            let end = source.at;
            let Some(batch) = source.batch(&mut marks).map_err(cannot)? else {
                if !source.is_zero_from(end).map_err(cannot)? {
                    torn.push((path.clone(), end));
                }
                break;
            };
            if !last.is_none_or(|last| batch.follows(&last)) {
                return Err(corrupt(&format!(
                    "{}, or the journal before it, is damaged at byte {end}",
                    path.display()
                )));
            }
            (last, found) = (Some(batch), true);
        }
        match empty {
            Some(empty) if found => {
                return Err(corrupt(&format!("{} is damaged at its beginning", empty.display())));
            }
            Some(_) => {}
            None => empty = (!found).then_some(path),
        }
    }
    if torn.is_empty() {
        return Ok(());
    }
    let newest = occ::last_version(&marks)?;
    if newest < synced {
        return Err(disk::older(folder, newest, synced));
    }
    for (path, end) in torn {
        let cut = File::options().write(true).open(&path).and_then(|file| {
            file.set_len(end)?;
            file.sync_all()
        });
        cut.map_err(|cause| io_error(format!("cannot write to {}", path.display()), &cause))?;
    }
    Ok(())
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

/// A whole batch.
#[derive(Clone, Copy, Debug)]
struct Batch {
    number: u64,
    sequence: u64,
}

impl Batch {
    fn follows(&self, last: &Batch) -> bool {
        let skipped = self.sequence.checked_sub(last.sequence);
        self.number == last.number + 1 && skipped.is_some_and(|skipped| (1..MOST_SKIPPED).contains(&skipped))
    }
}

/// What `occ` remembers of the store, as far as the journals have it.
#[derive(Clone, Debug, Default)]
struct Marks(Arc<BTreeMap<Vec<u8>, Bytes>>);

impl View for Marks {
    type Range<'a> = std::iter::Empty<Result<(Bytes, Bytes)>>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.0.get(key).cloned())
    }

    fn range(&self, _begin: &[u8], _end: &[u8], _direction: Direction) -> Self::Range<'_> {
        std::iter::empty()
    }
}

/// A journal that is read. `None` is for what is not there as a whole.
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

    /// Reads so many bytes into the buffer, behind what is in it.
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

    /// The next batch; what it says of `occ` goes into `marks`.
    fn batch(&mut self, marks: &mut Marks) -> io::Result<Option<Batch>> {
        let Some([START, i0, i1, i2, i3, sequence @ ..]) = self.array::<13>()? else { return Ok(None) };
        let mut hasher = xxhash3_64::Hasher::new();
        let mut number = None;
        let mut said = BTreeMap::new();
        for _ in 0..u32::from_le_bytes([i0, i1, i2, i3]) {
            let Some(key_length) = self.item()? else { return Ok(None) };
            hasher.write(&self.buffer);
            let (key, value) = self.buffer[ITEM_HEAD..].split_at(key_length);
            if key == NUMBER_KEY {
                number = value.try_into().ok().map(u64::from_be_bytes);
            } else if key.starts_with(MARKS) {
                said.insert(key.to_vec(), Bytes::copy_from_slice(value));
            }
        }
        let Some([END, end @ ..]) = self.array::<13>()? else { return Ok(None) };
        let whole = end[..8] == hasher.finish().to_le_bytes() && end[8..] == MAGIC;
        let Some(number) = number.filter(|_| whole) else { return Ok(None) };
        Arc::make_mut(&mut marks.0).append(&mut said);
        Ok(Some(Batch { number, sequence: u64::from_le_bytes(sequence) }))
    }

    /// Reads an item into the buffer; the length of its key.
    fn item(&mut self) -> io::Result<Option<usize>> {
        let Some(head) = self.array::<ITEM_HEAD>()? else { return Ok(None) };
        let [ITEM, _, _, _, _, _, _, _, _, _, _, k0, k1, _, _, _, _, v0, v1, v2, v3] = head else { return Ok(None) };
        let key_length = u16::from_le_bytes([k0, k1]);
        let rest = u64::from(key_length) + u64::from(u32::from_le_bytes([v0, v1, v2, v3]));
        Ok(self.read(rest)?.map(|()| usize::from(key_length)))
    }

    /// Whether there is nothing but zeros from here on.
    fn is_zero_from(&mut self, place: u64) -> io::Result<bool> {
        self.input.seek(SeekFrom::Start(place))?;
        let mut piece = vec![0; ZEROS.len()];
        loop {
            match self.input.read(&mut piece)? {
                0 => return Ok(true),
                // Compared as wholes: a new journal is 64 MiB of them.
                count if piece[..count] != ZEROS[..count] => return Ok(false),
                _ => {}
            }
        }
    }
}

static ZEROS: [u8; 1 << 18] = [0; 1 << 18];

/// What comes before an item's key.
const ITEM_HEAD: usize = 21;

#[cfg(test)]
mod tests;
