//! The commands as processes, on their own data folder.
//!
//! The end-to-end tests run the commands beside a running server.

#![cfg(feature = "sled")]

mod program;

use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::Value;

/// Runs the program on the data folder `folder`/data with `input` as its standard input.
fn couch_layer(folder: &Path, arguments: &[&str], input: &str) -> Output {
    couch_layer_at(&["--engine", &format!("sled:{}", folder.join("data").display())], arguments, input)
}

/// The same on the store or server that `place` names.
fn couch_layer_at(place: &[&str], arguments: &[&str], input: &str) -> Output {
    program::run(&[arguments, place].concat(), input)
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[track_caller]
fn succeed(output: Output) -> String {
    assert!(output.status.success(), "{}{}", out(&output), err(&output));
    out(&output)
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_database_is_replicated_to_another_of_the_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let mut records: Vec<String> = (0..700).map(|n| format!(r#"{{"_id":"n{n:05}","n":{n}}}"#)).collect();
    records
        .push(r#"{"_id":"att","_attachments":{"f.txt":{"content_type":"text/plain","data":"aGVsbG8="}}}"#.to_owned());
    succeed(couch_layer(folder, &["import", "one", "-"], &records.join("\n")));
    let refused = couch_layer(folder, &["replicate", "one", "two"], "");
    assert!(err(&refused).contains("there is no database two"), "{}", err(&refused));
    assert!(err(&refused).contains("--create-target creates it"), "{}", err(&refused));
    let messages = succeed(couch_layer(folder, &["replicate", "one", "two", "--create-target"], ""));
    assert_eq!(messages.trim(), "701 read, 701 written, 0 failed");
    let [one, two] = ["one", "two"].map(|name| succeed(couch_layer(folder, &["export", name], "")));
    assert_eq!(one, two);
    let again = lines(&succeed(couch_layer(folder, &["replicate", "one", "two", "--json"], ""))).remove(0);
    let history = again["history"].as_array().expect("sessions");
    assert_eq!((history.len(), &history[0]["docs_written"]), (1, &Value::from(701)));
    let some = ["replicate", "one", "some", "--create-target", "--selector", r#"{"n":{"$lt":3}}"#];
    assert_eq!(succeed(couch_layer(folder, &some, "")).trim(), "3 read, 3 written, 0 failed");
    let some = ["replicate", "one", "few", "--create-target", "--doc-ids", "att,n00001,none"];
    assert_eq!(succeed(couch_layer(folder, &some, "")).trim(), "2 read, 2 written, 0 failed");
}

#[test]
fn a_database_is_replicated_to_one_of_another_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let [left, right] = ["left", "right"].map(|name| folder.path().join(name).display().to_string());
    let (at_left, at_right) = (format!("sled:{left}"), format!("sled:{right}"));
    let run = |arguments: &[&str]| program::run(&[&["replicate"], arguments].concat(), "");
    let import = |place: &str, record: &str| {
        succeed(couch_layer_at(&["--engine", place], &["import", "notes", "-"], record));
    };
    import(&at_left, r#"{"_id":"a"}"#);
    let both = ["notes", "notes", "--source-engine", &at_left, "--target-engine", &at_right];
    let refused = run(&both);
    assert!(err(&refused).contains(&format!("there is no data folder at {right}")), "{}", err(&refused));
    let done = succeed(run(&[&both[..], &["--create-target"]].concat()));
    assert_eq!(done.trim(), "1 read, 1 written, 0 failed");
    // Back, where --engine names the other folder and the name is enough. Checkpoints of the other direction are not
    // used.
    import(&at_right, r#"{"_id":"b"}"#);
    let back = ["notes", "notes", "--engine", &right, "--target-engine", &left];
    assert_eq!(succeed(run(&back)).trim(), "1 read, 1 written, 0 failed");
    let exported = |place: &str| succeed(couch_layer_at(&["--engine", place], &["export", "notes"], ""));
    assert_eq!(exported(&at_left), exported(&at_right));
    assert_eq!(exported(&at_left).lines().count(), 2);
    let again = lines(&succeed(run(&[&both[..], &["--json"]].concat()))).remove(0);
    assert_eq!(again["history"].as_array().expect("sessions").len(), 2, "it went on from its own checkpoint");

    // A folder that is named twice is opened once, whichever names it has.
    let roundabout = folder.path().join("right/../left").display().to_string();
    let one = ["notes", "copy", "--create-target", "--source-engine", &at_left, "--target-engine", &roundabout];
    assert_eq!(succeed(run(&one)).trim(), "2 read, 2 written, 0 failed");

    let place = format!("{left}/notes");
    for (arguments, expected) in [
        (&[&place, "notes"][..], "is neither a URL nor the name of a database"),
        (&[&format!("{at_left}/notes"), "notes"], "--source-engine"),
        (&["http://127.0.0.1:1/a", "notes", "--source-engine", &left], "behind a URL"),
        (&["none", "notes", "--engine", &left], "there is no database none"),
    ] {
        let refused = run(arguments);
        assert!(!refused.status.success() && err(&refused).contains(expected), "{arguments:?}: {}", err(&refused));
    }
}

#[test]
fn an_import_skips_documents_that_exist_if_it_is_told_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let records = r#"{"_id":"a","n":1}
        {"_id":"b","n":1}"#;
    succeed(couch_layer(folder, &["import", "notes", "-"], records));
    let more = r#"{"_id":"a","n":2}
        {"_id":"c","n":2}
        {"_id":"_bad"}"#;
    let refused = couch_layer(folder, &["import", "notes", "-", "--skip-existing", "--json"], more);
    // An id that is refused is a failure all the same.
    assert!(err(&refused).contains("1 of 3 records could not be imported"), "{}", err(&refused));
    let summary = lines(&out(&refused)).remove(0);
    assert_eq!([&summary["written"], &summary["skipped"], &summary["failed"]], [1, 1, 1]);
    let kept = lines(&succeed(couch_layer(folder, &["export", "notes"], "")));
    assert_eq!(kept.iter().map(|doc| doc["n"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(1), Some(2)]);
    let refused = couch_layer(folder, &["import", "notes", "-", "--json"], r#"{"_id":"a"}"#);
    assert!(err(&refused).contains("conflict"), "{}", err(&refused));
    assert!(lines(&out(&refused))[0].get("skipped").is_none());
}

/// A line of 72 MB.
#[test]
fn a_document_with_a_large_attachment_is_imported() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let data = "AAEC".repeat(18_000_000);
    let record = format!(r#"{{"_id":"large","_attachments":{{"f":{{"content_type":"x/y","data":"{data}"}}}}}}"#);
    succeed(couch_layer(folder, &["import", "one", "-"], &record));
    let exported = succeed(couch_layer(folder, &["export", "one"], ""));
    assert!(exported.contains(&data));
    succeed(couch_layer(folder, &["import", "two", "-"], &exported));
    assert!(succeed(couch_layer(folder, &["export", "two"], "")) == exported);
}

#[test]
fn all_leaves_are_exported_and_imported_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    // Two branches, of which one is deleted, a deleted document, compressed and plain attachments, and many others.
    let hash = |digit: &str| digit.repeat(32);
    let leaf = |id: &str, from: &str, to: &str, members: &str| {
        let revisions = format!(r#"{{"start":2,"ids":["{}","{}"]}}"#, hash(to), hash(from));
        format!(r#"{{"_id":"{id}","_rev":"2-{}","_revisions":{revisions}{members}}}"#, hash(to))
    };
    let text = "dGV4dGV4".repeat(500);
    let attached = format!(
        r#","_attachments":{{"a \"b\"":{{"content_type":"text/plain","data":"{text}"}},"g":{{"content_type":"x/y","data":"AAEC"}}}}"#
    );
    let mut records = vec![
        leaf("torn", "a", "b", r#","n":1"#),
        leaf("torn", "a", "c", &attached),
        leaf("torn", "a", "d", r#","_deleted":true"#),
        leaf("gone", "a", "b", r#","_deleted":true,"why":"old""#),
    ];
    records.extend((0..700).map(|n| leaf(&format!("n{n:05}"), "1", "2", &format!(r#","n":{n}"#))));
    succeed(couch_layer(folder, &["import", "one", "-"], &records.join("\n")));

    let plain = couch_layer(folder, &["export", "one"], "");
    assert!(
        err(&plain).contains("conflicts, deleted documents and histories, which --all-leaves exports"),
        "{}",
        err(&plain)
    );
    assert_eq!(succeed(plain).lines().count(), 701);
    let path = folder.join("leaves.jsonl").display().to_string();
    succeed(couch_layer(folder, &["export", "one", "--all-leaves", "--out", &path], ""));
    let exported = std::fs::read_to_string(&path).expect("the file");
    let sorted = |text: &str| {
        let mut all: Vec<String> = lines(text).iter().map(Value::to_string).collect();
        all.sort();
        all
    };
    let leaves = sorted(&exported);
    assert_eq!(leaves.len(), 704);
    let found = leaves.iter().filter(|leaf| leaf.contains(&text) && leaf.contains("AAEC") && leaf.contains(&hash("c")));
    assert_eq!(found.count(), 1);
    for _ in 0..2 {
        succeed(couch_layer(folder, &["import", "two", &path], ""));
        assert_eq!(sorted(&succeed(couch_layer(folder, &["export", "two", "--all-leaves"], ""))), leaves);
    }
}

#[test]
fn what_is_imported_is_exported_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    // Members in order, numbers as written, a record without an id, more than one batch.
    let mut records = vec![
        r#"{"_id":"z","b":1.0,"a":123456789012345678901234567890}"#.to_owned(),
        r#"{"_id":"_design/x","language":"none"}"#.to_owned(),
        r#"{"text":"\u0000 ☃"}"#.to_owned(),
        r#"{"_id":"att","_attachments":{"f.txt":{"content_type":"text/plain","data":"aGVsbG8="},"g":{"data":"AAEC"}}}"#
            .to_owned(),
    ];
    records.extend((0..1_200).map(|n| format!(r#"{{"_id":"n{n:05}","n":{n}}}"#)));
    let summary = succeed(couch_layer(folder, &["import", "one", "-", "--json"], &records.join("\n")));
    let summary = lines(&summary).remove(0);
    assert_eq!((&summary["written"], &summary["failed"]), (&1_204.into(), &0.into()));

    let exported = succeed(couch_layer(folder, &["export", "one"], ""));
    assert_eq!(exported.lines().count(), 1_204);
    assert!(exported.contains(r#""data":"aGVsbG8="}"#) && exported.contains(r#""data":"AAEC"}"#));
    let z = exported.lines().last().expect("lines");
    assert!(z.starts_with(r#"{"_id":"z","_rev":"1-"#), "{z}");
    assert!(z.ends_with(r#","b":1.0,"a":123456789012345678901234567890}"#), "{z}");
    let ids: Vec<Value> = lines(&exported).into_iter().map(|document| document["_id"].clone()).collect();
    assert!(ids.is_sorted_by(|a, b| a.as_str() < b.as_str()), "in the order of ids, each once");

    // Into a file and back, under the same revisions. A second import changes nothing.
    let file = folder.join("one.jsonl");
    let path = file.to_str().expect("UTF-8");
    succeed(couch_layer(folder, &["export", "one", "--out", path], ""));
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), exported);
    for _ in 0..2 {
        succeed(couch_layer(folder, &["import", "two", path], ""));
        assert_eq!(succeed(couch_layer(folder, &["export", "two"], "")), exported);
    }
    let changes = succeed(couch_layer(folder, &["changes", "two"], ""));
    assert_eq!(changes.lines().count(), 1_204);
    let last = lines(&changes).pop().expect("rows")["seq"].as_str().expect("a sequence").to_owned();
    assert_eq!(succeed(couch_layer(folder, &["changes", "two", "--since", &last], "")), "");
    for name in ["one", "two"] {
        let checked = succeed(couch_layer(folder, &["check", name, "--json"], ""));
        let report = lines(&checked).remove(0);
        assert_eq!((&report["documents"], &report["problem_count"]), (&1_204.into(), &0.into()));
        assert!(succeed(couch_layer(folder, &["check", name], "")).contains("everything agrees"));
    }
    let names: Vec<_> =
        std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(names.len(), 2, "no draft is left: {names:?}");
}

#[test]
fn a_damaged_database_is_repaired_where_that_is_asked_for() {
    use kv_api::{Database, RangeRequest, Read, Transaction};

    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let records = r#"{"_id":"a","n":1}
{"_id":"b","n":2}
{"_id":"c","n":3}"#;
    succeed(couch_layer(folder, &["import", "db", "-"], records));
    let sound = succeed(couch_layer(folder, &["export", "db"], ""));
    assert!(succeed(couch_layer(folder, &["check", "db", "--repair"], "")).contains("everything agrees"));
    assert_eq!(succeed(couch_layer(folder, &["export", "db"], "")), sound, "nothing to repair, nothing done");

    // The row of b's revision is cut.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let options = engine_sled::SledOptions::new();
        let store = engine_sled::SledDatabase::open(folder.join("data"), options).expect("the store");
        let transaction = store.begin().expect("a transaction");
        let revision = RangeRequest::prefix(&[0x15, 4, 0x14, 0x15, 4, 2, b'b', 0]);
        let row = transaction.get_range(&revision, Read::Snapshot).await.expect("rows").rows.remove(0);
        transaction.set(&row.key, &row.value[..3]);
        transaction.commit().await.expect("a commit");
    });
    let checked = couch_layer(folder, &["check", "db"], "");
    assert!(!checked.status.success() && out(&checked).contains("\"b\""), "{}", out(&checked));
    let repaired = couch_layer(folder, &["check", "db", "--repair"], "");
    let (said, messages) = (out(&repaired), err(&repaired));
    assert!(
        said.find("\"b\"").expect("what is wrong") < said.find("everything agrees").expect("a second check"),
        "{said}"
    );
    assert!(
        repaired.status.success() && messages.contains("one row moved") && messages.contains("left: 0"),
        "{messages}"
    );
    assert_eq!(succeed(couch_layer(folder, &["export", "db"], "")), sound, "its body was there to be read");
    let elsewhere = couch_layer_at(&["--url", "http://127.0.0.1:1"], &["check", "db", "--repair"], "");
    assert!(!elsewhere.status.success() && err(&elsewhere).contains("--repair"), "{}", err(&elsewhere));
}

/// Changes a byte in the file of tables that contains this text.
#[cfg(feature = "lsm")]
fn damage(folder: &Path, text: &str) {
    let tables = std::fs::read_dir(folder.join("data/tables")).expect("tables");
    let found = tables.filter(|table| {
        let path = table.as_ref().expect("an entry").path();
        let mut bytes = std::fs::read(&path).expect("a table");
        let at = bytes.windows(text.len()).position(|window| window == text.as_bytes());
        at.is_some_and(|at| {
            bytes[at + 3] ^= 1;
            std::fs::write(path, bytes).is_ok()
        })
    });
    assert_eq!(found.count(), 1);
}

/// A bad block of a table contains some documents among many.
#[cfg(feature = "lsm")]
#[test]
fn a_bad_block_costs_its_documents_and_no_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("store");
    let place = format!("lsm:{}", store.display());
    let run = |arguments: &[&str]| couch_layer_at(&["--engine", &place], arguments, "");
    // Texts that do not compress, even if one starts in the middle of a row.
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let text = |n: u64| -> String {
        let mut state = n + 1;
        let mut letter = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(letters[(state >> 58) as usize])
        };
        (0..624).map(&mut letter).collect()
    };
    let records: Vec<String> = (0..2_000).map(|n| format!(r#"{{"_id":"n{n:05}","text":"{}"}}"#, text(n))).collect();
    succeed(couch_layer_at(&["--engine", &place], &["import", "db", "-"], &records.join("\n")));
    let sound = succeed(run(&["export", "db"]));
    damage(&store, &text(1_000)[..32]);

    let checked = run(&["check", "db"]);
    assert_eq!(checked.status.code(), Some(1));
    let said = out(&checked);
    assert!(said.contains("\"n01000\": cannot be read"), "{said}");
    assert!(said.starts_with("db: 19"), "the others are counted: {said}");
    let file = folder.path().join("exported");
    let exported = run(&["export", "db", "--out", &file.display().to_string()]);
    assert_eq!(exported.status.code(), Some(1));
    let (left, named) = (std::fs::read_to_string(&file).expect("the file"), err(&exported));
    assert!(named.contains("\"n01000\" cannot be read and is left out"), "{named}");
    let lost = 2_000 - left.lines().count();
    assert!((1..20).contains(&lost) && named.matches("is left out").count() == lost, "{lost}: {named}");
    assert!(left.lines().all(|line| sound.lines().any(|other| other == line)));

    let repaired = run(&["check", "db", "--repair"]);
    let (said, messages) = (out(&repaired), err(&repaired));
    assert!(repaired.status.success() && said.contains("everything agrees"), "{said}{messages}");
    assert!(messages.contains("whose rows are given up: 1"), "{messages}");
    // Documents next to the damage, whose rows might have been in it, are readable again.
    let kept = succeed(run(&["export", "db"]));
    assert!((left.lines().count()..2_000).contains(&kept.lines().count()));
    assert!(left.lines().all(|line| kept.lines().any(|other| other == line)), "the rest is kept");
    assert!(kept.lines().all(|line| sound.lines().any(|other| other == line)));
    succeed(couch_layer_at(&["--engine", &place], &["import", "db", "-"], &records[1_000]));
}

#[test]
fn records_that_fail_are_named_and_spoil_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let input = [
        r#"{"key":"a"}"#,
        "",
        r#"{"key":"#,
        r#"{"key":7}"#,
        r#"{"other":1}"#,
        r#"{"key":"a","late":true}"#,
        r#"{"key":"_forbidden"}"#,
        r#"{"key":"b","_unknown":1}"#,
        "[1]",
        &format!(r#"{{"key":"big","text":"{}"}}"#, "x".repeat(8_000_001)),
    ]
    .join("\n");
    let output = couch_layer(folder.path(), &["import", "db", "-", "--id-field", "key", "--json"], &input);
    assert!(!output.status.success());
    let summary = lines(&out(&output)).remove(0);
    assert_eq!((&summary["written"], &summary["failed"]), (&2.into(), &7.into()), "{}", err(&output));
    let messages = err(&output);
    for (line, reason) in [
        (3, "invalid JSON"),
        (5, "has no \"key\""),
        (6, "conflict: Document update conflict."),
        (7, "illegal_docid"),
        (8, "doc_validation"),
        (9, "not a JSON object"),
        (10, "document_too_large"),
    ] {
        let sentence = messages.lines().find(|one| one.starts_with(&format!("line {line}: ")));
        assert!(sentence.is_some_and(|sentence| sentence.contains(reason)), "line {line}: {messages}");
    }
    assert!(messages.ends_with("couch-layer: 7 of 9 records could not be imported\n"), "{messages}");
    let exported = succeed(couch_layer(folder.path(), &["export", "db"], ""));
    let ids: Vec<Value> = lines(&exported).into_iter().map(|document| document["_id"].clone()).collect();
    assert_eq!(ids, ["7", "a"]);
}

#[test]
fn what_cannot_be_done_is_said_in_a_sentence_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    succeed(couch_layer(folder, &["import", "db", "-"], "{}"));
    let out_file = folder.join("none/out.jsonl");
    let cannot_write = format!("cannot write {}", out_file.display());
    for (arguments, sentence) in [
        (vec!["export", "other"], "there is no database other in sled:"),
        (vec!["changes", "db", "--since", "yesterday"], "\"yesterday\" is not a sequence"),
        (vec!["import", "Upper", "-"], "Upper"),
        (vec!["import", "db", "no-such-file"], "cannot read no-such-file"),
        (vec!["import", "db", folder.to_str().expect("UTF-8")], "is a folder"),
        (vec!["export", "db", "--out", out_file.to_str().expect("UTF-8")], cannot_write.as_str()),
    ] {
        let output = couch_layer(folder, &arguments, "");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let messages = err(&output);
        assert!(messages.starts_with("couch-layer: ") && messages.contains(sentence), "{arguments:?}: {messages}");
        assert_eq!(messages.lines().count(), 1, "{messages}");
    }
}

/// `couch-layer changes db | head -1` ends silently.
#[test]
fn a_reader_that_has_read_enough_is_no_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let records: String = (0..3_000).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    succeed(couch_layer(folder.path(), &["import", "db", "-"], &records));
    for command in ["changes", "export"] {
        let mut child = program::program()
            .args([command, "db", "--engine"])
            .arg(format!("sled:{}", folder.path().join("data").display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("the binary ends");
        assert!(output.status.success(), "{command}: {}", err(&output));
        assert_eq!(err(&output), "", "{command}");
    }
}

#[test]
fn a_vault_is_aggregated_collected_and_taken_apart_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let mut records = vec![
        r#"{"_id":"note.md","path":"note.md","children":["h:1ecijke328qp3","h:2mj7d2m7tephp"],"type":"plain","eden":{}}"#
            .to_owned(),
        r#"{"_id":"h:1ecijke328qp3","type":"leaf","data":"from-a\n"}"#.to_owned(),
        r#"{"_id":"h:2mj7d2m7tephp","type":"leaf","data":"base\n"}"#.to_owned(),
        r#"{"_id":"h:strange","type":"leaf","data":"x","more":1}"#.to_owned(),
    ];
    records.extend((0..300).map(|n| format!(r#"{{"_id":"h:{n}","type":"leaf","e_":true,"data":"%={n}"}}"#)));
    succeed(couch_layer(folder, &["import", "vault", "-"], &records.join("\n")));
    let export = || succeed(couch_layer(folder, &["export", "vault"], ""));
    let before = export();

    let planned = succeed(couch_layer(folder, &["chunks", "migrate", "vault", "--dry-run"], ""));
    assert!(planned.contains("302 chunks") && planned.contains("would be"), "{planned}");
    assert_eq!(export(), before);
    let migrated = succeed(couch_layer(folder, &["chunks", "migrate", "vault"], ""));
    assert!(migrated.contains("302 chunks") && migrated.contains("h:strange"), "{migrated}");
    assert!(migrated.contains("before: 304 documents") && migrated.contains("after:  6 documents"), "{migrated}");
    let verified = succeed(couch_layer(folder, &["chunks", "verify", "vault"], ""));
    assert!(verified.contains("1 files refer to 2 chunks"), "{verified}");
    let collected = succeed(couch_layer(folder, &["chunks", "gc", "vault"], ""));
    assert!(collected.contains("300 chunks condemned, 0 reprieved, 0 removed"), "{collected}");
    let again = succeed(couch_layer(folder, &["chunks", "gc", "vault", "--dry-run"], ""));
    assert!(again.contains("0 chunks would be condemned"), "{again}");
    let reindexed = succeed(couch_layer(folder, &["chunks", "reindex", "vault"], ""));
    assert!(reindexed.contains("0 chunks entered"), "{reindexed}");
    succeed(couch_layer(folder, &["chunks", "migrate", "vault", "--back"], ""));
    let without_revisions = |text: &str| {
        let mut documents = lines(text);
        for document in &mut documents {
            drop(document.as_object_mut().expect("an object").remove("_rev"));
        }
        documents
    };
    assert_eq!(without_revisions(&export()), without_revisions(&before));

    // A file with a missing chunk is reported, and makes the command fail.
    succeed(couch_layer(
        folder,
        &["import", "vault", "-"],
        r#"{"_id":"lost.md","children":["h:lost"],"type":"plain"}"#,
    ));
    let verified = couch_layer(folder, &["chunks", "verify", "vault"], "");
    assert!(!verified.status.success() && out(&verified).contains("h:lost is missing, for lost.md"));
}

#[test]
fn a_store_whose_versions_went_back_is_refused_until_it_is_adopted() {
    use kv_api::{Database, Transaction};

    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let url = format!("sled:{}", folder.join("data").display());
    let adopt = || program::run(&["adopt", &url], "");
    assert!(err(&adopt()).contains("there is no data folder"));
    succeed(couch_layer(folder, &["import", "notes", "-"], r#"{"_id":"a"}"#));
    // The id of a transaction of a far future, as a store that was copied here may have it.
    let engine =
        server::engine::open(&url.parse().expect("a URL"), server::engine::IfMissing::Fail).expect("an engine");
    let id = [&[0x15, 3, 0x1c, 0x70], &[0; 7][..], &[1, b'n', 0]].concat();
    tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let transaction = engine.begin().expect("a transaction");
        transaction.set(id, &[0x15, 1]);
        transaction.commit().await.expect("a commit");
    });
    drop(engine);
    let refused = couch_layer(folder, &["export", "notes"], "");
    assert!(!refused.status.success() && err(&refused).contains("`couch-layer adopt`"), "{}", err(&refused));
    assert_eq!(succeed(adopt()).trim(), format!("{url}: 1 database has a new incarnation"));
    assert!(succeed(couch_layer(folder, &["export", "notes"], "")).contains(r#""_id":"a""#));
    succeed(couch_layer(folder, &["check", "notes"], ""));
}

#[test]
fn a_folder_is_pushed_listed_verified_and_pulled() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = format!("sled:{}", folder.path().join("data").display());
    a_folder_through(folder.path(), &["--engine", &place]);
}

#[cfg(feature = "mem")]
#[test]
fn a_folder_is_pushed_and_pulled_through_a_server() {
    use server::http::{Options, Server};

    let folder = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let server = runtime.block_on(async {
        let engine = server::engine::open(&"mem:".parse().expect("a URL"), server::engine::IfMissing::Create);
        let layer = model::Layer::open(engine.expect("an engine"), model::LayerOptions::default()).await;
        let address = "127.0.0.1:0".parse().expect("an address");
        Server::start(layer.expect("a layer"), address, Options::default()).await.expect("a server")
    });
    a_folder_through(folder.path(), &["--url", &format!("http://{}", server.address())]);
}

fn a_folder_through(folder: &Path, place: &[&str]) {
    let vault = |arguments: &[&str]| couch_layer_at(place, &[&["vault"], arguments].concat(), "");
    let (from, into) = (folder.join("from"), folder.join("into"));
    let (from_name, into_name) = (from.to_str().expect("UTF-8"), into.to_str().expect("UTF-8"));
    assert!(!vault(&["push", from_name, "notes"]).status.success(), "there is no such folder");
    let write = |path: &str, content: &[u8]| {
        let path = from.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        std::fs::write(path, content).expect("it can be written");
    };
    write("Daily/Note.md", b"from-a\n");
    write("image.png", &[0xff; 100_000]);
    assert!(!vault(&["ls", "notes"]).status.success(), "there is no such database");

    let pushed = succeed(vault(&["push", from_name, "notes"]));
    assert!(pushed.contains("2 files written, 0 unchanged"), "{pushed}");
    let pushed = lines(&succeed(vault(&["push", from_name, "notes", "--checksum", "--json"]))).remove(0);
    assert_eq!((&pushed["unchanged"], &pushed["new_chunks"]), (&2.into(), &0.into()));

    let listed = lines(&succeed(vault(&["ls", "notes", "--json"])));
    assert_eq!((&listed[0]["path"], &listed[0]["size"]), (&"Daily/Note.md".into(), &7.into()));
    let shown = succeed(vault(&["ls", "notes"]));
    assert!(shown.lines().count() == 2 && shown.contains("       1  Daily/Note.md\n"), "{shown}");
    let verified = succeed(vault(&["verify", "notes"]));
    assert!(verified.contains("2 files can be restored"), "{verified}");
    let stats = lines(&succeed(vault(&["stats", "notes", "--json"]))).remove(0);
    assert_eq!((&stats["files"], &stats["bytes"]), (&2.into(), &100_007.into()));
    assert!(succeed(vault(&["stats", "notes"])).contains("2 files (100.01 kB)"));

    let pulled = succeed(vault(&["pull", "notes", into_name]));
    assert!(pulled.contains("2 files written"), "{pulled}");
    assert_eq!(std::fs::read(into.join("image.png")).expect("it is there"), [0xff; 100_000]);
    // A differing file is kept, and the exit code reports it.
    std::fs::write(into.join("Daily/Note.md"), "mine").expect("it can be written");
    let left = vault(&["pull", "notes", into_name]);
    assert!(!left.status.success() && out(&left).contains("Daily/Note.md: is different here"), "{}", out(&left));
    assert!(err(&left).contains("1 file could not be pulled"), "{}", err(&left));
    succeed(vault(&["pull", "notes", into_name, "--force"]));
    assert_eq!(std::fs::read(into.join("Daily/Note.md")).expect("it is there"), b"from-a\n");
    std::fs::remove_file(from.join("image.png")).expect("it is there");
    let pushed = succeed(vault(&["push", from_name, "notes", "--delete"]));
    assert!(pushed.contains("0 files written, 1 unchanged, 1 marked as deleted"), "{pushed}");
}

#[test]
fn full_data_documents_go_to_a_directory_and_come_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let ids: Vec<String> = (0..40).map(|n| format!("h:{n}")).collect();
    let mut records = vec![serde_json::json!({"_id": "note.md", "path": "note.md", "children": ids}).to_string()];
    records.extend(ids.iter().map(|id| {
        serde_json::json!({"_id": id, "type": "leaf", "e_": true, "data": format!("%={id}").repeat(1_000)}).to_string()
    }));
    succeed(couch_layer(folder, &["import", "vault", "-"], &records.join("\n")));
    succeed(couch_layer(folder, &["chunks", "migrate", "vault"], ""));
    let objects = folder.join("objects");
    let place = format!("file:{}", objects.display());
    let offload = |more: &[&str]| couch_layer(folder, &[&["chunks", "offload", "vault"], more].concat(), "");

    let absent = offload(&["--to", &place]);
    assert!(!absent.status.success() && err(&absent).contains("the directory must be there"), "{}", err(&absent));
    std::fs::create_dir(&objects).expect("a folder");
    let planned = succeed(offload(&["--to", &place, "--dry-run"]));
    assert!(planned.contains("1 data documents") && planned.contains("would become objects"), "{planned}");
    let moved = succeed(offload(&["--to", &place]));
    assert!(moved.contains("1 data documents") && moved.contains("after:  1 objects"), "{moved}");
    let exported = succeed(couch_layer(folder, &["export", "vault"], ""));
    assert!(exported.len() < 5_000 && exported.contains(&place), "{exported}");
    let verified = succeed(couch_layer(folder, &["chunks", "verify", "vault"], ""));
    assert!(verified.contains("40 chunks"), "{verified}");
    let collected = succeed(couch_layer(folder, &["chunks", "gc", "vault"], ""));
    assert!(collected.contains("0 chunks condemned"), "{collected}");
    // If the objects are missing, all commands name their place.
    let away = folder.join("away");
    std::fs::rename(&objects, &away).expect("it moves");
    let refused = couch_layer(folder, &["chunks", "verify", "vault"], "");
    assert!(!refused.status.success() && err(&refused).contains(&place), "{}", err(&refused));
    std::fs::rename(&away, &objects).expect("it moves back");
    let back = succeed(offload(&["--back", "--forget"]));
    assert!(back.contains("1 data documents") && back.contains("came back"), "{back}");
    assert!(back.contains("0 places forgotten"), "replicas may still read the object: {back}");
    let wrong = offload(&[]);
    assert!(!wrong.status.success() && err(&wrong).contains("--to"), "{}", err(&wrong));
}

#[test]
fn documents_that_were_deleted_long_ago_are_purged() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let deleted = |id: &str, ids: &str| {
        format!(r#"{{"_id":"{id}","_deleted":true,"_revisions":{{"start":2,"ids":[{ids}]}},"_rev":"2-x"}}"#)
    };
    let records = [
        r#"{"_id":"live"}"#.to_owned(),
        deleted("old", r#""x","a""#),
        deleted("old", r#""y","a""#),
        r#"{"_id":"revived","_rev":"1-b"}"#.to_owned(),
        deleted("revived", r#""x","a""#),
    ];
    succeed(couch_layer(folder, &["import", "one", "-"], &records.join("\n")));
    let rows = |name: &str| lines(&succeed(couch_layer(folder, &["changes", name], "")));
    let seq = rows("one").last().expect("rows")["seq"].as_str().expect("a sequence").to_owned();
    succeed(couch_layer(folder, &["import", "one", "-"], &deleted("new", r#""x","a""#)));
    let ids = || rows("one").iter().map(|row| row["id"].as_str().expect("an id").to_owned()).collect::<Vec<_>>();
    let before = ids();
    assert_eq!(before.len(), 4);

    let purge = |arguments: &[&str]| couch_layer(folder, &[&["purge", "one"], arguments].concat(), "");
    let dry = purge(&["--deleted-before-seq", &seq, "--dry-run"]);
    assert!(err(&dry).contains("old") && !err(&dry).contains("new"), "{}", err(&dry));
    assert_eq!(succeed(dry), "would be purged: 1\n");
    assert_eq!(ids(), before, "nothing changed");
    let done = purge(&["--deleted-before-seq", &seq]);
    assert!(err(&done).contains("bring them back"), "{}", err(&done));
    assert_eq!(succeed(done), "purged: 1\n");
    assert!(!ids().contains(&"old".to_owned()) && ids().contains(&"new".to_owned()));

    // Times are known from notes of earlier runs.
    assert_eq!(succeed(purge(&["--deleted-before", "0d", "--dry-run"])), "would be purged: 0\n");
    assert_eq!(succeed(purge(&["--deleted-before", "0d"])), "purged: 0\n", "this run notes the first sequence");
    assert_eq!(succeed(purge(&["--deleted-before", "1d"])), "purged: 0\n", "which is not a day old");
    assert_eq!(succeed(purge(&["--deleted-before", "0h"])), "purged: 1\n");
    assert_eq!(ids().len(), 2);
    assert!(!purge(&[]).status.success() && !purge(&["--deleted-before", "soon"]).status.success());
    assert!(!purge(&["--deleted-before", "1d", "--deleted-before-seq", "0"]).status.success());
    succeed(couch_layer(folder, &["check", "one"], ""));
}

#[test]
fn the_layout_of_a_database_is_changed_and_a_tree_is_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let evil = "<script>&\"";
    let record = |rev: &str| serde_json::json!({"_id": evil, "_rev": rev, "n": [1, {"m": null}]}).to_string();
    succeed(couch_layer(folder, &["import", "one", "-"], &[record("1-a"), record("1-b")].join("\n")));
    let before = succeed(couch_layer(folder, &["export", "one"], ""));
    assert_eq!(succeed(couch_layer(folder, &["format", "one"], "")), "one: packed\n");
    assert_eq!(succeed(couch_layer(folder, &["format", "one", "exploded"], "")), "one: exploded\n");
    assert_eq!(succeed(couch_layer(folder, &["format", "one"], "")), "one: exploded\n");
    assert!(!couch_layer(folder, &["format", "one", "flat"], "").status.success());
    assert_eq!(succeed(couch_layer(folder, &["export", "one"], "")), before);
    succeed(couch_layer(folder, &["check", "one"], ""));

    let drawn = succeed(couch_layer(folder, &["tree", "one", evil], ""));
    assert_eq!(drawn, "├─ 1-a  conflict\n└─ 1-b  winner\n");
}

#[test]
fn conflicts_are_listed_and_their_tree_is_printed() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let record = |id: &str, ids: &str, deleted: bool| {
        format!(r#"{{"_id":"{id}","_deleted":{deleted},"_rev":"2-x","_revisions":{{"start":2,"ids":[{ids}]}}}}"#)
    };
    let records = [
        record("both", r#""a","r""#, false),
        record("both", r#""b","r""#, false),
        record("both", r#""c","r""#, true),
        record("ended", r#""a","r""#, false),
        record("ended", r#""b","r""#, true),
        r#"{"_id":"calm"}"#.to_owned(),
    ];
    succeed(couch_layer(folder, &["import", "one", "-"], &records.join("\n")));
    assert_eq!(succeed(couch_layer(folder, &["conflicts", "one"], "")), "both\t2-b\t2-a\n");
    let tree = succeed(couch_layer(folder, &["tree", "one", "both"], ""));
    let lines: Vec<Vec<&str>> = tree.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 4, "{tree}");
    assert_eq!(lines[0][0], "1-r", "{tree}");
    for (rev, what) in [("2-a", "conflict"), ("2-b", "winner"), ("2-c", "deleted")] {
        assert!(lines.iter().any(|line| line.ends_with(&[rev, what])), "{rev}: {tree}");
    }
    assert!(err(&couch_layer(folder, &["tree", "one", "none"], "")).contains("none"));
    assert!(!couch_layer(folder, &["conflicts", "none"], "").status.success());
}

#[test]
fn shells_and_man_are_told_of_every_option() {
    let script = program::run(&["completions", "bash"], "");
    assert!(script.status.success());
    let script = String::from_utf8(script.stdout).unwrap();
    assert!(script.contains("--metrics-listen"), "{script}");
    let folder = tempfile::tempdir().unwrap();
    assert!(program::run(&["man", &folder.path().display().to_string()], "").status.success());
    let page = std::fs::read_to_string(folder.path().join("couch-layer-serve.1")).unwrap();
    assert!(page.contains("metrics\\-listen"), "{page}");
    assert!(folder.path().join("couch-layer.1").exists());
    assert!(
        !program::run(&["--help"], "").stdout.windows(11).any(|text| text == b"completions"),
        "they are for packages"
    );
}
