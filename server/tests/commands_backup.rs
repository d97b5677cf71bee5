//! `couch-layer backup` and `couch-layer restore` as processes.
#![cfg(all(feature = "lsm", feature = "sled"))]

mod program;
#[path = "program/server.rs"]
mod server;

use std::path::Path;

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
