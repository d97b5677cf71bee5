//! What to do about a diagnosis, in plain words for the vault's owner.

use super::diagnosis::Diagnosis;
use super::titles;
use crate::livesync::{Device, Milestone};

/// Time after which a device counts as away.
const AWAY_MS: u64 = 30 * 24 * 3_600 * 1_000;

impl Diagnosis {
    /// What to do, in plain words, the most urgent first; never empty.
    pub fn advice(&self) -> Vec<String> {
        let mut advice = Vec::new();
        about_content(self, &mut advice);
        match &self.milestone {
            Ok(Some(milestone)) => about_devices(self, milestone, &mut advice),
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
    if census.broken.count > 0 || census.more_missing {
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
            "{}: which chunks they need cannot be told, so it is unknown which chunks no file needs, and nothing may be \
             collected. If the vault is encrypted, `couch-layer vault doctor` with --passphrase-file can tell.",
            plural(unread, "list of chunks cannot be read", "lists of chunks cannot be read"),
        ));
    } else if unread > 0 {
        advice.push(format!(
            "{} by this program with this passphrase: LiveSync's first encryption, another passphrase, or damage. Keep \
             these files. Nothing may be collected while there are any: it is unknown which chunks no file needs.",
            plural(unread, "list of chunks cannot be read", "lists of chunks cannot be read"),
        ));
    }
    let conflicts = census.files.conflicts.count;
    if conflicts > 0 {
        let unknown = census.files.unknown_past.count;
        let past = match unknown {
            0 => String::new(),
            _ => format!(
                " For {unknown} of them the database has not kept the revisions since the two sides parted, so it is \
                 unknown which chunks no file needs. Nothing may be collected before these are merged."
            ),
        };
        advice.push(format!(
            "{} in conflict. Look at all sides in Obsidian, and merge them there. Keep the chunks of all sides until \
             then.{past}",
            plural(conflicts, "file is", "files are")
        ));
    }
}

fn about_devices(diagnosis: &Diagnosis, milestone: &Milestone, advice: &mut Vec<String>) {
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
    let shut_out: Vec<&Device> = milestone.devices.iter().filter(|device| !device.accepted).collect();
    if milestone.locked && !shut_out.is_empty() {
        advice.push(format!(
            "These devices are not accepted, and cannot send what they have while the vault is locked: {}.",
            titles(shut_out)
        ));
    }
    let silent: Vec<&Device> =
        milestone.devices.iter().filter(|device| diagnosis.silent.contains(&device.id)).collect();
    if !silent.is_empty() {
        advice.push(format!(
            "It is unknown what these devices have seen: {}. They left no sequence, or one that this database cannot have \
             had. Let each of them connect once with a current LiveSync. Nothing may be collected before.",
            titles(silent)
        ));
    }
    if milestone.devices.is_empty() {
        advice.push("No device has left its name. Nothing may be collected before each device has connected.".into());
    }
    let is_away =
        |device: &&Device| device.last_connected_ms.is_some_and(|last| last.saturating_add(AWAY_MS) < diagnosis.now_ms);
    let away: Vec<&Device> = milestone.devices.iter().filter(is_away).collect();
    if !away.is_empty() {
        advice.push(format!(
            "Not connected for more than 30 days: {}. Such a device may hold changes that it has not sent. Let it \
             connect before chunks are collected.",
            titles(away)
        ));
    }
}

/// What takes space without need. It is the last to be asked: a way to remove chunks is named only if all is well.
fn about_space(diagnosis: &Diagnosis, advice: &mut Vec<String>) {
    let census = &diagnosis.census;
    if census.aggregated.count > 0 {
        advice.push(
            "The vault has chunks in the aggregated form, which LiveSync cannot read. `couch-layer chunks migrate --back` \
             gives them LiveSync's form."
                .into(),
        );
    }
    let Some(unreferenced) = diagnosis.unreferenced() else { return };
    let all = unreferenced.bytes + census.referenced.bytes;
    if all == 0 || unreferenced.bytes * 10 < all {
        return;
    }
    let figure =
        format!("{} % of the bytes of chunks are named by no file at present.", unreferenced.bytes * 100 / all);
    advice.push(if advice.is_empty() {
        format!(
            "{figure} `couch-layer vault collect` removes them. LiveSync's own garbage collection can, too; first all \
             devices must have synchronised, be idle, and have a current plugin."
        )
    } else {
        format!("{figure} Let them be until nothing else is advised here: a device may still need them.")
    });
}

fn plural(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

fn files(count: u64) -> String {
    plural(count, "file", "files")
}
