//! `couch-layer backup` and `couch-layer restore` as processes.
#![cfg(all(feature = "lsm", feature = "sled"))]

mod program;
#[path = "program/server.rs"]
mod server;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use program::commands::{couch_layer, refused, succeed};

fn import(folder: &Path, engine: &str, database: &str, lines: &str) {
    let file = folder.join("lines");
    std::fs::write(&file, lines).expect("a file");
    succeed(&["import", database, &file.display().to_string(), "--engine", engine]);
}

#[test]
fn a_store_is_backed_up_verified_pruned_and_restored_on_another_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (from, to) = (format!("lsm:{}", path("from")), format!("sled:{}", path("to")));
    let (repository, key) = (path("repository"), path("key"));
    std::fs::write(&key, "correct horse\n").expect("a file");
    import(folder.path(), &from, "notes", "{\"_id\":\"a\",\"n\":1}\n{\"_id\":\"b\"}\n");
    import(folder.path(), &from, "users/of", "{\"_id\":\"u\"}\n");

    let backup = ["backup", "--to", &repository, "--engine", &from];
    assert!(refused(&backup).contains("--no-encryption"), "nothing is left unencrypted by mistake");
    let backup = [&backup[..], &["--passphrase-file", &key]].concat();
    assert!(succeed(&backup).contains("databases: 2, copied as a whole: 2"));
    import(folder.path(), &from, "notes", "{\"_id\":\"c\"}\n");
    let said = succeed(&[&backup[..], &["notes", "--keep", "7d"]].concat());
    assert!(said.contains("databases: 1, copied as a whole: 0") && said.contains("removed: runs: 0"), "{said}");
    assert!(refused(&[&backup[..], &["--keep", "week"]].concat()).contains("a time such as 7d"));

    let listed = succeed(&["backup", "list", &repository, "--passphrase-file", &key]);
    assert!(listed.contains("notes: 2 documents") && listed.contains("notes: 3 documents"), "{listed}");
    let first = listed.split_whitespace().next().expect("a run").to_owned();
    assert!(
        succeed(&["backup", "verify", &repository, "--passphrase-file", &key]).contains("runs that can be restored: 2")
    );
    assert!(refused(&["backup", "verify", &repository, "--no-encryption"]).contains("is encrypted"));

    let restore = ["restore", &repository, "--passphrase-file", &key, "--engine", &to];
    assert!(succeed(&[&restore[..], &["notes"]].concat()).contains("notes: 3 documents"));
    assert!(refused(&[&restore[..], &["notes"]].concat()).contains("the database notes exists"));
    succeed(&[&restore[..], &["notes", "--run", &first, "--as", "before"]].concat());
    let exported = succeed(&["export", "before", "--engine", &to]);
    assert_eq!(exported.lines().count(), 2, "{exported}");
    assert_eq!(succeed(&["export", "notes", "--engine", &to]), succeed(&["export", "notes", "--engine", &from]));
    succeed(&["check", "notes", "--engine", &to]);

    let pack = folder.path().join("repository/packs").join(&first);
    let pack = std::fs::read_dir(pack).expect("a folder").next().expect("a pack").expect("a pack").path();
    let mut bytes = std::fs::read(&pack).expect("a file");
    bytes[100] ^= 1;
    std::fs::write(&pack, bytes).expect("a file");
    let said = refused(&["backup", "verify", &repository, "--passphrase-file", &key]);
    assert!(said.contains(pack.file_name().and_then(|name| name.to_str()).expect("a name")), "{said}");
    // Everything restorable is restored, and the rest is named.
    let third = format!("sled:{}", path("third"));
    let restore = ["restore", &repository, "--passphrase-file", &key, "--engine", &third];
    let said = refused(&[&restore[..], &["--run", &first]].concat());
    assert!(said.contains("databases that were not restored: "), "{said}");
    assert!(succeed(&[&backup[..], &["--whole"]].concat()).contains("databases: 2, copied as a whole: 2"));
    let last = format!("lsm:{}", path("last"));
    let restore = ["restore", &repository, "--passphrase-file", &key, "--engine", &last];
    assert!(succeed(&restore).contains("notes: 3 documents"));
}

#[test]
fn a_server_backs_up_what_it_serves() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let from = format!("lsm:{}", path("from"));
    let (repository, key) = (path("repository"), path("key"));
    std::fs::write(&key, "correct horse").expect("a file");
    import(folder.path(), &from, "notes", "{\"_id\":\"a\"}\n{\"_id\":\"b\"}\n");

    let open = server::Process::start(&["--engine", &from]);
    let backup = |url: &str| {
        couch_layer(&["backup", "--to", &repository, "--url", url, "--passphrase-file", &key, "--keep", "7d"])
    };
    let (success, _, said) = backup(&open.base);
    assert!(!success && said.contains("this server has none"), "{said}");
    drop(open);
    let mut command = server::command(&["--engine", &from, "--listen", "127.0.0.1:0"]);
    let served = server::Process::of(command.env("COUCHDB_USER", "anna").env("COUCHDB_PASSWORD", "secret"));
    let (success, _, said) = backup(&served.base);
    assert!(!success && !Path::new(&repository).exists(), "{said}");
    let url = served.base.replace("http://", "http://anna:secret@");
    let relative = ["backup", "--to", "repository", "--url", &url, "--no-encryption"];
    assert!(refused(&relative).contains("absolute path"));
    for whole in [1, 0] {
        let (success, said, complaint) = backup(&url);
        assert!(success && said.contains(&format!("copied as a whole: {whole}")), "{said}{complaint}");
    }
    // The server keeps serving, and so it owns the folder.
    assert!(refused(&["export", "notes", "--engine", &from]).contains("another process"));
    let to = format!("sled:{}", path("to"));
    succeed(&["restore", &repository, "--passphrase-file", &key, "--engine", &to]);
    assert_eq!(succeed(&["export", "notes", "--engine", &to]).lines().count(), 2);
    // A failed backup reports the reason, also to a later request.
    std::fs::remove_file(format!("{repository}/repository.json")).expect("a file");
    let (success, _, said) = backup(&url);
    assert!(!success && said.contains("repository.json is damaged: it is missing"), "{said}");
    assert!(served.stop("-TERM").success());
}

/// A server knows what is in a repository whose folder an administrator names: its runs, its size, whether it is whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_lists_and_verifies_the_repository_that_an_administrator_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let from = format!("lsm:{}", path("from"));
    let (repository, key) = (path("repository"), path("key"));
    std::fs::write(&key, "correct horse").expect("a file");
    import(folder.path(), &from, "notes", "{\"_id\":\"a\"}\n{\"_id\":\"b\"}\n");
    let backup = ["backup", "--to", &repository, "--passphrase-file", &key, "--engine", &from];
    // By the command, of which no server hears.
    succeed(&backup);
    succeed(&backup);

    let client = reqwest::Client::new();
    let served = server::Process::with_administrator(&from, &[]);
    let here = format!("{}/_couch_layer/backup", served.administrator_url());
    let post = async |what: &str, to: &str, key: &str| {
        let body = json!({"to": to, "passphrase_file": key});
        let request = client.post(format!("{here}/{what}")).header("content-type", "application/json");
        let answer = request.body(body.to_string()).send().await.expect("an answer");
        let status = answer.status().as_u16();
        (status, serde_json::from_str::<Value>(&answer.text().await.expect("a body")).expect("JSON"))
    };
    let (status, found) = post("runs", &repository, &key).await;
    assert_eq!((status, &found["number"], &found["problems"]), (200, &json!(2), &json!([])), "{found}");
    let run = &found["runs"][0];
    assert_eq!(
        (&run["databases"], &run["documents"], &run["not_renewed"]),
        (&json!(1), &json!(2), &json!([])),
        "{run}"
    );
    assert!(run["began_ms"].as_u64() > found["runs"][1]["began_ms"].as_u64(), "the newest is the first: {found}");
    let lengths = files_below(Path::new(&repository)).into_iter().map(|file| file.metadata().expect("a file").len());
    let on_disk: u64 = lengths.sum();
    assert_eq!((found["bytes"].as_u64(), found.get("shipped")), (Some(on_disk), None));

    let outcome = async || {
        loop {
            let state = server::get(&client, format!("{here}/verify")).await;
            if state["state"] != "running" {
                return state;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    assert_eq!(outcome().await, json!({"state": "none"}));
    assert_eq!(post("verify", &repository, &key).await.0, 202);
    let whole = outcome().await;
    assert_eq!((&whole["state"], &whole["to"], &whole["runs"]), (&json!("ended"), &json!(repository), &json!(2)));
    assert_eq!((&whole["number_of_problems"], &whole["bytes"]), (&json!(0), &json!(on_disk)), "{whole}");

    // A byte that has changed is found, and named.
    let pack = files_below(&Path::new(&repository).join("packs")).pop().expect("a pack");
    let mut bytes = std::fs::read(&pack).expect("a pack");
    *bytes.last_mut().expect("a byte") ^= 1;
    std::fs::remove_file(&pack).expect("a pack");
    std::fs::write(&pack, bytes).expect("a pack");
    assert_eq!(post("verify", &repository, &key).await.0, 202);
    let broken = outcome().await;
    let file = broken["problems"][0]["file"].as_str().expect("a file");
    assert!(pack.ends_with(file) && broken["number_of_problems"].as_u64() >= Some(1), "{broken}");

    // What is no repository, and the wrong key.
    std::fs::write(path("other"), "wrong").expect("a file");
    for (to, key, says) in [
        (&path("nowhere"), &key, "nowhere"),
        (&repository, &path("other"), "the passphrase does not open"),
        (&"relative".to_owned(), &key, "absolute path"),
        (&repository, &path("none"), "none: "),
    ] {
        let (status, said) = post("runs", to, key).await;
        let reason = said["reason"].as_str().expect("a reason");
        assert!((400..=500).contains(&status) && !reason.is_empty(), "{says}: {status} {said}");
        assert!(says == "nowhere" || reason.contains(says), "{says}: {said}");
        assert!(!reason.contains("correct horse"), "{said}");
    }
    assert_eq!(post("verify", &path("nowhere"), &key).await.0, 202);
    assert_eq!(outcome().await["state"], json!("failed"));
    assert!(served.stop("-TERM").success());
}

/// All files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}
