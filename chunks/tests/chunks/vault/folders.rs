//! Pushing and pulling folders.

use std::time::{Duration, UNIX_EPOCH};

use chunks::vault::{PullOptions, PushOptions};
use serde_json::json;

use super::{Bench, content, dice, messages, noise, text};
use crate::support::World;

crate::scenarios!(
    a_folder_comes_back_as_it_was,
    a_file_has_the_document_that_livesync_gives_it,
    what_is_there_already_is_left,
    what_differs_is_left_unless_it_is_forced,
    files_that_are_gone_are_deleted_only_if_asked,
    files_that_differ_in_case_alone_are_both_left,
);

async fn a_folder_comes_back_as_it_was(world: World) {
    let bench = Bench::new(&world, "vault").await;
    let mut dice = dice(1);
    bench.write("note.md", "from-a\n");
    bench.write("empty.md", "");
    bench.write("\u{dc}n\u{ef}c\u{f6}d\u{e9}/\u{1f600} \u{65e5}\u{672c}.md", text(&mut dice, 30_000));
    bench.write("_private/.hidden", "x");
    bench.write("a/b/c/d/e/f/g/h/i/j/k/deep.txt", text(&mut dice, 2_000));
    bench.write("large.txt", text(&mut dice, 1_500_000));
    bench.write("image.png", noise(&mut dice, 700_000));
    bench.write("image copy.png", noise(&mut dice, 1));
    bench.write("nul.bin", [0; 300_000]);
    bench.write("almost text.md", [b"text, and then ".as_slice(), &[0xe2, 0x82]].concat());
    bench.write("crlf \"quoted\" 'n' 12:30.md", "a\r\n\u{feff}b\u{0}\r\n");

    let pushed = bench.push().await;
    assert_eq!((pushed.written, pushed.unchanged), (11, 0), "{}", messages(&pushed.problems));
    assert!(pushed.problems.is_empty() && pushed.notes.is_empty());
    let into = tempfile::tempdir().unwrap();
    let folder = into.path().join("new/folder");
    let mut last = Default::default();
    let pulled = bench.vault.pull(&folder, PullOptions::default(), |at| last = at).await.unwrap();
    assert_eq!((pulled.written, pulled.equal), (11, 0), "{}", messages(&pulled.problems));
    assert_eq!((last.bytes, last.files), (last.total_bytes, 11));
    assert_eq!(last.bytes, pulled.bytes_written);
    assert_eq!(content(&folder), content(bench.root()));
    let mtime = |root: &std::path::Path| {
        let modified = root.join("note.md").metadata().unwrap().modified().unwrap();
        modified.duration_since(UNIX_EPOCH).unwrap().as_millis()
    };
    assert_eq!(mtime(&folder), mtime(bench.root()));

    let verified = bench.vault.verify(|_| ()).await.unwrap();
    assert_eq!((verified.files, verified.bytes), (11, pulled.bytes_written), "{}", messages(&verified.problems));
    let stats = bench.vault.stats(|_| ()).await.unwrap();
    assert_eq!((stats.files, stats.bytes), (11, pulled.bytes_written));
    assert_eq!((stats.stored_chunks, stats.referenced_chunks), (pushed.new_chunks, pushed.new_chunks));
    assert!((pushed.chunk_bytes..2 * pushed.chunk_bytes).contains(&stats.stored_bytes), "{stats:?}");
    assert_eq!((stats.offloaded_documents, stats.object_bytes), (0, 0));
    assert!(stats.references > stats.referenced_chunks, "zeros are all alike");
    assert_eq!(stats.database.documents, 11 + 1 + stats.index_documents + stats.data_documents);
    let mut paths = Vec::new();
    bench.vault.files(|file| paths.push((file.path, file.size))).await.unwrap();
    assert_eq!(paths.len(), 11);
    assert!(paths.contains(&("_private/.hidden".into(), 1)) && paths.contains(&("empty.md".into(), 0)));
}

async fn a_file_has_the_document_that_livesync_gives_it(world: World) {
    let bench = Bench::new(&world, "vault").await;
    bench.write("_Shared/From-A.txt", "from-a\n");
    bench.write("b.bin", [0xff, 0xfe]);
    let changed = UNIX_EPOCH + Duration::from_millis(1_795_221_368_666);
    for path in ["_Shared/From-A.txt", "b.bin"] {
        std::fs::File::options().write(true).open(bench.root().join(path)).unwrap().set_modified(changed).unwrap();
    }
    bench.push().await;
    let mut document = bench.document("/_shared/from-a.txt").await;
    let ctime = document["ctime"].take();
    assert!(ctime.as_u64().unwrap() > 0);
    assert_eq!(
        document,
        json!({"path": "_Shared/From-A.txt", "children": ["h:1ecijke328qp3"], "ctime": null,
               "mtime": 1_795_221_368_666_u64, "size": 7, "type": "plain", "eden": {}})
    );
    let document = bench.document("b.bin").await;
    assert_eq!((&document["type"], &document["size"]), (&json!("newnote"), &json!(2)));
    assert_eq!(document["children"], json!([chunks::chunk_id("//4=")]));
    assert_eq!(bench.document("chunks:settings").await["cutting"], json!("fastcdc-2020-a"));
}

async fn what_is_there_already_is_left(world: World) {
    let bench = Bench::new(&world, "vault").await;
    bench.write("a.md", text(&mut dice(2), 5_000));
    bench.write("b.bin", noise(&mut dice(3), 5_000));
    let pushed = bench.push().await;
    let revs = [bench.rev("a.md").await, bench.rev("b.bin").await];
    let figures = bench.store.figures().await.unwrap();
    // By size and time; by content; after the file was rewritten with equal content.
    let quick = bench.push().await;
    assert_eq!((quick.written, quick.unchanged, quick.bytes_read), (0, 2, 0));
    let whole = bench.push_with(PushOptions { checksum: true, ..Default::default() }).await;
    assert_eq!((whole.written, whole.unchanged, whole.bytes_read, whole.new_chunks), (0, 2, pushed.bytes_read, 0));
    bench.write("a.md", std::fs::read(bench.root().join("a.md")).unwrap());
    assert_eq!(bench.push().await.unchanged, 2);
    assert_eq!([bench.rev("a.md").await, bench.rev("b.bin").await], revs);
    assert_eq!(bench.store.figures().await.unwrap(), figures);

    let into = tempfile::tempdir().unwrap();
    assert_eq!(bench.pull(into.path()).await.written, 2);
    let again = bench.pull(into.path()).await;
    assert_eq!((again.written, again.equal), (0, 2));
    let again = bench.pull_with(into.path(), PullOptions { checksum: true, force: true }).await;
    assert_eq!((again.written, again.equal), (0, 2));
    // With another time: compared, and given the document's time.
    let a = std::fs::File::options().write(true).open(into.path().join("a.md")).unwrap();
    a.set_modified(UNIX_EPOCH).unwrap();
    let again = bench.pull(into.path()).await;
    assert_eq!((again.written, again.equal), (0, 2));
    assert!(a.metadata().unwrap().modified().unwrap() > UNIX_EPOCH);
}

async fn what_differs_is_left_unless_it_is_forced(world: World) {
    let bench = Bench::new(&world, "vault").await;
    bench.write("a.md", "one");
    bench.write("b.md", "three");
    bench.write("c.md", "same");
    bench.push().await;
    let into = tempfile::tempdir().unwrap();
    super::write(into.path(), "a.md", b"two");
    super::write(into.path(), "b.md", b"longer");
    super::write(into.path(), "else.md", b"else");
    // The times must differ for a.md, whose size does not.
    let a = std::fs::File::options().write(true).open(into.path().join("a.md")).unwrap();
    a.set_modified(UNIX_EPOCH).unwrap();
    let pulled = bench.pull(into.path()).await;
    assert_eq!((pulled.written, pulled.problems.len()), (1, 2));
    for path in ["a.md", "b.md"] {
        assert!(
            messages(&pulled.problems).contains(&format!("{path}: is different here")),
            "{}",
            messages(&pulled.problems)
        );
    }
    assert_eq!(std::fs::read(into.path().join("a.md")).unwrap(), b"two");
    assert_eq!(content(into.path()).len(), 4, "nothing is left behind");
    let pulled = bench.pull_with(into.path(), PullOptions { force: true, ..Default::default() }).await;
    assert_eq!((pulled.written, pulled.equal, pulled.problems.len()), (2, 1, 0));
    assert_eq!(std::fs::read(into.path().join("a.md")).unwrap(), b"one");
    assert_eq!(std::fs::read(into.path().join("else.md")).unwrap(), b"else");
}

async fn files_that_are_gone_are_deleted_only_if_asked(world: World) {
    let bench = Bench::new(&world, "vault").await;
    for path in ["a.md", "b.md", "c.md"] {
        bench.write(path, format!("this is {path}"));
    }
    bench.push().await;
    bench.remove("b.md");
    assert_eq!(bench.push().await.deleted, 0);
    assert!(bench.document("b.md").await.get("deleted").is_none());
    let delete = PushOptions { delete: true, ..Default::default() };
    assert_eq!(bench.push_with(delete).await.deleted, 1);
    let document = bench.document("b.md").await;
    assert_eq!((&document["deleted"], &document["size"]), (&json!(true), &json!(12)));
    let rev = bench.rev("b.md").await;
    assert_eq!(bench.push_with(delete).await.deleted, 0);
    assert_eq!(bench.rev("b.md").await, rev);

    let into = tempfile::tempdir().unwrap();
    let pulled = bench.pull(into.path()).await;
    assert_eq!((pulled.written, pulled.deleted), (2, 1));
    let mut listed = 0;
    bench.vault.files(|_| listed += 1).await.unwrap();
    assert_eq!(listed, 2);
    // Its content is kept, and it may return.
    assert_eq!(bench.vault.verify(|_| ()).await.unwrap().files, 3);
    bench.write("b.md", "this is b.md");
    assert_eq!(bench.push().await.written, 1);
    assert!(bench.document("b.md").await.get("deleted").is_none());
}

async fn files_that_differ_in_case_alone_are_both_left(world: World) {
    let bench = Bench::new(&world, "vault").await;
    bench.write("Notes/A.md", "upper");
    bench.write("notes/a.md", "lower");
    bench.write("notes/b.md", "b");
    if content(bench.root()).len() < 3 {
        // A file system that ignores case.
        return;
    }
    let delete = PushOptions { delete: true, ..Default::default() };
    let pushed = bench.push_with(delete).await;
    assert_eq!((pushed.written, pushed.problems.len()), (1, 1));
    assert!(
        messages(&pushed.problems).contains("Notes/A.md, notes/a.md would share one document"),
        "{}",
        messages(&pushed.problems)
    );
    bench.remove("Notes/A.md");
    assert_eq!(bench.push().await.written, 1);
    // A file that was pushed before is not marked as deleted because it is ambiguous now. A file renamed only in
    // its case is the same file, with another path.
    bench.write("Notes/A.md", "upper");
    assert_eq!(bench.push_with(delete).await.deleted, 0);
    bench.remove("notes/a.md");
    bench.write("Notes/A.md", "lower");
    assert_eq!(bench.push_with(delete).await.written, 1);
    assert_eq!(bench.document("notes/a.md").await["path"], "Notes/A.md");
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_file_is_named() {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    let world = World::in_process().await;
    let bench = Bench::new(&world, "vault").await;
    let outside = tempfile::tempdir().unwrap();
    super::write(outside.path(), "secret.md", b"secret");
    bench.write("a.md", "a");
    symlink(outside.path().join("secret.md"), bench.root().join("link.md")).unwrap();
    symlink(outside.path(), bench.root().join("linked")).unwrap();
    symlink(bench.root(), bench.root().join("loop")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(bench.root().join("socket")).unwrap();
    std::fs::write(bench.root().join(std::ffi::OsStr::from_bytes(b"bad\xff.md")), "x").unwrap();
    bench.write("back\\slash.md", "x");
    bench.write("h:1ecijke328qp3", "x");
    bench.write(".0123456789abcdef.couch-layer-part", "half");
    let pushed = bench.push().await;
    assert_eq!(pushed.written, 1);
    let messages = messages(&pushed.problems);
    for wanted in [
        "link.md: it is a symbolic link",
        "linked: it is a symbolic link",
        "loop: it is a symbolic link",
        "socket: it is not an ordinary file",
        "bad\u{fffd}.md: its name is not in UTF-8",
        "back\\slash.md: its path cannot be a file's: there is a backslash",
        "h:1ecijke328qp3: its path cannot be a file's",
    ] {
        assert!(messages.contains(wanted), "{wanted}: {messages}");
    }
    assert_eq!(pushed.problems.len(), 7, "{messages}");
    let missing = bench.vault.push(&bench.root().join("none"), PushOptions::default(), |_| ()).await;
    assert!(missing.unwrap_err().to_string().contains("none"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_whose_chunks_are_in_an_object_store_comes_back() {
    let world = World::in_process().await;
    let bench = Bench::new(&world, "vault").await;
    bench.write("image.png", noise(&mut dice(4), 700_000));
    bench.write("note.md", text(&mut dice(5), 40_000));
    let pushed = bench.push().await;
    let objects = tempfile::tempdir().unwrap();
    let location = format!("file:{}", objects.path().display());
    bench.vault.chunks().offload(&location, false, |_, _| ()).await.unwrap();
    let stats = bench.vault.stats(|_| ()).await.unwrap();
    assert!(stats.offloaded_documents > 0 && stats.object_bytes > 900_000, "{stats:?}");
    assert_eq!(stats.stored_chunks, pushed.new_chunks);
    assert_eq!(bench.vault.verify(|_| ()).await.unwrap().files, 2);
    let into = tempfile::tempdir().unwrap();
    assert_eq!(bench.pull(into.path()).await.written, 2);
    assert_eq!(content(into.path()), content(bench.root()));
    // Existing chunks are not stored again.
    let again = bench.push_with(PushOptions { checksum: true, ..Default::default() }).await;
    assert_eq!((again.unchanged, again.new_chunks), (2, 0));
}
