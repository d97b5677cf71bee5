//! The commands on chunks, as processes, beside a server that owns the data.

#![cfg(all(feature = "mem", feature = "lsm"))]

mod program;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use program::{program, run};
use serde_json::{Value, json};

/// A server that is killed when the test ends.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start() -> Server {
        let mut command = program();
        command.args(["serve", "--engine", "mem:", "--listen", "127.0.0.1:0"]).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let url = line.trim().strip_prefix("couch-layer listens on ").expect("its address").trim_end_matches('/');
        Server { url: url.to_owned(), child }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[track_caller]
fn succeed(arguments: &[&str], input: &str) -> String {
    let output = run(arguments, input);
    assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Output of a failing command: its results, and its error in one line.
#[track_caller]
fn fail(arguments: &[&str]) -> (String, String) {
    let output = run(arguments, "");
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output.stdout));
    (text(&output.stdout), text(&output.stderr))
}

/// A vault of a note with two chunks, and 300 chunks without references. The note has attachments, of text and of
/// bytes.
fn vault() -> String {
    let attached = json!({"t": {"content_type": "text/plain", "data": "aGVsbG8="}, "u": {"data": "AAEC"}});
    let mut documents = vec![
        json!({"_id": "note.md", "path": "note.md", "children": ["h:1ecijke328qp3", "h:2mj7d2m7tephp"], "type": "plain",
            "_attachments": attached}),
        json!({"_id": "h:1ecijke328qp3", "type": "leaf", "data": "from-a\n"}),
        json!({"_id": "h:2mj7d2m7tephp", "type": "leaf", "data": "base\n"}),
    ];
    documents.extend(
        (0..300).map(|n| json!({"_id": format!("h:+{n}"), "type": "leaf", "e_": true, "data": format!("%={n}")})),
    );
    documents.iter().map(|document| format!("{document}\n")).collect()
}

fn without_revisions(exported: &str) -> Vec<Value> {
    let documents = exported.lines().map(|line| {
        let mut document: Value = serde_json::from_str(line).expect("JSON");
        drop(document.as_object_mut().expect("an object").remove("_rev"));
        document
    });
    documents.collect()
}

#[test]
fn a_vault_is_worked_on_beside_its_server() {
    let server = Server::start();
    let url = ["--url", server.url.as_str()];
    let on = |arguments: &[&str]| succeed(&[arguments, &url].concat(), "");
    succeed(&[&["import", "vault", "-"][..], &url].concat(), &vault());
    let before = on(&["export", "vault"]);
    assert!(before.contains(r#""data":"aGVsbG8="}"#) && before.contains(r#""data":"AAEC"}"#), "with attachments");

    let planned = on(&["chunks", "migrate", "vault", "--dry-run"]);
    assert!(planned.contains("302 chunks") && planned.contains("would be aggregated"), "{planned}");
    assert_eq!(on(&["export", "vault"]), before);
    let migrated = on(&["chunks", "migrate", "vault"]);
    assert!(migrated.contains("302 chunks") && migrated.contains("before: 303 documents"), "{migrated}");
    assert!(migrated.contains("after:  5 documents"), "{migrated}");
    assert!(on(&["chunks", "verify", "vault"]).contains("1 files refer to 2 chunks"));
    let collected = on(&["chunks", "gc", "vault", "--compact"]);
    assert!(collected.contains("300 chunks condemned, 0 reprieved, 0 removed"), "{collected}");
    let disk = collected.lines().find(|line| line.starts_with("on disk: ")).expect("bytes on disk");
    assert!(disk.contains(" before, ") && disk.contains(" after, ") && disk.ends_with(" after compaction"), "{disk}");
    assert!(on(&["chunks", "reindex", "vault"]).contains("0 chunks entered"));
    on(&["chunks", "migrate", "vault", "--back"]);
    assert_eq!(without_revisions(&on(&["export", "vault"])), without_revisions(&before));
}

#[test]
fn settings_are_shown_and_changed() {
    let server = Server::start();
    let url = ["--url", server.url.as_str()];
    let on = |arguments: &[&str]| succeed(&[&["chunks", "settings", "vault"], arguments, &url].concat(), "");
    succeed(&[&["import", "vault", "-"][..], &url].concat(), &vault());
    assert!(on(&[]).contains("vault has no settings yet"));
    assert_eq!(on(&["--json"]), "null\n");
    let changed = on(&["--grace", "36h", "--data-doc-size-limit", "70000"]);
    assert_eq!(changed, "chunk_prefix_length  0\ndata_doc_size_limit  70000 bytes\ngrace                1day 12h\n");
    // Settings that are not named are kept.
    let json = r#"{"chunk_prefix_length":2,"data_doc_size_limit":70000,"grace_ms":129600000}"#;
    assert_eq!(on(&["--chunks", "100000", "--json"]).trim(), json);
    assert_eq!(on(&["--json"]).trim(), json);
    let grown = r#"{"chunk_prefix_length":3,"data_doc_size_limit":70000,"grace_ms":7200000}"#;
    assert_eq!(on(&["--grace", "2h", "--chunk-prefix-length", "3", "--chunks", "1000000", "--json"]).trim(), grown);

    let refused = |arguments: &[&str]| fail(&[&["chunks", "settings", "vault"], arguments, &url].concat()).1;
    assert!(refused(&["--grace", "59m"]).contains("grace_ms 3540000 is under 3600000"));
    assert!(refused(&["--data-doc-size-limit", "5"]).contains("data_doc_size_limit 5 is under the minimum of 64000"));
    // There are 302 chunks.
    assert!(refused(&["--chunk-prefix-length", "4"]).contains("more than one for each chunk"));
    assert!(refused(&["--chunk-prefix-length", "2", "--chunks", "100000"]).contains("shorter than 3"));
    assert_eq!(on(&["--json"]).trim(), grown);
}

#[test]
fn a_grace_that_is_short_is_remarked_upon_and_what_it_collects_is_gone() {
    let server = Server::start();
    let url = ["--url", server.url.as_str()];
    let on = |arguments: &[&str]| succeed(&[arguments, &url].concat(), "");
    succeed(&[&["import", "vault", "-"][..], &url].concat(), &vault());
    let settings = json!({"_id": "chunks:settings", "format": 1, "chunk_prefix_length": 0,
        "data_doc_size_limit": 900_000, "grace_ms": 1});
    succeed(&[&["import", "vault", "-"][..], &url].concat(), &settings.to_string());
    on(&["chunks", "migrate", "vault"]);
    on(&["chunks", "gc", "vault"]);
    let output = run(&[&["chunks", "gc", "vault", "--unused", "0"][..], &url].concat(), "");
    assert!(text(&output.stderr).contains("the grace of vault is 0 s"), "{}", text(&output.stderr));
    let report = text(&output.stdout);
    assert!(report.contains("300 removed") && report.contains("on disk: "), "{report}");
    // Without settings the command is refused.
    let export = on(&["export", "vault"]);
    let rev = without_settings(&export);
    succeed(&[&["import", "bare", "-"][..], &url].concat(), &rev);
    let (_, complaint) = fail(&[&["chunks", "gc", "bare"][..], &url].concat());
    assert!(complaint.contains("no \"chunks:settings\"") && complaint.lines().count() == 1, "{complaint}");
}

fn without_settings(exported: &str) -> String {
    exported.lines().filter(|line| !line.contains("chunks:settings")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn missing_chunks_are_brought_from_other_databases() {
    let server = Server::start();
    let url = ["--url", server.url.as_str()];
    let on = |arguments: &[&str]| [arguments, &url].concat().iter().map(ToString::to_string).collect::<Vec<_>>();
    let import = |name: &str, documents: &str| drop(succeed(&[&["import", name, "-"][..], &url].concat(), documents));
    let chunk = |id: &str, data: &str| format!("{}\n", json!({"_id": id, "type": "leaf", "data": data}));
    let note =
        json!({"_id": "note.md", "children": ["h:1ecijke328qp3", "h:2mj7d2m7tephp", "h:third"], "type": "plain"});
    import("vault", &note.to_string());
    import("copy", &chunk("h:1ecijke328qp3", "from-a\n"));
    let lines = |arguments: Vec<String>| fail(&arguments.iter().map(String::as_str).collect::<Vec<_>>());

    // From a database beside it. Chunks that it lacks are reported.
    let (report, complaint) = lines(on(&["chunks", "repair", "vault", "--from", "copy"]));
    assert!(report.contains("3 chunks are missing") && report.contains("1 came from copy"), "{report}");
    assert!(report.contains("h:third is in none of them, for note.md"), "{report}");
    assert!(complaint.contains("2 chunks are still missing"), "{complaint}");

    // From another server and from a folder.
    let other = Server::start();
    let there = ["--url", other.url.as_str()];
    let folder = tempfile::tempdir().expect("a folder");
    let engine = format!("lsm:{}", folder.path().join("data").display());
    succeed(&["import", "backup", "-", "--engine", &engine], &chunk("h:third", "third"));
    succeed(&[&["import", "vault2", "-"][..], &there].concat(), &chunk("h:2mj7d2m7tephp", "base\n"));
    let from = format!("{}/vault2", other.url);
    let repaired =
        [&["chunks", "repair", "vault", "--from", &from, "--from", "backup", "--from-engine", &engine][..], &url];
    let report = succeed(&repaired.concat(), "");
    assert!(report.contains("2 chunks are missing") && report.contains(&format!("1 came from {from}")), "{report}");
    assert!(report.contains("1 came from backup"), "{report}");
    assert!(succeed(&repaired.concat(), "").contains("nothing is missing in vault"));
    let verified = succeed(&[&["chunks", "verify", "vault"][..], &url].concat(), "");
    assert!(verified.contains("1 files refer to 3 chunks"), "{verified}");
}

/// The same in a data folder of this process, where two databases share the store.
#[test]
fn a_database_is_repaired_from_its_neighbour() {
    let folder = tempfile::tempdir().expect("a folder");
    let data: &Path = &folder.path().join("data");
    let engine = ["--engine", &format!("lsm:{}", data.display())].map(str::to_owned);
    let on = |arguments: &[&str], input: &str| {
        let engine = engine.each_ref().map(String::as_str);
        succeed(&[arguments, &engine].concat(), input)
    };
    let note = json!({"_id": "note.md", "children": ["h:1ecijke328qp3"], "type": "plain"});
    on(&["import", "vault", "-"], &note.to_string());
    on(&["import", "copy", "-"], &json!({"_id": "h:1ecijke328qp3", "type": "leaf", "data": "from-a\n"}).to_string());
    let report = on(&["chunks", "repair", "vault", "--from", "copy"], "");
    assert!(report.contains("1 chunks are missing") && report.contains("1 came from copy"), "{report}");
    assert!(on(&["chunks", "gc", "vault"], "").contains("on disk: "));
}

/// Vaults that LiveSync wrote; a README is beside them.
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../chunks/tests/fixtures/livesync");

/// Imports one of them into a server, with its local documents.
fn import_fixture(server: &Server, name: &str) {
    let file = format!("{FIXTURES}/{name}.jsonl");
    succeed(&["import", name, &file, "--url", &server.url], "");
    let local = std::fs::read_to_string(format!("{FIXTURES}/{name}.local.json")).expect("a listing");
    let local: Value = serde_json::from_str(&local).expect("JSON");
    for row in local["rows"].as_array().expect("rows") {
        let mut body = row["doc"].clone();
        body.as_object_mut().expect("an object").retain(|member, _| !member.starts_with('_'));
        let id = row["id"].as_str().expect("an id").replace('=', "%3D");
        let answer = send(server, "PUT", &format!("/{name}/{id}"), &body);
        assert!(answer.starts_with("HTTP/1.1 201"), "{id}: {answer}");
    }
}

/// Sends a request with a body. Returns the answer as it came.
fn send(server: &Server, method: &str, path: &str, body: &Value) -> String {
    let (address, body) = (server.url.strip_prefix("http://").expect("an address"), body.to_string());
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn get(server: &Server, path: &str) -> Value {
    let address = server.url.strip_prefix("http://").expect("an address");
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON")
}

#[test]
fn a_vault_is_examined_by_a_command_and_a_request() {
    let server = Server::start();
    let url = ["--url", server.url.as_str()];
    import_fixture(&server, "livesync-plain");
    let report = succeed(&[&["vault", "doctor", "livesync-plain"][..], &url].concat(), "");
    for wanted in [
        "26 files, 0 hidden files and customizations, 1 marked as deleted",
        "chunks that no file needs",
        "headless-vault (pziagfnzd6): connected ",
        "not among the accepted",
        "What to do\n",
    ] {
        assert!(report.contains(wanted), "{wanted}: {report}");
    }
    let told = succeed(&[&["vault", "doctor", "livesync-plain", "--json"][..], &url].concat(), "");
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(
        (&told["chunks"]["referenced"]["count"], &told["chunks"]["unreferenced"]["count"]),
        (&json!(347), &json!(13))
    );
    let answered = get(&server, "/livesync-plain/_couch_layer/vault");
    for member in ["files", "chunks", "missing", "tombstones", "milestone", "advice", "documents"] {
        assert_eq!(answered[member], told[member], "{member}");
    }
    // What a collection would remove.
    let collect = ["vault", "collect", "livesync-plain"];
    let (told, complaint) = fail(&[&collect[..], &url].concat());
    assert!(told.contains("Nothing may be removed now:\n  it is unknown what these devices"), "{told}");
    assert!(complaint.contains("nothing was removed"), "{complaint}");
    let told = succeed(&[&collect[..], &["--dry-run"], &url].concat(), "");
    assert!(told.starts_with("347 chunks (") && told.contains("\n13 chunks ("), "{told}");
    assert!(told.ends_with("Nothing was removed\n"), "{told}");
    // The devices of the fixture were at another database.
    let hold = "it is unknown what these devices have seen: headless-vault (), headless-vault (pziagfnzd6)";
    assert!(told.contains(&format!("Nothing may be removed now:\n  {hold}\n")), "{told}");
    let told = succeed(&[&collect[..], &["--dry-run", "--json"], &url].concat(), "");
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((&told["unreferenced"]["count"], &told["holds"]), (&json!(13), &json!([hold])));
    succeed(&[&["import", "bare", "-"][..], &url].concat(), &vault());
    let complaint = fail(&[&["vault", "collect", "bare", "--dry-run"][..], &url].concat()).1;
    assert!(complaint.contains("no \"_local/obsydian_livesync_milestone\""), "{complaint}");
    // A conflict whose past was not kept.
    import_fixture(&server, "livesync-e2ee");
    let file = |hash: &str| {
        json!({"_id": "both.md", "path": "both.md", "children": [], "type": "plain", "size": 0,
            "_revisions": {"start": 3, "ids": [hash.repeat(32), "c".repeat(32)]}})
    };
    for hash in ["a", "b"] {
        succeed(&[&["import", "livesync-e2ee", "-"][..], &url].concat(), &file(hash).to_string());
    }
    let collect_encrypted = ["vault", "collect", "livesync-e2ee", "--dry-run"];
    let (told, complaint) = fail(&[&collect_encrypted[..], &url].concat());
    let unknown = "\nunknown how many are needed by none\nDevices of the vault:\n";
    assert!(told.contains(unknown) && !told.contains("h:"), "{told}");
    assert!(complaint.contains("it is unknown which chunks no file needs"), "{complaint}");
    let told: Value =
        serde_json::from_str(&fail(&[&collect_encrypted[..], &["--json"], &url].concat()).0).expect("JSON");
    assert_eq!((&told["unreferenced"], &told["conflicts_with_unknown_past"]["count"]), (&Value::Null, &json!(1)));
    let report = succeed(&[&["vault", "doctor", "livesync-e2ee"][..], &url].concat(), "");
    let line = format!("  {:34} {:>11}\n", "chunks that no file needs", "unknown");
    assert!(report.contains(&line) && report.contains("other chunks, which may be needed"), "{report}");
    // A file without its chunk.
    let file = json!({"_id": "torn.md", "path": "Torn.md", "children": ["h:gone"], "type": "plain", "size": 1});
    succeed(&[&["import", "livesync-plain", "-"][..], &url].concat(), &file.to_string());
    let (report, complaint) = fail(&[&["vault", "doctor", "livesync-plain"][..], &url].concat());
    assert!(report.contains("Files that lack chunks: 1\n  Torn.md: 1 (h:gone)"), "{report}");
    assert!(complaint.contains("1 files lack chunks"), "{complaint}");
    assert_eq!(get(&server, "/livesync-plain/_couch_layer/vault")["missing"]["files"]["named"][0]["file"], "Torn.md");
}

#[test]
fn chunks_of_a_vault_are_collected_by_a_command_and_a_request() {
    let server = Server::start();
    let url = ["--url", server.url.as_str()];
    let name = "livesync-plain";
    import_fixture(&server, name);
    // Both devices have connected to this database.
    let seq = get(&server, &format!("/{name}"))["update_seq"].clone();
    let local = format!("/{name}/_local/obsydian_livesync_milestone");
    let mut milestone = get(&server, &local);
    for device in milestone["node_info"].as_object_mut().expect("devices").values_mut() {
        device["progress"] = seq.clone();
    }
    assert!(send(&server, "PUT", &local, &milestone).starts_with("HTTP/1.1 201"));
    let before = get(&server, &format!("/{name}"))["doc_count"].as_u64().expect("a number");
    let collect = |more: &[&str]| succeed(&[&["vault", "collect", name, "--grace", "0s"], more, &url].concat(), "");
    let told = succeed(&[&["vault", "collect", name][..], &url].concat(), "");
    assert!(told.contains("13 chunks were condemned; 13 are condemned now"), "{told}");
    let told = succeed(&[&["vault", "collect", name][..], &url].concat(), "");
    assert!(told.contains("0 chunks were condemned; 13 are condemned now\n0 chunks (0 B) were deleted"), "{told}");
    let told: Value = serde_json::from_str(&collect(&["--json"])).expect("JSON");
    assert_eq!(
        (&told["collected"]["deleted"]["count"], &told["collected"]["trash"]["deleted"]["count"]),
        (&json!(13), &json!(13))
    );
    assert_eq!(get(&server, &format!("/{name}"))["doc_count"], before - 13);
    // A file that names one brings it back.
    let chunk = get(&server, &format!("/{name}/_changes?limit=100000"))["results"]
        .as_array()
        .expect("rows")
        .iter()
        .find(|row| row["deleted"] == json!(true) && row["id"].as_str().is_some_and(|id| id.starts_with("h:")))
        .expect("a tombstone")["id"]
        .clone();
    let file = json!({"path": "undone.md", "children": [chunk], "type": "plain", "size": 1});
    assert!(send(&server, "PUT", &format!("/{name}/undone.md"), &file).starts_with("HTTP/1.1 201"));
    assert_eq!(get(&server, &format!("/{name}"))["doc_count"], before - 11);
    let told = collect(&[]);
    let line = told.lines().find(|line| line.contains(" were deleted; ")).unwrap_or_default();
    assert!(line.starts_with("0 chunks (0 B) were deleted; 12 chunks ("), "{told}");
    assert!(line.ends_with(" kB) are in the trash now"), "{told}");
    // The devices of the fixture have LiveSync's default, so they keep what was deleted.
    let line = told.lines().last().unwrap_or_default();
    assert!(line.starts_with("Nothing leaves the trash now: these devices keep chunks that were deleted"), "{told}");

    // The doctor shows what collections left, and those that the server does by itself.
    let doctor = || succeed(&[&["vault", "doctor", name][..], &url].concat(), "");
    let report = doctor();
    let line = report.lines().find(|line| line.starts_with("  in the trash ")).unwrap_or_default();
    assert!(line.contains(" 12 ") && line.ends_with(" kB"), "{report}");
    assert!(report.contains("\nCollection of chunks: no server does it by itself\n"), "{report}");
    let every = |time: &str| succeed(&[&["vault", "collect", name, "--every", time][..], &url].concat(), "");
    assert_eq!(every("1d"), "The server collects the chunks every 1day\n");
    let answer = format!("/{name}/_couch_layer/vault?examine=false");
    let end = Instant::now() + Duration::from_secs(120);
    while get(&server, &answer)["collect"]["last"]["at"].is_null() {
        assert!(Instant::now() < end, "the job runs");
        std::thread::sleep(Duration::from_millis(20));
    }
    let report = doctor();
    let times =
        "\nCollection of chunks: every 1d, 30d after they are condemned\n  no text leaves the trash\n  last run ";
    assert!(report.contains(times), "{report}");
    assert!(report.contains(" GMT: 0 condemned, 0 deleted\n    nothing leaves the trash: these devices "), "{report}");
    let told = get(&server, &answer);
    assert_eq!((&told["trash"]["deleted"]["count"], &told["files"]), (&json!(12), &Value::Null));
    assert_eq!(get(&server, &format!("/{name}/_couch_layer/vault"))["trash"], told["trash"]);
    assert_eq!(every("off"), "The server no longer collects the chunks\n");
    assert_eq!(get(&server, &answer)["collect"], Value::Null);

    // Now they pull all chunks. The trash waits until they have connected.
    let mut milestone = get(&server, &local);
    for settings in milestone["tweak_values"].as_object_mut().expect("settings").values_mut() {
        settings["readChunksOnline"] = json!(false);
    }
    assert!(send(&server, "PUT", &local, &milestone).starts_with("HTTP/1.1 201"));
    let complaint = fail(&[&["vault", "collect", name, "--trash", "47h"][..], &url].concat()).1;
    assert!(complaint.contains("--trash must be at least 2d: within it"), "{complaint}");
    let told = collect(&["--trash", "2d"]);
    assert!(told.lines().last().unwrap_or_default().starts_with("The trash waits for these devices, "), "{told}");
    let (mut milestone, seq) = (get(&server, &local), get(&server, &format!("/{name}"))["update_seq"].clone());
    for device in milestone["node_info"].as_object_mut().expect("devices").values_mut() {
        device["progress"] = seq.clone();
    }
    assert!(send(&server, "PUT", &local, &milestone).starts_with("HTTP/1.1 201"));
    // Nothing ends before its time, nor without one.
    for more in [&["--trash", "2d"][..], &["--trash", "30d"], &["--trash", "off"], &[]] {
        let told = collect(more);
        assert!(
            told.ends_with(" kB) are in the trash now\nAll devices have passed the deletion of 12 of them\n"),
            "{told}"
        );
    }
    assert_eq!(get(&server, &answer)["trash"]["deleted"]["count"], 12);

    // The passphrase does not help, and neither does a store without a list of devices.
    let complaint = fail(&[&["vault", "collect", name, "--passphrase-file", "none"][..], &url].concat()).1;
    assert!(complaint.contains("without the passphrase"), "{complaint}");
    let path = format!("/{name}/_couch_layer/vault");
    for (body, status) in [
        (json!({"grace": "soon"}), "400"),
        (json!({"trash": "soon"}), "400"),
        (json!({"trash": "0s"}), "400"),
        (json!({"purge_older_than": "90d"}), "400"),
        (json!([]), "400"),
    ] {
        let answer = send(&server, "POST", &path, &body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{body}: {answer}");
    }
    succeed(&[&["import", "bare", "-"][..], &url].concat(), &vault());
    let answer = send(&server, "POST", "/bare/_couch_layer/vault", &json!({}));
    assert!(answer.starts_with("HTTP/1.1 412") && answer.contains("obsydian_livesync_milestone"), "{answer}");
    let folder = tempfile::tempdir().expect("a folder");
    let engine = format!("lsm:{}", folder.path().join("data").display());
    let file = format!("{FIXTURES}/{name}.jsonl");
    succeed(&["import", name, &file, "--engine", &engine], "");
    let complaint = fail(&["vault", "collect", name, "--every", "1d", "--engine", &engine]).1;
    assert!(complaint.contains("name it with --url"), "{complaint}");
    let complaint = fail(&["vault", "collect", name, "--engine", &engine]).1;
    assert!(complaint.contains("no \"_local/obsydian_livesync_milestone\""), "{complaint}");
}

/// All files below a folder, with their content.
fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut files, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let content = std::fs::read(&path).expect("a file");
                files.insert(path.strip_prefix(root).expect("below it").to_owned(), content);
            }
        }
    }
    files
}

#[test]
fn vaults_of_livesync_are_migrated_collected_taken_back_and_pulled() {
    let server = Server::start();
    let url = ["--url", server.url.as_str()];
    let folder = tempfile::tempdir().expect("a folder");
    let passphrase = folder.path().join("passphrase").display().to_string();
    std::fs::write(&passphrase, "correct horse\n").expect("a file");
    let wrong = folder.path().join("wrong").display().to_string();
    std::fs::write(&wrong, "correct donkey\n").expect("a file");
    let kept = files(Path::new(&format!("{FIXTURES}/vault")));
    for name in ["livesync-plain", "livesync-e2ee", "livesync-e2ee-obfuscated"] {
        import_fixture(&server, name);
        let key = if name == "livesync-plain" { vec![] } else { vec!["--passphrase-file", passphrase.as_str()] };
        let on = |arguments: &[&str]| succeed(&[arguments, &key, &url].concat(), "");
        let refused = |arguments: &[&str]| fail(&[arguments, &url].concat());
        let export = || without_revisions(&succeed(&[&["export", name][..], &url].concat(), ""));
        let pull = |into: &str| {
            let into = folder.path().join(format!("{name}-{into}"));
            let pulled = on(&["vault", "pull", name, &into.display().to_string()]);
            assert!(pulled.contains("26 files written"), "{pulled}");
            assert_eq!(files(&into), kept, "{name}");
        };
        let before = export();
        pull("before");
        assert!(refused(&["chunks", "gc", name]).1.contains("never migrated"));
        assert_eq!(export(), before);

        let output = run(&[&["chunks", "migrate", name][..], &key, &url].concat(), "");
        assert!(output.status.success() && text(&output.stdout).contains("360 chunks"), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("LiveSync's own clients cannot read"), "{}", text(&output.stderr));
        let aggregated = export();
        if name.ends_with("obfuscated") {
            let complaint = refused(&["chunks", "gc", name]).1;
            assert!(
                complaint.contains("cannot read which chunks 27 files refer to") && complaint.contains("passphrase"),
                "{complaint}"
            );
            let (report, complaint) = refused(&["chunks", "verify", name]);
            assert!(
                report.contains("0 files refer to 0 chunks") && complaint.contains("27 files"),
                "{report}{complaint}"
            );
        }
        if !key.is_empty() {
            for arguments in [&["chunks", "gc", name][..], &["vault", "pull", name, "nowhere"], &["vault", "ls", name]]
            {
                let complaint = refused(&[arguments, &["--passphrase-file", &wrong]].concat()).1;
                assert!(complaint.contains("the passphrase is wrong"), "{complaint}");
            }
            assert!(!Path::new("nowhere").exists());
            let new = folder.path().join("new");
            std::fs::create_dir_all(&new).expect("a folder");
            std::fs::write(new.join("new.md"), "new").expect("a file");
            let complaint = refused(&["vault", "push", &new.display().to_string(), name]).1;
            assert!(complaint.contains("this vault is encrypted"), "{complaint}");
        }
        assert_eq!(export(), aggregated);

        let collected = on(&["chunks", "gc", name]);
        assert!(collected.contains("27 files refer to 347 chunks\n13 chunks condemned"), "{collected}");
        assert!(on(&["chunks", "verify", name]).contains("27 files refer to 347 chunks"));
        assert!(on(&["vault", "verify", name]).contains("27 files can be restored"));
        let listed = on(&["vault", "ls", name]);
        assert!(listed.lines().count() == 26 && listed.contains("  Projects/Beta/Tasks.md"), "{listed}");
        // Its age depends on the clock.
        let forgotten = on(&["vault", "forget", name, "--older-than", "30d", "--dry-run", "--json"]);
        let forgotten: Value = serde_json::from_str(&forgotten).expect("JSON");
        let counted = forgotten["files"].as_u64().zip(forgotten["kept"].as_u64()).map(|(files, kept)| files + kept);
        assert_eq!(counted, Some(1), "{forgotten}");
        pull("aggregated");
        on(&["chunks", "migrate", name, "--back"]);
        assert_eq!(export(), before);
        pull("back");
    }
}
