//! Who ships. Two loops of a server call it: one for segments, one for bases, so that a segment never waits for tables.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use disk::wal::follow::{Cut, Tail};
use disk::{FollowedStore, LinkedTables};
use model::hex;
use parking_lot::Mutex;

use super::form::{BASES, Base, BaseTable, LOG, STORE, Segment, TABLES, base_path, json, log_path, table_path};
use crate::error::{Error, Result};
use crate::key::checked;
use crate::place::blocking;
use crate::repository::{Repository, io_of, name_of};

/// A clock that goes back by less than this stands still instead.
const JITTER_MS: u64 = 1_000;

/// A clock that is behind the last segment by more than this is wrong: what it ships would be hidden behind what it
/// shipped before.
const MOST_BEHIND_MS: u64 = 3_600_000;

/// After this time without a segment another shipper may have written, and removed its first segments again. So all
/// numbers are looked at, and not the next one alone.
const LONG_AWAY_MS: u64 = 600_000;

/// Number of cuts after each other while they are large.
const MOST_CUTS: usize = 8;

/// Links keep the space of tables that the store removed. They are made anew after this time, if no segment completes them.
const MOST_LINKED_MS: u64 = 300_000;

/// Number of idle calls between two looks for another shipper.
const IDLE_LOOKS: u32 = 20;

/// When a shipper does what.
#[derive(Clone, Copy, Debug)]
pub struct ShipOptions {
    /// Bytes of records that may wait while the place is slow. Beyond it the shipper begins anew with the tables.
    pub backlog: usize,
    /// Bytes of records after which there is a new base, which bounds the time of a restore.
    pub base_after: u64,
    /// Time after which there is a new base if anything was written, in milliseconds: so what is too old can go.
    pub base_after_ms: u64,
    /// Time for which each second can be restored, in milliseconds.
    pub keep_ms: u64,
}

impl Default for ShipOptions {
    fn default() -> Self {
        ShipOptions { backlog: 32 << 20, base_after: 256 << 20, base_after_ms: 3_600_000, keep_ms: 7 * 86_400_000 }
    }
}

/// What a shipper has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shipped {
    /// Time up to which everything is in the place, in milliseconds since 1970; 0 until the first base is complete.
    pub until_ms: u64,
    /// Number of segments. All numbers count since the process began.
    pub segments: u64,
    /// Bytes of the segments and tables.
    pub bytes: u64,
    /// Number of bases.
    pub bases: u64,
    /// Number of times that it began with the tables.
    pub begun: u64,
}

/// A segment that is in the place.
#[derive(Clone, Copy)]
struct Sent {
    number: u64,
    ms: u64,
    version: i64,
}

/// A segment that is being written.
struct Pending {
    sent: Sent,
    begins: bool,
    file: Bytes,
    records: u64,
}

#[derive(Default)]
struct State {
    /// The last segments of this shipper since it began, from the one that completes the newest base.
    sent: Vec<Sent>,
    /// Number of the next segment.
    next: u64,
    /// Bytes of records since the newest base.
    since_base: u64,
    /// Whether no base was made since the last beginning.
    wants_base: bool,
    /// Whether another shipper took over.
    fenced: bool,
    shipped: Shipped,
}

/// What only the loop of segments uses.
#[derive(Default)]
struct Log {
    tail: Option<Tail>,
    pending: Option<Pending>,
    last_ms: u64,
    /// Number of calls without anything new.
    idle: u32,
}

/// What only the loop of bases uses.
#[derive(Default)]
struct Bases {
    /// Tables that are in the place: those of the newest base, and those that were written after it.
    stored: HashSet<String>,
    /// Whether the bases of earlier shippers were looked at.
    looked: bool,
    /// Tables that are in the place, and wait for the segment that completes them.
    copied: Option<Copied>,
    /// Time of the last base.
    last_ms: u64,
    /// Whether the store was asked to flush, so that the next base has what is in its log.
    has_flushed: bool,
}

struct Copied {
    linked: LinkedTables,
    base: Base,
    /// Number of beginnings before the tables were linked.
    begun: u64,
    /// When they were linked.
    linked_ms: u64,
}

/// Ships a store to a place. See the module `ship`.
pub struct Shipper {
    pub(super) repository: Repository,
    name: String,
    pub(super) options: ShipOptions,
    state: Mutex<State>,
    log: futures_util::lock::Mutex<Log>,
    bases: futures_util::lock::Mutex<Bases>,
    /// The last field: the links are removed before the store is closed.
    store: Arc<dyn FollowedStore>,
}

impl std::fmt::Debug for Shipper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shipper").field("repository", &self.repository).finish_non_exhaustive()
    }
}

impl Shipper {
    /// Ships the store of a [name](crate::store_name). Nothing is written before [`ship_log`](Self::ship_log).
    pub fn new(repository: Repository, store: Arc<dyn FollowedStore>, name: &str, options: ShipOptions) -> Self {
        let (state, log, bases) = Default::default();
        Shipper { repository, store, name: name.to_owned(), options, state, log, bases }
    }

    /// What it has done.
    pub fn shipped(&self) -> Shipped {
        self.state.lock().shipped
    }

    /// Whether another shipper took over: then nothing is shipped any more.
    pub fn is_fenced(&self) -> bool {
        self.state.lock().fenced
    }

    /// Writes what became durable since the last call, as a segment. Call it twice a second, from one loop.
    ///
    /// # Errors
    /// Those of the place: the next call tries again. [`Error::Refused`] if the place has another store, or another shipper
    /// took over.
    pub async fn ship_log(&self) -> Result<()> {
        let mut log = self.log.lock().await;
        for _ in 0..MOST_CUTS {
            // While a large cut was written, as much may have come: a pause would let the backlog grow over its bound.
            if self.ship_cut(&mut log).await? < self.options.backlog as u64 / 8 {
                break;
            }
        }
        Ok(())
    }

    /// Ships one cut. Returns the bytes of its records.
    async fn ship_cut(&self, log: &mut Log) -> Result<u64> {
        self.check_fence()?;
        if let Some(pending) = &log.pending {
            if self.repository.environment.now_ms().abs_diff(pending.sent.ms) > LONG_AWAY_MS {
                // The number itself may be there: an earlier attempt failed after it was written.
                let last = self.repository.numbers(LOG).await?.last().copied();
                self.fence_if(last > Some(pending.sent.number))?;
            }
            self.write_pending(log).await?;
        }
        let cut = match log.tail.as_ref().map(|tail| tail.take(|| self.repository.environment.now_ms())) {
            Some(Ok(mut cut)) => {
                if cut.ms < log.last_ms && log.last_ms - cut.ms < JITTER_MS {
                    cut.ms = log.last_ms;
                }
                Some(cut)
            }
            Some(Err(_)) => {
                tracing::warn!("the place of the ship was too slow: the ship begins again with the tables");
                None
            }
            None => None,
        };
        match cut {
            Some(cut) if cut.ms < log.last_ms => {
                tracing::warn!("the clock went back: the ship begins again with the tables");
                self.begin(log).await
            }
            Some(cut) if cut.records.is_empty() => {
                log.last_ms = cut.ms;
                log.idle += 1;
                if log.idle.is_multiple_of(IDLE_LOOKS) {
                    let has_next = self.has_next().await?;
                    self.fence_if(has_next)?;
                }
                self.note_idle(cut.ms);
                Ok(0)
            }
            Some(cut) => self.write(log, cut, false).await,
            None => self.begin(log).await,
        }
    }

    fn check_fence(&self) -> Result<()> {
        match self.is_fenced() {
            true => Err(Error::refused("another server ships to this place by now, so this one has stopped")),
            false => Ok(()),
        }
    }

    /// Stops for ever if another shipper took over.
    fn fence_if(&self, is_taken: bool) -> Result<()> {
        self.state.lock().fenced |= is_taken;
        self.check_fence()
    }

    /// Whether the next number is taken. Ask while nothing is pending.
    async fn has_next(&self) -> Result<bool> {
        let path = log_path(self.state.lock().next);
        match self.repository.place.read(&path).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            found => io_of(&path, found).map(|_| true),
        }
    }

    /// Nothing is new, so all of it is in the place.
    fn note_idle(&self, ms: u64) {
        let mut state = self.state.lock();
        if !state.wants_base {
            state.shipped.until_ms = ms;
        }
    }

    /// Follows the log from the tables on, and writes a segment that begins.
    async fn begin(&self, log: &mut Log) -> Result<u64> {
        log.tail = None;
        self.check_name().await?;
        let next = self.number_to_begin(log.last_ms).await?;
        let (store, most) = (self.store.clone(), self.options.backlog);
        let tail = blocking(move || store.follow(most)).await?;
        let cut = tail.take(|| self.repository.environment.now_ms());
        let cut = cut.map_err(|_| Error::refused("the store's log grew too fast to be followed"))?;
        {
            let mut state = self.state.lock();
            state.next = next;
            state.sent.clear();
            state.wants_base = true;
            state.shipped.begun += 1;
        }
        log.tail = Some(tail);
        self.write(log, cut, true).await
    }

    /// The number of a segment that begins. Fails if another shipper took over, or if the clock is far behind.
    async fn number_to_begin(&self, last_ms: u64) -> Result<u64> {
        let now = self.repository.environment.now_ms();
        let (is_first, next) = {
            let state = self.state.lock();
            (state.shipped.segments == 0, state.next)
        };
        let (next, last_ms) = match is_first {
            true => {
                let numbers = self.repository.numbers(LOG).await?;
                let next = numbers.last().map_or(1, |last| last + 1);
                (next, self.repository.last_sound(&numbers).await?.map_or(0, |(_, ms)| ms))
            }
            // A busy store must not wait for a long list: it would miss records again.
            false if now.abs_diff(last_ms) <= LONG_AWAY_MS => {
                let has_next = self.has_next().await?;
                self.fence_if(has_next)?;
                (next, last_ms)
            }
            false => {
                let last = self.repository.numbers(LOG).await?.last().copied();
                self.fence_if(last >= Some(next))?;
                (next, last_ms)
            }
        };
        if last_ms > now.saturating_add(MOST_BEHIND_MS) {
            return Err(Error::refused(format!(
                "the clock is {} s behind the last segment of this place: set it, or ship to another place",
                (last_ms - now) / 1_000
            )));
        }
        Ok(next)
    }

    /// Fails if the place has the log of another store, or would replace files.
    async fn check_name(&self) -> Result<()> {
        let place = &self.repository.place;
        let file = self.repository.sealed(STORE, self.name.as_bytes())?;
        let found = match place.read(STORE).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match place.create(STORE, file.clone()).await {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    created => io_of(STORE, created)?,
                }
                self.repository.opened(STORE).await?
            }
            found => self.repository.key.open(STORE, &io_of(STORE, found)?)?,
        };
        if found != self.name.as_bytes() {
            let other = String::from_utf8_lossy(&found).into_owned();
            return Err(Error::refused(format!("this place has the log of the store {other}: ship to another place")));
        }
        // An object store that knows no conditional writes would let two servers write over each other. This file says the
        // same if it is replaced.
        match place.create(STORE, file).await {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            created => {
                io_of(STORE, created)?;
                Err(Error::refused("this place replaces files that exist: it knows no conditional writes"))
            }
        }
    }

    async fn write(&self, log: &mut Log, cut: Cut, begins: bool) -> Result<u64> {
        let sent = Sent { number: self.state.lock().next, ms: cut.ms, version: cut.version };
        let path = log_path(sent.number);
        let records = cut.records.iter().map(|record| record.bytes().len() as u64).sum();
        // The next segment cannot go on without this one: without a tail the log begins again.
        let tail = log.tail.take();
        let repository = self.repository.clone();
        let seal = move || Segment::write(&cut, begins).and_then(|plain| repository.sealed(&path, &plain));
        let file = blocking(seal).await?;
        log.last_ms = sent.ms;
        (log.tail, log.idle) = (tail, 0);
        log.pending = Some(Pending { sent, begins, file, records });
        self.write_pending(log).await?;
        Ok(records)
    }

    async fn write_pending(&self, log: &mut Log) -> Result<()> {
        let Some(Pending { sent, begins, file, records }) = &log.pending else { return Ok(()) };
        let path = log_path(sent.number);
        match self.repository.place.create(&path, file.clone()).await {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // It is our own if an earlier attempt failed after it was written.
                let found = io_of(&path, self.repository.place.read(&path).await)?;
                let is_first = *begins && self.state.lock().shipped.segments == 0;
                if checked(&found).is_none() {
                    // A part, which a broken write left.
                    self.repository.delete(&path).await?;
                    io_of(&path, self.repository.place.create(&path, file.clone()).await)?;
                } else if found != *file {
                    if !is_first {
                        log.tail = None;
                        log.pending = None;
                        return self.fence_if(true);
                    }
                    // Another one was faster: the newest wins. The tables go on meanwhile, so this begins again.
                    log.pending = None;
                    log.tail = None;
                    return Err(Error::refused("another server began to ship to this place at the same time"));
                }
            }
            created => io_of(&path, created)?,
        }
        let mut state = self.state.lock();
        state.next = sent.number + 1;
        state.sent.push(*sent);
        state.since_base += records;
        state.shipped.segments += 1;
        state.shipped.bytes += file.len() as u64;
        if !state.wants_base {
            state.shipped.until_ms = sent.ms;
        }
        drop(state);
        log.pending = None;
        Ok(())
    }

    /// Writes a base if it is time, then removes what is too old. Call it every second, from one loop. Returns whether
    /// there is a new base.
    ///
    /// # Errors
    /// As [`ship_log`](Self::ship_log).
    pub async fn ship_tables(&self) -> Result<bool> {
        let mut bases = self.bases.lock().await;
        let bases = &mut *bases;
        self.check_fence()?;
        let now = self.repository.environment.now_ms();
        // Before the tables are linked: those of a log that began later have what its first segment lacks.
        let begun = {
            let state = self.state.lock();
            let is_late = state.sent.len() > 1 && now.abs_diff(bases.last_ms) >= self.options.base_after_ms;
            let is_due = state.wants_base || is_late || state.since_base >= self.options.base_after;
            if state.sent.is_empty() || !is_due {
                return Ok(false);
            }
            if !state.wants_base && !std::mem::replace(&mut bases.has_flushed, true) {
                drop(state);
                self.store.flush();
                return Ok(false);
            }
            state.shipped.begun
        };
        if !bases.looked {
            bases.stored = self.tables_of_newest().await?;
            bases.looked = true;
        }
        let is_usable = |copied: &Copied| copied.begun == begun && now.abs_diff(copied.linked_ms) <= MOST_LINKED_MS;
        if !bases.copied.as_ref().is_some_and(is_usable) {
            // One at a time.
            bases.copied = None;
            let store = self.store.clone();
            let linked = blocking(move || store.link_tables()).await?;
            let base = self.copy(&linked, &mut bases.stored).await?;
            bases.copied = Some(Copied { linked, base, begun, linked_ms: now });
        }
        self.complete(bases).await
    }

    /// Writes the base of copied tables, if the segment that completes it is in the place.
    async fn complete(&self, bases: &mut Bases) -> Result<bool> {
        let Some(Copied { linked, base, begun, .. }) = &mut bases.copied else { return Ok(false) };
        let sent = {
            let state = self.state.lock();
            let is_same_log = state.shipped.begun == *begun;
            state.sent.iter().find(|sent| is_same_log && sent.version >= base.version).copied()
        };
        let Some(sent) = sent else { return Ok(false) };
        // Tables that another shipper removed, which did not know of this one yet, are written again.
        let there = self.repository.list(TABLES).await?;
        let there: HashSet<&str> = there.iter().map(|file| name_of(&file.path)).collect();
        bases.stored.retain(|name| there.contains(name.as_str()));
        if base.tables.iter().any(|table| !bases.stored.contains(&table.name)) {
            *base = self.copy(linked, &mut bases.stored).await?;
        }
        base.ms = sent.ms;
        let path = base_path(sent.number);
        let file = self.repository.sealed(&path, &json(base)?)?;
        match self.repository.place.create(&path, file.clone()).await {
            // The tables are those of the last base, or an earlier attempt failed after it was written.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match self.repository.base(sent.number).await
            {
                Ok(found) => *base = found,
                Err(Error::Damaged { .. }) => {
                    self.repository.delete(&path).await?;
                    io_of(&path, self.repository.place.create(&path, file).await)?;
                }
                Err(error) => return Err(error),
            },
            created => io_of(&path, created)?,
        }
        {
            let mut state = self.state.lock();
            state.shipped.bases += 1;
            // Otherwise the log began again meanwhile, and this is a base of the former log.
            if state.shipped.begun == *begun {
                state.sent.retain(|other| other.number >= sent.number);
                state.wants_base = false;
                state.since_base = 0;
                state.shipped.until_ms = state.sent.last().map_or(0, |last| last.ms);
            }
        }
        bases.stored = base.tables.iter().map(|table| table.name.clone()).collect();
        bases.last_ms = self.repository.environment.now_ms();
        bases.has_flushed = false;
        bases.copied = None;
        self.prune().await?;
        Ok(true)
    }

    /// Whether another shipper has the next number, or wrote `last`, which was listed before. `None` if this is unknown
    /// for now.
    pub(super) async fn notice_fence(&self, last: Option<u64>) -> Result<Option<bool>> {
        let log = self.log.lock().await;
        if log.pending.is_some() {
            return Ok(None);
        }
        let is_taken = last >= Some(self.state.lock().next) || self.has_next().await?;
        self.state.lock().fenced |= is_taken;
        Ok(Some(is_taken))
    }

    /// Writes the tables that are not in the place.
    async fn copy(&self, linked: &LinkedTables, stored: &mut HashSet<String>) -> Result<Base> {
        let mut base = Base::new(self.store.engine(), 0, linked.version);
        let mut paths = HashSet::new();
        for table in &linked.tables {
            paths.insert(table.path.clone());
            if !stored.contains(&table.name) {
                self.check_fence()?;
                self.write_table(&table.name, linked.folder.join(&table.path)).await?;
                stored.insert(table.name.clone());
            }
            base.tables.push(BaseTable { path: table.path.clone(), name: table.name.clone() });
        }
        let folder = linked.folder.clone();
        blocking(move || add_rest(&folder, &folder, &paths, &mut base).map(|()| base)).await
    }

    async fn write_table(&self, name: &str, file: PathBuf) -> Result<()> {
        let path = table_path(name);
        let file = {
            let (repository, store) = (self.repository.clone(), self.store.clone());
            let (name, path) = (name.to_owned(), path.clone());
            let seal = move || {
                let plain = read_file(&file)?;
                match store.is_table(&name, &plain) {
                    true => repository.sealed(&path, &plain),
                    false => Err(Error::damaged(
                        &file.display().to_string(),
                        "a table of the store is not as it was written",
                    )),
                }
            };
            blocking(seal).await?
        };
        let bytes = file.len() as u64;
        match self.repository.place.create(&path, file.clone()).await {
            // A shipper that was killed may have left it. A part of it is written again.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match self.repository.opened(&path).await {
                Ok(found) if self.store.is_table(name, &found) => return Ok(()),
                Ok(_) | Err(Error::Damaged { .. }) => {
                    self.repository.delete(&path).await?;
                    io_of(&path, self.repository.place.create(&path, file).await)?;
                }
                Err(error) => return Err(error),
            },
            created => io_of(&path, created)?,
        }
        self.state.lock().shipped.bytes += bytes;
        Ok(())
    }

    /// The tables of the newest base of an earlier shipper, which nobody removes: see [`super::prune`]. None if it cannot
    /// be read.
    async fn tables_of_newest(&self) -> Result<HashSet<String>> {
        let Some(newest) = self.repository.numbers(BASES).await?.last().copied() else { return Ok(HashSet::new()) };
        match self.repository.base(newest).await {
            Ok(base) => Ok(base.tables.into_iter().map(|table| table.name).collect()),
            Err(Error::Damaged { file, reason }) => {
                tracing::warn!(file, reason, "a base is damaged: all tables are shipped again");
                Ok(HashSet::new())
            }
            Err(error) => Err(error),
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|cause| Error::Io { file: path.display().to_string(), cause })
}

/// Adds the folders, and the files that are no tables, each with its path in `root`.
fn add_rest(root: &Path, folder: &Path, tables: &HashSet<String>, base: &mut Base) -> Result<()> {
    let failed = |cause| Error::Io { file: folder.display().to_string(), cause };
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let within = path.strip_prefix(root).unwrap_or(&path).iter();
        let name = within.map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/");
        if path.is_dir() {
            base.folders.push(name);
            add_rest(root, &path, tables, base)?;
        } else if !tables.contains(&name) {
            base.files.push((name, hex(&read_file(&path)?)));
        }
    }
    Ok(())
}
