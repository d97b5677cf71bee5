//! Documents written by others: LiveSync's own form, unreadable ones, and those that must not be written.

use base64::Engine;
use serde_json::{Value, json};

use super::{Bench, content, messages};
use crate::support::World;

crate::scenarios!(
    a_vault_in_livesyncs_form_is_pulled,
    every_form_of_the_plugin_is_read,
    nothing_is_written_outside_the_folder,
    what_is_damaged_is_named_and_spoils_nothing_else,
    what_is_closed_is_named_and_not_written_over,
    a_database_that_is_cut_otherwise_is_left,
);

fn file(path: &str, children: Value, size: u64) -> Value {
    json!({"path": path, "children": children, "ctime": 1, "mtime": 1_795_221_368_666_u64, "size": size,
           "type": "plain", "eden": {}})
}

async fn a_vault_in_livesyncs_form_is_pulled(world: World) {
    let bench = Bench::new(&world, "vault").await;
    let mut inline = file("eden.md", json!(["h:1ecijke328qp3", "h:inline"]), 9);
    inline["eden"] = json!({"h:inline": {"data": "\u{fc}", "epoch": 1}});
    let mut binary = file("b.png", json!(["h:p1", "h:p2"]), 6);
    binary["type"] = json!("newnote");
    let mut gone = file("gone.md", json!([]), 0);
    gone["deleted"] = json!(true);
    bench
        .put(vec![
            ("h:1ecijke328qp3", json!({"type": "leaf", "data": "from-a\n"})),
            ("h:2mj7d2m7tephp", json!({"type": "leaf", "data": "base\n"})),
            // One base64 text, cut anywhere.
            ("h:p1", json!({"type": "leaf", "data": "YWJjYWJ"})),
            ("h:p2", json!({"type": "leaf", "data": "jY"})),
            ("shared/from-a.txt", file("Shared/From-A.txt", json!(["h:1ecijke328qp3"]), 7)),
            ("both.md", file("both.md", json!(["h:1ecijke328qp3", "h:2mj7d2m7tephp", "h:1ecijke328qp3"]), 19)),
            ("eden.md", inline),
            ("b.png", binary),
            ("gone.md", gone),
            ("/_x.md", json!({"children": [], "size": 0, "type": "plain", "mtime": 1})),
            ("obsydian_livesync_version", json!({"version": 12, "type": "versioninfo"})),
            ("i:.obsidian/app.json", file("i:.obsidian/app.json", json!(["h:1ecijke328qp3"]), 7)),
        ])
        .await;
    let into = tempfile::tempdir().unwrap();
    let pulled = bench.pull(into.path()).await;
    let messages = messages(&pulled.problems);
    assert_eq!((pulled.written, pulled.deleted), (4, 1), "{messages}");
    // Nine characters of base64 cannot be decoded.
    assert_eq!(messages.lines().count(), 1, "{messages}");
    assert!(messages.contains("b.png: its last chunk ends in the middle"), "{messages}");
    bench.put(vec![("h:p2", json!({"type": "leaf", "data": "j"}))]).await;
    assert_eq!(bench.pull(into.path()).await.written, 1);
    let found: Vec<(String, Vec<u8>)> =
        content(into.path()).into_iter().map(|(path, content)| (path.display().to_string(), content)).collect();
    let expected = [
        ("Shared/From-A.txt", "from-a\n"),
        ("_x.md", ""),
        ("b.png", "abcabc"),
        ("both.md", "from-a\nbase\nfrom-a\n"),
        ("eden.md", "from-a\n\u{fc}"),
    ];
    assert_eq!(found, expected.map(|(path, content)| (path.to_owned(), content.as_bytes().to_vec())));
    // The same after the chunks have been aggregated.
    bench.vault.chunks().migrate(false, |_, _| ()).await.unwrap();
    let other = tempfile::tempdir().unwrap();
    assert_eq!(bench.pull(other.path()).await.written, 5);
    assert_eq!(content(other.path()), content(into.path()));
}

async fn every_form_of_the_plugin_is_read(world: World) {
    let bench = Bench::new(&world, "vault").await;
    let text = format!("Größe: {}", "a line that is written again and again\n".repeat(6));
    let bytes: Vec<u8> = (0..300_u32).map(|number| (number % 7) as u8).collect();
    let base64 = base64::engine::general_purpose::STANDARD.encode(&bytes);
    let (of_text, of_bytes) = (chunks::chunk_id(&text), chunks::chunk_id(&base64));
    let mut binary = file("compressed.png", json!([of_bytes]), 300);
    binary["type"] = json!("newnote");
    let mut oldest = file("/Oldest.md", json!([]), 5);
    oldest.as_object_mut().unwrap().remove("children");
    oldest["type"] = json!("notes");
    oldest["data"] = json!(["old", "\u{fc}"]);
    let mut oldest_bytes = oldest.clone();
    oldest_bytes["path"] = json!("oldest.png");
    oldest_bytes["data"] = json!("YWJjYWI=");
    bench
        .put(vec![
            // Compressed by fflate 0.8.2 at level 8, as the plugin does it.
            (
                of_text.as_str(),
                json!({"type": "leaf", "data":
                    "\u{e}LZ\u{1d}cy86vO3w/FQrhUSFnMy8VIWSjMQShcxihfKizJKS1DyFxPTETCCZlwJhcQ0DZQA="}),
            ),
            (of_bytes.as_str(), json!({"type": "leaf", "data": "\u{e}LZ\u{1d}~Y2BkYmZhZRuliKAA"})),
            ("h:external", json!({"type": "leaf", "data": "by another program\n"})),
            ("compressed.md", file("/Compressed.md", json!([of_text, "h:external"]), text.len() as u64 + 19)),
            ("compressed.png", binary),
            ("oldest.md", oldest),
            ("oldest.png", oldest_bytes),
        ])
        .await;
    let check = async || {
        let into = tempfile::tempdir().unwrap();
        let pulled = bench.pull(into.path()).await;
        assert_eq!((pulled.written, pulled.problems.len()), (4, 0), "{}", messages(&pulled.problems));
        let found = content(into.path());
        let found: Vec<(&str, &[u8])> =
            found.iter().map(|(path, content)| (path.to_str().unwrap(), content.as_slice())).collect();
        let whole = format!("{text}by another program\n");
        let expected: [(&str, &[u8]); 4] = [
            ("Compressed.md", whole.as_bytes()),
            ("Oldest.md", "old\u{fc}".as_bytes()),
            ("compressed.png", &bytes),
            ("oldest.png", b"abcab"),
        ];
        assert_eq!(found, expected);
        let verified = bench.vault.verify(|_| ()).await.unwrap();
        assert_eq!((verified.files, verified.problems.len()), (4, 0), "{}", messages(&verified.problems));
        let warned = messages(&verified.warnings);
        assert!(
            warned.contains("Compressed.md: 1 of its chunks have ids") && warned.contains("h:external"),
            "{warned}"
        );
        assert_eq!(verified.warnings.len(), 1, "{warned}");
    };
    check().await;
    let stats = bench.vault.stats(|_| ()).await.unwrap();
    assert_eq!((stats.files, stats.references, stats.own_documents), (4, 3, 3));
    // The same after the chunks have been aggregated.
    bench.vault.chunks().migrate(false, |_, _| ()).await.unwrap();
    check().await;
}

async fn nothing_is_written_outside_the_folder(world: World) {
    let bench = Bench::new(&world, "vault").await;
    bench.put(vec![("h:1ecijke328qp3", json!({"type": "leaf", "data": "from-a\n"}))]).await;
    let root = tempfile::tempdir().unwrap();
    let (into, outside) = (root.path().join("into"), root.path().join("outside"));
    std::fs::create_dir_all(&into).unwrap();
    std::fs::create_dir_all(&outside).unwrap();
    // One slash before a path stands for nothing, as in LiveSync.
    let absolute = format!("/{}", outside.join("x.md").display());
    let paths = [
        "../outside/x.md",
        "a/../../outside/x.md",
        "..",
        ".",
        "",
        "a//b",
        "a/./b",
        "..\\outside\\x.md",
        "C:\\x.md",
        "c:x.md",
        "a\u{0}b",
        "a/",
        absolute.as_str(),
    ];
    for (number, path) in paths.iter().enumerate() {
        let id = format!("{number:02}");
        bench.put(vec![(id.as_str(), file(path, json!(["h:1ecijke328qp3"]), 7))]).await;
    }
    bench.put(vec![("fine.md", file("sub/fine.md", json!(["h:1ecijke328qp3"]), 7))]).await;
    let pulled = bench.pull(&into).await;
    assert_eq!((pulled.written, pulled.problems.len()), (1, paths.len()), "{}", messages(&pulled.problems));
    for path in paths {
        let path = path.strip_prefix('/').unwrap_or(path);
        assert!(pulled.problems.iter().any(|problem| problem.path == path), "{path:?} is not named");
    }
    assert_eq!(content(root.path()).len(), 1);

    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        super::write(&outside, "precious.md", b"precious");
        symlink(&outside, into.join("linked")).unwrap();
        symlink(outside.join("precious.md"), into.join("link.md")).unwrap();
        symlink(outside.join("none.md"), into.join("dangling.md")).unwrap();
        super::write(&into, "file", b"in the way");
        let mut documents = vec![];
        for (id, path) in [
            ("l1", "linked/x.md"),
            ("l2", "link.md"),
            ("l3", "dangling.md"),
            ("l4", "file/x.md"),
            ("l5", "sub"),
            ("l6", "linked/deep/x.md"),
        ] {
            documents.push((id, file(path, json!(["h:1ecijke328qp3"]), 7)));
        }
        bench.put(documents).await;
        let before = content(root.path());
        let pulled = bench.pull_with(&into, chunks::vault::PullOptions { force: true, checksum: true }).await;
        let messages = messages(&pulled.problems);
        for wanted in [
            "linked/x.md: the folder linked is a symbolic link here",
            "link.md: a symbolic link is in its place",
            "dangling.md: a symbolic link is in its place",
            "file/x.md: the folder file is a file here",
            "sub: a folder is in its place",
            "linked/deep/x.md: the folder linked is a symbolic link here",
        ] {
            assert!(messages.contains(wanted), "{wanted}: {messages}");
        }
        assert_eq!((pulled.written, pulled.equal), (0, 1), "{messages}");
        // `into/linked` is not a folder of this tree: reading it would follow the link.
        assert_eq!(content(&outside), [("precious.md".into(), b"precious".to_vec())].into());
        assert_eq!(content(root.path()), before);
    }
}

async fn what_is_damaged_is_named_and_spoils_nothing_else(world: World) {
    let bench = Bench::new(&world, "vault").await;
    bench.write("a.md", "a file that is in order");
    bench.push().await;
    let twice = file("twice.md", json!(["h:1ecijke328qp3"]), 7);
    let mut binary = file("binary", json!(["h:1ecijke328qp3"]), 7);
    binary["type"] = json!("newnote");
    bench
        .put(vec![
            ("h:1ecijke328qp3", json!({"type": "leaf", "data": "from-a\n"})),
            ("h:2mj7d2m7tephp", json!({"type": "leaf", "data": "not base\n"})),
            ("missing.md", file("missing.md", json!(["h:1ecijke328qp3", "h:none", "h:none", "h:too"]), 7)),
            ("size.md", file("size.md", json!(["h:1ecijke328qp3"]), 8)),
            ("other.md", file("other.md", json!(["h:2mj7d2m7tephp"]), 9)),
            ("twice.md", twice.clone()),
            ("twice again.md", twice),
            ("binary", binary),
            ("strange", json!({"children": "none", "type": "plain", "size": 1})),
            ("huge.md", file("huge.md", json!(["h:1ecijke328qp3"]), 9_007_199_254_740_991)),
        ])
        .await;
    let into = tempfile::tempdir().unwrap();
    let pulled = bench.pull(into.path()).await;
    let named = messages(&pulled.problems);
    for wanted in [
        "missing.md: 2 of its 4 chunks are missing: h:none, h:too",
        "size.md: its chunks have 7 bytes, and its document says 8",
        "huge.md: its chunks have 7 bytes",
        "twice.md: the document \"twice.md\" is another one of this path",
        "binary: its chunk h:1ecijke328qp3 is not in base64",
        "strange: is damaged: \"children\" is not a list of ids",
    ] {
        assert!(named.contains(wanted), "{wanted}: {named}");
    }
    assert_eq!((pulled.written, pulled.problems.len()), (3, 6), "{named}");
    assert_eq!(content(into.path()).len(), 3, "no part of a file is left behind");

    let verified = bench.vault.verify(|_| ()).await.unwrap();
    let named = messages(&verified.problems);
    for wanted in ["missing.md: 2 of", "size.md: ", "huge.md: ", "binary: "] {
        assert!(named.contains(wanted), "{wanted}: {named}");
    }
    assert_eq!((verified.files, verified.problems.len()), (4, 5), "{named}");
    // Other programs give other ids.
    let warned = messages(&verified.warnings);
    assert!(warned.contains("other.md: 1 of its chunks have ids that are not the hash"), "{warned}");
    assert_eq!(verified.warnings.len(), 1, "{warned}");
}

async fn what_is_closed_is_named_and_not_written_over(world: World) {
    let bench = Bench::new(&world, "vault").await;
    bench
        .put(vec![
            ("h:+u3yj679xuo58", json!({"type": "leaf", "e_": true, "data": "%=Lx6Xqs/Zqx"})),
            ("h:odd", json!({"type": "leaf", "e_": true, "data": "%=Lx"})),
            ("secret.md", file("secret.md", json!(["h:+u3yj679xuo58"]), 7)),
            ("f:0123", file("/\\:%=abc", json!([]), 0)),
            ("odd.md", file("odd.md", json!(["h:odd"]), 7)),
            ("old.md", json!({"type": "notes", "data": "x"})),
            ("thing", json!({"n": 1})),
        ])
        .await;
    let into = tempfile::tempdir().unwrap();
    let pulled = bench.pull(into.path()).await;
    let named = messages(&pulled.problems);
    for wanted in [
        "secret.md: is encrypted",
        "f:0123: is encrypted",
        "odd.md: its chunk h:odd is encrypted",
        "old.md: is damaged: its size is not a number",
    ] {
        assert!(named.contains(wanted), "{wanted}: {named}");
    }
    assert_eq!((pulled.written, pulled.problems.len()), (0, 4), "{named}");

    // Its clients have since agreed not to encrypt.
    let milestone = json!({"tweak_values": {"PREFERRED": {"encrypt": false}}});
    world.put_local("vault", "_local/obsydian_livesync_milestone", milestone.as_object().unwrap().clone()).await;
    let revs = [bench.rev("secret.md").await, bench.rev("thing").await];
    bench.write("secret.md", "not so secret");
    bench.write("thing", "thing");
    bench.write("new.md", "new");
    let pushed = bench.push_with(chunks::vault::PushOptions { delete: true, ..Default::default() }).await;
    let named = messages(&pushed.problems);
    assert!(named.contains("secret.md: its document is encrypted"), "{named}");
    assert!(named.contains("thing: the database has a document \"thing\" that is not a file"), "{named}");
    assert_eq!((pushed.written, pushed.problems.len()), (1, 2), "{named}");
    assert_eq!([bench.rev("secret.md").await, bench.rev("thing").await], revs);
    assert_eq!(pushed.deleted, 1, "odd.md, whose document does not say that it is encrypted");
}

async fn a_database_that_is_cut_otherwise_is_left(world: World) {
    let bench = Bench::new(&world, "vault").await;
    bench.write("a.md", "a");
    bench.push().await;
    let mut settings = bench.document("chunks:settings").await;
    settings["cutting"] = json!("rabin-2031");
    bench.put(vec![("chunks:settings", settings)]).await;
    bench.write("b.md", "b");
    let refused = bench.vault.push(bench.root(), Default::default(), |_| ()).await.unwrap_err().to_string();
    assert!(refused.contains("rabin-2031") && refused.contains("fastcdc-2020-a"), "{refused}");
    let into = tempfile::tempdir().unwrap();
    assert_eq!(bench.pull(into.path()).await.written, 1, "it can be read all the same");
}
