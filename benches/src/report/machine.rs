//! The machine, the versions and each engine's durability: figures mean nothing without them.

use std::process::Command;

use benches::engines::{Engine, Mem, Syncing};
use kv_api::Durability;
use serde::Serialize;

#[derive(Default, Serialize)]
pub(crate) struct Machine {
    /// Names and values, in the order of the page.
    pub(crate) facts: Vec<(String, String)>,
}

pub(crate) fn describe() -> Machine {
    let mut facts = Vec::new();
    let mut add = |name: &str, value: String| facts.push((name.to_owned(), value));
    add("couch-layer", env!("CARGO_PKG_VERSION").into());
    add("commit", output("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_else(|| "unknown".into()));
    add("rustc", output("rustc", &["--version"]).unwrap_or_else(|| "unknown".into()));
    add("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH));
    if let Some(model) = processor() {
        add("processor", model);
    }
    add("cores", std::thread::available_parallelism().map_or("unknown".into(), |cores| cores.to_string()));
    if let Some(memory) = memory() {
        add("memory", memory);
    }
    promise::<Mem>(&mut facts);
    #[cfg(feature = "lsm")]
    promise::<benches::engines::Lsm>(&mut facts);
    #[cfg(feature = "sled")]
    promise::<benches::engines::Sled>(&mut facts);
    Machine { facts }
}

fn promise<E: Engine>(facts: &mut Vec<(String, String)>) {
    let survives = |syncing| match E::durability(syncing) {
        Durability::Process => "nothing",
        Durability::OperatingSystem => "the end of the process",
        Durability::Disk => "the loss of power",
        Durability::Cluster => "what the cluster's redundancy survives",
        _ => "what its documentation says",
    };
    let promise = format!("synced: {}; not synced: {}", survives(Syncing::Synced), survives(Syncing::Unsynced));
    facts.push((format!("an acknowledged write on {} survives", E::NAME), promise));
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn processor() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory() -> Option<String> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kilobytes: u64 = info.lines().next()?.split_whitespace().nth(1)?.parse().ok()?;
    Some(format!("{:.1} GiB", kilobytes as f64 / f64::from(1 << 20)))
}
