//! Assembles files: reads their chunks in rounds, and outputs them in the order of the files.
//!
//! A round may have many files, or a part of one. A failure affects its file only.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, VecDeque};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Kind;
use super::document::FileDocument;
use super::round::{self, ROUND_BYTES, ROUND_CHUNKS};
use crate::ChunkStore;
use crate::chunk::Chunk;
use crate::error::Result;
use crate::id::{CHUNK_PREFIX, chunk_id};
use crate::livesync::{ENCRYPTED_CHUNK, inflated};

/// Maximum number of a file's missing chunks that are named. All of them are counted.
const NAMED: usize = 3;

/// Destination of assembled files.
pub(crate) trait Sink: Send {
    /// Starts a file. An error ends it.
    fn begin(&mut self, file: &FileDocument) -> std::result::Result<(), String>;
    /// The next bytes of the file.
    fn piece(&mut self, bytes: &[u8]) -> std::result::Result<(), String>;
    /// Ends a file: all bytes were passed, and the size is right.
    fn end(&mut self, file: &FileDocument) -> std::result::Result<(), String>;
    /// Reports a doubt about a file that is not a failure.
    fn doubt(&mut self, _file: &FileDocument, _what: String) {}
    /// Gives up the current file.
    fn abort(&mut self);
    /// Reports the result of a file. Its size is the one in its document.
    fn outcome(&mut self, file: &FileDocument, outcome: std::result::Result<(), String>);
}

/// A file in progress.
struct Job {
    file: FileDocument,
    /// Index of its next chunk.
    next: usize,
    /// Whether it has begun and not failed.
    is_open: bool,
    decoder: Decoder,
    bytes: u64,
    /// Its missing chunks.
    missing: Vec<String>,
    /// Any other error of the file.
    failed: Option<String>,
    /// Number of chunks whose ids are not the hash of their data, and the first of them.
    odd: Option<(u64, String)>,
}

/// Files that are being assembled. Memory: a round of chunks.
pub(crate) struct Assembly<S> {
    chunks: ChunkStore,
    sink: S,
    jobs: VecDeque<Job>,
    /// Numbers of waiting chunks and of their bytes; the latter are estimated.
    waiting: (usize, u64),
    /// Whether to check that chunks match their ids.
    check_ids: bool,
}

impl<S: Sink> Assembly<S> {
    pub(crate) fn new(chunks: ChunkStore, sink: S, check_ids: bool) -> Self {
        Assembly { chunks, sink, jobs: VecDeque::new(), waiting: (0, 0), check_ids }
    }

    pub(crate) fn sink(&mut self) -> &mut S {
        &mut self.sink
    }

    /// Adds a file.
    ///
    /// # Errors
    /// The store's failures.
    pub(crate) async fn add(&mut self, file: FileDocument) -> Result<()> {
        self.waiting.0 += file.children.len();
        self.waiting.1 += file.size;
        let decoder = Decoder::new(file.kind);
        self.jobs.push_back(Job {
            file,
            next: 0,
            is_open: false,
            decoder,
            bytes: 0,
            missing: Vec::new(),
            failed: None,
            odd: None,
        });
        while self.waiting.0 >= ROUND_CHUNKS || self.waiting.1 >= ROUND_BYTES as u64 {
            self.round().await?;
        }
        Ok(())
    }

    /// Assembles the remaining files.
    ///
    /// # Errors
    /// The store's failures.
    pub(crate) async fn finish(mut self) -> Result<S> {
        while !self.jobs.is_empty() {
            self.round().await?;
        }
        Ok(self.sink)
    }

    /// Reads a round of chunks and outputs them.
    async fn round(&mut self) -> Result<()> {
        // The end of each job in this round.
        let (mut wanted, mut ends, mut bytes) = (BTreeSet::new(), Vec::new(), 0);
        'jobs: for job in &self.jobs {
            let count = job.file.children.len();
            // Chunk sizes are not known yet, so all chunks of a file count the same.
            let each = job.file.size.div_ceil(count.max(1) as u64);
            let mut end = job.next;
            for id in job.file.children.get(job.next..).unwrap_or_default() {
                if wanted.len() >= ROUND_CHUNKS || bytes >= ROUND_BYTES as u64 {
                    ends.push(end);
                    break 'jobs;
                }
                end += 1;
                if job.failed.is_none() && !job.file.inline.contains_key(id) && !wanted.contains(id) {
                    wanted.insert(id.clone());
                    bytes += each;
                }
            }
            ends.push(end);
        }
        let found = round::fetch(&self.chunks, wanted).await?;
        for end in ends {
            let Some(mut job) = self.jobs.pop_front() else { break };
            let count = job.file.children.len();
            let taken = end - job.next;
            self.waiting.0 = self.waiting.0.saturating_sub(taken);
            let share = job.file.size.div_ceil(count.max(1) as u64) * taken as u64;
            self.waiting.1 = self.waiting.1.saturating_sub(if count == 0 { job.file.size } else { share });
            self.go_on(&mut job, end, &found);
            if end < count {
                self.jobs.push_front(job);
                break;
            }
            let outcome = self.close(&mut job);
            self.sink.outcome(&job.file, outcome);
        }
        if self.jobs.is_empty() {
            // The shares were rounded.
            self.waiting = (0, 0);
        }
        Ok(())
    }

    fn go_on(&mut self, job: &mut Job, end: usize, found: &HashMap<String, Chunk>) {
        if job.failed.is_none() && !job.is_open && job.next == 0 {
            match self.sink.begin(&job.file) {
                Ok(()) => job.is_open = true,
                Err(reason) => job.failed = Some(reason),
            }
        }
        let ids = job.file.children.get(job.next..end).unwrap_or_default();
        job.next = end;
        if job.failed.is_some() {
            return;
        }
        for id in ids {
            let inline = job.file.inline.get(id);
            let Some(piece) = inline.map(|data| Ok(data.into())).or_else(|| Some(self.open(id, found.get(id)?))) else {
                if !job.missing.contains(id) {
                    job.missing.push(id.clone());
                }
                continue;
            };
            if !job.missing.is_empty() {
                continue;
            }
            let written = piece.and_then(|data: Cow<'_, str>| {
                if self.is_odd(id, &data) {
                    job.odd.get_or_insert_with(|| (0, id.clone())).0 += 1;
                }
                let bytes = job.decoder.decode(&data);
                let bytes =
                    bytes.ok_or_else(|| format!("its chunk {id} is not in base64, as a binary file's must be"))?;
                job.bytes += bytes.len() as u64;
                self.sink.piece(&bytes)
            });
            if let Err(reason) = written {
                job.failed = Some(reason);
                return;
            }
        }
    }

    /// The part of the file in a chunk.
    fn open<'c>(&self, id: &str, chunk: &'c Chunk) -> std::result::Result<Cow<'c, str>, String> {
        let data = match (chunk.encrypted, &self.chunks.key) {
            (false, _) => Ok(chunk.data.as_str().into()),
            (true, Some(key)) => key.open(&chunk.data).map(Cow::Owned),
            (true, None) => Err("is encrypted, and only its passphrase opens it".to_owned()),
        };
        data.and_then(inflated).map_err(|what| format!("its chunk {id} {what}"))
    }

    /// Whether a chunk's id is not the hash of its data. Other programs, and LiveSync with another hash function, give
    /// such ids, so this alone is not damage.
    fn is_odd(&self, id: &str, piece: &str) -> bool {
        let expected = match &self.chunks.key {
            Some(key) if id.starts_with(ENCRYPTED_CHUNK) => key.chunk_id(piece),
            _ => chunk_id(piece),
        };
        // A file in LiveSync's oldest form has pieces, which are not chunks.
        self.check_ids && id.starts_with(CHUNK_PREFIX) && expected != id
    }

    fn close(&mut self, job: &mut Job) -> std::result::Result<(), String> {
        if let Some((count, first)) = &job.odd {
            let what = format!(
                "{count} of its chunks have ids that are not the hash of their data, {first} among them: another program \
                 or another of LiveSync's hash functions made them, or they are damaged"
            );
            self.sink.doubt(&job.file, what);
        }
        let outcome = if let Some(reason) = job.failed.take() {
            Err(reason)
        } else if !job.missing.is_empty() {
            let named: Vec<&str> = job.missing.iter().take(NAMED).map(String::as_str).collect();
            let (missing, all) = (job.missing.len(), job.file.children.len());
            let more = if missing > NAMED { " and others" } else { "" };
            Err(format!("{missing} of its {all} chunks are missing: {}{more}", named.join(", ")))
        } else if !job.decoder.is_whole() {
            Err("its last chunk ends in the middle of base64".into())
        } else if job.bytes != job.file.size {
            Err(format!("its chunks have {} bytes, and its document says {}", job.bytes, job.file.size))
        } else {
            self.sink.end(&job.file)
        };
        if job.is_open && outcome.is_err() {
            self.sink.abort();
        }
        outcome
    }
}

/// Decodes chunks into bytes. A binary file's chunks are base64 each, or parts of one base64 text that was cut
/// anywhere: clients have done both.
struct Decoder {
    kind: Kind,
    /// The beginning of a group of four characters.
    held: String,
}

impl Decoder {
    fn new(kind: Kind) -> Self {
        Decoder { kind, held: String::new() }
    }

    fn decode<'d>(&mut self, data: &'d str) -> Option<Cow<'d, [u8]>> {
        if self.kind == Kind::Text {
            return Some(data.as_bytes().into());
        }
        if self.held.is_empty() && data.len().is_multiple_of(4) {
            return STANDARD.decode(data).ok().map(Into::into);
        }
        let joined = std::mem::take(&mut self.held) + data;
        let (groups, rest) = joined.split_at_checked(joined.len() / 4 * 4)?;
        if !rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=')) {
            return None;
        }
        self.held = rest.to_owned();
        STANDARD.decode(groups).ok().map(Into::into)
    }

    fn is_whole(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_may_be_cut_anywhere() {
        let content: Vec<u8> = (0..=255).cycle().take(1_000).collect();
        let text = STANDARD.encode(&content);
        for length in [1, 2, 3, 4, 5, 7, 16, 999, 2_000] {
            let mut decoder = Decoder::new(Kind::Binary);
            let mut bytes = Vec::new();
            for start in (0..text.len()).step_by(length) {
                let piece = &text[start..text.len().min(start + length)];
                bytes.extend_from_slice(&decoder.decode(piece).unwrap());
            }
            assert!(decoder.is_whole());
            assert_eq!(bytes, content, "pieces of {length}");
        }
        // Each chunk separately encoded, with padding in between.
        let mut decoder = Decoder::new(Kind::Binary);
        let bytes: Vec<u8> =
            content.chunks(7).flat_map(|piece| decoder.decode(&STANDARD.encode(piece)).unwrap().into_owned()).collect();
        assert_eq!(bytes, content);
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for piece in ["%abc", "a b=", "====", "ab\u{fc}d", "a===", "YQ==YQ=="] {
            assert!(Decoder::new(Kind::Binary).decode(piece).is_none(), "{piece}");
        }
        let mut decoder = Decoder::new(Kind::Binary);
        assert!(decoder.decode("YWJjZ").is_some() && !decoder.is_whole());
        assert_eq!(Decoder::new(Kind::Text).decode("%abc").unwrap().as_ref(), b"%abc");
    }
}
