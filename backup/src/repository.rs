//! A repository, and reading from it.
//!
//! ```text
//!  repository.json          its id, and its key, sealed by the passphrase
//!  packs/RUN/SHA-256        objects that the run wrote
//!  runs/RUN                 the description of the run, written last
//!  running/RUN.N            a run that is not complete yet
//!  ship/                    a shipped store (`ship`)
//! ```
//!
//! Files are created and deleted, never changed.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use model::{Environment, hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::key::{KEY, Key, MOST_ROUNDS, ROUNDS};
use crate::manifest::{FORMAT, Manifest, Pack};
use crate::pack::{Entry, Index, ObjectId, PackReader, TAIL};
use crate::place::{Place, REPOSITORY, Stored};

pub(crate) const RUNS: &str = "runs";
pub(crate) const RUNNING: &str = "running";
pub(crate) const PACKS: &str = "packs";
pub(crate) const SHIP: &str = "ship";

/// Maximum number of packs whose ciphers are kept.
const KEPT_PACKS: usize = 64;

/// How the repository is protected.
#[derive(Clone)]
pub enum Protection {
    /// By this passphrase, or the bytes of a key file.
    Passphrase(Vec<u8>),
    /// Not at all: anyone who can read its files can read all documents, the hashes of passwords, and the secret that
    /// signs sessions.
    None,
}

impl std::fmt::Debug for Protection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Protection::None) { "None" } else { "Passphrase(…)" })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Description {
    format: u32,
    id: String,
    encryption: Option<Sealed>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Sealed {
    rounds: u32,
    salt: String,
    key: String,
}

/// A repository of backups.
#[derive(Clone, Debug)]
pub struct Repository {
    pub(crate) place: Arc<dyn Place>,
    pub(crate) key: Key,
    pub(crate) environment: Arc<dyn Environment>,
}

impl Repository {
    /// Opens the repository at a place. Creates one if the place is empty.
    ///
    /// # Errors
    /// [`Error::Passphrase`]; [`Error::Refused`] if its protection is another one, or the place has other files.
    pub async fn open_or_create(
        place: Arc<dyn Place>,
        protection: &Protection,
        environment: Arc<dyn Environment>,
    ) -> Result<Self> {
        match place.read(REPOSITORY).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => return Self::open(place, protection, environment).await,
        }
        for folder in [RUNS, PACKS, SHIP] {
            if !io_of(folder, place.list(folder).await)?.is_empty() {
                return Err(Error::damaged(REPOSITORY, "it is missing, and there are runs, packs, or a shipped store"));
            }
        }
        let mut random = [0; 2 * KEY + 16];
        environment.random(&mut random);
        let (own, rest) = random.split_at(KEY);
        let (salt, id) = rest.split_at(KEY);
        let (key, encryption) = match protection {
            Protection::None => (Key::NONE, None),
            Protection::Passphrase(passphrase) => {
                let outer = Key::of_passphrase(passphrase, salt, ROUNDS);
                let sealed = outer.seal(REPOSITORY, own, environment.as_ref())?;
                let own = own.try_into().map_err(|_| Error::Passphrase)?;
                (Key::new(own), Some(Sealed { rounds: ROUNDS, salt: hex(salt), key: hex(&sealed) }))
            }
        };
        let description = Description { format: FORMAT, id: hex(id), encryption };
        let mut file = serde_json::to_vec(&description).map_err(|error| Error::refused(error.to_string()))?;
        let hash = hex(&Sha256::digest(&file));
        file.extend_from_slice(format!("\n{hash}\n").as_bytes());
        match place.create(REPOSITORY, file.into()).await {
            // Another backup was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Self::open(place, protection, environment).await;
            }
            created => io_of(REPOSITORY, created)?,
        }
        Ok(Repository { place, key, environment })
    }

    /// Opens the repository at a place.
    ///
    /// # Errors
    /// As [`open_or_create`](Self::open_or_create); [`Error::Refused`] if it does not exist.
    pub async fn open(
        place: Arc<dyn Place>,
        protection: &Protection,
        environment: Arc<dyn Environment>,
    ) -> Result<Self> {
        let file = match place.read(REPOSITORY).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::refused("there is no backup: it has no repository.json"));
            }
            file => io_of(REPOSITORY, file)?,
        };
        let damaged = |reason: &str| Error::damaged(REPOSITORY, reason);
        let text = std::str::from_utf8(&file).map_err(|_| damaged("it is not text"))?;
        let (line, hash) = text.split_once('\n').ok_or_else(|| damaged("it is cut off"))?;
        if hash.strip_suffix('\n') != Some(&hex(&Sha256::digest(line))) {
            return Err(damaged("its bytes are not those that were written"));
        }
        let description: Description = serde_json::from_str(line).map_err(|error| damaged(&error.to_string()))?;
        if description.format != FORMAT {
            return Err(Error::refused(format!("the backup has format {}, of another version", description.format)));
        }
        let key = match (description.encryption, protection) {
            (None, Protection::None) => Key::NONE,
            (Some(sealed), Protection::Passphrase(passphrase)) => {
                if sealed.rounds > MOST_ROUNDS {
                    return Err(damaged("it asks for too many rounds"));
                }
                let salt = bytes_of(&sealed.salt).ok_or_else(|| damaged("its salt"))?;
                let own = bytes_of(&sealed.key).ok_or_else(|| damaged("its key"))?;
                let outer = Key::of_passphrase(passphrase, &salt, sealed.rounds);
                let own = outer.open(REPOSITORY, &own).map_err(|_| Error::Passphrase)?;
                Key::new(own.try_into().map_err(|_| Error::Passphrase)?)
            }
            (Some(_), Protection::None) => {
                return Err(Error::refused("the backup is encrypted: its passphrase is needed"));
            }
            (None, Protection::Passphrase(_)) => {
                return Err(Error::refused("the backup is not encrypted, and a passphrase was given for it"));
            }
        };
        Ok(Repository { place, key, environment })
    }

    /// The ids of the runs, oldest first.
    ///
    /// # Errors
    /// Those of the place.
    pub async fn runs(&self) -> Result<Vec<String>> {
        Ok(self.list(RUNS).await?.iter().map(|file| name_of(&file.path).to_owned()).collect())
    }

    /// The length of all of its files, those of a shipped store too.
    ///
    /// # Errors
    /// Those of the place.
    pub async fn bytes(&self) -> Result<u64> {
        let mut bytes = self.read(REPOSITORY).await?.len() as u64;
        for path in [RUNS, RUNNING, PACKS, SHIP] {
            bytes += self.list(path).await?.iter().map(|file| file.bytes).sum::<u64>();
        }
        Ok(bytes)
    }

    pub(crate) async fn manifest(&self, run: &str) -> Result<Manifest> {
        let path = format!("{RUNS}/{run}");
        let file = match self.place.read(&path).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::refused(format!("the backup has no run {run}")));
            }
            file => io_of(&path, file)?,
        };
        let plain = self.key.open(&path, &file)?;
        let manifest: Manifest =
            serde_json::from_slice(&plain).map_err(|error| Error::damaged(&path, error.to_string()))?;
        if manifest.format != FORMAT {
            return Err(Error::refused(format!("{path} has format {}, of another version", manifest.format)));
        }
        Ok(manifest)
    }

    pub(crate) async fn list(&self, path: &str) -> Result<Vec<Stored>> {
        io_of(path, self.place.list(path).await)
    }

    pub(crate) async fn read(&self, path: &str) -> Result<Bytes> {
        io_of(path, self.place.read(path).await)
    }

    pub(crate) async fn create(&self, path: &str, file: Vec<u8>) -> Result<()> {
        io_of(path, self.place.create(path, file.into()).await)
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<()> {
        io_of(path, self.place.delete(path).await)
    }

    pub(crate) fn random<const N: usize>(&self) -> [u8; N] {
        let mut random = [0; N];
        self.environment.random(&mut random);
        random
    }
}

/// The objects of packs.
pub(crate) struct Objects {
    repository: Repository,
    packs: Arc<Vec<Pack>>,
    index: HashMap<ObjectId, (usize, Entry)>,
    readers: HashMap<usize, PackReader>,
    /// Packs that cannot be read, each with the reason.
    unreadable: Vec<(String, String)>,
}

impl Objects {
    /// The objects of these packs. Reads their indexes.
    pub(crate) async fn load(repository: &Repository, packs: &[Pack]) -> Result<Self> {
        let objects = Self::load_sound(repository, packs).await?;
        match objects.unreadable.first() {
            Some((file, reason)) => Err(Error::damaged(file, reason)),
            None => Ok(objects),
        }
    }

    /// The objects of the readable packs. Errors of [`get`](Self::get) name the others.
    pub(crate) async fn load_sound(repository: &Repository, packs: &[Pack]) -> Result<Self> {
        let mut objects = Objects {
            repository: repository.clone(),
            packs: Arc::default(),
            index: HashMap::new(),
            readers: HashMap::new(),
            unreadable: Vec::new(),
        };
        for pack in packs {
            match objects.index_of(pack).await {
                Ok(index) => objects.add(pack.clone(), index),
                Err(Error::Damaged { file, reason }) => objects.unreadable.push((file, reason)),
                Err(error) => return Err(error),
            }
        }
        Ok(objects)
    }

    async fn index_of(&self, pack: &Pack) -> Result<Index> {
        let repository = &self.repository;
        let path = pack.path();
        let part = async |at: u64, bytes: usize| pack_of(&path, repository.place.read_part(&path, at, bytes).await);
        let short = || Error::damaged(&path, "it is cut off");
        let tail = part(pack.bytes.checked_sub(TAIL as u64).ok_or_else(short)?, TAIL).await?;
        let (at, bytes) = PackReader::index_place(&path, &tail, pack.bytes)?;
        let reader = PackReader::new(&repository.key, &path, &part(0, PackReader::HEAD).await?)?;
        reader.index(&part(at, bytes).await?)
    }

    /// Adds a pack that was written.
    pub(crate) fn add(&mut self, pack: Pack, index: Index) {
        let place = self.packs.len();
        Arc::make_mut(&mut self.packs).push(pack);
        for (id, entry) in index {
            self.index.entry(id).or_insert((place, entry));
        }
    }

    pub(crate) fn has(&self, id: ObjectId) -> bool {
        self.index.contains_key(&id)
    }

    /// The packs that have these objects and their parts.
    pub(crate) fn packs_of(&self, ids: impl IntoIterator<Item = ObjectId>) -> Result<Vec<Pack>> {
        let mut needed = vec![false; self.packs.len()];
        for id in ids {
            let (pack, entry) = self.find(id)?;
            needed[*pack] = true;
            if let Entry::Parts(parts) = entry {
                for part in parts {
                    needed[self.find(*part)?.0] = true;
                }
            }
        }
        Ok(self.packs.iter().zip(needed).filter(|(_, needed)| *needed).map(|(pack, _)| pack.clone()).collect())
    }

    fn find(&self, id: ObjectId) -> Result<&(usize, Entry)> {
        self.index.get(&id).ok_or_else(|| match self.unreadable.first() {
            Some((file, reason)) => Error::damaged(file, reason),
            None => Error::damaged(PACKS, format!("no pack has the object {id}")),
        })
    }

    /// The objects of a content: itself, or its parts.
    pub(crate) fn parts(&self, id: ObjectId) -> Result<Vec<ObjectId>> {
        Ok(match &self.find(id)?.1 {
            Entry::Frame { .. } => vec![id],
            Entry::Parts(parts) => parts.clone(),
        })
    }

    /// Only these objects, for a separate reader.
    pub(crate) fn of(&self, ids: &[ObjectId]) -> Result<Objects> {
        let find = |id: &ObjectId| Ok((*id, self.find(*id)?.clone()));
        Ok(Objects {
            repository: self.repository.clone(),
            packs: self.packs.clone(),
            index: ids.iter().map(find).collect::<Result<_>>()?,
            readers: HashMap::new(),
            unreadable: self.unreadable.clone(),
        })
    }

    /// An object. Its bytes are checked against its name.
    pub(crate) async fn get(&mut self, id: ObjectId) -> Result<Vec<u8>> {
        let (pack, entry) = self.find(id)?.clone();
        let path = self.packs[pack].path();
        let (number, at, bytes, raw) = match entry {
            Entry::Frame { number, at, bytes, raw } => (number, at, bytes, raw),
            // A block may have the same bytes as an attachment that was stored earlier in parts.
            Entry::Parts(parts) => {
                let mut whole = Vec::new();
                for part in parts {
                    whole.extend(self.frame(part).await?);
                }
                let is_right = ObjectId::of(&whole) == id;
                return if is_right {
                    Ok(whole)
                } else {
                    Err(Error::damaged(&path, format!("object {id}: its parts")))
                };
            }
        };
        self.read_frame(pack, &path, id, (number, at, bytes, raw)).await
    }

    /// An object that is a part of another one.
    async fn frame(&mut self, id: ObjectId) -> Result<Vec<u8>> {
        let (pack, entry) = self.find(id)?.clone();
        let path = self.packs[pack].path();
        let Entry::Frame { number, at, bytes, raw } = entry else {
            return Err(Error::damaged(&path, format!("object {id}: its parts have parts")));
        };
        self.read_frame(pack, &path, id, (number, at, bytes, raw)).await
    }

    async fn read_frame(
        &mut self,
        pack: usize,
        path: &str,
        id: ObjectId,
        (number, at, bytes, raw): (u32, u64, u32, u32),
    ) -> Result<Vec<u8>> {
        if !self.readers.contains_key(&pack) {
            if self.readers.len() >= KEPT_PACKS {
                self.readers.clear();
            }
            let head = pack_of(path, self.repository.place.read_part(path, 0, PackReader::HEAD).await)?;
            self.readers.insert(pack, PackReader::new(&self.repository.key, path, &head)?);
        }
        let sealed = pack_of(path, self.repository.place.read_part(path, at, bytes as usize).await)?;
        match self.readers.get(&pack) {
            Some(reader) => reader.object(id, number, raw, &sealed),
            None => Err(Error::damaged(path, "it was closed")),
        }
    }
}

/// The last part of a path.
pub(crate) fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

pub(crate) fn io_of<T>(file: &str, outcome: io::Result<T>) -> Result<T> {
    outcome.map_err(|cause| match cause.kind() {
        io::ErrorKind::UnexpectedEof => Error::damaged(file, "it is cut off"),
        _ => Error::Io { file: file.to_owned(), cause },
    })
}

/// The same for a pack, which must exist.
fn pack_of<T>(pack: &str, outcome: io::Result<T>) -> Result<T> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::damaged(pack, "it is missing")),
        outcome => io_of(pack, outcome),
    }
}

/// The bytes of hexadecimal digits.
pub(crate) fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let pair = |at: usize| digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..digits.len()).step_by(2).map(pair).collect()
}
