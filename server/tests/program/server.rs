//! Runs a server as a process.

// Each test file uses a part of it.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A server that is killed when the test ends.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) out: BufReader<Box<dyn Read + Send>>,
    pub(crate) base: String,
}

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_couch-layer"));
    command.arg("serve").args(arguments).env_clear().stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Process {
    /// Starts a server on a free port, and waits for the line with its address.
    pub(crate) fn start(arguments: &[&str]) -> Process {
        Process::start_at("127.0.0.1:0", arguments)
    }

    pub(crate) fn start_at(address: &str, arguments: &[&str]) -> Process {
        Process::of(command(arguments).args(["--listen", address]))
    }

    /// Starts a server of this engine whose administrator is `anna`, with the password `secret`.
    pub(crate) fn with_administrator(engine: &str, more: &[&str]) -> Process {
        let mut command = command(&["--engine", engine, "--listen", "127.0.0.1:0"]);
        Process::of(command.args(more).env("COUCHDB_USER", "anna").env("COUCHDB_PASSWORD", "secret"))
    }

    /// The address with the administrator's name and password.
    pub(crate) fn administrator_url(&self) -> String {
        self.base.replace("http://", "http://anna:secret@")
    }

    /// Starts this command, which must listen on a port.
    pub(crate) fn of(command: &mut Command) -> Process {
        let mut child = command.spawn().unwrap();
        let out: Box<dyn Read + Send> = Box::new(child.stdout.take().unwrap());
        let mut out = BufReader::new(out);
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("couch-layer listens on ").unwrap_or_else(|| {
            let mut complaint = String::new();
            child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
            panic!("{line:?} {complaint}")
        });
        let base = address.trim_end_matches('/').to_owned();
        assert!(!base.ends_with(":0"));
        Process { child, out, base }
    }

    /// The token that names the first administrator, from the address that the server printed.
    pub(crate) fn setup_token(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "the server prints no token");
            if let Some((_, token)) = line.split_once("/_utils/#/signin?token=") {
                return token.trim().to_owned();
            }
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// A line of `/proc/PID/status` in bytes, as `VmHWM`; `None` where the system has none.
    pub(crate) fn memory(&self, line: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let value = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':'))?;
        Some(value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    }

    /// Asks the process to stop, and waits until it has stopped.
    pub(crate) fn stop(mut self, signal: &str) -> std::process::ExitStatus {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "the server does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a document was acknowledged.
pub(crate) async fn put(client: &reqwest::Client, url: String, body: serde_json::Value) -> bool {
    let request = client.put(url).header("content-type", "application/json").body(body.to_string());
    match request.send().await {
        Ok(answer) => answer.status().is_success() && answer.bytes().await.is_ok(),
        Err(_) => false,
    }
}

/// The JSON of an answer.
pub(crate) async fn get(client: &reqwest::Client, url: String) -> serde_json::Value {
    let answer = client.get(&url).send().await.expect("an answer");
    assert!(answer.status().is_success(), "{url}: {}", answer.status());
    serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON")
}

/// The time in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    u64::try_from(since.as_millis()).expect("a time")
}

/// Waits until everything up to now is shipped.
pub(crate) async fn shipped(client: &reqwest::Client, here: &str) -> serde_json::Value {
    let now = now_ms();
    loop {
        let state = get(client, format!("{here}/_couch_layer/ship")).await;
        match state["state"].as_str() {
            Some("starting" | "running") => {}
            _ => panic!("{state}"),
        }
        if state["until_ms"].as_u64().expect("a time") > now {
            return state;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
