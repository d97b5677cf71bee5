//! `couch-layer vault collect`: removes the chunks that no file needs, or says what stands in the way.

use std::str::FromStr;
use std::time::Duration;

use chunks::vault::shown;
use chunks::{Amount, CensusOptions, VaultCollectOptions, WouldCollect};
use clap::Args;
use indicatif::{DecimalBytes, HumanCount};
use model::{KeepReplaced, Passed};
use serde_json::Value;

use super::progress::{self, Unit};
use super::source::IfNoDatabase;
use super::vault_args::VaultArgs;
use crate::cmd::{Failure, failure};

/// Number of chunks and of devices that are shown one by one.
const SHOWN: usize = 20;

/// Number of chunks that one run takes in a store that this process opens.
const TAKEN: usize = 1_000_000;
/// Memory of their ids.
const TAKEN_BYTES: usize = TAKEN * 100;

/// Remove the chunks in LiveSync's own form that no file needs.
///
/// A run condemns them; a run after the grace period deletes them into a trash. A file that names one again brings it
/// back, also from the trash. With --trash, text leaves the trash when all devices have connected after its deletion,
/// know of it, and this second period has passed since. Nothing is done where the command cannot be sure, for example
/// because a list of chunks cannot be read: it says why, and its exit status is 1.
#[derive(Debug, Args)]
pub(super) struct Collect {
    /// Count, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Minimum time between condemning a chunk and deleting it: 30d, 12h
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "30d")]
    grace: Duration,
    /// How long the text of a deleted chunk is kept after all devices have connected again: 30d, and 2d at least; by
    /// default, and with off, it is kept for good
    #[arg(long, value_name = "TIME")]
    trash: Option<TimeOrOff>,
    /// Let the server do it now and at intervals from now on: 1d, 12h; off ends that
    #[arg(long, value_name = "TIME", conflicts_with_all = ["dry_run", "json"])]
    every: Option<TimeOrOff>,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    vault: VaultArgs,
}

/// A time; `None` for never.
#[derive(Clone, Copy, Debug)]
struct TimeOrOff(Option<Duration>);

impl FromStr for TimeOrOff {
    type Err = humantime::DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(TimeOrOff(None)),
            time => Ok(TimeOrOff(Some(humantime::parse_duration(time)?))),
        }
    }
}

impl Collect {
    pub(super) async fn run(self) -> Result<(), Failure> {
        if let Some(TimeOrOff(every)) = self.every {
            return self.schedule(every).await;
        }
        if !self.dry_run {
            return self.collect().await;
        }
        let chunks = self.vault.open(IfNoDatabase::Fail).await?.1;
        let bar = progress::counter(Unit::Documents);
        bar.set_message(format!("reading {}, documents:", self.vault.database));
        let found = chunks.would_collect(CensusOptions::default(), |done| bar.set_position(done)).await;
        bar.finish_and_clear();
        let found = found?;
        progress::print(&if self.json { found.to_json().to_string() } else { report(&found) })?;
        if found.census.is_known() { Ok(()) } else { Err(failure("it is unknown which chunks no file needs")) }
    }

    /// The second period, if there is one.
    fn trash(&self) -> Result<Option<Duration>, Failure> {
        let trash = self.trash.and_then(|TimeOrOff(time)| time);
        let shortest = Duration::from_millis(Passed::SHORTEST_MS);
        match trash {
            Some(trash) if trash < shortest => Err(failure(format!(
                "--trash must be at least {}: within it a device that was cut off sends what it had written",
                KeepReplaced::Milliseconds(Passed::SHORTEST_MS)
            ))),
            trash => Ok(trash),
        }
    }

    async fn schedule(self, every: Option<Duration>) -> Result<(), Failure> {
        let trash = self.trash()?;
        let source = self.vault.open(IfNoDatabase::Fail).await?.0;
        let (holds, trash_holds) = source.schedule_vault(every, self.grace, trash).await?;
        let mut lines = vec![match every {
            Some(every) => format!("The server collects the chunks every {}", humantime::format_duration(every)),
            None => "The server no longer collects the chunks".to_owned(),
        }];
        tell_holds(&mut lines, holds.iter().map(String::as_str));
        if trash.is_some() {
            tell_trash_holds(&mut lines, trash_holds.iter().map(String::as_str));
        }
        Ok(progress::print(&lines.join("\n"))?)
    }

    async fn collect(self) -> Result<(), Failure> {
        if self.vault.has_passphrase() {
            return Err(failure(
                "chunks are only removed where the database can read which ones a file needs, without the passphrase; \
                 with --dry-run the passphrase is used",
            ));
        }
        let trash = self.trash()?;
        let source = self.vault.open(IfNoDatabase::Fail).await?.0.in_background().await?;
        let bar = progress::counter(Unit::Documents);
        bar.set_message(format!("reading {}, documents:", self.vault.database));
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let census = CensusOptions { most_named: TAKEN, most_named_bytes: TAKEN_BYTES, ..CensusOptions::default() };
        let options = VaultCollectOptions { grace_ms: ms(self.grace), trash_ms: trash.map(ms), census };
        let done = source.collect_vault(options, |done| bar.set_position(done)).await;
        bar.finish_and_clear();
        let done = done?;
        progress::print(&if self.json { done.to_string() } else { collected(&done) })?;
        if let Some(error) = done["collected"]["error"].as_str() {
            return Err(failure(format!("the run ended before it had done everything: {}", shown(error))));
        }
        match done["holds"].as_array().map(Vec::is_empty) {
            Some(true) => Ok(()),
            _ => Err(failure("nothing was removed")),
        }
    }
}

/// What a run did, from the JSON that tells it.
fn collected(done: &Value) -> String {
    let number = |value: &Value| HumanCount(value.as_u64().unwrap_or_default()).to_string();
    let size = |value: &Value| DecimalBytes(value.as_u64().unwrap_or_default()).to_string();
    let amount = |value: &Value| format!("{} chunks ({})", number(&value["count"]), size(&value["bytes"]));
    let told = &done["collected"];
    let mut lines = vec![format!("{} are needed by files", amount(&done["referenced"]))];
    let holds = done["holds"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !holds.is_empty() {
        tell_holds(&mut lines, holds.iter().map(|hold| hold.as_str().unwrap_or_default()));
        return lines.join("\n");
    }
    let trash = &told["trash"];
    lines.push(format!(
        "{} chunks were condemned; {} are condemned now",
        number(&told["condemned"]),
        number(&trash["condemned"])
    ));
    lines.push(format!(
        "{} were deleted; {} are in the trash now",
        amount(&told["deleted"]),
        amount(&trash["deleted"])
    ));
    if told["emptied"]["count"].as_u64() > Some(0) {
        lines.push(format!("{} left the trash for good", amount(&told["emptied"])));
    }
    if told["passed"].as_u64() > Some(0) {
        lines.push(format!("All devices have passed the deletion of {} of them", number(&told["passed"])));
    }
    if let Some(devices) = told["waits_for"].as_str() {
        lines.push(format!("The trash waits for these devices, which connected least recently: {}", shown(devices)));
    }
    if trash["deleted"]["count"].as_u64() > Some(0) {
        let trash_holds = done["trash_holds"].as_array().into_iter().flatten().filter_map(Value::as_str);
        tell_trash_holds(&mut lines, trash_holds);
    }
    if trash["not_revived"].as_u64() > Some(0) {
        let count = number(&trash["not_revived"]);
        lines.push(format!("{count} chunks that a file named could not be brought back: `couch-layer check` says why"));
    }
    if trash["unreadable"].as_u64() > Some(0) {
        let count = number(&trash["unreadable"]);
        lines.push(format!("{count} rows of the trash cannot be read: `couch-layer check` says why"));
    }
    let left = &told["left"];
    if left["count"].as_u64() > Some(0) {
        lines.push(format!("{} chunks stay for another reason:", number(&left["count"])));
        let named = left["named"].as_array().into_iter().flatten();
        let text = |value: &Value| shown(value.as_str().unwrap_or_default()).to_string();
        lines.extend(named.map(|one| format!("  {}: {}", text(&one["chunk"]), text(&one["why"]))));
    }
    if told["more"] == Value::Bool(true) {
        lines.push("There are more: run it again".into());
    }
    lines.join("\n")
}

/// Says what holds a collection back; nothing if nothing does.
fn tell_holds<'h>(lines: &mut Vec<String>, holds: impl IntoIterator<Item = &'h str>) {
    let mut holds = holds.into_iter().peekable();
    if holds.peek().is_some() {
        lines.push("Nothing may be removed now:".into());
        lines.extend(holds.map(|hold| format!("  {}", shown(hold))));
    }
}

/// The same of the trash.
fn tell_trash_holds<'h>(lines: &mut Vec<String>, holds: impl IntoIterator<Item = &'h str>) {
    lines.extend(holds.into_iter().map(|hold| format!("Nothing leaves the trash now: {}", shown(hold))));
}

fn report(found: &WouldCollect) -> String {
    let amount = |amount: &Amount| format!("{} chunks ({})", HumanCount(amount.count), DecimalBytes(amount.bytes));
    let census = &found.census;
    let mut lines = vec![
        format!("{} are needed by files", amount(&census.referenced)),
        match census.is_known() {
            true => format!("{} are named by none at present", amount(&census.unreferenced)),
            false => "unknown how many are needed by none".into(),
        },
    ];
    lines.extend(census.unreferenced_named.first.iter().take(SHOWN).map(|chunk| format!("  {}", shown(chunk))));
    if census.is_known() && census.unreferenced.count > SHOWN as u64 {
        lines.push("  and others".into());
    }
    lines.push("Devices of the vault:".into());
    lines.extend(found.devices.iter().take(SHOWN).map(|device| format!("  {}", shown(&device.title()))));
    if found.devices.len() > SHOWN {
        lines.push(format!("  and {} others", HumanCount((found.devices.len() - SHOWN) as u64)));
    }
    tell_holds(&mut lines, found.holds.iter().map(String::as_str));
    lines.push("Nothing was removed".into());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_left_the_trash_is_told() {
        let amount = |count: u64| json!({"count": count, "bytes": 10 * count});
        let trash = json!({"condemned": 0, "deleted": amount(3), "not_revived": 0, "unreadable": 0});
        let done = json!({"referenced": amount(1), "holds": [], "trash_holds": [], "collected": {"condemned": 0,
            "deleted": amount(0), "emptied": amount(2), "passed": 1, "waits_for": null, "trash": trash}});
        let told = collected(&done);
        assert!(told.contains("\n2 chunks (20 B) left the trash for good\nAll devices have passed"), "{told}");
    }
}
