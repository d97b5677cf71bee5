//! Revisions compared with those of Erlang.
//!
//! Erlang/OTP 25 wrote `revisions.jsonl`: random bodies, each with the MD5 hash of its term as `couch_db:new_revid`
//! builds it. Attachment number `n` is `a{n}.txt`, `text/plain`, with the digest of sixteen bytes `n`.

use model::{AttachmentDigest, JsonText, RevId, RevisionTerm};
use serde_json::Value;

fn revision(deleted: bool, parent: Option<&str>, attachments: u8, body: &[u8]) -> String {
    let parent = parent.map(|parent| RevId::parse(parent).unwrap());
    let names: Vec<String> = (0..attachments).map(|number| format!("a{number}.txt")).collect();
    let attachments: Vec<AttachmentDigest<'_>> = (0..)
        .zip(&names)
        .map(|(number, name)| AttachmentDigest { name, content_type: "text/plain", md5: [number; 16] })
        .collect();
    let body = JsonText::parse(body).unwrap();
    let edit = RevisionTerm { deleted, parent: parent.as_ref(), body: &body, attachments: &attachments };
    edit.revision().unwrap().hash().to_string()
}

#[test]
fn erlang_makes_the_same_hashes() {
    for (number, line) in include_str!("revisions.jsonl").lines().enumerate() {
        let case: Value = serde_json::from_str(line).unwrap();
        let attachments = case["attachments"].as_u64().unwrap() as u8;
        let body = case["body"].as_str().unwrap();
        let hash = revision(case["deleted"].as_bool().unwrap(), case["parent"].as_str(), attachments, body.as_bytes());
        assert_eq!(hash, case["hash"], "line {}: {line}", number + 1);
    }
}

#[test]
fn a_list_of_bytes_is_a_string_up_to_65535() {
    let list = |length: usize| format!(r##"{{"#":[{}]}}"##, vec!["7"; length].join(","));
    assert_eq!(revision(false, None, 0, list(65_535).as_bytes()), "2aad9bfbe0cc15a7c7d61f566e08d909");
    assert_eq!(revision(false, None, 0, list(65_536).as_bytes()), "96af4be93986a9e0d06b0d8d210bd371");
}

#[test]
fn the_text_of_a_body_does_not_matter_but_its_order_does() {
    let plain = revision(false, None, 0, br#"{"a":"\n/","b":100.0}"#);
    assert_eq!(revision(false, None, 0, b" { \"\\u0061\" : \"\\u000a\\/\", \"b\": 1E2 } "), plain);
    assert_eq!(revision(false, None, 0, br#"{"a":0,"a":"\n/","b":1e2}"#), plain);
    assert_ne!(revision(false, None, 0, br#"{"b":100.0,"a":"\n/"}"#), plain);
    assert_ne!(revision(false, None, 0, br#"{"a":"\n/","b":100}"#), plain);
}

#[test]
fn nesting_is_hashed_without_recursion() {
    let depth = 500_000;
    let body = format!(r#"{{"a":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    assert_eq!(revision(false, None, 0, body.as_bytes()).len(), 32);
}
