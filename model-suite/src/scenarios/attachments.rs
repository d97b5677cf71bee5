//! Attachments: written inline and uploaded, read, stored once, and removed with their last leaf.

use bytes::Bytes;
use kv_api::{Database, RangeRequest, Read, TransactionExt};
use model::{
    Attachment, AttachmentDigest, AttachmentEdit, AttachmentSource, Documents, Edit, Encoding, GetOptions, JsonText,
    RevId, RevisionTerm, UploadAs, WriteMode,
};

use crate::stage::*;

/// An attachment with data.
pub(crate) fn inline(name: &str, content_type: &str, data: impl Into<Vec<u8>>) -> AttachmentEdit {
    let source = AttachmentSource::Data(Bytes::from(data.into()));
    AttachmentEdit { name: name.to_owned(), content_type: content_type.to_owned(), revpos: None, source }
}

pub(crate) fn with(edit: Edit, attachments: Vec<AttachmentEdit>) -> Edit {
    Edit { attachments, ..edit }
}

/// All bytes of an attachment, uncompressed.
async fn content<D: Database>(documents: &Documents<D>, id: &str, rev: Option<&RevId>, name: &str) -> Vec<u8> {
    let (_, mut reader) = documents.attachment(id, rev, name).await.expect("an attachment");
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next().await.expect("a piece") {
        bytes.extend_from_slice(&piece);
    }
    bytes
}

/// Number of rows of contents, parts, references and uploads.
pub(crate) async fn rows<D: Database>(engine: &D) -> [usize; 4] {
    let transaction = engine.begin().unwrap();
    let all = RangeRequest::keys(Bytes::new(), Bytes::from_static(b"\xff"));
    let mut counts = [0; 4];
    for row in transaction.get_all(all, Read::Snapshot).await.unwrap() {
        match row.key.as_ref() {
            [0x15, 4, 0x14, 0x15, subspace @ 9..=11, ..] => counts[usize::from(*subspace) - 9] += 1,
            [0x15, 4, 0x15, _, 0x15, subspace @ 9..=11, ..] => counts[usize::from(*subspace) - 9] += 1,
            [0x15, 7, ..] => counts[3] += 1,
            _ => {}
        }
    }
    counts
}

fn names(attachments: &[Attachment]) -> Vec<&str> {
    attachments.iter().map(|attachment| attachment.name.as_str()).collect()
}

/// The revision that CouchDB computes.
pub(crate) fn revision(deleted: bool, parent: Option<&RevId>, body: &str, attachments: &[Attachment]) -> RevId {
    let digests: Vec<AttachmentDigest<'_>> = attachments
        .iter()
        .map(|one| AttachmentDigest { name: &one.name, content_type: &one.content_type, md5: one.digest })
        .collect();
    let body: JsonText = json(body);
    RevisionTerm { deleted, parent, body: &body, attachments: &digests }.revision().unwrap()
}

pub(crate) async fn attachments_are_written_inline_and_read_back(stage: Stage) {
    let documents = stage.documents().await;
    let put = with(
        edit("a", r#"{"n":1}"#),
        vec![
            inline("z.txt", "text/plain", "hello hello hello"),
            inline("a.bin", "application/octet-stream", vec![0, 1, 2]),
            inline("", "image/svg+xml", ""),
        ],
    );
    let first = documents.put(put).await.unwrap();
    let document = get(&documents, "a").await;
    assert_eq!(names(&document.attachments), ["z.txt", "a.bin", ""], "in the order that was sent");
    assert_eq!(first, revision(false, None, r#"{"n":1}"#, &document.attachments));
    let [text, binary, empty] = document.attachments.as_slice() else { panic!() };
    assert_eq!((text.encoding, text.length, text.revpos), (Encoding::Gzip, 17, 1));
    assert_eq!((binary.encoding, binary.length, binary.encoded_length), (Encoding::Identity, 3, 3));
    assert_eq!((empty.length, empty.digest_text().as_str()), (0, "md5-1B2M2Y8AsgTpgAmY7PhCfg=="));
    assert_eq!(content(&documents, "a", None, "z.txt").await, b"hello hello hello");
    assert_eq!(content(&documents, "a", Some(&first), "a.bin").await, [0, 1, 2]);
    assert_eq!(content(&documents, "a", None, "").await, b"");
    let expected = concat!(
        r#"{"_id":"a","_rev":"REV","n":1,"_attachments":{"#,
        r#""z.txt":{"content_type":"text/plain","revpos":1,"digest":"DIGEST","length":17,"stub":true},"#,
        r#""a.bin":{"content_type":"application/octet-stream","revpos":1,"digest":"md5-uV9n9h67A2GWIteY9F/C0w==","#,
        r#""length":3,"stub":true},"#,
        r#""":{"content_type":"image/svg+xml","revpos":1,"digest":"md5-1B2M2Y8AsgTpgAmY7PhCfg==","length":0,"stub":true}}}"#
    );
    let expected = expected.replace("REV", &first.to_string()).replace("DIGEST", &text.digest_text());
    assert_eq!(String::from_utf8(document.to_json()).unwrap(), expected);

    // With the data of the requested ones.
    let options = GetOptions { attachments: true, att_encoding_info: true, ..GetOptions::default() };
    let mut document = documents.get("a", &options).await.unwrap();
    documents.load_attachments(&mut document).await.unwrap();
    let text = String::from_utf8(document.to_json()).unwrap();
    assert!(text.contains(r#""data":"aGVsbG8gaGVsbG8gaGVsbG8=","encoding":"gzip","encoded_length":"#), "{text}");
    assert!(text.contains(r#""data":"AAEC"}"#), "{text}");
    let mut following = Vec::new();
    document.write_json_following(&mut following);
    assert!(String::from_utf8(following).unwrap().contains(r#""length":3,"follows":true}"#));

    // An edit that does not name them removes them, and no rows are left.
    let second = documents.put(edit("a", "{}").over(first.clone())).await.unwrap();
    assert_eq!(second, revision(false, Some(&first), "{}", &[]));
    assert!(get(&documents, "a").await.attachments.is_empty());
    assert_eq!(rows(&stage.engine()).await, [0, 0, 0, 0]);
    let error = documents.attachment("a", None, "z.txt").await.unwrap_err();
    assert_eq!((error.status(), error.reason().as_ref()), (404, "Document is missing attachment"));
    assert_sound(&documents).await;
}

pub(crate) async fn stubs_stand_for_what_the_replaced_leaf_has(stage: Stage) {
    let documents = stage.documents().await;
    let text = || inline("a.txt", "text/plain", "some text");
    let first = documents.put(with(edit("a", "{}"), vec![text(), inline("b", "x", "b")])).await.unwrap();
    let stub = AttachmentEdit::stub;
    let swapped = vec![stub("b"), AttachmentEdit { revpos: Some(1), ..stub("a.txt") }, inline("c", "x", "c")];
    let second = documents.put(with(edit("a", r#"{"n":2}"#).over(first.clone()), swapped)).await.unwrap();
    let document = get(&documents, "a").await;
    assert_eq!(names(&document.attachments), ["b", "a.txt", "c"]);
    assert_eq!(document.attachments.iter().map(|one| one.revpos).collect::<Vec<_>>(), [1, 1, 2]);
    assert_eq!(second, revision(false, Some(&first), r#"{"n":2}"#, &document.attachments));

    let refused = async |attachments: Vec<AttachmentEdit>, rev: Option<&RevId>| {
        let put = edit("a", "{}");
        let put = if let Some(rev) = rev { put.over(rev.clone()) } else { put };
        let before = rows(&stage.engine()).await;
        let error = documents.put(with(put, attachments)).await.unwrap_err();
        assert_eq!(rows(&stage.engine()).await, before, "nothing half stored");
        (error.status(), error.error().to_owned(), error.reason().into_owned())
    };
    let missing = |name: &str| (412, "missing_stub".to_owned(), format!("Invalid attachment stub in a for {name}"));
    assert_eq!(refused(vec![inline("n", "x", "new"), stub("d")], Some(&second)).await, missing("d"));
    let other = AttachmentEdit { revpos: Some(2), ..stub("b") };
    assert_eq!(refused(vec![other], Some(&second)).await, missing("b"));
    assert_eq!(refused(vec![stub("b")], Some(&first)).await.0, 409, "an old revision is a conflict first");
    assert_eq!(refused(vec![stub("b")], None).await.0, 409);
    let error = documents.put(with(edit("new", "{}"), vec![stub("b")])).await.unwrap_err();
    assert_eq!(error.status(), 412);

    // One bad stub fails the whole request.
    let batch = vec![edit("x", "{}"), with(edit("y", "{}"), vec![stub("b")]), edit("z", "{}")];
    assert_eq!(documents.write(batch, WriteMode::Interactive).await.unwrap_err().status(), 412);
    assert_eq!(documents.get("x", &GetOptions::default()).await.unwrap_err().status(), 404);

    // A deletion may keep them.
    let deletion = with(edit("a", "{}").over(second.clone()).deleting(), vec![stub("c")]);
    let third = documents.put(deletion).await.unwrap();
    let options = GetOptions { rev: Some(third.clone()), ..GetOptions::default() };
    let tombstone = documents.get("a", &options).await.unwrap();
    assert_eq!(names(&tombstone.attachments), ["c"]);
    assert_eq!(third, revision(true, Some(&second), "{}", &tombstone.attachments));
    assert_eq!(content(&documents, "a", Some(&third), "c").await, b"c");
    assert_eq!(rows(&stage.engine()).await, [1, 1, 1, 0]);
    assert_sound(&documents).await;

    // Over the tombstone, `revpos` starts again as in a new document.
    documents.put(with(edit("a", "{}"), vec![text()])).await.unwrap();
    assert_eq!(get(&documents, "a").await.attachments[0].revpos, 1);
    assert_eq!(rows(&stage.engine()).await, [1, 1, 1, 0]);
    assert_sound(&documents).await;
}

pub(crate) async fn a_content_is_stored_once_and_goes_with_the_last_that_has_it(stage: Stage) {
    let documents = stage.documents().await;
    let data = vec![7; 200_000];
    let same = || inline("f", "x", data.clone());
    let a = documents.put(with(edit("a", "{}"), vec![same(), inline("g", "other", data.clone())])).await.unwrap();
    assert_eq!(rows(&stage.engine()).await, [1, 3, 1, 0], "two names, one content, one leaf");
    let b = documents.put(with(edit("b", "{}"), vec![same()])).await.unwrap();
    let source = get(&documents, "a").await.attachments.remove(0);
    let c = documents.put(with(edit("c", "{}"), vec![AttachmentEdit::same(source.clone())])).await.unwrap();
    assert_eq!(get(&documents, "c").await.attachments[0], source);
    assert_eq!(rows(&stage.engine()).await, [1, 3, 3, 0]);
    // Branches have their own references.
    let branch = with(replicated("a", "1-x", "{}"), vec![same()]);
    merge(&documents, branch).await;
    assert_eq!(rows(&stage.engine()).await, [1, 3, 4, 0]);
    documents.put(edit("a", "{}").over(a).deleting()).await.unwrap();
    documents.put(edit("b", "{}").over(b).deleting()).await.unwrap();
    documents.put(edit("a", "{}").over(rev("1-x")).deleting()).await.unwrap();
    assert_eq!(rows(&stage.engine()).await, [1, 3, 1, 0]);
    assert_eq!(content(&documents, "c", None, "f").await, data);
    assert_sound(&documents).await;
    documents.put(edit("c", "{}").over(c).deleting()).await.unwrap();
    assert_eq!(rows(&stage.engine()).await, [0, 0, 0, 0]);

    // An attachment that was removed cannot be copied.
    let error = documents.put(with(edit("d", "{}"), vec![AttachmentEdit::same(source)])).await.unwrap_err();
    assert_eq!(error.status(), 412);
    assert_sound(&documents).await;
}

pub(crate) async fn replicated_attachments_keep_what_they_came_with(stage: Stage) {
    let documents = stage.documents().await;
    let at = |revpos: Option<u64>, attachment: AttachmentEdit| AttachmentEdit { revpos, ..attachment };
    let first = vec![at(Some(7), inline("a", "text/plain", "a")), inline("b", "x", "b")];
    merge(&documents, with(replicated("d", "3-c b a", "{}"), first)).await;
    let revpos = async || get(&documents, "d").await.attachments.iter().map(|one| one.revpos).collect::<Vec<_>>();
    assert_eq!(revpos().await, [7, 0]);

    // A stub is looked up in the nearest ancestor that is a leaf.
    let next = vec![at(Some(7), AttachmentEdit::stub("a")), at(Some(5), inline("n", "x", "n"))];
    merge(&documents, with(replicated("d", "5-e d c b", "{}"), next)).await;
    assert_eq!(revpos().await, [7, 5]);
    let stub = |path: &str| with(replicated("d", path, "{}"), vec![AttachmentEdit::stub("a")]);
    let known = documents.write(vec![stub("5-e d c b"), stub("3-c b a")], WriteMode::Replicated).await.unwrap();
    assert!(known.iter().all(Result::is_ok), "known revisions change nothing, whatever they bring: {known:?}");
    let error = documents.write(vec![stub("6-x y z")], WriteMode::Replicated).await.unwrap_err();
    assert_eq!((error.status(), error.error()), (412, "missing_stub"));

    // Attachments that are newer than a known revision.
    let wanted = async |since: &[&str]| {
        let atts_since = Some(since.iter().map(|text| rev(text)).collect());
        let document = documents.get("d", &GetOptions { atts_since, ..GetOptions::default() }).await.unwrap();
        let wanted: Vec<String> =
            document.attachments.into_iter().filter(|one| one.wanted).map(|one| one.name).collect();
        wanted.join(" ")
    };
    assert_eq!(wanted(&["5-e"]).await, "a", "7 is more than 5");
    assert_eq!(wanted(&["3-c", "1-zzz"]).await, "a n");
    assert_eq!(wanted(&["9-unknown"]).await, "a n");
    assert_eq!(wanted(&[]).await, "a n");
    assert_sound(&documents).await;
}

pub(crate) async fn attachments_are_put_and_deleted_by_name(stage: Stage) {
    let documents = stage.documents().await;
    let upload = async |text: &str| {
        let mut upload = documents.upload("x", UploadAs::Plain { content_type: "text/plain" });
        upload.write(text.as_bytes()).await.unwrap();
        upload.finish().await.unwrap()
    };
    let put = async |rev: Option<&RevId>, name: &str, text: &str| {
        documents.put_attachment("a", rev, name, "text/plain", upload(text).await).await
    };
    let first = put(None, "one", "1").await.unwrap();
    assert_eq!(put(None, "one", "1").await.unwrap_err().error(), "conflict");
    let second = put(Some(&first), "two", "2").await.unwrap();
    let third = put(Some(&second), "one", "3").await.unwrap();
    let document = get(&documents, "a").await;
    assert_eq!(names(&document.attachments), ["one", "two"], "a new one comes first");
    assert_eq!(document.attachments.iter().map(|one| one.revpos).collect::<Vec<_>>(), [3, 2]);
    assert_eq!(third, revision(false, Some(&second), "{}", &document.attachments));
    let unknown = put(Some(&rev("9-abc")), "x", "").await.unwrap_err();
    assert_eq!((unknown.status(), unknown.error(), unknown.reason().as_ref()), (409, "not_found", "missing_rev"));
    let replaced = put(Some(&first), "x", "").await.unwrap_err();
    assert_eq!((replaced.status(), replaced.error()), (409, "conflict"), "its body is gone, but the revision is known");
    assert_eq!(put(Some(&third), "_x", "").await.unwrap_err().status(), 400);

    let delete = async |rev: Option<&RevId>, name: &str| documents.delete_attachment("a", rev, name).await;
    for rev in [None, Some(&third)] {
        let error = delete(rev, "three").await.unwrap_err();
        assert_eq!((error.status(), error.reason().as_ref()), (404, "Document is missing attachment"));
    }
    assert_eq!(delete(None, "one").await.unwrap_err().status(), 409);
    let fourth = delete(Some(&third), "one").await.unwrap();
    let document = get(&documents, "a").await;
    assert_eq!((names(&document.attachments), document.rev), (vec!["two"], fourth.clone()));
    documents.put(edit("a", "{}").over(fourth).deleting()).await.unwrap();
    assert_eq!(rows(&stage.engine()).await, [0, 0, 0, 0]);
    let error = documents.attachment("a", None, "two").await.unwrap_err();
    assert_eq!((error.status(), error.reason().as_ref()), (404, "deleted"));

    put(None, "again", "4").await.unwrap();
    let document = get(&documents, "a").await;
    assert_eq!((document.rev.position(), document.attachments[0].revpos), (6, 1), "over a tombstone");
    assert_sound(&documents).await;
}
