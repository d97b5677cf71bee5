//! Writes a run: its mark, its packs, and finally its description.
//!
//! A run that is being written has a mark, `running/RUN.N`. It exists before the first pack, and is renewed. A pruning
//! keeps the packs of a run with a mark, and the runs that it continues. A mark that was not renewed for a day belongs
//! to an ended process, and a pruning removes it. A run whose mark is gone fails, and takes back what it made visible.

use std::collections::HashSet;
use std::io;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::manifest::{Manifest, Pack, Segment};
use crate::pack::{ObjectId, PackWriter};
use crate::record::Record;
use crate::repository::{Objects, PACKS, RUNNING, RUNS, Repository, io_of};

/// Blocks of documents have about this many bytes.
const BLOCK: usize = 1 << 20;

/// Time after which a mark is renewed.
const RENEWED_MS: u64 = 60_000;

/// Time without a renewal after which the process of a mark counts as ended.
pub(crate) const ABANDONED_MS: u64 = 86_400_000;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// When it was written, in milliseconds since 1970.
    pub(crate) ms: u64,
    /// The runs that it continues; `None` while it looks for them.
    pub(crate) bases: Option<Vec<String>>,
}

/// A run that is being written.
pub(crate) struct Writer {
    repository: Repository,
    run: String,
    bases: Option<Vec<String>>,
    mark: (u64, u64),
    /// The objects of the runs that it continues, and its own.
    pub(crate) objects: Objects,
    /// Documents and contents are in separate packs, since documents are merged and contents stay.
    documents: PackWriter,
    contents: PackWriter,
    /// Bytes of its packs.
    written: u64,
    /// Objects of packs that are not written yet.
    pending: HashSet<ObjectId>,
}

impl Writer {
    /// Begins a run. The caller then looks for the runs to continue: only after this, so that a pruning sees the mark.
    pub(crate) async fn begin(repository: &Repository) -> Result<Self> {
        let now = repository.environment.now_ms();
        // Ids give the order of runs, even if the clock was wrong.
        let newest = repository.runs().await?.iter().filter_map(|run| ms_of(run)).max();
        let run = run_id(newest.map_or(now, |newest| now.max(newest + 1)), repository.random());
        let writer = Writer {
            documents: PackWriter::new(&repository.key, repository.random()),
            contents: PackWriter::new(&repository.key, repository.random()),
            repository: repository.clone(),
            run,
            bases: None,
            mark: (0, now),
            objects: Objects::load(repository, &[]).await?,
            written: 0,
            pending: HashSet::new(),
        };
        writer.write_mark(0, now).await?;
        Ok(writer)
    }

    /// Continues these runs, which have these packs.
    pub(crate) async fn continue_from(&mut self, bases: Vec<String>, packs: &[Pack]) -> Result<()> {
        self.bases = Some(bases);
        self.write_next_mark(self.repository.environment.now_ms()).await?;
        self.objects = Objects::load(&self.repository, packs).await?;
        Ok(())
    }

    fn mark_path(&self, number: u64) -> String {
        format!("{RUNNING}/{}.{number}", self.run)
    }

    async fn write_mark(&self, number: u64, ms: u64) -> Result<()> {
        let path = self.mark_path(number);
        let mark = Mark { ms, bases: self.bases.clone() };
        let plain = serde_json::to_vec(&mark).map_err(|error| Error::refused(error.to_string()))?;
        let file = self.repository.key.seal(&path, &plain, self.repository.environment.as_ref())?;
        self.repository.create(&path, file).await
    }

    /// Renews the mark if it is time.
    async fn renew(&mut self) -> Result<()> {
        let now = self.repository.environment.now_ms();
        if now.saturating_sub(self.mark.1) >= RENEWED_MS { self.write_next_mark(now).await } else { Ok(()) }
    }

    async fn write_next_mark(&mut self, now: u64) -> Result<()> {
        let (number, _) = self.mark;
        self.check_mark().await?;
        self.write_mark(number + 1, now).await?;
        self.mark = (number + 1, now);
        // Without the right to delete, the old mark stays. The newest one counts.
        let _ = self.repository.delete(&self.mark_path(number)).await;
        Ok(())
    }

    /// Fails if a pruning took this run for abandoned.
    pub(crate) async fn check_mark(&self) -> Result<()> {
        let path = self.mark_path(self.mark.0);
        match self.repository.place.read(&path).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(Error::refused("this run stood still for so long that a pruning removed its packs: start again"))
            }
            mark => io_of(&path, mark).map(drop),
        }
    }

    /// Bytes of the packs that were written.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    pub(crate) fn has(&self, id: ObjectId) -> bool {
        self.objects.has(id) || self.pending.contains(&id)
    }

    /// Adds an object of documents.
    pub(crate) async fn add(&mut self, object: &[u8]) -> Result<ObjectId> {
        let id = ObjectId::of(object);
        if !self.has(id) {
            self.pending.insert(id);
            self.documents.add(id, object)?;
            if self.documents.is_full() {
                let new = self.new_pack();
                let full = std::mem::replace(&mut self.documents, new);
                self.write(full).await?;
            }
        }
        Ok(id)
    }

    /// Adds a part of a content, or a whole one.
    pub(crate) async fn add_content(&mut self, bytes: &[u8]) -> Result<ObjectId> {
        let id = ObjectId::of(bytes);
        if !self.has(id) {
            self.pending.insert(id);
            self.contents.add(id, bytes)?;
            if self.contents.is_full() {
                let new = self.new_pack();
                let full = std::mem::replace(&mut self.contents, new);
                self.write(full).await?;
            }
        }
        Ok(id)
    }

    /// Adds the name of a content that consists of these parts.
    pub(crate) fn add_parts(&mut self, id: ObjectId, parts: Vec<ObjectId>) {
        if !self.has(id) {
            self.pending.insert(id);
            self.contents.add_parts(id, parts);
        }
    }

    fn new_pack(&self) -> PackWriter {
        PackWriter::new(&self.repository.key, self.repository.random())
    }

    async fn write(&mut self, pack: PackWriter) -> Result<()> {
        if pack.is_empty() {
            return Ok(());
        }
        self.renew().await?;
        let (name, file, index) = pack.finish()?;
        let pack = Pack { run: self.run.clone(), name, bytes: file.len() as u64 };
        self.repository.create(&pack.path(), file).await?;
        self.written += pack.bytes;
        for (id, _) in &index {
            self.pending.remove(id);
        }
        self.objects.add(pack, index);
        Ok(())
    }

    /// Writes the objects that are still in memory.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        for is_contents in [false, true] {
            let new = self.new_pack();
            let pack = std::mem::replace(if is_contents { &mut self.contents } else { &mut self.documents }, new);
            self.write(pack).await?;
        }
        Ok(())
    }

    /// Makes the run visible.
    pub(crate) async fn finish(self, manifest: &Manifest) -> Result<String> {
        self.check_mark().await?;
        let path = format!("{RUNS}/{}", self.run);
        let plain = serde_json::to_vec(manifest).map_err(|error| Error::refused(error.to_string()))?;
        let file = self.repository.key.seal(&path, &plain, self.repository.environment.as_ref())?;
        self.repository.create(&path, file).await?;
        if let Err(error) = self.check_mark().await {
            self.repository.delete(&path).await?;
            return Err(error);
        }
        let _ = self.repository.delete(&self.mark_path(self.mark.0)).await;
        Ok(self.run)
    }

    /// Removes the files of a failed run, if possible. Otherwise a pruning does.
    pub(crate) async fn give_up(self) {
        if let Ok(packs) = self.repository.list(&format!("{PACKS}/{}", self.run)).await {
            for pack in packs {
                let _ = self.repository.delete(&pack.path).await;
            }
        }
        let _ = self.repository.delete(&self.mark_path(self.mark.0)).await;
    }
}

/// A segment that is being written.
#[derive(Default)]
pub(crate) struct SegmentWriter {
    block: Vec<u8>,
    documents: u64,
    blocks: Vec<ObjectId>,
    contents: HashSet<ObjectId>,
}

impl SegmentWriter {
    pub(crate) async fn add(&mut self, writer: &mut Writer, record: &Record) -> Result<()> {
        record.append_to(&mut self.block)?;
        self.documents += 1;
        self.contents.extend(record.contents());
        if self.block.len() >= BLOCK {
            self.end_block(writer).await?;
        }
        Ok(())
    }

    async fn end_block(&mut self, writer: &mut Writer) -> Result<()> {
        if !self.block.is_empty() {
            self.blocks.push(writer.add(&std::mem::take(&mut self.block)).await?);
        }
        Ok(())
    }

    pub(crate) fn documents(&self) -> u64 {
        self.documents
    }

    /// The name of the segment; `None` if it has no documents.
    pub(crate) async fn finish(mut self, writer: &mut Writer) -> Result<Option<ObjectId>> {
        if self.documents == 0 {
            return Ok(None);
        }
        self.end_block(writer).await?;
        let mut contents: Vec<ObjectId> = self.contents.into_iter().collect();
        contents.sort();
        let segment = Segment { documents: self.documents, blocks: self.blocks, contents };
        let segment = serde_json::to_vec(&segment).map_err(|error| Error::refused(error.to_string()))?;
        Ok(Some(writer.add(&segment).await?))
    }

    /// Only the blocks.
    pub(crate) async fn finish_blocks(mut self, writer: &mut Writer) -> Result<Vec<ObjectId>> {
        self.end_block(writer).await?;
        Ok(self.blocks)
    }
}

/// `20261127T160252123Z-0a1b2c3d`: when the run began, and a random part.
fn run_id(ms: u64, random: [u8; 4]) -> String {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(ms);
    let time: String = humantime::format_rfc3339_millis(time).to_string().replace(['-', ':', '.'], "");
    format!("{time}-{}", model::hex(&random))
}

/// The milliseconds of a run's id; `None` if the name is not a run's.
fn ms_of(run: &str) -> Option<u64> {
    let digits = |from: usize, to: usize| run.get(from..to);
    let (date, time) =
        ((digits(0, 4)?, digits(4, 6)?, digits(6, 8)?), (digits(9, 11)?, digits(11, 13)?, digits(13, 15)?));
    let text = format!("{}-{}-{}T{}:{}:{}.{}Z", date.0, date.1, date.2, time.0, time.1, time.2, digits(15, 18)?);
    let since = humantime::parse_rfc3339(&text).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::{ms_of, run_id};

    #[test]
    fn the_time_of_a_run_is_read_from_its_id() {
        for ms in [0, 1, 1_795_795_372_123, 253_402_300_799_998] {
            assert_eq!(ms_of(&run_id(ms, [1, 2, 3, 4])), Some(ms));
        }
        for name in ["", "notes", "2026", "\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}"] {
            assert_eq!(ms_of(name), None);
        }
    }
}
