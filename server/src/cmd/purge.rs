//! `couch-layer purge`: purges documents that were deleted long ago.
//!
//! ```text
//!  tombstone   has no date, but its change has a sequence
//!  a run       stores the time and the last sequence in a local document
//!  later       tombstones up to a sequence stored 90 days ago are at least 90 days old
//! ```
//!
//! So the first run with `--deleted-before` purges nothing and stores the first note. With one note a day, a document
//! may be kept up to a day too long, and is never purged too early. A user who noted sequences elsewhere can use
//! `--deleted-before-seq`.
//!
//! Nothing is purged that cannot be read. If the notes are damaged, or the sequences are CouchDB's, the command fails.
//! A damaged document is kept.

use clap::{ArgGroup, Args};
use model::{Environment, JsonRef, JsonText, JsonWriter, Purge as Named, RevId, Seq, SystemEnvironment};
use peer::{Change, FeedRequest, LocalDocument, Peer};

use super::progress::{self, Unit, remark};
use super::source::{IfNoDatabase, SourceArgs};
use crate::cmd::{Failure, failure};

/// The local document with the notes.
const NOTES: &str = "_local/couch-layer-purge";

/// Minimum time between two notes.
const NOTE_EVERY_MS: u64 = 86_400_000;

/// Maximum number of notes: three years.
const MAX_NOTES: usize = 1_100;

/// Number of changes in a page.
const ROWS: usize = 1_000;

/// Number of documents in a purge.
const BATCH: usize = 100;

/// Purge documents that were deleted long ago, with their tombstones. Replicas that still have them bring them back
/// unless they purge them too
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("before").required(true).args(["deleted_before", "deleted_before_seq"])))]
pub(crate) struct Purge {
    /// The database
    #[arg(value_name = "DB")]
    database: String,
    /// Documents that were deleted at least this long ago: 90d, 12h. A tombstone has no date, so this relies on notes
    /// of earlier runs of this command, one a day: run it daily, or use --deleted-before-seq
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    deleted_before: Option<u64>,
    /// Documents that were deleted at or before this sequence, an earlier `update_seq` or `last_seq`
    #[arg(long, value_name = "SEQ")]
    deleted_before_seq: Option<Seq>,
    /// List what would be purged, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    source: SourceArgs,
}

/// Milliseconds in `90d` or `12h`.
fn parse_time(text: &str) -> Result<u64, String> {
    let unit_ms = match text.as_bytes().last() {
        Some(b'd') => 86_400_000,
        Some(b'h') => 3_600_000,
        _ => return Err("write a number of days or hours: 90d, 12h".into()),
    };
    let count = text[..text.len() - 1].parse::<u64>().map_err(|error| error.to_string())?;
    count.checked_mul(unit_ms).ok_or_else(|| "the time is too long".into())
}

impl Purge {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let peer = self.source.open(&self.database, IfNoDatabase::Fail).await?.peer();
        let upto = match (self.deleted_before_seq, self.deleted_before) {
            (Some(seq), _) => Some(seq),
            (None, Some(age_ms)) => self.noted(&peer, age_ms).await?,
            (None, None) => None,
        };
        let Some(upto) = upto else {
            remark(
                "a tombstone does not say when it was made, and no run of this command noted a sequence so long ago: \
                 nothing is purged",
            );
            return Ok(progress::print(if self.dry_run { "would be purged: 0" } else { "purged: 0" })?);
        };
        let (purged, kept) = self.purge(&peer, upto).await?;
        progress::print(&format!("{}: {purged}", if self.dry_run { "would be purged" } else { "purged" }))?;
        if purged > 0 {
            remark("replicas that still have these documents bring them back, unless they purge them too");
        }
        match kept {
            0 => Ok(()),
            _ => Err(failure(format!("{kept} documents could not be purged"))),
        }
    }

    /// The last sequence that was noted at least `age_ms` ago. Adds a note if one is due.
    async fn noted(&self, peer: &impl Peer, age_ms: u64) -> Result<Option<Seq>, Failure> {
        // Read before the clock, so that the sequence existed at the noted time.
        let request = FeedRequest { since: Some("now".to_owned()), limit: 1, ..FeedRequest::default() };
        let last = own(&peer.changes(&request).await?.last_seq)?;
        let now = SystemEnvironment.now_ms();
        let found = peer.get_local(NOTES).await?;
        let mut notes = match &found {
            Some(LocalDocument { body, .. }) => {
                read_notes(body).ok_or_else(|| failure(format!("{NOTES} cannot be read: nothing is purged")))?
            }
            None => Vec::new(),
        };
        let before = now.saturating_sub(age_ms);
        let upto = last_noted(&notes, before);
        if !self.dry_run && notes.iter().all(|(at, _)| at.saturating_add(NOTE_EVERY_MS) <= now) {
            notes.push((now, last));
            let first = notes.len().saturating_sub(MAX_NOTES);
            let body = JsonText::parse(&write_notes(&notes[first..]))?;
            peer.put_local(NOTES, found.as_ref().map(|found| found.rev.as_str()), &body).await?;
        }
        Ok(upto)
    }

    /// Purges documents that were deleted up to a sequence. Returns how many were purged, and how many could not be.
    async fn purge(&self, peer: &impl Peer, upto: Seq) -> Result<(u64, u64), Failure> {
        let progress = progress::counter(Unit::Documents);
        progress.set_message(format!("purging {}, documents:", self.database));
        let mut request = FeedRequest { limit: ROWS, all_leaves: true, ..FeedRequest::default() };
        let (mut purged, mut kept) = (0, 0);
        loop {
            let page = peer.changes(&request).await?;
            let mut is_over = !page.more;
            let mut deleted = Vec::new();
            for row in &page.rows {
                if own(&row.seq)? > upto {
                    is_over = true;
                    break;
                }
                match leaves(row) {
                    Ok(Some(document)) => deleted.push(document),
                    Ok(None) => {}
                    Err(problem) => {
                        kept += 1;
                        remark(&format!("{:?}: {problem}", row.id));
                    }
                }
            }
            for some in deleted.chunks(BATCH) {
                if self.dry_run {
                    some.iter().for_each(|document| remark(&document.id));
                    purged += some.len() as u64;
                } else {
                    for (document, went) in some.iter().zip(peer.purge(some).await?) {
                        match went {
                            // Empty if the document was written again since it was listed.
                            Ok(revs) => purged += u64::from(!revs.is_empty()),
                            Err(problem) => {
                                kept += 1;
                                remark(&format!("{:?}: {problem}", document.id));
                            }
                        }
                    }
                }
                progress.set_position(purged);
            }
            request.since = Some(page.last_seq);
            if is_over {
                progress.finish_and_clear();
                return Ok((purged, kept));
            }
        }
    }
}

/// The purge of a deleted document with all its leaves; `None` for a live document.
fn leaves(row: &Change) -> Result<Option<Named>, String> {
    if let Some((error, reason)) = &row.error {
        return Err(format!("{error}: {reason}"));
    }
    if !row.deleted {
        return Ok(None);
    }
    let revs = row.revs.iter().map(|rev| rev.parse::<RevId>().map_err(|_| format!("{rev} is not a revision")));
    Ok(Some(Named::new(row.id.as_str(), revs.collect::<Result<Vec<_>, _>>()?)))
}

/// Parses a sequence of couch-layer. CouchDB's sequences cannot be compared.
fn own(seq: &str) -> Result<Seq, Failure> {
    seq.parse().map_err(|_| failure("the database's sequences are not couch-layer's, so their order is unknown"))
}

/// The last sequence that was noted at this time or before.
fn last_noted(notes: &[(u64, Seq)], before: u64) -> Option<Seq> {
    notes.iter().filter(|(at, _)| *at <= before).map(|(_, seq)| *seq).max()
}

fn read_notes(document: &JsonText) -> Option<Vec<(u64, Seq)>> {
    let note = |note: JsonRef<'_>| {
        let mut parts = note.elements();
        Some((parts.next()?.as_u64()?, parts.next()?.as_str()?.parse().ok()?))
    };
    document.get("notes")?.elements().map(note).collect()
}

fn write_notes(notes: &[(u64, Seq)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut json = JsonWriter::new(&mut out);
    json.begin_object().name("notes").begin_array();
    for (at, seq) in notes {
        json.begin_array().u64(*at).display(seq).end_array();
    }
    json.end_array().end_object();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_notes_the_last_that_is_old_enough_counts() {
        let seq = |n| Seq::from_bytes([n; Seq::LEN]);
        let notes = [(10, seq(1)), (20, seq(2)), (30, seq(3))];
        let found = [9, 10, 19, 20, 29, 30, u64::MAX].map(|before| last_noted(&notes, before));
        let one_to_three = [1, 1, 2, 2, 3, 3].map(|n| Some(seq(n)));
        assert_eq!((found[0], &found[1..]), (None, &one_to_three[..]));
        assert_eq!(last_noted(&[], u64::MAX), None);
    }

    #[test]
    fn times_and_notes_are_read() {
        assert_eq!((parse_time("90d"), parse_time("12h")), (Ok(7_776_000_000), Ok(43_200_000)));
        for wrong in ["", "d", "90", "-1d", "9m", "99999999999999999999d", "9999999999999d", "é"] {
            assert!(parse_time(wrong).is_err(), "{wrong:?}");
        }
        let notes = vec![(7, Seq::ZERO), (1 << 41, Seq::from_bytes([9; Seq::LEN]))];
        assert_eq!(read_notes(&JsonText::parse(&write_notes(&notes)).unwrap()), Some(notes));
        for wrong in ["{}", r#"{"notes":[1]}"#, r#"{"notes":[["x","0"]]}"#, r#"{"notes":[[1,"x"]]}"#] {
            assert_eq!(read_notes(&JsonText::parse(wrong.as_bytes()).unwrap()), None, "{wrong}");
        }
    }
}
