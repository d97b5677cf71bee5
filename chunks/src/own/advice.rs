//! What to do about a diagnosis, in plain words for the vault's owner.

use super::diagnosis::Diagnosis;
use crate::livesync::{Device, Milestone};

/// Time after which a device counts as away.
const AWAY_MS: u64 = 30 * 24 * 3_600 * 1_000;

impl Diagnosis {
    /// What to do, in plain words, the most urgent first; never empty.
    pub fn advice(&self) -> Vec<String> {
        let mut advice = Vec::new();
        about_content(self, &mut advice);
        match &self.milestone {
            Ok(Some(milestone)) => about_devices(milestone, self.now_ms, &mut advice),
            Ok(None) if self.census.is_empty() => advice.push("There is no vault in this database.".into()),
            Ok(None) => advice.push(
                "There is no list of devices (_local/obsydian_livesync_milestone). Each device writes itself into it \
                 when it connects. Nothing may be collected before."
                    .into(),
            ),
            Err(what) => advice.push(format!(
                "The list of devices (_local/obsydian_livesync_milestone) {what}. Nothing may be collected until a \
                 device has written it again."
            )),
        }
        about_space(self, &mut advice);
        if advice.is_empty() {
            advice.push("Nothing to do.".into());
        }
        advice
    }
}

/// What keeps files from being read.
fn about_content(diagnosis: &Diagnosis, advice: &mut Vec<String>) {
    let census = &diagnosis.census;
    if census.broken.count > 0 {
        let more = if census.more_missing { "at least " } else { "" };
        advice.push(format!(
            "{} cannot be read whole: {more}{} not on the server. Keep every device that still shows them as it is. \
             There, let LiveSync verify and repair all files, and synchronise. If no device has them, restore them from \
             a backup.",
            files(census.broken.count),
            plural(census.missing_chunks, "of their chunks is", "of their chunks are"),
        ));
    }
    if census.damaged.count > 0 {
        advice.push(format!(
            "{} damaged. Let LiveSync verify and repair all files, on a device that can read them.",
            plural(census.damaged.count, "document of chunks is", "documents of chunks are"),
        ));
    }
    let unread = census.files.unread.count;
    if unread > 0 && !diagnosis.unlocked {
        advice.push(format!(
            "{}: which chunks they need cannot be told, so it is unknown which chunks are unreferenced. If the vault is \
             encrypted, `couch-layer vault doctor` with --passphrase-file can tell. Only LiveSync's own garbage \
             collection can collect in such a vault.",
            plural(unread, "list of chunks cannot be read", "lists of chunks cannot be read"),
        ));
    } else if unread > 0 {
        advice.push(format!(
            "{} even with the passphrase. Nothing may be collected before they are mended: save these files again on a \
             device that can read them, or delete them there.",
            plural(unread, "list of chunks cannot be read", "lists of chunks cannot be read"),
        ));
    }
    let conflicts = census.files.conflicts.count;
    if conflicts > 0 {
        let unknown = census.files.unknown_past.count;
        let past = match unknown {
            0 => String::new(),
            _ => format!(
                " For {unknown} of them the database has not kept the revisions since the two sides parted. Nothing may \
                 be collected before these are resolved."
            ),
        };
        advice.push(format!(
            "{} in conflict. Resolve this in Obsidian: until then the chunks of all sides are kept.{past}",
            plural(conflicts, "file is", "files are")
        ));
    }
}

fn about_devices(milestone: &Milestone, now_ms: u64, advice: &mut Vec<String>) {
    let differing: Vec<&str> =
        milestone.differences.iter().filter(|found| found.must_match).map(|found| found.setting.as_str()).collect();
    if !differing.is_empty() {
        advice.push(format!(
            "Devices are not set up alike: {}. Choose one value in LiveSync's settings on every device. Until then \
             devices stop or ask, or cut the same file into other chunks.",
            differing.join(", ")
        ));
    }
    if milestone.locked {
        advice.push(
            "The vault is locked: devices that are not accepted stop with a message. Unlock it in LiveSync, on a device \
             whose files are right."
                .into(),
        );
    }
    let named = |devices: Vec<&Device>| devices.into_iter().map(Device::title).collect::<Vec<_>>().join(", ");
    // A device is only accepted by name while the vault is locked, and when it made the vault.
    let using = || milestone.devices.iter().filter(|device| device.accepted || !milestone.locked);
    let silent: Vec<&Device> = using().filter(|device| device.progress.is_none()).collect();
    if !silent.is_empty() {
        advice.push(format!(
            "It is unknown what these devices have seen: {}. Let them connect once with a current LiveSync.",
            named(silent)
        ));
    }
    let is_away = |device: &&Device| device.last_connected_ms.is_some_and(|last| last.saturating_add(AWAY_MS) < now_ms);
    let away: Vec<&Device> = using().filter(is_away).collect();
    if !away.is_empty() {
        advice.push(format!(
            "Not connected for more than 30 days: {}. Such a device may hold changes that it has not sent. Let it \
             connect before chunks are collected.",
            named(away)
        ));
    }
}

/// What takes space without need.
fn about_space(diagnosis: &Diagnosis, advice: &mut Vec<String>) {
    let census = &diagnosis.census;
    if census.aggregated.count > 0 {
        advice.push(
            "The vault has chunks in the aggregated form, which LiveSync cannot read. `couch-layer chunks gc` collects \
             them, and `couch-layer chunks migrate --back` gives them LiveSync's form."
                .into(),
        );
    }
    let Some(unreferenced) = diagnosis.unreferenced() else { return };
    let all = unreferenced.bytes + census.referenced.bytes;
    if all > 0 && unreferenced.bytes * 10 >= all {
        advice.push(format!(
            "{} % of the bytes of chunks belong to no file any more. LiveSync's own garbage collection can remove them, \
             after all devices have synchronised.",
            unreferenced.bytes * 100 / all
        ));
    }
}

fn plural(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

fn files(count: u64) -> String {
    plural(count, "file", "files")
}
