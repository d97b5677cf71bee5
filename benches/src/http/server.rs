//! Starts our server on a free port, in a new folder or on the store of a URL.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::client::Address;

pub(crate) struct Spawned {
    pub(crate) address: Address,
    child: Child,
    _folder: TempDir,
}

impl Spawned {
    pub(crate) async fn start(binary: &Path, engine: &str) -> Result<Spawned> {
        Self::start_with(binary, engine, &[]).await
    }

    /// The same, with further arguments.
    pub(crate) async fn start_with(binary: &Path, engine: &str, arguments: &[String]) -> Result<Spawned> {
        let folder = tempfile::Builder::new().prefix("couch-layer-bench").tempdir()?;
        let url = match engine {
            "mem" => "mem:".to_owned(),
            url if url.contains(':') => url.to_owned(),
            on_disk => format!("{on_disk}:{}", folder.path().join("data").display()),
        };
        let mut child = Command::new(binary)
            .args(["serve", "--engine", &url, "--listen", "127.0.0.1:0"])
            .args(arguments)
            .env_remove("COUCHDB_USER")
            .env_remove("COUCHDB_PASSWORD")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{}: build it first: cargo build --release", binary.display()))?;
        let stdout = child.stdout.take().context("no standard output")?;
        let mut lines = BufReader::new(stdout).lines();
        let address = tokio::time::timeout(Duration::from_secs(30), async {
            while let Some(line) = lines.next_line().await? {
                if let Some(at) = line.find("http://") {
                    let url = line[at..].split_whitespace().next().unwrap_or_default();
                    return url.parse();
                }
            }
            bail!("the server ended before it listened")
        })
        .await
        .context("the server did not say where it listens")??;
        // Later output is read and dropped, so that the server never blocks on a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Spawned { address, child, _folder: folder })
    }

    /// Largest resident memory of the server so far, in bytes, if the system tells.
    pub(crate) fn most_memory(&self) -> Option<u64> {
        benches::work::memory(&format!("/proc/{}/status", self.child.id()?), "VmHWM:")
    }

    /// Resident memory of the server now, in bytes, if the system tells.
    pub(crate) fn memory(&self) -> Option<u64> {
        benches::work::memory(&format!("/proc/{}/status", self.child.id()?), "VmRSS:")
    }

    /// Processor time of the server so far.
    pub(crate) fn processor_time(&self) -> Result<Duration> {
        let id = self.child.id().context("the server has ended")?;
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))
            .context("the system does not report processor times")?;
        // After the name, which is in brackets: `utime` and `stime`, in hundredths of a second.
        let fields = stat.rsplit_once(") ").context("a process without a name")?.1.split(' ');
        let ticks: u64 = fields.skip(11).take(2).map(|ticks| ticks.parse().unwrap_or(0u64)).sum();
        Ok(Duration::from_millis(10 * ticks))
    }

    /// Forgets the largest resident memory so far.
    pub(crate) fn forget_most_memory(&self) -> Result<()> {
        let id = self.child.id().context("the server has ended")?;
        std::fs::write(format!("/proc/{id}/clear_refs"), "5").context("the system does not record the peak of memory")
    }

    /// Kills the server.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.child.kill().await.context("stopping the server")
    }
}
