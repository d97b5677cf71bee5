//! `couch-layer vault collect --dry-run`: which chunks no file needs, and what stands in the way of removing them.

use chunks::vault::shown;
use chunks::{Amount, CensusOptions, WouldCollect};
use clap::Args;
use indicatif::{DecimalBytes, HumanCount};

use super::progress::{self, Unit};
use super::source::IfNoDatabase;
use super::vault_args::VaultArgs;
use crate::cmd::{Failure, failure};

/// Number of chunks and of devices that are shown one by one.
const SHOWN: usize = 20;

/// Count the chunks in LiveSync's own form that no file needs, and say what stands in the way of removing them.
///
/// Nothing is removed: this version only counts. Where it cannot count safely, for example because a list of chunks
/// cannot be read, the command says why and its exit status is 1.
#[derive(Debug, Args)]
pub(super) struct Collect {
    /// Count, and change nothing; required
    #[arg(long)]
    dry_run: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    vault: VaultArgs,
}

impl Collect {
    pub(super) async fn run(self) -> Result<(), Failure> {
        if !self.dry_run {
            return Err(failure(
                "this version does not remove chunks that have documents of their own; with --dry-run it says which ones \
                 no file names at present",
            ));
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
    lines.push("Before one of them may be removed, these devices must send all that they have:".into());
    lines.extend(found.devices.iter().take(SHOWN).map(|device| format!("  {}", shown(&device.title()))));
    if found.devices.len() > SHOWN {
        lines.push(format!("  and {} others", HumanCount((found.devices.len() - SHOWN) as u64)));
    }
    if !found.holds.is_empty() {
        lines.push("Nothing may be removed now:".into());
        lines.extend(found.holds.iter().map(|hold| format!("  {}", shown(hold))));
    }
    lines.push("Nothing was removed".into());
    lines.join("\n")
}
