//! A FoundationDB server for one test: a process on a free loopback port, with its data in a temporary folder. It
//! is ended by its process id.
//!
//! `fdbserver` and `fdbcli` come from `FDBSERVER` and `FDBCLI`, or from `PATH`.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use conformance::Missing;
use tempfile::TempDir;

/// Timeout of the server's start, which includes recovery from its log after a kill.
const UP_WITHIN: Duration = Duration::from_secs(120);

/// A server that runs, or was killed and can be restarted.
#[derive(Debug)]
pub(crate) struct LocalServer {
    binary: PathBuf,
    cli: PathBuf,
    folder: TempDir,
    address: String,
    child: Option<Child>,
}

impl LocalServer {
    /// Starts a server with an empty database.
    ///
    /// # Errors
    ///
    /// The missing program.
    pub(crate) fn start() -> Result<LocalServer, Missing> {
        let binary = program("FDBSERVER", "fdbserver")?;
        let cli = program("FDBCLI", "fdbcli")?;
        let folder = tempfile::Builder::new().prefix("couch-layer-fdb").tempdir().expect("a temporary folder");
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
        let address = free.to_string();
        std::fs::write(folder.path().join("fdb.cluster"), format!("test:test@{address}\n")).expect("a cluster file");
        for name in ["data", "logs"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let mut server = LocalServer { binary, cli, folder, address, child: None };
        server.restart();
        server.wait_for("configure new single ssd", "Database created");
        Ok(server)
    }

    /// Path of the cluster file.
    pub(crate) fn cluster_file(&self) -> PathBuf {
        self.folder.path().join("fdb.cluster")
    }

    /// Kills the process without a warning.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // SIGKILL, to this process id.
            child.kill().expect("the server runs");
            child.wait().expect("it ends");
        }
    }

    /// Starts the process again on the same data.
    pub(crate) fn restart(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let log = std::fs::File::create(self.folder.path().join("output")).expect("a file for its output");
        let child = Command::new(&self.binary)
            .args(["--public-address", &self.address, "--listen-address", "public"])
            .arg("--cluster-file")
            .arg(self.cluster_file())
            .arg("--datadir")
            .arg(self.folder.path().join("data"))
            .arg("--logdir")
            .arg(self.folder.path().join("logs"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("the server starts");
        self.child = Some(child);
    }

    /// Waits until clients can use the database.
    #[allow(dead_code, reason = "for the test that kills it")]
    pub(crate) fn wait_until_available(&self) {
        self.wait_for("status minimal", "The database is available");
    }

    /// Repeats an `fdbcli` command until the answer contains these words.
    fn wait_for(&self, command: &str, answer: &str) {
        let begun = Instant::now();
        loop {
            let said = self.cli(command);
            if said.contains(answer) {
                return;
            }
            let output = || std::fs::read_to_string(self.folder.path().join("output")).unwrap_or_default();
            assert!(begun.elapsed() < UP_WITHIN, "{command}: {said}\nthe server: {}", output());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The answer of `fdbcli` to a command.
    pub(crate) fn cli(&self, command: &str) -> String {
        let output = Command::new(&self.cli)
            .arg("-C")
            .arg(self.cluster_file())
            .args(["--timeout", "10", "--exec", command])
            .stdin(Stdio::null())
            .output()
            .expect("fdbcli starts");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn program(variable: &str, name: &str) -> Result<PathBuf, Missing> {
    if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    // The server's package installs its binary outside `PATH`.
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    places
        .map(|folder| folder.join(name))
        .find(|path| Path::is_file(path))
        .ok_or_else(|| Missing::new("fdbserver", format!("there is no {name} on PATH and {variable} names none")))
}
