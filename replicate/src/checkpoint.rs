//! Checkpoints: the records of a replication on both sides, and their common part.
//!
//! Source: `compare_replication_logs` and `do_checkpoint` of `couch_replicator_scheduler_job.erl`.

use std::time::{Duration, SystemTime};

use model::{JsonRef, JsonText, JsonWriter};
use peer::{LocalDocument, Peer, Result};

use crate::id::VERSION;
use crate::progress::Figures;

/// Maximum number of sessions in a record.
const MOST_SESSIONS: usize = 50;

/// The members of a record other than its history.
const OF_RECORDS: [&str; 8] = [
    "session_id",
    "source_last_seq",
    "replication_id_version",
    "start_time",
    "end_time",
    "docs_read",
    "docs_written",
    "doc_write_failures",
];

/// Maximum number of sessions read from a peer's record. CouchDB may be configured to keep more than its default.
const MOST_READ: usize = 1_000;

/// Maximum length of a peer's record. The newest sessions are kept, the others left out.
const MOST_BYTES: usize = 1 << 20;

/// Maximum length of a session, or of another member of a peer's record. A session has three sequences.
const MOST_SESSION: usize = 64 << 10;

/// The records of both sides.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// `_local/ID`.
    id: String,
    source: Option<LocalDocument>,
    target: Option<LocalDocument>,
}

/// The common part of both records.
#[derive(Debug, Default)]
pub(crate) struct Common {
    /// The sequence to continue after; `None` for the beginning.
    pub(crate) since: Option<String>,
    /// The sessions up to that sequence.
    pub(crate) history: Vec<JsonText>,
}

/// A session of a replication, as its records describe it.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) began_ms: u64,
    pub(crate) ended_ms: u64,
    /// As it was given, or `0` for the beginning.
    pub(crate) start_seq: JsonText,
    pub(crate) end_seq: String,
    /// Those of earlier sessions are counted too, as in CouchDB.
    pub(crate) figures: Figures,
    pub(crate) by_doc_ids: bool,
}

impl Checkpoint {
    pub(crate) async fn read(id: &str, source: &dyn Peer, target: &dyn Peer) -> Result<Self> {
        let id = format!("_local/{id}");
        let source = source.get_local(&id).await?.map(bounded);
        let target = target.get_local(&id).await?.map(bounded);
        Ok(Checkpoint { id, source, target })
    }

    /// The common part of both records. Without one, the replication starts at the beginning.
    pub(crate) fn common(&self) -> Common {
        match (&self.source, &self.target) {
            (Some(source), Some(target)) => compare(source.body.root(), target.body.root(), &source.body, &target.body),
            _ => Common::default(),
        }
    }

    /// The source's record.
    pub(crate) fn record(&self) -> JsonText {
        self.source.as_ref().map_or_else(JsonText::empty_object, |source| source.body.clone())
    }

    /// Writes the same record on both sides.
    pub(crate) async fn write(&mut self, source: &dyn Peer, target: &dyn Peer, record: JsonText) -> Result<()> {
        for (peer, known) in [(source, &mut self.source), (target, &mut self.target)] {
            let rev = known.as_ref().map(|known| known.rev.as_str());
            let rev = peer.put_local(&self.id, rev, &record).await?;
            *known = Some(LocalDocument { rev, body: record.clone() });
        }
        Ok(())
    }
}

impl Common {
    /// The total of the sessions' work.
    pub(crate) fn figures(&self) -> Figures {
        self.history.first().map(|newest| Figures::read(newest.root())).unwrap_or_default()
    }
}

impl Session {
    /// The record with this session before the older ones.
    pub(crate) fn record(&self, history: &[JsonText]) -> JsonText {
        let date = |ms: u64| httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
        let mut out = Vec::new();
        let mut json = JsonWriter::new(&mut out);
        json.begin_object().name("session_id").str(&self.id).name("source_last_seq").str(&self.end_seq);
        json.name("replication_id_version").u64(VERSION);
        if self.by_doc_ids {
            json.name("start_time").str(&date(self.began_ms)).name("end_time").str(&date(self.ended_ms));
            json.name("docs_read").u64(self.figures.docs_read).name("docs_written").u64(self.figures.docs_written);
            json.name("doc_write_failures").u64(self.figures.doc_write_failures);
        }
        json.name("history").begin_array().begin_object();
        json.name("session_id").str(&self.id);
        json.name("start_time").str(&date(self.began_ms)).name("end_time").str(&date(self.ended_ms));
        json.name("start_last_seq").text(&self.start_seq).name("end_last_seq").str(&self.end_seq);
        json.name("recorded_seq").str(&self.end_seq);
        self.figures.write(&mut json);
        json.end_object();
        for session in history.iter().take(MOST_SESSIONS - 1) {
            json.text(session);
        }
        json.end_array().end_object();
        JsonText::parse(&out).unwrap_or_else(|_| JsonText::empty_object())
    }
}

/// Limits a peer's record to one that a replicator may have written: it is compared, kept, and partly written back on
/// both sides.
fn bounded(found: LocalDocument) -> LocalDocument {
    let mut out = Vec::new();
    let mut json = JsonWriter::new(&mut out);
    json.begin_object();
    for (name, value) in found.body.root().members() {
        if name == "history" {
            let mut left = MOST_BYTES;
            json.name("history").begin_array();
            for session in value.elements().take(MOST_READ).filter(|session| session.text().len() <= MOST_SESSION) {
                left = left.saturating_sub(session.text().len());
                if left == 0 {
                    break;
                }
                json.value(session);
            }
            json.end_array();
        } else if OF_RECORDS.contains(&&*name) && value.text().len() <= MOST_SESSION {
            json.name(&name).value(value);
        }
    }
    json.end_object();
    let body = JsonText::parse(&out).unwrap_or_else(|_| JsonText::empty_object());
    LocalDocument { body, ..found }
}

/// A sequence: a string, or a number from older servers. 0 is the beginning.
fn seq(record: JsonRef<'_>, name: &str) -> Option<String> {
    let value = record.get(name).filter(|value| !value.is_null())?;
    Some(value.str_or_text().into_owned()).filter(|seq| seq != "0")
}

fn session<'a>(record: JsonRef<'a>) -> Option<std::borrow::Cow<'a, str>> {
    record.get("session_id").and_then(JsonRef::as_str)
}

fn sessions(record: JsonRef<'_>) -> Vec<JsonRef<'_>> {
    record.get("history").map(JsonRef::elements).into_iter().flatten().collect()
}

fn compare(source: JsonRef<'_>, target: JsonRef<'_>, source_text: &JsonText, target_text: &JsonText) -> Common {
    let keep = |text: &JsonText, sessions: &[JsonRef<'_>]| sessions.iter().map(|one| text.slice_ref(*one)).collect();
    let (ours, theirs) = (sessions(source), sessions(target));
    if session(source).is_some() && session(source) == session(target) {
        return Common { since: seq(source, "source_last_seq"), history: keep(source_text, &ours) };
    }
    let (mut ours, mut theirs) = (ours.as_slice(), theirs.as_slice());
    let has = |id: &Option<std::borrow::Cow<'_, str>>, sessions: &[JsonRef<'_>]| {
        id.is_some() && sessions.iter().any(|one| session(*one) == *id)
    };
    while let ([one, our_rest @ ..], [other, their_rest @ ..]) = (ours, theirs) {
        if has(&session(*one), theirs) {
            return Common { since: seq(*one, "recorded_seq"), history: keep(source_text, our_rest) };
        }
        if has(&session(*other), our_rest) {
            return Common { since: seq(*other, "recorded_seq"), history: keep(target_text, their_rest) };
        }
        (ours, theirs) = (our_rest, their_rest);
    }
    Common::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(last: &str, sessions: &[(&str, &str)]) -> LocalDocument {
        let history: Vec<String> =
            sessions.iter().map(|(id, seq)| format!(r#"{{"session_id":"{id}","recorded_seq":{seq}}}"#)).collect();
        let (id, history) = (sessions.first().map_or("", |one| one.0), history.join(","));
        let body = format!(r#"{{"session_id":"{id}","source_last_seq":{last},"history":[{history}]}}"#);
        LocalDocument { rev: "0-1".into(), body: JsonText::parse(body.as_bytes()).unwrap() }
    }

    fn common(source: Option<LocalDocument>, target: Option<LocalDocument>) -> (Option<String>, usize) {
        let common = Checkpoint { id: "_local/x".into(), source, target }.common();
        (common.since, common.history.len())
    }

    #[test]
    fn records_of_one_session_say_where_to_go_on() {
        let one = || record("\"9-x\"", &[("a", "\"9-x\""), ("b", "\"5-x\"")]);
        assert_eq!(common(Some(one()), Some(one())), (Some("9-x".into()), 2));
        // Sequences of older servers are numbers.
        let old = || record("9", &[("a", "9")]);
        assert_eq!(common(Some(old()), Some(old())), (Some("9".into()), 1));
        assert_eq!(common(Some(one()), None), (None, 0));
        assert_eq!(common(None, None), (None, 0));
    }

    #[test]
    fn records_that_differ_meet_at_the_newest_session_of_both() {
        let source = record("9", &[("d", "9"), ("b", "5"), ("a", "2")]);
        let target = record("7", &[("c", "7"), ("b", "5"), ("a", "2")]);
        assert_eq!(common(Some(source.clone()), Some(target)), (Some("5".into()), 1));
        // The record was written only at the source.
        let behind = record("5", &[("b", "5"), ("a", "2")]);
        assert_eq!(common(Some(source.clone()), Some(behind.clone())), (Some("5".into()), 1));
        assert_eq!(common(Some(behind), Some(source.clone())), (Some("5".into()), 1));
        let other = record("7", &[("x", "7")]);
        assert_eq!(common(Some(source), Some(other)), (None, 0));
    }

    #[test]
    fn a_peers_record_is_bounded() {
        let session = |id: &str, seq: &str| format!(r#"{{"session_id":"{id}","recorded_seq":"{seq}"}}"#);
        let read = |members: &str, sessions: &[String]| {
            let body =
                format!(r#"{{"session_id":"a","source_last_seq":"9",{members}"history":[{}]}}"#, sessions.join(","));
            bounded(LocalDocument { rev: "0-1".into(), body: JsonText::parse(body.as_bytes()).unwrap() }).body
        };
        let plain = [session("a", "9"), session("b", "5")];
        let usual = read("", &plain);
        assert_eq!(sessions(usual.root()).len(), 2);
        // Members that replicators do not write are dropped.
        assert_eq!(read(&format!(r#""more":"{}","#, "x".repeat(5_000_000)), &plain), usual);
        // A session that is too long is left out, wherever it is.
        assert_eq!(read("", &[plain[0].clone(), session("x", &"y".repeat(100_000)), plain[1].clone()]), usual);
        // Sessions beyond the longest history are left out too.
        let long = read("", &vec![session("c", &"y".repeat(60_000)); 100]);
        assert!(long.len() < MOST_BYTES + 1_000 && sessions(long.root()).len() > 10, "{}", long.len());
        let many = read("", &vec!["{}".to_owned(); 2_000_000]);
        assert_eq!(sessions(many.root()).len(), MOST_READ);
        let whole = "z".repeat(5_000_000);
        let body = format!(r#"{{"session_id":"{whole}","history":7}}"#);
        let record = LocalDocument { rev: "0-1".into(), body: JsonText::parse(body.as_bytes()).unwrap() };
        assert_eq!(bounded(record).body.as_str(), r#"{"history":[]}"#);
    }

    #[test]
    fn a_record_has_what_couchdbs_has() {
        let session = Session {
            id: "s".into(),
            began_ms: 0,
            ended_ms: 1_000,
            start_seq: JsonText::parse(b"0").unwrap(),
            end_seq: "9-x".into(),
            figures: Figures {
                missing_checked: 4,
                missing_found: 3,
                docs_read: 3,
                docs_written: 2,
                doc_write_failures: 1,
                bulk_get_docs: 2,
                bulk_get_attempts: 3,
            },
            by_doc_ids: false,
        };
        let old: Vec<JsonText> = (0..60).map(|_| JsonText::empty_object()).collect();
        let record = session.record(&old);
        assert!(record.as_str().starts_with(
            r#"{"session_id":"s","source_last_seq":"9-x","replication_id_version":4,"history":[{"session_id":"s","start_time":"Thu, 01 Jan 1970 00:00:00 GMT","end_time":"Thu, 01 Jan 1970 00:00:01 GMT","start_last_seq":0,"end_last_seq":"9-x","recorded_seq":"9-x","missing_checked":4,"missing_found":3,"docs_read":3,"docs_written":2,"doc_write_failures":1,"bulk_get_docs":2,"bulk_get_attempts":3},{}"#
        ));
        assert_eq!(sessions(record.root()).len(), MOST_SESSIONS);
        assert_eq!(Figures::read(sessions(record.root())[0]), session.figures);
        assert_eq!(Figures::read(JsonText::empty_object().root()), Figures::default());
    }
}
