//! `serve --domain`: a certificate by ACME.
//!
//! The ACME server is Pebble, Let's Encrypt's own for tests, with a DNS of its own for which every name is this machine.
//! Where the programs `pebble` and `pebble-challtestsrv` are not found, its tests are skipped (`CONFORMANCE_REQUIRE`).

#![cfg(all(feature = "acme", feature = "mem", feature = "lsm"))]

#[path = "program/server.rs"]
mod process;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use conformance::Missing;
use process::{Process, command};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

/// Maximum time for what a test waits for.
const PATIENCE: Duration = Duration::from_secs(120);

/// The lifetimes of certificates, in seconds: one that ends after the test, and one that ends while it runs.
const LONG: u64 = 86_400;
const SHORT: u64 = 45;

/// A port that is free for TCP and UDP, and that no client of another test gets.
fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(10_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A program that is killed when the test ends.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A self-signed certificate for 127.0.0.1 and its key, in files.
fn own_certificate(folder: &Path) -> (PathBuf, PathBuf) {
    let key = KeyPair::generate().unwrap();
    let made = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    let (certificate, key_file) = (folder.join("own.pem"), folder.join("own.key"));
    fs::write(&certificate, made.pem()).unwrap();
    fs::write(&key_file, key.serialize_pem()).unwrap();
    (certificate, key_file)
}

/// Whether Pebble is missing. Another program of this name manages services, so an option of each is looked for.
fn is_missing(what: &str) -> bool {
    let has = |program: &str, option: &str| {
        let help = Command::new(program).arg("-h").stdin(Stdio::null()).output();
        help.is_ok_and(|help| String::from_utf8_lossy(&[help.stdout, help.stderr].concat()).contains(option))
    };
    if has("pebble", "-dnsserver") && has("pebble-challtestsrv", "-tlsalpn01") {
        return false;
    }
    Missing::new("pebble", "Let's Encrypt's pebble and pebble-challtestsrv are not installed").skip(what);
    true
}

/// Pebble.
struct Pebble {
    _programs: [Program; 2],
    folder: TempDir,
    port: u16,
    management: u16,
}

impl Pebble {
    /// It looks for all domains at this port, and its certificates last so many seconds.
    fn start(tls_port: u16, lifetime: u64) -> Pebble {
        let folder = TempDir::new().unwrap();
        let (certificate, key) = own_certificate(folder.path());
        let [port, management, dns, dns_management] = [(); 4].map(|()| free_port());
        let config = serde_json::json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{port}"),
            "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": certificate, "privateKey": key,
            "httpPort": free_port(), "tlsPort": tls_port,
            "certificateValidityPeriod": lifetime,
        }});
        let file = folder.path().join("pebble.json");
        fs::write(&file, config.to_string()).unwrap();
        let spawn = |command: &mut Command| {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map(Program).unwrap()
        };
        let names = spawn(
            Command::new("pebble-challtestsrv")
                .args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""])
                .args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-dns01", &format!("127.0.0.1:{dns}")])
                .args(["-management", &format!("127.0.0.1:{dns_management}")]),
        );
        let pebble = spawn(
            Command::new("pebble")
                .arg("-config")
                .arg(&file)
                .args(["-dnsserver", &format!("127.0.0.1:{dns}")])
                .env("PEBBLE_VA_NOSLEEP", "1"),
        );
        for port in [port, management, dns_management] {
            until(|| TcpStream::connect(("127.0.0.1", port)).ok());
        }
        Pebble { _programs: [names, pebble], folder, port, management }
    }

    fn trusted(&self) -> PathBuf {
        self.folder.path().join("own.pem")
    }

    /// The root of the certificates that it issues.
    async fn root(&self) -> String {
        let pem = fs::read(self.trusted()).unwrap();
        let client = reqwest::Client::builder().tls_backend_preconfigured(trusting(&pem)).build().unwrap();
        let url = format!("https://127.0.0.1:{}/roots/0", self.management);
        client.get(url).send().await.unwrap().text().await.unwrap()
    }

    fn directory(&self) -> String {
        format!("https://127.0.0.1:{}/dir", self.port)
    }

    /// A file of its in a server's folder.
    fn file(&self, folder: &Path, name: &str) -> PathBuf {
        folder.join(format!("127.0.0.1-{}-dir", self.port)).join(name)
    }

    fn arguments(&self, folder: &Path) -> Vec<String> {
        arguments(&self.directory(), &self.trusted(), folder)
    }
}

fn arguments(directory: &str, roots: &Path, folder: &Path) -> Vec<String> {
    let text = |path: &Path| path.display().to_string();
    ["--engine", "mem:", "--domain", "notes.example,Other.Notes.Example", "--acme-email", "anna@notes.example"]
        .iter()
        .map(|&argument| argument.to_owned())
        .chain(["--acme-directory".to_owned(), directory.to_owned(), "--tls-roots".to_owned(), text(roots)])
        .chain(["--acme-folder".to_owned(), text(folder)])
        .collect()
}

/// Starts a server at this port. Returns it, and the lines of its log.
fn serve(port: u16, arguments: &[String]) -> (Process, Receiver<String>) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut server = Process::of(command(&arguments).args(["--listen", &format!("127.0.0.1:{port}")]));
    let log = BufReader::new(server.child.stderr.take().unwrap());
    let (said, lines) = mpsc::channel();
    std::thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|line| said.send(line)));
    (server, lines)
}

/// Waits for a line of the log with this text.
fn line_with(lines: &Receiver<String>, text: &str) -> String {
    let began = Instant::now();
    let mut seen = Vec::new();
    while let Ok(line) = lines.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
        if line.contains(text) {
            return line;
        }
        seen.push(line);
    }
    panic!("the log has no {text:?}: {seen:#?}");
}

fn until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The configuration of a client that trusts this certificate.
fn trusting(pem: &[u8]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots).with_no_client_auth()
}

/// The answer to `GET /` at this port of a server that must prove to be this domain, and its certificate. `None` if
/// there is no trusted certificate.
fn get(port: u16, domain: &'static str, root: &str) -> Option<(String, CertificateDer<'static>)> {
    let config = Arc::new(trusting(root.as_bytes()));
    let connection = ClientConnection::new(config, ServerName::try_from(domain).unwrap()).unwrap();
    let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    let request = format!("GET / HTTP/1.1\r\nhost: {domain}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    Some((answer, stream.conn.peer_certificates().unwrap()[0].clone()))
}

#[tokio::test]
async fn a_certificate_is_ordered_kept_over_a_restart_and_renewed_while_the_server_runs() {
    let port = free_port();
    if is_missing("a_certificate_is_ordered") {
        return;
    }
    let pebble = Pebble::start(port, LONG);
    let root = pebble.root().await;
    let folder = TempDir::new().unwrap();
    let (server, log) = serve(port, &pebble.arguments(folder.path()));
    assert_eq!(server.base, format!("https://127.0.0.1:{port}"));
    line_with(&log, "a new certificate is in use");
    let (answer, first) = get(port, "notes.example", &root).unwrap();
    assert!(answer.starts_with("HTTP/1.1 ") && answer.contains("{\""), "{answer}");
    assert_eq!(get(port, "other.notes.example", &root).unwrap().1, first, "one for both");

    // Kept: another process has it at once, without an order.
    server.stop("-TERM");
    let (server, log) = serve(port, &pebble.arguments(folder.path()));
    assert_eq!(get(port, "notes.example", &root).unwrap().1, first);
    server.stop("-TERM");
    assert!(!log.iter().any(|line| line.contains("ordering a certificate")));
    let account = fs::read_to_string(pebble.file(folder.path(), "account.json")).unwrap();
    #[cfg(unix)]
    for file in ["account.json", "certificate.pem"] {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(pebble.file(folder.path(), file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }

    // An ACME server that was set up anew does not know the account.
    let old = format!(":{}/", pebble.port);
    drop(pebble);
    let pebble = Pebble::start(port, SHORT);
    let root = pebble.root().await;
    let here = pebble.file(folder.path(), "account.json");
    fs::create_dir(here.parent().unwrap()).unwrap();
    let account = account.replace(&old, &format!(":{}/", pebble.port));
    fs::write(&here, &account).unwrap();
    let (server, log) = serve(port, &pebble.arguments(folder.path()));
    line_with(&log, "another one is created");
    line_with(&log, "a new certificate is in use");
    let (_, first) = get(port, "notes.example", &root).unwrap();
    let known = fs::read_to_string(&here).unwrap();
    assert_ne!(known, account);
    assert_eq!(fs::read_to_string(here.with_added_extension("old")).unwrap(), account, "kept aside");

    // Renewed when a third of its time is left, while the server runs, and by the same account.
    line_with(&log, "a new certificate is in use");
    assert_ne!(get(port, "notes.example", &root).unwrap().1, first);
    assert_eq!(fs::read_to_string(&here).unwrap(), known);
    server.stop("-TERM");
}

#[tokio::test]
async fn a_domain_that_leads_elsewhere_is_named_in_the_log() {
    let [port, elsewhere] = [free_port(), free_port()];
    if is_missing("a_domain_that_leads_elsewhere") {
        return;
    }
    let pebble = Pebble::start(elsewhere, LONG);
    let folder = TempDir::new().unwrap();
    let (server, log) = serve(port, &pebble.arguments(folder.path()));
    let line = line_with(&log, "no new certificate");
    for part in ["notes.example, port 443", "tls-alpn-01", "in 5 min", "no client can connect until then", "onnect"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    // The way is mended: here, by a server at the other port. The pause outlasts the restart, and a signal ends it.
    server.stop("-TERM");
    let (server, log) = serve(elsewhere, &pebble.arguments(folder.path()));
    line_with(&log, "the last order failed; the next one is in 5 min");
    let failed = pebble.file(folder.path(), "failed.json");
    assert!(failed.exists());
    hang_up(&server);
    line_with(&log, "a new certificate is in use");
    server.stop("-TERM");
    assert!(!failed.exists(), "a success ends it too");
}

#[test]
fn a_server_without_an_acme_server_says_why_and_uses_the_certificate_that_it_has() {
    let root = TempDir::new().unwrap();
    let (own, _) = own_certificate(root.path());
    let folder = root.path().join("acme");
    let directory = format!("https://127.0.0.1:{}/dir", free_port());
    let arguments = arguments(&directory, &own, &folder);
    let port = free_port();
    let (server, log) = serve(port, &arguments);
    let line = line_with(&log, "no new certificate");
    for part in [directory.as_str(), "refused", "no client can connect until then", "the next order is in 5 min"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    // Nothing is served in the clear, nor with another certificate.
    assert!(get(port, "notes.example", &fs::read_to_string(&own).unwrap()).is_none());
    let mut plain = TcpStream::connect(("127.0.0.1", port)).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nhost: notes.example\r\n\r\n").unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("https://"), "{answer}");
    // A signal ends the pause.
    hang_up(&server);
    let line = line_with(&log, "no new certificate");
    assert!(line.contains("the next order is in 10 min"), "{line}");
    server.stop("-TERM");

    // One that expires next year, and one that has expired: the ACME server is asked for another one, and this one stays.
    let place = folder.join(directory.trim_start_matches("https://").replace([':', '/'], "-")).join("certificate.pem");
    let year = |from, until| {
        let key = KeyPair::generate().unwrap();
        let names = ["notes.example".to_owned(), "other.notes.example".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(from, 1, 1), rcgen::date_time_ymd(until, 1, 1));
        let made = params.self_signed(&key).unwrap();
        fs::write(&place, key.serialize_pem() + &made.pem()).unwrap();
        made.pem()
    };
    let certificate = year(2020, 3020);
    let (server, log) = serve(port, &arguments);
    assert!(get(port, "notes.example", &certificate).unwrap().0.starts_with("HTTP/1.1 "));
    server.stop("-TERM");
    assert!(!log.iter().any(|line| line.contains("ordering a certificate")), "it is not due");
    year(2020, 2021);
    let (server, log) = serve(port, &arguments);
    line_with(&log, "the last order failed");
    hang_up(&server);
    let line = line_with(&log, "no new certificate");
    assert!(line.contains("the old one is kept"), "{line}");
    server.stop("-TERM");
}

#[cfg(unix)]
fn hang_up(server: &Process) {
    Command::new("kill").args(["-HUP", &server.child.id().to_string()]).status().unwrap();
}

#[test]
fn what_does_not_go_together_is_refused() {
    let root = TempDir::new().unwrap();
    let (certificate, key) = own_certificate(root.path());
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    let file = root.path().join("options.toml");
    fs::write(&file, "domain = [\"notes.example\"]\ntls-self-signed = true\n").unwrap();
    let own = root.path().join("own.pem").join("below");
    for (arguments, sentence) in [
        (vec!["--domain", "a.example", "--tls-cert", &certificate, "--tls-key", &key], "--tls-cert names another one"),
        (vec!["--domain", "a.example", "--tls-self-signed"], "--tls-self-signed names another one"),
        (vec!["--config", file.to_str().unwrap()], "--tls-self-signed names another one"),
        (vec!["--domain", "a.example"], "mem: has none; name one with --acme-folder"),
        (vec!["--domain", "*.a.example"], "in the DNS only"),
        (vec!["--domain", "127.0.0.1"], "a domain is a DNS name"),
        (vec!["--domain", "localhost", "--acme-folder", "x"], "localhost is no public name"),
        (vec!["--domain", "a_b.example", "--acme-folder", "x"], "a_b.example is no public name"),
        (vec!["--acme-email", "a@b.example"], "--domain"),
        (vec!["--domain", "a.example", "--acme-directory", "http://127.0.0.1/"], "begins with https://"),
        (vec!["--domain", "a.example", "--acme-folder", own.to_str().unwrap()], "cannot be written"),
    ] {
        let output = command(&arguments).args(["--engine", "mem:", "--listen", "127.0.0.1:0"]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        assert!(said.contains(sentence) && !said.contains("panicked"), "{arguments:?}: {said}");
    }
    // A start that is refused leaves no folder.
    let folder = root.path().join("acme");
    let arguments = ["--engine", "mem:", "--listen", "0.0.0.0:0", "--domain", "a.example", "--acme-folder"];
    let output = command(&arguments).arg(&folder).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("administrator") && !folder.exists(), "{said}");
}
