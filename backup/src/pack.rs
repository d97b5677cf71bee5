//! Packs: files of objects.
//!
//! ```text
//!  magic │ sealed? │ salt │ frame 0 │ frame 1 │ … │ index │ length of the index │ magic
//!                           └ an object, compressed by LZ4, sealed
//! ```
//!
//! An object's name is the SHA-256 of its bytes. A pack's name is the SHA-256 of its file, so a changed bit is found
//! without the key. The index names the objects of the pack. A large content of an attachment is several objects; the
//! index has its own name and theirs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::key::{Cipher, KEY, Key};

const MAGIC: &[u8; 8] = b"CLBKPCK1";
const HEAD: usize = MAGIC.len() + 1 + KEY;
pub(crate) const TAIL: usize = 4 + MAGIC.len();

/// A pack is written when it has this many bytes.
const FULL: usize = 16 << 20;

/// The number of the index's frame, which no object has.
const INDEX_FRAME: u32 = u32::MAX;

/// The path that packs are sealed for: their names are not known at that time.
const SEALED_FOR: &str = "packs";

/// LZ4 never compresses more than this many bytes into one.
const MOST_PACKED: usize = 256;

/// The name of an object: the SHA-256 of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectId(pub(crate) [u8; 32]);

impl ObjectId {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        ObjectId(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&model::hex(&self.0))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&model::hex(&self.0[..4]))
    }
}

impl FromStr for ObjectId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digit = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let mut id = [0; 32];
        for (place, byte) in id.iter_mut().enumerate() {
            *byte = digit(2 * place).ok_or("not the name of an object")?;
        }
        if text.len() == 64 { Ok(ObjectId(id)) } else { Err("not the name of an object") }
    }
}

impl Serialize for ObjectId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ObjectId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'_, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The objects of a pack.
pub(crate) type Index = Vec<(ObjectId, Entry)>;

/// An entry of a pack's index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Entry {
    /// An object in the pack: its frame, where that is, and the length of the object.
    Frame { number: u32, at: u64, bytes: u32, raw: u32 },
    /// Bytes that consist of these objects in order.
    Parts(Vec<ObjectId>),
}

/// A pack that is being written, in memory.
pub(crate) struct PackWriter {
    file: Vec<u8>,
    cipher: Cipher,
    frames: u32,
    index: Index,
}

impl PackWriter {
    pub(crate) fn new(key: &Key, salt: [u8; KEY]) -> Self {
        let mut file = MAGIC.to_vec();
        file.push(u8::from(!key.is_none()));
        file.extend_from_slice(&salt);
        PackWriter { file, cipher: key.cipher(&salt, SEALED_FOR), frames: 0, index: Vec::new() }
    }

    pub(crate) fn add(&mut self, id: ObjectId, object: &[u8]) -> Result<()> {
        let too_large = |_| Error::refused("an object of more than four gigabytes");
        let sealed = self.cipher.seal(self.frames, &lz4_flex::block::compress(object))?;
        let entry = Entry::Frame {
            number: self.frames,
            at: self.file.len() as u64,
            bytes: u32::try_from(sealed.len()).map_err(too_large)?,
            raw: u32::try_from(object.len()).map_err(too_large)?,
        };
        self.file.extend(sealed);
        self.frames += 1;
        self.index.push((id, entry));
        Ok(())
    }

    pub(crate) fn add_parts(&mut self, id: ObjectId, parts: Vec<ObjectId>) {
        self.index.push((id, Entry::Parts(parts)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.file.len() >= FULL
    }

    /// The name and the bytes of the file, and its index.
    pub(crate) fn finish(mut self) -> Result<(ObjectId, Vec<u8>, Index)> {
        let index = serde_json::to_vec(&self.index).map_err(|error| Error::refused(error.to_string()))?;
        let sealed = self.cipher.seal(INDEX_FRAME, &lz4_flex::block::compress_prepend_size(&index))?;
        let length = u32::try_from(sealed.len()).map_err(|_| Error::refused("an index of more than four gigabytes"))?;
        self.file.extend(sealed);
        self.file.extend_from_slice(&length.to_le_bytes());
        self.file.extend_from_slice(MAGIC);
        Ok((ObjectId::of(&self.file), self.file, self.index))
    }
}

/// A reader of a pack's objects.
pub(crate) struct PackReader {
    cipher: Cipher,
    path: String,
}

impl PackReader {
    /// A reader for the file with these first bytes.
    pub(crate) fn new(key: &Key, path: &str, head: &[u8]) -> Result<Self> {
        let damaged = |reason: &str| Error::damaged(path, reason);
        let rest = head
            .strip_prefix(MAGIC)
            .ok_or_else(|| damaged("it is not a pack of a backup, or a later version wrote it"))?;
        let (is_sealed, rest) = rest.split_first().ok_or_else(|| damaged("it is too short"))?;
        let salt = rest.get(..KEY).ok_or_else(|| damaged("it is too short"))?;
        if (*is_sealed == 1) == key.is_none() {
            return Err(damaged("it is not sealed as its repository says"));
        }
        Ok(PackReader { cipher: key.cipher(salt, SEALED_FOR), path: path.to_owned() })
    }

    /// Number of bytes of the file that [`new`](Self::new) needs.
    pub(crate) const HEAD: usize = HEAD;

    /// The place of the index, from the last [`TAIL`] bytes of a file of this length.
    pub(crate) fn index_place(path: &str, tail: &[u8], file_bytes: u64) -> Result<(u64, usize)> {
        let damaged = || Error::damaged(path, "its end is not that of a pack");
        let length = tail.strip_suffix(MAGIC).and_then(|length| length.try_into().ok()).map(u32::from_le_bytes);
        let length = length.ok_or_else(damaged)?;
        let at = file_bytes.checked_sub(TAIL as u64 + u64::from(length)).filter(|at| *at >= HEAD as u64);
        Ok((at.ok_or_else(damaged)?, length as usize))
    }

    pub(crate) fn index(&self, sealed: &[u8]) -> Result<Index> {
        let damaged = |reason: &str| Error::damaged(&self.path, reason);
        let opened = self.cipher.open(INDEX_FRAME, sealed).ok_or_else(|| damaged("its index does not open"))?;
        let (raw, packed) = opened.split_at_checked(4).ok_or_else(|| damaged("its index is too short"))?;
        let raw = raw.try_into().map(u32::from_le_bytes).unwrap_or_default();
        let index = unpacked(packed, raw).ok_or_else(|| damaged("its index does not unpack"))?;
        serde_json::from_slice(&index).map_err(|error| damaged(&format!("its index: {error}")))
    }

    /// An object, from the bytes of its frame.
    pub(crate) fn object(&self, id: ObjectId, number: u32, raw: u32, sealed: &[u8]) -> Result<Vec<u8>> {
        let damaged = |reason: &str| Error::damaged(&self.path, format!("object {id}: {reason}"));
        let packed = self.cipher.open(number, sealed).ok_or_else(|| damaged("it does not open"))?;
        let object = unpacked(&packed, raw).ok_or_else(|| damaged("it does not unpack"))?;
        if ObjectId::of(&object) == id { Ok(object) } else { Err(damaged("it has other bytes")) }
    }
}

fn unpacked(packed: &[u8], raw: u32) -> Option<Vec<u8>> {
    let raw = raw as usize;
    // A damaged length must not ask for more memory than the bytes can fill.
    if raw / MOST_PACKED > packed.len() {
        return None;
    }
    lz4_flex::block::decompress(packed, raw).ok().filter(|object| object.len() == raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pack_gives_back_its_objects_and_a_changed_bit_is_found() {
        for key in [Key::NONE, Key::new([7; KEY])] {
            let mut pack = PackWriter::new(&key, [3; KEY]);
            let objects: Vec<Vec<u8>> = vec![Vec::new(), b"one".to_vec(), vec![9; 100_000]];
            for object in &objects {
                pack.add(ObjectId::of(object), object).unwrap();
            }
            let parts = vec![ObjectId::of(&objects[1]), ObjectId::of(&objects[2])];
            pack.add_parts(ObjectId([1; 32]), parts.clone());
            let (name, file, index) = pack.finish().unwrap();
            let read = |file: &[u8]| -> Result<Index> {
                let reader = PackReader::new(&key, "p", &file[..PackReader::HEAD])?;
                let (at, bytes) = PackReader::index_place("p", &file[file.len() - TAIL..], file.len() as u64)?;
                let index = reader.index(&file[usize::try_from(at).unwrap()..][..bytes])?;
                for (id, entry) in &index {
                    if let Entry::Frame { number, at, bytes, raw } = entry {
                        let sealed =
                            file.get(usize::try_from(*at).unwrap()..).and_then(|file| file.get(..*bytes as usize));
                        let sealed = sealed.ok_or_else(|| Error::damaged("p", "short"))?;
                        reader.object(*id, *number, *raw, sealed)?;
                    }
                }
                Ok(index)
            };
            assert_eq!(read(&file).unwrap(), index);
            assert_eq!(index[3], (ObjectId([1; 32]), Entry::Parts(parts)));
            for at in 0..file.len() {
                let mut changed = file.clone();
                changed[at] ^= 1 << (at % 8);
                assert_ne!(ObjectId::of(&changed), name);
                let _ = read(&changed);
            }
        }
    }
}
