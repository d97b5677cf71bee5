//! A diagnosis for programs.

use serde_json::{Map, Value, json};

use super::census::{Amount, BrokenFile, Census, Files, Named};
use super::cut;
use super::diagnosis::Diagnosis;
use crate::livesync::{Device, Difference};
use crate::vault::Problem;

impl Diagnosis {
    /// The diagnosis for programs.
    pub fn to_json(&self) -> Value {
        let Census { files, referenced, aggregated, encrypted, chunk_conflicts, .. } = &self.census;
        let Census { damaged, damaged_needed, missing_chunks, broken, more_missing, passes, .. } = &self.census;
        let Files { count, of_livesync, marked_deleted, bytes, revisions, longest, .. } = files;
        let broken_file = |file: &BrokenFile| {
            let BrokenFile { path, missing, chunks } = file;
            json!({"file": path, "missing": missing, "chunks": chunks})
        };
        let problem = |problem: &Problem| json!({"file": problem.path, "what": problem.what});
        let name = |name: &String| json!(name);
        json!({
            "documents": self.database.documents,
            "document_bytes": self.database.document_bytes,
            "file_bytes": self.database.file_bytes,
            "files": {
                "count": count, "of_livesync": of_livesync, "marked_deleted": marked_deleted, "bytes": bytes,
                "revisions": revisions,
                "longest_history":
                    longest.as_ref().map(|(path, revisions)| json!({"file": path, "revisions": revisions})),
                "conflicts": named(&files.conflicts, name),
                "conflicts_with_unknown_past": named(&files.unknown_past, name),
                "unread": named(&files.unread, problem),
            },
            "chunks": {
                "referenced": amount(referenced),
                "unreferenced": self.unreferenced().as_ref().map(amount),
                "aggregated": amount(aggregated),
                "encrypted": encrypted,
                "conflicts": chunk_conflicts,
                "damaged": named(damaged, name),
                "damaged_and_needed": damaged_needed,
            },
            "missing": {"chunks": missing_chunks, "files": named(broken, broken_file), "more": more_missing},
            "tombstones": {"chunks": files.chunk_tombstones, "others": files.other_tombstones},
            "other_documents": amount(&files.others),
            "milestone": self.milestone_json(),
            "passes": passes,
            "advice": self.advice(),
        })
    }

    fn milestone_json(&self) -> Value {
        let milestone = match &self.milestone {
            Ok(Some(milestone)) => milestone,
            Ok(None) => return json!({"state": "missing"}),
            Err(what) => return json!({"state": "damaged", "what": what}),
        };
        let device = |device: &Device| {
            let behind = self.behind.get(&device.id);
            json!({
                "id": device.id, "name": text(&device.name), "plugin_version": text(&device.plugin_version),
                "accepted": device.accepted, "last_connected": device.last_connected_ms,
                "progress": text(&device.progress), "progress_is_known": !self.silent.contains(&device.id),
                "changed_since": behind.map(|behind| behind.documents),
                "changed_since_is_more": behind.is_some_and(|behind| behind.more),
            })
        };
        let difference = |difference: &Difference| {
            let Difference { setting, values, must_match } = difference;
            let values: Map<String, Value> = values.iter().map(|(id, value)| (id.clone(), short(value))).collect();
            json!({"setting": cut(setting), "values": values, "must_match": must_match})
        };
        json!({
            "state": "read", "locked": milestone.locked, "encrypted": milestone.encrypted,
            "obfuscated": milestone.obfuscated,
            "devices": milestone.devices.iter().map(device).collect::<Vec<_>>(),
            "differences": milestone.differences.iter().map(difference).collect::<Vec<_>>(),
        })
    }
}

/// A text of a device, cut if it is very long.
pub(super) fn text(text: &Option<String>) -> Option<String> {
    text.as_deref().map(cut)
}

/// A value of a setting. A long one becomes a text and is cut.
fn short(value: &Value) -> Value {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Object(_) => value.to_string(),
        Value::Null | Value::Bool(_) | Value::Number(_) => return value.clone(),
    };
    let short = cut(&text);
    if short == text { value.clone() } else { short.into() }
}

pub(super) fn amount(amount: &Amount) -> Value {
    json!({"count": amount.count, "bytes": amount.bytes})
}

pub(super) fn named<T>(named: &Named<T>, show: impl Fn(&T) -> Value) -> Value {
    json!({"count": named.count, "named": named.first.iter().map(show).collect::<Vec<_>>()})
}
