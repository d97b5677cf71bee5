//! `couch-layer vault doctor`: what takes the space of a vault, what is missing, who is behind, what to do.

use std::time::{Duration, UNIX_EPOCH};

use chunks::vault::shown;
use chunks::{Amount, CensusOptions, Device, Diagnosis, Difference, Milestone, Named, TRASH_ADVICE};
use clap::Args;
use indicatif::{DecimalBytes, HumanCount};
use serde_json::Value;

use super::progress::{self, Unit};
use super::source::IfNoDatabase;
use super::vault_args::VaultArgs;
use crate::cmd::{Failure, failure};

/// Number of files and settings that are shown one by one. All are counted.
const SHOWN: usize = 20;

/// Examine a vault: what takes the space, what is missing, which devices are behind, and what to do.
///
/// It reads the whole vault and changes nothing. Its exit status is 1 if a file lacks chunks, or if a document is
/// damaged.
#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// Print the diagnosis as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    vault: VaultArgs,
}

impl Doctor {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let (source, chunks) = self.vault.open(IfNoDatabase::Fail).await?;
        let bar = progress::counter(Unit::Documents);
        bar.set_message(format!("examining {}, documents:", self.vault.database));
        let found = chunks.doctor(CensusOptions::default(), |done| bar.set_position(done)).await;
        bar.finish_and_clear();
        let found = found?;
        // A CouchDB has none, and only administrators of the database see it.
        let left = source.vault_collections().await.ok();
        progress::print(&if self.json { to_json(&found, left).to_string() } else { report(&found, left.as_ref()) })?;
        match (found.census.broken.count, found.census.damaged.count) {
            (0, 0) => Ok(()),
            (broken, damaged) => {
                Err(failure(format!("{broken} files lack chunks, and {damaged} documents are damaged")))
            }
        }
    }
}

/// The diagnosis for programs, with what collections left.
fn to_json(found: &Diagnosis, left: Option<Value>) -> Value {
    let mut told = found.to_json();
    if let (Some(advice), Some(all)) = (trash_advice(found, left.as_ref()), told["advice"].as_array_mut()) {
        all.push(advice.into());
    }
    if let Some(mut left) = left {
        told["trash"] = left["trash"].take();
        told["collect"] = left["collect"].take();
    }
    told
}

/// What to say of the trash if lists of chunks cannot be read: as [`chunks::Trash::warning`], from its JSON.
fn trash_advice(found: &Diagnosis, left: Option<&Value>) -> Option<&'static str> {
    let trash = &left?["trash"];
    let may_have_text = [&trash["deleted"]["count"], &trash["unreadable"]].into_iter().any(|n| n.as_u64() > Some(0));
    (found.census.files.unread.count > 0 && may_have_text).then_some(TRASH_ADVICE)
}

/// A line for a number of things and their bytes.
fn amount_line(what: &str, count: u64, bytes: u64) -> String {
    format!("  {what:34} {:>11} {:>12}", HumanCount(count).to_string(), size(bytes))
}

/// What collections left, and when the next ones are.
fn collections(left: &Value) -> Vec<String> {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let time = |ms: &Value| ms.as_u64().map(date).unwrap_or_default();
    let (trash, collect) = (&left["trash"], &left["collect"]);
    let deleted = &trash["deleted"];
    let mut lines = vec![amount_line("in the trash", number(&deleted["count"]), number(&deleted["bytes"]))];
    let condemned = HumanCount(number(&trash["condemned"])).to_string();
    lines.push(format!("  {:34} {condemned:>11}", "condemned chunks"));
    if trash["changed"].is_u64() {
        lines.push(format!("    the last one condemned or deleted: {}", time(&trash["changed"])));
    }
    let text = |value: &Value| shown(value.as_str().unwrap_or_default()).to_string();
    if collect.is_null() {
        lines.push("Collection of chunks: no server does it by itself".into());
        return lines;
    }
    let (every, grace) = (text(&collect["every"]), text(&collect["grace"]));
    lines.push(format!("Collection of chunks: every {every}, {grace} after they are condemned"));
    if collect["trash"].is_string() {
        let trash = text(&collect["trash"]);
        lines.push(format!("  text leaves the trash {trash} after all devices have passed the deletion"));
    } else {
        lines.push("  no text leaves the trash".into());
    }
    let last = &collect["last"];
    let holds = last["holds"].as_array().map(Vec::as_slice).unwrap_or_default();
    if last["at"].is_u64() {
        let done = &last["collected"];
        let counts = done.is_object().then(|| {
            let count = |value: &Value| HumanCount(number(value)).to_string();
            let (condemned, deleted) = (count(&done["condemned"]), count(&done["deleted"]["count"]));
            let emptied = Some(&done["emptied"]["count"]).filter(|left| number(left) > 0);
            let emptied = emptied.map(|left| format!(", {} left the trash for good", count(left)));
            format!("{condemned} condemned, {deleted} deleted{}", emptied.unwrap_or_default())
        });
        let outcome = match (last["error"].as_str(), counts) {
            (Some(error), None) => shown(error).to_string(),
            (Some(error), Some(counts)) => format!("{counts}, then: {}", shown(error)),
            (None, _) if !holds.is_empty() => "nothing was removed".into(),
            (None, counts) => counts.unwrap_or_default(),
        };
        lines.push(format!("  last run {}: {outcome}", time(&last["at"])));
        lines.extend(holds.iter().map(|hold| format!("    {}", text(hold))));
        if number(&deleted["count"]) > 0 {
            if number(&last["collected"]["passed"]) > 0 {
                let passed = HumanCount(number(&last["collected"]["passed"]));
                lines.push(format!("    all devices have passed the deletion of {passed}"));
            }
            if last["collected"]["waits_for"].is_string() {
                lines.push(format!("    the trash waits for {}", text(&last["collected"]["waits_for"])));
            }
            let trash_holds = last["trash_holds"].as_array().into_iter().flatten();
            lines.extend(trash_holds.map(|hold| format!("    nothing leaves the trash: {}", text(hold))));
        }
    }
    lines
}

fn date(ms: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(ms.min(253_402_300_799_999)))
}

fn report(found: &Diagnosis, left: Option<&Value>) -> String {
    let (census, files) = (&found.census, &found.census.files);
    let mut lines = vec![format!(
        "{} files, {} hidden files and customizations, {} marked as deleted",
        HumanCount(files.count),
        HumanCount(files.of_livesync),
        HumanCount(files.marked_deleted)
    )];
    lines.push("Space".into());
    let mut amount = |what: &str, amount: Amount| lines.push(amount_line(what, amount.count, amount.bytes));
    amount("chunks that files need", census.referenced);
    if let Some(unreferenced) = found.unreferenced() {
        amount("chunks that no file needs", unreferenced);
    } else {
        amount("other chunks, which may be needed", census.unreferenced);
    }
    if census.aggregated.count > 0 {
        amount("aggregated chunks", census.aggregated);
    }
    let documents = files.count + files.of_livesync + files.marked_deleted;
    amount("documents of files", Amount { count: documents, bytes: files.bytes });
    amount("other documents", files.others);
    if found.unreferenced().is_none() {
        lines.push(format!("  {:34} {:>11}", "chunks that no file needs", "unknown"));
    }
    let mut count = |what: &str, count: u64| lines.push(format!("  {what:34} {:>11}", HumanCount(count).to_string()));
    count("tombstones of chunks", files.chunk_tombstones);
    count("other tombstones", files.other_tombstones);
    count("revisions in histories of files", files.revisions);
    if let Some((path, revisions)) = &files.longest {
        lines.push(format!("    the longest: {}, {} revisions", shown(path), HumanCount(*revisions)));
    }
    let database = &found.database;
    let disk = database.file_bytes.map(|bytes| format!(", {} on disk", size(bytes))).unwrap_or_default();
    lines.push(format!("  all: {} documents, {}{disk}", HumanCount(database.documents), size(database.document_bytes)));
    lines.extend(left.map(collections).unwrap_or_default());
    name(&mut lines, "Files that lack chunks", &census.broken, |file| {
        format!("{}: {} ({})", shown(&file.path), HumanCount(file.missing), file.chunks.join(", "))
    });
    name(&mut lines, "Damaged documents", &census.damaged, |what| shown(what));
    name(&mut lines, "Lists of chunks that cannot be read", &files.unread, ToString::to_string);
    name(&mut lines, "Files in conflict", &files.conflicts, |path| shown(path));
    match &found.milestone {
        Ok(Some(milestone)) => devices(&mut lines, found, milestone),
        Ok(None) => lines.push("Devices: none has left its name".into()),
        Err(what) => lines.push(format!("Devices: their list {what}")),
    }
    lines.push("What to do".into());
    lines.extend(found.advice().iter().map(|advice| format!("  {}", shown(advice))));
    lines.extend(trash_advice(found, left).map(|advice| format!("  {advice}")));
    lines.join("\n")
}

fn devices(lines: &mut Vec<String>, found: &Diagnosis, milestone: &Milestone) {
    lines.push(format!(
        "Devices ({})",
        if milestone.locked { "the vault is locked" } else { "the vault is not locked" }
    ));
    for device in milestone.devices.iter().take(SHOWN) {
        let last = match device.last_connected_ms {
            Some(last) => {
                let seconds = found.now_ms.saturating_sub(last) / 60_000 * 60;
                let date = date(last);
                format!("connected {date}, {} ago", humantime::format_duration(Duration::from_secs(seconds)))
            }
            None => "has not said when it connected".into(),
        };
        let behind = match found.behind.get(&device.id) {
            Some(behind) if behind.more => {
                format!("more than {} documents changed since", HumanCount(behind.documents))
            }
            Some(behind) => format!("{} documents changed since", HumanCount(behind.documents)),
            None if found.silent.contains(&device.id) => "what it has seen is unknown".into(),
            None => "changes since were not counted".into(),
        };
        let accepted = if device.accepted { "" } else { ", not among the accepted" };
        lines.push(format!("  {}{accepted}: {last}; {behind}", shown(&device.title())));
    }
    and_more(lines, milestone.devices.len() as u64);
    let called =
        |id: &String| milestone.devices.iter().find(|device| device.id == *id).map_or(id.clone(), Device::title);
    if !milestone.differences.is_empty() {
        lines.push("Settings that differ".into());
    }
    for Difference { setting, values, must_match } in milestone.differences.iter().take(SHOWN) {
        let values: Vec<String> = values.iter().map(|(id, value)| format!("{} has {value}", called(id))).collect();
        let must = if *must_match { " (must be the same)" } else { "" };
        lines.push(shown(&format!("  {setting}{must}: {}", values.join(", "))));
    }
    and_more(lines, milestone.differences.len() as u64);
}

fn name<T>(lines: &mut Vec<String>, what: &str, named: &Named<T>, show: impl Fn(&T) -> String) {
    if named.count == 0 {
        return;
    }
    lines.push(format!("{what}: {}", HumanCount(named.count)));
    lines.extend(named.first.iter().take(SHOWN).map(|one| format!("  {}", show(one))));
    and_more(lines, named.count);
}

fn and_more(lines: &mut Vec<String>, count: u64) {
    if let Some(more) = count.checked_sub(SHOWN as u64).filter(|&more| more > 0) {
        lines.push(format!("  and {} more", HumanCount(more)));
    }
}

fn size(bytes: u64) -> String {
    DecimalBytes(bytes).to_string()
}
